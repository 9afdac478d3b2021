//! The variables that decide on paths, as NCCL reads them.

use ringway::config::Environment;
use ringway_plan::topology::channel::CrossNic;
use ringway_plan::topology::hca::HcaFilter;
use ringway_plan::topology::level::{Levels, parse_level};
use ringway_plan::topology::path::PathClass;

use crate::env::catalogue::parse_whole;

/// What the environment says.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) levels: Levels,
    pub(super) hca: HcaFilter,
    pub(super) cross: CrossNic,
    /// What is odd about it.
    pub(super) remarks: Vec<String>,
}

impl Settings {
    pub(super) fn read(environment: &Environment) -> Self {
        let mut remarks = Vec::new();
        let mut level = |names: &[&str]| {
            let (name, text) =
                names.iter().find_map(|name| Some((*name, environment.get(name)?)))?;
            let level = parse_level(text);
            if level.is_none() {
                let words = "LOC, NVL, PIX, PXB, PXN, PHB, SYS or 0 to 5";
                remarks.push(format!("{name}={text} is ignored, by NCCL too: not one of {words}"));
            }
            level
        };
        let gdr = level(&["NCCL_NET_GDR_LEVEL", "NCCL_IB_GDR_LEVEL"]);
        let p2p = level(&["NCCL_P2P_LEVEL"]);
        let number = |name: &str| environment.get(name).and_then(|text| parse_whole(text.trim()));
        let disabled = number("NCCL_P2P_DISABLE") == Some(1);
        let hca = HcaFilter::parse(environment.get("NCCL_IB_HCA").unwrap_or_default());
        remarks.extend(hca.remarks());
        Self {
            levels: Levels {
                p2p: if disabled { Some(PathClass::Loc) } else { p2p },
                gdr,
                gdr_read: number("NCCL_NET_GDR_READ").filter(|n| *n >= 0).map(|n| n != 0),
                gdr_c2c: number("NCCL_NET_GDR_C2C") != Some(0),
                pxn: number("NCCL_PXN_DISABLE") != Some(1),
                pxn_c2c: number("NCCL_PXN_C2C") != Some(0),
            },
            hca,
            cross: number("NCCL_CROSS_NIC")
                .map(|number| CrossNic::parse(&number.to_string()))
                .unwrap_or_default(),
            remarks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_become_levels_and_typos_are_named() {
        let read = |variables: &[(&str, &str)]| {
            Settings::read(&Environment::new(variables.iter().copied()))
        };
        let settings = read(&[("NCCL_NET_GDR_LEVEL", "PHB"), ("NCCL_P2P_LEVEL", "4")]);
        assert_eq!(settings.levels.gdr, Some(PathClass::Phb));
        assert_eq!(settings.levels.p2p, Some(PathClass::Sys));
        assert_eq!(read(&[("NCCL_P2P_DISABLE", "1")]).levels.p2p, Some(PathClass::Loc));
        assert_eq!(read(&[("NCCL_IB_GDR_LEVEL", "2")]).levels.gdr, Some(PathClass::Pxb));
        assert!(!read(&[("NCCL_PXN_DISABLE", "1")]).levels.pxn);
        // As strtoll reads them, with base 0.
        assert!(!read(&[("NCCL_PXN_DISABLE", "0x1")]).levels.pxn);
        assert!(!read(&[("NCCL_NET_GDR_C2C", "00")]).levels.gdr_c2c);
        assert_eq!(read(&[("NCCL_P2P_DISABLE", "01")]).levels.p2p, Some(PathClass::Loc));
        assert_eq!(read(&[("NCCL_CROSS_NIC", "0x1")]).cross, CrossNic::Always);
        let odd = read(&[("NCCL_NET_GDR_LEVEL", "phb"), ("NCCL_IB_HCA", "^")]);
        assert_eq!((odd.levels.gdr, odd.remarks.len()), (None, 2));
        assert_eq!(read(&[]).levels, Levels::default());
    }
}
