//! A rank's shared memory segment: an anonymous memfd that co-located peers map.
//!
//! ```text
//! 0      ┌ magic · layout ─────────────────────────────────────────┐
//! 64     │ sleeping   (own cache line: set by the owner, taken by   │
//! 128    │ done        whoever rings)                              │
//! 192    │ probe: where the owner maps this, and a random word      │
//! 1024   │ announcements: 64 × (sequence, tag)                     │
//! 4096   │ cards: 8 generations of 32 cache lines                   │
//! 20480  │ buffers: 8 generations of 64 × (input, output)          │
//! 28672  │ counters raised here: rank 0 │ rank 1 │ …               │
//!        │   each 128 collective · 8 send · 8 receive words        │
//!        ├ pairs: rank 0 │ rank 1 │ …    each 16 × (sequence, pair) │
//!        ├ message slots: rank 0 │ rank 1 │ …                      │
//!        ├ scratch: 8 generations for small operations             │
//!        └          two large areas, in turn ──────────────────────┘
//! ```
//!
//! **Invariant:** memory that another process may write is reached through atomics and raw copies
//! only; no `&` or `&mut` to plain bytes of it is ever made.

#![allow(unsafe_code, reason = "maps memory and hands out addresses inside it")]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};
use crate::plan::plan::{CARD_STRIDE, CARDS_MAX, FLAGS_MAX, LANES_MAX};
use crate::plan::types::Rank;
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::transport::{Area, Context};

const MAGIC: u64 = 0x5249_4e47_5741_5931; // "RINGWAY1"
const SLEEPING: usize = 64;
const DONE: usize = 128;
const PROBE: usize = 192;
const ANNOUNCEMENTS: usize = 1024;
const CARDS: usize = 4096;
const BUFFERS: usize = CARDS + GENERATIONS * CARDS_MAX * 64;
const _: () = assert!(CARD_STRIDE == 64, "buffers begin behind the cards");
const COUNTERS: usize = BUFFERS + GENERATIONS * LANES_MAX * 16;

/// Announcements kept; more than operations a peer can be ahead.
pub(crate) const ANNOUNCED: u64 = 64;

/// Pairs kept for each rank; as many.
pub(crate) const PAIRED: u64 = 16;

/// Operations that may be in flight on small scratch before the oldest must be over everywhere.
pub(crate) const GENERATIONS: usize = 8;

/// Large areas: while one operation is still being read, the next has another to write to.
pub(crate) const LARGES: usize = 2;

/// Flags of a message context.
const MESSAGE_FLAGS: usize = 8;

const COUNTERS_PER_RANK: usize = FLAGS_MAX + 2 * MESSAGE_FLAGS;

/// The sizes of a segment: equal on all ranks of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Layout {
    pub(crate) ranks: u32,
    /// Bytes of one generation of small scratch.
    pub(crate) small_bytes: u64,
    /// Bytes of one large area.
    pub(crate) large_bytes: u64,
    /// Bytes of the message slots of one sender.
    pub(crate) message_bytes: u64,
}

impl Layout {
    /// A layout with `scratch_bytes` in each large area.
    pub(crate) fn new(ranks: u32, scratch_bytes: u64) -> Self {
        let scratch = scratch_bytes.next_multiple_of(4096);
        let message = (scratch / u64::from(ranks.max(1))).clamp(8 << 10, 256 << 10);
        Self {
            ranks,
            small_bytes: (scratch / 32).clamp(16 << 10, 128 << 10).next_multiple_of(4096),
            large_bytes: scratch,
            message_bytes: message & !4095,
        }
    }

    fn pairs(&self) -> u64 {
        COUNTERS as u64 + u64::from(self.ranks) * COUNTERS_PER_RANK as u64 * 8
    }

    fn messages(&self) -> u64 {
        (self.pairs() + u64::from(self.ranks) * PAIRED * 16).next_multiple_of(4096)
    }

    /// Where the message slots of `sender` begin in the receiver's segment.
    pub(crate) fn message_slots(&self, sender: Rank) -> u64 {
        self.messages() + u64::from(sender) * self.message_bytes
    }

    /// Where generation `index` of the small scratch begins.
    pub(crate) fn small(&self, index: u64) -> u64 {
        let scratch = self.messages() + u64::from(self.ranks) * self.message_bytes;
        scratch + index % GENERATIONS as u64 * self.small_bytes
    }

    /// Where large area `index` begins.
    pub(crate) fn large(&self, index: u64) -> u64 {
        let first = self.small(0) + GENERATIONS as u64 * self.small_bytes;
        first + index % LARGES as u64 * self.large_bytes
    }

    /// Bytes of the whole segment.
    pub(crate) fn bytes(&self) -> u64 {
        self.large(0) + LARGES as u64 * self.large_bytes
    }

    fn hash(&self) -> u64 {
        [u64::from(self.ranks), self.small_bytes, self.large_bytes, self.message_bytes]
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
    }

    fn counter(&self, rank: Rank, context: Context, flag: u16) -> usize {
        let first = match context {
            Context::Collective => 0,
            Context::Send => FLAGS_MAX,
            Context::Receive => FLAGS_MAX + MESSAGE_FLAGS,
        };
        let index = rank as usize * COUNTERS_PER_RANK + first + usize::from(flag);
        COUNTERS + index * 8
    }
}

/// A mapped segment: this rank's own, or a peer's.
#[derive(Debug)]
pub(crate) struct Segment {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the mapping is shared between processes to begin with; every access goes through
// atomics, or through raw copies ordered by the plan that is being run.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new segment and the descriptor by which peers map it.
    pub(crate) fn create(layout: Layout) -> Result<(Self, OwnedFd)> {
        let name = "ringway";
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| Error::system("cannot create a shared memory segment (memfd)", e))?;
        rustix::fs::ftruncate(&fd, layout.bytes()).map_err(|e| {
            Error::system(
                format_args!("cannot size a shared memory segment to {} bytes", layout.bytes()),
                e,
            )
        })?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals)
            .map_err(|e| Error::system("cannot seal a shared memory segment", e))?;
        let segment = Self::map(&fd, layout)?;
        let mut token = [0; 8];
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::system("cannot get random bytes", e))?;
        let own = segment.address.as_ptr().wrapping_add(PROBE + 8).expose_provenance();
        let relaxed = crate::sync::atomic::Ordering::Relaxed;
        segment.word64(PROBE).store(own as u64, relaxed);
        segment.word64(PROBE + 8).store(u64::from_ne_bytes(token), relaxed);
        segment.word64(8).store(layout.hash(), crate::sync::atomic::Ordering::Relaxed);
        segment.word64(0).store(MAGIC, crate::sync::atomic::Ordering::Release);
        Ok((segment, fd))
    }

    /// Maps the segment a peer has passed.
    pub(crate) fn open(fd: &OwnedFd, layout: Layout) -> Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(fd)
            .map_err(|e| Error::system("cannot read the seals of a peer's segment", e))?;
        let bytes = rustix::fs::fstat(fd)
            .map_err(|e| Error::system("cannot measure a peer's segment", e))?
            .st_size;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(bytes) != Ok(layout.bytes()) {
            return Err(Error::usage(format!(
                "a peer's segment has {bytes} bytes, not {}; set NCCL_BUFFSIZE alike on all ranks",
                layout.bytes()
            )));
        }
        let segment = Self::map(fd, layout)?;
        let word = |offset| segment.word64(offset).load(crate::sync::atomic::Ordering::Acquire);
        if word(0) != MAGIC || word(8) != layout.hash() {
            return Err(Error::usage(
                "a peer's segment has another layout; run one version of ringway on all ranks",
            ));
        }
        Ok(segment)
    }

    fn map(fd: &OwnedFd, layout: Layout) -> Result<Self> {
        let bytes = usize::try_from(layout.bytes())
            .map_err(|_| Error::argument("the segment does not fit the address space"))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd.as_fd(),
                0,
            )
        }
        .map_err(|e| Error::system(format_args!("cannot map {bytes} bytes of shared memory"), e))?;
        let address = NonNull::new(address.cast())
            .ok_or_else(|| Error::internal("the kernel mapped a segment at address 0"))?;
        Ok(Self { address, layout })
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// The whole segment as an area: windows are offsets into it.
    pub(crate) fn area(&self) -> Area {
        let bytes = usize::try_from(self.layout.bytes()).expect("it was mapped");
        Area { address: self.address.as_ptr(), bytes }
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && (offset as u64) < self.layout.bytes());
        // SAFETY:
        // * `offset` is inside the mapping, which lives as long as `self`, and is aligned;
        // * the word is only ever accessed as an atomic, by every process.
        unsafe { &*self.address.as_ptr().wrapping_add(offset).cast::<AtomicU64>() }
    }

    /// Whether the owner sleeps. See [`super::flags::lie_down`].
    pub(crate) fn sleeping(&self) -> &AtomicU32 {
        // SAFETY:
        // * the offset is inside the header, aligned, and lives as long as `self`;
        // * the word is only ever accessed as an atomic, by every process.
        unsafe { &*self.address.as_ptr().wrapping_add(SLEEPING).cast::<AtomicU32>() }
    }

    /// Collectives the owner has completed.
    pub(crate) fn done(&self) -> &AtomicU64 {
        self.word64(DONE)
    }

    /// The owner's announcement of operation `sequence`: its sequence and its tag.
    pub(crate) fn announcement(&self, sequence: u64) -> (&AtomicU64, &AtomicU64) {
        let index = usize::try_from(sequence % ANNOUNCED).expect("small");
        let offset = ANNOUNCEMENTS + index * 16;
        (self.word64(offset), self.word64(offset + 8))
    }

    /// What the owner says of operation `sequence` between itself and `peer`.
    pub(crate) fn pair(&self, peer: Rank, sequence: u64) -> (&AtomicU64, &AtomicU64) {
        let index = u64::from(peer) * PAIRED + sequence % PAIRED;
        let offset = usize::try_from(self.layout.pairs() + index * 16).expect("mapped");
        (self.word64(offset), self.word64(offset + 8))
    }

    /// Where the cards of operation `sequence` begin.
    pub(crate) fn cards(&self, sequence: u64) -> u64 {
        let generation = sequence % GENERATIONS as u64;
        CARDS as u64 + generation * CARDS_MAX as u64 * CARD_STRIDE
    }

    /// Where the owner has a word in its memory, and that word: who can read it there can read
    /// the owner's memory.
    pub(crate) fn probe(&self) -> (u64, u64) {
        let word = |offset| self.word64(offset).load(crate::sync::atomic::Ordering::Relaxed);
        (word(PROBE), word(PROBE + 8))
    }

    /// Where the owner's input and output `index` of operation `sequence` are, in its memory.
    pub(crate) fn buffers(&self, sequence: u64, index: usize) -> (&AtomicU64, &AtomicU64) {
        assert!(index < LANES_MAX, "an operation has no more parts than lanes");
        let generation = usize::try_from(sequence % GENERATIONS as u64).expect("small");
        let offset = BUFFERS + (generation * LANES_MAX + index) * 16;
        (self.word64(offset), self.word64(offset + 8))
    }

    /// The word of a card that says whose values are on it.
    pub(crate) fn card(&self, sequence: u64, card: u16) -> &AtomicU64 {
        let offset = self.cards(sequence) + u64::from(card) * CARD_STRIDE;
        self.word64(usize::try_from(offset).expect("mapped"))
    }

    /// The counter `flag` that `rank` raises here.
    pub(crate) fn counter(&self, rank: Rank, context: Context, flag: u16) -> &AtomicU64 {
        self.word64(self.layout.counter(rank, context, flag))
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let bytes = usize::try_from(self.layout.bytes()).expect("it was mapped");
        // SAFETY: the mapping was made by `map` with this length, and nothing refers to it any
        // more: links hold the segment by `Arc`.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), bytes) };
    }
}
