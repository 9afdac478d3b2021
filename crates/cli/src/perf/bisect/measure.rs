//! Groups as communicators of their own, timed in turns, and what is shown of it.

use std::time::Duration;

use ringway::Communicator;
use ringway_plan::algorithm::Algorithm;
use ringway_plan::types::{Collective, DataType, ReduceOp};
use serde::Serialize;

use super::search::{Cost, Group, Lab};
use crate::output;
use crate::perf::memory::Buffer;
use crate::perf::ranks::{self, Call};
use crate::perf::slow::places::Places;
use crate::perf::slow::robust;
use crate::perf::slow::{calls_of_batch, seconds, work};
use crate::timing;

/// How long a batch takes, at least.
const BATCH: Duration = Duration::from_millis(12);
/// Calls of a batch, at most.
const CALLS_MOST: u64 = 5_000;
/// How often each group is measured; the quickest counts.
const TURNS: usize = 3;
/// Bytes of a small call.
const SMALL: u64 = 8;

/// One round, for those who read of it later.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    what: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Measured>,
    /// What the same work took on each rank's processor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    work_us: Vec<f64>,
    /// What followed from it.
    found: String,
}

#[derive(Clone, Debug, Serialize)]
struct Measured {
    ranks: Group,
    small_us: f64,
    large_us: f64,
}

/// A rank's side of all rounds.
pub(crate) struct Bench<'a> {
    comm: &'a Communicator,
    places: &'a Places,
    bytes: u64,
    buffer: Buffer,
    pub(crate) rounds: Vec<Round>,
}

/// A group that this rank is in.
struct Joined {
    comm: Communicator,
    /// The small call and the large one, each with how often it is made.
    calls: [(ringway::Call, usize, u64); 2],
}

impl<'a> Bench<'a> {
    pub(crate) fn new(comm: &'a Communicator, places: &'a Places, bytes: u64) -> Self {
        let room = usize::try_from(bytes.max(SMALL)).unwrap_or(usize::MAX);
        let mut buffer = Buffer::new(room, 0);
        // Sums of zeros stay zeros, however often they are made.
        buffer.first(room).fill(0);
        Self { comm, places, bytes, buffer, rounds: Vec::new() }
    }

    fn join(&mut self, group: &Group) -> anyhow::Result<Option<Joined>> {
        let own = self.comm.rank() as usize;
        let position = group.iter().position(|rank| *rank == own);
        let key = i32::try_from(position.unwrap_or(0))?;
        let Some(comm) = self.comm.split(position.map(|_| 0), key)? else {
            return Ok(None);
        };
        let mut calls = Vec::new();
        for bytes in [SMALL, self.bytes] {
            let subject = timing::Subject {
                collective: Collective::AllReduce,
                data_type: DataType::F32,
                op: ReduceOp::Sum,
                root: 0,
                bytes,
            };
            let call = subject.call(comm.size());
            let choice = comm.candidates(&call.of_library())?;
            // In a ring all links carry the same, so the slowest one tells.
            let ring = timing::admitted(&choice).contains(&Algorithm::Ring) && bytes > SMALL;
            let call = Call { algorithm: ring.then_some(Algorithm::Ring), ..call }.of_library();
            let room = subject.layout(comm.size()).table_bytes();
            // The first call also makes connections and the plan.
            comm.call_in_place(&call, self.buffer.first(room))?;
            let once = seconds(|| Ok(comm.call_in_place(&call, self.buffer.first(room))?))?;
            let all = ranks::all_gather_numbers(&comm, &[once])?;
            let once = all.iter().flatten().copied().fold(0.0, f64::max);
            let count = calls_of_batch(Duration::from_secs_f64(once), BATCH, CALLS_MOST);
            calls.push((call, room, count));
        }
        let calls = <[_; 2]>::try_from(calls).map_err(|_| anyhow::anyhow!("two calls are made"))?;
        Ok(Some(Joined { comm, calls }))
    }

    /// Seconds of a call of both kinds, as this rank sees it.
    fn batch(&mut self, group: &Joined) -> anyhow::Result<[f64; 2]> {
        let mut times = [0.0; 2];
        for (time, (call, room, count)) in times.iter_mut().zip(&group.calls) {
            group.comm.barrier()?;
            let buffer = self.buffer.first(*room);
            let whole = seconds(|| {
                (0..*count).try_for_each(|_| Ok(group.comm.call_in_place(call, buffer)?))
            })?;
            *time = whole / *count as f64;
        }
        Ok(times)
    }

    fn print(&self, line: &str) -> anyhow::Result<()> {
        if self.comm.rank() == 0 {
            output::line(line)?;
        }
        Ok(())
    }
}

impl Lab for Bench<'_> {
    fn measure(&mut self, what: &str, groups: &[Group]) -> anyhow::Result<Vec<Cost>> {
        let joined: Vec<Option<Joined>> =
            groups.iter().map(|group| self.join(group)).collect::<anyhow::Result<_>>()?;
        let mut best = vec![f64::INFINITY; 2 * groups.len()];
        for _ in 0..TURNS {
            let mut own = vec![0.0; 2 * groups.len()];
            for (at, group) in joined.iter().enumerate() {
                self.comm.barrier()?;
                if let Some(group) = group {
                    own[2 * at..2 * at + 2].copy_from_slice(&self.batch(group)?);
                }
            }
            let all = ranks::all_gather_numbers(self.comm, &own)?;
            for (at, best) in best.iter_mut().enumerate() {
                let slowest = all.iter().map(|rank| rank[at]).fold(0.0, f64::max);
                *best = best.min(slowest);
            }
        }
        let costs: Vec<Cost> = best
            .chunks_exact(2)
            .map(|both| Cost { small: both[0] * 1e6, large: both[1] * 1e6 })
            .collect();
        self.print(&format!("round {}: {what}", self.rounds.len() + 1))?;
        let mut measured = Vec::new();
        for (group, cost) in groups.iter().zip(&costs) {
            let name = short(group, self.places);
            self.print(&format!("  {:>10.1} us {:>10.1} us  {name}", cost.small, cost.large))?;
            measured.push(Measured {
                ranks: group.clone(),
                small_us: cost.small,
                large_us: cost.large,
            });
        }
        self.rounds.push(Round {
            what: what.to_owned(),
            groups: measured,
            work_us: Vec::new(),
            found: String::new(),
        });
        Ok(costs)
    }

    fn work(&mut self, what: &str) -> anyhow::Result<Vec<f64>> {
        let own = self.comm.rank() as usize;
        let mut own_us = 0.0;
        for turn in 0..self.places.turns() {
            self.comm.barrier()?;
            if self.places.turn(own) == turn {
                own_us = work::piece_us();
            }
        }
        let all: Vec<f64> =
            ranks::all_gather_numbers(self.comm, &[own_us])?.into_iter().flatten().collect();
        let [least, middle, most] = [0.0, 0.5, 1.0].map(|part| robust::quantile(&all, part));
        self.print(&format!("round {}: {what}", self.rounds.len() + 1))?;
        self.print(&format!("  usually {middle:.1} us, {least:.1} us to {most:.1} us"))?;
        self.rounds.push(Round {
            what: what.to_owned(),
            groups: Vec::new(),
            work_us: all.clone(),
            found: String::new(),
        });
        Ok(all)
    }

    fn conclude(&mut self, text: &str) -> anyhow::Result<()> {
        if let Some(round) = self.rounds.last_mut() {
            text.clone_into(&mut round.found);
        }
        self.print(&format!("  -> {text}"))
    }
}

/// The ranks of a group, in few words.
fn short(group: &Group, places: &Places) -> String {
    const SHOWN: usize = 8;
    let numbers: Vec<String> = group.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = match group.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!(" and {more} more"),
        _ => String::new(),
    };
    let mut hosts: Vec<&str> = Vec::new();
    for place in group.iter().filter_map(|rank| places.0.get(*rank)) {
        if !hosts.contains(&place.host.as_str()) {
            hosts.push(&place.host);
        }
    }
    let hosts = match (places.nodes(), hosts.len()) {
        (1, _) | (_, 5..) => String::new(),
        _ => format!(" on {}", hosts.join(", ")),
    };
    format!("ranks {}{more}{hosts}", numbers.join(" "))
}
