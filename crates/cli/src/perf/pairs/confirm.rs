//! The second look: suspects alone, beside those who do not stand out.
//!
//! *Invariant*: who cannot be compared with anybody is not accused.

use std::collections::{BTreeMap, BTreeSet};

use super::judge::{Among, Subject, Suspect};
use super::schedule::Pair;
use crate::perf::slow::Bars;
use crate::perf::slow::culprit::{Culprit, Way};
use crate::perf::slow::places::Places;
use crate::perf::slow::robust;

/// Others whom a suspect is measured with in one look; in the next look they are the next ones, since it may be near to some alone.
const PARTNERS: usize = 3;
/// Looks at those that remain suspects.
const LOOKS: usize = 4;

/// The quickest times of a pair, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best {
    pub(crate) round_trip: f64,
    /// From the lower rank to the higher one, and back.
    pub(crate) messages: [f64; 2],
}

/// What a rank took alone, in microseconds: for a piece of work on its processor, for a copy in its GPU's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alone {
    pub(crate) work: Option<f64>,
    pub(crate) copy: Option<f64>,
}

/// What was seen since there are suspects.
#[derive(Clone, Debug, Default)]
struct Seen {
    pairs: BTreeMap<Pair, Best>,
    /// What each rank took alone. The median counts: who stands still now and then is quick at times.
    alone: BTreeMap<usize, Vec<Alone>>,
}

impl Seen {
    fn alone(&self, rank: usize, of: fn(&Alone) -> Option<f64>) -> Option<f64> {
        let times: Vec<f64> = self.alone.get(&rank)?.iter().filter_map(of).collect();
        (!times.is_empty()).then(|| robust::median(&times))
    }
}

impl Best {
    /// The quicker of both, of each kind.
    fn or(self, other: Self) -> Self {
        let least = |a: [f64; 2], b: [f64; 2]| [a[0].min(b[0]), a[1].min(b[1])];
        Self {
            round_trip: self.round_trip.min(other.round_trip),
            messages: least(self.messages, other.messages),
        }
    }
}

/// Looks at suspects until each is cleared or has been slow in all looks; `play` measures a pair with nothing else running, and
/// what both take alone, the lower rank first.
pub(crate) fn confirmed<E>(
    suspects: &[Suspect],
    places: &Places,
    bars: Bars,
    mut play: impl FnMut(Pair) -> Result<(Best, [Alone; 2]), E>,
) -> Result<Vec<Culprit>, E> {
    let mut seen = Seen::default();
    let mut left: Vec<(&Suspect, Trial)> =
        suspects.iter().map(|suspect| (suspect, Trial::default())).collect();
    for look in 0..LOOKS {
        for (suspect, trial) in &mut left {
            let now = Trial::of(suspect, suspects, places, look);
            for pair in now.pairs() {
                let (best, alone) = play(pair)?;
                let known = seen.pairs.entry(pair);
                known.and_modify(|known| *known = known.or(best)).or_insert(best);
                for (rank, alone) in [pair.0, pair.1].into_iter().zip(alone) {
                    seen.alone.entry(rank).or_default().push(alone);
                }
            }
            trial.extend(now);
        }
        if look > 0 {
            left.retain(|(suspect, trial)| trial.verdict(suspect, &seen, places, bars).is_some());
        }
    }
    let verdict =
        |(suspect, trial): &(&Suspect, Trial)| trial.verdict(suspect, &seen, places, bars);
    Ok(merged(left.iter().filter_map(verdict).collect(), places))
}

/// What a suspect is to be measured with, and what that is compared with. In each pair the suspect, its sibling or the first end
/// of a path is first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Trial {
    suspected: Vec<Pair>,
    compared: Vec<Pair>,
}

impl Trial {
    /// What a suspect is measured with at its look number `look`; all suspects are told, so that none of them is what others are
    /// compared with. A host is another rank of it in each look: it is slow if all of them are.
    fn of(suspect: &Suspect, all: &[Suspect], places: &Places, look: usize) -> Self {
        let shady: BTreeSet<usize> = all
            .iter()
            .filter(|one| one.among == suspect.among)
            .filter_map(|one| match one.subject {
                Subject::One(unit) => Some(unit),
                Subject::Path(..) => None,
            })
            .collect();
        let sound = |unit: &usize| !shady.contains(unit);
        let own = match suspect.subject {
            Subject::One(unit) | Subject::Path(unit, _) => unit,
        };
        match suspect.among {
            Among::Hosts => {
                let rank_of = |node: usize| {
                    let ranks = places.on(node);
                    ranks.get(look % ranks.len().max(1)).copied().unwrap_or(0)
                };
                let others = turned(after(own, places.nodes()), look);
                Self::among(suspect.subject, &others, &sound, &rank_of, &|_, _| true)
            }
            Among::Neighbours => {
                let near = |rank: &usize| places.node(*rank) == places.node(own);
                let others = turned(after(own, places.ranks()).filter(near), look);
                let apart = |a: usize, b: usize| !places.stays_on_gpu(a, b);
                Self::among(suspect.subject, &others, &sound, &|rank| rank, &apart)
            }
            Among::Siblings => Self::beside_siblings(suspect.subject, &sound, places, look),
            // Each of a pair works alone, and is compared with the other.
            Among::Processors | Among::Gpus => {
                let others = turned(after(own, places.ranks()).filter(sound), look);
                let with = || others.iter().take(PARTNERS);
                Self {
                    suspected: with().map(|other| (own, *other)).collect(),
                    compared: with().map(|other| (*other, own)).collect(),
                }
            }
        }
    }

    /// Units beside others of their kind; only pairs that are `apart` are alike.
    fn among(
        subject: Subject,
        others: &[usize],
        sound: &impl Fn(&usize) -> bool,
        rank_of: &impl Fn(usize) -> usize,
        apart: &impl Fn(usize, usize) -> bool,
    ) -> Self {
        let own = match subject {
            Subject::One(unit) | Subject::Path(unit, _) => unit,
        };
        let others = || others.iter().copied().filter(|other| apart(own, *other));
        let sound = others().filter(sound);
        match subject {
            Subject::One(one) => {
                let partners: Vec<usize> = sound.take(PARTNERS).collect();
                let each = |(at, a): (usize, &usize)| {
                    let alike = partners[at + 1..].iter().filter(|b| apart(*a, **b));
                    alike.map(|b| (rank_of(*a), rank_of(*b))).collect::<Vec<_>>()
                };
                let others = others().take(PARTNERS);
                Self {
                    suspected: others.map(|other| (rank_of(one), rank_of(other))).collect(),
                    compared: partners.iter().enumerate().flat_map(each).collect(),
                }
            }
            Subject::Path(a, b) => {
                let around = sound.filter(|one| *one != b && apart(*one, b)).take(2).map(rank_of);
                let (a, b) = (rank_of(a), rank_of(b));
                let around = around.flat_map(|other| [(a, other), (other, b)]);
                Self { suspected: vec![(a, b)], compared: around.collect() }
            }
        }
    }

    /// The same partners for the suspect and for the other ranks of its host.
    fn beside_siblings(
        subject: Subject,
        sound: &impl Fn(&usize) -> bool,
        places: &Places,
        look: usize,
    ) -> Self {
        let siblings = |rank: usize| -> Vec<usize> {
            let all = places.on(places.node(rank)).into_iter();
            all.filter(|other| *other != rank && sound(other)).take(2).collect()
        };
        match subject {
            Subject::One(own) => {
                let away = |rank: &usize| places.node(*rank) != places.node(own) && sound(rank);
                let partners = turned(after(own, places.ranks()).filter(away), look);
                let with = |rank: usize| partners.iter().take(2).map(move |other| (rank, *other));
                Self {
                    suspected: with(own).collect(),
                    compared: siblings(own).into_iter().flat_map(with).collect(),
                }
            }
            Subject::Path(a, b) => {
                let from = siblings(a).into_iter().map(|other| (other, b));
                let to = siblings(b).into_iter().map(|other| (a, other));
                Self { suspected: vec![(a, b)], compared: from.chain(to).collect() }
            }
        }
    }

    /// All pairs, in turns.
    fn pairs(&self) -> Vec<Pair> {
        let most = self.suspected.len().max(self.compared.len());
        let turn = |at: usize| [self.suspected.get(at), self.compared.get(at)];
        let mut pairs = Vec::new();
        for (a, b) in (0..most).flat_map(turn).flatten() {
            let pair = (*a.min(b), *a.max(b));
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        pairs
    }

    /// Takes the pairs of another look in.
    fn extend(&mut self, other: Self) {
        self.suspected.extend(other.suspected);
        self.compared.extend(other.compared);
    }

    /// Whether the suspect is slow, by what was seen of it since.
    fn verdict(
        &self,
        suspect: &Suspect,
        seen: &Seen,
        places: &Places,
        bars: Bars,
    ) -> Option<Culprit> {
        let suspected = directed(&self.suspected, seen);
        let compared = directed(&self.compared, seen);
        // The quickest of all: even with its best partner a suspect has to be slow.
        let least = |at: usize| suspected.iter().map(|seen| seen[at]).reduce(f64::min);
        let [to, back, round_trip] = [least(0)?, least(1)?, least(2)?];
        let middle = |at: usize| -> Vec<f64> { compared.iter().map(|seen| seen[at]).collect() };
        let usual = match suspect.subject {
            Subject::Path(..) => match self.around(seen) {
                // Between two hosts alone, one way has only the other to be compared with.
                None if suspect.among == Among::Hosts => {
                    [to.min(back), to.min(back), f64::INFINITY]
                }
                usual => usual?,
            },
            // Which way is which among sound ones is nobody's matter, but for siblings, which have the same partners.
            Subject::One(_) if suspect.among != Among::Siblings => {
                let message = robust::median(&[middle(0), middle(1)].concat());
                [message, message, robust::median(&middle(2))]
            }
            Subject::One(_) => [0, 1, 2].map(|at| robust::median(&middle(at))),
        };
        let was_slow = suspect.sends.is_some() || suspect.receives.is_some();
        let (sends, receives) = match was_slow {
            true => (bars.work.exceeded(to, usual[0]), bars.work.exceeded(back, usual[1])),
            false => (None, None),
        };
        let answers = suspect.answers.and_then(|_| bars.round_trips.exceeded(round_trip, usual[2]));
        let alone = |of: fn(&Alone) -> Option<f64>| {
            let took = |(rank, _): &Pair| seen.alone(*rank, of);
            let others: Vec<f64> = self.compared.iter().filter_map(took).collect();
            let own = self.suspected.first().and_then(took)?;
            bars.work.exceeded(own, robust::median(&others))
        };
        let computes = suspect.computes.and_then(|_| alone(|alone| alone.work));
        let copies = suspect.copies.and_then(|_| alone(|alone| alone.copy));
        let way = match (sends, receives) {
            (Some(_), None) => Way::Sends,
            (None, Some(_)) => Way::Receives,
            _ => Way::Both,
        };
        let slower = sends.into_iter().chain(receives).reduce(f64::max);
        if [slower, answers, computes, copies].iter().all(Option::is_none) {
            return None;
        }
        let ranks = |unit: usize| match suspect.among {
            Among::Hosts => places.on(unit),
            _ => vec![unit],
        };
        let (from, to) = match suspect.subject {
            Subject::One(unit) => (ranks(unit), Vec::new()),
            Subject::Path(a, b) => (ranks(a), ranks(b)),
        };
        Some(Culprit { slower, answers, computes, copies, ..Culprit::new(from, to, way) })
    }

    /// What a path should take by what its ends take with others: messages from the first end to the second, back, round trips.
    /// The slower end counts: a path is not slow for being that of a slow host.
    fn around(&self, seen: &Seen) -> Option<[f64; 3]> {
        let is_first = |(a, _): &&Pair| self.suspected.iter().any(|(first, _)| a == first);
        let usual = |first: bool| -> Option<[f64; 3]> {
            let of: Vec<Pair> =
                self.compared.iter().filter(|pair| is_first(pair) == first).copied().collect();
            let of = directed(&of, seen);
            let middle = |at| robust::median(&of.iter().map(|seen| seen[at]).collect::<Vec<_>>());
            (!of.is_empty()).then(|| [middle(0), middle(1), middle(2)])
        };
        let (from, to) = (usual(true)?, usual(false)?);
        Some([0, 1, 2].map(|at| from[at].max(to[at])))
    }
}

/// What was seen of pairs: messages from the first to the second, back, round trips.
fn directed(pairs: &[Pair], seen: &Seen) -> Vec<[f64; 3]> {
    let one = |(a, b): &Pair| {
        let best = seen.pairs.get(&(*a.min(b), *a.max(b)))?;
        let [up, down] = best.messages;
        let (to, back) = if a < b { (up, down) } else { (down, up) };
        Some([to, back, best.round_trip])
    };
    pairs.iter().filter_map(one).collect()
}

/// Whom several of the same name what all of them are; who is blamed twice is named once.
fn merged(culprits: Vec<Culprit>, places: &Places) -> Vec<Culprit> {
    let mut named: Vec<Culprit> = Vec::new();
    let ones: BTreeSet<usize> = culprits
        .iter()
        .filter(|one| one.to.is_empty())
        .flat_map(|one| one.ranks.iter().copied())
        .collect();
    let whole = |ranks: &[usize]| -> Option<Vec<usize>> {
        let first = *ranks.first()?;
        // All of a host are the host, all of a GPU are the GPU; but all there are, are nobody in particular.
        let like = [places.on(places.node(first)), places.on_gpu_of(first)].into_iter();
        let mut like = like.filter(|all| all.len() < places.ranks() && all.len() > ranks.len());
        like.find(|all| all.iter().all(|rank| ones.contains(rank)))
    };
    // Who stands still is quick with some and slow with others, by chance: its paths say nothing.
    let stands = |rank: &usize| {
        culprits.iter().any(|one| one.computes.is_some() && one.ranks.contains(rank))
    };
    let chance = |one: &Culprit| !one.to.is_empty() && one.ranks.iter().chain(&one.to).any(stands);
    let meant: Vec<Culprit> = culprits.iter().filter(|one| !chance(one)).cloned().collect();
    for mut one in meant {
        if one.to.is_empty()
            && let Some(ranks) = whole(&one.ranks)
        {
            one.ranks = ranks;
        }
        let same = |other: &&mut Culprit| other.ranks == one.ranks && other.to == one.to;
        match named.iter_mut().find(same) {
            Some(known) => {
                if known.slower.is_none() {
                    known.way = one.way;
                }
                known.slower = most(known.slower, one.slower);
                known.answers = most(known.answers, one.answers);
                known.computes = most(known.computes, one.computes);
                known.copies = most(known.copies, one.copies);
            }
            None => named.push(one),
        }
    }
    let told = |mut one: Culprit| {
        // Who stands still is late in asking its GPU too.
        if one.computes.is_some() {
            one.copies = None;
        }
        one.named(places)
    };
    named.into_iter().map(told).collect()
}

fn most(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.into_iter().chain(b).reduce(f64::max)
}

/// All numbers below `count` but one, beginning with the one after it.
fn after(one: usize, count: usize) -> impl Iterator<Item = usize> {
    (1..count).map(move |step| (one + step) % count.max(1))
}

/// The same, beginning somewhere else at each look.
fn turned(all: impl Iterator<Item = usize>, look: usize) -> Vec<usize> {
    let mut all: Vec<usize> = all.collect();
    let by = (look * PARTNERS).checked_rem(all.len()).unwrap_or(0);
    all.rotate_left(by);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::slow::places::tests::cluster;

    #[test]
    fn a_rank_that_stands_still_has_no_slow_paths_and_no_slow_gpu() {
        let places = cluster(&[4], 8);
        let still = Culprit::new(vec![2], Vec::new(), Way::Both);
        let still = Culprit { computes: Some(2.0), copies: Some(1.5), ..still };
        let path = |a: usize, b: usize| Culprit {
            slower: Some(1.5),
            ..Culprit::new(vec![a], vec![b], Way::Sends)
        };
        let named = merged(vec![still, path(2, 3), path(1, 2), path(0, 1)], &places);
        let names: Vec<_> = named.iter().map(|one| (one.name.as_str(), one.copies)).collect();
        assert_eq!(names, [("rank 2", None), ("the path from rank 0 to rank 1", None)]);
    }
}
