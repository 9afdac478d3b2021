//! The host executor: runs plans on CPU memory.
//!
//! An [`Execution`] is one plan on one set of buffers; it is a state machine that is polled and
//! never blocks. The world it runs in is a [`Fabric`]: the links of a communicator in production, a
//! model with delays, deaths and partitions in the simulator.
//!
//! **Invariant:** the executor takes no decision that is not in the plan, allocates nothing while it
//! runs, and goes by no clock: that the links note when a card was turned up is for the recorder alone.

mod execution;
mod links;
#[cfg(all(test, not(loom)))]
mod simulator;

pub(crate) use execution::{Execution, Part, Prepared};
pub(crate) use links::Links;

use crate::plan::plan::{Flag, Remote};
use crate::plan::types::Rank;
use crate::transport::{Area, Context, OperationTag, PutRequest, Trouble};

/// The world an [`Execution`] runs in.
pub(crate) trait Fabric {
    /// Whether `peer`, which maps memory with this rank, has completed so many collectives.
    fn has_completed(&mut self, peer: Rank, operations: u64) -> bool;

    /// Fails if `peer`, which maps memory with this rank, is known to have made another call.
    fn undisputed(&mut self, peer: Rank, tag: OperationTag) -> Result<(), Trouble>;

    /// Whether everything sent to `peer` is out of this process's hands.
    fn flush(&mut self, peer: Rank) -> Result<bool, Trouble>;

    /// Goes on with a put. `true` when its source may be reused.
    fn put(
        &mut self,
        peer: Rank,
        request: &PutRequest,
        cursor: &mut usize,
    ) -> Result<bool, Trouble>;

    /// Says where this rank's inputs and outputs are, for peers that read them.
    fn expose(&mut self, tag: OperationTag, buffers: (&[Area], &[Area]));

    /// Copies values of an input or output of `peer` to an address, so many bytes.
    fn get(
        &mut self,
        peer: Rank,
        tag: OperationTag,
        source: Remote,
        target: (*mut u8, usize),
    ) -> Result<(), Trouble>;

    /// Wakes whoever sleeps on what was signalled or shown since the last time: one fence for
    /// many signals.
    fn settle(&mut self);

    /// Raises a counter. `false`: try again.
    fn signal(
        &mut self,
        peer: Rank,
        context: Context,
        lane: usize,
        flag: Flag,
    ) -> Result<bool, Trouble>;

    /// Whether `peer` has raised `flag` `count` times in this operation, `at` a context and lane.
    fn reached(
        &mut self,
        peer: Rank,
        at: (Context, usize),
        flag: Flag,
        count: u32,
    ) -> Result<bool, Trouble>;

    /// The scratch of `peer`, where it is mapped.
    fn window(&self, peer: Rank) -> Option<Area>;

    /// Turns up a card of this rank with the values at an address, so many bytes, on it.
    fn show(&mut self, tag: OperationTag, card: u16, values: (*const u8, usize));

    /// Whether `peer` has turned up a card in this operation.
    fn seen(&mut self, peer: Rank, tag: OperationTag, card: u16) -> Result<bool, Trouble>;

    /// The cards of `peer` in this operation, where they are mapped.
    fn cards(&self, peer: Rank, tag: OperationTag) -> Option<Area>;
}

/// What a poll achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All lanes are at their end.
    Done,
    /// At least one step was finished; one of the waits is for this rank.
    Moved(Rank),
    /// Nothing could move; one of the waits is for this rank.
    Blocked(Rank),
}
