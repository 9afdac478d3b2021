//! Plans for people: a listing for terminals and a space-time diagram.
//!
//! **Invariant:** every plan can be drawn, proved or not: what is wrong with a plan is best seen.

mod svg;
mod text;
mod timeline;

pub use svg::{SvgOptions, svg};
pub use text::{TextOptions, text};

use crate::cost::bytes;
use crate::plan::{Plan, Step};
use crate::problem::{Counts, Problem};
use crate::types::Collective;

/// A plan in a few numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Ranks.
    pub ranks: usize,
    /// Different hosts.
    pub hosts: usize,
    /// Lanes of the rank with most.
    pub lanes: usize,
    /// Steps of all ranks.
    pub steps: usize,
    /// Puts, and signals that are not part of one.
    pub messages: usize,
    /// Bytes put into peers' memory.
    pub bytes_put: u64,
    /// Bytes copied.
    pub bytes_copied: u64,
    /// Bytes of operands folded.
    pub bytes_reduced: u64,
    /// Scratch of the rank with most.
    pub scratch_bytes: u64,
}

impl Summary {
    /// Counts.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let mut hosts = plan.hosts.clone();
        hosts.sort_unstable();
        hosts.dedup();
        let mut summary = Self { ranks: plan.ranks.len(), hosts: hosts.len(), ..Self::default() };
        let Some(data_type) = plan.problems.first().map(|problem| problem.data_type) else {
            return summary;
        };
        for part in &plan.ranks {
            summary.lanes = summary.lanes.max(part.lanes.len());
            summary.steps += part.steps();
            summary.scratch_bytes = summary.scratch_bytes.max(part.scratch_bytes);
            for step in part.lanes.iter().flatten() {
                match step {
                    Step::Copy { source: span, .. } | Step::Get { target: span, .. } => {
                        summary.bytes_copied += bytes(span, data_type);
                    }
                    Step::Reduce { first, operands, .. } => {
                        for operand in part.operands(*first, *operands) {
                            summary.bytes_reduced += bytes(&operand.span, data_type);
                        }
                    }
                    Step::Put { source, .. } => {
                        summary.messages += 1;
                        summary.bytes_put += bytes(source, data_type);
                    }
                    Step::Signal { .. } | Step::Show { .. } => summary.messages += 1,
                    Step::Wait { .. } | Step::See { .. } => {}
                }
            }
        }
        summary
    }

    /// The numbers, in two lines.
    fn lines(&self) -> [String; 2] {
        let lanes = if self.lanes == 1 { "lane" } else { "lanes" };
        [
            format!(
                "{} steps, {} messages, {} {lanes}, {} of scratch a rank",
                self.steps,
                self.messages,
                self.lanes,
                size(self.scratch_bytes)
            ),
            format!(
                "{} put, {} copied, {} folded, all ranks together",
                size(self.bytes_put),
                size(self.bytes_copied),
                size(self.bytes_reduced)
            ),
        ]
    }
}

/// What a plan does, in one line.
fn title(plan: &Plan) -> String {
    let summary = Summary::of(plan);
    let ranks = count(summary.ranks, "rank");
    let hosts = count(summary.hosts, "host");
    let Some(problem) = plan.problems.first() else {
        return format!("{}: an empty plan", plan.algorithm);
    };
    let level = if problem.collective.reduces() {
        format!(", level {}", problem.level)
    } else {
        String::new()
    };
    let root = if problem.collective.has_root() {
        format!(", root {}", problem.root)
    } else {
        String::new()
    };
    let what = match problem.collective {
        Collective::Barrier => String::new(),
        _ => format!(" of {}", values(problem)),
    };
    format!("{} {}{what}, {ranks} on {hosts}{root}{level}", plan.algorithm, problem.collective,)
}

fn values(problem: &Problem) -> String {
    match &problem.counts {
        Counts::Equal(values) => {
            let bytes = values.saturating_mul(problem.data_type.size() as u64);
            format!("{values} {} ({})", problem.data_type, size(bytes))
        }
        Counts::PerRank(_) => format!("{} with a count per rank", problem.data_type),
        Counts::Pairwise { .. } => format!("{} with pairwise counts", problem.data_type),
    }
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Bytes for people: `24 B`, `1.5 KiB`, `128 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut tenths = u128::from(bytes) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[unit]),
        tenth => format!("{}.{tenth} {}", tenths / 10, UNITS[unit]),
    }
}

#[cfg(test)]
mod tests;
