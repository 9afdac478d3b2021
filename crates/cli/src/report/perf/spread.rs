//! Single iterations (`-I 1`) and what the links permit (`--expect`), as `ringway perf` and nccl-tests write them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::results::{Row, Run};
use super::{Block, Cell, Curve, Finding, Kind, Table, Verdict, chart, micros, micros_tick, short};
use crate::perf::late::{Late, Tally};
use crate::size;
use ringway_plan::types::Collective;

/// Rows of the table.
const ROWS: usize = 200;
/// Iterations of all rows that are looked at for ranks that come late.
const ITERATIONS: usize = 100_000;

/// What a curve shows of a row.
type Figure<T> = fn(&T) -> f64;

/// The single iterations of a row, as a file has them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Iterations {
    #[serde(default)]
    skipped_iterations: usize,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    /// Of each rank (nccl-tests: process).
    #[serde(default)]
    per_process_max_times_us: Vec<Vec<f64>>,
}

/// A row beside what the links permit, as a file has it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Limit {
    pub(super) ceiling_gbs: f64,
    pub(super) floor_gbs: f64,
    #[serde(default)]
    reached_gbs: f64,
    #[serde(default)]
    percent: f64,
    #[serde(default)]
    link: String,
    #[serde(default)]
    okay: Option<bool>,
}

impl Iterations {
    /// Calls tallied, and those of one rank that was slowest most often.
    fn tally(&self) -> Tally {
        let ranks = &self.per_process_max_times_us;
        let mut tally = Tally::new(ranks.len());
        let count = ranks.iter().map(Vec::len).min().unwrap_or(0);
        for at in (self.skipped_iterations..count).take(ITERATIONS / ranks.len().max(1)) {
            let call: Vec<f64> = ranks.iter().map(|rank| rank[at] * 1e-6).collect();
            if call.iter().all(|seconds| seconds.is_finite()) {
                tally.add(&call);
            }
        }
        tally
    }
}

/// The picture and table of single iterations, where a run has them.
pub(super) fn blocks(run: &Run) -> Vec<Block> {
    let rows = || run.rows.iter().filter_map(|row| Some((row, row.iterations.as_ref()?)));
    if rows().next().is_none() {
        return Vec::new();
    }
    let kinds: [(&str, Kind, Figure<Iterations>); 3] = [
        ("median of iterations", Kind::Measured, |one| one.p50_us),
        ("99 of 100 are below", Kind::InPlace, |one| one.p99_us),
        ("slowest iteration", Kind::Last, |one| one.max_us),
    ];
    let curves: Vec<Curve> = kinds
        .into_iter()
        .enumerate()
        .map(|(colour, (label, kind, value))| Curve {
            label: label.to_owned(),
            kind,
            colour,
            points: rows().map(|(row, one)| (row.bytes, value(one), false)).collect(),
        })
        .collect();
    let mut blocks = Vec::new();
    let drawn = chart("spread of iterations", &curves, micros_tick);
    // As wide as those beside each other above it.
    let beside = |chart: String| Block::Picture(format!("<div class=\"charts\">\n{chart}\n</div>"));
    blocks.extend(drawn.map(beside));
    let mut table = Table::new(&[
        "#size",
        "type",
        "#median",
        "#99 of 100",
        "#slowest",
        "#slowest by median",
        "slowest rank",
    ]);
    for (row, one) in rows().take(ROWS) {
        let ratio = if one.p50_us > 0.0 { one.max_us / one.p50_us } else { 0.0 };
        let tally = one.tally();
        let slowest = tally.longest().filter(|_| tally.calls > 0);
        #[expect(clippy::cast_precision_loss, reason = "for sorting")]
        let bytes = row.bytes as f64;
        table.rows.push(vec![
            Cell::number(size::display(row.bytes), bytes),
            Cell::text(row.what.clone()),
            Cell::number(micros(one.p50_us), one.p50_us),
            Cell::number(micros(one.p99_us), one.p99_us),
            Cell::number(micros(one.max_us), one.max_us),
            Cell::number(format!("{}x", short(ratio)), ratio),
            Cell::text(slowest.map_or_else(String::new, |(rank, times)| {
                format!("{rank} ({times} of {})", tally.calls)
            })),
        ]);
    }
    blocks.push(Block::Table(table));
    blocks
}

/// A rank that the others wait for at most sizes.
pub(super) fn late(run: &Run) -> Option<Finding> {
    let collective = run.collective.parse::<Collective>().ok()?;
    if !collective.waits_for_all() {
        return None;
    }
    let rows: Vec<Option<Late>> =
        run.rows.iter().filter_map(|row| Some(row.iterations.as_ref()?.tally().late())).collect();
    let mut ranks: BTreeMap<usize, Vec<Late>> = BTreeMap::new();
    for late in rows.iter().flatten() {
        ranks.entry(late.rank).or_default().push(*late);
    }
    let (rank, found) = ranks.into_iter().max_by_key(|(_, found)| found.len())?;
    if found.len() * 2 < rows.len() {
        return None;
    }
    let worst = found.iter().map(|late| late.percent).fold(0.0, f64::max);
    let text = format!(
        "{}: rank {rank} comes last over and over at {} of {} sizes",
        run.title(),
        found.len(),
        rows.len()
    );
    Some(
        Finding::new("performance", "perf-late", Verdict::Warn, text)
            .seen(run.name.clone())
            .costs(format!("up to {worst:.0} % of the time"))
            .fixed_by("ringway doctor on its host; ringway perf soak says more"),
    )
}

/// How a run stands beside what its links permit.
pub(super) fn expected(run: &Run) -> Option<Finding> {
    let limits = || run.rows.iter().filter_map(|row| Some((row, row.limit.as_ref()?)));
    let judged = || limits().filter(|(_, limit)| limit.okay.is_some());
    let count = judged().count();
    let finding = |verdict, text: String| {
        Finding::new("performance", "perf-expected", verdict, format!("{}: {text}", run.title()))
            .seen(run.name.clone())
    };
    limits().next()?;
    let below = || judged().filter(|(_, limit)| limit.okay == Some(false));
    let worst = below().min_by(|a, b| a.1.percent.total_cmp(&b.1.percent));
    Some(match worst {
        _ if count == 0 => finding(
            Verdict::Unknown,
            "no size is large enough for what the links permit".to_owned(),
        ),
        None => {
            let least = judged().min_by(|a, b| a.1.percent.total_cmp(&b.1.percent))?.1;
            let (percent, link) = (least.percent, &least.link);
            finding(Verdict::Pass, format!("{percent:.0} % or more of what {link} permits"))
        }
        Some((row, limit)) => finding(
            Verdict::Fail,
            format!("below what was expected at {} of {count} sizes", below().count()),
        )
        .costs(format!(
            "{} GB/s at {}, {:.0} % of the {} that {} permits",
            short(limit.reached_gbs),
            size::display(row.bytes),
            limit.percent,
            short(limit.ceiling_gbs),
            limit.link
        ))
        .fixed_by("ringway net bw between the hosts; ringway doctor on each"),
    })
}

/// Curves of what the links permit, and of what is enough.
pub(super) fn limits(rows: &[&Row]) -> Vec<Curve> {
    let kinds: [(&str, Figure<Limit>); 2] = [
        ("what the links permit", |limit| limit.ceiling_gbs),
        ("what was expected of them", |limit| limit.floor_gbs),
    ];
    let curve = |(colour, (label, value)): (usize, (&str, Figure<Limit>))| Curve {
        label: label.to_owned(),
        kind: Kind::Expected,
        colour: colour + 1,
        points: rows
            .iter()
            .filter_map(|row| Some((row.bytes, value(row.limit.as_ref()?), false)))
            .collect(),
    };
    kinds.into_iter().enumerate().map(curve).collect()
}
