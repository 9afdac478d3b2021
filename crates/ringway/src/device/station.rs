//! Stations: the device memory through which ranks meet, and the words they share with the host.
//!
//! Every rank has one, laid out alike, and maps those of all others: by address where they are in the same
//! process, by a handle of the driver's where they are not.
//!
//! *Invariant:* a station is given back when no rank of this process can have a kernel that uses it: they hold it themselves
//! (`Held`), as one that leaves its communicator, or gives it up, may go before a call of theirs begins. What is mapped in other
//! processes stays.

#![allow(unsafe_code, reason = "words in pinned memory that kernels write")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Fault;
use super::gpu::{DeviceMemory, Gpu, PinnedMemory};
use super::program::{FLAGS, Launch, RANKS, card_grain};
use crate::ffi::cuda::{Address, IPC_BYTES, IpcHandle};
use crate::plan::mapped;

/// Allocations a rank can name to others at a time; `RW_ENTRIES`.
pub(super) const ENTRIES: usize = 4096;
/// Bytes of an entry of the book: a handle, and how long the allocation is.
pub(super) const ENTRY_BYTES: usize = IPC_BYTES + 16;
/// Bytes of `rw_record`.
const RECORD_BYTES: u64 = 32;
/// Bytes of `rw_state`.
const STATE_BYTES: u64 = 8 * FLAGS as u64 + 32;

/// Where things are in a station; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) ranks: u32,
    /// Parts of a launch at most.
    pub(super) parts: u32,
    state: u64,
    cards: u64,
    card_bytes: u64,
    maps: u64,
    bytes: u64,
}

impl Layout {
    pub(super) fn new(ranks: u32, parts: u32) -> Self {
        let pairs = u64::from(ranks) * u64::from(parts);
        let state = pairs * FLAGS as u64 * RECORD_BYTES;
        // Behind the states the numbers of the cards, a word for each part.
        let cards = (state + pairs * STATE_BYTES + u64::from(parts) * 4).next_multiple_of(256);
        // Every part has its share of a card to itself, and packets are twice as long as what they hold.
        let share = mapped::card_bytes(ranks).div_ceil(parts.into()).max(card_grain(ranks));
        let packets = 2 * share.next_multiple_of(8) * u64::from(parts);
        // Two sets of cards in turn. In front of the maps are the numbers of launches.
        let maps = cards + 2 * u64::from(ranks) * packets + 256;
        let book = maps + u64::from(ranks) * (ENTRIES * 8) as u64;
        let bytes = book + (ENTRIES * ENTRY_BYTES) as u64;
        Self { ranks, parts, state, cards, card_bytes: packets, maps, bytes }
    }

    /// Bytes a rank can show on a card.
    pub(super) fn card_bytes(&self) -> u64 {
        self.card_bytes / 2
    }

    /// Where the numbers of launches are that began and that ended, 4 bytes each.
    fn launches(&self) -> u64 {
        self.maps - 8
    }

    /// Says it to a launch.
    pub(super) fn write(&self, launch: &mut Launch) {
        launch.state = self.state;
        launch.cards = self.cards;
        launch.maps = self.maps;
        launch.card_bytes = self.card_bytes;
        launch.ranks = self.ranks;
        launch.parts_most = self.parts;
    }
}

// A launch says a peer's allocation in the bits of a token, below a byte of another use.
const _: () = assert!((ENTRIES as u64) << super::export::OFFSET_BITS <= 1 << 56);
// Entries of the book are read and written as words.
const _: () = assert!(ENTRY_BYTES.is_multiple_of(8));

/// Stations of this process, and the memory of those whose rank went before the last that held them. To give that back
/// waits for kernels of its GPU, and those for other threads: it is done by a rank that leaves that GPU.
#[derive(Debug)]
struct Stations {
    known: Vec<(Address, Weak<DeviceMemory>)>,
    left: Vec<DeviceMemory>,
}

static STATIONS: Mutex<Stations> = Mutex::new(Stations { known: Vec::new(), left: Vec::new() });

fn stations() -> MutexGuard<'static, Stations> {
    STATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rank's own station.
#[derive(Debug)]
pub(super) struct Station {
    /// There until it is dropped.
    memory: Option<Arc<DeviceMemory>>,
    gpu: Arc<Gpu>,
    address: Address,
    bytes: usize,
    pub(super) layout: Layout,
}

/// The station of another rank of this process: there as long as this is.
#[derive(Debug)]
pub(super) struct Held(Option<Arc<DeviceMemory>>);

impl Held {
    /// That at an address, which a rank has told; nothing where that rank has failed meanwhile.
    pub(super) fn at(address: Address) -> Option<Self> {
        let all = stations();
        let found = all.known.iter().filter(|(known, _)| *known == address);
        found.filter_map(|(_, memory)| memory.upgrade()).next().map(|memory| Self(Some(memory)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let last = self.0.take().and_then(Arc::into_inner);
        stations().left.extend(last);
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        let own = self.memory.take().and_then(Arc::into_inner);
        let ordinal = self.gpu.ordinal();
        let here = |memory: &mut DeviceMemory| memory.gpu().ordinal() == ordinal;
        let left: Vec<_> = stations().left.extract_if(.., here).collect();
        // Without the lock: it takes its time.
        drop((own, left));
    }
}

impl Station {
    pub(super) fn new(gpu: &Arc<Gpu>, layout: Layout) -> Result<Self, Fault> {
        let bytes = usize::try_from(layout.bytes)
            .map_err(|_| Fault::Other("a station too large for this machine".to_owned()))?;
        let memory = Arc::new(gpu.alloc(bytes)?);
        let mut all = stations();
        all.known.retain(|(_, memory)| memory.strong_count() > 0);
        let (gpu, address) = (Arc::clone(gpu), memory.address());
        all.known.push((address, Arc::downgrade(&memory)));
        Ok(Self { memory: Some(memory), gpu, address, bytes, layout })
    }

    /// Launches that began, and that ended. Waits for a copy, which may have to wait for kernels.
    pub(super) fn launches(&self, gpu: &Arc<Gpu>) -> Result<(u32, u32), Fault> {
        let mut bytes = [0; 8];
        gpu.read(&mut bytes, self.address() + self.layout.launches())?;
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Ok((word(0), word(4)))
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Memory of a peer in another process that is to be mapped: `rw_request`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Request {
    /// One more than the entry; set by kernels.
    pub(super) asked: AtomicU64,
    pub(super) handle: [AtomicU64; IPC_BYTES / 8],
    /// What was asked; set by the host.
    pub(super) answered: AtomicU64,
    pub(super) base: AtomicU64,
}

/// What kernels and host tell each other: `rw_report`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Report {
    /// Set by either side: kernels end.
    pub(super) abort: AtomicU32,
    /// One more than the rank whose call differs.
    pub(super) mismatch: AtomicU32,
    pub(super) their_tag: AtomicU32,
    pub(super) own_tag: AtomicU32,
    /// The launch whose block 0 waits, and one more than the rank it waits for.
    pub(super) launch: AtomicU32,
    pub(super) waits_for: AtomicU32,
    pub(super) waits_flag: AtomicU32,
    unused: AtomicU32,
    /// Launches that the host serves.
    pub(super) begun: AtomicU32,
    pub(super) done: AtomicU32,
    pub(super) requests: [Request; RANKS],
}

/// What a rank names to other processes, in pinned memory: launches copy it into the station.
#[derive(Debug)]
pub(super) struct Book(PinnedMemory);

impl Book {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, Fault> {
        Ok(Self(gpu.pinned(ENTRIES * ENTRY_BYTES)?))
    }

    /// Where kernels see it.
    pub(super) fn address(&self) -> Address {
        self.0.address()
    }

    /// Writes an entry that no launch has read yet.
    pub(super) fn write(&mut self, entry: usize, handle: &IpcHandle, bytes: u64) {
        let mut line = [0; ENTRY_BYTES];
        line[..IPC_BYTES].copy_from_slice(&handle.0);
        line[IPC_BYTES..IPC_BYTES + 8].copy_from_slice(&bytes.to_le_bytes());
        let entry = entry.min(ENTRIES - 1);
        // SAFETY: the memory has `ENTRIES` lines.
        let place = unsafe { self.0.place().add(entry * ENTRY_BYTES) };
        // SAFETY: a line of it; kernels read only lines that were written before they began.
        unsafe { place.cast::<[u8; ENTRY_BYTES]>().write(line) };
    }
}

/// A report in pinned memory.
#[derive(Debug)]
pub(super) struct Words(PinnedMemory);

impl Words {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, Fault> {
        Ok(Self(gpu.pinned(size_of::<Report>())?))
    }

    /// Where kernels see it.
    pub(super) fn address(&self) -> Address {
        self.0.address()
    }

    pub(super) fn report(&self) -> &Report {
        // SAFETY: the memory has the size of a report, is aligned as pages are, was cleared, and is used
        // through atomics only, here and in kernels.
        unsafe { self.0.place().cast::<Report>().as_ref() }
    }

    /// Ends the kernels that run, and those to come.
    pub(super) fn abort(&self) {
        self.report().abort.store(1, Ordering::Release);
    }

    /// Whether they end: by us, or by one that met another call.
    pub(super) fn is_aborted(&self) -> bool {
        self.report().abort.load(Ordering::Acquire) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;

    /// Every part of a station, as first byte and the one behind the last, in the order of the picture.
    fn parts(layout: &Layout) -> [(u64, u64); 5] {
        let Layout { ranks, parts, state, cards, card_bytes, maps, bytes } = *layout;
        let pairs = u64::from(ranks) * u64::from(parts);
        // Where kernels look for it.
        let book = maps + u64::from(ranks) * ENTRIES as u64 * 8;
        [
            (0, pairs * FLAGS as u64 * RECORD_BYTES),
            (state, state + pairs * STATE_BYTES + 4 * u64::from(parts)),
            // Two sets; the numbers of launches are in front of the maps.
            (cards, cards + 2 * u64::from(ranks) * card_bytes + 8),
            (maps, maps + u64::from(ranks) * ENTRIES as u64 * 8),
            (book, bytes),
        ]
    }

    #[test]
    fn parts_of_a_station_do_not_overlap_and_are_aligned() {
        for ranks in 1..=mapped::RANKS_MAX {
            for most in [1, 2, 3, 4, 7, 16, 33, 64] {
                let layout = Layout::new(ranks, most);
                let parts = parts(&layout);
                for pair in parts.windows(2) {
                    assert!(pair[0].1 <= pair[1].0, "{ranks} ranks, {most} parts: {parts:?}");
                }
                assert!(parts.iter().all(|(start, _)| start.is_multiple_of(8)), "{parts:?}");
                // Packets are 16 bytes, and written so.
                assert!(layout.cards.is_multiple_of(16), "{layout:?}");
                assert!(layout.card_bytes.is_multiple_of(16 * u64::from(most)), "{layout:?}");
            }
        }
    }

    #[test]
    fn the_last_entries_are_inside() {
        let layout = Layout::new(32, 64);
        let book = parts(&layout)[4].0;
        assert_eq!(book + (ENTRIES * ENTRY_BYTES) as u64, layout.bytes);
        // A communicator says what it takes: this is the most.
        assert!(layout.bytes < 16 << 20, "{} bytes", layout.bytes);
    }

    #[test]
    fn every_part_has_room_for_its_share_of_a_card() {
        for ranks in 1..=mapped::RANKS_MAX {
            for most in [1, 2, 3, 7, 16, 33, 64] {
                let layout = Layout::new(ranks, most);
                assert!(layout.card_bytes() >= mapped::card_bytes(ranks), "{layout:?}");
                assert!(layout.card_bytes() >= card_grain(ranks) * u64::from(most), "{layout:?}");
            }
        }
    }

    #[test]
    fn a_launch_is_told_where_things_are() {
        let layout = Layout::new(5, 3);
        let mut launch = Launch::new_zeroed();
        layout.write(&mut launch);
        let told = (launch.state, launch.cards, launch.maps, launch.card_bytes);
        assert_eq!(told, (layout.state, layout.cards, layout.maps, layout.card_bytes));
        assert_eq!((launch.ranks, launch.parts_most), (5, 3));
    }
}
