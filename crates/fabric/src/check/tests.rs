//! A healthy fabric, and one fault at a time.

mod healthy;
mod looks;

use super::*;
use crate::counter::{self, Counters};
use crate::generate::FatTree;
use crate::model::{Kind, NodeIndex, PortState};
use crate::rate::Rate;

fn healthy() -> Fabric {
    FatTree::railed().build().unwrap()
}

fn found(fabric: &Fabric) -> Vec<Finding> {
    check(fabric, CheckOptions::default())
}

fn only(fabric: &Fabric, id: &str, words: &[&str]) {
    let found = found(fabric);
    assert_eq!(found.iter().map(|f| f.id).collect::<Vec<_>>(), [id], "{found:#?}");
    let text = format!("{} {}", found[0].title, found[0].evidence.join(" "));
    for word in words {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    assert!(found[0].fix.is_some(), "{found:#?}");
}

fn node(fabric: &Fabric, name: &str) -> NodeIndex {
    fabric.nodes.iter().position(|node| node.name == name).unwrap_or_else(|| panic!("no {name}"))
}

fn unplug(fabric: &mut Fabric, name: &str, number: u32) {
    let node = node(fabric, name);
    let port =
        fabric.nodes[node].ports.iter().position(|port| port.number == number).expect("the port");
    let link = fabric.nodes[node].ports[port].link.take().expect("a link");
    let far = fabric.links[link].across(node);
    fabric.nodes[far.node].ports[far.port].link = None;
    let last = fabric.links.len() - 1;
    fabric.links.swap_remove(link);
    if link != last {
        for end in fabric.links[link].ends {
            fabric.nodes[end.node].ports[end.port].link = Some(link);
        }
    }
}

fn count(fabric: &mut Fabric, name: &str, number: u32, values: &[(&str, u64)]) {
    let node = node(fabric, name);
    let port =
        fabric.nodes[node].ports.iter_mut().find(|port| port.number == number).expect("the port");
    let mut counters = port.counters.take().map_or_else(Counters::default, |counters| *counters);
    for (name, value) in values {
        counters.set(counter::place(name).expect("a counter"), *value);
    }
    port.counters = Some(Box::new(counters));
}

#[test]
fn a_healthy_fabric_yields_nothing() {
    assert_eq!(found(&healthy()), []);
    let mut counted = healthy();
    let switches: Vec<(String, Vec<u32>)> = counted
        .switches()
        .map(|(_, n)| (n.name.clone(), n.ports.iter().map(|p| p.number).collect()))
        .collect();
    for (name, ports) in switches {
        for port in ports {
            let values = [
                ("PortXmitData", 1 << 40),
                ("PortRcvData", 1 << 40),
                ("PortXmitWait", 1 << 20),
                ("SymbolErrorCounter", 3),
            ];
            count(&mut counted, &name, port, &values);
        }
    }
    assert_eq!(found(&counted), []);
}

#[test]
fn a_slow_link_is_named() {
    let mut fabric = healthy();
    let index = fabric.links.len() - 1;
    fabric.links[index].rate = Rate::parse("1xNDR");
    only(&fabric, "fab-01", &["1xNDR", "4xNDR", "spine-4"]);
}

#[test]
fn another_generation_of_hosts_is_no_fault() {
    let mut fabric = healthy();
    for index in 0..fabric.links.len() {
        let old = fabric.links[index].ends.iter().any(|end| {
            let node = &fabric.nodes[end.node];
            node.kind == Kind::Adapter
                && ["node1", "node2"].contains(&node.name.split(' ').next().unwrap())
        });
        if old {
            fabric.links[index].rate = Rate::parse("4xHDR");
        }
    }
    for node in fabric.nodes.iter_mut().filter(|node| node.kind == Kind::Adapter) {
        let old = ["node1", "node2"].contains(&node.name.split(' ').next().unwrap());
        node.device = Some(if old { "MT4123" } else { "MT4129" }.to_owned());
    }
    assert_eq!(found(&fabric), []);
}

#[test]
fn a_missing_uplink_is_named() {
    let mut fabric = healthy();
    unplug(&mut fabric, "leaf-1-2", 9);
    only(&fabric, "fab-02", &["1 of 8 leaves", "leaf-1-2: 7 of 8", "1 of 2 to spine-1"]);
}

#[test]
fn a_missing_uplink_in_a_pod_is_named() {
    let tree = FatTree {
        hosts: 128,
        adapters: 1,
        rails: false,
        down: 4,
        up: 4,
        spines: 4,
        pod_leaves: 4,
        spine_up: 4,
        cores: 16,
        rate: Rate::parse("4xNDR").unwrap(),
    };
    let mut fabric = tree.build().unwrap();
    assert_eq!(found(&fabric), []);
    unplug(&mut fabric, "leaf-6", 5);
    only(&fabric, "fab-02", &["1 of 32 leaves", "leaf-6: 3 of 4 uplinks; 0 of 1 to spine-2-1"]);
}

#[test]
fn an_uneven_leaf_is_named() {
    let mut fabric = healthy();
    // One of the two cables to the first spine goes to the last one instead.
    unplug(&mut fabric, "leaf-2-1", 9);
    let (leaf, spine) = (node(&fabric, "leaf-2-1"), node(&fabric, "spine-4"));
    let port = fabric.nodes[leaf].ports.iter().position(|p| p.number == 9).unwrap();
    let number = fabric.nodes[spine].ports.len();
    let link = fabric.links.len();
    fabric.nodes[spine].ports.push(crate::model::Port {
        number: 60,
        link: Some(link),
        state: PortState::Active,
        ..Default::default()
    });
    fabric.nodes[leaf].ports[port].link = Some(link);
    let ends =
        [crate::model::End { node: leaf, port }, crate::model::End { node: spine, port: number }];
    fabric.links.push(crate::model::Link { ends, rate: Rate::parse("4xNDR") });
    only(&fabric, "fab-14", &["leaf-2-1", "3 to spine-4", "1 to spine-1"]);
}

#[test]
fn a_host_with_fewer_adapters_is_named() {
    let mut fabric = healthy();
    unplug(&mut fabric, "node5 mlx5_2", 1);
    only(&fabric, "fab-03", &["1 of 16 hosts", "fewer than 4", "node5"]);
}

#[test]
fn storage_hosts_with_fewer_adapters_are_none_of_their_equals() {
    let mut fabric = healthy();
    for host in [1, 2, 3] {
        for adapter in [2, 3] {
            unplug(&mut fabric, &format!("node{host} mlx5_{adapter}"), 1);
        }
        let place = fabric.hosts.iter().position(|h| h.name == format!("node{host}")).unwrap();
        fabric.hosts[place].name = format!("storage{host}");
    }
    assert_eq!(found(&fabric), []);
}

#[test]
fn swapped_rails_are_named() {
    let mut fabric = healthy();
    let (a, b) = (node(&fabric, "node3 mlx5_0"), node(&fabric, "node3 mlx5_1"));
    let (label_a, label_b) = (fabric.nodes[a].label.clone(), fabric.nodes[b].label.clone());
    fabric.nodes[a].label = label_b;
    fabric.nodes[b].label = label_a;
    only(&fabric, "fab-05", &["2 adapters of 1 host", "rail 2", "leaf-1-1"]);
}

#[test]
fn two_switches_with_one_name_are_told() {
    let mut fabric = healthy();
    let spine = node(&fabric, "spine-2");
    fabric.nodes[spine].name = "spine-1".to_owned();
    only(&fabric, "fab-07", &["2 switches are called spine-1"]);
}

#[test]
fn a_port_that_is_down_is_named() {
    let mut fabric = healthy();
    let adapter = node(&fabric, "node4 mlx5_3");
    fabric.nodes[adapter].ports.push(crate::model::Port {
        number: 2,
        state: PortState::Down,
        physical: Some("Polling".to_owned()),
        ..Default::default()
    });
    only(&fabric, "fab-17", &["node4 mlx5_3 port 2", "Polling"]);
}

#[test]
fn odd_firmware_is_named() {
    let mut fabric = healthy();
    for node in fabric.nodes.iter_mut().filter(|node| node.kind == Kind::Switch) {
        node.device = Some("MQM9790".to_owned());
        node.firmware = Some("31.2012".to_owned());
    }
    let odd = node(&fabric, "spine-3");
    fabric.nodes[odd].firmware = Some("31.2010".to_owned());
    only(&fabric, "fab-11", &["1 of 12", "spine-3: 31.2010"]);
}

#[test]
fn more_than_the_planned_oversubscription_is_told() {
    let options = CheckOptions { oversubscription: Some(1.0), ..CheckOptions::default() };
    assert_eq!(check(&healthy(), options), []);
    let mut fabric = healthy();
    unplug(&mut fabric, "leaf-1-2", 9);
    let ids: Vec<&str> = check(&fabric, options).iter().map(|finding| finding.id).collect();
    assert_eq!(ids, ["fab-02", "fab-04"]);
}

#[test]
fn error_counters_are_judged_by_threshold_and_by_growth() {
    let mut now = healthy();
    count(&mut now, "leaf-1-1", 3, &[("SymbolErrorCounter", 11)]);
    only(&now, "ctr-01", &["leaf-1-1 port 3", "node3 mlx5_0", "11"]);
    let mut before = healthy();
    count(&mut before, "leaf-1-1", 3, &[("SymbolErrorCounter", 11)]);
    let options =
        CheckOptions { before: Some(&before), interval_s: Some(60.0), ..CheckOptions::default() };
    assert_eq!(check(&now, options), [], "long ago");
    count(&mut now, "leaf-1-1", 3, &[("SymbolErrorCounter", 13)]);
    let warned = check(&now, options);
    assert_eq!((warned[0].id, warned[0].verdict), ("ctr-01", Verdict::Warn), "{warned:#?}");
    assert!(warned[0].evidence[0].contains("2 in 60 s, 120 an hour"), "{warned:#?}");
    count(&mut now, "leaf-1-1", 3, &[("SymbolErrorCounter", 50)]);
    assert_eq!(check(&now, options)[0].verdict, Verdict::Fail);
}

#[test]
fn waiting_ports_are_named() {
    let mut fabric = healthy();
    count(
        &mut fabric,
        "leaf-1-1",
        3,
        &[("PortXmitData", 1 << 34), ("PortXmitWait", 1 << 33), ("PortRcvData", 0)],
    );
    only(&fabric, "ctr-05", &["leaf-1-1 port 3", "33 %"]);
}

#[test]
fn a_polarised_hash_shows_in_the_counters() {
    let (mut before, mut now) = (healthy(), healthy());
    for (fabric, scale) in [(&mut before, 0_u64), (&mut now, 1)] {
        for leaf in [
            "leaf-1-1", "leaf-1-2", "leaf-1-3", "leaf-1-4", "leaf-2-1", "leaf-2-2", "leaf-2-3",
            "leaf-2-4",
        ] {
            for port in 9..=16 {
                // Half of the uplinks carry everything.
                let words = if port < 13 { 2_000_000_000 } else { 0 } * scale;
                count(
                    fabric,
                    leaf,
                    port,
                    &[("PortXmitData", words), ("PortRcvData", 1_000_000_000 * scale)],
                );
            }
        }
    }
    let options =
        CheckOptions { before: Some(&before), interval_s: Some(10.0), ..CheckOptions::default() };
    let found = check(&now, options);
    assert_eq!(found.iter().map(|f| f.id).collect::<Vec<_>>(), ["fab-06"], "{found:#?}");
    assert_eq!(found[0].verdict, Verdict::Fail);
    assert!(
        found[0].title.contains("8 switches") && found[0].title.contains("100 %"),
        "{found:#?}"
    );
    assert!(found[0].cost.as_deref().unwrap().contains("50 %"), "{found:#?}");
    // Fifteen percent are borne.
    let mut mild = healthy();
    for port in 9..=16 {
        count(
            &mut mild,
            "leaf-1-1",
            port,
            &[("PortXmitData", if port == 9 { 1_150_000_000 } else { 1_000_000_000 })],
        );
    }
    assert_eq!(self::found(&mild), []);
}

#[test]
fn pauses_are_judged_by_time() {
    let (mut before, mut now) = (healthy(), healthy());
    count(&mut before, "node1 mlx5_0", 1, &[("rx_prio3_pause_duration", 0), ("rx_prio3_pause", 0)]);
    count(
        &mut now,
        "node1 mlx5_0",
        1,
        &[("rx_prio3_pause_duration", 2_000_000), ("rx_prio3_pause", 500)],
    );
    let options =
        CheckOptions { before: Some(&before), interval_s: Some(10.0), ..CheckOptions::default() };
    let found = check(&now, options);
    assert_eq!((found[0].id, found[0].verdict), ("ctr-08", Verdict::Fail), "{found:#?}");
    assert!(found[0].evidence[0].contains("20 % of 10 s"), "{found:#?}");
    let mut global = healthy();
    count(&mut global, "node1 mlx5_0", 1, &[("rx_pause_ctrl_phy", 9)]);
    only(&global, "ctr-09", &["node1 mlx5_0"]);
}

#[test]
fn congestion_is_told_of_the_odd_one() {
    let mut fabric = healthy();
    for host in 1..=8 {
        let marks = if host == 3 { 90_000 } else { 100 };
        count(&mut fabric, &format!("node{host} mlx5_0"), 1, &[("np_cnp_sent", marks)]);
    }
    only(&fabric, "ctr-10", &["node3 mlx5_0", "90000", "100 are in the middle"]);
}

#[test]
fn two_looks_without_a_common_port_say_so() {
    let options_before = healthy();
    let mut now = healthy();
    count(&mut now, "leaf-1-1", 3, &[("SymbolErrorCounter", 50)]);
    let found =
        check(&now, CheckOptions { before: Some(&options_before), ..CheckOptions::default() });
    assert_eq!((found[0].id, found[0].verdict), ("ctr-dumps", Verdict::Unknown));
}

#[test]
fn pauses_of_all_priorities_may_pass_the_end_of_numbers() {
    let (mut before, mut now) = (healthy(), healthy());
    let counters = ["rx_prio0_pause", "rx_prio1_pause"];
    count(&mut before, "node1 mlx5_0", 1, &counters.map(|name| (name, 0)));
    count(&mut now, "node1 mlx5_0", 1, &[(counters[0], u64::MAX), (counters[1], 1)]);
    let options = CheckOptions { before: Some(&before), ..CheckOptions::default() };
    assert_eq!(check(&now, options)[0].id, "ctr-08");
}

#[test]
fn adapters_without_labels_count_one_each() {
    let mut fabric = healthy();
    for node in fabric.nodes.iter_mut().filter(|node| node.kind == Kind::Adapter) {
        node.label.clear();
    }
    let counts = Shape::of(&fabric).host_counts;
    assert_eq!(counts.iter().map(|c| (c.hosts, c.adapters)).collect::<Vec<_>>(), [(16, 4)]);
    unplug(&mut fabric, "node5 mlx5_2", 1);
    let ids: Vec<&str> = found(&fabric).iter().map(|finding| finding.id).collect();
    assert!(ids.contains(&"fab-03"), "{ids:?}");
}
