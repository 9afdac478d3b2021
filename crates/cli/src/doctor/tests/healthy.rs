//! Machines of other kinds that are well: no check may complain of them.

use ringway::testing::machine::{MachineTree, PciSpec};
use ringway::topo::{Root, VIRTUAL_TOPOLOGY};

use super::tree::{Tree, nic};
use super::{look, troubles};
use crate::doctor::checks;
use crate::doctor::examine::{Examined, examine};
use crate::doctor::finding::Verdict;
use crate::doctor::host::Host;

/// What is said to be wrong.
fn complaints(found: &Examined) -> Vec<String> {
    let bad = troubles(found).into_values().filter(|finding| finding.verdict > Verdict::Unknown);
    bad.map(|one| format!("{} {:?} {} {:?}", one.id, one.verdict, one.title, one.evidence))
        .collect()
}

/// Looks at a tree that is no eight-GPU box.
fn look_at(tree: &MachineTree) -> Examined {
    examine(&Host::new(Root::at(tree.folder())), &checks::all())
}

fn function(tree: &MachineTree, bus: &str, ids: &str, driver: &str) {
    let above = "pci0000:00/0000:00:1f.0";
    let (numa, speed, width) = (0, "32.0 GT/s PCIe", 16);
    if !tree.folder().join(format!("sys/devices/{above}/class")).exists() {
        let (above, bus, ids, driver) =
            ("pci0000:00", "0000:00:1f.0", "0x060400 0x1000 0xc030", "pcieport");
        tree.pci(&PciSpec { above, bus, ids, numa, driver, speed, width }).unwrap();
    }
    tree.pci(&PciSpec { above, bus, ids, numa, driver, speed, width }).unwrap();
    // 128 bytes of payload, 512 bytes a read, no relaxed ordering.
    let mut config = vec![0_u8; 4096];
    (config[0x34], config[0x40]) = (0x40, 0x10);
    config[0x48..0x4a].copy_from_slice(&0x2000_u16.to_le_bytes());
    let place = tree.folder().join(format!("sys/bus/pci/devices/{bus}/config"));
    std::fs::write(place, config).unwrap();
}

#[test]
fn a_laptop_with_wifi_and_an_amd_display_is_well() {
    let tree = MachineTree::new().unwrap();
    tree.cpuinfo(8, "fpu").unwrap();
    tree.file("proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 80\nflags\t\t: fpu")
        .unwrap();
    tree.file("proc/cmdline", "root=/dev/x ro quiet").unwrap();
    tree.file("sys/module/amdgpu/version", "1").unwrap();
    tree.file("sys/kernel/iommu_groups/3/type", "DMA-FQ").unwrap();
    for (bus, ids, driver) in [
        ("0000:01:00.0", "0x028000 0x8086 0x2723", "iwlwifi"),
        ("0000:02:00.0", "0x020000 0x10ec 0x8168", "r8169"),
        ("0000:03:00.0", "0x030000 0x1002 0x1638", "amdgpu"),
    ] {
        function(&tree, bus, ids, driver);
        tree.link(
            &format!("sys/devices/pci0000:00/0000:00:1f.0/{bus}/iommu_group"),
            "sys/kernel/iommu_groups/3",
        )
        .unwrap();
    }
    // The radio's link sleeps.
    tree.file(
        "sys/devices/pci0000:00/0000:00:1f.0/0000:01:00.0/current_link_speed",
        "2.5 GT/s PCIe",
    )
    .unwrap();
    tree.interface("wlan0", Some("pci0000:00/0000:00:1f.0/0000:01:00.0"), "up", 0).unwrap();
    tree.interface("eth0", Some("pci0000:00/0000:00:1f.0/0000:02:00.0"), "up", 1000).unwrap();
    // Both in the network at home.
    let routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                  wlan0\t0001A8C0\t00000000\t0001\t0\t0\t600\t00FFFFFF\t0\t0\t0\n\
                  eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0";
    tree.file("proc/net/route", routes).unwrap();
    tree.file("proc/sys/net/ipv4/conf/all/rp_filter", "1").unwrap();
    tree.file("proc/sys/net/ipv4/conf/all/arp_ignore", "0").unwrap();
    let found = complaints(&look_at(&tree));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_virtual_machine_with_efa_is_well() {
    let tree = MachineTree::new().unwrap();
    tree.cpuinfo(8, "fpu hypervisor").unwrap();
    tree.file("proc/sys/kernel/osrelease", "5.10.0-1-aws").unwrap();
    tree.file(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.10.01",
    )
    .unwrap();
    for module in ["nvidia", "nvidia_uvm", "efa"] {
        tree.file(&format!("sys/module/{module}/version"), "570.10.01").unwrap();
    }
    tree.file("sys/module/ib_uverbs/refcnt", "1").unwrap();
    let nics = ["0000:02:00.0", "0000:03:00.0"];
    let below: String =
        nics.iter().map(|bus| format!("<pci busid=\"{bus}\" class=\"0x020000\"/>")).collect();
    let file = format!(
        "<system version=\"1\"><cpu numaid=\"0\" affinity=\"ff\" arch=\"x86_64\">\
         <pci busid=\"ffff:ff:01.0\" class=\"0x060400\">\
         <pci busid=\"0000:01:00.0\" class=\"0x030200\"/>{below}</pci></cpu></system>"
    );
    tree.file(VIRTUAL_TOPOLOGY, &file).unwrap();
    function(&tree, "0000:01:00.0", "0x030200 0x10de 0x2330", "nvidia");
    for (index, bus) in nics.into_iter().enumerate() {
        function(&tree, bus, "0x020000 0x1d0f 0xefa1", "efa");
        let name = format!("rdmap{index}s0");
        tree.rdma(
            &name,
            &format!("none{index}"),
            &format!("pci0000:00/0000:00:1f.0/{bus}"),
            "4: ACTIVE",
        )
        .unwrap();
        let port = format!("sys/class/infiniband/{name}/ports/1");
        for (file, value) in [
            ("link_layer", "Unspecified"),
            ("lid", "0x0"),
            ("sm_lid", "0x0"),
            ("rate", "100 Gb/sec (4X EDR)"),
        ] {
            tree.file(&format!("{port}/{file}"), value).unwrap();
        }
        tree.file(&format!("dev/infiniband/uverbs{index}"), "").unwrap();
    }
    let found = complaints(&look_at(&tree));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_pod_with_virtual_functions_is_well() {
    let mut tree = Tree::healthy();
    tree.put("/commands/ringway.txt", "container = its root is an image\nshm_bytes = 1082331758592\nshm_free_bytes = 1082331758592\nuid = 0");
    tree.put(
        "/proc/self/status",
        "Name:\tringway\nCapEff:\t0000003fffffffff\nCpus_allowed_list:\t0-7",
    );
    let found = tree.with(
        |tree| {
            // Four functions of the first card, of which the pod got one; its settings are the card's.
            let card = "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0";
            for function in 1..5 {
                let address = format!("0000:14:00.{function}");
                let place = format!("{card}/{address}");
                for (file, value) in [
                    ("class", "0x020000"),
                    ("vendor", "0x15b3"),
                    ("device", "0x101e"),
                    ("numa_node", "0"),
                    ("local_cpulist", "0-3"),
                ] {
                    tree.put(&format!("{place}/{file}"), value);
                }
                let mut config = vec![0_u8; 4096];
                (config[0x34], config[0x40]) = (0x40, 0x10);
                tree.bytes(&format!("{place}/config"), &config);
                tree.link(&format!("{place}/physfn"), &format!("{card}/{}", nic(0)));
                tree.link(&format!("/sys/bus/pci/devices/{address}"), &place);
                if function == 1 {
                    tree.link(&format!("{place}/driver"), "/sys/bus/pci/drivers/mlx5_core");
                    let device = format!("{place}/infiniband/mlx5_9");
                    tree.put(&format!("{device}/fw_ver"), "28.39.1002");
                    tree.put(&format!("{device}/board_id"), "MT_0000000838");
                    tree.put(&format!("{device}/node_guid"), "a088:c203:00ad:ea99");
                    tree.link(&format!("{device}/device"), &place);
                    tree.link("/sys/class/infiniband/mlx5_9", &device);
                    tree.put("/dev/infiniband/uverbs9", "");
                }
            }
            // The other cards are not the pod's: no RDMA device, no node.
            for index in 4..8 {
                tree.remove(&format!("/sys/class/infiniband/mlx5_{index}"));
                tree.remove(&format!("/dev/infiniband/uverbs{index}"));
            }
        },
        look,
    );
    let found = complaints(&found);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_container_that_sees_two_of_eight_gpus_is_well() {
    let mut tree = Tree::healthy();
    // The whole bus is seen; the driver, NVLink and the nodes are those of the container.
    let cut = |text: &str, mark: &str| {
        let third = text.match_indices(mark).nth(2).map_or(text.len(), |(at, _)| at);
        text[..third].to_owned()
    };
    for (name, mark) in [
        ("nvidia-smi-q", "GPU 0000"),
        ("nvidia-smi-nvlink-s", "GPU "),
        ("nvidia-smi-nvlink-e", "GPU "),
    ] {
        let path = format!("/commands/{name}.txt");
        let text = std::fs::read_to_string(tree.folder().join(&path[1..])).unwrap();
        tree.put(&path, cut(&text, mark));
    }
    tree.put("/commands/nvidia-smi-p2p.txt", "       GPU0  GPU1\n GPU0   X   OK\n GPU1   OK   X");
    tree.append("/commands/environment.txt", "KUBERNETES_SERVICE_HOST=10.96.0.1");
    for index in 2..=8 {
        tree.remove(&format!("/dev/infiniband/uverbs{index}"));
    }
    tree.put(
        "/proc/self/status",
        "Name:\tringway\nCapEff:\t0000003fffffffff\nCpus_allowed_list:\t0-7",
    );
    // Most of what is used are files that were read once.
    tree.put("/sys/fs/cgroup/memory.current", "1099511627000");
    tree.put("/sys/fs/cgroup/memory.stat", "anon 1000\ninactive_file 549755813888");
    let found = look(&tree);
    let bad = complaints(&found);
    assert!(bad.is_empty(), "{bad:#?}");
    let unknown: Vec<&str> = troubles(&found).into_keys().collect();
    assert_eq!(unknown, ["gpu-count", "mem-09"]);
    // On the machine itself the same is a fault.
    tree.replace("/commands/environment.txt", "KUBERNETES_SERVICE_HOST=10.96.0.1", "");
    let found = look(&tree);
    assert_eq!(troubles(&found)["gpu-count"].verdict, Verdict::Fail);
}

#[test]
fn gpus_in_pairs_and_counters_of_packets_are_well() {
    let mut tree = Tree::healthy();
    // Bridges join 0 with 1, 2 with 3 and so on; the other pairs have PCIe only.
    let rows = |joined: &str, other: &str| {
        let mut text = (0..8).map(|gpu| format!("\tGPU{gpu}")).collect::<String>();
        for gpu in 0..8_usize {
            text += &format!("\nGPU{gpu}");
            for at in 0..8 {
                text += "\t";
                text += match at {
                    _ if at == gpu => "X",
                    _ if at == gpu ^ 1 => joined,
                    _ => other,
                };
            }
        }
        text
    };
    tree.put("/commands/nvidia-smi-topo-m.txt", rows("NV4", "SYS"));
    tree.put("/commands/nvidia-smi-p2p.txt", rows("OK", "NS"));
    for (at, counter) in [
        "Tx packets: 990",
        "Rx bytes: 76000",
        "Malformed packet Errors: 0",
        "Link recovery successful events: 3",
        "Effective BER: 15e-255",
        "Symbol Errors: 12",
        "FEC Errors - 0: 990000",
    ]
    .into_iter()
    .enumerate()
    {
        tree.append("/commands/nvidia-smi-nvlink-e.txt", &format!("\t Link {at}: {counter}"));
    }
    let found = complaints(&look(&tree));
    assert!(found.is_empty(), "{found:#?}");
    tree.put("/commands/nvidia-smi-p2p.txt", rows("NS", "NS"));
    tree.append("/commands/nvidia-smi-nvlink-e.txt", "\t Link 3: Malformed packet Errors: 2");
    let found = look(&tree);
    assert_eq!(troubles(&found).into_keys().collect::<Vec<_>>(), ["nvl-02", "nvl-05"]);
}

#[test]
fn an_old_line_in_the_fabric_managers_log_is_told_as_that() {
    let mut tree = Tree::healthy();
    tree.append("/commands/fabricmanager.txt", "[Jan 01 2026 00:00:01] [ERROR] [tid 1] failed");
    let found = look(&tree);
    let title = &troubles(&found)["nvl-03"].title;
    assert_eq!(title, "the NVLink fabric is set up now, and its log has errors of before");
}

#[test]
fn amd_gpus_joined_by_xgmi_need_no_more_nodes() {
    let tree = MachineTree::new().unwrap();
    let info =
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nflags\t\t: fpu";
    tree.file("proc/cpuinfo", info).unwrap();
    tree.file("proc/cmdline", "ro iommu=pt").unwrap();
    for (node, bus) in ["0000:05:00.0", "0000:15:00.0"].into_iter().enumerate() {
        function(&tree, bus, "0x038000 0x1002 0x740c", "amdgpu");
        let place = format!("sys/class/kfd/kfd/topology/nodes/{node}");
        let location = (0x05 + 0x10 * node) << 8;
        let text = format!("simd_count 9\nlocation_id {location}\ngfx_target_version 90010");
        tree.file(&format!("{place}/properties"), &text).unwrap();
    }
    let ids = |found: &Examined| complaints(found).join(" ");
    assert!(ids(&look_at(&tree)).contains("num-04"), "GPUs over PCIe");
    for node in 0..2 {
        let place = format!("sys/class/kfd/kfd/topology/nodes/{node}/io_links/0/properties");
        tree.file(&place, &format!("type 11\nnode_from {node}\nnode_to {}", 1 - node)).unwrap();
    }
    let found = complaints(&look_at(&tree));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_port_that_nobody_chose_may_be_down() {
    let mut tree = Tree::healthy();
    tree.put(&super::tree::port(3, "state"), "1: DOWN");
    tree.put("/sys/class/net/eth3/operstate", "down");
    let state = |tree: &Tree| {
        let found = look(tree);
        let bad = troubles(&found);
        assert!(!bad.contains_key("eth-state"), "told once, by ibl-01");
        bad["ibl-01"].verdict
    };
    assert_eq!(state(&tree), Verdict::Fail);
    tree.put("/commands/environment.txt", "NCCL_IB_HCA==mlx5_0,mlx5_1");
    assert_eq!(state(&tree), Verdict::Warn);
}

#[test]
fn distributions_that_leave_shared_memory_alone_are_well() {
    let mut tree = Tree::healthy();
    tree.put("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no");
    tree.put("/etc/os-release", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"");
    let found = complaints(&look(&tree));
    assert!(found.is_empty(), "{found:#?}");
}
