//! The calls that a rank enqueued, as the journal keeps them, so that an error of a kernel can name its call.
//!
//! They have a ring of their own there: ranks compare the one of host calls number by number, and it knows when a call
//! is over. Calls on a GPU have their own order, and only the device knows when they are done.

use std::sync::Arc;
use std::time::Duration;

use crate::call::Call;
use crate::control::{Journal, Signature};
use crate::plan::types::{Collective, DataType, Level, Rank};

/// What a launch does: the first of its calls, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct What {
    call: Signature,
    calls: usize,
}

impl What {
    pub(super) fn of(call: &Call) -> Self {
        let Call { collective, data_type, count, op, root, .. } = *call;
        let call = Signature {
            sequence: 0,
            collective,
            count,
            data_type: Some(data_type),
            op: collective.reduces().then_some(op),
            root: collective.has_root().then_some(root),
            level: Level::Run,
            extra: 0,
        };
        Self { call, calls: 1 }
    }

    /// Messages out and in, of so many bytes in all.
    pub(super) fn messages(out: usize, into: usize, bytes: usize) -> Self {
        let call = Signature {
            sequence: 0,
            collective: Collective::SendRecv,
            count: bytes as u64,
            data_type: Some(DataType::U8),
            op: None,
            root: None,
            level: Level::Run,
            extra: (out as u64) << 32 | into as u64,
        };
        Self { call, calls: out + into }
    }

    /// One more collective.
    pub(super) fn and_one(&mut self) {
        self.calls += 1;
    }
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.call.collective == Collective::SendRecv {
            let (out, into) = (self.call.extra >> 32, self.call.extra & 0xffff_ffff);
            return write!(f, "messages, {out} out and {into} in");
        }
        f.write_str(&self.call.call())?;
        match self.calls {
            0 | 1 => Ok(()),
            more => write!(f, " and {} more in its group", more - 1),
        }
    }
}

/// The last launches, by number.
#[derive(Debug)]
pub(super) struct Recent(Arc<Journal>);

impl Recent {
    pub(super) fn new(journal: &Arc<Journal>) -> Self {
        Self(Arc::clone(journal))
    }

    /// Notes the next launch. The first has number 1, as kernels count them. One thread at a time.
    pub(super) fn note(&self, what: What) {
        self.0.enqueue(&what.call, what.calls);
    }

    /// The launch noted last is none: kernels do not count it.
    pub(super) fn take_back(&self) {
        self.0.take_back_launch();
    }

    /// A launch has stood still for a rank for so long, up to now by the control plane's clock.
    pub(super) fn waits(&self, number: u32, rank: Rank, waited: Duration, now_ms: u64) {
        let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.0.recorder().wait_launch(number, rank, waited_us);
        self.0.kernel_waits(number, rank, now_ms.saturating_sub(waited_us / 1_000));
    }

    /// No launch stands still.
    pub(super) fn goes_on(&self) {
        self.0.kernel_goes_on();
    }

    /// What was enqueued as launch `number`, where that is remembered. Graphs that are replayed launch what
    /// was enqueued once, so after them this is a hint.
    fn get(&self, number: u32) -> Option<What> {
        let (call, calls) = self.0.launch(number)?;
        Some(What { call, calls: usize::try_from(calls).unwrap_or(usize::MAX) })
    }

    /// For the end of a message: what was enqueued as launch `number`.
    pub(super) fn told(&self, number: u32) -> String {
        self.get(number).map_or_else(String::new, |what| format!(", enqueued for {what}"))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn recent() -> (Recent, Arc<Journal>) {
        let journal = Arc::new(Journal::new());
        (Recent::new(&journal), journal)
    }

    #[test]
    fn launches_are_found_by_their_numbers_while_they_are_remembered() {
        let (recent, journal) = recent();
        assert_eq!(recent.told(1), "");
        for out in 1..=100 {
            recent.note(What::messages(out, 0, 8));
        }
        assert_eq!(recent.told(100), ", enqueued for messages, 100 out and 0 in");
        assert_eq!(recent.told(37), ", enqueued for messages, 37 out and 0 in");
        assert_eq!((recent.told(36), recent.told(101), recent.told(0)), Default::default());
        recent.note(What::messages(7, 7, 8));
        recent.take_back();
        assert_eq!(recent.told(101), "");
        let (enqueued, kept) = journal.launches();
        assert_eq!((enqueued, kept.len()), (100, 63));
        recent.note(What::messages(101, 0, 8));
        assert_eq!(recent.told(101), ", enqueued for messages, 101 out and 0 in");
        let (enqueued, kept) = journal.launches();
        assert_eq!((enqueued, kept.len(), kept[0].number), (101, 64, 38));
        assert_eq!(
            (kept[0].collective, kept[0].bytes, kept[0].parts),
            (Collective::SendRecv, 8, 38)
        );
    }

    #[test]
    fn calls_are_named() {
        let mut what = What::of(&Call::new(Collective::Broadcast, DataType::F32, 7));
        assert_eq!(what.to_string(), "broadcast of 7 float with root 0");
        what.and_one();
        what.and_one();
        let (recent, _) = recent();
        recent.note(what);
        assert_eq!(
            recent.told(1),
            ", enqueued for broadcast of 7 float with root 0 and 2 more in its group"
        );
    }

    #[test]
    fn whom_a_launch_stood_still_for_is_kept() {
        let (recent, journal) = recent();
        for _ in 0..3 {
            recent.note(What::of(&Call::new(Collective::AllReduce, DataType::F32, 7)));
        }
        recent.waits(2, 5, Duration::from_millis(3), 10);
        recent.waits(9, 1, Duration::from_millis(9), 10);
        let (_, kept) = journal.launches();
        let waited: Vec<_> =
            kept.iter().map(|one| one.waited.map(|w| (w.rank, w.waited_ns))).collect();
        assert_eq!(waited, [None, Some((5, 3_000_000)), None]);
    }
}
