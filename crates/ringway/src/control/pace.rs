//! Who is late: how the last calls went on each rank and each link, compared. Pure.
//!
//! Nobody leaves a call in which all wait for all before the last has come, so ranks leave it nearly together, and the one that came
//! last was in it for the shortest time. Hence no clock is compared with another: how much longer the longest was in
//! a call than a rank, that much later that rank came. What a rank does between calls is its program's, so a rank that is late
//! over and over computes for longer. Where nobody is late, a link may be slow: the kernel knows for how long each had bytes on
//! the way, and how many.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::types::Rank;

/// Calls that are told.
pub(super) const CALLS: usize = 32;

/// Links that a rank tells of, the slowest.
pub(super) const LINKS: usize = 8;

/// Calls that must have been compared before anybody is named.
const CALLS_LEAST: usize = 8;

/// What counts is a call to which ranks came so many microseconds apart. A rank is late that came last to three of four such
/// calls, where that takes so many hundredths of the time.
const LATE_US_LEAST: u64 = 100;
const LATE_PERCENT_LEAST: u64 = 5;

/// What a link must have carried before it is compared, and for how long it must have had bytes on the way.
const BYTES_LEAST: u64 = 1 << 20;
const BUSY_US_LEAST: u64 = 10_000;

/// A link is slow that moves so many times less than the best.
const SLOW_TIMES: u64 = 3;

/// How the last calls of one rank went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// The sequence of the first.
    pub first: u64,
    /// For how many microseconds the rank was in each, one more than that; 0 where ranks need not wait for each other.
    pub took_us: Vec<u32>,
    /// From the beginning of the first to the end of the last.
    pub span_us: u64,
    /// Its slowest links.
    pub links: Vec<LinkPace>,
}

/// What one rank has sent another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkPace {
    /// To whom.
    pub peer: Rank,
    /// How much has arrived.
    pub bytes: u64,
    /// For how long some of it was on the way.
    pub busy_us: u64,
    /// How often something had to be sent again.
    pub retries: u64,
}

impl Pace {
    /// As much of it as a rank tells.
    pub(super) fn shortened(&self) -> Self {
        Self {
            first: self.first,
            took_us: self.took_us.iter().copied().take(CALLS).collect(),
            span_us: self.span_us,
            links: self.links.iter().copied().take(LINKS).collect(),
        }
    }
}

impl LinkPace {
    /// Bytes a second while something was on the way.
    #[must_use]
    pub fn rate(&self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000 / u128::from(self.busy_us.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Whether enough has gone over it to say how fast it is.
    pub(super) fn is_told_apart(&self) -> bool {
        self.bytes >= BYTES_LEAST && self.busy_us >= BUSY_US_LEAST
    }
}

/// A rank that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateRank {
    /// Which.
    pub rank: Rank,
    /// To how many calls it came last, of those to which ranks came apart.
    pub last: usize,
    /// Those.
    pub calls: usize,
    /// How much later than the first it came, in the middle of those calls.
    pub late_us: u64,
    /// What it was late altogether, as a part of the time, in hundredths.
    pub percent: u64,
}

/// A link that moves less than others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowLink {
    /// Who sends.
    pub from: Rank,
    /// To whom.
    pub to: Rank,
    /// Bytes a second while something was on the way.
    pub rate: u64,
    /// The same of the best link.
    pub best: u64,
    /// How often something had to be sent again.
    pub retries: u64,
}

/// Who holds a job up that goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stragglers {
    /// The rank, where one is late: it computes for longer.
    pub late: Option<LateRank>,
    /// Links that are slow, the worst first.
    pub slow: Vec<SlowLink>,
}

/// Compares how calls went on all ranks.
pub(super) fn stragglers(paces: &BTreeMap<Rank, &Pace>) -> Stragglers {
    Stragglers { late: late(paces), slow: slow(paces) }
}

fn late(paces: &BTreeMap<Rank, &Pace>) -> Option<LateRank> {
    if paces.len() < 2 {
        return None;
    }
    let first = paces.values().map(|pace| pace.first).max()?;
    let end = paces.values().map(|pace| pace.first.saturating_add(pace.took_us.len() as u64));
    // How late each rank came to each call that all of them tell of. Of calls right behind each other only the first says
    // something: to the others all come together.
    let mut lateness: BTreeMap<Rank, Vec<u64>> = BTreeMap::new();
    let mut last: BTreeMap<Rank, usize> = BTreeMap::new();
    let mut calls = 0;
    for sequence in first..end.min()? {
        let took = |pace: &&Pace| {
            let at = usize::try_from(sequence - pace.first).ok()?;
            pace.took_us.get(at).copied().filter(|took| *took > 0).map(u64::from)
        };
        let all: Option<Vec<(Rank, u64)>> =
            paces.iter().map(|(rank, pace)| Some((*rank, took(pace)?))).collect();
        let Some(all) = all else { continue };
        let longest = all.iter().map(|(_, took)| *took).max()?;
        let &(latest, shortest) = all.iter().min_by_key(|(_, took)| *took)?;
        if longest - shortest < LATE_US_LEAST {
            continue;
        }
        calls += 1;
        *last.entry(latest).or_default() += 1;
        for (rank, took) in all {
            lateness.entry(rank).or_default().push(longest - took);
        }
    }
    let (&rank, &last) = last.iter().max_by_key(|(_, times)| **times)?;
    let mut late_us = lateness.remove(&rank)?;
    late_us.sort_unstable();
    let altogether_us = late_us.iter().sum::<u64>();
    let percent = altogether_us.saturating_mul(100) / paces.get(&rank)?.span_us.max(1);
    let is_late = calls >= CALLS_LEAST && 4 * last >= 3 * calls && percent >= LATE_PERCENT_LEAST;
    let late_us = late_us[late_us.len() / 2];
    is_late.then_some(LateRank { rank, last, calls, late_us, percent: percent.min(100) })
}

fn slow(paces: &BTreeMap<Rank, &Pace>) -> Vec<SlowLink> {
    let links: Vec<(Rank, &LinkPace)> = paces
        .iter()
        .flat_map(|(rank, pace)| pace.links.iter().map(|link| (*rank, link)))
        .filter(|(_, link)| link.is_told_apart())
        .collect();
    let best = links.iter().map(|(_, link)| link.rate()).max().unwrap_or(0);
    let mut slow: Vec<SlowLink> = links
        .into_iter()
        .map(|(from, link)| SlowLink {
            from,
            to: link.peer,
            rate: link.rate(),
            best,
            retries: link.retries,
        })
        .filter(|link| link.rate.saturating_mul(SLOW_TIMES) < best)
        .collect();
    slow.sort_by_key(|link| link.rate);
    slow
}

impl fmt::Display for Stragglers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(late) = &self.late {
            let LateRank { rank, last, calls, late_us, percent } = late;
            write!(
                f,
                "rank {rank} is late: it came last to {last} of {calls} calls, {} after the first, {percent} % of the time \
                 altogether; it computes for longer, or on a slower machine",
                Time(*late_us)
            )?;
        }
        if let Some(link) = self.slow.first() {
            let SlowLink { from, to, rate, best, retries } = link;
            let before = if self.late.is_some() { "; " } else { "" };
            write!(
                f,
                "{before}the link from rank {from} to rank {to} is slow: {} while it sends, the best {}",
                Rate(*rate),
                Rate(*best)
            )?;
            if *retries > 0 {
                write!(f, "; {retries} segments were sent again")?;
            }
            if self.slow.len() > 1 {
                write!(f, "; so are {} others", self.slow.len() - 1)?;
            }
        }
        Ok(())
    }
}

/// Microseconds, for people.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us @ 0..10_000 => write!(f, "{us} us"),
            us @ 10_000..10_000_000 => write!(f, "{} ms", us / 1_000),
            us => write!(f, "{} s", us / 1_000_000),
        }
    }
}

/// Bytes a second, for people.
struct Rate(u64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            rate @ 0..10_000_000 => write!(f, "{} kB/s", rate / 1_000),
            rate @ 10_000_000..10_000_000_000 => write!(f, "{} MB/s", rate / 1_000_000),
            rate => write!(f, "{} GB/s", rate / 1_000_000_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ranks that are in each call for so long after the last has come, and come so much late.
    fn paces(calls: usize, late_us: &[u32]) -> Vec<Pace> {
        let latest = late_us.iter().max().copied().unwrap_or(0);
        let pace = |(rank, late): (usize, &u32)| Pace {
            // Not all are asked at the same moment.
            first: 100 + rank as u64 % 3,
            took_us: vec![50 + latest - late; calls],
            span_us: calls as u64 * 10_000,
            links: Vec::new(),
        };
        late_us.iter().enumerate().map(pace).collect()
    }

    fn found(paces: &[Pace]) -> Stragglers {
        stragglers(&(0..).zip(paces).collect())
    }

    #[test]
    fn the_rank_that_comes_last_is_named_with_how_late_it_is() {
        let found = found(&paces(32, &[0, 40, 3_000, 10]));
        let late = found.late.unwrap();
        assert_eq!((late.rank, late.late_us, late.percent), (2, 3_000, 28));
        assert_eq!((late.last, late.calls), (30, 30));
        assert!(found.to_string().starts_with(
            "rank 2 is late: it came last to 30 of 30 calls, 3000 us after the first, 28 % of the time altogether"
        ));
    }

    #[test]
    fn nobody_is_named_for_little_or_for_few_calls_or_by_chance() {
        assert_eq!(found(&paces(32, &[0, 40, 90, 10])).late, None, "90 us");
        assert_eq!(found(&paces(32, &[0, 0, 400, 0])).late, None, "a twenty-fifth of the time");
        assert_eq!(found(&paces(9, &[0, 0, 3_000])).late, None, "seven calls");
        assert_eq!(found(&paces(32, &[3_000])).late, None, "nobody waits");
        let mut turns = paces(32, &[0, 0, 0, 0]);
        for (rank, pace) in turns.iter_mut().enumerate() {
            for (at, took) in pace.took_us.iter_mut().enumerate() {
                *took = if (at as u64 + pace.first) % 4 == rank as u64 { 50 } else { 5_000 };
            }
        }
        assert_eq!(found(&turns).late, None, "each in turn");
        let mut apart = paces(32, &[0, 0, 3_000]);
        apart[1].first = 1_000;
        assert_eq!(found(&apart).late, None, "no call that all tell of");
    }

    #[test]
    fn calls_right_behind_each_other_do_not_hide_who_is_late() {
        let mut all = paces(32, &[0, 0, 3_000]);
        for (rank, pace) in all.iter_mut().enumerate() {
            let first = pace.first;
            let calls = pace.took_us.iter_mut().zip(first..);
            // Whoever is first out of the one before is first in the next.
            let odd = calls.filter(|(_, at)| !at.is_multiple_of(2));
            odd.for_each(|(took, at)| {
                *took = 50 + u32::from((at + rank as u64).is_multiple_of(3)) * 20
            });
        }
        let late = found(&all).late.unwrap();
        assert_eq!((late.rank, late.late_us, late.last, late.calls), (2, 3_000, 15, 15));
    }

    #[test]
    fn calls_in_which_ranks_need_not_wait_do_not_count() {
        let mut all = paces(32, &[0, 0, 3_000]);
        for pace in &mut all {
            let first = pace.first;
            let calls = pace.took_us.iter_mut().zip(first..);
            calls.filter(|(_, at)| at.is_multiple_of(2)).for_each(|(took, _)| *took = 0);
        }
        assert_eq!(found(&all).late.unwrap().calls, 15);
    }

    #[test]
    fn a_link_is_slow_beside_the_best() {
        let mut all = paces(32, &[0, 0, 0]);
        let link = |peer, bytes: u64, busy_us| LinkPace { peer, bytes, busy_us, retries: 7 };
        all[0].links = vec![link(1, 1 << 30, 1_000_000), link(2, 1 << 30, 1_100_000)];
        all[1].links = vec![link(2, 1 << 30, 90_000_000), link(0, 1000, 90_000_000)];
        all[2].links = vec![link(0, 1 << 30, 2_000_000)];
        let found = found(&all);
        assert_eq!(
            found.slow.iter().map(|link| (link.from, link.to)).collect::<Vec<_>>(),
            [(1, 2)]
        );
        assert_eq!(
            found.to_string(),
            "the link from rank 1 to rank 2 is slow: 11 MB/s while it sends, the best 1073 MB/s; 7 segments were sent again"
        );
    }

    proptest! {
        #[test]
        fn whatever_ranks_say_nothing_panics(
            paces in proptest::collection::vec(
                (any::<u64>(), proptest::collection::vec(any::<u32>(), 0..40), any::<u64>(), any::<(u64, u64)>()), 0..6,
            ),
        ) {
            let paces: Vec<Pace> = paces
                .into_iter()
                .map(|(first, took_us, span_us, (bytes, busy_us))| Pace {
                    first, took_us, span_us,
                    links: vec![LinkPace { peer: 1, bytes, busy_us, retries: 1 }],
                })
                .collect();
            let _said = found(&paces).to_string();
        }
    }
}
