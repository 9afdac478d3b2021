//! Messages between two ranks, as the engine runs them.

use std::sync::Arc;
use std::time::Duration;

use super::{Engine, Running};
use crate::communicator::clock::Clock;
use crate::error::Result;
use crate::executor::{Execution, Part, Prepared};
use crate::plan::types::Rank;
use crate::transport::{Area, Context, OperationTag};

/// A message to be sent or received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessagePart {
    pub(crate) peer: Rank,
    pub(crate) area: Area,
    pub(crate) sends: bool,
}

impl Engine {
    /// Runs a batch of messages: those of one peer and direction in order, all others at once.
    ///
    /// # Safety
    /// As for [`Execution::begin`], for every area.
    #[expect(unsafe_code, reason = "passes the caller's promise on")]
    pub(crate) unsafe fn exchange(
        &mut self,
        batch: &[MessagePart],
        mapped: &dyn Fn(Rank) -> bool,
        deadline: Duration,
    ) -> Result<()> {
        let mut clock = Clock::new(deadline);
        let mut rest: Vec<MessagePart> = batch.to_vec();
        while !rest.is_empty() {
            let (mut wave, mut later): (Vec<MessagePart>, Vec<MessagePart>) = Default::default();
            for part in rest {
                let taken = wave.iter().any(|w| w.peer == part.peer && w.sends == part.sends);
                if taken { later.push(part) } else { wave.push(part) }
            }
            rest = later;
            let peers: Vec<Rank> = wave.iter().map(|part| part.peer).collect();
            // Where somebody watches: what the wave is, and when it began.
            let metering = self.metered.as_ref().map(|_| {
                let sizes = wave.iter().map(|part| (part.sends, part.area.bytes));
                (sizes.collect::<Vec<_>>(), self.journal.recorder().now())
            });
            let mut executions = Vec::with_capacity(wave.len());
            let mut numbers = Vec::with_capacity(wave.len());
            for part in wave {
                // SAFETY: the caller's promise.
                let execution = unsafe { self.begin_message(part, mapped(part.peer)) };
                let what = (execution.operation().1.sequence, part.area.bytes as u64);
                let recorder = self.journal.recorder();
                numbers.push(recorder.begin_message(part.peer, part.sends, what));
                executions.push(execution);
            }
            let remote_scratch = self.own.layout().message_slots(self.session.rank);
            let mut running: Vec<Running<'_>> = executions
                .iter_mut()
                .zip(&numbers)
                .map(|(execution, number)| Running {
                    execution,
                    message: Some(*number),
                    pairs: None,
                    remote_scratch,
                    begun: false,
                    done: false,
                })
                .collect();
            let outcome = match self.connect(&peers, &mut clock) {
                Ok(()) => self.run(&mut running, &mut clock),
                unconnected => unconnected,
            };
            for (number, one) in numbers.iter().zip(&running) {
                self.journal.recorder().end_message(*number, outcome.is_err() && !one.done);
            }
            outcome?;
            if let (Some(metered), Some((sizes, began))) = (&self.metered, metering) {
                let took = self.journal.recorder().now().saturating_sub(began);
                for (sends, bytes) in sizes {
                    metered.meter.messages(sends).add(bytes as u64, took);
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Execution::begin`].
    #[expect(unsafe_code, reason = "passes the caller's promise on")]
    unsafe fn begin_message(&mut self, part: MessagePart, mapped: bool) -> Execution {
        let layout = self.own.layout();
        let message = crate::plan::message::Message {
            bytes: part.area.bytes as u64,
            mapped,
            scratch_bytes: layout.message_bytes,
        };
        let counts = &mut self.messages[part.peer as usize];
        let (context, sequence) = if part.sends {
            counts.0 += 1;
            (Context::Send, counts.0 - 1)
        } else {
            counts.1 += 1;
            (Context::Receive, counts.1 - 1)
        };
        let plan = if part.sends { message.send(part.peer) } else { message.receive(part.peer) };
        let base = layout.message_slots(part.peer);
        let scratch = self.own_area(base, layout.message_bytes);
        let area = [part.area];
        let areas: (&[Area], &[Area]) = if part.sends { (&area, &[]) } else { (&[], &area) };
        let tag = OperationTag { sequence, tag: message_tag(sequence, part.area.bytes as u64) };
        let prepared = Arc::new(Prepared::new(plan));
        let bytes =
            Part { data_type: crate::plan::types::DataType::U8, kernel: None, scales: Vec::new() };
        let mut execution = Execution::new(prepared, vec![bytes], Arc::new([]));
        // SAFETY: the caller's promise.
        unsafe { execution.begin(areas, (scratch, base), (context, tag), 0) };
        execution
    }
}

/// What two ends of a message must agree on; never 0.
fn message_tag(sequence: u64, bytes: u64) -> u32 {
    let mixed = (sequence ^ bytes.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u32::try_from(mixed >> 32).map_or(1, |tag| tag | 1)
}
