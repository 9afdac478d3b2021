//! One thread at a time enqueues on a GPU.
//!
//! A stream is given one of the GPU's queues with its first work. Where that comes while another thread enqueues, CUDA's
//! driver may put both streams into one queue (`bench/gpu/streams.cu` shows it), and what is launched on the one stands
//! behind kernels of the other that wait for it.
//!
//! Copies that the caller waits for, on a stream of their own, are made out of turn: they would hold it while they wait.
//!
//! *Invariant:* a turn holds nobody up for ever: a thread may stand in the driver until a kernel has ended, and that may wait for what
//! another thread has yet to launch. Who has waited too long enqueues out of turn, and others wait half as long from then on, until
//! waiting is of use again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Milliseconds that a thread waits, at most and at least. A launch takes some microseconds, if the thread runs.
const PATIENCE: (u32, u32) = (1000, 1);
/// Looks before the thread lets others run.
const LOOKS: u32 = 100;

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Turn {
    lock: Mutex<()>,
    /// Milliseconds that the next thread waits.
    patience: AtomicU32,
}

impl Turn {
    pub(super) fn new() -> Self {
        Self { lock: Mutex::new(()), patience: AtomicU32::new(PATIENCE.0) }
    }

    /// Waits for a turn, which lasts until the guard goes; nothing where it is out of turn.
    pub(super) fn take(&self) -> Option<MutexGuard<'_, ()>> {
        self.try_take().or_else(|| self.wait())
    }

    fn try_take(&self) -> Option<MutexGuard<'_, ()>> {
        match self.lock.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cold]
    fn wait(&self) -> Option<MutexGuard<'_, ()>> {
        let patience = self.patience.load(Ordering::Relaxed);
        let end = Instant::now() + Duration::from_millis(patience.into());
        for looks in 0_u32.. {
            if let Some(guard) = self.try_take() {
                self.patience.store((patience * 2).min(PATIENCE.0), Ordering::Relaxed);
                return Some(guard);
            }
            if looks < LOOKS {
                std::hint::spin_loop();
                continue;
            }
            if Instant::now() > end {
                break;
            }
            std::thread::yield_now();
        }
        self.patience.store((patience / 2).max(PATIENCE.1), Ordering::Relaxed);
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nobody_enqueues_while_another_does() {
        let (turn, at_work, turns) = (Turn::new(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        // Out of turn where a machine stands still for so long: that is no overlap.
                        let Some(_turn) = turn.take() else { continue };
                        assert_eq!(at_work.fetch_add(1, Ordering::Relaxed), 0);
                        std::thread::yield_now();
                        at_work.fetch_sub(1, Ordering::Relaxed);
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(turns.into_inner() > 1000);
    }

    #[test]
    fn who_stands_in_the_driver_holds_nobody_up() {
        let turn = Turn::new();
        turn.patience.store(8, Ordering::Relaxed);
        let stands = turn.take();
        let patience = || turn.patience.load(Ordering::Relaxed);
        // Others come past it, sooner and sooner.
        for left in [4, 2, 1, 1] {
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(turn.take().is_none()));
            });
            assert_eq!(patience(), left);
        }
        drop(stands);
        assert!(turn.take().is_some());
        assert_eq!(patience(), 1, "nobody has waited");
        assert!(turn.wait().is_some());
        assert_eq!(patience(), 2);
    }
}
