//! GPUDirect: whether NICs read and write GPU memory by themselves.

use ringway::topo::{GpuDevice, GpuMaker, PciDevice};
use ringway_plan::topology::matrix::{self, Cell, Matrix};

use super::{Check, Seen, Tally};
use crate::doctor::host::{Host, is_virtual_function};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "gdr-01",
        group: "gpudirect",
        about: "the kernel lets NICs reach GPU memory (peer memory or dma-buf)",
        reads: "/sys/module/nvidia_peermem, /sys/kernel/mm/memory_peers, /proc/driver/nvidia/version",
        cost: "staging through host memory halves bandwidth: 11.0 instead of 23.0 GB/s (perftest#241)",
        fix: "modprobe nvidia-peermem && echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf",
        root: false,
        look: peer_memory,
    },
    Check {
        id: "gdr-03",
        group: "gpudirect",
        about: "nvidia-peermem fits the RDMA modules",
        reads: "dmesg",
        cost: "the module loads but never registers: GPUDirect is off and nobody says so (nccl#1939)",
        fix: "build the driver again after the OFED update: dkms autoinstall; on Kubernetes delete the driver pod",
        root: true,
        look: peer_memory_fits,
    },
    Check {
        id: "gdr-06",
        group: "gpudirect",
        about: "every GPU has a NIC near by",
        reads: "the PCI tree of /sys/bus/pci/devices",
        cost: "over the sockets' link about half: 11 of 23 GB/s (perftest#241)",
        fix: "move the NIC to the GPU's PCIe switch; else measure with NCCL_NET_GDR_LEVEL=SYS",
        root: false,
        look: near_nic,
    },
    Check {
        id: "gdr-07",
        group: "gpudirect",
        about: "gdrcopy is there where it is asked for",
        reads: "NCCL_GDRCOPY_ENABLE, /dev/gdrdrv, /sys/module/gdrdrv",
        cost: "a few us of each small message",
        fix: "apt install gdrdrv-dkms && modprobe gdrdrv, or unset NCCL_GDRCOPY_ENABLE",
        root: false,
        look: gdrcopy,
    },
    Check {
        id: "gdr-08",
        group: "gpudirect",
        about: "NICs may use relaxed ordering",
        reads: "DevCtl in /sys/bus/pci/devices/*/config of NICs, NCCL_IB_PCI_RELAXED_ORDERING",
        cost: "about 16 instead of more than 40 GB/s on Emerald Rapids (ucx#10955)",
        fix: "BIOS: PCIe Relaxed Ordering on; setpci -s NIC CAP_EXP+8.w=0010:0010",
        root: true,
        look: super::pci::relaxed_ordering,
    },
    Check {
        id: "amd-01",
        group: "gpudirect",
        about: "the kernel lets NICs reach the memory of AMD GPUs",
        reads: "/sys/module/amdgpu, /sys/kernel/mm/memory_peers/amdkfd, the kernel's version",
        cost: "staging through host memory halves bandwidth",
        fix: "install amdgpu-dkms with OFED, or a kernel with dma-buf (5.12 or later)",
        root: false,
        look: amd_peer_memory,
    },
    Check {
        id: "amd-02",
        group: "gpudirect",
        about: "AMD GPUs reach each other over XGMI",
        reads: "/sys/class/kfd/kfd/topology, rocm-smi --showtopo",
        cost: "a pair over PCIe: 64 become about 25 GB/s, and the ring goes at the pace of its slowest link",
        fix: "amd-smi xgmi; reset the GPUs; return the board if a link stays away",
        root: false,
        look: amd_links,
    },
    Check {
        id: "amd-03",
        group: "gpudirect",
        about: "AMD GPUs run with iommu=pt",
        reads: "/proc/cmdline",
        cost: "traffic between GPU and NIC goes through the IOMMU's tables",
        fix: "add iommu=pt to the kernel command line and reboot",
        root: false,
        look: amd_passthrough,
    },
];

fn peer_memory(host: &Host) -> Seen {
    if !host.has_gpu(GpuMaker::Nvidia) || !host.has_peer_hca() {
        return Seen::absent("no NVIDIA GPU with an RDMA device that needs peer memory");
    }
    let modules = [
        "/sys/module/nvidia_peermem/version",
        "/sys/kernel/mm/memory_peers/nv_mem/version",
        "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    ];
    let module = modules.iter().find_map(|path| Some(format!("{path} = {}", host.text(path)?)));
    let version = host.text("/proc/driver/nvidia/version").unwrap_or_default();
    let open = version.contains("Open Kernel Module");
    let kernel = host.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let dma_buf = open && host.kernel().is_some_and(|version| version >= (5, 12));
    let driver = format!(
        "/proc/driver/nvidia/version: {} kernel module, kernel {kernel}",
        if open { "open" } else { "proprietary" }
    );
    match (module, dma_buf) {
        (Some(module), _) => {
            Seen::well("NICs reach GPU memory through peer memory", module).and(driver)
        }
        (None, true) => Seen::well("NICs reach GPU memory through dma-buf", driver),
        (None, false) if !host.knows_modules() => Seen::unknown(
            "could not look whether NICs reach GPU memory",
            "/sys/module is not there",
        ),
        (None, false) => {
            Seen::fail("NICs cannot reach GPU memory", "nvidia_peermem is not loaded").and(driver)
        }
    }
}

fn peer_memory_fits(host: &Host) -> Seen {
    if !host.has_gpu(GpuMaker::Nvidia) || !host.has_peer_hca() {
        return Seen::absent("no NVIDIA GPU with an RDMA device that needs peer memory");
    }
    let sets: &[&[&str]] = &[
        &["nvidia_peermem", "disagrees about version"],
        &["nvidia_peermem", "Unknown symbol"],
        &["nvidia_peermem", "Invalid argument"],
        &["nvidia-peermem", "Invalid argument"],
    ];
    let good = "the kernel has no complaint about nvidia-peermem";
    super::kernel::log_lines(
        host,
        sets,
        good,
        "the kernel complains about nvidia-peermem",
        Seen::fail,
    )
}

fn near_nic(host: &Host) -> Seen {
    let machine = host.machine();
    let nic_placed = machine.rdma.iter().any(|device| device.bus.is_some());
    if !nic_placed || host.gpus().iter().any(|gpu| gpu.host_bridge.is_none()) {
        return Seen::absent("no RDMA device beside a GPU");
    }
    let Some(topology) = host.topology() else {
        let why = "more devices than in any machine";
        return Seen::unknown("could not look whether every GPU has a NIC near by", why);
    };
    let (matrix, gpus) = (Matrix::of(&topology), topology.gpus());
    // NICs that a container or a job does not get.
    let alone = |nic: &PciDevice| host.hcas().iter().all(|hca| hca.bus != Some(nic.bus));
    let hidden = host.sees_part().is_some()
        && host.pci().iter().any(|nic| {
            nic.is_rdma_nic() && nic.driver.is_some() && !is_virtual_function(nic) && alone(nic)
        });
    let mut tally = Tally::default();
    for (at, row) in matrix.gpus() {
        let Some((near, cell)) = matrix.nearest(at) else { continue };
        let bus = gpus.get(at).and_then(|gpu| topology.bus_of(*gpu));
        let bus = bus.map(|bus| bus.to_string()).unwrap_or_default();
        let names: Vec<&str> = near.iter().filter_map(|row| row.device.as_deref()).collect();
        let line = format!("{} {bus}: nearest NIC {} at {cell}", row.name, names.join(", "));
        match cell.rank() {
            rank if rank < Cell::Phb.rank() => tally.well(line),
            _ if hidden => tally.unknown(format!("{line}; a nearer one may not be shown here")),
            rank if rank < Cell::Sys.rank() => tally.warn(line),
            _ => tally.fail(line),
        }
    }
    tally.seen(
        "no GPU",
        "every GPU has a NIC near by",
        "GPUs without a NIC below their own PCIe switch",
    )
}

fn gdrcopy(host: &Host) -> Seen {
    if host.variable("NCCL_GDRCOPY_ENABLE").is_none_or(|value| value == "0") {
        return Seen::absent("NCCL_GDRCOPY_ENABLE is not set");
    }
    if !host.knows_modules() {
        return Seen::unknown("could not look for gdrcopy", "/sys/module is not there");
    }
    let there = host.exists("/dev/gdrdrv") && host.exists("/sys/module/gdrdrv");
    let evidence = "NCCL_GDRCOPY_ENABLE is set, /dev/gdrdrv";
    if there {
        Seen::well("gdrcopy is there", format!("{evidence} is there"))
    } else {
        Seen::fail(
            "gdrcopy is asked for and not there",
            format!("{evidence} or /sys/module/gdrdrv is not there"),
        )
    }
}

fn amd_peer_memory(host: &Host) -> Seen {
    if !host.has_gpu(GpuMaker::Amd) || host.hcas().is_empty() {
        return Seen::absent("no AMD GPU with an RDMA device");
    }
    let path = "/sys/kernel/mm/memory_peers/amdkfd/version";
    let kernel = host.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let dma_buf = host.kernel().is_some_and(|version| version >= (5, 12))
        && host.exists("/sys/module/amdgpu");
    if let Some(version) = host.text(path) {
        Seen::well("NICs reach GPU memory through peer memory", format!("{path} = {version}"))
    } else if dma_buf {
        Seen::well(
            "NICs reach GPU memory through dma-buf",
            format!("amdgpu is loaded, kernel {kernel}"),
        )
    } else if !host.knows_modules() {
        let why = "/sys/module is not there";
        Seen::unknown("could not look whether NICs reach GPU memory", why)
    } else {
        Seen::fail("NICs cannot reach GPU memory", format!("{path} is not there, kernel {kernel}"))
    }
}

/// From what rocm-smi printed, or from the driver's own tree.
fn amd_links(host: &Host) -> Seen {
    let none = "no AMD GPUs with XGMI";
    let bad = "AMD GPUs without XGMI to all others";
    let good = "AMD GPUs reach each other over XGMI";
    let mut tally = Tally::default();
    if let Ok(text) = host.output("rocm-smi-showtopo")
        && let Ok(matrix) = matrix::read_rocm_smi(&text)
        && matrix.rows.iter().any(|row| row.cells.contains(&Cell::Xgmi))
    {
        for (at, row) in matrix.gpus() {
            let over_pcie = matrix.gpus().filter(|(other, _)| {
                *other != at && row.cells.get(*other).is_some_and(|cell| *cell == Cell::Pcie)
            });
            let names: Vec<&str> = over_pcie.map(|(_, other)| other.name.as_str()).collect();
            link_line(&mut tally, &format!("rocm-smi --showtopo: {}", row.name), &names);
        }
        return tally.seen(none, good, bad);
    }
    // MI300 and later are joined each to each; of older ones only some pairs are.
    let is_meshed = |gpu: &&GpuDevice| {
        gpu.gcn.as_deref().is_some_and(|gcn| gcn.starts_with("gfx94") || gcn.starts_with("gfx95"))
    };
    let gpus: Vec<&GpuDevice> = host.machine().gpus.iter().filter(is_meshed).collect();
    if gpus.iter().all(|gpu| gpu.links.is_empty()) {
        return Seen::absent(none);
    }
    for gpu in &gpus {
        let has = |other: &GpuDevice| gpu.links.iter().any(|link| link.to == Some(other.bus));
        let missing = gpus.iter().filter(|other| other.bus != gpu.bus && !has(other));
        let names: Vec<String> = missing.map(|other| other.bus.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        link_line(&mut tally, &format!("/sys/class/kfd: {}", gpu.bus), &names);
    }
    tally.seen(none, good, bad)
}

fn link_line(tally: &mut Tally, what: &str, missing: &[&str]) {
    if missing.is_empty() {
        tally.well(format!("{what}: XGMI to all others"));
    } else {
        tally.fail(format!("{what}: no XGMI to {}", missing.join(", ")));
    }
}

fn amd_passthrough(host: &Host) -> Seen {
    if !host.has_gpu(GpuMaker::Amd) || host.is_virtual() {
        return Seen::absent("no AMD GPU on bare metal");
    }
    match host.kernel_argument("iommu") {
        Some(value) if value.split(',').any(|word| word == "pt") => {
            Seen::well("the kernel runs with iommu=pt", format!("/proc/cmdline: iommu={value}"))
        }
        value => Seen::warn(
            "the kernel runs without iommu=pt",
            format!("/proc/cmdline: iommu={}", value.unwrap_or_default()),
        ),
    }
}
