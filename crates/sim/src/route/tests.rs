//! Ways are shortest, spread as they should be, and those of rails go through the GPU of the rail.

use ringway_fabric::generate::FatTree;
use ringway_fabric::rate::Rate;

use super::*;
use crate::machine::Machine;

fn three_tiers() -> Network {
    let tree = FatTree {
        hosts: 64,
        adapters: 1,
        rails: false,
        down: 4,
        up: 4,
        spines: 4,
        pod_leaves: 4,
        spine_up: 4,
        cores: 16,
        rate: Rate::parse("400G").expect("a rate"),
    };
    let machine = Machine { gpus: 1, ..Machine::default() };
    Network::build(tree.build().expect("a fabric"), machine, None).expect("a network")
}

fn flow(from: u32, to: u32, key: u64) -> Flow {
    Flow { from: Place::Rank(from), to: Place::Rank(to), share: 1.0, key }
}

#[test]
fn ways_through_three_tiers_are_shortest_and_join() {
    let network = three_tiers();
    for way in [Way::Ecmp, Way::Polarised, Way::Static] {
        let mut router = Router::new(&network, &Routing { way, ..Routing::default() });
        let mut uses = Vec::new();
        for (from, to, links) in [(0, 1, 4), (0, 5, 6), (0, 63, 8), (17, 3, 8)] {
            router.route(&flow(from, to, 0), &mut uses).expect("a way");
            assert_eq!(uses.len(), links, "{way:?} {from} to {to}");
            let cables = &uses[1..uses.len() - 1];
            assert!(cables.windows(2).all(|pair| {
                let far = router.far_end(pair[0].link);
                network.cables.of(far).iter().any(|(link, _)| *link == pair[1].link)
            }));
        }
    }
}

#[test]
fn a_polarised_hash_uses_one_core_of_each_spine() {
    let network = three_tiers();
    let cores = |way| {
        let mut router = Router::new(&network, &Routing { way, ..Routing::default() });
        let mut uses = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for key in 0..200 {
            router.route(&flow(0, 63, key), &mut uses).expect("a way");
            seen.insert(uses[3].link);
        }
        seen.len()
    };
    assert_eq!((cores(Way::Ecmp), cores(Way::Polarised)), (16, 4));
}

#[test]
fn few_headers_take_few_ways() {
    let network = three_tiers();
    let routing = Routing { entropy: Some(2), ..Routing::default() };
    let mut router = Router::new(&network, &routing);
    let mut uses = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for key in 0..200 {
        router.route(&flow(0, 63, key), &mut uses).expect("a way");
        seen.insert(uses.iter().map(|one| one.link).collect::<Vec<_>>());
    }
    assert!(seen.len() <= 2, "{} ways", seen.len());
}

#[test]
fn parts_of_a_flow_are_a_whole_in_every_tier() {
    let network = three_tiers();
    let mut router = Router::new(&network, &Routing { way: Way::Adaptive, ..Routing::default() });
    let mut uses = Vec::new();
    router.route(&flow(0, 63, 0), &mut uses).expect("a way");
    let mut sums = std::collections::BTreeMap::new();
    for one in &uses {
        *sums.entry(one.hop).or_insert(0.0) += one.part;
    }
    assert_eq!(sums.len(), 8);
    assert!(sums.values().all(|sum: &f64| (sum - 1.0).abs() < 1e-12), "{sums:?}");
    assert_eq!(uses.len(), 2 + 2 + 4 + 16 + 16 + 4);
}

#[test]
fn parts_that_begin_at_a_goal_reach_the_node() {
    let tree = FatTree {
        hosts: 2,
        adapters: 2,
        rails: true,
        down: 2,
        up: 1,
        spines: 1,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("400G").expect("a rate"),
    };
    let mut fabric = tree.build().expect("a fabric");
    // Each host's second cable goes to its first adapter, so that this one is on two leaves.
    for host in 0..2 {
        let [first, second] = fabric.hosts[host].adapters[..] else { panic!("two adapters") };
        let port = fabric.nodes[second].ports[0].clone();
        let link = port.link.expect("a cable");
        fabric.nodes[second].ports[0].link = None;
        fabric.nodes[first].ports.push(port);
        let place = fabric.nodes[first].ports.len() - 1;
        for end in fabric.links[link].ends.iter_mut().filter(|end| end.node == second) {
            *end = ringway_fabric::model::End { node: first, port: place };
        }
    }
    let machine = Machine { gpus: 1, ..Machine::default() };
    let network = Network::build(fabric, machine, None).expect("a network");
    let mut router = Router::new(&network, &Routing { way: Way::Adaptive, ..Routing::default() });
    let mut uses = Vec::new();
    let leaf = network.cables.of(network.adapters[1])[1].1 as usize;
    let (to, share) = (Place::Rank(1), 1.0);
    router.route(&Flow { from: Place::Switch(leaf), to, share, key: 0 }, &mut uses).expect("a way");
    // One cable down, and the bus.
    let last = network.cables.of(leaf).iter().find(|(_, far)| *far as usize == network.adapters[1]);
    let want = [last.expect("a cable").0, network.bus(network.adapters[1]).1];
    assert_eq!(uses.iter().map(|one| one.link).collect::<Vec<_>>(), want);
    assert!(uses.iter().all(|one| one.part == 1.0));
    // From a rank the leaf is reached by one cable, and counts once.
    router.route(&flow(0, 1, 0), &mut uses).expect("a way");
    assert_eq!(uses.len(), 4);
    assert!(uses.iter().all(|one| one.part == 1.0), "{uses:?}");
}

#[test]
fn messages_to_another_rail_go_through_its_gpu() {
    let tree = FatTree {
        hosts: 4,
        adapters: 2,
        rails: true,
        down: 4,
        up: 4,
        spines: 4,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("400G").expect("a rate"),
    };
    let fabric = tree.build().expect("a fabric");
    for (through_rail, links) in [(true, 6), (false, 6)] {
        let machine = Machine { gpus: 2, through_rail, ..Machine::default() };
        let network = Network::build(fabric.clone(), machine, None).expect("a network");
        assert!(network.has_rails);
        let mut router = Router::new(&network, &Routing::default());
        let mut uses = Vec::new();
        router.route(&flow(0, 3, 0), &mut uses).expect("a way");
        assert_eq!(uses.len(), links);
        let inside = uses.iter().any(|one| one.link == network.inside(1).1);
        assert_eq!(inside, through_rail);
        router.route(&flow(0, 2, 0), &mut uses).expect("a way");
        assert_eq!(uses.len(), 4);
    }
}
