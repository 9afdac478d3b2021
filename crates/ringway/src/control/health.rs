//! What the data path sees of the control plane: one atomic, and the way to the verdict.
//!
//! *Invariant*: [`Health::is_raised`] is one load. Everything else here is for after it said yes.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::message::Report;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::types::Rank;

/// Reports that may wait for the control thread; later ones are dropped, as the first error wins.
const INBOX_LENGTH_MAX: usize = 256;

/// What the control thread is asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wish {
    #[default]
    Serve,
    /// Say goodbye and end.
    Leave,
    /// End as a killed process would.
    #[cfg(test)]
    Die,
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) reports: VecDeque<Report>,
    /// Whether neighbours are to be asked if they are in the same call.
    pub(super) compare: bool,
    pub(super) wish: Wish,
}

/// The state of a communicator, shared by its executing threads and its control thread.
#[derive(Debug)]
pub struct Health {
    /// Set (release) by the control thread once something has gone wrong, never cleared; the
    /// data path's acquire load pairs with it.
    raised: AtomicBool,
    /// Which ranks said goodbye. Relaxed: a hint that orders nothing.
    gone: Box<[AtomicBool]>,
    verdict: Mutex<Option<Error>>,
    decided: Condvar,
    inbox: Mutex<Inbox>,
    /// An eventfd that wakes the control thread.
    bell: OwnedFd,
    /// Origin of the control plane's milliseconds.
    epoch: Instant,
}

impl Health {
    pub(super) fn new(ranks: usize, epoch: Instant) -> Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|e| Error::system("cannot make an eventfd for the control thread", e))?;
        Ok(Self {
            raised: AtomicBool::new(false),
            gone: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
            verdict: Mutex::new(None),
            decided: Condvar::new(),
            inbox: Mutex::new(Inbox::default()),
            bell,
            epoch,
        })
    }

    /// Whether something has gone wrong: give up, then ask [`Health::wait_verdict`].
    #[inline]
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Whether `rank` has said goodbye. Not an error in itself: report [`Report::Left`] when an
    /// operation waits for such a rank and nothing comes for a while (100 ms).
    #[must_use]
    pub fn is_gone(&self, rank: Rank) -> bool {
        self.gone.get(rank as usize).is_some_and(|gone| gone.load(Ordering::Relaxed))
    }

    /// Milliseconds on the control plane's clock, for
    /// [`Journal::wait_begin`](super::Journal::wait_begin).
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Tells the control plane what went wrong here. Keep the journal as it is until the verdict:
    /// the control thread reads from it where this rank stood.
    pub fn report(&self, report: Report) {
        let mut inbox = self.inbox();
        if inbox.reports.len() < INBOX_LENGTH_MAX {
            inbox.reports.push_back(report);
        }
        drop(inbox);
        self.ring();
    }

    /// Asks the neighbours whether they are in the same call, by the journal. They answer with
    /// the verdict, or not at all. For waits that have stood for long.
    pub fn compare(&self) {
        self.inbox().compare = true;
        self.ring();
    }

    /// The agreed error, if there is one yet.
    #[must_use]
    pub fn verdict(&self) -> Option<Error> {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the agreed error. Past `limit` (give it [`VERDICT_WAIT`](super::VERDICT_WAIT))
    /// returns an error of this rank's own.
    #[must_use]
    pub fn wait_verdict(&self, limit: Duration) -> Error {
        let verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.decided.wait_timeout_while(verdict, limit, |v| v.is_none());
        let (verdict, _) = waited.unwrap_or_else(PoisonError::into_inner);
        verdict.clone().unwrap_or_else(|| {
            Error::new(
                ErrorKind::Remote,
                format!(
                    "the communicator failed, and its ranks did not agree on the cause within \
                     {} ms; look for the first error on the other ranks",
                    limit.as_millis()
                ),
            )
        })
    }

    pub(super) fn set_verdict(&self, error: &Error) {
        let mut verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        verdict.get_or_insert_with(|| error.clone());
        drop(verdict);
        self.decided.notify_all();
    }

    /// Raises; whether that is new.
    pub(super) fn raise(&self) -> bool {
        !self.raised.swap(true, Ordering::Release)
    }

    /// Marks a rank as gone; whether that is new.
    pub(super) fn set_gone(&self, rank: Rank) -> bool {
        self.gone.get(rank as usize).is_some_and(|gone| !gone.swap(true, Ordering::Relaxed))
    }

    pub(super) fn wish(&self, wish: Wish) {
        self.inbox().wish = wish;
        self.ring();
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn ring(&self) {
        // It fails only if the counter is full: then the bell rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    pub(super) fn silence(&self) {
        // It fails only if nobody rang.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}
