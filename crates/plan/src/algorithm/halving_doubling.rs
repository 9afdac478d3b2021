//! Halving and doubling: a reduce-scatter in which the values a rank deals with are halved in each
//! round, then an all-gather in which they are doubled: the fewest bytes in 2 log₂ n rounds.
//!
//! The corners of a [`Cube`](super::cube::Cube) sit in a row of *seats*, and each seat owns a share of the values.
//! A round cuts the row in the middle: a rank sends what belongs to the other half to its
//! counterpart there, and keeps its own half.
//!
//! ```text
//! seat      0    1    2    3    4    5    6    7
//! round 0   ───────────────────●───────────────────    half of the values cross
//! round 1   ─────────●─────────   ────────●────────    a quarter
//! round 2   ────●────   ───●───   ───●───   ───●────   an eighth
//! ```
//!
//! In an all_reduce any seat may own any share, so neighbours sit far apart: the most values cross
//! between neighbouring ranks. In a reduce_scatter the shares are the ranks' own blocks and the
//! seats are in rank order.
//!
//! At level `run` partial results travel and are folded in every round. At level `shape` they are
//! the untouched inputs, half as long and twice as many in each round, and the owner folds all.

mod layout;

use std::ops::Range;

use super::exchange::{Flow, exchange};
use super::recursive_doubling;
use crate::build::{Builder, Port};
use crate::plan::{Operand, Region, Span};
use crate::problem::Extent;
use crate::types::{Collective, Form, Rank};
use layout::{Layout, Piece, pieces};

pub(super) const COLLECTIVES: &[Collective] =
    &[Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather];

pub(super) fn build(builder: &mut Builder<'_>) {
    let context = builder.context();
    if context.problem.collective == Collective::AllGather {
        // Blocks are given, so only the doubling is left.
        recursive_doubling::all_gather(builder);
        return;
    }
    let layout = Layout::new(context);
    for lane in 0..context.tuning.lanes {
        let table = Table {
            layout,
            lane: lane as usize,
            inward: builder.port(lane as usize, layout.inward()),
            outward: builder.port(lane as usize, layout.outward()),
            private: builder.private(layout.private_bytes()),
            bounce: builder.private(layout.bounce_bytes()),
        };
        for piece in pieces(layout, lane) {
            table.reduce(builder, &piece);
        }
    }
}

/// One input, or partial result, as far as this rank still holds it.
#[derive(Clone, Copy)]
enum Held {
    /// This rank's own input, in the user's buffer.
    Own,
    /// In scratch, as an operand whose first value is at this dense place.
    Scratch(Operand, u64),
}

impl Held {
    /// The operand for the values at `dense`, which stand at `extent` in the inputs.
    fn operand(self, builder: &Builder<'_>, dense: Extent, extent: Extent) -> Operand {
        match self {
            Self::Own => builder.own(extent),
            Self::Scratch(operand, first) => {
                let data_type = builder.context().problem.data_type;
                let span = operand.span.slice(dense.start - first, dense.count, data_type);
                Operand { span, ..operand }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Table<'a> {
    layout: Layout<'a>,
    lane: usize,
    inward: Port,
    outward: Port,
    private: u64,
    bounce: u64,
}

impl Table<'_> {
    fn reduce(self, builder: &mut Builder<'_>, piece: &Piece) {
        let layout = self.layout;
        let rank = layout.context.rank;
        let corner = layout.cube.corner(rank);
        let seat = layout.seat(corner);
        let head = layout.cube.head(corner);
        if rank != head {
            self.visit(builder, head, piece);
            return;
        }
        if layout.ordered() {
            self.move_inputs(builder, seat, piece);
        } else {
            self.fold_halves(builder, seat, piece);
        }
        if !layout.scattered() {
            self.gather(builder, seat, piece);
        }
    }

    fn all(self) -> Range<u32> {
        0..self.layout.cube.corners()
    }

    /// A guest: hands all its values to the head and gets its result.
    fn visit(self, builder: &mut Builder<'_>, head: Rank, piece: &Piece) {
        let sources: Vec<Span> =
            piece.extents(&self.all()).into_iter().map(|extent| builder.input(extent)).collect();
        builder.send_joined(self.inward, head, 0, &sources, self.private);
        if let Piece::Blocks { cuts, .. } = piece {
            let rank = self.layout.context.rank;
            let cut = cuts[rank as usize];
            let block = self.layout.context.problem.block(rank);
            let target = Extent::new(cut.start - block.start, cut.count);
            builder.receive_pieces(self.outward, head, 0, target);
        } else {
            let inbox = self.layout.cube.dimensions();
            Flow::new(head, inbox, piece.extents(&self.all())).receive(builder, self.outward);
        }
    }

    /// Waits for the input of a guest.
    fn welcome(self, builder: &mut Builder<'_>, guest: Rank, piece: &Piece) -> Held {
        let count = piece.dense(&self.all()).count;
        let span = builder.receive(self.inward, guest, 0, count, Form::Element);
        let operand = Operand { span, fresh: Some(guest) };
        Held::Scratch(operand, 0)
    }

    /// This side of the cut of a round and the other, seen from `seat`.
    fn sides(self, seat: u32, round: u32) -> (Range<u32>, Range<u32>) {
        let half = self.layout.half(round);
        let mine = seat / half * half;
        (mine..mine + half, mine ^ half..(mine ^ half) + half)
    }

    /// Partial results at a dense place.
    fn partial(self, dense: Extent) -> Span {
        Span {
            region: Region::Scratch,
            offset: self.private + dense.start * self.layout.wide(),
            count: dense.count,
            form: Form::Accumulator,
        }
    }

    /// Level `run`: in each round the two halves' partial results are folded, the lower ranks'
    /// first.
    fn fold_halves(self, builder: &mut Builder<'_>, seat: u32, piece: &Piece) {
        let layout = self.layout;
        let mut held = Held::Own;
        if let Some(guest) = layout.guest(seat) {
            let theirs = self.welcome(builder, guest, piece);
            held = self.fold(builder, piece, &self.all(), [held, theirs]);
            builder.release(self.inward, guest);
        }
        for round in 0..layout.cube.dimensions() {
            let (mine, theirs) = self.sides(seat, round);
            let across = seat ^ layout.half(round);
            let peer = layout.head(across);
            let sources = self.spans(builder, piece, &theirs, held);
            // A message is packed where the partial results of the other half would stand.
            let packed = self.partial(piece.dense(&theirs)).offset;
            builder.send_joined(self.inward, peer, layout.inbox(round), &sources, packed);
            let (form, fresh) = match layout.guest(across) {
                None if round == 0 => (Form::Element, Some(peer)),
                _ => (Form::Accumulator, None),
            };
            let dense = piece.dense(&mine);
            let inbox = layout.inbox(round);
            let span = builder.receive(self.inward, peer, inbox, dense.count, form);
            let mut operands = [held, Held::Scratch(Operand { span, fresh }, dense.start)];
            if across < seat {
                operands.swap(0, 1);
            }
            if round + 1 < layout.cube.dimensions() {
                held = self.fold(builder, piece, &mine, operands);
            } else {
                self.finish(builder, seat, piece, &operands);
            }
            builder.release(self.inward, peer);
        }
    }

    /// Folds two partial results of what `seats` own into a new one.
    fn fold(
        self,
        builder: &mut Builder<'_>,
        piece: &Piece,
        seats: &Range<u32>,
        operands: [Held; 2],
    ) -> Held {
        let whole = piece.dense(seats);
        let from_input = operands.iter().any(|held| matches!(held, Held::Own));
        let runs = if from_input { piece.extents(seats) } else { vec![whole] };
        let mut start = whole.start;
        for extent in runs {
            let dense = Extent::new(start, extent.count);
            let operands = operands.map(|held| held.operand(builder, dense, extent));
            builder.reduce(self.lane, &operands, self.partial(dense), false);
            start = dense.end();
        }
        let operand = Operand { span: self.partial(whole), fresh: None };
        Held::Scratch(operand, whole.start)
    }

    /// What is held of the values that `seats` own.
    fn spans(
        self,
        builder: &Builder<'_>,
        piece: &Piece,
        seats: &Range<u32>,
        held: Held,
    ) -> Vec<Span> {
        if let Held::Own = held {
            let extents = piece.extents(seats).into_iter();
            return extents.map(|extent| builder.input(extent)).collect();
        }
        let dense = piece.dense(seats);
        vec![held.operand(builder, dense, dense).span]
    }

    /// Level `shape`: in each round all inputs that are held, of the other half's values; in the
    /// end they are folded in rank order.
    fn move_inputs(self, builder: &mut Builder<'_>, seat: u32, piece: &Piece) {
        let layout = self.layout;
        let data_type = layout.context.problem.data_type;
        let mut held = vec![Held::Own; layout.context.ranks() as usize];
        let mut senders = Vec::new();
        if let Some(guest) = layout.guest(seat) {
            held[guest as usize] = self.welcome(builder, guest, piece);
            senders.push(guest);
        }
        for round in 0..layout.cube.dimensions() {
            let (mine, theirs) = self.sides(seat, round);
            let across = seat ^ layout.half(round);
            let peer = layout.head(across);
            let inbox = layout.inbox(round);
            let sources: Vec<Span> = layout
                .inputs(seat, round)
                .flat_map(|of| self.spans(builder, piece, &theirs, held[of as usize]))
                .collect();
            builder.send_joined(self.inward, peer, inbox, &sources, self.private);
            let dense = piece.dense(&mine);
            let count = dense.count * layout.inputs(across, round).count() as u64;
            let message = builder.receive(self.inward, peer, inbox, count, Form::Element);
            for (row, of) in (0..).zip(layout.inputs(across, round)) {
                let operand = Operand {
                    span: message.slice(row * dense.count, dense.count, data_type),
                    fresh: Some(of),
                };
                held[of as usize] = Held::Scratch(operand, dense.start);
            }
            senders.push(peer);
        }
        self.finish(builder, seat, piece, &held);
        for peer in senders {
            builder.release(self.inward, peer);
        }
    }

    /// The last fold of what this seat owns: into the output, or on to the guest whose block it is.
    fn finish(self, builder: &mut Builder<'_>, seat: u32, piece: &Piece, held: &[Held]) {
        let layout = self.layout;
        let mut start = piece.dense(&(seat..seat + 1)).start;
        for (member, extent) in piece.owned(seat).into_iter().enumerate() {
            let dense = Extent::new(start, extent.count);
            start = dense.end();
            let operands: Vec<Operand> =
                held.iter().map(|held| held.operand(builder, dense, extent)).collect();
            match layout.guest(seat) {
                Some(guest) if member > 0 => {
                    let shape = (extent.count, Form::Element);
                    builder.reduce_send(self.outward, (guest, 0), &operands, shape, self.bounce);
                }
                _ => {
                    let base = match layout.scattered() {
                        true => layout.context.problem.block(layout.context.rank).start,
                        false => 0,
                    };
                    let target = Extent::new(extent.start - base, extent.count);
                    builder.reduce(self.lane, &operands, builder.output(target), true);
                }
            }
        }
    }

    /// The finished shares, back across the cuts, from output to output.
    fn gather(self, builder: &mut Builder<'_>, seat: u32, piece: &Piece) {
        let layout = self.layout;
        for round in (0..layout.cube.dimensions()).rev() {
            let (mine, theirs) = self.sides(seat, round);
            let peer = layout.head(seat ^ layout.half(round));
            let sent = Flow::new(peer, round, piece.extents(&mine));
            let received = Flow::new(peer, round, piece.extents(&theirs));
            exchange(builder, self.outward, &sent, &received);
        }
        if let Some(guest) = layout.guest(seat) {
            Flow::new(guest, layout.cube.dimensions(), piece.extents(&self.all()))
                .send(builder, self.outward);
        }
    }
}
