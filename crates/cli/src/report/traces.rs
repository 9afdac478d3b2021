//! Flight recorders' traces: when each rank was in which operation, who came late, who waited for whom.
//!
//! *Invariant*: however many ranks and operations there are, what is drawn is bounded, and what is left out is said.

mod draw;
mod late;

use std::collections::{BTreeMap, BTreeSet};

use ringway::recorder::{CallRecord, Outcome, Reason, Trace};

use self::late::Lateness;
use super::heat::heat;
use super::model::{Block, Cell, Section, Table};
use super::perf::micros;
use crate::doctor::finding::{Finding, Verdict};
use crate::fabric::show::many;
use crate::trace::clocks::{self, How};

/// Communicators that are shown, those with the most operations first.
const COMMUNICATORS: usize = 6;
/// Rows of the table of ranks.
const RANKS_LISTED: usize = 64;
/// A call that has run for so long when the trace was taken stands still.
const STANDS_NS: i128 = 1_000_000_000;
/// A rank is late if it came last this part of the times, and so many times as often as by chance, and cost that part of
/// the time.
const OFTEN: f64 = 0.5;
const OFTENER: f64 = 1.5;
const COSTLY: f64 = 0.1;
/// Operations below which nothing is said of lateness.
const ENOUGH: usize = 8;

/// The traces of one communicator, on one clock.
pub(super) struct Job<'a> {
    traces: Vec<(&'a Trace, i128)>,
    size: u32,
}

impl<'a> Job<'a> {
    /// Calls of a trace whose times are known, from entering to leaving; of those that run, so far.
    pub(super) fn calls(
        trace: &'a Trace,
        shift: i128,
    ) -> impl Iterator<Item = (&'a CallRecord, i128, i128)> {
        let known = trace.calls.iter().filter(|call| call.start_ns > 0);
        known.map(move |call| {
            let end = call.end_ns.unwrap_or_else(|| trace.taken_ns.max(call.start_ns));
            (call, i128::from(call.start_ns) + shift, i128::from(end) + shift)
        })
    }
}

/// The section of all traces.
pub(super) fn section(traces: &[Trace]) -> Section {
    let mut section = Section::new("timeline", "Timeline");
    let clocks = clocks::align(traces);
    let mut jobs: BTreeMap<&str, Job<'_>> = BTreeMap::new();
    for trace in traces {
        let job = jobs
            .entry(&trace.communicator)
            .or_insert_with(|| Job { traces: Vec::new(), size: trace.size });
        // What is added to its times is the same for all of them.
        job.traces.push((trace, clocks.moment(trace, 0)));
    }
    let mut jobs: Vec<(&str, Job<'_>)> = jobs.into_iter().collect();
    let calls =
        |job: &Job<'_>| job.traces.iter().map(|(trace, _)| trace.calls.len()).sum::<usize>();
    jobs.sort_by_key(|(_, job)| std::cmp::Reverse(calls(job)));
    for (name, job) in jobs.iter().take(COMMUNICATORS) {
        one(&mut section, name, job);
    }
    if let Some(more @ 1..) = jobs.len().checked_sub(COMMUNICATORS) {
        section.blocks.push(Block::Note(format!(
            "Not shown: {}, those with fewer operations.",
            many(more, "communicator", "communicators")
        )));
    }
    let off = clocks.machines.iter().filter(|one| one.how != How::Reference).count();
    if off > 0 {
        let lines = clocks::describe(&clocks).into_iter().take(RANKS_LISTED).map(Block::Note);
        let summary = format!("How {} were set", many(off + 1, "clock", "clocks"));
        section.blocks.push(Block::Folded(summary, lines.collect()));
    }
    section
}

fn one(section: &mut Section, name: &str, job: &Job<'_>) {
    let operations = job.traces.iter().map(|(trace, _)| trace.calls_begun).max().unwrap_or(0);
    section.blocks.push(Block::Heading(format!(
        "communicator {name}: {}, {operations} operations begun",
        many(job.size as usize, "rank", "ranks")
    )));
    let waits = waits(job);
    let lateness = Lateness::of(job, &waits);
    judge(section, name, job, &lateness);
    draw::timeline(&mut section.blocks, job, &lateness);
    section.blocks.push(Block::Heading("Who holds up whom".to_owned()));
    ranks(section, job, &lateness);
    let labels: Vec<u32> = (0..job.size).collect();
    if let Some(picture) = heat(
        "Waiting rank (down) and the rank it stood still for (across), time in all",
        &labels,
        &waits,
        |ns| micros(ns / 1e3),
    ) {
        section.blocks.push(Block::Picture(picture));
    }
    let launches: usize = job.traces.iter().map(|(trace, _)| trace.launches.len()).sum();
    if launches > 0 {
        section.blocks.push(Block::Note(format!(
            "Not drawn: {launches} launches on GPUs, since only the device knows when they ran."
        )));
    }
}

/// For how long each rank stood still for each other, in nanoseconds.
fn waits(job: &Job<'_>) -> BTreeMap<(u32, u32), f64> {
    let mut waits = BTreeMap::new();
    for (trace, _) in &job.traces {
        let calls = trace.calls.iter().map(|call| call.waited);
        let messages = trace.messages.iter().map(|message| message.waited);
        let launches = trace.launches.iter().map(|launch| launch.waited);
        for waited in calls.chain(messages).chain(launches).flatten() {
            let ns = waited.waited_ns as f64;
            *waits.entry((trace.rank, waited.rank)).or_default() += ns;
        }
    }
    waits
}

fn judge(section: &mut Section, name: &str, job: &Job<'_>, lateness: &Lateness) {
    let finding = |id: &str, verdict, text: String| Finding::new("trace", id, verdict, text);
    let before = section.findings.len();
    let mut said: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (trace, _) in &job.traces {
        if let Some(verdict) = &trace.verdict {
            said.entry(verdict.to_string()).or_default().push(trace.rank);
        }
    }
    for (text, ranks) in &said {
        let found = finding("trace-error", Verdict::Fail, format!("the job failed: {text}"));
        section.findings.push(found.seen(format!("by ranks {} of {name}", list(ranks))));
    }
    let failed = |trace: &Trace| trace.calls.iter().any(|call| call.outcome == Outcome::Failed);
    let failed: Vec<u32> =
        job.traces.iter().filter(|(trace, _)| failed(trace)).map(|(trace, _)| trace.rank).collect();
    if said.is_empty() && !failed.is_empty() {
        let text = format!("operations failed on ranks {}", list(&failed));
        section.findings.push(finding("trace-failed", Verdict::Fail, text));
    }
    section.findings.extend(standing(job));
    let often = OFTEN.max(OFTENER / job.traces.len() as f64);
    if let Some(worst) = lateness.worst()
        && worst.last as f64 >= often * lateness.operations as f64
        && worst.held_up_ns as f64 >= COSTLY * lateness.span_ns as f64
        && lateness.operations >= ENOUGH
    {
        let part = 100.0 * worst.held_up_ns as f64 / lateness.span_ns.max(1) as f64;
        let text = format!(
            "rank {} on {} comes late: last into {} of {} operations",
            worst.rank, worst.host, worst.last, lateness.operations
        );
        section.findings.push(
            finding("trace-late", Verdict::Warn, text)
                .seen(format!(
                    "communicator {name}: entering times on one clock, against the median rank's"
                ))
                .costs(format!(
                    "{part:.0} % of the time traced: {} in all",
                    nanos(worst.held_up_ns)
                ))
                .fixed_by(format!(
                    "ringway doctor on {}; look for shared processors, low clocks, slow input",
                    worst.host
                )),
        );
    }
    let there: BTreeSet<u32> = job.traces.iter().map(|(trace, _)| trace.rank).collect();
    let absent: Vec<u32> = (0..job.size).filter(|rank| !there.contains(rank)).collect();
    if !absent.is_empty() {
        let text =
            format!("no trace of {}: {}", many(absent.len(), "rank", "ranks"), list(&absent));
        section.findings.push(finding("trace-missing", Verdict::Unknown, text));
    }
    let wrong = section.findings[before..].iter().any(|one| one.verdict >= Verdict::Warn);
    if !wrong {
        let text = format!(
            "communicator {name}: nothing failed or stood still, nobody was late ({} compared)",
            many(lateness.operations, "operation", "operations")
        );
        section.findings.push(finding("trace-ok", Verdict::Pass, text));
    }
}

/// An operation that some ranks were still in, and who was not.
fn standing(job: &Job<'_>) -> Option<Finding> {
    let running = |trace: &&(&Trace, i128)| {
        trace
            .0
            .calls
            .last()
            .filter(|call| call.outcome == Outcome::Running)
            .map(|call| call.sequence)
    };
    let sequence = job.traces.iter().filter_map(|trace| running(&trace)).max()?;
    let mut inside = Vec::new();
    let mut outside = Vec::new();
    let mut longest = 0;
    let mut what = String::new();
    let mut asked = true;
    for (trace, shift) in &job.traces {
        asked &= matches!(trace.reason, Reason::Request | Reason::End);
        match trace.calls.iter().find(|call| call.sequence == sequence) {
            Some(call) if call.outcome == Outcome::Running => {
                inside.push(trace.rank);
                // Without a clock nobody knows for how long.
                let timed = Job::calls(trace, *shift).find(|(call, ..)| call.sequence == sequence);
                longest = longest.max(timed.map_or(0, |(_, start, end)| end - start));
                what = format!("{} #{sequence}", call.collective.name());
            }
            Some(_) => {}
            None => outside.push(trace.rank),
        }
    }
    if longest < STANDS_NS || inside.is_empty() {
        return None;
    }
    let not_in = match outside.is_empty() {
        true => "all of them are in it".to_owned(),
        false => format!("not in it: ranks {}", list(&outside)),
    };
    let verdict = if asked { Verdict::Warn } else { Verdict::Fail };
    let title = format!(
        "{what} stands still: {} in it, {not_in}",
        many(inside.len(), "rank is", "ranks are")
    );
    Some(
        Finding::new("trace", "trace-stands", verdict, title)
            .seen(format!("ranks {} are in it, for {} at most", list(&inside), nanos(longest)))
            .costs("the whole job waits")
            .fixed_by("ringway why on a host of the job, while it hangs; else the logs of the ranks that are not in it"),
    )
}

fn ranks(section: &mut Section, job: &Job<'_>, lateness: &Lateness) {
    let mut table = Table::new(&[
        "#rank",
        "host",
        "#operations",
        "#in calls",
        "#last to enter",
        "#held others up",
        "#others waited",
        "state",
    ]);
    let mut order: Vec<&(&Trace, i128)> = job.traces.iter().collect();
    order.sort_by(|a, b| lateness.order(a.0.rank, b.0.rank));
    for (trace, shift) in order.iter().take(RANKS_LISTED).copied() {
        let inside: i128 = Job::calls(trace, *shift).map(|(_, start, end)| end - start).sum();
        let late = lateness.ranks.get(&trace.rank);
        let (last, held) = late.map_or((0, 0), |one| (one.last, one.held_up_ns));
        let waited = late.map_or(0.0, |one| one.waited_for_ns);
        let count = trace.calls.len() + trace.messages.len() + trace.launches.len();
        table.rows.push(vec![
            Cell::number(trace.rank.to_string(), f64::from(trace.rank)),
            Cell::text(trace.host.clone()),
            Cell::number(count.to_string(), count as f64),
            Cell::number(nanos(inside), inside as f64),
            Cell::number(last.to_string(), last as f64),
            Cell::number(nanos(held), held as f64),
            Cell::number(micros(waited / 1e3), waited),
            state(trace),
        ]);
    }
    section.blocks.push(Block::Table(table));
    section.blocks.push(Block::Note(format!(
        "By {} that all traces hold. Held others up: how much later than the median rank it entered, where it was the last. \
         Others waited: what their recorders noted, from a millisecond on.",
        many(lateness.operations, "operation", "operations")
    )));
    if let Some(more @ 1..) = job.traces.len().checked_sub(RANKS_LISTED) {
        let note =
            format!("Not listed: {}, which held up others less.", many(more, "rank", "ranks"));
        section.blocks.push(Block::Note(note));
    }
}

fn state(trace: &Trace) -> Cell {
    match trace.calls.last() {
        Some(call) if call.outcome == Outcome::Running => {
            let text = format!("in {} #{}", call.collective.name(), call.sequence);
            Cell::text(text).marked(Verdict::Warn)
        }
        Some(call) if call.outcome == Outcome::Failed => {
            let text = format!("failed in {} #{}", call.collective.name(), call.sequence);
            Cell::text(text).marked(Verdict::Fail)
        }
        _ => Cell::text("done"),
    }
}

/// Nanoseconds as people write them.
fn nanos(ns: i128) -> String {
    micros(ns as f64 / 1e3)
}

/// Ranks, not too many.
fn list(ranks: &[u32]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<String> = ranks.iter().take(SHOWN).map(u32::to_string).collect();
    match ranks.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} and {more} more", names.join(", ")),
        _ => names.join(", "),
    }
}
