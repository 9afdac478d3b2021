//! What `ringway perf pairs` and `ringway perf bisect` found: the map of pairs, the rounds, and who is slow.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::heat::{Scale, scaled};
use super::model::{Block, Cell, Section, Table};
use super::perf::micros;
use crate::doctor::finding::{Finding, Verdict};
use crate::perf::slow::culprit::Culprit;
use crate::perf::slow::{BISECT_FORMAT, PAIRS_FORMAT, robust};
use crate::size;

/// Culprits, rounds and groups of a round that are listed.
const LISTED: usize = 64;
/// Ranks whose pairs are drawn.
const RANKS_MOST: usize = 4096;

/// One search.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Searched {
    format: String,
    connection: String,
    #[serde(default)]
    gpu_path: Option<String>,
    bytes: u64,
    limit: f64,
    ranks: Vec<Rank>,
    culprits: Vec<Culprit>,
    #[serde(default)]
    suspects: u64,
    /// A number of pairs, the rounds themselves of bisect.
    rounds: Value,
    #[serde(default)]
    round_trip_us: Vec<Vec<Option<f64>>>,
    #[serde(default)]
    bandwidth_gbytes: Vec<Vec<Option<f64>>>,
    #[serde(skip)]
    file: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Rank {
    host: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Round {
    what: String,
    found: String,
    #[serde(default)]
    groups: Vec<Group>,
    #[serde(default)]
    work_us: Vec<f64>,
    #[serde(default)]
    copy_us: Vec<f64>,
}

#[derive(Clone, Debug, Deserialize)]
struct Group {
    ranks: Vec<u64>,
    small_us: f64,
    large_us: f64,
}

impl Searched {
    /// Whether a file says that it is one.
    pub(crate) fn is(value: &Value) -> bool {
        [PAIRS_FORMAT, BISECT_FORMAT].iter().any(|format| value["format"] == *format)
    }

    /// Reads the JSON of a search.
    pub(crate) fn parse(name: &str, value: Value) -> Result<Self, String> {
        let one: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if !(one.limit.is_finite() && one.limit > 1.0) {
            return Err(format!("its limit is {}, not more than 1", one.limit));
        }
        Ok(Self { file: name.to_owned(), ..one })
    }

    /// What it is, for the list of files.
    pub(crate) fn kind(&self) -> &'static str {
        if self.format == PAIRS_FORMAT { "a tournament of pairs" } else { "a bisection" }
    }

    fn rounds(&self) -> Vec<Round> {
        serde_json::from_value(self.rounds.clone()).unwrap_or_default()
    }
}

/// The section of all searches.
pub(super) fn section(all: &[Searched]) -> Section {
    let mut section = Section::new("slow", "The slow one");
    for one in all {
        let mut hosts: Vec<&str> = one.ranks.iter().map(|rank| rank.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        section.blocks.push(Block::Heading(format!("{}: {}", one.kind(), one.file)));
        section.blocks.push(Block::Text(format!(
            "{} ranks on {} {}, {}, messages of {}{}",
            one.ranks.len(),
            hosts.len(),
            if hosts.len() == 1 { "host" } else { "hosts" },
            one.connection,
            size::display(one.bytes),
            one.gpu_path
                .as_ref()
                .map_or_else(String::new, |path| format!(" in GPU memory: {path}"))
        )));
        section.findings.extend(findings(one));
        maps(&mut section, one);
        rounds(&mut section, one);
    }
    section
}

fn findings(one: &Searched) -> Vec<Finding> {
    if one.culprits.is_empty() {
        let over = (one.limit - 1.0) * 100.0;
        let cleared = match one.suspects {
            0 => String::new(),
            some => format!("; {some} stood out at first and did not when measured again"),
        };
        let text = format!("nothing stands out by {over:.0} % or more{cleared}");
        return vec![
            Finding::new("slow", "slow-nothing", Verdict::Pass, text).seen(one.file.clone()),
        ];
    }
    let finding = |culprit: &Culprit| {
        let id = if culprit.to.is_empty() { "slow-rank" } else { "slow-path" };
        Finding::new("slow", id, Verdict::Warn, culprit.sentence())
            .seen(one.file.clone())
            .fixed_by(culprit.advice())
    };
    one.culprits.iter().take(LISTED).map(finding).collect()
}

fn maps(section: &mut Section, one: &Searched) {
    // Rates become times, so that more is worse in both.
    let times: Vec<Vec<Option<f64>>> = one
        .bandwidth_gbytes
        .iter()
        .map(|row| row.iter().map(|rate| rate.map(|rate| one.bytes as f64 / rate / 1e3)).collect())
        .collect();
    let what = format!("messages of {}, from row to column", size::display(one.bytes));
    for (what, rows) in [(what.as_str(), &times), ("round trips", &one.round_trip_us)] {
        let values = excess(one, rows);
        let labels: Vec<u32> = (0..).take(one.ranks.len().min(RANKS_MOST)).collect();
        let title = format!("How much longer than usual: {what}");
        let scale = Scale { join: f64::max, full: one.limit - 1.0 };
        if let Some(picture) = scaled(&title, &labels, &values, longer, scale) {
            section.blocks.push(Block::Picture(picture));
        }
    }
}

fn longer(part: f64) -> String {
    format!("{:.2} times as long", 1.0 + part)
}

/// By which part each pair takes longer than is usual among its like: inside of hosts, or between them.
fn excess(one: &Searched, rows: &[Vec<Option<f64>>]) -> BTreeMap<(u32, u32), f64> {
    let host = |rank: usize| one.ranks.get(rank).map(|rank| rank.host.as_str());
    let mut cells = Vec::new();
    for (row, times) in (0..).zip(rows.iter().take(one.ranks.len().min(RANKS_MOST))) {
        for (column, time) in (0..).zip(times.iter().take(one.ranks.len())) {
            if let Some(time) = time.filter(|time| time.is_finite() && *time > 0.0) {
                let is_inside = host(row as usize) == host(column as usize);
                cells.push(((row, column), is_inside, time));
            }
        }
    }
    let usual = [false, true].map(|inside| {
        let like = cells.iter().filter(|(_, is_inside, _)| *is_inside == inside);
        robust::median(&like.map(|(_, _, time)| *time).collect::<Vec<_>>())
    });
    let part = |(at, is_inside, time): ((u32, u32), bool, f64)| {
        let usual = usual[usize::from(is_inside)];
        // What is as quick as usual is drawn too, as cold as can be.
        (at, (time / usual - 1.0).clamp(1e-6, 1e6))
    };
    cells.into_iter().map(part).collect()
}

fn rounds(section: &mut Section, one: &Searched) {
    let rounds = one.rounds();
    if rounds.is_empty() {
        return;
    }
    let mut table = Table::new(&["#round", "ranks", "#8 B", "#large", "found"]);
    for (number, round) in (1..).zip(rounds.iter().take(LISTED)) {
        for alone in [&round.work_us, &round.copy_us].into_iter().filter(|us| !us.is_empty()) {
            let [least, most] = [0.0, 1.0].map(|part| robust::quantile(alone, part));
            table.rows.push(vec![
                Cell::number(number.to_string(), f64::from(number)),
                Cell::text("each alone"),
                Cell::default(),
                Cell::default(),
                Cell::text(format!(
                    "{}, {} to {}: {}",
                    round.what,
                    micros(least),
                    micros(most),
                    round.found
                )),
            ]);
        }
        for (at, group) in round.groups.iter().take(LISTED).enumerate() {
            let ranks: Vec<String> = group.ranks.iter().take(LISTED).map(u64::to_string).collect();
            let found =
                if at == 0 { format!("{}: {}", round.what, round.found) } else { String::new() };
            table.rows.push(vec![
                Cell::number(number.to_string(), f64::from(number)),
                Cell::text(ranks.join(" ")),
                Cell::number(micros(group.small_us), group.small_us),
                Cell::number(micros(group.large_us), group.large_us),
                Cell::text(found),
            ]);
        }
    }
    section.blocks.push(Block::Table(table));
}
