//! Two shots: each rank folds its share of all inputs, then shows it to all.
//!
//! Both shots are all to all. The bytes a rank moves do not grow with the number of ranks, and
//! there are only two steps: the best choice inside a host.

use super::{Rounds, box_from};
use crate::build::{Builder, Context, Port, PortSize};
use crate::plan::{Operand, Span};
use crate::problem::Extent;
use crate::types::{Collective, Form, Rank};

pub(super) const COLLECTIVES: &[Collective] =
    &[Collective::AllReduce, Collective::Reduce, Collective::Broadcast];

pub(super) fn build(builder: &mut Builder<'_>) {
    let context = builder.context();
    let ranks = context.ranks();
    let lanes = context.tuning.lanes;
    let boxes = if context.all_mapped() { 0 } else { ranks - 1 };
    // First shot: boxes and a stage of a piece per rank. Second: boxes and a stage of one piece.
    let columns = u64::from(boxes) * 2 + u64::from(ranks) + 1;
    let room =
        context.tuning.scratch_bytes / u64::from(lanes) / u64::from(context.tuning.slots) / columns;
    let most = context.tuning.slot_bytes.div_ceil(u64::from(ranks));
    let piece = context.values(room.min(most), Form::Element);
    let bytes = context.element_bytes(piece);
    let slots = context.tuning.slots;
    let whole = Extent::new(0, context.problem.count());
    for lane in 0..lanes {
        let first =
            PortSize { boxes, slot_bytes: bytes, stage_bytes: bytes * u64::from(ranks), slots };
        let second = PortSize { boxes, slot_bytes: bytes, stage_bytes: bytes, slots };
        let shot = Shot {
            context,
            lane: lane as usize,
            piece,
            first: builder.port(lane as usize, first),
            second: builder.port(lane as usize, second),
        };
        let share = |of: Rank| whole.part(u64::from(ranks), u64::from(of), context.grain());
        let rounds = Rounds::new(context, lane, piece, share);
        for round in 0..rounds.count() {
            let cut = |of: Rank| rounds.cut(of, round);
            match context.problem.collective {
                Collective::Broadcast => {
                    let result = shot.scatter(builder, &cut);
                    shot.gather(builder, &cut, result);
                }
                _ => {
                    let result = shot.fold(builder, &cut);
                    shot.gather(builder, &cut, result);
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Shot<'a> {
    context: Context<'a>,
    lane: usize,
    piece: u64,
    first: Port,
    second: Port,
}

impl Shot<'_> {
    /// Shows `cut(peer)` of the input to each peer.
    fn show(&self, builder: &mut Builder<'_>, cut: &dyn Fn(Rank) -> Extent) {
        let (rank, ranks) = (self.context.rank, self.context.ranks());
        let (readers, remote) = self.context.peers();
        if !readers.is_empty() {
            let values = self.piece * u64::from(ranks);
            let stage = builder.stage(self.first, &readers, values, Form::Element);
            for reader in &readers {
                let source = builder.input(cut(*reader));
                let place = u64::from(*reader) * self.piece;
                let target = stage.slice(place, source.count, self.context.problem.data_type);
                builder.copy(self.lane, source, target);
            }
            builder.announce(self.first, &readers);
        }
        for peer in remote {
            let source = builder.input(cut(peer));
            builder.send(self.first, peer, box_from(rank, peer, ranks), source);
        }
    }

    /// Looks at this rank's cut of what `source` shows.
    fn look(&self, builder: &mut Builder<'_>, source: Rank, count: u64) -> Span {
        let (rank, ranks) = (self.context.rank, self.context.ranks());
        let part = Extent::new(u64::from(rank) * self.piece, count);
        builder.observe(self.first, source, box_from(source, rank, ranks), part, Form::Element)
    }

    /// First shot of a reduction: makes this rank's cut of the result and says where it stands.
    fn fold(&self, builder: &mut Builder<'_>, cut: &dyn Fn(Rank) -> Extent) -> Span {
        let (rank, ranks) = (self.context.rank, self.context.ranks());
        self.show(builder, cut);
        let mine = cut(rank);
        let operands: Vec<Operand> = (0..ranks)
            .map(|source| {
                if source == rank {
                    return builder.own(mine);
                }
                let span = self.look(builder, source, mine.count);
                Operand { span, fresh: Some(source) }
            })
            .collect();
        let result = self.result(builder, mine);
        builder.reduce(self.lane, &operands, result, true);
        for source in (0..ranks).filter(|source| *source != rank) {
            builder.release(self.first, source);
        }
        result
    }

    /// First shot of a broadcast: the root shows each rank its cut.
    fn scatter(&self, builder: &mut Builder<'_>, cut: &dyn Fn(Rank) -> Extent) -> Span {
        let (rank, root) = (self.context.rank, self.context.problem.root);
        let mine = cut(rank);
        if rank == root {
            self.show(builder, cut);
            let result = self.result(builder, mine);
            builder.copy(self.lane, builder.input(mine), result);
            return result;
        }
        let source = self.look(builder, root, mine.count);
        let result = self.result(builder, mine);
        builder.copy(self.lane, source, result);
        builder.release(self.first, root);
        result
    }

    /// Where this rank's cut of the result is made: in the stage if somebody reads it there or
    /// this rank has no output, else in the output.
    fn result(&self, builder: &mut Builder<'_>, mine: Extent) -> Span {
        let (readers, _) = self.audience();
        let has_output = self.context.problem.output_count(self.context.rank) > 0;
        if readers.is_empty() && has_output {
            return builder.output(mine);
        }
        builder.stage(self.second, &readers, mine.count, Form::Element)
    }

    /// Who looks at results: everybody, or the root alone.
    fn audience(&self) -> (Vec<Rank>, Vec<Rank>) {
        let (mut readers, mut remote) = self.context.peers();
        if self.context.problem.collective == Collective::Reduce {
            readers.retain(|peer| *peer == self.context.problem.root);
            remote.retain(|peer| *peer == self.context.problem.root);
        }
        (readers, remote)
    }

    /// Second shot: everybody's cut of the result to everybody (or to the root).
    fn gather(&self, builder: &mut Builder<'_>, cut: &dyn Fn(Rank) -> Extent, result: Span) {
        let (rank, ranks) = (self.context.rank, self.context.ranks());
        let (readers, remote) = self.audience();
        let mine = cut(rank);
        builder.announce(self.second, &readers);
        for peer in remote {
            builder.deliver(self.second, peer, result, mine.start);
        }
        if self.context.problem.output_count(rank) == 0 {
            return;
        }
        builder.copy(self.lane, result, builder.output(mine));
        for peer in (1..ranks).map(|distance| (rank + distance) % ranks) {
            let theirs = cut(peer);
            if self.context.mapped(peer) {
                let part = Extent::new(0, theirs.count);
                let span = builder.observe(self.second, peer, 0, part, Form::Element);
                builder.copy(self.lane, span, builder.output(theirs));
                builder.release(self.second, peer);
            } else {
                builder.accept(self.second, peer, theirs.count);
            }
        }
    }
}
