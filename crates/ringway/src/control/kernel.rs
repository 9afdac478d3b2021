//! Why kernels stand still that wait for other ranks: who has not put on its GPU what they wait for, or does not come to
//! it there.
//!
//! The host knows what a rank has put on its streams, and whom a kernel waits for; not what else the GPU does. Launches
//! are counted by each rank for itself: those of messages are of their ends alone, and a graph's are counted by kernels
//! for every replay and by the host once. So what is said of a rank is how far it has come by its own count, beside that
//! of those who wait.
//!
//! *Invariant*: pure, as [`decide`](super::decide) is.

use std::collections::{BTreeMap, BTreeSet};

use super::decide::{NAMED_MAX, Standstill, ends, have, names, wait};
use super::evidence::Evidence;
use super::journal::{KernelWait, RankState};
use super::signature::Signature;
use crate::plan::types::Rank;

/// Why kernels stand still; nothing where none waits.
pub(super) fn standstill(evidence: &Evidence) -> Option<Standstill> {
    let waits: BTreeMap<Rank, KernelWait> = evidence
        .ranks()
        .filter_map(|rank| Some((rank, evidence.state_of(rank)?.kernel?)))
        .collect();
    if waits.is_empty() {
        return None;
    }
    let (mut culprits, circle) =
        ends(&waits.iter().map(|(rank, wait)| (*rank, wait.waiting_on)).collect());
    let mut parts: Vec<String> =
        culprits.iter().take(NAMED_MAX).map(|sink| missing(evidence, &waits, *sink)).collect();
    if !circle.is_empty() {
        let launches: Vec<String> = circle
            .iter()
            .take(NAMED_MAX)
            .map(|rank| format!("rank {rank} in {}", launch(evidence, *rank, &waits[rank])))
            .collect();
        let who = names(evidence, &circle);
        parts.push(format!("{who} wait for each other, {}", launches.join(", ")));
    }
    culprits.extend(circle);
    Some(Standstill { name: "kernels on GPUs".to_owned(), parts, culprits, is_link: false })
}

/// What a rank has not done for which kernels of others wait.
fn missing(evidence: &Evidence, waits: &BTreeMap<Rank, KernelWait>, sink: Rank) -> String {
    let of_it: Vec<(Rank, &KernelWait)> = waits
        .iter()
        .filter(|(_, wait)| wait.waiting_on == sink)
        .map(|(rank, wait)| (*rank, wait))
        .collect();
    let alone = BTreeSet::from([sink]);
    // A sink is one for which somebody waits.
    let Some(&(first, longest)) = of_it.iter().max_by_key(|(_, wait)| wait.waiting_ms) else {
        return names(evidence, &alone);
    };
    let waiters: Vec<Rank> = of_it.iter().map(|(rank, _)| *rank).collect();
    let state = match evidence.state_of(sink) {
        None if evidence.gone.contains(&sink) => {
            format!("{} left the communicator", have(evidence, &alone))
        }
        None => format!("{} does not answer", names(evidence, &alone)),
        Some(state) => {
            let counts = evidence.state_of(first).is_some_and(|one| has_counts(one, longest));
            stands(&names(evidence, &alone), state, longest.launch, counts)
        }
    };
    format!(
        "{state}, while {} for it in {}, which stands still for {} ms",
        wait(&waiters),
        launch(evidence, first, longest),
        longest.waiting_ms
    )
}

/// Where a rank stands of which no kernel waits. Another waits in its own launch number `launch`, which `counts` where
/// no graph was replayed before.
fn stands(who: &str, state: &RankState, launch: u32, counts: bool) -> String {
    if let Some(call) = state.current() {
        let on = state.waiting_on.map_or_else(String::new, |on| format!(", waiting for rank {on}"));
        return format!(
            "{who} is in operation {} ({}) on host memory{on}",
            call.sequence,
            call.call()
        );
    }
    if let Some(on) = state.waiting_on {
        return format!("{who} waits for a message of rank {on} in host memory");
    }
    let last = last(state.launches, state.launched.as_ref());
    match state.launches {
        0 => format!("{who} has put nothing on its GPU"),
        launches if counts && launches < u64::from(launch) => {
            format!("{who} has put no more than {last} on its GPU")
        }
        _ => format!("{who} has put {last} on its GPU as the last, and none of its kernels waits"),
    }
}

/// Whether the launch that waits is one that its rank has put on its GPU, and not one of a graph that was replayed.
fn has_counts(state: &RankState, wait: &KernelWait) -> bool {
    u64::from(wait.launch) <= state.launches && wait.call.is_some()
}

/// The launch that stands still, in words.
fn launch(evidence: &Evidence, rank: Rank, wait: &KernelWait) -> String {
    if evidence.state_of(rank).is_some_and(|state| has_counts(state, wait)) {
        return last(u64::from(wait.launch), wait.call.as_ref());
    }
    format!("its kernel {}, of a graph that is replayed or behind one", wait.launch)
}

/// A launch by number and, where it is remembered, call.
fn last(number: u64, call: Option<&Signature>) -> String {
    call.map_or_else(
        || format!("launch {number}"),
        |call| format!("launch {number} ({})", call.call()),
    )
}
