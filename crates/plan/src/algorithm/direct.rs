//! Direct: every block goes straight from its source to its destination.
//!
//! The sends are staggered (rank `r` begins with `r + 1`) so that nobody is everybody's first
//! target. Where memory is not mapped a block lands in the user's output with no copy between.

use super::{Rounds, box_from};
use crate::build::{Builder, Lanes, PortSize};
use crate::problem::{Counts, Extent};
use crate::types::{Collective, Form, Rank};

pub(super) const COLLECTIVES: &[Collective] = &[
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
];

pub(super) fn build(builder: &mut Builder<'_>) {
    match builder.context().problem.collective {
        Collective::AllGather | Collective::Broadcast => show(builder),
        _ => exchange(builder),
    }
}

/// The same values to everybody: shown once to those that map memory, delivered to the others.
fn show(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let lanes = context.tuning.lanes;
    let one_to_all = problem.collective == Collective::Broadcast;
    let share = |of: Rank| match one_to_all {
        true if of == problem.root => Extent::new(0, problem.count()),
        true => Extent::new(0, 0),
        false => problem.block(of),
    };
    let room = context.tuning.scratch_bytes / u64::from(lanes) / u64::from(context.tuning.slots);
    let piece = context.values(room.min(context.tuning.slot_bytes), Form::Element);
    let size = PortSize {
        boxes: 0,
        slot_bytes: 0,
        stage_bytes: context.element_bytes(piece),
        slots: context.tuning.slots,
    };
    let (readers, remote) = context.peers();
    for lane in 0..lanes {
        let port = builder.port(lane as usize, size);
        let rounds = Rounds::new(context, lane, piece, share);
        // An input block starts at 0 in the input but at the block's place in every output.
        let source = |cut: Extent| Extent::new(cut.start - share(rank).start, cut.count);
        for round in 0..rounds.count() {
            let mine = rounds.cut(rank, round);
            let input = builder.input(source(mine));
            if mine.count > 0 {
                if !readers.is_empty() {
                    let stage = builder.stage(port, &readers, mine.count, Form::Element);
                    builder.copy(lane as usize, input, stage);
                    builder.announce(port, &readers);
                }
                for peer in &remote {
                    builder.deliver(port, *peer, input, mine.start);
                }
                builder.copy(lane as usize, input, builder.output(mine));
            }
            for peer in (1..ranks).map(|distance| (rank + distance) % ranks) {
                let theirs = rounds.cut(peer, round);
                if theirs.count == 0 {
                    continue;
                }
                if context.mapped(peer) {
                    let part = Extent::new(0, theirs.count);
                    let span = builder.observe(port, peer, 0, part, Form::Element);
                    builder.copy(lane as usize, span, builder.output(theirs));
                    builder.release(port, peer);
                } else {
                    builder.accept(port, peer, theirs.count);
                }
            }
        }
    }
}

/// Different values for different peers: pairwise, sends and receives in lanes of their own.
fn exchange(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let root = problem.root;
    // What this rank sends to `to` (in its input), and where that belongs in the output there.
    let sent = |to: Rank| match problem.collective {
        Collective::Gather if to == root => {
            (Extent::new(0, problem.block(rank).count), problem.block(rank).start)
        }
        Collective::Scatter if rank == root => (problem.block(to), 0),
        Collective::AllToAll => (problem.send_block(to), problem.block(rank).start),
        _ => (Extent::new(0, 0), 0),
    };
    let received = |from: Rank| match problem.collective {
        Collective::Gather if rank == root => problem.block(from),
        Collective::Scatter if from == root => Extent::new(0, problem.block(rank).count),
        Collective::AllToAll => problem.receive_block(from),
        _ => Extent::new(0, 0),
    };
    // In an all_to_all_v only the receiver knows where a block belongs, and each rank knows its own
    // counts only. Every pair exchanges something, if only that there is nothing: a transport
    // compares the counts by what it carries.
    let blind = matches!(problem.counts, Counts::Pairwise { .. });
    let (lanes, slots) = (context.tuning.lanes, context.tuning.slots);
    let room = context.tuning.scratch_bytes / u64::from(lanes * slots * (ranks - 1));
    let size = PortSize {
        boxes: ranks - 1,
        slot_bytes: room.min(context.tuning.slot_bytes) & !63,
        stage_bytes: 0,
        slots,
    };
    for lane in 0..lanes as usize {
        let both = Lanes { outgoing: 2 * lane, incoming: 2 * lane + 1 };
        let port = builder.port(both, size);
        let split = |whole: Extent| whole.part(u64::from(lanes), lane as u64, context.grain());
        let (own, _) = sent(rank);
        let target = split(received(rank));
        builder.copy(both.outgoing, builder.input(split(own)), builder.output(target));
        for to in (1..ranks).map(|distance| (rank + distance) % ranks) {
            let (whole, place) = sent(to);
            let part = split(whole);
            let inbox = box_from(rank, to, ranks);
            if blind && whole.count == 0 && lane == 0 {
                builder.notify(port, to);
            } else if blind {
                builder.send_pieces(port, to, inbox, builder.input(part));
            } else {
                let start = place + part.start - whole.start;
                builder.send_into(port, to, inbox, builder.input(part), start);
            }
        }
        for from in (1..ranks).map(|distance| (rank + ranks - distance) % ranks) {
            let inbox = box_from(from, rank, ranks);
            let whole = received(from);
            let part = split(whole);
            if blind && whole.count == 0 && lane == 0 {
                builder.await_notice(port, from);
            } else if blind {
                builder.receive_pieces(port, from, inbox, part);
            } else {
                builder.receive_into(port, from, inbox, part);
            }
        }
    }
}
