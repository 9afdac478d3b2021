//! A training step as tasks.
//!
//! Replicas are alike: computing is one task for all of them in a stage, communication is that of every group. Of a kind, the
//! calls of a group follow one another. What overlaps:
//!
//! * gradients of a bucket go while the buckets before it are still computed;
//! * parameters of a bucket are gathered while the one before it is computed, no earlier;
//! * tensor and expert calls are on the way of computing, and nothing hides them;
//! * stages take one micro-batch forward and one back, and pass on while they compute.

use std::collections::BTreeMap;

use super::{Kind, Training, Work, WorkloadError, one_forward_one_backward};
use crate::error::SimError;
use crate::network::{Network, Place};
use crate::pattern::{self, Call, Pattern};
use crate::work::{Flow, Stream, Task, TaskId, What};

/// How calls are done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Style {
    /// How reductions and gathers are done; by where ranks are, where nothing is said.
    pub algorithm: Option<Pattern>,
    /// Rings or trees side by side; as many as a host has adapters for the group, where nothing is said.
    pub channels: Option<u32>,
    /// Queue pairs of a connection.
    pub qps: u32,
}

impl Style {
    /// One of a group's calls.
    #[must_use]
    pub fn call(
        &self,
        network: &Network,
        kind: (ringway_plan::types::Collective, u64),
        ranks: Vec<u32>,
    ) -> Call {
        let (collective, bytes) = kind;
        let inside = inside(network, &ranks);
        let does = |pattern: &Pattern| pattern.collectives().contains(&collective);
        let usual = if inside > 1 && inside < ranks.len() {
            [Pattern::Hierarchical, Pattern::Ring, Pattern::Direct]
        } else {
            [Pattern::Ring, Pattern::Direct, Pattern::Hierarchical]
        };
        let usual = usual.into_iter().find(does).unwrap_or(Pattern::Direct);
        let algorithm = self.algorithm.filter(does).unwrap_or(usual);
        let channels = self.channels.unwrap_or(0);
        let size = ringway_plan::draw::size(bytes);
        let name = format!("{collective} {size}");
        Call {
            collective,
            bytes,
            algorithm,
            channels,
            qps: self.qps.max(1),
            ranks,
            row: name.clone(),
            name,
            root: 0,
        }
    }
}

/// The most ranks of a group in one host.
fn inside(network: &Network, ranks: &[u32]) -> usize {
    let mut hosts: BTreeMap<usize, usize> = BTreeMap::new();
    for rank in ranks {
        let host = network.hosts.get(*rank as usize).copied().unwrap_or(usize::MAX);
        *hosts.entry(host).or_default() += 1;
    }
    hosts.into_values().max().unwrap_or(1)
}

/// The row of a timeline.
pub(super) fn row(training: &Training, stage: u32, what: &str) -> String {
    match training.pipeline {
        1 => what.to_owned(),
        _ => format!("stage {} {what}", stage + 1),
    }
}

/// The step.
///
/// # Errors
///
/// When the numbers do not fit each other or the network.
pub fn tasks(
    network: &Network,
    training: &Training,
    style: &Style,
) -> Result<Vec<Task>, WorkloadError> {
    training.check()?;
    let (wanted, given) = (training.ranks(), network.hosts.len() as u64);
    if wanted > given {
        return Err(WorkloadError::Numbers(format!(
            "data {} x tensor {} x pipeline {} are {wanted} GPUs, but there are {given}",
            training.data, training.tensor, training.pipeline
        )));
    }
    let stages = training.pipeline as usize;
    let mut graph = Graph {
        network,
        training,
        style,
        tasks: Vec::new(),
        history: vec![Vec::new(); stages],
        followed: BTreeMap::new(),
    };
    graph.pipeline()?;
    Ok(graph.tasks)
}

/// One direction of a micro-batch in a stage.
#[derive(Clone, Copy)]
struct Block {
    stage: u32,
    microbatch: u32,
    forward: bool,
}

struct Graph<'a> {
    network: &'a Network,
    training: &'a Training,
    style: &'a Style,
    tasks: Vec<Task>,
    /// What ended each piece of a stage's computing, in its order.
    history: Vec<Vec<Vec<TaskId>>>,
    /// The last call of a kind, of a group.
    followed: BTreeMap<(Kind, u32, usize), TaskId>,
}

impl Graph<'_> {
    /// All stages, each block as soon as what it needs is there.
    fn pipeline(&mut self) -> Result<(), WorkloadError> {
        let (stages, microbatches) = (self.training.pipeline, self.training.microbatches);
        let orders: Vec<Vec<Work>> = (0..stages)
            .map(|stage| one_forward_one_backward(stage, stages, microbatches))
            .collect();
        let mut at = vec![0_usize; orders.len()];
        // What a block waits for, from the stage before or after.
        let mut passed: BTreeMap<(u32, bool, u32), TaskId> = BTreeMap::new();
        loop {
            let mut moved = false;
            for stage in 0..stages {
                let place = stage as usize;
                while let Some(work) = orders[place].get(at[place]) {
                    let (microbatch, forward) = match *work {
                        Work::Forward(microbatch) => (microbatch, true),
                        Work::Backward(microbatch) => (microbatch, false),
                    };
                    let first = if forward { stage == 0 } else { stage + 1 == stages };
                    let given = passed.get(&(stage, forward, microbatch)).copied();
                    if !first && given.is_none() {
                        break;
                    }
                    let block = Block { stage, microbatch, forward };
                    let ends = self.block(block, given)?;
                    let next = if forward { stage + 1 } else { stage.wrapping_sub(1) };
                    if next < stages {
                        let sent = self.pass(block, next, ends);
                        passed.insert((next, forward, microbatch), sent);
                    }
                    at[place] += 1;
                    moved = true;
                }
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// Computes, with all that hangs on it; gives what ended it.
    fn block(&mut self, block: Block, given: Option<TaskId>) -> Result<Vec<TaskId>, SimError> {
        let training = self.training;
        let Block { stage, microbatch, forward } = block;
        let last = microbatch + 1 == training.microbatches;
        let staged = training.pipeline > 1;
        // Once with stages; for each micro-batch without.
        let gathers = training.fsdp && if staged { forward && microbatch == 0 } else { true };
        let reduces = !forward && training.data > 1 && (last || (training.fsdp && !staged));
        let pieces = if gathers || reduces { training.buckets } else { 1 };
        let part = 1.0 / f64::from(pieces);
        let whole = if forward { 1.0 / 3.0 } else { 2.0 / 3.0 };
        let us = training.compute_us() * whole / f64::from(training.microbatches) * part;
        let what = if forward { "forward" } else { "backward" };
        let place = stage as usize;
        for piece in 0..pieces {
            let mut after: Vec<TaskId> = self.history[place].last().cloned().unwrap_or_default();
            if piece == 0 {
                after.extend(given);
            }
            if gathers {
                after.extend(self.weights(Kind::Gather, stage, part, &[])?);
            }
            let number =
                if pieces > 1 { format!(" {}/{pieces}", piece + 1) } else { String::new() };
            self.tasks.push(Task {
                name: format!("{what} {}{number}", microbatch + 1),
                row: row(training, stage, "compute"),
                after,
                what: What::Wait { us },
            });
            let mut ends = vec![self.tasks.len() - 1];
            ends = self.on_the_way(Kind::Tensor, stage, part, ends)?;
            ends = self.on_the_way(Kind::Expert, stage, part, ends)?;
            self.history[place].push(ends.clone());
            if reduces {
                let kind = if training.fsdp { Kind::Scatter } else { Kind::Gradients };
                self.weights(kind, stage, part, &ends)?;
            }
        }
        Ok(self.history[place].last().cloned().unwrap_or_default())
    }

    /// Calls that computing waits for: two of each layer, in each direction.
    fn on_the_way(
        &mut self,
        kind: Kind,
        stage: u32,
        part: f64,
        after: Vec<TaskId>,
    ) -> Result<Vec<TaskId>, SimError> {
        let training = self.training;
        let calls = 2.0 * training.stage_layers() * part;
        let activation = training.activation_bytes();
        let (groups, bytes) = match kind {
            Kind::Tensor if training.tensor > 1 => {
                let group = |replica| {
                    (0..training.tensor).map(|t| training.rank(stage, replica, t)).collect()
                };
                ((0..training.data).map(group).collect::<Vec<Vec<u32>>>(), activation)
            }
            Kind::Expert if training.experts > 0 && training.expert > 1 => {
                let share = f64::from(training.top_k) / f64::from(training.tensor);
                (self.blocks_of_replicas(stage), activation * share)
            }
            _ => return Ok(after),
        };
        self.calls(kind, stage, &groups, bytes * calls, calls, &after, false)
    }

    /// Groups of replicas next to each other, that share experts.
    fn blocks_of_replicas(&self, stage: u32) -> Vec<Vec<u32>> {
        let training = self.training;
        let mut groups = Vec::new();
        for place in 0..training.tensor {
            for first in (0..training.data).step_by(training.expert as usize) {
                let own = first..first + training.expert;
                groups.push(own.map(|replica| training.rank(stage, replica, place)).collect());
            }
        }
        groups
    }

    /// Parameters or gradients of a part of a stage: those that all replicas hold, and those of experts.
    fn weights(
        &mut self,
        kind: Kind,
        stage: u32,
        part: f64,
        after: &[TaskId],
    ) -> Result<Vec<TaskId>, SimError> {
        let training = self.training;
        let (shared, experts) = training.held_bytes();
        let mut waits = after.to_vec();
        if kind == Kind::Gather {
            // No more than one piece ahead of what is computed.
            let history = &self.history[stage as usize];
            if let Some(before) = history.len().checked_sub(2).and_then(|at| history.get(at)) {
                waits.extend(before);
            }
        }
        let mut ends = Vec::new();
        // Replicas that hold the same experts are `expert` apart.
        for (bytes, apart) in [(shared, 1), (experts, training.expert)] {
            if bytes <= 0.0 {
                continue;
            }
            let mut groups: Vec<Vec<u32>> = Vec::new();
            for place in 0..training.tensor {
                for first in 0..apart {
                    let own = (first..training.data).step_by(apart as usize);
                    groups.push(own.map(|replica| training.rank(stage, replica, place)).collect());
                }
            }
            ends.extend(self.calls(kind, stage, &groups, bytes * part, 1.0, &waits, true)?);
        }
        Ok(ends)
    }

    /// The same call in every group. `calls` of them in one, which wait as often for messages to arrive.
    #[expect(clippy::too_many_arguments, reason = "a call is made of them")]
    fn calls(
        &mut self,
        kind: Kind,
        stage: u32,
        groups: &[Vec<u32>],
        bytes: f64,
        calls: f64,
        after: &[TaskId],
        follow: bool,
    ) -> Result<Vec<TaskId>, SimError> {
        let bytes = whole(bytes);
        let mut ends = Vec::new();
        for group in groups.iter().filter(|group| group.len() > 1) {
            let mut waits = after.to_vec();
            let key = (kind, group[0], group.len());
            if follow {
                waits.extend(self.followed.get(&key));
            }
            let mut call = self.style.call(self.network, (kind.collective(), bytes), group.clone());
            call.row = row(self.training, stage, kind.name());
            let first = self.tasks.len();
            let end = pattern::tasks(self.network, &call, &waits, &mut self.tasks)?;
            for task in &mut self.tasks[first..] {
                // Rings and rails of one call are one to those who look.
                task.name.clone_from(&call.name);
                if let What::Stream(stream) | What::Flows(stream) = &mut task.what {
                    stream.latency_us *= calls.max(1.0);
                }
            }
            self.followed.insert(key, end);
            ends.push(end);
        }
        if ends.is_empty() {
            return Ok(after.to_vec());
        }
        Ok(ends)
    }

    /// Passes a micro-batch on to another stage: each place of a tensor group its part.
    fn pass(&mut self, block: Block, next: u32, after: Vec<TaskId>) -> TaskId {
        let training = self.training;
        let bytes = training.activation_bytes() / f64::from(training.tensor);
        let mut flows = Vec::new();
        let mut latency_us: f64 = 0.0;
        for replica in 0..training.data {
            for place in 0..training.tensor {
                let from = training.rank(block.stage, replica, place);
                let to = training.rank(next, replica, place);
                latency_us = latency_us.max(self.network.latency_us(from, to));
                let parts = self.network.parts((from, to), self.style.qps.max(1));
                flows.extend((0..parts).map(|key| Flow {
                    from: Place::Rank(from),
                    to: Place::Rank(to),
                    share: 1.0 / f64::from(parts),
                    key: u64::from(key),
                }));
            }
        }
        let size = ringway_plan::draw::size(whole(bytes));
        self.tasks.push(Task {
            name: format!("pass on {size}"),
            row: row(training, block.stage, Kind::Pipeline.name()),
            after,
            what: What::Flows(Stream { bytes, flows, latency_us }),
        });
        self.tasks.len() - 1
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes are positive, and fewer than 2^64"
)]
fn whole(bytes: f64) -> u64 {
    bytes.max(0.0).round() as u64
}
