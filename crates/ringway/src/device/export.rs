//! Memory across processes: naming this rank's allocations to others, and mapping theirs.
//!
//! ```text
//! rank a: a buffer in an allocation not yet named ─► entry e in a's book: handle (pinned memory)
//!         launch: copies e into a's station; "my input is at offset o of entry e"
//! rank b: kernel: is e of a mapped?  no ─► request: the handle, from a's station ─► watch: opens it
//!         kernel goes on, and keeps the address ◄──────────────────────── answer
//! ```
//!
//! A handle is the driver's, or, of memory that the driver passes as descriptors only, one of ours (`share`): an area
//! of all the allocations that a buffer touches.
//!
//! Nothing here is copied by a stream of its own: it could stand behind the very kernel that waits for it.
//!
//! *Invariant:* an entry is never used for another allocation while a launch that names it may run: entries
//! of memory that was given back are forgotten, not used again, until all are used up. Memory is known by numbers
//! that the driver gives once, never by its address alone.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::Fault;
use super::gpu::{DeviceMemory, Gpu, Mapped, Segment, Stream};
use super::share::{Share, Ticket};
use super::station::{Book, ENTRIES};
use crate::ffi::cuda::{Address, IpcHandle};

/// An offset in an allocation that other processes know.
pub(super) const OFFSET_BITS: u32 = 40;

/// Entries that areas leave to allocations with handles of the driver's: those cannot do without.
const ENTRIES_SPARE: usize = 512;

/// Segments that lie one behind the other, under one entry.
#[derive(Debug)]
struct Area {
    entry: u64,
    /// In the order of their addresses.
    segments: Vec<Segment>,
}

impl Area {
    /// Those that have bytes between two addresses.
    fn between(&self, start: Address, end: Address) -> &[Segment] {
        let from = self.segments.partition_point(|segment| segment.end() <= start);
        let to = self.segments.partition_point(|segment| segment.base < end);
        self.segments.get(from..to).unwrap_or_default()
    }
}

/// This rank's allocations that others know.
#[derive(Debug)]
pub(super) struct Exports {
    book: Book,
    /// Entry of an allocation, by its start and the number no other ever had.
    entries: HashMap<(Address, u64), u64>,
    areas: Vec<Area>,
    /// The door of memory that is passed as descriptors, or why there is none.
    share: Result<Share, String>,
    /// Whether it was said that a buffer is copied.
    is_told: bool,
    /// Entries of the book that are used, and those that every station has for certain.
    names: usize,
    copied: usize,
    /// In place of memory that cannot be named: one for inputs, one for outputs.
    bounce: [Option<DeviceMemory>; 2],
    retired: Vec<DeviceMemory>,
}

/// Where others find a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// The address kernels here use: the buffer, or what stands in for it.
    pub(super) address: Address,
    /// Entry and offset.
    pub(super) token: u64,
}

impl Exports {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, Fault> {
        // Entry 0 is never used: it says that there is no buffer.
        Ok(Self {
            book: Book::new(gpu)?,
            entries: HashMap::new(),
            areas: Vec::new(),
            share: Err("all ranks are of one process".to_owned()),
            is_told: false,
            names: 1,
            copied: 1,
            bounce: [None, None],
            retired: Vec::new(),
        })
    }

    /// Memory may be passed as descriptors from now on, or it is known why not.
    pub(super) fn set_share(&mut self, share: Result<Share, String>) {
        self.share = share;
    }

    /// Why memory is not passed as descriptors, where that is so.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.share.as_ref().err().map(String::as_str)
    }

    /// Where kernels see the book.
    pub(super) fn book(&self) -> Address {
        self.book.address()
    }

    /// The entries that a launch must copy.
    pub(super) fn fresh(&self) -> (u32, u32) {
        // At most `ENTRIES`.
        let number = |entry: usize| u32::try_from(entry).unwrap_or(0);
        (number(self.copied), number(self.names))
    }

    /// Says that a launch that copies them was made. One that is only written down may never run.
    pub(super) fn launched(&mut self, is_captured: bool) {
        if !is_captured {
            self.copied = self.names;
        }
    }

    /// Names a buffer of `bytes` to other processes: `which` is 0 for inputs, 1 for outputs. Memory that the
    /// driver cannot name is stood in for by memory of ours, and the caller copies.
    pub(super) fn name(
        &mut self,
        gpu: &Arc<Gpu>,
        (address, bytes): (Address, usize),
        which: usize,
    ) -> Result<Named, Fault> {
        if address == 0 || bytes == 0 {
            return Ok(Named { address, token: 0 });
        }
        match self.find(gpu, address, bytes)? {
            Ok(token) => return Ok(Named { address, token }),
            Err(why) if !self.is_told => {
                self.is_told = true;
                tracing::warn!(
                    target: crate::log::INIT,
                    "GPU : a buffer ({address:#x}, {bytes} bytes) is copied around every call, as other processes \
                     cannot map it: {why}"
                );
            }
            Err(_) => {}
        }
        let bounce = self.bounce(gpu, bytes, which)?;
        let (base, length, id) = gpu.allocation(bounce)?;
        let entry = match self.entries.get(&(base, id)) {
            Some(entry) => *entry,
            None => self.enter((base, length, id), gpu.export(base)?)?,
        };
        Ok(Named { address: bounce, token: token(entry, bounce - base) })
    }

    /// The token of a buffer, or why other processes cannot map it.
    fn find(
        &mut self,
        gpu: &Gpu,
        address: Address,
        bytes: usize,
    ) -> Result<Result<u64, String>, Fault> {
        let (base, length, id) = match gpu.allocation(address) {
            Ok(allocation) => allocation,
            Err(fault) => return Ok(Err(fault.to_string())),
        };
        if gpu.is_managed(address) {
            return Ok(Err("managed memory has no one place".to_owned()));
        }
        if let Some(entry) = self.entries.get(&(base, id)) {
            return Ok(Ok(token(*entry, address - base)));
        }
        if let Some(token) = self.known_area(gpu, address, bytes) {
            return Ok(Ok(token));
        }
        match gpu.export(base) {
            Ok(handle) => {
                let entry = self.enter((base, length, id), handle)?;
                Ok(Ok(token(entry, address - base)))
            }
            Err(fault) => {
                Ok(self.enter_area(gpu, address, bytes).map_err(|why| format!("{fault}; {why}")))
            }
        }
    }

    /// The token of a buffer in an area that is as it was when it was entered.
    fn known_area(&mut self, gpu: &Gpu, address: Address, bytes: usize) -> Option<u64> {
        if self.areas.is_empty() {
            return None;
        }
        let now = gpu.segments(address, bytes).ok()?;
        let (first, last) = (now.first()?, now.last()?);
        // What has other memory now, where the buffer is, is of no use to anybody.
        self.areas.retain(|area| {
            let touched = area.between(first.base, last.end());
            touched.iter().all(|one| {
                let at = now.binary_search_by_key(&one.base, |segment| segment.base);
                at.is_ok_and(|at| now[at] == *one)
            })
        });
        let holds = |area: &&Area| area.between(first.base, last.end()).len() == now.len();
        let area = self.areas.iter().find(holds)?;
        Some(token(area.entry, address - area.segments[0].base))
    }

    /// Enters all that a buffer touches, as an area; or says why not.
    fn enter_area(&mut self, gpu: &Gpu, address: Address, bytes: usize) -> Result<u64, String> {
        let share = self.share.as_ref().map_err(Clone::clone)?;
        if self.names + ENTRIES_SPARE >= ENTRIES {
            return Err(format!("{} entries of memory are used already", self.names));
        }
        let segments = gpu.segments(address, bytes).map_err(|fault| fault.to_string())?;
        for segment in &segments {
            // Made and closed again: it is asked for later, from another thread, which has no way back.
            drop(gpu.descriptor(segment.base).map_err(|fault| fault.to_string())?);
        }
        let start = segments.first().map_or(address, |first| first.base);
        let length = segments.iter().map(|segment| segment.bytes as u64).sum();
        let entry = self.names;
        self.book.write(entry, &share.add(segments.clone()), length);
        self.names = entry + 1;
        self.areas.push(Area { entry: entry as u64, segments });
        Ok(token(entry as u64, address - start))
    }

    /// Memory of ours of at least `bytes`.
    fn bounce(&mut self, gpu: &Arc<Gpu>, bytes: usize, which: usize) -> Result<Address, Fault> {
        let place = &mut self.bounce[which.min(1)];
        if place.as_ref().is_none_or(|bounce| bounce.bytes() < bytes) {
            // The old one is kept: giving memory back waits for all kernels of the GPU, and some may wait
            // for a call that this thread has yet to make. All together are less than twice the last.
            let memory = gpu.alloc(bytes.next_power_of_two())?;
            self.retired.extend(place.replace(memory));
        }
        place
            .as_ref()
            .map(DeviceMemory::address)
            .ok_or_else(|| Fault::Other("no memory".to_owned()))
    }

    /// Writes an allocation into the book.
    fn enter(
        &mut self,
        (base, bytes, id): (Address, usize, u64),
        handle: IpcHandle,
    ) -> Result<u64, Fault> {
        // What stood at the same place is gone: the driver gives a place again only when it is free.
        self.entries.retain(|(start, _), _| *start != base);
        let entry = self.names;
        if entry >= ENTRIES {
            return Err(Fault::Other(format!(
                "more than {} allocations were used with one communicator; let the allocator keep its memory, or make a \
                 new communicator",
                ENTRIES - 1
            )));
        }
        self.book.write(entry, &handle, bytes as u64);
        self.names = entry + 1;
        self.entries.insert((base, id), entry as u64);
        Ok(entry as u64)
    }
}

fn token(entry: u64, offset: u64) -> u64 {
    entry << OFFSET_BITS | offset
}

/// Handles that this process has opened: the driver opens each once.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Opened {
    ordinal: i32,
    handle: IpcHandle,
    base: Address,
    users: usize,
}

/// An allocation, or an area, of another process, mapped here.
#[derive(Debug)]
pub(super) struct Import {
    gpu: Arc<Gpu>,
    pub(super) base: Address,
    origin: Origin,
}

/// What it was opened by.
#[derive(Debug)]
enum Origin {
    /// A handle of the driver's.
    Handle(IpcHandle),
    /// Descriptors.
    Descriptors { _mapped: Mapped },
}

impl Import {
    /// Opens a handle; `directory` is where doors are, if they are in one.
    pub(super) fn open(
        gpu: &Arc<Gpu>,
        handle: IpcHandle,
        directory: Option<&Path>,
    ) -> Result<Self, Fault> {
        if let Some(ticket) = Ticket::read(&handle) {
            let mapped = ticket.open(gpu, directory)?;
            let base = mapped.base();
            let origin = Origin::Descriptors { _mapped: mapped };
            return Ok(Self { gpu: Arc::clone(gpu), base, origin });
        }
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let ordinal = gpu.ordinal();
        let known = opened.iter_mut().find(|one| one.ordinal == ordinal && one.handle == handle);
        let base = match known {
            Some(one) => {
                one.users += 1;
                one.base
            }
            None => {
                let base = gpu.import(handle)?;
                opened.push(Opened { ordinal, handle, base, users: 1 });
                base
            }
        };
        Ok(Self { gpu: Arc::clone(gpu), base, origin: Origin::Handle(handle) })
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        let Origin::Handle(handle) = self.origin else { return };
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let ordinal = self.gpu.ordinal();
        let place = opened.iter().position(|one| one.ordinal == ordinal && one.handle == handle);
        let Some(place) = place else { return };
        opened[place].users -= 1;
        if opened[place].users == 0 {
            opened.remove(place);
            drop(opened);
            self.gpu.forget(self.base);
        }
    }
}

/// Copies around a launch, where something stands in for a buffer.
pub(super) fn copy(
    gpu: &Gpu,
    to: Address,
    from: Address,
    bytes: usize,
    stream: Stream,
) -> Result<(), Fault> {
    if to == from || bytes == 0 { Ok(()) } else { gpu.copy(to, from, bytes, stream) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What kernels make of a token; `rw_translate`.
    fn read(token: u64) -> (u64, u64) {
        (token >> OFFSET_BITS, token & ((1 << OFFSET_BITS) - 1))
    }

    #[test]
    fn tokens_hold_the_last_entry_and_offset() {
        let offset_most = (1 << OFFSET_BITS) - 1;
        for entry in [1, 2, ENTRIES as u64 - 1] {
            for offset in [0, 1, 4096, offset_most] {
                let token = token(entry, offset);
                assert_eq!(read(token), (entry, offset));
                // The byte above is for the number of the launch; 0 says that there is no buffer.
                assert!(token != 0 && token >> 56 == 0, "{token:x}");
            }
        }
    }

    #[test]
    fn names_of_nothing_are_nothing() {
        let named = Named { address: 0, token: 0 };
        assert_eq!(read(named.token), (0, 0));
        assert_ne!(token(1, 0), named.token);
    }
}
