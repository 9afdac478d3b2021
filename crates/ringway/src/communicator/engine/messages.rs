//! Messages between two ranks, as the engine runs them.

use std::collections::VecDeque;
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
    /// What both ends must have alike, besides the bytes: a number of 12 bits.
    pub(crate) mark: u32,
}

/// Messages of one peer and direction, which go in order.
#[derive(Debug)]
struct Line {
    /// Those that have not begun.
    rest: VecDeque<MessagePart>,
    /// The one that is under way: as what, with which number of the recorder's.
    execution: Execution,
    number: u64,
    /// What it is, and when it began, where somebody watches.
    metering: Option<(bool, usize, u64)>,
    begun: bool,
}

impl Engine {
    /// Runs a batch of messages: those of one peer and direction in order, all others at once, and none waits for one of
    /// another line. A rank may wait for the second of a line before it does what the first of another is for.
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
        let mut queues: Vec<VecDeque<MessagePart>> = Vec::new();
        for part in batch {
            let is_its = |queue: &&mut VecDeque<MessagePart>| {
                queue.front().is_some_and(|one| (one.peer, one.sends) == (part.peer, part.sends))
            };
            match queues.iter_mut().find(is_its) {
                Some(queue) => queue.push_back(*part),
                None => queues.push(VecDeque::from([*part])),
            }
        }
        let peers: Vec<Rank> =
            queues.iter().filter_map(|queue| queue.front()).map(|part| part.peer).collect();
        let mut lines: Vec<Line> = Vec::with_capacity(queues.len());
        for queue in queues {
            // SAFETY: the caller's promise.
            lines.extend(unsafe { self.next_message(queue, mapped) });
        }
        let outcome = match self.connect(&peers, &mut clock) {
            // SAFETY: the caller's promise.
            Ok(()) => unsafe { self.run_lines(&mut lines, mapped, &mut clock) },
            unconnected => unconnected,
        };
        for line in &lines {
            self.journal.recorder().end_message(line.number, true);
        }
        outcome
    }

    /// Runs lines to their end; those that have come there are taken out.
    ///
    /// # Safety
    /// As for [`Engine::exchange`].
    #[expect(unsafe_code, reason = "passes the caller's promise on")]
    unsafe fn run_lines(
        &mut self,
        lines: &mut Vec<Line>,
        mapped: &dyn Fn(Rank) -> bool,
        clock: &mut Clock,
    ) -> Result<()> {
        let remote_scratch = self.own.layout().message_slots(self.session.rank);
        while !lines.is_empty() {
            let mut running: Vec<Running<'_>> = lines
                .iter_mut()
                .map(|line| Running {
                    message: Some(line.number),
                    pairs: None,
                    remote_scratch,
                    begun: line.begun,
                    done: false,
                    is_followed: !line.rest.is_empty(),
                    execution: &mut line.execution,
                })
                .collect();
            let outcome = self.run(&mut running, clock);
            let states: Vec<(bool, bool)> =
                running.iter().map(|one| (one.begun, one.done)).collect();
            let mut left = Vec::with_capacity(lines.len());
            for (mut line, (begun, done)) in lines.drain(..).zip(states) {
                if !done {
                    line.begun = begun;
                    left.push(line);
                    continue;
                }
                self.end_message(&line);
                if outcome.is_ok() {
                    // SAFETY: the caller's promise.
                    left.extend(unsafe { self.next_message(line.rest, mapped) });
                }
            }
            *lines = left;
            outcome?;
        }
        Ok(())
    }

    /// The first of some messages, about to begin, with those behind it.
    ///
    /// # Safety
    /// As for [`Engine::exchange`].
    #[expect(unsafe_code, reason = "passes the caller's promise on")]
    unsafe fn next_message(
        &mut self,
        mut rest: VecDeque<MessagePart>,
        mapped: &dyn Fn(Rank) -> bool,
    ) -> Option<Line> {
        let part = rest.pop_front()?;
        let metering = self.metered.as_ref();
        let metering =
            metering.map(|_| (part.sends, part.area.bytes, self.journal.recorder().now()));
        // SAFETY: the caller's promise.
        let execution = unsafe { self.begin_message(part, mapped(part.peer)) };
        let what = (execution.operation().1.sequence, part.area.bytes as u64);
        let number = self.journal.recorder().begin_message(part.peer, part.sends, what);
        Some(Line { rest, execution, number, metering, begun: false })
    }

    /// Notes that a message is over.
    fn end_message(&self, line: &Line) {
        let recorder = self.journal.recorder();
        recorder.end_message(line.number, false);
        if let (Some(metered), Some((sends, bytes, began))) = (&self.metered, line.metering) {
            metered.meter.messages(sends).add(bytes as u64, recorder.now().saturating_sub(began));
        }
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
        let tag = OperationTag { sequence, tag: message_tag(sequence, part) };
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
fn message_tag(sequence: u64, part: MessagePart) -> u32 {
    let alike = part.area.bytes as u64 ^ u64::from(part.mark) << 52;
    let mixed = (sequence ^ alike.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u32::try_from(mixed >> 32).map_or(1, |tag| tag | 1)
}
