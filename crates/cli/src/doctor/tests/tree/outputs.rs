//! What the programs print on the healthy machine.

use std::fmt::Write as _;

use super::{GPUS, Tree, gpu};

pub(super) fn write(tree: &mut Tree) {
    tree.put("/commands/dmesg.txt", "[    0.000000] Linux version 6.8.0-60-generic\n[    9.120000] mlx5_core 0000:14:00.0 eth0: Link up");
    tree.put("/commands/nvidia-smi-q.txt", smi());
    tree.put("/commands/chronyc.txt", "Reference ID    : 0A000001 (10.0.0.1)\nStratum         : 3\nSystem time     : 0.000012345 seconds fast of NTP time");
    tree.put("/commands/ringway.txt", "shm_bytes = 1082331758592\nshm_free_bytes = 1082331758592\nuid = 1000\nusable uverbs0 = yes\n\
         library libibverbs.so.1 0 = /lib/x86_64-linux-gnu/libibverbs.so.1 IBVERBS_PRIVATE_34\n\
         library libmlx5.so.1 0 = /lib/x86_64-linux-gnu/libmlx5.so.1 IBVERBS_PRIVATE_34");
    let hcas: Vec<String> = (0..GPUS).map(|index| format!("mlx5_{index}")).collect();
    tree.put("/commands/environment.txt", "NCCL_IB_HCA==".to_owned() + &hcas.join(","));
    let (mut links, mut errors, mut peers) =
        (String::new(), String::new(), String::from("       "));
    for index in 0..GPUS {
        let _ = write!(peers, "GPU{index}  ");
    }
    for index in 0..GPUS {
        for text in [&mut links, &mut errors] {
            let _ = writeln!(
                text,
                "GPU {index}: Some GPU of ours (UUID: GPU-0000000{index}-1111-2222-3333-444444444444)"
            );
        }
        for link in 0..18 {
            let _ = writeln!(links, "\t Link {link}: 26.562 GB/s");
            let _ = writeln!(
                errors,
                "\t Link {link}: Replay Errors: 0\n\t Link {link}: Recovery Errors: 0\n\t Link {link}: CRC Errors: 0"
            );
        }
        let row: Vec<&str> =
            (0..GPUS).map(|other| if other == index { "X" } else { "OK" }).collect();
        let _ = write!(peers, "\n GPU{index}   {}", row.join("   "));
    }
    for index in 0..=GPUS {
        tree.put(
            &format!("/commands/mlxlink-mlx5_{index}.txt"),
            "Operational Info\n----------------\nState                              : Active\n\n\
             Physical Counters and BER Info\n------------------------------\n\
             Effective Physical BER             : 15E-255\n\
             Raw Physical BER                   : 2E-10",
        );
        tree.put(
            &format!("/commands/mlxreg-roce-mlx5_{index}.txt"),
            "Field Name                   | Data\n===\nadaptive_routing_forced_en   | 0x00000001",
        );
    }
    tree.put("/commands/nvidia-smi-nvlink-s.txt", links.trim_end());
    tree.put("/commands/nvidia-smi-nvlink-e.txt", errors.trim_end());
    tree.put("/commands/nvidia-smi-p2p.txt", peers);
    tree.put("/commands/fabricmanager.txt", "[Jan 01 2026 00:00:00] [INFO] [tid 1] all is set up");
    for index in 0..GPUS {
        let name = format!("eth{index}");
        tree.put(&format!("/commands/mlnx_qos-{name}.txt"), qos());
        tree.put(
            &format!("/commands/ethtool-S-{name}.txt"),
            "NIC statistics:\n     rx_discards_phy: 0\n     rx_out_of_buffer: 0\n     rx_crc_errors_phy: 0\n     rx_prio3_pause: 10\n     \
             rx_prio3_pause_duration: 1000\n     rx_pause_ctrl_phy: 10",
        );
        tree.put(
            &format!("/commands/ethtool-g-{name}.txt"),
            maximums("RX:\t\t8192\nTX:\t\t8192", "RX:\t\t8192\nTX:\t\t1024"),
        );
        tree.put(
            &format!("/commands/ethtool-l-{name}.txt"),
            maximums("Combined:\t63", "Combined:\t63"),
        );
        tree.put(
            &format!("/commands/ethtool-k-{name}.txt"),
            "Features:\ntcp-segmentation-offload: on\ngeneric-segmentation-offload: on\ngeneric-receive-offload: on\nlarge-receive-offload: off [fixed]",
        );
    }
}

fn maximums(most: &str, now: &str) -> String {
    format!("Parameters:\nPre-set maximums:\n{most}\nCurrent hardware settings:\n{now}")
}

fn qos() -> String {
    let mut text =
        "DCBX mode: OS controlled\nPriority trust state: dscp\ndscp2prio mapping:\n".to_owned();
    for priority in 0..8 {
        let points: Vec<String> =
            (priority * 8..priority * 8 + 8).rev().map(|point| format!("{point:02}")).collect();
        let _ = writeln!(text, "\tprio:{priority} dscp:{},", points.join(","));
    }
    text + "PFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\tenabled     0   0   0   1   0   0   0   0\n\tbuffer      0   0   0   1   0   0   0   0"
}

fn smi() -> String {
    let line = |text: &mut String, level: usize, name: &str, value: &str| {
        let _ = writeln!(text, "{:level$}{name:<width$}: {value}", "", width = 42 - level);
    };
    let mut text = "\n==============NVSMI LOG==============\n\n".to_owned();
    line(&mut text, 0, "Driver Version", "570.10.01");
    line(&mut text, 0, "Attached GPUs", "8");
    for index in 0..GPUS {
        let _ = writeln!(text, "GPU 0000{}", gpu(index).to_uppercase());
        for (name, value) in [
            ("Product Name", "Some GPU of ours"),
            ("Persistence Mode", "Enabled"),
            ("VBIOS Version", "96.00.01"),
            ("Compute Mode", "Default"),
        ] {
            line(&mut text, 4, name, value);
        }
        let groups: [(&str, &[(&str, &str)]); 9] = [
            ("MIG Mode", &[("Current", "Disabled"), ("Pending", "Disabled")]),
            ("GPU Reset Status", &[("Reset Required", "No")]),
            ("PCI", &[("Replays Since Reset", "0"), ("Replay Number Rollovers", "0")]),
            ("Fabric", &[("State", "Completed"), ("Status", "Success")]),
            ("FB Memory Usage", &[("Total", "81559 MiB")]),
            ("BAR1 Memory Usage", &[("Total", "131072 MiB")]),
            ("ECC Mode", &[("Current", "Enabled"), ("Pending", "Enabled")]),
            ("Remapped Rows", &[("Pending", "No"), ("Remapping Failure Occurred", "No")]),
            (
                "GPU Power Readings",
                &[("Current Power Limit", "700.00 W"), ("Default Power Limit", "700.00 W")],
            ),
        ];
        for (heading, lines) in groups {
            let _ = writeln!(text, "    {heading}");
            for (name, value) in lines {
                line(&mut text, 8, name, value);
            }
        }
        text.push_str("    Clocks Event Reasons\n");
        line(&mut text, 8, "SW Power Cap", "Not Active");
        line(&mut text, 8, "HW Slowdown", "Not Active");
        line(&mut text, 12, "HW Thermal Slowdown", "Not Active");
        text.push_str("    ECC Errors\n        Volatile\n");
        line(&mut text, 12, "SRAM Uncorrectable", "0");
        line(&mut text, 12, "DRAM Uncorrectable", "0");
    }
    text
}
