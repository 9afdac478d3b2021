//! Messages between two ranks.

use std::time::{Duration, Instant};

use ringway::ErrorKind;
use ringway::config::Config;

use crate::harness::{Random, seed, watchdog, world_each};
use crate::sweep::Hosts;

fn pattern(stream: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed(), stream);
    (0..bytes).map(|_| random.next() as u8).collect()
}

const LENGTHS: [usize; 9] = [0, 1, 7, 64, 1000, 4096, 65_537, 300_001, 1 << 20];

#[test]
fn a_message_arrives_whole() {
    let _watchdog = watchdog("messages::a_message_arrives_whole");
    for hosts in [Hosts::One, Hosts::Each] {
        world_each(
            3,
            |rank| hosts.config(rank, Config::default()),
            |comm| {
                let comm = comm.unwrap();
                for length in LENGTHS {
                    let sent = pattern(length as u64, length);
                    match comm.rank() {
                        0 => comm.send(&sent, 2).unwrap(),
                        2 => {
                            let mut got = vec![0; length];
                            comm.recv(&mut got, 0).unwrap();
                            assert!(got == sent, "{hosts:?}, {length} bytes");
                        }
                        _ => {}
                    }
                }
                comm.barrier().unwrap();
            },
        );
    }
}

/// Everybody sends to everybody, itself included, several messages each way at once.
#[test]
fn crossing_messages_do_not_block_each_other() {
    let _watchdog = watchdog("messages::crossing_messages_do_not_block_each_other");
    let stream =
        |from: u32, to: u32, number: u64| u64::from(from) << 40 | u64::from(to) << 20 | number;
    for hosts in [Hosts::One, Hosts::Each, Hosts::Pairs] {
        world_each(
            5,
            |rank| hosts.config(rank, Config::default()),
            |comm| {
                let comm = comm.unwrap();
                let rank = comm.rank();
                for length in [0, 9, 70_000, 400_000] {
                    let all: Vec<(u32, u64)> =
                        (0..5).flat_map(|peer| [(peer, 0), (peer, 1)]).collect();
                    let sent: Vec<Vec<u8>> = all
                        .iter()
                        .map(|(to, number)| pattern(stream(rank, *to, *number), length))
                        .collect();
                    let mut got = vec![vec![0; length]; all.len()];
                    let mut group = comm.group();
                    for ((peer, _), bytes) in all.iter().zip(&sent) {
                        group.send(bytes, *peer).unwrap();
                    }
                    for ((peer, _), bytes) in all.iter().zip(&mut got) {
                        group.recv(bytes, *peer).unwrap();
                    }
                    group.run().unwrap();
                    for ((peer, number), bytes) in all.iter().zip(&got) {
                        let right = pattern(stream(*peer, rank, *number), length);
                        assert!(*bytes == right, "{hosts:?}: {length} bytes {peer} to {rank}");
                    }
                }
            },
        );
    }
}

#[test]
fn send_recv_turns_a_ring() {
    let _watchdog = watchdog("messages::send_recv_turns_a_ring");
    for hosts in [Hosts::One, Hosts::Each] {
        for ranks in [1, 2, 3, 8] {
            world_each(
                ranks,
                |rank| hosts.config(rank, Config::default()),
                |comm| {
                    let comm = comm.unwrap();
                    let rank = comm.rank();
                    for length in LENGTHS {
                        let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                        let sent = pattern(u64::from(rank), length);
                        let mut got = vec![0; length];
                        comm.send_recv(&sent, to, &mut got, from).unwrap();
                        assert!(got == pattern(u64::from(from), length));
                    }
                },
            );
        }
    }
}

/// Messages do not touch what collectives number: only some ranks exchange them.
#[test]
fn messages_between_collectives() {
    let _watchdog = watchdog("messages::messages_between_collectives");
    for hosts in [Hosts::One, Hosts::Each] {
        world_each(
            4,
            |rank| hosts.config(rank, Config::default()),
            |comm| {
                let comm = comm.unwrap();
                let rank = comm.rank();
                for round in 0..40_u32 {
                    let (low, high) = (round % 3, 3);
                    let length = (round * 997 % 5000) as usize;
                    if rank == low {
                        comm.send(&pattern(u64::from(round), length), high).unwrap();
                    } else if rank == high {
                        let mut got = vec![0; length];
                        comm.recv(&mut got, low).unwrap();
                        assert!(got == pattern(u64::from(round), length));
                    }
                    let mut sum = [0_u32];
                    comm.all_reduce(&[round], &mut sum, ringway::ReduceOp::Sum).unwrap();
                    assert_eq!(sum, [4 * round]);
                }
            },
        );
    }
}

#[test]
fn different_lengths_are_an_error_on_every_rank() {
    let _watchdog = watchdog("messages::different_lengths_are_an_error_on_every_rank");
    for hosts in [Hosts::One, Hosts::Each] {
        let errors = world_each(
            3,
            |rank| hosts.config(rank, Config::default()),
            |comm| {
                let comm = comm.unwrap();
                comm.barrier().unwrap();
                let started = Instant::now();
                let outcome = match comm.rank() {
                    // A short message may be on its way before anybody compares it.
                    0 => comm.send(&[1; 100], 1).and_then(|()| comm.barrier()),
                    1 => comm.recv(&mut [0; 99], 0),
                    _ => comm.barrier(),
                };
                assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
                outcome.unwrap_err()
            },
        );
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:#?}");
        let text = errors[0].to_string();
        assert!(text.contains("rank 0 (host") && text.contains("rank 1 (host"), "{text}");
        assert!(text.contains("different sizes"), "{text}");
    }
}

#[test]
fn a_rank_that_is_not_there_cannot_be_sent_to() {
    let _watchdog = watchdog("messages::a_rank_that_is_not_there_cannot_be_sent_to");
    ringway::testing::world(2, |comm| {
        for error in [
            comm.send(&[1], 2).unwrap_err(),
            comm.recv(&mut [1], 9).unwrap_err(),
            comm.send_recv(&[1], 2, &mut [1], 0).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("ranks are 0 to 1"), "{error}");
        }
        let own = comm.send(&[1], comm.rank()).unwrap_err();
        assert_eq!(own.kind(), ErrorKind::InvalidUsage);
        comm.barrier().unwrap();
    });
}
