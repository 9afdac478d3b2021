//! What ranks of one process know of each other's launches on a GPU: on which stream those are that may be at work.
//!
//! Two ranks may put their calls on the same stream. The first waits in its kernel for the second, whose launch does not begin
//! before that kernel has ended: that cannot end, and needs no deadline to be known.
//!
//! *Invariant:* that a rank stands behind another is said only where it does. Where launches are on several streams, or
//! were captured, nothing is said.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::gpu::{Event, Identity};
use crate::ffi::cuda::Address;
use crate::plan::types::Rank;

/// Instead of a stream's number.
const UNKNOWN: u64 = u64::MAX;

/// Where a rank's last launches are.
#[derive(Debug)]
pub(super) struct Tail {
    /// Behind all launches.
    done: Arc<Event>,
    /// The stream that all launches are on which may be at work.
    stream: AtomicU64,
}

/// A rank's, and those of other ranks of its communicator that are in its process and on its GPU.
#[derive(Debug)]
pub(super) struct Neighbours {
    own: Arc<Tail>,
    /// Their stations.
    others: BTreeMap<Rank, Address>,
}

/// Those of this process, by the stations of their ranks.
static TAILS: Mutex<Vec<(Address, Weak<Tail>)>> = Mutex::new(Vec::new());

fn tails() -> MutexGuard<'static, Vec<(Address, Weak<Tail>)>> {
    TAILS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tail {
    /// For the rank whose station this is.
    fn new(station: Address, done: &Arc<Event>) -> Arc<Self> {
        let tail = Arc::new(Self { done: Arc::clone(done), stream: AtomicU64::new(UNKNOWN) });
        let mut all = tails();
        all.retain(|(_, tail)| tail.strong_count() > 0);
        all.push((station, Arc::downgrade(&tail)));
        tail
    }

    /// That of a rank of this process; nothing where it has gone.
    fn of(station: Address) -> Option<Arc<Self>> {
        tails().iter().filter(|(known, _)| *known == station).find_map(|(_, tail)| tail.upgrade())
    }

    /// A launch on this stream follows. Whether launches at work are all on it; else nobody knows from now on where they are.
    pub(super) fn stays(&self, stream: Option<Identity>) -> bool {
        let is_there = stream == Some(Identity(self.stream.load(Ordering::SeqCst)));
        if !is_there {
            self.forget();
        }
        is_there
    }

    /// Launches at work are all on this stream, and `done` is behind them.
    pub(super) fn set(&self, stream: Option<Identity>) {
        self.stream.store(stream.map_or(UNKNOWN, |stream| stream.0), Ordering::SeqCst);
    }

    /// Nobody knows where launches at work are.
    pub(super) fn forget(&self) {
        self.stream.store(UNKNOWN, Ordering::SeqCst);
    }

    /// Whether a launch of this rank is behind what another has at work on its stream.
    fn is_behind(&self, other: &Self) -> bool {
        let stream = || self.stream.load(Ordering::SeqCst);
        let before = stream();
        // What was on another stream when it was asked for does not count.
        before != UNKNOWN
            && before == other.stream.load(Ordering::SeqCst)
            && !self.done.is_over()
            && !other.done.is_over()
            && before == stream()
    }
}

impl Neighbours {
    /// Of the rank whose station is given, behind whose launches `done` is recorded; nothing where it has none.
    pub(super) fn new(
        station: Address,
        done: &Arc<Event>,
        others: BTreeMap<Rank, Address>,
    ) -> Option<Self> {
        (!others.is_empty()).then(|| Self { own: Tail::new(station, done), others })
    }

    pub(super) fn own(&self) -> &Arc<Tail> {
        &self.own
    }

    /// Whether a launch of this one is behind what this rank has at work.
    pub(super) fn is_behind(&self, peer: Rank) -> bool {
        let other = self.others.get(&peer).and_then(|station| Tail::of(*station));
        other.is_some_and(|other| other.is_behind(&self.own))
    }
}
