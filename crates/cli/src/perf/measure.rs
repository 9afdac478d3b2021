//! One row of the table: time a call out of place and in place, then check its results.

use std::time::{Duration, Instant};

use ringway::Communicator;
use ringway_plan::types::{Collective, DataType, ReduceOp};

use super::check::Case;
use super::clock;
use super::device::{Device, Side};
use super::late::Tally;
use super::layout::Layout;
use super::memory::{self, Buffer};
use super::ranks::{self, Call, Collectives, Pair};
use super::settings::{Blocking, ITERATIONS, Settings};
use super::stats::{self, IterationStats, as_float};
use super::table::{Cell, Iterations, Row};

/// Time for the iterations of one placement where their number is ours to choose.
const PLACEMENT_BUDGET_S: f64 = 0.3;

/// How often memory is copied, and how much of it each time at least, to know how fast it is.
const COPY_ROUNDS: usize = 5;
const COPIED_BYTES: usize = 1 << 20;

/// What a row measures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) data_type: DataType,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) root: Option<u32>,
    pub(crate) bytes: u64,
}

/// A rank's side of the measurement.
pub(crate) struct Bench<'a> {
    comm: &'a dyn Collectives,
    settings: &'a Settings,
    /// What is sent and received; on GPU memory what is copied there and back.
    input: Buffer,
    output: Buffer,
    /// Where the buffers are on a GPU.
    device: Option<Device<'a>>,
    round: u64,
}

/// What one rank measured.
struct Timed {
    seconds_per_call: f64,
    cpu_seconds_per_call: f64,
    iterations: u32,
    /// Empty unless every iteration is timed.
    each: Vec<f64>,
}

impl<'a> Bench<'a> {
    /// Allocates the buffers for the greatest size in host memory.
    pub(crate) fn new(comm: &'a dyn Collectives, settings: &'a Settings) -> Self {
        let (input_bytes, output_bytes) = memory::buffer_bytes(settings, comm.size());
        let skew = skew(settings);
        let (input, output) = (Buffer::new(input_bytes, skew), Buffer::new(output_bytes, skew));
        Self { comm, settings, input, output, device: None, round: 0 }
    }

    /// The same in the memory of the communicator's GPU.
    pub(crate) fn on_gpu(comm: &'a Communicator, settings: &'a Settings) -> anyhow::Result<Self> {
        let bytes = memory::buffer_bytes(settings, comm.size());
        // Calls that have no form in place put aside all there is.
        let bytes = (bytes.0.max(bytes.1), bytes.1);
        let device = Device::new(comm, bytes, skew(settings))?;
        Ok(Self { device: Some(device), ..Self::new(comm, settings) })
    }

    /// Measures one row; all ranks call it alike and get the same row.
    pub(crate) fn row(&mut self, subject: &Subject) -> anyhow::Result<Row> {
        let Subject { data_type, op, root, .. } = *subject;
        let case = self.case(subject);
        let layout = case.layout;
        let (out_of_place, actual_iterations) = self.placement(&case, false)?;
        let (in_place, _) = self.placement(&case, true)?;
        Ok(Row {
            bytes: layout.table_bytes(),
            count: layout.count,
            data_type: data_type.name(),
            op: op.map_or("none", ReduceOp::name),
            root: root.map_or(-1, i64::from),
            out_of_place,
            in_place,
            actual_iterations,
            timestamp: self.settings.columns.timestamps.then(clock::now),
        })
    }

    fn case(&self, subject: &Subject) -> Case {
        let Subject { data_type, op, root, bytes } = *subject;
        let (collective, size) = (self.settings.collective, self.comm.size());
        Case {
            collective,
            data_type,
            op,
            root: root.unwrap_or(0),
            rank: self.comm.rank(),
            size,
            layout: Layout::new(collective, data_type, size, bytes),
            round: 0,
        }
    }

    /// Makes buffers ready for calls out of place, and warms up.
    pub(crate) fn begin(&mut self, subject: &Subject) -> anyhow::Result<Case> {
        let case = self.case(subject);
        self.prepare(&case, false)?;
        for _ in 0..self.settings.warmup {
            self.once(&case, false)?;
        }
        self.wait()?;
        Ok(case)
    }

    /// Makes so many calls out of place, each waited for: the seconds of each.
    pub(crate) fn timed(&mut self, case: &Case, calls: u32) -> anyhow::Result<Vec<f64>> {
        let mut seconds = Vec::with_capacity(calls as usize);
        for _ in 0..calls {
            let started = Instant::now();
            self.once(case, false)?;
            self.wait()?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        Ok(seconds)
    }

    /// GB/s at which ranks copy so much memory, all at the same time: those of the last to be done. All ranks call it.
    pub(crate) fn copy_gbs(&mut self, bytes: u64) -> anyhow::Result<f64> {
        let bytes = self.output.first(usize::try_from(bytes).unwrap_or(usize::MAX));
        let (source, target) = bytes.split_at_mut(bytes.len() / 2);
        let target = &mut target[..source.len()];
        let copies = COPIED_BYTES.div_ceil(source.len().max(1)).min(COPIED_BYTES);
        let mut best = f64::INFINITY;
        for _ in 0..COPY_ROUNDS {
            self.comm.barrier()?;
            let started = Instant::now();
            for _ in 0..copies {
                std::hint::black_box(&mut *target).copy_from_slice(std::hint::black_box(&*source));
            }
            let own = started.elapsed().as_secs_f64();
            let all = ranks::all_gather_numbers(self.comm, &[own])?;
            best = best.min(all.iter().flatten().copied().fold(0.0, f64::max));
        }
        // A copy of nothing has no rate; what is so small is never judged.
        Ok(stats::gigabytes_per_second(copies * source.len(), best).max(0.001))
    }

    fn placement(&mut self, case: &Case, in_place: bool) -> anyhow::Result<(Cell, u32)> {
        let timed = self.time(case, in_place)?;
        let own = [timed.seconds_per_call, timed.cpu_seconds_per_call];
        let all = ranks::all_gather_numbers(self.comm, &own)?;
        let column = |at: usize| all.iter().map(|rank| rank[at]).collect::<Vec<_>>();
        let seconds = self.settings.average.of(&column(0));
        let shown = if self.settings.columns.cpu_time {
            self.settings.average.of(&column(1))
        } else {
            seconds
        };
        let iterations = if self.settings.columns.iterations {
            Some(self.gather_iterations(&timed.each)?)
        } else {
            None
        };
        let wrong = self.check(case, in_place)?;
        let alg_bw = stats::gigabytes_per_second(case.layout.table_bytes(), seconds);
        let bus_bw = alg_bw * case.collective.bus_factor(case.size);
        let cell = Cell { time_us: shown * 1e6, alg_bw, bus_bw, wrong, iterations };
        Ok((cell, timed.iterations))
    }

    fn gather_iterations(&self, own: &[f64]) -> anyhow::Result<Iterations> {
        let seconds_of_ranks = ranks::all_gather_numbers(self.comm, own)?;
        let skipped = self.settings.per_iteration_skip;
        let mut tally = Tally::new(seconds_of_ranks.len());
        let (mut seconds, mut slowest) = (Vec::new(), Vec::new());
        for at in 0..own.len() {
            let ranks: Vec<f64> = seconds_of_ranks.iter().map(|rank| rank[at]).collect();
            if at >= skipped as usize {
                tally.add(&ranks);
            }
            let (rank, longest) = stats::slowest(&ranks);
            seconds.push(longest);
            slowest.push(rank);
        }
        let stats = IterationStats::new(seconds.get(skipped as usize..).unwrap_or(&[]));
        Ok(Iterations { stats, skipped, seconds, slowest, seconds_of_ranks, tally })
    }

    fn time(&mut self, case: &Case, in_place: bool) -> anyhow::Result<Timed> {
        let settings = self.settings;
        self.prepare(case, in_place)?;
        let warmup = if in_place { 0 } else { settings.warmup };
        for _ in 0..warmup {
            self.once(case, in_place)?;
        }
        self.wait()?;
        self.comm.barrier()?;
        let started = Instant::now();
        self.once(case, in_place)?;
        self.wait()?;
        let iterations = self.iterations(started.elapsed())?;

        let mut each = Vec::new();
        let mut alone = Duration::ZERO;
        let clock_each =
            settings.columns.iterations || settings.blocking == Blocking::IterationAndBarrier;
        self.comm.barrier()?;
        let cpu_before = clock::cpu_time();
        let started = Instant::now();
        if settings.blocking == Blocking::Queue && !clock_each {
            (0..iterations * settings.aggregate).try_for_each(|_| self.once(case, in_place))?;
        } else {
            for _ in 0..iterations {
                let iteration = clock_each.then(Instant::now);
                for _ in 0..settings.aggregate {
                    self.once(case, in_place)?;
                    if matches!(settings.blocking, Blocking::Call | Blocking::CallAndBarrier) {
                        self.wait()?;
                    }
                    if settings.blocking == Blocking::CallAndBarrier {
                        self.comm.barrier()?;
                    }
                }
                if let Some(iteration) = iteration {
                    self.wait()?;
                    let took = iteration.elapsed();
                    alone += took;
                    each.push(took.as_secs_f64() / f64::from(settings.aggregate));
                }
                if settings.blocking == Blocking::IterationAndBarrier {
                    self.comm.barrier()?;
                }
            }
        }
        self.wait()?;
        let elapsed = match settings.blocking {
            Blocking::IterationAndBarrier => alone,
            _ => started.elapsed(),
        };
        let cpu = clock::cpu_time().saturating_sub(cpu_before);
        let calls = f64::from(iterations) * f64::from(settings.aggregate);
        Ok(Timed {
            seconds_per_call: elapsed.as_secs_f64() / calls,
            cpu_seconds_per_call: cpu.as_secs_f64() / calls,
            iterations,
            each,
        })
    }

    /// How many iterations to run, the same on all ranks, given what one call just took here.
    fn iterations(&self, one_call: Duration) -> anyhow::Result<u32> {
        if let Some(iterations) = self.settings.iterations {
            return Ok(iterations);
        }
        let all = ranks::all_gather_numbers(self.comm, &[one_call.as_secs_f64()])?;
        let slowest = all.iter().flatten().copied().fold(0.0, f64::max);
        let iteration = slowest * f64::from(self.settings.aggregate);
        let affordable = (1..=ITERATIONS)
            .rev()
            .find(|count| f64::from(*count) * iteration <= PLACEMENT_BUDGET_S)
            .unwrap_or(1);
        Ok(affordable.max(self.settings.per_iteration_skip + 1))
    }

    /// Checks the results; counts the wrong elements of all ranks.
    pub(crate) fn check(&mut self, case: &Case, in_place: bool) -> anyhow::Result<Option<u64>> {
        let mut wrong = None;
        for _ in 0..self.settings.check {
            self.round += 1;
            let case = Case { round: self.round, ..*case };
            self.prepare(&case, in_place)?;
            self.once(&case, in_place)?;
            let bytes = match in_place {
                true => case.layout.in_place_bytes(case.collective, case.rank, case.root),
                false => output_bytes(&case),
            };
            let output = self.output.first(bytes);
            if let Some(device) = &self.device {
                device.read(Side::Output, output)?;
            }
            let own = case.wrong(if in_place { case.in_place_result(output) } else { output });
            let all = ranks::all_gather(self.comm, &own.to_le_bytes())?;
            let sum = all
                .iter()
                .map(|bytes| u64::from_le_bytes(bytes.as_slice().try_into().unwrap_or([0xff; 8])))
                .fold(0, u64::saturating_add);
            wrong = Some(sum);
            if sum > 0 {
                break;
            }
        }
        Ok(wrong)
    }

    fn prepare(&mut self, case: &Case, in_place: bool) -> anyhow::Result<()> {
        let (input, output) = if in_place {
            let bytes = case.layout.in_place_bytes(case.collective, case.rank, case.root);
            let output = self.output.first(bytes);
            case.prepare_in_place(output);
            (&mut [][..], output)
        } else {
            let input = self.input.first(input_bytes(case));
            let output = self.output.first(output_bytes(case));
            case.prepare(input, output);
            (input, output)
        };
        if let Some(device) = &self.device {
            device.write(Side::Input, input)?;
            device.write(Side::Output, output)?;
        }
        Ok(())
    }

    /// Waits for the calls that are under way: those on host memory are over when they return.
    fn wait(&self) -> anyhow::Result<()> {
        self.device.as_ref().map_or(Ok(()), Device::finish)
    }

    fn once(&mut self, case: &Case, in_place: bool) -> anyhow::Result<()> {
        let call = self.call(case);
        if let Some(device) = &self.device {
            return device.call(case, &call, in_place);
        }
        match (case.collective, in_place) {
            (Collective::Barrier, _) => self.comm.barrier(),
            (Collective::SendRecv, _) => {
                let bytes = case.layout.table_bytes();
                let (send, receive) = (self.input.first(bytes), self.output.first(bytes));
                if in_place {
                    send.copy_from_slice(receive);
                }
                let (to, from) = (case.next(), case.previous());
                self.comm.send_recv(&call, Pair { send, to, receive, from })
            }
            (_, true) => {
                let bytes = case.layout.in_place_bytes(case.collective, case.rank, case.root);
                self.comm.call_in_place(&call, self.output.first(bytes))
            }
            (_, false) => self.comm.call(
                &call,
                self.input.first(input_bytes(case)),
                self.output.first(output_bytes(case)),
            ),
        }
    }

    fn call(&self, case: &Case) -> Call {
        Call {
            collective: case.collective,
            data_type: case.data_type,
            op: case.op.unwrap_or(ReduceOp::Sum),
            root: case.root,
            count: case.layout.count,
            deadline: self.settings.deadline,
            scalar: match case.op {
                Some(ReduceOp::PreMulSum) => case.values().scalar(case.rank),
                _ => 1.0,
            },
            algorithm: None,
            level: None,
        }
    }
}

/// Bytes by which buffers are misaligned.
fn skew(settings: &Settings) -> usize {
    let widest = settings.data_types.iter().map(|data_type| data_type.size()).max();
    settings.unalign * widest.unwrap_or(0)
}

/// Bytes of this rank's input out of place; none where only the root has one.
fn input_bytes(case: &Case) -> usize {
    match case.collective {
        Collective::Broadcast | Collective::Scatter if case.rank != case.root => 0,
        _ => case.layout.input_bytes(),
    }
}

/// Bytes of this rank's output out of place; none where only the root has one.
fn output_bytes(case: &Case) -> usize {
    match case.collective {
        Collective::Reduce | Collective::Gather if case.rank != case.root => 0,
        _ => case.layout.output_bytes(),
    }
}

/// The average bus bandwidth of all cells, 0 for none.
pub(crate) fn average_bus_bandwidth(rows: &[Row]) -> f64 {
    let cells = || rows.iter().flat_map(|row| [&row.out_of_place, &row.in_place]);
    cells().map(|cell| cell.bus_bw).sum::<f64>() / as_float(cells().count().max(1))
}

#[cfg(test)]
mod tests;
