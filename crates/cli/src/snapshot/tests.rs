//! Snapshots there and back, without secrets, and archives made to hurt.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use ringway::testing::machine::{MachineTree, PciSpec};
use ringway::topo::{DocumentOptions, Machine, NetKind, Root, VIRTUAL_TOPOLOGY, load};
use ringway_plan::topology::matrix::Matrix;

use super::gather::{Entry, Taken, gather};
use super::pack;
use super::secrets::{Mask, removed, without_processes};
use super::unpack::Unpacked;
use crate::doctor::host::Host;
use crate::doctor::tests::look;
use crate::doctor::tests::tree::Tree;

/// A file that goes away.
pub(super) struct Packed(pub(super) PathBuf);

impl Packed {
    pub(super) fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir()
            .join(format!("ringway-packed-{}-{number}.tar.zst", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

fn taken(tree: &Tree, anonymous: bool) -> Taken {
    gather(&Host::new(Root::at(tree.folder())), anonymous, 1_700_000_000).unwrap()
}

fn examined(bytes: &[u8]) -> crate::doctor::examine::Examined {
    let packed = Packed::new(bytes);
    let unpacked = Unpacked::open(&packed.0).unwrap();
    let host = Host::new(Root::at(unpacked.folder()));
    crate::doctor::examine::examine(&host, &crate::doctor::checks::all())
}

#[test]
fn the_doctor_says_the_same_of_a_snapshot_as_of_the_machine() {
    let mut tree = Tree::healthy();
    tree.put("/sys/class/infiniband/mlx5_3/fw_ver", "28.35.2000");
    tree.append(
        "/commands/dmesg.txt",
        "[99.0] NVRM: Xid (PCI:0000:13:00): 79, GPU has fallen off the bus.",
    );
    let direct = look(&tree);
    let bytes = pack(&taken(&tree, false)).unwrap();
    let packed = examined(&bytes);
    assert_eq!(direct.report, packed.report);
    assert_eq!(direct.traits, packed.traits);
    assert!(bytes.len() < 200 << 10, "{} bytes", bytes.len());
    // The same machine at the same time gives the same bytes.
    assert_eq!(bytes, pack(&taken(&tree, false)).unwrap());
}

/// What discovery finds in a folder, and the matrix of that.
fn discovered(folder: &std::path::Path) -> (Machine, Matrix) {
    let root = Root::at(folder);
    let machine = Machine::discover(&root);
    let options =
        DocumentOptions { base: load(&root, None).unwrap(), ..DocumentOptions::default() };
    let matrix = Matrix::of(&machine.topology(&options).unwrap());
    (machine, matrix)
}

/// The same of a snapshot of that folder.
fn discovered_packed(tree: &MachineTree, anonymous: bool) -> (Machine, Matrix) {
    let taken = gather(&Host::new(Root::at(tree.folder())), anonymous, 1_700_000_000).unwrap();
    let packed = Packed::new(&pack(&taken).unwrap());
    discovered(Unpacked::open(&packed.0).unwrap().folder())
}

/// A machine without what an anonymous snapshot hides.
fn nameless(mut machine: Machine) -> Machine {
    machine.host.clear();
    for device in &mut machine.rdma {
        (device.system_guid, device.node_guid) = (None, None);
        for gid in device.ports.iter_mut().flat_map(|port| &mut port.gids) {
            gid.gid.clear();
        }
    }
    for net in &mut machine.nets {
        net.address = None;
    }
    machine
}

#[test]
fn discovery_finds_the_same_in_a_snapshot_as_in_the_machine() {
    let tree = MachineTree::eight_gpus().unwrap();
    let bus = |gpu: usize| ["13", "14", "33", "34", "93", "94", "b3", "b4"][gpu];
    let list: Vec<String> =
        (1..8).map(|gpu| format!("00000000:{}:00.0, 9.0, NVIDIA Other", bus(gpu))).collect();
    tree.file("sys/hypervisor/type", "xen").unwrap();
    tree.file("commands/nvidia-smi-gpus.txt", &list.join("\n")).unwrap();
    let (machine, matrix) = discovered(tree.folder());
    assert_eq!((machine.gpus.len(), machine.rdma.len()), (8, 8));
    assert_eq!(
        (machine.gpus[7].sm, machine.gpus[7].name.as_deref()),
        (Some(90), Some("NVIDIA Other"))
    );
    assert_eq!(machine.gpus[0].name.as_deref(), Some("NVIDIA Example"));
    assert!(machine.platform.virtual_machine);
    assert_eq!(discovered_packed(&tree, false), (machine.clone(), matrix.clone()));
    let (hidden, same) = discovered_packed(&tree, true);
    assert_eq!(same, matrix);
    assert_ne!(hidden.host, machine.host);
    assert_eq!(nameless(hidden), nameless(machine));
}

#[test]
fn discovery_finds_the_same_of_a_virtual_machine_with_bonds_and_amd_gpus() {
    let tree = MachineTree::new().unwrap();
    tree.cpuinfo(8, "serialize hypervisor").unwrap();
    tree.file("etc/hostname", "vm-7").unwrap();
    tree.file("sys/class/dmi/id/chassis_asset_tag", "OracleCloud.com").unwrap();
    tree.file("sys/hypervisor/type", "xen").unwrap();
    tree.file("sys/devices/system/cpu/online", "0-7").unwrap();
    let (above, numa, speed, width) = ("pci0000:00", 0, "32.0 GT/s PCIe", 16);
    let buses = ["0000:05:00.0", "0000:15:00.0"];
    for (node, bus) in buses.into_iter().enumerate() {
        let (ids, driver) = ("0x120000 0x1002 0x74a1", "amdgpu");
        tree.pci(&PciSpec { above, bus, ids, numa, driver, speed, width }).unwrap();
        let place = format!("sys/devices/virtual/kfd/kfd/topology/nodes/{node}");
        let location = (0x05 + 0x10 * node) << 8;
        let text =
            format!("simd_count 9\nlocation_id {location}\ngfx_target_version 90402\nunique_id 7");
        tree.file(&format!("{place}/properties"), &text).unwrap();
        let link = format!("type 11\nnode_from {node}\nnode_to {}", 1 - node);
        tree.file(&format!("{place}/io_links/0/properties"), &link).unwrap();
    }
    tree.link("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd").unwrap();
    // A card, one of its virtual functions, and a bond with a VLAN on it.
    for (bus, driver) in [("0000:21:00.0", "mlx5_core"), ("0000:21:00.1", "mlx5_core")] {
        let ids = "0x020000 0x15b3 0x1021";
        tree.pci(&PciSpec { above, bus, ids, numa, driver, speed, width }).unwrap();
    }
    let card = "sys/devices/pci0000:00/0000:21:00.0";
    tree.file(&format!("{card}/sriov_totalvfs"), "8").unwrap();
    tree.file(&format!("{card}/sriov_numvfs"), "1").unwrap();
    tree.link("sys/devices/pci0000:00/0000:21:00.1/physfn", card).unwrap();
    tree.rdma("mlx5_0", "eth0", "pci0000:00/0000:21:00.0", "4: ACTIVE").unwrap();
    tree.interface("eth1", Some("pci0000:00/0000:21:00.1"), "up", 25_000).unwrap();
    let virtio = "pci0000:00/0000:30:00.0/virtio0";
    tree.interface("eth2", Some(virtio), "up", -1).unwrap();
    tree.link(&format!("sys/devices/{virtio}/driver"), "sys/bus/virtio/drivers/virtio_net")
        .unwrap();
    for name in ["bond0", "bond0.7", "br0"] {
        tree.interface(name, None, "up", 25_000).unwrap();
    }
    tree.file("sys/class/net/bonding_masters", "bond0").unwrap();
    tree.file("sys/devices/virtual/net/bond0/bonding/mode", "802.3ad 4").unwrap();
    tree.file("sys/devices/virtual/net/br0/bridge/stp_state", "0").unwrap();
    tree.file("sys/devices/virtual/net/bond0.7/uevent", "DEVTYPE=vlan\nINTERFACE=bond0.7").unwrap();
    tree.link("sys/devices/virtual/net/bond0.7/lower_bond0", "sys/devices/virtual/net/bond0")
        .unwrap();
    let one = "sys/devices/pci0000:00/0000:21:00.0/net/eth0";
    tree.link("sys/devices/virtual/net/bond0/lower_eth0", one).unwrap();
    tree.link(&format!("{one}/master"), "sys/devices/virtual/net/bond0").unwrap();
    tree.file(
        VIRTUAL_TOPOLOGY,
        "<system version=\"1\"><cpu numaid=\"0\" affinity=\"ff\" arch=\"x86_64\">\
         <pci busid=\"ffff:ff:01.0\" class=\"0x060400\"><pci busid=\"0000:05:00.0\" \
         class=\"0x120000\"/><pci busid=\"0000:21:00.0\" class=\"0x020000\"/></pci></cpu></system>",
    )
    .unwrap();
    let (machine, matrix) = discovered(tree.folder());
    // The tree holds what it is meant to hold.
    let kind = |name: &str| machine.nets.iter().find(|net| net.name == name).unwrap().kind;
    assert_eq!((kind("bond0"), kind("bond0.7")), (NetKind::Bond, NetKind::Vlan));
    assert_eq!((kind("br0"), kind("eth1")), (NetKind::Bridge, NetKind::VirtualFunction));
    assert!(machine.nets.iter().any(|net| net.driver.as_deref() == Some("virtio_net")));
    assert!(machine.platform.virtual_machine && machine.gpus[1].gcn.is_some());
    assert_eq!(machine.platform.hypervisor.as_deref(), Some("Oracle Cloud"));
    assert!(machine.pci.iter().any(|pci| pci.virtual_functions == Some((1, 8))));
    assert_eq!(matrix.between("GPU0", "mlx5_0").map(ToString::to_string).as_deref(), Some("PIX"));
    assert_eq!(discovered_packed(&tree, false), (machine.clone(), matrix.clone()));
    let (hidden, same) = discovered_packed(&tree, true);
    assert_eq!((nameless(hidden), same), (nameless(machine), matrix));
}

#[test]
fn links_of_sys_stay_links() {
    let tree = Tree::healthy();
    let taken = taken(&tree, false);
    let link = &taken.entries["sys/bus/pci/devices/0000:13:00.0"];
    assert_eq!(
        *link,
        Entry::Link(
            "../../../devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0"
                .to_owned()
        )
    );
}

#[test]
fn an_anonymous_snapshot_gives_the_same_verdicts_and_no_names() {
    let mut tree = Tree::healthy();
    tree.append("/commands/dmesg.txt", "[9.0] node1 saw 192.168.17.5 and fe80:0000:0000:0000:a088:c2ff:fead:ea01 at aa:bb:cc:dd:ee:ff");
    let direct = look(&tree);
    let taken = taken(&tree, true);
    let mut all = String::from_utf8(taken.manifest.clone()).unwrap();
    for entry in taken.entries.values() {
        if let Entry::File(bytes) = entry {
            all.push_str(&String::from_utf8_lossy(bytes));
        }
    }
    for name in ["node1", "192.168.17.5", "a088:c203", "aa:bb:cc", "0a00:0001", "0000000A"] {
        assert!(!all.contains(name), "{name} is still there");
    }
    assert!(all.contains("6.8.0-60-generic") && all.contains("28.39.1002"), "versions must stay");
    let packed = examined(&pack(&taken).unwrap());
    let verdicts = |found: &crate::doctor::examine::Examined| -> Vec<_> {
        found.report.findings.iter().map(|finding| (finding.id.clone(), finding.verdict)).collect()
    };
    assert_eq!(verdicts(&direct), verdicts(&packed));
}

#[test]
fn secrets_are_taken_out() {
    let text = "NCCL_DEBUG=INFO MY_SECRET=hunter2 X=1\nHF_TOKEN=abc\ntoken: xyz\nproxy=http://me:pw@host:1/p\n\
                -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nRINGWAY_SECRET_FILE=/etc/key\nend\n";
    let (clean, count) = removed(text, false);
    assert_eq!(
        clean,
        "NCCL_DEBUG=INFO MY_SECRET=REMOVED\nHF_TOKEN=REMOVED\ntoken: REMOVED\nproxy=http://me:pw@host:1/p\n\
         REMOVED\nRINGWAY_SECRET_FILE=/etc/key\nend\n"
            .replace("http://me:pw@", "http://me:REMOVED@")
    );
    assert_eq!(count, 5);
    let mut tree = Tree::healthy();
    tree.append("/commands/environment.txt", "NCCL_AUTH_TOKEN=hunter2");
    tree.replace("/proc/cmdline", "ro ", "ro cloud.password=hunter2 ");
    let taken = taken(&tree, false);
    for entry in taken.entries.values() {
        if let Entry::File(bytes) = entry {
            assert!(!String::from_utf8_lossy(bytes).contains("hunter2"));
        }
    }
    assert!(String::from_utf8(taken.manifest).unwrap().contains("\"secrets_left_out\": 2"));
}

#[test]
fn secrets_are_taken_out_wherever_their_name_stands() {
    for (text, clean) in [
        ("Environment=\"API_TOKEN=hunter2\" \"A=1\"", "Environment=\"API_TOKEN=REMOVED\" \"A=1\""),
        ("Environment=\"API_TOKEN=hunter2:x y\" B=2", "Environment=\"API_TOKEN=REMOVED\" B=2"),
        ("Environment=API_TOKEN=hunter2 x", "Environment=API_TOKEN=REMOVED"),
        ("RINGWAY_SECRET=correct hunter2 battery", "RINGWAY_SECRET=REMOVED"),
        (
            "RINGWAY_SECRET=\"a hunter2\" X=1 HF_TOKEN='hunter2 c'",
            "RINGWAY_SECRET=REMOVED X=1 HF_TOKEN=REMOVED",
        ),
        (
            "{\"a\": 1, \"token\": \"hunter2\", \"b\": 2}",
            "{\"a\": 1, \"token\": REMOVED, \"b\": 2}",
        ),
        ("the access token of me: hunter2", "the access token of me: REMOVED"),
        ("X_TOKEN=\"hunter2 without end", "X_TOKEN=REMOVED"),
    ] {
        assert_eq!(
            removed(&format!("{text}\n"), false),
            (format!("{clean}\n"), clean.matches("REMOVED").count()),
            "{text}"
        );
    }
    let line = "ro systemd.setenv=TOKEN=hunter2 iommu=pt x.password=\"hunter2 y\" quiet\n";
    let clean = "ro systemd.setenv=TOKEN=REMOVED iommu=pt x.password=REMOVED quiet\n";
    assert_eq!(removed(line, true), (clean.to_owned(), 2));
    for text in [
        "TOKEN=\n",
        "TOKEN=\"\"\n",
        "password:\n",
        "token\n",
        "é=token: \n",
        "RINGWAY_SECRET_FILE=/a b\n",
    ] {
        assert_eq!(removed(text, false), (text.to_owned(), 0));
    }
}

#[test]
fn masks_keep_what_a_value_is() {
    let hosts = "127.0.0.1 localhost\n::1 ip6-localhost\n10.0.0.9 storage9.lan storage9 # ours";
    let mask = Mask::new("node1", hosts).unwrap();
    let keeps = |text: &str| assert_eq!(mask.text(text), text);
    for text in [
        "28.39.1002",
        "0000:1b:00.0",
        "127.0.0.1",
        "0000:0000:0000:0000",
        "570.10.01",
        "4: ACTIVE",
        "12:00:05",
        "0x10de",
    ] {
        keeps(text);
    }
    assert!(mask.text("fe80:0000:0000:0000:1:2").starts_with("fe80"));
    let gid = mask.text("fe80:0000:0000:0000:a088:c2ff:fead:ea01");
    assert!(gid.starts_with("fe80:0000:0000:0000:") && !gid.contains("a088"), "{gid}");
    let four = mask.text("0000:0000:0000:0000:0000:ffff:0a00:0001");
    assert!(
        four.starts_with("0000:0000:0000:0000:0000:ffff:") && !four.ends_with("0a00:0001"),
        "{four}"
    );
    assert_eq!(
        mask.text("10.1.2.3 10.1.2.3").split(' ').collect::<std::collections::BTreeSet<_>>().len(),
        1
    );
    assert!(mask.text("node1.example.org").starts_with("host-"));
    for (text, gone) in [
        ("tcp://10.1.2.3:8080/x", "10.1.2.3"),
        ("10.1.2.3-10.1.2.9", "10.1.2."),
        ("fe80::a088:c2ff:fead:ea01%eth0", "a088"),
        ("2a01:4f8:1:2::3", "4f8"),
    ] {
        let masked = mask.text(text);
        assert!(!masked.contains(gone), "{text}: {masked}");
    }
    // Names as a part of a word; what only looks like one stays.
    for (text, gone) in [
        ("ib-node1-2", "node1"),
        ("/home/node1/x", "node1"),
        ("storage9:/export", "storage9"),
        ("mount.storage9.lan", "storage9"),
        ("node1.example.org:80", "example"),
        ("NODE1", "NODE1"),
    ] {
        let masked = mask.text(text);
        assert!(!masked.contains(gone) && masked.contains("host-"), "{text}: {masked}");
    }
    keeps("node10 localhost 0000:1b:00.0");
    // Only the number goes.
    for (text, gone) in [
        ("root=UUID=1234-5678 ro iommu=pt pci=realloc a:b\n", "1234-5678"),
        ("GPU 0: X (UUID: GPU-77) at y\n", "GPU-77"),
        ("usb 1-1: SerialNumber: A77 and more\n", "A77"),
        ("Reference ID    : 0A000001 (10.0.0.1)\n", "0A000001"),
    ] {
        let masked = mask.text(text);
        assert!(!masked.contains(gone), "{text}: {masked}");
        let same = text.split_whitespace().zip(masked.split_whitespace());
        let differ: Vec<&str> = same.filter(|(a, b)| a != b).map(|(a, _)| a).collect();
        assert!(
            differ.iter().all(|word| word.contains(gone) || word.contains("10.0.0.1")),
            "{differ:?}"
        );
        assert_eq!(masked.split_whitespace().count(), text.split_whitespace().count());
    }
    let smi = "GPU 1\n    Processes\n        Process ID : 7\n            Name : /home/me/train\n    Clocks\n        SM : 5\n";
    assert_eq!(without_processes(smi), "GPU 1\n    Processes\n    Clocks\n        SM : 5\n");
    keeps("serial8250: ttyS0 at I/O\n");
    // Flags of a processor, not a serial number.
    keeps("flags\t\t: fpu serialize hypervisor\n");
    assert!(!mask.text("simd_count 4\nunique_id 77665544\n").contains("77665544"));
    assert!(!mask.asset_tag("ACME-0815").contains("0815"));
    assert_eq!(mask.asset_tag("OracleCloud.com"), "OracleCloud.com");
    assert!(mask.text("10.1.2.3:8080").ends_with(":8080"));
    assert_eq!(mask.text("::1 0.0.0.0:2024"), "::1 0.0.0.0:2024");
    assert!(!mask.text("    Serial Number : 1324521052681").contains("1324521052681"));
}

/// An archive with one entry.
fn archive(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    build(&mut builder);
    let bytes = builder.into_inner().unwrap();
    ruzstd::encoding::compress_to_vec(&bytes[..], ruzstd::encoding::CompressionLevel::Fastest)
}

fn header(kind: tar::EntryType, name: &[u8], size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    // By hand: the library refuses to write such names.
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
    header.set_cksum();
    header
}

fn refused(bytes: &[u8]) -> String {
    let packed = Packed::new(bytes);
    format!("{:#}", Unpacked::open(&packed.0).unwrap_err())
}

#[test]
fn archives_that_reach_out_are_refused() {
    for name in [&b"../evil"[..], b"/etc/evil", b"sys/../../evil"] {
        let bytes = archive(|tar| {
            tar.append(&header(tar::EntryType::Regular, name, 0), std::io::empty()).unwrap()
        });
        assert!(refused(&bytes).contains("leads out of the snapshot"), "{}", refused(&bytes));
    }
    for kind in
        [tar::EntryType::Char, tar::EntryType::Block, tar::EntryType::Fifo, tar::EntryType::Link]
    {
        let bytes =
            archive(|tar| tar.append(&header(kind, b"dev/x", 0), std::io::empty()).unwrap());
        assert!(
            refused(&bytes).contains("a snapshot holds files, folders and links"),
            "{}",
            refused(&bytes)
        );
    }
    // A link, and a file and a link that would go through it.
    let outside = std::env::temp_dir().join(format!("ringway-outside-{}", std::process::id()));
    fs::create_dir_all(&outside).unwrap();
    let link = |tar: &mut tar::Builder<Vec<u8>>, name: &str, target: &std::path::Path| {
        let mut header = header(tar::EntryType::Symlink, b"", 0);
        tar.append_link(&mut header, name, target).unwrap();
    };
    let through_file = archive(|tar| {
        link(tar, "a", &outside);
        tar.append(&header(tar::EntryType::Regular, b"a/file", 0), std::io::empty()).unwrap();
    });
    let through_link = archive(|tar| {
        link(tar, "a", &outside);
        link(tar, "a/link", &outside);
    });
    for bytes in [through_file, through_link] {
        let why = refused(&bytes);
        assert!(why.contains("cannot be unpacked") || why.contains("below a link"), "{why}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
    fs::remove_dir_all(outside).unwrap();
}

#[test]
fn archives_that_are_too_much_are_refused() {
    // Zeros are a few hundred bytes when packed.
    let size = 20_u64 << 20;
    let bytes = archive(|tar| {
        let zeros = std::io::Read::take(std::io::repeat(0), size);
        tar.append(&header(tar::EntryType::Regular, b"sys/vast", size), zeros).unwrap();
        tar.append(&header(tar::EntryType::Regular, b"sys/second", 0), std::io::empty()).unwrap();
    });
    assert!(bytes.len() < 64 << 10, "{}", bytes.len());
    let packed = Packed::new(&bytes);
    let why = |bytes, entries| {
        format!("{:#}", Unpacked::open_at_most(&packed.0, bytes, entries).unwrap_err())
    };
    assert!(why(1 << 20, 10).contains("more than 1048576 bytes"), "{}", why(1 << 20, 10));
    assert!(why(64 << 20, 1).contains("more than 1 entries"), "{}", why(64 << 20, 1));
    assert!(Unpacked::open_at_most(&packed.0, 64 << 20, 2).is_ok());
    let garbage: Vec<u8> =
        (0..5000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert!(refused(&garbage).contains("no snapshot"), "{}", refused(&garbage));
    let mut cut = archive(|tar| {
        for number in 0..20 {
            let text = format!("sys/file{number}");
            tar.append(
                &header(tar::EntryType::Regular, text.as_bytes(), text.len() as u64),
                text.as_bytes(),
            )
            .unwrap();
        }
    });
    cut.truncate(cut.len() / 2);
    assert!(!refused(&cut).is_empty());
    for at in 0..cut.len() {
        let mut bent = cut.clone();
        bent[at] ^= 0x55;
        let packed = Packed::new(&bent);
        let _either = Unpacked::open(&packed.0);
    }
}

#[test]
fn an_archive_packed_with_gzip_is_read() {
    use std::io::Write as _;
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header(tar::EntryType::Regular, b"sys/x", 2), &b"hi"[..]).unwrap();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(&builder.into_inner().unwrap()).unwrap();
    let bytes = packer.finish().unwrap();
    let packed = Packed::new(&bytes);
    let unpacked = Unpacked::open(&packed.0).unwrap();
    assert_eq!(fs::read_to_string(unpacked.folder().join("sys/x")).unwrap(), "hi");
    assert!(refused(&bytes[..bytes.len() / 2]).contains("broken archive"));
}

#[test]
fn long_names_are_read_and_endless_ones_refused() {
    let long = format!("sys/{}/file", "n".repeat(150));
    let target = format!("../{}", "t".repeat(150));
    let bytes = archive(|tar| {
        tar.append_data(&mut header(tar::EntryType::Regular, b"", 2), &long, &b"hi"[..]).unwrap();
        let mut link = header(tar::EntryType::Symlink, b"", 0);
        tar.append_link(&mut link, format!("{long}-link"), &target).unwrap();
        tar.append_pax_extensions([("path", long.replace("file", "pax").as_bytes())]).unwrap();
        tar.append(&header(tar::EntryType::Regular, b"short", 2), &b"ho"[..]).unwrap();
    });
    let packed = Packed::new(&bytes);
    let unpacked = Unpacked::open(&packed.0).unwrap();
    let read = |name: &str| fs::read_to_string(unpacked.folder().join(name)).unwrap();
    assert_eq!(
        (read(&long), read(&long.replace("file", "pax"))),
        ("hi".to_owned(), "ho".to_owned())
    );
    let link = fs::read_link(unpacked.folder().join(format!("{long}-link"))).unwrap();
    assert_eq!(link.to_str(), Some(target.as_str()));
    // Zeros pack well: a name of 100 MiB is a few KiB.
    let size = (64 << 10) + 1;
    for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader]
    {
        let bytes = archive(|tar| {
            let zeros = std::io::Read::take(std::io::repeat(b'a'), size);
            tar.append(&header(kind, b"x", size), zeros).unwrap();
            tar.append(&header(tar::EntryType::Regular, b"sys/x", 0), std::io::empty()).unwrap();
        });
        assert!(
            refused(&bytes).contains("a name of 65537 bytes is too long"),
            "{}",
            refused(&bytes)
        );
    }
}
