//! Against closed forms, and against the library's own plans.

use std::collections::BTreeMap;

use ringway_fabric::generate::FatTree;
use ringway_fabric::rate::Rate;
use ringway_plan::algorithm::Algorithm;
use ringway_plan::build::Tuning;
use ringway_plan::plan::Step;
use ringway_plan::problem::Problem;
use ringway_plan::types::DataType;

use super::*;
use crate::dag::run;
use crate::engine::Options;
use crate::machine::Machine;
use crate::route::{Routing, Way};

const GIB: u64 = 1 << 30;

/// Hosts with rails on one unit of leaves.
fn railed(hosts: usize, gpus: usize, machine: Machine) -> Network {
    let tree = FatTree {
        hosts,
        adapters: gpus,
        rails: true,
        down: hosts,
        up: hosts,
        spines: 1,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("400G").expect("a rate"),
    };
    let fabric = tree.build().expect("a fabric");
    Network::build(fabric, Machine { gpus, ..machine }, None).expect("a network")
}

/// Hosts of one GPU, `down` on a leaf.
fn flat(hosts: usize, down: usize, up: usize, spines: usize) -> Network {
    let tree = FatTree {
        hosts,
        adapters: 1,
        rails: false,
        down,
        up,
        spines,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("400G").expect("a rate"),
    };
    let machine = Machine { gpus: 1, ..Machine::default() };
    Network::build(tree.build().expect("a fabric"), machine, None).expect("a network")
}

fn time_us(network: &Network, call: &Call, way: Way) -> f64 {
    let mut list = Vec::new();
    tasks(network, call, &[], &mut list).expect("a call that is known");
    let routing = Routing { way, ..Routing::default() };
    run(network, &list, &Options { routing, ..Options::default() }).expect("it runs").end_us
}

fn busbw(network: &Network, call: &Call) -> f64 {
    let us = time_us(network, call, Way::Adaptive);
    let ranks = u32::try_from(network.ranks()).expect("few");
    call.bytes as f64 / us / 1000.0 * call.collective.bus_factor(ranks)
}

fn near(got: f64, want: f64, what: &str) {
    assert!((got / want - 1.0).abs() < 0.01, "{what}: {got}, not {want}");
}

#[test]
fn a_ring_takes_what_its_closed_form_says() {
    let network = flat(16, 16, 0, 0);
    let (alpha, rate, count) = (3.3, 50_000.0, 16.0);
    for (collective, factor) in [
        (Collective::AllReduce, 2.0),
        (Collective::AllGather, 1.0),
        (Collective::ReduceScatter, 1.0),
    ] {
        for bytes in [1_u64 << 20, GIB] {
            let call = Call::new(collective, bytes, Pattern::Ring);
            let want = factor * (count - 1.0) * (alpha + bytes as f64 / count / rate);
            near(time_us(&network, &call, Way::Ecmp), want, collective.name());
        }
    }
    let call = Call::new(Collective::Broadcast, GIB, Pattern::Ring);
    let want = GIB as f64 / rate + 15.0 * alpha + 14.0 * CHUNK_BYTES / rate;
    near(time_us(&network, &call, Way::Ecmp), want, "broadcast");
}

#[test]
fn two_trees_take_what_their_closed_form_says() {
    let network = flat(16, 16, 0, 0);
    for bytes in [1_u64 << 16, GIB] {
        let call = Call::new(Collective::AllReduce, bytes, Pattern::Tree);
        let want = 2.0 * 4.0 * 3.3 + 2.0 * bytes as f64 / 50_000.0;
        near(time_us(&network, &call, Way::Ecmp), want, "trees");
    }
}

#[test]
fn an_exchange_takes_what_its_closed_form_says() {
    let network = flat(16, 16, 0, 0);
    let call = Call::new(Collective::AllToAll, GIB, Pattern::Direct);
    let want = 15.0 * 3.3 + 15.0 / 16.0 * GIB as f64 / 50_000.0;
    near(time_us(&network, &call, Way::Ecmp), want, "all_to_all");
}

#[test]
fn ceilings_of_eight_400g_adapters_are_the_textbooks() {
    // N, and flat ring, hierarchical, SHARP, all_to_all by the formulas for g = 8, b = 50 GB/s.
    let fast = Machine { inside_gbytes: 20_000.0, ..Machine::default() };
    for nodes in [2, 4, 8, 16, 64] {
        let (n, count) = (nodes as f64, nodes as f64 * 8.0);
        let network = railed(nodes, 8, fast);
        let big = 64 * GIB;
        let bus = |collective, pattern| busbw(&network, &Call::new(collective, big, pattern));
        let wants = [
            (Collective::AllReduce, Pattern::Ring, 400.0),
            (
                Collective::AllReduce,
                Pattern::Hierarchical,
                400.0 * (count - 1.0) / count / ((n - 1.0) / n),
            ),
            (Collective::AllReduce, Pattern::Sharp, 400.0 * 2.0 * (count - 1.0) / count),
        ];
        for (collective, pattern, want) in wants {
            near(bus(collective, pattern), want, &format!("{pattern} on {nodes} nodes"));
        }
        if nodes <= 16 {
            let want = 50.0 * (count - 1.0) / (count - 8.0);
            near(bus(Collective::AllToAll, Pattern::Direct), want, &format!("{nodes} nodes"));
        }
    }
}

#[test]
fn nvlink_caps_what_adapters_would_carry() {
    let network = railed(2, 8, Machine::default());
    let call = Call::new(Collective::AllReduce, 16 * GIB, Pattern::Hierarchical);
    near(busbw(&network, &call), 450.0 * (15.0 / 16.0) / (7.0 / 8.0), "hierarchical");
    let call = Call { algorithm: Pattern::Sharp, ..call };
    near(busbw(&network, &call), 450.0 * (15.0 / 16.0) / (7.0 / 8.0), "sharp");
    let call = Call { algorithm: Pattern::Ring, ..call };
    near(busbw(&network, &call), 400.0, "ring");
}

#[test]
fn oversubscription_of_two_halves_what_crosses_leaves() {
    // Everybody sends to the other leaf alone, so that all of it crosses.
    let time = |up| {
        let network = flat(32, 16, up, up);
        let mut flows = Vec::new();
        for from in 0..16 {
            for to in 16..32 {
                for (from, to) in [(from, to), (to, from)] {
                    let (from, to) = (Place::Rank(from), Place::Rank(to));
                    flows.push(Flow { from, to, share: 1.0, key: 0 });
                }
            }
        }
        let what = What::Flows(Stream { bytes: 1e8, flows, latency_us: 0.0 });
        let task = Task { name: "cross".to_owned(), row: String::new(), after: Vec::new(), what };
        let routing = Routing { way: Way::Adaptive, ..Routing::default() };
        run(&network, &[task], &Options { routing, ..Options::default() }).expect("it runs").end_us
    };
    near(time(8) / time(16), 2.0, "2:1");
    let whole = |up| {
        let network = flat(128, 16, up, up);
        let call = Call::new(Collective::AllToAll, GIB, Pattern::Direct);
        time_us(&network, &call, Way::Adaptive)
    };
    // Of 127 messages 112 leave the leaf.
    near(whole(8) / whole(16), 2.0 * 112.0 / 127.0, "all_to_all at 2:1");
}

/// Bytes between hosts.
type Traffic = BTreeMap<(u32, u32), u64>;

fn planned(algorithm: Algorithm, problem: &Problem, hosts: &[u32]) -> Traffic {
    let plan = algorithm.plan(problem, hosts, Tuning::default());
    let mut traffic = Traffic::new();
    for (rank, part) in plan.ranks.iter().enumerate() {
        for step in part.lanes.iter().flatten() {
            if let Step::Put { peer, source, .. } = step {
                let ends = (hosts[rank], hosts[*peer as usize]);
                if ends.0 != ends.1 {
                    *traffic.entry(ends).or_default() += source.bytes(problem.data_type);
                }
            }
        }
    }
    traffic
}

fn patterned(network: &Network, call: &Call) -> Traffic {
    let mut list = Vec::new();
    tasks(network, call, &[], &mut list).expect("a call that is known");
    let mut traffic: BTreeMap<(u32, u32), f64> = BTreeMap::new();
    for task in &list {
        let (What::Stream(stream) | What::Flows(stream)) = &task.what else { continue };
        for flow in &stream.flows {
            let host = |place: Place| match place {
                Place::Rank(rank) => rank / small_gpus(network),
                Place::Switch(_) => u32::MAX,
            };
            let ends = (host(flow.from), host(flow.to));
            if ends.0 != ends.1 {
                *traffic.entry(ends).or_default() += stream.bytes * flow.share;
            }
        }
    }
    let whole = |(ends, bytes): ((u32, u32), f64)| (ends, rounded(bytes));
    traffic.into_iter().map(whole).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "few bytes")]
fn rounded(bytes: f64) -> u64 {
    bytes.round() as u64
}

fn small_gpus(network: &Network) -> u32 {
    u32::try_from(network.machine.gpus).expect("few")
}

#[test]
fn patterns_carry_what_the_librarys_plans_carry() {
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter};
    let cases = [
        (
            Pattern::Ring,
            Algorithm::Ring,
            vec![AllReduce, AllGather, ReduceScatter, Broadcast, Reduce],
        ),
        (Pattern::Tree, Algorithm::Tree, vec![AllReduce, Broadcast, Reduce]),
        (Pattern::Hierarchical, Algorithm::Hierarchical, vec![AllGather, ReduceScatter, Broadcast]),
        (Pattern::HierarchicalChain, Algorithm::Hierarchical, vec![AllReduce, Reduce]),
        (Pattern::Direct, Algorithm::Direct, vec![AllToAll, AllGather, Broadcast]),
    ];
    let mut compared = 0;
    for (nodes, gpus) in [(2, 2), (3, 2), (4, 4), (4, 1), (5, 3)] {
        let network = railed(nodes, gpus, Machine::default());
        let ranks = u32::try_from(nodes * gpus).expect("few");
        let hosts: Vec<u32> = (0..ranks).map(|rank| rank / small_gpus(&network)).collect();
        for (pattern, algorithm, collectives) in &cases {
            for collective in collectives {
                // A multiple of all that data is divided by; u32 is its own accumulator.
                let values = 46_080 * u64::from(ranks);
                let count =
                    if collective.deals_blocks() { values / u64::from(ranks) } else { values };
                let problem = Problem::new(*collective, ranks, count, DataType::U32);
                if algorithm.supports(&problem, &hosts).is_err() {
                    // Two layers want hosts of several ranks.
                    assert_eq!((*algorithm, gpus), (Algorithm::Hierarchical, 1), "{collective}");
                    continue;
                }
                let mut call = Call::new(*collective, values * 4, *pattern);
                call.channels = 1;
                let want = planned(*algorithm, &problem, &hosts);
                let got = patterned(&network, &call);
                assert_eq!(got, want, "{pattern} {collective} on {nodes} x {gpus}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 75, "cases that the library has a plan for");
}

#[test]
fn twice_the_adapters_carry_twice_as_much() {
    let fast = Machine { gpus: 8, inside_gbytes: 20_000.0, ..Machine::default() };
    let hosts = |adapters, rails| {
        let tree = FatTree {
            hosts: 4,
            adapters,
            rails,
            down: if rails { 4 } else { 4 * adapters },
            up: 4,
            spines: 1,
            pod_leaves: 0,
            spine_up: 0,
            cores: 0,
            rate: Rate::parse("400G").expect("a rate"),
        };
        Network::build(tree.build().expect("a fabric"), fast, None).expect("a network")
    };
    for rails in [true, false] {
        let (one, two) = (hosts(8, rails), hosts(16, rails));
        let mut list = Vec::new();
        let call = Call::new(Collective::AllReduce, GIB, Pattern::Ring);
        tasks(&two, &call, &[], &mut list).expect("a call that is known");
        // A channel for each adapter, and the task that waits for all of them.
        assert_eq!(list.len(), 17);
        for (collective, pattern) in [
            (Collective::AllReduce, Pattern::Ring),
            (Collective::AllReduce, Pattern::Tree),
            (Collective::AllReduce, Pattern::Hierarchical),
            (Collective::AllReduce, Pattern::Sharp),
            (Collective::AllToAll, Pattern::Direct),
        ] {
            for qps in [1, 3] {
                let call = Call { qps, ..Call::new(collective, 64 * GIB, pattern) };
                let times = busbw(&two, &call) / busbw(&one, &call);
                near(times, 2.0, &format!("{pattern}, rails {rails}, {qps} queue pairs"));
            }
        }
    }
}

#[test]
fn trees_of_switches_stand_on_the_leaves_of_all_adapters() {
    let tree = FatTree {
        hosts: 2,
        adapters: 2,
        rails: true,
        down: 2,
        up: 2,
        spines: 1,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("400G").expect("a rate"),
    };
    let machine = Machine { gpus: 1, ..Machine::default() };
    let network = Network::build(tree.build().expect("a fabric"), machine, None);
    let network = network.expect("a network");
    let mut list = Vec::new();
    let call = Call::new(Collective::AllReduce, GIB, Pattern::Sharp);
    tasks(&network, &call, &[], &mut list).expect("a call that is known");
    let outcome = run(&network, &list, &Options::default()).expect("it runs");
    let cables = outcome.links.iter().filter(|one| one.link < network.fabric.links.len() * 2);
    let bytes: Vec<f64> = cables.map(|one| one.bytes).collect();
    // Each adapter up to its own leaf and down with half of it; nothing through the spine.
    assert_eq!(bytes.len(), 8);
    bytes.iter().for_each(|bytes| near(*bytes, GIB as f64 / 2.0, "a cable"));
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let network = flat(4, 4, 0, 0);
    let refused = |call: Call| {
        tasks(&network, &call, &[], &mut Vec::new()).expect_err("it is refused").to_string()
    };
    let call = Call::new(Collective::AllToAll, GIB, Pattern::Ring);
    assert!(refused(call.clone()).contains("ring has no all_to_all; choose one of direct"));
    let call = Call { algorithm: Pattern::Direct, ranks: vec![0, 9], ..call };
    assert!(refused(call.clone()).contains("no rank 9"));
    let call = Call { ranks: vec![1, 1], ..call };
    assert!(refused(call).contains("rank 1 takes part twice"));
    let call = Call::new(Collective::Reduce, GIB, Pattern::Sharp);
    assert!(refused(call).contains("sharp has no reduce; choose one of ring"));
}
