//! Threads that were woken too late: what of a wait counts.
//!
//! A machine that was paused (a busy host, a virtual machine on the move) paused the other ranks
//! too, as far as they live there: what they say comes late by as much as this thread's clock has
//! jumped, and nobody is to be named for that.

use std::time::Duration;

/// How much later than asked for a thread may be woken; what goes beyond does not count.
pub(crate) const STALL: Duration = Duration::from_millis(20);

/// How much counts of a wait that took `slept` and had asked for `asked` at most. For the rest the thread stood still
/// against its will.
pub(crate) fn counted(slept: Duration, asked: Duration) -> Duration {
    slept.min(asked + STALL)
}
