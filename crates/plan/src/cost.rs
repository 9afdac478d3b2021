//! What a plan costs: latency, bandwidth and work (α, β, γ) of links and cores.
//!
//! Plans themselves are priced, step by step; there is no formula for each algorithm that could be
//! forgotten or differ from what is run.
//!
//! **Invariant:** prices are a function of arguments that are equal on all ranks. No clock is read here:
//! measured links come in as [`Links`].

use crate::plan::{RankPlan, Region, Span, Step};
use crate::problem::Problem;
use crate::sim;
use crate::types::{DataType, Rank};

/// What it costs to tell a peer something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// From the end of a put until the peer sees its signal.
    pub latency_us: f64,
    /// Time of a core at each end of a message, whatever its size.
    pub overhead_us: f64,
    /// Gigabytes a second.
    pub bandwidth_gbs: f64,
}

/// The links and cores under a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// Between ranks that map each other's memory.
    pub shm: Link,
    /// Between all others; shared by the ranks of a host.
    pub net: Link,
    /// Bytes of operands a core folds, in gigabytes a second.
    pub reduce_gbs: f64,
    /// Bytes a core copies in its own memory.
    pub copy_gbs: f64,
    /// Time of any step.
    pub per_step_us: f64,
}

impl Default for Links {
    /// A present-day server with a 25 Gbit/s network over TCP.
    fn default() -> Self {
        Self {
            shm: Link { latency_us: 0.3, overhead_us: 0.02, bandwidth_gbs: 8.0 },
            net: Link { latency_us: 10.0, overhead_us: 2.0, bandwidth_gbs: 3.0 },
            reduce_gbs: 10.0,
            copy_gbs: 12.0,
            per_step_us: 0.02,
        }
    }
}

impl Links {
    pub(crate) fn between(&self, hosts: &[u32], a: Rank, b: Rank) -> &Link {
        if hosts.get(a as usize) == hosts.get(b as usize) { &self.shm } else { &self.net }
    }

    /// Time of a core for one step.
    pub(crate) fn work_us(
        &self,
        world: World<'_>,
        rank: Rank,
        part: &RankPlan,
        step: &Step,
    ) -> f64 {
        let reach = |span: &Span, own_gbs: f64| {
            let gbs = match span.region {
                Region::Window(_) => self.shm.bandwidth_gbs,
                // It came with the word that said it was there.
                Region::Card(_) => self.reduce_gbs,
                _ => own_gbs,
            };
            transfer_us(bytes(span, world.data_type), gbs)
        };
        let work = match step {
            Step::Copy { source, target } => {
                reach(source, self.copy_gbs).max(reach(target, self.copy_gbs))
            }
            Step::Reduce { first, operands, target, .. } => {
                let read: f64 = part
                    .operands(*first, *operands)
                    .iter()
                    .map(|operand| reach(&operand.span, self.reduce_gbs))
                    .sum();
                let written = match target.region {
                    Region::Window(_) => reach(target, self.copy_gbs),
                    _ => 0.0,
                };
                read + written
            }
            Step::Put { peer, source, .. } => {
                let link = self.between(world.hosts, rank, *peer);
                let copied = if world.mapped(rank, *peer) {
                    transfer_us(bytes(source, world.data_type), link.bandwidth_gbs)
                } else {
                    0.0
                };
                link.overhead_us + copied
            }
            Step::Signal { peer, .. } | Step::Wait { peer, .. } => {
                self.between(world.hosts, rank, *peer).overhead_us
            }
            Step::Show { .. } | Step::See { .. } => self.shm.overhead_us,
        };
        self.per_step_us + work
    }
}

/// The ranks' places, as a price sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World<'a> {
    pub(crate) hosts: &'a [u32],
    pub(crate) data_type: DataType,
}

impl World<'_> {
    pub(crate) fn mapped(&self, a: Rank, b: Rank) -> bool {
        self.hosts.get(a as usize) == self.hosts.get(b as usize)
    }
}

/// What one rank's part costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Steps.
    pub steps: usize,
    /// Puts and signals to peers.
    pub messages: usize,
    /// Bytes put into peers' memory.
    pub bytes_put: u64,
    /// Bytes copied.
    pub bytes_copied: u64,
    /// Bytes of operands folded.
    pub bytes_reduced: u64,
    /// Time until this rank is done, if its peers do as it does.
    pub predicted_us: f64,
}

/// Prices one rank's part, with no look at any other: peers are taken to do the same at the same
/// time. [`sim::simulate`] looks at all.
#[must_use]
pub fn price_rank(
    part: &RankPlan,
    problem: &Problem,
    rank: Rank,
    hosts: &[u32],
    links: &Links,
) -> Cost {
    let data_type = problem.data_type;
    let mut cost = Cost { steps: part.steps(), ..Cost::default() };
    for step in part.lanes.iter().flatten() {
        match step {
            Step::Copy { source, .. } => cost.bytes_copied += bytes(source, data_type),
            Step::Reduce { first, operands, .. } => {
                for operand in part.operands(*first, *operands) {
                    cost.bytes_reduced += bytes(&operand.span, data_type);
                }
            }
            Step::Put { source, .. } => {
                cost.messages += 1;
                cost.bytes_put += bytes(source, data_type);
            }
            Step::Signal { .. } | Step::Show { .. } => cost.messages += 1,
            Step::Wait { .. } | Step::See { .. } => {}
        }
    }
    cost.predicted_us = sim::mirrored(part, World { hosts, data_type }, rank, links);
    cost
}

pub(crate) fn bytes(span: &Span, data_type: DataType) -> u64 {
    span.count.saturating_mul(span.form.size(data_type) as u64)
}

/// Microseconds that `bytes` take.
#[expect(clippy::cast_precision_loss, reason = "a prediction is not exact to the byte")]
pub(crate) fn transfer_us(bytes: u64, gbs: f64) -> f64 {
    bytes as f64 / (gbs * 1000.0)
}
