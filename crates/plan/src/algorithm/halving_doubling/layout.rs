//! Who sits where, who owns which values, and where they stand in scratch.
//!
//! ```text
//! the box of a rank, one slot
//! ┌─────────────┬──────────────┬───────────┬───────┐
//! │ guest's     │ round 0      │ round 1   │ …     │
//! └─────────────┴──────────────┴───────────┴───────┘
//! ```
//!
//! **Invariant:** all ranks find the same sizes, from the call alone.

use std::ops::Range;

use crate::algorithm::cube::Cube;
use crate::algorithm::exchange::joined;
use crate::algorithm::{Rounds, fitting};
use crate::build::{Context, Inbox, PortSize};
use crate::problem::Extent;
use crate::types::{Collective, Form, Level, Rank};

/// How scratch is divided: all that follows from the call and the size of a piece.
#[derive(Clone, Copy)]
pub(super) struct Layout<'a> {
    pub(super) context: Context<'a>,
    pub(super) cube: Cube,
    /// Values of the vector, or of each block, at a time.
    piece: u64,
}

impl<'a> Layout<'a> {
    pub(super) fn new(context: Context<'a>) -> Self {
        let longest = match context.problem.collective {
            Collective::AllReduce => context.problem.count(),
            _ => (0..context.ranks()).map(|of| context.problem.block(of).count).max().unwrap_or(0),
        };
        let of = |piece: u64| Self { context, cube: Cube::new(context.ranks()), piece };
        let lanes = u64::from(context.tuning.lanes);
        let most = longest.div_ceil(lanes).next_multiple_of(context.grain());
        let piece = fitting(context, most.min(longest), |piece| of(piece).bytes());
        of(piece)
    }

    pub(super) fn scattered(self) -> bool {
        self.context.problem.collective == Collective::ReduceScatter
    }

    pub(super) fn ordered(self) -> bool {
        self.context.problem.level == Level::Shape
    }

    pub(super) fn wide(self) -> u64 {
        Form::Accumulator.size(self.context.problem.data_type) as u64
    }

    /// What shares of a vector are multiples of: cache lines, if every seat can have one.
    fn grain(self) -> u64 {
        let grain = self.context.grain();
        if self.piece < grain * u64::from(self.cube.corners()) { 1 } else { grain }
    }

    /// Most values that so many seats own together.
    fn values(self, seats: u32) -> u64 {
        if self.scattered() {
            return u64::from(self.cube.crowd(seats)) * self.piece;
        }
        let units = self.piece.div_ceil(self.grain());
        let corners = u64::from(self.cube.corners());
        (units * u64::from(seats)).div_ceil(corners) * self.grain()
    }

    fn whole(self) -> u64 {
        self.values(self.cube.corners())
    }

    /// Seats on either side of the cut of a round.
    pub(super) fn half(self, round: u32) -> u32 {
        self.cube.corners() >> (round + 1)
    }

    /// Bytes of what crosses the cut of a round, at most.
    fn message_bytes(self, round: u32) -> u64 {
        let values = self.values(self.half(round));
        let bytes = if self.ordered() {
            let inputs = self.cube.crowd(1 << round);
            self.context.element_bytes(values * u64::from(inputs))
        } else {
            values * self.wide()
        };
        bytes.next_multiple_of(64)
    }

    /// Bytes of what a guest hands over, at most.
    fn guest_bytes(self) -> u64 {
        let values = self.whole() * u64::from(self.cube.guests().min(1));
        self.context.element_bytes(values).next_multiple_of(64)
    }

    /// Where in the box the message of a round lands: after the guest's and those of the rounds
    /// before, since nobody else knows when these have been read.
    pub(super) fn inbox(self, round: u32) -> Inbox {
        let before: u64 = (0..round).map(|round| self.message_bytes(round)).sum();
        Inbox { index: 0, skip: self.guest_bytes() + before }
    }

    pub(super) fn inward(self) -> PortSize {
        PortSize {
            boxes: 1,
            slot_bytes: self.inbox(self.cube.dimensions()).skip,
            stage_bytes: 0,
            slots: self.context.tuning.slots,
        }
    }

    /// Results: a box for each dimension and one for the guest, or that one alone.
    pub(super) fn outward(self) -> PortSize {
        let guest = self.cube.guests().min(1);
        let (boxes, values) = if self.scattered() {
            (guest, self.piece)
        } else {
            (guest + self.cube.dimensions(), self.piece.div_ceil(4))
        };
        let bytes = self.context.element_bytes(values).next_multiple_of(64);
        PortSize {
            boxes,
            slot_bytes: bytes.min(self.context.tuning.slot_bytes.next_multiple_of(64)),
            stage_bytes: 0,
            slots: self.context.tuning.slots,
        }
    }

    /// Partial results of the whole piece, or a message in the making.
    pub(super) fn private_bytes(self) -> u64 {
        if self.ordered() { self.longest_message() } else { self.whole() * self.wide() }
    }

    /// A guest's result in the making.
    pub(super) fn bounce_bytes(self) -> u64 {
        if self.scattered() && self.cube.guests() > 0 {
            self.context.element_bytes(self.piece)
        } else {
            0
        }
    }

    fn longest_message(self) -> u64 {
        (0..self.cube.dimensions())
            .map(|round| self.message_bytes(round))
            .chain([self.guest_bytes()])
            .max()
            .unwrap_or(0)
    }

    /// Scratch of one lane, without end where a message would be longer than a slot may be.
    fn bytes(self) -> u64 {
        if self.longest_message() > self.context.tuning.slot_bytes {
            return u64::MAX;
        }
        let private = self.private_bytes().next_multiple_of(64);
        let bounce = self.bounce_bytes().next_multiple_of(64);
        self.inward().bytes() + self.outward().bytes() + private + bounce
    }

    /// The seat of a corner, and also the corner at a seat.
    pub(super) fn seat(self, corner: u32) -> u32 {
        if self.scattered() {
            corner
        } else {
            corner.reverse_bits() >> (u32::BITS - self.cube.dimensions())
        }
    }

    pub(super) fn head(self, seat: u32) -> Rank {
        self.cube.head(self.seat(seat))
    }

    pub(super) fn guest(self, seat: u32) -> Option<Rank> {
        self.cube.guest(self.seat(seat))
    }

    /// Whose inputs `seat` holds before `round`: those of all seats that differ from it in the cuts
    /// that have been crossed.
    pub(super) fn inputs(self, seat: u32, round: u32) -> impl Iterator<Item = Rank> {
        let left = self.cube.dimensions() - round;
        let low = seat & ((1 << left) - 1);
        (0..1 << round).flat_map(move |high| {
            let corner = self.seat(high << left | low);
            self.cube.members(corner..corner + 1)
        })
    }
}

/// The values dealt with at a time, as the seats own them. *Dense* places number the values from
/// 0 in the order of the seats, as they stand in scratch.
pub(super) enum Piece {
    /// A run of a vector, cut into nearly equal shares.
    Vector { whole: Extent, seats: u64, grain: u64 },
    /// A cut of every rank's block, with its dense place; seats are in rank order.
    Blocks { cube: Cube, cuts: Vec<Extent>, dense: Vec<u64> },
}

impl Piece {
    fn blocks(cube: Cube, cut: impl Fn(Rank) -> Extent) -> Self {
        let ranks = cube.members(0..cube.corners());
        let cuts: Vec<Extent> = ranks.map(cut).collect();
        let mut dense = vec![0];
        let mut end = 0;
        for cut in &cuts {
            end += cut.count;
            dense.push(end);
        }
        Self::Blocks { cube, cuts, dense }
    }

    /// The dense place of what `seats` own.
    pub(super) fn dense(&self, seats: &Range<u32>) -> Extent {
        match self {
            Self::Vector { whole, .. } => {
                let share = self.share(seats);
                Extent::new(share.start - whole.start, share.count)
            }
            Self::Blocks { cube, dense, .. } => {
                let ranks = cube.members(seats.clone());
                let start = dense[ranks.start as usize];
                Extent::new(start, dense[ranks.end as usize] - start)
            }
        }
    }

    /// What `seats` own in every input, in dense order, in the fewest runs.
    pub(super) fn extents(&self, seats: &Range<u32>) -> Vec<Extent> {
        match self {
            Self::Vector { .. } => joined([self.share(seats)].into_iter()),
            Self::Blocks { cube, cuts, .. } => {
                let ranks = cube.members(seats.clone());
                joined(ranks.map(|of| cuts[of as usize]))
            }
        }
    }

    /// What `seat` owns in every input, for each of its ranks.
    pub(super) fn owned(&self, seat: u32) -> Vec<Extent> {
        match self {
            Self::Vector { .. } => vec![self.share(&(seat..seat + 1))],
            Self::Blocks { cube, cuts, .. } => {
                let ranks = cube.members(seat..seat + 1);
                ranks.map(|of| cuts[of as usize]).collect()
            }
        }
    }

    fn share(&self, seats: &Range<u32>) -> Extent {
        let Self::Vector { whole, seats: parts, grain } = self else {
            return Extent::new(0, 0);
        };
        let first = whole.part(*parts, u64::from(seats.start), *grain);
        let last = whole.part(*parts, u64::from(seats.end - 1), *grain);
        Extent::new(first.start, last.end() - first.start)
    }
}

/// What a lane deals with at a time.
pub(super) fn pieces(layout: Layout<'_>, lane: u32) -> Vec<Piece> {
    let context = layout.context;
    if layout.scattered() {
        let block = |of: Rank| context.problem.block(of);
        let rounds = Rounds::new(context, lane, layout.piece, block);
        return (0..rounds.count())
            .map(|round| Piece::blocks(layout.cube, |of| rounds.cut(of, round)))
            .collect();
    }
    let lanes = u64::from(context.tuning.lanes);
    Extent::new(0, context.problem.count())
        .part(lanes, u64::from(lane), context.grain())
        .pieces(layout.piece)
        .map(|whole| Piece::Vector {
            whole,
            seats: u64::from(layout.cube.corners()),
            grain: layout.grain(),
        })
        .collect()
}
