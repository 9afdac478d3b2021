//! What has gone over links: plain statistics, written by the thread that has the link, read by whoever watches.

use std::sync::atomic::{AtomicU64, Ordering};

/// What has gone over one link.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
    arrived: AtomicU64,
    busy_us: AtomicU64,
    retries: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Bytes of what was sent that are known to have arrived, where what carries them knows.
    pub(crate) arrived: u64,
    /// For how long some were on the way, and the other end took them.
    pub(crate) busy_us: u64,
    /// How often something had to be sent again, or another way.
    pub(crate) retries: u64,
}

impl Flow {
    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            arrived: self.arrived.saturating_add(other.arrived),
            busy_us: self.busy_us.saturating_add(other.busy_us),
            retries: self.retries.saturating_add(other.retries),
        }
    }
}

/// Adds to a word that this thread alone writes.
fn add(word: &AtomicU64, more: usize) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(more as u64), Ordering::Relaxed);
}

impl Traffic {
    pub(crate) fn send(&self, bytes: usize) {
        add(&self.sent, bytes);
    }

    pub(crate) fn receive(&self, bytes: usize) {
        add(&self.received, bytes);
    }

    /// What the link's streams say now.
    pub(crate) fn note(&self, flow: Flow) {
        self.arrived.store(flow.arrived, Ordering::Relaxed);
        self.busy_us.store(flow.busy_us, Ordering::Relaxed);
        self.retries.store(flow.retries, Ordering::Relaxed);
    }

    /// Bytes sent and received.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }

    /// What its streams said last.
    pub(crate) fn flow(&self) -> Flow {
        Flow {
            arrived: self.arrived.load(Ordering::Relaxed),
            busy_us: self.busy_us.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
        }
    }
}
