//! Faults of GPUs and PCI Express.

use super::{Fail, Fault, Warn, gpu, nic, pci, set};

const DMESG: &str = "/commands/dmesg.txt";
const SMI: &str = "/commands/nvidia-smi-q.txt";

/// A line of `nvidia-smi -q`, at a level.
fn line(level: usize, name: &str, value: &str) -> String {
    format!("{:level$}{name:<width$}: {value}", "", width = 42 - level)
}

/// Changes the first such line.
macro_rules! smi {
    ($level:expr, $name:expr, $old:expr, $new:expr) => {
        |t| t.replace(SMI, &line($level, $name, $old), &line($level, $name, $new))
    };
}

/// What the daemon of an NVLink domain prints, without its last line.
const IMEX: &str = "Nodes:\nNode #0   - 172.16.0.1 - READY - Version: 570.10\n\
                    Node #1   - 172.16.0.2 - READY - Version: 570.10\n";

/// The port of a switch above a GPU.
const DOWN_PORT: &str = "0000:12:00.0";

pub(super) const FAULTS: &[Fault] = &[
    ("gpu-01", Fail, |t| {
        t.append(DMESG, "[99.0] NVRM: Xid (PCI:0000:13:00): 79, pid=1, GPU has fallen off the bus.")
    }),
    ("gpu-01", Warn, |t| {
        t.append(DMESG, "[99.0] NVRM: Xid (PCI:0000:13:00): 31, pid=1, name=python, MMU Fault")
    }),
    ("gpu-02", Fail, |t| {
        t.append(DMESG, "[99.0] nvidia-nvswitch0: SXid (PCI:0000:a1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    }),
    ("gpu-02", Warn, |t| {
        for rest in [
            "Non-fatal, Link 46 a replay timer (First)",
            "Severity 0 Engine instance 46 Sub-engine instance 00",
            "Data {0x00140004, 0x00100000, 0x00000000}",
        ] {
            t.append(
                DMESG,
                &format!("[99.0] nvidia-nvswitch0: SXid (PCI:0000:a1:00.0): 20009, {rest}"),
            );
        }
    }),
    ("gpu-03", Fail, smi!(12, "DRAM Uncorrectable", "0", "4")),
    ("gpu-03", Warn, |t| {
        t.replace(
            SMI,
            &format!("Remapped Rows\n{}", line(8, "Pending", "No")),
            &format!("Remapped Rows\n{}", line(8, "Pending", "Yes")),
        )
    }),
    ("gpu-04", Fail, smi!(12, "HW Thermal Slowdown", "Not Active", "Active")),
    ("gpu-04", Warn, smi!(8, "SW Power Cap", "Not Active", "Active")),
    ("gpu-05", Fail, |t| t.put("/sys/module/nvidia/version", "570.99.99")),
    ("gpu-06", Warn, smi!(4, "Persistence Mode", "Enabled", "Disabled")),
    ("gpu-07", Fail, |t| t.remove("/sys/module/nvidia_uvm")),
    ("gpu-count", Fail, |t| t.replace(SMI, "GPU 00000000:33:00.0", "GPU 00000000:F3:00.0")),
    ("gpu-equal", Warn, smi!(4, "VBIOS Version", "96.00.01", "96.00.00")),
    ("gpu-ecc", Warn, |t| {
        t.replace(
            SMI,
            &format!("ECC Mode\n{}", line(8, "Current", "Enabled")),
            &format!("ECC Mode\n{}", line(8, "Current", "Disabled")),
        )
    }),
    ("gpu-mig", Warn, |t| {
        t.replace(
            SMI,
            &format!("MIG Mode\n{}", line(8, "Current", "Disabled")),
            &format!("MIG Mode\n{}", line(8, "Current", "Enabled")),
        )
    }),
    ("gpu-mode", Fail, smi!(4, "Compute Mode", "Default", "Prohibited")),
    ("gpu-mode", Warn, smi!(4, "Compute Mode", "Default", "Exclusive_Process")),
    ("gpu-power", Warn, smi!(8, "Current Power Limit", "700.00 W", "500.00 W")),
    ("gpu-replay", Warn, smi!(8, "Replays Since Reset", "0", "200000")),
    ("gpu-replay", Warn, smi!(8, "Replay Number Rollovers", "0", "1")),
    ("pci-11", Warn, smi!(8, "Total", "131072 MiB", "256 MiB")),
    ("pci-11", Fail, smi!(8, "Total", "131072 MiB", "64 MiB")),
    ("nvl-01", Fail, |t| {
        t.replace("/commands/nvidia-smi-nvlink-s.txt", "Link 7: 26.562 GB/s", "Link 7: <inactive>")
    }),
    ("nvl-02", Warn, |t| {
        t.replace(
            "/commands/nvidia-smi-nvlink-e.txt",
            "Link 3: Replay Errors: 0",
            "Link 3: Replay Errors: 5",
        )
    }),
    ("nvl-02", Fail, |t| {
        t.replace(
            "/commands/nvidia-smi-nvlink-e.txt",
            "Link 3: CRC Errors: 0",
            "Link 3: CRC Errors: 5",
        )
    }),
    ("nvl-03", Fail, smi!(8, "Status", "Success", "Failure")),
    ("nvl-03", Warn, |t| {
        t.append(
            "/commands/fabricmanager.txt",
            "[Jan 01 2026 00:00:01] [ERROR] [tid 1] link training failed",
        )
    }),
    ("nvl-04", Fail, |t| {
        t.put("/commands/nvidia-imex-ctl.txt", format!("{IMEX}Domain State: DEGRADED"));
        t.put("/dev/nvidia-caps-imex-channels/channel0", "");
    }),
    ("nvl-04", Fail, |t| {
        let text = IMEX.replace("172.16.0.2 - READY", "172.16.0.2 - UNAVAILABLE");
        t.put("/commands/nvidia-imex-ctl.txt", text + "Domain State: UP");
        t.put("/dev/nvidia-caps-imex-channels/channel0", "");
    }),
    ("nvl-04", Fail, |t| {
        t.put("/commands/nvidia-imex-ctl.txt", format!("{IMEX}Domain State: UP"));
    }),
    ("nvl-05", Fail, |t| t.replace("/commands/nvidia-smi-p2p.txt", "OK", "NS")),
    ("gdr-01", Fail, |t| {
        t.remove("/sys/module/nvidia_peermem");
        t.replace("/proc/driver/nvidia/version", "Open Kernel Module", "Kernel Module");
    }),
    ("gdr-03", Fail, |t| {
        t.append(DMESG, "[99.0] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client")
    }),
    ("gdr-06", Warn, |t| {
        // The nearest NIC of GPU 1 hangs below another bridge of the same node.
        let place = "/sys/devices/pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:01.0/0000:24:00.0";
        let elsewhere = "/sys/devices/pci0000:28/0000:24:00.0";
        for file in [
            "class",
            "vendor",
            "device",
            "numa_node",
            "local_cpulist",
            "config",
            "max_link_speed",
            "max_link_width",
            "current_link_speed",
            "current_link_width",
        ] {
            let bytes = std::fs::read(t.folder().join(format!("{}/{file}", &place[1..]))).unwrap();
            t.bytes(&format!("{elsewhere}/{file}"), &bytes);
        }
        t.link(&format!("{elsewhere}/driver"), "/sys/bus/pci/drivers/mlx5_core");
        t.put(&format!("{elsewhere}/net/eth1/uevent"), "");
        t.link("/sys/bus/pci/devices/0000:24:00.0", elsewhere);
    }),
    ("gdr-07", Fail, |t| set(t, "NCCL_GDRCOPY_ENABLE=1")),
    ("gdr-08", Fail, |t| t.config(&nic(3), 0x48, 0x5020)),
    ("gdr-08", Warn, |t| set(t, "NCCL_IB_PCI_RELAXED_ORDERING=0")),
    ("amd-01", Fail, |t| {
        t.put(&pci("0000:a1:00.0", "class"), "0x120000");
        t.put(&pci("0000:a1:00.0", "vendor"), "0x1002");
        t.remove("/commands/fabricmanager.txt");
        // Near a NIC of its own: below the switch of GPU 7.
        let place = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:a1:00.0";
        for (file, value) in [
            ("class", "0x120000"),
            ("vendor", "0x1002"),
            ("device", "0x74a1"),
            ("numa_node", "1"),
            ("local_cpulist", "4-7"),
        ] {
            t.put(&format!("{place}/{file}"), value);
        }
        t.link(&format!("{place}/driver"), "/sys/bus/pci/drivers/amdgpu");
        t.link("/sys/bus/pci/devices/0000:a1:00.0", place);
    }),
    ("amd-02", Fail, |t| {
        let head = "==== Link Type between two GPUs ====\n       GPU0   GPU1   GPU2\n";
        let rows = "GPU0   0      XGMI   XGMI\nGPU1   XGMI   0      PCIE\nGPU2   XGMI   PCIE   0\n";
        t.put("/commands/rocm-smi-showtopo.txt", format!("{head}{rows}==== End ===="));
    }),
    ("amd-03", Warn, |t| {
        t.replace("/proc/cmdline", "iommu=pt ", "");
        t.put("/sys/kernel/mm/memory_peers/amdkfd/version", "1");
        let place = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:a1:00.0";
        for (file, value) in [
            ("class", "0x120000"),
            ("vendor", "0x1002"),
            ("device", "0x74a1"),
            ("numa_node", "1"),
            ("local_cpulist", "4-7"),
        ] {
            t.put(&format!("{place}/{file}"), value);
        }
        t.link(&format!("{place}/driver"), "/sys/bus/pci/drivers/amdgpu");
        t.link("/sys/bus/pci/devices/0000:a1:00.0", place);
    }),
    ("pci-01", Fail, |t| t.put(&pci(&nic(3), "current_link_width"), 8)),
    ("pci-01", Fail, |t| t.put(&pci("0000:11:00.0", "current_link_width"), 8)),
    ("pci-02", Fail, |t| t.put(&pci(&nic(3), "current_link_speed"), "16.0 GT/s PCIe")),
    ("pci-03", Fail, |t| t.put(&pci(&gpu(5), "current_link_width"), 8)),
    ("pci-slot", Warn, |t| t.put(&pci(DOWN_PORT, "max_link_speed"), "16.0 GT/s PCIe")),
    ("pci-04", Warn, |t| {
        t.append(DMESG, "[9.0] mlx5_core 0000:14:00.0: 252.056 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe x8 link at 0000:12:01.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)")
    }),
    ("pci-05", Fail, |t| t.config(DOWN_PORT, 0x106, 0x1d)),
    ("pci-06", Fail, |t| {
        t.replace("/proc/cpuinfo", "flags\t\t: fpu", "flags\t\t: hypervisor fpu");
        t.config(&nic(0), 0x106, 0);
    }),
    ("pci-07", Warn, |t| t.config(&nic(2), 0x48, 0x2030)),
    ("pci-07", Fail, |t| t.config(&nic(2), 0x48, 0x0030)),
    ("pci-08", Fail, |t| t.config(&nic(2), 0x48, 0x5010)),
    ("pci-09", Warn, |t| t.put(&pci(&nic(2), "aer_dev_correctable"), "RxErr 7\nTOTAL_ERR_COR 7")),
    ("pci-09", Fail, |t| t.put(&pci(&gpu(2), "aer_dev_fatal"), "DLP 1\nTOTAL_ERR_FATAL 1")),
    ("pci-10", Fail, |t| t.put("/sys/kernel/iommu_groups/000013000/type", "DMA-FQ")),
    ("pci-aspm", Warn, |t| {
        t.put(
            "/sys/module/pcie_aspm/parameters/policy",
            "default performance [powersave] powersupersave",
        )
    }),
    ("pci-cmdline", Warn, |t| {
        t.replace("/proc/cmdline", "pci=pcie_bus_perf", "pci=pcie_bus_perf,noats")
    }),
    ("pci-driver", Fail, |t| t.remove(&pci(&gpu(3), "driver"))),
    ("pci-driver", Warn, |t| t.link(&pci(&gpu(3), "driver"), "/sys/bus/pci/drivers/vfio-pci")),
];
