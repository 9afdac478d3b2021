//! What PCI configuration spaces say.

use std::collections::BTreeSet;

use ringway_plan::topology::bus::BusId;

use crate::doctor::checks::{Seen, Tally};
use crate::doctor::host::Host;

const ACS: u16 = 0b1_1100;

/// Bridges above GPUs and NICs.
fn bridges(host: &Host) -> BTreeSet<BusId> {
    let devices = host.gpus().into_iter().chain(host.rails());
    devices.flat_map(|device| device.above.iter().copied()).collect()
}

pub(super) fn access_control(host: &Host) -> Seen {
    if host.is_virtual() {
        return Seen::absent("a virtual machine: there the hypervisor needs ACS (see pci-06)");
    }
    if host.gpus().is_empty() {
        return Seen::absent("no GPU");
    }
    let mut tally = Tally::default();
    let mut guilty = Vec::new();
    for bridge in bridges(host) {
        match host.config(bridge) {
            Ok(config) => match config.acs {
                Some(control) if control & ACS != 0 => {
                    guilty.push(bridge.to_string());
                    tally.fail(format!("{bridge}: ACSCtl = 0x{control:04x} ({})", flags(control)));
                }
                Some(control) => tally.well(format!("{bridge}: ACSCtl = 0x{control:04x}")),
                None => tally.well(format!("{bridge}: no ACS")),
            },
            Err(why) => tally.unknown(why),
        }
    }
    let seen = tally.seen(
        "no bridge above a GPU or NIC",
        "bridges let peer traffic through",
        "bridges that send peer traffic to the root",
    );
    if guilty.is_empty() {
        return seen;
    }
    let list = guilty.join(" ");
    seen.fixed_by(format!(
        "for b in {list}; do setpci -s $b ECAP_ACS+0x6.w=0000; done; for good: ACS off in the BIOS, or a boot unit"
    ))
}

fn flags(control: u16) -> String {
    let names = ["SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd"];
    let set = names.iter().enumerate().filter(|(bit, _)| control >> bit & 1 == 1);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
}

pub(super) fn translation(host: &Host) -> Seen {
    if !host.is_virtual() || host.gpus().is_empty() || host.hcas().is_empty() {
        return Seen::absent("no virtual machine with GPUs and RDMA");
    }
    let mut tally = Tally::default();
    for nic in host.rails().into_iter().filter(|nic| nic.vendor == 0x15b3) {
        match host.config(nic.bus) {
            Ok(config) => match config.ats {
                Some(true) => tally.well(format!("{}: ATS on", nic.bus)),
                Some(false) => tally.fail(format!("{}: ATS off", nic.bus)),
                None => tally.fail(format!("{}: no ATS capability", nic.bus)),
            },
            Err(why) => tally.unknown(why),
        }
    }
    tally.seen(
        "no NIC",
        "NICs translate addresses themselves",
        "NICs that do not translate addresses themselves",
    )
}

pub(super) fn read_request(host: &Host) -> Seen {
    if host.hcas().is_empty() {
        return Seen::absent("no RDMA device");
    }
    let mut tally = Tally::default();
    for nic in host.whole_rails() {
        match host.config(nic.bus) {
            Ok(config) => {
                let line = format!("{}: MaxReadReq = {}", nic.bus, config.read_request);
                match config.read_request {
                    4096.. => tally.well(line),
                    512..4096 => tally.warn(line),
                    _ => tally.fail(line),
                }
            }
            Err(why) => tally.unknown(why),
        }
    }
    tally.seen(
        "no NIC",
        "NICs ask for 4096 bytes in one read",
        "NICs that ask for less than 4096 bytes in one read",
    )
}

pub(super) fn payload(host: &Host) -> Seen {
    if host.hcas().is_empty() {
        return Seen::absent("no RDMA device");
    }
    let mut tally = Tally::default();
    for nic in host.whole_rails() {
        let mut sizes = Vec::new();
        let mut trouble = None;
        for address in super::path_up(nic) {
            match host.config(address) {
                Ok(config) => sizes.push(config.payload),
                Err(why) => trouble = Some(why),
            }
        }
        if let Some(why) = trouble {
            tally.unknown(why);
            continue;
        }
        let list: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        let line = format!("{}: MaxPayload up to the root = {}", nic.bus, list.join(", "));
        let (least, most) = (sizes.iter().min(), sizes.iter().max());
        if least != most {
            tally.fail(line);
        } else if least.is_some_and(|least| *least < 256) {
            tally.warn(line);
        } else {
            tally.well(line);
        }
    }
    tally.seen(
        "no NIC",
        "packets carry the same payload up to the root",
        "NICs with small or uneven payload",
    )
}

/// Processors that lose bandwidth without relaxed ordering: AMD's EPYC, Intel's Sapphire and Emerald Rapids.
fn needs_relaxed_ordering(host: &Host) -> bool {
    let processor = &host.machine().processor;
    match processor.vendor.as_str() {
        "AuthenticAMD" => processor.family >= 23,
        "GenuineIntel" => processor.family == 6 && [143, 207].contains(&processor.model),
        _ => false,
    }
}

/// Relaxed ordering: gdr-08.
pub(in crate::doctor::checks) fn relaxed_ordering(host: &Host) -> Seen {
    if host.hcas().is_empty() {
        return Seen::absent("no RDMA device");
    }
    if !needs_relaxed_ordering(host) {
        return Seen::absent("a processor that does as well without");
    }
    if host.variable("NCCL_IB_PCI_RELAXED_ORDERING") == Some("0") {
        return Seen::warn("relaxed ordering is switched off", "NCCL_IB_PCI_RELAXED_ORDERING = 0")
            .fixed_by("unset NCCL_IB_PCI_RELAXED_ORDERING");
    }
    let mut tally = Tally::default();
    for nic in host.whole_rails() {
        match host.config(nic.bus) {
            Ok(config) if config.relaxed => tally.well(format!("{}: RlxdOrd+", nic.bus)),
            Ok(_) => tally.fail(format!("{}: RlxdOrd-", nic.bus)),
            Err(why) => tally.unknown(why),
        }
    }
    tally.seen("no NIC", "NICs may use relaxed ordering", "NICs that may not use relaxed ordering")
}
