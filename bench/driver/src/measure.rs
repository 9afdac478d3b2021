//! The measuring loop. `bench/drivers/measure.h` and `bench/drivers/gloo.py` repeat it.
//!
//! One point: a verified call; warm-up for a fifth of the time, which also tells the cost of a call;
//! then samples. A sample is a barrier, then back-to-back calls for about a millisecond (one call
//! where it takes longer). Its time is the slowest rank's, per call.

use std::time::Instant;

use anyhow::Context as _;
use ringway::{Communicator, ReduceOp};
use serde_json::{Value as Json, json};

use crate::arena::Arena;
use crate::collective::{Collective, Place, Value};

/// Calls go on for about this long between two barriers.
const BATCH_SECONDS: f64 = 0.001;
const SAMPLES_LEAST: usize = 5;
const SAMPLES_MOST: usize = 1024;
/// The ranks ask each other after this many samples whether time is up.
const SAMPLES_AT_ONCE: usize = 5;
/// Samples may take this many times the time asked for, where calls turn out slower.
const PATIENCE: f64 = 3.0;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) collective: Collective,
    pub(crate) bytes: usize,
    pub(crate) cold: bool,
    pub(crate) seconds: f64,
}

/// A rank's memory and how often it was used.
struct Subject<'a, T> {
    comm: &'a Communicator,
    collective: Collective,
    send: Arena<T>,
    receive: Arena<T>,
    turn: usize,
}

impl<T: Value> Subject<'_, T> {
    /// A barrier, then `calls` calls; seconds on this rank.
    fn batch(&mut self, calls: u32) -> ringway::Result<f64> {
        self.comm.barrier()?;
        let started = Instant::now();
        for _ in 0..calls {
            let (send, receive) = (self.send.slot(self.turn), self.receive.slot(self.turn));
            self.collective.call(self.comm, send, receive)?;
            self.turn = self.turn.wrapping_add(1);
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Each value becomes the greatest of all ranks'.
    fn most(&self, values: &mut [f64]) -> ringway::Result<()> {
        self.comm.all_reduce_in_place(values, ReduceOp::Max)
    }

    fn most_of(&self, value: f64) -> ringway::Result<f64> {
        let mut one = [value];
        self.most(&mut one)?;
        Ok(one[0])
    }

    /// Runs for a fifth of the time; the least a call took, so that noise adds no error.
    fn warm_up(&mut self, seconds: f64) -> ringway::Result<f64> {
        let (mut spent, mut each, mut calls) = (0.0, f64::INFINITY, 1_u32);
        loop {
            let took = self.batch(calls)?;
            let took = self.most_of(took)?;
            spent += took;
            each = each.min(took / f64::from(calls));
            if spent >= 0.2 * seconds {
                return Ok(each.max(1e-9));
            }
            calls = calls.saturating_mul(2);
        }
    }

    /// Seconds of each sample, sorted.
    fn samples(&mut self, seconds: f64, calls: u32, each: f64) -> ringway::Result<Vec<f64>> {
        let calls_f = f64::from(calls);
        let wanted = floor(seconds / (calls_f * each)).clamp(SAMPLES_LEAST, SAMPLES_MOST);
        let mut times = Vec::with_capacity(wanted);
        let started = Instant::now();
        let mut spent = 0.0;
        while times.len() < wanted && (times.len() < SAMPLES_LEAST || spent < PATIENCE * seconds) {
            for _ in 0..SAMPLES_AT_ONCE.min(wanted - times.len()) {
                times.push(self.batch(calls)? / calls_f);
            }
            spent = self.most_of(started.elapsed().as_secs_f64())?; // all must agree to stop
        }
        self.most(&mut times)?;
        times.sort_by(f64::total_cmp);
        Ok(times)
    }
}

/// Measures one point; all ranks get the same.
pub(crate) fn point<T: Value>(comm: &Communicator, point: &Point) -> anyhow::Result<Json> {
    let Point { collective, cold, seconds, .. } = *point;
    let ranks = comm.size() as usize;
    let bytes = whole_bytes(collective, point.bytes, ranks * size_of::<T>());
    let place = Place { rank: comm.rank() as usize, ranks, count: bytes / size_of::<T>() };
    let mut subject = Subject {
        comm,
        collective,
        send: Arena::<T>::new(collective.sends(&place), cold),
        receive: Arena::<T>::new(collective.receives(&place), cold),
        turn: 0,
    };
    collective.verify(comm, &place, subject.send.slot(0), subject.receive.slot(0))?;
    let each = subject.warm_up(seconds)?;
    let calls = u32::try_from(floor(BATCH_SECONDS / each).max(1)).context("calls in a batch")?;
    let times = subject.samples(seconds, calls, each)?;
    Ok(json!({
        "coll": collective.name(),
        "dtype": T::NAME,
        "buffers": if cold { "cold" } else { "hot" },
        "ranks": ranks,
        "size": point.bytes,
        "bytes": bytes,
        "time_us": microseconds(median(&times)),
        "min_us": microseconds(times[0]),
        "p90_us": microseconds(times[times.len() * 9 / 10]),
        "samples": times.len(),
        "batch": calls,
    }))
}

/// A size that gives every rank the same number of elements, at least one.
fn whole_bytes(collective: Collective, bytes: usize, unit: usize) -> usize {
    if collective.has_size() { (bytes / unit * unit).max(unit) } else { 0 }
}

fn median(sorted: &[f64]) -> f64 {
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    f64::midpoint(low, high)
}

/// Microseconds with three digits after the point.
fn microseconds(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e3
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count of calls or samples: positive, and bounded by the caller"
)]
fn floor(value: f64) -> usize {
    value as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_give_every_rank_an_element() {
        assert_eq!(whole_bytes(Collective::AllReduce, 8, 16), 16);
        assert_eq!(whole_bytes(Collective::AllReduce, 100, 12), 96);
        assert_eq!(whole_bytes(Collective::Barrier, 0, 16), 0);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[1.0, 2.0, 6.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 6.0]), 3.0);
    }

    #[test]
    fn a_point_is_measured_by_all_ranks_alike() {
        ringway::testing::world(2, |comm| {
            let collective = Collective::AllToAll;
            let asked = Point { collective, bytes: 64, cold: false, seconds: 0.005 };
            let measured = point::<half::bf16>(comm, &asked).unwrap();
            assert_eq!(measured["bytes"], 64);
            assert_eq!(measured["dtype"], "bf16");
            assert!(measured["time_us"].as_f64().unwrap() > 0.0);
        });
    }
}
