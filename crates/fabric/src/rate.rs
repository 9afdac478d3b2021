//! What links carry, as data: InfiniBand's generations, Ethernet, PCIe, NVLink, and which part of it
//! arrives.
//!
//! A [`Rate`] is what one link carries in one direction. InfiniBand's tools write it in four ways
//! (`4xNDR`, `4X 106.25 Gbps`, `Rate: 400`, codes): all are read here and nowhere else.
//!
//! *Invariant:* a rate is data, not signalling: 4xQDR is 32 Gb/s though its lanes tick at 40.

use std::fmt;

use serde::{Serialize, Serializer};

/// One generation of InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Generation {
    /// As `ibnetdiscover` writes it.
    pub name: &'static str,
    /// A lane's signalling rate as `iblinkinfo` writes it, in Gb/s.
    pub lane: &'static str,
    /// What `ibstat` calls the rate of four lanes, in Gb/s.
    pub stated_gbps: u32,
    /// What four lanes carry, in Mb/s.
    pub data_mbps: u32,
}

/// The generations, the slowest first.
pub const INFINIBAND: [Generation; 9] = [
    Generation { name: "SDR", lane: "2.5", stated_gbps: 10, data_mbps: 8_000 },
    Generation { name: "DDR", lane: "5.0", stated_gbps: 20, data_mbps: 16_000 },
    Generation { name: "QDR", lane: "10.0", stated_gbps: 40, data_mbps: 32_000 },
    Generation { name: "FDR10", lane: "10.0 (FDR10)", stated_gbps: 41, data_mbps: 38_800 },
    Generation { name: "FDR", lane: "14.0625", stated_gbps: 56, data_mbps: 54_500 },
    Generation { name: "EDR", lane: "25.78125", stated_gbps: 100, data_mbps: 100_000 },
    Generation { name: "HDR", lane: "53.125", stated_gbps: 200, data_mbps: 200_000 },
    Generation { name: "NDR", lane: "106.25", stated_gbps: 400, data_mbps: 400_000 },
    Generation { name: "XDR", lane: "212.5", stated_gbps: 800, data_mbps: 800_000 },
];

/// Rates of Ethernet ports that carry RoCE, in Gb/s.
pub const ETHERNET_GBPS: [u32; 9] = [10, 25, 40, 50, 100, 200, 400, 800, 1600];

/// What is inside a node: one direction, in GB/s.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Inside {
    /// What it is.
    pub name: &'static str,
    /// What the maker states.
    pub stated: f64,
    /// What transfers reach.
    pub reached: f64,
}

/// PCI Express, 16 lanes.
pub const PCIE_X16: [Inside; 4] = [
    Inside { name: "PCIe 3.0 x16", stated: 15.75, reached: 12.0 },
    Inside { name: "PCIe 4.0 x16", stated: 31.5, reached: 24.0 },
    Inside { name: "PCIe 5.0 x16", stated: 63.0, reached: 48.0 },
    Inside { name: "PCIe 6.0 x16", stated: 121.0, reached: 96.0 },
];

/// NVLink, all links of a GPU.
pub const NVLINK: [Inside; 4] = [
    Inside { name: "V100, 6 links", stated: 150.0, reached: 120.0 },
    Inside { name: "A100, 12 links", stated: 300.0, reached: 235.0 },
    Inside { name: "H100 and H200, 18 links", stated: 450.0, reached: 367.0 },
    Inside { name: "B200, 18 links", stated: 900.0, reached: 682.0 },
];

/// Which part of a rate arrives, and by which experience.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rule {
    /// Short and stable.
    pub name: &'static str,
    /// The part that arrives.
    pub part: f64,
    /// Of what, and where the number comes from.
    pub of: &'static str,
}

/// Rules of effective bandwidth.
pub const RULES: [Rule; 9] = [
    Rule {
        name: "nic",
        part: 0.95,
        of: "an adapter's rate, by RDMA writes: operators' floors are 380 of 400, 192 of 200",
    },
    Rule { name: "nvlink", part: 0.80, of: "NVLink's stated rate, by a ring inside a node" },
    Rule {
        name: "collective-1g",
        part: 0.90,
        of: "the adapters' rate, by an all-reduce of 1 GiB on up to 8 nodes",
    },
    Rule {
        name: "collective-16m",
        part: 0.13,
        of: "the adapters' rate, by an all-reduce of 16 MiB on 8 nodes",
    },
    Rule {
        name: "adaptive",
        part: 0.92,
        of: "a tier's links, with adaptive routing (a textbook's number)",
    },
    Rule { name: "ecmp-1", part: 0.26, of: "64 uplinks, 64 flows hashed with 1 queue pair each" },
    Rule { name: "ecmp-4", part: 0.43, of: "the same with 4 queue pairs each" },
    Rule { name: "ecmp-16", part: 0.62, of: "the same with 16 queue pairs each" },
    Rule { name: "ecmp-32", part: 0.70, of: "the same with 32 queue pairs each" },
];

/// The rule of this name.
#[must_use]
pub fn rule(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.name == name)
}

/// What one link carries in one direction.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Rate {
    mbps: u32,
    width: u8,
    /// Place in [`INFINIBAND`]; none for Ethernet.
    generation: Option<u8>,
}

impl Rate {
    /// InfiniBand: lanes and the generation's name (`NDR`).
    #[must_use]
    pub fn infiniband(width: u8, name: &str) -> Option<Self> {
        let place = INFINIBAND.iter().position(|generation| generation.name == name)?;
        Self::lanes(width, place)
    }

    /// Ethernet, in Gb/s; at most 10,000.
    #[must_use]
    pub fn ethernet(gbps: u32) -> Option<Self> {
        let fits = (1..=10_000).contains(&gbps);
        fits.then(|| Self { mbps: gbps * 1000, width: 0, generation: None })
    }

    /// `4xNDR`, `12xQDR`, `400G`, `400Gb/s`, `100M`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = text.split_at(digits);
        match rest {
            "" | "G" | "Gb/s" | "Gbps" => Self::ethernet(number.parse().ok()?),
            "M" | "Mb/s" | "Mbps" => {
                let mbps = number.parse().ok().filter(|mbps| (1..=10_000_000).contains(mbps))?;
                Some(Self { mbps, width: 0, generation: None })
            }
            _ => {
                let name = rest.strip_prefix(['x', 'X'])?;
                Self::infiniband(number.parse().ok()?, name)
            }
        }
    }

    /// A rate that people ask for: a generation of four lanes (`NDR`), `4xHDR`, `400`, `400G`.
    #[must_use]
    pub fn wanted(text: &str) -> Option<Self> {
        Self::infiniband(4, &text.to_ascii_uppercase()).or_else(|| Self::parse(text))
    }

    /// What `iblinkinfo` says: lanes, a lane's Gb/s, and whether it is FDR10.
    #[must_use]
    pub fn from_lane(width: u8, lane: &str, fdr10: bool) -> Option<Self> {
        if fdr10 {
            return Self::infiniband(width, "FDR10");
        }
        let place = INFINIBAND.iter().position(|generation| generation.lane == lane)?;
        Self::lanes(width, place)
    }

    /// What `ibstat` says: Gb/s of the port. Four lanes are taken for granted, as `ibstat` does not tell them.
    #[must_use]
    pub fn from_stated(gbps: u32) -> Option<Self> {
        match INFINIBAND.iter().position(|generation| generation.stated_gbps == gbps) {
            Some(place) => Self::lanes(4, place),
            None => Self::ethernet(gbps),
        }
    }

    fn lanes(width: u8, place: usize) -> Option<Self> {
        if !matches!(width, 1 | 2 | 4 | 8 | 12) {
            return None;
        }
        let mbps = INFINIBAND[place].data_mbps / 4 * u32::from(width);
        Some(Self { mbps, width, generation: u8::try_from(place).ok() })
    }

    /// Gb/s in one direction.
    #[must_use]
    pub fn gbps(self) -> f64 {
        f64::from(self.mbps) / 1000.0
    }

    /// Mb/s in one direction.
    #[must_use]
    pub fn mbps(self) -> u32 {
        self.mbps
    }

    /// Lanes; 0 where they are not told.
    #[must_use]
    pub fn width(self) -> u8 {
        self.width
    }

    /// The generation's name; nothing for Ethernet.
    #[must_use]
    pub fn generation(self) -> Option<&'static str> {
        self.generation.map(|place| INFINIBAND[usize::from(place)].name)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation() {
            Some(name) => f.pad(&format!("{}x{name}", self.width)),
            None if self.mbps.is_multiple_of(1000) => f.pad(&format!("{}G", self.mbps / 1000)),
            None => f.pad(&format!("{}M", self.mbps)),
        }
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Gb/s as people write it.
#[must_use]
pub fn bandwidth(gbps: f64) -> String {
    let (value, unit) = match gbps {
        gbps if gbps >= 1_000_000.0 => (gbps / 1_000_000.0, "Pb/s"),
        gbps if gbps >= 10_000.0 => (gbps / 1000.0, "Tb/s"),
        gbps => (gbps, "Gb/s"),
    };
    let text = if value >= 100.0 || (value - value.round()).abs() < 0.005 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    };
    format!("{text} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_ways_of_writing_one_rate_agree() {
        let four = [
            Rate::parse("4xNDR"),
            Rate::from_lane(4, "106.25", false),
            Rate::from_stated(400),
            Rate::wanted("ndr"),
        ];
        for rate in four {
            assert_eq!(rate.map(Rate::gbps), Some(400.0), "{rate:?}");
        }
        assert_eq!(Rate::parse("4xNDR").map(|rate| rate.to_string()).as_deref(), Some("4xNDR"));
    }

    #[test]
    fn data_rates_are_those_of_the_standard() {
        let data: Vec<f64> =
            INFINIBAND.iter().filter_map(|g| Rate::infiniband(4, g.name).map(Rate::gbps)).collect();
        assert_eq!(data, [8.0, 16.0, 32.0, 38.8, 54.5, 100.0, 200.0, 400.0, 800.0]);
        assert_eq!(Rate::infiniband(1, "SDR").map(Rate::gbps), Some(2.0));
        assert_eq!(Rate::from_lane(4, "10.0", true), Rate::parse("4xFDR10"));
    }

    #[test]
    fn nonsense_is_no_rate() {
        for text in ["", "x", "4x", "4xNDDR", "0", "400Q", "999999999999", "5xNDR", "G"] {
            assert_eq!(Rate::parse(text), None, "{text}");
        }
        assert_eq!(Rate::parse("400G"), Rate::ethernet(400));
    }

    #[test]
    fn bandwidth_reads_well() {
        assert_eq!(bandwidth(400.0), "400 Gb/s");
        assert_eq!(bandwidth(54.5), "54.5 Gb/s");
        assert_eq!(bandwidth(819_200.0), "819 Tb/s");
    }
}
