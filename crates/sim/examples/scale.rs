//! How long simulations take: `cargo run --release -p ringway-sim --example scale [-- GPUS-MOST]`.
//!
//! Everything runs on one core. Building the fabric and the network is counted by itself.
#![expect(clippy::print_stdout, reason = "its table is what it is for")]

use std::time::Instant;

use ringway_fabric::generate::FatTree;
use ringway_fabric::rate::Rate;
use ringway_plan::types::Collective;
use ringway_sim::dag;
use ringway_sim::engine::Options;
use ringway_sim::machine::Machine;
use ringway_sim::network::Network;
use ringway_sim::pattern::{self, Call, Pattern};
use ringway_sim::route::{Routing, Way};

type Error = Box<dyn std::error::Error>;

/// Hosts of 8 GPUs and 8 rails: two tiers up to 2,048 GPUs, then three.
fn network(gpus: usize) -> Result<Network, Error> {
    let three = gpus > 2048;
    let tree = FatTree {
        hosts: gpus / 8,
        adapters: 8,
        rails: true,
        down: 32,
        up: 32,
        spines: 32,
        pod_leaves: if three { 32 } else { 0 },
        spine_up: if three { 32 } else { 0 },
        cores: if three { 1024 } else { 0 },
        rate: Rate::parse("400G").ok_or("no rate")?,
    };
    Ok(Network::build(tree.build()?, Machine::default(), None)?)
}

/// The most memory this process has had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn measure(gpus: usize, call: &Call, way: Way) -> Result<(), Error> {
    let began = Instant::now();
    let network = network(gpus)?;
    let built_s = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let mut tasks = Vec::new();
    pattern::tasks(&network, call, &[], &mut tasks)?;
    let routing = Routing { way, ..Routing::default() };
    let outcome = dag::run(&network, &tasks, &Options { routing, ..Options::default() })?;
    let took_s = began.elapsed().as_secs_f64();
    println!(
        "{:<14} {:<13} {way:<9?} {gpus:>6} {:>9} {:>7} {built_s:>8.2} {took_s:>8.2} {:>7} {:>12.1}",
        call.collective.name(),
        call.algorithm.name(),
        outcome.flows,
        outcome.solves,
        peak_mib(),
        outcome.end_us,
    );
    Ok(())
}

fn main() -> Result<(), Error> {
    let most: usize = std::env::args().nth(1).map_or(Ok(65_536), |word| word.parse())?;
    println!(
        "{:<14} {:<13} {:<9} {:>6} {:>9} {:>7} {:>8} {:>8} {:>7} {:>12}",
        "collective", "pattern", "way", "GPUs", "flows", "solves", "build s", "sim s", "MiB", "µs"
    );
    let all_reduce = |pattern| Call::new(Collective::AllReduce, 1 << 30, pattern);
    for pattern in [Pattern::Hierarchical, Pattern::Ring] {
        let sizes = std::iter::successors(Some(1024), |gpus| Some(gpus * 2));
        for gpus in sizes.take_while(|gpus| *gpus <= most) {
            measure(gpus, &all_reduce(pattern), Way::Ecmp)?;
        }
    }
    let exchange = Call::new(Collective::AllToAll, 1 << 30, Pattern::Direct);
    for gpus in [128, 256, 512, 1024, 2048].into_iter().filter(|gpus| *gpus <= most) {
        measure(gpus, &exchange, Way::Ecmp)?;
    }
    measure(1024.min(most), &exchange, Way::Static)?;
    Ok(())
}
