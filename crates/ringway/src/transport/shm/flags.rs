//! The five protocols that ranks speak through shared words: counters, cards, completed
//! operations, posts, and the sleeper's bell.
//!
//! They are plain functions over atomics, so that loom can run them (`loom` tests below) exactly
//! as production does.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Writes a counter: `count` signals so far, the last of them in the operation with this tag.
///
/// # Memory ordering
/// Release; its partner is the acquire load in [`read`]: whoever sees this count also sees
/// everything the signaller wrote before.
pub(crate) fn publish(word: &AtomicU64, tag: u32, count: u32) {
    word.store(u64::from(tag) << 32 | u64::from(count), Ordering::Release);
}

/// Reads a counter as `(tag, count)`. See [`publish`].
pub(crate) fn read(word: &AtomicU64) -> (u32, u32) {
    let value = word.load(Ordering::Acquire);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the word")]
    ((value >> 32) as u32, value as u32)
}

/// Whether `count` signals have come since `base`; counters wrap around.
pub(crate) fn reached(count: u32, base: u32, wanted: u32) -> bool {
    count.wrapping_sub(base).wrapping_sub(wanted) < u32::MAX / 2
}

/// Turns up a card of operation `sequence` with this tag: what is on it was written before.
///
/// # Memory ordering
/// Release; its partner is the acquire load in [`look`]. The word differs from all that stood
/// there before: a card is used again only by a much later operation.
pub(crate) fn turn_up(word: &AtomicU64, tag: u32, sequence: u64) {
    word.store(card_word(tag, sequence), Ordering::Release);
}

/// Whether a card of operation `sequence` has been turned up: with this tag, or with another.
/// See [`turn_up`].
pub(crate) fn look(word: &AtomicU64, tag: u32, sequence: u64) -> Option<bool> {
    let expected = card_word(tag, sequence);
    let found = word.load(Ordering::Acquire);
    #[expect(clippy::cast_possible_truncation, reason = "the lower half of the word")]
    (found as u32 == expected as u32).then_some(found == expected)
}

fn card_word(tag: u32, sequence: u64) -> u64 {
    u64::from(tag) << 32 | (sequence.wrapping_add(1) & 0xffff_ffff)
}

/// Says that this rank has completed its first `count` collectives: peers may use their scratch
/// again.
///
/// # Memory ordering
/// Release; its partner is the acquire load in [`completed`]: whoever sees this count writes after
/// everything this rank has read.
pub(crate) fn complete(done: &AtomicU64, count: u64) {
    done.store(count, Ordering::Release);
}

/// How many collectives a rank has completed. See [`complete`].
pub(crate) fn completed(done: &AtomicU64) -> u64 {
    done.load(Ordering::Acquire)
}

/// Posts `value` for operation `sequence` in a slot that several operations use in turn.
///
/// # Memory ordering
/// The fence puts everything this rank writes later, in the operation, behind the post: whoever
/// has read any of that, and then asks [`posted`], finds the post.
pub(crate) fn post((stamp, word): (&AtomicU64, &AtomicU64), sequence: u64, value: u64) {
    stamp.store(0, Ordering::Relaxed);
    word.store(value, Ordering::Release);
    stamp.store(sequence + 1, Ordering::Release);
    fence(Ordering::Release);
}

/// What was posted for operation `sequence`, if anything was, and stands there still. See [`post`].
pub(crate) fn posted((stamp, word): (&AtomicU64, &AtomicU64), sequence: u64) -> Option<u64> {
    if stamp.load(Ordering::Acquire) != sequence + 1 {
        return None;
    }
    let value = word.load(Ordering::Acquire);
    (stamp.load(Ordering::Acquire) == sequence + 1).then_some(value)
}

/// Says that this rank is about to sleep. It must look at every counter once more after this
/// call, and sleep only if nothing has come.
///
/// # Memory ordering
/// The fence stands between the store here and the look that follows; its partner is the fence
/// in [`settle`] between the signaller's counter and its look at this word. One of the two
/// sees the other: either the sleeper sees the signal, or the signaller sees the sleeper. The two
/// exchanges order a ring that comes late against the next nap (and loom, which does not know
/// that an exchange follows at once what it read, needs them to).
pub(crate) fn lie_down(sleeping: &AtomicU32) {
    sleeping.swap(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
}

/// Says that this rank is awake again.
pub(crate) fn get_up(sleeping: &AtomicU32) {
    sleeping.store(0, Ordering::Relaxed);
}

/// Stands between signals and the looks at who sleeps: one for many of both. See [`lie_down`].
pub(crate) fn settle() {
    fence(Ordering::SeqCst);
}

/// After a signal and [`settle`]: whether the peer sleeps and this rank is the one to ring its bell.
pub(crate) fn sleeps(sleeping: &AtomicU32) -> bool {
    sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::AcqRel) != 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counters_wrap_around() {
        assert!(reached(5, 3, 2));
        assert!(!reached(5, 3, 3));
        assert!(reached(2, u32::MAX - 1, 4));
        assert!(!reached(u32::MAX, u32::MAX - 1, 2));
        assert!(reached(7, 3, 0));
    }

    #[test]
    fn a_card_is_of_one_operation_and_one_call() {
        let word = AtomicU64::new(0);
        assert_eq!(look(&word, 7, 0), None);
        turn_up(&word, 7, 3);
        assert_eq!(look(&word, 7, 3), Some(true));
        assert_eq!(look(&word, 8, 3), Some(false));
        assert_eq!(look(&word, 7, 11), None);
    }

    #[test]
    fn a_word_holds_tag_and_count() {
        let word = AtomicU64::new(0);
        publish(&word, 0xdead_beef, 0xffff_fffe);
        assert_eq!(read(&word), (0xdead_beef, 0xffff_fffe));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    struct Shared {
        payload: UnsafeCell<u32>,
        word: AtomicU64,
        sleeping: AtomicU32,
        bell: Mutex<bool>,
        rung: Condvar,
    }

    // SAFETY: loom's cell checks every access; that is what the test is for.
    #[expect(unsafe_code, reason = "loom's cell checks every access")]
    unsafe impl Sync for Shared {}

    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            payload: UnsafeCell::new(0),
            word: AtomicU64::new(0),
            sleeping: AtomicU32::new(0),
            bell: Mutex::new(false),
            rung: Condvar::new(),
        })
    }

    fn put_and_signal(shared: &Shared, value: u32, count: u32) {
        // SAFETY: loom checks that nobody else touches the payload meanwhile.
        #[expect(unsafe_code, reason = "loom's cell checks every access")]
        shared.payload.with_mut(|payload| unsafe { *payload = value });
        publish(&shared.word, 7, count);
        settle();
        if sleeps(&shared.sleeping) {
            *shared.bell.lock().unwrap() = true;
            shared.rung.notify_one();
        }
    }

    fn wait_sleeping(shared: &Shared, count: u32) {
        loop {
            if reached(read(&shared.word).1, 0, count) {
                return;
            }
            lie_down(&shared.sleeping);
            if reached(read(&shared.word).1, 0, count) {
                get_up(&shared.sleeping);
                return;
            }
            let mut rung = shared.bell.lock().unwrap();
            while !*rung {
                rung = shared.rung.wait(rung).unwrap();
            }
            *rung = false;
            get_up(&shared.sleeping);
        }
    }

    #[test]
    fn loom_signal_carries_the_payload_and_wakes_the_sleeper() {
        loom::model(|| {
            let shared = shared();
            let other = Arc::clone(&shared);
            let signaller = thread::spawn(move || put_and_signal(&other, 42, 1));
            wait_sleeping(&shared, 1);
            // SAFETY: the signal has been seen; loom checks that this orders the access.
            #[expect(unsafe_code, reason = "loom's cell checks every access")]
            let seen = shared.payload.with(|payload| unsafe { *payload });
            assert_eq!(seen, 42);
            signaller.join().unwrap();
        });
    }

    #[test]
    fn loom_slot_is_reused_only_after_its_credit() {
        loom::model(|| {
            let shared = shared();
            let credit = Arc::new(AtomicU64::new(0));
            let (other, granted) = (Arc::clone(&shared), Arc::clone(&credit));
            let sender = thread::spawn(move || {
                put_and_signal(&other, 1, 1);
                while !reached(read(&granted).1, 0, 1) {
                    thread::yield_now();
                }
                put_and_signal(&other, 2, 2);
            });
            for round in 1..=2 {
                wait_sleeping(&shared, round);
                // SAFETY: the signal has been seen; loom checks that this orders the access.
                #[expect(unsafe_code, reason = "loom's cell checks every access")]
                let seen = shared.payload.with(|payload| unsafe { *payload });
                assert_eq!(seen, round);
                publish(&credit, 7, round);
            }
            sender.join().unwrap();
        });
    }

    /// Who has seen anything that was written after a post, however it was written, and then fences,
    /// finds the post.
    #[test]
    fn loom_what_was_posted_is_seen_by_who_sees_what_came_after() {
        loom::model(|| {
            let slot = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
            let written = Arc::new(AtomicU64::new(0));
            let (theirs, scratch) = (Arc::clone(&slot), Arc::clone(&written));
            let peer = thread::spawn(move || {
                post((&theirs.0, &theirs.1), 0, 5);
                scratch.store(1, Ordering::Relaxed);
            });
            if written.load(Ordering::Relaxed) == 1 {
                fence(Ordering::Acquire);
                assert_eq!(posted((&slot.0, &slot.1), 0), Some(5));
            }
            peer.join().unwrap();
        });
    }

    /// A slot that is used again shows the old post, the new one, or none.
    #[test]
    fn loom_a_post_is_never_torn() {
        loom::model(|| {
            let slot = Arc::new((AtomicU64::new(1), AtomicU64::new(5)));
            let theirs = Arc::clone(&slot);
            let peer = thread::spawn(move || post((&theirs.0, &theirs.1), 2, 6));
            let first = posted((&slot.0, &slot.1), 0);
            assert!(first.is_none_or(|value| value == 5), "{first:?}");
            let second = posted((&slot.0, &slot.1), 2);
            assert!(second.is_none_or(|value| value == 6), "{second:?}");
            peer.join().unwrap();
        });
    }

    /// A card of operation 0 is read while it shows operation 0, and overwritten only when its reader
    /// is done with it.
    #[test]
    fn loom_a_card_shows_what_was_written() {
        loom::model(|| {
            let shared = shared();
            let done = Arc::new(AtomicU64::new(0));
            let (other, gate) = (Arc::clone(&shared), Arc::clone(&done));
            let owner = thread::spawn(move || {
                for (round, value) in [(0, 41), (8, 42)] {
                    while round > 0 && completed(&gate) < 1 {
                        thread::yield_now();
                    }
                    // SAFETY: loom checks that nobody else touches the payload meanwhile.
                    #[expect(unsafe_code, reason = "loom's cell checks every access")]
                    other.payload.with_mut(|payload| unsafe { *payload = value });
                    turn_up(&other.word, 7, round);
                }
            });
            for (round, value) in [(0, 41), (8, 42)] {
                while look(&shared.word, 7, round) != Some(true) {
                    thread::yield_now();
                }
                // SAFETY: the card has been seen; loom checks that this orders the access.
                #[expect(unsafe_code, reason = "loom's cell checks every access")]
                let seen = shared.payload.with(|payload| unsafe { *payload });
                assert_eq!(seen, value);
                complete(&done, 1);
            }
            owner.join().unwrap();
        });
    }

    /// The owner reads its scratch in operation 0 and completes it; a peer that is in operation
    /// 8, of the same generation, writes there: never while the owner still reads.
    #[test]
    fn loom_a_generation_is_written_only_after_its_owner_is_done() {
        loom::model(|| {
            let shared = shared();
            let done = Arc::new(AtomicU64::new(0));
            let (other, gate) = (Arc::clone(&shared), Arc::clone(&done));
            let peer = thread::spawn(move || {
                while completed(&gate) < 1 {
                    thread::yield_now();
                }
                put_and_signal(&other, 8, 1);
            });
            for _ in 0..2 {
                // SAFETY: the operation is not complete; loom checks that this keeps the peer out.
                #[expect(unsafe_code, reason = "loom's cell checks every access")]
                let seen = shared.payload.with(|payload| unsafe { *payload });
                assert_eq!(seen, 0);
            }
            complete(&done, 1);
            wait_sleeping(&shared, 1);
            // SAFETY: the signal has been seen; loom checks that this orders the access.
            #[expect(unsafe_code, reason = "loom's cell checks every access")]
            let seen = shared.payload.with(|payload| unsafe { *payload });
            assert_eq!(seen, 8);
            peer.join().unwrap();
        });
    }
}
