//! Tournaments out of numbers: something is planted among noise, and has to be found; nothing is planted, and nobody is blamed.

use ringway_plan::rng::Random;

use super::super::confirm::{self, Alone, Best};
use super::*;
use crate::perf::slow::culprit::{Culprit, Way};
use crate::perf::slow::places::tests::{cluster, with_gpus};
use crate::perf::slow::robust::Bar;

const BARS: Bars =
    Bars { work: Bar { times: 1.35, more: 0.0 }, round_trips: Bar { times: 1.35, more: 0.0 } };
const CASES: u64 = 300;

/// A failing case is played again by its number.
struct Dice(Random);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    fn part(&mut self) -> f64 {
        (self.0.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.below(end as u64)).unwrap()
    }

    /// What else runs on a machine, in one batch: never less than 1, mostly a little more, now and then a lot.
    fn batch(&mut self) -> f64 {
        let small = 1.0 + 0.1 * self.part();
        if self.0.percent(25) { small * (1.0 + 0.3 / (self.part() + 0.02)) } else { small }
    }

    /// The same of a match: of its batches the quickest; but one time in twenty all of them are hit.
    fn noise(&mut self) -> f64 {
        let batches = [(); 4].map(|()| self.batch());
        let least = batches.into_iter().fold(f64::INFINITY, f64::min);
        if self.0.percent(5) { least * (1.0 + 2.0 * self.part()) } else { least }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    Nothing,
    Link(usize),
    Sender(usize),
    Receiver(usize),
    Path(usize, usize),
    Processor(usize),
    /// The memory of the GPU of a rank, and with it all that is sent from there and to it.
    Gpu(usize),
    /// The first ranks on one socket, the others on the other: from one to the other it takes half as long again.
    Sockets(usize),
}

/// Times as they would be: of hosts and a plant, without noise.
fn truth(places: &Places, plant: Plant, by: f64, (from, to): (usize, usize)) -> (f64, f64) {
    let (a, b) = (places.node(from), places.node(to));
    let (mut message, mut round_trip) = if a == b { (40.0, 3.0) } else { (400.0, 60.0) };
    let crosses = a != b;
    if places.stays_on_gpu(from, to) {
        message /= 3.0;
    }
    match plant {
        Plant::Link(node) if crosses && (a == node || b == node) => message *= by,
        Plant::Sender(node) if crosses && a == node => message *= by,
        Plant::Receiver(node) if crosses && b == node => message *= by,
        Plant::Path(x, y) if (a, b) == (x, y) => message *= by,
        Plant::Processor(rank) if from == rank || to == rank => {
            message *= by;
            round_trip *= by;
        }
        Plant::Gpu(rank) if [from, to].iter().any(|end| places.on_gpu_of(rank).contains(end)) => {
            message *= by;
        }
        Plant::Sockets(split) if (from < split) != (to < split) => {
            message *= 1.5;
            round_trip *= 1.5;
        }
        _ => {}
    }
    (message, round_trip)
}

fn work(plant: Plant, by: f64, rank: usize) -> f64 {
    if plant == Plant::Processor(rank) { 20.0 * by } else { 20.0 }
}

fn copy(places: &Places, plant: Plant, by: f64, rank: usize) -> Option<f64> {
    places.0[rank].gpu.as_ref()?;
    let is_slow = matches!(plant, Plant::Gpu(of) if places.on_gpu_of(of).contains(&rank));
    Some(if is_slow { 30.0 * by } else { 30.0 })
}

fn times(places: &Places, plant: Plant, by: f64, dice: &mut Dice) -> Times {
    let ranks = places.ranks();
    let works = (0..ranks).map(|rank| Some(work(plant, by, rank) * dice.noise())).collect();
    let copies =
        (0..ranks).map(|rank| Some(copy(places, plant, by, rank)? * dice.noise())).collect();
    let mut times =
        Times { round_trips: Grid::new(ranks), messages: Grid::new(ranks), works, copies };
    for a in 0..ranks {
        for b in (0..ranks).filter(|b| *b != a) {
            let (message, round_trip) = truth(places, plant, by, (a, b));
            times.messages.set(a, b, message * dice.noise());
            if a < b {
                let noisy = round_trip * dice.noise();
                times.round_trips.set(a, b, noisy);
                times.round_trips.set(b, a, noisy);
            }
        }
    }
    times
}

/// The whole search, with matches out of numbers.
fn search(places: &Places, plant: Plant, by: f64, seed: u64) -> Vec<Culprit> {
    let mut dice = Dice::new(seed);
    let suspects = suspects(&times(places, plant, by, &mut dice), places, BARS);
    let found = confirm::confirmed(&suspects, places, BARS, |pair| -> Result<_, ()> {
        let (to, round_trip) = truth(places, plant, by, pair);
        let (back, _) = truth(places, plant, by, (pair.1, pair.0));
        let best = Best {
            round_trip: round_trip * dice.noise(),
            messages: [to * dice.noise(), back * dice.noise()],
        };
        let alone = [pair.0, pair.1].map(|rank| Alone {
            work: Some(work(plant, by, rank) * dice.noise()),
            copy: copy(places, plant, by, rank).map(|us| us * dice.noise()),
        });
        Ok((best, alone))
    });
    found.unwrap()
}

/// Whether what was found is what was planted.
fn is_right(places: &Places, plant: Plant, found: &[Culprit]) -> bool {
    let one = |ranks: Vec<usize>, to: Vec<usize>, way: Way| matches!(found, [only] if only.ranks == ranks && only.to == to && only.way == way);
    match plant {
        Plant::Nothing | Plant::Sockets(_) => found.is_empty(),
        Plant::Link(node) => one(places.on(node), Vec::new(), Way::Both),
        Plant::Sender(node) => one(places.on(node), Vec::new(), Way::Sends),
        Plant::Receiver(node) => one(places.on(node), Vec::new(), Way::Receives),
        Plant::Path(a, b) if a < b => one(places.on(a), places.on(b), Way::Sends),
        Plant::Path(a, b) => one(places.on(b), places.on(a), Way::Receives),
        Plant::Gpu(rank) => {
            let ranks = places.on_gpu_of(rank);
            matches!(found, [only] if only.ranks == ranks && only.gpus.len() == 1)
        }
        Plant::Processor(rank) => {
            matches!(found, [only] if only.ranks == [rank] && only.computes.is_some())
        }
    }
}

/// Plays many cases; counts those that name the right one, and those that name another.
fn play(places: &Places, plant: impl Fn(&mut Dice, &Places) -> Plant) -> (u64, Vec<String>) {
    let (mut right, mut wrong) = (0, Vec::new());
    for seed in 0..CASES {
        let mut dice = Dice::new(seed ^ 0x5bd1_e995);
        let plant = plant(&mut dice, places);
        let by = 1.7 + dice.part() * 2.0;
        let found = search(places, plant, by, seed);
        if is_right(places, plant, &found) {
            right += 1;
        } else if !found.is_empty() {
            let named: Vec<String> = found.iter().map(Culprit::sentence).collect();
            wrong.push(format!("seed {seed}: {plant:?} by {by:.2}, named {named:?}"));
        }
    }
    (right, wrong)
}

fn check(hosts: &[usize], plant: impl Fn(&mut Dice, &Places) -> Plant) {
    check_places(hosts, &cluster(hosts, 4), plant);
}

fn check_places(hosts: &[usize], places: &Places, plant: impl Fn(&mut Dice, &Places) -> Plant) {
    let (right, wrong) = play(places, plant);
    assert!(
        wrong.is_empty(),
        "{hosts:?}: {} wrong: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(4)]
    );
    assert!(right * 100 >= CASES * 95, "{hosts:?}: only {right} of {CASES}");
}

#[test]
fn healthy_noise_accuses_nobody() {
    for hosts in [&[1; 8][..], &[1; 3], &[1; 5], &[8], &[4, 4], &[2; 8], &[3]] {
        check(hosts, |_, _| Plant::Nothing);
    }
}

#[test]
fn slow_links_are_named_with_their_direction() {
    for hosts in [&[1; 8][..], &[1; 4], &[1; 16], &[2; 4], &[4; 4]] {
        check(hosts, |dice, places| Plant::Link(dice.below(places.nodes())));
        check(hosts, |dice, places| Plant::Sender(dice.below(places.nodes())));
        check(hosts, |dice, places| Plant::Receiver(dice.below(places.nodes())));
    }
}

#[test]
fn a_slow_path_is_no_slow_host() {
    for hosts in [&[1; 8][..], &[1; 4], &[2; 4], &[1; 16]] {
        check(hosts, |dice, places| {
            let a = dice.below(places.nodes());
            let step = 1 + dice.below(places.nodes() - 1);
            Plant::Path(a, (a + step) % places.nodes())
        });
    }
}

#[test]
fn a_slow_rank_is_named_alone_on_its_host() {
    for hosts in [&[1; 8][..], &[8], &[4; 4], &[1; 4], &[4]] {
        check(hosts, |dice, places| Plant::Processor(dice.below(places.ranks())));
    }
}

/// One rank a GPU, or two; what stays on a GPU is three times as quick, and nobody is slow for being alone on one.
#[test]
fn a_slow_gpu_is_named_with_all_its_ranks() {
    for (hosts, gpus) in [(&[8][..], 8), (&[8], 4), (&[4], 4), (&[4; 4], 2), (&[5], 3)] {
        let places = with_gpus(cluster(hosts, 64), gpus);
        check_places(hosts, &places, |dice, places| Plant::Gpu(dice.below(places.ranks())));
        check_places(hosts, &places, |_, _| Plant::Nothing);
    }
}

#[test]
fn between_two_hosts_one_way_has_the_other_to_be_compared_with() {
    check(&[2, 2], |dice, _| if dice.part() < 0.5 { Plant::Path(0, 1) } else { Plant::Path(1, 0) });
}

#[test]
fn ranks_that_are_farther_away_by_design_are_not_blamed() {
    for split in 2..=6 {
        check(&[8], |_, _| Plant::Sockets(split));
    }
}

/// Where ranks sit on a GPU decides how quick they are with each other there: nobody mends that.
#[test]
fn ranks_of_one_gpu_have_no_slow_path() {
    let paths = |gpus: usize| {
        let places = with_gpus(cluster(&[6], 8), gpus);
        let mut all = times(&places, Plant::Nothing, 1.0, &mut Dice::new(7));
        for (a, b) in [(0, 3), (3, 0)] {
            let slow = all.messages.at(a, b).unwrap() * 4.0;
            all.messages.set(a, b, slow);
        }
        let suspects = suspects(&all, &places, BARS).into_iter().map(|one| one.subject);
        suspects.filter(|one| matches!(one, Subject::Path(..))).collect::<Vec<_>>()
    };
    assert!(paths(6).contains(&Subject::Path(0, 3)), "{:?}", paths(6));
    assert_eq!(paths(1), []);
}
