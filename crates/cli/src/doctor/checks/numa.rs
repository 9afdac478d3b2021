//! NUMA: which node devices, threads and memory are on.

use super::{Check, Seen, Tally};
use crate::doctor::host::{Host, number_list};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "num-02",
        group: "numa",
        about: "GPUs and NICs say which NUMA node they are on",
        reads: "/sys/bus/pci/devices/*/numa_node",
        cost: "proxy threads land on any socket; the crossing is 10 to 40 GB/s shared by all ranks",
        fix: "in a virtual machine: expose vNUMA with a PCI expander bus, or set NCCL_TOPO_FILE; else: BIOS update",
        root: false,
        look: nodes_known,
    },
    Check {
        id: "num-03",
        group: "numa",
        about: "this process may run next to every GPU",
        reads: "/proc/self/status, /sys/bus/pci/devices/*/local_cpulist",
        cost: "the socket crossing, modelled at 10 to 40 GB/s, is shared by all ranks",
        fix: "numactl --cpunodebind=N, mpirun --bind-to numa, or NCCL_IGNORE_CPU_AFFINITY=1",
        root: false,
        look: affinity,
    },
    Check {
        id: "num-04",
        group: "numa",
        about: "AMD processors without NVLink between GPUs are split into NUMA nodes",
        reads: "/sys/devices/system/{cpu,node}, /proc/cpuinfo",
        cost: "pairs over PCIe reached 9 GB/s with NPS4 (nccl-tests#293); less with NPS1",
        fix: "BIOS: ACPI > NUMA nodes per socket = NPS4",
        root: false,
        look: nodes_per_socket,
    },
    Check {
        id: "num-07",
        group: "numa",
        about: "the kernel does not move pages between nodes by itself",
        reads: "/proc/sys/kernel/numa_balancing",
        cost: "1 to 10 us for each fault on a proxy thread: slow tails",
        fix: "sysctl -w kernel.numa_balancing=0",
        root: false,
        look: balancing,
    },
    Check {
        id: "num-memory",
        group: "numa",
        about: "every node with processors has memory",
        reads: "/sys/devices/system/node/node*/{cpulist,meminfo}",
        cost: "all memory traffic of that socket crosses to the other: about half the bandwidth",
        fix: "reseat or add DIMMs; dmidecode -t memory shows which slot is empty",
        root: false,
        look: memory_everywhere,
    },
];

fn nodes_known(host: &Host) -> Seen {
    if host.nodes().len() < 2 && host.sockets() < 2 {
        return Seen::absent("one socket, one node");
    }
    let mut tally = Tally::default();
    let mut devices = host.gpus();
    devices.extend(host.rails());
    for device in devices {
        let line = format!("/sys/bus/pci/devices/{}/numa_node = {}", device.bus, device.numa);
        if device.numa < 0 { tally.fail(line) } else { tally.well(line) }
    }
    tally.seen("no GPU and no NIC", "GPUs and NICs have a NUMA node", "devices without a NUMA node")
}

fn affinity(host: &Host) -> Seen {
    let status = host.text("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let Some(ours) = allowed.and_then(number_list) else {
        return Seen::unknown(
            "could not look where this process may run",
            "/proc/self/status does not say",
        );
    };
    let mut tally = Tally::default();
    for gpu in host.gpus() {
        let Some(text) = host.pci_text(gpu.bus, "local_cpulist") else { continue };
        let near = number_list(&text).unwrap_or_default();
        let line = format!(
            "GPU {}: local_cpulist = {text}, Cpus_allowed_list = {}",
            gpu.bus,
            allowed.unwrap_or_default().trim()
        );
        if near.is_empty() || near.intersection(&ours).next().is_some() {
            tally.well(line);
        } else {
            tally.warn(line);
        }
    }
    tally.seen(
        "no GPU",
        "this process may run next to every GPU",
        "GPUs next to which this process may not run",
    )
}

fn nodes_per_socket(host: &Host) -> Seen {
    if !host.is_amd() || host.is_virtual() || host.gpus().len() < 2 {
        return Seen::absent("no bare AMD machine with several GPUs");
    }
    let (nodes, sockets) = (host.nodes().len(), host.sockets());
    let evidence = format!("{nodes} NUMA nodes on {sockets} sockets");
    // XGMI between AMD's GPUs is in the files.
    let linked = host.machine().gpus.iter().any(|gpu| !gpu.links.is_empty())
        || host.pci().iter().any(|pci| pci.is_nvswitch())
        || host.output("nvidia-smi-nvlink-s").is_ok_and(|text| text.contains("GB/s"));
    if nodes <= sockets && !linked {
        Seen::warn("one NUMA node a socket, and GPUs talk over PCIe", evidence)
    } else {
        Seen::well("NUMA nodes fit the way GPUs talk", evidence)
    }
}

fn balancing(host: &Host) -> Seen {
    let path = "/proc/sys/kernel/numa_balancing";
    match host.number(path) {
        Some(0) => Seen::well("the kernel leaves pages where they are", format!("{path} = 0")),
        Some(_) if host.nodes().len() < 2 => {
            Seen::well("there is one node: nothing to move", format!("{path}, one node"))
        }
        Some(value) => {
            Seen::warn("the kernel moves pages between nodes", format!("{path} = {value}"))
        }
        None => Seen::absent("a kernel without NUMA balancing"),
    }
}

fn memory_everywhere(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for node in host.nodes() {
        let Some(total) = node.memory_kib else { continue };
        let line = format!(
            "/sys/devices/system/node/node{}: cpulist = {}, MemTotal = {total} kB",
            node.id, node.cpus
        );
        if node.cpus.is_empty() || total > 0 { tally.well(line) } else { tally.fail(line) }
    }
    tally.seen(
        "no NUMA nodes",
        "every node with processors has memory",
        "nodes with processors and no memory",
    )
}
