//! Streams of the user's, and what is asked of them.

#![allow(unsafe_code, reason = "calls into the driver by handles")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Gpu;
use crate::error::Error;
use crate::ffi::cuda::Handle;

/// `CU_STREAM_LEGACY`: the default stream, as null is.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`, HIP's too.
const PER_THREAD: usize = 2;
/// For how long a wait for a stream keeps its processor.
const WAIT_AWAKE: Duration = Duration::from_micros(200);
/// And how long it sleeps at a time after that.
const WAIT_ASLEEP: Duration = Duration::from_micros(50);

/// A stream of the user's: the driver's handle, which may be null for the default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(usize);

/// A stream, told from all that were and will be: a driver gives the handle of one that was destroyed to the next, also
/// while it is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::device) struct Identity(pub(in crate::device) u64);

impl Stream {
    /// The stream with this handle (`cudaStream_t`, `hipStream_t`).
    #[must_use]
    pub fn from_handle(handle: *mut c_void) -> Self {
        Self(handle.expose_provenance())
    }

    pub(in crate::device) fn handle(self) -> Handle {
        std::ptr::with_exposed_provenance_mut(self.0)
    }

    /// Whether it is another stream in each thread: `cudaStreamPerThread`.
    #[must_use]
    pub fn is_per_thread(self) -> bool {
        self.0 == PER_THREAD
    }
}

impl Gpu {
    /// Waits until a stream of the user's is done with everything it has so far, or `check` says that waiting is over.
    ///
    /// # Errors
    /// It is captured: nobody can wait for that. Or the driver refuses, or `check` does.
    ///
    /// # Safety
    /// The stream is alive.
    pub unsafe fn wait(
        self: &Arc<Self>,
        stream: Stream,
        mut check: impl FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.is_capturing(stream) {
            return Err(Error::usage(
                "the stream is captured, and a call on host memory has to wait for it: capture calls on GPU memory only",
            ));
        }
        let mark = self.event()?;
        {
            let (_context, _relaxed) = (self.enter()?, self.relax());
            mark.record(stream)?;
        }
        let began = Instant::now();
        while !mark.is_reached()? {
            check()?;
            match began.elapsed() < WAIT_AWAKE {
                true => std::thread::yield_now(),
                false => std::thread::sleep(WAIT_ASLEEP),
            }
        }
        Ok(())
    }

    /// Which stream a handle stands for, where the driver tells. The stream is not captured.
    pub(in crate::device) fn identity(&self, stream: Stream) -> Option<Identity> {
        if stream.0 <= LEGACY {
            return Some(Identity(0));
        }
        if stream.is_per_thread() {
            return None;
        }
        let mut id = 0;
        // SAFETY: the stream is the user's and alive; a place for a number.
        let code = unsafe { self.driver.stream_id?(stream.handle(), &raw mut id) };
        // What it has for the default stream does not matter here.
        (code == 0).then(|| Identity(id.saturating_add(1)))
    }

    /// Whether a stream's calls are being written down as a graph.
    pub(in crate::device) fn is_capturing(&self, stream: Stream) -> bool {
        let mut status: c_int = 0;
        // SAFETY: the stream is the user's and alive; a place for an integer.
        let code = unsafe { (self.driver.stream_capturing)(stream.handle(), &raw mut status) };
        code == 0 && status != 0
    }
}
