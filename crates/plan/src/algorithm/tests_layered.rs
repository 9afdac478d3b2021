//! The algorithms with levels (trees, hosts, aggregated steps), proved over more placements, roots,
//! types and ranks than the table of all algorithms.

use super::*;
use crate::plan::Step;
use crate::problem::Counts;
use crate::types::{DataType, Level};
use crate::verify::verify;

fn prove(algorithm: Algorithm, problem: &Problem, hosts: &[u32], tuning: Tuning) {
    if algorithm.supports(problem, hosts).is_err() {
        return;
    }
    let plan = algorithm.plan(problem, hosts, tuning);
    for in_place in [false, true] {
        if let Err(refusal) = verify(&plan, in_place) {
            panic!(
                "{algorithm} {problem:?} hosts {hosts:?} {tuning:?} in place {in_place}: {refusal}"
            );
        }
    }
    for part in &plan.ranks {
        assert!(
            part.scratch_bytes <= tuning.scratch_bytes,
            "{algorithm} {problem:?} {tuning:?}: {} bytes of scratch",
            part.scratch_bytes
        );
    }
}

fn tuning(lanes: u32, slots: u32) -> Tuning {
    Tuning { lanes, slot_bytes: 256, slots, scratch_bytes: 1 << 16 }
}

fn placements(ranks: u32) -> Vec<Vec<u32>> {
    let mut placements: Vec<Vec<u32>> = vec![
        vec![0; ranks as usize],
        (0..ranks).collect(),
        (0..ranks).map(|r| r / 2).collect(),
        (0..ranks).map(|r| r / 3).collect(),
        (0..ranks).map(|r| r % 2).collect(),
    ];
    let uneven: &[&[u32]] = match ranks {
        3 => &[&[7, 7, 1]],
        4 => &[&[0, 0, 0, 1], &[0, 1, 1, 0]],
        5 => &[&[0, 1, 1, 1, 2], &[2, 1, 0, 1, 2]],
        7 => &[&[0, 0, 0, 0, 1, 2, 2], &[0, 0, 1, 1, 1, 1, 1]],
        _ => &[],
    };
    placements.extend(uneven.iter().map(|hosts| hosts.to_vec()));
    placements
}

fn prove_small(algorithm: Algorithm, collectives: &[Collective]) {
    for collective in collectives {
        for ranks in 1..=9_u32 {
            for hosts in placements(ranks) {
                let roots = match collective.has_root() {
                    true => vec![0, ranks / 2, ranks - 1],
                    false => vec![0],
                };
                for (root, level) in
                    roots.into_iter().flat_map(|root| [(root, Level::Run), (root, Level::Shape)])
                {
                    for count in [0, 1, 5, 64, 1000] {
                        for (lanes, data_type) in [(1, DataType::Bf16), (2, DataType::F32)] {
                            let mut problem = Problem::new(*collective, ranks, count, data_type);
                            problem.level = level;
                            problem.root = root;
                            prove(algorithm, &problem, &hosts, tuning(lanes, 3 - lanes));
                        }
                    }
                }
            }
        }
    }
}

fn prove_large(algorithm: Algorithm, collectives: &[Collective]) {
    for collective in collectives {
        for ranks in [16, 17, 31, 33, 64_u32] {
            let placements: [Vec<u32>; 3] = [
                (0..ranks).collect(),
                (0..ranks).map(|r| r / 8).collect(),
                (0..ranks).map(|r| r % 5).collect(),
            ];
            for hosts in placements {
                for level in [Level::Run, Level::Shape] {
                    // Blocks that fill one message, a whole that takes several.
                    let some = match collective {
                        Collective::AllGather | Collective::ReduceScatter => 5,
                        _ => 300,
                    };
                    for count in [1, some] {
                        let mut problem = Problem::new(*collective, ranks, count, DataType::Bf16);
                        problem.level = level;
                        problem.root = ranks / 3;
                        prove(algorithm, &problem, &hosts, tuning(1, 2));
                    }
                }
            }
        }
    }
}

/// Scratch of a thousand ranks' plan, which does not depend on the count; some parts are drafted.
fn fits_thousand(algorithm: Algorithm, collective: Collective, level: Level) {
    let hosts: Vec<u32> = (0..1024).map(|r| r / 8).collect();
    let mut problem = Problem::new(collective, 1024, 4, DataType::Bf16);
    problem.level = level;
    for tuning in [Tuning::default(), tuning(2, 2)] {
        for rank in [0, 1, 511, 1023] {
            let part = algorithm.build(Context { problem: &problem, rank, hosts: &hosts, tuning });
            assert!(
                part.scratch_bytes <= tuning.scratch_bytes,
                "{algorithm} {collective} {level} {tuning:?}: {} bytes of scratch",
                part.scratch_bytes
            );
        }
    }
}

#[test]
fn tree_is_proved_for_few_ranks() {
    prove_small(Algorithm::Tree, tree::COLLECTIVES);
}

#[test]
fn tree_is_proved_for_many_ranks() {
    prove_large(Algorithm::Tree, tree::COLLECTIVES);
    for level in [Level::Run, Level::Shape] {
        fits_thousand(Algorithm::Tree, Collective::AllReduce, level);
    }
}

#[test]
fn hierarchical_is_proved_for_few_ranks() {
    prove_small(Algorithm::Hierarchical, hierarchical::COLLECTIVES);
}

#[test]
fn hierarchical_is_proved_for_many_ranks() {
    prove_large(Algorithm::Hierarchical, hierarchical::COLLECTIVES);
    for collective in hierarchical::COLLECTIVES {
        for level in [Level::Run, Level::Shape] {
            fits_thousand(Algorithm::Hierarchical, *collective, level);
        }
    }
}

#[test]
fn hierarchical_is_refused_where_there_is_nothing_to_layer() {
    let mut problem = Problem::new(Collective::AllReduce, 4, 64, DataType::F32);
    let reason = |problem: &Problem, hosts: &[u32]| {
        Algorithm::Hierarchical.supports(problem, hosts).unwrap_err()
    };
    assert!(reason(&problem, &[3; 4]).contains("one host"));
    assert!(reason(&problem, &[0, 1, 2, 3]).contains("no host has two"));
    problem.level = Level::Shape;
    assert!(reason(&problem, &[0, 1, 1, 0]).contains("[0, 3]"));
    problem.collective = Collective::AllGather;
    assert_eq!(Algorithm::Hierarchical.supports(&problem, &[0, 1, 1, 0]), Ok(()));
}

#[test]
fn blocks_may_differ_in_size() {
    for algorithm in [Algorithm::Hierarchical, Algorithm::Pat] {
        for ranks in 2..=9_u64 {
            let counts: Vec<u64> = (0..ranks).map(|r| r * 37 % 11 * 20).collect();
            for collective in [Collective::AllGather, Collective::ReduceScatter] {
                for level in [Level::Run, Level::Shape] {
                    let ranks = u32::try_from(ranks).unwrap();
                    let mut problem = Problem::new(collective, ranks, 0, DataType::Bf16);
                    problem.counts = Counts::PerRank(counts.clone().into());
                    problem.level = level;
                    for hosts in placements(ranks) {
                        prove(algorithm, &problem, &hosts, tuning(2, 1));
                    }
                }
            }
        }
    }
}

#[test]
fn pat_is_proved_for_few_ranks() {
    prove_small(Algorithm::Pat, pat::COLLECTIVES);
}

#[test]
fn pat_is_proved_for_many_ranks() {
    prove_large(Algorithm::Pat, pat::COLLECTIVES);
    for collective in pat::COLLECTIVES {
        for level in [Level::Run, Level::Shape] {
            fits_thousand(Algorithm::Pat, *collective, level);
        }
    }
}

#[test]
fn pat_takes_a_logarithm_of_messages_for_small_blocks() {
    let hosts: Vec<u32> = (0..64).collect();
    for collective in [Collective::AllGather, Collective::ReduceScatter] {
        let problem = Problem::new(collective, 64, 8, DataType::F32);
        let plan = Algorithm::Pat.plan(&problem, &hosts, Tuning::default());
        for part in &plan.ranks {
            let puts = part.lanes.iter().flatten();
            let puts = puts.filter(|step| matches!(step, Step::Put { .. }));
            assert_eq!(puts.count(), 6);
        }
    }
}

#[test]
fn more_lanes_than_a_plan_can_have_are_not_used() {
    let hosts = [0, 0, 1, 1];
    let tuning = Tuning { scratch_bytes: 1 << 20, ..tuning(64, 2) };
    for algorithm in [Algorithm::Tree, Algorithm::Hierarchical, Algorithm::Pat] {
        for collective in Collective::ALL {
            let problem = Problem::new(collective, 4, 5000, DataType::F32);
            prove(algorithm, &problem, &hosts, tuning);
        }
    }
}
