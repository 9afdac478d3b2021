//! `ringway trace merge`: all ranks on one clock, in a layout that other tools read.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use ringway::recorder::Trace;

use super::clocks::{self, Clocks};
use super::read::Read;
use super::{Format, chrome, pickle, pytorch};
use crate::output;

/// Joins traces and writes them.
pub(super) fn run(traces: Vec<Read>, target: &Path, format: Format) -> anyhow::Result<()> {
    let traces: Vec<Trace> = traces.into_iter().map(|read| read.trace).collect();
    let clocks = clocks::align(&traces);
    missing(&traces);
    for line in clocks::describe(&clocks) {
        output::line(&format!("clock of {line}"))?;
    }
    match format {
        Format::Chrome => {
            let text = chrome::document(&traces, &clocks).to_string();
            write(target, text.as_bytes())?;
            output::line(&format!("wrote {}", target.display()))?;
        }
        Format::Ringway => {
            let lines: Vec<String> = traces.iter().map(|trace| moved(trace, &clocks)).collect();
            write(target, format!("{}\n", lines.join("\n")).as_bytes())?;
            output::line(&format!("wrote {}", target.display()))?;
        }
        Format::Pytorch => {
            let documents = pytorch::documents(&traces, &clocks)?;
            let messages: usize = traces.iter().map(|trace| trace.messages.len()).sum();
            if messages > 0 {
                output::remark(&format!(
                    "{messages} messages are left out: PyTorch's analyser wants every rank of a group in each"
                ));
            }
            let launches: usize = traces.iter().map(|trace| trace.launches.len()).sum();
            if launches > 0 {
                output::remark(&format!(
                    "{launches} launches on GPUs are left out: when they began and ended is not known"
                ));
            }
            for (rank, document) in &documents {
                let mut path = target.as_os_str().to_owned();
                path.push(rank.to_string());
                write(Path::new(&path), &pickle::dump(document))?;
            }
            let count = documents.len();
            output::line(&format!("wrote {count} files {}RANK", target.display()))?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Says which ranks there is no trace of.
fn missing(traces: &[Trace]) {
    let mut at = 0;
    while let Some(first) = traces.get(at) {
        let same = traces[at..].iter().take_while(|one| one.communicator == first.communicator);
        let ranks: BTreeSet<u32> = same.map(|one| one.rank).collect();
        at += ranks.len();
        let absent: Vec<u32> = (0..first.size).filter(|rank| !ranks.contains(rank)).collect();
        if !absent.is_empty() {
            let more = absent.len().saturating_sub(8);
            let absent: Vec<String> = absent.iter().take(8).map(u32::to_string).collect();
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            output::remark(&format!(
                "no trace of rank {}{more} of communicator {}",
                absent.join(", "),
                super::show::shown(&first.communicator)
            ));
        }
    }
}

/// A trace on one line, its times in nanoseconds since 1970 by the reference clock.
fn moved(trace: &Trace, clocks: &Clocks) -> String {
    let mut trace = trace.clone();
    let original = trace.clone();
    // What no clock was read for stays so.
    let shift = |ns: u64| match ns {
        0 => 0,
        _ => u64::try_from(clocks.moment(&original, ns).max(0)).unwrap_or(u64::MAX),
    };
    for call in &mut trace.calls {
        call.queued_ns = call.queued_ns.map(shift);
        (call.start_ns, call.end_ns) = (shift(call.start_ns), call.end_ns.map(shift));
    }
    for message in &mut trace.messages {
        (message.start_ns, message.end_ns) = (shift(message.start_ns), message.end_ns.map(shift));
    }
    for launch in &mut trace.launches {
        launch.enqueued_ns = shift(launch.enqueued_ns);
    }
    trace.taken_ns = shift(trace.taken_ns);
    trace.clock.realtime_offset_ns = 0;
    trace.clock.id = "merged".to_owned();
    trace.text().replace('\n', "")
}
