//! Streams: calls of one communicator run one after another, whatever streams they are put on; and their end.
//!
//! What was launched is over when its mark in the stream is reached. Of launches that were captured nobody here is told
//! when they are replayed: kernels count what began and what ended. A replay that is enqueued and has not begun is
//! known to its owner alone, who waits for it before the communicator ends.
//!
//! *Invariant:* a stream is not touched after the call that named it: its owner may destroy it at any time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Fault;
use super::gpu::{Event, Gpu, Identity, Stream};
use super::seats::Seat;
use super::tail::{Neighbours, Tail};
use crate::control::Health;
use crate::error::Error;
use crate::ffi::cuda::Address;
use crate::plan::types::Rank;

/// How long kernels may take to see that they are given up, unless they cannot run at all.
const GRACE: Duration = Duration::from_secs(2);
/// Launches that begin and end prolong the wait for the last of them: so many times the limit.
const PROLONGED: u32 = 10;

/// The order of a communicator's launches. The GPU's context is current when it is used.
#[derive(Debug)]
pub(super) struct Order {
    gpu: Arc<Gpu>,
    /// Whether anything was launched that was not captured, which `done` marks the end of, and on which stream, where
    /// the driver tells.
    is_used: bool,
    last: Option<Identity>,
    done: Arc<Event>,
    event: Event,
    /// Its places on the GPU.
    seat: Seat,
    /// Where its launches are, if other ranks want to know.
    tail: Option<Arc<Tail>>,
    /// Whether launches between [`Order::begin`] and [`Order::end`] are captured. To ask takes time: it is asked once.
    captures: bool,
    /// Whether no launch is at work on another stream than theirs.
    stays: bool,
}

impl Order {
    /// Of launches of so many blocks at most, on a GPU that so many processes use together.
    pub(super) fn new(gpu: &Arc<Gpu>, most: u32, processes: u32) -> Result<Self, Fault> {
        let done = Arc::new(gpu.event()?);
        Ok(Self {
            gpu: Arc::clone(gpu),
            is_used: false,
            last: None,
            seat: Seat::new(gpu, most, processes, &done),
            tail: None,
            done,
            event: gpu.event()?,
            captures: false,
            stays: false,
        })
    }

    /// Lets other ranks of this process, if there are any on this GPU, know where the launches are of the rank whose station
    /// this is.
    pub(super) fn tell(
        &mut self,
        station: Address,
        others: BTreeMap<Rank, Address>,
    ) -> Option<Neighbours> {
        let neighbours = Neighbours::new(station, &self.done, others)?;
        self.tail = Some(Arc::clone(neighbours.own()));
        Some(neighbours)
    }

    /// Takes places for a launch of so many blocks, which follows; says how many it may have.
    pub(super) fn take(&self, blocks: u32) -> u32 {
        self.seat.take(blocks, self.captures)
    }

    /// The first of some streams, and the others, which are captured if it is. Nothing touches one before: a stream that
    /// waits for one that is captured is captured itself from then on, and the other way round the capture is broken.
    pub(super) fn check<'a>(
        &self,
        streams: &'a [Stream],
    ) -> crate::error::Result<(Stream, &'a [Stream])> {
        let Some((&stream, others)) = streams.split_first() else {
            return Err(Error::argument("calls on GPU memory want a stream, and none was given"));
        };
        let is_captured = |stream: &Stream| self.gpu.is_capturing(*stream);
        if !others.is_empty() && streams.iter().any(is_captured) && !streams.iter().all(is_captured)
        {
            return Err(Error::usage(
                "some streams of a group of calls are captured and others are not: capture all of them or none",
            ));
        }
        Ok((stream, others))
    }

    /// The stream to launch on: the first of some, behind what the others have so far and behind the
    /// launches before.
    pub(super) fn begin(&mut self, streams: &[Stream]) -> crate::error::Result<Stream> {
        let (stream, others) = self.check(streams)?;
        self.captures = self.gpu.is_capturing(stream);
        if !self.captures {
            let identity = self.gpu.identity(stream);
            if self.is_used && (identity.is_none() || identity != self.last) {
                self.gpu.wait_event(stream, &self.done)?;
            }
            self.last = identity;
        }
        for other in others {
            self.event.record(*other)?;
            self.gpu.wait_event(stream, &self.event)?;
        }
        if self.captures {
            // A replay may be on any stream.
            self.tail.take().inspect(|tail| tail.forget());
        }
        let is_over = || !self.is_used || self.done.is_over();
        self.stays = self.tail.as_ref().is_some_and(|tail| tail.stays(self.last) || is_over());
        Ok(stream)
    }

    /// Whether what is launched now is captured.
    pub(super) fn captures(&self) -> bool {
        self.captures
    }

    /// Waits until no launch is at work. `counts` says how many began and how many ended, or nothing where the driver
    /// does not answer, as then nothing can be waited for. Once none began or ended for `limit`, or the communicator has
    /// failed, `give_up` is called, which ends them. Says whether all are over.
    pub(super) fn settle(
        &self,
        limit: Duration,
        health: &Health,
        counts: impl Fn() -> Option<(u32, u32)>,
        give_up: impl Fn(),
    ) -> bool {
        let start = Instant::now();
        let (mut seen, mut moved, mut given_up) = ((0, 0), start, None::<Instant>);
        loop {
            let Some(now) = counts() else { return true };
            if now.0 == now.1 && (!self.is_used || self.done.is_over()) {
                return true;
            }
            if now != seen {
                (seen, moved) = (now, Instant::now());
            }
            let is_late = moved.elapsed() > limit || start.elapsed() / PROLONGED > limit;
            match given_up {
                None if is_late || health.is_raised() => {
                    given_up = Some(Instant::now());
                    give_up();
                }
                Some(at) if at.elapsed() > GRACE => return false,
                _ => {}
            }
            std::thread::sleep(Duration::from_micros(200));
        }
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
        if !self.captures {
            self.done.record(*stream)?;
            self.is_used = true;
            if let Some(tail) = self.tail.as_ref().filter(|_| self.stays) {
                tail.set(self.last);
            }
            self.seat.mark();
        }
        Ok(())
    }
}
