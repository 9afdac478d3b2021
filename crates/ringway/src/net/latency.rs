//! One message at a time, over a queue pair: there and back.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::control::Control;
use super::device::failed;
use super::port::{Endpoint, Peer, Watch};
use super::test::Operation;
use crate::error::{Error, Result};
use crate::ffi::verbs::{Completion, Flags, Request};

/// Looks before the processor is offered to others: longer than an answer takes.
const SPIN: u32 = 4096;
/// Looks at memory between two looks at the completion queue, where errors show.
const LOOKS: u32 = 1024;

/// One side of the game.
pub(super) struct Player<'a> {
    endpoint: &'a Endpoint,
    peer: Peer,
    operation: Operation,
    bytes: usize,
    posted: u64,
    /// Requests that are known to be done.
    done: u64,
    /// Messages that have come, and receives posted for them.
    received: u64,
    ready: u64,
    count: u64,
}

impl<'a> Player<'a> {
    /// Gets ready: from here on the other side may begin.
    pub(super) fn new(
        endpoint: &'a Endpoint,
        peer: Peer,
        operation: Operation,
        bytes: usize,
        count: u64,
    ) -> Result<Self> {
        if let Some(last) = endpoint.buffer.byte(endpoint.received() + bytes - 1) {
            last.store(0, Ordering::Relaxed);
        }
        let (posted, done, received, ready) = (0, 0, 0, 0);
        let mut player =
            Self { endpoint, peer, operation, bytes, posted, done, received, ready, count };
        if operation == Operation::Send {
            player.post_receive()?;
            player.post_receive()?;
        }
        Ok(player)
    }

    /// Begins each round; microseconds of each, one way (a read: the whole).
    pub(super) fn serve(&mut self, control: &Control) -> Result<Vec<f64>> {
        let mut samples = Vec::new();
        let ways = if self.operation == Operation::Read { 1.0 } else { 2.0 };
        for round in 1..=self.count {
            let start = Instant::now();
            self.post(round, control)?;
            match self.operation {
                Operation::Read => {
                    self.await_done(control)?;
                    self.arrived()?;
                }
                _ => self.await_message(round, control)?,
            }
            samples.push(start.elapsed().as_secs_f64() * 1e6 / ways);
        }
        self.await_done(control)?;
        Ok(samples)
    }

    /// Answers each round.
    pub(super) fn answer(&mut self, control: &Control) -> Result<()> {
        if self.operation == Operation::Read {
            return Ok(());
        }
        for round in 1..=self.count {
            self.await_message(round, control)?;
            self.post(round, control)?;
        }
        self.await_done(control)
    }

    /// The byte that marks a round: never 0, and never that of the round before.
    fn mark(round: u64) -> u8 {
        u8::try_from(round % 255 + 1).unwrap_or(1)
    }

    fn post(&mut self, round: u64, control: &Control) -> Result<()> {
        let (operation, local) = self.endpoint.message(self.operation, self.peer, self.bytes);
        let qp = &self.endpoint.queue_pairs[0].0;
        if self.operation != Operation::Read {
            self.endpoint.buffer.stage_out(0, self.bytes, 1)?;
        }
        let last = self.endpoint.buffer.byte(self.bytes - 1);
        if let (Operation::Write, Some(last)) = (self.operation, last) {
            last.store(Self::mark(round), Ordering::Release);
        }
        let every = u64::from(self.endpoint.depth / 2).max(1);
        // A read is seen by its completion; of the others a few keep the queue from filling.
        let signalled =
            self.operation == Operation::Read || round.is_multiple_of(every) || round == self.count;
        let inline = self.operation != Operation::Read && local.can_be_inline(qp);
        self.posted += 1;
        let flags = Flags { signalled, inline, ..Flags::default() };
        qp.post(Request { id: self.posted, operation, local, flags }).map_err(failed)?;
        // The one before last that was signalled has long been done.
        let mut watch = Watch::new(SPIN);
        while self.posted - self.done > every + every / 2 {
            if self.poll(control)? { watch.hit() } else { watch.miss(self.endpoint, control)? }
        }
        Ok(())
    }

    /// Until the message of that round has come, to the GPU where the buffer is one's.
    fn await_message(&mut self, round: u64, control: &Control) -> Result<()> {
        self.await_bytes(round, control)?;
        self.arrived()
    }

    fn arrived(&self) -> Result<()> {
        self.endpoint.buffer.stage_in(self.endpoint.received(), self.bytes, 1)
    }

    fn await_bytes(&mut self, round: u64, control: &Control) -> Result<()> {
        let mut watch = Watch::new(SPIN);
        if self.operation == Operation::Send {
            while self.received < round {
                if self.poll(control)? {
                    watch.hit()
                } else {
                    watch.miss(self.endpoint, control)?
                }
            }
            return Ok(());
        }
        let byte = self.endpoint.buffer.byte(self.endpoint.received() + self.bytes - 1);
        let byte = byte.ok_or_else(|| Error::internal("a byte that cannot be watched"))?;
        let mark = Self::mark(round);
        let mut looks = 0_u32;
        while byte.load(Ordering::Acquire) != mark {
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                self.poll(control)?;
            }
            watch.miss(self.endpoint, control)?;
        }
        Ok(())
    }

    /// Until all that was posted is done; the last was signalled.
    fn await_done(&mut self, control: &Control) -> Result<()> {
        let mut watch = Watch::new(SPIN);
        while self.done < self.posted {
            if self.poll(control)? { watch.hit() } else { watch.miss(self.endpoint, control)? }
        }
        Ok(())
    }

    /// Takes completions; whether there were any.
    fn poll(&mut self, control: &Control) -> Result<bool> {
        let mut found = [Completion::default(); 4];
        let many = self.endpoint.cq.poll(&mut found).map_err(failed)?;
        for completion in &found[..many] {
            if !completion.is_success() {
                return Err(self.endpoint.failure(completion, control));
            }
            if completion.is_receive() {
                self.received += 1;
                self.post_receive()?;
            } else {
                self.done = completion.id();
            }
        }
        Ok(many > 0)
    }

    /// Posts a receive, unless there are enough for all rounds.
    fn post_receive(&mut self) -> Result<()> {
        if self.ready == self.count {
            return Ok(());
        }
        self.ready += 1;
        let part = self.endpoint.receive_part(self.bytes);
        self.endpoint.queue_pairs[0].0.post_receive(0, Some(part)).map_err(failed)
    }
}
