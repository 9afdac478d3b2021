//! A rank's end of a communicator on GPUs: meets the others, and enqueues their calls.

mod meet;
mod message;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use zerocopy::FromZeros;

use self::meet::{
    Introduction, Location, Outcome, agree, agreed, exchange, handle_of, process, processes,
    refused,
};
use super::Fault;
use super::export::{self, Exports, Import, Named};
use super::gpu::{self, Function, Gpu, Stream};
use super::kernels::{Kernels, Kind};
use super::order::Order;
use super::program::{Buffers, Launch, Part, Program, RANKS, kind};
use super::recent::{Recent, What};
use super::share::Trial;
use super::station::{Held, Layout, Station, Words};
use super::watch::{Shared, Watch};
use super::work::{Extents, Work};
use crate::call::Call;
use crate::config::Config;
use crate::control::{Health, Journal};
use crate::error::{Error, Result};
use crate::ffi::cuda::Address;
use crate::plan::mapped::{self, Way};
use crate::plan::problem::{Counts, Problem};
use crate::plan::types::{Collective, DataType, Rank, ReduceOp};
use crate::reduce::Scalar;

/// Bytes of a rank's share that one more part is worth.
const PART_BYTES: u64 = 16 << 10;

/// Parts of a launch where a GPU serves one rank: enough for its links.
const PARTS_MOST: u32 = 64;

/// All-gather of one blob from each rank.
type Exchange<'a> = &'a dyn Fn(&[u8]) -> Result<Vec<Vec<u8>>>;

/// What a rank must know to begin.
pub(crate) struct Setup<'a> {
    pub(crate) config: &'a Config,
    pub(crate) rank: Rank,
    /// The GPU's number; the current one where there is none.
    pub(crate) ordinal: Option<i32>,
    pub(crate) hosts: &'a [u32],
    pub(crate) health: &'a Arc<Health>,
    pub(crate) journal: &'a Arc<Journal>,
    pub(crate) exchange: Exchange<'a>,
}

impl std::fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("rank", &self.rank).finish_non_exhaustive()
    }
}

/// A rank that is ready but for what the others say.
#[derive(Debug)]
struct Prepared {
    rank: DeviceRank,
    trial: std::result::Result<Trial, String>,
    unreached: Vec<(Rank, String)>,
}

/// A call that was made before, ready to launch.
#[derive(Debug)]
struct Learned {
    key: Key,
    function: Function,
    program: Program,
    launch: Box<Launch>,
    way: Way,
    tag: u32,
    extents: Extents,
}

impl Learned {
    /// Where input and output are, and no factor at a wrong place. Refuses what no kernel can use: it would end all that the
    /// process has on the GPU.
    fn buffers(
        &self,
        call: &Call,
        (input, output, scalar): (Address, Address, Option<Address>),
    ) -> Result<(Address, Address)> {
        let collective = call.collective;
        let extents = &self.extents;
        let (input, output) =
            (used((input, extents.input_bytes)), used((output, extents.output_bytes)));
        extents.check(input, output)?;
        // Elsewhere values are moved byte by byte where that is needed.
        if self.way == Way::Buffers && matches!(self.program.kind, Kind::Fold { .. }) {
            let (data_type, size) = (call.data_type, call.data_type.size() as u64);
            let all = [("input", input), ("output", output), ("factor", scalar.unwrap_or(0))];
            if let Some((what, address)) = all.iter().find(|(_, at)| !at.is_multiple_of(size)) {
                return Err(Error::argument(format!(
                    "{what} of {collective} at {address:#x} is not aligned to {data_type} of {size} bytes"
                )));
            }
        }
        Ok((input, output))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Key {
    collective: Collective,
    data_type: DataType,
    count: u64,
    counts: Option<Counts>,
    op: ReduceOp,
    root: Rank,
}

/// A rank's end of a communicator on GPUs.
#[derive(Debug)]
pub(crate) struct DeviceRank {
    gpu: Arc<Gpu>,
    kernels: Kernels,
    rank: Rank,
    ranks: u32,
    /// Stations of ranks beside this one, on its GPU. Given back before its own, with which those go that nobody else has.
    _beside: Vec<Held>,
    shared: Arc<Shared>,
    exports: Exports,
    learned: Vec<Learned>,
    template: Box<Launch>,
    order: Order,
    limit: Duration,
    /// Ends before the memory it looks at.
    watch: Watch,
    /// Stations of other processes, and those of this one on other GPUs. Given back last.
    _stations: (Vec<Import>, Vec<Held>),
}

/// What ends a rank's kernels, from any thread, also while another enqueues.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<Shared>);

impl DeviceRank {
    /// Meets the other ranks. All ranks call it, and all get a rank, or all get the reason why not.
    pub(crate) fn meet(setup: &Setup<'_>) -> Result<std::result::Result<Self, String>> {
        let ordinal = setup.ordinal.map_or_else(|| Gpu::current(setup.config), Ok);
        let gpu = ordinal
            .and_then(|ordinal| Gpu::at(setup.config, ordinal))
            .map_err(|error| error.to_string());
        let own = match &gpu {
            Ok(gpu) => Introduction {
                refusal: None,
                process: process(),
                ordinal: gpu.ordinal(),
                uuid: gpu.uuid,
                processors: gpu.processors,
            },
            Err(why) => Introduction {
                refusal: Some(why.clone()),
                process: process(),
                ordinal: 0,
                uuid: [0; 16],
                processors: 1,
            },
        };
        let all: Vec<Introduction> = exchange(setup, &own)?;
        let layout = match agree(&all, setup.hosts) {
            Ok(layout) => layout,
            Err(why) => return Ok(Err(why)),
        };
        let Ok(gpu) = gpu else { return Ok(Err("this rank has no GPU".to_owned())) };
        let outcome = Self::prepare(setup, &gpu, layout, &all);
        let own = Outcome {
            refusal: outcome.as_ref().err().map(Fault::to_string),
            unreached: outcome.as_ref().map_or_else(|_| Vec::new(), |made| made.unreached.clone()),
        };
        let outcomes: Vec<Outcome> = exchange(setup, &own)?;
        let first = (0..).zip(&outcomes).find_map(|(rank, one)| Some((rank, one.refusal.clone()?)));
        Ok(match (first, outcome) {
            (None, Ok(Prepared { mut rank, trial, .. })) => {
                let own = setup.rank;
                rank.exports.set_share(trial.and_then(|trial| agreed(trial, own, &outcomes)));
                Ok(rank)
            }
            (Some((rank, why)), _) => Err(refused(rank, &why)),
            (None, Err(fault)) => Err(fault.to_string()),
        })
    }

    fn prepare(
        setup: &Setup<'_>,
        gpu: &Arc<Gpu>,
        layout: Layout,
        all: &[Introduction],
    ) -> std::result::Result<Prepared, Fault> {
        let own_process = process();
        let crosses = all.iter().any(|one| one.process != own_process);
        // Every rank takes part in the exchange, whatever went wrong before.
        let station = Station::new(gpu, layout);
        let handle = match &station {
            Ok(station) if crosses => gpu.export(station.address()).map(Some),
            _ => Ok(None),
        };
        let directory = setup.config.shm_dir();
        let trial = match crosses {
            true => Trial::begin(gpu, directory, setup.rank).map_err(|fault| fault.to_string()),
            false => Err("all ranks are of one process".to_owned()),
        };
        let location = Location {
            address: station.as_ref().map_or(0, Station::address),
            handle: handle.as_ref().ok().and_then(|h| h.map(|h| h.0.to_vec())),
            trial: trial.as_ref().map(|trial| trial.handle().0.to_vec()).map_err(Clone::clone),
        };
        let locations: Vec<Location> =
            exchange(setup, &location).map_err(|error| Fault::Other(error.to_string()))?;
        let (station, _) = (station?, handle?);
        let (mut imports, mut held, mut unreached) = (Vec::new(), Vec::new(), Vec::new());
        let (mut stations, mut foreign) = ([0; RANKS], 0_u64);
        let (mut beside, mut held_beside) = (BTreeMap::new(), Vec::new());
        for (peer, (one, location)) in all.iter().zip(&locations).enumerate() {
            let number = Rank::try_from(peer).unwrap_or(Rank::MAX);
            stations[peer] = if peer == setup.rank as usize {
                station.address()
            } else if one.process == own_process {
                if one.ordinal == gpu.ordinal() {
                    held_beside.extend(Held::at(location.address));
                    beside.insert(number, location.address);
                } else {
                    held.extend(Held::at(location.address));
                }
                if let Some(other) = gpu::opened(one.ordinal) {
                    gpu.reach(&other)?;
                }
                location.address
            } else {
                foreign |= 1 << peer;
                let import = Import::open(gpu, handle_of(location.handle.as_deref())?, directory)?;
                let base = import.base;
                imports.push(import);
                if let Ok(handle) = &location.trial
                    && let Err(fault) = handle_of(Some(handle))
                        .and_then(|handle| Trial::attempt(gpu, directory, &handle))
                {
                    unreached.push((number, fault.to_string()));
                }
                base
            };
        }
        let words = Words::new(gpu)?;
        let exports = Exports::new(gpu)?;
        let mut template = Box::new(Launch::new_zeroed());
        layout.write(&mut template);
        template.station = station.address();
        template.report = words.address();
        template.rank = setup.rank;
        template.foreign = foreign;
        let near = (0_u32..).zip(all).filter(|(_, one)| one.uuid == gpu.uuid);
        template.near = near.fold(0, |near, (peer, _)| near | 1 << peer);
        template.book = exports.book();
        template.set_stations(&stations[..all.len()]);
        let mut order = Order::new(gpu, layout.parts, processes(all, gpu.uuid))?;
        let shared = Arc::new(Shared {
            neighbours: order.tell(station.address(), beside),
            gpu: Arc::clone(gpu),
            station,
            words,
            foreign,
            directory: directory.map(Path::to_path_buf),
            recent: Recent::new(setup.journal),
            health: Arc::clone(setup.health),
            timeout: setup.config.timeout,
            rank: setup.rank,
            launches: AtomicU32::new(0),
        });
        let rank = Self {
            gpu: Arc::clone(gpu),
            kernels: Kernels::new(gpu, setup.config),
            rank: setup.rank,
            ranks: layout.ranks,
            _beside: held_beside,
            exports,
            learned: Vec::new(),
            template,
            order,
            limit: setup.config.timeout,
            watch: Watch::start(&shared)?,
            shared,
            _stations: (imports, held),
        };
        Ok(Prepared { rank, trial, unreached })
    }

    /// The GPU.
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Bytes of device memory it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.shared.station.bytes() as u64
    }

    /// How it reaches the others, in words.
    pub(crate) fn description(&self) -> String {
        let layout = &self.shared.station.layout;
        let processes = self.shared.foreign.count_ones();
        let descriptors = match self.exports.refusal() {
            _ if processes == 0 => String::new(),
            None => ", cuMem memory by descriptors".to_owned(),
            Some(why) => format!(", cuMem memory copied, because {why}"),
        };
        let overlap = if self.kernels.overlap() { ", launches may overlap" } else { "" };
        format!(
            "direct access on GPU {} ({}), {} blocks a launch at most{overlap}, {processes} peers in other \
             processes{descriptors}",
            self.gpu.ordinal(),
            self.gpu.name(),
            layout.parts
        )
    }

    /// Enqueues calls on the first of some streams, in the order given, messages last, and returns. What
    /// the other streams have before comes before them, and what they get later after.
    ///
    /// The buffers must be valid until the stream has come past them.
    pub(crate) fn enqueue(&mut self, streams: &[Stream], work: &[Work<'_>]) -> Result<()> {
        let gpu = Arc::clone(&self.gpu);
        let _context = gpu.enter()?;
        let stream = self.order.begin(streams)?;
        let launched = self.launch_all(stream, work);
        // What was launched before an error is waited for too.
        let ended = self.order.end(streams);
        launched?;
        Ok(ended?)
    }

    fn launch_all(&mut self, stream: Stream, work: &[Work<'_>]) -> Result<()> {
        if work.len() > 1 {
            self.check_here(work)?;
        }
        let mut batch = Batch { open: None, is_alone: work.len() == 1 };
        for one in work {
            if let Work::Collective { call, input, output, scalar } = one {
                let place = self.learn(call)?;
                self.collective(stream, place, call, (*input, *output, *scalar), &mut batch)?;
            }
        }
        self.flush(stream, &mut batch)?;
        if has_messages(work) {
            self.messages(stream, work)?;
        }
        Ok(())
    }

    /// Refuses what cannot be done of some work on some streams, and launches nothing.
    pub(crate) fn check(&mut self, streams: &[Stream], work: &[Work<'_>]) -> Result<()> {
        let gpu = Arc::clone(&self.gpu);
        let _context = gpu.enter()?;
        self.order.check(streams)?;
        self.check_here(work)
    }

    /// Refuses what cannot be done of some work. Of a group nothing is launched before: others would wait for the rest.
    fn check_here(&mut self, work: &[Work<'_>]) -> Result<()> {
        for one in work {
            if let Work::Collective { call, input, output, scalar } = one {
                let place = self.learn(call)?;
                let learned = &self.learned[place];
                let (from, to) = learned.buffers(call, (*input, *output, *scalar))?;
                let Extents { input_bytes, output_bytes, .. } = learned.extents;
                self.name((from, input_bytes), (to, output_bytes))?;
            }
        }
        match has_messages(work) {
            true => self.check_messages(work),
            false => Ok(()),
        }
    }

    /// A call's place among those known.
    fn learn(&mut self, call: &Call) -> Result<usize> {
        let key = Key {
            collective: call.collective,
            data_type: call.data_type,
            count: call.count,
            counts: call.counts.clone(),
            op: if call.collective.reduces() { call.op } else { ReduceOp::Sum },
            root: if call.collective.has_root() { call.root } else { 0 },
        };
        if let Some(place) = self.learned.iter().position(|learned| learned.key == key) {
            return Ok(place);
        }
        let extents = Extents::of(call, self.rank, self.ranks)?;
        let problem = call.problem(self.ranks, call.level.unwrap_or_default())?;
        let layout = self.shared.station.layout;
        let way = match call.op {
            // The factors travel with the buffers.
            ReduceOp::PreMulSum if call.collective.reduces() => Way::Buffers,
            _ => mapped::choose(&problem, layout.card_bytes()).map_err(Error::usage)?,
        };
        let plan = way.build(&problem, self.rank);
        let parts = parts(&problem, way, layout);
        let kind = kind(call.collective, self.ranks, call.data_type, call.op);
        let mut program = Program::new(kind, self.ranks);
        let part = Part { plan: &plan, data_type: call.data_type, parts, is_message: false };
        if !program.add(&part) {
            return Err(Error::internal(format!("{} does not fit a launch", call.collective)));
        }
        let mut launch = self.template.clone();
        program.write(&mut launch);
        let function = self.kernels.get(kind)?;
        const KNOWN_MOST: usize = 512;
        if self.learned.len() >= KNOWN_MOST {
            self.learned.remove(0);
        }
        let tag = tag(&key, &problem);
        self.learned.push(Learned { key, function, program, launch, way, tag, extents });
        Ok(self.learned.len() - 1)
    }

    fn collective(
        &mut self,
        stream: Stream,
        place: usize,
        call: &Call,
        (input, output, scalar): (Address, Address, Option<Address>),
        batch: &mut Batch,
    ) -> Result<()> {
        let learned = &self.learned[place];
        let (input_bytes, output_bytes) =
            (learned.extents.input_bytes, learned.extents.output_bytes);
        let (input, output) = learned.buffers(call, (input, output, scalar))?;
        let (from, to) = self.name((input, input_bytes), (output, output_bytes))?;
        let learned = &self.learned[place];
        let mut buffers = Buffers {
            input: from.address,
            output: to.address,
            input_token: from.token,
            output_token: to.token,
            scalar: 0,
            tag: learned.tag,
            scalar_is_address: 0,
        };
        let scaled = matches!(learned.program.kind, Kind::Fold { op: ReduceOp::PreMulSum, .. });
        if scaled {
            match scalar {
                Some(address) => (buffers.scalar, buffers.scalar_is_address) = (address, 1),
                None => buffers.scalar = Scalar::from_f64(call.data_type, call.scalar).bits(),
            }
        }
        let stands_in = from.address != input || to.address != output;
        if batch.is_alone || stands_in || scaled || learned.way == Way::Cards {
            self.flush(stream, batch)?;
            // What stands in for both must hold what was there, as in-place calls read it.
            export::copy(&self.gpu, from.address, input, input_bytes, stream)?;
            let learned = &mut self.learned[place];
            learned.launch.set_calls(&[buffers]);
            let blocks = self.order.take(learned.program.parts);
            let shape = (blocks, self.kernels.threads(learned.program.kind));
            let function = learned.function;
            (learned.launch.named, learned.launch.names) = self.exports.fresh();
            self.shared.recent.note(What::of(call));
            let launched = launch(&self.gpu, function, shape, stream, &learned.launch);
            self.launched(launched)?;
            return Ok(export::copy(&self.gpu, output, to.address, output_bytes, stream)?);
        }
        if !batch.joins(learned, call, buffers) {
            self.flush(stream, batch)?;
            let learned = &self.learned[place];
            batch.joins(learned, call, buffers);
        }
        Ok(())
    }

    /// Where other processes find the buffers.
    fn name(
        &mut self,
        input: (Address, usize),
        output: (Address, usize),
    ) -> std::result::Result<(Named, Named), Fault> {
        if self.shared.foreign == 0 {
            let here = |address| Named { address, token: 0 };
            return Ok((here(input.0), here(output.0)));
        }
        let from = self.exports.name(&self.gpu, input, 0)?;
        let to = self.exports.name(&self.gpu, output, 1)?;
        Ok((from, to))
    }

    fn flush(&mut self, stream: Stream, batch: &mut Batch) -> std::result::Result<(), Fault> {
        let Some(Open { program, calls, function, what }) = batch.open.take() else {
            return Ok(());
        };
        let mut argument = self.template.clone();
        program.write(&mut argument);
        argument.set_calls(&calls);
        (argument.named, argument.names) = self.exports.fresh();
        let blocks = self.order.take(program.parts);
        let shape = (blocks, self.kernels.threads(program.kind));
        self.shared.recent.note(what);
        let launched = launch(&self.gpu, function, shape, stream, &argument);
        self.launched(launched)
    }

    /// Counts the launch noted last. One that the driver refused is none.
    fn launched(
        &mut self,
        outcome: std::result::Result<(), Fault>,
    ) -> std::result::Result<(), Fault> {
        outcome.inspect_err(|_| self.shared.recent.take_back())?;
        let is_captured = self.order.captures();
        self.exports.launched(is_captured);
        if !is_captured {
            self.shared.launches.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// What ends its kernels.
    pub(crate) fn stop(&self) -> Stop {
        Stop(Arc::clone(&self.shared))
    }
}

impl Stop {
    /// Ends kernels that wait, now and in the future.
    pub(crate) fn abort(&self) {
        self.0.words.abort();
    }

    /// Whether kernels end without having done their work.
    pub(crate) fn is_raised(&self) -> bool {
        self.0.words.is_aborted()
    }
}

impl Drop for DeviceRank {
    fn drop(&mut self) {
        // What was enqueued ends first; what does not end in time is given up.
        let Shared { gpu, station, words, health, .. } = &*self.shared;
        self.order.settle(self.limit, health, || station.launches(gpu).ok(), || words.abort());
        self.watch.stop();
    }
}

/// Collectives that go into one launch.
#[derive(Debug)]
struct Batch {
    open: Option<Open>,
    /// Whether there is one call: it needs no program of its own.
    is_alone: bool,
}

/// A launch that calls are added to.
#[derive(Debug)]
struct Open {
    program: Program,
    calls: Vec<Buffers>,
    function: Function,
    what: What,
}

impl Batch {
    /// Adds a call, if it is of the same kind and there is room.
    fn joins(&mut self, learned: &Learned, call: &Call, buffers: Buffers) -> bool {
        match &mut self.open {
            None => {
                self.open = Some(Open {
                    program: learned.program.clone(),
                    calls: vec![buffers],
                    function: learned.function,
                    what: What::of(call),
                });
                true
            }
            Some(open) if open.program.kind == learned.program.kind => {
                let joined = open.program.append(&learned.program);
                if joined {
                    open.calls.push(buffers);
                    open.what.and_one();
                }
                joined
            }
            Some(_) => false,
        }
    }
}

fn has_messages(work: &[Work<'_>]) -> bool {
    work.iter().any(|one| !matches!(one, Work::Collective { .. }))
}

/// Where a buffer of so many bytes is. What a rank has no use for is nowhere: the others are told the address, beside a number that
/// would be in the upper bits of one that is anything.
fn used((address, bytes): (Address, usize)) -> Address {
    if bytes == 0 { 0 } else { address }
}

/// Launches; every launch of this module goes through here.
#[expect(unsafe_code, reason = "the argument is what the kernel was compiled for")]
fn launch(
    gpu: &Gpu,
    function: Function,
    shape: (u32, u32),
    stream: Stream,
    argument: &Launch,
) -> std::result::Result<(), Fault> {
    // SAFETY:
    // * `Launch` has the layout of `rw_launch`: tests compare bytes, and run kernels that take them;
    // * stations and words live until `DeviceRank` is dropped, which waits for the kernels;
    // * users keep their buffers until the stream has come past the call: the contract of `enqueue`.
    unsafe { gpu.launch(function, shape, stream, argument) }
}

/// Parts of a call; the same on all ranks.
fn parts(problem: &Problem, way: Way, layout: Layout) -> u32 {
    let size = problem.data_type.size() as u64;
    let ranks = u64::from(problem.ranks);
    if way == Way::Cards {
        let most = (0..problem.ranks).map(|rank| problem.input_count(rank)).max().unwrap_or(0);
        let bytes = (most * size).max(1);
        let parts = bytes.div_ceil(super::program::card_grain(problem.ranks));
        return u32::try_from(parts).unwrap_or(layout.parts).min(layout.parts);
    }
    let block = (0..problem.ranks).map(|rank| problem.block(rank).count).max().unwrap_or(0);
    let values = match problem.collective {
        Collective::AllReduce | Collective::Reduce => problem.count().div_ceil(ranks),
        Collective::Broadcast => problem.count(),
        Collective::AllToAll => block * ranks,
        _ => block,
    };
    share_parts(values * size, layout.parts)
}

/// Parts for a share of so many bytes.
fn share_parts(bytes: u64, most: u32) -> u32 {
    u32::try_from(bytes.div_ceil(PART_BYTES)).unwrap_or(most).clamp(1, most)
}

/// What a call is, in 32 bits: ranks compare it.
fn tag(key: &Key, problem: &Problem) -> u32 {
    let mut signature = vec![
        key.collective as u64,
        key.data_type as u64,
        problem.count(),
        key.op as u64,
        u64::from(key.root),
        u64::from(key.collective.reduces()),
    ];
    if let Some(Counts::PerRank(counts)) = &key.counts {
        signature.extend_from_slice(counts);
    }
    fold(&signature)
}

fn fold(words: &[u64]) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for word in words {
        hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    }
    u32::try_from((hash ^ hash >> 32) & 0xffff_ffff).unwrap_or(0).max(1)
}
