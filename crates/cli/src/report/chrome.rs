//! Chrome's trace events, as `ringway trace merge`, `ringway sim --trace` and others write them: a row for each thread.

use std::collections::{BTreeMap, BTreeSet};

use ringway_sim::outcome::Span;
use ringway_sim::report::timeline::figure;
use serde::Deserialize;
use serde_json::Value;

use super::model::{BOXES, Block, Section};
use super::perf::micros;
use crate::fabric::show::many;

/// Rows that are drawn.
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

/// Process and thread, as the file writes them.
type Track = (String, String);
/// What processes are called, and threads of theirs.
type Names = BTreeMap<(String, Option<String>), String>;

impl Event {
    /// From when to when, where it has a duration and both are numbers.
    fn span(&self) -> Option<(f64, f64)> {
        let (start, us) = (self.ts?, self.dur?);
        let end = start + us;
        (self.ph == "X" && us >= 0.0 && start.is_finite() && end.is_finite())
            .then_some((start, end))
    }

    fn track(&self) -> Track {
        (self.pid.to_string(), self.tid.to_string())
    }
}

/// What the row of each track is called, no two alike.
fn rows(tracks: BTreeSet<Track>, names: &Names) -> BTreeMap<Track, String> {
    let mut threads: BTreeMap<&str, usize> = BTreeMap::new();
    for (pid, _) in &tracks {
        *threads.entry(pid).or_default() += 1;
    }
    let label = |(pid, tid): &Track| {
        let process = names.get(&(pid.clone(), None));
        let thread = names.get(&(pid.clone(), Some(tid.clone())));
        let several = threads.get(pid.as_str()).is_some_and(|count| *count > 1);
        match (process, thread) {
            (Some(process), Some(thread)) if several => format!("{process} {thread}"),
            (Some(process), None) if several => format!("{process} thread {tid}"),
            (Some(process), _) => process.clone(),
            (None, Some(thread)) => thread.clone(),
            (None, None) if several => format!("process {pid} thread {tid}"),
            (None, None) => format!("process {pid}"),
        }
    };
    let mut rows: BTreeMap<Track, String> =
        tracks.iter().map(|track| (track.clone(), label(track))).collect();
    for adds_thread in [false, true] {
        let mut taken: BTreeMap<String, usize> = BTreeMap::new();
        for row in rows.values() {
            *taken.entry(row.clone()).or_default() += 1;
        }
        for ((pid, tid), row) in &mut rows {
            if taken.get(row).is_some_and(|count| *count > 1) {
                let (what, number) = if adds_thread { ("tid", tid) } else { ("pid", pid) };
                *row = format!("{row} ({what} {number})");
            }
        }
    }
    rows
}

impl Events {
    /// Reads a list of events.
    pub(crate) fn parse(name: &str, events: Value) -> Result<Self, String> {
        let events: Vec<Event> =
            serde_json::from_value(events).map_err(|error| error.to_string())?;
        let mut names = Names::new();
        for event in events.iter().filter(|event| event.ph == "M") {
            let text = event.args["name"].as_str().unwrap_or_default().to_owned();
            let thread = (event.name == "thread_name").then(|| event.tid.to_string());
            if ["process_name", "thread_name"].contains(&event.name.as_str()) && !text.is_empty() {
                names.insert((event.pid.to_string(), thread), text);
            }
        }
        let has_place = |event: &&Event| event.span().is_some();
        let rows = rows(events.iter().filter(has_place).map(Event::track).collect(), &names);
        let spans = events.iter().filter_map(|event| {
            let (start_us, end_us) = event.span()?;
            let row = rows.get(&event.track())?.clone();
            Some(Span { name: event.name.clone(), row, start_us, end_us })
        });
        let spans = spans.collect();
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
        // Times so far apart that their difference is no number.
        spans.retain(|span| span.end_us.is_finite());
        let end = spans.iter().map(|span| span.end_us).fold(0.0, f64::max);
        section.blocks.push(Block::Picture(figure(&spans, &[], end)));
        section.blocks.push(Block::Note(format!(
            "The last {} of {} events with a duration, {}; {} from left to right.",
            spans.len(),
            one.spans.len(),
            many(rows.len(), "row", "rows"),
            micros(end)
        )));
    }
    section
}
