use super::*;
use crate::sim::simulate;
use crate::types::{Collective, DataType};

fn call(collective: Collective, ranks: u32, bytes: u64) -> Problem {
    let blocks =
        matches!(collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce);
    let count = bytes / 4 / if blocks { 1 } else { u64::from(ranks) };
    Problem::new(collective, ranks, count, DataType::F32)
}

fn chosen(problem: &Problem, hosts: &[u32]) -> Algorithm {
    choose(problem, hosts, &Request::default()).unwrap().algorithm
}

#[test]
fn inside_a_host_cards_are_for_tiny_one_shot_for_small_and_two_shot_for_large() {
    for ranks in [4, 8] {
        let hosts = vec![0; ranks as usize];
        let at = |bytes| chosen(&call(Collective::AllReduce, ranks, bytes), &hosts);
        assert_eq!(at(8), Algorithm::Tiny, "{ranks} ranks");
        assert_eq!(at(1024), Algorithm::OneShot, "{ranks} ranks");
        assert_eq!(at(1 << 20), Algorithm::TwoShot, "{ranks} ranks");
        assert_eq!(at(1 << 30), Algorithm::TwoShot, "{ranks} ranks");
    }
}

/// With two ranks both shots move what one does, and copy the result once more.
#[test]
fn two_ranks_never_need_a_second_shot() {
    for bytes in [1 << 10, 64 << 10, 1 << 20, 64 << 20] {
        let problem = call(Collective::AllReduce, 2, bytes);
        let choice = choose(&problem, &[0, 0], &Request::default()).unwrap();
        let us = |wanted| {
            let found = choice.candidates.iter().find(|c| c.algorithm == wanted).unwrap();
            found.predicted_us.unwrap()
        };
        assert!(us(Algorithm::OneShot) < us(Algorithm::TwoShot), "{bytes} bytes");
    }
}

#[test]
fn over_a_network_many_ranks_take_a_logarithm_of_steps_for_small_calls() {
    let hosts: Vec<u32> = (0..64).collect();
    let at = |collective, bytes| chosen(&call(collective, 64, bytes), &hosts);
    assert_eq!(at(Collective::AllReduce, 8), Algorithm::RecursiveDoubling);
    assert_eq!(at(Collective::Broadcast, 8), Algorithm::Tree);
    assert_eq!(at(Collective::AllToAll, 4096), Algorithm::Bruck);
    assert_eq!(at(Collective::Barrier, 0), Algorithm::Bruck);
    assert_eq!(at(Collective::AllReduce, 1 << 20), Algorithm::HalvingDoubling);
    assert_eq!(at(Collective::AllReduce, 256 << 20), Algorithm::Ring);
}

#[test]
fn hosts_of_several_ranks_are_layered() {
    let hosts: Vec<u32> = (0..16).map(|rank| rank / 8).collect();
    let at = |collective, bytes| chosen(&call(collective, 16, bytes), &hosts);
    assert_eq!(at(Collective::AllReduce, 64 << 20), Algorithm::Hierarchical);
    assert_eq!(at(Collective::AllGather, 1 << 20), Algorithm::Hierarchical);
}

#[test]
fn over_a_network_large_calls_move_few_bytes() {
    for ranks in [4, 8, 16] {
        let hosts: Vec<u32> = (0..ranks).collect();
        let large =
            choose(&call(Collective::AllReduce, ranks, 256 << 20), &hosts, &Request::default())
                .unwrap();
        let one_shot = large
            .candidates
            .iter()
            .find(|candidate| candidate.algorithm == Algorithm::OneShot)
            .unwrap();
        assert!(one_shot.predicted_us.unwrap() > 1.8 * large.candidates[0].predicted_us.unwrap());
    }
}

#[test]
fn choices_are_the_same_twice_and_short() {
    for collective in Collective::ALL {
        for ranks in [1, 2, 3, 8] {
            for bytes in [0, 8, 4096, 1 << 20, 64 << 20] {
                for hosts in [vec![0; ranks as usize], (0..ranks).map(|r| r / 2).collect()] {
                    let problem = call(collective, ranks, bytes);
                    let request = Request::default();
                    let first = choose(&problem, &hosts, &request);
                    let quick = choose_algorithm(&problem, &hosts, &request);
                    match (first, quick) {
                        (Ok(first), Ok((algorithm, tuning))) => {
                            assert_eq!((first.algorithm, first.tuning), (algorithm, tuning));
                            assert_eq!(first.candidates.len(), Algorithm::ALL.len());
                            assert!(first.candidates[0].predicted_us.unwrap().is_finite());
                        }
                        (Err(first), Err(quick)) => assert_eq!(first, quick),
                        (first, quick) => panic!("{first:?} but {quick:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_with_other_pairwise_counts_choose_alike() {
    let problem = |sent: u64| Problem {
        counts: Counts::Pairwise { send: vec![sent; 4].into(), receive: vec![1; 4].into() },
        ..call(Collective::AllToAll, 4, 0)
    };
    let choice = |sent| choose(&problem(sent), &[0, 0, 1, 1], &Request::default()).unwrap();
    assert_eq!(choice(1), choice(1 << 30));
}

#[test]
fn refusals_are_told() {
    let problem = call(Collective::AllReduce, 4, 64);
    let only_ring = |algorithm| match algorithm {
        Algorithm::Ring => Ok(()),
        other => Err(format!("{other} is not in RINGWAY_ALGO")),
    };
    let request = Request { allow: &only_ring, ..Request::default() };
    let choice = choose(&problem, &[0; 4], &request).unwrap();
    assert_eq!(choice.algorithm, Algorithm::Ring);
    let refused = choice.candidates.last().unwrap();
    assert!(matches!(&refused.outcome, Outcome::Refused(why) if why.contains("RINGWAY_ALGO")));
    let request = Request { allow: &|_| Err("no".to_owned()), ..Request::default() };
    let error = choose(&problem, &[0; 4], &request).unwrap_err();
    // A reason that all have is told once.
    assert_eq!(error.to_string(), "no algorithm for this all_reduce: no");
    let request = Request { scratch_bytes: 1000, ..Request::default() };
    let error = choose(&problem, &[0; 4], &request).unwrap_err().to_string();
    assert!(error.contains("bytes of scratch, there are 1000"), "{error}");
}

/// What one rank sees in the mirror is about what all ranks together take.
#[test]
fn predictions_are_near_the_simulation_of_all_ranks() {
    let links = Links::default();
    let mut worst: (f64, String) = (1.0, String::new());
    for collective in Collective::ALL {
        for ranks in [2, 5, 8] {
            for hosts in [
                vec![0; ranks as usize],
                (0..ranks).collect::<Vec<u32>>(),
                (0..ranks).map(|rank| rank / 4).collect(),
            ] {
                for bytes in [64, 64 << 10, 1 << 20] {
                    for level in [crate::types::Level::Run, crate::types::Level::Shape] {
                        let mut problem = call(collective, ranks, bytes);
                        problem.level = level;
                        let tuning = tune(&problem, &hosts, &Request::default());
                        for algorithm in Algorithm::ALL {
                            if algorithm.supports(&problem, &hosts).is_err() {
                                continue;
                            }
                            let all = simulate(&algorithm.plan(&problem, &hosts, tuning), &links);
                            let few = predict(algorithm, &problem, &hosts, tuning, &links);
                            let off = (few / all).max(all / few);
                            if off > worst.0 {
                                worst = (
                                    off,
                                    format!("{algorithm} {problem:?} {hosts:?}: {few} for {all}"),
                                );
                            }
                        }
                    }
                }
            }
        }
    }
    println!("worst: {worst:?}");
    assert!(worst.0 < 2.0, "{worst:?}");
}
