//! Group testing: which groups to measure next, and what follows from their times.
//!
//! A group is as slow as the slowest of it. Groups of the same size are compared with each other, never with a number from a book:
//! the slow half is split again, filled up with those that are known to be sound, until one is left. Where halves are alike, so
//! are their quarters and all *rings* (in which everybody has other neighbours each time), nothing stands out.
//!
//! Pure: measuring is a [`Lab`]'s.

mod alone;

pub(crate) use self::alone::Worker;

use crate::perf::slow::Bars;
use crate::perf::slow::culprit::{Culprit, Way};
use crate::perf::slow::places::Places;
use crate::perf::slow::robust::{self, Bar};

/// How often those that are to be named are measured again.
const LOOKS: usize = 3;

/// Ranks, in the order of their ring.
pub(crate) type Group = Vec<usize>;

/// What a call takes in a group, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) small: f64,
    pub(crate) large: f64,
}

/// By how many times a group is slower than another; nothing where it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Excess {
    pub(crate) small: Option<f64>,
    pub(crate) large: Option<f64>,
}

impl Excess {
    fn is_some(self) -> bool {
        self.small.is_some() || self.large.is_some()
    }
}

/// Who measures.
pub(crate) trait Lab {
    /// What a call takes in each of the groups, which are measured in turns. This is one round.
    fn measure(&mut self, what: &str, groups: &[Group]) -> anyhow::Result<Vec<Cost>>;
    /// What the same work takes each rank alone, in microseconds. This is one round.
    fn work(&mut self, what: &str, worker: Worker) -> anyhow::Result<Vec<f64>>;
    /// Whether large calls go round in the order of a group.
    fn has_rings(&self) -> bool;
    /// What follows from the last round.
    fn conclude(&mut self, text: &str) -> anyhow::Result<()>;
}

/// A search among units: hosts, GPUs where there are too few hosts, or ranks where there are too few GPUs.
pub(crate) struct Search<'a, L> {
    lab: &'a mut L,
    places: &'a Places,
    bars: Bars,
    units: Vec<Group>,
}

impl<'a, L: Lab> Search<'a, L> {
    pub(crate) fn new(lab: &'a mut L, places: &'a Places, bars: Bars) -> Self {
        let units = match places.nodes() {
            0..=2 => in_turns(places),
            nodes => (0..nodes).map(|node| places.on(node)).collect(),
        };
        Self { lab, places, bars, units }
    }

    /// Searches to the end: whom to name.
    pub(crate) fn run(&mut self) -> anyhow::Result<Vec<Culprit>> {
        for worker in [Worker::Processor, Worker::Gpu] {
            let slow = self.alone(worker)?;
            if !slow.is_empty() {
                return Ok(slow);
            }
        }
        let all: Vec<usize> = (0..self.units.len()).collect();
        let named = self.halves(&all)?;
        if named.is_empty() { self.paths(&all, &all) } else { Ok(named) }
    }

    fn halves(&mut self, all: &[usize]) -> anyhow::Result<Vec<Culprit>> {
        let half = all.len() / 2;
        let (first, second) = (&all[..half], &all[half..2 * half]);
        let odd = all.get(2 * half).copied();
        // Of three each half is one, beside the third.
        let beside = |part: &[usize]| match (part, odd) {
            ([one], Some(third)) => vec![*one, third],
            _ => part.to_vec(),
        };
        let groups = [beside(first), beside(second)];
        let costs = self.measure("both halves", &groups)?;
        for (slow, sound, by) in [
            (first, second, self.excess(costs[0], costs[1])),
            (second, first, self.excess(costs[1], costs[0])),
        ] {
            if by.is_some() {
                self.say(&format!("the slow one is among {}", self.names(slow)))?;
                let sound = sound.iter().copied().chain(odd).collect();
                return self.narrow(slow.to_vec(), sound);
            }
        }
        self.say("both take the same: neither has a slow one, or both have")?;
        if let Some(odd) = odd {
            // The odd one in the place of another.
            let with: Vec<usize> = match half {
                1 => vec![first[0], odd],
                _ => first[..half - 1].iter().copied().chain([odd]).collect(),
            };
            let without: Vec<usize> =
                all.iter().copied().filter(|one| *one != odd).take(with.len()).collect();
            let costs = self.measure("with the odd one, and without", &[with, without])?;
            if self.excess(costs[0], costs[1]).is_some() {
                self.say(&format!("{} may be the slow one", self.names(&[odd])))?;
                let sound = all.iter().copied().filter(|one| *one != odd).collect();
                return self.narrow(vec![odd], sound);
            }
            self.say("both take the same")?;
        }
        self.quarters(all)
    }

    /// Where both halves have a slow one, some of their quarters have none.
    fn quarters(&mut self, all: &[usize]) -> anyhow::Result<Vec<Culprit>> {
        let size = all.len() / 4;
        if size < 2 {
            return Ok(Vec::new());
        }
        let parts: Vec<Vec<usize>> =
            all.chunks_exact(size).take(4).map(<[usize]>::to_vec).collect();
        let costs = self.measure("quarters", &parts)?;
        let least = Cost {
            small: costs.iter().map(|cost| cost.small).fold(f64::INFINITY, f64::min),
            large: costs.iter().map(|cost| cost.large).fold(f64::INFINITY, f64::min),
        };
        let (slow, sound): (Vec<_>, Vec<_>) =
            parts.into_iter().zip(costs).partition(|(_, cost)| self.excess(*cost, least).is_some());
        if slow.is_empty() || sound.is_empty() {
            self.say("all take the same: no host or rank is slow by itself")?;
            return Ok(Vec::new());
        }
        let slow: Vec<Vec<usize>> = slow.into_iter().map(|(part, _)| part).collect();
        let sound: Vec<usize> = sound.into_iter().flat_map(|(part, _)| part).collect();
        self.say(&format!("{} of 4 have a slow one", slow.len()))?;
        let mut named = Vec::new();
        for part in slow {
            named.extend(self.narrow(part, sound.clone())?);
        }
        Ok(named)
    }

    /// Splits those among whom a slow one is, until it is alone.
    fn narrow(
        &mut self,
        mut slow: Vec<usize>,
        mut sound: Vec<usize>,
    ) -> anyhow::Result<Vec<Culprit>> {
        while slow.len() > 1 {
            let (first, second) = slow.split_at(slow.len().div_ceil(2));
            let size = first.len().max(2);
            let filled = |part: &[usize]| -> Vec<usize> {
                part.iter().chain(&sound).copied().take(size).collect()
            };
            let mut groups = vec![filled(first), filled(second)];
            let has_reference = sound.len() >= size;
            if has_reference {
                groups.push(sound[sound.len() - size..].to_vec());
            }
            let costs = self.measure("halves of what is left, and sound ones", &groups)?;
            let by = match has_reference {
                true => [self.excess(costs[0], costs[2]), self.excess(costs[1], costs[2])],
                false => [self.excess(costs[0], costs[1]), self.excess(costs[1], costs[0])],
            };
            let (first, second) = (first.to_vec(), second.to_vec());
            match by.map(Excess::is_some) {
                [true, false] => {
                    self.say(&format!("the slow one is among {}", self.names(&first)))?;
                    (slow, sound) = (first, [sound, second].concat());
                }
                [false, true] => {
                    self.say(&format!("the slow one is among {}", self.names(&second)))?;
                    (slow, sound) = (second, [sound, first].concat());
                }
                [true, true] => {
                    self.say("both have a slow one")?;
                    let mut named = self.narrow(first, sound.clone())?;
                    named.extend(self.narrow(second, sound)?);
                    return Ok(named);
                }
                [false, false] => {
                    self.say("neither has: it is between them, if it is anywhere")?;
                    return self.paths(&slow, &sound);
                }
            }
        }
        let Some(one) = slow.first().copied() else { return Ok(Vec::new()) };
        self.confirm(one, &sound)
    }

    /// One beside sound ones, and these alone.
    fn confirm(&mut self, one: usize, sound: &[usize]) -> anyhow::Result<Vec<Culprit>> {
        if sound.len() < 2 {
            self.say("nobody is left to compare it with")?;
            return Ok(Vec::new());
        }
        let (mut own, mut others, mut by) = (Vec::new(), Vec::new(), Excess::default());
        for look in 0..LOOKS {
            // Others in each look.
            let [a, b, c] = [0, 1, 2].map(|at| sound[(2 * look + at) % sound.len()]);
            let groups =
                [vec![one, a], vec![a, b], vec![one, b], vec![b, if c == b { a } else { c }]];
            let costs = self.measure("again, alone with sound ones, and these alone", &groups)?;
            own.extend([costs[0], costs[2]]);
            others.extend([costs[1], costs[3]]);
            by = self.excess(least(&own), middle(&others));
            if !by.is_some() {
                self.say(&format!("{} is not slow by itself", self.names(&[one])))?;
                return Ok(Vec::new());
            }
            self.say(&format!("{} is slow", self.names(&[one])))?;
        }
        let ranks = self.inside(one, sound)?;
        let named = Culprit::new(ranks, Vec::new(), Way::Both);
        Ok(vec![Culprit { slower: by.large, answers: by.small, ..named }.named(self.places)])
    }

    /// Which GPU or rank of a slow host is slow: all of it, unless some are not beside as many of another host.
    fn inside(&mut self, unit: usize, sound: &[usize]) -> anyhow::Result<Group> {
        let mut named = self.units[unit].clone();
        let mut parts = by_gpu(&named, self.places);
        let pool: Group = sound.iter().flat_map(|one| self.units[*one].clone()).collect();
        loop {
            // Half of a host is nobody in particular.
            if let [one] = &parts[..] {
                named.clone_from(one);
                parts = one.iter().map(|rank| vec![*rank]).collect();
            }
            let (first, second) = parts.split_at(parts.len().div_ceil(2));
            let (some, others) = (first.concat(), second.concat());
            // All of one size, so that only who is in them tells them apart.
            let size = 2 * some.len().max(others.len());
            if others.is_empty() || pool.len() < size {
                break;
            }
            let group = |part: &[usize]| [part, &pool[..size - part.len()]].concat();
            let like = &pool[pool.len() - others.len()..];
            let groups = [group(&some), group(&others), group(like)];
            let costs = self.lab.measure("ranks of the slow one, and sound ones", &groups)?;
            let by = [self.excess(costs[0], costs[2]), self.excess(costs[1], costs[2])];
            parts = match by.map(Excess::is_some) {
                [true, false] => first.to_vec(),
                [false, true] => second.to_vec(),
                _ => break,
            };
            self.say(&format!("the slow one is among {}", self.places.name(&parts.concat())))?;
        }
        Ok(named)
    }

    /// Rings of all, in which everybody has other neighbours each time; the slow one has the slow path.
    fn paths(&mut self, among: &[usize], all: &[usize]) -> anyhow::Result<Vec<Culprit>> {
        let suspected: Vec<Path> = match among {
            [] | [_] => Vec::new(),
            [a, b] => vec![Path { from: *a, to: *b, back: true }],
            // Where everybody talks to everybody in any order, no order is slow.
            _ if !self.lab.has_rings() => Vec::new(),
            _ => self.slow_rings(among)?,
        };
        if suspected.is_empty() {
            return Ok(Vec::new());
        }
        let slow = if suspected.len() > 1 { self.slow_paths(&suspected)? } else { suspected };
        let mut named = Vec::new();
        for path in slow {
            let other = |one: &&usize| **one != path.from && **one != path.to;
            let sound: Vec<usize> = all.iter().chain(among).filter(other).copied().collect();
            named.extend(self.confirm_path(path, &sound)?);
        }
        Ok(named)
    }

    fn slow_rings(&mut self, among: &[usize]) -> anyhow::Result<Vec<Path>> {
        let orders = rings(among.len());
        let of = |order: &Vec<usize>| order.iter().map(|at| among[*at]).collect::<Vec<_>>();
        let groups: Vec<Vec<usize>> = orders.iter().map(of).collect();
        let costs = self.measure("rings, each with other neighbours", &groups)?;
        let usual = middle(&costs);
        // Of what goes round in a ring little is on one path: half as much is enough to look closer.
        let bar = self.bars.work;
        let lax = Bar { times: 1.0 + (bar.times - 1.0) / 2.0, ..bar };
        let is_slow: Vec<bool> = costs
            .iter()
            .map(|cost| {
                self.excess(*cost, usual).is_some()
                    || lax.exceeded(cost.large, usual.large).is_some()
            })
            .collect();
        let sound = || is_slow.iter().zip(&groups).filter(|(slow, _)| !**slow);
        let is_sound =
            |edge: (usize, usize)| sound().any(|(_, ring)| edges(ring).any(|other| other == edge));
        let mut paths: Vec<Path> = Vec::new();
        for (_, ring) in is_slow.iter().zip(&groups).filter(|(slow, _)| **slow) {
            for (from, to) in edges(ring).filter(|edge| !is_sound(*edge)) {
                let is = |path: &Path, ends: (usize, usize)| (path.from, path.to) == ends;
                if let Some(path) = paths.iter_mut().find(|path| is(path, (to, from))) {
                    path.back = true;
                } else if !paths.iter().any(|path| is(path, (from, to))) {
                    paths.push(Path { from, to, back: false });
                }
            }
        }
        self.say(&match is_slow.iter().filter(|slow| **slow).count() {
            0 => "all take the same: nothing stands out".to_owned(),
            count => {
                format!("{count} of {} are slow: {} paths are left", groups.len(), paths.len())
            }
        })?;
        Ok(paths)
    }

    /// Of paths those that are slower than the others.
    fn slow_paths(&mut self, paths: &[Path]) -> anyhow::Result<Vec<Path>> {
        let groups: Vec<Vec<usize>> = paths.iter().map(|path| vec![path.from, path.to]).collect();
        let costs = self.measure("the paths of slow rings, one by one", &groups)?;
        let usual = middle(&costs);
        let slow: Vec<Path> = paths
            .iter()
            .zip(&costs)
            .filter(|(_, cost)| self.excess(**cost, usual).is_some())
            .map(|(path, _)| *path)
            .collect();
        self.say(&format!("{} of {} are slow", slow.len(), paths.len()))?;
        Ok(slow)
    }

    fn confirm_path(&mut self, path: Path, sound: &[usize]) -> anyhow::Result<Vec<Culprit>> {
        if sound.is_empty() {
            self.say("nobody is left to compare it with")?;
            return Ok(Vec::new());
        }
        let Path { from, to, back } = path;
        let (mut own, mut others, mut by) = (Vec::new(), Vec::new(), Excess::default());
        for look in 0..LOOKS {
            let [a, b] = [0, 1].map(|at| sound[(2 * look + at) % sound.len()]);
            let groups = [vec![from, to], vec![from, a], vec![to, a], vec![from, b], vec![to, b]];
            let costs = self.measure("again, and both ends with others", &groups)?;
            own.push(costs[0]);
            others.extend(&costs[1..]);
            by = self.excess(least(&own), middle(&others));
            if !by.is_some() {
                self.say("it is not slow when measured again")?;
                return Ok(Vec::new());
            }
            self.say("it is slow again")?;
        }
        let way = if back { Way::Both } else { Way::Sends };
        let ranks = |unit: usize| self.units[unit].clone();
        let named = Culprit::new(ranks(from), ranks(to), way);
        let named = Culprit { slower: by.large, answers: by.small, ..named }.named(self.places);
        self.say(&format!("{} is slow", named.name))?;
        Ok(vec![named])
    }

    fn measure(&mut self, what: &str, groups: &[Vec<usize>]) -> anyhow::Result<Vec<Cost>> {
        let ranks = |group: &Vec<usize>| -> Group {
            group.iter().flat_map(|unit| self.units[*unit].clone()).collect()
        };
        let groups: Vec<Group> = groups.iter().map(ranks).collect();
        self.lab.measure(what, &groups)
    }

    fn say(&mut self, text: &str) -> anyhow::Result<()> {
        self.lab.conclude(text)
    }

    fn names(&self, units: &[usize]) -> String {
        let names: Vec<String> =
            units.iter().map(|unit| self.places.name(&self.units[*unit])).collect();
        match &names[..] {
            [first, _, _, .., last] => format!("the group of {first} to {last}"),
            names => names.join(" and "),
        }
    }

    fn excess(&self, one: Cost, other: Cost) -> Excess {
        Excess {
            small: self.bars.round_trips.exceeded(one.small, other.small),
            large: self.bars.work.exceeded(one.large, other.large),
        }
    }
}

/// A path that may be slow; `back` where that is so both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path {
    from: usize,
    to: usize,
    back: bool,
}

/// Some ranks, those of one GPU together; on host memory each alone.
fn by_gpu(ranks: &[usize], places: &Places) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for rank in ranks {
        let sharing = places.on_gpu_of(*rank);
        match groups.iter_mut().find(|group| sharing.contains(&group[0])) {
            Some(group) => group.push(*rank),
            None => groups.push(vec![*rank]),
        }
    }
    groups
}

/// GPUs as units, or ranks; those of two hosts in turns, so that halves have some of both.
fn in_turns(places: &Places) -> Vec<Group> {
    let hosts = || (0..places.nodes()).map(|node| places.on(node));
    let mut units: Vec<Vec<Group>> = hosts().map(|host| by_gpu(&host, places)).collect();
    if units.iter().map(Vec::len).sum::<usize>() < 3 {
        units = hosts().map(|host| host.into_iter().map(|rank| vec![rank]).collect()).collect();
    }
    let most = units.iter().map(Vec::len).max().unwrap_or(0);
    let turn = |at: usize| units.iter().filter_map(move |host| host.get(at).cloned());
    (0..most).flat_map(turn).collect()
}

/// Orders of rings in which each follows each other one at least once.
///
/// A zigzag (0, 1, −1, 2, −2, …) visits all, and its turns by one step have no path in common where the number is even; an odd
/// number takes twice as many.
pub(crate) fn rings(count: usize) -> Vec<Vec<usize>> {
    let turns = if count.is_multiple_of(2) { count / 2 } else { count };
    let zigzag = |turn: usize| -> Vec<usize> {
        let step = |at: usize| match at % 2 {
            0 => count - at / 2,
            _ => at.div_ceil(2),
        };
        (0..count).map(|at| (turn + step(at)) % count).collect()
    };
    let forward = (0..turns).map(zigzag);
    forward.flat_map(|ring| [ring.clone(), ring.into_iter().rev().collect()]).collect()
}

/// Who sends to whom in a ring.
fn edges(ring: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    (0..ring.len()).map(|at| (ring[at], ring[(at + 1) % ring.len()]))
}

fn least(costs: &[Cost]) -> Cost {
    let of = |value: fn(&Cost) -> f64| costs.iter().map(value).fold(f64::INFINITY, f64::min);
    Cost { small: of(|cost| cost.small), large: of(|cost| cost.large) }
}

fn middle(costs: &[Cost]) -> Cost {
    let of = |value: fn(&Cost) -> f64| robust::median(&costs.iter().map(value).collect::<Vec<_>>());
    Cost { small: of(|cost| cost.small), large: of(|cost| cost.large) }
}

#[cfg(test)]
mod tests;
