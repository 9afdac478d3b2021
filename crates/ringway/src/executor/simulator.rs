//! The deterministic simulator: production executions, links, scratch and control boards, run in
//! one thread under a virtual clock, with one seed.
//!
//! ```text
//!   scenario ── seed → ranks, hosts, operations, delays, fault
//!   world ───── the clock; turns, control messages and deaths in the order of their times
//!   ├ player ── one rank: what the engine does with an Execution
//!   │ ├ fabric  the rank's production Links, with stalls (and, to test the test, broken rules)
//!   │ │ ├ ShmLink over real segments
//!   │ │ └ FramedLink over `network`: streams with delays, pieces and limits
//!   │ └ memory  guarded buffers and the naive reference
//!   ├ boards ── the production control protocol
//!   └ check ─── what must hold at the end
//!   recovery ── worlds after worlds: those who are left meet, and go on
//! ```
//!
//! 10,000 seeds run with the tests, and as many as `RINGWAY_SEEDS` says; `RINGWAY_SEED=n cargo test -p ringway --lib simulator::replay
//! -- --nocapture` replays one, with a log, and `those_who_are_left_go_on` in place of `simulator::replay` the recovery of that seed.

#![allow(unsafe_code, reason = "fills and reads scratch that only this thread uses")]
#![expect(clippy::print_stdout, reason = "failing seeds and the log of a replay")]

mod check;
mod fabric;
mod memory;
mod network;
mod player;
mod recovery;
mod scenario;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::transport::shm::Segment;
use fabric::Mutation;
use scenario::{Fault, Scenario};
use world::World;

const SEEDS: u64 = 10_000;

/// How many seeds to run.
fn seeds() -> u64 {
    std::env::var("RINGWAY_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// The one seed that is to be run, with a log.
fn seed_to_replay() -> Option<u64> {
    let seed = std::env::var("RINGWAY_SEED").ok()?;
    Some(seed.parse().expect("RINGWAY_SEED is a whole number"))
}

/// Runs one seed.
fn run(seed: u64, mutation: Option<Mutation>, log: bool) -> Result<(), String> {
    play(&Scenario::new(seed), mutation, log)
}

fn play(scenario: &Scenario, mutation: Option<Mutation>, log: bool) -> Result<(), String> {
    let seed = scenario.seed;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(scenario, mutation, log);
        // Every operation ends within its deadline, a partition, and an agreement.
        let each = scenario.deadline_us + 5_000_000;
        world.run(scenario.operations.len() as u64 * each)?;
        check::check(&world)
    }));
    let outcome = outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("?")))
    });
    outcome.map_err(|what| format!("seed {seed}: {what}\n{}", describe(scenario)))
}

fn describe(scenario: &Scenario) -> String {
    let mut text = format!(
        "{} ranks on hosts {:?}, {:?}, small {}, fault {}, {} connections, ahead {}, capacity {}, \
         delay {} µs, stall {} %, late {} µs\n",
        scenario.ranks,
        scenario.hosts,
        scenario.tuning,
        scenario.small_bytes,
        match &scenario.fault {
            Fault::Mismatch { rank, operation, instead } =>
                format!("mismatch of rank {rank} in {operation}: {}", instead.signature(*rank)),
            fault => format!("{fault:?}"),
        },
        scenario.connections,
        scenario.ahead,
        scenario.capacity,
        scenario.delay_us_max,
        scenario.stall,
        scenario.late_us_max,
    );
    for (index, operation) in scenario.operations.iter().enumerate() {
        for piece in &operation.pieces {
            let call = &piece.calls[0];
            text += &format!(
                "  operation {index}: {} {} {:?} {} {} root {} {:?}, in place {:?}\n",
                piece.algorithm,
                call.collective,
                piece.problems[0].counts,
                call.data_type,
                call.op,
                call.root,
                piece.problems[0].level,
                piece.in_place.iter().any(|in_place| *in_place),
            );
        }
    }
    text
}

/// Runs many seeds; a seed to be replayed is replayed by [`replay`] alone.
fn run_all(seeds: impl Iterator<Item = u64>) {
    if std::env::var_os("RINGWAY_SEED").is_some() {
        return;
    }
    let failures: Vec<String> = seeds.filter_map(|seed| run(seed, None, false).err()).collect();
    for failure in failures.iter().take(20) {
        println!("{failure}");
    }
    assert!(failures.is_empty(), "{} seeds failed; replay one with RINGWAY_SEED", failures.len());
}

#[test]
fn replay() {
    if let Some(seed) = seed_to_replay() {
        println!("{}", describe(&Scenario::new(seed)));
        run(seed, None, true).unwrap_or_else(|what| panic!("{what}"));
    }
}

#[test]
fn every_seed_gives_the_right_result() {
    run_all((0..seeds() / 2).filter(|seed| seed % 5 != 4));
}

#[test]
fn every_further_seed_gives_the_right_result() {
    run_all((seeds() / 2..seeds()).filter(|seed| seed % 5 != 4));
}

#[test]
fn every_seed_with_a_fault_ends_in_one_true_error() {
    run_all((0..seeds()).filter(|seed| seed % 5 == 4));
}

/// After a death the others meet and go on: fewer, with another in its seat, or more than before; and once more.
#[test]
fn those_who_are_left_go_on() {
    if let Some(seed) = seed_to_replay() {
        let story = recovery::run(seed, true).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        println!("{story:?}");
        return;
    }
    let mut ways = std::collections::BTreeMap::new();
    let (mut interrupted, mut torn, mut late, mut longest_us) = (0, 0, 0, 0);
    for seed in 0..seeds() / 10 {
        let outcome = catch_unwind(|| recovery::run(seed, false));
        let story = outcome
            .unwrap_or_else(|_| panic!("seed {seed} panics"))
            .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        story.ways.iter().for_each(|way| *ways.entry(*way).or_insert(0) += 1);
        interrupted += story.interrupted;
        torn += story.torn;
        late += story.late;
        longest_us = story.longest_us.max(longest_us);
    }
    println!("{ways:?}; deaths in meetings: {interrupted} told, {torn} half told, {late} after");
    println!("the longest operation took {longest_us} µs");
    assert_eq!(ways.len(), 3, "{ways:?}");
    assert!(interrupted > 0 && torn > 0 && late > 0);
}

/// Two values a message, 48 bytes at a time, up to 2 ms each: an operation in which nothing is wrong takes more than a second
/// after a recovery, and has the time.
#[test]
fn a_slow_network_is_no_fault_after_a_recovery() {
    let story = recovery::run(6368, false).unwrap_or_else(|what| panic!("{what}"));
    assert!(story.longest_us > 1_000_000, "the seed stands for something else now: {story:?}");
}

/// A simulator that cannot fail proves nothing.
#[test]
fn broken_rules_are_found() {
    if std::env::var_os("RINGWAY_SEED").is_some() {
        return;
    }
    let mutations = [
        Mutation::IgnoreGates,
        Mutation::LeaveQueued,
        Mutation::DropSignals,
        Mutation::SeeTooEarly,
    ];
    for mutation in mutations {
        let found = (0..SEEDS)
            .filter(|seed| seed % 5 != 4)
            .position(|seed| run(seed, Some(mutation), false).is_err());
        println!("{mutation:?}: found after {found:?} seeds");
        assert!(found.is_some(), "{mutation:?} was not found");
    }
}

/// A rank in another call writes to memory that others read: nobody takes that for a result, and
/// who does not ask would.
#[test]
fn what_another_call_has_written_is_not_believed() {
    let seeds = || (0..400).map(Scenario::intrusion);
    let failures: Vec<String> =
        seeds().filter_map(|scenario| play(&scenario, None, false).err()).collect();
    assert!(failures.is_empty(), "{} of 400 failed: {}", failures.len(), failures[0]);
    let believing = Some(Mutation::BelieveAnything);
    let fooled = seeds().filter_map(|scenario| play(&scenario, believing, false).err()).count();
    println!("{fooled} of 400 believed what they should not have");
    assert!(fooled > 0, "nobody was in danger");
}

/// Fills the scratch of a segment.
fn fill_scratch(segment: &Segment, byte: u8) {
    let layout = segment.layout();
    let bytes = layout.bytes() - layout.small(0);
    let address = segment.area().at(layout.small(0), bytes).expect("scratch is inside");
    // SAFETY: the scratch is inside the mapping, and nobody uses it yet.
    unsafe { std::ptr::write_bytes(address, byte, usize::try_from(bytes).expect("mapped")) };
}

/// The first of `bytes` bytes at `offset` of a segment that is not `byte`.
fn first_other(segment: &Segment, (offset, bytes): (u64, u64), byte: u8) -> Option<u64> {
    let address = segment.area().at(offset, bytes).expect("scratch is inside");
    (0..bytes).find(|index| {
        let at = address.wrapping_add(usize::try_from(*index).expect("mapped"));
        // SAFETY: the bytes are inside the mapping, and the world has ended.
        unsafe { at.read() != byte }
    })
}
