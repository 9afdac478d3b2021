//! Topologies of our own making, hostile ones, and, where `RINGWAY_FIXTURES` names their folder,
//! those of real machines.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::channel::{CrossNic, channels};
use super::document::Element;
use super::level::Levels;
use super::matrix::{Cell, Matrix};
use super::nearest::{Affinity, affinities};
use super::path::{PathClass, Paths};
use super::*;
use crate::rng::Random;

mod fixtures;
mod hostile;

/// Two sockets, two switches a socket, two GPUs and two NICs a switch, all GPUs on NVSwitches.
fn hgx() -> String {
    let mut text = String::from("<system version=\"1\">\n");
    for socket in 0..2 {
        let _ = writeln!(
            text,
            " <cpu numaid=\"{socket}\" affinity=\"{}\" arch=\"x86_64\" vendor=\"GenuineIntel\" \
             familyid=\"6\" modelid=\"143\">",
            ["0000ffff", "ffff0000"][socket]
        );
        for switch in 0..2 {
            let bus = 0x10 + 0x40 * socket + 0x20 * switch;
            let link = "link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"";
            let _ =
                writeln!(text, "  <pci busid=\"0000:{bus:02x}:00.0\" class=\"0x060400\" {link}>");
            for slot in 0..2 {
                let dev = 4 * socket + 2 * switch + slot;
                let (gpu, nic) = (bus + 2 + slot, bus + 8 + slot);
                let _ = writeln!(
                    text,
                    "   <pci busid=\"0000:{gpu:02x}:00.0\" class=\"0x030200\" {link}>\n    \
                     <gpu dev=\"{dev}\" sm=\"90\" rank=\"{dev}\" gdr=\"1\">\n     \
                     <nvlink target=\"0000:a0:00.0\" count=\"18\" tclass=\"0x068000\"/>\n    \
                     </gpu>\n   </pci>\n   \
                     <pci busid=\"0000:{nic:02x}:00.0\" class=\"0x020700\" {link}>\n    <nic>\n     \
                     <net name=\"mlx5_{dev}\" dev=\"{dev}\" speed=\"400000\" port=\"1\" \
                     latency=\"0.5\" guid=\"0x{dev}\" maxconn=\"131072\" gdr=\"1\"/>\n    \
                     </nic>\n   </pci>"
                );
            }
            text.push_str("  </pci>\n");
        }
        text.push_str(" </cpu>\n");
    }
    text.push_str("</system>\n");
    text
}

fn graph(text: &str) -> Topology {
    Topology::from_document(&xml::read(text.as_bytes()).unwrap()).unwrap()
}

fn nics(topology: &Topology, levels: &Levels) -> Vec<Affinity> {
    affinities(topology, &Paths::as_used(topology, levels), levels)
}

#[test]
fn an_hgx_has_nccls_classes_and_rates() {
    let topology = graph(&hgx());
    let (gpus, nets, cpus) = (topology.gpus(), topology.nets(), topology.cpus());
    assert_eq!((gpus.len(), nets.len(), cpus.len()), (8, 8, 2));
    let paths = Paths::physical(&topology);
    let at = |from, to| (paths.get(from, to).class, paths.get(from, to).gb_per_s);
    assert_eq!(at(gpus[0], gpus[7]), (PathClass::Nvl, 18.0 * 20.6));
    assert_eq!(at(gpus[0], nets[0]), (PathClass::Pix, 48.0));
    assert_eq!(at(gpus[0], nets[2]), (PathClass::Phb, 48.0));
    assert_eq!(at(gpus[0], nets[4]), (PathClass::Sys, 22.0));
    assert_eq!(at(gpus[0], cpus[0]), (PathClass::Phb, 48.0));
    assert_eq!(at(nets[7], cpus[0]), (PathClass::Sys, 22.0));
    assert_eq!(at(cpus[0], cpus[1]), (PathClass::Sys, 22.0));
    assert_eq!(at(gpus[3], gpus[3]).0, PathClass::Loc);
    assert_eq!(paths.nodes(gpus[0], nets[1]).len(), 4, "GPU, switch, NIC, port");
}

#[test]
fn each_gpu_takes_a_nic_of_its_switch_and_no_two_the_same() {
    let topology = graph(&hgx());
    let found = nics(&topology, &Levels::default());
    let names: Vec<String> = found.iter().map(|one| topology.name(one.net.unwrap())).collect();
    let mut sorted = names.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), 8, "{names:?}");
    for one in &found {
        assert_eq!(one.class, PathClass::Pix);
        let (gpu, net) = (topology.bus_of(one.gpu), topology.bus_of(one.net.unwrap()));
        assert_eq!(gpu.unwrap().bus & 0xf0, net.unwrap().bus & 0xf0);
        assert!(one.gdr.used, "{}", one.gdr.reason);
        assert_eq!(one.gdr.reason, "PIX is within P2C (default)");
    }
    assert_eq!(found[5].numa, Some(1));
    assert!(found.iter().all(|one| one.rail.is_some() && one.others.is_empty()));
}

#[test]
fn far_nics_are_reached_through_the_gpu_next_to_them() {
    let topology = graph(&hgx());
    let (gpus, nets) = (topology.gpus(), topology.nets());
    let used = Paths::as_used(&topology, &Levels::default());
    let path = used.get(gpus[0], nets[7]);
    assert_eq!((path.class, path.gb_per_s), (PathClass::Pxn, 48.0));
    assert_eq!(topology.gpu(path.via.unwrap()).unwrap().dev & !1, 6);
    let nodes = used.nodes(gpus[0], nets[7]);
    assert_eq!((nodes[0], *nodes.last().unwrap()), (gpus[0], nets[7]));
    let off = Paths::as_used(&topology, &Levels { pxn: false, ..Levels::default() });
    assert_eq!(off.get(gpus[0], nets[7]).class, PathClass::Sys);
}

#[test]
fn levels_decide_and_say_why() {
    let topology = graph(&hgx());
    let levels = Levels { gdr: Some(PathClass::Loc), ..Levels::default() };
    let found = nics(&topology, &levels);
    assert!(!found[0].gdr.used);
    assert!(found[0].gdr.reason.contains("past LOC (NCCL_NET_GDR_LEVEL)"), "{:?}", found[0].gdr);
    assert_eq!(found[0].class, PathClass::Phb, "without GPUDirect data goes through the CPU");
    let no_driver = hgx().replace("gdr=\"1\"/>", "gdr=\"0\"/>");
    let found = nics(&graph(&no_driver), &Levels::default());
    assert!(found[0].gdr.reason.contains("offers no GPUDirect"), "{:?}", found[0].gdr);

    // Without NVLink, GPUs of different switches meet in the CPU unless a level allows them.
    let plain =
        hgx().replace("<nvlink target=\"0000:a0:00.0\" count=\"18\" tclass=\"0x068000\"/>", "");
    let topology = graph(&plain);
    let gpus = topology.gpus();
    let physical = Paths::physical(&topology);
    let verdict = Levels::default().p2p(&topology, &physical, gpus[0], gpus[2]);
    assert!(!verdict.used && verdict.reason.contains("PHB is past PXB"), "{verdict:?}");
    let levels = Levels { p2p: level::parse_level("SYS"), ..Levels::default() };
    assert!(levels.p2p(&topology, &physical, gpus[0], gpus[7]).used);
    let used = Paths::as_used(&topology, &Levels::default());
    assert!(used.get(gpus[0], gpus[2]).via.is_some());
    assert!(used.get(gpus[0], gpus[1]).via.is_none());
}

#[test]
fn gpus_that_share_nics_are_spread_over_them() {
    // One switch, four GPUs, two NICs.
    let mut inside = String::new();
    for dev in 0..4 {
        let _ = write!(
            inside,
            "<pci busid=\"0000:0{dev}:00.0\" class=\"0x030200\"><gpu dev=\"{dev}\"/></pci>"
        );
    }
    for dev in 0..2 {
        let _ = write!(
            inside,
            "<pci busid=\"0000:1{dev}:00.0\" class=\"0x020000\"><nic><net dev=\"{dev}\" \
             name=\"n{dev}\"/></nic></pci>"
        );
    }
    let text = format!(
        "<system><cpu numaid=\"0\"><pci busid=\"0000:20:00.0\" class=\"0x060400\">{inside}</pci>\
         </cpu></system>"
    );
    let topology = graph(&text);
    let found = nics(&topology, &Levels::default());
    let names: Vec<String> = found.iter().map(|one| topology.name(one.net.unwrap())).collect();
    assert_eq!(names, ["n0", "n1", "n0", "n1"]);
    assert!(found[0].gdr.used && found[0].gdr.reason.contains("if both drivers offer it"));
}

#[test]
fn nvlink_through_another_gpu_is_nvb_and_no_longer() {
    // A chain 0 - 1 - 2 - 3 of direct NVLinks.
    let gpu = |dev: u32, peers: &[u32]| {
        let mut links = String::new();
        for peer in peers {
            let _ = write!(
                links,
                "<nvlink target=\"0000:0{peer}:00.0\" count=\"2\" tclass=\"0x030200\"/>"
            );
        }
        format!(
            "<pci busid=\"0000:0{dev}:00.0\" class=\"0x030200\"><gpu dev=\"{dev}\" sm=\"70\">\
             {links}</gpu></pci>"
        )
    };
    let gpus = [gpu(0, &[1]), gpu(1, &[0, 2]), gpu(2, &[1, 3]), gpu(3, &[2])].concat();
    let topology = graph(&format!("<system><cpu numaid=\"0\">{gpus}</cpu></system>"));
    let gpus = topology.gpus();
    let paths = Paths::physical(&topology);
    let classes: Vec<PathClass> = gpus.iter().map(|to| paths.get(gpus[0], *to).class).collect();
    assert_eq!(classes, [PathClass::Loc, PathClass::Nvl, PathClass::Nvb, PathClass::Phb]);
    assert_eq!(paths.get(gpus[0], gpus[2]).gb_per_s, 40.0);
    let matrix = Matrix::of(&topology);
    assert_eq!(matrix.between("GPU0", "GPU1"), Some(&Cell::NvLink(2)));
    assert_eq!(matrix.between("GPU0", "GPU2"), Some(&Cell::Phb));
}

#[test]
fn a_two_level_broadcom_switch_counts_as_one() {
    let ids = |sub: &str| {
        format!(
            "class=\"0x060400\" vendor=\"0x1000\" device=\"0xc030\" subsystem_vendor=\"0x1000\" \
             subsystem_device=\"{sub}\""
        )
    };
    let text = format!(
        "<system><cpu numaid=\"0\"><pci busid=\"0000:08:00.0\" {}><pci busid=\"0000:0a:00.0\" {}>\
         <pci busid=\"0000:0b:00.0\" class=\"0x030200\"><gpu dev=\"0\"/></pci></pci>\
         <pci busid=\"0000:0c:00.0\" {}><pci busid=\"0000:0d:00.0\" class=\"0x020000\"><nic>\
         <net dev=\"0\" name=\"n0\"/></nic></pci></pci></pci></cpu></system>",
        ids("0x0072"),
        ids("0x1003"),
        ids("0x1003"),
    );
    let topology = graph(&text);
    let (gpu, net) = (topology.gpus()[0], topology.nets()[0]);
    assert_eq!(Paths::physical(&topology).get(gpu, net).class, PathClass::Pxb);
    let seen = topology.as_nccl_sees_it();
    assert_eq!(Paths::physical(&seen).get(gpu, net).class, PathClass::Pix);
    assert_eq!(Matrix::of(&topology).between("GPU0", "n0"), Some(&Cell::Pxb));
}

#[test]
fn a_nic_at_the_cpu_of_a_chip_to_chip_gpu_is_near() {
    let text = "<system><cpu numaid=\"0\" arch=\"arm64\"><pci busid=\"0009:01:00.0\" \
                class=\"0x030200\"><gpu dev=\"0\" sm=\"90\" gdr=\"1\"><c2c bw=\"44712\" \
                count=\"10\"/></gpu></pci><pci busid=\"0002:01:00.0\" class=\"0x020700\"><nic>\
                <net dev=\"0\" name=\"mlx5_0\" speed=\"400000\" gdr=\"1\"/></nic></pci></cpu></system>";
    let topology = graph(text);
    let (gpu, cpu) = (topology.gpus()[0], topology.cpus()[0]);
    assert_eq!(Paths::physical(&topology).get(gpu, cpu).class, PathClass::C2c);
    let found = nics(&topology, &Levels::default());
    assert_eq!(found[0].class, PathClass::P2c);
    assert!(found[0].gdr.used);
    let strict = Levels { gdr_c2c: false, ..Levels::default() };
    assert!(!nics(&topology, &strict)[0].gdr.used);
}

#[test]
fn rings_have_every_gpu_once_and_keep_to_their_rail() {
    let topology = graph(&hgx());
    let paths = Paths::as_used(&topology, &Levels::default());
    let rings = channels(&topology, &paths, CrossNic::Never);
    assert_eq!(rings.len(), 8);
    for ring in &rings {
        let mut gpus = ring.gpus.clone();
        gpus.sort_unstable();
        let mut all = topology.gpus();
        all.sort_unstable();
        assert_eq!(gpus, all);
        assert_eq!(ring.enters, ring.leaves);
        assert_eq!((ring.inside, ring.gb_per_s), (PathClass::Nvl, 48.0));
        assert!(ring.outside <= PathClass::Pxn);
        assert_eq!(paths.get(ring.enters.unwrap(), ring.gpus[0]).class, PathClass::Pix);
    }
    let crossing = channels(&topology, &paths, CrossNic::Always);
    assert!(crossing.iter().all(|ring| ring.outside == PathClass::Pix));
    assert!(channels(&Topology::default(), &paths, CrossNic::Never).is_empty());
    assert_eq!([CrossNic::parse("0"), CrossNic::parse("1")], [CrossNic::Never, CrossNic::Always]);
    assert_eq!(CrossNic::parse("2"), CrossNic::default());
}

#[test]
fn a_ring_follows_the_fast_links() {
    // Four GPUs, NVLinks 0-2, 2-1, 1-3, 3-0: the order of numbers would cross PCI.
    let peers = [[2, 3], [2, 3], [0, 1], [1, 0]];
    let mut gpus = String::new();
    for (dev, peers) in peers.iter().enumerate() {
        let link = |peer: &usize| {
            format!("<nvlink target=\"0000:0{peer}:00.0\" count=\"4\" tclass=\"0x030200\"/>")
        };
        let links: String = peers.iter().map(link).collect();
        let _ = write!(
            gpus,
            "<pci busid=\"0000:0{dev}:00.0\" class=\"0x030200\"><gpu dev=\"{dev}\" sm=\"80\">\
             {links}</gpu></pci>"
        );
    }
    let topology = graph(&format!("<system><cpu numaid=\"0\">{gpus}</cpu></system>"));
    let paths = Paths::as_used(&topology, &Levels::default());
    let rings = channels(&topology, &paths, CrossNic::Never);
    let order: Vec<u32> = rings[0].gpus.iter().map(|gpu| topology.gpu(*gpu).unwrap().dev).collect();
    assert_eq!(order, [0, 2, 1, 3]);
    assert_eq!((rings[0].inside, rings[0].gb_per_s), (PathClass::Nvl, 80.0));
}

#[test]
fn the_matrix_is_printed_and_read_back() {
    let topology = graph(&hgx());
    let matrix = Matrix::of(&topology);
    assert_eq!(matrix.between("GPU0", "GPU5"), Some(&Cell::NvLink(18)));
    assert_eq!(matrix.between("GPU0", "mlx5_1"), Some(&Cell::Pix));
    assert_eq!(matrix.between("NIC0", "NIC7"), Some(&Cell::Sys));
    assert_eq!(matrix.rows[0].cpus.as_deref(), Some("0-15"));
    let printed =
        format!("{}\nLegend:\n{}", matrix.table(), matrix.legend().replace(" = mlx", ": mlx"));
    assert_eq!(matrix::read(&printed).unwrap(), matrix, "{printed}");
    assert!(printed.contains("PIX   = through one PCIe switch"), "{printed}");
}

#[test]
fn saved_matrices_are_read_with_tabs_colours_and_gaps() {
    let tabs = "\u{1b}[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m\r\n\
                GPU0\t X \tNV12\tPXB\t0-63\t0\t\tN/A\r\n\
                GPU1\tNV12\t X \tSYS\t\t1\t\tN/A\r\n\
                NIC0\tPXB\tSYS\t X \t\t\r\n\r\nLegend:\r\n\r\n  X    = Self\r\n\r\nNIC Legend:\r\n\r\n  NIC0: mlx5_3\r\n";
    let matrix = matrix::read(tabs).unwrap();
    assert_eq!(matrix.between("GPU1", "mlx5_3"), Some(&Cell::Sys));
    assert_eq!(matrix.rows[0].cpus.as_deref(), Some("0-63"));
    assert_eq!((matrix.rows[1].cpus.as_deref(), matrix.rows[1].numa.as_deref()), (None, Some("1")));
    // NICs with rows but no columns: the rows tell both ways.
    let gap = "  GPU0 GPU1 CPU Affinity\nGPU0 X SYS 0-3\nGPU1 SYS X 4-7\nNIC0 PIX SYS\n";
    let matrix = matrix::read(gap).unwrap();
    assert_eq!(matrix.between("GPU0", "NIC0"), Some(&Cell::Pix));
    assert_eq!(matrix.between("NIC0", "NIC0"), Some(&Cell::Same));
    let short = "  GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS\n";
    let error = matrix::read(short).unwrap_err();
    assert_eq!(error.to_string(), "line 3: GPU1 has 1 entries where the head names 2 devices");
    assert_eq!(matrix::read("hello\n"), Err(matrix::MatrixError::NoTable));
}

#[test]
fn rocm_tables_are_read() {
    let text = "==== ROCm System Management Interface ====\n\
                ==== Weight between two GPUs ====\n       GPU0  GPU1\nGPU0   0     15\nGPU1   15    0\n\
                ==== Link Type between two GPUs ====\n       GPU0  GPU1\nGPU0   0     XGMI\nGPU1   XGMI  0\n\
                ==== Numa Nodes ====\nGPU[0]\t\t: (Topology) Numa Node: 0\n\
                GPU[0]\t\t: (Topology) Numa Affinity: 0\nGPU[1]\t\t: (Topology) Numa Affinity: 1\n\
                ==== End of ROCm SMI Log ====\n";
    let matrix = matrix::read(text).unwrap();
    assert_eq!(matrix.between("GPU0", "GPU1"), Some(&Cell::Xgmi));
    assert_eq!(matrix.between("GPU0", "GPU0"), Some(&Cell::Same));
    assert_eq!(matrix.rows[1].numa.as_deref(), Some("1"));
}

#[test]
fn what_an_operator_should_look_at_is_said() {
    let told = |text: &str| {
        let topology = graph(text);
        warning::warnings(&topology, &nics(&topology, &Levels::default())).join("\n")
    };
    assert_eq!(told(&hgx()), "");
    let text = hgx().replacen(
        "class=\"0x030200\" link_speed",
        "class=\"0x030200\" current_link_width=\"8\" link_speed",
        1,
    );
    assert!(told(&text).contains("GPU0 (0000:12:00.0) runs at x8 where x16 is possible"));
    let text = hgx().replacen("dev=\"0\" speed", "unused=\"down\" speed", 1);
    assert!(told(&text).contains("mlx5_0 is down"), "{}", told(&text));
    let text = hgx().replacen("count=\"18\"", "count=\"16\"", 1);
    assert!(told(&text).contains("GPU0 has 16 NVLinks or XGMI links up, others have 18"));
    let far = hgx().replace("class=\"0x020700\"", "class=\"0x088000\"").replace("<nic>", "<nix>");
    let told = told(&far.replace("</nic>", "</nix>"));
    assert!(told.contains("GPU0, GPU1") && told.contains("no NIC at all"), "{told}");
}

fn told(text: &str) -> String {
    let topology = graph(text);
    warning::warnings(&topology, &nics(&topology, &Levels::default())).join("\n")
}

#[test]
fn sockets_are_not_told_to_load_modules_or_to_move() {
    let text = hgx()
        .replace("mlx5_", "ens")
        .replace("port=\"1\"", "port=\"0\"")
        .replace("maxconn=\"131072\" gdr=\"1\"", "maxconn=\"65536\" gdr=\"0\"");
    let topology = graph(&text);
    let reason = &nics(&topology, &Levels::default())[0].gdr.reason;
    assert!(reason.contains("socket (TCP)") && !reason.contains("peermem"), "{reason}");
    assert_eq!(told(&text), "");
}

#[test]
fn nics_without_gpudirect_are_not_said_to_be_far() {
    let text = hgx().replace("maxconn=\"131072\" gdr=\"1\"", "maxconn=\"131072\" gdr=\"0\"");
    let topology = graph(&text);
    let found = nics(&topology, &Levels::default());
    assert_eq!(found[0].class, PathClass::Phb, "staged through the CPU");
    assert!(found[0].gdr.reason.contains("peermem"), "{}", found[0].gdr.reason);
    assert_eq!(told(&text), "");
    // One that is far is still named.
    let text = "<system><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x030200\"><gpu dev=\"0\" \
                sm=\"90\"/></pci><pci busid=\"0000:02:00.0\" class=\"0x020700\"><nic><net dev=\"0\" \
                name=\"mlx5_0\" port=\"1\" gdr=\"0\"/></nic></pci></cpu></system>";
    assert!(told(text).contains("GPU0 has no NIC nearer than PHB"), "{}", told(text));
}

#[test]
fn gpus_the_driver_did_not_show_are_not_said_to_lack_links() {
    let links = "<nvlink target=\"0000:a0:00.0\" count=\"18\" tclass=\"0x068000\"/>";
    let first = hgx().replacen(links, "", 1);
    assert!(told(&first).contains("GPU0 has 0 NVLinks"), "{}", told(&first));
    assert_eq!(told(&first.replacen(" sm=\"90\"", "", 1)), "");
}

#[test]
fn the_picture_shows_every_device_and_is_well_formed() {
    let text = hgx().replace("mlx5_3", "&lt;evil&gt;\"&amp;".replace('"', "&quot;").as_str());
    let topology = graph(&text);
    let levels = Levels::default();
    let paths = Paths::as_used(&topology, &levels);
    let chosen = affinities(&topology, &paths, &levels);
    let drawn = picture::svg(&topology, &chosen, "a <machine>");
    let parsed = roxmltree::Document::parse(&drawn).unwrap();
    let has = |wanted: &str| parsed.descendants().any(|node| node.text() == Some(wanted));
    for wanted in ["GPU0", "GPU7", "mlx5_0", "<evil>\"&", "NUMA 1", "NVSwitch", "a <machine>"] {
        assert!(has(wanted), "{wanted}");
    }
    let class = |name: &str| {
        parsed.descendants().filter(|node| node.attribute("class") == Some(name)).count()
    };
    assert_eq!((class("way"), class("gpu"), class("nic"), class("pci")), (8, 8, 8, 4));
    let empty = graph("<system><cpu numaid=\"0\"/></system>");
    let drawn = picture::svg(&empty, &[], "empty");
    assert!(roxmltree::Document::parse(&drawn).is_ok());
}

#[test]
fn xgmi_counts_as_rccl_counts_it() {
    let text = "<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\" vendor=\"AuthenticAMD\" \
                familyid=\"25\" modelid=\"1\"><pci busid=\"0000:05:00.0\" class=\"0x120000\"><gpu \
                dev=\"0\" sm=\"94\" gcn=\"gfx942\"><xgmi target=\"0000:15:00.0\" count=\"1\" \
                tclass=\"0x120000\"/></gpu></pci><pci busid=\"0000:15:00.0\" class=\"0x120000\"><gpu \
                dev=\"1\" sm=\"94\" gcn=\"gfx942\"><xgmi target=\"0000:05:00.0\" count=\"1\" \
                tclass=\"0x120000\"/></gpu></pci></cpu></system>";
    let topology = graph(text);
    let gpus = topology.gpus();
    let path = Paths::physical(&topology).get(gpus[0], gpus[1]);
    assert_eq!((path.class, path.gb_per_s), (PathClass::Nvl, 48.0));
    assert_eq!(Matrix::of(&topology).between("GPU0", "GPU1"), Some(&Cell::Xgmi));
}
