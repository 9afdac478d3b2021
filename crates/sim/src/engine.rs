//! Time, from event to event: streams begin, share links, and end.
//!
//! Between two events all rates are constant, so the next end is known. When several streams end within a small
//! part of the time that they took ([`Options::quantum`]), they end together: that is what keeps a million flows of one
//! exchange from being a million rounds. A stream's time is wrong by no more than that part.
//!
//! *Invariant:* bytes are conserved: what a stream had to carry is what its links have carried when it has ended.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::error::SimError;
use crate::fault::{EffectKind, Fault};
use crate::network::{Network, small};
use crate::outcome::{Incident, LinkUse};
use crate::route::{Router, Routing, Use};
use crate::solve::{Load, Pause, Solver};
use crate::work::{Flow, Stream};

/// A stream's place; used again after its end.
pub type StreamId = usize;

/// A timer's number, from 0 on.
pub type TimerId = u64;

/// From so many streams on their ends are taken together.
pub const MANY_STREAMS: usize = 4096;

/// Ends that are nearer than this part are the same moment.
const MOMENT: f64 = 1e-9;

/// How to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How flows find their way.
    pub routing: Routing,
    /// Whether congestion spreads.
    pub pause: Pause,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Microseconds until a flow whose way broke has another.
    pub reroute_us: f64,
    /// Ranks that come late, and by how many microseconds.
    pub late: Vec<(u32, f64)>,
    /// The part of its time by which a stream may end too early, while there are more than [`MANY_STREAMS`].
    pub quantum: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            routing: Routing::default(),
            pause: Pause::default(),
            faults: Vec::new(),
            reroute_us: 1000.0,
            late: Vec::new(),
            quantum: 1e-3,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A stream has ended: all of it has arrived.
    Done(StreamId),
    /// A timer has run out.
    Timer(TimerId),
}

#[derive(Clone, Debug, Default)]
struct Active {
    /// Bytes of a flow of share 1 that have not left, when `since_us` was.
    left: f64,
    since_us: f64,
    start_us: f64,
    latency_us: f64,
    /// Which of its ends on the heap is the valid one.
    version: u32,
    running: bool,
    /// For when its way breaks.
    flows: Box<[Flow]>,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Action {
    Fault(usize),
    Resume(u32),
    Arrive(u32),
    Timer(TimerId),
}

/// A simulation that goes on.
#[derive(Debug)]
pub struct Engine<'n> {
    network: &'n Network,
    router: Router<'n>,
    solver: Solver,
    faults: Vec<Fault>,
    reroute_us: f64,
    quantum: f64,
    pause: Pause,
    now_us: f64,
    streams: Vec<Active>,
    unused: Vec<u32>,
    running: usize,
    /// Ends of streams: time, slot, version.
    ends: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// What is to be done when; times are not negative, so their bits order as they do.
    agenda: BinaryHeap<Reverse<(u64, u64, Action)>>,
    next_entry: u64,
    next_timer: TimerId,
    happened: VecDeque<Event>,
    incidents: Vec<Incident>,
    flows: u64,
    // Room to work in:
    uses: Vec<Use>,
    sums: Vec<f64>,
    touched: Vec<u32>,
    before: Vec<f64>,
}

impl<'n> Engine<'n> {
    /// Nothing runs yet. Faults of time 0 have happened.
    ///
    /// # Errors
    ///
    /// When a fault names what is not there.
    pub fn new(network: &'n Network, options: &Options) -> Result<Self, SimError> {
        let mut engine = Self {
            network,
            router: Router::new(network, &options.routing),
            solver: Solver::new(network, options.pause),
            faults: options.faults.clone(),
            reroute_us: options.reroute_us.max(0.0),
            quantum: options.quantum.clamp(MOMENT, 0.1),
            pause: options.pause,
            now_us: 0.0,
            streams: Vec::new(),
            unused: Vec::new(),
            running: 0,
            ends: BinaryHeap::new(),
            agenda: BinaryHeap::new(),
            next_entry: 0,
            next_timer: 0,
            happened: VecDeque::new(),
            incidents: Vec::new(),
            flows: 0,
            uses: Vec::new(),
            sums: vec![0.0; network.links.len()],
            touched: Vec::new(),
            before: Vec::new(),
        };
        for (index, fault) in options.faults.iter().enumerate() {
            fault.effect(network)?;
            // What is wrong from the start is known to whoever begins then: nothing has to look for another way.
            if fault.us <= 0.0 {
                engine.suffer(index)?;
            } else {
                engine.enter(fault.us, Action::Fault(index));
            }
        }
        Ok(engine)
    }

    /// What time it is.
    #[must_use]
    pub fn now_us(&self) -> f64 {
        self.now_us
    }

    /// How many flows were begun.
    #[must_use]
    pub fn flows(&self) -> u64 {
        self.flows
    }

    /// How often rates were shared out anew.
    #[must_use]
    pub fn solves(&self) -> u64 {
        self.solver.solves
    }

    /// What happened to the network until now.
    pub fn take_incidents(&mut self) -> Vec<Incident> {
        std::mem::take(&mut self.incidents)
    }

    /// What links did until now.
    #[must_use]
    pub fn link_uses(&mut self) -> Vec<LinkUse> {
        self.solver.uses(self.now_us)
    }

    /// Begins flows that go at one pace.
    ///
    /// # Errors
    ///
    /// When a flow has no way.
    pub fn start(&mut self, stream: &Stream) -> Result<StreamId, SimError> {
        self.begin(stream.bytes, &stream.flows, stream.latency_us)
    }

    /// Begins flows that go each at its own pace.
    ///
    /// # Errors
    ///
    /// When a flow has no way.
    pub fn start_each(
        &mut self,
        stream: &Stream,
        mut started: impl FnMut(StreamId),
    ) -> Result<(), SimError> {
        for flow in &stream.flows {
            let alone = [Flow { share: 1.0, ..*flow }];
            started(self.begin(stream.bytes * flow.share, &alone, stream.latency_us)?);
        }
        Ok(())
    }

    fn begin(&mut self, bytes: f64, flows: &[Flow], latency_us: f64) -> Result<StreamId, SimError> {
        self.flows += flows.len() as u64;
        let slot = self.unused.pop().unwrap_or_else(|| {
            self.streams.push(Active::default());
            small(self.streams.len() - 1)
        });
        let version = self.streams[slot as usize].version;
        self.streams[slot as usize] = Active {
            left: bytes.max(0.0),
            since_us: self.now_us,
            start_us: self.now_us,
            latency_us: latency_us.max(0.0),
            version,
            running: false,
            flows: if self.faults.is_empty() { Box::default() } else { flows.into() },
        };
        self.admit(slot, flows)?;
        Ok(slot as usize)
    }

    /// Finds ways and lets a stream run.
    fn admit(&mut self, slot: u32, flows: &[Flow]) -> Result<(), SimError> {
        let mut ways: Vec<Box<[Use]>> = Vec::new();
        for flow in flows {
            self.router.route(flow, &mut self.uses).map_err(|why| SimError::NoWay {
                us: self.now_us,
                from: self.network.place_name(flow.from),
                to: self.network.place_name(flow.to),
                why,
            })?;
            if flow.share <= 0.0 {
                continue;
            }
            for one in &self.uses {
                let sum = &mut self.sums[one.link as usize];
                if *sum == 0.0 {
                    self.touched.push(one.link);
                }
                *sum += flow.share * one.part;
            }
            if self.pause == Pause::Spreads {
                ways.push(self.uses.as_slice().into());
            }
        }
        let take = |link: u32| Load { link, weight: std::mem::take(&mut self.sums[link as usize]) };
        let loads: Box<[Load]> = self.touched.drain(..).map(take).collect();
        let stream = &mut self.streams[slot as usize];
        stream.since_us = self.now_us;
        if loads.is_empty() || stream.left <= 0.0 {
            // Nothing to carry, or nowhere to carry it: only its latency is left.
            stream.left = 0.0;
            let at_us = self.now_us + stream.latency_us;
            self.enter(at_us, Action::Arrive(slot));
            return Ok(());
        }
        stream.running = true;
        self.running += 1;
        self.solver.add(slot, loads, ways.into());
        Ok(())
    }

    /// A timer that runs out after so long.
    pub fn after(&mut self, us: f64) -> TimerId {
        let id = self.next_timer;
        self.next_timer += 1;
        self.enter(self.now_us + us.max(0.0), Action::Timer(id));
        id
    }

    fn enter(&mut self, at_us: f64, action: Action) {
        self.agenda.push(Reverse((at_us.to_bits(), self.next_entry, action)));
        self.next_entry += 1;
    }

    /// Goes on to the next event; nothing when all is over.
    ///
    /// # Errors
    ///
    /// When a flow's way breaks and there is no other.
    #[expect(clippy::should_implement_trait, reason = "between two events streams are begun")]
    pub fn next(&mut self) -> Result<Option<(f64, Event)>, SimError> {
        loop {
            if let Some(event) = self.happened.pop_front() {
                if let Event::Done(slot) = event {
                    // Not before: whoever is told must know whose end it is.
                    self.unused.push(small(slot));
                }
                return Ok(Some((self.now_us, event)));
            }
            let due = self.agenda.peek().map(|Reverse((bits, _, _))| f64::from_bits(*bits));
            // All that happens now comes before rates are shared out.
            if due.is_some_and(|due| due <= self.now_us) {
                self.act()?;
                continue;
            }
            if self.solver.is_stale() {
                self.share_out();
            }
            let end = self.next_end();
            match (end, due) {
                (None, None) => return Ok(None),
                (Some(end), due) if due.is_none_or(|due| end <= due) => self.finish(end),
                (_, Some(due)) => {
                    // Faults after all is over have nobody to harm.
                    if end.is_none() && self.only_faults() {
                        return Ok(None);
                    }
                    self.now_us = due;
                    self.act()?;
                }
                (Some(end), None) => self.finish(end),
            }
        }
    }

    fn only_faults(&self) -> bool {
        self.agenda.iter().all(|Reverse((_, _, action))| matches!(action, Action::Fault(_)))
    }

    fn share_out(&mut self) {
        let mut before = std::mem::take(&mut self.before);
        self.solver.solve(self.now_us, &mut before);
        for (slot, was) in self.solver.dealt().iter().zip(&before) {
            let rate = self.solver.rate(*slot);
            let stream = &mut self.streams[*slot as usize];
            let passed = self.now_us - stream.since_us;
            if rate == *was {
                continue;
            }
            stream.left = (stream.left - was * passed).max(0.0);
            stream.since_us = self.now_us;
            stream.version = stream.version.wrapping_add(1);
            let end_us = self.now_us + stream.left / rate;
            self.ends.push(Reverse((end_us.to_bits(), *slot, stream.version)));
        }
        self.before = before;
    }

    fn next_end(&mut self) -> Option<f64> {
        while let Some(Reverse((bits, slot, version))) = self.ends.peek() {
            let stream = &self.streams[*slot as usize];
            if stream.running && stream.version == *version {
                return Some(f64::from_bits(*bits));
            }
            self.ends.pop();
        }
        None
    }

    /// Ends the streams that end now.
    fn finish(&mut self, end_us: f64) {
        self.now_us = end_us.max(self.now_us);
        let part = if self.running > MANY_STREAMS { self.quantum } else { MOMENT };
        while let Some(Reverse((bits, slot, version))) = self.ends.peek().copied() {
            let stream = &mut self.streams[slot as usize];
            if !stream.running || stream.version != version {
                self.ends.pop();
                continue;
            }
            let early = f64::from_bits(bits) - self.now_us;
            if early > part * (self.now_us - stream.start_us) {
                break;
            }
            self.ends.pop();
            let passed = self.now_us - stream.since_us;
            let left = (stream.left - self.solver.rate(slot) * passed).max(0.0);
            stream.left = 0.0;
            stream.running = false;
            self.running -= 1;
            self.solver.remove(slot, left);
            let latency_us = stream.latency_us;
            if latency_us > 0.0 {
                self.enter(self.now_us + latency_us, Action::Arrive(slot));
            } else {
                self.arrive(slot);
            }
        }
    }

    fn arrive(&mut self, slot: u32) {
        let stream = &mut self.streams[slot as usize];
        stream.version = stream.version.wrapping_add(1);
        stream.flows = Box::default();
        self.happened.push_back(Event::Done(slot as usize));
    }

    fn act(&mut self) -> Result<(), SimError> {
        let Some(Reverse((_, _, action))) = self.agenda.pop() else { return Ok(()) };
        match action {
            Action::Timer(id) => self.happened.push_back(Event::Timer(id)),
            Action::Arrive(slot) => self.arrive(slot),
            Action::Resume(slot) => {
                let flows = std::mem::take(&mut self.streams[slot as usize].flows);
                self.admit(slot, &flows)?;
                self.streams[slot as usize].flows = flows;
            }
            Action::Fault(index) => self.suffer(index)?,
        }
        Ok(())
    }

    fn suffer(&mut self, index: usize) -> Result<(), SimError> {
        let effect = self.faults[index].effect(self.network)?;
        let mut what = effect.what;
        match effect.kind {
            EffectKind::Slow(part) => {
                for link in effect.links {
                    let whole = self.network.links[link as usize].capacity;
                    self.solver.set_capacity(link, whole * part);
                    self.router.set_capacity(link, whole * part);
                }
            }
            EffectKind::Up => {
                effect.links.iter().for_each(|link| self.router.set_dead(*link, false));
            }
            EffectKind::Down => {
                let mut hit: Vec<u32> = Vec::new();
                for link in &effect.links {
                    hit.extend(self.solver.on(*link));
                }
                hit.sort_unstable();
                hit.dedup();
                let flows: usize = hit.iter().map(|slot| self.flows_on(*slot, &effect.links)).sum();
                effect.links.iter().for_each(|link| self.router.set_dead(*link, true));
                hit.into_iter().for_each(|slot| self.suspend(slot));
                what += &format!("; {flows} flows look for another way");
            }
        }
        self.incidents.push(Incident { us: self.now_us, what });
        Ok(())
    }

    /// How many flows of a stream are on some links.
    fn flows_on(&mut self, slot: u32, links: &[u32]) -> usize {
        let flows = std::mem::take(&mut self.streams[slot as usize].flows);
        let mut count = 0;
        for flow in &flows {
            let found = self.router.route(flow, &mut self.uses).is_ok();
            let on = self.uses.iter().any(|one| links.contains(&one.link));
            count += usize::from(found && on);
        }
        self.streams[slot as usize].flows = flows;
        count
    }

    /// Stops a stream whose way broke, until it has another.
    fn suspend(&mut self, slot: u32) {
        let rate = self.solver.rate(slot);
        let stream = &mut self.streams[slot as usize];
        stream.left = (stream.left - rate * (self.now_us - stream.since_us)).max(0.0);
        stream.since_us = self.now_us;
        stream.running = false;
        stream.version = stream.version.wrapping_add(1);
        self.running -= 1;
        self.solver.remove(slot, 0.0);
        self.enter(self.now_us + self.reroute_us, Action::Resume(slot));
    }
}

#[cfg(test)]
mod tests;
