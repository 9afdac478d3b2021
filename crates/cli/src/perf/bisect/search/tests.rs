//! Searches in a model: something is planted, groups cost what it makes them cost, and the search has to name it in few rounds.

use ringway_plan::rng::Random;

use super::alone::WORKS;
use super::*;
use crate::perf::slow::places::tests::{cluster, with_gpus};
use crate::perf::slow::robust::Bar;

const BARS: Bars =
    Bars { work: Bar { times: 1.35, more: 0.0 }, round_trips: Bar { times: 1.35, more: 0.0 } };

#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    Nothing,
    /// A host's link, both ways or one.
    Link(usize),
    Sender(usize),
    /// From one host to another.
    Path(usize, usize),
    Processor(usize),
    /// The memory of the GPU of a rank.
    Gpu(usize),
    /// The links of the GPU of a rank: what goes to others.
    GpuLink(usize),
}

struct Model<'a> {
    places: &'a Places,
    plants: Vec<Plant>,
    by: f64,
    random: Random,
    noise: f64,
    rounds: usize,
    groups: usize,
    said: Vec<String>,
}

impl<'a> Model<'a> {
    fn new(places: &'a Places, plants: &[Plant], by: f64, seed: u64, noise: f64) -> Self {
        let random = Random::new(seed);
        let plants = plants.to_vec();
        Self { places, plants, by, random, noise, rounds: 0, groups: 0, said: Vec::new() }
    }

    /// What the quickest of some turns takes longer than it has to.
    fn noise(&mut self) -> f64 {
        let part = (self.random.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        1.0 + self.noise * part
    }

    fn cost(&self, group: &Group) -> (f64, f64) {
        let (mut small, mut large) = (1.0_f64, 1.0_f64);
        for plant in &self.plants {
            for (from, to) in edges(group) {
                let (a, b) = (self.places.node(from), self.places.node(to));
                let is_hit = match *plant {
                    Plant::Nothing => false,
                    Plant::Link(node) => a != b && (a == node || b == node),
                    Plant::Sender(node) => a != b && a == node,
                    Plant::Path(x, y) => (a, b) == (x, y),
                    Plant::Processor(rank) => from == rank,
                    Plant::Gpu(rank) | Plant::GpuLink(rank) => {
                        let on = self.places.on_gpu_of(rank);
                        on.contains(&from) != on.contains(&to)
                    }
                };
                if is_hit {
                    large = large.max(self.by);
                    if let Plant::Processor(_) = plant {
                        small = small.max(self.by);
                    }
                }
            }
        }
        let size = group.len() as f64;
        (50.0 * size.log2() * small, 40_000.0 * (size - 1.0) / size * large)
    }
}

impl Lab for Model<'_> {
    fn measure(&mut self, _what: &str, groups: &[Group]) -> anyhow::Result<Vec<Cost>> {
        assert!(!groups.is_empty());
        self.rounds += 1;
        self.groups += groups.len();
        let mut costs = Vec::new();
        for group in groups {
            let mut members = group.clone();
            members.sort_unstable();
            members.dedup();
            assert!(members.len() == group.len() && group.len() > 1, "{group:?}");
            let (small, large) = self.cost(group);
            costs.push(Cost { small: small * self.noise(), large: large * self.noise() });
        }
        Ok(costs)
    }

    fn work(&mut self, _what: &str, worker: Worker) -> anyhow::Result<Vec<f64>> {
        self.rounds += 1;
        let slow = |rank: usize| {
            self.plants.iter().any(|plant| match *plant {
                Plant::Processor(slow) => worker == Worker::Processor && slow == rank,
                Plant::Gpu(of) => {
                    worker == Worker::Gpu && self.places.on_gpu_of(of).contains(&rank)
                }
                _ => false,
            })
        };
        let truth: Vec<f64> =
            (0..self.places.ranks()).map(|rank| if slow(rank) { self.by } else { 1.0 }).collect();
        Ok(truth.into_iter().map(|time| 20.0 * time * self.noise()).collect())
    }

    fn has_rings(&self) -> bool {
        self.places.gpu_turns() == 0
    }

    fn conclude(&mut self, text: &str) -> anyhow::Result<()> {
        self.said.push(text.to_owned());
        Ok(())
    }
}

struct Outcome {
    found: Vec<Culprit>,
    rounds: usize,
    said: Vec<String>,
}

fn search(places: &Places, plants: &[Plant], seed: u64) -> Outcome {
    let mut model = Model::new(places, plants, 1.8, seed, 0.2);
    let found = Search::new(&mut model, places, BARS).run().unwrap();
    Outcome { found, rounds: model.rounds, said: model.said }
}

/// Halvings until one of so many is left.
fn halvings(count: usize) -> usize {
    count.next_power_of_two().trailing_zeros() as usize
}

#[test]
fn a_slow_host_is_named_in_as_many_rounds_as_there_are_halvings_and_looks() {
    for nodes in 3..=33 {
        let places = cluster(&vec![1; nodes], 4);
        for slow in 0..nodes {
            for plant in [Plant::Link(slow), Plant::Sender(slow), Plant::Processor(slow)] {
                let done = search(&places, &[plant], slow as u64);
                let ranks: Vec<_> = done.found.iter().map(|one| one.ranks.clone()).collect();
                assert_eq!(ranks, [vec![slow]], "{nodes}: {plant:?} {:?}", done.said);
                assert!(done.found[0].to.is_empty());
                let is_processor = matches!(plant, Plant::Processor(_));
                // Of few values none is far out; the groups tell then.
                if nodes > 4 {
                    assert_eq!(
                        done.found[0].computes.is_some(),
                        is_processor,
                        "{nodes}: {plant:?}"
                    );
                }
                // One for processors, the halvings, the looks; the odd one is asked for only when the others are known to be alike.
                let most =
                    (1 + halvings(nodes) + LOOKS).max(1 + WORKS) + usize::from(nodes % 2 == 1);
                assert!(done.rounds <= most, "{nodes}: {plant:?} took {} rounds", done.rounds);
            }
        }
    }
}

#[test]
fn nothing_is_an_answer() {
    for nodes in 3..=24 {
        let places = cluster(&vec![1; nodes], 4);
        for seed in 0..40 {
            let done = search(&places, &[Plant::Nothing], seed);
            assert!(done.found.is_empty(), "{nodes}, seed {seed}: {:?}", done.said);
            assert!(done.rounds <= 5, "{nodes}: {} rounds", done.rounds);
        }
    }
    for hosts in [&[8][..], &[4, 4], &[4; 4]] {
        assert!(search(&cluster(hosts, 4), &[], 1).found.is_empty());
    }
}

#[test]
fn a_slow_path_is_named_with_its_direction() {
    for nodes in [4, 5, 6, 7, 8, 12, 16] {
        let places = cluster(&vec![1; nodes], 4);
        for a in 0..nodes {
            for b in (0..nodes).filter(|b| *b != a) {
                let done = search(&places, &[Plant::Path(a, b)], (a * nodes + b) as u64);
                let [one] = &done.found[..] else {
                    panic!("path {a} to {b} of {nodes}: {:?} {:?}", done.found, done.said)
                };
                let mut ends = [one.ranks[0], one.to[0]];
                let is_directed = one.way == Way::Sends;
                assert!(!is_directed || ends == [a, b], "{nodes}: {a} to {b}: {one:?}");
                ends.sort_unstable();
                assert_eq!(ends, [a.min(b), a.max(b)], "{nodes}: {:?}", done.said);
                assert!(
                    done.rounds <= halvings(nodes) + 3 + 2 * LOOKS,
                    "{nodes}: {} rounds",
                    done.rounds
                );
            }
        }
    }
}

#[test]
fn a_slow_rank_is_told_from_a_slow_host() {
    let places = cluster(&[4; 8], 16);
    for slow in 0..32 {
        let done = search(&places, &[Plant::Processor(slow)], 1);
        assert_eq!(done.found.len(), 1, "{:?}", done.said);
        assert_eq!(done.found[0].ranks, [slow], "{:?}", done.said);
        assert!(done.rounds <= 1 + 3 + LOOKS + 2, "{} rounds", done.rounds);
    }
    for slow in 0..8 {
        let done = search(&places, &[Plant::Link(slow)], 1);
        assert_eq!(done.found.len(), 1, "{:?}", done.said);
        assert_eq!(done.found[0].name, places.name(&places.on(slow)), "{:?}", done.said);
    }
    // On one host ranks are all there is.
    for slow in 0..8 {
        let done = search(&cluster(&[8], 16), &[Plant::Processor(slow)], 1);
        assert_eq!(done.found[0].name, format!("rank {slow}"));
    }
}

#[test]
fn of_two_slow_ones_both_are_named_wherever_they_are() {
    let places = cluster(&[1; 8], 4);
    for a in 0..8 {
        for b in (0..8).filter(|b| *b != a) {
            let done = search(&places, &[Plant::Link(a), Plant::Link(b)], 3);
            let named: Vec<usize> = done.found.iter().flat_map(|one| one.ranks.clone()).collect();
            assert!(named.iter().all(|one| [a, b].contains(one)), "{a} {b}: {:?}", done.said);
            assert!(!named.is_empty(), "{a} {b}: {:?}", done.said);
        }
    }
}

#[test]
fn rings_have_every_path_at_least_once() {
    for count in 3..30 {
        let rings = rings(count);
        let mut seen = vec![false; count * count];
        for ring in &rings {
            let mut sorted = ring.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..count), "{count}: {ring:?}");
            edges(ring).for_each(|(a, b)| seen[a * count + b] = true);
        }
        let missing =
            (0..count * count).filter(|at| !seen[*at] && at / count != at % count).count();
        assert_eq!(missing, 0, "{count}");
        assert!(rings.len() <= 2 * count);
    }
}

/// One rank a GPU or two, on one host, two or many.
#[test]
fn a_slow_gpu_is_named_whoever_has_it() {
    for (hosts, gpus) in [
        (&[4][..], 4),
        (&[8], 8),
        (&[8], 4),
        (&[6], 3),
        (&[8, 8], 8),
        (&[4, 4], 2),
        (&[4; 4], 2),
        (&[6; 3], 3),
    ] {
        let places = with_gpus(cluster(hosts, 64), gpus);
        for rank in 0..places.ranks() {
            for plant in [Plant::Gpu(rank), Plant::GpuLink(rank)] {
                let done = search(&places, &[plant], rank as u64);
                let [one] = &done.found[..] else {
                    panic!("{hosts:?} {gpus} {plant:?}: {:?} {:?}", done.found, done.said)
                };
                let told =
                    format!("{hosts:?} {gpus} {plant:?}: {} {:?}", one.sentence(), done.said);
                assert_eq!(one.ranks, places.on_gpu_of(rank), "{told}");
                assert_eq!(one.copies.is_some(), matches!(plant, Plant::Gpu(_)), "{told}");
                assert!(one.name.starts_with("GPU ") && one.gpus.len() == 1, "{told}");
            }
        }
    }
}

#[test]
fn without_rings_sound_gpus_take_few_rounds_and_nobody_is_named() {
    for (hosts, gpus) in [(&[4][..], 1), (&[4], 4), (&[8], 4), (&[4; 4], 4)] {
        let places = with_gpus(cluster(hosts, 64), gpus);
        let done = search(&places, &[Plant::Nothing], 7);
        assert!(done.found.is_empty() && done.rounds <= 4, "{} {:?}", done.rounds, done.said);
        // One of several ranks on a GPU can be slow by itself.
        let done = search(&places, &[Plant::Processor(1)], 7);
        let named: Vec<_> = done.found.iter().map(|one| (&one.ranks[..], &one.gpus[..])).collect();
        assert_eq!(named, [(&[1][..], &[][..])], "{:?}", done.said);
    }
}
