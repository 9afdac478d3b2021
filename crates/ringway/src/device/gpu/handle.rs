//! What a driver lends: contexts, memory, streams and events, given back when dropped.

#![allow(unsafe_code, reason = "calls into the driver by pointers")]

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Fault, Gpu, NOT_READY, Stream};
use crate::ffi::cuda::{Address, Handle};

/// While it lives the GPU's context is current in this thread.
#[derive(Debug)]
pub(in crate::device) struct Entered<'a> {
    pub(super) gpu: &'a Gpu,
    /// Whether it was not current before.
    pub(super) is_pushed: bool,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if !self.is_pushed {
            return;
        }
        let mut context: Handle = std::ptr::null_mut();
        // SAFETY: a place for a handle; the context was pushed by this guard.
        unsafe { (self.gpu.driver.context_pop)(&raw mut context) };
    }
}

/// While it lives, calls that a capture forbids are allowed in this thread.
#[derive(Debug)]
pub(in crate::device) struct Relaxed<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) before: Option<c_int>,
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: a place for a mode, which the driver gave.
            unsafe { (self.gpu.driver.capture_mode)(&raw mut mode) };
        }
    }
}

/// A kernel, loaded.
#[derive(Clone, Copy, Debug)]
pub(in crate::device) struct Function {
    pub(super) handle: usize,
    /// Whether it is launched before the kernel in front of it has ended.
    pub(super) overlaps: bool,
}

/// Device memory, given back when dropped.
#[derive(Debug)]
pub(in crate::device) struct DeviceMemory {
    pub(super) gpu: Arc<Gpu>,
    pub(super) address: Address,
    pub(super) bytes: usize,
}

impl DeviceMemory {
    pub(in crate::device) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(in crate::device) fn address(&self) -> Address {
        self.address
    }

    pub(in crate::device) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Ok(_context) = self.gpu.enter() else { return };
        let _relaxed = self.gpu.relax();
        // SAFETY: it was taken by `alloc`, and nothing else gives it back. The driver waits for kernels.
        unsafe { (self.gpu.driver.free)(self.address) };
    }
}

/// Pinned host memory, given back when dropped.
#[derive(Debug)]
pub(in crate::device) struct PinnedMemory {
    pub(super) gpu: Arc<Gpu>,
    pub(super) place: NonNull<u8>,
    pub(super) address: Address,
}

// SAFETY: it is reached through atomics and copies by whoever holds it.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Where kernels see it.
    pub(in crate::device) fn address(&self) -> Address {
        self.address
    }

    /// Where the host sees it.
    pub(in crate::device) fn place(&self) -> NonNull<u8> {
        self.place
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let Ok(_context) = self.gpu.enter() else { return };
        let _relaxed = self.gpu.relax();
        // SAFETY: it was taken by `pinned`, and nothing else gives it back.
        unsafe { (self.gpu.driver.host_free)(self.place.as_ptr().cast()) };
    }
}

/// A stream of our own.
#[derive(Debug)]
pub(in crate::device) struct OwnStream {
    pub(super) gpu: Arc<Gpu>,
    pub(super) handle: Handle,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for OwnStream {}

impl OwnStream {
    pub(in crate::device) fn stream(&self) -> Stream {
        Stream::from_handle(self.handle)
    }

    /// Waits until it is done with everything.
    pub(in crate::device) fn finish(&self) -> Result<(), Fault> {
        self.gpu.finish(self.handle)
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        let Ok(_context) = self.gpu.enter() else { return };
        // SAFETY: it was made by `stream`, and is not used again.
        unsafe { (self.gpu.driver.stream_destroy)(self.handle) };
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub(in crate::device) struct Event {
    pub(super) gpu: Arc<Gpu>,
    pub(super) handle: Handle,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver takes its own locks.
unsafe impl Sync for Event {}

impl Event {
    /// Marks what is enqueued on the stream so far.
    pub(in crate::device) fn record(&self, stream: Stream) -> Result<(), Fault> {
        let _turn = self.gpu.turn.take();
        // SAFETY: both handles are alive.
        let code = unsafe { (self.gpu.driver.event_record)(self.handle, stream.handle()) };
        self.gpu.checked("marking a stream", code)
    }

    /// Whether the stream has come past the mark, or never will.
    pub(in crate::device) fn is_over(&self) -> bool {
        self.is_reached().unwrap_or(true)
    }

    /// Whether the stream has come past the mark.
    pub(in crate::device) fn is_reached(&self) -> Result<bool, Fault> {
        // A capture under way elsewhere would refuse the question, which is no answer.
        let (_context, _relaxed) = (self.gpu.enter()?, self.gpu.relax());
        // SAFETY: the handle is alive.
        let code = unsafe { (self.gpu.driver.event_query)(self.handle) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.gpu.checked("looking at a stream", code).map(|()| true)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_context) = self.gpu.enter() else { return };
        // SAFETY: it was made by `event`, and is not used again.
        unsafe { (self.gpu.driver.event_destroy)(self.handle) };
    }
}
