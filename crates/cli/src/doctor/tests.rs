//! The checks on trees: a healthy one, the same with one fault each, and trees made to hurt.

mod faults;
mod fixtures;
mod fleet;
mod healthy;
mod hostile;
mod rates;
pub(crate) mod soup;
pub(crate) mod tree;

use std::collections::BTreeMap;

use ringway::testing::machine::{MachineTree, PciSpec};
use ringway::topo::{Root, VIRTUAL_TOPOLOGY};

use self::tree::Tree;
use super::checks;
use super::examine::{Examined, examine};
use super::finding::{Finding, Verdict};
use super::host::Host;

/// Looks at a tree.
pub(crate) fn look(tree: &Tree) -> Examined {
    examine(&Host::new(Root::at(tree.folder())), &checks::all())
}

/// What is not well, by id.
fn troubles(found: &Examined) -> BTreeMap<&str, &Finding> {
    let bad = found.report.findings.iter().filter(|finding| finding.verdict > Verdict::Pass);
    bad.map(|finding| (finding.id.as_str(), finding)).collect()
}

#[test]
fn a_healthy_machine_has_nothing_to_complain_of() {
    let tree = Tree::healthy();
    let found = look(&tree);
    assert!(troubles(&found).is_empty(), "{:#?}", troubles(&found));
    let passed = found.report.findings.len();
    assert!(passed >= 100, "only {passed} checks apply to the healthy machine");
    assert_eq!(found.name, "node1");
    for finding in &found.report.findings {
        assert!(!finding.evidence.is_empty(), "{} has no evidence", finding.id);
    }
}

#[test]
fn ids_are_unique_and_every_check_says_all() {
    let all = checks::all();
    assert!(all.len() >= 60);
    for check in &all {
        let same = all.iter().filter(|other| other.id == check.id).count();
        assert_eq!(same, 1, "{}", check.id);
        assert!(
            check.id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
            "{}",
            check.id
        );
        for text in [check.about, check.reads, check.cost, check.fix] {
            assert!(text.len() > 3, "{}", check.id);
        }
        assert!(check.about.len() <= 78 && !check.about.ends_with('.'), "{}", check.id);
    }
}

#[test]
fn groups_and_ids_choose_and_unknown_names_are_refused() {
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let chosen = checks::chosen(&names(&["nvlink", "pci-05"])).unwrap();
    assert_eq!(chosen.len(), 6);
    let error = checks::chosen(&names(&["pci-99"])).err().unwrap().to_string();
    assert!(error.contains("pci-99") && error.contains("--list"), "{error}");
}

#[test]
fn an_empty_tree_gives_reasons_not_passes() {
    let tree = Tree::empty();
    let found = look(&tree);
    let passes: Vec<&str> = found
        .report
        .findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Pass)
        .map(|finding| finding.id.as_str())
        .collect();
    assert!(passes.is_empty(), "{passes:?}");
    for finding in &found.report.findings {
        assert!(!finding.evidence.is_empty(), "{}", finding.id);
    }
}

#[test]
fn a_part_of_a_tree_gives_no_false_alarm() {
    let mut tree = Tree::healthy();
    let parts = [
        "commands",
        "proc",
        "etc",
        "dev",
        "run",
        "sys/module",
        "sys/class",
        "sys/bus",
        "sys/kernel",
        "sys/fs",
        "sys/devices/system",
    ];
    let mut wrong = Vec::new();
    for part in parts {
        let found = tree.with(|tree| tree.remove(&format!("/{part}")), look);
        let bad =
            troubles(&found).into_values().filter(|finding| finding.verdict > Verdict::Unknown);
        for finding in bad {
            // The nodes of /dev were looked for, and without them RDMA cannot be used.
            if (part, finding.id.as_str()) != ("dev", "mem-09") {
                wrong.push(format!(
                    "without {part}: {} {} {:?}",
                    finding.id, finding.title, finding.evidence
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
}

#[test]
fn a_narrow_card_in_a_wide_slot_is_well() {
    let mut tree = Tree::healthy();
    let found = tree.with(
        |tree| {
            let nic = tree::nic(2);
            for which in ["current", "max"] {
                tree.put(&tree::pci(&nic, &format!("{which}_link_width")), 8);
            }
            // The port of the switch and its slot could do more.
            tree.put(&tree::pci("0000:32:01.0", "current_link_width"), 8);
        },
        look,
    );
    let bad = troubles(&found);
    assert_eq!(bad.keys().copied().collect::<Vec<_>>(), ["ibl-10"], "{bad:#?}");
}

#[test]
fn groups_of_version_1_are_read_as_those_of_version_2() {
    let mut tree = Tree::healthy();
    // Almost full, of files that were read once.
    let found = tree.with(
        |tree| {
            faults::system::old_group(tree, "1099511627000", "1090000000000");
            tree.put("/sys/fs/cgroup/devices/devices.list", "a *:* rwm");
        },
        look,
    );
    assert!(troubles(&found).is_empty(), "{:#?}", troubles(&found));
}

#[test]
fn how_far_a_nic_is_comes_from_the_topology() {
    let tree = MachineTree::new().unwrap();
    tree.cpuinfo(8, "").unwrap();
    tree.numa(0, "0-3").unwrap();
    tree.numa(1, "4-7").unwrap();
    for (above, bus, ids, numa) in [
        ("pci0000:10", "0000:11:00.0", "0x030200 0x10de 0x26b9", 0),
        ("pci0000:90", "0000:91:00.0", "0x020000 0x15b3 0x1021", 1),
    ] {
        let (driver, speed, width) = ("", "32.0 GT/s PCIe", 16);
        tree.pci(&PciSpec { above, bus, ids, numa, driver, speed, width }).unwrap();
    }
    tree.rdma("mlx5_0", "eth0", "pci0000:90/0000:91:00.0", "4: ACTIVE").unwrap();
    let near = || {
        let host = Host::new(Root::at(tree.folder()));
        let found = examine(&host, &checks::chosen(&["gdr-06".to_owned()]).unwrap());
        let finding = found.report.findings.into_iter().next().unwrap();
        (finding.verdict, finding.evidence.join("; "))
    };
    let far = "GPU0 0000:11:00.0: nearest NIC mlx5_0 at SYS".to_owned();
    assert_eq!(near(), (Verdict::Fail, far));
    // What a hypervisor says counts more than where it put the devices.
    let file = "<system version=\"1\"><cpu numaid=\"0\" affinity=\"0f\" arch=\"x86_64\">\
                <pci busid=\"ffff:ff:01.0\" class=\"0x060400\">\
                <pci busid=\"0000:11:00.0\" class=\"0x030200\"/>\
                <pci busid=\"0000:91:00.0\" class=\"0x020000\"/></pci></cpu></system>";
    tree.file(VIRTUAL_TOPOLOGY, file).unwrap();
    let by = "GPU0 0000:11:00.0: nearest NIC mlx5_0 at PIX".to_owned();
    assert_eq!(near(), (Verdict::Pass, by));
}
