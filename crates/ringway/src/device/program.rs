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
/// Most calls of a program; `RW_CALLS`.
pub(super) const CALLS: usize = 16;
/// Most steps; `RW_OPS`.
pub(super) const STEPS: usize = 40;
/// Most places that steps name; `RW_SPANS`.
pub(super) const SPANS: usize = 72;
/// Flags between two ranks: open and done, of collectives and of messages; `RW_FLAGS`.
pub(super) const FLAGS: usize = 4;
/// Bytes of a card that make a block worth while: less where cards of many ranks have little.
pub(super) fn card_grain(ranks: u32) -> u64 {
    (crate::plan::mapped::card_bytes(ranks) / 16).clamp(256, 2 << 10).next_multiple_of(8)
}

const SIGNAL: u32 = 1;
const WAIT: u32 = 2;
const FOLD: u32 = 3;
const SHOW: u32 = 4;

/// Where values are: `rw_span`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, Immutable, PartialEq, Eq)]
pub(super) struct Place {
    offset: u64,
    region: u16,
    rank: u16,
    unused: u32,
}

/// A step: `rw_op`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, Immutable, PartialEq, Eq)]
pub(super) struct Op {
    code: u32,
    blocks: u32,
    amount: u64,
    first: u32,
    sources: u16,
    targets: u16,
    call: u16,
    flag: u16,
    unused: u32,
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
    pub(super) blocks: u32,
    ops: u32,
    /// Entries of the book that the station may not have yet: from, and up to.
    pub(super) named: u32,
    pub(super) names: u32,
    op: u32,
    unused: u32,
    unused_too: u64,
    pub(super) stations: [u64; RANKS],
    pub(super) calls: [Buffers; CALLS],
    program: [Op; STEPS],
    spans: [Place; SPANS],
}

/// A program being written: one or several calls.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) kind: Kind,
    ops: Vec<Op>,
    spans: Vec<Place>,
    pub(super) calls: usize,
    /// Blocks of the step with the most.
    pub(super) blocks: u32,
}

/// A part of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) plan: &'a RankPlan,
    pub(super) data_type: DataType,
    pub(super) blocks: u32,
    /// Whether it is a message: its flags are others than those of collectives.
    pub(super) is_message: bool,
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
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, ops: Vec::new(), spans: Vec::new(), calls: 0, blocks: 1 }
    }

    /// Writes down the steps of a call that `keep` chooses; says whether there was room. Where there
    /// was none the program is as it was.
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
        let before = (self.ops.len(), self.spans.len());
        let mut writer = Writer { program: self, part, call };
        for step in part.plan.lanes.iter().flatten().filter(|step| keep(step)) {
            writer.step(step);
        }
        if self.ops.len() > STEPS || self.spans.len() > SPANS || call >= CALLS {
            self.ops.truncate(before.0);
            self.spans.truncate(before.1);
            return false;
        }
        self.calls = self.calls.max(call + 1);
        self.blocks = self.blocks.max(part.blocks);
        true
    }

    /// Adds the calls of another program behind those that are there; says whether there was room.
    pub(super) fn append(&mut self, other: &Self) -> bool {
        if self.ops.len() + other.ops.len() > STEPS
            || self.spans.len() + other.spans.len() > SPANS
            || self.calls + other.calls > CALLS
        {
            return false;
        }
        let spans = u32::try_from(self.spans.len()).unwrap_or(u32::MAX);
        let calls = u16::try_from(self.calls).unwrap_or(u16::MAX);
        let shifted =
            other.ops.iter().map(|op| Op { first: op.first + spans, call: op.call + calls, ..*op });
        self.ops.extend(shifted);
        self.spans.extend_from_slice(&other.spans);
        self.calls += other.calls;
        self.blocks = self.blocks.max(other.blocks);
        true
    }

    /// Puts the steps into the argument of a launch.
    pub(super) fn write(&self, launch: &mut Launch) {
        launch.ops = u32::try_from(self.ops.len()).unwrap_or(0);
        if let Kind::Fold { op, .. } = self.kind {
            launch.op = u32::from(super::kernels::code(op));
        }
        launch.program[..self.ops.len()].copy_from_slice(&self.ops);
        launch.spans[..self.spans.len()].copy_from_slice(&self.spans);
    }
}

struct Writer<'a, 'p> {
    program: &'a mut Program,
    part: &'a Part<'p>,
    call: usize,
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
            blocks: self.part.blocks,
            amount: 0,
            first: 0,
            sources: 0,
            targets: 0,
            call: u16::try_from(self.call).unwrap_or(u16::MAX),
            flag: 0,
            unused: 0,
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

    fn meet(&mut self, code: u32, peer: Rank, flag: u16) {
        let flag = flag / DONE + if self.part.is_message { 2 } else { 0 };
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

    fn place(&mut self, span: Span) -> u32 {
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
        let rank = u16::try_from(rank).unwrap_or(u16::MAX);
        let place = Place { offset: span.offset, region, rank, unused: 0 };
        self.program.spans.push(place);
        u32::try_from(self.program.spans.len() - 1).unwrap_or(u32::MAX)
    }

    fn fold(&mut self, sources: &[Span], target: Span) {
        let first = u32::try_from(self.program.spans.len()).unwrap_or(u32::MAX);
        for source in sources {
            self.place(*source);
        }
        self.place(target);
        let count = u16::try_from(sources.len()).unwrap_or(u16::MAX);
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
        let first = last.first as usize;
        self.place(source);
        let Some(wanted) = self.program.spans.pop() else { return false };
        let spans = &self.program.spans;
        let is_same_source = sources == 1 && spans[first] == wanted;
        if !is_same_source && spans[first + sources] != wanted {
            return false;
        }
        self.place(target);
        if let Some(op) = self.program.ops.last_mut() {
            op.targets += 1;
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
        let problem = Problem::new(collective, ranks, count, DataType::F32);
        let plan = way.build(&problem, ranks - 1);
        let mut program = Program::new(kind(collective, ranks, DataType::F32, ReduceOp::Sum));
        let part = Part { plan: &plan, data_type: DataType::F32, blocks: 3, is_message: false };
        assert!(program.add(&part), "{collective} of {ranks} ranks does not fit");
        program
    }

    #[test]
    fn an_all_reduce_is_five_steps() {
        let program = program(Collective::AllReduce, 8, 1 << 20, Way::Buffers);
        let codes: Vec<u32> = program.ops.iter().map(|op| op.code).collect();
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
        for collective in Collective::ALL.into_iter().filter(|c| *c != Collective::SendRecv) {
            program(collective, 32, 1000, Way::Buffers);
        }
        program(Collective::AllReduce, 32, 10, Way::Cards);
        program(Collective::AllGather, 32, 10, Way::Cards);
    }

    #[test]
    fn the_structures_are_those_of_the_kernel() {
        assert_eq!(size_of::<Place>(), 16);
        assert_eq!(size_of::<Op>(), 32);
        assert_eq!(size_of::<Buffers>(), 48);
        assert!(size_of::<Launch>() <= 4096, "{} bytes", size_of::<Launch>());
        // It is copied by 16 bytes.
        assert_eq!(size_of::<Launch>() % 16, 0);
    }

    #[test]
    fn what_does_not_fit_leaves_the_program_as_it_was() {
        let problem = Problem::new(Collective::AllToAll, 16, 8, DataType::U8);
        let plan = Way::Buffers.build(&problem, 0);
        let part = Part { plan: &plan, data_type: DataType::U8, blocks: 1, is_message: false };
        let mut program = Program::new(Kind::Copy);
        assert!(program.add(&part));
        let before = (program.ops.clone(), program.spans.clone(), program.calls);
        assert!(program.add(&part));
        assert!(!program.add(&part));
        assert_eq!(program.calls, 2);
        assert_eq!(program.ops.len(), 2 * before.0.len());
    }

    #[test]
    fn a_program_holds_so_many_calls() {
        let problem = Problem::new(Collective::Barrier, 2, 0, DataType::U8);
        let plan = Way::Buffers.build(&problem, 0);
        let part = Part { plan: &plan, data_type: DataType::U8, blocks: 1, is_message: false };
        let mut one = Program::new(Kind::Copy);
        assert!(one.add(&part));
        let mut program = Program::new(Kind::Copy);
        let steps = one.ops.len();
        let room = CALLS.min(STEPS / steps);
        for calls in 1..=room {
            assert!(program.append(&one), "call {calls}");
        }
        let before = (program.ops.len(), program.spans.len(), program.calls);
        assert!(!program.append(&one));
        assert!(!program.add(&part));
        assert_eq!((program.ops.len(), program.spans.len(), program.calls), before);
        let calls: Vec<u16> = program.ops.iter().map(|op| op.call).collect();
        assert_eq!(calls.last(), Some(&u16::try_from(room - 1).unwrap()));
    }

    #[test]
    fn calls_that_are_appended_keep_their_places_and_blocks() {
        let first = program(Collective::AllReduce, 4, 1000, Way::Buffers);
        let second = Program { blocks: 9, ..program(Collective::AllReduce, 4, 77, Way::Buffers) };
        let mut both = first.clone();
        assert!(both.append(&second));
        assert_eq!((both.calls, both.blocks), (2, 9));
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
        assert_eq!(launch.program[..both.ops.len()], both.ops);
        assert_eq!(launch.spans[..both.spans.len()], both.spans);
    }

    #[test]
    fn messages_have_flags_of_their_own() {
        let plan = crate::plan::mapped::receive(1, 100);
        let flags = |is_message| {
            let mut program = Program::new(Kind::Copy);
            let part = Part { plan: &plan, data_type: DataType::U8, blocks: 1, is_message };
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
