//! Random calls of every collective by every algorithm, over whatever connects the ranks.

use ringway::config::Config;
use ringway::plan::algorithm::Algorithm;
use ringway::{Collective, DataType, Level, ReduceOp};

use crate::case::{Case, Shape, Sizes};
use crate::harness::{Random, seed, settings, world_each};

/// Collectives that carry data.
pub(crate) const COLLECTIVES: [Collective; 8] = [
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
    /// None: TCP everywhere, with TLS.
    Encrypted,
    /// Neighbours, two by two.
    Pairs,
    /// Even and odd ranks.
    Mixed,
    /// None: RDMA everywhere, even ranks by the devices rxea0 and rxea1, odd ones by rxeb0 and rxeb1.
    Rdma(Rails),
}

/// What of the RDMA machine is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rails {
    /// The first alone, or both.
    pub(crate) both: bool,
    pub(crate) family: &'static str,
    pub(crate) queue_pairs: &'static str,
}

impl Hosts {
    pub(crate) fn numbers(self, ranks: u32) -> Vec<u32> {
        let number = |rank: u32| match self {
            Self::One => 0,
            Self::Each | Self::Encrypted | Self::Rdma(_) => rank,
            Self::Pairs => rank / 2,
            Self::Mixed => rank % 2,
        };
        (0..ranks).map(number).collect()
    }

    /// For random numbers of its own.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::One => 0,
            Self::Each => 1,
            Self::Pairs => 2,
            Self::Mixed => 3,
            Self::Rdma(rails) => 4 + u64::from(rails.both),
            Self::Encrypted => 6,
        }
    }

    pub(crate) fn config(self, rank: u32, mut config: Config) -> Config {
        use ringway::config::Source;
        let mut set = |name: &str, value: &str| {
            config.set(name, value, Source::Default).unwrap();
        };
        match self {
            Self::One => set("RINGWAY_TRANSPORT", "shm"),
            Self::Each => set("RINGWAY_TRANSPORT", "tcp"),
            Self::Encrypted => {
                set("RINGWAY_TRANSPORT", "tcp");
                set("RINGWAY_TLS", "1");
            }
            Self::Pairs => set("NCCL_HOSTID", &format!("host{}", rank / 2)),
            Self::Mixed => {
                set("NCCL_HOSTID", &format!("host{}", rank % 2));
                set("RINGWAY_CHECKSUM", "1");
            }
            Self::Rdma(Rails { both, family, queue_pairs }) => {
                set("RINGWAY_TRANSPORT", "verbs");
                let side = if rank.is_multiple_of(2) { "rxea" } else { "rxeb" };
                set("NCCL_IB_HCA", &if both { side.to_owned() } else { format!("={side}0") });
                set("NCCL_IB_ADDR_FAMILY", family);
                set("RINGWAY_CHECKSUM", if family == "AF_INET6" { "1" } else { "0" });
                set("NCCL_IB_QPS_PER_CONNECTION", queue_pairs);
                // Short waits fail at random where two processors are emulated.
                set("NCCL_IB_TIMEOUT", "19");
                set("NCCL_IB_RETRY_CNT", "6");
            }
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
pub(crate) fn algorithms(shape: &Shape, ranks: u32, hosts: Hosts) -> Vec<Option<Algorithm>> {
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
pub(crate) fn sweep(hosts: Hosts, ranks: &[u32], rounds: u64) {
    for ranks in ranks.iter().copied() {
        for round in 0..rounds {
            let stream = u64::from(ranks) << 32 | round << 8 | hosts.number();
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
