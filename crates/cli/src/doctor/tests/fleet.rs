//! Comparing machines.

use super::look;
use super::tree::{Tree, nic, pci};
use crate::doctor::examine::Examined;
use crate::doctor::finding::Style;
use crate::doctor::fleet::compare;

/// One of several machines that are alike but for what every machine has of its own.
fn machine(tree: &mut Tree, number: usize) -> Examined {
    tree.put("/proc/sys/kernel/hostname", format!("node{number}"));
    tree.replace("/etc/hosts", "node1", &format!("node{number}"));
    let found = tree.with(
        |tree| {
            for index in 0..8 {
                tree.put(
                    &format!("/sys/class/infiniband/mlx5_{index}/node_guid"),
                    format!("a088:c203:00ad:{number:02x}{index:02x}"),
                );
            }
            tree.replace("/proc/cmdline", "root=UUID=1234", &format!("root=UUID={number}"));
        },
        look,
    );
    tree.replace("/etc/hosts", &format!("node{number}"), "node1");
    found
}

#[test]
fn the_odd_one_out_is_named_with_all_that_is_odd() {
    let mut tree = Tree::healthy();
    let mut machines: Vec<Examined> = (1..=7).map(|number| machine(&mut tree, number)).collect();
    tree.put("/sys/class/infiniband/mlx5_3/fw_ver", "28.35.2000");
    tree.put("/proc/sys/kernel/osrelease", "6.5.0-10-generic");
    tree.put("/sys/class/net/eth2/mtu", 1500);
    tree.put(&super::tree::port(5, "rate"), "200 Gb/sec (2X NDR)");
    tree.put("/proc/sys/net/core/rmem_max", 212_992);
    tree.replace("/proc/cmdline", "iommu=pt ", "");
    tree.put(&pci(&nic(6), "numa_node"), 0);
    machines.push(machine(&mut tree, 8));
    let fleet = compare(&mut machines);
    let found: Vec<String> =
        fleet.differences().iter().map(super::super::fleet::Difference::title).collect();
    let expected = [
        "node8: NIC at 0000:74:00.0 15b3:1021, node 0, below pci0000:70 0000:70:01.0 0000:71:00.0 0000:72:01.0, 7 others have 15b3:1021, node 1, below pci0000:70 0000:70:01.0 0000:71:00.0 0000:72:01.0",
        "node8: eth2 mtu 1500, 7 others have 9000",
        "node8: kernel 6.5.0-10-generic, 7 others have 6.8.0-60-generic",
        "node8: kernel arguments ro pci=pcie_bus_perf, 7 others have ro iommu=pt pci=pcie_bus_perf",
        "node8: mlx5_3 firmware 28.35.2000, 7 others have 28.39.1002",
        "node8: mlx5_5:1 rate 200 Gb/sec (2X NDR), 7 others have 400 Gb/sec (4X NDR)",
        "node8: rmem_max 212992, 7 others have 67108864",
    ];
    assert_eq!(found, expected);
    let json: serde_json::Value = serde_json::from_str(&fleet.json(&machines).unwrap()).unwrap();
    assert_eq!(json["differences"].as_array().unwrap().len(), expected.len());
    assert_eq!(json["machines"][7]["machine"], "node8");
    let text = fleet.text(&machines, Style { columns: 100, colour: false, all: false });
    assert!(text.contains("8 machines compared, 7 differences"), "{text}");
    assert_eq!(fleet.exit_code(&machines), 2);
}

#[test]
fn machines_that_are_alike_have_no_differences_and_kinds_are_kept_apart() {
    let mut tree = Tree::healthy();
    let mut machines: Vec<Examined> = (1..=3).map(|number| machine(&mut tree, number)).collect();
    tree.put("/sys/class/dmi/id/product_name", "Another box");
    tree.put("/proc/sys/kernel/osrelease", "5.15.0-1-generic");
    machines.push(machine(&mut tree, 4));
    let fleet = compare(&mut machines);
    assert!(fleet.differences().is_empty(), "{:?}", fleet.differences());
    assert_eq!(fleet.exit_code(&machines), 0);
}

#[test]
fn what_differs_everywhere_is_not_compared_and_hundreds_are_quick() {
    let mut tree = Tree::healthy();
    let one = machine(&mut tree, 1);
    let mut machines: Vec<Examined> = (0..500)
        .map(|number| {
            let mut traits = one.traits.clone();
            traits.insert("BIOS".to_owned(), format!("serial {number}"));
            if number == 17 {
                traits.insert("kernel".to_owned(), "old".to_owned());
            }
            Examined {
                name: "node".to_owned(),
                report: one.report.clone(),
                denied: Vec::new(),
                traits,
                picture: None,
                moment: one.moment.clone(),
            }
        })
        .collect();
    let begin = std::time::Instant::now();
    let fleet = compare(&mut machines);
    assert!(begin.elapsed() < std::time::Duration::from_secs(5));
    let titles: Vec<String> =
        fleet.differences().iter().map(super::super::fleet::Difference::title).collect();
    assert_eq!(titles, ["node#18: kernel old, 499 others have 6.8.0-60-generic"]);
}

#[test]
fn what_is_told_of_several_machines_names_the_devices_of_none() {
    let mut tree = Tree::healthy();
    tree.config("0000:12:00.0", 0x106, 0x1d);
    let mut machines = vec![machine(&mut tree, 1)];
    let merged = |machines: &mut Vec<Examined>| {
        let mut merged = compare(machines).merged(machines).findings;
        merged.retain(|finding| finding.id == "pci-05");
        assert_eq!(merged.len(), 1);
        let one = merged.remove(0);
        (one.title, one.fix.unwrap())
    };
    // Alone, the machine's own bridges are named.
    assert!(merged(&mut machines).1.contains("0000:12:00.0"));
    tree.config("0000:22:00.0", 0x106, 0x1d);
    machines.push(machine(&mut tree, 2));
    let (title, fix) = merged(&mut machines);
    assert_eq!(title, "bridges that send peer traffic to the root (on 2 of 2 machines)");
    assert!(!fix.contains("0000:"), "{fix}");
    assert!(fix.contains("setpci"), "{fix}");
}
