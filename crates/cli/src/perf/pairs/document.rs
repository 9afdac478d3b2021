//! The JSON form: `-J FILE`, described in docs/slow-one.md.

use serde::Serialize;

use super::Outcome;
use super::grid::Grid;
use super::judge::Times;
use super::show::gigabytes_per_second;
use crate::perf::slow::culprit::Culprit;
use crate::perf::slow::head::Head;

/// Everything a file holds.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    rounds: usize,
    at_once: usize,
    /// Row by row; nothing on the diagonal.
    round_trip_us: Vec<Vec<Option<f64>>>,
    /// From row to column.
    bandwidth_gbytes: Vec<Vec<Option<f64>>>,
    /// A piece of work on each rank's processor.
    work_us: &'a [Option<f64>],
    /// A copy in the memory of each rank's GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    copy_us: Option<&'a [Option<f64>]>,
    suspects: usize,
    culprits: &'a [Culprit],
}

impl<'a> Document<'a> {
    pub(crate) fn new(head: Head<'a>, outcome: &'a Outcome, bytes: u64) -> Self {
        let Times { round_trips, messages, works, copies } = &outcome.times;
        Self {
            head,
            rounds: outcome.rounds,
            at_once: outcome.at_once,
            round_trip_us: rows(round_trips, |us| us),
            bandwidth_gbytes: rows(messages, |us| gigabytes_per_second(bytes, us)),
            work_us: works,
            copy_us: copies.iter().any(Option::is_some).then_some(copies),
            suspects: outcome.suspects,
            culprits: &outcome.culprits,
        }
    }
}

fn rows(grid: &Grid, value: impl Fn(f64) -> f64) -> Vec<Vec<Option<f64>>> {
    let row = |row| (0..grid.side()).map(|column| grid.at(row, column).map(&value)).collect();
    (0..grid.side()).map(row).collect()
}
