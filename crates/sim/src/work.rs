//! What is to be done: streams of bytes, and waits, in an order.

use crate::network::Place;

/// Place of a task in a list of tasks.
pub type TaskId = usize;

/// Bytes from one place to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// From.
    pub from: Place,
    /// To.
    pub to: Place,
    /// Bytes for each byte of its stream.
    pub share: f64,
    /// What a switch hashes besides the two ends: the number of the queue pair.
    pub key: u64,
}

/// Flows that go at one pace: those of a ring, where nobody can pass on what has not come, or a single one.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Bytes of a flow whose share is 1.
    pub bytes: f64,
    /// The flows.
    pub flows: Vec<Flow>,
    /// Microseconds besides: messages one after another, of which each takes its time to arrive.
    pub latency_us: f64,
}

/// What a task is.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// Somebody computes, or is late.
    Wait {
        /// For so long.
        us: f64,
    },
    /// Bytes on their way, at one pace.
    Stream(Stream),
    /// Bytes on their way, each flow at its own pace, as in an all-to-all: over when the last one is.
    Flows(Stream),
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What people see: `all_reduce 1 GiB`.
    pub name: String,
    /// The row of a timeline it is in.
    pub row: String,
    /// Those that must be over before.
    pub after: Vec<TaskId>,
    /// What it is.
    pub what: What,
}
