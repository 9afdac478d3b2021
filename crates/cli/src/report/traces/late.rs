//! Who enters operations last, and what that costs the others.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::Job;

/// One rank's part in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Late {
    pub(super) rank: u32,
    pub(super) host: String,
    /// Operations that it entered last.
    pub(super) last: usize,
    /// By how much later than the median rank, in all.
    pub(super) held_up_ns: i128,
    /// For how long others stood still for it, by what they noted.
    pub(super) waited_for_ns: f64,
}

impl Late {
    fn cost(&self) -> f64 {
        self.held_up_ns as f64 + self.waited_for_ns
    }
}

/// All ranks'.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// Operations that every trace holds.
    pub(super) operations: usize,
    /// From the first entering of those to the last.
    pub(super) span_ns: i128,
    pub(super) ranks: BTreeMap<u32, Late>,
}

impl Lateness {
    pub(super) fn of(job: &Job<'_>, waits: &BTreeMap<(u32, u32), f64>) -> Self {
        let mut all = Self::default();
        let mut entered: BTreeMap<u64, Vec<(i128, u32)>> = BTreeMap::new();
        let mut ends: BTreeMap<u64, i128> = BTreeMap::new();
        for (trace, shift) in &job.traces {
            let late = Late { rank: trace.rank, host: trace.host.clone(), ..Late::default() };
            all.ranks.insert(trace.rank, late);
            for (call, start, end) in Job::calls(trace, *shift) {
                entered.entry(call.sequence).or_default().push((start, trace.rank));
                let known = ends.entry(call.sequence).or_insert(end);
                *known = (*known).max(end);
            }
        }
        for ((_, rank), ns) in waits {
            if let Some(late) = all.ranks.get_mut(rank) {
                late.waited_for_ns += ns;
            }
        }
        if job.traces.len() < 2 {
            return all;
        }
        entered.retain(|_, ranks| ranks.len() == job.traces.len());
        for ranks in entered.values_mut() {
            ranks.sort_unstable();
            let (median, _) = ranks[(ranks.len() - 1) / 2];
            let Some((last, rank)) = ranks.last().copied() else { continue };
            if let Some(late) = all.ranks.get_mut(&rank) {
                late.last += 1;
                late.held_up_ns += last - median;
            }
        }
        all.operations = entered.len();
        let first =
            entered.values().filter_map(|ranks| ranks.first()).map(|(start, _)| *start).min();
        let end = entered.keys().filter_map(|sequence| ends.get(sequence)).max();
        if let (Some(first), Some(end)) = (first, end) {
            all.span_ns = end - first;
        }
        all
    }

    /// Who cost the others more comes first.
    pub(super) fn order(&self, one: u32, other: u32) -> Ordering {
        let cost = |rank: u32| self.ranks.get(&rank).map_or(0.0, Late::cost);
        cost(other).total_cmp(&cost(one)).then(one.cmp(&other))
    }

    /// Who came late at the highest cost.
    pub(super) fn worst(&self) -> Option<&Late> {
        self.ranks.values().max_by_key(|one| one.held_up_ns)
    }
}
