//! The same work on every rank, alone: whose processor or GPU takes longer for it is slow, whatever its links are like.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ringway::Communicator;

use super::super::args::Memory;
use super::super::device::Device;
use super::calls_of_batch;

/// Values that are added up: they fit the nearest cache.
const VALUES: usize = 4096;
/// How often, for one piece of work.
const PASSES: usize = 16;
/// How long it is done, at least: longer than whatever makes a rank stand still now and then.
const LONG: Duration = Duration::from_millis(20);

/// Bytes that a GPU copies at a time: more than its caches hold, and it is at that for longer than it takes to ask for the next.
const COPIED_BYTES: usize = 32 << 20;
/// Copies that are asked for before they are waited for, at most.
const COPIES_MOST: u64 = 64;

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

/// Work for the rank's GPU, where its memory is measured: copies in it, that no link and no other rank has a part in.
#[derive(Debug)]
pub(crate) struct Copies<'a> {
    device: Option<Device<'a>>,
    rank: u32,
}

impl<'a> Copies<'a> {
    pub(crate) fn new(comm: &'a Communicator, memory: Memory) -> anyhow::Result<Self> {
        let device = match memory {
            Memory::Host => None,
            Memory::Cuda => Some(Device::new(comm, (COPIED_BYTES, COPIED_BYTES), 0)?),
        };
        Ok(Self { device, rank: comm.rank() })
    }

    /// Microseconds of a copy; nothing of host memory.
    pub(crate) fn copy_us(&self) -> anyhow::Result<Option<f64>> {
        let Some(device) = &self.device else { return Ok(None) };
        let copy = |times: u64| -> anyhow::Result<Duration> {
            let started = Instant::now();
            (0..times).try_for_each(|_| device.copy(COPIED_BYTES, self.rank))?;
            device.finish()?;
            Ok(started.elapsed())
        };
        // This one may be the first thing that the GPU does after a while: it is not counted.
        let times = calls_of_batch(copy(1)?, LONG, COPIES_MOST);
        let (mut took, mut copies) = (Duration::ZERO, 0.0);
        while took < LONG {
            took += copy(times)?;
            copies += times as f64;
        }
        Ok(Some(took.as_secs_f64() * 1e6 / copies))
    }
}
