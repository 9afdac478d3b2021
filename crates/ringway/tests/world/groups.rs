//! Groups: several calls and messages as one operation.

use ringway::config::Config;
use ringway::plan::algorithm::Algorithm;
use ringway::{Collective, Communicator, DataType, ReduceOp};

use crate::case::{Case, Shape};
use crate::harness::{Random, seed, watchdog, world_each};
use crate::sweep::{Hosts, draw};

/// Runs cases as one group on one rank; what was wrong.
fn run_fused(comm: &Communicator, cases: &[Case]) -> ringway::Result<Vec<String>> {
    let rank = comm.rank();
    let mut outputs: Vec<Vec<u8>> =
        cases.iter().map(|case| vec![0x5a; case.output(rank).len()]).collect();
    let mut group = comm.group();
    for (case, output) in cases.iter().zip(&mut outputs) {
        group.call(&case.call(rank), case.input(rank), output)?;
    }
    group.run()?;
    let check = |(case, output): (&Case, &Vec<u8>)| {
        (output != case.output(rank)).then(|| format!("rank {rank}: wrong output of {case:?}"))
    };
    Ok(cases.iter().zip(&outputs).filter_map(check).collect())
}

fn check(groups: &[Vec<Case>], ranks: u32, hosts: Hosts) {
    let wrong = world_each(
        ranks,
        |rank| hosts.config(rank, Config::default()),
        |comm| {
            let comm = comm.unwrap();
            let mut wrong = Vec::new();
            for group in groups {
                match run_fused(&comm, group) {
                    Ok(found) => wrong.extend(found),
                    Err(error) => {
                        wrong.push(format!("rank {}: {error}", comm.rank()));
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
        "{ranks} ranks, {hosts:?} (seed {}):\n{}",
        seed(),
        wrong[..wrong.len().min(12)].join("\n")
    );
}

#[test]
fn collectives_fuse() {
    let _watchdog = watchdog("groups::collectives_fuse");
    let kinds = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
    ];
    for (ranks, hosts) in
        [(2, Hosts::One), (3, Hosts::Each), (4, Hosts::One), (5, Hosts::One), (4, Hosts::Pairs)]
    {
        let mut random = Random::new(seed(), u64::from(ranks) << 16 | hosts.number());
        let groups: Vec<Vec<Case>> = (0..12)
            .map(|_| {
                let calls = 1 + random.below(6);
                let draw_one = |random: &mut Random| {
                    let kind = random.pick(&kinds);
                    Case::new(draw(kind, ranks, random, (4096, 9000)), ranks, random)
                };
                (0..calls).map(|_| draw_one(&mut random)).collect()
            })
            .collect();
        check(&groups, ranks, hosts);
    }
}

/// More calls than flags or lanes: several operations, cut at the same places on all ranks.
#[test]
fn a_large_group_is_cut_into_operations() {
    let _watchdog = watchdog("groups::a_large_group_is_cut_into_operations");
    for (ranks, hosts) in [(4, Hosts::One), (5, Hosts::One), (3, Hosts::Each)] {
        let mut random = Random::new(seed(), 77 + u64::from(ranks));
        let mut group = Vec::new();
        for number in 0..150 {
            let (collective, algorithm) = random.pick(&[
                (Collective::AllReduce, Algorithm::Ring),
                (Collective::AllReduce, Algorithm::Tree),
                (Collective::AllGather, Algorithm::Bruck),
                (Collective::Gather, Algorithm::Direct),
                (Collective::Scatter, Algorithm::Direct),
                (Collective::Broadcast, Algorithm::Tree),
                (Collective::Reduce, Algorithm::Ring),
                (Collective::AllToAll, Algorithm::Direct),
            ]);
            let shape = Shape {
                algorithm: Some(algorithm),
                root: random.below(u64::from(ranks)) as u32,
                op: ReduceOp::Max,
                ..Shape::new(collective, DataType::I32, number % 40)
            };
            group.push(Case::new(shape, ranks, &mut random));
        }
        check(&[group], ranks, hosts);
    }
}

#[test]
fn messages_and_collectives_share_a_group() {
    let _watchdog = watchdog("groups::messages_and_collectives_share_a_group");
    for hosts in [Hosts::One, Hosts::Each] {
        world_each(
            4,
            |rank| hosts.config(rank, Config::default()),
            |comm| {
                let comm = comm.unwrap();
                let rank = comm.rank();
                for round in 0..5_u8 {
                    let (mine, values) = ([rank as u8 ^ round; 300], [1, 2, 3, round]);
                    let (mut theirs, mut sum) = ([0; 300], [0; 4]);
                    let call = ringway::Call::new(Collective::AllReduce, DataType::U8, 4);
                    let mut group = comm.group();
                    group.call(&call, &values, &mut sum).unwrap();
                    group.send(&mine, (rank + 1) % 4).unwrap();
                    group.recv(&mut theirs, (rank + 3) % 4).unwrap();
                    group.run().unwrap();
                    assert_eq!(theirs, [((rank + 3) as u8 % 4) ^ round; 300]);
                    assert_eq!(sum, [4, 8, 12, 4 * round]);
                }
            },
        );
    }
}

#[test]
fn an_empty_group_does_nothing() {
    let _watchdog = watchdog("groups::an_empty_group_does_nothing");
    ringway::testing::world(2, |comm| {
        comm.group().run().unwrap();
        comm.barrier().unwrap();
    });
}
