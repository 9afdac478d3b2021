//! Groups as communicators of their own, timed in turns, and what is shown of it.

use std::time::Duration;

use ringway::Communicator;
use ringway_plan::algorithm::Algorithm;
use ringway_plan::types::{Collective, DataType, ReduceOp};
use serde::Serialize;

use super::search::{Cost, Group, Lab, Worker};
use crate::output;
use crate::perf::args::Memory;
use crate::perf::memory::Buffer;
use crate::perf::ranks::{self, Call};
use crate::perf::slow::area::Area;
use crate::perf::slow::places::Places;
use crate::perf::slow::work::{self, Copies};
use crate::perf::slow::{SlowArgs, calls_of_batch, robust, seconds};
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
    /// What a copy took in the memory of each rank's GPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    copy_us: Vec<f64>,
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
    memory: Memory,
    bytes: u64,
    /// For the calls of all groups, on host memory.
    buffer: Buffer,
    copies: Copies<'a>,
    pub(crate) rounds: Vec<Round>,
}

/// A group of which this rank may be.
struct Joined {
    comm: Option<Communicator>,
    calls: Vec<Repeated>,
}

/// A call, its bytes, and how often it is made.
struct Repeated {
    call: ringway::Call,
    room: usize,
    count: u64,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(
        comm: &'a Communicator,
        places: &'a Places,
        args: &SlowArgs,
    ) -> anyhow::Result<Self> {
        let memory = args.memory;
        Ok(Self {
            comm,
            places,
            memory,
            bytes: args.bytes,
            buffer: Area::buffer(memory, room(args.bytes)),
            copies: Copies::new(comm, memory)?,
            rounds: Vec::new(),
        })
    }

    /// Every rank calls it, also those that are not of the group.
    fn join(&self, group: &Group) -> anyhow::Result<Joined> {
        let own = self.comm.rank() as usize;
        let position = group.iter().position(|rank| *rank == own);
        let key = i32::try_from(position.unwrap_or(0))?;
        let comm = self.comm.split(position.map(|_| 0), key)?;
        if let (Some(comm), Some(gpu)) = (&comm, self.comm.gpu()) {
            comm.attach_gpu(Some(gpu.ordinal()))?;
        }
        Ok(Joined { comm, calls: Vec::new() })
    }

    /// Seconds of the small call and of the large one, as this rank sees them; nothing where it is not of the group. The group
    /// is made at its first turn. On GPU memory it is made for each turn anew, since communicators that a process has on a GPU
    /// share that: the later one is made, the less it would get. Every rank calls it.
    fn turn(&mut self, group: &Group, kept: &mut Option<Joined>) -> anyhow::Result<[f64; 2]> {
        let mut joined = kept.take().map_or_else(|| self.join(group), Ok)?;
        self.comm.barrier()?;
        let mut times = [0.0; 2];
        if let Some(comm) = &joined.comm {
            let mut area = Area::new(comm, self.memory, room(self.bytes), &mut self.buffer)?;
            if joined.calls.is_empty() {
                joined.calls = [SMALL, self.bytes]
                    .iter()
                    .map(|bytes| repeated(comm, *bytes, &mut area))
                    .collect::<anyhow::Result<_>>()?;
            }
            for (time, one) in times.iter_mut().zip(&joined.calls) {
                comm.barrier()?;
                *time = seconds(|| one.run(one.count, &mut area))? / one.count as f64;
            }
        }
        *kept = (self.memory == Memory::Host).then_some(joined);
        Ok(times)
    }

    fn print(&self, line: &str) -> anyhow::Result<()> {
        if self.comm.rank() == 0 {
            output::line(line)?;
        }
        Ok(())
    }
}

impl Repeated {
    fn run(&self, times: u64, area: &mut Area<'_>) -> anyhow::Result<()> {
        (0..times).try_for_each(|_| area.call(&self.call, self.room))?;
        area.finish()
    }
}

/// A call in a group, made ready: connections, the plan, the kernel.
fn repeated(comm: &Communicator, bytes: u64, area: &mut Area<'_>) -> anyhow::Result<Repeated> {
    let subject = timing::Subject {
        collective: Collective::AllReduce,
        data_type: DataType::F32,
        op: ReduceOp::Sum,
        root: 0,
        bytes,
    };
    let call = subject.call(comm.size());
    let choice = comm.candidates(&call.of_library())?;
    // In a ring all links carry the same, so the slowest one tells. Kernels that use memory where it lies pay no heed to it.
    let ring = timing::admitted(&choice).contains(&Algorithm::Ring) && bytes > SMALL;
    let call = Call { algorithm: ring.then_some(Algorithm::Ring), ..call }.of_library();
    let room = subject.layout(comm.size()).table_bytes();
    let mut one = Repeated { call, room, count: 1 };
    one.run(1, area)?;
    let once = seconds(|| one.run(1, area))?;
    let all = ranks::all_gather_numbers(comm, &[once])?;
    let once = all.iter().flatten().copied().fold(0.0, f64::max);
    one.count = calls_of_batch(Duration::from_secs_f64(once), BATCH, CALLS_MOST);
    Ok(one)
}

/// Bytes of the buffer.
fn room(bytes: u64) -> usize {
    usize::try_from(bytes.max(SMALL)).unwrap_or(usize::MAX)
}

impl Lab for Bench<'_> {
    fn measure(&mut self, what: &str, groups: &[Group]) -> anyhow::Result<Vec<Cost>> {
        let mut kept: Vec<Option<Joined>> = groups.iter().map(|_| None).collect();
        let mut best = vec![f64::INFINITY; 2 * groups.len()];
        for _ in 0..TURNS {
            let mut own = vec![0.0; 2 * groups.len()];
            for (at, (group, kept)) in groups.iter().zip(&mut kept).enumerate() {
                own[2 * at..2 * at + 2].copy_from_slice(&self.turn(group, kept)?);
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
            copy_us: Vec::new(),
            found: String::new(),
        });
        Ok(costs)
    }

    fn work(&mut self, what: &str, worker: Worker) -> anyhow::Result<Vec<f64>> {
        let own = self.comm.rank() as usize;
        let (turns, own_turn) = match worker {
            Worker::Processor => (self.places.turns(), self.places.turn(own)),
            Worker::Gpu => (self.places.gpu_turns(), self.places.gpu_turn(own)),
        };
        let mut own_us = 0.0;
        for turn in 0..turns {
            self.comm.barrier()?;
            if turn == own_turn {
                own_us = match worker {
                    Worker::Processor => work::piece_us(),
                    Worker::Gpu => self.copies.copy_us()?.unwrap_or(0.0),
                };
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
            work_us: if worker == Worker::Processor { all.clone() } else { Vec::new() },
            copy_us: if worker == Worker::Gpu { all.clone() } else { Vec::new() },
            found: String::new(),
        });
        Ok(all)
    }

    fn has_rings(&self) -> bool {
        !self.comm.is_gpu_direct()
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
