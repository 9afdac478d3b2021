//! Every collective against the reference, by every algorithm, over every transport.

use ringway::config::Config;
use ringway::{Collective, DataType, ReduceOp};

use crate::case::{Case, Shape};
use crate::harness::{Random, seed, watchdog, world_each};
use crate::sweep::{COLLECTIVES, Hosts, algorithms, run, sweep};

#[test]
fn shared_memory() {
    let _watchdog = watchdog("collectives::shared_memory");
    sweep(Hosts::One, &[1, 2, 3, 4, 5, 7, 8], 4);
}

#[test]
fn tcp() {
    let _watchdog = watchdog("collectives::tcp");
    sweep(Hosts::Each, &[1, 2, 3, 4, 5, 7, 8], 3);
}

#[test]
fn tls() {
    let _watchdog = watchdog("collectives::tls");
    sweep(Hosts::Encrypted, &[1, 2, 3, 4, 5, 8], 2);
}

#[test]
fn hosts_with_several_ranks() {
    let _watchdog = watchdog("collectives::hosts_with_several_ranks");
    sweep(Hosts::Pairs, &[2, 3, 4, 6, 8], 3);
    sweep(Hosts::Mixed, &[4, 5, 8], 3);
}

/// Every type with every reduction, also at the length of whole vectors and a bit more.
#[test]
fn every_type_and_reduction() {
    let _watchdog = watchdog("collectives::every_type_and_reduction");
    for (ranks, hosts) in [(3, Hosts::One), (4, Hosts::Each)] {
        let mut random = Random::new(seed(), u64::from(ranks));
        let mut cases = Vec::new();
        for data_type in DataType::ALL {
            for op in ReduceOp::ALL {
                for (collective, count) in [
                    (Collective::AllReduce, 517),
                    (Collective::ReduceScatter, 64),
                    (Collective::Reduce, 33),
                ] {
                    let shape = Shape { op, ..Shape::new(collective, data_type, count) };
                    cases.push(Case::new(shape, ranks, &mut random));
                }
            }
        }
        run(&cases, ranks, hosts, &Config::default());
    }
}

#[test]
fn large_buffers() {
    let _watchdog = watchdog("collectives::large_buffers");
    large(&[(4, Hosts::One), (3, Hosts::Each), (4, Hosts::Pairs)]);
}

#[test]
fn large_buffers_over_tls() {
    let _watchdog = watchdog("collectives::large_buffers_over_tls");
    large(&[(3, Hosts::Encrypted)]);
}

/// About a mebibyte, by every algorithm, with the settings of an ordinary job.
fn large(worlds: &[(u32, Hosts)]) {
    for &(ranks, hosts) in worlds {
        let mut random = Random::new(seed(), u64::from(ranks) << 8);
        let mut cases = Vec::new();
        for collective in COLLECTIVES {
            let blocks = if matches!(collective, Collective::AllReduce | Collective::Broadcast) {
                1
            } else {
                u64::from(ranks)
            };
            let data_type = random.pick(&[DataType::F32, DataType::Bf16, DataType::I64]);
            let count = (1 << 20) / data_type.size() as u64 / blocks + 1;
            let shape = Shape { offset: 4, ..Shape::new(collective, data_type, count) };
            for algorithm in algorithms(&shape, ranks, hosts) {
                let in_place = random.once_in(2);
                let shape = Shape { algorithm, in_place, ..shape.clone() };
                cases.push(Case::new(shape, ranks, &mut random));
            }
        }
        run(&cases, ranks, hosts, &Config::default());
    }
}

/// Nobody leaves a barrier before the last has entered it.
#[test]
fn barriers_hold_everybody() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let _watchdog = watchdog("collectives::barriers_hold_everybody");
    for hosts in [Hosts::One, Hosts::Each] {
        let entered = AtomicU32::new(0);
        world_each(
            5,
            |rank| hosts.config(rank, Config::default()),
            |comm| {
                let comm = comm.unwrap();
                for round in 1..=20 {
                    if (comm.rank() + round) % 5 == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(2));
                    }
                    entered.fetch_add(1, Ordering::SeqCst);
                    comm.barrier().unwrap();
                    assert!(entered.load(Ordering::SeqCst) >= 5 * round);
                }
            },
        );
    }
}
