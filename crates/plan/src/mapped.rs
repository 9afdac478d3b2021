//! Plans where ranks map each other's buffers, as GPUs of a host do: fold and copy straight from
//! everybody's input to everybody's output.
//!
//! | way | collectives | moves |
//! |---|---|---|
//! | cards | all_reduce, all_gather to which every rank adds something | values and flag together to everybody: nobody waits before it sends |
//! | buffers | all, and messages | two meetings, and one pass over memory between them |
//!
//! An executor may share out every lane among *blocks* that work side by side: block `b` does its part of
//! each step, and its signals meet those of block `b` elsewhere. That is the plan that [`split`] writes
//! down, and what is proved. A rank that has no room for so many may let one do what several would,
//! each step for all of them before the next: that is proved too.
//!
//! **Invariant:** all reductions fold in rank order, at every level. Which way is taken follows from the
//! call alone, so that all ranks take the same.

use crate::build::{Builder, Context, Port, PortSize, Tuning};
use crate::plan::{Flag, Operand, Plan, RankPlan, Region, Span, Step};
use crate::problem::{Counts, Extent, Problem};
use crate::types::{Collective, DataType, Form, Rank};

/// Most ranks that map each other's buffers.
pub const RANKS_MAX: u32 = 32;

/// Raised where a rank's buffers may be used.
pub const OPEN: Flag = 0;

/// Raised where they are used no more.
pub const DONE: Flag = 2;

/// Bytes that a rank shows on a card, at most.
pub const CARD_BYTES_MAX: u64 = 1 << 20;

/// How a call is done where buffers are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// Everybody sends its values, with the flag that says they are there, to everybody.
    Cards,
    /// Everybody uses everybody's buffers, between two meetings.
    Buffers,
}

impl Way {
    /// Every way.
    pub const ALL: [Self; 2] = [Self::Cards, Self::Buffers];

    /// The name used in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cards => "cards",
            Self::Buffers => "buffers",
        }
    }

    /// Whether a call can be done this way.
    ///
    /// # Errors
    /// The reason why not.
    pub fn supports(self, problem: &Problem) -> Result<(), String> {
        if problem.ranks > RANKS_MAX {
            let ranks = problem.ranks;
            return Err(format!("{ranks} ranks; at most {RANKS_MAX} map each other's buffers"));
        }
        if matches!(problem.counts, Counts::Pairwise { .. }) {
            return Err("nobody knows where blocks stand in the buffers of others".to_owned());
        }
        if problem.collective == Collective::SendRecv {
            return Err("messages have plans of their own".to_owned());
        }
        if self == Self::Buffers {
            return Ok(());
        }
        if !matches!(problem.collective, Collective::AllReduce | Collective::AllGather) {
            return Err("cards are for what everybody sends to everybody".to_owned());
        }
        let bytes = shown_bytes(problem);
        if bytes > CARD_BYTES_MAX {
            return Err(format!("{bytes} bytes; cards have {CARD_BYTES_MAX}"));
        }
        // A card says that it is there by its values: one without is waited for by nobody, and who does not wait may
        // be two calls ahead, and show over what others have yet to read.
        match (0..problem.ranks).find(|rank| problem.input_count(*rank) == 0) {
            Some(rank) => Err(format!("rank {rank} has nothing to show on a card")),
            None => Ok(()),
        }
    }

    /// One rank's part. Call only where [`Way::supports`] says yes.
    #[must_use]
    pub fn build(self, problem: &Problem, rank: Rank) -> RankPlan {
        let hosts = vec![0; problem.ranks as usize];
        let tuning = Tuning::default();
        let mut builder = Builder::new(Context { problem, rank, hosts: &hosts, tuning });
        builder.lane(0);
        match self {
            Self::Cards => cards(&mut builder),
            Self::Buffers => buffers(&mut builder),
        }
        builder.finish()
    }

    /// Every rank's part, shared out among `blocks`.
    #[must_use]
    pub fn plan(self, problem: &Problem, blocks: u16) -> Plan {
        let ranks = (0..problem.ranks)
            .map(|rank| split(&self.build(problem, rank), blocks, problem.data_type))
            .collect();
        Plan {
            algorithm: self.name().to_owned(),
            problems: vec![problem.clone(); problem.ranks as usize],
            hosts: vec![0; problem.ranks as usize],
            ranks,
        }
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Chooses for a call where cards have `card_bytes`: cards while the values fit.
///
/// # Errors
/// Where no way can do it.
pub fn choose(problem: &Problem, card_bytes: u64) -> Result<Way, String> {
    Way::Buffers.supports(problem)?;
    let few = shown_bytes(problem) <= card_bytes && Way::Cards.supports(problem).is_ok();
    Ok(if few { Way::Cards } else { Way::Buffers })
}

/// Bytes that cards of so many ranks should have: everybody sends all of it to everybody, twice as long as
/// it is, and where that becomes much the second meeting of the other way costs less.
#[must_use]
pub fn card_bytes(ranks: u32) -> u64 {
    let pairs = u64::from(ranks) * u64::from(ranks.saturating_sub(1));
    (2 * CARD_BYTES_MAX / pairs.max(1)).min(CARD_BYTES_MAX)
}

/// Bytes that the rank with the most shows on a card.
fn shown_bytes(problem: &Problem) -> u64 {
    let most = (0..problem.ranks).map(|rank| problem.input_count(rank)).max();
    most.unwrap_or(0).saturating_mul(problem.data_type.size() as u64)
}

/// The other ranks, each beginning with another, so that not all turn to one at a time.
fn others(rank: Rank, ranks: Rank) -> impl Iterator<Item = Rank> {
    (1..ranks).map(move |distance| (rank + distance) % ranks)
}

fn cards(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    builder.wide_card(shown_bytes(problem));
    let own = Extent::new(0, problem.input_count(rank));
    builder.show(0, builder.input(own), 0);
    for peer in others(rank, ranks) {
        builder.see(0, peer, 0);
    }
    let of = |builder: &Builder<'_>, peer: Rank, count: u64| match peer == rank {
        true => builder.input(Extent::new(0, count)),
        false => builder.card(peer, 0, 0, count),
    };
    if problem.collective == Collective::AllReduce {
        let operands: Vec<Operand> = (0..ranks)
            .map(|peer| Operand { span: of(builder, peer, own.count), fresh: Some(peer) })
            .collect();
        builder.reduce(0, &operands, builder.output(own), true);
    } else {
        for peer in 0..ranks {
            let block = problem.block(peer);
            builder.copy(0, of(builder, peer, block.count), builder.output(block));
        }
    }
}

/// Who uses whose buffers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Everybody everybody's.
    All,
    /// The root everybody's, and everybody the root's.
    Root,
}

fn buffers(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    builder.open();
    let reach = match problem.collective {
        Collective::Broadcast | Collective::Gather | Collective::Scatter => Reach::Root,
        _ => Reach::All,
    };
    let port = PortSize { boxes: 0, slot_bytes: 0, stage_bytes: 0, slots: 1 };
    let (open, done) = (builder.port(0, port), builder.port(0, port));
    let meets = |peer: &Rank| reach == Reach::All || rank == problem.root || *peer == problem.root;
    let peers: Vec<Rank> = others(rank, ranks).filter(meets).collect();
    // A barrier meets twice too: whoever left the first meeting may begin the next call, and what it says
    // there would stand in the place of what others have yet to read.
    meet(builder, open, &peers);
    work(builder);
    meet(builder, done, &peers);
}

/// Tells all `peers`, and waits for them.
fn meet(builder: &mut Builder<'_>, port: Port, peers: &[Rank]) {
    for peer in peers {
        builder.notify(port, *peer);
    }
    for peer in peers {
        builder.await_notice(port, *peer);
    }
}

/// What this rank does between the meetings.
fn work(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let whole = Extent::new(0, problem.count());
    let share = || whole.part(u64::from(ranks), u64::from(rank), context.grain());
    let root = problem.root;
    match problem.collective {
        Collective::AllReduce => {
            let share = share();
            let first = builder.output(share);
            fold(builder, share, first);
            for peer in others(rank, ranks) {
                builder.copy(0, first, builder.output_of(peer, share));
            }
        }
        Collective::Reduce => {
            let share = share();
            fold(builder, share, builder.output_of(root, share));
        }
        Collective::ReduceScatter => {
            let block = problem.block(rank);
            fold(builder, block, builder.output(Extent::new(0, block.count)));
        }
        Collective::AllGather => {
            let block = problem.block(rank);
            let own = builder.input(Extent::new(0, block.count));
            builder.copy(0, own, builder.output(block));
            for peer in others(rank, ranks) {
                builder.copy(0, own, builder.output_of(peer, block));
            }
        }
        Collective::AllToAll => {
            for distance in 0..ranks {
                let peer = (rank + distance) % ranks;
                let source = builder.input(problem.block(peer));
                builder.copy(0, source, builder.output_of(peer, problem.block(rank)));
            }
        }
        Collective::Broadcast => {
            builder.copy(0, builder.input_of(root, whole), builder.output(whole));
        }
        Collective::Gather => {
            let block = problem.block(rank);
            let own = builder.input(Extent::new(0, block.count));
            builder.copy(0, own, builder.output_of(root, block));
        }
        Collective::Scatter => {
            let block = problem.block(rank);
            let own = builder.output(Extent::new(0, block.count));
            builder.copy(0, builder.input_of(root, block), own);
        }
        Collective::Barrier | Collective::SendRecv => {}
    }
}

/// Folds `extent` of all inputs, in rank order.
fn fold(builder: &mut Builder<'_>, extent: Extent, target: Span) {
    let operands: Vec<Operand> = (0..builder.context().ranks())
        .map(|peer| Operand { span: builder.input_of(peer, extent), fresh: Some(peer) })
        .collect();
    builder.reduce(0, &operands, target, true);
}

/// The sender's part of a message: opens its buffer, and waits until it was read.
#[must_use]
pub fn send(to: Rank) -> RankPlan {
    let steps =
        vec![Step::Signal { peer: to, flag: OPEN }, Step::Wait { peer: to, flag: DONE, count: 1 }];
    RankPlan { lanes: vec![steps], flags: DONE + 2, exposed: true, ..RankPlan::default() }
}

/// The receiver's part of a message of so many bytes.
#[must_use]
pub fn receive(from: Rank, bytes: u64) -> RankPlan {
    let span = |region| Span { region, offset: 0, count: bytes, form: Form::Element };
    let mut steps = vec![Step::Wait { peer: from, flag: OPEN, count: 1 }];
    if bytes > 0 {
        let (source, target) = (span(Region::PeerInput(from)), span(Region::Output(0)));
        steps.push(Step::Copy { source, target });
    }
    steps.push(Step::Signal { peer: from, flag: DONE });
    RankPlan { lanes: vec![steps], flags: DONE + 2, exposed: true, ..RankPlan::default() }
}

/// The plan in which every lane is shared out among `blocks`: lane `l` becomes lanes `l * blocks` and
/// following, each with flags and cards of its own.
///
/// Blocks of an executor may take other values of a step than the run that is written down here, as
/// long as equal steps are shared out equally.
#[must_use]
pub fn split(part: &RankPlan, blocks: u16, data_type: DataType) -> RankPlan {
    let blocks = blocks.max(1);
    let wide = part.wide_card_bytes.div_ceil(u64::from(blocks)).next_multiple_of(8);
    let mut whole = RankPlan {
        scratch_bytes: part.scratch_bytes,
        flags: part.flags * blocks,
        cards: part.cards * blocks,
        exposed: part.exposed,
        wide_card_bytes: if part.wide_card_bytes > 0 { wide } else { 0 },
        ..RankPlan::default()
    };
    for lane in &part.lanes {
        for block in 0..blocks {
            let share = Share { part, blocks, block, stride: whole.card_stride(), data_type };
            let mut steps = Vec::with_capacity(lane.len());
            for step in lane {
                steps.extend(share.step(*step, &mut whole.operands));
            }
            whole.lanes.push(steps);
        }
    }
    whole
}

/// What one block does.
struct Share<'a> {
    part: &'a RankPlan,
    blocks: u16,
    block: u16,
    /// From one card to the next, in the plan that is made.
    stride: u64,
    data_type: DataType,
}

impl Share<'_> {
    fn number(&self, of_all: u16) -> u16 {
        of_all * self.blocks + self.block
    }

    fn span(&self, span: Span) -> Span {
        let whole = Extent::new(0, span.count);
        let extent = whole.part(u64::from(self.blocks), u64::from(self.block), 1);
        let cut = span.slice(extent.start, extent.count, self.data_type);
        match span.region {
            // A block's part of a card is a card.
            Region::Card(_) => {
                let card = u16::try_from(span.offset / self.part.card_stride()).unwrap_or(0);
                Span { offset: u64::from(self.number(card)) * self.stride, ..cut }
            }
            _ => cut,
        }
    }

    fn step(&self, step: Step, operands: &mut Vec<Operand>) -> Option<Step> {
        Some(match step {
            Step::Copy { source, target } => {
                let (source, target) = (self.span(source), self.span(target));
                return (source.count > 0).then_some(Step::Copy { source, target });
            }
            Step::Reduce { first, operands: count, target, finish } => {
                let target = self.span(target);
                if target.count == 0 {
                    return None;
                }
                let list = self.part.operands(first, count);
                let first = u32::try_from(operands.len()).unwrap_or(u32::MAX);
                operands.extend(
                    list.iter().map(|o| Operand { span: self.span(o.span), fresh: o.fresh }),
                );
                Step::Reduce { first, operands: count, target, finish }
            }
            Step::Signal { peer, flag } => Step::Signal { peer, flag: self.number(flag) },
            Step::Wait { peer, flag, count } => Step::Wait { peer, flag: self.number(flag), count },
            Step::Show { source, card } => {
                Step::Show { source: self.span(source), card: self.number(card) }
            }
            Step::See { peer, card } => Step::See { peer, card: self.number(card) },
            other @ (Step::Put { .. } | Step::Get { .. }) => other,
        })
    }
}

#[cfg(test)]
mod tests;
