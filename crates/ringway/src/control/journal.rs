//! What this rank has entered, completed and waits for: written by the executing thread, read by
//! the control thread.
//!
//! The last signatures stand in the flight recorder's ring of calls, with their times; what is here besides
//! says where the rank is now. Nothing here locks, allocates or makes a system call.
//!
//! *Invariant*: one writer at a time. Two would not be unsound, but the records would lie.

use serde::{Deserialize, Serialize};

use super::pace::{self, LinkPace, Pace};
use super::signature::Signature;
use crate::plan::types::Rank;
use crate::recorder::{
    CallRecord, Entry, Flow, LaunchRecord, MessageRecord, Outcome, Record, Recorder, Watched,
    times, waited,
};
use crate::sync::atomic::{AtomicU64, Ordering};

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
    /// The kernel of its own that waits for another rank, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelWait>,
    /// How many launches it has put on its GPU.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub launches: u64,
    /// The first call of the last of them, if it is remembered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched: Option<Signature>,
}

/// A kernel that waits for another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWait {
    /// In which launch of its rank, from 1, as kernels count them: a graph's once for every replay.
    pub launch: u32,
    /// The first call of that launch, if it is remembered.
    pub call: Option<Signature>,
    /// The rank it waits for.
    pub waiting_on: Rank,
    /// For how long the launch has stood still.
    pub waiting_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
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

/// A rank and milliseconds in one word, which is never [`IDLE`]: there are no so many ranks.
fn pack(rank: Rank, ms: u64) -> u64 {
    u64::from(rank) << 32 | (ms & 0xffff_ffff)
}

/// The record of one rank's operations on one communicator.
#[derive(Debug)]
pub struct Journal {
    recorder: Recorder,
    /// Sequence of the last operation entered, plus one. Stored (release) after its record is
    /// written; the reader's acquire load therefore finds the record filled.
    entered: AtomicU64,
    /// Sequence of the last operation completed, plus one. Release and acquire, as above.
    completed: AtomicU64,
    /// Rank waited for in the upper half, milliseconds of its beginning in the lower; or
    /// [`IDLE`]. One word, so that the two belong together; relaxed, as it orders nothing else.
    waiting: AtomicU64,
    /// The rank to which a link is silent in the upper half, milliseconds for which it was in the lower; or
    /// [`IDLE`]. Of a wait that is over it says nothing.
    silent: AtomicU64,
    /// What a kernel waits for, as `waiting`, and in which launch. While that changes nobody is waited for: a reader that
    /// finds (acquire) a launch which was stored (release) behind that sees at its second look that the wait is another.
    kernel: AtomicU64,
    kernel_launch: AtomicU64,
}

impl Default for Journal {
    fn default() -> Self {
        Self::new()
    }
}

impl Journal {
    /// An empty journal without times.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Recorder::new(0))
    }

    /// An empty journal that writes to `recorder`.
    #[must_use]
    pub fn with(recorder: Recorder) -> Self {
        Self {
            recorder,
            entered: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            waiting: AtomicU64::new(IDLE),
            silent: AtomicU64::new(IDLE),
            kernel: AtomicU64::new(IDLE),
            kernel_launch: AtomicU64::new(0),
        }
    }

    /// Where operations are written down.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The executing thread enters an operation, at no time in particular.
    pub fn begin(&self, signature: &Signature) {
        self.enter(signature, &Entry::default());
    }

    /// The executing thread enters an operation.
    #[inline]
    pub fn enter(&self, signature: &Signature, entry: &Entry) {
        let [sequence, what @ ..] = signature.words();
        self.recorder.calls().write(sequence, &Record::new(what, entry));
        self.entered.store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// Operation `sequence`, entered at no time in particular, began at `at` by the recorder's clock.
    #[inline]
    pub fn started(&self, sequence: u64, at: u64) {
        self.recorder.calls().start(sequence, at);
    }

    /// The executing thread has completed operation `sequence`. Not called for an operation that
    /// failed: an error must find the rank where it happened.
    #[inline]
    pub fn end(&self, sequence: u64) {
        self.end_at(sequence, self.recorder.now());
    }

    /// As [`Journal::end`], at a time of the recorder's clock.
    #[inline]
    pub fn end_at(&self, sequence: u64, at: u64) {
        self.complete(sequence);
        self.recorder.calls().end(sequence, at, false);
    }

    /// As [`Journal::end`], where it is known about when that was, by the recorder's clock.
    #[inline]
    pub fn end_about(&self, sequence: u64, at: u64) {
        self.complete(sequence);
        self.recorder.calls().end_about(sequence, at);
    }

    #[inline]
    fn complete(&self, sequence: u64) {
        self.waiting.store(IDLE, Ordering::Relaxed);
        self.completed.store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// Operation `sequence` has failed: noted in its record alone. The rank stays where it is.
    pub fn fail(&self, sequence: u64) {
        self.recorder.calls().end(sequence, self.recorder.now(), true);
    }

    /// Operation `sequence` stands still, for `rank` if it is known: how long, and how far its lanes are.
    pub fn stand(
        &self,
        sequence: u64,
        rank: Option<(Rank, u64)>,
        lanes: impl Iterator<Item = (usize, usize)>,
    ) {
        if let Some((rank, waited_us)) = rank {
            self.recorder.calls().wait(sequence, rank, waited_us);
        }
        self.recorder.standing().write(sequence, lanes);
    }

    /// The executing thread waits for `rank` since `since_ms` (of the control plane's clock).
    pub fn wait_begin(&self, rank: Rank, since_ms: u64) {
        self.waiting.store(pack(rank, since_ms), Ordering::Relaxed);
    }

    /// Which of the executing thread's links is silent, and for how many milliseconds; to be noted before
    /// [`Journal::wait_begin`].
    pub fn note_silent(&self, silent: Option<(Rank, u64)>) {
        let word = silent.map_or(IDLE, |(rank, ms)| pack(rank, ms.min(0xffff_ffff)));
        self.silent.store(word, Ordering::Relaxed);
    }

    /// The executing thread waits no longer.
    pub fn wait_end(&self) {
        self.waiting.store(IDLE, Ordering::Relaxed);
        self.silent.store(IDLE, Ordering::Relaxed);
    }

    /// A kernel waits for `rank`, in a launch by its number as kernels count; it has stood still since `since_ms`, of the
    /// control plane's clock. One thread tells of kernels.
    pub(crate) fn kernel_waits(&self, launch: u32, rank: Rank, since_ms: u64) {
        if self.kernel_launch.load(Ordering::Relaxed) != u64::from(launch) {
            self.kernel.store(IDLE, Ordering::Relaxed);
            self.kernel_launch.store(u64::from(launch), Ordering::Release);
        }
        self.kernel.store(pack(rank, since_ms), Ordering::Release);
    }

    /// No kernel waits.
    pub(crate) fn kernel_goes_on(&self) {
        self.kernel.store(IDLE, Ordering::Relaxed);
    }

    /// The kernel that waits at `now_ms`.
    fn kernel(&self, now_ms: u64) -> Option<KernelWait> {
        let wait = self.kernel.load(Ordering::Acquire);
        let launch = u32::try_from(self.kernel_launch.load(Ordering::Acquire)).unwrap_or(0);
        let is_it = wait != IDLE && self.kernel.load(Ordering::Relaxed) == wait;
        let waiting_on = Rank::try_from(wait >> 32).ok().filter(|_| is_it)?;
        let call = self.launch(launch).map(|(call, _)| call);
        Some(KernelWait { launch, call, waiting_on, waiting_ms: since(wait, now_ms) })
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
        let launches = self.recorder.enqueued();
        // The low half is how kernels count.
        let last = u32::try_from(launches & 0xffff_ffff).unwrap_or(0);
        RankState {
            entered: entered.checked_sub(1).and_then(|s| self.signature_of(s)),
            completed,
            waiting_on,
            waiting_ms: waiting_on.map_or(0, |_| since(waiting, now_ms)),
            silent_to,
            silent_ms: silent_to.map_or(0, |_| silent & 0xffff_ffff),
            kernel: self.kernel(now_ms),
            launches,
            launched: self.launch(last).map(|(call, _)| call),
        }
    }

    /// The signature of operation `sequence`, if it was entered and is still remembered.
    #[must_use]
    pub fn signature_of(&self, sequence: u64) -> Option<Signature> {
        Self::signature(sequence, &self.recorder.calls().read(sequence)?)
    }

    fn signature(sequence: u64, record: &Record) -> Option<Signature> {
        let [count, extra, packed] = record.what();
        Signature::from_words([sequence, count, extra, packed])
    }

    /// Operations that are kept, the oldest first, and how many were begun.
    #[must_use]
    pub fn calls(&self) -> (u64, Vec<CallRecord>) {
        let completed = self.completed.load(Ordering::Acquire);
        let entered = self.entered.load(Ordering::Acquire);
        let ring = self.recorder.calls();
        let span = self.recorder.clock().span();
        let call = |sequence: u64| {
            let record = ring.read(sequence)?;
            let signature = Self::signature(sequence, &record)?;
            let (start_ns, end_ns, outcome) = times(&record, &span);
            // Without a clock an end leaves no mark in the record.
            let over = outcome == Outcome::Running && sequence < completed;
            let outcome = if over { Outcome::Done } else { outcome };
            let size = signature.data_type.map_or(0, |data_type| data_type.size() as u64);
            let queued = record.queued().map(|ticks| start_ns.saturating_sub(span.duration(ticks)));
            Some(CallRecord {
                sequence,
                collective: signature.collective,
                data_type: signature.data_type,
                op: signature.op,
                root: signature.root,
                count: signature.count,
                bytes: signature.count.saturating_mul(size),
                algorithm: record.algorithm(),
                parts: record.parts(),
                uneven: record.is_uneven(),
                queued_ns: queued,
                start_ns,
                end_ns,
                end_about: record.ends_about(),
                outcome,
                waited: waited(&record),
                lanes: self.recorder.standing().read(sequence),
            })
        };
        let kept = entered.saturating_sub(ring.len() as u64)..entered;
        (entered, kept.filter_map(call).collect())
    }

    /// How the last calls went, and the links between hosts; nothing where there is no clock, or no call yet.
    #[must_use]
    pub fn pace(&self) -> Option<Pace> {
        let completed = self.completed.load(Ordering::Acquire);
        let first = completed.saturating_sub(pace::CALLS as u64);
        let (ring, span) = (self.recorder.calls(), self.recorder.clock().span());
        let records: Vec<(u64, Record)> = (first..completed)
            .rev()
            .map_while(|sequence| Some((sequence, ring.read(sequence)?)))
            .filter(|(_, record)| record.start() != 0)
            .collect();
        let (&(last, ref latest), &(first, ref earliest)) = (records.first()?, records.last()?);
        let took = |sequence: u64, record: &Record| {
            let signature = Self::signature(sequence, record)?;
            let ticks = record.end()?.saturating_sub(record.start());
            let took_us = u32::try_from(span.duration(ticks) / 1_000).unwrap_or(u32::MAX);
            signature.collective.waits_for_all().then_some(took_us.saturating_add(1))
        };
        let mut took_us = vec![0; usize::try_from(last - first).unwrap_or(0) + 1];
        for (sequence, record) in &records {
            let at = usize::try_from(sequence - first).unwrap_or(usize::MAX);
            if let Some(place) = took_us.get_mut(at) {
                *place = took(*sequence, record).unwrap_or(0);
            }
        }
        let end = latest.end().unwrap_or_else(|| latest.start());
        let span_us = span.duration(end.saturating_sub(earliest.start())) / 1_000;
        Some(Pace { first, took_us, span_us, links: self.links() })
    }

    /// How the slowest links between hosts fare.
    fn links(&self) -> Vec<LinkPace> {
        let of = |link: &Watched| {
            let Flow { arrived, busy_us, retries } = link.traffic.flow();
            LinkPace { peer: link.peer, bytes: arrived, busy_us, retries }
        };
        let all = self.recorder.links();
        let mut links: Vec<LinkPace> = all.iter().map(of).filter(LinkPace::is_told_apart).collect();
        links.sort_by_key(LinkPace::rate);
        // The best too: what is slow, is so beside it.
        if links.len() > pace::LINKS {
            links.drain(pace::LINKS - 1..links.len() - 1);
        }
        links
    }

    /// A call was put on a stream of a GPU, the first of so many in its launch. Its place in the communicator's sequence is not
    /// looked at: calls on a GPU have an order of their own.
    pub(crate) fn enqueue(&self, call: &Signature, calls: usize) {
        let [_, what @ ..] = call.words();
        self.recorder.enqueue(what, calls);
    }

    /// The launch noted last was refused by the driver.
    pub(crate) fn take_back_launch(&self) {
        self.recorder.take_back();
    }

    /// What was enqueued as a launch, by its number as kernels count, where that is remembered: the first call, and how many.
    pub(crate) fn launch(&self, number: u32) -> Option<(Signature, u64)> {
        let record = self.recorder.launch(number)?;
        Some((Self::signature(u64::from(number), &record)?, record.parts()))
    }

    /// Launches that are kept, the oldest first, and how many were enqueued.
    #[must_use]
    pub fn launches(&self) -> (u64, Vec<LaunchRecord>) {
        let (enqueued, kept) = self.recorder.launches();
        let span = self.recorder.clock().span();
        let launch = |(number, record): (u64, Record)| {
            let call = Self::signature(number, &record)?;
            let size = call.data_type.map_or(0, |data_type| data_type.size() as u64);
            Some(LaunchRecord {
                number,
                collective: call.collective,
                data_type: call.data_type,
                op: call.op,
                root: call.root,
                count: call.count,
                bytes: call.count.saturating_mul(size),
                parts: record.parts(),
                enqueued_ns: times(&record, &span).0,
                waited: waited(&record),
            })
        };
        (enqueued, kept.into_iter().filter_map(launch).collect())
    }

    /// Messages that are kept, the oldest first, and how many were begun.
    #[must_use]
    pub fn messages(&self) -> (u64, Vec<MessageRecord>) {
        (self.recorder.messages_begun(), self.recorder.messages())
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
    fn a_kernel_that_waits_is_told_with_its_call() {
        let journal = Journal::new();
        assert_eq!((journal.state(0).kernel, journal.state(0).launches), (None, 0));
        journal.kernel_waits(1, 2, 100);
        let unknown = journal.state(350).kernel.unwrap();
        assert_eq!((unknown.launch, unknown.call, unknown.waiting_ms), (1, None, 250));
        for count in 8..11 {
            journal.enqueue(&all_reduce(0, count), 1);
        }
        journal.kernel_waits(2, 5, 200);
        let state = journal.state(1_200);
        let call = Some(all_reduce(2, 9));
        let expected = KernelWait { launch: 2, call, waiting_on: 5, waiting_ms: 1_000 };
        assert_eq!(state.kernel, Some(expected));
        assert_eq!((state.launches, state.launched), (3, Some(all_reduce(3, 10))));
        assert_eq!((state.waiting_on, state.current()), (None, None));
        journal.kernel_goes_on();
        assert_eq!(journal.state(1_300), RankState { kernel: None, ..state });
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

    /// A wait is never told with the launch of another.
    #[test]
    fn loom_a_kernels_wait_and_its_launch_belong_together() {
        loom::model(|| {
            let journal = Arc::new(Journal::new());
            journal.kernel_waits(1, 1, 1);
            let writer = Arc::clone(&journal);
            let written = loom::thread::spawn(move || {
                writer.kernel_waits(2, 2, 2);
                writer.kernel_goes_on();
            });
            if let Some(wait) = journal.kernel(9) {
                assert_eq!(wait.launch, wait.waiting_on);
            }
            written.join().unwrap();
            assert_eq!(journal.kernel(9), None);
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
