//! What `ringway perf -J`, and nccl-tests, measured: curves, a table, and what became slower.

mod compare;
mod results;
mod spread;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ringway_plan::types::Collective;

use self::compare::Comparison;
pub(crate) use self::results::Run;
use self::results::{Measured, Row};
use super::chart::{Curve, Kind, chart};
use super::model::{Block, Cell, Section, Table};
use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::log::curve::expect::{LARGE, USUAL_PARTS};
use crate::fabric::show::many;
use crate::size;

/// Errors that are quoted.
const ERRORS: usize = 5;
/// Kinds of rows that have a curve, of this run and of the last each.
const KINDS: usize = 12;
/// Rows of the table.
const ROWS: usize = 600;
/// Files that are named where several were measured alike.
const NAMED: usize = 4;

/// What is expected of a collective by a simulation.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    pub(crate) name: String,
    pub(crate) collective: String,
    pub(crate) ranks: usize,
    pub(crate) bytes: u64,
    pub(crate) us: f64,
    pub(crate) busbw: f64,
}

/// The section of all runs.
pub(super) fn section(
    runs: &[Run],
    last: &[Run],
    expected: &[Expectation],
    threshold_percent: f64,
) -> Section {
    let mut section = Section::new("performance", "Performance");
    let mut groups: BTreeMap<(String, usize), Vec<&Run>> = BTreeMap::new();
    for run in runs {
        groups.entry((run.collective.clone(), run.ranks)).or_default().push(run);
    }
    for ((collective, ranks), runs) in &groups {
        let before: Vec<&Run> = last
            .iter()
            .filter(|run| run.collective == *collective && run.ranks == *ranks)
            .collect();
        let wanted: Vec<&Expectation> =
            expected.iter().filter(|e| e.collective == *collective && e.ranks == *ranks).collect();
        let compared = Comparison::of(runs, &before, threshold_percent);
        let group = Group { runs, before: &before, wanted: &wanted, compared };
        group.add(&mut section, !last.is_empty());
    }
    if !last.is_empty() {
        section.blocks.push(Block::Note(format!(
            "A size is marked as slower where it takes more than {threshold_percent} % longer than in the last run, \
             out of place and in place. Of rows that repeat, here and there, the fastest counts. Slower at more than half of the sizes is a failure, at fewer a warning."
        )));
    }
    section
}

/// Runs of one collective by as many ranks.
struct Group<'a> {
    runs: &'a [&'a Run],
    before: &'a [&'a Run],
    wanted: &'a [&'a Expectation],
    compared: Comparison<'a>,
}

impl Group<'_> {
    fn add(&self, section: &mut Section, compares: bool) {
        let Some(first) = self.runs.first() else { return };
        section.blocks.push(Block::Heading(first.title()));
        for run in self.runs {
            judge(run, section);
        }
        if compares {
            self.beside_last(section, &first.title());
        }
        let charts: Vec<String> = [
            chart("bus bandwidth, GB/s", &self.curves(false), short_tick),
            chart("time", &self.curves(true), micros_tick),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !charts.is_empty() {
            let charts = charts.join("\n");
            section
                .blocks
                .push(Block::Picture(format!("<div class=\"charts\">\n{charts}\n</div>")));
        }
        self.left_out(section);
        section.blocks.push(Block::Table(self.table()));
        self.runs.iter().for_each(|run| section.blocks.extend(spread::blocks(run)));
        let rows: usize = self.runs.iter().map(|run| run.rows.len()).sum();
        if let Some(more @ 1..) = rows.checked_sub(ROWS) {
            section.blocks.push(Block::Note(format!("Not listed: {more} of {rows} rows.")));
        }
        for run in self.runs {
            let devices =
                run.devices.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if run.devices.len() > 3 { " and others" } else { "" };
            section.blocks.push(Block::Note(format!(
                "{}: {} on {} ({devices}{more}), begun {}{}",
                run.name,
                many(run.ranks, "rank", "ranks"),
                many(run.hosts, "host", "hosts"),
                if run.began.is_empty() { "at an unknown time" } else { &run.began },
                if run.connection.is_empty() {
                    String::new()
                } else {
                    format!("; {}", run.connection)
                },
            )));
        }
    }

    /// Once for all files that were measured alike.
    fn beside_last(&self, section: &mut Section, title: &str) {
        for (place, compared) in self.compared.places() {
            let alike = self.runs.iter().filter(|run| run.place() == *place);
            let names: Vec<&str> = alike.map(|run| run.name.as_str()).collect();
            let mut seen = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
            if let Some(more @ 1..) = names.len().checked_sub(NAMED) {
                let _ = write!(seen, " and {more} more");
            }
            let finding = |verdict, text: String| {
                Finding::new("performance", "perf-slower", verdict, text).seen(seen.clone())
            };
            let slower = || compared.iter().filter(|(_, one)| one.slower);
            let sizes = many(compared.len(), "size", "sizes");
            let worst = slower().max_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio));
            section.findings.push(if let Some((bytes, worst)) = worst {
                let count = slower().count();
                let most = count * 2 > compared.len();
                let verdict = if most { Verdict::Fail } else { Verdict::Warn };
                let text = format!("{title}: slower than in the last run at {count} of {sizes}");
                finding(verdict, text)
                    .costs(format!("{:.2} times the time at {}", worst.ratio, size::display(*bytes)))
                    .fixed_by("measure both again on the idle machine; then ringway doctor, and compare the settings of both runs")
            } else if compared.is_empty() {
                let text = format!(
                    "{title}: no run given with --against has this collective, ranks, hosts, connection, type and sizes"
                );
                finding(Verdict::Unknown, text)
            } else {
                finding(Verdict::Pass, format!("{title}: as fast as in the last run at {sizes}"))
            });
        }
    }

    /// Says which kinds of rows have no curve.
    fn left_out(&self, section: &mut Section) {
        for (runs, whose) in [(self.runs, ""), (self.before, " of the last run")] {
            let kinds: usize = runs.iter().map(|run| run.kinds().len()).sum();
            if let Some(more @ 1..) = kinds.checked_sub(KINDS) {
                let note = format!("Not drawn: {more} of {kinds} kinds of rows{whose}.");
                section.blocks.push(Block::Note(note));
            }
        }
        let simulated: BTreeSet<&str> = self.wanted.iter().map(|one| one.name.as_str()).collect();
        if let Some(more @ 1..) = simulated.len().checked_sub(KINDS) {
            let note = format!("Not drawn: {more} of {} simulations.", simulated.len());
            section.blocks.push(Block::Note(note));
        }
    }

    /// All curves of one picture.
    fn curves(&self, times: bool) -> Vec<Curve> {
        let value = |one: Measured| if times { one.us } else { one.busbw };
        let mut curves = Vec::new();
        let mut colour = 0;
        for run in self.runs {
            let kinds = run.kinds();
            let alone = self.runs.len() == 1 && kinds.len() == 1;
            for (what, rows) in kinds.into_iter().take(KINDS - colour) {
                let rows = || rows.iter().copied();
                let label =
                    if alone { "this run".to_owned() } else { format!("{} {what}", run.name) };
                let slower = |row: &Row| self.compared.row(run, row).is_some_and(|one| one.slower);
                curves.push(Curve {
                    label: label.clone(),
                    kind: Kind::Measured,
                    colour,
                    points: rows().map(|r| (r.bytes, value(r.out_of_place), slower(r))).collect(),
                });
                if alone {
                    curves.push(Curve {
                        label: format!("{label}, in place"),
                        kind: Kind::InPlace,
                        colour: colour + 3,
                        points: rows().map(|r| (r.bytes, value(r.in_place), false)).collect(),
                    });
                }
                let factor = run.collective.parse::<Collective>().ok();
                let factor = factor.map_or(1.0, |one| {
                    one.bus_factor(u32::try_from(run.ranks).unwrap_or(u32::MAX))
                });
                let reckoned = |row: &Row| {
                    let us = row.expected_us?;
                    let busbw = row.bytes as f64 / us.max(1e-9) / 1e3 * factor;
                    Some((row.bytes, if times { us } else { busbw }, false))
                };
                curves.push(Curve {
                    label: "what the planner reckoned with".to_owned(),
                    kind: Kind::Expected,
                    colour: 5,
                    points: rows().filter_map(reckoned).collect(),
                });
                colour += 1;
            }
        }
        if !times {
            let rows: Vec<&Row> = self.runs.iter().flat_map(|run| &run.rows).collect();
            curves.extend(spread::limits(&rows));
        }
        if let Some((model, wanted)) = self.runs.first().and_then(|run| run.usual())
            && !times
        {
            let sizes = self.runs.iter().flat_map(|run| &run.rows).map(|row| row.bytes);
            let sizes: BTreeSet<u64> = sizes.filter(|bytes| *bytes >= LARGE).collect();
            curves.push(Curve {
                label: format!("usual for {model}"),
                kind: Kind::Expected,
                colour: 4,
                points: sizes.into_iter().map(|bytes| (bytes, wanted, false)).collect(),
            });
        }
        let mut left = KINDS;
        for run in self.before {
            let kinds = run.kinds();
            let several = kinds.len() > 1;
            for (what, rows) in kinds.into_iter().take(left) {
                left -= 1;
                let more = if several { format!(" {what}") } else { String::new() };
                curves.push(Curve {
                    label: format!("last run: {}{more}", run.name),
                    kind: Kind::Last,
                    colour: 5,
                    points: rows
                        .iter()
                        .map(|row| (row.bytes, value(row.out_of_place), false))
                        .collect(),
                });
            }
        }
        let mut by_name: BTreeMap<&str, Vec<(u64, f64, bool)>> = BTreeMap::new();
        for one in self.wanted {
            let value = if times { one.us } else { one.busbw };
            by_name.entry(&one.name).or_default().push((one.bytes, value, false));
        }
        curves.extend(by_name.into_iter().take(KINDS).map(|(name, points)| Curve {
            label: format!("simulated: {name}"),
            kind: Kind::Expected,
            colour: 2,
            points,
        }));
        curves.retain(|curve| !curve.points.is_empty());
        curves
    }

    fn table(&self) -> Table {
        let several = self.runs.len() > 1;
        let expects =
            self.runs.iter().flat_map(|run| &run.rows).any(|row| row.expected_us.is_some());
        let mut columns =
            vec!["#size", "type", "#time", "#in place", "#busbw GB/s", "#in place GB/s"];
        if several {
            columns.insert(0, "run");
        }
        if expects {
            columns.push("#expected");
        }
        if !self.before.is_empty() {
            columns.push("#time by the last run's");
        }
        let mut table = Table::new(&columns);
        let rows = self.runs.iter().flat_map(|run| run.rows.iter().map(move |row| (*run, row)));
        for (run, row) in rows.take(ROWS) {
            let time = |one: Measured| {
                let cell = Cell::number(micros(one.us), one.us);
                if one.wrong { cell.marked(Verdict::Fail) } else { cell }
            };
            let rate = |one: Measured| Cell::number(short(one.busbw), one.busbw);
            let mut cells = vec![
                Cell::number(size::display(row.bytes), row.bytes as f64),
                Cell::text(row.what.clone()),
                time(row.out_of_place),
                time(row.in_place),
                rate(row.out_of_place),
                rate(row.in_place),
            ];
            if several {
                cells.insert(0, Cell::text(run.name.clone()));
            }
            if expects {
                let cell = row.expected_us.map(|us| Cell::number(micros(us), us));
                cells.push(cell.unwrap_or_default());
            }
            if !self.before.is_empty() {
                cells.push(match self.compared.row(run, row) {
                    None => Cell::text("-"),
                    Some(one) => {
                        let word = if one.slower { " slower" } else { "" };
                        let cell = Cell::number(format!("{:.2}x{word}", one.ratio), one.ratio);
                        if one.slower { cell.marked(Verdict::Warn) } else { cell }
                    }
                });
            }
            table.rows.push(cells);
        }
        table
    }
}

/// What is said of a run by itself.
fn judge(run: &Run, section: &mut Section) {
    let title = run.title();
    let finding = |id: &str, verdict, text: String| {
        Finding::new("performance", id, verdict, text).seen(run.name.clone())
    };
    if run.wrong > 0 {
        let text = format!(
            "{title}: results are wrong in {} of the table",
            many(run.wrong, "cell", "cells")
        );
        section.findings.push(
            finding("perf-wrong", Verdict::Fail, text)
                .costs("silent corruption of gradients or weights")
                .fixed_by("run it again on fewer hosts until one remains; then ringway doctor on that host"),
        );
    }
    for error in run.errors.iter().take(ERRORS) {
        section.findings.push(finding("perf-error", Verdict::Fail, format!("{title}: {error}")));
    }
    if run.average_passes == Some(false) {
        let text =
            format!("{title}: {} GB/s in the mean is below what was asked for", short(run.average));
        section.findings.push(finding("perf-bandwidth", Verdict::Fail, text));
    }
    section.findings.extend(by_usual(run));
    section.findings.extend(spread::expected(run));
    section.findings.extend(spread::late(run));
    if run.wrong == 0 && run.errors.is_empty() && run.average_passes != Some(false) {
        let text = format!("{title}: {} GB/s of bus bandwidth in the mean", short(run.average));
        section.findings.push(finding("perf-results", Verdict::Pass, text));
    }
}

/// How a run stands beside what is usual for its GPUs.
fn by_usual(run: &Run) -> Option<Finding> {
    let (model, wanted) = run.usual()?;
    let best = run.peak()?;
    let share = best / wanted;
    let verdict = match share {
        share if share >= USUAL_PARTS[0] => Verdict::Pass,
        share if share < USUAL_PARTS[1] && run.hosts == 1 => Verdict::Fail,
        _ => Verdict::Warn,
    };
    let title = format!(
        "{}: {best:.0} GB/s at best, {:.0} % of the {wanted:.0} usual for {model}",
        run.title(),
        100.0 * share
    );
    let found = Finding::new("performance", "perf-usual", verdict, title).seen(run.name.clone());
    if verdict == Verdict::Pass {
        return Some(found);
    }
    let found = found.costs(format!("collectives take {:.1} times as long", 1.0 / share.max(1e-9)));
    Some(found.fixed_by(
        "ringway doctor on the hosts; ringway doctor --log on a log with NCCL_DEBUG=INFO says why",
    ))
}

/// Microseconds as people write them, with three digits that count.
pub(super) fn micros(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", short(us / 1e6)),
        us if us >= 1e3 => format!("{} ms", short(us / 1e3)),
        us => format!("{} us", short(us)),
    }
}

/// A number with three digits that count.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.1 => format!("{value:.3}"),
        size if size >= 0.001 => format!("{value:.4}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.1e}"),
    }
}

/// On an axis, without zeros at the end.
fn short_tick(value: f64) -> String {
    let text = short(value);
    match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn micros_tick(us: f64) -> String {
    let text = micros(us);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') && !number.contains('e') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}
