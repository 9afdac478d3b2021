//! Ranks are where they should be, and what is missing is named.

use ringway_fabric::generate::FatTree;

use super::*;

fn fabric(hosts: usize, adapters: usize) -> Fabric {
    let tree = FatTree {
        hosts,
        adapters,
        rails: false,
        down: 64,
        up: 0,
        spines: 0,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("4xNDR").expect("a rate"),
    };
    tree.build().expect("a fabric")
}

fn machine(gpus: usize) -> Machine {
    Machine { gpus, ..Machine::default() }
}

#[test]
fn ranks_go_host_by_host_in_the_order_of_names() {
    let network = Network::build(fabric(12, 2), machine(4), None).expect("a network");
    assert_eq!(network.ranks(), 48);
    assert_eq!(network.rank_name(4), "node2 GPU 0");
    assert_eq!(network.rank_name(47), "node12 GPU 3");
    // Two GPUs share an adapter.
    assert_eq!(network.adapters[0], network.adapters[1]);
    assert_ne!(network.adapters[1], network.adapters[2]);
    assert_eq!(network.host_ranks(6), 4..8);
    let out = network.inside(5).0 as usize;
    assert_eq!(network.link_name(out), "node2 GPU 1 NVLink out");
    assert_eq!(network.tier_of(0).to_string(), "leaf > host");
    assert_eq!(network.links[0].capacity, 50_000.0);
}

#[test]
fn a_gpu_with_two_adapters_uses_both() {
    let network = Network::build(fabric(2, 4), machine(2), None).expect("a network");
    let own: Vec<NodeIndex> = (0..4).map(|key| network.adapter_of(1, key)).collect();
    assert_ne!(own[0], own[1]);
    assert_eq!(own[0], own[2]);
    let name = |node: NodeIndex| network.fabric.nodes[node].name.clone();
    assert_eq!((name(own[0]), name(own[1])), ("node1 mlx5_2".into(), "node1 mlx5_3".into()));
}

#[test]
fn what_is_missing_is_named() {
    let refused = |fabric, machine, ranks| {
        Network::build(fabric, machine, ranks).expect_err("it is refused").to_string()
    };
    let error = refused(fabric(2, 1), machine(8), Some(17));
    assert!(error.contains("between 1 and 16"), "{error}");
    let mut unplugged = fabric(2, 1);
    let adapter = unplugged.hosts[1].adapters[0];
    unplugged.nodes[adapter].ports[0].link = None;
    let error = refused(unplugged.clone(), machine(1), None);
    assert!(error.contains("node2 has no adapter that is plugged in"), "{error}");
    assert!(Network::build(unplugged, machine(1), Some(1)).is_ok());
    let mut unknown = fabric(2, 1);
    unknown.links.iter_mut().for_each(|link| link.rate = None);
    assert!(refused(unknown, machine(1), None).contains("no rate of any link is known"));
    let broken = Machine { bus_gbytes: 0.0, ..Machine::default() };
    assert!(refused(fabric(2, 1), broken, None).contains("bus: 0 GB/s"));
}
