//! The tournament for people: two maps of pairs, and who is slow.

use std::fmt::Write as _;

use super::Outcome;
use super::grid::Grid;
use crate::perf::number;
use crate::perf::slow::places::Places;
use crate::perf::slow::robust;
use crate::size;

/// Characters of a cell: a space, a percentage and a mark.
const CELL: usize = 5;
/// Characters of a row's name, at most.
const NAME: usize = 16;

/// What the text needs to know besides.
#[derive(Debug)]
pub(crate) struct Page {
    /// The first lines.
    pub(crate) head: Vec<String>,
    pub(crate) bytes: u64,
    /// So many times as long is slow.
    pub(crate) limit: f64,
    pub(crate) columns: usize,
    pub(crate) has_colour: bool,
}

impl Page {
    /// All of it.
    pub(crate) fn text(&self, outcome: &Outcome, places: &Places) -> String {
        let ranks = places.ranks();
        let mut text = String::new();
        for line in &self.head {
            let _ = writeln!(text, "{line}");
        }
        let _ = writeln!(
            text,
            "# {} pairs in {} rounds, at most {} at once; round trips of 8 B, messages of {}",
            ranks * (ranks - 1) / 2,
            outcome.rounds,
            outcome.at_once,
            size::display(self.bytes)
        );
        let times = &outcome.times;
        let rate =
            |us| format!("{} GB/s", number::fit(gigabytes_per_second(self.bytes, us), 6).trim());
        let trip = |us| format!("{} us", number::fit(us, 7).trim());
        for (title, grid, shown) in [
            ("bandwidth from row to column", &times.messages, &rate as &dyn Fn(f64) -> String),
            ("round trips", &times.round_trips, &trip),
        ] {
            let _ = writeln!(text, "#\n# {title}: {}", spread(grid, places, shown));
            text.push_str(&self.map(grid, places));
        }
        for (what, alone) in [
            ("the same work on each processor", &times.works),
            ("the same copies in the memory of each GPU", &times.copies),
        ] {
            let alone: Vec<f64> = alone.iter().flatten().copied().collect();
            if !alone.is_empty() {
                let [least, middle, most] =
                    [0.0, 0.5, 1.0].map(|part| trip(robust::quantile(&alone, part)));
                let _ = writeln!(text, "#\n# {what}: usually {middle}, {least} to {most}");
            }
        }
        text.push_str("#\n");
        text.push_str(&self.verdict(outcome));
        text
    }

    fn verdict(&self, outcome: &Outcome) -> String {
        if outcome.culprits.is_empty() {
            let cleared = match outcome.suspects {
                0 => String::new(),
                1 => "; one that stood out at first did not when it was measured alone".to_owned(),
                more => format!("; {more} that stood out at first did not when measured alone"),
            };
            let over = (self.limit - 1.0) * 100.0;
            return format!("nothing stands out by {over:.0} % or more{cleared}\n");
        }
        let mut text = String::new();
        for culprit in &outcome.culprits {
            let _ = writeln!(text, "slow: {}", culprit.sentence());
            let _ = writeln!(text, "      {}", culprit.advice());
        }
        text
    }

    /// Speeds in percent of what is usual, the slower the warmer.
    fn map(&self, grid: &Grid, places: &Places) -> String {
        let speeds = speeds(grid, places);
        let (names, speeds) = self.folded(&speeds, places);
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(NAME);
        let is_folded = speeds.side() < places.ranks();
        let mut text = String::new();
        if is_folded {
            let _ = writeln!(text, "# several ranks share a cell, which shows the slowest of them");
        }
        let _ = write!(text, "# {:width$}", "");
        for column in 0..speeds.side() {
            let label = if is_folded { column } else { places.0[column].rank as usize };
            let _ = write!(text, "{label:>width$} ", width = CELL - 1);
        }
        text.push('\n');
        for (row, name) in names.iter().enumerate() {
            let name: String = name.chars().take(NAME).collect();
            let _ = write!(text, "# {name:width$}");
            for column in 0..speeds.side() {
                text.push_str(&self.cell(speeds.at(row, column)));
            }
            text.push('\n');
        }
        text
    }

    fn cell(&self, speed: Option<f64>) -> String {
        let Some(speed) = speed else { return format!("{:>CELL$}", "· ") };
        let percent = (speed * 100.0).clamp(0.0, 999.0);
        let is_slow = speed * self.limit <= 1.0;
        let mark = if is_slow { '!' } else { ' ' };
        let text = format!(" {percent:>3.0}{mark}");
        let colour = match percent {
            _ if !self.has_colour => return text,
            _ if is_slow => "\x1b[1;31m",
            percent if percent < 90.0 => "\x1b[33m",
            _ => "\x1b[32m",
        };
        format!("{colour}{text}\x1b[0m")
    }

    /// Names and speeds of as many as fit on a line: ranks, else hosts, else neighbours together.
    fn folded(&self, speeds: &Grid, places: &Places) -> (Vec<String>, Grid) {
        let ranks = places.ranks();
        let fits = (self.columns.saturating_sub(2 + NAME) / CELL).max(2);
        if ranks <= fits {
            let name = |rank: usize| match places.nodes() {
                1 => rank.to_string(),
                _ => format!("{rank} {}", places.0[rank].host),
            };
            return ((0..ranks).map(name).collect(), speeds.clone());
        }
        let by_host = places.nodes() > 1 && places.nodes() <= fits;
        let each = ranks.div_ceil(fits);
        let place = |rank: usize| if by_host { places.node(rank) } else { rank / each };
        let side = (0..ranks).map(place).max().map_or(0, |most| most + 1);
        let name = |at: usize| match by_host {
            true => places
                .on(at)
                .first()
                .map_or_else(String::new, |rank| format!("{at} {}", places.0[*rank].host)),
            false => format!("{at}: {}-{}", at * each, (at * each + each).min(ranks) - 1),
        };
        let mut folded = Fold::new(side);
        for ((row, column), speed) in speeds.cells() {
            folded.add(place(row), place(column), speed);
        }
        ((0..side).map(name).collect(), folded.0)
    }
}

/// A grid whose cells hold the least of what they are given; those on the diagonal too.
struct Fold(Grid);

impl Fold {
    fn new(side: usize) -> Self {
        Self(Grid::new(side))
    }

    fn add(&mut self, row: usize, column: usize, speed: f64) {
        let least = self.0.at(row, column).map_or(speed, |known| known.min(speed));
        self.0.set(row, column, least);
    }
}

/// Decimal gigabytes in a second.
pub(crate) fn gigabytes_per_second(bytes: u64, us: f64) -> f64 {
    bytes as f64 / us / 1e3
}

/// Each pair's speed as a part of what is usual among its like: inside of hosts, or between them.
fn speeds(grid: &Grid, places: &Places) -> Grid {
    let is_inside = |(a, b): (usize, usize)| places.node(a) == places.node(b);
    let usual = |inside: bool| {
        let like = grid.cells().filter(|(at, _)| is_inside(*at) == inside);
        robust::median(&like.map(|(_, us)| us).collect::<Vec<_>>())
    };
    let usual = [usual(false), usual(true)];
    let mut speeds = Grid::new(grid.side());
    for ((row, column), us) in grid.cells() {
        speeds.set(row, column, usual[usize::from(is_inside((row, column)))] / us);
    }
    speeds
}

/// What is usual, and how far the pairs are apart.
fn spread(grid: &Grid, places: &Places, shown: &dyn Fn(f64) -> String) -> String {
    let of = |inside: bool| {
        let like =
            grid.cells().filter(|((a, b), _)| (places.node(*a) == places.node(*b)) == inside);
        let values: Vec<f64> = like.map(|(_, us)| us).collect();
        let [least, middle, most] = [0.0, 0.5, 1.0].map(|part| robust::quantile(&values, part));
        (!values.is_empty())
            .then(|| format!("usually {}, {} to {}", shown(middle), shown(least), shown(most)))
    };
    let text = match (of(true), of(false)) {
        (Some(inside), Some(between)) => {
            format!("inside of hosts {inside}; between them {between}")
        }
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "nothing was measured".to_owned(),
    };
    format!("{text}; below in percent")
}

#[cfg(test)]
mod tests;
