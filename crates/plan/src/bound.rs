//! What links permit: the bus bandwidth that a collective cannot pass, whatever the algorithm.
//!
//! Some ranks reach all others over one link (a rank over its GPU's links, a host's ranks over its network cards). So many bytes
//! must go over it in one direction, where every rank does an equal share of the work:
//!
//! ```text
//!   ranks behind the link ──┐
//!   0 1 2 … g-1             ├── link, R GB/s each way ──  g … n-1
//! ```
//!
//! A limit is given as a factor of R. For one rank alone it is 1: that is what bus bandwidth means. Several ranks behind a link may
//! combine their values before they send them, and pass on what they received, so the factor grows.
//!
//! **Invariant:** no plan of this crate moves fewer bytes over the busiest of equal links than [`over_link`] says (a test counts).

use crate::types::{Collective, Rank};

/// By how much the bus bandwidth of a collective may exceed the rate of the link behind which the ranks `behind` are, of `ranks`
/// in all. Nothing where no byte goes over it, or none has to.
#[must_use]
pub fn over_link(collective: Collective, ranks: u32, root: Rank, behind: &[Rank]) -> Option<f64> {
    let (all, near) = (f64::from(ranks), f64::from(u32::try_from(behind.len()).ok()?));
    let far = all - near;
    if near < 1.0 || far < 1.0 {
        return None;
    }
    let has_root = behind.contains(&root);
    match collective {
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => {
            Some((all - 1.0) / far)
        }
        Collective::AllToAll => Some((all - 1.0) / (near * far)),
        Collective::Broadcast | Collective::Reduce => Some(1.0),
        Collective::Gather | Collective::Scatter => {
            Some((all - 1.0) / if has_root { far } else { near })
        }
        Collective::SendRecv => {
            // Each rank sends to the next.
            let leaves = |rank: &&Rank| !behind.contains(&((**rank + 1) % ranks));
            let leaving = behind.iter().filter(leaves).count();
            (leaving > 0).then(|| 1.0 / f64::from(u32::try_from(leaving).unwrap_or(u32::MAX)))
        }
        Collective::Barrier => None,
    }
}

/// By how much the bus bandwidth of a collective may exceed the rate at which each of `ranks` ranks copies memory, all at the same
/// time, where they map each other's memory. A copy reads and writes each byte; a fold writes one byte where it reads one of each
/// rank. Nothing where that depends on who does the work.
#[must_use]
pub fn in_memory(collective: Collective, ranks: u32) -> Option<f64> {
    let ranks = f64::from(ranks);
    if ranks < 2.0 {
        return None;
    }
    match collective {
        // A rank folds its block (n read, one written), then copies those of the others.
        Collective::AllReduce => Some(4.0 * (ranks - 1.0) / (3.0 * ranks - 1.0)),
        Collective::ReduceScatter => Some(2.0 * (ranks - 1.0) / (ranks + 1.0)),
        Collective::AllGather
        | Collective::AllToAll
        | Collective::Broadcast
        | Collective::SendRecv => Some(1.0),
        Collective::Reduce | Collective::Gather | Collective::Scatter | Collective::Barrier => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::build::Tuning;
    use crate::plan::{Plan, Step};
    use crate::problem::Problem;
    use crate::types::DataType;

    /// Bytes that leave each host, and that come to it: the most of both.
    fn crossing(plan: &Plan) -> f64 {
        let hosts = plan.hosts.iter().max().map_or(0, |most| *most as usize + 1);
        let (mut out, mut into) = (vec![0_u64; hosts], vec![0_u64; hosts]);
        for (rank, part) in plan.ranks.iter().enumerate() {
            for step in part.lanes.iter().flatten() {
                if let Step::Put { peer, source, .. } = step {
                    let (from, to) = (plan.hosts[rank], plan.hosts[*peer as usize]);
                    if from != to {
                        out[from as usize] += 4 * source.count;
                        into[to as usize] += 4 * source.count;
                    }
                }
            }
        }
        out.into_iter().chain(into).max().unwrap_or(0) as f64
    }

    #[test]
    fn no_plan_moves_less_over_its_busiest_link() {
        let mut compared = 0;
        let mut met = 0;
        for ranks in [2_u32, 3, 4, 6, 8] {
            for each in (1..ranks).filter(|each| ranks.is_multiple_of(*each)) {
                let hosts: Vec<u32> = (0..ranks).map(|rank| rank / each).collect();
                for collective in Collective::ALL {
                    let count = 840 * u64::from(ranks);
                    let problem = Problem::new(collective, ranks, count, DataType::F32);
                    // What the table of nccl-tests calls the size.
                    let size = (problem.input_count(0).max(problem.output_count(0)) * 4) as f64;
                    let limits = (0..ranks / each).filter_map(|host| {
                        let behind: Vec<Rank> = (host * each..(host + 1) * each).collect();
                        over_link(collective, ranks, 0, &behind)
                    });
                    let Some(limit) = limits.reduce(f64::min) else { continue };
                    let least = size * collective.bus_factor(ranks) / limit;
                    for algorithm in Algorithm::ALL {
                        if algorithm.supports(&problem, &hosts).is_err() {
                            continue;
                        }
                        let plan = algorithm.plan(&problem, &hosts, Tuning::default());
                        // Of all-reduce the link carries both halves, sums and results.
                        let moved = crossing(&plan);
                        assert!(
                            moved >= least * 0.999,
                            "{collective} by {algorithm}, {ranks} ranks, {each} a host: {moved} < {least}"
                        );
                        compared += 1;
                        met += usize::from(moved <= least * 1.001);
                    }
                }
            }
        }
        assert!(compared > 200, "{compared}");
        assert!(met > 30, "the bound is met by {met} of {compared} plans: it is not tight");
    }

    #[test]
    fn one_rank_behind_a_link_has_its_rate() {
        for collective in Collective::ALL {
            if let Some(factor) = over_link(collective, 8, 0, &[0]) {
                assert!((factor - 1.0).abs() < 1e-12, "{collective}: {factor}");
            }
        }
        assert_eq!(over_link(Collective::AllReduce, 16, 0, &[0, 1, 2, 3, 4, 5, 6, 7]), Some(1.875));
        assert_eq!(over_link(Collective::AllToAll, 4, 0, &[0, 1]), Some(0.75));
        assert_eq!(over_link(Collective::SendRecv, 4, 0, &[0, 1]), Some(1.0));
        assert_eq!(over_link(Collective::AllGather, 2, 0, &[0, 1]), None);
        assert_eq!(over_link(Collective::Barrier, 2, 0, &[0]), None);
    }

    #[test]
    fn memory_is_read_and_written() {
        assert_eq!(in_memory(Collective::AllReduce, 2), Some(0.8));
        assert_eq!(in_memory(Collective::AllGather, 2), Some(1.0));
        assert_eq!(in_memory(Collective::Gather, 2), None);
        assert_eq!(in_memory(Collective::AllReduce, 1), None);
    }
}
