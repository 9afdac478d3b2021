//! GPU memory of ranks that do not map each other's: staged through pinned memory, and moved by the host.
//!
//! ```text
//! stream ──► one launch: block of slot s does chunks s, s + N, s + 2 N, …
//!              copies its chunk into the slot ─► request ─► proxy of channel s mod K: the same chunk of
//!              copies the result out          ◄─ reply   ◄─ all ranks, by a host call of its own communicator
//!
//! pinned memory of a rank
//! ┌──────────────────────────────────┬───────────────┬──────────────────────────────────────────┐
//! │ slots: the call, request │ reply │ parts of a    │ of each slot: input, output              │
//! │ 128 bytes each                   │ batch         │ SLOT_BYTES each                          │
//! └──────────────────────────────────┴───────────────┴──────────────────────────────────────────┘
//! ```
//!
//! Chunk c goes by slot c mod N and channel c mod K; N is a multiple of K. On each channel all ranks go through
//! the chunks in the same order. How often a slot was used is in device memory and a request holds the whole
//! call, so a captured launch can be replayed with nobody on the host knowing of it.
//!
//! Where adapters reach GPU memory (GPUDirect RDMA) the slots are there a second time. Calls that only move values, and
//! messages, go through those: the same host calls, in which adapters move the values and no processor touches them.
//!
//! The host folds, as it does for host memory: at level `shape` the bits are those of host ranks. A rank
//! without a GPU takes part from its own memory.
//!
//! *Invariants:* every wait in a kernel looks at the abort word; a launch ends before the memory it uses goes,
//! and proxies before their channels.

mod desk;
mod host;
mod layout;
mod part;
mod proxy;
mod uneven;
mod waves;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use self::desk::{Desk, Direct};
use self::layout::{CollectiveLaunch, MessagesLaunch, PIECES, Piece, Place, SLOTS_MOST, Shape};
use self::part::{Part, parts};
use self::proxy::Threads;
use super::Fault;
use super::export;
use super::gpu::{DirectMemory, Gpu, Memory, Stream, memory_of};
use super::kernels::{Kernels, Kind};
use super::order::Order;
use super::work::Work;
use crate::call::Call;
use crate::config::Config;
use crate::control::{Health, Report};
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::cuda::Address;
use crate::plan::types::{Rank, ReduceOp};

/// Slots of a channel: one is filled or emptied while another is under way.
const SLOTS: usize = 3;

/// Channels at most.
pub(crate) const CHANNELS_MOST: usize = SLOTS_MOST / SLOTS;

/// Bytes of messages that one more block is worth, and blocks at most.
const BLOCK_BYTES: u64 = 64 << 10;
const BLOCKS_MOST: u32 = 8;

/// A message on host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessagePiece {
    pub(crate) peer: Rank,
    pub(crate) address: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) sends: bool,
    /// What both ends must have alike, besides the bytes.
    pub(crate) mark: u32,
}

/// What makes host calls with the other ranks: a communicator of its own.
#[expect(unsafe_code, reason = "memory by address")]
pub(crate) trait Channel: Debug + Send + Sync {
    /// Makes a part of a collective call of `whole` values, and waits for it; input and output come with the bytes they have
    /// room for. Ranks that make parts of different calls are told so, also where the parts are alike.
    ///
    /// # Safety
    /// Both are valid for so many bytes, and nobody else touches them meanwhile.
    unsafe fn collective(
        &self,
        call: &Call,
        whole: u64,
        input: (*mut u8, usize),
        output: (*mut u8, usize),
    ) -> Result<()>;

    /// Sends and receives messages, all at once.
    ///
    /// # Safety
    /// As [`Channel::collective`], for every piece.
    unsafe fn exchange(&self, pieces: &[MessagePiece]) -> Result<()>;

    /// Memory that calls will be made on: it stays as long as any are, so adapters may be told of it once.
    fn keep(&self, address: *mut u8, bytes: usize);

    /// GPU memory that calls will be made on, of which adapters are told now. Such a call only moves values, and what
    /// goes from this rank to itself is where it belongs before; what has come is there for kernels when the call returns.
    ///
    /// # Errors
    /// Why adapters do not reach it; else by which way they do.
    fn adopt(&self, memory: &Arc<DirectMemory>) -> std::result::Result<String, String>;

    /// Adapters forget such memory, on which no call was made.
    fn disown(&self);

    /// Whether it has failed: no call of it succeeds any more.
    fn has_failed(&self) -> bool;

    /// Ends calls under way, here and on the other ranks.
    fn abort(&self, reason: &str);
}

/// The channels of a rank.
type Channels = Arc<[Box<dyn Channel>]>;

/// What ends everything that is under way, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Alarm {
    channels: Channels,
    desk: Option<Arc<Desk>>,
}

impl Alarm {
    /// Whether kernels end without having done their work.
    pub(crate) fn is_raised(&self) -> bool {
        self.desk.as_ref().is_some_and(|desk| desk.words.is_aborted())
    }

    /// Ends kernels that wait, now and in the future, and the calls that they wait for.
    pub(crate) fn abort(&self, reason: &str) {
        if let Some(desk) = &self.desk {
            desk.words.abort();
        }
        for channel in &*self.channels {
            channel.abort(reason);
        }
    }
}

/// What a rank must know to begin.
#[derive(Debug)]
pub(crate) struct StagedSetup<'a> {
    pub(crate) config: &'a Config,
    pub(crate) rank: Rank,
    pub(crate) ranks: u32,
    /// This rank's, if it has one.
    pub(crate) gpu: Option<Arc<Gpu>>,
    /// Ranks without one.
    pub(crate) without: u32,
    pub(crate) health: &'a Arc<Health>,
    pub(crate) channels: Vec<Box<dyn Channel>>,
    /// Why not directly.
    pub(crate) why: &'a str,
    /// Whether adapters are to reach GPU memory, or why they do not.
    pub(crate) direct: std::result::Result<(), String>,
}

/// A rank's end of a communicator whose ranks do not map each other's memory.
#[derive(Debug)]
pub(crate) struct StagedRank {
    rank: Rank,
    ranks: u32,
    without: u32,
    why: String,
    /// GPU memory that this rank's adapters reach, until all ranks have said whether theirs do; or why they do not.
    direct: std::result::Result<Option<Direct>, String>,
    limit: Duration,
    health: Arc<Health>,
    alarm: Alarm,
    watch: Threads,
    device: Option<Device>,
    channels: Channels,
}

/// The part of it that a rank with a GPU has.
#[derive(Debug)]
struct Device {
    gpu: Arc<Gpu>,
    kernels: Kernels,
    order: Order,
    proxies: Threads,
    desk: Arc<Desk>,
}

impl StagedRank {
    /// Takes the memory and starts the threads.
    pub(crate) fn new(setup: StagedSetup<'_>) -> std::result::Result<Self, Fault> {
        let StagedSetup { config, rank, ranks, gpu, without, health, channels, why, direct } =
            setup;
        let channels: Channels = channels.into();
        if channels.is_empty() || channels.len() > CHANNELS_MOST {
            return Err(Fault::Other(format!("{} channels", channels.len())));
        }
        let mut direct = direct.map(|()| None);
        let device = match gpu {
            None => None,
            Some(gpu) => {
                let desk = Arc::new(Desk::new(&gpu, &channels, health)?);
                direct = direct.and_then(|_| desk.take_direct().map(Some));
                let most = u32::try_from(desk.slot_count).unwrap_or(u32::MAX).max(BLOCKS_MOST);
                let mut kernels = Kernels::new(&gpu, config);
                // Now, not in a capture.
                kernels.get(Kind::Staged)?;
                kernels.get(Kind::Messages)?;
                Some(Device {
                    kernels,
                    order: Order::new(&gpu, most, 1)?,
                    proxies: Threads::proxies(&desk, &channels, rank)?,
                    desk,
                    gpu,
                })
            }
        };
        let desk = device.as_ref().map(|device| Arc::clone(&device.desk));
        let alarm = Alarm { channels: Arc::clone(&channels), desk };
        let watch = Threads::watch(&alarm, health, rank)?;
        Ok(Self {
            rank,
            ranks,
            without,
            why: why.to_owned(),
            direct,
            limit: config.timeout,
            health: Arc::clone(health),
            alarm,
            watch,
            device,
            channels,
        })
    }

    /// What ends everything.
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// The GPU, where this rank has one.
    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.device.as_ref().map(|device| &device.gpu)
    }

    /// Whether ranks without a GPU take part.
    pub(crate) fn is_mixed(&self) -> bool {
        self.without > 0
    }

    /// Bytes of device memory it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.device.as_ref().map_or(0, |device| device.desk.device_bytes())
    }

    /// How it reaches the others, in words.
    pub(crate) fn description(&self) -> String {
        let gpu = match &self.device {
            Some(device) => {
                let (number, name) = (device.gpu.ordinal(), device.gpu.name());
                format!("GPU {number} ({name}) staged through pinned memory")
            }
            None => "host memory of a rank without a GPU".to_owned(),
        };
        let without = match self.without {
            0 => String::new(),
            count => format!(", {count} of {} ranks without a GPU", self.ranks),
        };
        let ways = self.device.as_ref().and_then(|device| device.desk.ways());
        let direct = match (ways, &self.direct) {
            (Some(ways), _) => format!(
                "; what is only moved goes by adapters from GPU memory to GPU memory ({ways})"
            ),
            (None, Err(why)) if !why.is_empty() => format!("; no GPUDirect RDMA: {why}"),
            _ => String::new(),
        };
        let channels = self.channels.len();
        format!("{gpu} over {channels} channels{without}, because {}{direct}", self.why)
    }

    /// Why adapters do not reach the GPU memory of this rank; nothing where they do.
    pub(crate) fn direct_refusal(&self) -> Option<String> {
        self.direct.as_ref().err().cloned()
    }

    /// What all ranks have come to: adapters move GPU memory from now on, or do not, and why.
    pub(crate) fn settle_direct(&mut self, agreed: std::result::Result<(), String>) {
        let taken = std::mem::replace(&mut self.direct, agreed.clone().map(|()| None));
        let Some(device) = &self.device else { return };
        match (agreed, taken) {
            (Ok(()), Ok(Some(direct))) => device.desk.use_direct(direct),
            (Err(_), Ok(_)) => device.desk.leave_direct(),
            _ => {}
        }
    }

    /// Enqueues calls on the first of some streams, in the order given, messages last, and returns. Among
    /// ranks without a GPU, what is on host memory is done at once, behind all that was enqueued before.
    ///
    /// The buffers must be valid until the stream has come past them.
    pub(crate) fn enqueue(&mut self, streams: &[Stream], work: &[Work<'_>]) -> Result<()> {
        let parts = self.parts(work)?;
        if let Some(device) = &mut self.device {
            if self.without == 0 || !is_on_host(streams, work) {
                return device.enqueue(streams, parts);
            }
            // The channels are the kernels' until they are done.
            if !device.settle(self.limit, || ()) {
                let ms = self.limit.as_millis();
                let text = format!("calls on GPU memory were not over after {ms} ms");
                return Err(Error::new(ErrorKind::Timeout, text));
            }
        }
        // SAFETY: the promise of whoever enqueues: host memory of this rank, valid until this returns.
        #[expect(unsafe_code, reason = "the caller's promise")]
        let done = unsafe { host::run(&self.channels, &parts) };
        if let Err(error) = &done
            && self.channels.iter().any(|channel| channel.has_failed())
        {
            // The others may have called nothing yet, and have no proxy that would find out.
            tell(&self.health, error);
        }
        done
    }

    /// Refuses what cannot be done of some work on some streams, and does nothing.
    pub(crate) fn check(&self, streams: &[Stream], work: &[Work<'_>]) -> Result<()> {
        self.parts(work)?;
        match &self.device {
            Some(device) if self.without == 0 || !is_on_host(streams, work) => {
                let _context = device.gpu.enter()?;
                device.order.check(streams).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn parts(&self, work: &[Work<'_>]) -> Result<Vec<Part>> {
        let slots = (self.channels.len() * SLOTS) as u64;
        parts(work, (self.rank, self.ranks, slots))
    }
}

impl Drop for StagedRank {
    fn drop(&mut self) {
        // What was enqueued ends first; what does not end in time is given up.
        if let Some(device) = &mut self.device {
            let alarm = &self.alarm;
            let reason = "a rank closed the communicator before its calls on GPU memory were over";
            device.settle(self.limit, || alarm.abort(reason));
            // Nobody answers from now on: what is launched all the same does not wait.
            device.desk.words.abort();
            device.proxies.stop();
        }
        self.watch.stop();
    }
}

impl Device {
    fn enqueue(&mut self, streams: &[Stream], parts: Vec<Part>) -> Result<()> {
        let gpu = Arc::clone(&self.gpu);
        let _context = gpu.enter()?;
        let stream = self.order.begin(streams)?;
        let launched = self.launch_all(stream, parts);
        // What was launched before an error is waited for too.
        let ended = self.order.end(streams);
        launched?;
        Ok(ended?)
    }

    fn launch_all(&mut self, stream: Stream, parts: Vec<Part>) -> Result<()> {
        for part in parts {
            match part {
                Part::Call { call, shape, own, input, output, factor } => {
                    self.collective(stream, &call, (&shape, own), (input, output, factor))?;
                }
                Part::Messages { own, pieces } => self.messages(stream, own, pieces)?,
            }
        }
        Ok(())
    }

    /// Waits until no launch is at work; says whether that is so.
    fn settle(&self, limit: Duration, give_up: impl Fn()) -> bool {
        let desk = &self.desk;
        self.order.settle(limit, &desk.health, || Some(desk.launches()), give_up)
    }

    fn collective(
        &mut self,
        stream: Stream,
        call: &Call,
        (shape, own): (&Shape, Option<u32>),
        (input, output, scalar): (Address, Address, Option<Address>),
    ) -> std::result::Result<(), Fault> {
        let direct = self.desk.direct_place().zip(own);
        let scalar = scalar.filter(|_| call.collective.reduces() && call.op == ReduceOp::PreMulSum);
        let slot_count = u32::try_from(self.desk.slot_count).unwrap_or(u32::MAX);
        let (place, own, told) = match direct {
            Some((place, own)) => (place, own, layout::tell_in_gpu(call)),
            None => (self.desk.place(), layout::NOBODY, layout::tell(call, scalar.is_some())),
        };
        let argument = CollectiveLaunch {
            place,
            input,
            output,
            factor: scalar.unwrap_or(0),
            told,
            block_bytes: shape.block_bytes,
            chunk_bytes: shape.chunk_bytes,
            input_pieces: shape.input_pieces,
            output_pieces: shape.output_pieces,
            chunks: shape.chunks,
            slot_count,
            value_bytes: u32::try_from(call.data_type.size()).unwrap_or(1),
            own,
        };
        let blocks = match self.order.take(shape.chunks.min(slot_count)) {
            all if all == shape.chunks => all,
            // No two blocks have chunks of the same slot.
            some => (1..=some).rev().find(|blocks| slot_count.is_multiple_of(*blocks)).unwrap_or(1),
        };
        self.launch(Kind::Staged, (blocks, shape.chunks as usize), stream, &argument)
    }

    /// Messages of a group, in waves that fit the memory they go through.
    fn messages(
        &mut self,
        stream: Stream,
        own: Vec<(Address, Address, usize)>,
        pieces: Vec<Piece>,
    ) -> Result<()> {
        for (to, from, bytes) in own {
            export::copy(&self.gpu, to, from, bytes, stream)?;
        }
        let room = match self.desk.ways() {
            Some(_) => waves::IN_GPU_BYTES_MOST,
            None => waves::WAVE_BYTES_MOST,
        };
        let waves = waves::waves(pieces, room);
        // All of them in the same memory: one after another.
        let most = waves.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        if waves.is_empty() {
            return Ok(());
        }
        let (staging, address) = self.desk.staging(most)?;
        for (wave, bytes) in waves {
            let mut list = [Piece::default(); PIECES];
            list[..wave.len()].copy_from_slice(&wave);
            let argument = MessagesLaunch {
                place: Place { data: address, ..self.desk.place() },
                parts: self.desk.parts_address(),
                told: layout::tell_messages(),
                staging,
                pieces: u32::try_from(wave.len()).unwrap_or(0),
                unused: 0,
                list,
            };
            let blocks = bytes.div_ceil(BLOCK_BYTES).clamp(1, BLOCKS_MOST.into());
            let blocks = self.order.take(u32::try_from(blocks).unwrap_or(1));
            self.launch(Kind::Messages, (blocks, 1), stream, &argument)?;
        }
        Ok(())
    }

    /// Launches, and wakes the first `wakes` proxies; every launch of this module goes through here.
    fn launch<T>(
        &mut self,
        kind: Kind,
        (blocks, wakes): (u32, usize),
        stream: Stream,
        argument: &T,
    ) -> std::result::Result<(), Fault> {
        let function = self.kernels.get(kind)?;
        let shape = (blocks, self.kernels.threads(kind));
        let captures = self.order.captures();
        if captures {
            self.desk.captured.store(true, Ordering::Release);
        } else {
            // Before they are woken: a proxy that sees no launch sleeps again.
            self.desk.enqueued.fetch_add(1, Ordering::AcqRel);
            self.proxies.wake(wakes);
        }
        // SAFETY:
        // * arguments have the layout of the kernels': a test compares them;
        // * what they name lives until `StagedRank` is dropped, which waits for the kernels;
        // * users keep their buffers until the stream has come past the call: the contract of `enqueue`.
        #[expect(unsafe_code, reason = "the argument is what the kernel was compiled for")]
        let launched = unsafe { self.gpu.launch(function, shape, stream, argument) };
        if launched.is_err() && !captures {
            self.desk.enqueued.fetch_sub(1, Ordering::AcqRel);
        }
        launched
    }
}

/// The ranks agree on the error of a channel.
fn tell(health: &Health, error: &Error) {
    if !health.is_raised() {
        health.report(Report::channel(error));
    }
}

/// Whether no buffer is in GPU memory. What names none goes by a stream, where there is one: it has its place there.
fn is_on_host(streams: &[Stream], work: &[Work<'_>]) -> bool {
    let named = work.iter().flat_map(|one| match *one {
        Work::Collective { input, output, .. } => [input, output],
        Work::Send { address, .. } | Work::Receive { address, .. } => [address, 0],
    });
    let mut named = named.filter(|address| *address != 0).peekable();
    let here = |address: Address| {
        let address = usize::try_from(address).unwrap_or(0);
        memory_of(std::ptr::with_exposed_provenance(address)) != Memory::Device
    };
    (streams.is_empty() || named.peek().is_some()) && named.all(here)
}
