//! One call by every algorithm that can do it, in turns.
//!
//! Turns, because what else runs on a machine comes and goes: algorithms that are timed one after
//! the other see different machines. Of all rounds the quickest counts, as nothing makes a call
//! quicker than it is.

use std::time::Instant;

use ringway::Communicator;
use ringway_plan::algorithm::Algorithm;
use ringway_plan::planner::Choice;
use ringway_plan::types::{Collective, DataType, ReduceOp};

use crate::perf::layout::Layout;
use crate::perf::memory::Buffer;
use crate::perf::ranks::{self, Call};

/// How much time to spend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Rounds at least; up to four times as many while times still fall.
    pub(crate) rounds: u32,
    /// Time for one algorithm in one round.
    pub(crate) round_us: f64,
}

/// Calls in a round, at most.
const CALLS_MAX: u32 = 500;
/// An algorithm so many times slower than the best is not timed again, once it has had its chances:
/// a single slow lap may be somebody else's doing.
const HOPELESS: f64 = 3.0;
/// A time that falls by less has come to rest.
const REST: f64 = 0.95;

/// What is called: in place, where the collective has such a form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) root: u32,
    pub(crate) bytes: u64,
}

impl Subject {
    pub(crate) fn layout(&self, ranks: u32) -> Layout {
        Layout::new(self.collective, self.data_type, ranks, self.bytes)
    }

    /// Bytes as the table counts them.
    pub(crate) fn table_bytes(&self, ranks: u32) -> u64 {
        self.layout(ranks).table_bytes() as u64
    }

    /// Whether any data moves, or none is meant to.
    pub(crate) fn is_something(&self, ranks: u32) -> bool {
        self.collective == Collective::Barrier || self.layout(ranks).count > 0
    }

    /// The call, by the planner's choice.
    pub(crate) fn call(&self, ranks: u32) -> Call {
        Call {
            collective: self.collective,
            data_type: self.data_type,
            op: self.op,
            root: self.root,
            count: self.layout(ranks).count,
            deadline: None,
            scalar: 1.0,
            algorithm: None,
            level: None,
        }
    }
}

/// What came out; the same on all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    /// Bytes of the larger buffer of a rank.
    pub(crate) bytes: u64,
    pub(crate) choice: Choice,
    /// Microseconds of each algorithm, by the slowest rank.
    pub(crate) times: Vec<(Algorithm, f64)>,
}

impl Timed {
    /// The best algorithm and its time.
    pub(crate) fn best(&self) -> Option<(Algorithm, f64)> {
        self.times.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    pub(crate) fn us(&self, algorithm: Algorithm) -> Option<f64> {
        self.times.iter().find(|(timed, _)| *timed == algorithm).map(|(_, us)| *us)
    }

    /// How much longer the planner's choice takes than the best, as a part of the best.
    pub(crate) fn loss(&self) -> f64 {
        match (self.us(self.choice.algorithm), self.best()) {
            (Some(chosen), Some((_, best))) if best > 0.0 => chosen / best - 1.0,
            _ => 0.0,
        }
    }
}

/// The algorithms that can do a call.
pub(crate) fn admitted(choice: &Choice) -> Vec<Algorithm> {
    let able = choice.candidates.iter().filter(|candidate| candidate.predicted_us.is_some());
    able.map(|candidate| candidate.algorithm).collect()
}

struct Runner {
    call: ringway::Call,
    best_us: f64,
}

/// Calls of `one_us` that fit into a round.
fn calls(round_us: f64, one_us: f64) -> u32 {
    let fits = |calls: &u32| f64::from(*calls) * one_us <= round_us;
    (2..=CALLS_MAX).rev().find(fits).unwrap_or(2)
}

/// Times one call by every algorithm. All ranks call it alike.
pub(crate) fn time(
    comm: &Communicator,
    subject: &Subject,
    buffer: &mut Buffer,
    effort: Effort,
) -> anyhow::Result<Timed> {
    let call = subject.call(comm.size());
    let choice = comm.candidates(&call.of_library())?;
    let algorithms = admitted(&choice);
    let calls = algorithms.iter().map(|algorithm| Call { algorithm: Some(*algorithm), ..call });
    let times = time_calls(comm, subject, buffer, effort, calls)?;
    let times = algorithms.into_iter().zip(times).collect();
    Ok(Timed { bytes: subject.table_bytes(comm.size()), choice, times })
}

/// Times several calls that move the same: microseconds of each, by the slowest rank. All ranks call
/// it alike.
pub(crate) fn time_calls(
    comm: &Communicator,
    subject: &Subject,
    buffer: &mut Buffer,
    effort: Effort,
    several: impl Iterator<Item = Call>,
) -> anyhow::Result<Vec<f64>> {
    let rank = comm.rank();
    let layout = subject.layout(comm.size());
    let bytes = layout.in_place_bytes(subject.collective, rank, subject.root);
    let apart = subject.collective == Collective::AllToAll;
    let buffer = buffer.first(if apart { 2 * bytes } else { bytes });
    // Sums of zeros stay zeros, however often they are made.
    buffer.fill(0);
    let (first, second) = buffer.split_at_mut(bytes);
    let mut lap = |call: &ringway::Call, calls: u32| -> anyhow::Result<f64> {
        comm.barrier()?;
        let started = Instant::now();
        for _ in 0..calls {
            match apart {
                true => comm.call(call, first, second)?,
                false => comm.call_in_place(call, first)?,
            }
        }
        let own = started.elapsed().as_secs_f64() * 1e6 / f64::from(calls);
        let all = ranks::all_gather_numbers(comm, &[own])?;
        Ok(all.iter().flatten().copied().fold(0.0, f64::max))
    };
    let mut runners = Vec::new();
    for call in several.map(|call| call.of_library()) {
        // The first call also makes the plan.
        lap(&call, 1)?;
        let best_us = lap(&call, 2)?;
        runners.push(Runner { call, best_us });
    }
    let (mut round, mut rested) = (0, 0);
    while round < effort.rounds || (rested < effort.rounds / 2 && round < 4 * effort.rounds) {
        let best_us = runners.iter().map(|runner| runner.best_us).fold(f64::INFINITY, f64::min);
        let mut falls = false;
        for runner in &mut runners {
            if round >= effort.rounds / 2 && runner.best_us > best_us * HOPELESS {
                continue;
            }
            let us = lap(&runner.call, calls(effort.round_us, runner.best_us))?;
            falls |= us < runner.best_us * REST;
            runner.best_us = runner.best_us.min(us);
        }
        rested = if falls { 0 } else { rested + 1 };
        round += 1;
    }
    Ok(runners.iter().map(|runner| runner.best_us).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_at_least_two_calls_and_an_end() {
        assert_eq!(calls(1000.0, 10.0), 100);
        assert_eq!(calls(1000.0, 1e9), 2);
        assert_eq!(calls(1000.0, f64::INFINITY), 2);
        assert_eq!(calls(1000.0, 0.0), CALLS_MAX);
    }
}
