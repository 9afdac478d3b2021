//! What ranks of a host see of each other's memory: cards, and buffers that are read where they lie.

use std::rc::Rc;

use super::memory::{Event, Writer};
use super::refusal::Refusal;
use super::{Raised, Run, illegal, known};
use crate::plan::{Place, Region, Remote, Span};
use crate::types::Rank;

impl Run<'_> {
    pub(super) fn show(&mut self, lane: usize, source: Span, card: u16) -> Result<(), Refusal> {
        let place = self.lanes[lane].place;
        let values = self.read(lane, source)?;
        let length = source.bytes(self.data_type);
        let part = &self.plan.ranks[place.rank as usize];
        let (most, stride) = (part.card_bytes(), part.card_stride());
        if length > most {
            return Err(illegal(place, &format!("{length} bytes on a card of {most}")));
        }
        let offset = u64::from(card) * stride;
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
        self.check_open(place, peer)?;
        let span = Span { region: source.region, offset: source.offset, ..target };
        let bytes = self.locate_at(place, peer, span, false)?;
        let values = self.read_at(lane, span, bytes)?;
        self.uses.push((peer, self.event(lane)));
        self.write(lane, target, values)
    }

    /// Whether the buffers of `peer` may be used: it lets others, and is known to have begun.
    pub(super) fn check_open(&self, place: Place, peer: Rank) -> Result<(), Refusal> {
        self.check_mapped(place, peer)?;
        if !self.plan.ranks[peer as usize].exposed {
            return Err(illegal(place, &format!("rank {peer} does not expose its buffers")));
        }
        // Lanes stand in the order of ranks.
        let of_peer = |at: usize| self.lanes[at].place.rank == peer;
        let first = self.lanes.partition_point(|lane| lane.place.rank < peer);
        let here = self
            .lanes
            .partition_point(|lane| (lane.place.rank, lane.place.lane) < (place.rank, place.lane));
        let clock = &self.lanes[here].clock;
        if !(first..self.lanes.len()).take_while(|at| of_peer(*at)).any(|at| clock[at] > 0) {
            return Err(illegal(
                place,
                &format!("uses buffers of rank {peer}, which is not known to have begun"),
            ));
        }
        Ok(())
    }

    /// Notes that a step uses a buffer of another rank, if `span` is one.
    pub(super) fn note_use(&mut self, lane: usize, span: Span) {
        if let Region::PeerInput(peer) | Region::PeerOutput(peer) = span.region {
            self.uses.push((peer, self.event(lane)));
        }
    }

    /// Whether every rank was told, before it was done, that its buffers are no longer used.
    pub(super) fn check_uses(&self) -> Result<(), Refusal> {
        let mut uses = self.uses.clone();
        uses.sort_unstable_by_key(|(peer, event)| (*peer, event.lane, event.step));
        for of_one in uses.chunk_by(|a, b| a.0 == b.0) {
            let peer = of_one[0].0;
            let known = self.final_knowledge(peer);
            if let Some((_, event)) = of_one.iter().find(|(_, e)| known[e.lane] < e.step) {
                return Err(illegal(
                    self.place(*event),
                    &format!("uses buffers of rank {peer}, which does not wait until that is over"),
                ));
            }
        }
        Ok(())
    }
}
