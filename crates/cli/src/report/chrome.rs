//! Chrome's trace events, as `ringway trace merge`, `ringway sim --trace` and others write them: a row for each process.

use std::collections::{BTreeMap, BTreeSet};

use ringway_sim::outcome::Span;
use ringway_sim::report::timeline::figure;
use serde::Deserialize;
use serde_json::Value;

use super::model::{Block, Section};
use super::perf::micros;

/// Boxes and rows that are drawn.
const BOXES: usize = 2_400;
const ROWS: usize = 32;

/// One file of events.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    file: String,
    spans: Vec<Span>,
}

/// An event of any kind; spans alone have a duration.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    ph: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    ts: Option<f64>,
    #[serde(default)]
    dur: Option<f64>,
    #[serde(default)]
    pid: Value,
    #[serde(default)]
    tid: Value,
    #[serde(default)]
    args: Value,
}

impl Events {
    /// Reads a list of events.
    pub(crate) fn parse(name: &str, events: Value) -> Result<Self, String> {
        let events: Vec<Event> =
            serde_json::from_value(events).map_err(|error| error.to_string())?;
        let mut names: BTreeMap<(String, Option<String>), String> = BTreeMap::new();
        for event in events.iter().filter(|event| event.ph == "M") {
            let text = event.args["name"].as_str().unwrap_or_default().to_owned();
            let thread = (event.name == "thread_name").then(|| event.tid.to_string());
            if ["process_name", "thread_name"].contains(&event.name.as_str()) && !text.is_empty() {
                names.insert((event.pid.to_string(), thread), text);
            }
        }
        let mut spans = Vec::new();
        for event in events.iter().filter(|event| event.ph == "X") {
            let (Some(start_us), Some(us)) = (event.ts, event.dur) else { continue };
            if !start_us.is_finite() || !us.is_finite() || us < 0.0 {
                continue;
            }
            let process = event.pid.to_string();
            let row = names
                .get(&(process.clone(), None))
                .or_else(|| names.get(&(process.clone(), Some(event.tid.to_string()))))
                .cloned()
                .unwrap_or_else(|| format!("process {process}"));
            spans.push(Span { name: event.name.clone(), row, start_us, end_us: start_us + us });
        }
        Ok(Self { file: name.to_owned(), spans })
    }
}

/// The section of all of them.
pub(super) fn section(all: &[Events]) -> Section {
    let mut section = Section::new("events", "Trace events");
    for one in all {
        section.blocks.push(Block::Heading(one.file.clone()));
        let mut rows: BTreeSet<&str> = BTreeSet::new();
        for span in &one.spans {
            if rows.len() < ROWS {
                rows.insert(&span.row);
            }
        }
        let mut spans: Vec<Span> =
            one.spans.iter().filter(|span| rows.contains(span.row.as_str())).cloned().collect();
        // The last ones: those are what traces are taken for.
        spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
        spans.drain(..spans.len().saturating_sub(BOXES));
        let Some(origin) = spans.first().map(|span| span.start_us) else {
            section.blocks.push(Block::Note("It holds no event that has a duration.".to_owned()));
            continue;
        };
        for span in &mut spans {
            span.start_us -= origin;
            span.end_us -= origin;
        }
        let end = spans.iter().map(|span| span.end_us).fold(0.0, f64::max);
        section.blocks.push(Block::Picture(figure(&spans, &[], end)));
        section.blocks.push(Block::Note(format!(
            "The last {} of {} events with a duration, {} rows; {} from left to right.",
            spans.len(),
            one.spans.len(),
            rows.len(),
            micros(end)
        )));
    }
    section
}
