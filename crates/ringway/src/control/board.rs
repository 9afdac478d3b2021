//! The protocol by which the first error becomes the same error everywhere: a pure state machine.
//!
//! No clock and no I/O: `now` (milliseconds, any origin, never going back) is an argument, and
//! what is to be sent stands in a queue. The control thread drives one board over real
//! connections; a simulator drives a thousand in one thread.
//!
//! ```text
//!   notice    the first report, own or heard: pass it on, flood where this rank stands
//!   settle    collect until every live rank has answered, a second at most: on a busy host a
//!             rank that is well may take long, and must not be named for it;
//!             after a death 30 ms, so that deaths that belong together are named together
//!   propose   the lowest live rank decides from what it knows and floods its verdict;
//!             the next ones follow 10 ms apart if it does not
//!   accept    every rank floods which of the verdicts it knows is the best
//!   latch     once every rank accepts the same one of which more may come; a second after the first at most
//! ```
//!
//! # Why all agree
//!
//! Links keep order and ranks pass on what they learn before they act on it. Hence whoever holds
//! an acceptance of rank `r` has seen every verdict `r` knew before; and a rank that accepts never
//! proposes after. So when one rank sees all live ranks accept one verdict, no better one can
//! come from any of them. For this a rank is dead once all who were connected to it say so: two that lose
//! the connection between them each take the other for dead, and would else agree with one half of the ranks each.
//!
//! # The residual window
//!
//! A better verdict can still come from a rank that was held to be dead (or died right after it
//! spoke). A rank that has latched then answers with its own verdict marked *latched*, which beats
//! every other: ranks that have not latched take it. Two ranks can return different errors only if
//! news takes longer than that (a partition, frozen processes), or if two sides of a
//! partition have both latched. After latching, nothing changes the verdict: the first error wins.
//!
//! # Ranks that leave
//!
//! A goodbye is no error; it is flooded too, and removes the rank's edges. The overlay stays
//! connected until a rank's neighbours (about 2 log₂ n) have all left; ranks cut off in that way
//! hear of failures only through their own links and deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::decide::decide;
use super::evidence::{Class, Evidence, Testimony};
use super::inquiry::{self, Inquiries, SilentLink, Standing};
use super::journal::{Journal, RankState};
use super::message::{Message, Proposal, Report};
use crate::error::{Error, RankIdentity};
use crate::plan::types::Rank;

/// Longest wait for the answers of live ranks.
const SETTLE_MS: u64 = 1000;
/// Wait after a death, and least wait after a broken link (a death may be behind it).
const DEATH_SETTLE_MS: u64 = 30;
/// How long each further rank leaves the proposing to those before it, and how often at most.
const STAGGER_MS: u64 = 10;
const STAGGER_STEPS_MAX: usize = 4;
/// Longest wait for acceptances. Ranks that have said nothing at all are waited for too: those between two others may stand
/// still, and these then know nothing of each other.
const CONFIRM_MS: u64 = 1000;

/// From a rank's first notice to its verdict, whatever happens.
pub const AGREEMENT_MS_MAX: u64 =
    SETTLE_MS + DEATH_SETTLE_MS + 2 * STAGGER_MS * STAGGER_STEPS_MAX as u64 + CONFIRM_MS;

/// A message to be sent, once to each of some neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The neighbours.
    pub to: Vec<Rank>,
    /// The message.
    pub message: Message,
}

/// One rank's part in the protocol.
#[derive(Debug)]
pub struct Board {
    rank: Rank,
    journal: Arc<Journal>,
    /// Neighbours whose connection stands.
    links: BTreeSet<Rank>,
    evidence: Evidence,
    /// Where this rank stood at the first notice, before anyone here gave up.
    own_state: Option<RankState>,
    noticed_at: Option<u64>,
    death_at: Option<u64>,
    complete_at: Option<u64>,
    /// By the rank that decided.
    proposals: BTreeMap<Rank, Proposal>,
    proposed_at: Option<u64>,
    /// Whose proposal this rank holds to be the best.
    chosen: Option<Rank>,
    /// Whose proposal each rank accepts, by what was heard last.
    accepted: BTreeMap<Rank, Rank>,
    /// Acceptances that were passed on.
    heard: BTreeSet<(Rank, Rank)>,
    latched: Option<Proposal>,
    inquiries: Inquiries,
    /// What the journal's clock is ahead of the board's.
    lost_ms: u64,
    outgoing: Vec<Outgoing>,
}

impl Board {
    /// The board of `rank` in a communicator of these ranks (`identities[r]` is rank `r`).
    #[must_use]
    pub fn new(
        rank: Rank,
        identities: Arc<[RankIdentity]>,
        neighbours: &[Rank],
        journal: Arc<Journal>,
    ) -> Self {
        Self {
            rank,
            journal,
            links: neighbours.iter().copied().filter(|&r| r != rank).collect(),
            evidence: Evidence::new(identities),
            own_state: None,
            noticed_at: None,
            death_at: None,
            complete_at: None,
            proposals: BTreeMap::new(),
            proposed_at: None,
            chosen: None,
            accepted: BTreeMap::new(),
            heard: BTreeSet::new(),
            latched: None,
            inquiries: Inquiries::default(),
            lost_ms: 0,
            outgoing: Vec::new(),
        }
    }

    /// Something was noticed on this rank.
    pub fn local(&mut self, report: Report, now: u64) {
        if self.exists(report.subject()) {
            self.learn_report(self.rank, report.shortened(), None, now);
            self.advance(now);
        }
    }

    /// A neighbour sent a message. One that names ranks that do not exist is ignored.
    pub fn receive(&mut self, from: Rank, message: Message, now: u64) {
        let news = match message {
            Message::Report { origin, report } => {
                self.exists([origin])
                    && self.exists(report.subject())
                    && self.learn_report(origin, report, Some(from), now)
            }
            Message::State { rank, about, state, called } => {
                let said = Testimony { state, called };
                self.exists([rank])
                    && self.evidence.add_state(rank, about, said)
                    && self.flood(message, Some(from))
            }
            Message::Verdict(proposal) => {
                self.exists([proposal.decided_by])
                    && self.learn_proposal(*proposal, Some(from), now)
            }
            Message::Accept { rank, decided_by } => {
                let news = self.exists([rank, decided_by]) && self.heard.insert((rank, decided_by));
                if news {
                    self.accepted.insert(rank, decided_by);
                    self.flood(message, Some(from));
                }
                news
            }
            Message::Called { signature } => {
                let own = self.journal.signature_of(signature.sequence);
                if own.is_some_and(|own| own != signature) {
                    self.local(Report::Mismatch { sequence: signature.sequence, with: from }, now);
                }
                false
            }
            Message::Goodbye { rank } => {
                self.exists([rank])
                    && rank != self.rank
                    && self.evidence.gone.insert(rank)
                    && self.flood(message, Some(from))
            }
            Message::Asked { .. } | Message::Stands { .. } | Message::Silent { .. } => {
                self.inquire(message, Some(from), now);
                false
            }
        };
        if news {
            self.advance(now);
        }
    }

    /// This rank waits for long: tells its neighbours in which call, so that they compare it with
    /// their own.
    pub fn compare(&mut self, now: u64) {
        if let Some(signature) = self.journal.state(now).entered {
            self.flood(Message::Called { signature }, None);
        }
    }

    /// The connection to a neighbour ended; `polite` if it had said goodbye.
    pub fn neighbour_lost(&mut self, rank: Rank, polite: bool, now: u64) {
        let was_linked = self.links.remove(&rank);
        if was_linked && !polite && !self.evidence.gone.contains(&rank) {
            self.local(Report::PeerDied { rank }, now);
        }
        self.advance(now);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: u64) {
        self.advance(now);
    }

    /// This rank leaves in good order.
    pub fn leave(&mut self) {
        self.flood(Message::Goodbye { rank: self.rank }, None);
    }

    /// When [`Board::tick`] has something to do next, `now` being past.
    #[must_use]
    pub fn next_tick(&self, now: u64) -> Option<u64> {
        match (&self.latched, self.proposed_at) {
            (Some(_), _) => None,
            (None, Some(at)) => Some(at.saturating_add(CONFIRM_MS).max(now)),
            (None, None) => self.decision_due(),
        }
    }

    /// Takes the messages to be sent, in order.
    pub fn take_outgoing(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outgoing)
    }

    /// Whether anything has gone wrong.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.noticed_at.is_some()
    }

    /// The error that every rank returns, once agreed.
    #[must_use]
    pub fn verdict(&self) -> Option<&Error> {
        self.latched.as_ref().map(|proposal| &proposal.error)
    }

    /// The clock that gives `now` has stood still for so long altogether, and the journal's has not.
    pub fn stood_still(&mut self, lost_ms: u64) {
        self.lost_ms = lost_ms;
    }

    /// Somebody outside asks this rank where all stand; returns the number of the question.
    pub fn ask(&mut self, now: u64) -> u64 {
        if let Some(inquiry) = self.inquiries.fresh(now) {
            return inquiry;
        }
        let inquiry = self.inquiries.number(self.rank);
        self.inquire(Message::Asked { inquiry }, None, now);
        inquiry
    }

    /// When it is time to look which neighbours have acknowledged a question.
    #[must_use]
    pub fn next_look(&self) -> Option<u64> {
        self.inquiries.next_look()
    }

    /// Takes in which neighbours are silent, and since when, where it is time to look.
    pub fn look(&mut self, silent: impl Fn(Rank) -> Option<u64>, now: u64) {
        for inquiry in self.inquiries.take_looks(now) {
            for to in self.links.clone() {
                if let Some(silent_ms) = silent(to) {
                    // Nothing was sent before the question, as far as is known.
                    let silent_ms = silent_ms.min(self.inquiries.age(inquiry, now));
                    let link = SilentLink { from: self.rank, to, silent_ms };
                    self.inquire(Message::Silent { inquiry, link }, None, now);
                }
            }
        }
    }

    /// When the answer to a question is ready, as far as is known now; `None` if it is forgotten.
    #[must_use]
    pub fn answer_due(&self, inquiry: u64) -> Option<u64> {
        self.inquiries.answer_due(inquiry, &self.evidence)
    }

    /// The answer to a question, from what is known; `None` if it is forgotten.
    #[must_use]
    pub fn answer(&self, inquiry: u64) -> Option<Standing> {
        let failed = self.verdict().map(ToString::to_string);
        self.inquiries.answer(inquiry, self.rank, (&self.evidence, failed.as_deref()))
    }

    /// Takes in a question, or what somebody has to say to it, and passes on what is new.
    fn inquire(&mut self, message: Message, from: Option<Rank>, now: u64) {
        let news = match &message {
            Message::Asked { inquiry } => {
                let origin = inquiry::origin(*inquiry);
                // Nobody else numbers our questions.
                let is_sound = self.exists([origin]) && (from.is_none() || origin != self.rank);
                is_sound && self.inquiries.hear(*inquiry, now)
            }
            Message::Stands { inquiry, rank, state, pace } => {
                self.exists([*rank]) && self.inquiries.stands(*inquiry, *rank, (*state, pace))
            }
            Message::Silent { inquiry, link } => {
                self.exists([link.from, link.to]) && self.inquiries.silent(*inquiry, *link)
            }
            _ => false,
        };
        if !news {
            return;
        }
        let asked = if let Message::Asked { inquiry } = &message { Some(*inquiry) } else { None };
        self.flood(message, from);
        if let Some(inquiry) = asked {
            let (rank, state) = (self.rank, self.journal.state(now + self.lost_ms));
            let pace = self.journal.pace().map(Box::new);
            self.inquire(Message::Stands { inquiry, rank, state, pace }, None, now);
        }
    }

    /// The ranks that have said goodbye.
    pub fn gone(&self) -> impl Iterator<Item = Rank> + '_ {
        self.evidence.gone.iter().copied()
    }

    fn exists(&self, ranks: impl IntoIterator<Item = Rank>) -> bool {
        ranks.into_iter().all(|rank| (rank as usize) < self.evidence.identities.len())
    }

    /// Passes news on to all neighbours but the one it came from; always `true`.
    fn flood(&mut self, message: Message, except: Option<Rank>) -> bool {
        let to: Vec<_> = self.links.iter().copied().filter(|&r| Some(r) != except).collect();
        if !to.is_empty() {
            self.outgoing.push(Outgoing { to, message });
        }
        true
    }

    /// Takes in a report; whether it is news.
    fn learn_report(&mut self, origin: Rank, report: Report, from: Option<Rank>, now: u64) -> bool {
        if !self.evidence.add_report(origin, &report) {
            return false;
        }
        let (class, about) = (self.evidence.class(&report), report.sequence());
        let mourned = report == Report::PeerDied { rank: self.rank };
        self.flood(Message::Report { origin, report }, from);
        if class.is_none() {
            return true;
        }
        self.noticed_at.get_or_insert(now);
        if class == Some(Class::Death) {
            self.death_at.get_or_insert(now);
        }
        self.testify(about, now);
        if mourned {
            self.learn_report(self.rank, Report::Alive { rank: self.rank }, None, now);
        }
        true
    }

    /// Floods where this rank stands, unless it has said so or the matter is past.
    fn testify(&mut self, about: Option<u64>, now: u64) {
        let said_any = self.evidence.state_of(self.rank).is_some();
        if !self.proposals.is_empty() || (about.is_none() && said_any) {
            return;
        }
        let here = || self.journal.state(now + self.lost_ms);
        let state = *self.own_state.get_or_insert_with(here);
        let called = about.and_then(|sequence| self.journal.signature_of(sequence));
        if self.evidence.add_state(self.rank, about, Testimony { state, called }) {
            self.flood(Message::State { rank: self.rank, about, state, called }, None);
        }
    }

    /// Takes in a verdict, own or heard; whether it is news.
    fn learn_proposal(&mut self, proposal: Proposal, from: Option<Rank>, now: u64) -> bool {
        let known = self.proposals.get(&proposal.decided_by);
        if known.is_some_and(|known| known.latched || !proposal.latched) {
            return false;
        }
        self.noticed_at.get_or_insert(now);
        self.proposed_at.get_or_insert(now);
        self.accepted.entry(proposal.decided_by).or_insert(proposal.decided_by);
        self.proposals.insert(proposal.decided_by, proposal.clone());
        self.flood(Message::Verdict(Box::new(proposal.clone())), from);
        match &mut self.latched {
            None if proposal.latched => self.latched = Some(proposal),
            None => self.choose(),
            Some(mine) if mine.decided_by != proposal.decided_by && !mine.latched => {
                mine.latched = true;
                let answer = Message::Verdict(Box::new(mine.clone()));
                self.flood(answer, None);
            }
            Some(_) => {}
        }
        true
    }

    /// Holds to the best proposal known, and says so.
    fn choose(&mut self) {
        let best = self.proposals.values().min_by_key(|p| (p.weight, p.decided_by));
        let best = best.map(|p| p.decided_by);
        if best == self.chosen {
            return;
        }
        self.chosen = best;
        if let Some(decided_by) = best {
            self.accepted.insert(self.rank, decided_by);
            if decided_by != self.rank && self.heard.insert((self.rank, decided_by)) {
                self.flood(Message::Accept { rank: self.rank, decided_by }, None);
            }
        }
    }

    fn advance(&mut self, now: u64) {
        if self.latched.is_some() || self.noticed_at.is_none() {
            return;
        }
        if self.proposals.is_empty() {
            // After a death nobody waits for completeness, so it need not be looked for.
            let death = matches!(self.evidence.top(), Some((Class::Death, _)));
            if !death && self.evidence.is_complete() {
                self.complete_at.get_or_insert(now);
            } else {
                self.complete_at = None;
            }
            if self.decision_due().is_some_and(|due| due <= now) {
                self.propose(now);
            }
        }
        let is_late = self.proposed_at.is_some_and(|at| now >= at.saturating_add(CONFIRM_MS));
        if let Some(chosen) = self.chosen
            && (is_late || self.links.is_empty() || self.is_accepted(chosen))
        {
            self.latched = self.proposals.get(&chosen).cloned();
        }
    }

    /// When this rank decides, as far as it knows now.
    fn decision_due(&self) -> Option<u64> {
        let noticed = self.noticed_at.filter(|_| self.proposals.is_empty())?;
        let (class, _) = self.evidence.top()?;
        let settled = match (class, self.complete_at) {
            (Class::Death, _) => self.death_at.unwrap_or(noticed) + DEATH_SETTLE_MS,
            (Class::LinkBroken, Some(at)) => at.max(noticed + DEATH_SETTLE_MS),
            (_, Some(at)) => at.min(noticed + SETTLE_MS),
            (_, None) => noticed + SETTLE_MS,
        };
        let before = (0..self.rank).filter(|&r| self.evidence.is_live(r));
        let before = before.take(STAGGER_STEPS_MAX).count() as u64;
        Some(settled + STAGGER_MS * before)
    }

    fn propose(&mut self, now: u64) {
        if let Some((weight, error)) = decide(&self.evidence) {
            let proposal = Proposal { decided_by: self.rank, weight, latched: false, error };
            self.learn_proposal(proposal, None, now);
        }
    }

    /// Whether every rank of which more may come is known to accept the proposal of `chosen`.
    fn is_accepted(&self, chosen: Rank) -> bool {
        let others = self.evidence.ranks().filter(|&rank| rank != self.rank);
        let mut waited_for =
            others.filter(|rank| self.accepted.get(rank) != Some(&chosen)).peekable();
        if waited_for.peek().is_some_and(|first| self.evidence.is_live(*first)) {
            return false;
        }
        let over = self.evidence.over();
        waited_for.all(|rank| over.contains(&rank))
    }
}

#[cfg(test)]
mod tests;
