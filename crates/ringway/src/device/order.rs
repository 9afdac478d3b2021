//! Streams: calls of one communicator run one after another, whatever streams they are put on.
//!
//! *Invariant:* a stream is not touched after the call that named it: its owner may destroy it at any time.

use std::sync::Arc;

use super::Fault;
use super::gpu::{Event, Gpu, Stream};

/// The order of a communicator's launches. The GPU's context is current when it is used.
#[derive(Debug)]
pub(super) struct Order {
    gpu: Arc<Gpu>,
    /// The stream of the last launches that were not captured, which `done` marks the end of.
    last: Option<Stream>,
    done: Event,
    event: Event,
}

impl Order {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, Fault> {
        Ok(Self { gpu: Arc::clone(gpu), last: None, done: gpu.event()?, event: gpu.event()? })
    }

    /// The stream to launch on: the first of some, behind what the others have so far and behind the
    /// launches before. Nothing where there is no stream.
    pub(super) fn begin(&self, streams: &[Stream]) -> Result<Option<Stream>, Fault> {
        let Some((&stream, others)) = streams.split_first() else { return Ok(None) };
        if self.last.is_some_and(|last| last != stream) && !self.gpu.is_capturing(stream) {
            self.gpu.wait_event(stream, &self.done)?;
        }
        for other in others {
            self.event.record(*other)?;
            self.gpu.wait_event(stream, &self.event)?;
        }
        Ok(Some(stream))
    }

    /// Whether all launches that were not captured are over.
    pub(super) fn is_over(&self) -> bool {
        self.last.is_none() || self.done.is_over()
    }

    /// What the other streams get from now on comes behind what was launched, and so do later launches.
    pub(super) fn end(&mut self, streams: &[Stream]) -> Result<(), Fault> {
        let Some((stream, others)) = streams.split_first() else { return Ok(()) };
        if !others.is_empty() {
            self.event.record(*stream)?;
        }
        for other in others {
            self.gpu.wait_event(*other, &self.event)?;
        }
        if !self.gpu.is_capturing(*stream) {
            self.done.record(*stream)?;
            self.last = Some(*stream);
        }
        Ok(())
    }
}
