//! Cards on the drafting table: what all ranks of a host may look at.

use super::Builder;
use crate::plan::{CARD_STRIDE, Region, Span, Step};
use crate::types::{Form, Rank};

impl Builder<'_> {
    /// `count` cards, the same on every rank.
    pub fn cards(&mut self, count: u16) {
        self.cards += count;
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
}
