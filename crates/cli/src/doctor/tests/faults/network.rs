//! Faults of RDMA, RoCE, counters and clouds.

use super::{Fail, Fault, Tree, Warn, pci, port, set};

const DMESG: &str = "/commands/dmesg.txt";

/// A device over both ports of the bond.
fn bonded(tree: &mut Tree) {
    tree.link("/sys/class/infiniband/mlx5_bond_0", "/sys/class/infiniband/mlx5_6");
    for name in ["mlxlink", "mlxreg-roce"] {
        let text = format!("/commands/{name}-mlx5_6.txt");
        let text = std::fs::read(tree.folder().join(&text[1..])).unwrap();
        tree.bytes(&format!("/commands/{name}-mlx5_bond_0.txt"), &text);
    }
    tree.put("/dev/infiniband/uverbs10", "");
}

/// Makes it a machine of Amazon's with this many EFA devices, which are ports of no switch of ours.
fn amazon(tree: &mut Tree, product: &str, devices: usize) {
    tree.put("/sys/class/dmi/id/sys_vendor", "Amazon EC2");
    tree.put("/sys/class/dmi/id/product_name", product);
    for index in 0..devices {
        let place = format!("/sys/class/infiniband/rdmap{index}s0");
        for (name, value) in [
            ("node_guid", format!("0002:0000:0000:00{index:02}")),
            ("ports/1/state", "4: ACTIVE".to_owned()),
            ("ports/1/phys_state", "5: LinkUp".to_owned()),
            ("ports/1/rate", "100 Gb/sec (4X EDR)".to_owned()),
            ("ports/1/link_layer", "Unspecified".to_owned()),
        ] {
            tree.put(&format!("{place}/{name}"), value);
        }
        tree.put(&format!("/dev/infiniband/uverbs{}", index + 20), "");
    }
}

pub(super) const FAULTS: &[Fault] = &[
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
    ("ibl-09", Fail, |t| {
        t.replace("/commands/mlxlink-mlx5_3.txt", ": 2E-10", ": 3E-7");
    }),
    ("ibl-09", Warn, |t| {
        t.replace("/commands/mlxlink-mlx5_3.txt", ": 15E-255", ": 5E-13");
    }),
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
    ("roc-04", Fail, |t| {
        t.put(&port(3, "gids/1"), "2001:0db8:0000:0000:a088:c2ff:fead:ea03");
    }),
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
    ("roc-12", Warn, |t| {
        t.put("/sys/kernel/config/rdma_cm/mlx5_3/ports/1/default_roce_tos", 32);
    }),
    ("roc-14", Fail, |t| {
        t.replace("/commands/mlxreg-roce-mlx5_3.txt", "0x00000001", "0x00000000");
    }),
    ("roc-15", Warn, bonded),
    ("roc-15", Fail, |t| {
        bonded(t);
        t.replace("/proc/net/bonding/bond0", "layer3+4 (1)", "layer2 (0)");
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
    ("ctr-09", Warn, |t| {
        t.replace(
            "/commands/ethtool-S-eth3.txt",
            "rx_pause_ctrl_phy: 10",
            "rx_prio0_pause: 7\n     rx_pause_ctrl_phy: 17",
        )
    }),
    ("ctr-10", Fail, |t| t.put(&port(3, "hw_counters/rp_cnp_ignored"), 5)),
    ("ctr-11", Warn, |t| {
        t.replace("/commands/ethtool-S-eth3.txt", "rx_discards_phy: 0", "rx_discards_phy: 50")
    }),
    ("ctr-11", Fail, |t| t.put("/sys/class/net/eth3/statistics/rx_crc_errors", 1_000_000_000)),
    ("efa-01", Fail, |t| amazon(t, "p5.48xlarge", 4)),
    ("efa-03", Fail, |t| {
        amazon(t, "p4d.24xlarge", 4);
        set(t, "FI_EFA_USE_DEVICE_RDMA=0");
    }),
    ("efa-03", Fail, |t| {
        amazon(t, "p4d.24xlarge", 4);
        set(t, "FI_PROVIDER=tcp");
    }),
    ("gcp-01", Warn, |t| t.put("/sys/class/dmi/id/sys_vendor", "Google")),
];
