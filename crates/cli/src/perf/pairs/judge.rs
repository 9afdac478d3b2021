//! From the times of a tournament to those who may be slow.
//!
//! Alike is compared with alike: hosts by what goes between them, the ranks of one host by what they differ in across hosts, and
//! ranks inside of hosts. Whoever stands out is a *suspect*, no more: [`super::confirm`] has the last word.

use std::collections::BTreeMap;

use super::grid::{Grid, beyond};
use crate::perf::slow::Bars;
use crate::perf::slow::places::Places;
use crate::perf::slow::robust;

/// Suspects that are looked at again, at most: where all are slow, none is.
pub(crate) const SUSPECTS_MOST: usize = 16;

/// The times of all pairs of ranks, in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    /// The same both ways.
    pub(crate) round_trips: Grid,
    /// From row to column.
    pub(crate) messages: Grid,
    /// A piece of work on each rank's processor.
    pub(crate) works: Vec<Option<f64>>,
    /// A copy in the memory of each rank's GPU.
    pub(crate) copies: Vec<Option<f64>>,
}

/// Among whom somebody stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Among {
    /// Hosts, by what goes between them.
    Hosts,
    /// Ranks, by what goes to other hosts, beside their host's other ranks.
    Siblings,
    /// Ranks, by what stays on their host; where that has several GPUs, by what goes between those.
    Neighbours,
    /// Ranks, by what their processors do alone.
    Processors,
    /// Ranks, by what their GPUs do alone.
    Gpus,
}

/// Who stands out: numbers are of hosts among hosts, else of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    One(usize),
    Path(usize, usize),
}

/// Somebody who stands out, and by how many times.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Suspect {
    pub(crate) among: Among,
    pub(crate) subject: Subject,
    /// Of a path: from the first to the second.
    pub(crate) sends: Option<f64>,
    pub(crate) receives: Option<f64>,
    pub(crate) answers: Option<f64>,
    pub(crate) computes: Option<f64>,
    pub(crate) copies: Option<f64>,
}

impl Suspect {
    fn new(among: Among, subject: Subject) -> Self {
        Self {
            among,
            subject,
            sends: None,
            receives: None,
            answers: None,
            computes: None,
            copies: None,
        }
    }

    fn worst(&self) -> f64 {
        let all = [self.sends, self.receives, self.answers, self.computes, self.copies];
        all.into_iter().flatten().fold(0.0, f64::max)
    }
}

/// Who may be slow: hosts and ranks before paths, the slowest first.
pub(crate) fn suspects(times: &Times, places: &Places, bars: Bars) -> Vec<Suspect> {
    let mut found: Vec<Suspect> = Vec::new();
    for among in [Among::Hosts, Among::Siblings, Among::Neighbours] {
        let messages = part(among, &times.messages, places).outliers(bars.work);
        let round_trips = part(among, &times.round_trips, places).outliers(bars.round_trips);
        let mut say = |subject: Subject, set: fn(&mut Suspect, f64), by: f64| {
            let known = |one: &&mut Suspect| one.among == among && one.subject == subject;
            if let Some(one) = found.iter_mut().find(known) {
                set(one, by);
                return;
            }
            let mut one = Suspect::new(among, subject);
            set(&mut one, by);
            found.push(one);
        };
        for (row, by) in messages.rows {
            say(Subject::One(row), |one, by| one.sends = Some(by), by);
        }
        for (column, by) in messages.columns {
            say(Subject::One(column), |one, by| one.receives = Some(by), by);
        }
        for (row, by) in round_trips.rows {
            say(Subject::One(row), |one, by| one.answers = Some(by), by);
        }
        for ((row, column), by) in messages.cells {
            let path = Subject::Path(row.min(column), row.max(column));
            match row < column {
                true => say(path, |one, by| one.sends = Some(by), by),
                false => say(path, |one, by| one.receives = Some(by), by),
            }
        }
        for ((row, column), by) in round_trips.cells.iter().filter(|((a, b), _)| a < b) {
            say(Subject::Path(*row, *column), |one, by| one.answers = Some(by), *by);
        }
    }
    for (rank, by) in beyond(&times.works, bars.work) {
        let one = Suspect::new(Among::Processors, Subject::One(rank));
        found.push(Suspect { computes: Some(by), ..one });
    }
    for (rank, by) in beyond(&times.copies, bars.work) {
        let one = Suspect::new(Among::Gpus, Subject::One(rank));
        found.push(Suspect { copies: Some(by), ..one });
    }
    // What two ranks of one GPU send each other goes by no path that somebody could mend.
    found.retain(|one| match (one.among, one.subject) {
        (Among::Hosts, _) | (_, Subject::One(_)) => true,
        (_, Subject::Path(a, b)) => !places.shares_gpu(a, b),
    });
    let is_path = |one: &Suspect| matches!(one.subject, Subject::Path(..));
    found.sort_by(|a, b| is_path(a).cmp(&is_path(b)).then(b.worst().total_cmp(&a.worst())));
    found.truncate(SUSPECTS_MOST);
    found
}

/// What is to be compared among those.
fn part(among: Among, whole: &Grid, places: &Places) -> Grid {
    let hosts = host_times(whole, places);
    match among {
        Among::Hosts => hosts,
        Among::Siblings => {
            let mut grid = Grid::new(whole.side());
            let middle = robust::median(&hosts.values());
            if places.nodes() < places.ranks() {
                let across = whole.cells().filter(|((a, b), _)| places.node(*a) != places.node(*b));
                for ((a, b), time) in across {
                    if let Some(usual) = hosts.at(places.node(a), places.node(b)) {
                        grid.set(a, b, time / usual * middle);
                    }
                }
            }
            grid
        }
        Among::Processors | Among::Gpus => Grid::new(0),
        Among::Neighbours => {
            let mut grid = Grid::new(whole.side());
            let inside = whole.cells().filter(|((a, b), _)| places.node(*a) == places.node(*b));
            let inside = inside.filter(|((a, b), _)| !places.stays_on_gpu(*a, *b));
            inside.for_each(|((a, b), time)| grid.set(a, b, time));
            grid
        }
    }
}

/// Times between hosts: of all their pairs of ranks one of the quicker ones.
fn host_times(whole: &Grid, places: &Places) -> Grid {
    let mut between: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for ((a, b), time) in whole.cells() {
        between.entry((places.node(a), places.node(b))).or_default().push(time);
    }
    let mut grid = Grid::new(places.nodes());
    for ((from, to), times) in between.into_iter().filter(|((from, to), _)| from != to) {
        grid.set(from, to, robust::quantile(&times, 0.25));
    }
    grid
}

#[cfg(test)]
mod tests;
