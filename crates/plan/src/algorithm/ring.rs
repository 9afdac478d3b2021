//! Around the ring: every rank talks to its two neighbours only, and moves the fewest bytes.
//!
//! A reduction at level `shape` must fold in rank order, which a ring that starts anywhere does
//! not do. There the ring is cut open into a chain: partial results run up from rank 0 to the last
//! rank, finished ones run back down in lanes of their own, so that both directions are busy.

use super::Rounds;
use crate::build::{Builder, Context, Lanes, Port, PortSize};
use crate::plan::Operand;
use crate::problem::Extent;
use crate::types::{Collective, Form, Level, Rank};

pub(super) const COLLECTIVES: &[Collective] = &[
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Reduce,
];

pub(super) fn build(builder: &mut Builder<'_>) {
    let context = builder.context();
    let ordered = context.problem.level == Level::Shape;
    match context.problem.collective {
        Collective::Broadcast => chain_broadcast(builder),
        Collective::Reduce => chain_reduce(builder, ordered),
        Collective::AllReduce | Collective::ReduceScatter if ordered => chain_up_and_down(builder),
        _ => circle(builder),
    }
}

/// Values per message: bounded by slots, scratch, and the wider of the two forms.
fn piece(context: Context<'_>, boxes: u64) -> u64 {
    let room = context.tuning.scratch_bytes
        / u64::from(context.tuning.lanes)
        / (u64::from(context.tuning.slots.max(2)) * boxes + 1);
    context.values(room.min(context.tuning.slot_bytes), Form::Accumulator)
}

fn port_size(context: Context<'_>, piece: u64) -> PortSize {
    let bytes = piece * Form::Accumulator.size(context.problem.data_type) as u64;
    // With a single slot a full ring could wait for itself: everybody's slot holds what the next
    // rank has no slot for.
    PortSize { boxes: 1, slot_bytes: bytes, stage_bytes: 0, slots: context.tuning.slots.max(2) }
}

/// Reduce-scatter and all-gather around the ring, each where the collective needs it.
fn circle(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let piece = piece(context, 2);
    let share = |of: Rank| match problem.collective {
        Collective::AllReduce => {
            Extent::new(0, problem.count()).part(u64::from(ranks), u64::from(of), context.grain())
        }
        _ => problem.block(of),
    };
    for lane in 0..context.tuning.lanes {
        let size = port_size(context, piece);
        let fold = builder.port(lane as usize, size);
        let move_on = builder.port(lane as usize, size);
        let bounce = builder.private(size.slot_bytes);
        let rounds = Rounds::new(context, lane, piece, share);
        for round in 0..rounds.count() {
            let cut = |of: Rank| rounds.cut(of % ranks, round);
            if problem.collective != Collective::AllGather {
                let base = match problem.collective {
                    Collective::ReduceScatter => share(rank).start,
                    _ => 0,
                };
                let target = Extent::new(cut(rank).start - base, cut(rank).count);
                fold_around(builder, fold, lane as usize, &cut, target, bounce);
            }
            if problem.collective != Collective::ReduceScatter {
                move_around(builder, move_on, lane as usize, &cut, share(rank).start);
            }
        }
    }
}

/// Chunk `c` starts at rank `c + 1`, gathers every rank's values on its way and ends at rank `c`.
fn fold_around(
    builder: &mut Builder<'_>,
    port: Port,
    lane: usize,
    cut: &dyn Fn(Rank) -> Extent,
    target: Extent,
    bounce: u64,
) {
    let context = builder.context();
    let (rank, ranks) = (context.rank, context.ranks());
    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    builder.send(port, next, 0, builder.input(cut(rank + ranks - 1)));
    for step in 0..ranks - 1 {
        let extent = cut(rank + 2 * ranks - 2 - step);
        let (form, fresh) = match step {
            0 => (Form::Element, Some(previous)),
            _ => (Form::Accumulator, None),
        };
        let span = builder.receive(port, previous, 0, extent.count, form);
        let operands = [Operand { span, fresh }, builder.own(extent)];
        if step + 2 < ranks {
            let shape = (extent.count, Form::Accumulator);
            builder.reduce_send(port, (next, 0), &operands, shape, bounce);
        } else {
            builder.reduce(lane, &operands, builder.output(target), true);
        }
        builder.release(port, previous);
    }
}

/// Everybody's chunk of the output (or input block) once around.
fn move_around(
    builder: &mut Builder<'_>,
    port: Port,
    lane: usize,
    cut: &dyn Fn(Rank) -> Extent,
    block_start: u64,
) {
    let context = builder.context();
    let (rank, ranks) = (context.rank, context.ranks());
    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let mine = cut(rank);
    if context.problem.collective == Collective::AllGather {
        let source = builder.input(Extent::new(mine.start - block_start, mine.count));
        builder.copy(lane, source, builder.output(mine));
    }
    builder.send_into(port, next, 0, builder.output(mine), mine.start);
    for step in 0..ranks - 1 {
        let extent = cut(rank + ranks - 1 - step);
        builder.receive_into(port, previous, 0, extent);
        if step + 2 < ranks {
            builder.send_into(port, next, 0, builder.output(extent), extent.start);
        }
    }
}

/// From the root along the ring.
fn chain_broadcast(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let position = (rank + ranks - problem.root) % ranks;
    let piece = piece(context, 1);
    for lane in 0..context.tuning.lanes {
        let port = builder.port(lane as usize, port_size(context, piece));
        let part = Extent::new(0, problem.count()).part(
            u64::from(context.tuning.lanes),
            u64::from(lane),
            context.grain(),
        );
        for extent in part.pieces(piece) {
            let source = if position == 0 { builder.input(extent) } else { builder.output(extent) };
            if position > 0 {
                builder.receive_into(port, (rank + ranks - 1) % ranks, 0, extent);
            }
            if position + 1 < ranks {
                builder.send_into(port, (rank + 1) % ranks, 0, source, extent.start);
            }
            if position == 0 {
                builder.copy(lane as usize, source, builder.output(extent));
            }
        }
    }
}

/// Along a chain to the root: in ring order so that the root is last, or in rank order with the
/// last rank handing the result to the root.
fn chain_reduce(builder: &mut Builder<'_>, ordered: bool) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let first = if ordered { 0 } else { (problem.root + 1) % ranks };
    let piece = piece(context, 2);
    for lane in 0..context.tuning.lanes {
        let size = port_size(context, piece);
        let up = builder.port(lane as usize, size);
        let over = builder.port(lane as usize, size);
        let bounce = builder.private(size.slot_bytes);
        let part = Extent::new(0, problem.count()).part(
            u64::from(context.tuning.lanes),
            u64::from(lane),
            context.grain(),
        );
        let last = (first + ranks - 1) % ranks;
        for extent in part.pieces(piece) {
            let link = Link { port: up, lane: lane as usize, first, bounce };
            if last == problem.root {
                link.climb(builder, extent, End::Keep(extent));
            } else {
                link.climb(builder, extent, End::Hand(over, problem.root));
                if rank == problem.root {
                    builder.receive_pieces(over, last, 0, extent);
                }
            }
        }
    }
}

/// all_reduce and reduce_scatter in rank order: partial results up, finished ones down.
fn chain_up_and_down(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let piece = piece(context, 2);
    let scattered = problem.collective == Collective::ReduceScatter;
    for lane in 0..context.tuning.lanes {
        let size = port_size(context, piece);
        let climbing = 2 * lane as usize;
        let falling = climbing + 1;
        let up = builder.port(climbing, size);
        // The last rank sends results down in the lane that makes them.
        let out = if rank + 1 == ranks { climbing } else { falling };
        let down = builder.port(Lanes { outgoing: out, incoming: falling }, size);
        let bounce = builder.private(size.slot_bytes);
        let link = Link { port: up, lane: climbing, first: 0, bounce };
        let owners = if scattered { 0..ranks } else { 0..1 };
        for owner in owners {
            let whole =
                if scattered { problem.block(owner) } else { Extent::new(0, problem.count()) };
            let lanes = u64::from(context.tuning.lanes);
            for extent in whole.part(lanes, u64::from(lane), context.grain()).pieces(piece) {
                let target = Extent::new(
                    extent.start - if scattered { whole.start } else { 0 },
                    extent.count,
                );
                if !scattered {
                    link.climb(builder, extent, End::Keep(target));
                    if rank + 1 < ranks {
                        builder.receive_into(down, rank + 1, 0, target);
                    }
                    if rank > 0 {
                        builder.send_into(down, rank - 1, 0, builder.output(target), target.start);
                    }
                } else if owner + 1 == ranks {
                    link.climb(builder, extent, End::Keep(target));
                } else {
                    link.climb(builder, extent, End::Hand(down, owner));
                    if rank == owner {
                        builder.receive_pieces(down, ranks - 1, 0, target);
                    }
                }
            }
        }
    }
}

/// What the last rank of a chain does with the finished values.
#[derive(Clone, Copy)]
enum End {
    /// Leaves them in its output.
    Keep(Extent),
    /// Sends them to a rank, through box 0 of a port.
    Hand(Port, Rank),
}

#[derive(Clone, Copy)]
struct Link {
    port: Port,
    lane: usize,
    first: Rank,
    bounce: u64,
}

impl Link {
    /// Passes one piece up the chain that starts at `first`.
    fn climb(self, builder: &mut Builder<'_>, extent: Extent, end: End) {
        let context = builder.context();
        let (rank, ranks) = (context.rank, context.ranks());
        let position = (rank + ranks - self.first) % ranks;
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        if position == 0 {
            builder.send(self.port, next, 0, builder.input(extent));
            return;
        }
        let (form, fresh) = match position {
            1 => (Form::Element, Some(previous)),
            _ => (Form::Accumulator, None),
        };
        let span = builder.receive(self.port, previous, 0, extent.count, form);
        let operands = [Operand { span, fresh }, builder.own(extent)];
        if position + 1 < ranks {
            let shape = (extent.count, Form::Accumulator);
            builder.reduce_send(self.port, (next, 0), &operands, shape, self.bounce);
        } else {
            match end {
                End::Keep(target) => {
                    builder.reduce(self.lane, &operands, builder.output(target), true);
                }
                End::Hand(port, root) => {
                    let shape = (extent.count, Form::Element);
                    builder.reduce_send(port, (root, 0), &operands, shape, self.bounce);
                }
            }
        }
        builder.release(self.port, previous);
    }
}
