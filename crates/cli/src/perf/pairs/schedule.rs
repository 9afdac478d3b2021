//! Who meets whom when.
//!
//! In a tournament every rank meets every other one once, and nobody twice in a round. What is measured at the same time must not
//! slow each other down: a round is played in as many *waves* as processors, GPUs and hosts' links ask for.

use crate::perf::slow::places::Places;

/// Two ranks, the lower one first.
pub(crate) type Pair = (usize, usize);

/// The rounds of a tournament: the circle method. One rank stays in its seat, the others move on by one seat in each round;
/// who sits across is whom one meets. Of an odd number one sits out.
pub(crate) fn rounds(ranks: usize) -> Vec<Vec<Pair>> {
    let seats = ranks + ranks % 2;
    let moving = seats.saturating_sub(1);
    let seat = |round: usize, seat: usize| match seat {
        0 => 0,
        seat => (seat - 1 + round) % moving + 1,
    };
    (0..moving)
        .map(|round| {
            let met = (0..seats / 2).map(|one| (seat(round, one), seat(round, seats - 1 - one)));
            let met = met.map(|(a, b)| (a.min(b), a.max(b)));
            met.filter(|(_, b)| *b < ranks).collect()
        })
        .collect()
}

/// The waves of a round: of pairs that can be measured at once, each one as early as it may be.
///
/// A rank that is measured needs a processor of its machine and its GPU for itself, and a pair of two hosts the links of both.
/// `at_once` in place of that allows so many pairs, whoever they are.
pub(crate) fn waves(round: &[Pair], places: &Places, at_once: Option<usize>) -> Vec<Vec<Pair>> {
    let mut waves: Vec<Vec<Pair>> = Vec::new();
    for pair in round {
        let free = waves.iter_mut().find(|wave| match at_once {
            Some(most) => wave.len() < most,
            None => has_room(wave, *pair, places),
        });
        match free {
            Some(wave) => wave.push(*pair),
            None => waves.push(vec![*pair]),
        }
    }
    waves
}

fn has_room(wave: &[Pair], (a, b): Pair, places: &Places) -> bool {
    let (one, other) = (&places.0[a], &places.0[b]);
    let measured = || wave.iter().flat_map(|(a, b)| [&places.0[*a], &places.0[*b]]);
    let is_crowded = |machine: usize, more: usize| {
        let there = measured().filter(|place| place.machine == machine).count();
        there + more > one.cpus.min(other.cpus) as usize
    };
    let more = if one.machine == other.machine { 2 } else { 1 };
    if is_crowded(one.machine, more) || is_crowded(other.machine, more) {
        return false;
    }
    // A GPU is for one pair at a time.
    let on_gpus: Vec<usize> = [places.on_gpu_of(a), places.on_gpu_of(b)].concat();
    if wave.iter().any(|(a, b)| on_gpus.contains(a) || on_gpus.contains(b)) {
        return false;
    }
    let crosses = |(a, b): &&Pair| places.node(*a) != places.node(*b);
    let uses = |node: usize| {
        let crossing = wave.iter().filter(crosses);
        crossing.flat_map(|(a, b)| [places.node(*a), places.node(*b)]).any(|used| used == node)
    };
    one.node == other.node || !(uses(one.node) || uses(other.node))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::super::slow::places::tests::{cluster, with_gpus};
    use super::*;

    #[test]
    fn everybody_meets_everybody_once_and_nobody_twice_in_a_round() {
        for ranks in 0..40 {
            let rounds = rounds(ranks);
            let wanted = match ranks {
                0 | 1 => rounds.len(),
                even if even % 2 == 0 => ranks - 1,
                _ => ranks,
            };
            assert_eq!(rounds.len(), wanted, "{ranks}");
            let mut met = BTreeSet::new();
            for round in &rounds {
                let mut seen = BTreeSet::new();
                for (a, b) in round {
                    assert!(a < b && *b < ranks && met.insert((*a, *b)), "{ranks}: {a} {b}");
                    assert!(seen.insert(*a) && seen.insert(*b), "{ranks}: {round:?}");
                }
            }
            assert_eq!(met.len(), ranks * ranks.saturating_sub(1) / 2, "{ranks}");
        }
    }

    #[test]
    fn hosts_with_one_rank_each_all_play_at_once() {
        let places = cluster(&[1; 8], 4);
        for round in rounds(8) {
            assert_eq!(waves(&round, &places, None), [round]);
        }
    }

    #[test]
    fn ranks_that_share_processors_or_links_take_turns() {
        let one_machine = cluster(&[8], 2);
        let whole: Vec<usize> =
            rounds(8).iter().map(|round| waves(round, &one_machine, None).len()).collect();
        assert_eq!(whole, [4; 7]);
        assert_eq!(waves(&rounds(8)[0], &cluster(&[8], 64), None).len(), 1);
        // Four pairs between two hosts share one link.
        let across = [(0, 4), (1, 5), (2, 6), (3, 7)];
        assert_eq!(waves(&across, &cluster(&[4, 4], 64), None).len(), 4);
        assert_eq!(waves(&across, &cluster(&[4, 4], 64), Some(2)).len(), 2);
        // Of eight ranks on four GPUs two pairs have those for themselves, unless they are pairs of one GPU.
        let shared = with_gpus(cluster(&[8], 64), 4);
        assert_eq!(waves(&[(0, 1), (2, 3), (4, 5), (6, 7)], &shared, None).len(), 2);
        assert_eq!(waves(&[(0, 4), (1, 5), (2, 6), (3, 7)], &shared, None).len(), 1);
        // Nobody is left out, however few processors there are.
        assert_eq!(waves(&across, &cluster(&[4, 4], 0), None).concat(), across);
    }
}
