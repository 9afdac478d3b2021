//! The host executor: runs plans on CPU memory.
//!
//! An [`Execution`] is one plan on one set of buffers; it is a state machine that is polled and
//! never blocks. The world it runs in is a [`Fabric`]: the links of a communicator in production, a
//! model with delays, deaths and partitions in the simulator.
//!
//! **Invariant:** the executor takes no decision that is not in the plan, allocates nothing while it
//! runs, and reads no clock.

mod execution;
mod links;
#[cfg(all(test, not(loom)))]
mod simulator;

pub(crate) use execution::{Execution, Part, Prepared};
pub(crate) use links::Links;

use crate::plan::plan::Flag;
use crate::plan::types::Rank;
use crate::transport::{Area, Context, OperationTag, PutRequest, Trouble};

/// Bytes of a card before its values: the word that says whose they are.
const CARD_HEAD: u64 = 8;

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

    /// Turns up a card of this rank with `bytes` bytes from `source` on it.
    ///
    /// # Safety
    /// `source` points to so many bytes, which nobody writes meanwhile.
    #[expect(unsafe_code, reason = "the bytes are named by address")]
    unsafe fn show(&mut self, tag: OperationTag, card: u16, source: *const u8, bytes: usize);

    /// Whether `peer` has turned up a card in this operation.
    fn seen(&mut self, peer: Rank, tag: OperationTag, card: u16) -> Result<bool, Trouble>;

    /// The cards of `peer` in this operation.
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
