//! SIGINT and SIGTERM as something to poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{pipe, unregister};

/// Catches SIGINT and SIGTERM while it lives.
#[derive(Debug)]
pub(crate) struct Signals {
    /// The last signal caught, 0 for none. Stored by the handler before it wakes the reader;
    /// a single word that stands for itself, so relaxed order is enough.
    caught: Arc<AtomicUsize>,
    wake: UnixStream,
    registered: Vec<SigId>,
}

impl Signals {
    /// Starts catching.
    pub(crate) fn catch() -> io::Result<Self> {
        let caught = Arc::new(AtomicUsize::new(0));
        let (wake, waker) = UnixStream::pair()?;
        let mut signals = Self { caught, wake, registered: Vec::new() };
        for (signal, value) in [(SIGINT, SIGINT.unsigned_abs()), (SIGTERM, SIGTERM.unsigned_abs())]
        {
            let value = usize::try_from(value).unwrap_or(0);
            let flag = Arc::clone(&signals.caught);
            signals.registered.push(signal_hook::flag::register_usize(signal, flag, value)?);
            signals.registered.push(pipe::register(signal, waker.try_clone()?)?);
        }
        Ok(signals)
    }

    /// The signal caught so far.
    pub(crate) fn caught(&self) -> Option<i32> {
        match self.caught.load(Ordering::Relaxed) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }
}

impl AsFd for Signals {
    /// Readable once a signal was caught.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            unregister(id);
        }
    }
}
