//! What is written can be read, and says what it should.

use proptest::prelude::*;

use super::*;
use crate::draft::FinishOptions;
use crate::generate::FatTree;
use crate::model::Fabric;
use crate::rate::Rate;
use crate::read::Reading;
use crate::shape::Shape;

fn tree(rails: bool) -> FatTree {
    FatTree {
        hosts: 16,
        adapters: 2,
        rails,
        down: 8,
        up: 4,
        spines: 2,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("4xHDR").unwrap(),
    }
}

fn three_tiers() -> FatTree {
    FatTree {
        adapters: 1,
        down: 2,
        up: 2,
        spines: 2,
        pod_leaves: 2,
        spine_up: 2,
        cores: 4,
        ..tree(false)
    }
}

fn again(fabric: &Fabric) -> Fabric {
    let mut reading = Reading::new();
    reading.read("again", ibnetdiscover::write(fabric).as_bytes()).unwrap();
    reading.finish(FinishOptions::default()).unwrap()
}

/// Everything that is told of a fabric.
fn shape(fabric: &Fabric) -> serde_json::Value {
    serde_json::to_value(Shape::of(fabric)).unwrap()
}

#[test]
fn a_written_dump_reads_the_same() {
    for tree in [tree(true), tree(false), three_tiers()] {
        let fabric = tree.build().unwrap();
        assert_eq!(shape(&again(&fabric)), shape(&fabric));
    }
}

#[test]
fn slurm_gets_a_tree() {
    let text = slurm::topology_conf(&tree(true).build().unwrap());
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        lines,
        [
            "SwitchName=unit1 Nodes=node[1-8]",
            "SwitchName=unit2 Nodes=node9,node[10-16]",
            "SwitchName=fabric Switches=unit[1-2]",
        ]
    );
    let text = slurm::topology_conf(&three_tiers().build().unwrap());
    assert!(text.contains("SwitchName=pod1 Switches=leaf-[1-2]"), "{text}");
    assert!(text.contains("SwitchName=fabric Switches=pod[1-4]"), "{text}");
}

#[test]
fn a_host_on_a_wrong_leaf_does_not_join_two_units() {
    let mut fabric = tree(true).build().unwrap();
    let units = crate::shape::Units::of(&fabric).units.len();
    assert_eq!(units, 2);
    // Swap the cables of node1 and node16 on the first rail.
    let link = |fabric: &Fabric, name: &str| {
        let node = fabric.nodes.iter().position(|node| node.name == name).unwrap();
        fabric.nodes[node].ports[0].link.unwrap()
    };
    let (a, b) = (link(&fabric, "node1 mlx5_0"), link(&fabric, "node16 mlx5_0"));
    let (end_a, end_b) = (fabric.links[a].ends, fabric.links[b].ends);
    let (host_a, host_b) = (
        end_a.iter().position(|end| fabric.nodes[end.node].host.is_some()).unwrap(),
        end_b.iter().position(|end| fabric.nodes[end.node].host.is_some()).unwrap(),
    );
    fabric.links[a].ends[host_a] = end_b[host_b];
    fabric.links[b].ends[host_b] = end_a[host_a];
    fabric.nodes[end_a[host_a].node].ports[0].link = Some(b);
    fabric.nodes[end_b[host_b].node].ports[0].link = Some(a);
    assert_eq!(crate::shape::Units::of(&fabric).units.len(), 2);
}

#[test]
fn hostile_names_break_no_export() {
    let mut fabric = tree(false).build().unwrap();
    fabric.hosts[0].name = "a Nodes=b\nSwitchName=evil,c[1-9]".to_owned();
    let leaves: Vec<usize> = fabric.tier(1).map(|(index, _)| index).collect();
    fabric.nodes[leaves[0]].name = "fabric".to_owned();
    for leaf in &leaves[1..] {
        fabric.nodes[*leaf].name = "x\"<\u{1}>&".to_owned();
    }
    let text = slurm::topology_conf(&fabric);
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("SwitchName="))
        .filter_map(|line| line.split(' ').next())
        .collect();
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), names.len(), "{text}");
    assert!(!text.contains("\nSwitchName=evil") && !text.contains("c[1-9]"), "{text}");
    let picture = picture::svg(&fabric, "a\u{1}b");
    assert!(!picture.contains('\u{1}') && picture.contains("ab"), "{picture}");
    assert!(picture.contains("x&quot;&lt;&gt;&amp;"), "{picture}");
    serde_json::to_string(&json::document(&fabric)).unwrap();
}

#[test]
fn parts_that_are_not_linked_are_trees_of_their_own() {
    let mut fabric = tree(false).build().unwrap();
    let tops: Vec<usize> = fabric.tier(2).map(|(index, _)| index).collect();
    let half = fabric.tier(1).count() / 2;
    let first: Vec<usize> = fabric.tier(1).map(|(index, _)| index).take(half).collect();
    // The first half keeps the first switches above, the second half the others.
    let (left, right) = tops.split_at(tops.len() / 2);
    let keep = |a: usize, b: usize| {
        !(tops.contains(&b))
            || (first.contains(&a) && left.contains(&b))
            || (!first.contains(&a) && right.contains(&b))
    };
    fabric.links.retain(|link| {
        let [a, b] = link.ends.map(|end| end.node);
        keep(a, b) && keep(b, a)
    });
    for port in fabric.nodes.iter_mut().flat_map(|node| &mut node.ports) {
        port.link = None;
    }
    for (index, link) in fabric.links.iter().enumerate() {
        for end in link.ends {
            fabric.nodes[end.node].ports[end.port].link = Some(index);
        }
    }
    let text = slurm::topology_conf(&fabric);
    assert!(text.contains("SwitchName=fabric ") && text.contains("SwitchName=fabric2 "), "{text}");
}

#[test]
fn kubernetes_gets_labels() {
    let text = kubernetes::labels(&tree(true).build().unwrap(), kubernetes::PREFIX);
    assert_eq!(text.matches("kind: Node").count(), 16);
    assert!(text.contains("  name: \"node3\"\n  labels:\n    fabric.ringway/tier-1: \"unit1\"\n    fabric.ringway/rails: \"2\"\n"), "{text}");
}

#[test]
fn graphs_and_pictures_hold_every_switch() {
    for fabric in [tree(true).build().unwrap(), three_tiers().build().unwrap()] {
        let (graph, picture) = (dot::graph(&fabric), picture::svg(&fabric, "a <fabric>"));
        for (_, node) in fabric.switches() {
            assert!(graph.contains(&node.name) && picture.contains(&node.name), "{}", node.name);
        }
        assert!(picture.contains("a &lt;fabric&gt;") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("class=\"bad\"").count(), 0);
    }
    let json = json::document(&tree(true).build().unwrap());
    assert_eq!(json["switches"].as_array().unwrap().len(), 6);
    assert_eq!(json["links"][0]["gbps"], 200.0);
}

#[test]
fn a_picture_of_thousands_names_those_that_differ() {
    let big = FatTree { hosts: 1000, adapters: 1, down: 4, up: 4, spines: 4, ..tree(false) };
    let mut fabric = big.build().unwrap();
    let spoilt = fabric.switches().find(|(_, node)| node.name == "leaf-77").unwrap().0;
    let port = fabric.nodes[spoilt].ports.iter().position(|port| port.number == 5).unwrap();
    let lost = fabric.nodes[spoilt].ports[port].link.take().unwrap();
    let far = fabric.links[lost].across(spoilt);
    fabric.nodes[far.node].ports[far.port].link = None;
    let picture = picture::svg(&fabric, "big");
    assert!(
        picture.contains("1 switch with fewer uplinks than usual"),
        "{}",
        &picture[picture.len() - 900..]
    );
    assert!(picture.contains("3 of 4</tspan> leaf-77"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn trees_of_any_size_read_the_same(hosts in 1_usize..40, adapters in 1_usize..4, rails in any::<bool>(), down in 1_usize..9, spines in 1_usize..4, cables in 1_usize..3) {
        let tree = FatTree { hosts, adapters, rails, down, up: spines * cables, spines, ..tree(false) };
        let fabric = tree.build().unwrap();
        prop_assert_eq!(shape(&again(&fabric)), shape(&fabric));
    }
}
