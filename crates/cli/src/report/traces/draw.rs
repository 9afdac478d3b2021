//! The picture of when each rank was in which operation.

use std::collections::{BTreeMap, BTreeSet};

use ringway_sim::outcome::Span;
use ringway_sim::report::timeline::figure;

use super::late::Lateness;
use super::{Job, list, nanos};
use crate::report::model::{BOXES, Block};
use crate::size;

/// Ranks that have a row.
const ROWS: usize = 24;
/// Operations that are drawn, the last ones.
const OPERATIONS: usize = 120;

/// One operation of all ranks.
struct Whole {
    name: String,
    first: i128,
    last: (i128, u32),
    end: i128,
}

/// Draws the last operations; of many ranks those that held up others most.
pub(super) fn timeline(blocks: &mut Vec<Block>, job: &Job<'_>, lateness: &Lateness) {
    let mut all: BTreeMap<u64, Whole> = BTreeMap::new();
    for (trace, shift) in &job.traces {
        for (call, start, end) in Job::calls(trace, *shift) {
            let name = format!("{} {}", call.collective.name(), size::display(call.bytes));
            let whole = all.entry(call.sequence).or_insert_with(|| Whole {
                name,
                first: start,
                last: (start, trace.rank),
                end,
            });
            whole.first = whole.first.min(start);
            whole.last = whole.last.max((start, trace.rank));
            whole.end = whole.end.max(end);
        }
    }
    let shown = shown_ranks(job, lateness);
    let most = (BOXES / (shown.len() + 2)).min(OPERATIONS);
    let sequences: BTreeSet<u64> = all.keys().rev().take(most).copied().collect();
    let kept = |sequence: &u64| sequences.contains(sequence);
    let window = all.iter().filter(|(sequence, _)| kept(sequence)).map(|(_, whole)| whole);
    let Some(origin) = window.clone().map(|whole| whole.first).min() else {
        blocks.push(Block::Note("The traces hold no operation with a known time.".to_owned()));
        return;
    };
    let end = window.clone().map(|whole| whole.end).max().unwrap_or(origin);
    let us = |ns: i128| (ns - origin) as f64 / 1e3;
    let mut spans = Vec::new();
    if job.traces.len() > 1 {
        let row = format!("all {} ranks", job.traces.len());
        for whole in window {
            // Until the last has come nothing can be done; too little to be seen is left out.
            if whole.last.0 - whole.first > (end - origin) / 500 {
                spans.push(Span {
                    name: format!("waiting for rank {}", whole.last.1),
                    row: row.clone(),
                    start_us: us(whole.first),
                    end_us: us(whole.last.0),
                });
            }
            spans.push(Span {
                name: whole.name.clone(),
                row: row.clone(),
                start_us: us(whole.last.0),
                end_us: us(whole.end),
            });
        }
    }
    for (trace, shift) in job.traces.iter().filter(|(trace, _)| shown.contains(&trace.rank)) {
        let row = format!("rank {} {}", trace.rank, trace.host);
        for (call, start, end) in
            Job::calls(trace, *shift).filter(|(call, ..)| kept(&call.sequence))
        {
            spans.push(Span {
                name: format!("{} {}", call.collective.name(), size::display(call.bytes)),
                row: row.clone(),
                start_us: us(start),
                end_us: us(end),
            });
        }
    }
    blocks.push(Block::Picture(figure(&spans, &[], us(end))));
    let mut note = format!("The last {} of {} operations kept", sequences.len(), all.len());
    if shown.len() < job.traces.len() {
        note += &format!(
            "; rows for {} of {} ranks, those that held up others most ({})",
            shown.len(),
            job.traces.len(),
            list(&shown)
        );
    }
    blocks.push(Block::Note(format!("{note}; {} from left to right.", nanos(end - origin))));
}

/// The ranks that have a row of their own, the worst first.
fn shown_ranks(job: &Job<'_>, lateness: &Lateness) -> Vec<u32> {
    let mut ranks: Vec<u32> = job.traces.iter().map(|(trace, _)| trace.rank).collect();
    ranks.sort_by(|one, other| lateness.order(*one, *other));
    ranks.truncate(ROWS);
    ranks
}
