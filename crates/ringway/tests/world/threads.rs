//! Many threads, many communicators, calls in the background.

use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use ringway::config::Config;
use ringway::{Call, Collective, Communicator, DataType, ReduceOp};

use crate::harness::{Random, seed, watchdog, world_each};
use crate::sweep::Hosts;

fn world<R: Send>(ranks: u32, hosts: Hosts, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    world_each(ranks, |rank| hosts.config(rank, Config::default()), |comm| body(comm.unwrap()))
}

fn sum_of(comm: &Communicator, value: u64) -> u64 {
    let mut sum = [0];
    comm.all_reduce(&[value], &mut sum, ReduceOp::Sum).unwrap();
    sum[0]
}

/// The calls are all alike, so their order among threads does not matter.
#[test]
fn threads_share_a_communicator() {
    let _watchdog = watchdog("threads::threads_share_a_communicator");
    for hosts in [Hosts::One, Hosts::Each] {
        world(3, hosts, |comm| {
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            assert_eq!(sum_of(&comm, 5), 15);
                        }
                    });
                }
            });
        });
    }
}

/// The calls differ, so the threads of every rank take turns in the same order.
#[test]
fn threads_that_take_turns_keep_the_order() {
    let _watchdog = watchdog("threads::threads_that_take_turns_keep_the_order");
    for hosts in [Hosts::One, Hosts::Each] {
        world(3, hosts, |comm| {
            let (turn, changed) = (Mutex::new(0_u64), Condvar::new());
            thread::scope(|scope| {
                for thread in 0..3 {
                    let (turn, changed, comm) = (&turn, &changed, &comm);
                    scope.spawn(move || {
                        for round in 0..20 {
                            let number = round * 3 + thread;
                            let mut now = turn.lock().unwrap();
                            while *now != number {
                                now = changed.wait(now).unwrap();
                            }
                            let length = number as usize + 1;
                            let mut sum = vec![0; length];
                            comm.all_reduce(&vec![number; length], &mut sum, ReduceOp::Sum)
                                .unwrap();
                            assert_eq!(sum, vec![3 * number; length]);
                            *now += 1;
                            changed.notify_all();
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn communicators_work_at_once() {
    let _watchdog = watchdog("threads::communicators_work_at_once");
    for hosts in [Hosts::One, Hosts::Each] {
        world(4, hosts, |comm| {
            let others: Vec<Communicator> = (0..3).map(|_| comm.dup().unwrap()).collect();
            thread::scope(|scope| {
                for (number, other) in (0_u64..).zip(&others) {
                    scope.spawn(move || {
                        for round in 0..30 {
                            assert_eq!(
                                sum_of(other, number * 100 + round),
                                4 * (number * 100 + round)
                            );
                        }
                    });
                }
                for round in 0..30 {
                    assert_eq!(sum_of(&comm, round), 4 * round);
                }
            });
            // They live longer than what they came from.
            drop(comm);
            for other in &others {
                other.barrier().unwrap();
            }
        });
    }
}

#[test]
fn split_makes_groups_by_color_and_key() {
    let _watchdog = watchdog("threads::split_makes_groups_by_color_and_key");
    for hosts in [Hosts::One, Hosts::Each, Hosts::Pairs] {
        world(7, hosts, |comm| {
            let rank = comm.rank();
            // Colors 0 and 1 by parity, with the order turned round; rank 3 takes no part.
            let color = (rank != 3).then_some(rank % 2);
            let half = comm.split(color, -i32::try_from(rank).unwrap()).unwrap();
            assert_eq!(half.is_none(), rank == 3);
            if let Some(half) = &half {
                let members: &[u64] = if rank % 2 == 0 { &[6, 4, 2, 0] } else { &[5, 1] };
                assert_eq!(half.size() as usize, members.len());
                assert_eq!(members[half.rank() as usize], u64::from(rank));
                let mut all = vec![0; members.len()];
                half.all_gather(&[u64::from(rank)], &mut all).unwrap();
                assert_eq!(all, members);
                // Again, with a part of its own for everybody.
                let alone = half.split(Some(half.rank()), 0).unwrap().unwrap();
                assert_eq!((alone.rank(), alone.size()), (0, 1));
                assert_eq!(sum_of(&alone, 9), 9);
                // And all of it once more.
                let same = half.dup().unwrap();
                assert_eq!((same.rank(), same.size()), (half.rank(), half.size()));
                assert_eq!(sum_of(&same, 1), u64::from(half.size()));
            }
            // The parent goes on.
            assert_eq!(sum_of(&comm, 1), 7);
        });
    }
}

#[test]
fn background_calls_end_in_their_order() {
    let _watchdog = watchdog("threads::background_calls_end_in_their_order");
    for hosts in [Hosts::One, Hosts::Each] {
        world(3, hosts, |comm| {
            let works: Vec<_> = (0..50_u64)
                .map(|n| {
                    comm.start_all_reduce(vec![n; 1 + n as usize * 37], ReduceOp::Sum).unwrap()
                })
                .collect();
            // A call in the foreground queues behind them.
            assert_eq!(sum_of(&comm, 2), 6);
            assert!(works.iter().all(ringway::Work::is_done));
            for (n, work) in (0..).zip(works) {
                assert_eq!(work.wait().unwrap(), vec![3 * n; 1 + n as usize * 37]);
            }
        });
    }
}

#[test]
fn background_work_can_be_waited_for_in_steps() {
    let _watchdog = watchdog("threads::background_work_can_be_waited_for_in_steps");
    world(2, Hosts::One, |comm| {
        if comm.rank() == 1 {
            thread::sleep(Duration::from_millis(200));
        }
        let call = Call::new(Collective::AllGather, DataType::U32, 1);
        let mut work = comm.start_call(&call, vec![comm.rank()], vec![9; 2]).unwrap();
        let mut steps = 0;
        let output = loop {
            match work.wait_for(Duration::from_millis(20)) {
                Ok(output) => break output.unwrap(),
                Err(back) => work = back,
            }
            steps += 1;
        };
        assert_eq!(output, [0, 1]);
        assert!(comm.rank() == 1 || steps > 0);
    });
}

/// Work that nobody waits for is done all the same, and the last of a communicator's handles may go
/// before it is over.
#[test]
fn background_work_outlives_its_handles() {
    let _watchdog = watchdog("threads::background_work_outlives_its_handles");
    for hosts in [Hosts::One, Hosts::Each] {
        world(3, hosts, |comm| {
            for _ in 0..10 {
                drop(comm.start_all_reduce(vec![1_u32; 1000], ReduceOp::Sum).unwrap());
            }
            let last = comm.start_all_reduce(vec![1_u32; 1000], ReduceOp::Sum).unwrap();
            drop(comm);
            assert_eq!(last.wait().unwrap(), [3; 1000]);
        });
    }
}

#[test]
fn background_errors_come_from_wait() {
    let _watchdog = watchdog("threads::background_errors_come_from_wait");
    let texts = world(2, Hosts::One, |comm| {
        let length = if comm.rank() == 1 { 10 } else { 11 };
        let work = comm.start_all_reduce(vec![0_u8; length], ReduceOp::Sum).unwrap();
        let text = work.wait().unwrap_err().to_string();
        assert_eq!(comm.barrier().unwrap_err().to_string(), text);
        text
    });
    assert_eq!(texts[0], texts[1]);
    assert!(texts[0].contains("rank 1 (host "), "{}", texts[0]);
}

/// A long life of small operations of all kinds, with ranks that stumble now and then.
fn long_life(hosts: Hosts, ranks: u32, operations: u32) {
    world(ranks, hosts, |comm| {
        let rank = comm.rank();
        let (mut all, mut own) =
            (Random::new(seed(), 5), Random::new(seed(), 100 + u64::from(rank)));
        let n = u64::from(ranks);
        for _ in 0..operations {
            if own.once_in(50) {
                thread::sleep(Duration::from_micros(own.below(2000)));
            }
            let value = all.next() % 1000;
            let root = all.below(n) as u32;
            match all.below(9) {
                0 => comm.barrier().unwrap(),
                1 => {
                    assert_eq!(sum_of(&comm, value + u64::from(rank)), n * value + n * (n - 1) / 2)
                }
                2 => {
                    let mut buffer = [if rank == root { value } else { 0 }; 3];
                    comm.broadcast(&mut buffer, root).unwrap();
                    assert_eq!(buffer, [value; 3]);
                }
                3 => {
                    let mut ranks = vec![0; n as usize];
                    comm.all_gather(&[u64::from(rank)], &mut ranks).unwrap();
                    assert!(ranks.iter().copied().eq(0..n));
                }
                4 => {
                    let mut mine = [0; 2];
                    comm.reduce_scatter(&vec![value; 2 * n as usize], &mut mine, ReduceOp::Max)
                        .unwrap();
                    assert_eq!(mine, [value; 2]);
                }
                5 => {
                    let sent: Vec<u64> =
                        (0..n).map(|to| value + u64::from(rank) * n + to).collect();
                    let mut got = vec![0; n as usize];
                    comm.all_to_all(&sent, &mut got).unwrap();
                    assert!(
                        got.iter()
                            .copied()
                            .eq((0..n).map(|from| value + from * n + u64::from(rank)))
                    );
                }
                6 => {
                    let mut whole = vec![0; if rank == root { n as usize } else { 0 }];
                    comm.gather(&[u64::from(rank)], &mut whole, root).unwrap();
                    assert!(whole.is_empty() || whole.iter().copied().eq(0..n));
                }
                7 => {
                    let length = all.below(200) as usize;
                    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                    let mut got = vec![0; length];
                    comm.send_recv(&vec![rank as u8; length], next, &mut got, previous).unwrap();
                    assert_eq!(got, vec![previous as u8; length]);
                }
                _ => {
                    let length = all.below(5000) as usize;
                    let work = comm.start_all_reduce(vec![value; length], ReduceOp::Min).unwrap();
                    assert_eq!(work.wait().unwrap(), vec![value; length]);
                }
            }
        }
    });
}

#[test]
fn a_long_life_in_shared_memory() {
    let _watchdog = watchdog("threads::a_long_life_in_shared_memory");
    long_life(Hosts::One, 4, 2000);
    long_life(Hosts::One, 7, 600);
}

#[test]
fn a_long_life_over_tcp() {
    let _watchdog = watchdog("threads::a_long_life_over_tcp");
    long_life(Hosts::Each, 4, 2000);
    long_life(Hosts::Pairs, 6, 600);
}

#[test]
fn a_long_life_over_tls() {
    let _watchdog = watchdog("threads::a_long_life_over_tls");
    long_life(Hosts::Encrypted, 4, 600);
}
