//! Programs: plans as kernels run them, in the arguments of a launch.
//!
//! The structures are those of `kernels/collective.cu`, to the byte. Steps that belong together become
//! one: signals to several peers, waits for several, and one pass over memory for a fold and the copies of
//! its result, or for several copies of one source.

use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::kernels::Kind;
use crate::plan::mapped::DONE;
use crate::plan::plan::{RankPlan, Region, Span, Step};
use crate::plan::types::{Collective, DataType, Rank, ReduceOp};

/// Most ranks of a program; `RW_RANKS`.
pub(super) const RANKS: usize = 32;
/// Most places that one step names; `RW_PLACES`.
const PLACES: usize = 72;
/// Flags between two ranks: open and done, of collectives and of messages; `RW_FLAGS`.
pub(super) const FLAGS: usize = 4;
/// Bytes of a card that make one more part worth while: less where cards of many ranks have little.
pub(super) fn card_grain(ranks: u32) -> u64 {
    (crate::plan::mapped::card_bytes(ranks) / 16).clamp(256, 2 << 10).next_multiple_of(8)
}

const SIGNAL: u8 = 1;
const WAIT: u8 = 2;
const FOLD: u8 = 3;
const SHOW: u8 = 4;

/// Where values are: `rw_span`. Bytes from the start of a buffer, the kind of buffer, and whose.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, Immutable, PartialEq, Eq)]
pub(super) struct Place(u64);

impl Place {
    const OFFSET_BITS: u32 = 48;

    /// Nothing where the offset is longer than any memory.
    fn new(offset: u64, region: u8, rank: Rank) -> Option<Self> {
        let rank = u8::try_from(rank).ok()?;
        let fits = offset >> Self::OFFSET_BITS == 0;
        fits.then(|| Self(offset | u64::from(region) << Self::OFFSET_BITS | u64::from(rank) << 56))
    }
}

/// A step: `rw_op`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, Immutable, PartialEq, Eq)]
pub(super) struct Op {
    amount: u64,
    parts: u16,
    code: u8,
    flag: u8,
    call: u8,
    first: u8,
    sources: u8,
    targets: u8,
}

/// A call's buffers: `rw_call`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, Immutable)]
pub(super) struct Buffers {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) input_token: u64,
    pub(super) output_token: u64,
    pub(super) scalar: u64,
    pub(super) tag: u32,
    pub(super) scalar_is_address: u32,
}

/// Bytes of a launch's argument, `RW_ROOM`: the longer it is, the longer the host takes to launch.
const ROOM: usize = 1536;

/// The argument of a launch: `rw_launch`.
#[repr(C)]
#[derive(Clone, Debug, FromZeros, IntoBytes, Immutable)]
pub(super) struct Launch {
    pub(super) station: u64,
    pub(super) report: u64,
    pub(super) state: u64,
    pub(super) cards: u64,
    pub(super) maps: u64,
    pub(super) card_bytes: u64,
    pub(super) foreign: u64,
    pub(super) near: u64,
    pub(super) book: u64,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) parts_most: u32,
    ops: u32,
    /// Entries of the book that the station may not have yet: from, and up to.
    pub(super) named: u32,
    pub(super) names: u32,
    op: u32,
    /// Where they begin in what follows, as calls do behind the stations.
    steps: u16,
    places: u16,
    /// Stations of all ranks, calls, steps, places.
    rest: [u64; REST],
}

const HEAD: usize = 9 * 8 + 7 * 4 + 2 * 2;
const REST: usize = (ROOM - HEAD) / 8;

/// 8-byte words of so many of them.
const fn words<T>(count: usize) -> usize {
    count * size_of::<T>() / 8
}

impl Launch {
    /// Where the stations of all ranks are.
    pub(super) fn set_stations(&mut self, stations: &[u64]) {
        self.rest[..stations.len()].copy_from_slice(stations);
    }

    /// The buffers of the first calls.
    pub(super) fn set_calls(&mut self, calls: &[Buffers]) {
        self.put(self.ranks as usize, calls);
    }

    fn put<T: IntoBytes + Immutable>(&mut self, at: usize, all: &[T]) {
        self.rest[at..][..words::<T>(all.len())].as_mut_bytes().copy_from_slice(all.as_bytes());
    }
}

/// A program being written: one or several calls.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) kind: Kind,
    ranks: u32,
    ops: Vec<Op>,
    spans: Vec<Place>,
    pub(super) calls: usize,
    /// Parts of the step with the most.
    pub(super) parts: u32,
}

/// A part of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) plan: &'a RankPlan,
    pub(super) data_type: DataType,
    /// Parts of the launch among which its steps are shared out.
    pub(super) parts: u32,
    /// Whether it is a message: its flags are others than those of collectives.
    pub(super) is_message: bool,
}

/// Messages out, and as many in, for which a launch by so many ranks has room.
pub(super) fn messages(ranks: u32) -> u32 {
    // Out: a signal and a wait. In: a wait, a copy of two places, and a signal.
    let pair = words::<Buffers>(2) + words::<Op>(5) + words::<Place>(2);
    u32::try_from(REST.saturating_sub(ranks as usize) / pair).unwrap_or(1).max(1)
}

/// A count as steps have it. What is longer has no room in a launch.
fn short(count: usize) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

/// The kernel for a call of so many ranks: the same on all of them, also where one has nothing to fold.
pub(super) fn kind(collective: Collective, ranks: u32, data_type: DataType, op: ReduceOp) -> Kind {
    // Alone it is a copy, bit for bit, unless there is something to multiply or divide.
    let copies = ranks == 1 && !matches!(op, ReduceOp::Avg | ReduceOp::PreMulSum);
    match collective.reduces() && !copies {
        true => Kind::Fold { data_type, op, operands: ranks },
        false => Kind::Copy,
    }
}

impl Program {
    pub(super) fn new(kind: Kind, ranks: u32) -> Self {
        Self { kind, ranks, ops: Vec::new(), spans: Vec::new(), calls: 0, parts: 1 }
    }

    /// Writes down the steps of a call; says whether there was room. Where there was none the program is as it was.
    pub(super) fn add(&mut self, part: &Part<'_>) -> bool {
        self.add_some(part, self.calls, |_| true)
    }

    /// Begins a call whose steps are added one by one.
    pub(super) fn begin(&mut self) -> usize {
        self.calls += 1;
        self.calls - 1
    }

    /// Writes down some steps of a call; says whether there was room.
    pub(super) fn add_some(
        &mut self,
        part: &Part<'_>,
        call: usize,
        keep: impl Fn(&Step) -> bool,
    ) -> bool {
        let before = (self.ops.len(), self.spans.len(), self.calls);
        let mut writer = Writer { program: self, part, call, fits: true };
        for step in part.plan.lanes.iter().flatten().filter(|step| keep(step)) {
            writer.step(step);
        }
        let fits = writer.fits;
        self.calls = self.calls.max(call + 1);
        if !fits || !self.has_room() {
            self.ops.truncate(before.0);
            self.spans.truncate(before.1);
            self.calls = before.2;
            return false;
        }
        self.parts = self.parts.max(part.parts);
        true
    }

    /// Adds the calls of another program behind those that are there; says whether there was room.
    pub(super) fn append(&mut self, other: &Self) -> bool {
        let before = (self.ops.len(), self.spans.len());
        let (spans, calls) = (short(self.spans.len()), short(self.calls));
        let shifted = other.ops.iter().map(|op| Op {
            first: op.first.saturating_add(spans),
            call: op.call.saturating_add(calls),
            ..*op
        });
        self.ops.extend(shifted);
        self.spans.extend_from_slice(&other.spans);
        self.calls += other.calls;
        if !self.has_room() {
            self.ops.truncate(before.0);
            self.spans.truncate(before.1);
            self.calls -= other.calls;
            return false;
        }
        self.parts = self.parts.max(other.parts);
        true
    }

    /// Whether a launch can hold it.
    fn has_room(&self) -> bool {
        let places = |op: &Op| usize::from(op.sources) + usize::from(op.targets);
        self.places() + words::<Place>(self.spans.len()) <= REST
            && self.ops.iter().all(|op| places(op) <= PLACES)
    }

    /// Where the steps are, behind the stations and calls of a launch.
    fn steps(&self) -> usize {
        self.ranks as usize + words::<Buffers>(self.calls)
    }

    fn places(&self) -> usize {
        self.steps() + words::<Op>(self.ops.len())
    }

    /// Puts the steps into the argument of a launch.
    pub(super) fn write(&self, launch: &mut Launch) {
        let (steps, places) = (self.steps(), self.places());
        launch.ops = u32::try_from(self.ops.len()).unwrap_or(0);
        if let Kind::Fold { op, .. } = self.kind {
            launch.op = u32::from(super::kernels::code(op));
        }
        launch.steps = u16::try_from(steps).unwrap_or(u16::MAX);
        launch.places = u16::try_from(places).unwrap_or(u16::MAX);
        launch.put(steps, &self.ops);
        launch.put(places, &self.spans);
    }
}

struct Writer<'a, 'p> {
    program: &'a mut Program,
    part: &'a Part<'p>,
    call: usize,
    /// Whether all that was said so far can be.
    fits: bool,
}

impl Writer<'_, '_> {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Signal { peer, flag } => self.meet(SIGNAL, peer, flag),
            Step::Wait { peer, flag, .. } => self.meet(WAIT, peer, flag),
            Step::Copy { source, target } => {
                if !self.joins(source, target) {
                    self.fold(&[source], target);
                }
            }
            Step::Reduce { first, operands, target, .. } => {
                let list = self.part.plan.operands(first, operands);
                let sources: Vec<Span> = list.iter().map(|operand| operand.span).collect();
                self.fold(&sources, target);
            }
            Step::Show { source, .. } => {
                let first = self.place(source);
                let amount = self.amount(source);
                self.push(Op { code: SHOW, amount, first, sources: 1, ..self.blank() });
            }
            // Whoever reads a card waits for it.
            Step::See { .. } => {}
            Step::Put { .. } | Step::Get { .. } => {
                unreachable!("plans on mapped buffers neither put nor get")
            }
        }
    }

    fn blank(&self) -> Op {
        Op {
            code: 0,
            parts: u16::try_from(self.part.parts).unwrap_or(u16::MAX),
            amount: 0,
            first: 0,
            sources: 0,
            targets: 0,
            call: short(self.call),
            flag: 0,
        }
    }

    fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    /// Values as the kernel counts them: bytes where it copies.
    fn amount(&self, span: Span) -> u64 {
        match self.program.kind {
            Kind::Fold { .. } => span.count,
            _ => span.bytes(self.part.data_type),
        }
    }

    fn meet(&mut self, code: u8, peer: Rank, flag: u16) {
        let flag = u8::from(flag >= DONE) + if self.part.is_message { 2 } else { 0 };
        let (bit, blank) = (1_u64 << peer, self.blank());
        match self.program.ops.last_mut() {
            Some(op)
                if (op.code, op.flag, op.call) == (code, flag, blank.call)
                    && op.amount & bit == 0 =>
            {
                op.amount |= bit;
            }
            _ => self.push(Op { code, amount: bit, flag, ..blank }),
        }
    }

    fn place(&mut self, span: Span) -> u8 {
        let (region, rank) = match span.region {
            Region::Input(_) => (0, 0),
            Region::Output(_) => (1, 0),
            Region::PeerInput(peer) => (2, peer),
            Region::PeerOutput(peer) => (3, peer),
            Region::Card(peer) => (4, peer),
            Region::Scratch | Region::Window(_) => {
                unreachable!("plans on mapped buffers have no scratch")
            }
        };
        let place = Place::new(span.offset, region, rank);
        self.fits &= place.is_some();
        self.program.spans.push(place.unwrap_or(Place(0)));
        short(self.program.spans.len() - 1)
    }

    fn fold(&mut self, sources: &[Span], target: Span) {
        let first = short(self.program.spans.len());
        for source in sources {
            self.place(*source);
        }
        self.place(target);
        let count = short(sources.len());
        let amount = self.amount(target);
        self.push(Op { code: FOLD, amount, first, sources: count, targets: 1, ..self.blank() });
    }

    /// Whether a copy is another target of the step before: of its result, or of the same source.
    fn joins(&mut self, source: Span, target: Span) -> bool {
        let amount = self.amount(source);
        let call = self.blank().call;
        let Some(last) = self.program.ops.last().copied() else { return false };
        let sources = usize::from(last.sources);
        if last.code != FOLD || last.amount != amount || last.call != call {
            return false;
        }
        // Cards are read one by one.
        if matches!(source.region, Region::Card(_)) {
            return false;
        }
        let first = usize::from(last.first);
        self.place(source);
        let Some(wanted) = self.program.spans.pop() else { return false };
        let spans = &self.program.spans;
        let is_same_source = sources == 1 && spans[first] == wanted;
        if !is_same_source && spans[first + sources] != wanted {
            return false;
        }
        self.place(target);
        if let Some(op) = self.program.ops.last_mut() {
            op.targets = op.targets.saturating_add(1);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::mapped::Way;
    use crate::plan::problem::Problem;

    fn program(collective: Collective, ranks: u32, count: u64, way: Way) -> Program {
        program_of(collective, (ranks - 1, ranks), count, way)
    }

    fn program_of(
        collective: Collective,
        (rank, ranks): (Rank, u32),
        count: u64,
        way: Way,
    ) -> Program {
        let problem = Problem::new(collective, ranks, count, DataType::F32);
        let plan = way.build(&problem, rank);
        let kind = kind(collective, ranks, DataType::F32, ReduceOp::Sum);
        let mut program = Program::new(kind, ranks);
        let part = Part { plan: &plan, data_type: DataType::F32, parts: 3, is_message: false };
        assert!(program.add(&part), "{collective} of {ranks} ranks does not fit");
        program
    }

    #[test]
    fn an_all_reduce_is_five_steps() {
        let program = program(Collective::AllReduce, 8, 1 << 20, Way::Buffers);
        let codes: Vec<u8> = program.ops.iter().map(|op| op.code).collect();
        assert_eq!(codes, [SIGNAL, WAIT, FOLD, SIGNAL, WAIT]);
        assert_eq!(program.ops[0].amount, 0b0111_1111);
        assert_eq!((program.ops[2].sources, program.ops[2].targets), (8, 8));
        assert_eq!(
            program.kind,
            Kind::Fold { data_type: DataType::F32, op: ReduceOp::Sum, operands: 8 }
        );
    }

    #[test]
    fn every_collective_of_the_most_ranks_fits() {
        let all = Collective::ALL.into_iter().filter(|one| *one != Collective::SendRecv);
        let by_buffers = all.map(|collective| (collective, Way::Buffers));
        let by_cards = [Collective::AllReduce, Collective::AllGather].map(|one| (one, Way::Cards));
        for (collective, way) in by_buffers.chain(by_cards) {
            for rank in [0, 1, 31] {
                program_of(collective, (rank, 32), 10, way);
            }
        }
    }

    #[test]
    fn the_structures_are_those_of_the_kernel() {
        assert_eq!(size_of::<Place>(), 8);
        assert_eq!(size_of::<Op>(), 16);
        let place = Place::new(0x0605_0403_0201, 7, 8).unwrap();
        assert_eq!(place.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        let (amount, parts) = (0x0807_0605_0403_0201, 0x0a09);
        let op =
            Op { amount, parts, code: 11, flag: 12, call: 13, first: 14, sources: 15, targets: 16 };
        assert_eq!(op.as_bytes().to_vec(), (1..=16).collect::<Vec<u8>>());
        assert_eq!(size_of::<Buffers>(), 48);
        assert_eq!(std::mem::offset_of!(Launch, rest), HEAD);
        assert_eq!(size_of::<Launch>(), ROOM);
    }

    #[test]
    fn a_launch_holds_what_was_written() {
        let stations: Vec<u64> = (100..132).collect();
        for (collective, ranks, calls) in [
            (Collective::AllReduce, 2, 1),
            (Collective::AllReduce, 3, 5),
            (Collective::AllReduce, 16, 1),
            (Collective::AllToAll, 8, 2),
            (Collective::AllToAll, 32, 1),
        ] {
            let one = program(collective, ranks, 64, Way::Buffers);
            let mut program = one.clone();
            for _ in 1..calls {
                assert!(program.append(&one));
            }
            let mut launch = Launch::new_zeroed();
            launch.ranks = ranks;
            launch.set_stations(&stations[..ranks as usize]);
            program.write(&mut launch);
            let buffers = |input| Buffers { input, tag: 9, ..Buffers::new_zeroed() };
            let calls: Vec<Buffers> = (0..calls).map(buffers).collect();
            launch.set_calls(&calls);
            let mut rest = &launch.as_bytes()[HEAD..];
            let mut take = |bytes: &[u8]| {
                let (taken, left) = rest.split_at(bytes.len());
                rest = left;
                assert!(taken == bytes, "{collective} of {ranks}");
            };
            take(stations[..ranks as usize].as_bytes());
            take(calls.as_bytes());
            take(program.ops.as_bytes());
            take(program.spans.as_bytes());
            assert!(rest.iter().all(|byte| *byte == 0));
            let begins = (usize::from(launch.steps), usize::from(launch.places));
            assert_eq!(begins, (program.steps(), program.places()));
        }
    }

    #[test]
    fn what_does_not_fit_leaves_the_program_as_it_was() {
        let problem = Problem::new(Collective::AllToAll, 32, 8, DataType::U8);
        let plan = Way::Buffers.build(&problem, 0);
        let part = Part { plan: &plan, data_type: DataType::U8, parts: 1, is_message: false };
        let mut program = Program::new(Kind::Copy, 32);
        assert!(program.add(&part));
        let before = program.clone();
        let mut longer = program.clone();
        assert!(!program.add(&part) && !longer.append(&before));
        for after in [&program, &longer] {
            assert_eq!((&after.ops, &after.spans, after.calls), (&before.ops, &before.spans, 1));
        }
    }

    #[test]
    fn what_is_farther_than_any_memory_is_long_does_not_fit() {
        for (count, fits) in [((1 << 48) - 1, true), (1 << 48, false)] {
            let problem = Problem::new(Collective::AllGather, 2, count, DataType::U8);
            let plan = Way::Buffers.build(&problem, 1);
            let part = Part { plan: &plan, data_type: DataType::U8, parts: 1, is_message: false };
            let mut program = Program::new(Kind::Copy, 2);
            assert_eq!(program.add(&part), fits, "{count}");
        }
    }

    #[test]
    fn a_launch_holds_several_calls() {
        for (ranks, least) in [(2, 8), (4, 6), (8, 4)] {
            let one = program(Collective::AllReduce, ranks, 1 << 20, Way::Buffers);
            let mut all = one.clone();
            while all.append(&one) {}
            assert!(all.calls >= least, "{} calls of {ranks} ranks", all.calls);
            let last = all.ops.last().map(|op| usize::from(op.call));
            assert_eq!(last, Some(all.calls - 1));
        }
    }

    #[test]
    fn messages_that_should_have_room_have_it() {
        let send = crate::plan::mapped::send(1);
        let receive = crate::plan::mapped::receive(1, 100);
        for ranks in 2..=32 {
            let mut program = Program::new(Kind::Copy, ranks);
            for _ in 0..messages(ranks) {
                for plan in [&send, &receive] {
                    let part = Part { plan, data_type: DataType::U8, parts: 1, is_message: true };
                    assert!(program.add(&part), "{ranks} ranks");
                }
            }
            assert!(messages(ranks) >= 6, "{ranks} ranks");
        }
    }

    #[test]
    fn calls_that_are_appended_keep_their_places_and_parts() {
        let first = program(Collective::AllReduce, 4, 1000, Way::Buffers);
        let second = Program { parts: 9, ..program(Collective::AllReduce, 4, 77, Way::Buffers) };
        let mut both = first.clone();
        assert!(both.append(&second));
        assert_eq!((both.calls, both.parts), (2, 9));
        let (ops, spans) = (first.ops.len(), first.spans.len());
        for (appended, own) in both.ops[ops..].iter().zip(&second.ops) {
            assert_eq!(appended.call, own.call + 1);
            if own.code == FOLD {
                assert_eq!(appended.first as usize, own.first as usize + spans);
            }
        }
        assert_eq!(both.spans[spans..], second.spans);
        let mut launch = Launch::new_zeroed();
        both.write(&mut launch);
        assert_eq!(launch.ops as usize, both.ops.len());
    }

    #[test]
    fn messages_have_flags_of_their_own() {
        let plan = crate::plan::mapped::receive(1, 100);
        let flags = |is_message| {
            let mut program = Program::new(Kind::Copy, 2);
            let part = Part { plan: &plan, data_type: DataType::U8, parts: 1, is_message };
            assert!(program.add(&part));
            let meets = program.ops.iter().filter(|op| op.code == SIGNAL || op.code == WAIT);
            meets.map(|op| op.flag).collect::<Vec<_>>()
        };
        assert_eq!(flags(false), [0, 1]);
        assert_eq!(flags(true), [2, 3]);
        assert!(flags(true).iter().all(|flag| usize::from(*flag) < FLAGS));
    }

    #[test]
    fn alone_only_what_changes_values_is_folded() {
        let alone = |op| kind(Collective::AllReduce, 1, DataType::F16, op);
        assert_eq!(alone(ReduceOp::Sum), Kind::Copy);
        assert_eq!(alone(ReduceOp::Max), Kind::Copy);
        assert!(matches!(alone(ReduceOp::Avg), Kind::Fold { operands: 1, .. }));
        assert!(matches!(alone(ReduceOp::PreMulSum), Kind::Fold { operands: 1, .. }));
        let gather = kind(Collective::AllGather, 8, DataType::F16, ReduceOp::Avg);
        assert_eq!(gather, Kind::Copy);
    }
}
