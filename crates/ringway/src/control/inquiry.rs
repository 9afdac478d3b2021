//! Questions from outside: where does every rank stand? Asked of one rank, flooded to all, and
//! answered by all to all, so that no rank that stands still is between the question and its answers.
//!
//! Nothing here touches an error: a job that is asked goes on as if it had not been. Pure, as the
//! board is: `now` is an argument.
//!
//! ```text
//!   ask       the rank that is asked numbers the question and floods it, unless it has just heard one:
//!             every rank hears all answers, so it can answer from those
//!   stands    whoever hears it first passes it on, and floods where it stands
//!   look      800 ms later each rank looks which of its neighbours have not even acknowledged the
//!             question: those links are silent, and that is flooded too
//!   conclude  what is known after all have answered (where somebody waits for long, also looked),
//!             or after 1.6 s
//! ```
//!
//! *Invariant*: a rank passes a question on once, and each answer to it once, however many are asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::decide::{Standstill, names, silent_link, standstill};
use super::evidence::{Evidence, Testimony};
use super::journal::RankState;
use super::kernel;
use super::pace::{self, Pace, Stragglers};
use crate::error::RankIdentity;
use crate::plan::types::Rank;

/// How long the bytes of a question may be unacknowledged: in that time TCP has sent them again twice.
const LOOK_MS: u64 = 800;
/// Longest wait for answers.
const ANSWER_MS_MAX: u64 = 1600;
/// Questions of which answers are kept: as many ranks may be asked at the very same moment. Where more are,
/// nobody is answered for a while: not all would hear all answers.
const REMEMBERED: usize = 64;
/// A question that was heard so lately does for others who ask.
const FRESH_MS: u64 = 300;
/// What a neighbour's look may take to arrive.
const NEWS_MS: u64 = 200;

/// A rank that has waited for so long has a reason.
const SLOW_MS: u64 = 1_000;
/// A rank that has waited for so long will not get what it waits for.
const STUCK_MS: u64 = 10_000;

/// How a communicator is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Nobody waits for long.
    Healthy,
    /// Somebody waits longer than is usual, or a rank for which nobody waits yet does not answer.
    Slow,
    /// Somebody waits for what will not come.
    Stuck,
    /// The ranks have agreed on an error.
    Failed,
}

/// One rank, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Who it is.
    pub identity: RankIdentity,
    /// Whether it has said goodbye.
    pub left: bool,
    /// Where it stands, if it answered.
    pub state: Option<RankState>,
}

/// A connection on which nothing is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SilentLink {
    /// Who noticed.
    pub from: Rank,
    /// The other end.
    pub to: Rank,
    /// For how long nothing came back.
    pub silent_ms: u64,
}

/// The answer: one sentence, and what it is drawn from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The rank that was asked.
    pub asked: Rank,
    /// How the communicator is.
    pub condition: Condition,
    /// Why, in words.
    pub text: String,
    /// Who is at fault.
    pub culprits: Vec<Rank>,
    /// All ranks, in order.
    pub seats: Vec<Seat>,
    /// Links that are silent.
    pub silent: Vec<SilentLink>,
    /// Who holds up a job that goes on.
    #[serde(default)]
    pub stragglers: Stragglers,
}

/// What has come in on one question.
#[derive(Debug)]
struct Roll {
    inquiry: u64,
    heard_at: u64,
    looked: bool,
    /// Some rank may have forgotten it, or a question beside it, before it was answered.
    spoiled: bool,
    states: BTreeMap<Rank, RankState>,
    paces: BTreeMap<Rank, Box<Pace>>,
    silent: BTreeMap<(Rank, Rank), u64>,
}

/// The questions that one rank knows of.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    rolls: VecDeque<Roll>,
    /// The last question of each rank that was asked. Links keep order, so a lower number is an old one.
    heard: BTreeMap<Rank, u64>,
    /// Until when there are too many questions for right answers. All ranks hear all of them, so it is so for all.
    overrun_until: u64,
    asked: u32,
}

/// The rank that numbered a question.
pub(super) fn origin(inquiry: u64) -> Rank {
    Rank::try_from(inquiry >> 32).unwrap_or(Rank::MAX)
}

impl Inquiries {
    /// The number of a question that is asked of `rank` now.
    pub(super) fn number(&mut self, rank: Rank) -> u64 {
        self.asked = self.asked.wrapping_add(1);
        u64::from(rank) << 32 | u64::from(self.asked)
    }

    /// A question that was heard a moment ago, and will do.
    pub(super) fn fresh(&self, now: u64) -> Option<u64> {
        let last = self.rolls.back().filter(|roll| now < roll.heard_at + FRESH_MS);
        last.map(|roll| roll.inquiry)
    }

    /// A question was heard; whether for the first time.
    pub(super) fn hear(&mut self, inquiry: u64, now: u64) -> bool {
        let last = self.heard.entry(origin(inquiry)).or_default();
        if inquiry & 0xffff_ffff <= *last {
            return false;
        }
        *last = inquiry & 0xffff_ffff;
        if self.rolls.len() >= REMEMBERED
            && let Some(oldest) = self.rolls.pop_front()
            && now < oldest.heard_at + ANSWER_MS_MAX
        {
            self.overrun_until = now + ANSWER_MS_MAX;
            self.rolls.iter_mut().for_each(|roll| roll.spoiled = true);
        }
        // Answers that nobody waits for any more.
        for old in
            self.rolls.iter_mut().filter(|roll| now > roll.heard_at + ANSWER_MS_MAX + FRESH_MS)
        {
            old.paces.clear();
        }
        self.rolls.push_back(Roll {
            inquiry,
            heard_at: now,
            looked: false,
            spoiled: now < self.overrun_until,
            states: BTreeMap::new(),
            paces: BTreeMap::new(),
            silent: BTreeMap::new(),
        });
        true
    }

    /// Where a rank stands; whether that is news.
    pub(super) fn stands(
        &mut self,
        inquiry: u64,
        rank: Rank,
        (state, pace): (RankState, &Option<Box<Pace>>),
    ) -> bool {
        let Some(roll) = self.rolls.iter_mut().find(|roll| roll.inquiry == inquiry) else {
            return false;
        };
        let news = roll.states.insert(rank, state).is_none();
        if let Some(pace) = pace.as_ref().filter(|_| news) {
            roll.paces.insert(rank, Box::new(pace.shortened()));
        }
        news
    }

    /// A link is silent; whether that is news.
    pub(super) fn silent(&mut self, inquiry: u64, link: SilentLink) -> bool {
        let roll = self.rolls.iter_mut().find(|roll| roll.inquiry == inquiry);
        roll.is_some_and(|roll| roll.silent.insert((link.from, link.to), link.silent_ms).is_none())
    }

    /// When the next look is due.
    pub(super) fn next_look(&self) -> Option<u64> {
        let due = self.rolls.iter().filter(|roll| !roll.looked).map(|roll| roll.heard_at + LOOK_MS);
        due.min()
    }

    /// The questions for which it is time to look.
    pub(super) fn take_looks(&mut self, now: u64) -> Vec<u64> {
        let due =
            self.rolls.iter_mut().filter(|roll| !roll.looked && now >= roll.heard_at + LOOK_MS);
        due.map(|roll| {
            roll.looked = true;
            roll.inquiry
        })
        .collect()
    }

    /// When the answer to a question is ready at the latest; `None` for one that is forgotten.
    pub(super) fn answer_due(&self, inquiry: u64, evidence: &Evidence) -> Option<u64> {
        let roll = self.roll(inquiry)?;
        let answered = |rank| roll.states.contains_key(&rank) || !evidence.is_live(rank);
        let complete = evidence.ranks().all(answered);
        let waits = roll.states.values().any(|state| wait_of(state) >= SLOW_MS);
        Some(match (complete, waits) {
            (true, false) => roll.heard_at,
            (true, true) => roll.heard_at + LOOK_MS + NEWS_MS,
            (false, _) => roll.heard_at + ANSWER_MS_MAX,
        })
    }

    /// For how long a question has been out.
    pub(super) fn age(&self, inquiry: u64, now: u64) -> u64 {
        self.roll(inquiry).map_or(0, |roll| now.saturating_sub(roll.heard_at))
    }

    /// The answer, from what is known; `None` for a question that is forgotten. `failed` is the error that the
    /// ranks agreed on, if they have.
    pub(super) fn answer(
        &self,
        inquiry: u64,
        asked: Rank,
        (known, failed): (&Evidence, Option<&str>),
    ) -> Option<Standing> {
        let roll = self.roll(inquiry)?;
        let mut evidence = Evidence::new(std::sync::Arc::clone(&known.identities));
        evidence.gone.clone_from(&known.gone);
        for (rank, state) in &roll.states {
            evidence.add_state(*rank, None, Testimony { state: *state, called: None });
        }
        let links = roll.silent.iter();
        let silent: Vec<SilentLink> =
            links.map(|(&(from, to), &silent_ms)| SilentLink { from, to, silent_ms }).collect();
        let conclusion = conclude(&evidence, &silent);
        let (condition, text, culprits) = match failed {
            Some(error) => (Condition::Failed, error.to_owned(), BTreeSet::new()),
            None => conclusion,
        };
        let paces = roll.paces.iter().map(|(rank, pace)| (*rank, &**pace)).collect();
        let stragglers = pace::stragglers(&paces);
        let seats = evidence.ranks().zip(evidence.identities.iter()).map(|(rank, identity)| Seat {
            identity: identity.clone(),
            left: evidence.gone.contains(&rank),
            state: evidence.state_of(rank).copied(),
        });
        Some(Standing {
            asked,
            condition,
            text,
            culprits: culprits.into_iter().collect(),
            seats: seats.collect(),
            silent,
            stragglers,
        })
    }

    /// A question that can be answered.
    fn roll(&self, inquiry: u64) -> Option<&Roll> {
        self.rolls.iter().find(|roll| roll.inquiry == inquiry && !roll.spoiled)
    }
}

/// For how long a rank has waited for another, in an operation, for a message or in a kernel.
fn wait_of(state: &RankState) -> u64 {
    host_wait_of(state).max(state.kernel.map_or(0, |kernel| kernel.waiting_ms))
}

/// As [`wait_of`], without kernels.
fn host_wait_of(state: &RankState) -> u64 {
    if state.waiting_on.is_some() { state.waiting_ms } else { 0 }
}

/// How the ranks are, why, and who is at fault.
fn conclude(evidence: &Evidence, silent: &[SilentLink]) -> (Condition, String, BTreeSet<Rank>) {
    let states: Vec<&RankState> =
        evidence.ranks().filter_map(|rank| evidence.state_of(rank)).collect();
    let mute: BTreeSet<Rank> = evidence
        .ranks()
        .filter(|rank| evidence.state_of(*rank).is_none() && !evidence.gone.contains(rank))
        .collect();
    let longest = states.iter().map(|state| wait_of(state)).max().unwrap_or(0);
    if longest >= SLOW_MS {
        let (text, culprits, is_link) = why_still(evidence, &states, &mute, silent);
        let hopeless = longest >= STUCK_MS || !mute.is_empty() || is_link;
        let condition = if hopeless { Condition::Stuck } else { Condition::Slow };
        return (condition, text, culprits);
    }
    if let Some(reason) = reason(&mute, silent) {
        let verb = if mute.len() == 1 { "does" } else { "do" };
        let who = names(evidence, &mute);
        let text = format!("{who} {verb} not answer, and {reason}; nobody waits for long yet");
        return (Condition::Slow, text, mute);
    }
    match silent_link(evidence, silent) {
        Some((ends, words)) => (Condition::Slow, words, ends),
        None => (Condition::Healthy, at_work(&states, longest), BTreeSet::new()),
    }
}

/// Why ranks that have waited for long do not go on, on hosts and on GPUs; who is at fault, and whether a link is.
fn why_still(
    evidence: &Evidence,
    states: &[&RankState],
    mute: &BTreeSet<Rank>,
    silent: &[SilentLink],
) -> (String, BTreeSet<Rank>, bool) {
    let mut all: Vec<Standstill> = Vec::new();
    let mut waiting = states.iter().filter(|state| host_wait_of(state) >= SLOW_MS).peekable();
    if waiting.peek().is_some() {
        let call = waiting.filter_map(|state| state.current()).map(|call| call.sequence).min();
        all.push(standstill(evidence, call, silent));
    }
    if states.iter().filter_map(|state| state.kernel).any(|kernel| kernel.waiting_ms >= SLOW_MS) {
        all.extend(kernel::standstill(evidence));
    }
    let accused: BTreeSet<Rank> = all.iter().flat_map(|one| &one.culprits).copied().collect();
    // A rank that others wait for while its own kernel waits is held up itself.
    let is_free = |rank: &Rank| evidence.state_of(*rank).is_none_or(|state| state.kernel.is_none());
    let free: BTreeSet<Rank> = accused.iter().copied().filter(is_free).collect();
    let is_link = all.iter().any(|one| one.is_link);
    let texts: Vec<String> =
        all.iter().map(|one| format!("{}: {}", one.name, one.parts.join(", and "))).collect();
    let reason = reason(mute, silent).map_or_else(String::new, |why| format!(", and {why}"));
    let culprits = if free.is_empty() || is_link { accused } else { free };
    (texts.join("; ") + &reason, culprits, is_link)
}

/// What ranks do of which none waits for long.
fn at_work(states: &[&RankState], longest_ms: u64) -> String {
    let ranks = states.len();
    let completed = states.iter().map(|state| state.completed).min().unwrap_or(0);
    let launches = states.iter().map(|state| state.launches).min().unwrap_or(0);
    let launches =
        if launches > 0 { format!(", {launches} launches on GPUs") } else { String::new() };
    match states.iter().filter(|state| state.current().is_some()).count() {
        0 => format!("all {ranks} ranks are between operations; {completed} completed{launches}"),
        inside => format!(
            "{inside} of {ranks} ranks are inside an operation, {completed} completed{launches}; none \
             waits for longer than {longest_ms} ms"
        ),
    }
}

/// Why ranks do not answer. The kernel acknowledges what is sent to a process that is stopped.
fn reason(mute: &BTreeSet<Rank>, silent: &[SilentLink]) -> Option<&'static str> {
    let cut = silent.iter().any(|link| mute.contains(&link.to));
    match (mute.is_empty(), cut) {
        (true, _) => None,
        (false, false) => {
            Some("what is sent there is acknowledged, so it is stopped or gets no processor")
        }
        (false, true) => Some("nothing sent there is acknowledged: the link or the host is down"),
    }
}

#[cfg(test)]
mod tests;
