//! What this rank has entered, completed and waits for: written by the executing thread, read by
//! the control thread.
//!
//! The last [`JOURNAL_LENGTH`] signatures stand in slots guarded by a version each (a seqlock of
//! plain atomics, so a torn read is detected, never undefined). Nothing here locks, allocates or
//! makes a system call: `begin` and `end` together took 12 to 17 ns in a
//! development build on a busy machine.
//!
//! *Invariant*: one writer at a time. Two would not be unsound, but the slots would lie.

use serde::{Deserialize, Serialize};

use super::signature::Signature;
use crate::plan::types::Rank;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// How many operations the journal remembers.
pub const JOURNAL_LENGTH: usize = if cfg!(loom) { 2 } else { 64 };

/// How often a reader tries again while the writer is inside its slot.
const READ_ATTEMPTS: u32 = if cfg!(loom) { 2 } else { 64 };

/// Nobody is waited for.
const IDLE: u64 = u64::MAX;

/// Where a rank stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankState {
    /// The operation it entered last; it is inside it while `completed` has not passed it.
    pub entered: Option<Signature>,
    /// How many operations it has completed: all with a smaller sequence number.
    pub completed: u64,
    /// The rank it waits for.
    pub waiting_on: Option<Rank>,
    /// For how long it has waited for that rank.
    pub waiting_ms: u64,
    /// The rank from which nothing comes back of what was sent to it again and again.
    #[serde(default)]
    pub silent_to: Option<Rank>,
    /// For how long.
    #[serde(default)]
    pub silent_ms: u64,
}

impl RankState {
    /// The operation the rank is inside of.
    #[must_use]
    pub fn current(&self) -> Option<&Signature> {
        self.entered.as_ref().filter(|s| s.sequence >= self.completed)
    }

    /// Whether the rank has entered operation `sequence`.
    #[must_use]
    pub fn has_entered(&self, sequence: u64) -> bool {
        self.completed > sequence || self.entered.is_some_and(|s| s.sequence >= sequence)
    }
}

/// Milliseconds from `then` to `now`, both modulo 2^32: the difference survives the wrap after 49 days. A wait that
/// began after the reader looked at its clock has not lasted at all.
fn since(then: u64, now: u64) -> u64 {
    let passed = now.wrapping_sub(then) & 0xffff_ffff;
    if passed > 0x7fff_ffff { 0 } else { passed }
}

/// One remembered operation.
///
/// `version` is 0 before the first use, odd while the writer is inside, and `2 (sequence + 1)`
/// when the words hold `sequence`. The writer's final release store pairs with the reader's
/// acquire load; the fences order the relaxed words against both version accesses.
#[derive(Debug, Default)]
struct Slot {
    version: AtomicU64,
    words: [AtomicU64; 4],
}

/// The record of one rank's operations on one communicator.
#[derive(Debug)]
pub struct Journal {
    slots: Box<[Slot]>,
    /// Sequence of the last operation entered, plus one. Stored (release) after its slot is
    /// written; the reader's acquire load therefore finds the slot filled.
    entered: AtomicU64,
    /// Sequence of the last operation completed, plus one. Release and acquire, as above.
    completed: AtomicU64,
    /// Rank waited for in the upper half, milliseconds of its beginning in the lower; or
    /// [`IDLE`]. One word, so that the two belong together; relaxed, as it orders nothing else.
    waiting: AtomicU64,
    /// The rank to which a link is silent in the upper half, milliseconds for which it was in the lower; or
    /// [`IDLE`]. Of a wait that is over it says nothing.
    silent: AtomicU64,
}

impl Default for Journal {
    fn default() -> Self {
        Self::new()
    }
}

impl Journal {
    /// An empty journal.
    #[must_use]
    pub fn new() -> Self {
        Self {
            slots: (0..JOURNAL_LENGTH).map(|_| Slot::default()).collect(),
            entered: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            waiting: AtomicU64::new(IDLE),
            silent: AtomicU64::new(IDLE),
        }
    }

    /// The executing thread enters an operation.
    pub fn begin(&self, signature: &Signature) {
        let next = signature.sequence.wrapping_add(1);
        let slot = self.slot(signature.sequence);
        slot.version.store(next.wrapping_mul(2) | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in slot.words.iter().zip(signature.words()) {
            word.store(value, Ordering::Relaxed);
        }
        slot.version.store(next.wrapping_mul(2), Ordering::Release);
        self.entered.store(next, Ordering::Release);
    }

    /// The executing thread has completed operation `sequence`. Not called for an operation that
    /// failed: an error must find the rank where it happened.
    pub fn end(&self, sequence: u64) {
        self.waiting.store(IDLE, Ordering::Relaxed);
        self.completed.store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// The executing thread waits for `rank` since `since_ms` (of the control plane's clock).
    pub fn wait_begin(&self, rank: Rank, since_ms: u64) {
        self.waiting.store(u64::from(rank) << 32 | (since_ms & 0xffff_ffff), Ordering::Relaxed);
    }

    /// Which of the executing thread's links is silent, and for how many milliseconds; to be noted before
    /// [`Journal::wait_begin`].
    pub fn note_silent(&self, silent: Option<(Rank, u64)>) {
        let word = silent.map_or(IDLE, |(rank, ms)| u64::from(rank) << 32 | ms.min(0xffff_ffff));
        self.silent.store(word, Ordering::Relaxed);
    }

    /// The executing thread waits no longer.
    pub fn wait_end(&self) {
        self.waiting.store(IDLE, Ordering::Relaxed);
        self.silent.store(IDLE, Ordering::Relaxed);
    }

    /// Where this rank stands at `now_ms`.
    #[must_use]
    pub fn state(&self, now_ms: u64) -> RankState {
        let completed = self.completed.load(Ordering::Acquire);
        let entered = self.entered.load(Ordering::Acquire);
        let waiting = self.waiting.load(Ordering::Relaxed);
        let waiting_on = if waiting == IDLE { None } else { Rank::try_from(waiting >> 32).ok() };
        let silent = self.silent.load(Ordering::Relaxed);
        let silent_to = waiting_on.filter(|_| silent != IDLE);
        let silent_to = silent_to.and_then(|_| Rank::try_from(silent >> 32).ok());
        RankState {
            entered: entered.checked_sub(1).and_then(|s| self.signature_of(s)),
            completed,
            waiting_on,
            waiting_ms: waiting_on.map_or(0, |_| since(waiting, now_ms)),
            silent_to,
            silent_ms: silent_to.map_or(0, |_| silent & 0xffff_ffff),
        }
    }

    /// The signature of operation `sequence`, if it was entered and is still remembered.
    #[must_use]
    pub fn signature_of(&self, sequence: u64) -> Option<Signature> {
        let slot = self.slot(sequence);
        let wanted = sequence.wrapping_add(1).wrapping_mul(2);
        for _ in 0..READ_ATTEMPTS {
            let before = slot.version.load(Ordering::Acquire);
            if before & 1 == 1 {
                std::hint::spin_loop();
                continue;
            }
            if before != wanted {
                return None;
            }
            let words = slot.words.each_ref().map(|w| w.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if slot.version.load(Ordering::Relaxed) == before {
                return Signature::from_words(words);
            }
        }
        None
    }

    fn slot(&self, sequence: u64) -> &Slot {
        let index = sequence % self.slots.len() as u64;
        &self.slots[usize::try_from(index).unwrap_or_default()]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::control::signature::tests::all_reduce;

    #[test]
    fn follows_one_operation() {
        let journal = Journal::new();
        assert_eq!(journal.state(0), RankState::default());
        journal.begin(&all_reduce(0, 8));
        journal.wait_begin(3, 100);
        let state = journal.state(350);
        assert_eq!(state.current(), Some(&all_reduce(0, 8)));
        assert_eq!((state.waiting_on, state.waiting_ms, state.completed), (Some(3), 250, 0));
        assert!(state.has_entered(0) && !state.has_entered(1));
        journal.end(0);
        let state = journal.state(400);
        assert_eq!((state.current(), state.completed, state.waiting_on), (None, 1, None));
        assert_eq!(state.entered, Some(all_reduce(0, 8)));
    }

    #[test]
    fn forgets_the_oldest() {
        let journal = Journal::new();
        for sequence in 0..100 {
            journal.begin(&all_reduce(sequence, sequence));
            journal.end(sequence);
        }
        assert_eq!(journal.signature_of(35), None);
        assert_eq!(journal.signature_of(36), Some(all_reduce(36, 36)));
        assert_eq!(journal.signature_of(100), None);
    }

    #[test]
    fn a_reader_never_sees_a_torn_signature() {
        let journal = Arc::new(Journal::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for sequence in 0..200_000 {
                    journal
                        .begin(&Signature { extra: !sequence, ..all_reduce(sequence, sequence) });
                    journal.end(sequence);
                }
            });
            loop {
                let state = journal.state(0);
                let Some(found) = state.entered else { continue };
                assert_eq!((found.count, found.extra), (found.sequence, !found.sequence));
                if found.sequence == 199_999 {
                    break;
                }
            }
        });
    }

    #[test]
    fn begin_and_end_are_cheap() {
        let journal = Journal::new();
        let rounds = 200_000;
        let start = Instant::now();
        for sequence in 0..rounds {
            journal.begin(&all_reduce(sequence, 4));
            journal.end(sequence);
        }
        let each = start.elapsed().as_nanos() / u128::from(rounds);
        println!("begin and end: {each} ns");
        assert!(each < 2_000, "{each} ns");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::control::signature::tests::all_reduce;
    use loom::sync::Arc;

    /// Operations 0 and 2 share a slot: a reader sees all of one of them, or nothing.
    #[test]
    fn loom_a_signature_is_never_torn() {
        loom::model(|| {
            let journal = Arc::new(Journal::new());
            let writer = Arc::clone(&journal);
            let written = loom::thread::spawn(move || {
                writer.begin(&Signature { extra: !7, ..all_reduce(0, 7) });
                writer.begin(&Signature { extra: !9, ..all_reduce(2, 9) });
            });
            for (sequence, count) in [(0, 7), (2, 9)] {
                if let Some(found) = journal.signature_of(sequence) {
                    assert_eq!((found.count, found.extra), (count, !count));
                }
            }
            written.join().unwrap();
            assert_eq!(journal.signature_of(2).map(|found| found.count), Some(9));
            assert_eq!(journal.signature_of(0), None);
        });
    }

    /// Whoever sees that an operation was entered finds its signature.
    #[test]
    fn loom_an_entered_operation_is_found() {
        loom::model(|| {
            let journal = Arc::new(Journal::new());
            let writer = Arc::clone(&journal);
            let written = loom::thread::spawn(move || {
                writer.begin(&all_reduce(0, 7));
                writer.end(0);
            });
            let state = journal.state(0);
            if state.completed == 1 {
                assert_eq!(state.entered.map(|found| found.count), Some(7));
            }
            written.join().unwrap();
        });
    }
}
