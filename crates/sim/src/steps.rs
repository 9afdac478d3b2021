//! The library's own plans, unchanged, step by step.
//!
//! A lane is a worker that does its steps in order. What it does in its own memory takes the machine's memory bandwidth,
//! which a rank's lanes share; what it puts to a peer, or reads from a peer's memory, is a flow through the network. A
//! put is over for the lane when all but [`Work::buffer_bytes`] of what it has sent to that peer has left;
//! it is seen at the peer after the latency of the way, and so is the signal behind it. Messages of a
//! lane to a peer keep their order.
//!
//! *Invariant:* nothing here knows an algorithm; a plan that is new runs with no other change.

use std::collections::{BTreeMap, HashMap, VecDeque};

use ringway_plan::plan::{Flag, Plan, Region, Span as Values, Step};
use ringway_plan::types::DataType;

use crate::engine::{Engine, Event, Options};
use crate::error::SimError;
use crate::network::{Network, Place, small};
use crate::outcome::{Outcome, Span};
use crate::work::{Flow, Stream};

/// What ranks are like that run plans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Microseconds of any step besides its bytes.
    pub overhead_us: f64,
    /// Whether a rank has one core, so that its lanes' steps wait for each other.
    pub one_core: bool,
    /// Bytes to a peer that a lane may have on their way when it goes on, as the buffers of a socket let it.
    pub buffer_bytes: u64,
}

impl Default for Work {
    /// A GPU: lanes are blocks of their own, and a put is over when its bytes have left.
    fn default() -> Self {
        Self { overhead_us: 0.0, one_core: false, buffer_bytes: 0 }
    }
}

/// Runs a plan; rank `i` of the plan is rank `i` of the network.
///
/// # Errors
///
/// When the plan has other ranks or hosts than the network, a flow has no way, or the plan stands still for ever.
pub fn run_plan(
    network: &Network,
    plan: &Plan,
    options: &Options,
    work: &Work,
) -> Result<Outcome, SimError> {
    check(network, plan)?;
    let mut run = Run::new(network, plan, options, work)?;
    for lane in 0..run.lanes.len() {
        let rank = run.lanes[lane].rank;
        let late = options.late.iter().filter(|(other, _)| *other == rank);
        let late_us = late.map(|(_, us)| *us).fold(0.0, f64::max);
        run.timer(late_us, Purpose::Go(lane));
    }
    while let Some((_, event)) = run.engine.next()? {
        match event {
            Event::Done(stream) => match run.owners[stream] {
                Owner::Lane(lane) => run.worked(lane),
                Owner::Channel(key) => run.sent(key)?,
            },
            Event::Timer(id) => match run.purposes[usize::try_from(id).unwrap_or(0)] {
                Purpose::Go(lane) => run.wake(lane)?,
                Purpose::Raise(key) => run.raise(key),
            },
        }
    }
    run.outcome()
}

/// A counter: who raises it, at whom, which.
type Key = (u32, u32, Flag);

/// A lane and a peer it sends to.
type ChannelKey = (usize, u32);

#[derive(Clone, Copy, Debug)]
enum Purpose {
    Go(usize),
    Raise(Key),
}

#[derive(Clone, Copy, Debug)]
enum Owner {
    /// A step of this lane reads a peer's memory.
    Lane(usize),
    /// The message at the head of this channel.
    Channel(ChannelKey),
}

#[derive(Clone, Debug)]
struct Lane {
    rank: u32,
    index: usize,
    step: usize,
    /// Microseconds of its own work that follow on what it reads.
    then_us: f64,
    /// The channel that must have less on its way before it goes on.
    full: Option<ChannelKey>,
}

/// Messages of a lane to a peer that have not left.
#[derive(Clone, Debug, Default)]
struct Channel {
    waiting: VecDeque<(u64, Option<Flag>)>,
    bytes: u64,
}

struct Run<'a> {
    network: &'a Network,
    plan: &'a Plan,
    work: &'a Work,
    engine: Engine<'a>,
    data_type: DataType,
    lanes: Vec<Lane>,
    purposes: Vec<Purpose>,
    owners: Vec<Owner>,
    channels: HashMap<ChannelKey, Channel>,
    raised: HashMap<Key, u32>,
    /// Lanes that stand, and for how many signals.
    standing: BTreeMap<Key, Vec<(usize, u32)>>,
    /// Until when each rank's memory (or core) is taken.
    taken_us: Vec<f64>,
    begun_us: Vec<f64>,
    ended_us: Vec<f64>,
    end_us: f64,
}

impl<'a> Run<'a> {
    fn new(
        network: &'a Network,
        plan: &'a Plan,
        options: &Options,
        work: &'a Work,
    ) -> Result<Self, SimError> {
        let mut lanes = Vec::new();
        for (rank, part) in plan.ranks.iter().enumerate() {
            lanes.extend((0..part.lanes.len()).map(|index| Lane {
                rank: small(rank),
                index,
                step: 0,
                then_us: 0.0,
                full: None,
            }));
        }
        let ranks = plan.ranks.len();
        Ok(Self {
            network,
            plan,
            work,
            engine: Engine::new(network, options)?,
            data_type: plan.problems.first().map_or(DataType::U8, |problem| problem.data_type),
            lanes,
            purposes: Vec::new(),
            owners: Vec::new(),
            channels: HashMap::new(),
            raised: HashMap::new(),
            standing: BTreeMap::new(),
            taken_us: vec![0.0; ranks],
            begun_us: vec![f64::INFINITY; ranks],
            ended_us: vec![0.0; ranks],
            end_us: 0.0,
        })
    }

    fn timer(&mut self, us: f64, purpose: Purpose) {
        self.engine.after(us);
        self.purposes.push(purpose);
    }

    fn start(&mut self, stream: &Stream, owner: Owner) -> Result<(), SimError> {
        let id = self.engine.start(stream)?;
        self.owners.resize(self.owners.len().max(id + 1), owner);
        self.owners[id] = owner;
        Ok(())
    }

    /// Goes on with a lane.
    fn wake(&mut self, lane: usize) -> Result<(), SimError> {
        let now_us = self.engine.now_us();
        let Lane { rank, index, step, .. } = self.lanes[lane];
        let begun = &mut self.begun_us[rank as usize];
        *begun = begun.min(now_us);
        let part = &self.plan.ranks[rank as usize];
        let Some(step) = part.lanes[index].get(step).copied() else {
            let ended = &mut self.ended_us[rank as usize];
            *ended = ended.max(now_us);
            self.end_us = self.end_us.max(now_us);
            return Ok(());
        };
        let bytes = |values: &Values| values.bytes(self.data_type);
        match step {
            Step::Wait { peer, flag, count } => self.stand(lane, (peer, rank, flag), count),
            Step::See { peer, card } => self.stand(lane, (peer, rank, Flag::MAX - card), 1),
            Step::Copy { source, target } => {
                let onto_itself = source.region == target.region && source.offset == target.offset;
                let size = if onto_itself { 0 } else { bytes(&source) };
                self.move_values(lane, &[(source.region, size)], (target.region, size))?;
            }
            Step::Reduce { first, operands, target, .. } => {
                let operands = part.operands(first, operands).iter();
                let sources: Vec<(Region, u64)> =
                    operands.map(|o| (o.span.region, bytes(&o.span))).collect();
                self.move_values(lane, &sources, (target.region, bytes(&target)))?;
            }
            Step::Get { peer, target, .. } => {
                let size = bytes(&target);
                self.move_values(lane, &[(Region::PeerInput(peer), size)], (target.region, 0))?;
            }
            Step::Put { peer, source, signal, .. } => {
                self.send(lane, peer, (bytes(&source), signal))?;
            }
            Step::Signal { peer, flag } => self.send(lane, peer, (0, Some(flag)))?,
            Step::Show { card, .. } => {
                let near = |peer: &usize| self.plan.hosts[*peer] == self.plan.hosts[rank as usize];
                let near: Vec<usize> = (0..self.plan.hosts.len()).filter(near).collect();
                let latency_us = self.network.machine.inside_us;
                for peer in near.into_iter().filter(|peer| *peer != rank as usize) {
                    let key = (rank, small(peer), Flag::MAX - card);
                    self.timer(latency_us, Purpose::Raise(key));
                }
                self.go_on(lane, 0.0);
            }
        }
        Ok(())
    }

    /// The step is over but for so much work of the rank's own.
    fn go_on(&mut self, lane: usize, memory_us: f64) {
        let now_us = self.engine.now_us();
        let overhead_us = self.work.overhead_us;
        let rank = self.lanes[lane].rank as usize;
        let (shared_us, own_us) = match self.work.one_core {
            true => (memory_us + overhead_us, 0.0),
            false => (memory_us, overhead_us),
        };
        let mut done_us = now_us;
        if shared_us > 0.0 {
            self.taken_us[rank] = self.taken_us[rank].max(now_us) + shared_us;
            done_us = self.taken_us[rank];
        }
        self.lanes[lane].step += 1;
        self.timer(done_us + own_us - now_us, Purpose::Go(lane));
    }

    /// What a lane reads from peers has come.
    fn worked(&mut self, lane: usize) {
        let then_us = std::mem::take(&mut self.lanes[lane].then_us);
        self.go_on(lane, then_us);
    }

    /// Reads values, from peers through the network, and writes them.
    fn move_values(
        &mut self,
        lane: usize,
        sources: &[(Region, u64)],
        target: (Region, u64),
    ) -> Result<(), SimError> {
        let rank = self.lanes[lane].rank;
        let mut flows: Vec<(u32, u32, u64)> = Vec::new();
        let mut local = 0;
        for (region, bytes) in sources {
            match region.owner().filter(|owner| *owner != rank) {
                Some(owner) if !matches!(region, Region::Card(_)) => {
                    flows.push((owner, rank, *bytes));
                }
                _ => local += bytes,
            }
        }
        match target.0.owner().filter(|owner| *owner != rank) {
            Some(owner) => flows.push((rank, owner, target.1)),
            None => local += target.1,
        }
        let memory_us = real(local) / (self.network.machine.memory_gbytes * 1000.0);
        let most = flows.iter().map(|(_, _, bytes)| *bytes).max().unwrap_or(0);
        if most == 0 {
            self.go_on(lane, memory_us);
            return Ok(());
        }
        let flow = |(from, to, bytes): &(u32, u32, u64)| Flow {
            from: Place::Rank(*from),
            to: Place::Rank(*to),
            share: real(*bytes) / real(most),
            key: self.lanes[lane].index as u64,
        };
        let flows = flows.iter().map(flow).collect();
        self.lanes[lane].then_us = memory_us;
        let latency_us = self.network.machine.inside_us;
        self.start(&Stream { bytes: real(most), flows, latency_us }, Owner::Lane(lane))
    }

    /// Sends a message, or a signal alone, behind those that have not left.
    fn send(
        &mut self,
        lane: usize,
        peer: u32,
        message: (u64, Option<Flag>),
    ) -> Result<(), SimError> {
        let key = (lane, peer);
        let channel = self.channels.entry(key).or_default();
        channel.bytes += message.0;
        channel.waiting.push_back(message);
        let full = channel.bytes > self.work.buffer_bytes;
        if channel.waiting.len() == 1 {
            self.send_next(key)?;
        }
        if full && self.channels.get(&key).is_some_and(|channel| !channel.waiting.is_empty()) {
            self.lanes[lane].full = Some(key);
        } else {
            self.go_on(lane, 0.0);
        }
        Ok(())
    }

    /// Lets the message at the head of a channel leave; signals without bytes are gone at once.
    fn send_next(&mut self, key: ChannelKey) -> Result<(), SimError> {
        let (lane, peer) = key;
        let rank = self.lanes[lane].rank;
        loop {
            let Some(channel) = self.channels.get_mut(&key) else { return Ok(()) };
            let Some((bytes, signal)) = channel.waiting.front().copied() else { return Ok(()) };
            if bytes > 0 {
                let flow = Flow {
                    from: Place::Rank(rank),
                    to: Place::Rank(peer),
                    share: 1.0,
                    key: self.lanes[lane].index as u64,
                };
                let stream = Stream { bytes: real(bytes), flows: vec![flow], latency_us: 0.0 };
                return self.start(&stream, Owner::Channel(key));
            }
            channel.waiting.pop_front();
            self.tell(rank, peer, signal);
        }
    }

    /// The message at the head of a channel has left.
    fn sent(&mut self, key: ChannelKey) -> Result<(), SimError> {
        let (lane, peer) = key;
        let rank = self.lanes[lane].rank;
        let buffer = self.work.buffer_bytes;
        let Some(channel) = self.channels.get_mut(&key) else { return Ok(()) };
        let Some((bytes, signal)) = channel.waiting.pop_front() else { return Ok(()) };
        channel.bytes -= bytes;
        let room = channel.bytes <= buffer;
        self.tell(rank, peer, signal);
        self.send_next(key)?;
        if room && self.lanes[lane].full == Some(key) {
            self.lanes[lane].full = None;
            self.go_on(lane, 0.0);
        }
        Ok(())
    }

    fn tell(&mut self, rank: u32, peer: u32, signal: Option<Flag>) {
        if let Some(flag) = signal {
            let latency_us = self.network.latency_us(rank, peer);
            self.timer(latency_us, Purpose::Raise((rank, peer, flag)));
        }
    }

    fn stand(&mut self, lane: usize, key: Key, count: u32) {
        if self.raised.get(&key).copied().unwrap_or(0) >= count {
            self.go_on(lane, 0.0);
        } else {
            self.standing.entry(key).or_default().push((lane, count));
        }
    }

    fn raise(&mut self, key: Key) {
        let raised = self.raised.entry(key).or_default();
        *raised += 1;
        let raised = *raised;
        let Some(standing) = self.standing.get_mut(&key) else { return };
        let (free, rest) = standing.iter().partition(|(_, count)| *count <= raised);
        *standing = rest;
        if standing.is_empty() {
            self.standing.remove(&key);
        }
        let free: Vec<(usize, u32)> = free;
        free.into_iter().for_each(|(lane, _)| self.go_on(lane, 0.0));
    }

    fn outcome(mut self) -> Result<Outcome, SimError> {
        if let Some((key, lanes)) = self.standing.iter().next() {
            let lane = &self.lanes[lanes[0].0];
            return Err(SimError::Plan(format!(
                "the plan stands still for ever: rank {} lane {} step {} waits for signal {} of flag {} from rank {}",
                lane.rank, lane.index, lane.step, lanes[0].1, key.2, key.0
            )));
        }
        let spans = (0..self.plan.ranks.len()).filter(|rank| self.begun_us[*rank].is_finite());
        let span = |rank: usize| Span {
            name: self.plan.algorithm.clone(),
            row: format!("rank {rank}"),
            start_us: self.begun_us[rank],
            end_us: self.ended_us[rank],
        };
        let mut spans: Vec<Span> = spans.map(span).collect();
        spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
        Ok(Outcome {
            end_us: self.end_us,
            spans,
            links: self.engine.link_uses(),
            incidents: self.engine.take_incidents(),
            flows: self.engine.flows(),
            solves: self.engine.solves(),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "a simulation is not exact to the byte")]
fn real(bytes: u64) -> f64 {
    bytes as f64
}

/// Whether ranks of a plan and of the network are the same, on the same hosts, and all peers are there.
fn check(network: &Network, plan: &Plan) -> Result<(), SimError> {
    let wrong = |what: String| Err(SimError::Plan(what));
    let ranks = plan.ranks.len();
    if ranks != network.ranks() || plan.hosts.len() != ranks {
        return wrong(format!(
            "the plan has {ranks} ranks and the network {}; build it for as many",
            network.ranks()
        ));
    }
    let mut hosts: HashMap<u32, usize> = HashMap::new();
    for (rank, host) in plan.hosts.iter().enumerate() {
        let known = *hosts.entry(*host).or_insert(network.hosts[rank]);
        if known != network.hosts[rank] {
            return wrong(format!(
                "the plan has rank {rank} on host {host} with ranks that the network has elsewhere"
            ));
        }
    }
    for (rank, part) in plan.ranks.iter().enumerate() {
        if let Some(peer) = part.peers().into_iter().find(|peer| *peer as usize >= ranks) {
            return wrong(format!("rank {rank} of the plan has a peer {peer} that is not there"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
