//! Whole collectives as flows: what goes over each link in all, not message by message.
//!
//! A ring's flows go at one pace, since nobody can pass on what has not come; so do those of a tree, or of one rail of
//! a layered collective, which is pipelined: inside the hosts and between them at once. The flows of an exchange
//! ([`Pattern::Direct`]) go each at its own. Messages that follow one another add their latency.
//!
//! | pattern | collectives | streams |
//! |---|---|---|
//! | ring | all_reduce, reduce_scatter, all_gather, broadcast, reduce, barrier | one a channel |
//! | tree | all_reduce, broadcast, reduce, barrier | two a channel |
//! | hierarchical | all_reduce, reduce_scatter, all_gather, broadcast, reduce | one a rail, around the ring of hosts |
//! | hierarchical_chain | the same | one a rail; all_reduce goes up the chain of hosts and back, as the library's does |
//! | direct | all_to_all, all_gather, gather, scatter, broadcast, send_recv | every flow by itself |
//! | sharp | all_reduce | one for each adapter of a rail, up a tree of switches that reduce, and down |
//!
//! Channels differ in the order of the ranks inside a host, so that each leaves and enters by another adapter. What a
//! rank with several adapters sends is spread over all of them.

mod direct;
mod layered;
mod ring;
mod sharp;
mod tree;

use std::fmt;
use std::str::FromStr;

use ringway_plan::types::{Collective, UnknownName};

use crate::error::SimError;
use crate::network::{Network, Place};
use crate::work::{Flow, Stream, Task, TaskId, What};

/// How a collective is done.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Pattern {
    /// Around all ranks.
    Ring,
    /// Up and down two binary trees, half the data each.
    Tree,
    /// Inside hosts, and around the hosts rail by rail.
    Hierarchical,
    /// Inside hosts, and along the hosts and back rail by rail.
    HierarchicalChain,
    /// Straight to whom it concerns.
    Direct,
    /// Inside hosts, and reduced by switches.
    Sharp,
}

impl Pattern {
    /// Every pattern.
    pub const ALL: [Self; 6] = [
        Self::Ring,
        Self::Tree,
        Self::Hierarchical,
        Self::HierarchicalChain,
        Self::Direct,
        Self::Sharp,
    ];

    /// The name used on the command line and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::Hierarchical => "hierarchical",
            Self::HierarchicalChain => "hierarchical_chain",
            Self::Direct => "direct",
            Self::Sharp => "sharp",
        }
    }

    /// The collectives it does.
    #[must_use]
    pub const fn collectives(self) -> &'static [Collective] {
        match self {
            Self::Ring => &[
                Collective::AllReduce,
                Collective::ReduceScatter,
                Collective::AllGather,
                Collective::Broadcast,
                Collective::Reduce,
                Collective::Barrier,
            ],
            Self::Tree => &[
                Collective::AllReduce,
                Collective::Broadcast,
                Collective::Reduce,
                Collective::Barrier,
            ],
            Self::Hierarchical | Self::HierarchicalChain => &[
                Collective::AllReduce,
                Collective::ReduceScatter,
                Collective::AllGather,
                Collective::Broadcast,
                Collective::Reduce,
            ],
            Self::Direct => &[
                Collective::AllToAll,
                Collective::AllGather,
                Collective::Gather,
                Collective::Scatter,
                Collective::Broadcast,
                Collective::SendRecv,
            ],
            Self::Sharp => &[Collective::AllReduce],
        }
    }
}

impl FromStr for Pattern {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        let plain = word.to_ascii_lowercase().replace(['_', '-'], "");
        let found = Self::ALL.into_iter().find(|one| one.name().replace('_', "") == plain);
        found.ok_or_else(|| UnknownName {
            kind: "pattern",
            given: word.to_owned(),
            choices: Self::ALL.map(Self::name).join(", "),
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Which.
    pub collective: Collective,
    /// The size as nccl-tests prints it.
    pub bytes: u64,
    /// How.
    pub algorithm: Pattern,
    /// Rings or trees side by side; 0 for as many as a host has adapters for the group.
    pub channels: u32,
    /// Queue pairs of each connection, at least 1; as many more as it takes for each of the sender's adapters to have as
    /// many.
    pub qps: u32,
    /// Who takes part; empty for everybody.
    pub ranks: Vec<u32>,
    /// What people see.
    pub name: String,
    /// The row of a timeline it is in.
    pub row: String,
    /// The special one, by place in `ranks`.
    pub root: u32,
}

impl Call {
    /// A call of everybody, in one row.
    #[must_use]
    pub fn new(collective: Collective, bytes: u64, algorithm: Pattern) -> Self {
        Self {
            collective,
            bytes,
            algorithm,
            channels: 0,
            qps: 1,
            ranks: Vec::new(),
            name: collective.name().to_owned(),
            row: "network".to_owned(),
            root: 0,
        }
    }
}

/// Bytes that a rank of a chain passes on at a time.
pub const CHUNK_BYTES: f64 = 131_072.0;

/// Adds a collective to a list of tasks, after some of them. Gives the task that is over when the collective is.
///
/// # Errors
///
/// When the pattern has no such collective, or ranks are not there or named twice.
pub fn tasks(
    network: &Network,
    call: &Call,
    after: &[TaskId],
    tasks: &mut Vec<Task>,
) -> Result<TaskId, SimError> {
    let group = Group::new(network, call)?;
    let streams = match (call.algorithm, group.ranks.len()) {
        (_, 1) => Vec::new(),
        (Pattern::Ring, _) => ring::streams(&group),
        (Pattern::Tree, _) => tree::streams(&group),
        (Pattern::Hierarchical, _) => layered::streams(&group, false),
        (Pattern::HierarchicalChain, _) => layered::streams(&group, true),
        (Pattern::Direct, _) => direct::streams(&group),
        (Pattern::Sharp, _) => sharp::streams(&group)?,
    };
    let first = tasks.len();
    let many = streams.len() > 1;
    for (part, stream) in streams {
        let what = match call.algorithm {
            Pattern::Direct => What::Flows(stream),
            _ => What::Stream(stream),
        };
        let name = if many { format!("{} {part}", call.name) } else { call.name.clone() };
        tasks.push(Task { name, row: call.row.clone(), after: after.to_vec(), what });
    }
    if tasks.len() == first + 1 {
        return Ok(first);
    }
    let parts: Vec<TaskId> = (first..tasks.len()).collect();
    let after = if parts.is_empty() { after.to_vec() } else { parts };
    let what = What::Wait { us: 0.0 };
    tasks.push(Task { name: call.name.clone(), row: call.row.clone(), after, what });
    Ok(tasks.len() - 1)
}

/// A stream, and what it is called beside others of its collective.
type Named = (String, Stream);

/// Who takes part, and where they are.
struct Group<'a> {
    network: &'a Network,
    call: &'a Call,
    ranks: Vec<u32>,
    /// The ranks of each host, in the order of their first ranks.
    hosts: Vec<Vec<u32>>,
    bytes: f64,
    qps: u32,
}

impl<'a> Group<'a> {
    fn new(network: &'a Network, call: &'a Call) -> Result<Self, SimError> {
        let wrong = |what: String| Err(SimError::Call(format!("{}: {what}", call.name)));
        if !call.algorithm.collectives().contains(&call.collective) {
            let able = Pattern::ALL.iter().filter(|p| p.collectives().contains(&call.collective));
            let names: Vec<&str> = able.map(|pattern| pattern.name()).collect();
            return wrong(format!(
                "{} has no {}; choose one of {}",
                call.algorithm,
                call.collective,
                names.join(", ")
            ));
        }
        let all = u32::try_from(network.ranks()).unwrap_or(u32::MAX);
        let ranks = if call.ranks.is_empty() { (0..all).collect() } else { call.ranks.clone() };
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong(format!("rank {} takes part twice", twice[0]));
        }
        if let Some(stranger) = sorted.last().filter(|last| **last >= all) {
            return wrong(format!("there is no rank {stranger}: ranks are 0 to {}", all - 1));
        }
        if call.root as usize >= ranks.len() {
            return wrong(format!("root {} of {} ranks", call.root, ranks.len()));
        }
        let mut places = std::collections::HashMap::new();
        let mut hosts: Vec<Vec<u32>> = Vec::new();
        for rank in &ranks {
            let place = *places.entry(network.hosts[*rank as usize]).or_insert(hosts.len());
            if place == hosts.len() {
                hosts.push(Vec::new());
            }
            hosts[place].push(*rank);
        }
        #[expect(clippy::cast_precision_loss, reason = "a simulation is not exact to the byte")]
        let bytes = call.bytes as f64;
        Ok(Self { network, call, ranks, hosts, bytes, qps: call.qps.max(1) })
    }

    fn root(&self) -> u32 {
        self.ranks[self.call.root as usize]
    }

    fn count(&self) -> f64 {
        amount(self.ranks.len())
    }

    /// Channels that were asked for, or one for each adapter of the host with the most.
    fn channels(&self) -> u32 {
        if self.call.channels > 0 {
            return self.call.channels;
        }
        let adapters = self.hosts.iter().map(|host| {
            let one =
                |rank: &u32| (self.network.adapters[*rank as usize], self.own_adapters(*rank));
            let mut own: Vec<_> = host.iter().map(one).collect();
            own.sort_unstable();
            own.dedup();
            own.iter().map(|(_, own)| own).sum::<u32>()
        });
        adapters.max().unwrap_or(1)
    }

    fn own_adapters(&self, rank: u32) -> u32 {
        self.network.own_adapters[rank as usize]
    }

    /// Adds a flow, in as many parts as there are queue pairs, and as many for each adapter by which it leaves.
    fn between(&self, flows: &mut Vec<Flow>, ends: (u32, u32), share: f64, channel: u32) {
        let parts = self.network.parts(ends, self.qps);
        for qp in 0..parts {
            flows.push(Flow {
                from: Place::Rank(ends.0),
                to: Place::Rank(ends.1),
                share: share / f64::from(parts),
                key: u64::from(channel) * u64::from(parts) + u64::from(qp),
            });
        }
    }

    fn latency_us(&self, a: u32, b: u32) -> f64 {
        self.network.latency_us(a, b)
    }

    /// Microseconds until the last of a chain of `hops` has begun: each must have a chunk before it passes it on.
    fn fill_us(&self, hops: usize, bytes: f64) -> f64 {
        let machine = &self.network.machine;
        let rate = if self.hosts.len() > 1 {
            let adapter = self.network.adapters[self.ranks[0] as usize];
            let cable = self.network.cables.of(adapter).first();
            let cable = cable.map_or(f64::INFINITY, |c| self.network.links[c.0 as usize].capacity);
            cable.min(machine.bus_gbytes * 1000.0)
        } else {
            machine.inside_gbytes * 1000.0
        };
        amount(hops.saturating_sub(1)) * bytes.min(CHUNK_BYTES) / rate
    }

    /// The ranks in the order of a channel: hosts one after another, those of a host from another one on each
    /// time. Where `turning`, every second host goes backwards, so that a channel enters a host by the rail by
    /// which it left the one before.
    fn order(&self, channel: u32, turning: bool) -> Vec<u32> {
        let channels = self.channels() as usize;
        let mut order = Vec::with_capacity(self.ranks.len());
        for (place, host) in self.hosts.iter().enumerate() {
            let first = channel as usize * host.len() / channels % host.len();
            let from = order.len();
            order.extend(host[first..].iter().chain(&host[..first]));
            if turning && place % 2 == 1 {
                order[from..].reverse();
            }
        }
        order
    }
}

fn amount(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
