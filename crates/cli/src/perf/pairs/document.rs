//! The JSON form: `-J FILE`, described in docs/slow-one.md.

use serde::Serialize;

use super::Outcome;
use super::grid::Grid;
use super::show::{Page, gigabytes_per_second};
use crate::perf::clock;
use crate::perf::slow::PAIRS_FORMAT;
use crate::perf::slow::culprit::Culprit;
use crate::perf::slow::places::{Place, Places};

/// Everything a file holds.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a> {
    format: &'static str,
    version: &'static str,
    start_time: String,
    end_time: String,
    connection: &'a str,
    ranks: &'a [Place],
    bytes: u64,
    /// So many times as long is slow.
    limit: f64,
    rounds: usize,
    at_once: usize,
    /// Row by row; nothing on the diagonal.
    round_trip_us: Vec<Vec<Option<f64>>>,
    /// From row to column.
    bandwidth_gbytes: Vec<Vec<Option<f64>>>,
    /// A piece of work on each rank's processor.
    work_us: &'a [Option<f64>],
    suspects: usize,
    culprits: &'a [Culprit],
}

impl<'a> Document<'a> {
    pub(crate) fn new(
        outcome: &'a Outcome,
        places: &'a Places,
        page: &'a Page,
        start_time: String,
    ) -> Self {
        let bytes = page.bytes;
        Self {
            format: PAIRS_FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            start_time,
            end_time: clock::now(),
            connection: &page.connection,
            ranks: &places.0,
            bytes,
            limit: page.limit,
            rounds: outcome.rounds,
            at_once: outcome.at_once,
            round_trip_us: rows(&outcome.times.round_trips, |us| us),
            bandwidth_gbytes: rows(&outcome.times.messages, |us| gigabytes_per_second(bytes, us)),
            work_us: &outcome.times.works,
            suspects: outcome.suspects,
            culprits: &outcome.culprits,
        }
    }
}

fn rows(grid: &Grid, value: impl Fn(f64) -> f64) -> Vec<Vec<Option<f64>>> {
    let row = |row| (0..grid.side()).map(|column| grid.at(row, column).map(&value)).collect();
    (0..grid.side()).map(row).collect()
}
