//! What every test here needs: a watchdog, a seeded generator, worlds with settings by rank.

use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use ringway::bootstrap::Options;
use ringway::config::{Config, Source};
use ringway::{Communicator, UniqueId};

/// The seed of every random choice here; `RINGWAY_SEED` sets another.
const SEED: u64 = 20_260_501;

/// Longer than any test here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Ends the process with a message when a test takes too long.
pub(crate) struct Watchdog {
    _alive: Sender<()>,
}

/// Watches the calling test until the result is dropped.
#[must_use]
pub(crate) fn watchdog(test: &'static str) -> Watchdog {
    let (alive, gone) = channel::<()>();
    thread::spawn(move || {
        if gone.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            // Not `eprintln!`: what a test prints is held back, and would be lost.
            let _nobody_reads = writeln!(
                std::io::stderr(),
                "test {test} hangs: not over after {PATIENCE:?} (seed {}); ending all tests",
                seed()
            );
            std::process::abort();
        }
    });
    Watchdog { _alive: alive }
}

/// The seed in use.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("RINGWAY_SEED").ok();
    given.map_or(SEED, |text| text.parse().expect("RINGWAY_SEED is a whole number"))
}

/// SplitMix64: small, good enough, the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator of its own for everything that has another `stream`.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xa076_1d64_78bd_642f));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Settings with these values.
pub(crate) fn settings(values: &[(&str, &str)]) -> Config {
    let mut config = Config::default();
    for (name, value) in values {
        config.set(name, value, Source::Default).unwrap();
    }
    config
}

/// As [`ringway::testing::world_with`], with the settings of each rank; joining may fail.
pub(crate) fn world_each<R: Send>(
    ranks: u32,
    config: impl Fn(u32) -> Config + Sync,
    body: impl Fn(ringway::Result<Communicator>) -> R + Sync,
) -> Vec<R> {
    let id = UniqueId::generate(&Options::default()).unwrap();
    thread::scope(|scope| {
        let start = |rank| {
            let (config, body, id) = (&config, &body, &id);
            scope.spawn(move || body(Communicator::from_unique_id(id, rank, ranks, config(rank))))
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, R>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}
