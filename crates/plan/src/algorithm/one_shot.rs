//! One shot: everybody shows its input to everybody, each folds what it needs, in rank order.
//!
//! Where memory is mapped an input is copied once into the stage and read there by all; elsewhere
//! each peer is sent its part.

use super::{Rounds, box_from};
use crate::build::{Builder, PortSize};
use crate::plan::Operand;
use crate::problem::Extent;
use crate::types::{Collective, Form, Rank};

pub(super) const COLLECTIVES: &[Collective] =
    &[Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter];

pub(super) fn build(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let lanes = context.tuning.lanes;
    let boxes = if context.all_mapped() { 0 } else { ranks - 1 };
    // What each rank folds, in every rank's input.
    let share = |of: Rank| match problem.collective {
        Collective::AllReduce => Extent::new(0, problem.count()),
        Collective::Reduce if of == problem.root => Extent::new(0, problem.count()),
        Collective::Reduce => Extent::new(0, 0),
        _ => problem.block(of),
    };
    // A stage holds the pieces of all shares of a round side by side.
    let scattered = problem.collective == Collective::ReduceScatter;
    let columns = if scattered { u64::from(ranks) } else { 1 };
    let room = context.tuning.scratch_bytes
        / u64::from(lanes)
        / u64::from(context.tuning.slots)
        / (u64::from(boxes) + columns);
    let piece = context.values(room.min(context.tuning.slot_bytes), Form::Element);
    let bytes = context.element_bytes(piece);
    let size = PortSize {
        boxes,
        slot_bytes: bytes,
        stage_bytes: bytes * columns,
        slots: context.tuning.slots,
    };
    let (mut readers, mut remote) = context.peers();
    readers.retain(|peer| share(*peer).count > 0);
    remote.retain(|peer| share(*peer).count > 0);
    for lane in 0..lanes {
        let port = builder.port(lane as usize, size);
        let rounds = Rounds::new(context, lane, piece, share);
        for round in 0..rounds.count() {
            let place = |of: Rank| if scattered { u64::from(of) * piece } else { 0 };
            if !readers.is_empty() {
                let stage = builder.stage(port, &readers, piece * columns, Form::Element);
                let shown = if scattered { &readers[..] } else { &readers[..1] };
                for reader in shown {
                    let cut = rounds.cut(*reader, round);
                    let target = stage.slice(place(*reader), cut.count, problem.data_type);
                    builder.copy(lane as usize, builder.input(cut), target);
                }
                builder.announce(port, &readers);
            }
            for peer in &remote {
                let source = builder.input(rounds.cut(*peer, round));
                builder.send(port, *peer, box_from(rank, *peer, ranks), source);
            }
            if share(rank).count > 0 {
                let mine = rounds.cut(rank, round);
                let operands: Vec<Operand> = (0..ranks)
                    .map(|source| {
                        if source == rank {
                            return builder.own(mine);
                        }
                        let part = Extent::new(place(rank), mine.count);
                        let inbox = box_from(source, rank, ranks);
                        let span = builder.observe(port, source, inbox, part, Form::Element);
                        Operand { span, fresh: Some(source) }
                    })
                    .collect();
                let base = if scattered { problem.block(rank).start } else { 0 };
                let target = builder.output(Extent::new(mine.start - base, mine.count));
                builder.reduce(lane as usize, &operands, target, true);
                for source in (0..ranks).filter(|source| *source != rank) {
                    builder.release(port, source);
                }
            }
        }
    }
}
