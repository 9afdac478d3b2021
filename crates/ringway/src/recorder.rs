//! The flight recorder: what a rank's last operations were, when, and how they ended.
//!
//! ```text
//!   executing thread ── begin, end, stand ──►  Ring of calls     ─┐
//!                                              Ring of messages  ─┤
//!   (enqueuing)      ── enqueue ────────────►  Ring of launches  ─┼─ read at any time ──►  Trace ──► file
//!   (about to sleep) ── lanes, whom for ────►  Standing          ─┘
//! ```
//!
//! It is always on and takes a fixed amount of memory: one cache line for each operation kept. The
//! journal of the control plane ([`Journal`](crate::control::Journal)) is its ring of calls, so that a call is
//! written down once. What costs more than a few stores is written only where a rank stands still anyhow.
//!
//! *Invariant*: writing of operations allocates nothing, takes no lock and makes no system call; reading disturbs
//! no writer. One writer at a time.

mod clock;
mod dump;
mod meter;
mod ring;
mod standing;
mod trace;
mod traffic;

pub(crate) use clock::Counter;
pub use clock::{Clock, Span};
pub(crate) use dump::{Folder, write_file};
pub(crate) use meter::{Meter, Totals};
pub(crate) use ring::{Record, Ring};
pub(crate) use standing::Standing;
pub use trace::{
    CallRecord, ClockInfo, FORMAT, LaunchRecord, MessageRecord, Outcome, Reason, Trace, VERSION,
    Waited,
};
pub(crate) use trace::{times, waited};
pub(crate) use traffic::{Flow, Traffic};

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::plan::algorithm::Algorithm;
use crate::plan::types::Rank;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Operations kept at least, whatever the setting: ranks whose calls differ compare their last ones.
pub const KEPT_MIN: usize = if cfg!(loom) { 2 } else { 64 };

/// The rings, the clock and the lanes of one communicator on one rank.
#[derive(Debug)]
pub struct Recorder {
    calls: Ring,
    /// Made by the first message. As many as calls.
    messages: OnceLock<Ring>,
    /// Messages begun. One writer; readers take it (acquire) to know which records there are.
    begun: AtomicU64,
    /// Made by the first launch on a GPU. As many as calls.
    launches: OnceLock<Ring>,
    /// Launches enqueued. One writer, as above.
    enqueued: AtomicU64,
    standing: Standing,
    clock: Clock,
    /// Links between hosts, as they are made.
    links: Mutex<Vec<Watched>>,
}

/// A link whose traffic is watched.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) peer: Rank,
    pub(crate) transport: &'static str,
    pub(crate) traffic: Arc<Traffic>,
}

/// How an operation began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// When, by [`Recorder::now`].
    pub start: u64,
    /// When it was queued, where it was: 0 is never.
    pub queued: u64,
    /// By which algorithm it is done; none where several were fused.
    pub algorithm: Option<Algorithm>,
    /// Calls in it: several in a group.
    pub parts: usize,
    /// Whether ranks have counts of their own.
    pub uneven: bool,
}

impl Recorder {
    /// One that keeps the last `kept` operations, rounded up to a power of two. With 0 it keeps
    /// [`KEPT_MIN`], without their times.
    #[must_use]
    pub fn new(kept: usize) -> Self {
        Self {
            calls: Ring::new(kept.max(KEPT_MIN)),
            messages: OnceLock::new(),
            begun: AtomicU64::new(0),
            launches: OnceLock::new(),
            enqueued: AtomicU64::new(0),
            standing: Standing::default(),
            clock: if kept == 0 { Clock::stopped() } else { Clock::start() },
            links: Mutex::default(),
        }
    }

    /// From now on the traffic of a link is watched.
    pub(crate) fn watch(&self, link: Watched) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).push(link);
    }

    /// Links that are watched.
    pub(crate) fn links(&self) -> Vec<Watched> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time, in the clock's own ticks; 0 where the recorder is off.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// What [`Recorder::now`] reads.
    pub(crate) fn counter(&self) -> Counter {
        self.clock.counter()
    }

    /// Whether times are taken.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.clock.is_stopped()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What the clock reads, and CLOCK_REALTIME when CLOCK_MONOTONIC was 0.
    pub(crate) fn clock_info(&self) -> (&'static str, i64) {
        (self.clock.name(), self.clock.realtime_offset_ns())
    }

    pub(crate) fn calls(&self) -> &Ring {
        &self.calls
    }

    pub(crate) fn standing(&self) -> &Standing {
        &self.standing
    }

    /// A message begins; its number.
    pub(crate) fn begin_message(
        &self,
        peer: Rank,
        sends: bool,
        (sequence, bytes): (u64, u64),
    ) -> u64 {
        let number = self.begun.load(Ordering::Relaxed);
        if self.is_on() {
            let entry = Entry { start: self.now(), parts: 1, ..Entry::default() };
            let who = u64::from(peer) << 32 | u64::from(sends);
            let ring = self.messages.get_or_init(|| Ring::new(self.calls.len()));
            ring.write(number, &Record::new([bytes, sequence, who], &entry));
            self.begun.store(number.wrapping_add(1), Ordering::Release);
        }
        number
    }

    /// A message has waited for its peer for so long.
    pub(crate) fn wait_message(&self, number: u64, peer: Rank, waited_us: u64) {
        if let Some(ring) = self.messages.get().filter(|_| self.is_on()) {
            ring.wait(number, peer, waited_us);
        }
    }

    /// A message has ended, well or not.
    pub(crate) fn end_message(&self, number: u64, failed: bool) {
        if let Some(ring) = self.messages.get().filter(|_| self.is_on()) {
            ring.end(number, self.now(), failed);
        }
    }

    /// Messages that are kept, the oldest first.
    pub(crate) fn messages(&self) -> Vec<MessageRecord> {
        let Some(ring) = self.messages.get() else { return Vec::new() };
        let begun = self.begun.load(Ordering::Acquire);
        let span = self.clock.span();
        let numbers = begun.saturating_sub(ring.len() as u64)..begun;
        let message = |number| Some(MessageRecord::of(number, &ring.read(number)?, &span));
        numbers.filter_map(message).collect()
    }

    /// So many calls were put on a stream of a GPU in one launch. The first launch has number 1, as kernels count them.
    pub(crate) fn enqueue(&self, what: [u64; 3], parts: usize) {
        let number = self.enqueued.load(Ordering::Relaxed).wrapping_add(1);
        let entry = Entry { start: self.now(), parts, ..Entry::default() };
        let ring = self.launches.get_or_init(|| Ring::new(self.calls.len()));
        ring.write(number, &Record::new(what, &entry));
        self.enqueued.store(number, Ordering::Release);
    }

    /// The last one was not taken: the next has its number, and its place. Whoever reads that one meanwhile may take words of
    /// both for one.
    pub(crate) fn take_back(&self) {
        self.enqueued.fetch_sub(1, Ordering::Release);
    }

    /// A launch stands still for a rank, by its number as kernels count: modulo 2^32.
    pub(crate) fn wait_launch(&self, number: u32, rank: Rank, waited_us: u64) {
        if let (Some(ring), Some(number)) = (self.launches.get(), self.launch_of(number)) {
            ring.wait(number, rank, waited_us);
        }
    }

    /// What was enqueued as a launch, by its number as kernels count.
    pub(crate) fn launch(&self, number: u32) -> Option<Record> {
        self.launches.get()?.read(self.launch_of(number)?)
    }

    /// The whole number of a launch that is kept.
    fn launch_of(&self, number: u32) -> Option<u64> {
        let last = self.enqueued();
        #[expect(clippy::cast_possible_truncation, reason = "the low half is what kernels count")]
        let behind = u64::from((last as u32).wrapping_sub(number));
        let kept = behind < (self.calls.len() as u64).min(last);
        kept.then(|| last - behind)
    }

    /// Launches enqueued so far.
    pub(crate) fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Acquire)
    }

    /// Launches enqueued so far, and those that are kept, the oldest first.
    pub(crate) fn launches(&self) -> (u64, Vec<(u64, Record)>) {
        let last = self.enqueued();
        let Some(ring) = self.launches.get() else { return (last, Vec::new()) };
        let first = last.saturating_sub(ring.len() as u64) + 1;
        let launch = |number| Some((number, ring.read(number)?));
        (last, (first..=last).filter_map(launch).collect())
    }

    /// Messages begun so far.
    pub(crate) fn messages_begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }
}
