//! The memory that a rank's kernels and proxies share, and its end.
//!
//! *Invariant:* host code reaches words that kernels write through atomics only, and copies the rest.

#![allow(unsafe_code, reason = "words and bytes in pinned memory that kernels write")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::layout::{
    Asked, DESK_BYTES, PIECES, PartWords, Place, SLOT_BYTES, SLOTS_MOST, SlotWords, read,
};
use super::{Channel, Channels, MessagePiece, SLOTS};
use crate::control::{Health, Report};
use crate::device::Fault;
use crate::device::gpu::{DeviceMemory, Gpu, PinnedMemory};
use crate::device::station::Words;
use crate::error::{Error, Result};

/// Pinned memory that messages go through.
#[derive(Debug)]
struct Staging {
    memory: PinnedMemory,
    bytes: u64,
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
            numbers: gpu.alloc(DESK_BYTES)?,
            slot_count,
            stagings: Mutex::default(),
            enqueued: AtomicU32::new(0),
            captured: AtomicBool::new(false),
            health: Arc::clone(health),
        })
    }

    /// Where kernels find it.
    pub(super) fn place(&self) -> Place {
        Place {
            report: self.words.address(),
            desk: self.numbers.address(),
            slots: self.slots.address(),
            data: self.data.address(),
            slot_bytes: SLOT_BYTES,
        }
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
        self.numbers.bytes() as u64
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
        let mut all = self.stagings.lock().unwrap_or_else(PoisonError::into_inner);
        if all.last().is_none_or(|last| last.bytes < bytes) {
            let bytes = bytes.next_power_of_two().max(1 << 20);
            let length = usize::try_from(bytes)
                .map_err(|_| Fault::Other("messages too large for this machine".to_owned()))?;
            let memory = self.gpu.pinned(length)?;
            self.channels.iter().for_each(|channel| channel.keep(memory.place().as_ptr(), length));
            all.push(Staging { memory, bytes });
        }
        let number = all.len() as u64 - 1;
        let address = all.last().map_or(0, |last| last.memory.address());
        Ok((number, address))
    }

    /// Does what a slot's request asks for, and says which slot of the channel has the next.
    pub(super) fn serve(&self, channel: &dyn Channel, step: usize, at: usize) -> Result<usize> {
        let slot = self.slot(at);
        let told = std::array::from_fn(|i| slot.told[i].load(Ordering::Relaxed));
        let first = at % step;
        match read(&told) {
            Some(Asked::Chunk { call, chunk, chunks }) => {
                let bytes = usize::try_from(SLOT_BYTES).unwrap_or(usize::MAX);
                let input = self.data.place().as_ptr().wrapping_add(2 * at * bytes);
                let output = input.wrapping_add(bytes);
                // SAFETY: input and output of a slot have SLOT_BYTES each, which `Shape` keeps chunks
                // within (the channel compares), and the kernel leaves them alone until the reply.
                unsafe { channel.collective(&call, (input, bytes), (output, bytes)) }?;
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

    fn messages(&self, channel: &dyn Channel, staging: u64, parts: usize) -> Result<()> {
        let list = self.slots.place().as_ptr().wrapping_add(PARTS_AT).cast::<PartWords>();
        let (memory, length) = {
            let all = self.stagings.lock().unwrap_or_else(PoisonError::into_inner);
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
            pieces.push(MessagePiece { peer: part.peer, address, bytes, sends: part.sends == 1 });
        }
        // SAFETY: all pieces are inside of the memory, which is kept as long as `self`, and the kernel
        // leaves it alone until the reply.
        unsafe { channel.exchange(&pieces) }
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
        if !self.health.is_raised() {
            self.health.report(Report::channel(error));
        }
        self.words.abort();
    }
}
