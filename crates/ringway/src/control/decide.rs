//! From the collected facts to the one error: which failure explains the others, who is at fault,
//! and the words for it.
//!
//! *Invariant*: a pure function of the set of facts, so the text never mentions the local rank,
//! and ranks with the same facts return equal errors.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::evidence::{Class, Evidence};
use super::inquiry::SilentLink;
use super::message::{Report, Trouble, Weight};
use super::signature::Signature;
use crate::error::{Error, ErrorKind, OperationName};
use crate::plan::types::{Collective, Rank};

/// Ranks a text names one by one.
pub(super) const NAMED_MAX: usize = 8;

/// Ranks an error carries as culprits.
pub(super) const CULPRITS_MAX: usize = 64;

/// The error these facts amount to; `None` when nobody reported a failure.
pub(super) fn decide(evidence: &Evidence) -> Option<(Weight, Error)> {
    let (class, sequence) = evidence.top()?;
    let finding = match class {
        Class::Death => death(evidence),
        Class::Mismatch => mismatch(evidence, sequence?),
        Class::Device => device(evidence),
        Class::Left => left(evidence),
        Class::Aborted => aborted(evidence),
        Class::LinkBroken => link_broken(evidence),
        Class::Deadline => deadline(evidence, sequence?),
        Class::Channel => channel(evidence),
    };
    let weight = Weight {
        priority: class as u8,
        sequence: sequence.unwrap_or(u64::MAX),
        rank: finding.culprits.first().copied().unwrap_or(Rank::MAX),
        facts: Reverse(evidence.facts()),
    };
    let culprits = finding.culprits.iter().take(CULPRITS_MAX);
    let culprits = culprits.filter_map(|&r| evidence.identities.get(r as usize).cloned());
    let error = Error::new(finding.kind, finding.text).with_culprits(culprits.collect());
    Some((
        weight,
        match finding.operation {
            Some(operation) => error.with_operation(operation),
            None => error,
        },
    ))
}

/// What a class of failure comes to.
struct Finding {
    kind: ErrorKind,
    text: String,
    /// In increasing order.
    culprits: Vec<Rank>,
    operation: Option<OperationName>,
}

fn death(evidence: &Evidence) -> Finding {
    let reports = evidence.of_class(Class::Death).map(|(_, report)| report);
    let (mut died, mut panicked) = (BTreeSet::new(), BTreeSet::new());
    for report in reports {
        match report {
            Report::Panicked { rank } => panicked.insert(*rank),
            Report::PeerDied { rank } => died.insert(*rank),
            _ => false,
        };
    }
    died.retain(|rank| !panicked.contains(rank));
    let mut parts = Vec::new();
    if !died.is_empty() {
        let whose = if died.len() == 1 { "its" } else { "their" };
        parts.push(format!(
            "{} died ({whose} control connections ended without a goodbye)",
            names(evidence, &died)
        ));
    }
    if !panicked.is_empty() {
        parts.push(format!("{} panicked", names(evidence, &panicked)));
    }
    let operation = operation_in_progress(evidence);
    let text = format!(
        "{} {}; look at the output of that process and at its host's kernel log",
        parts.join(" and "),
        during(operation.as_ref())
    );
    let culprits = died.union(&panicked).copied().collect();
    Finding { kind: ErrorKind::Remote, text, culprits, operation }
}

fn mismatch(evidence: &Evidence, sequence: u64) -> Finding {
    let mut groups: BTreeMap<Signature, BTreeSet<Rank>> = BTreeMap::new();
    let mut outside = BTreeSet::new();
    for rank in evidence.ranks() {
        if let Some(call) = evidence.called(rank, sequence) {
            groups.entry(*call).or_default().insert(rank);
        } else if evidence.state_of(rank).is_some_and(|s| !s.has_entered(sequence)) {
            outside.insert(rank);
        }
    }
    // The majority is right; of equal groups, the one with the lowest rank.
    let reference = groups
        .iter()
        .max_by_key(|(_, ranks)| (ranks.len(), Reverse(ranks.first().copied())))
        .map(|(call, ranks)| (*call, ranks));
    let mut culprits = BTreeSet::new();
    let mut parts = Vec::new();
    if let Some((right, followers)) = reference.filter(|_| groups.len() > 1) {
        for (call, ranks) in groups.iter().filter(|(call, _)| **call != right) {
            let difference = call.difference(&right);
            parts.push(format!("{} called {} ({difference})", names(evidence, ranks), call.call()));
            culprits.extend(ranks);
        }
        // As long as ranks are missing, equally many on two sides say nothing about who is right.
        let rivals = groups.iter().filter(|(call, _)| **call != right).map(|(_, r)| r.len()).max();
        if !outside.is_empty() && Some(followers.len()) <= rivals {
            parts.push(format!("{} called {}", names(evidence, followers), right.call()));
            culprits.extend(followers);
        } else {
            let others = if followers.len() == 1 { "other rank" } else { "other ranks" };
            parts.push(format!("{} {others} called {}", followers.len(), right.call()));
        }
    } else {
        // One of the two calls is no longer (or not yet) known, or they differ in what only the
        // two know: name the pair that met.
        for (origin, report) in evidence.of_class(Class::Mismatch) {
            if let Report::Mismatch { sequence: s, with } = report
                && *s == sequence
                && culprits.is_empty()
            {
                culprits.extend([origin, *with]);
                let pair = names(evidence, &culprits);
                let both = [origin, *with].iter().all(|r| evidence.called(*r, sequence).is_some());
                parts.push(match reference {
                    Some((call, _)) if both && call.collective == Collective::AllToAll => format!(
                        "{pair} disagree about the counts that go between them in {}, \
                         or made different calls before it",
                        call.call()
                    ),
                    Some((call, _)) if both => format!(
                        "{pair} both called {}, but made different calls before it",
                        call.call()
                    ),
                    _ => format!("{pair} called different things"),
                });
            }
        }
    }
    if !outside.is_empty() {
        parts.push(format!("{} not entered it", have(evidence, &outside)));
    }
    Finding {
        kind: ErrorKind::InvalidUsage,
        text: format!(
            "call mismatch at operation {sequence}: {}; \
             make every rank issue the same calls in the same order",
            parts.join(", ")
        ),
        culprits: culprits.into_iter().collect(),
        operation: reference.map(|(call, _)| call.operation()),
    }
}

/// What the lowest rank whose kernels noticed something saw.
fn device(evidence: &Evidence) -> Finding {
    let first = evidence.of_class(Class::Device).find_map(|(origin, report)| match report {
        Report::Device { peer, trouble, seen } => Some((origin, *peer, *trouble, seen.as_str())),
        _ => None,
    });
    let (origin, peer, trouble, what) = first.unwrap_or_default();
    let ranks: BTreeSet<Rank> = match (peer, trouble) {
        (Some(peer), Trouble::Late) => BTreeSet::from([peer]),
        (Some(peer), Trouble::Differs | Trouble::Behind) => BTreeSet::from([origin, peer]),
        (None, _) => BTreeSet::from([origin]),
    };
    let who = names(evidence, &ranks);
    let (kind, text) = match (peer, trouble) {
        (None, Trouble::Late) => (ErrorKind::Timeout, format!("{what} on {who}")),
        (Some(_), Trouble::Late) => {
            (ErrorKind::Timeout, format!("{what}: waiting for {who} (seen by rank {origin})"))
        }
        (_, Trouble::Differs) => (
            ErrorKind::InvalidUsage,
            format!("{what}: {who} made different calls (seen by rank {origin})"),
        ),
        (_, Trouble::Behind) => (
            ErrorKind::InvalidUsage,
            format!(
                "{what}: {who} put their calls on the same stream, where the second cannot begin before the first has \
                 ended; give each rank a stream of its own"
            ),
        ),
    };
    Finding { kind, text, culprits: ranks.into_iter().collect(), operation: None }
}

/// What the ranks agreed on in a communicator that works for this one; the lowest rank's words.
fn channel(evidence: &Evidence) -> Finding {
    let first = evidence.of_class(Class::Channel).find_map(|(_, report)| match report {
        Report::Channel { kind, text, culprits } => Some((*kind, text.clone(), culprits)),
        _ => None,
    });
    let none = Vec::new();
    let (kind, text, culprits) = first.unwrap_or((ErrorKind::Remote, String::new(), &none));
    let culprits: BTreeSet<Rank> = culprits.iter().copied().collect();
    Finding { kind, text, culprits: culprits.into_iter().collect(), operation: None }
}

fn left(evidence: &Evidence) -> Finding {
    let reports = evidence.of_class(Class::Left);
    let ranks: BTreeSet<_> = reports.filter_map(|(_, report)| report.subject()).collect();
    let operation = operation_in_progress(evidence);
    let text = format!(
        "{} left the communicator while others wait for it {}; \
         let every rank finish its operations before it closes the communicator",
        names(evidence, &ranks),
        during(operation.as_ref())
    );
    let culprits = ranks.into_iter().collect();
    Finding { kind: ErrorKind::InvalidUsage, text, culprits, operation }
}

fn aborted(evidence: &Evidence) -> Finding {
    let first = evidence.of_class(Class::Aborted).find_map(|(_, report)| match report {
        Report::Aborted { rank, reason } => Some((*rank, reason.as_str())),
        _ => None,
    });
    let (rank, reason) = first.unwrap_or_default();
    let operation = operation_in_progress(evidence);
    let who = names(evidence, &BTreeSet::from([rank]));
    Finding {
        kind: ErrorKind::Remote,
        text: format!("{who} aborted the communicator {}: {reason}", during(operation.as_ref())),
        culprits: vec![rank],
        operation,
    }
}

fn link_broken(evidence: &Evidence) -> Finding {
    let mut links: BTreeMap<(Rank, Rank), (Rank, &str)> = BTreeMap::new();
    for (origin, report) in evidence.of_class(Class::LinkBroken) {
        let (peer, cause) = match report {
            Report::LinkBroken { peer, cause } => (*peer, cause.as_str()),
            Report::PeerDied { rank } => (*rank, "the control connection ended"),
            _ => continue,
        };
        links.entry((origin.min(peer), origin.max(peer))).or_insert((origin, cause));
    }
    let more = links.len().saturating_sub(1);
    let ((low, high), (seen_by, cause)) = links.into_iter().next().unwrap_or_default();
    let operation = operation_in_progress(evidence);
    let ends = BTreeSet::from([low, high]);
    let others = match more {
        0 => String::new(),
        1 => "; 1 other connection broke too".to_owned(),
        _ => format!("; {more} other connections broke too"),
    };
    Finding {
        kind: ErrorKind::Remote,
        text: format!(
            "the connection between {} broke {}: {cause} (seen by rank {seen_by}){others}; \
             look at the network between these hosts",
            names(evidence, &ends),
            during(operation.as_ref())
        ),
        culprits: ends.into_iter().collect(),
        operation,
    }
}

fn deadline(evidence: &Evidence, sequence: u64) -> Finding {
    // Ranks that made different calls may wait for each other without ever meeting.
    if differs(evidence, sequence) {
        return mismatch(evidence, sequence);
    }
    let waited = evidence.of_class(Class::Deadline).find_map(|(origin, report)| match report {
        Report::Deadline { sequence: s, waited_ms, .. } if *s == sequence => {
            Some((origin, *waited_ms))
        }
        _ => None,
    });
    let (reporter, waited_ms) = waited.unwrap_or_default();
    let Standstill { name, parts, culprits, .. } = standstill(evidence, Some(sequence), &[]);
    let call = evidence.ranks().find_map(|rank| evidence.called(rank, sequence));
    Finding {
        kind: ErrorKind::Timeout,
        text: format!(
            "{name} passed its deadline (rank {reporter} waited {waited_ms} ms): {}",
            parts.join(", and ")
        ),
        culprits: culprits.into_iter().collect(),
        operation: call.map(Signature::operation),
    }
}

/// Whether ranks made different calls as operation `sequence`.
fn differs(evidence: &Evidence, sequence: u64) -> bool {
    let calls = evidence.ranks().filter_map(|rank| evidence.called(rank, sequence));
    calls.collect::<BTreeSet<_>>().len() > 1
}

/// Why an operation does not end.
#[derive(Debug)]
pub(super) struct Standstill {
    /// The operation, in words.
    pub(super) name: String,
    /// What holds it up.
    pub(super) parts: Vec<String>,
    /// Who does.
    pub(super) culprits: BTreeSet<Rank>,
    /// Whether it is the link between these that does.
    pub(super) is_link: bool,
}

/// Why operation `sequence` does not end: who has not come, does not answer, has left, which link is silent (by
/// what was `seen` of links besides), or who is waited for. Without one, why messages do not arrive.
pub(super) fn standstill(
    evidence: &Evidence,
    sequence: Option<u64>,
    seen: &[SilentLink],
) -> Standstill {
    let Some(sequence) = sequence else {
        let (culprits, text, is_link) = held_by(evidence, None, seen);
        return Standstill { name: "messages".to_owned(), parts: vec![text], culprits, is_link };
    };
    if differs(evidence, sequence) {
        let Finding { text, culprits, .. } = mismatch(evidence, sequence);
        let name = format!("operation {sequence}");
        let culprits = culprits.into_iter().collect();
        return Standstill { name, parts: vec![text], culprits, is_link: false };
    }
    let call = evidence.ranks().find_map(|rank| evidence.called(rank, sequence));
    let name = call.map_or_else(|| format!("operation {sequence}"), |c| c.operation().to_string());

    let (mut silent, mut outside, mut gone) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for rank in evidence.ranks() {
        match evidence.state_of(rank) {
            None if evidence.gone.contains(&rank) => gone.insert(rank),
            None => silent.insert(rank),
            Some(state) => !state.has_entered(sequence) && outside.insert(rank),
        };
    }
    // Whoever waits inside an earlier operation is held up by somebody else.
    let waits = |rank: &Rank| {
        let state = evidence.state_of(*rank);
        state.is_some_and(|state| state.current().is_some() && state.waiting_on.is_some())
    };
    let earlier = outside.iter().filter_map(|rank| evidence.state_of(*rank)?.current());
    let earlier = earlier.map(|call| call.sequence).min();
    let held_up = silent.is_empty() && gone.is_empty() && outside.iter().all(waits);
    if !held_up {
        outside.retain(|rank| !waits(rank));
    }
    let mut parts = Vec::new();
    if !outside.is_empty() {
        parts.push(format!("{} not entered it", have(evidence, &outside)));
    }
    if !silent.is_empty() {
        let verb = if silent.len() == 1 { "does" } else { "do" };
        parts.push(format!("{} {verb} not answer", names(evidence, &silent)));
    }
    if !gone.is_empty() {
        parts.push(format!("{} left the communicator", have(evidence, &gone)));
    }
    let mut culprits: BTreeSet<Rank> = silent;
    culprits.extend(outside);
    culprits.extend(gone);
    let mut is_link = false;
    match earlier.filter(|_| held_up && !culprits.is_empty()) {
        Some(earlier) => {
            // Those who wait there are counted, not named: it is not for them.
            let some = match culprits.len() {
                1 => "a rank is".to_owned(),
                ranks => format!("{ranks} ranks are"),
            };
            let (holding, text, link) = held_by(evidence, Some(earlier), seen);
            parts = vec![format!("{some} still in operation {earlier}, where {text}")];
            (culprits, is_link) = (holding, link);
        }
        None if culprits.is_empty() => {
            let (holding, text, link) = held_by(evidence, Some(sequence), seen);
            parts.push(text);
            (culprits, is_link) = (holding, link);
        }
        None => {}
    }
    Standstill { name, parts, culprits, is_link }
}

/// The link that is silent although both its ends answer by other ways, and the words for it: by what ranks
/// say of their links, and what was `seen` besides.
pub(super) fn silent_link(
    evidence: &Evidence,
    seen: &[SilentLink],
) -> Option<(BTreeSet<Rank>, String)> {
    let told = evidence.ranks().filter_map(|from| {
        let state = evidence.state_of(from)?;
        Some(SilentLink { from, to: state.silent_to?, silent_ms: state.silent_ms })
    });
    let answers = |rank: Rank| evidence.state_of(rank).is_some();
    let mut pairs: BTreeMap<(Rank, Rank), u64> = BTreeMap::new();
    for link in told.chain(seen.iter().copied()).filter(|l| answers(l.from) && answers(l.to)) {
        let pair = (link.from.min(link.to), link.from.max(link.to));
        let longest = pairs.entry(pair).or_default();
        *longest = link.silent_ms.max(*longest);
    }
    // The one that has been silent for longest; of equals the lowest.
    let worst = pairs.iter().max_by_key(|(pair, silent_ms)| (**silent_ms, Reverse(**pair)));
    let (&(low, high), silent_ms) = worst?;
    let more = match pairs.len() - 1 {
        0 => String::new(),
        1 => "; 1 other link is silent too".to_owned(),
        more => format!("; {more} other links are silent too"),
    };
    let ends = BTreeSet::from([low, high]);
    let words = format!(
        "the link between {} is silent: nothing sent on it was acknowledged for {silent_ms} ms, \
         while both answer by other ways{more}",
        names(evidence, &ends)
    );
    Some((ends, words))
}

/// What holds the ranks up that are inside operation `sequence`, or wait for messages: a link, which is said, or
/// whom they wait for.
fn held_by(
    evidence: &Evidence,
    sequence: Option<u64>,
    seen: &[SilentLink],
) -> (BTreeSet<Rank>, String, bool) {
    match silent_link(evidence, seen) {
        Some((ends, words)) => (ends, words, true),
        None => {
            let (awaited, words) = awaited(evidence, sequence);
            (awaited, words, false)
        }
    }
}

/// Whom the ranks inside operation `sequence` wait for in the end, where all have entered it; without
/// one, those that wait for messages.
fn awaited(evidence: &Evidence, sequence: Option<u64>) -> (BTreeSet<Rank>, String) {
    let edges: BTreeMap<Rank, Rank> = evidence
        .ranks()
        .filter_map(|rank| {
            let state = evidence.state_of(rank)?;
            let inside = state.current().map(|s| s.sequence) == sequence;
            state.waiting_on.filter(|_| inside).map(|on| (rank, on))
        })
        .collect();
    let (mut sinks, circle) = ends(&edges);
    let mut parts = Vec::new();
    for &sink in sinks.iter().take(NAMED_MAX) {
        let waiters: Vec<_> =
            edges.iter().filter(|(_, on)| **on == sink).map(|(r, _)| *r).collect();
        let longest = waiters.iter().filter_map(|&r| evidence.state_of(r)).map(|s| s.waiting_ms);
        let longest = longest.max().unwrap_or_default();
        let done = evidence.state_of(sink).is_some_and(|s| Some(s.completed) > sequence);
        let who = names(evidence, &BTreeSet::from([sink]));
        let waiting = format!("{} for it since {longest} ms", wait(&waiters));
        parts.push(match sequence {
            Some(_) if done => {
                format!("{who} has completed it, but {waiting}: look at the link between them")
            }
            Some(_) => format!("{who} is inside it and waits for nobody, while {waiting}"),
            None if evidence.state_of(sink).is_none() => {
                format!("{who} does not answer, while {waiting}")
            }
            None => format!("{who} waits for nobody, while {waiting}"),
        });
    }
    if !circle.is_empty() {
        parts.push(format!("{} wait for each other", names(evidence, &circle)));
    }
    if parts.is_empty() {
        parts.push("all ranks have entered it, and none says whom it waits for".to_owned());
    }
    sinks.extend(circle);
    (sinks, parts.join(", "))
}

/// Where those who wait for each other end: at ranks that wait for nobody, or on circles.
pub(super) fn ends(edges: &BTreeMap<Rank, Rank>) -> (BTreeSet<Rank>, BTreeSet<Rank>) {
    let (mut sinks, mut circle) = (BTreeSet::new(), BTreeSet::new());
    for &start in edges.keys() {
        let mut seen = BTreeSet::new();
        let mut at = start;
        while seen.insert(at) {
            let Some(&next) = edges.get(&at) else { break };
            at = next;
        }
        if edges.contains_key(&at) {
            // `at` was met twice, so it lies on a circle.
            let mut on = at;
            while circle.insert(on) {
                on = edges[&on];
            }
        } else {
            sinks.insert(at);
        }
    }
    (sinks, circle)
}

/// `rank 1 waits`, `ranks 1 and 2 wait`.
pub(super) fn wait(waiters: &[Rank]) -> String {
    let (ranks, wait) = if waiters.len() > 1 { ("ranks", "wait") } else { ("rank", "waits") };
    let waiters = list(waiters.iter().map(ToString::to_string), waiters.len());
    format!("{ranks} {waiters} {wait}")
}

/// The earliest operation that some rank is inside of.
fn operation_in_progress(evidence: &Evidence) -> Option<OperationName> {
    let states = evidence.ranks().filter_map(|rank| evidence.state_of(rank));
    let current = states.filter_map(|state| state.current());
    current.min_by_key(|s| (s.sequence, **s)).map(Signature::operation)
}

fn during(operation: Option<&OperationName>) -> String {
    operation.map_or_else(|| "between operations".to_owned(), |o| format!("during {o}"))
}

/// `rank 1 (host a, pid 12), rank 2 (host b, pid 7) and 5 more`.
pub(super) fn names(evidence: &Evidence, ranks: &BTreeSet<Rank>) -> String {
    let known = ranks.iter().map(|&r| match evidence.identities.get(r as usize) {
        Some(identity) => identity.to_string(),
        None => format!("rank {r}"),
    });
    list(known, ranks.len())
}

pub(super) fn have(evidence: &Evidence, ranks: &BTreeSet<Rank>) -> String {
    let verb = if ranks.len() == 1 { "has" } else { "have" };
    format!("{} {verb}", names(evidence, ranks))
}

/// `a`, `a and b`, `a, b and c`, `a, b, … and 5 more`.
fn list(words: impl Iterator<Item = String>, count: usize) -> String {
    let mut words: Vec<_> = words.take(NAMED_MAX).collect();
    if count > words.len() {
        words.push(format!("{} more", count - words.len()));
    }
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}
