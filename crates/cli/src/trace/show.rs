//! `ringway trace show`: each rank's operations as a table.

use std::fmt::Write as _;

use ringway::recorder::{CallRecord, LaunchRecord, MessageRecord, Outcome, Trace, Waited};

use super::read::Read;
use crate::{output, size};

/// Prints the last operations of each trace.
pub(super) fn run(traces: &[Read], last: usize) -> std::io::Result<()> {
    for (at, Read { path, trace }) in traces.iter().enumerate() {
        if at > 0 {
            output::line("")?;
        }
        output::line(&format!("# {}", shown(&path.display().to_string())))?;
        output::stdout_bytes(page(trace, last).as_bytes())?;
    }
    Ok(())
}

/// A row of the table: an operation, a message or a launch on a GPU.
struct Row {
    start_ns: u64,
    text: String,
}

pub(super) fn page(trace: &Trace, last: usize) -> String {
    let mut page = format!(
        "# rank {} of {}, host {}, process {}, communicator {}\n",
        trace.rank,
        trace.size,
        shown(&trace.host),
        trace.pid,
        shown(&trace.communicator)
    );
    if let Some(verdict) = &trace.verdict {
        let _ = writeln!(page, "# error: {}", shown(&verdict.to_string()));
    }
    let origin = trace.calls.iter().map(|call| call.start_ns);
    let origin = origin.chain(trace.messages.iter().map(|one| one.start_ns));
    let origin = origin.chain(trace.launches.iter().map(|one| one.enqueued_ns)).min().unwrap_or(0);
    let clock = Clock { origin, taken: trace.taken_ns };
    let mut rows: Vec<Row> = trace.calls.iter().map(|one| call(one, &clock)).collect();
    rows.extend(trace.messages.iter().map(|one| message(one, &clock)));
    rows.extend(trace.launches.iter().map(|one| launch(one, &clock)));
    rows.sort_by_key(|row| row.start_ns);
    let begun = trace.calls_begun.saturating_add(trace.messages_begun);
    let begun = begun.saturating_add(trace.launches_begun);
    let hidden = rows.len().saturating_sub(last);
    let _ = writeln!(
        page,
        "# {begun} operations, {} kept, {} shown; trace taken on {}",
        rows.len(),
        rows.len() - hidden,
        trace.reason.name()
    );
    let _ = writeln!(
        page,
        "#{:>9} {:<15} {:>9} {:<18} {:>12} {:>11}",
        "sequence", "operation", "size", "algorithm", "start us", "took us"
    );
    rows.iter().skip(hidden).for_each(|row| page.push_str(&row.text));
    page
}

struct Clock {
    origin: u64,
    taken: u64,
}

impl Clock {
    /// Start and duration; of what runs, so far.
    fn times(&self, start_ns: u64, end_ns: Option<u64>, outcome: Outcome) -> (String, String) {
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        let took = match (end_ns, outcome) {
            (Some(end), _) => us(end.saturating_sub(start_ns)),
            (None, Outcome::Running) => format!("{}…", us(self.taken.saturating_sub(start_ns))),
            (None, _) => "-".to_owned(),
        };
        (us(start_ns.saturating_sub(self.origin)), took)
    }
}

fn call(call: &CallRecord, clock: &Clock) -> Row {
    let (start, mut took) = clock.times(call.start_ns, call.end_ns, call.outcome);
    if call.end_about {
        took.insert(0, '~');
    }
    let algorithm = call.algorithm.map_or("-", |algorithm| algorithm.name());
    let mut text = format!(
        " {:>9} {:<15} {:>9} {algorithm:<18} {start:>12} {took:>11}{}\n",
        call.sequence,
        call.collective.name(),
        size::display(call.bytes),
        mark(call.outcome)
    );
    if call.parts > 1 {
        let _ = writeln!(text, "#{:>10}and {} more calls in its group", "", call.parts - 1);
    }
    note(&mut text, call.outcome, call.waited, &call.lanes);
    Row { start_ns: call.start_ns, text }
}

fn message(message: &MessageRecord, clock: &Clock) -> Row {
    let (start, took) = clock.times(message.start_ns, message.end_ns, message.outcome);
    let name = if message.sends { "send to" } else { "recv from" };
    let mut text = format!(
        " {:>9} {:<15} {:>9} {:<18} {start:>12} {took:>11}{}\n",
        message.sequence,
        format!("{name} {}", message.peer),
        size::display(message.bytes),
        "-",
        mark(message.outcome)
    );
    note(&mut text, message.outcome, message.waited, &[]);
    Row { start_ns: message.start_ns, text }
}

/// What was put on a stream: whether it is done, nobody knows but the GPU.
fn launch(launch: &LaunchRecord, clock: &Clock) -> Row {
    let (start, _) = clock.times(launch.enqueued_ns, None, Outcome::Done);
    let mut text = format!(
        " {:>9} {:<15} {:>9} {:<18} {start:>12} {:>11} enqueued on a GPU\n",
        launch.number,
        launch.collective.name(),
        size::display(launch.bytes),
        "-",
        "-"
    );
    if launch.parts > 1 {
        let _ = writeln!(text, "#{:>10}{} calls in one launch", "", launch.parts);
    }
    note(&mut text, Outcome::Done, launch.waited, &[]);
    Row { start_ns: launch.enqueued_ns, text }
}

fn mark(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "",
        Outcome::Running => " running",
        Outcome::Failed => " failed",
    }
}

/// Whom it stood still for, and how far it came.
fn note(text: &mut String, outcome: Outcome, waited: Option<Waited>, lanes: &[(u32, u32)]) {
    if let Some(Waited { rank, waited_ns }) = waited {
        let verb = if outcome == Outcome::Done { "waited" } else { "waits" };
        let _ = writeln!(
            text,
            "#{:>10}{verb} for rank {rank}, at least {:.1} ms",
            "",
            waited_ns as f64 / 1e6
        );
    }
    if outcome != Outcome::Done && !lanes.is_empty() {
        let steps: Vec<String> = lanes.iter().map(|(done, all)| format!("{done}/{all}")).collect();
        let _ = writeln!(text, "#{:>10}steps done in each lane: {}", "", steps.join(" "));
    }
}

/// Text of a file, without what a terminal would obey.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::synthetic;
    use super::*;

    #[test]
    fn a_rank_that_hangs_is_shown_with_whom_it_waits_for() {
        let mut trace = synthetic::trace(0, 2);
        trace.host = "evil\u{1b}[2J".to_owned();
        trace.calls =
            vec![synthetic::call(6, 1_000, Some(9_500)), synthetic::call(7, 20_000, None)];
        trace.calls[1].waited = Some(Waited { rank: 1, waited_ns: 2_500_000 });
        trace.calls[1].lanes = vec![(3, 9), (0, 4)];
        trace.taken_ns = 5_020_000;
        let page = page(&trace, 20);
        assert!(!page.contains('\u{1b}'), "{page}");
        assert!(page.contains("         6 all_reduce            8 B tiny"), "{page}");
        assert!(page.contains("         0.0         8.5\n"), "{page}");
        assert!(page.contains("        19.0     5000.0… running\n"), "{page}");
        assert!(page.contains("waits for rank 1, at least 2.5 ms\n"), "{page}");
        assert!(page.contains("steps done in each lane: 3/9 0/4\n"), "{page}");
        let widest = page.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(90), "{page}");
    }

    #[test]
    fn what_was_put_on_a_gpu_is_shown_as_no_more_than_that() {
        let mut trace = synthetic::trace(0, 2);
        trace.launches_begun = 9;
        trace.launches = vec![synthetic::launch(8, 1_000), synthetic::launch(9, 4_000)];
        trace.launches[1].waited = Some(Waited { rank: 1, waited_ns: 2_500_000 });
        let page = page(&trace, 20);
        assert!(page.contains("# 9 operations, 2 kept, 2 shown"), "{page}");
        assert!(page.contains("3.0           - enqueued on a GPU\n"), "{page}");
        assert!(page.contains("waited for rank 1, at least 2.5 ms\n"), "{page}");
    }

    #[test]
    fn only_the_last_are_shown() {
        let mut trace = synthetic::trace(0, 2);
        trace.calls = (0..10).map(|n| synthetic::call(n, n * 10, Some(n * 10 + 1))).collect();
        let page = page(&trace, 3);
        assert!(page.contains("10 kept, 3 shown"), "{page}");
        assert_eq!(page.lines().filter(|line| line.starts_with(' ')).count(), 3, "{page}");
    }
}
