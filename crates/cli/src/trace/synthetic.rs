//! Traces for tests, made up.

use ringway::plan::algorithm::Algorithm;
use ringway::recorder::{
    CallRecord, ClockInfo, FORMAT, LaunchRecord, Outcome, Reason, Trace, VERSION,
};
use ringway::{Collective, DataType, ReduceOp};

/// An all_reduce of 8 bytes.
pub(crate) fn call(sequence: u64, start_ns: u64, end_ns: Option<u64>) -> CallRecord {
    CallRecord {
        sequence,
        collective: Collective::AllReduce,
        data_type: Some(DataType::F32),
        op: Some(ReduceOp::Sum),
        root: None,
        count: 2,
        bytes: 8,
        algorithm: Some(Algorithm::Tiny),
        parts: 1,
        uneven: false,
        queued_ns: None,
        start_ns,
        end_ns,
        end_about: false,
        outcome: if end_ns.is_some() { Outcome::Done } else { Outcome::Running },
        waited: None,
        lanes: Vec::new(),
    }
}

/// A rank that has done nothing, on a host of its own.
pub(crate) fn trace(rank: u32, size: u32) -> Trace {
    Trace {
        format: FORMAT.to_owned(),
        version: VERSION,
        reason: Reason::Request,
        communicator: "0x1f".to_owned(),
        rank,
        size,
        host: format!("host{rank}"),
        pid: 100 + rank,
        clock: ClockInfo {
            id: format!("boot{rank}"),
            source: "tsc".to_owned(),
            realtime_offset_ns: 0,
        },
        taken_ns: 1_000_000_000,
        verdict: None,
        calls_begun: 0,
        messages_begun: 0,
        launches_begun: 0,
        calls: Vec::new(),
        messages: Vec::new(),
        launches: Vec::new(),
    }
}

/// An all_reduce of 8 bytes, put on a GPU.
pub(crate) fn launch(number: u64, enqueued_ns: u64) -> LaunchRecord {
    LaunchRecord {
        number,
        collective: Collective::AllReduce,
        data_type: Some(DataType::F32),
        op: Some(ReduceOp::Sum),
        root: None,
        count: 2,
        bytes: 8,
        parts: 1,
        enqueued_ns,
        waited: None,
    }
}
