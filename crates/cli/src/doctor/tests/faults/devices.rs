//! Faults of GPUs, PCI Express, RDMA and RoCE.

use super::{Fail, Fault, Warn, gpu, nic, pci, port, set};

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
    ("gpu-replay", Warn, smi!(8, "Replays Since Reset", "0", "12")),
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
    ("ibl-01", Fail, |t| t.put(&port(3, "state"), "1: DOWN")),
    ("ibl-01", Warn, |t| t.put(&port(8, "state"), "1: DOWN")),
    ("ibl-02", Fail, |t| t.put(&port(3, "phys_state"), "6: LinkErrorRecovery")),
    ("ibl-03", Fail, |t| t.put(&port(3, "rate"), "200 Gb/sec (2X NDR)")),
    ("ibl-04", Fail, |t| t.put(&port(8, "sm_lid"), "0x0")),
    ("ibl-05", Warn, |t| t.put("/commands/environment.txt", "NCCL_DEBUG=WARN")),
    ("ibl-05", Warn, |t| t.put("/commands/environment.txt", "NCCL_IB_HCA=")),
    ("ibl-05", Warn, |t| t.put("/commands/environment.txt", "NCCL_IB_HCA==mlx5_0,mlx5_8")),
    ("ibl-06", Fail, |t| t.put("/sys/class/infiniband/mlx5_3/fw_ver", "28.35.2000")),
    ("ibl-06", Fail, |t| {
        for index in 4..8 {
            t.put(&format!("/sys/class/infiniband/mlx5_{index}/fw_ver"), "28.35.2000");
        }
    }),
    ("ibl-07", Fail, |t| t.put("/sys/class/infiniband/mlx5_3/node_guid", "0000:0000:0000:0000")),
    ("ibl-08", Warn, |t| {
        for second in 90..93 {
            t.append(DMESG, &format!("[{second}.0] mlx5_core 0000:14:00.0 eth0: Link down"));
        }
    }),
    ("ibl-08", Warn, |t| t.append(DMESG, "[99.0] mlx5_core 0000:14:00.0 eth0: Link down")),
    ("ibl-10", Fail, |t| {
        // A slot of the fourth generation, all the way up.
        for address in ["0000:01:00.0", "0000:00:01.0"] {
            for which in ["current", "max"] {
                t.put(&pci(address, &format!("{which}_link_speed")), "8.0 GT/s PCIe");
            }
        }
    }),
    ("rdma-driver", Fail, |t| {
        // A ninth NIC, with its driver and no RDMA device.
        let place = "/sys/devices/pci0000:00/0000:00:02.0";
        for (file, value) in
            [("class", "0x020000"), ("vendor", "0x15b3"), ("device", "0x1021"), ("numa_node", "0")]
        {
            t.put(&format!("{place}/{file}"), value);
        }
        t.link(&format!("{place}/driver"), "/sys/bus/pci/drivers/mlx5_core");
        t.link("/sys/bus/pci/devices/0000:00:02.0", place);
    }),
    ("rdma-modules", Fail, |t| t.remove("/sys/module/ib_uverbs")),
    ("roc-01", Fail, |t| t.put(&port(3, "gid_attrs/types/1"), "IB/RoCE v1")),
    ("roc-01", Warn, |t| t.put(&port(3, "gids/1"), "fe80:0000:0000:0000:a088:c2ff:fead:ea03")),
    ("roc-02", Fail, |t| set(t, "NCCL_IB_GID_INDEX=0")),
    ("roc-02", Warn, |t| set(t, "NCCL_IB_GID_INDEX=1")),
    ("roc-05", Warn, |t| t.put("/sys/class/net/eth3/mtu", 1500)),
    ("roc-07", Fail, |t| {
        t.replace(
            "/commands/mlnx_qos-eth3.txt",
            "Priority trust state: dscp",
            "Priority trust state: pcp",
        );
    }),
    ("roc-08", Warn, |t| {
        t.replace(
            "/commands/mlnx_qos-eth3.txt",
            "enabled     0   0   0   1   0",
            "enabled     0   0   0   1   1",
        )
    }),
    ("roc-08", Fail, |t| {
        t.replace(
            "/commands/mlnx_qos-eth3.txt",
            "enabled     0   0   0   1   0",
            "enabled     0   0   0   0   0",
        )
    }),
    ("roc-09", Fail, |t| {
        t.put("/sys/class/infiniband/mlx5_3/tc/1/traffic_class", "Global tclass=0")
    }),
    ("roc-09", Warn, |t| t.remove("/sys/class/infiniband/mlx5_3/tc")),
    ("roc-10", Warn, |t| t.put("/sys/class/net/eth3/ecn/roce_rp/enable/3", 0)),
    ("roc-10", Fail, |t| {
        t.put("/sys/class/net/eth3/ecn/roce_rp/enable/3", 0);
        t.put("/sys/class/net/eth3/ecn/roce_np/enable/3", 0);
    }),
    ("roc-11", Warn, |t| t.put("/sys/class/net/eth3/ecn/roce_np/cnp_dscp", 26)),
    ("roc-12", Warn, |t| {
        t.put("/sys/kernel/config/rdma_cm/mlx5_3/ports/1/default_roce_mode", "IB/RoCE v1")
    }),
    ("roc-15", Warn, |t| t.replace("/proc/net/bonding/bond0", "layer3+4 (1)", "layer2 (0)")),
    ("roc-16", Fail, |t| t.put("/proc/sys/net/ipv4/conf/all/arp_ignore", 0)),
    ("net-rp-filter", Fail, |t| t.put("/proc/sys/net/ipv4/conf/all/rp_filter", 1)),
    ("ctr-01", Fail, |t| t.put(&port(3, "counters/symbol_error"), 11)),
    ("ctr-01", Warn, |t| t.put(&port(3, "counters/symbol_error"), 3)),
    ("ctr-02", Warn, |t| t.put(&port(3, "counters/link_downed"), 255)),
    ("ctr-03", Fail, |t| t.put(&port(3, "counters/port_rcv_errors"), 14)),
    ("ctr-04", Warn, |t| t.put(&port(3, "counters/port_xmit_discards"), 5)),
    ("ctr-05", Fail, |t| t.put(&port(8, "counters/port_xmit_wait"), "230442669431839")),
    ("ctr-06", Warn, |t| t.put(&port(3, "hw_counters/local_ack_timeout_err"), 2)),
    ("ctr-06", Warn, |t| t.put(&port(3, "hw_counters/out_of_sequence"), 5)),
    ("ctr-07", Warn, |t| t.put(&port(3, "hw_counters/rnr_nak_retry_err"), 5)),
    ("ctr-08", Fail, |t| {
        t.replace(
            "/commands/ethtool-S-eth3.txt",
            "rx_prio3_pause_duration: 1000",
            "rx_prio3_pause_duration: 200000000000",
        )
    }),
    ("ctr-09", Fail, |t| {
        t.replace(
            "/commands/ethtool-S-eth3.txt",
            "rx_pause_ctrl_phy: 10",
            "rx_pause_ctrl_phy: 4000",
        )
    }),
    ("ctr-10", Fail, |t| t.put(&port(3, "hw_counters/rp_cnp_ignored"), 5)),
    ("ctr-11", Warn, |t| {
        t.replace("/commands/ethtool-S-eth3.txt", "rx_discards_phy: 0", "rx_discards_phy: 50")
    }),
    ("ctr-11", Fail, |t| t.put("/sys/class/net/eth3/statistics/rx_crc_errors", 1_000_000_000)),
];
