//! The last operations, each in one cache line.
//!
//! ```text
//!   version │ what │ what │ what │ start │ about:1 end:63 │ queued:40 parts:8 algorithm:8 flags:8 │ rank:32 waited µs:32
//! ```
//!
//! `version` is 0 before the first use, odd while the writer is inside, and `2 (number + 1)` when the
//! words hold operation `number`: a seqlock of plain atomics, so a torn read is noticed, never undefined.
//! The writer's final release store pairs with the reader's acquire load; the fences order the relaxed
//! words against both accesses of the version. The end, the wait and, of short calls, the start are written later,
//! a word each, and stand for themselves.
//!
//! *Invariant*: one writer at a time. Two would not be unsound, but the records would lie.

use super::Entry;
use crate::os;
use crate::plan::algorithm::Algorithm;
use crate::plan::types::Rank;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// Words of a record, besides its version.
pub(crate) const WORDS: usize = 7;

/// Words that say what the operation is.
const WHAT: usize = 3;

const START: usize = 3;
const END: usize = 4;
const INFO: usize = 5;
const WAIT: usize = 6;

const QUEUED_MAX: u64 = (1 << 40) - 1;
const NO_ALGORITHM: u64 = 0xff;
/// In the word of the end: it was not read from a clock.
const ABOUT: u64 = 1 << 63;
const FAILED: u64 = 1;
const UNEVEN: u64 = 2;

/// How often a reader tries again while the writer is inside its slot.
const READ_ATTEMPTS: u32 = if cfg!(loom) { 2 } else { 64 };

/// One operation as it stands in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    words: [u64; WORDS],
}

impl Record {
    /// An operation that begins.
    #[inline]
    pub(crate) fn new([a, b, c]: [u64; WHAT], entry: &Entry) -> Self {
        let queued = match entry.queued {
            0 => 0,
            queued => entry.start.saturating_sub(queued).clamp(1, QUEUED_MAX),
        };
        let parts = (entry.parts as u64).min(0xff);
        let algorithm = entry.algorithm.map_or(NO_ALGORITHM, |algorithm| algorithm as u64);
        let uneven = if entry.uneven { UNEVEN } else { 0 };
        let info = queued << 24 | parts << 16 | algorithm << 8 | uneven;
        Self { words: [a, b, c, entry.start, 0, info, 0] }
    }

    /// What the operation is.
    pub(crate) fn what(&self) -> [u64; WHAT] {
        [self.words[0], self.words[1], self.words[2]]
    }

    pub(crate) fn start(&self) -> u64 {
        self.words[START]
    }

    /// When it ended, if it has.
    pub(crate) fn end(&self) -> Option<u64> {
        Some(self.words[END] & !ABOUT).filter(|end| *end != 0)
    }

    /// Whether its end was counted, not read from a clock.
    pub(crate) fn ends_about(&self) -> bool {
        self.words[END] & ABOUT != 0
    }

    pub(crate) fn failed(&self) -> bool {
        self.words[INFO] & FAILED != 0
    }

    /// Whether ranks have counts of their own.
    pub(crate) fn is_uneven(&self) -> bool {
        self.words[INFO] & UNEVEN != 0
    }

    /// Ticks from when it was queued to when it began, where it was queued.
    pub(crate) fn queued(&self) -> Option<u64> {
        Some(self.words[INFO] >> 24).filter(|ticks| *ticks != 0)
    }

    pub(crate) fn parts(&self) -> u64 {
        self.words[INFO] >> 16 & 0xff
    }

    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        let code = self.words[INFO] >> 8 & 0xff;
        Algorithm::ALL.iter().copied().find(|algorithm| *algorithm as u64 == code)
    }

    /// The rank it stood still for longest, and for how many microseconds.
    pub(crate) fn waited(&self) -> Option<(Rank, u64)> {
        let word = Some(self.words[WAIT]).filter(|word| *word != 0)?;
        Some((Rank::try_from(word >> 32).ok()?, word & 0xffff_ffff))
    }
}

/// A cache line of its own: neighbours are written one after another, and read while they are.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    version: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The version of a slot that holds operation `number`.
#[inline]
fn version(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(2)
}

/// The records.
#[derive(Debug)]
pub(crate) struct Ring {
    slots: Box<[Slot]>,
}

impl Ring {
    /// One of `length` records or more: a power of two.
    pub(crate) fn new(length: usize) -> Self {
        Self { slots: (0..length.next_power_of_two()).map(|_| Slot::default()).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Operation `number` begins; the oldest is forgotten.
    #[inline]
    pub(crate) fn write(&self, number: u64, record: &Record) {
        let slot = self.slot(number);
        let version = version(number);
        slot.version.store(version | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in slot.words.iter().zip(record.words) {
            word.store(value, Ordering::Relaxed);
        }
        slot.version.store(version, Ordering::Release);
        // The next one was last touched a whole round ago, and stores behind one that must wait for its line wait too.
        os::fetch_to_write(self.slot(number.wrapping_add(1)));
    }

    /// Operation `number`, the last one written, began at `at`.
    #[inline]
    pub(crate) fn start(&self, number: u64, at: u64) {
        self.slot(number).words[START].store(at, Ordering::Relaxed);
    }

    /// Operation `number` has ended at `at`. Whoever sees that (acquire) also sees whether it failed. Nothing is
    /// written where it has been forgotten: more messages may be under way at once than are kept.
    #[inline]
    pub(crate) fn end(&self, number: u64, at: u64, failed: bool) {
        let slot = self.slot(number);
        if slot.version.load(Ordering::Relaxed) != version(number) {
            return;
        }
        if failed {
            let info = slot.words[INFO].load(Ordering::Relaxed);
            slot.words[INFO].store(info | FAILED, Ordering::Relaxed);
        }
        slot.words[END].store(at, Ordering::Release);
    }

    /// Operation `number`, the last one written, has ended about `at`; at no time where that is 0.
    #[inline]
    pub(crate) fn end_about(&self, number: u64, at: u64) {
        let about = if at == 0 { 0 } else { ABOUT };
        self.slot(number).words[END].store(at | about, Ordering::Release);
    }

    /// Operation `number`, the last one written, has stood still for a rank.
    pub(crate) fn wait(&self, number: u64, rank: Rank, waited_us: u64) {
        let word = &self.slot(number).words[WAIT];
        let waited_us = waited_us.clamp(1, 0xffff_ffff);
        if waited_us >= word.load(Ordering::Relaxed) & 0xffff_ffff {
            word.store(u64::from(rank) << 32 | waited_us, Ordering::Relaxed);
        }
    }

    /// Operation `number`, if it was written and is still kept.
    pub(crate) fn read(&self, number: u64) -> Option<Record> {
        let slot = self.slot(number);
        let wanted = version(number);
        for _ in 0..READ_ATTEMPTS {
            let before = slot.version.load(Ordering::Acquire);
            if before & 1 == 1 {
                std::hint::spin_loop();
                continue;
            }
            if before != wanted {
                return None;
            }
            // The end first: who sees it also sees what was written before it.
            let end = slot.words[END].load(Ordering::Acquire);
            let mut words = slot.words.each_ref().map(|word| word.load(Ordering::Relaxed));
            words[END] = end;
            fence(Ordering::Acquire);
            if slot.version.load(Ordering::Relaxed) == before {
                return Some(Record { words });
            }
        }
        None
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        // The length is a power of two, so the low bits of any width say the place.
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits count")]
        &self.slots[number as usize & (self.slots.len() - 1)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn record(value: u64) -> Record {
        Record::new([value, !value, value ^ 0xff], &Entry { start: value, ..Entry::default() })
    }

    #[test]
    fn a_record_holds_what_it_was_given() {
        let entry = Entry {
            start: 5_000,
            queued: 3_000,
            algorithm: Some(Algorithm::Ring),
            parts: 3,
            uneven: true,
        };
        let ring = Ring::new(4);
        ring.write(9, &Record::new([1, 2, 3], &entry));
        ring.wait(9, 7, 1_500);
        ring.wait(9, 8, 900);
        let found = ring.read(9).unwrap();
        assert_eq!((found.what(), found.start(), found.end()), ([1, 2, 3], 5_000, None));
        assert_eq!(
            (found.queued(), found.parts(), found.algorithm()),
            (Some(2_000), 3, Some(Algorithm::Ring))
        );
        assert_eq!(
            (found.waited(), found.failed()),
            (Some((7, 1_500)), false),
            "the longest wait counts"
        );
        ring.end(9, 6_000, true);
        let found = ring.read(9).unwrap();
        assert_eq!((found.end(), found.failed(), found.queued()), (Some(6_000), true, Some(2_000)));
        assert!(found.is_uneven());
    }

    #[test]
    fn every_algorithm_has_a_code_of_its_own() {
        for algorithm in Algorithm::ALL {
            let entry = Entry { algorithm: Some(algorithm), ..Entry::default() };
            assert_eq!(Record::new([0; 3], &entry).algorithm(), Some(algorithm));
        }
        assert_eq!(Record::new([0; 3], &Entry::default()).algorithm(), None);
    }

    #[test]
    fn long_queues_and_large_groups_stay_within_their_bits() {
        let entry = Entry { start: u64::MAX, queued: 1, parts: 100_000, ..Entry::default() };
        let record = Record::new([0; 3], &entry);
        assert_eq!((record.queued(), record.parts()), (Some(QUEUED_MAX), 255));
        // Queued later than begun: clocks of two processors may differ by a few ticks.
        let entry = Entry { start: 4, queued: 9, ..Entry::default() };
        assert_eq!(Record::new([0; 3], &entry).queued(), Some(1));
    }

    #[test]
    fn an_end_that_was_counted_is_told_from_one_that_was_read() {
        let ring = Ring::new(2);
        let ends = |number: u64| {
            let found = ring.read(number).unwrap();
            (found.end(), found.ends_about())
        };
        ring.write(0, &record(0));
        assert_eq!(ends(0), (None, false));
        ring.end_about(0, 77);
        assert_eq!(ends(0), (Some(77), true));
        ring.write(1, &record(1));
        ring.end(1, 78, false);
        assert_eq!(ends(1), (Some(78), false));
        ring.write(2, &record(2));
        ring.end_about(2, 0);
        assert_eq!(ends(2), (None, false), "there is no clock");
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let ring = Ring::new(5);
        assert_eq!(ring.len(), 8);
        (0..20).for_each(|number| ring.write(number, &record(number)));
        assert_eq!(ring.read(11), None);
        assert_eq!(ring.read(12), Some(record(12)));
        assert_eq!(ring.read(19), Some(record(19)));
        assert_eq!(ring.read(20), None);
    }

    #[test]
    fn the_end_of_what_is_forgotten_is_not_taken_for_that_of_another() {
        let ring = Ring::new(2);
        (0..3).for_each(|number| ring.write(number, &record(number)));
        (0..2).for_each(|number| ring.end(number, 7, true));
        let found = ring.read(2).unwrap();
        assert_eq!((found.end(), found.failed()), (None, false));
        assert_eq!(ring.read(1).unwrap().end(), Some(7));
    }

    #[test]
    fn a_reader_never_sees_a_torn_record() {
        let ring = Ring::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=200_000 {
                    ring.write(number, &record(number));
                    ring.end(number, number + 7, false);
                }
            });
            loop {
                for number in 1..=200_000 {
                    let Some(found) = ring.read(number) else { continue };
                    assert_eq!(found.what(), record(number).what());
                    assert!(found.end().is_none_or(|end| end == number + 7));
                    if number == 200_000 {
                        return;
                    }
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// Records 0 and 2 share a slot: a reader sees all of one of them, with its own end or none.
    #[test]
    fn loom_a_record_is_never_torn() {
        loom::model(|| {
            let ring = Arc::new(Ring::new(2));
            let writer = Arc::clone(&ring);
            let written = loom::thread::spawn(move || {
                writer.write(0, &Record::new([7, !7, 0], &Entry::default()));
                writer.end(0, 70, true);
                writer.write(2, &Record::new([9, !9, 0], &Entry::default()));
            });
            for (number, value) in [(0, 7), (2, 9)] {
                if let Some(found) = ring.read(number) {
                    assert_eq!(found.what(), [value, !value, 0]);
                    assert_eq!(found.end().is_some(), found.end() == Some(70) && number == 0);
                    assert!(found.end().is_none() || found.failed());
                }
            }
            written.join().unwrap();
        });
    }
}
