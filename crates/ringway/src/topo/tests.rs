//! Copied machines, written by the tests themselves.

use super::*;
use crate::plan::topology::hca::HcaFilter;
use crate::plan::topology::level::Levels;
use crate::plan::topology::matrix::{self, Cell, Matrix};
use crate::plan::topology::nearest::affinities;
use crate::plan::topology::path::{PathClass, Paths};
use crate::plan::topology::{Topology, xml};
use crate::testing::machine::{EIGHT_GPUS, MachineTree, PciSpec};

fn found(tree: &MachineTree) -> (Machine, Topology) {
    let machine = Machine::discover(&Root::at(tree.folder()));
    let topology = machine.topology(&DocumentOptions::default()).unwrap();
    (machine, topology)
}

#[test]
fn a_copied_host_has_the_matrix_nvidia_smi_printed_on_it() {
    let tree = MachineTree::eight_gpus().unwrap();
    let (machine, topology) = found(&tree);
    assert_eq!(machine.notes, Vec::<String>::new());
    assert_eq!((machine.gpus.len(), machine.rdma.len()), (8, 8));
    assert_eq!(Matrix::of(&topology), matrix::read(EIGHT_GPUS).unwrap());
}

#[test]
fn a_copied_host_is_described_whole() {
    let tree = MachineTree::eight_gpus().unwrap();
    let (machine, topology) = found(&tree);
    assert_eq!(machine.host, "hgx-0");
    assert_eq!(machine.platform.product.as_deref(), Some("EX-8000"));
    assert!(!machine.platform.virtual_machine);
    assert_eq!((machine.numa.len(), machine.numa[1].memory_kib), (2, Some(1_048_576)));
    let gpu = machine.pci.iter().find(|device| device.is_gpu()).unwrap();
    assert_eq!(gpu.above.len(), 3);
    assert_eq!(gpu.host_bridge.as_deref(), Some("pci0000:10"));
    assert_eq!(gpu.driver.as_deref(), Some("nvidia"));
    assert_eq!(machine.gpus[0].name.as_deref(), Some("NVIDIA Example"));
    let port = &machine.rdma[0].ports[0];
    assert!(port.is_active());
    assert_eq!((port.mbit_per_s, port.link_layer.as_str()), (Some(400_000), "Ethernet"));
    let kinds: Vec<(usize, GidKind)> = port.gids.iter().map(|gid| (gid.index, gid.kind)).collect();
    assert_eq!(kinds, [(0, GidKind::RoceV1), (3, GidKind::RoceV2)]);
    assert_eq!(port.gids[1].interface.as_deref(), Some("eth0"));
    assert_eq!((port.is_ethernet(), port.gids[1].kind.to_string().as_str()), (true, "RoCE v2"));
    assert_eq!(machine.rdma[0].board_id.as_deref(), Some("MT_0000000838"));
    assert_eq!(gpu.gpu_maker(), Some(GpuMaker::Nvidia));
    let nics = machine.pci.iter().filter(|device| device.is_rdma_nic() && device.is_nic());
    assert_eq!(nics.count(), 8);
    let net = |name: &str| machine.nets.iter().find(|net| net.name == name).unwrap();
    assert_eq!(net("eth0").bus, machine.rdma[0].bus);
    assert_eq!(net("eth0").mbit_per_s, Some(400_000));
    assert!(net("eth0").is_up() && net("eth0").is_device() && net("eth0").is_ethernet);
    assert!(!net("docker0").is_device() && net("docker0").mbit_per_s.is_none());
    assert_eq!((net("lo").kind, net("docker0").kind), (NetKind::Loopback, NetKind::Virtual));
    let paths = Paths::as_used(&topology, &Levels::default());
    let chosen = affinities(&topology, &paths, &Levels::default());
    assert!(chosen.iter().all(|one| one.class == PathClass::Pix && one.gdr.used));
    let mut rails: Vec<_> = chosen.iter().map(|one| one.rail).collect();
    rails.sort_unstable();
    rails.dedup();
    assert_eq!(rails.len(), 8);
}

#[test]
fn what_is_found_is_written_and_read_back() {
    let tree = MachineTree::eight_gpus().unwrap();
    let (machine, _) = found(&tree);
    let document = machine.document(&DocumentOptions::default());
    let path = tree.folder().join("dump.xml");
    save(&path, &document).unwrap();
    assert_eq!(load(&Root::live(), Some(&path)).unwrap(), Some(document.clone()));
    // No more attributes than NCCL keeps.
    let mut open = vec![&document];
    while let Some(element) = open.pop() {
        assert!(element.attributes.len() <= 16, "{element:?}");
        open.extend(&element.children);
    }
    let missing = load(&Root::live(), Some(&tree.folder().join("none.xml"))).unwrap_err();
    assert!(missing.to_string().ends_with("none.xml: no such file"), "{missing}");
    std::fs::write(&path, "<system>\n<cpu>").unwrap();
    let wrong = load(&Root::live(), Some(&path)).unwrap_err().to_string();
    assert!(wrong.contains("dump.xml: line 2, column"), "{wrong}");
    assert!(save(&tree.folder().join("no/such/folder.xml"), &document).is_err());
}

#[test]
fn ports_that_are_down_or_filtered_are_shown_but_not_used() {
    let tree = MachineTree::eight_gpus().unwrap();
    let place = "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:02.0/0000:15:00.0";
    tree.file(&format!("sys/devices/{place}/infiniband/mlx5_0/ports/1/state"), "1: DOWN").unwrap();
    let machine = Machine::discover(&Root::at(tree.folder()));
    let options =
        DocumentOptions { hca: HcaFilter::parse("^=mlx5_7"), ..DocumentOptions::default() };
    let topology = machine.topology(&options).unwrap();
    let net = |name: &str| {
        let nets = topology.nets();
        topology.net(nets.into_iter().find(|n| topology.name(*n) == name).unwrap()).unwrap().clone()
    };
    assert_eq!(net("mlx5_0").unused.as_deref(), Some("down"));
    assert_eq!(net("mlx5_7").unused.as_deref(), Some("NCCL_IB_HCA"));
    assert_eq!((net("mlx5_1").unused, net("mlx5_1").dev), (None, 0));
    let paths = Paths::as_used(&topology, &Levels::default());
    for one in affinities(&topology, &paths, &Levels::default()) {
        let name = topology.name(one.net.unwrap());
        assert!(name != "mlx5_0" && name != "mlx5_7", "{name}");
    }
}

#[test]
fn the_file_of_a_hypervisor_says_where_devices_are() {
    // A virtual machine: everything on one bus, and a file that knows better.
    let tree = MachineTree::new().unwrap();
    tree.cpuinfo(8, "hypervisor").unwrap();
    tree.file("sys/class/dmi/id/sys_vendor", "Amazon EC2").unwrap();
    tree.numa(0, "0-3").unwrap();
    tree.numa(1, "4-7").unwrap();
    for (bus, ids) in [
        ("0000:00:1c.0", "0x030200 0x10de 0x20b0"),
        ("0000:00:1d.0", "0x030200 0x10de 0x20b0"),
        ("0000:00:1a.0", "0x020000 0x1d0f 0xefa0"),
        ("0000:00:1b.0", "0x020000 0x1d0f 0xefa0"),
    ] {
        let (above, numa, driver, speed, width) = ("pci0000:00", 0, "", "Unknown", 0);
        tree.pci(&PciSpec { above, bus, ids, numa, driver, speed, width }).unwrap();
    }
    tree.rdma("efa_0", "eth0", "pci0000:00/0000:00:1a.0", "4: ACTIVE").unwrap();
    tree.rdma("efa_1", "eth1", "pci0000:00/0000:00:1b.0", "4: ACTIVE").unwrap();
    let file = "<system version=\"1\"><cpu numaid=\"0\" affinity=\"0f\" arch=\"x86_64\">\
                <pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"8 GT/s\" link_width=\"16\">\
                <pci busid=\"0000:00:1c.0\" class=\"0x030200\" link_speed=\"8 GT/s\" link_width=\"16\"/>\
                <pci busid=\"0000:00:1b.0\" class=\"0x020000\" link_speed=\"8 GT/s\" link_width=\"16\"/>\
                </pci></cpu><cpu numaid=\"1\" affinity=\"f0\" arch=\"x86_64\">\
                <pci busid=\"ffff:ff:02.0\" class=\"0x060400\" link_speed=\"8 GT/s\" link_width=\"16\">\
                <pci busid=\"0000:00:1d.0\" class=\"0x030200\" link_speed=\"8 GT/s\" link_width=\"16\"/>\
                <pci busid=\"0000:00:1a.0\" class=\"0x020000\" link_speed=\"8 GT/s\" link_width=\"16\"/>\
                </pci></cpu></system>";
    tree.file(VIRTUAL_TOPOLOGY, file).unwrap();
    let root = Root::at(tree.folder());
    let machine = Machine::discover(&root);
    assert_eq!(machine.platform.hypervisor.as_deref(), Some("AWS"));
    let flat = Matrix::of(&machine.topology(&DocumentOptions::default()).unwrap());
    assert_eq!(flat.between("GPU0", "efa_1"), Some(&Cell::Phb));
    let base = load(&root, None).unwrap();
    let options = DocumentOptions { base, ..DocumentOptions::default() };
    let topology = machine.topology(&options).unwrap();
    let known = Matrix::of(&topology);
    assert_eq!(known.between("GPU0", "efa_1"), Some(&Cell::Pix));
    assert_eq!(known.between("GPU1", "efa_0"), Some(&Cell::Pix));
    assert_eq!(known.between("GPU0", "GPU1"), Some(&Cell::Sys));
    let again = xml::read(xml::write(&machine.document(&options)).as_bytes()).unwrap();
    assert_eq!(again, machine.document(&options));
}

#[test]
fn amd_gpus_have_their_links_from_the_kernel() {
    let tree = MachineTree::new().unwrap();
    tree.cpuinfo(4, "").unwrap();
    tree.numa(0, "0-3").unwrap();
    for (number, bus) in [(1, 0x05_u32), (2, 0x15), (3, 0x25)] {
        tree.pci(&PciSpec {
            above: "pci0000:00",
            bus: &format!("0000:{bus:02x}:00.0"),
            ids: "0x120000 0x1002 0x74a1",
            numa: 0,
            driver: "amdgpu",
            speed: "32.0 GT/s PCIe",
            width: 16,
        })
        .unwrap();
        let node = format!("sys/class/kfd/kfd/topology/nodes/{number}");
        let properties = format!(
            "simd_count 1216\nlocation_id {}\ndomain 0\ngfx_target_version 90402",
            bus << 8
        );
        tree.file(&format!("{node}/properties"), &properties).unwrap();
        for (link, other) in (1..=3).filter(|other| *other != number).enumerate() {
            // The last two are joined over PCI only.
            let kind = if number + other == 5 { 2 } else { 11 };
            let text = format!("type {kind}\nnode_from {number}\nnode_to {other}\nweight 15");
            tree.file(&format!("{node}/io_links/{link}/properties"), &text).unwrap();
        }
    }
    let cpu = "sys/class/kfd/kfd/topology/nodes/0/properties";
    tree.file(cpu, "simd_count 0\ncpu_cores_count 4\nlocation_id 0").unwrap();
    let (machine, topology) = found(&tree);
    assert_eq!(machine.gpus[2].gcn.as_deref(), Some("gfx942"));
    let matrix = Matrix::of(&topology);
    assert_eq!(matrix.between("GPU0", "GPU1"), Some(&Cell::Xgmi));
    assert_eq!(matrix.between("GPU1", "GPU2"), Some(&Cell::Phb));
    let gpus = topology.gpus();
    assert_eq!(Paths::physical(&topology).get(gpus[0], gpus[1]).gb_per_s, 48.0);
}

#[test]
fn nvlinks_of_a_copied_host_come_from_what_nvidia_smi_printed() {
    let tree = MachineTree::eight_gpus().unwrap();
    let mut lines: Vec<String> = Vec::new();
    for line in EIGHT_GPUS.lines() {
        let mut words: Vec<&str> = line.split('\t').collect();
        if line.starts_with("GPU") {
            for word in words.iter_mut().skip(1).take(8).filter(|word| **word != " X ") {
                *word = "NV18";
            }
        }
        lines.push(words.join("\t"));
    }
    tree.file("commands/nvidia-smi-topo-m.txt", &lines.join("\n")).unwrap();
    let (_, topology) = found(&tree);
    assert_eq!(Matrix::of(&topology), matrix::read(&lines.join("\n")).unwrap());
    // Numbers that no machine has do no harm.
    let many = lines.join("\n").replace("NV18", "NV4294967295");
    tree.file("commands/nvidia-smi-topo-m.txt", &many).unwrap();
    assert_eq!(found(&tree).0.gpus.len(), 8);
}

#[test]
fn a_machine_with_nothing_in_it_and_a_hostile_one_are_described_too() {
    let tree = MachineTree::new().unwrap();
    let (machine, topology) = found(&tree);
    assert!(machine.gpus.is_empty() && machine.notes.is_empty(), "{:?}", machine.notes);
    assert_eq!(topology.cpus().len(), 1);

    let at = |path: &str| tree.folder().join(path);
    std::fs::create_dir_all(at("sys/bus/pci/devices")).unwrap();
    std::fs::create_dir_all(at("sys/class/infiniband")).unwrap();
    std::os::unix::fs::symlink("0000:01:00.0", at("sys/bus/pci/devices/0000:01:00.0")).unwrap();
    std::os::unix::fs::symlink("/../../../etc", at("sys/class/infiniband/mlx5_0")).unwrap();
    std::os::unix::fs::symlink("net", at("sys/class/net")).unwrap();
    std::fs::create_dir_all(at("proc/cpuinfo")).unwrap();
    std::fs::File::create(at("sys/bus/pci/devices/0000:02:00.0")).unwrap();
    let (machine, _) = found(&tree);
    let notes = machine.notes.join("\n");
    assert!(notes.contains("/proc/cpuinfo is a folder, not a file"), "{notes}");
    assert!(notes.contains("goes through more than 40 links"), "{notes}");
}

#[test]
fn this_machine_is_described() {
    let machine = Machine::discover(&Root::live());
    assert!(machine.processor.count > 0 && !machine.numa.is_empty());
    assert!(machine.nets.iter().any(|net| net.kind == NetKind::Loopback));
    let topology = machine.topology(&DocumentOptions::default()).unwrap();
    assert!(!topology.cpus().is_empty());
}

#[test]
fn devices_made_by_software_are_where_their_interface_is() {
    let tree = MachineTree::eight_gpus().unwrap();
    for (name, parent, address) in
        [("rxe0", Some("eth3"), "eth0"), ("siw0", None, "vlan5"), ("rxe1", Some("docker0"), "")]
    {
        let folder = format!("sys/class/infiniband/{name}");
        if let Some(parent) = parent {
            tree.file(&format!("{folder}/parent"), parent).unwrap();
        }
        let port = format!("{folder}/ports/1");
        tree.file(&format!("{port}/gids/0"), "fe80:0000:0000:0000:ba3f:d2ff:fe00:0001").unwrap();
        tree.file(&format!("{port}/gid_attrs/ndevs/0"), address).unwrap();
    }
    tree.interface("vlan5", None, "up", 400_000).unwrap();
    tree.file("sys/class/net/vlan5/uevent", "DEVTYPE=vlan").unwrap();
    tree.file("sys/class/net/vlan5/lower_eth6/mtu", "9000").unwrap();
    let (machine, _) = found(&tree);
    let bus = |name: &str| machine.rdma.iter().find(|device| device.name == name).unwrap().bus;
    assert_eq!((bus("rxe0"), bus("siw0")), (bus("mlx5_3"), bus("mlx5_6")));
    assert_eq!(bus("rxe1"), None);
}

#[test]
fn a_table_of_addresses_is_read_past_holes_and_not_to_its_end() {
    let tree = MachineTree::eight_gpus().unwrap();
    let gids = "sys/class/infiniband/mlx5_0/ports/1/gids";
    let none = "0000:0000:0000:0000:0000:0000:0000:0000";
    for index in 5..1024 {
        let set = [35, 36, 70].contains(&index);
        let gid = if set { "0000:0000:0000:0000:0000:ffff:0a00:0002" } else { none };
        tree.file(&format!("{gids}/{index}"), gid).unwrap();
    }
    let indices = || -> Vec<usize> {
        let (machine, _) = found(&tree);
        machine.rdma[0].ports[0].gids.iter().map(|gid| gid.index).collect()
    };
    assert_eq!(indices(), [0, 3, 35, 36]);
    tree.file(&format!("{gids}/50"), "0000:0000:0000:0000:0000:ffff:0a00:0003").unwrap();
    assert_eq!(indices(), [0, 3, 35, 36, 50, 70]);
}

#[test]
fn accelerators_of_other_makers_count_where_they_are_named() {
    let tree = MachineTree::eight_gpus().unwrap();
    let inside = "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0";
    for (bus, ids) in
        [("0000:13:00.1", "0x120000 0x1da3 0x1060"), ("0000:13:00.2", "0x088000 0x1da3 0x1061")]
    {
        tree.pci(&PciSpec {
            above: inside,
            bus,
            ids,
            numa: 0,
            driver: "",
            speed: "32.0 GT/s PCIe",
            width: 16,
        })
        .unwrap();
    }
    let (mut machine, _) = found(&tree);
    assert_eq!(machine.gpus.len(), 8);
    let mut count = |text: &str| machine.count_as_gpus(&text.parse().unwrap());
    assert_eq!((count("1da3"), count("1da3:1060"), count("0000:13:00.1")), (1, 1, 1));
    assert_eq!((count("10de"), count("104c"), count("104c:8232"), count("abcd")), (8, 0, 0, 0));
    assert_eq!(machine.gpus.len(), 9);
    let last = machine.gpus.last().unwrap();
    assert_eq!(
        (last.index, last.maker, last.bus.to_string()),
        (8, GpuMaker::Other, "0000:13:00.1".to_owned())
    );
    let topology = machine.topology(&DocumentOptions::default()).unwrap();
    let paths = Paths::as_used(&topology, &Levels::default());
    let chosen = affinities(&topology, &paths, &Levels::default());
    assert_eq!((chosen.len(), chosen[8].class), (9, PathClass::Pix));
    for wrong in ["", "10d", "10de:", "10de:26b9:1", "0x10de", "00:0.0.0", "gpu"] {
        assert!(wrong.parse::<PciSelector>().unwrap_err().contains("1da3:1060"), "{wrong}");
    }
}
