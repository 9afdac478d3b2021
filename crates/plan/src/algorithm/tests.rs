//! Every algorithm, proved over ranks, sizes, hosts, types, levels and lanes.

use std::sync::Arc;

use super::*;
use crate::plan::{FLAGS_MAX, Step};
use crate::problem::Counts;
use crate::types::{DataType, Level};
use crate::verify::verify;

/// The algorithms whose rounds grow with the logarithm of the ranks.
const LOGARITHMIC: [Algorithm; 3] =
    [Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling, Algorithm::Bruck];

/// Small slots, so that small counts already need several pieces.
fn narrow(lanes: u32) -> Tuning {
    Tuning { lanes, slot_bytes: 256, slots: 2, scratch_bytes: 1 << 16 }
}

fn prove(algorithm: Algorithm, problem: &Problem, hosts: &[u32], tuning: Tuning) {
    let problems = vec![problem.clone(); problem.ranks as usize];
    prove_each(algorithm, &problems, hosts, tuning);
}

fn prove_each(algorithm: Algorithm, problems: &[Problem], hosts: &[u32], tuning: Tuning) {
    let problem = &problems[0];
    if algorithm.supports(problem, hosts).is_err() {
        return;
    }
    let plan = algorithm.plan_each(problems, hosts, tuning);
    for in_place in [false, true] {
        if let Err(refusal) = verify(&plan, in_place) {
            panic!(
                "{algorithm} {problem:?} hosts {hosts:?} {tuning:?} in place {in_place}: {refusal}"
            );
        }
    }
    for part in &plan.ranks {
        assert_eq!(part.scratch_bytes, plan.ranks[0].scratch_bytes);
        assert!(
            part.scratch_bytes <= tuning.scratch_bytes,
            "{algorithm} {problem:?} {tuning:?}: {} bytes of scratch",
            part.scratch_bytes
        );
    }
}

/// One host, a host each, two, three, and two hosts in turns.
fn placements(ranks: u32) -> [Vec<u32>; 5] {
    [
        vec![0; ranks as usize],
        (0..ranks).collect(),
        (0..ranks).map(|r| r / 2).collect(),
        (0..ranks).map(|r| r / 3).collect(),
        (0..ranks).map(|r| r % 2).collect(),
    ]
}

#[test]
fn every_algorithm_is_proved() {
    for algorithm in Algorithm::ALL {
        for collective in Collective::ALL {
            for ranks in 1..=9_u32 {
                for hosts in &placements(ranks) {
                    for count in [0, 1, 5, 64, 1000] {
                        for level in [Level::Run, Level::Shape] {
                            for lanes in [1, 2] {
                                let mut problem =
                                    Problem::new(collective, ranks, count, DataType::Bf16);
                                problem.level = level;
                                problem.root = (ranks - 1) / 2;
                                prove(algorithm, &problem, hosts, narrow(lanes));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Unequal blocks, some of them empty, among them the first, the last or all but one.
fn unequal(ranks: u32) -> [Vec<u64>; 4] {
    let ranks = u64::from(ranks);
    [
        (0..ranks).map(|r| r * 37 % 101).collect(),
        (0..ranks).map(|r| if r % 2 == 0 { 0 } else { 33 + r }).collect(),
        (0..ranks).map(|r| if r + 1 == ranks { 0 } else { 200 - r }).collect(),
        (0..ranks).map(|r| if r == ranks / 2 { 333 } else { 0 }).collect(),
    ]
}

#[test]
fn unequal_blocks_are_proved() {
    let collectives =
        [Collective::AllGather, Collective::ReduceScatter, Collective::Gather, Collective::Scatter];
    for algorithm in Algorithm::ALL {
        for collective in collectives {
            for ranks in 1..=9_u32 {
                for counts in unequal(ranks) {
                    for hosts in &placements(ranks) {
                        for level in [Level::Run, Level::Shape] {
                            let mut problem = Problem::new(collective, ranks, 0, DataType::Bf16);
                            problem.counts = Counts::PerRank(Arc::from(&counts[..]));
                            problem.level = level;
                            problem.root = ranks / 2;
                            prove(algorithm, &problem, hosts, narrow(1 + ranks % 3));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn pairwise_counts_are_proved() {
    let sent = |from: u32, to: u32| u64::from((from * 7 + to * 13) % 5 * 61);
    for ranks in 1..=9_u32 {
        let problems: Vec<Problem> = (0..ranks)
            .map(|rank| {
                let mut problem = Problem::new(Collective::AllToAll, ranks, 0, DataType::F32);
                problem.counts = Counts::Pairwise {
                    send: (0..ranks).map(|to| sent(rank, to)).collect(),
                    receive: (0..ranks).map(|from| sent(from, rank)).collect(),
                };
                problem
            })
            .collect();
        for hosts in &placements(ranks) {
            for lanes in 1..=3 {
                prove_each(Algorithm::Direct, &problems, hosts, narrow(lanes));
            }
        }
        let refused = Algorithm::Bruck.supports(&problems[0], &placements(ranks)[0]);
        assert!(refused.is_err_and(|reason| reason.contains("equal counts")));
    }
}

#[test]
fn logarithmic_algorithms_are_proved_for_many_ranks() {
    for algorithm in LOGARITHMIC {
        for collective in Collective::ALL {
            for ranks in [16, 17, 31, 33, 64] {
                // Blocks of a few values, a vector of a few for each rank.
                let blocks = match collective {
                    Collective::AllReduce => u64::from(ranks),
                    _ => 1,
                };
                for (lanes, hosts) in (1..).zip(&placements(ranks)[..4]) {
                    let tuning = Tuning { slot_bytes: 1 << 10, ..narrow(lanes) };
                    for (count, data_type, level) in [
                        (3, DataType::Bf16, Level::Run),
                        (5, DataType::Bf16, Level::Shape),
                        (19, DataType::F32, Level::Run),
                    ] {
                        let mut problem =
                            Problem::new(collective, ranks, count * blocks, data_type);
                        problem.level = level;
                        prove(algorithm, &problem, hosts, tuning);
                    }
                }
            }
        }
    }
}

#[test]
fn types_lanes_and_slots_are_proved() {
    for algorithm in LOGARITHMIC {
        for collective in Collective::ALL {
            for ranks in [2, 3, 6, 7] {
                for data_type in [DataType::F32, DataType::I8] {
                    for level in [Level::Run, Level::Shape] {
                        for (lanes, slots) in [(3, 1), (4, 3)] {
                            let mut problem = Problem::new(collective, ranks, 1000, data_type);
                            problem.level = level;
                            let tuning = Tuning { slots, ..narrow(lanes) };
                            let hosts: Vec<u32> = (0..ranks).map(|r| r / 2).collect();
                            prove(algorithm, &problem, &hosts, tuning);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_thousand_ranks_stay_within_their_scratch() {
    for algorithm in LOGARITHMIC {
        for collective in Collective::ALL {
            for level in [Level::Run, Level::Shape] {
                for ranks in [1023, 1024] {
                    let mut problem = Problem::new(collective, ranks, 1 << 10, DataType::Bf16);
                    problem.level = level;
                    let hosts: Vec<u32> = (0..ranks).map(|r| r / 8).collect();
                    if algorithm.supports(&problem, &hosts).is_err() {
                        continue;
                    }
                    let tuning = Tuning { lanes: 4, ..Tuning::default() };
                    for rank in [0, 1, ranks / 2, ranks - 1] {
                        let part = algorithm.build(Context {
                            problem: &problem,
                            rank,
                            hosts: &hosts,
                            tuning,
                        });
                        assert!(part.scratch_bytes <= tuning.scratch_bytes);
                        assert!(part.steps() > 0);
                        let waits = part.lanes.iter().flatten().filter_map(|step| match step {
                            Step::Wait { flag, .. } => Some(usize::from(*flag)),
                            _ => None,
                        });
                        assert!(waits.max() < Some(FLAGS_MAX));
                    }
                }
            }
        }
    }
}
