//! What a plan costs: latency, bandwidth and work (α, β, γ) of links and cores.
//!
//! Plans themselves are priced, step by step; there is no formula for each algorithm that could be
//! forgotten or differ from what is run.
//!
//! **Invariant:** prices are a function of arguments that are equal on all ranks. No clock is read here:
//! measured links come in as [`Links`].

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::plan::{RankPlan, Region, Span, Step};
use crate::problem::Problem;
use crate::sim;
use crate::types::{DataType, Rank};

/// Which model prices are made by. Raised whenever prices change, since what was measured is kept
/// as a ratio to what was predicted.
pub const MODEL: u32 = 3;

/// What it costs to tell a peer something.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// From the end of a put until the peer sees its signal.
    pub latency_us: f64,
    /// Time of a core at each end of a message, whatever its size.
    pub overhead_us: f64,
    /// Gigabytes a second; of mapped memory, at which a core reads what another has just written.
    pub bandwidth_gbs: f64,
}

/// The links and cores under a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// Between ranks that map each other's memory.
    pub shm: Link,
    /// Between all others; shared by the ranks of a host.
    pub net: Link,
    /// Bytes of operands a core folds, in gigabytes a second.
    pub reduce_gbs: f64,
    /// Bytes a core copies in its own memory.
    pub copy_gbs: f64,
    /// Bytes a core writes where other cores have read before: their copies must go first.
    pub stage_gbs: f64,
    /// Bytes a core reads from another process, in gigabytes a second: the kernel copies.
    #[serde(default = "get_gbs")]
    pub get_gbs: f64,
    /// Time of such a read, whatever its size.
    #[serde(default = "get_us")]
    pub get_us: f64,
    /// Time of any step.
    pub per_step_us: f64,
}

fn get_gbs() -> f64 {
    8.0
}

fn get_us() -> f64 {
    0.6
}

impl Default for Links {
    /// A present-day server with a 25 Gbit/s network over TCP.
    fn default() -> Self {
        Self {
            shm: Link { latency_us: 0.2, overhead_us: 0.02, bandwidth_gbs: 11.0 },
            net: Link { latency_us: 10.0, overhead_us: 2.0, bandwidth_gbs: 3.0 },
            reduce_gbs: 20.0,
            copy_gbs: 25.0,
            stage_gbs: 16.0,
            get_gbs: get_gbs(),
            get_us: get_us(),
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
        own: &OwnScratch,
        step: &Step,
    ) -> f64 {
        // What a peer has put is in the peer's cache, wherever it stands.
        let put = |span: &Span| span.region == Region::Scratch && !own.0.contains(&span.offset);
        let read_gbs = |span: &Span| match span.region {
            Region::Window(_) => self.shm.bandwidth_gbs,
            Region::Scratch if world.shared && put(span) => self.shm.bandwidth_gbs,
            // It came with the word that said it was there.
            Region::Card(_) => self.reduce_gbs,
            _ => self.copy_gbs,
        };
        let write_gbs = |span: &Span| match span.region {
            Region::Scratch | Region::Window(_) => self.stage_gbs,
            _ => self.copy_gbs,
        };
        let size = |span: &Span| bytes(span, world.data_type);
        let work = match step {
            // Reads run ahead of writes, so the slower of the two is what it takes.
            Step::Copy { source, target } => {
                transfer_us(size(source), read_gbs(source).min(write_gbs(target)))
            }
            // So it is with a fold: while lines come from afar, those at hand are folded.
            Step::Reduce { first, operands, target, .. } => {
                let operands = part.operands(*first, *operands);
                let far = |span: &Span| match span.region {
                    Region::Window(_) => true,
                    Region::Scratch => world.shared && put(span),
                    _ => false,
                };
                let all: u64 = operands.iter().map(|operand| size(&operand.span)).sum();
                let remote: u64 = operands
                    .iter()
                    .filter(|operand| far(&operand.span))
                    .map(|operand| size(&operand.span))
                    .sum();
                let read = transfer_us(remote, self.shm.bandwidth_gbs)
                    .max(transfer_us(all, self.reduce_gbs));
                let written = match target.region {
                    Region::Scratch | Region::Window(_) => {
                        transfer_us(size(target), self.stage_gbs)
                    }
                    _ => 0.0,
                };
                read + written
            }
            Step::Put { peer, source, .. } => {
                let link = self.between(world.hosts, rank, *peer);
                let copied = if world.mapped(rank, *peer) {
                    transfer_us(size(source), read_gbs(source).min(self.stage_gbs))
                } else {
                    0.0
                };
                link.overhead_us + copied
            }
            Step::Get { target, .. } => self.get_us + transfer_us(size(target), self.get_gbs),
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
    /// Whether any ranks map each other's memory.
    pub(crate) shared: bool,
}

impl<'a> World<'a> {
    pub(crate) fn new(hosts: &'a [u32], data_type: DataType) -> Self {
        let most = hosts.iter().max().map_or(0, |most| *most as usize);
        let shared = most + 1 < hosts.len();
        Self { hosts, data_type, shared }
    }

    pub(crate) fn mapped(&self, a: Rank, b: Rank) -> bool {
        self.hosts.get(a as usize) == self.hosts.get(b as usize)
    }
}

/// Where in its scratch a rank writes itself; the rest is for peers to put into.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnScratch(HashSet<u64>);

impl OwnScratch {
    pub(crate) fn of(part: &RankPlan) -> Self {
        let written = part.lanes.iter().flatten().filter_map(|step| match step {
            Step::Copy { target, .. } | Step::Reduce { target, .. } | Step::Get { target, .. } => {
                Some(target)
            }
            _ => None,
        });
        let scratch = written.filter(|target| target.region == Region::Scratch);
        Self(scratch.map(|target| target.offset).collect())
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
            Step::Copy { source: span, .. } | Step::Get { target: span, .. } => {
                cost.bytes_copied += bytes(span, data_type);
            }
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
    cost.predicted_us = sim::mirrored(part, World::new(hosts, data_type), rank, links);
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
