//! The same work on every rank: whose processor takes longer for it is slow, whatever its links are like.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Values that are added up: they fit the nearest cache.
const VALUES: usize = 4096;
/// How often, for one piece of work.
const PASSES: usize = 16;
/// How long it is done, at least: longer than whatever makes a rank stand still now and then.
const LONG: Duration = Duration::from_millis(20);

/// Microseconds of a piece of work, in the mean: whatever the rank stands still for is in it.
pub(crate) fn piece_us() -> f64 {
    let values: Vec<f32> = vec![1.5; VALUES];
    let started = Instant::now();
    let mut pieces = 0.0;
    loop {
        for _ in 0..PASSES {
            black_box(black_box(&values).iter().sum::<f32>());
        }
        pieces += 1.0;
        let elapsed = started.elapsed();
        if elapsed >= LONG {
            return elapsed.as_secs_f64() * 1e6 / pieces;
        }
    }
}
