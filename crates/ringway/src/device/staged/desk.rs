//! The memory that a rank's kernels and proxies share, and its end.
//!
//! *Invariant:* host code reaches words that kernels write through atomics only, and copies the rest.

#![allow(unsafe_code, reason = "words and bytes in pinned memory that kernels write")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::layout::{
    Asked, DESK_BYTES, PIECES, PartWords, Place, SLOT_BYTES, SLOTS_MOST, STAGED_IN_GPU, SlotWords,
    read,
};
use super::waves::{self, IN_GPU_BYTES_MOST};
use super::{Channel, Channels, MessagePiece, SLOTS};
use crate::control::Health;
use crate::device::Fault;
use crate::device::gpu::{DeviceMemory, DirectMemory, Gpu, PinnedMemory};
use crate::device::station::Words;
use crate::error::{Error, Result};

/// Pinned memory that messages go through.
#[derive(Debug)]
struct Staging {
    memory: PinnedMemory,
    bytes: u64,
}

/// GPU memory that adapters reach: the slots of pinned memory once more, then room for messages.
#[derive(Debug)]
pub(super) struct Direct {
    memory: Arc<DirectMemory>,
    messages_at: u64,
    /// By which way each adapter reaches it, in words.
    ways: String,
}

/// What a rank's kernels and proxies share.
#[derive(Debug)]
pub(super) struct Desk {
    gpu: Arc<Gpu>,
    channels: Channels,
    pub(super) words: Words,
    /// Words of all slots, then the parts of messages.
    slots: PinnedMemory,
    data: PinnedMemory,
    /// Set once all ranks have theirs.
    direct: OnceLock<Direct>,
    numbers: DeviceMemory,
    pub(super) slot_count: usize,
    /// Those of messages; the last is in use, the others may be named by captured launches.
    stagings: Mutex<Vec<Staging>>,
    /// Launches that were not captured.
    pub(super) enqueued: AtomicU32,
    /// Whether a launch was captured: it may be replayed at any time.
    pub(super) captured: AtomicBool,
    pub(super) health: Arc<Health>,
}

const PARTS_AT: usize = SLOTS_MOST * size_of::<SlotWords>();

impl Desk {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        channels: &Channels,
        health: &Arc<Health>,
    ) -> std::result::Result<Self, Fault> {
        let slot_count = channels.len() * SLOTS;
        let bytes = 2 * slot_count * usize::try_from(SLOT_BYTES).unwrap_or(usize::MAX);
        let data = gpu.pinned(bytes)?;
        channels.iter().for_each(|channel| channel.keep(data.place().as_ptr(), bytes));
        Ok(Self {
            gpu: Arc::clone(gpu),
            channels: Arc::clone(channels),
            words: Words::new(gpu)?,
            slots: gpu.pinned(PARTS_AT + PIECES * size_of::<PartWords>())?,
            data,
            direct: OnceLock::new(),
            numbers: gpu.alloc(DESK_BYTES)?,
            slot_count,
            stagings: Mutex::default(),
            enqueued: AtomicU32::new(0),
            captured: AtomicBool::new(false),
            health: Arc::clone(health),
        })
    }

    /// Takes GPU memory and lets the adapters of all channels reach it. It is used when [`Desk::use_direct`] says so.
    ///
    /// # Errors
    /// Why they do not.
    pub(super) fn take_direct(&self) -> std::result::Result<Direct, String> {
        let messages_at = 2 * self.slot_count as u64 * SLOT_BYTES;
        let bytes = usize::try_from(messages_at + IN_GPU_BYTES_MOST).unwrap_or(usize::MAX);
        let memory = DirectMemory::new(&self.gpu, bytes).map_err(|error| error.to_string())?;
        let mut ways = String::new();
        for channel in &*self.channels {
            match channel.adopt(&memory) {
                Ok(words) => ways = words,
                Err(why) => {
                    self.leave_direct();
                    return Err(format!("{}: {why}", memory.name()));
                }
            }
        }
        Ok(Direct { memory, messages_at, ways })
    }

    /// All ranks have taken such memory: calls may use it.
    pub(super) fn use_direct(&self, direct: Direct) {
        let _first = self.direct.set(direct);
    }

    /// Not all have: adapters forget it.
    pub(super) fn leave_direct(&self) {
        self.channels.iter().for_each(|channel| channel.disown());
    }

    /// By which ways adapters reach GPU memory, where they do.
    pub(super) fn ways(&self) -> Option<&str> {
        self.direct.get().map(|direct| direct.ways.as_str())
    }

    /// Where kernels find it, with slots in pinned memory.
    pub(super) fn place(&self) -> Place {
        Place {
            report: self.words.address(),
            desk: self.numbers.address(),
            slots: self.slots.address(),
            data: self.data.address(),
            slot_bytes: SLOT_BYTES,
        }
    }

    /// The same with slots in GPU memory, where there are any.
    pub(super) fn direct_place(&self) -> Option<Place> {
        let direct = self.direct.get()?;
        Some(Place { data: direct.memory.address(), ..self.place() })
    }

    /// Where kernels describe messages.
    pub(super) fn parts_address(&self) -> u64 {
        self.slots.address() + PARTS_AT as u64
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Bytes of device memory.
    pub(super) fn device_bytes(&self) -> u64 {
        let direct = self.direct.get().map_or(0, |direct| direct.memory.bytes());
        (self.numbers.bytes() + direct) as u64
    }

    pub(super) fn slot(&self, at: usize) -> &SlotWords {
        assert!(at < self.slot_count, "a slot that is not there");
        let place = self.slots.place().as_ptr().wrapping_add(at * size_of::<SlotWords>());
        // SAFETY: the memory has so many slots, is aligned as pages are, was cleared, lives as long as
        // `self`, and is used through atomics only, here and in kernels.
        unsafe { &*place.cast::<SlotWords>() }
    }

    /// Memory for messages of so many bytes: its number and where kernels see it.
    pub(super) fn staging(&self, bytes: u64) -> std::result::Result<(u64, u64), Fault> {
        if let Some(direct) = self.direct.get() {
            return Ok((STAGED_IN_GPU, direct.memory.address() + direct.messages_at));
        }
        let all = self.stagings();
        if let Some(last) = all.last().filter(|last| last.bytes >= bytes) {
            return Ok((all.len() as u64 - 1, last.memory.address()));
        }
        drop(all);
        // Unlocked: the driver may wait for kernels, and those for a proxy that looks up its memory.
        let bytes = bytes.next_power_of_two().max(1 << 20);
        let length = usize::try_from(bytes)
            .map_err(|_| Fault::Other("messages too large for this machine".to_owned()))?;
        let memory = self.gpu.pinned(length)?;
        self.channels.iter().for_each(|channel| channel.keep(memory.place().as_ptr(), length));
        let address = memory.address();
        let mut all = self.stagings();
        all.push(Staging { memory, bytes });
        Ok((all.len() as u64 - 1, address))
    }

    fn stagings(&self) -> MutexGuard<'_, Vec<Staging>> {
        self.stagings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what a slot's request asks for, and says which slot of the channel has the next.
    pub(super) fn serve(&self, channel: &dyn Channel, step: usize, at: usize) -> Result<usize> {
        let slot = self.slot(at);
        let told = std::array::from_fn(|i| slot.told[i].load(Ordering::Relaxed));
        let first = at % step;
        match read(&told) {
            Some(Asked::Chunk { call, whole, chunk, chunks, in_gpu }) => {
                let bytes = usize::try_from(SLOT_BYTES).unwrap_or(usize::MAX);
                let slots = if in_gpu { self.in_gpu(0)? } else { self.data.place().as_ptr() };
                let input = slots.wrapping_add(2 * at * bytes);
                let output = input.wrapping_add(bytes);
                // SAFETY: input and output of a slot have SLOT_BYTES each, which `Shape` keeps chunks
                // within (the channel compares), and the kernel leaves them alone until the reply. Memory
                // of a GPU was adopted by the channel.
                unsafe { channel.collective(&call, whole, (input, bytes), (output, bytes)) }?;
                let next = chunk as usize + step;
                Ok(if next < chunks as usize { next % self.slot_count } else { first })
            }
            Some(Asked::Messages { staging, parts }) => {
                self.messages(channel, staging, parts)?;
                Ok(first)
            }
            None => Err(Error::usage(format!(
                "a GPU kernel asked for what cannot be done ({told:x?}); if it is a pre-multiplied sum, its \
                 factor is a whole number that a double cannot hold"
            ))),
        }
    }

    /// An address in the GPU memory that adapters reach.
    fn in_gpu(&self, offset: u64) -> Result<*mut u8> {
        let direct = self.direct.get();
        let direct = direct.ok_or_else(|| Error::internal("GPU memory that nobody took"))?;
        let address = usize::try_from(direct.memory.address() + offset);
        let address = address.map_err(|_| Error::internal("an address of more bits than here"))?;
        Ok(std::ptr::with_exposed_provenance_mut(address))
    }

    fn messages(&self, channel: &dyn Channel, staging: u64, parts: usize) -> Result<()> {
        let list = self.slots.place().as_ptr().wrapping_add(PARTS_AT).cast::<PartWords>();
        let (memory, length) = if staging == STAGED_IN_GPU {
            let at = self.direct.get().map_or(0, |direct| direct.messages_at);
            (self.in_gpu(at)?, IN_GPU_BYTES_MOST)
        } else {
            let all = self.stagings();
            let found = usize::try_from(staging).ok().and_then(|at| all.get(at));
            let found = found.ok_or_else(|| Error::internal("messages in memory nobody took"))?;
            (found.memory.place().as_ptr(), found.bytes)
        };
        let mut pieces = Vec::with_capacity(parts);
        for at in 0..parts.min(PIECES) {
            // SAFETY: the list has PIECES places, and the kernel leaves them alone until the reply.
            let part = unsafe { list.wrapping_add(at).read_volatile() };
            let fits = part.offset.checked_add(part.bytes).is_some_and(|end| end <= length);
            let (Ok(offset), Ok(bytes), true) =
                (usize::try_from(part.offset), usize::try_from(part.bytes), fits)
            else {
                return Err(Error::internal("a message outside of its memory"));
            };
            let address = memory.wrapping_add(offset);
            let (peer, mark) = (part.end.peer(), part.end.mark());
            pieces.push(MessagePiece { peer, address, bytes, sends: part.sends == 1, mark });
        }
        for run in waves::runs(&pieces, |piece| (piece.peer, piece.sends)) {
            // SAFETY: all pieces are inside of the memory, which is kept as long as `self`, and the kernel
            // leaves it alone until the reply. Memory of a GPU was adopted by the channel.
            unsafe { channel.exchange(run) }?;
        }
        Ok(())
    }

    /// Whether a launch is at work, or will be.
    pub(super) fn is_busy(&self) -> bool {
        let report = self.words.report();
        let done = report.done.load(Ordering::Acquire);
        if self.captured.load(Ordering::Acquire) {
            // Replays are not counted here.
            return report.begun.load(Ordering::Acquire) != done;
        }
        self.enqueued.load(Ordering::Acquire) != done
    }

    /// How many launches began, and how many ended.
    pub(super) fn launches(&self) -> (u32, u32) {
        let report = self.words.report();
        // What ended is read first: it is never ahead of what began.
        let done = report.done.load(Ordering::Acquire);
        (report.begun.load(Ordering::Acquire), done)
    }

    /// A proxy could not do what was asked: kernels end, and the ranks agree on the error.
    pub(super) fn fail(&self, error: &Error) {
        super::tell(&self.health, error);
        self.words.abort();
    }
}
