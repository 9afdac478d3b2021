//! Links from times: the α-β-γ with which the model says best what was measured.
//!
//! What is timed are plans, run as users run them, since plans are what is priced. A rate that a
//! loop on an idle core shows is not the one a plan sees while its peers read beside it.

use crate::algorithm::Algorithm;
use crate::cost::Links;
use crate::planner::{self, Request};
use crate::problem::Problem;

/// One time that was measured.
#[derive(Clone, Debug)]
pub struct Timing {
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// What was done.
    pub problem: Problem,
    /// How long it took.
    pub us: f64,
}

/// How far a value may move from where it started: past that the times are of something else.
const FACTOR_MAX: f64 = 30.0;
/// The steps tried, coarse to fine.
const STEPS: [f64; 4] = [2.0, 1.4, 1.4, 1.15];

/// Access to one value of the links.
type Value = fn(&mut Links) -> &mut f64;

const VALUES: [Value; 12] = [
    |links| &mut links.shm.bandwidth_gbs,
    |links| &mut links.stage_gbs,
    |links| &mut links.reduce_gbs,
    |links| &mut links.copy_gbs,
    |links| &mut links.shm.latency_us,
    |links| &mut links.per_step_us,
    |links| &mut links.shm.overhead_us,
    |links| &mut links.get_gbs,
    |links| &mut links.get_us,
    |links| &mut links.net.bandwidth_gbs,
    |links| &mut links.net.latency_us,
    |links| &mut links.net.overhead_us,
];

/// The links, near `start`, that predict these times best.
#[must_use]
pub fn fit(start: Links, hosts: &[u32], timings: &[Timing]) -> Links {
    let mut best = start;
    let mut best_off = off(&best, hosts, timings);
    let mut tried: Vec<Value> = VALUES.to_vec();
    for step in STEPS {
        // A value that no plan depends on stays as it is.
        tried.retain(|value| {
            let mut any_change = false;
            for factor in [step, 1.0 / step] {
                let (mut next, mut from) = (best, start);
                let moved = *value(&mut next) * factor / *value(&mut from);
                if !(1.0 / FACTOR_MAX..=FACTOR_MAX).contains(&moved) {
                    any_change = true;
                    continue;
                }
                *value(&mut next) *= factor;
                let next_off = off(&next, hosts, timings);
                any_change |= next_off != best_off;
                if next_off < best_off {
                    (best, best_off) = (next, next_off);
                    break;
                }
            }
            any_change
        });
    }
    best
}

/// How far off predictions are: the mean square of the logarithm of the ratio.
fn off(links: &Links, hosts: &[u32], timings: &[Timing]) -> f64 {
    let request = Request { links: *links, ..Request::default() };
    timings
        .iter()
        .map(|timing| {
            let us = planner::predict_us(timing.algorithm, &timing.problem, hosts, &request);
            let ratio = (us / timing.us).ln();
            // One odd time must not outweigh all others.
            ratio.powi(2).min(4.0)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Collective, DataType};

    fn timings(links: Links, hosts: &[u32]) -> Vec<Timing> {
        let ranks = u32::try_from(hosts.len()).unwrap();
        let request = Request { links, ..Request::default() };
        let mut timings = Vec::new();
        for algorithm in [Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Ring] {
            for count in [64, 4096, 1 << 16, 1 << 20] {
                let problem = Problem::new(Collective::AllReduce, ranks, count, DataType::F32);
                let us = planner::predict_us(algorithm, &problem, hosts, &request);
                timings.push(Timing { algorithm, problem, us });
            }
        }
        timings
    }

    /// From the times of a made-up machine follow links that predict them.
    #[test]
    fn links_follow_from_times() {
        let mut truth = Links::default();
        truth.shm.bandwidth_gbs = 4.0;
        truth.shm.latency_us = 0.9;
        truth.net.bandwidth_gbs = 1.0;
        truth.net.latency_us = 25.0;
        for hosts in [[0, 0, 0, 0], [0, 1, 2, 3]] {
            let timings = timings(truth, &hosts);
            let start = Links::default();
            let found = fit(start, &hosts, &timings);
            let (before, after) = (off(&start, &hosts, &timings), off(&found, &hosts, &timings));
            assert!(after < before / 5.0, "{before} to {after}: {found:?}");
            let untouched = if hosts[1] == 0 {
                found.net == start.net
            } else {
                found.shm.bandwidth_gbs == start.shm.bandwidth_gbs
            };
            assert!(untouched, "{found:?}");
        }
        assert_eq!(fit(Links::default(), &[0, 0], &[]), Links::default());
    }
}
