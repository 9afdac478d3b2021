//! The verifier: runs a plan on symbols instead of numbers and proves it.
//!
//! Proved, for every rank at once:
//! * **result**: each contribution reaches each output exactly once, in the promised order, and all
//!   ranks that hold the same result fold it the same way (same bits everywhere);
//! * **progress**: no wait stands for ever, with the credits the plan really has; every
//!   signal is waited for, so that the next operation starts from known counters;
//! * **races**: no two accesses to the same bytes, one of them a write, are unordered. Order comes
//!   from lanes and from signals (vector clocks), never from luck;
//! * **uses**: a peer's buffers are read or written only while the peer is known to be in the operation: it
//!   has begun, and it does not leave before it has been told that this is over;
//! * **bounds**: nothing outside a buffer or the declared scratch, no window without a mapping, no
//!   write to an input, also when input and output are the same memory.
//!
//! Waiting on counters is monotone (no step can disable another), so one run stands for all
//! interleavings: what is stuck here is stuck always, and what is ordered here is ordered always.
//!
//! **Invariant:** no plan, however hostile, makes the verifier panic, and the time and memory it
//! takes are bounded: sizes are checked first, and work is counted.

mod expression;
mod limits;
mod mapped;
mod memory;
mod outcome;
mod refusal;

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use crate::plan::{Flag, Place, Plan, Region, Remote, Span, Step};
use crate::types::{DataType, Form, Rank};
use expression::{Expressions, State, Value};
pub(crate) use limits::check as check_shape;
pub use limits::{BYTES_MAX, OPERANDS_MAX, RANKS_MAX, STEPS_MAX};
use memory::{Bytes, Event, Memory, PutId, Writer};
pub use refusal::Refusal;

/// What a proof covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Steps run.
    pub steps: u64,
    /// Signals matched with waits.
    pub signals: u64,
}

/// Proves `plan`, with input and output apart or, where `in_place`, in the same memory.
///
/// # Errors
/// The first thing that cannot be proved, with rank, lane and step where there is one.
pub fn verify(plan: &Plan, in_place: bool) -> Result<Proof, Refusal> {
    let mut run = Run::new(plan, in_place)?;
    run.execute()?;
    run.check_signals()?;
    run.check_uses()?;
    outcome::check(&mut run)?;
    Ok(run.proof)
}

type Clock = Vec<u32>;

#[derive(Debug)]
struct Lane {
    place: Place,
    /// What this lane knows of all lanes, itself excepted.
    clock: Rc<Clock>,
    /// Puts of this lane to each peer, oldest first.
    puts: HashMap<Rank, Vec<(Bytes, PutId)>>,
}

#[derive(Debug)]
struct Raised {
    clock: Rc<Clock>,
    lane: usize,
    step: u32,
    /// Puts to the signalled rank that this signal makes visible: all up to this many.
    puts: usize,
}

#[derive(Debug, Default)]
struct Counter {
    raised: Vec<Raised>,
    waited: u32,
    waiter: Option<usize>,
    /// How many signals the waiter stands for, 0 where it does not stand.
    stands_for: u32,
}

/// A card: who turned it up, and the lanes that stand for it.
#[derive(Debug, Default)]
struct Card {
    shown: Option<Raised>,
    standing: Vec<usize>,
}

struct Run<'p> {
    plan: &'p Plan,
    data_type: DataType,
    memory: Memory,
    expressions: Expressions,
    lanes: Vec<Lane>,
    /// Counter of (signaller, signalled, flag).
    counters: HashMap<(Rank, Rank, Flag), Counter>,
    cards: HashMap<(Rank, u16), Card>,
    /// How many puts of one lane another lane has seen arrive.
    seen: HashMap<(usize, usize), usize>,
    puts: u64,
    /// Uses of buffers of other ranks, each with the rank whose memory it was.
    uses: Vec<(Rank, Event)>,
    /// Lanes that may go on.
    ready: VecDeque<usize>,
    /// A clock that knows nothing, in place of those that are no longer needed.
    blank: Rc<Clock>,
    /// Clocks in memory.
    clocks: usize,
    /// Entries of clocks compared.
    compared: u64,
    proof: Proof,
}

impl<'p> Run<'p> {
    fn new(plan: &'p Plan, in_place: bool) -> Result<Self, Refusal> {
        limits::check(plan)?;
        let data_type = plan.problems[0].data_type;
        let mut lanes = Vec::new();
        for (rank, part) in (0..).zip(&plan.ranks) {
            for lane in 0..part.lanes.len() {
                let place = Place { rank, lane, step: 0 };
                lanes.push(Lane { place, clock: Rc::default(), puts: HashMap::new() });
            }
        }
        let blank = Rc::new(vec![0; lanes.len()]);
        for lane in &mut lanes {
            lane.clock = Rc::clone(&blank);
        }
        let mut memory = Memory::new(plan, in_place);
        let mut expressions = Expressions::default();
        let size = data_type.size() as u64;
        for rank in 0..plan.problems[0].ranks {
            let expression = expressions.leaf(rank);
            memory
                .fill_input(rank, Value { state: State::Raw, expression, index: 0, size, skew: 0 });
        }
        Ok(Self {
            plan,
            data_type,
            memory,
            expressions,
            ready: (0..lanes.len()).collect(),
            lanes,
            counters: HashMap::new(),
            cards: HashMap::new(),
            seen: HashMap::new(),
            puts: 0,
            uses: Vec::new(),
            blank,
            clocks: 1,
            compared: 0,
            proof: Proof::default(),
        })
    }

    /// Runs every lane as far as it goes, until nothing moves.
    fn execute(&mut self) -> Result<(), Refusal> {
        while let Some(lane) = self.ready.pop_front() {
            while let Some(step) = self.current(lane) {
                if !self.step(lane, step)? {
                    break;
                }
                self.check_work(lane)?;
                self.lanes[lane].place.step += 1;
                self.proof.steps += 1;
            }
        }
        match self.deadlock() {
            None => Ok(()),
            Some(refusal) => Err(refusal),
        }
    }

    fn current(&self, lane: usize) -> Option<Step> {
        let place = self.lanes[lane].place;
        self.plan.ranks[place.rank as usize].lanes[place.lane].get(place.step).copied()
    }

    fn check_work(&self, lane: usize) -> Result<(), Refusal> {
        let what = limits::exhausted(limits::Work {
            cells: self.memory.visited(),
            marks: self.memory.marks() + self.expressions.marks(),
            compared: self.compared,
            clock_entries: self.clocks as u64 * self.lanes.len() as u64,
        });
        match what {
            None => Ok(()),
            Some(what) => Err(Refusal::TooLarge { place: self.lanes[lane].place, what }),
        }
    }

    /// The wait to blame where some stand for ever: one whose signal is not in the plan, else
    /// the first of a cycle.
    fn deadlock(&self) -> Option<Refusal> {
        let standing: Vec<(Place, Rank, Flag, u32)> = (0..self.lanes.len())
            .filter_map(|lane| match self.current(lane) {
                Some(Step::Wait { peer, flag, count }) => {
                    Some((self.lanes[lane].place, peer, flag, count))
                }
                _ => None,
            })
            .collect();
        if standing.is_empty() {
            return self.unseen();
        }
        let mut planned: HashMap<(Rank, Rank, Flag), u32> = HashMap::new();
        for (rank, part) in (0..).zip(&self.plan.ranks) {
            for step in part.lanes.iter().flatten() {
                let (Step::Signal { peer, flag } | Step::Put { peer, signal: Some(flag), .. }) =
                    *step
                else {
                    continue;
                };
                *planned.entry((rank, peer, flag)).or_default() += 1;
            }
        }
        let total = |&(place, peer, flag, _): &(Place, Rank, Flag, u32)| {
            planned.get(&(peer, place.rank, flag)).copied().unwrap_or(0)
        };
        let blamed = standing.iter().find(|wait| total(wait) < wait.3).unwrap_or(&standing[0]);
        let &(place, peer, flag, count) = blamed;
        let why = if total(blamed) < count {
            format!("which raises it only {} times", total(blamed))
        } else {
            match standing.iter().find(|wait| wait.0.rank == peer) {
                Some((at, ..)) => format!("which itself stands at {at}"),
                None => "which never comes to it".to_owned(),
            }
        };
        Some(Refusal::Deadlock { place, peer, flag, count, why })
    }

    /// The card to blame where lanes stand for cards only.
    fn unseen(&self) -> Option<Refusal> {
        (0..self.lanes.len()).find_map(|lane| match self.current(lane) {
            Some(Step::See { peer, card }) => {
                Some(Refusal::NeverShown { place: self.lanes[lane].place, peer, card })
            }
            _ => None,
        })
    }

    /// One step; `false` where it must wait.
    fn step(&mut self, lane: usize, step: Step) -> Result<bool, Refusal> {
        let place = self.lanes[lane].place;
        match step {
            Step::Copy { source, target } => {
                if source.count != target.count || source.form != target.form {
                    return Err(illegal(place, "copies between spans of different shape"));
                }
                self.check_overlap(place, source, target)?;
                let values = self.read(lane, source)?;
                if self.locate(place, source, false)? != self.locate(place, target, true)? {
                    self.write(lane, target, values)?;
                }
            }
            Step::Reduce { first, operands, target, finish } => {
                self.reduce(lane, first, operands, target, finish)?;
            }
            Step::Put { peer, source, target, signal } => {
                self.put(lane, peer, source, target)?;
                if let Some(flag) = signal {
                    self.signal(lane, peer, flag)?;
                }
            }
            Step::Get { peer, source, target } => self.get(lane, peer, source, target)?,
            Step::Signal { peer, flag } => self.signal(lane, peer, flag)?,
            Step::Wait { peer, flag, count } => return self.wait(lane, peer, flag, count),
            Step::Show { source, card } => self.show(lane, source, card)?,
            Step::See { peer, card } => return self.see(lane, peer, card),
        }
        Ok(true)
    }

    /// Where an event took place.
    fn place(&self, event: Event) -> Place {
        Place { step: (event.step as usize).saturating_sub(1), ..self.lanes[event.lane].place }
    }

    fn event(&self, lane: usize) -> Event {
        let step = u32::try_from(self.lanes[lane].place.step + 1).unwrap_or(u32::MAX);
        Event { lane, step }
    }

    fn check_mapped(&self, place: Place, peer: Rank) -> Result<(), Refusal> {
        self.check_peer(place, peer)?;
        if self.plan.hosts[peer as usize] != self.plan.hosts[place.rank as usize] {
            return Err(illegal(place, &format!("rank {peer} does not map its memory here")));
        }
        Ok(())
    }

    /// Whose memory a span is, with windows and aliases resolved.
    fn locate(&self, place: Place, span: Span, writes: bool) -> Result<Bytes, Refusal> {
        let owner = match span.region {
            Region::Card(_) if writes => return Err(illegal(place, "writes to a card")),
            Region::Window(peer) | Region::Card(peer) => {
                self.check_mapped(place, peer)?;
                peer
            }
            Region::PeerInput(peer) | Region::PeerOutput(peer) => {
                self.check_open(place, peer)?;
                peer
            }
            _ => place.rank,
        };
        self.locate_at(place, owner, span, writes)
    }

    /// The bytes of a span in the memory of `owner`.
    fn locate_at(
        &self,
        place: Place,
        owner: Rank,
        span: Span,
        writes: bool,
    ) -> Result<Bytes, Refusal> {
        let length = span
            .count
            .checked_mul(span.form.size(self.data_type) as u64)
            .ok_or_else(|| illegal(place, &format!("a span of {} values", span.count)))?;
        self.memory
            .locate(owner, span.region, span.offset, length, writes)
            .map_err(|what| illegal(place, &what))
    }

    /// What is read and written in one step is the same memory or quite apart: an executor goes
    /// through both in an order of its own.
    fn check_overlap(&self, place: Place, source: Span, target: Span) -> Result<(), Refusal> {
        let apart = matches!(source.region, Region::Window(_) | Region::Scratch)
            != matches!(target.region, Region::Window(_) | Region::Scratch);
        if apart || matches!(source.region, Region::Card(_)) {
            return Ok(());
        }
        let source = self.locate(place, source, false)?;
        let target = self.locate(place, target, true)?;
        if source != target && source.overlaps(&target) {
            return Err(illegal(place, "source and target overlap"));
        }
        Ok(())
    }

    fn check_peer(&self, place: Place, peer: Rank) -> Result<(), Refusal> {
        if peer as usize >= self.plan.ranks.len() {
            return Err(illegal(place, &format!("there is no rank {peer}")));
        }
        if peer == place.rank {
            return Err(illegal(place, "a rank is not its own peer"));
        }
        Ok(())
    }

    fn check_flag(&self, place: Place, flag: Flag) -> Result<(), Refusal> {
        let flags = self.plan.ranks[place.rank as usize].flags;
        if flag >= flags {
            return Err(illegal(place, &format!("flag {flag}: the plan has {flags}")));
        }
        Ok(())
    }

    fn read(&mut self, lane: usize, span: Span) -> Result<Vec<(u64, Value)>, Refusal> {
        let bytes = self.locate(self.lanes[lane].place, span, false)?;
        self.note_use(lane, span);
        self.read_at(lane, span, bytes)
    }

    /// The values of `span`, which stand at `bytes`.
    fn read_at(
        &mut self,
        lane: usize,
        span: Span,
        bytes: Bytes,
    ) -> Result<Vec<(u64, Value)>, Refusal> {
        let place = self.lanes[lane].place;
        let event = self.event(lane);
        let clock = Rc::clone(&self.lanes[lane].clock);
        let values = self
            .memory
            .read(bytes, event, &|other: Event| known(&clock, lane, other))
            .map_err(|conflict| self.race(place, "reads", bytes, conflict))?;
        let size = span.form.size(self.data_type) as u64;
        for (at, value) in &values {
            match value.state {
                State::Unwritten => {
                    return Err(illegal(
                        place,
                        &format!(
                            "reads bytes at {at} of rank {}'s {} that nobody wrote",
                            bytes.rank,
                            self.memory.name(bytes)
                        ),
                    ));
                }
                State::Partial if span.form != Form::Accumulator && size != self.wide() => {
                    return Err(illegal(place, "reads a partial result as plain elements"));
                }
                State::Raw | State::Final if value.size != size => {
                    return Err(illegal(place, "reads plain elements as partial results"));
                }
                _ if value.size != size || !value.aligned() => {
                    return Err(illegal(place, "reads values across their boundaries"));
                }
                _ => {}
            }
        }
        Ok(values)
    }

    fn wide(&self) -> u64 {
        self.data_type.accumulator().size() as u64
    }

    fn write(&mut self, lane: usize, span: Span, values: Vec<(u64, Value)>) -> Result<(), Refusal> {
        let place = self.lanes[lane].place;
        let bytes = self.locate(place, span, true)?;
        self.note_use(lane, span);
        let event = self.event(lane);
        let clock = Rc::clone(&self.lanes[lane].clock);
        self.memory
            .write(bytes, values, Writer::Step(event), &|other: Event| known(&clock, lane, other))
            .map_err(|conflict| self.race(place, "writes", bytes, conflict))
    }

    fn race(
        &self,
        place: Place,
        what: &'static str,
        bytes: Bytes,
        other: memory::Conflict,
    ) -> Refusal {
        let other = match other {
            memory::Conflict::InFlight => "a put still in flight".to_owned(),
            memory::Conflict::With(event, kind) => {
                format!("the {kind} at {}", self.place(event))
            }
        };
        Refusal::Race {
            place,
            what,
            rank: bytes.rank,
            region: self.memory.name(bytes),
            bytes: (bytes.start, bytes.end),
            other,
        }
    }

    fn reduce(
        &mut self,
        lane: usize,
        first: u32,
        operands: u32,
        target: Span,
        finish: bool,
    ) -> Result<(), Refusal> {
        let place = self.lanes[lane].place;
        let list = self.plan.ranks[place.rank as usize].operands(first, operands);
        if list.is_empty() || list.len() != operands as usize {
            return Err(illegal(place, "a reduction without its operands"));
        }
        if finish != (target.form == Form::Element) && self.wide() != self.data_type.size() as u64 {
            return Err(illegal(place, "only finished reductions have the element type"));
        }
        let mut folded: Option<Vec<(u64, u64, Value)>> = None;
        for operand in list {
            if operand.span.count != target.count {
                return Err(illegal(place, "operands of different length"));
            }
            self.check_overlap(place, operand.span, target)?;
            let values = self.read(lane, operand.span)?;
            let size = operand.span.form.size(self.data_type) as u64;
            let mut runs = Vec::with_capacity(values.len());
            for (index, (at, value)) in values.iter().enumerate() {
                let end = values
                    .get(index + 1)
                    .map_or_else(|| operand.span.bytes(self.data_type), |n| n.0);
                let fresh = match value.state {
                    State::Raw => Some(self.expressions.leaf_rank(value.expression)),
                    _ => None,
                };
                if fresh != operand.fresh {
                    return Err(illegal(
                        place,
                        &format!(
                            "operand says fresh from {:?}, but the values are {}",
                            operand.fresh,
                            self.expressions.describe(*value),
                        ),
                    ));
                }
                if value.state == State::Final {
                    return Err(illegal(place, "reduces values that are already finished"));
                }
                runs.push((at / size, end / size, *value));
            }
            folded = Some(match folded {
                None => runs,
                Some(left) => self
                    .expressions
                    .fold_runs(&left, &runs)
                    .map_err(|what| illegal(place, &what))?,
            });
        }
        let size = target.form.size(self.data_type) as u64;
        let state = if finish { State::Final } else { State::Partial };
        let values = folded
            .unwrap_or_default()
            .into_iter()
            .map(|(start, _, value)| (start * size, Value { state, size, skew: 0, ..value }))
            .collect();
        self.write(lane, target, values)
    }

    fn put(
        &mut self,
        lane: usize,
        peer: Rank,
        source: Span,
        target: Remote,
    ) -> Result<(), Refusal> {
        let place = self.lanes[lane].place;
        self.check_peer(place, peer)?;
        if !matches!(target.region, Region::Scratch | Region::Output(_)) {
            return Err(illegal(place, "puts land in the peer's scratch or output only"));
        }
        let mapped = self.plan.hosts[peer as usize] == self.plan.hosts[place.rank as usize];
        if mapped && target.region != Region::Scratch {
            return Err(illegal(place, &format!("rank {peer} maps only its scratch here")));
        }
        let values = self.read(lane, source)?;
        let length = source.bytes(self.data_type);
        let bytes = self
            .memory
            .locate(peer, target.region, target.offset, length, true)
            .map_err(|what| illegal(place, &what))?;
        let clock = Rc::clone(&self.lanes[lane].clock);
        self.puts += 1;
        let put = PutId(self.puts);
        self.memory
            .write(bytes, values, Writer::Put(put), &|other: Event| known(&clock, lane, other))
            .map_err(|conflict| self.race(place, "writes", bytes, conflict))?;
        self.lanes[lane].puts.entry(peer).or_default().push((bytes, put));
        Ok(())
    }

    fn signal(&mut self, lane: usize, peer: Rank, flag: Flag) -> Result<(), Refusal> {
        let place = self.lanes[lane].place;
        self.check_peer(place, peer)?;
        self.check_flag(place, flag)?;
        let puts = self.lanes[lane].puts.get(&peer).map_or(0, Vec::len);
        let step = self.event(lane).step;
        let clock = Rc::clone(&self.lanes[lane].clock);
        let counter = self.counters.entry((place.rank, peer, flag)).or_default();
        if counter.raised.first().is_some_and(|first| first.lane != lane) {
            return Err(illegal(
                place,
                &format!("flag {flag} at rank {peer} is raised by two lanes"),
            ));
        }
        counter.raised.push(Raised { clock, lane, step, puts });
        if counter.stands_for != 0 && counter.raised.len() >= counter.stands_for as usize {
            counter.stands_for = 0;
            self.ready.extend(counter.waiter);
        }
        self.proof.signals += 1;
        Ok(())
    }

    fn wait(&mut self, lane: usize, peer: Rank, flag: Flag, count: u32) -> Result<bool, Refusal> {
        let place = self.lanes[lane].place;
        self.check_peer(place, peer)?;
        self.check_flag(place, flag)?;
        if count == 0 {
            return Err(illegal(place, "waits for no signal at all"));
        }
        let counter = self.counters.entry((peer, place.rank, flag)).or_default();
        if *counter.waiter.get_or_insert(lane) != lane {
            return Err(illegal(
                place,
                &format!("flag {flag} of rank {peer} is waited for in two lanes"),
            ));
        }
        let Some(raised) = counter.raised.get(count as usize - 1) else {
            counter.stands_for = count;
            return Ok(false);
        };
        let (clock, from, step, puts) =
            (Rc::clone(&raised.clock), raised.lane, raised.step, raised.puts);
        // Only this lane waits here, and it now knows all that the signals up to this one tell.
        let told = counter.waited.min(count) as usize..count as usize;
        for raised in &mut counter.raised[told] {
            let old = std::mem::replace(&mut raised.clock, Rc::clone(&self.blank));
            self.clocks -= usize::from(Rc::strong_count(&old) == 1);
        }
        counter.waited = counter.waited.max(count);
        self.learn(lane, from, step, &clock);
        self.clocks -= usize::from(Rc::strong_count(&clock) == 1);
        let event = self.event(lane);
        let seen = self.seen.entry((from, lane)).or_default();
        if let Some(sent) = self.lanes[from].puts.get(&place.rank).filter(|_| puts > *seen) {
            for (bytes, put) in &sent[*seen..puts] {
                self.memory.land(*bytes, *put, event);
            }
            *seen = puts;
        }
        Ok(true)
    }

    /// What a signal at `step` of lane `from` tells. Who knows of that step has been told already.
    fn learn(&mut self, lane: usize, from: usize, step: u32, told: &Rc<Clock>) {
        let mine = &mut self.lanes[lane].clock;
        if mine[from] >= step {
            return;
        }
        self.clocks += usize::from(Rc::strong_count(mine) > 1);
        self.compared += told.len() as u64;
        let mine = Rc::make_mut(mine);
        for (known, told) in mine.iter_mut().zip(told.iter()) {
            *known = (*known).max(*told);
        }
        mine[from] = step;
    }

    fn check_signals(&self) -> Result<(), Refusal> {
        let mut left: Vec<_> = self
            .counters
            .iter()
            .filter(|(_, counter)| counter.raised.len() != counter.waited as usize)
            .collect();
        left.sort_by_key(|(key, _)| **key);
        let Some((key, counter)) = left.first() else {
            return Ok(());
        };
        let place = match counter.raised.get(counter.waited as usize) {
            Some(raised) => self.place(Event { lane: raised.lane, step: raised.step }),
            None => Place { rank: key.0, lane: 0, step: 0 },
        };
        Err(Refusal::LeftOver {
            place,
            to: key.1,
            flag: key.2,
            raised: counter.waited.saturating_add(1),
            waited: counter.waited,
        })
    }

    /// What the lanes of `rank` know at the end, joined.
    fn final_knowledge(&self, rank: Rank) -> Clock {
        let mut joined = vec![0; self.lanes.len()];
        for (index, lane) in self.lanes.iter().enumerate().filter(|(_, l)| l.place.rank == rank) {
            for (known, told) in joined.iter_mut().zip(lane.clock.iter()) {
                *known = (*known).max(*told);
            }
            joined[index] = u32::MAX;
        }
        joined
    }
}

fn known(clock: &Clock, lane: usize, event: Event) -> bool {
    event.lane == lane || clock[event.lane] >= event.step
}

fn illegal(place: Place, what: &str) -> Refusal {
    Refusal::Illegal { place, what: what.to_owned() }
}

#[cfg(test)]
mod tests;
