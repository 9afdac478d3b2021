//! PCI Express: links, access control, packet sizes, errors, the IOMMU.

use ringway::topo::PciDevice;
use ringway_plan::topology::bus::BusId;

use super::{Check, Seen, Tally};
use crate::doctor::host::{Host, Which, is_virtual_function};

mod config;

pub(super) use self::config::relaxed_ordering;

const DEVICES: &str = "/sys/bus/pci/devices";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "pci-01",
        group: "pci",
        about: "links of NICs, and above them, have all their lanes",
        reads: "/sys/bus/pci/devices/*/{current,max}_link_width of each NIC and the bridges above",
        cost: "x8 instead of x16 at Gen5: 252 of 504 Gb/s; a 400G port loses 37 %",
        fix: "reseat the card or exchange the riser; check BIOS bifurcation; mlxlink -d DEVICE --port_type PCIE",
        root: false,
        look: nic_width,
    },
    Check {
        id: "pci-02",
        group: "pci",
        about: "links of NICs, and above them, run at full speed",
        reads: "/sys/bus/pci/devices/*/{current,max}_link_speed of each NIC and the bridges above",
        cost: "Gen4 x16 carries about 24 GB/s, a 400G port needs 50",
        fix: "reseat; BIOS: set the slot's generation; update firmware. Read again under load: idle links sleep",
        root: false,
        look: nic_speed,
    },
    Check {
        id: "pci-03",
        group: "pci",
        about: "links of GPUs have all their lanes",
        reads: "/sys/bus/pci/devices/*/{current,max}_link_width",
        cost: "half the lanes, half the bandwidth to host and NIC",
        fix: "reseat the GPU; power cycle; nvidia-smi -r",
        root: false,
        look: gpu_width,
    },
    Check {
        id: "pci-slot",
        group: "pci",
        about: "slots are as fast as the cards in them",
        reads: "/sys/bus/pci/devices/*/max_link_speed of each card and the port above it",
        cost: "one generation less is half the bandwidth",
        fix: "move the card to a faster slot, or set the slot's generation in the BIOS",
        root: false,
        look: slot_speed,
    },
    Check {
        id: "pci-04",
        group: "pci",
        about: "the kernel does not report limited PCIe bandwidth",
        reads: "dmesg",
        cost: "the port moves at most what the link carries: 252 of 400 Gb/s at Gen5 x8",
        fix: "as for pci-01: reseat, riser, bifurcation",
        root: true,
        look: limited,
    },
    Check {
        id: "pci-05",
        group: "pci",
        about: "no bridge above a GPU or NIC sends peer traffic to the root (ACS)",
        reads: "ACSCtl in /sys/bus/pci/devices/*/config of the bridges",
        cost: "an all-reduce at 56 % of what is expected (nccl#949); it can hang outright (nccl#2079)",
        fix: "setpci -s BRIDGE ECAP_ACS+0x6.w=0000 for each; for good: ACS off in the BIOS, or a boot unit",
        root: true,
        look: config::access_control,
    },
    Check {
        id: "pci-06",
        group: "pci",
        about: "in a virtual machine, NICs translate addresses themselves (ATS)",
        reads: "ATSCtl in /sys/bus/pci/devices/*/config of NICs",
        cost: "25 % of bare metal: 155 of about 470 GB/s on two nodes (nccl#2171)",
        fix: "on the hypervisor: mlxconfig -d DEVICE -y set ATS_ENABLED=true; keep ACS on there",
        root: true,
        look: config::translation,
    },
    Check {
        id: "pci-07",
        group: "pci",
        about: "NICs ask for 4096 bytes in one read",
        reads: "DevCtl in /sys/bus/pci/devices/*/config of NICs",
        cost: "reads of 128 to 512 bytes cap RDMA reads and GPUDirect on AMD hosts",
        fix: "setpci -s NIC CAP_EXP+8.w=5000:7000 (until reboot), or mlxconfig",
        root: true,
        look: config::read_request,
    },
    Check {
        id: "pci-08",
        group: "pci",
        about: "packets on the path to a NIC carry the same, not too small, payload",
        reads: "DevCtl in /sys/bus/pci/devices/*/config of NICs and the bridges above",
        cost: "128 bytes of payload leave 84 % of the link, 256 bytes 91 %",
        fix: "pci=pcie_bus_perf on the kernel command line, or the BIOS's maximum payload",
        root: true,
        look: config::payload,
    },
    Check {
        id: "pci-09",
        group: "pci",
        about: "GPUs, NICs and bridges report no PCIe errors",
        reads: "/sys/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal}",
        cost: "every replay takes link time; a fatal error takes the GPU off the bus (Xid 79)",
        fix: "reseat the card, exchange riser or cable, update retimer firmware",
        root: false,
        look: errors,
    },
    Check {
        id: "pci-10",
        group: "pci",
        about: "the IOMMU does not translate for GPUs and NICs on bare metal",
        reads: "/sys/kernel/iommu_groups/*/type, /proc/cmdline",
        cost: "peer traffic goes over the root; intel_iommu=off cured an all-reduce that hung (nccl#257)",
        fix: "add iommu=pt to the kernel command line, update-grub, reboot",
        root: false,
        look: iommu,
    },
    Check {
        id: "pci-aspm",
        group: "pci",
        about: "PCIe links do not go to sleep",
        reads: "/sys/module/pcie_aspm/parameters/policy",
        cost: "up to 64 us for a link to wake, on messages of 3 us",
        fix: "echo performance > /sys/module/pcie_aspm/parameters/policy, or pcie_aspm=off",
        root: false,
        look: power_saving,
    },
    Check {
        id: "pci-cmdline",
        group: "pci",
        about: "no kernel argument switches PCIe features off",
        reads: "/proc/cmdline",
        cost: "pci=nomsi: one shared interrupt; pci=noats: GPUDirect in virtual machines at 25 %",
        fix: "take the word off the kernel command line and reboot",
        root: false,
        look: arguments,
    },
    Check {
        id: "pci-driver",
        group: "pci",
        about: "every GPU and RDMA NIC has its driver",
        reads: "/sys/bus/pci/devices/*/driver",
        cost: "the device is not there for any job: 1 of 8 NICs is 12.5 % of the node's bandwidth",
        fix: "modprobe mlx5_core (or nvidia, amdgpu, efa); dmesg says why the driver left it alone",
        root: false,
        look: drivers,
    },
];

/// A device and the bridges above it, nearest first.
fn path_up(device: &PciDevice) -> Vec<BusId> {
    std::iter::once(device.bus).chain(device.above.iter().copied()).collect()
}

/// The links on the way up: what hangs on each, and the port it hangs on. Between the two ports of a switch is
/// none, so it is every other step.
fn links_up(device: &PciDevice) -> Vec<(BusId, Option<BusId>)> {
    let path = path_up(device);
    path.chunks(2).map(|pair| (pair[0], pair.get(1).copied())).collect()
}

/// What a link is and could be: speed in GT/s and lanes. A card in a smaller slot is told by pci-slot.
struct Link {
    now: (f64, u32),
    most: (f64, u32),
}

fn link(host: &Host, bus: BusId, port: Option<BusId>) -> Option<Link> {
    let read = |bus: BusId, which: Which| {
        let (speed_text, width) = host.link_of(bus, which)?;
        Some((speed(&speed_text)?, width))
    };
    let (now, mut most) = (read(bus, Which::Current)?, read(bus, Which::Max)?);
    if let Some(port) = port.and_then(|port| read(port, Which::Max)) {
        most = (most.0.min(port.0), most.1.min(port.1));
    }
    Some(Link { now, most })
}

fn nic_width(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for nic in host.rails() {
        for (bus, port) in links_up(nic) {
            width(host, bus, port, &mut tally);
        }
    }
    tally.seen(
        "no NIC with a PCIe link",
        "links to NICs have all lanes",
        "links with fewer lanes than they could have",
    )
}

fn gpu_width(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for gpu in host.gpus() {
        width(host, gpu.bus, gpu.above.first().copied(), &mut tally);
    }
    tally.seen(
        "no GPU with a PCIe link",
        "links to GPUs have all lanes",
        "GPU links with fewer lanes than they could have",
    )
}

fn width(host: &Host, bus: BusId, port: Option<BusId>, tally: &mut Tally) {
    let Some(Link { now, most }) = link(host, bus, port) else { return };
    let line = format!("{DEVICES}/{bus}/current_link_width = {}; could be {}", now.1, most.1);
    if now.1 < most.1 { tally.fail(line) } else { tally.well(line) }
}

/// GT/s of `16.0 GT/s PCIe`.
fn speed(text: &str) -> Option<f64> {
    text.split_whitespace()
        .next()?
        .parse()
        .ok()
        .filter(|speed: &f64| speed.is_finite() && *speed > 0.0)
}

fn nic_speed(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for nic in host.rails() {
        for (bus, port) in links_up(nic) {
            let Some(Link { now, most }) = link(host, bus, port) else { continue };
            let line =
                format!("{DEVICES}/{bus}/current_link_speed = {} GT/s; could be {}", now.0, most.0);
            if now.0 < most.0 { tally.fail(line) } else { tally.well(line) }
        }
    }
    tally.seen(
        "no NIC with a PCIe link",
        "links to NICs run at full speed",
        "links slower than they could be",
    )
}

fn slot_speed(host: &Host) -> Seen {
    let mut tally = Tally::default();
    let mut devices = host.gpus();
    devices.extend(host.rails());
    for device in devices {
        let Some(port) = device.above.first().copied() else { continue };
        let (Some(card), Some(slot)) = (link(host, device.bus, None), link(host, port, None))
        else {
            continue;
        };
        let (card, slot) = (card.most, slot.most);
        let line = format!(
            "{}: card {} GT/s x{}, port {port} above it {} GT/s x{}",
            device.bus, card.0, card.1, slot.0, slot.1
        );
        if slot.0 < card.0 || slot.1 < card.1 { tally.warn(line) } else { tally.well(line) }
    }
    tally.seen(
        "no card below a port",
        "slots are as fast as their cards",
        "cards in slots slower than they are",
    )
}

fn limited(host: &Host) -> Seen {
    let sets: &[&[&str]] = &[&["available PCIe bandwidth, limited by"]];
    let good = "the kernel reports no limited PCIe bandwidth";
    super::kernel::log_lines(
        host,
        sets,
        good,
        "the kernel reports limited PCIe bandwidth",
        Seen::warn,
    )
}

fn errors(host: &Host) -> Seen {
    let mut addresses: Vec<BusId> = Vec::new();
    for device in host.gpus().into_iter().chain(host.rails()) {
        addresses.extend(path_up(device));
    }
    addresses.sort();
    addresses.dedup();
    let mut tally = Tally::default();
    for address in addresses {
        let total = |kind: &str, mark: &str| {
            let text = host.pci_text(address, &format!("aer_dev_{kind}"))?;
            let total = text
                .lines()
                .find_map(|line| line.strip_prefix(mark)?.trim().parse::<u64>().ok())?;
            Some(host.count(&format!("{address}/aer_dev_{kind}"), total))
        };
        let Some(correctable) = total("correctable", "TOTAL_ERR_COR") else { continue };
        let nonfatal = total("nonfatal", "TOTAL_ERR_NONFATAL").map_or(0, |count| count.value);
        let fatal = total("fatal", "TOTAL_ERR_FATAL").map_or(0, |count| count.value);
        let (span, correctable) = (correctable.span(), correctable.value);
        let line = format!(
            "{DEVICES}/{address}/aer_dev_*: {correctable} correctable, {nonfatal} non-fatal, {fatal} fatal {span}"
        );
        if nonfatal > 0 || fatal > 0 {
            tally.fail(line);
        } else if correctable > 0 {
            tally.warn(line);
        } else {
            tally.well(line);
        }
    }
    tally.seen(
        "no device reports PCIe errors to the kernel",
        "no PCIe errors",
        "devices with PCIe errors",
    )
}

fn iommu(host: &Host) -> Seen {
    if host.is_virtual() {
        return Seen::absent("a virtual machine: the hypervisor has the IOMMU");
    }
    if host.gpus().is_empty() {
        return Seen::absent("no GPU");
    }
    let mut tally = Tally::default();
    for device in host.gpus().into_iter().chain(host.rails()) {
        let Some(group) = host.link_name(&format!("{DEVICES}/{}/iommu_group", device.bus)) else {
            tally.well(format!("{DEVICES}/{}: no IOMMU group", device.bus));
            continue;
        };
        let path = format!("/sys/kernel/iommu_groups/{group}/type");
        match host.text(&path) {
            Some(kind) if kind.starts_with("DMA") => {
                tally.fail(format!("{}: {path} = {kind}", device.bus));
            }
            Some(kind) => tally.well(format!("{}: {path} = {kind}", device.bus)),
            None => tally.unknown(format!("{path} is not there")),
        }
    }
    let line = ["iommu", "intel_iommu", "amd_iommu"]
        .iter()
        .filter_map(|name| Some(format!("{name}={}", host.kernel_argument(name)?)))
        .collect::<Vec<_>>()
        .join(" ");
    let seen = tally.seen(
        "no GPU and no NIC",
        "the IOMMU lets GPUs and NICs through",
        "devices whose addresses the IOMMU translates",
    );
    if seen.verdict.is_some() { seen.and(format!("/proc/cmdline: {line:?}")) } else { seen }
}

fn power_saving(host: &Host) -> Seen {
    let path = "/sys/module/pcie_aspm/parameters/policy";
    let Some(text) = host.text(path) else {
        return Seen::absent("a kernel without link power saving");
    };
    let word = text.split_once('[').and_then(|(_, rest)| rest.split(']').next()).unwrap_or("");
    let evidence = format!("{path} = {text}");
    if word.starts_with("power") {
        Seen::warn("PCIe links go to sleep", evidence)
    } else {
        Seen::well("PCIe links do not go to sleep by policy", evidence)
    }
}

fn arguments(host: &Host) -> Seen {
    let Some(line) = host.text("/proc/cmdline") else {
        return Seen::unknown(
            "could not look at the kernel's arguments",
            "/proc/cmdline is not there",
        );
    };
    let list = host.kernel_argument("pci").unwrap_or_default();
    let bad: Vec<&str> = list
        .split(',')
        .filter(|word| ["nomsi", "noats", "noacpi", "conf1"].contains(word))
        .collect();
    if bad.is_empty() {
        Seen::well(
            "no kernel argument switches PCIe features off",
            format!("/proc/cmdline = {line}"),
        )
    } else {
        Seen::warn(
            format!("the kernel runs with pci={}", bad.join(",")),
            format!("/proc/cmdline = {line}"),
        )
    }
}

fn drivers(host: &Host) -> Seen {
    let mut tally = Tally::default();
    let nics = host.pci().iter().filter(|pci| pci.is_rdma_nic() && !is_virtual_function(pci));
    for device in host.gpus().into_iter().chain(nics) {
        let name = if device.is_gpu() { "GPU" } else { "NIC" };
        match device.driver.as_deref() {
            None => tally.fail(format!("{name} {DEVICES}/{}/driver is not there", device.bus)),
            Some(driver) if driver == "vfio-pci" || driver == "pci-stub" || driver == "nouveau" => {
                tally.warn(format!("{name} {DEVICES}/{}/driver = {driver}", device.bus));
            }
            Some(driver) => {
                tally.well(format!("{name} {DEVICES}/{}/driver = {driver}", device.bus))
            }
        }
    }
    tally.seen(
        "no GPU and no RDMA NIC",
        "GPUs and RDMA NICs have their drivers",
        "devices without a driver that jobs can use",
    )
}
