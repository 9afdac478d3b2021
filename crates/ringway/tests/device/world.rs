//! Ranks as threads on a GPU: a real one where RINGWAY_TEST_GPU is set, else the fake one.

use std::time::Duration;

use ringway::Communicator;
use ringway::config::Config;
use ringway::device::DeviceStream;
use ringway::testing::world_with;

use crate::fakes;

/// Whether the GPU is a real one.
pub(crate) fn is_real() -> bool {
    std::env::var_os("RINGWAY_TEST_GPU").is_some()
}

/// Settings for the GPU there is; nothing where there is none and none can be faked.
pub(crate) fn config() -> Option<Config> {
    if is_real() {
        return Some(Config::load(&ringway::config::Environment::from_process()));
    }
    let fakes::Cuda { driver, nvrtc } = fakes::cuda()?;
    let mut config = Config::default();
    config.cuda_library = Some(driver);
    config.nvrtc_library = Some(nvrtc);
    Some(config)
}

/// Runs `body` on ranks that have a GPU; nothing where there is none.
pub(crate) fn world<R: Send>(ranks: u32, body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    match config() {
        Some(config) => world_with(ranks, &config, body),
        None => Vec::new(),
    }
}

/// A wait of a test, as many times as long as RINGWAY_TEST_PATIENCE says: under tools that watch every access
/// kernels take a hundred times as long.
pub(crate) fn patience(seconds: u64) -> Duration {
    Duration::from_secs(seconds * times())
}

/// Waits for all ranks, under tools that watch every access. There a thread that copies or waits for its stream waits for all kernels of
/// the process, and meanwhile no other can launch what those wait for: all are done with copies before one launches, and all
/// have launched before one waits.
pub(crate) fn meet(comm: &Communicator) {
    if times() > 1 {
        comm.barrier().unwrap();
    }
}

/// Waits for what all ranks have put on their streams.
pub(crate) fn finish(comm: &Communicator, stream: &DeviceStream) {
    meet(comm);
    stream.synchronize().unwrap();
}

/// How many times as long everything takes.
pub(crate) fn times() -> u64 {
    let times = std::env::var("RINGWAY_TEST_PATIENCE").ok().and_then(|times| times.parse().ok());
    times.unwrap_or(1).max(1)
}
