//! What a rank has heard since the first notice: a growing set, in no order.
//!
//! *Invariant*: nothing here depends on when or in which order facts arrived, nor on which rank
//! holds them. Two ranks with the same facts answer every question alike.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::journal::RankState;
use super::message::Report;
use super::neighbours;
use super::signature::Signature;
use crate::error::RankIdentity;
use crate::plan::types::Rank;

/// States of one rank that are kept, each about another operation.
const STATES_PER_RANK_MAX: usize = 4;

/// Reports kept; far above what `n` honest ranks say of one failure.
fn reports_max(ranks: usize) -> usize {
    1024 + 16 * ranks
}

/// Classes of errors, the gravest first: the one that explains the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Class {
    Death = 0,
    Mismatch = 1,
    Device = 2,
    Left = 3,
    Aborted = 4,
    LinkBroken = 5,
    Deadline = 6,
    Channel = 7,
}

/// What a rank said of itself.
#[derive(Clone, Debug)]
pub(super) struct Testimony {
    pub(super) state: RankState,
    pub(super) called: Option<Signature>,
}

/// The collected set.
#[derive(Debug)]
pub(super) struct Evidence {
    pub(super) identities: Arc<[RankIdentity]>,
    /// By origin, kind and subject.
    pub(super) reports: BTreeMap<(Rank, (u8, u64)), Report>,
    /// By rank and the operation it was asked about.
    pub(super) states: BTreeMap<(Rank, Option<u64>), Testimony>,
    /// Ranks that said goodbye.
    pub(super) gone: BTreeSet<Rank>,
    /// Ranks said to have died or panicked.
    dead: BTreeSet<Rank>,
    /// Ranks that contradicted their death.
    alive: BTreeSet<Rank>,
}

impl Evidence {
    pub(super) fn new(identities: Arc<[RankIdentity]>) -> Self {
        Self {
            identities,
            reports: BTreeMap::new(),
            states: BTreeMap::new(),
            gone: BTreeSet::new(),
            dead: BTreeSet::new(),
            alive: BTreeSet::new(),
        }
    }

    /// Adds a report; `false` if it was known (or there are far too many).
    pub(super) fn add_report(&mut self, origin: Rank, report: &Report) -> bool {
        let key = (origin, report.key());
        let full = self.reports.len() >= reports_max(self.identities.len());
        if full || self.reports.contains_key(&key) {
            return false;
        }
        match report {
            Report::PeerDied { rank } | Report::Panicked { rank } => self.dead.insert(*rank),
            Report::Alive { rank } if *rank == origin => self.alive.insert(origin),
            _ => false,
        };
        self.reports.insert(key, report.clone());
        true
    }

    /// Adds what a rank said of itself; `false` if it was known.
    pub(super) fn add_state(&mut self, rank: Rank, about: Option<u64>, said: Testimony) -> bool {
        let known = self.states_of(rank).count();
        if known >= STATES_PER_RANK_MAX || self.states.contains_key(&(rank, about)) {
            return false;
        }
        self.states.insert((rank, about), said);
        true
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        0..Rank::try_from(self.identities.len()).unwrap_or(Rank::MAX)
    }

    /// Whether an answer of `rank` can be expected.
    pub(super) fn is_live(&self, rank: Rank) -> bool {
        !self.gone.contains(&rank) && (!self.dead.contains(&rank) || self.alive.contains(&rank))
    }

    /// The ranks from which nothing more can come: they left, or said that they end, or all who were connected to them say that
    /// they died, but for those who are over themselves. One alone may have lost no more than a connection.
    pub(super) fn over(&self) -> BTreeSet<Rank> {
        let says =
            |origin: Rank, report: Report| self.reports.contains_key(&(origin, report.key()));
        let ranks = Rank::try_from(self.identities.len()).unwrap_or(Rank::MAX);
        let sure = |rank: Rank| self.gone.contains(&rank) || says(rank, Report::Panicked { rank });
        let mut over: BTreeSet<Rank> = self.ranks().filter(|rank| !self.is_live(*rank)).collect();
        loop {
            let is_missed = |rank: &Rank| {
                let mut near =
                    neighbours(*rank, ranks).into_iter().filter(|near| !over.contains(near));
                sure(*rank) || near.all(|near| says(near, Report::PeerDied { rank: *rank }))
            };
            let kept: BTreeSet<Rank> = over.iter().copied().filter(is_missed).collect();
            if kept.len() == over.len() {
                return over;
            }
            over = kept;
        }
    }

    fn states_of(&self, rank: Rank) -> impl Iterator<Item = &Testimony> {
        self.states.range((rank, None)..=(rank, Some(u64::MAX))).map(|(_, said)| said)
    }

    /// Where `rank` stood, whatever it was asked about.
    pub(super) fn state_of(&self, rank: Rank) -> Option<&RankState> {
        self.states_of(rank).next().map(|said| &said.state)
    }

    /// What `rank` called as operation `sequence`.
    pub(super) fn called(&self, rank: Rank, sequence: u64) -> Option<&Signature> {
        let asked = self.states.get(&(rank, Some(sequence))).and_then(|said| said.called.as_ref());
        asked.or_else(|| self.state_of(rank)?.entered.as_ref().filter(|s| s.sequence == sequence))
    }

    /// The class of a report; `None` for one that accuses nobody.
    ///
    /// A death that the dead rank itself contradicts was the end of one connection.
    pub(super) fn class(&self, report: &Report) -> Option<Class> {
        Some(match report {
            Report::PeerDied { rank } if self.alive.contains(rank) => Class::LinkBroken,
            Report::PeerDied { .. } | Report::Panicked { .. } => Class::Death,
            Report::Mismatch { .. } => Class::Mismatch,
            Report::Left { .. } => Class::Left,
            Report::Aborted { .. } => Class::Aborted,
            Report::LinkBroken { .. } => Class::LinkBroken,
            Report::Deadline { .. } => Class::Deadline,
            Report::Device { .. } => Class::Device,
            Report::Channel { .. } => Class::Channel,
            Report::Alive { .. } => return None,
        })
    }

    /// The reports of one class, by origin.
    pub(super) fn of_class(&self, class: Class) -> impl Iterator<Item = (Rank, &Report)> {
        let all = self.reports.iter().map(|((origin, _), report)| (*origin, report));
        all.filter(move |(_, report)| self.class(report) == Some(class))
    }

    /// The gravest class, and the earliest operation reported in it.
    pub(super) fn top(&self) -> Option<(Class, Option<u64>)> {
        let class = self.reports.values().filter_map(|r| self.class(r)).min()?;
        Some((class, self.of_class(class).filter_map(|(_, r)| r.sequence()).min()))
    }

    /// Whether every live rank has said where it stands (on the operation in question).
    pub(super) fn is_complete(&self) -> bool {
        let Some((_, about)) = self.top() else {
            return false;
        };
        self.ranks().filter(|&r| self.is_live(r)).all(|r| match about {
            Some(_) => self.states.contains_key(&(r, about)),
            None => self.state_of(r).is_some(),
        })
    }

    /// How much is known.
    pub(super) fn facts(&self) -> u32 {
        u32::try_from(self.reports.len() + self.states.len()).unwrap_or(u32::MAX)
    }
}
