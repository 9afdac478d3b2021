//! Every collective against the reference, by every algorithm, over every transport.

use ringway::config::Config;
use ringway::plan::algorithm::Algorithm;
use ringway::{Collective, DataType, Level, ReduceOp};

use crate::case::{Case, Shape, Sizes};
use crate::harness::{Random, seed, settings, watchdog, world_each};

/// Collectives that carry data.
const COLLECTIVES: [Collective; 8] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
];

/// Which ranks share memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hosts {
    /// All of them.
    One,
    /// None: TCP everywhere.
    Each,
    /// Neighbours, two by two.
    Pairs,
    /// Even and odd ranks.
    Mixed,
}

impl Hosts {
    pub(crate) fn numbers(self, ranks: u32) -> Vec<u32> {
        let number = |rank: u32| match self {
            Self::One => 0,
            Self::Each => rank,
            Self::Pairs => rank / 2,
            Self::Mixed => rank % 2,
        };
        (0..ranks).map(number).collect()
    }

    pub(crate) fn config(self, rank: u32, mut config: Config) -> Config {
        use ringway::config::Source;
        let mut set = |name: &str, value: &str| {
            config.set(name, value, Source::Default).unwrap();
        };
        match self {
            Self::One => set("RINGWAY_TRANSPORT", "shm"),
            Self::Each => set("RINGWAY_TRANSPORT", "tcp"),
            Self::Pairs => set("NCCL_HOSTID", &format!("host{}", rank / 2)),
            Self::Mixed => set("NCCL_HOSTID", &format!("host{}", rank % 2)),
        }
        config
    }
}

/// Runs cases one after another on one world; fails with everything that was wrong.
pub(crate) fn run(cases: &[Case], ranks: u32, hosts: Hosts, config: &Config) {
    let wrong: Vec<String> = world_each(
        ranks,
        |rank| hosts.config(rank, config.clone()),
        |comm| {
            let comm = comm.unwrap();
            assert_eq!(comm.hosts(), hosts.numbers(ranks), "{hosts:?}");
            let mut wrong = Vec::new();
            for case in cases {
                match case.run(&comm) {
                    Ok(found) => wrong.extend(found),
                    Err(error) => {
                        wrong.push(format!("rank {}: {error}: {case:?}", comm.rank()));
                        break;
                    }
                }
            }
            wrong
        },
    )
    .concat();
    assert!(
        wrong.is_empty(),
        "{} wrong of {} cases on {ranks} ranks, {hosts:?} (seed {}):\n{}",
        wrong.len(),
        cases.len(),
        seed(),
        wrong.iter().take(12).cloned().collect::<Vec<_>>().join("\n")
    );
}

/// A count: mostly odd or next to a border of chunks, seldom large.
fn count(random: &mut Random, chunk_bytes: u64, size: u64, most_bytes: u64) -> u64 {
    let chunk = chunk_bytes.div_ceil(size);
    let most = (most_bytes / size).max(1);
    let count = match random.below(10) {
        0 => 0,
        1 => 1,
        2..=4 => random.below(40),
        5 | 6 => (chunk * (1 + random.below(4)) + random.below(3)).saturating_sub(1),
        7 | 8 => random.below(3000),
        _ => random.below(most),
    };
    count.min(most)
}

fn sizes(
    collective: Collective,
    ranks: u32,
    random: &mut Random,
    mut one: impl FnMut(&mut Random) -> u64,
) -> Sizes {
    let unequal = random.once_in(2);
    let mut listed = |random: &mut Random| {
        (0..ranks).map(|_| if random.once_in(4) { 0 } else { one(random) }).collect::<Vec<u64>>()
    };
    match collective {
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::Gather
        | Collective::Scatter
            if unequal =>
        {
            Sizes::PerRank(listed(random))
        }
        Collective::AllToAll if unequal => {
            Sizes::Pairwise((0..ranks).map(|_| listed(random)).collect())
        }
        _ => Sizes::Equal(one(random)),
    }
}

/// A random call of this collective.
pub(crate) fn draw(
    collective: Collective,
    ranks: u32,
    random: &mut Random,
    (chunk_bytes, most_bytes): (u64, u64),
) -> Shape {
    let data_type = random.pick(&DataType::ALL);
    let size = data_type.size() as u64;
    let blocks = if matches!(collective, Collective::AllReduce | Collective::Broadcast) {
        1
    } else {
        u64::from(ranks)
    };
    let one = |random: &mut Random| count(random, chunk_bytes, size, most_bytes / blocks);
    Shape {
        op: random.pick(&ReduceOp::ALL),
        sizes: sizes(collective, ranks, random, one),
        root: random.below(u64::from(ranks)) as u32,
        level: random.pick(&[Level::Run, Level::Shape]),
        in_place: random.once_in(2),
        offset: random.pick(&[0, 0, 1, 3, 4, 7]),
        ..Shape::new(collective, data_type, 0)
    }
}

/// Every algorithm that can do this call, and the planner's choice.
fn algorithms(shape: &Shape, ranks: u32, hosts: Hosts) -> Vec<Option<Algorithm>> {
    let problem = shape.problem(0, ranks);
    let able = |algorithm: &Algorithm| algorithm.supports(&problem, &hosts.numbers(ranks)).is_ok();
    let able = Algorithm::ALL.into_iter().filter(able).map(Some);
    std::iter::once(None).chain(able).collect()
}

/// Settings that change how plans are cut, with their chunk size.
fn tuning(random: &mut Random) -> (Config, u64) {
    let chunk = random.pick(&[64, 1000, 4096, 16 << 10, 256 << 10]);
    let lanes = random.pick(&[1, 1, 2, 3, 4]);
    let buffer = random.pick(&["64K", "256K", "4M"]);
    let sockets = random.pick(&["1", "2", "3"]);
    let config = settings(&[
        ("RINGWAY_CHUNK_BYTES", &chunk.to_string()),
        ("RINGWAY_LANES", &lanes.to_string()),
        ("NCCL_BUFFSIZE", buffer),
        ("NCCL_SOCKET_NTHREADS", "1"),
        ("NCCL_NSOCKS_PERTHREAD", sockets),
    ]);
    (config, chunk)
}

/// Random calls of every collective by every algorithm that has it.
fn sweep(hosts: Hosts, ranks: &[u32], rounds: u64) {
    for ranks in ranks.iter().copied() {
        for round in 0..rounds {
            let stream = u64::from(ranks) << 32 | round << 8 | hosts as u64;
            let mut random = Random::new(seed(), stream);
            let (config, chunk) = tuning(&mut random);
            let mut cases = Vec::new();
            for collective in COLLECTIVES {
                let shape = draw(collective, ranks, &mut random, (chunk, 40_000));
                for algorithm in algorithms(&shape, ranks, hosts) {
                    let mut shape = draw(collective, ranks, &mut random, (chunk, 40_000));
                    // What supports one shape need not support all.
                    if algorithms(&shape, ranks, hosts).contains(&algorithm) {
                        shape.algorithm = algorithm;
                    }
                    cases.push(Case::new(shape, ranks, &mut random));
                }
                cases.push(Case::new(
                    Shape::new(Collective::Barrier, DataType::U8, 0),
                    ranks,
                    &mut random,
                ));
            }
            run(&cases, ranks, hosts, &config);
        }
    }
}

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

/// About a mebibyte, by every algorithm, with the settings of an ordinary job.
#[test]
fn large_buffers() {
    let _watchdog = watchdog("collectives::large_buffers");
    for (ranks, hosts) in [(4, Hosts::One), (3, Hosts::Each), (4, Hosts::Pairs)] {
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
