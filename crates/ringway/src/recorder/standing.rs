//! How far each lane of the operation that stands still has come.
//!
//! Written by a rank that is about to sleep, or that has failed: never while anything moves. A seqlock as
//! that of the ring; its number says which operation the lanes are of.

use crate::plan::plan::LANES_MAX;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

const LANES: usize = if cfg!(loom) { 2 } else { LANES_MAX };

const READ_ATTEMPTS: u32 = if cfg!(loom) { 2 } else { 64 };

/// The lanes of one operation.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Odd while the writer is inside.
    version: AtomicU64,
    /// One more than the operation's number; 0 for none.
    operation: AtomicU64,
    /// For each lane steps done in the upper half and all of them in the lower; 0 for no lane.
    lanes: [AtomicU64; LANES],
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            version: AtomicU64::new(0),
            operation: AtomicU64::new(0),
            lanes: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Standing {
    /// Operation `number` stands, its lanes so far: steps done, of all.
    pub(crate) fn write(&self, number: u64, lanes: impl Iterator<Item = (usize, usize)>) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.operation.store(number.wrapping_add(1), Ordering::Relaxed);
        let half = |steps: usize| u64::from(u32::try_from(steps).unwrap_or(u32::MAX));
        let mut found = lanes.map(|(done, all)| half(done) << 32 | half(all));
        for lane in &self.lanes {
            lane.store(found.next().unwrap_or(0), Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The lanes of operation `number`, if it is the one that stood last.
    pub(crate) fn read(&self, number: u64) -> Vec<(u32, u32)> {
        for _ in 0..READ_ATTEMPTS {
            let before = self.version.load(Ordering::Acquire);
            if before & 1 == 1 {
                std::hint::spin_loop();
                continue;
            }
            let operation = self.operation.load(Ordering::Relaxed);
            let lanes = self.lanes.each_ref().map(|lane| lane.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) != before {
                continue;
            }
            if operation != number.wrapping_add(1) {
                break;
            }
            let half = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or_default();
            let all = lanes.iter().filter(|lane| **lane != 0);
            return all.map(|lane| (half(lane >> 32), half(*lane))).collect();
        }
        Vec::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_those_of_the_operation_that_stood_last() {
        let standing = Standing::default();
        assert_eq!(standing.read(0), []);
        standing.write(0, [(3, 9), (0, 4)].into_iter());
        assert_eq!(standing.read(0), [(3, 9), (0, 4)]);
        standing.write(5, [(1, 2)].into_iter());
        assert_eq!((standing.read(5), standing.read(0)), (vec![(1, 2)], vec![]));
        standing.write(6, (0..1_000).map(|_| (1, 2)));
        assert_eq!(standing.read(6).len(), LANES_MAX);
    }
}
