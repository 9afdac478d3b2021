//! A plan against the clock: events in order of time, one core for each rank, links with latency and
//! bandwidth.
//!
//! [`simulate`] runs all ranks. The planner cannot afford that for every call, so it runs a few and lets
//! them see themselves in a mirror: a peer that is not run is taken to signal when this rank signals
//! the peer, or the rank as far off on the other side. Where the mirror shows nothing (chains and
//! trees, where a rank hears before it speaks) all ranks are run after all or, where they are too
//! many, those that are missed are called in.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::cost::{Links, OwnScratch, World, bytes, transfer_us};
use crate::plan::{Flag, Plan, RankPlan, Step};
use crate::types::Rank;

/// Microseconds until the last rank is done; infinite where the plan stands for ever.
#[must_use]
pub fn simulate(plan: &Plan, links: &Links) -> f64 {
    let Some(problem) = plan.problems.first() else {
        return 0.0;
    };
    let world = World::new(&plan.hosts, problem.data_type);
    let part = |rank: Rank| Cow::Borrowed(&plan.ranks[rank as usize]);
    let all: Vec<Rank> = (0..).zip(&plan.ranks).map(|(rank, _)| rank).collect();
    Simulation::new(world, links, &part, all.len()).run(&all).end_us
}

/// What came out of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Until the last lane is done.
    pub(crate) end_us: f64,
    /// How long the busiest core was at work: no pipeline makes it less.
    pub(crate) core_us: f64,
    /// How long the busiest way into or out of a host was.
    pub(crate) net_us: f64,
}

/// As one rank sees it in the mirror.
pub(crate) fn mirrored(part: &RankPlan, world: World<'_>, rank: Rank, links: &Links) -> f64 {
    let one = |_| Cow::Borrowed(part);
    Simulation::new(world, links, &one, 1).run(&[rank]).end_us
}

/// As `seeds` see it in the mirror; where that shows nothing, as all ranks see it or, where that
/// would take more than `most_steps` steps, as some do.
pub(crate) fn estimate(
    seeds: &[Rank],
    world: World<'_>,
    links: &Links,
    part: &dyn Fn(Rank) -> RankPlan,
    most_steps: usize,
) -> Times {
    let owned = |rank| Cow::Owned(part(rank));
    let all: Vec<Rank> = (0..).zip(world.hosts).map(|(rank, _)| rank).collect();
    let mut first = Simulation::new(world, links, &owned, seeds.len());
    first.mirror_only = true;
    let (seen, steps) = first.run_counted(seeds);
    if seen.end_us.is_finite() {
        return seen;
    }
    let each = steps / seeds.len().max(1) + 1;
    let most = (most_steps / each).max(seeds.len() + 8);
    if most >= all.len() {
        Simulation::new(world, links, &owned, all.len()).run(&all)
    } else {
        Simulation::new(world, links, &owned, most).run(seeds)
    }
}

/// A map of small keys that are our own: no need to guard against those who choose them.
type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Mixer>>;

#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

struct Lane {
    rank: Rank,
    index: usize,
    step: usize,
}

struct Raised {
    sent_us: f64,
    seen_us: f64,
    bytes: u64,
}

/// Counter of (signaller, signalled, flag).
type Key = (Rank, Rank, Flag);

/// A card as a counter, after all those that are counters.
fn card_flag(card: u16) -> Flag {
    Flag::MAX - card
}

struct Simulation<'a> {
    world: World<'a>,
    links: &'a Links,
    part: &'a dyn Fn(Rank) -> Cow<'a, RankPlan>,
    most: usize,
    /// Whether to give up where the mirror shows nothing.
    mirror_only: bool,
    parts: BTreeMap<Rank, (Cow<'a, RankPlan>, OwnScratch)>,
    lanes: Vec<Lane>,
    /// Lanes and when they go on; times are not negative, so their bits order as they do.
    events: BinaryHeap<Reverse<(u64, usize)>>,
    core_free_us: Map<Rank, f64>,
    /// Into and out of each host.
    net_free_us: Map<(u32, bool), f64>,
    raised: Map<Key, Vec<Raised>>,
    /// Lanes that stand, since when, and for how many signals.
    standing: BTreeMap<Key, (usize, f64, u32)>,
    core_busy_us: Map<Rank, f64>,
    net_busy_us: Map<(u32, bool), f64>,
    end_us: f64,
}

impl<'a> Simulation<'a> {
    fn new(
        world: World<'a>,
        links: &'a Links,
        part: &'a dyn Fn(Rank) -> Cow<'a, RankPlan>,
        most: usize,
    ) -> Self {
        Self {
            world,
            links,
            part,
            most,
            mirror_only: false,
            parts: BTreeMap::new(),
            lanes: Vec::new(),
            events: BinaryHeap::new(),
            core_free_us: Map::default(),
            net_free_us: Map::default(),
            raised: Map::default(),
            standing: BTreeMap::new(),
            core_busy_us: Map::default(),
            net_busy_us: Map::default(),
            end_us: 0.0,
        }
    }

    fn run(self, seeds: &[Rank]) -> Times {
        self.run_counted(seeds).0
    }

    /// Also says how many steps there were, run or not.
    fn run_counted(mut self, seeds: &[Rank]) -> (Times, usize) {
        for rank in seeds {
            self.call_in(*rank);
        }
        loop {
            while let Some(Reverse((bits, lane))) = self.events.pop() {
                self.step(lane, f64::from_bits(bits));
            }
            let absent = self.standing.keys().filter(|key| !self.parts.contains_key(&key.0));
            let Some(key) = absent.copied().max_by_key(|key| self.hint(*key).is_some()) else {
                break;
            };
            if let Some(seen_us) = self.hint(key) {
                self.release(key, seen_us);
            } else if self.mirror_only {
                break;
            } else if self.parts.len() < self.most {
                self.call_in(key.0);
            } else {
                // Nobody to ask: as if the peer had signalled when this lane came to stand.
                self.release(key, 0.0);
            }
        }
        let most = |busy: f64, one: &f64| busy.max(*one);
        let times = Times {
            end_us: if self.standing.is_empty() { self.end_us } else { f64::INFINITY },
            core_us: self.core_busy_us.values().fold(0.0, most),
            net_us: self.net_busy_us.values().fold(0.0, most),
        };
        (times, self.parts.values().map(|(part, _)| part.steps()).sum())
    }

    fn call_in(&mut self, rank: Rank) {
        let part = (self.part)(rank);
        for index in 0..part.lanes.len() {
            self.lanes.push(Lane { rank, index, step: 0 });
            self.wake(self.lanes.len() - 1, 0.0);
        }
        let own = OwnScratch::of(&part);
        self.parts.insert(rank, (part, own));
    }

    fn wake(&mut self, lane: usize, at_us: f64) {
        self.events.push(Reverse((at_us.to_bits(), lane)));
    }

    /// Ends the wait for `key`, at `seen_us` or a moment after it began.
    fn release(&mut self, key: Key, seen_us: f64) {
        if let Some((lane, since_us, _)) = self.standing.remove(&key) {
            let link = self.links.between(self.world.hosts, key.0, key.1);
            self.go_on(lane, seen_us.max(since_us + link.latency_us));
        }
    }

    /// When the last signal was seen that the mirror shows of an absent peer: one with more to say than
    /// this rank, as its share is longer.
    fn hint(&self, (from, to, flag): Key) -> Option<f64> {
        [from, self.mirror(to, from)]
            .into_iter()
            .find_map(|other| self.raised.get(&(to, other, flag))?.last())
            .map(|raised| raised.seen_us)
    }

    /// The wait at which `lane` stood is over.
    fn go_on(&mut self, lane: usize, at_us: f64) {
        self.lanes[lane].step += 1;
        self.wake(lane, at_us);
    }

    fn step(&mut self, lane: usize, now_us: f64) {
        let Lane { rank, index, step } = self.lanes[lane];
        let (part, own) = &self.parts[&rank];
        let Some(step) = part.lanes[index].get(step).copied() else {
            self.end_us = self.end_us.max(now_us);
            return;
        };
        let work_us = self.links.work_us(self.world, rank, part, own, &step);
        let stands = match step {
            Step::Wait { peer, flag, count } => Some((peer, flag, count)),
            Step::See { peer, card } => Some((peer, card_flag(card), 1)),
            _ => None,
        };
        if let Some((peer, flag, count)) = stands {
            let key = (peer, rank, flag);
            match self.seen(key, count) {
                Some(seen_us) => self.go_on(lane, now_us.max(seen_us) + work_us),
                None => {
                    self.standing.insert(key, (lane, now_us, count));
                }
            }
            return;
        }
        let core_free_us = self.core_free_us.entry(rank).or_default();
        *core_free_us = core_free_us.max(now_us) + work_us;
        let done_us = *core_free_us;
        *self.core_busy_us.entry(rank).or_default() += work_us;
        self.go_on(lane, done_us);
        match step {
            Step::Signal { peer, flag } => self.raise((rank, peer, flag), done_us, 0),
            Step::Put { peer, source, signal, .. } => {
                let bytes = bytes(&source, self.world.data_type);
                match signal {
                    Some(flag) => self.raise((rank, peer, flag), done_us, bytes),
                    None => {
                        self.send((rank, peer), done_us, bytes);
                    }
                }
            }
            Step::Show { card, .. } => {
                let near = (0..).zip(self.world.hosts).map(|(peer, _)| peer);
                let near: Vec<Rank> =
                    near.filter(|peer| *peer != rank && self.world.mapped(rank, *peer)).collect();
                for peer in near {
                    self.raise((rank, peer, card_flag(card)), done_us, 0);
                }
            }
            _ => {}
        }
    }

    /// When a message sent now is seen.
    fn send(&mut self, (from, to): (Rank, Rank), now_us: f64, bytes: u64) -> f64 {
        let link = *self.links.between(self.world.hosts, from, to);
        if self.world.mapped(from, to) {
            return now_us + link.latency_us;
        }
        let host = |rank: Rank| self.world.hosts.get(rank as usize).copied().unwrap_or(0);
        let takes_us = transfer_us(bytes, link.bandwidth_gbs);
        let (from, to) = (host(from), host(to));
        let out = self.net_free_us.entry((from, true)).or_default();
        let leaves_us = out.max(now_us);
        *out = leaves_us + takes_us;
        let into = self.net_free_us.entry((to, false)).or_default();
        *into = into.max(leaves_us) + takes_us;
        let seen_us = *into + link.latency_us;
        for end in [(from, true), (to, false)] {
            *self.net_busy_us.entry(end).or_default() += takes_us;
        }
        seen_us
    }

    fn raise(&mut self, key: Key, now_us: f64, bytes: u64) {
        let (from, to, flag) = key;
        let seen_us = self.send((from, to), now_us, bytes);
        self.raised.entry(key).or_default().push(Raised { sent_us: now_us, seen_us, bytes });
        // Whoever stands for this signal, or for one that it mirrors.
        for waiting in [key, (to, from, flag), (self.mirror(from, to), from, flag)] {
            let Some((lane, since_us, count)) = self.standing.get(&waiting).copied() else {
                continue;
            };
            if let Some(seen_us) = self.seen(waiting, count) {
                self.standing.remove(&waiting);
                self.go_on(lane, since_us.max(seen_us));
            }
        }
    }

    /// When the signal was seen, or would have been.
    fn seen(&self, key: Key, count: u32) -> Option<f64> {
        let (from, to, flag) = key;
        let nth = |key: Key| self.raised.get(&key)?.get((count as usize).checked_sub(1)?);
        if self.parts.contains_key(&from) {
            return nth(key).map(|raised| raised.seen_us);
        }
        let (other, raised) = [from, self.mirror(to, from)]
            .into_iter()
            .find_map(|other| Some((other, nth((to, other, flag))?)))?;
        if self.world.mapped(to, from) == self.world.mapped(to, other) {
            return Some(raised.seen_us);
        }
        let link = self.links.between(self.world.hosts, from, to);
        Some(raised.sent_us + link.latency_us + transfer_us(raised.bytes, link.bandwidth_gbs))
    }

    /// The rank as far from `rank` as `other` is, on the other side.
    fn mirror(&self, rank: Rank, other: Rank) -> Rank {
        let ranks = self.world.hosts.len() as u64;
        let mirrored = (2 * u64::from(rank) + ranks - u64::from(other) % ranks) % ranks;
        Rank::try_from(mirrored).unwrap_or(other)
    }
}
