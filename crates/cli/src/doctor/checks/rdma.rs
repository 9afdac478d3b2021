//! RDMA ports: state, rate, subnet manager, firmware.

use std::collections::BTreeMap;

use ringway::topo::PciDevice;
use ringway_plan::topology::bus::BusId;

use super::{Check, Seen, Tally};
use crate::doctor::host::{
    BitErrors, Host, Port, Which, board, is_virtual_function, link_gigabytes,
};

const CLASS: &str = "/sys/class/infiniband";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "ibl-01",
        group: "rdma",
        about: "RDMA ports are active",
        reads: "/sys/class/infiniband/*/ports/*/state",
        cost: "NCCL leaves out ports that are not active without a word: 1 of 8 is 12.5 % of the bandwidth",
        fix: "InfiniBand: start the subnet manager; RoCE: ip link set INTERFACE up; cable",
        root: false,
        look: state,
    },
    Check {
        id: "ibl-02",
        group: "rdma",
        about: "active ports have a physical link",
        reads: "/sys/class/infiniband/*/ports/*/phys_state",
        cost: "a port that polls has no light: it carries nothing",
        fix: "exchange cable or optic; mlxlink -d DEVICE -m",
        root: false,
        look: physical,
    },
    Check {
        id: "ibl-03",
        group: "rdma",
        about: "ports of one board have one rate",
        reads: "/sys/class/infiniband/*/ports/*/rate",
        cost: "the slowest rail sets the speed: 200 instead of 400 Gb/s halves all",
        fix: "reseat the cable; check the splitter; mlxlink -d DEVICE --speeds",
        root: false,
        look: rate,
    },
    Check {
        id: "ibl-04",
        group: "rdma",
        about: "InfiniBand ports have a subnet manager",
        reads: "/sys/class/infiniband/*/ports/*/{lid,sm_lid}",
        cost: "without a LID no connection is made at all",
        fix: "systemctl start opensm on one machine of the fabric, or enable UFM",
        root: false,
        look: subnet_manager,
    },
    Check {
        id: "ibl-05",
        group: "rdma",
        about: "active ports have one link layer",
        reads: "/sys/class/infiniband/*/ports/*/link_layer, NCCL_IB_HCA",
        cost: "NCCL refuses to connect InfiniBand with RoCE ports: the job does not start",
        fix: "NCCL_IB_HCA==mlx5_0,mlx5_1,… with the ports of one kind",
        root: false,
        look: link_layer,
    },
    Check {
        id: "ibl-06",
        group: "rdma",
        about: "devices of one board have one firmware",
        reads: "/sys/class/infiniband/*/{fw_ver,board_id}",
        cost: "one NIC with older firmware is a common cause of rare errors on all ranks",
        fix: "mlxfwmanager -u, or mstflint, on the odd one",
        root: false,
        look: firmware,
    },
    Check {
        id: "ibl-07",
        group: "rdma",
        about: "devices have a GUID",
        reads: "/sys/class/infiniband/*/node_guid",
        cost: "a virtual function without one cannot connect: pods do not start",
        fix: "ip link set PF vf N node_guid GUID port_guid GUID, then bind the function again",
        root: false,
        look: guid,
    },
    Check {
        id: "ibl-08",
        group: "rdma",
        about: "no link went down since boot",
        reads: "dmesg",
        cost: "each flap stalls its connections up to 4.3 s x 7 retries, about 30 s, or kills the job",
        fix: "exchange cable or optic; drain the machine while links flap",
        root: true,
        look: flaps,
    },
    Check {
        id: "ibl-09",
        group: "rdma",
        about: "links get few bits wrong",
        reads: "mlxlink -d DEVICE -c",
        cost: "above 1e-7 correction fails now and then: packets are lost and sent again, then the link goes down",
        fix: "clean or exchange the optic; update the transceiver's firmware; mlxlink -d DEVICE -m",
        root: true,
        look: bit_errors,
    },
    Check {
        id: "ibl-10",
        group: "rdma",
        about: "PCIe carries what the port does",
        reads: "PCIe link of each NIC, rate of its ports",
        cost: "Gen4 x16 carries about 24 GB/s, a 400G port 50",
        fix: "move the NIC to a faster slot, or count on the lower rate",
        root: false,
        look: pcie_capacity,
    },
    Check {
        id: "rdma-driver",
        group: "rdma",
        about: "RDMA NICs have an RDMA device",
        reads: "/sys/bus/pci/devices, /sys/class/infiniband, /sys/module",
        cost: "traffic falls back to TCP: 25 to 5 GB/s",
        fix: "modprobe mlx5_ib ib_uverbs rdma_ucm (EFA: modprobe efa)",
        root: false,
        look: driver,
    },
    Check {
        id: "rdma-modules",
        group: "rdma",
        about: "programs can open RDMA devices (ib_uverbs)",
        reads: "/sys/module/ib_uverbs",
        cost: "NCCL finds no device and falls back to TCP: 25 to 5 GB/s",
        fix: "modprobe ib_uverbs",
        root: false,
        look: modules,
    },
];

/// Ports of the same board and link layer: those that should be alike.
fn peers(host: &Host) -> BTreeMap<(&str, bool), Vec<Port<'_>>> {
    let mut boards = BTreeMap::<_, Vec<_>>::new();
    for port in host.ports() {
        boards.entry((board(port.device), port.is_ethernet())).or_default().push(port);
    }
    boards
}

fn state(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for ports in peers(host).values() {
        let any = ports.iter().any(|port| port.is_active());
        for port in ports {
            let line = format!("{CLASS}/{}/state = {}", port.place(), port.state);
            let chosen = host.chooses(port);
            // A board of which no port is used was perhaps never cabled.
            match (port.is_active(), any) {
                (true, _) => tally.well(line),
                (false, _) if !chosen => tally.warn(format!("{line} (not in NCCL_IB_HCA)")),
                (false, true) => tally.fail(line),
                (false, false) => tally.warn(format!("{line} (as all ports of this kind)")),
            }
        }
    }
    tally.seen("no RDMA device", "RDMA ports are active", "ports that are not active")
}

fn physical(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for port in host.ports() {
        let line = format!("{CLASS}/{}/phys_state = {}", port.place(), port.physical_state);
        match (port.physical_state.as_str(), port.is_active()) {
            ("LinkUp", _) => tally.well(line),
            ("", _) => tally.unknown(line),
            // A port that is down is told by ibl-01.
            (_, false) if ["Disabled", "Polling"].contains(&port.physical_state.as_str()) => {
                tally.well(line)
            }
            _ => tally.fail(line),
        }
    }
    tally.seen(
        "no RDMA device",
        "active ports have a physical link",
        "ports whose physical link is not up",
    )
}

fn bit_errors(host: &Host) -> Seen {
    let mut tally = Tally::default();
    let mut why = None;
    for hca in host.hcas() {
        let of_its_own = hca.bus.and_then(|bus| host.pci_at(bus));
        if !hca.name.starts_with("mlx5_")
            || of_its_own.is_some_and(is_virtual_function)
            || !hca.ports.iter().any(|port| port.is_active())
        {
            continue;
        }
        let found = match host.output(&format!("mlxlink-{}", hca.name)) {
            Ok(text) => BitErrors::parse(&text),
            Err(error) => {
                why = Some(error);
                continue;
            }
        };
        let Some(BitErrors { raw, effective }) = found else { continue };
        let shown =
            |rate: Option<f64>| rate.map_or_else(|| "?".to_owned(), |rate| format!("{rate:.0e}"));
        let line = format!(
            "mlxlink -d {} -c: raw {}, effective {}",
            hca.name,
            shown(raw),
            shown(effective)
        );
        let (raw, effective) = (raw.unwrap_or(0.0), effective.unwrap_or(0.0));
        if raw > 1e-7 || effective > 1e-12 {
            tally.fail(line);
        } else if raw > 1e-8 || effective > 1e-14 {
            tally.warn(line);
        } else {
            tally.well(line);
        }
    }
    let good = "links get few bits wrong";
    let seen = tally.seen("no port tells of bit errors", good, "links that get many bits wrong");
    match why {
        Some(why) if seen.verdict.is_none() => {
            Seen::unknown(format!("could not look whether {good}"), why)
        }
        _ => seen,
    }
}

fn rate(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for ports in peers(host).values() {
        let active = ports.iter().filter(|port| port.is_active());
        let most = active.filter_map(Port::gigabits).fold(0.0, f64::max);
        for port in ports.iter().filter(|port| port.is_active()) {
            let line = format!(
                "{CLASS}/{}/rate = {}; the fastest of its kind has {most}",
                port.place(),
                port.rate
            );
            match port.gigabits() {
                Some(rate) if rate < most => tally.fail(line),
                Some(_) => tally.well(line),
                None => tally.unknown(line),
            }
        }
    }
    tally.seen(
        "no active RDMA port",
        "ports of one board have one rate",
        "ports slower than others of their kind",
    )
}

fn subnet_manager(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for port in host.ports() {
        if !port.is_infiniband() || !port.is_active() && !port.state.eq_ignore_ascii_case("init") {
            continue;
        }
        let Some((lid, manager)) = port.lid.zip(port.sm_lid) else { continue };
        let line = format!("{CLASS}/{}: lid = {lid}, sm_lid = {manager}", port.place());
        if lid == 0 || manager == 0 { tally.fail(line) } else { tally.well(line) }
    }
    tally.seen(
        "no InfiniBand port",
        "InfiniBand ports have a subnet manager",
        "ports without a subnet manager",
    )
}

fn link_layer(host: &Host) -> Seen {
    let mut active = host.ports();
    active.retain(|port| port.is_active() && (port.is_ethernet() || port.is_infiniband()));
    if active.is_empty() {
        return Seen::absent("no active port of InfiniBand or RoCE");
    }
    let names = |ethernet: bool, all: bool| -> Vec<String> {
        let used = active.iter().filter(|port| all || host.chooses(port));
        used.filter(|port| port.is_ethernet() == ethernet).map(Port::name).collect()
    };
    let both = |all: bool| !names(true, all).is_empty() && !names(false, all).is_empty();
    let evidence = format!(
        "InfiniBand: {}; Ethernet: {}",
        list(&names(false, true)),
        list(&names(true, true))
    );
    match (both(true), both(false), host.variable("NCCL_IB_HCA").filter(|hca| !hca.is_empty())) {
        (false, ..) => Seen::well("active ports have one link layer", evidence),
        (true, false, filter) => {
            Seen::well("ports of both link layers, and NCCL_IB_HCA chooses", evidence)
                .and(format!("NCCL_IB_HCA = {}", filter.unwrap_or_default()))
        }
        (true, true, Some(filter)) => {
            Seen::warn("NCCL_IB_HCA chooses ports of both link layers", evidence)
                .and(format!("NCCL_IB_HCA = {filter}"))
        }
        (true, true, None) if !host.knows_variables() => {
            Seen::unknown("active ports of both link layers; what chooses is not known", evidence)
        }
        (true, true, None) => {
            Seen::warn("active ports of both link layers, and nothing chooses", evidence)
        }
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

fn firmware(host: &Host) -> Seen {
    let mut boards = BTreeMap::<&str, BTreeMap<&str, Vec<&str>>>::new();
    for hca in host.hcas() {
        if let Some(firmware) = &hca.firmware {
            boards.entry(board(hca)).or_default().entry(firmware).or_default().push(&hca.name);
        }
    }
    let mut tally = Tally::default();
    for (board, versions) in &boards {
        let devices: usize = versions.values().map(Vec::len).sum();
        for (version, names) in versions {
            let line = format!("{board}: fw_ver = {version} on {}", names.join(" "));
            // Where no version has more than half of the devices all of them are odd.
            if names.len() * 2 > devices { tally.well(line) } else { tally.fail(line) }
        }
    }
    tally.seen(
        "no RDMA device",
        "devices of one board have one firmware",
        "firmware that differs from its peers'",
    )
}

fn guid(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for hca in host.hcas() {
        let Some(guid) = &hca.node_guid else { continue };
        let line = format!("{CLASS}/{}/node_guid = {guid}", hca.name);
        let zero = guid.trim_start_matches("0x").chars().all(|c| c == '0' || c == ':');
        if zero { tally.fail(line) } else { tally.well(line) }
    }
    tally.seen("no RDMA device", "devices have a GUID", "devices whose GUID is zero")
}

fn flaps(host: &Host) -> Seen {
    let good = "no link went down since boot";
    if host.pci().iter().all(|pci| !pci.is_nic()) && host.hcas().is_empty() {
        return Seen::absent("no network card");
    }
    let log = match host.kernel_log() {
        Ok(log) => log,
        Err(why) => return Seen::unknown(format!("could not look whether {good}"), why),
    };
    let mut tally = Tally::default();
    for (device, count) in log.flaps() {
        // When that was is not known: it may be the work on a switch of a year ago.
        tally.warn(format!("dmesg: {device} went down {count} times since boot"));
    }
    let seen = tally.seen("", good, "links went down");
    if seen.verdict.is_none() { Seen::well(good, "dmesg: no such line") } else { seen }
}

fn pcie_capacity(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for hca in host.hcas() {
        let Some(bus) = hca.bus else { continue };
        // What card and slot are good for; a link that fell back is told by pci-01 and pci-02.
        let carries = |bus: BusId| {
            let (speed, width) = host.link_of(bus, Which::Max)?;
            let link = link_gigabytes(&speed, width).filter(|link| *link > 0.0)?;
            Some((link, format!("{speed} x{width}")))
        };
        let port = host.pci_at(bus).and_then(|pci| pci.above.first());
        let slot = port.and_then(|port| carries(*port));
        let Some(card) = carries(bus) else { continue };
        let (link, shown) = match slot {
            Some(slot) if slot.0 < card.0 => slot,
            _ => card,
        };
        let mut ports = host.ports();
        ports.retain(|port| port.device.name == hca.name && port.is_active());
        let port: f64 = ports.iter().filter_map(Port::gigabits).sum::<f64>() / 8.0;
        if port == 0.0 {
            continue;
        }
        let line =
            format!("{}: PCIe {shown} carries {link:.0} GB/s, its ports {port:.0} GB/s", hca.name);
        if link < 0.9 * port {
            tally.fail(line);
        } else {
            tally.well(line);
        }
    }
    tally.seen(
        "no active RDMA port on PCIe",
        "PCIe carries what the ports do",
        "NICs whose PCIe link is slower than their ports",
    )
}

fn driver(host: &Host) -> Seen {
    if host.list("/sys/class/net").is_empty() && host.pci().iter().any(PciDevice::is_rdma_nic) {
        let why = "/sys/class is not in the tree";
        return Seen::unknown("could not look whether RDMA NICs have an RDMA device", why);
    }
    let part = host.sees_part();
    let mut tally = Tally::default();
    let nics = host.pci().iter().filter(|pci| pci.is_rdma_nic() && !is_virtual_function(pci));
    for nic in nics {
        let hca = host.hcas().iter().find(|hca| hca.bus == Some(nic.bus));
        match hca {
            Some(hca) => tally.well(format!("{} is {}", nic.bus, hca.name)),
            // A NIC without any driver is told by pci-driver.
            None if nic.driver.is_none() => {}
            None if part.is_some() => tally.unknown(format!(
                "{} has no device in {CLASS}; {} may see a part only",
                nic.bus,
                part.unwrap_or_default()
            )),
            None => tally.fail(format!(
                "{} ({:04x}:{:04x}) has no device in {CLASS}",
                nic.bus, nic.vendor, nic.device
            )),
        }
    }
    tally.seen("no RDMA NIC", "RDMA NICs have an RDMA device", "RDMA NICs without an RDMA device")
}

fn modules(host: &Host) -> Seen {
    if host.hcas().is_empty() {
        return Seen::absent("no RDMA device");
    }
    let path = "/sys/module/ib_uverbs";
    if !host.knows_modules() {
        return Seen::unknown(
            "could not look whether ib_uverbs is loaded",
            "/sys/module is not there",
        );
    }
    if host.exists(path) {
        Seen::well("ib_uverbs is loaded", format!("{path} is there"))
    } else {
        Seen::fail("ib_uverbs is not loaded", format!("{path} is not there"))
    }
}
