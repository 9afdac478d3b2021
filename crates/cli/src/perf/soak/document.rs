//! The file of a long run (`-J`); docs/soak.md lists its keys.

use serde::Serialize;

use super::record::{Record, Summary, Window};
use crate::perf::check::Case;
use crate::perf::clock;
use crate::perf::table::Device;

/// By which readers know it.
pub(crate) const FORMAT: &str = "ringway soak 1";

/// What was called, and how that went so far.
#[derive(Debug)]
pub(super) struct Called<'a> {
    pub(super) case: &'a Case,
    pub(super) connection: String,
    pub(super) start_time: &'a str,
    pub(super) finished: bool,
}

/// Everything the file holds.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    format: &'static str,
    version: &'static str,
    start_time: &'a str,
    end_time: String,
    /// Whether the run went on for as long as was asked.
    finished: bool,
    collective: &'static str,
    size: usize,
    r#type: &'static str,
    connection: String,
    ranks: Vec<OfRank<'a>>,
    windows: &'a [Window],
    summary: Summary,
    errors: &'a [String],
}

#[derive(Debug, Serialize)]
struct OfRank<'a> {
    rank: u32,
    hostname: &'a str,
    pid: u32,
    /// To how many of the calls looked at it came last.
    last: u64,
    /// In how many it was for longest.
    longest: u64,
    late_s: f64,
    /// For how long others slept waiting for it, all of them together.
    waited_for_s: f64,
}

impl<'a> Document<'a> {
    pub(super) fn new(
        called: Called<'a>,
        devices: &'a [Device],
        record: &'a Record,
        summary: Summary,
    ) -> Self {
        let of_rank = |device: &'a Device| {
            let at = device.rank as usize;
            let one = record.tally.ranks.get(at).copied().unwrap_or_default();
            OfRank {
                rank: device.rank,
                hostname: &device.host,
                pid: device.pid,
                last: one.last,
                longest: one.longest,
                late_s: one.late_s,
                waited_for_s: record.waited_s.get(at).copied().unwrap_or(0.0),
            }
        };
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            start_time: called.start_time,
            end_time: clock::now(),
            finished: called.finished,
            collective: called.case.collective.name(),
            size: called.case.layout.table_bytes(),
            r#type: called.case.data_type.name(),
            connection: called.connection,
            ranks: devices.iter().map(of_rank).collect(),
            windows: &record.windows,
            summary,
            errors: &record.errors,
        }
    }
}
