//! Totals of one rank's operations on one communicator, for those who watch it.
//!
//! A call adds to three words of its collective. How long calls took is counted in buckets of the recorder's
//! ticks, four to the octave: which of a monitoring system's buckets they belong to is worked out when somebody asks.
//!
//! *Invariant*: calls, messages and waits are added by one thread at a time, the executing one, so plain loads and stores
//! do; every number stands for itself, and whoever reads may be one call behind. Errors may be counted by any thread.

use crate::error::ErrorKind;
use crate::plan::types::{Collective, Rank};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Buckets of an octave.
const PARTS: usize = 4;

/// The first bucket's octave: fewer than four ticks are not told apart.
const FIRST: usize = 2;

/// Octaves: up to 2^42 ticks, some twenty minutes.
const OCTAVES: usize = 40;

const BUCKETS: usize = PARTS * OCTAVES;

/// Adds to a word that this thread alone writes.
#[inline]
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Totals of one kind of operation.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Tally {
    bytes: AtomicU64,
    ticks: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Tally {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { bytes: zero(), ticks: zero(), buckets: std::array::from_fn(|_| zero()) }
    }
}

/// The bucket of so many ticks.
#[inline]
fn bucket(ticks: u64) -> usize {
    let ticks = ticks.max(1 << FIRST);
    let octave = 63 - ticks.leading_zeros() as usize;
    #[expect(clippy::cast_possible_truncation, reason = "two bits")]
    let part = (ticks >> (octave - FIRST)) as usize & (PARTS - 1);
    (PARTS * (octave - FIRST) + part).min(BUCKETS - 1)
}

/// The number of ticks that is the first above a bucket.
fn end(bucket: usize) -> u64 {
    (PARTS + bucket % PARTS + 1) as u64 * (1_u64 << (bucket / PARTS))
}

/// What a tally says at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) ticks: u64,
    /// Operations by how long they took: fewer than so many ticks, and not fewer than the entry before says.
    pub(crate) by_ticks: Vec<(u64, u64)>,
}

impl Tally {
    /// An operation of so many bytes took so many ticks; 0 where no clock was read.
    #[inline]
    pub(crate) fn add(&self, bytes: u64, ticks: u64) {
        add(&self.bytes, bytes);
        add(&self.ticks, ticks);
        add(&self.buckets[bucket(ticks)], 1);
    }

    pub(crate) fn read(&self) -> Totals {
        let counts = self.buckets.iter().map(|word| word.load(Ordering::Relaxed));
        let by_ticks: Vec<(u64, u64)> = counts
            .enumerate()
            .filter(|(_, count)| *count > 0)
            .map(|(bucket, count)| (end(bucket), count))
            .collect();
        Totals {
            operations: by_ticks.iter().map(|(_, count)| count).sum(),
            bytes: self.bytes.load(Ordering::Relaxed),
            ticks: self.ticks.load(Ordering::Relaxed),
            by_ticks,
        }
    }
}

/// The totals of one communicator on one rank.
#[derive(Debug)]
pub(crate) struct Meter {
    collectives: [Tally; Collective::ALL.len()],
    /// Messages received and sent.
    messages: [Tally; 2],
    /// Calls put on streams of GPUs, and their bytes, by collective.
    enqueued: [[AtomicU64; 2]; Collective::ALL.len()],
    /// For how long nothing moved, in microseconds, by the rank that was waited for.
    waited_us: Box<[AtomicU64]>,
    errors: [AtomicU64; ErrorKind::ALL.len()],
}

impl Meter {
    /// One for a communicator of so many ranks.
    pub(crate) fn new(ranks: u32) -> Self {
        Self {
            collectives: Default::default(),
            messages: Default::default(),
            enqueued: Default::default(),
            waited_us: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
            errors: Default::default(),
        }
    }

    pub(crate) fn of(&self, collective: Collective) -> &Tally {
        &self.collectives[collective as usize]
    }

    pub(crate) fn messages(&self, sends: bool) -> &Tally {
        &self.messages[usize::from(sends)]
    }

    /// A call of so many bytes was put on a stream.
    pub(crate) fn enqueue(&self, collective: Collective, bytes: u64) {
        let [calls, total] = &self.enqueued[collective as usize];
        calls.fetch_add(1, Ordering::Relaxed);
        total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Calls put on streams, and their bytes.
    pub(crate) fn enqueued(&self, collective: Collective) -> [u64; 2] {
        self.enqueued[collective as usize].each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Nothing moved for so long, and `rank` was what was waited for.
    pub(crate) fn wait(&self, rank: Rank, waited_us: u64) {
        if let Some(word) = self.waited_us.get(rank as usize) {
            add(word, waited_us);
        }
    }

    /// Who was waited for, and for how many microseconds.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (Rank, u64)> {
        let all = self.waited_us.iter().map(|word| word.load(Ordering::Relaxed));
        (0..).zip(all).filter(|(_, waited_us)| *waited_us > 0)
    }

    /// A call ended with an error.
    pub(crate) fn fail(&self, kind: ErrorKind) {
        if let Some(at) = ErrorKind::ALL.iter().position(|other| *other == kind) {
            self.errors[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Calls that ended with an error, by kind.
    pub(crate) fn errors(&self) -> impl Iterator<Item = (ErrorKind, u64)> {
        let counts = self.errors.iter().map(|word| word.load(Ordering::Relaxed));
        ErrorKind::ALL.into_iter().zip(counts)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bucket_holds_what_is_below_its_end_and_not_below_the_one_before(ticks in 4_u64..1 << 41) {
            let at = bucket(ticks);
            prop_assert!(ticks < end(at));
            prop_assert!(at == 0 || ticks >= end(at - 1));
        }

        #[test]
        fn totals_are_what_was_added(calls in proptest::collection::vec((0_u64..1 << 40, 0_u64..1 << 50), 0..50)) {
            let tally = Tally::default();
            calls.iter().for_each(|(bytes, ticks)| tally.add(*bytes, *ticks));
            let totals = tally.read();
            prop_assert_eq!(totals.operations, calls.len() as u64);
            prop_assert_eq!(totals.bytes, calls.iter().map(|(bytes, _)| bytes).sum::<u64>());
            prop_assert_eq!(totals.ticks, calls.iter().map(|(_, ticks)| ticks).sum::<u64>());
            prop_assert!(totals.by_ticks.is_sorted());
        }
    }

    #[test]
    fn all_buckets_have_an_end() {
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
        assert!((1..BUCKETS).all(|at| end(at - 1) < end(at)));
    }

    #[test]
    fn waits_and_errors_are_kept_apart() {
        let meter = Meter::new(3);
        meter.wait(2, 10);
        meter.wait(2, 5);
        meter.wait(7, 1);
        assert_eq!(meter.waits().collect::<Vec<_>>(), [(2, 15)]);
        meter.fail(ErrorKind::Remote);
        meter.fail(ErrorKind::Remote);
        let failed: Vec<_> = meter.errors().filter(|(_, count)| *count > 0).collect();
        assert_eq!(failed, [(ErrorKind::Remote, 2)]);
        meter.enqueue(Collective::AllGather, 64);
        assert_eq!(meter.enqueued(Collective::AllGather), [1, 64]);
        assert_eq!(meter.enqueued(Collective::AllReduce), [0, 0]);
    }
}
