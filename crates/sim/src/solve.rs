//! Who gets how much: max-min fair shares of links.
//!
//! A stream has a *rate*: bytes a microsecond of a flow whose share is 1. It uses a link with a weight, the sum of the
//! shares of its flows there. All rates rise together until a link is full; the streams on that link keep their
//! rate, the others rise on (progressive filling). So nobody can have more without taking from
//! somebody who has no more.
//!
//! When something changes, only part of it is done again. A change at a link leaves alone every stream whose rate is
//! below a *threshold*: the rate of a stream that ended, or what a link would give if all on it had the same.
//! Filling would go as before up to there. So the streams at or above the threshold are found, link by link from where the
//! change was, and are filled anew into what the others leave.
//!
//! *Invariant:* after `Solver::solve` no link carries more than it can, but for rounding, and every stream has a
//! link that is full and where no other stream has a higher rate.

mod pause;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::network::Network;
use crate::outcome::LinkUse;
use crate::route::Use;

/// Whether congestion spreads.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Pause {
    /// Each flow is held up by its own bottleneck alone.
    #[default]
    Never,
    /// Lossless Ethernet at its worst: a flow that is held up at a link fills the buffers before it, and everything
    /// that shares a link with it up to there goes no faster than it does. Capacity that this frees is not
    /// given to others.
    Spreads,
}

/// A link under a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) link: u32,
    /// Bytes for each byte of a flow of share 1.
    pub(crate) weight: f64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    slot: u32,
    version: u32,
    weight: f64,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    loads: Box<[Load]>,
    rate: f64,
    /// Raised when it leaves, so that links can tell who is there.
    version: u32,
    present: bool,
    /// Whether it has no rate yet.
    fresh: bool,
    /// The round it was last dealt with in.
    round: u32,
    frozen: bool,
    /// The flows' own ways, where congestion spreads along them.
    ways: Box<[Box<[Use]>]>,
}

#[derive(Clone, Debug, Default)]
struct LinkState {
    capacity: f64,
    members: Vec<Member>,
    /// Weights of all members, about.
    weight: f64,
    round: u32,
    // While rates are found:
    free: f64,
    open: f64,
    count: u32,
    // What it does, and did:
    used: f64,
    /// It carries all it can, or is held up by pauses.
    full: bool,
    since_us: f64,
    bytes: f64,
    busy_us: f64,
    full_us: f64,
}

impl LinkState {
    fn account(&mut self, now_us: f64) {
        let passed = now_us - self.since_us;
        if self.used > 0.0 && passed > 0.0 {
            self.bytes += self.used * passed;
            self.busy_us += passed;
            if self.full {
                self.full_us += passed;
            }
        }
        self.since_us = now_us;
    }
}

/// Shares of links.
#[derive(Debug)]
pub(crate) struct Solver {
    links: Vec<LinkState>,
    streams: Vec<Stream>,
    changed: Vec<u32>,
    threshold: f64,
    round: u32,
    pause: Pause,
    /// Streams whose rates were found in the last round.
    dealt: Vec<u32>,
    touched: Vec<u32>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    pub(crate) solves: u64,
}

/// Rates that differ by less are the same.
const SAME: f64 = 1e-9;

impl Solver {
    pub(crate) fn new(network: &Network, pause: Pause) -> Self {
        let state = |capacity| LinkState { capacity, ..LinkState::default() };
        Self {
            links: network.links.iter().map(|link| state(link.capacity)).collect(),
            streams: Vec::new(),
            changed: Vec::new(),
            threshold: f64::INFINITY,
            round: 0,
            pause,
            dealt: Vec::new(),
            touched: Vec::new(),
            heap: BinaryHeap::new(),
            solves: 0,
        }
    }

    /// Adds a stream in a slot that is free.
    pub(crate) fn add(&mut self, slot: u32, loads: Box<[Load]>, ways: Box<[Box<[Use]>]>) {
        if self.streams.len() <= slot as usize {
            self.streams.resize_with(slot as usize + 1, Stream::default);
        }
        let version = self.streams[slot as usize].version;
        for load in &loads {
            let link = &mut self.links[load.link as usize];
            link.members.push(Member { slot, version, weight: load.weight });
            link.weight += load.weight;
            self.threshold = self.threshold.min(link.capacity / link.weight);
            self.changed.push(load.link);
        }
        let stream = &mut self.streams[slot as usize];
        *stream = Stream { loads, ways, version, present: true, fresh: true, ..Stream::default() };
    }

    /// Takes a stream away, which had `left` bytes to go that count as gone.
    pub(crate) fn remove(&mut self, slot: u32, left: f64) {
        let stream = &mut self.streams[slot as usize];
        let loads = std::mem::take(&mut stream.loads);
        stream.ways = Box::default();
        stream.version = stream.version.wrapping_add(1);
        stream.present = false;
        if !stream.fresh {
            self.threshold = self.threshold.min(stream.rate);
        }
        for load in &loads {
            let link = &mut self.links[load.link as usize];
            link.weight -= load.weight;
            link.bytes += left * load.weight;
            self.changed.push(load.link);
        }
    }

    /// Gives a link another capacity.
    pub(crate) fn set_capacity(&mut self, link: u32, capacity: f64) {
        let state = &mut self.links[link as usize];
        state.capacity = capacity;
        if state.weight > 0.0 {
            self.threshold = self.threshold.min(capacity / state.weight);
        }
        for member in &state.members {
            let stream = &self.streams[member.slot as usize];
            if stream.version == member.version && stream.present {
                self.threshold = self.threshold.min(stream.rate);
            }
        }
        self.changed.push(link);
    }

    /// The streams that use a link.
    pub(crate) fn on(&self, link: u32) -> impl Iterator<Item = u32> {
        let here = |member: &&Member| {
            let stream = &self.streams[member.slot as usize];
            stream.present && stream.version == member.version
        };
        self.links[link as usize].members.iter().filter(here).map(|member| member.slot)
    }

    pub(crate) fn is_stale(&self) -> bool {
        !self.changed.is_empty()
    }

    pub(crate) fn rate(&self, slot: u32) -> f64 {
        self.streams[slot as usize].rate
    }

    /// Shares links out anew where something changed. The streams that were dealt with are those of
    /// [`Solver::dealt`], with their rates until now in the argument.
    pub(crate) fn solve(&mut self, now_us: f64, before: &mut Vec<f64>) {
        self.solves += 1;
        self.round += 1;
        let threshold = match self.pause {
            Pause::Never => self.threshold * (1.0 - SAME),
            // What is held up from afar is not found by its rate.
            Pause::Spreads => 0.0,
        };
        self.threshold = f64::INFINITY;
        self.find(threshold);
        for link in &self.touched {
            self.links[*link as usize].account(now_us);
        }
        before.clear();
        before.extend(self.dealt.iter().map(|slot| self.streams[*slot as usize].rate));
        self.fill();
        for link in &self.touched {
            self.links[*link as usize].full = false;
        }
        if self.pause == Pause::Spreads {
            self.spread();
        }
        for link in &self.touched {
            let state = &mut self.links[*link as usize];
            let open = state.members.iter().map(|member| {
                let stream = &self.streams[member.slot as usize];
                member.weight * stream.rate
            });
            // Adding to zero: the sum of nothing is -0.
            state.used = open.fold(0.0, |sum, one| sum + one);
            state.full |= state.used >= state.capacity * (1.0 - 1e-7);
        }
    }

    pub(crate) fn dealt(&self) -> &[u32] {
        &self.dealt
    }

    /// Everything that a change may reach: streams at or above the threshold, and their links.
    fn find(&mut self, threshold: f64) {
        self.dealt.clear();
        self.touched.clear();
        for link in self.changed.drain(..) {
            let state = &mut self.links[link as usize];
            if state.round != self.round {
                state.round = self.round;
                self.touched.push(link);
                let streams = &self.streams;
                state.members.retain(|member| {
                    let stream = &streams[member.slot as usize];
                    stream.present && stream.version == member.version
                });
                state.weight = state.members.iter().map(|member| member.weight).sum();
            }
        }
        let mut at = 0;
        while let Some(link) = self.touched.get(at).copied() {
            at += 1;
            let members = std::mem::take(&mut self.links[link as usize].members);
            let (mut taken, mut open, mut count) = (0.0, 0.0, 0);
            for member in &members {
                let stream = &mut self.streams[member.slot as usize];
                if !stream.fresh && stream.rate < threshold {
                    taken += member.weight * stream.rate;
                    continue;
                }
                open += member.weight;
                count += 1;
                if stream.round != self.round {
                    stream.round = self.round;
                    stream.frozen = false;
                    self.dealt.push(member.slot);
                    for load in &stream.loads {
                        let other = &mut self.links[load.link as usize];
                        if other.round != self.round {
                            other.round = self.round;
                            self.touched.push(load.link);
                        }
                    }
                }
            }
            let state = &mut self.links[link as usize];
            state.members = members;
            state.free = (state.capacity - taken).max(0.0);
            state.open = open;
            state.count = count;
        }
    }

    /// Raises the rates of what was found until links are full.
    fn fill(&mut self) {
        self.heap.clear();
        let entries = self.touched.iter().filter_map(|link| {
            let state = &self.links[*link as usize];
            (state.count > 0).then(|| Reverse(((state.free / state.open).to_bits(), *link)))
        });
        self.heap = entries.collect();
        while let Some(Reverse((bits, link))) = self.heap.pop() {
            let state = &self.links[link as usize];
            if state.count == 0 {
                continue;
            }
            let level = (state.free / state.open).max(0.0);
            // What others left to it since: it may be somebody else's turn.
            if level > f64::from_bits(bits) {
                let next = self.heap.peek().map_or(f64::INFINITY, |next| f64::from_bits(next.0.0));
                if level > next {
                    self.heap.push(Reverse((level.to_bits(), link)));
                    continue;
                }
            }
            let members = std::mem::take(&mut self.links[link as usize].members);
            for member in &members {
                let stream = &mut self.streams[member.slot as usize];
                if stream.round != self.round || stream.frozen {
                    continue;
                }
                stream.frozen = true;
                stream.fresh = false;
                stream.rate = level;
                for load in &stream.loads {
                    let other = &mut self.links[load.link as usize];
                    other.free = (other.free - load.weight * level).max(0.0);
                    other.open -= load.weight;
                    other.count -= 1;
                }
            }
            self.links[link as usize].members = members;
        }
    }

    /// What links did until now.
    pub(crate) fn uses(&mut self, now_us: f64) -> Vec<LinkUse> {
        for link in &mut self.links {
            link.account(now_us);
        }
        let used = self.links.iter().enumerate().filter(|(_, link)| link.bytes > 0.0);
        used.map(|(index, link)| LinkUse {
            link: index,
            bytes: link.bytes,
            busy_us: link.busy_us,
            full_us: link.full_us,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
