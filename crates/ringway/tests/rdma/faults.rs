//! Rails that fail while collectives run: what is left carries on, or the error says what failed.

use std::process::Command;
use std::time::{Duration, Instant};

use ringway::ReduceOp;
use ringway::config::{Config, Source};

use crate::collectives::{all_reduce, check};
use crate::harness::{settings, watchdog, world_each};
use crate::machine::{Log, is_here, rail, sent};
use crate::sweep::{Hosts, Rails};

const BOTH: Rails = Rails { both: true, family: "AF_INET", queue_pairs: "1" };

/// Longest wait for what must come.
const LIMIT: Duration = Duration::from_secs(60);

/// Values of the all_reduce that is disturbed: 64 MiB.
const COUNT: usize = 16 << 20;

/// Two ranks by both rails; those that may go over sockets say so.
fn config(rank: u32, more: &[(&str, &str)]) -> Config {
    let mut config = Hosts::Rdma(BOTH).config(rank, settings(&[]));
    for (name, value) in more {
        config.set(name, value, Source::Default).unwrap();
    }
    config
}

/// Mends both rails, however a test ends.
pub(crate) struct Mended;

impl Drop for Mended {
    fn drop(&mut self) {
        for words in ["restore 0", "restore 1", "clear 0", "clear 1"] {
            // What was never impaired cannot be cleared.
            let _as_it_was = Command::new("rail").args(words.split(' ')).output();
        }
    }
}

/// Does `harm` once rail 0 has carried a quarter of what the call makes it carry.
fn in_the_middle(harm: &str) {
    let (before, start) = (sent("ra0"), Instant::now());
    while sent("ra0") - before < COUNT as u64 / 2 {
        assert!(start.elapsed() < LIMIT, "nothing moves");
        std::thread::sleep(Duration::from_millis(1));
    }
    for words in harm.split(',') {
        rail(words);
    }
}

/// A large all_reduce with something that happens in its middle; how long it took after that.
fn disturbed(
    harm: &str,
    more: &[(&str, &str)],
    then: impl Fn(&ringway::Communicator) + Sync,
) -> Duration {
    let harmed = std::sync::Mutex::new(None);
    world_each(
        2,
        |rank| config(rank, more),
        |comm| {
            let comm = comm.unwrap();
            all_reduce(&comm, 10_000);
            let rank = comm.rank() as i32;
            let input: Vec<i32> = (0..COUNT).map(|at| at as i32 ^ rank).collect();
            let mut output = vec![0; COUNT];
            comm.barrier().unwrap();
            std::thread::scope(|scope| {
                if rank == 0 {
                    scope.spawn(|| {
                        in_the_middle(harm);
                        *harmed.lock().unwrap() = Some(Instant::now());
                    });
                }
                comm.all_reduce(&input, &mut output, ReduceOp::Sum).unwrap();
            });
            check(&output, 2);
            let since = harmed.lock().unwrap().map(|at| at.elapsed());
            then(&comm);
            since
        },
    )
    .into_iter()
    .flatten()
    .next()
    .expect("it was over before anything happened")
}

/// Small calls until a rail carries bytes again.
fn until_used(comm: &ringway::Communicator, interface: &str) {
    let start = Instant::now();
    let before = sent(interface);
    loop {
        all_reduce(comm, 100_000);
        // All ranks must leave at the same call.
        let mut used = [u8::from(sent(interface) - before > 400_000)];
        comm.broadcast(&mut used, 0).unwrap();
        if used[0] == 1 {
            return;
        }
        assert!(start.elapsed() < LIMIT, "{interface} is not used again");
    }
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_cable_that_is_pulled_and_put_back() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("faults::a_cable_that_is_pulled_and_put_back");
    let (_mended, log) = (Mended, Log::begin());
    disturbed("cut 1", &[], |comm| {
        if comm.rank() == 0 {
            rail("restore 1");
        }
        comm.barrier().unwrap();
        until_used(comm, "ra1");
    });
    // Whichever end sees it first, by a write that fails or by its port, tells it with the cause.
    log.expect(&[
        "rxea1:1",
        "rxeb1:1",
        "of rank",
        "link is down",
        "counters",
        "the other connection",
    ]);
    log.expect(&["rxea1:1 to rxeb1:1 of rank 1", "is back, and used again"]);
}

/// No port event tells of this one, and rxe retries for ever where told to seven times.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_switch_that_forwards_nothing() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("faults::a_switch_that_forwards_nothing");
    let (_mended, log) = (Mended, Log::begin());
    let patient = [("NCCL_IB_RETRY_CNT", "7"), ("NCCL_IB_TIMEOUT", "16")];
    disturbed("impair 1 loss 100%", &patient, |_| {});
    log.expect(&["rxea1:1 to rxeb1:1 of rank 1", "nothing moved for", "the other connection"]);
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_rail_that_loses_one_packet_in_a_hundred() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("faults::a_rail_that_loses_one_packet_in_a_hundred");
    let _mended = Mended;
    rail("impair 1 loss 1%");
    world_each(
        2,
        |rank| config(rank, &[("NCCL_IB_TIMEOUT", "14")]),
        |comm| {
            let comm = comm.unwrap();
            (0..4).for_each(|_| all_reduce(&comm, 200_000));
        },
    );
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn without_any_rail_the_socket_carries_on_until_one_is_back() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("faults::without_any_rail_the_socket_carries_on_until_one_is_back");
    let (_mended, log) = (Mended, Log::begin());
    let sockets = [("RINGWAY_TRANSPORT", "auto"), ("NCCL_SHM_DISABLE", "1")];
    disturbed("cut 0,cut 1", &sockets, |comm| {
        if comm.rank() == 0 {
            rail("restore 0");
        }
        comm.barrier().unwrap();
        until_used(comm, "ra0");
    });
    log.expect(&["messages to rank 1", "go over the socket", "RINGWAY_REQUIRE=rdma"]);
    log.expect(&["rxea0:1 to rxeb0:1 of rank 1", "is back, and used again"]);
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn without_any_rail_a_job_that_requires_one_ends_in_time() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("faults::without_any_rail_a_job_that_requires_one_ends_in_time");
    for harm in ["cut 0,cut 1", "impair 0 loss 100%,impair 1 loss 100%"] {
        let _mended = Mended;
        let require =
            [("RINGWAY_REQUIRE", "rdma"), ("NCCL_IB_RETRY_CNT", "7"), ("NCCL_IB_TIMEOUT", "16")];
        let errors = world_each(
            2,
            |rank| config(rank, &require),
            |comm| {
                let comm = comm.unwrap();
                all_reduce(&comm, 10_000);
                let mut buffer = vec![comm.rank() as i32; COUNT];
                comm.barrier().unwrap();
                std::thread::scope(|scope| {
                    if comm.rank() == 0 {
                        scope.spawn(|| in_the_middle(harm));
                    }
                    let start = Instant::now();
                    let error = comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap_err();
                    (error, start.elapsed())
                })
            },
        );
        for (error, after) in errors {
            let text = error.to_string();
            assert!(text.contains("no RDMA connection to rank"), "{text}");
            assert!(text.contains("RINGWAY_REQUIRE=rdma"), "{text}");
            assert!(text.contains("rxea") && text.contains(":1"), "{text}");
            assert!(after < LIMIT, "after {after:?}");
        }
    }
}

/// Rank 0 hears everything and nobody hears it: it has what it needs and leaves the call, while rank 1 does not know that
/// what it sent has come. It must be told though nobody at rank 0 is in a call: there it may be waiting for rank 1.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_rank_that_has_left_the_call_still_answers() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("faults::a_rank_that_has_left_the_call_still_answers");
    let (_mended, log) = (Mended, Log::begin());
    let (sender, receiver) = std::sync::mpsc::channel();
    let (sender, receiver) = (std::sync::Mutex::new(sender), std::sync::Mutex::new(receiver));
    let sockets = [("RINGWAY_TRANSPORT", "auto"), ("NCCL_SHM_DISABLE", "1")];
    let impatient = [("NCCL_IB_RETRY_CNT", "2"), ("NCCL_IB_TIMEOUT", "14")];
    let settings = [sockets, impatient].concat();
    world_each(
        2,
        |rank| config(rank, &settings),
        |comm| {
            let comm = comm.unwrap();
            all_reduce(&comm, 10_000);
            let mut byte = [7 * comm.rank() as u8];
            if comm.rank() == 1 {
                mute("ra0");
                mute("ra1");
                comm.broadcast(&mut byte, 1).unwrap();
                sender.lock().unwrap().send(()).unwrap();
            } else {
                comm.broadcast(&mut byte, 1).unwrap();
                assert_eq!(byte, [7]);
                let done = receiver.lock().unwrap().recv_timeout(LIMIT / 2);
                done.expect("rank 1 stands in its call");
            }
            comm.barrier().unwrap();
        },
    );
    log.expect(&["of rank 1", "the peer left it"]);
}

/// Lets nothing out of an end of a rail; what comes in still does.
fn mute(interface: &str) {
    let words = ["qdisc", "replace", "dev", interface, "root", "netem", "loss", "100%"];
    let status = Command::new("tc").args(words).status().unwrap();
    assert!(status.success(), "tc {words:?}: {status}");
}
