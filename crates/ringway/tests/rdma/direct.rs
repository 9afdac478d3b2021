//! Memory that adapters read and write where it is, and what becomes of it when it is freed or a call fails.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ringway::ReduceOp;
use ringway::config::{Config, Source};

use crate::harness::{settings, watchdog, world_each};
use crate::machine::{Log, is_here, sent};
use crate::sweep::{Hosts, Rails};

const BOTH: Rails = Rails { both: true, family: "AF_INET", queue_pairs: "1" };

fn config(rank: u32, more: &[(&str, &str)]) -> Config {
    let mut config = Hosts::Rdma(BOTH).config(rank, settings(&[]));
    for (name, value) in more {
        config.set(name, value, Source::Default).unwrap();
    }
    config
}

/// Of every link that has ended: bytes that were placed, and bytes that were copied.
pub(crate) fn carried(log: &Log) -> Vec<(u64, u64)> {
    let text = log.text();
    let lines = text.lines().filter(|line| line.contains(" bytes were placed, "));
    let number = |text: &str| text.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    let found = lines.map(|line| {
        let (placed, rest) = line.split_once(" bytes were placed, ").unwrap();
        (number(placed), number(rest.strip_suffix(" went through slots").unwrap()))
    });
    found.collect()
}

const COUNT: usize = 4 << 20;

/// Three all_gathers of 4 MiB from each of two ranks.
fn gathered(more: &[(&str, &str)]) -> Vec<(u64, u64)> {
    let log = Log::begin();
    world_each(
        2,
        |rank| config(rank, more),
        |comm| {
            let comm = comm.unwrap();
            let rank = comm.rank() as u8;
            let input: Vec<u8> = (0..COUNT).map(|at| at as u8 ^ (rank << 7)).collect();
            for _ in 0..3 {
                let mut output = vec![0; 2 * COUNT];
                comm.all_gather(&input, &mut output).unwrap();
                let right =
                    |(at, byte): (usize, &u8)| *byte == at as u8 ^ ((at / COUNT) as u8) << 7;
                assert!(output.iter().enumerate().all(right));
            }
        },
    );
    carried(&log)
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn large_buffers_are_copied_by_nobody() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("direct::large_buffers_are_copied_by_nobody");
    let links = gathered(&[]);
    assert_eq!(links.len(), 2, "{links:?}");
    // What is sent before the peer has said where it wants it goes through slots.
    for (placed, copied) in &links {
        assert!(*placed > 2 * *copied, "{links:?}");
    }
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn buffers_that_are_not_registered_are_copied() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("direct::buffers_that_are_not_registered_are_copied");
    let links = gathered(&[("RINGWAY_RDMA_REGISTER", "0")]);
    assert!(links.len() == 2 && links.iter().all(|(placed, _)| *placed == 0), "{links:?}");
}

/// Every buffer is taken from the system and given back, so one has the address of another before it, and other pages.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn memory_that_is_freed_and_taken_again_is_registered_again() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("direct::memory_that_is_freed_and_taken_again_is_registered_again");
    // More than an allocator keeps to itself.
    const LONG: usize = 36 << 20;
    const ROUNDS: usize = 6;
    let places = world_each(
        2,
        |rank| config(rank, &[]),
        |comm| {
            let comm = comm.unwrap();
            let mut places = HashSet::new();
            for round in 0..ROUNDS {
                let mut buffer = vec![0_u8; LONG];
                places.insert(buffer.as_ptr().addr());
                if comm.rank() == 0 {
                    buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at + round) as u8);
                }
                comm.broadcast(&mut buffer, 0).unwrap();
                let right = |(at, byte): (usize, &u8)| *byte == (at + round) as u8;
                assert!(buffer.iter().enumerate().all(right), "round {round}");
                comm.barrier().unwrap();
            }
            places.len()
        },
    );
    assert!(places.iter().all(|places| *places < ROUNDS), "no address came again: {places:?}");
}

/// A call that fails gives the caller's memory back: what a peer has under way does not come any more.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_call_that_failed_leaves_memory_alone() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("direct::a_call_that_failed_leaves_memory_alone");
    const LONG: usize = 8 << 20;
    world_each(
        2,
        |rank| config(rank, &[]),
        |comm| {
            let comm = comm.unwrap();
            let (input, mut output) = (vec![7_i32; LONG], vec![0_i32; LONG]);
            comm.barrier().unwrap();
            std::thread::scope(|scope| {
                if comm.rank() == 0 {
                    scope.spawn(|| {
                        let (before, start) = (sent("rb0"), Instant::now());
                        while sent("rb0") - before < LONG as u64 / 2 {
                            assert!(start.elapsed() < Duration::from_secs(60), "nothing moves");
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        comm.abort("this abort is part of the test");
                    });
                }
                let error = comm.all_reduce(&input, &mut output, ReduceOp::Sum).unwrap_err();
                assert!(error.to_string().contains("part of the test"), "{error}");
            });
            output.fill(-1);
            std::thread::sleep(Duration::from_millis(500));
            assert!(output.iter().all(|value| *value == -1), "something came after the end");
        },
    );
}
