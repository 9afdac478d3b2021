//! What ranks of a host see of each other's memory: cards, and buffers that are read where they lie.

use std::rc::Rc;

use super::memory::{Event, Writer};
use super::refusal::Refusal;
use super::{Raised, Run, illegal, known};
use crate::plan::{CARD_BYTES, CARD_STRIDE, Region, Remote, Span};
use crate::types::Rank;

impl Run<'_> {
    pub(super) fn show(&mut self, lane: usize, source: Span, card: u16) -> Result<(), Refusal> {
        let place = self.lanes[lane].place;
        let values = self.read(lane, source)?;
        let length = source.bytes(self.data_type);
        if length > CARD_BYTES {
            return Err(illegal(place, &format!("{length} bytes on a card of {CARD_BYTES}")));
        }
        let offset = u64::from(card) * CARD_STRIDE;
        let bytes = self
            .memory
            .locate(place.rank, Region::Card(place.rank), offset, length, true)
            .map_err(|what| illegal(place, &what))?;
        let event = self.event(lane);
        let clock = Rc::clone(&self.lanes[lane].clock);
        let shown = self.cards.entry((place.rank, card)).or_default();
        if shown.shown.is_some() {
            return Err(illegal(place, &format!("card {card} is turned up twice")));
        }
        shown.shown = Some(Raised { clock: Rc::clone(&clock), lane, step: event.step, puts: 0 });
        self.ready.extend(shown.standing.drain(..));
        self.proof.signals += 1;
        self.memory
            .write(bytes, values, Writer::Step(event), &|other: Event| known(&clock, lane, other))
            .map_err(|conflict| self.race(place, "writes", bytes, conflict))
    }

    pub(super) fn see(&mut self, lane: usize, peer: Rank, card: u16) -> Result<bool, Refusal> {
        let place = self.lanes[lane].place;
        self.check_mapped(place, peer)?;
        let cards = self.plan.ranks[place.rank as usize].cards;
        if card >= cards {
            return Err(illegal(place, &format!("card {card}: the plan has {cards}")));
        }
        let seen = self.cards.entry((peer, card)).or_default();
        let Some(shown) = &seen.shown else {
            seen.standing.push(lane);
            return Ok(false);
        };
        let (clock, from, step) = (Rc::clone(&shown.clock), shown.lane, shown.step);
        self.learn(lane, from, step, &clock);
        Ok(true)
    }

    pub(super) fn get(
        &mut self,
        lane: usize,
        peer: Rank,
        source: Remote,
        target: Span,
    ) -> Result<(), Refusal> {
        let place = self.lanes[lane].place;
        self.check_mapped(place, peer)?;
        if !matches!(source.region, Region::Input(_) | Region::Output(_)) {
            return Err(illegal(place, "gets read the peer's input or output only"));
        }
        if !self.plan.ranks[peer as usize].exposed {
            return Err(illegal(place, &format!("rank {peer} does not expose its buffers")));
        }
        let begun = self.lanes[lane].clock.iter().zip(&self.lanes);
        if !begun.filter(|(_, lane)| lane.place.rank == peer).any(|(known, _)| *known > 0) {
            return Err(illegal(
                place,
                &format!("reads memory of rank {peer}, which is not known to have begun"),
            ));
        }
        let span = Span { region: source.region, offset: source.offset, ..target };
        let bytes = self.locate_at(place, peer, span, false)?;
        let values = self.read_at(lane, span, bytes)?;
        self.gets.push((peer, self.event(lane)));
        self.write(lane, target, values)
    }

    /// Whether every rank was told, before it was done, that its memory is no longer read.
    pub(super) fn check_gets(&self) -> Result<(), Refusal> {
        let mut gets = self.gets.clone();
        gets.sort_unstable_by_key(|(peer, event)| (*peer, event.lane, event.step));
        for of_one in gets.chunk_by(|a, b| a.0 == b.0) {
            let peer = of_one[0].0;
            let known = self.final_knowledge(peer);
            if let Some((_, event)) = of_one.iter().find(|(_, e)| known[e.lane] < e.step) {
                return Err(illegal(
                    self.place(*event),
                    &format!("reads memory of rank {peer}, which does not wait until that is over"),
                ));
            }
        }
        Ok(())
    }
}
