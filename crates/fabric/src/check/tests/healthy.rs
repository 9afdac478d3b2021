//! Fabrics that are odd and well: nothing may be found in them.

use super::*;

/// 4 pods of 4 leaves and 4 spines, 16 cores.
fn three_tiers() -> Fabric {
    let tree = FatTree {
        hosts: 64,
        adapters: 1,
        rails: false,
        down: 4,
        up: 4,
        pod_leaves: 4,
        spine_up: 4,
        cores: 16,
        ..FatTree::railed()
    };
    tree.build().expect("a tree")
}

/// A new adapter on a switch's next free port.
fn plug_in(fabric: &mut Fabric, host: &str, label: &str, switch: &str, rate: &str) {
    let node = fabric.nodes.len();
    let switch = self::node(fabric, switch);
    let link = fabric.links.len();
    let port = crate::model::Port {
        number: 1,
        link: Some(link),
        state: PortState::Active,
        ..Default::default()
    };
    let number = fabric.nodes[switch].ports.last().map_or(0, |port| port.number) + 1;
    let far = fabric.nodes[switch].ports.len();
    fabric.nodes[switch].ports.push(crate::model::Port { number, ..port.clone() });
    let place = match fabric.hosts.iter().position(|known| known.name == host) {
        Some(place) => place,
        None => {
            let name = host.to_owned();
            fabric.hosts.push(crate::model::Host { name, named: true, adapters: Vec::new() });
            fabric.hosts.len() - 1
        }
    };
    fabric.hosts[place].adapters.push(node);
    fabric.nodes.push(crate::model::Node {
        kind: Kind::Adapter,
        id: format!("{host} {label}"),
        guid: Some(0x7700_0000 + node as u64),
        name: format!("{host} {label}"),
        label: label.to_owned(),
        model: None,
        device: None,
        lid: None,
        port_count: 1,
        firmware: None,
        faults: Vec::new(),
        host: Some(place),
        tier: 0,
        ports: vec![port],
    });
    let ends = [crate::model::End { node, port: 0 }, crate::model::End { node: switch, port: far }];
    fabric.links.push(crate::model::Link { ends, rate: Rate::parse(rate) });
}

fn tiers(fabric: &Fabric) -> Vec<usize> {
    (1..=fabric.tiers).map(|tier| fabric.tier(tier).count()).collect()
}

#[test]
fn three_tiers_yield_nothing() {
    assert_eq!(tiers(&three_tiers()), [16, 16, 16]);
    assert_eq!(found(&three_tiers()), []);
}

#[test]
fn an_odd_radix_yields_nothing() {
    let tree = FatTree { hosts: 21, adapters: 3, down: 7, up: 5, spines: 5, ..FatTree::railed() };
    assert_eq!(found(&tree.build().unwrap()), []);
    // The last leaf has one host alone.
    let tree = FatTree { hosts: 15, adapters: 1, rails: false, down: 7, up: 5, spines: 5, ..tree };
    assert_eq!(found(&tree.build().unwrap()), []);
}

#[test]
fn a_service_node_on_a_spine_or_a_core_yields_nothing() {
    let mut fabric = healthy();
    plug_in(&mut fabric, "manager", "mlx5_0", "spine-2", "4xNDR");
    crate::tier::assign(&mut fabric);
    assert_eq!(tiers(&fabric), [8, 4]);
    assert_eq!(found(&fabric), []);
    let mut fabric = three_tiers();
    plug_in(&mut fabric, "manager", "mlx5_0", "core-3", "4xNDR");
    crate::tier::assign(&mut fabric);
    assert_eq!(tiers(&fabric), [16, 16, 16]);
    assert_eq!(found(&fabric), []);
}

#[test]
fn a_leaf_without_hosts_yields_nothing() {
    for (whole, leaf, wanted) in
        [(healthy(), "leaf-2-3", vec![8, 4]), (three_tiers(), "leaf-5", vec![16, 16, 16])]
    {
        let mut fabric = whole;
        let switch = node(&fabric, leaf);
        let gone: Vec<usize> = fabric.downlinks(switch).map(|(_, _, end)| end.node).collect();
        for adapter in gone {
            let name = fabric.nodes[adapter].name.clone();
            unplug(&mut fabric, &name, 1);
            // Nobody has such an adapter: the rail is not there yet.
            let host = fabric.nodes[adapter].host.expect("a host");
            fabric.hosts[host].adapters.retain(|one| *one != adapter);
        }
        fabric.hosts.retain(|host| !host.adapters.is_empty());
        for (host, adapters) in
            fabric.hosts.iter().map(|host| host.adapters.clone()).enumerate().collect::<Vec<_>>()
        {
            for adapter in adapters {
                fabric.nodes[adapter].host = Some(host);
            }
        }
        // What is left of hosts that had several is a kind of its own.
        if fabric.tiers == 2 {
            for host in &mut fabric.hosts {
                if host.adapters.len() < 4 {
                    host.name = host.name.replace("node", "small");
                }
            }
        }
        crate::tier::assign(&mut fabric);
        assert_eq!(tiers(&fabric), wanted);
        assert_eq!(found(&fabric), []);
    }
}

/// Each host has two slower adapters for storage, on leaves of their own.
fn with_storage(device: Option<&str>) -> Fabric {
    let mut fabric =
        FatTree { hosts: 16, adapters: 6, ..FatTree::railed() }.build().expect("a tree");
    for index in 0..fabric.links.len() {
        let ends = fabric.links[index].ends.map(|end| end.node);
        let adapter = ends.into_iter().find(|node| fabric.nodes[*node].kind == Kind::Adapter);
        let Some(adapter) = adapter else { continue };
        let storage = ["mlx5_4", "mlx5_5"].contains(&fabric.nodes[adapter].label.as_str());
        if storage {
            fabric.links[index].rate = Rate::parse("4xHDR");
        }
        fabric.nodes[adapter].device =
            device.map(|fast| if storage { "MT4123".to_owned() } else { fast.to_owned() });
    }
    fabric
}

#[test]
fn slower_adapters_for_storage_yield_nothing() {
    assert_eq!(found(&with_storage(None)), []);
    assert_eq!(found(&with_storage(Some("MT4129"))), []);
    // One that is slow among its own is found all the same.
    let mut fabric = with_storage(None);
    let adapter = node(&fabric, "node3 mlx5_1");
    let link = fabric.nodes[adapter].ports[0].link.unwrap();
    fabric.links[link].rate = Rate::parse("4xHDR");
    only(&fabric, "fab-01", &["node3 mlx5_1"]);
}

#[test]
fn a_leaf_for_storage_joins_no_units() {
    let mut fabric = FatTree { hosts: 24, ..FatTree::railed() }.build().unwrap();
    assert_eq!(crate::shape::Units::of(&fabric).units.len(), 3);
    for host in 1..=24 {
        plug_in(&mut fabric, &format!("node{host}"), "mlx5_9", "leaf-3-1", "4xHDR");
    }
    assert_eq!(crate::shape::Units::of(&fabric).units.len(), 4);
}

#[test]
fn login_nodes_and_storage_servers_are_on_no_wrong_rail() {
    let mut fabric = healthy();
    plug_in(&mut fabric, "login1", "mlx5_0", "leaf-1-3", "4xNDR");
    for server in 1..=3 {
        for (label, leaf) in [("mlx5_0", "leaf-2-3"), ("mlx5_1", "leaf-2-4")] {
            plug_in(&mut fabric, &format!("storage{server}"), label, leaf, "4xNDR");
        }
    }
    let rails = Rails::of(&fabric);
    assert_eq!(rails.count, 4);
    assert_eq!(rails.crossed(&fabric), []);
}

#[test]
fn leaves_for_storage_do_not_hide_the_rails() {
    // Eight leaves with rails, and four that take any of two more adapters.
    let mut fabric = healthy();
    let spare: Vec<String> = (1..=4).map(|number| format!("spine-{number}")).collect();
    for host in 1..=16 {
        for (at, label) in ["mlx5_8", "mlx5_9"].iter().enumerate() {
            plug_in(&mut fabric, &format!("node{host}"), label, &spare[(host + at) % 4], "4xNDR");
        }
    }
    let rails = Rails::of(&fabric);
    assert_eq!((rails.count, rails.of_switch.len()), (4, 8));
    assert_eq!(rails.crossed(&fabric), []);
}

#[test]
fn planes_may_use_the_same_identifiers() {
    let mut fabric = healthy();
    let other = healthy();
    let (nodes, links, hosts) = (fabric.nodes.len(), fabric.links.len(), fabric.hosts.len());
    for mut node in other.nodes {
        node.id = format!("second {}", node.id);
        node.host = node.host.map(|host| host + hosts);
        node.ports.iter_mut().for_each(|port| port.link = port.link.map(|link| link + links));
        node.name = format!("second {}", node.name);
        fabric.nodes.push(node);
    }
    for mut link in other.links {
        link.ends.iter_mut().for_each(|end| end.node += nodes);
        fabric.links.push(link);
    }
    for mut host in other.hosts {
        host.adapters.iter_mut().for_each(|adapter| *adapter += nodes);
        fabric.hosts.push(host);
    }
    let ids: Vec<&str> = found(&fabric).iter().map(|finding| finding.id).collect();
    assert!(!ids.contains(&"fab-18"), "{ids:?}");
    // In one plane it is a fault.
    let mut fabric = healthy();
    let spine = node(&fabric, "spine-1");
    fabric.nodes[spine].lid = fabric.nodes[node(&fabric, "spine-2")].lid;
    only(&fabric, "fab-18", &["spine-1", "spine-2"]);
}

#[test]
fn second_ports_that_nobody_cables_yield_nothing() {
    let mut fabric = healthy();
    for node in fabric.nodes.iter_mut().filter(|node| node.kind == Kind::Adapter) {
        let state = PortState::Down;
        node.ports.push(crate::model::Port { number: 2, state, ..Default::default() });
    }
    assert_eq!(found(&fabric), []);
}

#[test]
fn half_and_half_firmware_blames_nobody() {
    let mut fabric = healthy();
    for (at, node) in fabric.nodes.iter_mut().filter(|n| n.kind == Kind::Switch).enumerate() {
        node.device = Some("MQM9790".to_owned());
        node.firmware = Some(if at % 2 == 0 { "31.2012" } else { "31.2010" }.to_owned());
    }
    only(&fabric, "fab-11", &["none of them most", "31.2010: 6", "31.2012: 6"]);
}
