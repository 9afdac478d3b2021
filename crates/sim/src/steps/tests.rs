//! Plans against patterns, and plans that stand still.

use ringway_fabric::generate::FatTree;
use ringway_fabric::rate::Rate;
use ringway_plan::algorithm::Algorithm;
use ringway_plan::build::Tuning;
use ringway_plan::problem::Problem;
use ringway_plan::types::Collective;

use super::*;
use crate::dag;
use crate::machine::Machine;
use crate::pattern::{self, Call, Pattern};
use crate::route::{Routing, Way};

/// Machines whose memory and NVLink hold nobody up: a plan's lanes wait for them, a pattern is pipelined.
fn network(hosts: usize, gpus: usize) -> Network {
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
    let machine = Machine {
        gpus,
        memory_gbytes: 1e6,
        inside_gbytes: 1e5,
        inside_us: 0.1,
        net_us: 0.5,
        switch_us: 0.1,
        ..Machine::default()
    };
    Network::build(tree.build().expect("a fabric"), machine, None).expect("a network")
}

fn options() -> Options {
    let routing = Routing { way: Way::Adaptive, ..Routing::default() };
    Options { routing, ..Options::default() }
}

fn hosts(network: &Network) -> Vec<u32> {
    network.first_ranks.clone()
}

/// Microseconds by plan and by pattern.
fn both(
    network: &Network,
    (algorithm, pattern): (Algorithm, Pattern),
    collective: Collective,
    bytes: u64,
) -> (f64, f64) {
    let ranks = small(network.ranks());
    let count = if collective.deals_blocks() { bytes / u64::from(ranks) } else { bytes } / 4;
    let problem = Problem::new(collective, ranks, count, DataType::U32);
    // Around a ring latency counts for every piece; along a chain it takes a piece a hop until all are at work.
    let slot_bytes = if pattern == Pattern::HierarchicalChain { 1 << 18 } else { 1 << 22 };
    let tuning = Tuning { lanes: 2, slot_bytes, slots: 4, scratch_bytes: 1 << 30 };
    let hosts = hosts(network);
    algorithm.supports(&problem, &hosts).expect("it is supported");
    let plan = algorithm.plan(&problem, &hosts, tuning);
    let work = Work { buffer_bytes: 1 << 24, ..Work::default() };
    let planned = run_plan(network, &plan, &options(), &work).expect("it runs").end_us;
    let call = Call { channels: 1, ..Call::new(collective, bytes, pattern) };
    let mut tasks = Vec::new();
    pattern::tasks(network, &call, &[], &mut tasks).expect("it is known");
    (planned, dag::run(network, &tasks, &options()).expect("it runs").end_us)
}

#[test]
fn plans_take_what_patterns_say() {
    let one = network(8, 1);
    let layered = network(4, 4);
    let cases = [
        (&one, Algorithm::Ring, Pattern::Ring, Collective::AllReduce),
        (&one, Algorithm::Ring, Pattern::Ring, Collective::AllGather),
        (&one, Algorithm::Tree, Pattern::Tree, Collective::AllReduce),
        (&one, Algorithm::Direct, Pattern::Direct, Collective::AllToAll),
        (&layered, Algorithm::Hierarchical, Pattern::Hierarchical, Collective::AllGather),
        (&layered, Algorithm::Hierarchical, Pattern::Hierarchical, Collective::ReduceScatter),
        (&layered, Algorithm::Hierarchical, Pattern::HierarchicalChain, Collective::AllReduce),
    ];
    let mut wrong = Vec::new();
    for (network, algorithm, pattern, collective) in cases {
        let (planned, patterned) = both(network, (algorithm, pattern), collective, 1 << 30);
        let apart = planned / patterned - 1.0;
        if apart.abs() > 0.02 {
            wrong.push(format!("{algorithm} {collective}: {planned} and {patterned}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_plan_that_stands_still_is_named() {
    let (network, larger) = (network(2, 1), network(3, 1));
    let problem = Problem::new(Collective::AllReduce, 2, 1024, DataType::U32);
    let mut plan = Algorithm::Ring.plan(&problem, &hosts(&network), Tuning::default());
    // Rank 1 says nothing any more.
    for lane in &mut plan.ranks[1].lanes {
        lane.clear();
    }
    let error = run_plan(&network, &plan, &options(), &Work::default()).unwrap_err().to_string();
    assert!(error.contains("stands still for ever: rank 0 lane 0 step"), "{error}");
    assert!(error.contains("from rank 1"), "{error}");
    let error = run_plan(&larger, &plan, &options(), &Work::default());
    assert!(error.unwrap_err().to_string().contains("the plan has 2 ranks and the network 3"));
}

#[test]
fn every_algorithm_runs() {
    let network = network(2, 4);
    let hosts = hosts(&network);
    for collective in Collective::ALL {
        for algorithm in Algorithm::ALL {
            let problem = Problem::new(collective, 8, 4096, DataType::Bf16);
            if algorithm.supports(&problem, &hosts).is_err() {
                continue;
            }
            let plan = algorithm.plan(&problem, &hosts, Tuning::default());
            let outcome = run_plan(&network, &plan, &options(), &Work::default());
            let outcome = outcome.unwrap_or_else(|e| panic!("{algorithm} {collective}: {e}"));
            assert!(outcome.end_us > 0.0 && outcome.end_us < 1e5, "{algorithm} {collective}");
        }
    }
}

#[test]
fn one_core_does_one_thing_at_a_time() {
    let network = network(4, 1);
    let problem = Problem::new(Collective::AllReduce, 4, 1 << 20, DataType::F32);
    let tuning = Tuning { lanes: 4, ..Tuning::default() };
    let plan = Algorithm::Ring.plan(&problem, &hosts(&network), tuning);
    let time = |one_core| {
        let work = Work { overhead_us: 5.0, one_core, buffer_bytes: 1 << 22 };
        run_plan(&network, &plan, &options(), &work).expect("it runs").end_us
    };
    let steps = plan.ranks[0].steps() as f64;
    assert!(time(true) >= 5.0 * steps, "{} for {steps} steps", time(true));
    assert!(time(false) < time(true) / 2.0);
}

#[test]
fn a_rank_that_comes_late_holds_up_the_ring() {
    let network = network(4, 1);
    let problem = Problem::new(Collective::AllReduce, 4, 1 << 20, DataType::F32);
    let plan = Algorithm::Ring.plan(&problem, &hosts(&network), Tuning::default());
    let late = |us| {
        let options = Options { late: vec![(2, us)], ..options() };
        run_plan(&network, &plan, &options, &Work::default()).expect("it runs").end_us
    };
    assert!(late(10_000.0) > 10_000.0 && late(10_000.0) < 10_000.0 + late(0.0) * 1.01);
}
