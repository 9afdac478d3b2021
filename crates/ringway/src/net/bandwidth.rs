//! Many messages at once, over queue pairs.

use std::time::Instant;

use super::control::Control;
use super::port::{Endpoint, Peer, Watch};
use super::test::Operation;
use crate::error::Result;
use crate::ffi::verbs::{Completion, Flags, Request};
use crate::net::device::failed;

/// Requests posted by one call.
const CHAIN: usize = 8;
/// Empty looks before the processor is offered to others; there is work under way meanwhile.
const SPIN: u32 = 512;
/// Identifies completions of receives.
const RECEIVE: u64 = 1 << 63;

/// What one side does with one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) operation: Operation,
    pub(super) bytes: usize,
    /// Messages that every lane sends, and receives.
    pub(super) send: u64,
    pub(super) receive: u64,
}

#[derive(Clone, Copy, Default)]
struct Lane {
    posted: u64,
    done: u64,
    /// Receives posted and done.
    ready: u64,
    received: u64,
}

/// A flow that is about to run: its receives are posted.
pub(super) struct Running<'a> {
    endpoint: &'a Endpoint,
    peer: Peer,
    flow: Flow,
    lanes: Vec<Lane>,
}

impl<'a> Running<'a> {
    /// Gets ready: from here on the other side may send.
    pub(super) fn new(endpoint: &'a Endpoint, peer: Peer, flow: Flow) -> Result<Self> {
        let mut lanes = vec![Lane::default(); endpoint.queue_pairs.len()];
        let part = endpoint.receive_part(flow.bytes);
        for (index, lane) in lanes.iter_mut().enumerate() {
            while lane.ready < flow.receive.min(endpoint.depth.into()) {
                let id = RECEIVE | index as u64;
                endpoint.queue_pairs[index].0.post_receive(id, Some(part)).map_err(failed)?;
                lane.ready += 1;
            }
        }
        Ok(Self { endpoint, peer, flow, lanes })
    }

    /// Sends and receives all of it; the seconds that took.
    pub(super) fn run(mut self, control: &Control) -> Result<f64> {
        let start = Instant::now();
        let mut watch = Watch::new(SPIN);
        let mut is_asked = false;
        let mut found = [Completion::default(); 32];
        while !self.lanes.iter().all(|lane| self.is_done(lane)) {
            for index in 0..self.lanes.len() {
                self.post(index)?;
            }
            let many = self.endpoint.cq.poll(&mut found).map_err(failed)?;
            if many == 0 {
                // What is under way goes on meanwhile, and there is a queue of it.
                watch.miss_or_sleep(self.endpoint, control, &mut is_asked)?;
                continue;
            }
            watch.hit();
            for completion in &found[..many] {
                self.complete(completion, control)?;
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn is_done(&self, lane: &Lane) -> bool {
        lane.done == self.flow.send && lane.received == self.flow.receive
    }

    /// Posts what there is room for on a lane. One in a few is signalled, and the last.
    fn post(&mut self, index: usize) -> Result<()> {
        let depth = u64::from(self.endpoint.depth);
        let every = (depth / 8).max(1);
        let lane = &mut self.lanes[index];
        let (operation, local) =
            self.endpoint.message(self.flow.operation, self.peer, self.flow.bytes);
        let qp = &self.endpoint.queue_pairs[index].0;
        let inline = self.flow.operation != Operation::Read && local.can_be_inline(qp);
        loop {
            let room = (depth - (lane.posted - lane.done)).min(self.flow.send - lane.posted);
            if room == 0 {
                return Ok(());
            }
            let mut chain = [Request { id: 0, operation, local, flags: Flags::default() }; CHAIN];
            let many = chain.len().min(usize::try_from(room).unwrap_or(CHAIN));
            for request in &mut chain[..many] {
                lane.posted += 1;
                // The completion says how many are done with it.
                request.id = lane.posted << 8 | index as u64;
                let signalled = lane.posted.is_multiple_of(every) || lane.posted == self.flow.send;
                request.flags = Flags { signalled, inline, ..Flags::default() };
            }
            if self.flow.operation != Operation::Read {
                self.endpoint.buffer.stage_out(0, self.flow.bytes, many)?;
            }
            qp.post_chain(&chain[..many]).map_err(|(_, error)| failed(error))?;
        }
    }

    fn complete(&mut self, completion: &Completion, control: &Control) -> Result<()> {
        if !completion.is_success() {
            return Err(self.endpoint.failure(completion, control));
        }
        let id = completion.id();
        let index = usize::try_from(id & 0xff).unwrap_or(0);
        let Some(lane) = self.lanes.get_mut(index) else { return Ok(()) };
        if id & RECEIVE == 0 {
            let before = std::mem::replace(&mut lane.done, id >> 8);
            return match self.flow.operation {
                Operation::Read => self.arrived(usize::try_from((id >> 8) - before).unwrap_or(0)),
                Operation::Write | Operation::Send => Ok(()),
            };
        }
        lane.received += 1;
        if lane.ready < self.flow.receive {
            let part = self.endpoint.receive_part(self.flow.bytes);
            let qp = &self.endpoint.queue_pairs[index].0;
            qp.post_receive(RECEIVE | index as u64, Some(part)).map_err(failed)?;
            lane.ready += 1;
        }
        self.arrived(1)
    }

    /// Messages are here, as far as the adapter goes.
    fn arrived(&self, count: usize) -> Result<()> {
        self.endpoint.buffer.stage_in(self.endpoint.received(), self.flow.bytes, count)
    }
}
