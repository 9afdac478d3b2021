//! What `ringway sim --json` reckoned: times, links, the timeline; or what-ifs.

use std::collections::BTreeSet;

use ringway_sim::outcome::{Incident, Span};
use ringway_sim::report::timeline::figure;
use serde::Deserialize;
use serde_json::Value;

use super::model::{BOXES, Block, Cell, Section, Table};
use super::perf::{Expectation, micros, short};
use crate::doctor::finding::{Finding, Verdict};
use crate::size;

/// Rows of a timeline.
const ROWS: usize = 48;
/// Rows of tables, and incidents.
const LISTED: usize = 200;

/// One simulation.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Simulated {
    job: String,
    #[serde(default)]
    gpus: Option<u64>,
    #[serde(default)]
    routing: Option<String>,
    #[serde(default)]
    summary: Option<Summary>,
    #[serde(default)]
    calls: Vec<Call>,
    #[serde(default)]
    step: Option<Step>,
    #[serde(default)]
    spans: Vec<FileSpan>,
    #[serde(default)]
    varied: Vec<String>,
    #[serde(default)]
    rate_is: String,
    #[serde(default)]
    tried: Vec<Tried>,
    #[serde(skip)]
    file: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Summary {
    time_us: f64,
    #[serde(default)]
    groups: Vec<Group>,
    #[serde(default)]
    hottest: Vec<Hot>,
    #[serde(default)]
    incidents: Vec<FileIncident>,
}

#[derive(Clone, Debug, Deserialize)]
struct Group {
    group: Value,
    links: u64,
    used: u64,
    mean: f64,
    most: f64,
    imbalance: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct Hot {
    name: String,
    #[serde(rename = "use")]
    part: f64,
    full: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct FileIncident {
    us: f64,
    what: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Call {
    name: String,
    collective: String,
    bytes: u64,
    ranks: u64,
    start_us: f64,
    end_us: f64,
    algbw_gbytes: f64,
    busbw_gbytes: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct Step {
    step_us: f64,
    compute_us: f64,
    exposed_us: f64,
    communication_us: f64,
    bubble_us: f64,
    tokens_per_s: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct FileSpan {
    name: String,
    row: String,
    start_us: f64,
    end_us: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct Tried {
    values: Vec<String>,
    #[serde(default)]
    time_us: Option<f64>,
    #[serde(default)]
    rate: Option<f64>,
    #[serde(default)]
    hottest: Option<f64>,
    #[serde(default)]
    imbalance: Option<f64>,
    #[serde(default)]
    best: bool,
    #[serde(default)]
    why: Option<String>,
}

impl Simulated {
    /// Reads the JSON of a simulation.
    pub(crate) fn parse(name: &str, value: Value) -> Result<Self, String> {
        let one: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        Ok(Self { file: name.to_owned(), ..one })
    }

    /// What it says that collectives take.
    pub(crate) fn expectations(&self) -> impl Iterator<Item = Expectation> + '_ {
        self.calls.iter().map(|call| Expectation {
            name: self.job.clone(),
            collective: call.collective.clone(),
            ranks: usize::try_from(call.ranks).unwrap_or(usize::MAX),
            bytes: call.bytes,
            us: call.end_us - call.start_us,
            busbw: call.busbw_gbytes,
        })
    }
}

/// The section of all simulations.
pub(super) fn section(all: &[Simulated]) -> Section {
    let mut section = Section::new("simulation", "Simulation");
    for one in all {
        let gpus = one.gpus.map_or_else(String::new, |gpus| format!(" on {gpus} GPUs"));
        section.blocks.push(Block::Heading(format!("{}{gpus}", one.job)));
        if let Some(summary) = &one.summary {
            let routing =
                one.routing.as_ref().map_or_else(String::new, |way| format!(", routing {way}"));
            section
                .blocks
                .push(Block::Text(format!("{} in all{routing}", micros(summary.time_us))));
            for incident in summary.incidents.iter().take(LISTED) {
                let text = format!("{} at {}", incident.what, micros(incident.us));
                let finding = Finding::new("simulation", "sim-incident", Verdict::Warn, text);
                section.findings.push(finding.seen(one.file.clone()));
            }
        }
        calls(&mut section, one);
        step(&mut section, one);
        timeline(&mut section, one);
        links(&mut section, one);
        tried(&mut section, one);
    }
    section
}

fn calls(section: &mut Section, one: &Simulated) {
    if one.calls.is_empty() {
        return;
    }
    let mut table =
        Table::new(&["collective", "#ranks", "#size", "#time", "#algbw GB/s", "#busbw GB/s"]);
    for call in one.calls.iter().take(LISTED) {
        let us = call.end_us - call.start_us;
        table.rows.push(vec![
            Cell::text(call.name.clone()),
            Cell::number(call.ranks.to_string(), call.ranks as f64),
            Cell::number(size::display(call.bytes), call.bytes as f64),
            Cell::number(micros(us), us),
            Cell::number(short(call.algbw_gbytes), call.algbw_gbytes),
            Cell::number(short(call.busbw_gbytes), call.busbw_gbytes),
        ]);
    }
    section.blocks.push(Block::Table(table));
}

fn step(section: &mut Section, one: &Simulated) {
    let Some(step) = &one.step else { return };
    let mut table = Table::new(&["part of the step", "#time", "#share"]);
    for (name, us) in [
        ("the whole step", step.step_us),
        ("computing", step.compute_us),
        ("stages waiting for each other", step.bubble_us),
        ("communication that nothing hides", step.exposed_us),
        ("communication under way", step.communication_us),
    ] {
        let share = us / step.step_us.max(f64::MIN_POSITIVE);
        table.rows.push(vec![Cell::text(name), Cell::number(micros(us), us), percent(share)]);
    }
    section.blocks.push(Block::Text(format!("{:.0} tokens/s", step.tokens_per_s)));
    section.blocks.push(Block::Table(table));
}

fn timeline(section: &mut Section, one: &Simulated) {
    let mut rows: BTreeSet<&str> = BTreeSet::new();
    let mut spans = Vec::new();
    for span in &one.spans {
        let is_new = !rows.contains(span.row.as_str());
        let fits = spans.len() < BOXES && (!is_new || rows.len() < ROWS);
        let is_sound =
            span.start_us >= 0.0 && span.end_us >= span.start_us && span.end_us.is_finite();
        if fits && is_sound {
            rows.insert(&span.row);
            spans.push(Span {
                name: span.name.clone(),
                row: span.row.clone(),
                start_us: span.start_us,
                end_us: span.end_us,
            });
        }
    }
    if !spans.is_empty() {
        let told =
            one.summary.as_ref().map(|summary| summary.incidents.as_slice()).unwrap_or_default();
        let incidents: Vec<Incident> = told
            .iter()
            .filter(|one| one.us.is_finite() && one.us >= 0.0)
            .take(LISTED)
            .map(|one| Incident { us: one.us, what: one.what.clone() })
            .collect();
        let end = spans.iter().map(|span| span.end_us).fold(0.0, f64::max);
        section.blocks.push(Block::Picture(figure(&spans, &incidents, end)));
    }
    if let Some(more @ 1..) = one.spans.len().checked_sub(spans.len()) {
        section
            .blocks
            .push(Block::Note(format!("Not drawn: {more} of {} spans.", one.spans.len())));
    }
}

fn links(section: &mut Section, one: &Simulated) {
    let Some(summary) = &one.summary else { return };
    let mut table =
        Table::new(&["links", "#number", "#used", "#mean use", "#hottest", "#imbalance"]);
    for group in summary.groups.iter().filter(|group| group.used > 0).take(LISTED) {
        let name = group.group.as_str().map_or_else(|| group.group.to_string(), str::to_owned);
        table.rows.push(vec![
            Cell::text(name),
            Cell::number(group.links.to_string(), group.links as f64),
            Cell::number(group.used.to_string(), group.used as f64),
            percent(group.mean),
            percent(group.most),
            percent(group.imbalance),
        ]);
    }
    if !table.rows.is_empty() {
        section.blocks.push(Block::Table(table));
    }
    let mut hottest = Table::new(&["hottest links", "#use", "#full"]);
    for hot in summary.hottest.iter().take(LISTED) {
        hottest.rows.push(vec![Cell::text(hot.name.clone()), percent(hot.part), percent(hot.full)]);
    }
    if !hottest.rows.is_empty() {
        section.blocks.push(Block::Folded("Hottest links".to_owned(), vec![Block::Table(hottest)]));
    }
}

fn tried(section: &mut Section, one: &Simulated) {
    if one.tried.is_empty() {
        return;
    }
    let rate = if one.rate_is.is_empty() { "rate" } else { &one.rate_is };
    let numbers = format!("#{rate}");
    let mut columns: Vec<&str> = one.varied.iter().map(String::as_str).collect();
    columns.extend(["#time", numbers.as_str(), "#hottest link", "#imbalance", ""]);
    let mut table = Table::new(&columns);
    for row in one.tried.iter().take(LISTED) {
        let mut cells: Vec<Cell> = row
            .values
            .iter()
            .take(one.varied.len())
            .map(|value| Cell::text(value.clone()))
            .collect();
        cells.resize(one.varied.len(), Cell::default());
        cells.push(row.time_us.map_or_else(Cell::default, |us| Cell::number(micros(us), us)));
        cells.push(row.rate.map_or_else(Cell::default, |rate| Cell::number(short(rate), rate)));
        cells.push(row.hottest.map_or_else(Cell::default, percent));
        cells.push(row.imbalance.map_or_else(Cell::default, percent));
        cells.push(match &row.why {
            Some(why) => Cell::text(why.clone()),
            None if row.best => Cell::text("best").marked(Verdict::Pass),
            None => Cell::default(),
        });
        table.rows.push(cells);
    }
    section.blocks.push(Block::Table(table));
}

fn percent(part: f64) -> Cell {
    Cell::number(format!("{:.1} %", part * 100.0), part)
}
