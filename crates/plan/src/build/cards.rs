//! What ranks of a host may look at of each other: cards, and where that can be, buffers.

use super::Builder;
use crate::plan::{CARD_STRIDE, Region, Remote, Span, Step};
use crate::problem::Extent;
use crate::types::{Form, Rank};

impl Builder<'_> {
    /// `count` cards, the same on every rank.
    pub fn cards(&mut self, count: u16) {
        self.cards += count;
    }

    /// One card of so many bytes, where cards can be that large, the same on every rank.
    pub fn wide_card(&mut self, bytes: u64) {
        self.cards = 1;
        self.wide_card_bytes = bytes;
    }

    /// Turns up a card with `source` on it.
    pub fn show(&mut self, lane: usize, source: Span, card: u16) {
        self.step(lane, Step::Show { source, card });
    }

    /// Waits for a card of `peer`.
    pub fn see(&mut self, lane: usize, peer: Rank, card: u16) {
        self.step(lane, Step::See { peer, card });
    }

    /// `count` values from value `start` of a card of `peer`.
    #[must_use]
    pub fn card(&self, peer: Rank, card: u16, start: u64, count: u64) -> Span {
        let offset = u64::from(card) * CARD_STRIDE + self.context.element_bytes(start);
        Span { region: Region::Card(peer), offset, count, form: Form::Element }
    }

    /// Turns up a card with nothing on it: that it is up says enough.
    pub fn nod(&mut self, lane: usize, card: u16) {
        self.show(lane, self.input(Extent::new(0, 0)), card);
    }

    /// Lets peers read this rank's buffers, once they have seen `card`.
    pub fn expose(&mut self, lane: usize, card: u16) {
        self.exposed = true;
        self.nod(lane, card);
    }

    /// Lets peers use this rank's buffers, once they know that it has begun.
    pub fn open(&mut self) {
        self.exposed = true;
    }

    /// Values of the input of `peer`, or of this rank.
    #[must_use]
    pub fn input_of(&self, peer: Rank, extent: Extent) -> Span {
        match peer == self.context.rank {
            true => self.input(extent),
            false => self.user(Region::PeerInput(peer), extent),
        }
    }

    /// Values of the output of `peer`, or of this rank.
    #[must_use]
    pub fn output_of(&self, peer: Rank, extent: Extent) -> Span {
        match peer == self.context.rank {
            true => self.output(extent),
            false => self.user(Region::PeerOutput(peer), extent),
        }
    }

    /// Reads `extent` of the input of `peer`.
    pub fn get_input(&mut self, lane: usize, peer: Rank, extent: Extent, target: Span) {
        self.get(lane, peer, self.input(extent), target);
    }

    /// Reads `extent` of the output of `peer`.
    pub fn get_output(&mut self, lane: usize, peer: Rank, extent: Extent, target: Span) {
        self.get(lane, peer, self.output(extent), target);
    }

    fn get(&mut self, lane: usize, peer: Rank, theirs: Span, target: Span) {
        debug_assert_eq!(theirs.count, target.count);
        if target.count > 0 {
            let source = Remote { region: theirs.region, offset: theirs.offset };
            self.step(lane, Step::Get { peer, source, target });
        }
    }
}
