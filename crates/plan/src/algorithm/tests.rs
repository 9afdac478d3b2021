//! Every algorithm, proved over ranks, sizes, hosts, levels and lanes.

use super::*;
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

#[test]
fn every_algorithm_is_proved() {
    for algorithm in Algorithm::ALL {
        for collective in Collective::ALL {
            for ranks in 1..=9_u32 {
                let layouts = [
                    vec![0; ranks as usize],
                    (0..ranks).collect::<Vec<_>>(),
                    (0..ranks).map(|r| r / 2).collect(),
                    (0..ranks).map(|r| r / 3).collect(),
                    (0..ranks).map(|r| r % 2).collect(),
                ];
                for hosts in &layouts {
                    for count in [0, 1, 5, 64, 1000] {
                        for level in [Level::Run, Level::Shape] {
                            for lanes in [1, 2] {
                                let tuning = Tuning {
                                    lanes,
                                    slot_bytes: 256,
                                    slots: 2,
                                    scratch_bytes: 1 << 16,
                                };
                                let mut problem =
                                    Problem::new(collective, ranks, count, DataType::Bf16);
                                problem.level = level;
                                problem.root = (ranks - 1) / 2;
                                prove(algorithm, &problem, hosts, tuning);
                            }
                        }
                    }
                }
            }
        }
    }
}
