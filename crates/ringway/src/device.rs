//! GPU memory: plans run by kernels, on buffers that ranks map from each other.
//!
//! ```text
//! RankPlan (plan::mapped) ──► Program (steps in a launch's arguments) ──► one launch ──► stream
//!
//! station of a rank, in its device memory, mapped by the others
//! ┌─────────────────────────────┬───────────────────┬──────────────┬─────────────────┬──────────────┐
//! │ records: what peers signal  │ state: how often  │ cards: small │ maps: where the │ book: memory │
//! │ [peer][flag][block]         │ [peer][block]     │ messages     │ peers' memory is│ of this rank │
//! └─────────────────────────────┴───────────────────┴──────────────┴─────────────────┴──────────────┘
//! ```
//!
//! Ranks that do not map each other's memory have another kind of launch, and the host moves it: `staged`.
//!
//! A launch waits for its peers' launches inside the kernel: nothing on the host waits, so calls go in
//! stream order, and a captured graph can be replayed (all counters are in device memory).
//!
//! *Invariants:* blocks of all launches at work on a GPU are few enough to run at once, or waiting kernels would keep
//! out those they wait for (`seats`); every wait in a kernel looks at the abort word.

mod buffer;
mod export;
mod gpu;
mod kernels;
mod messages;
mod near;
mod order;
mod program;
mod rank;
mod recent;
mod seats;
mod share;
mod staged;
mod station;
mod tail;
mod turn;
mod watch;
mod work;

pub use buffer::{Buffer, DeviceStream};
pub(crate) use gpu::DirectMemory;
pub use gpu::{Gpu, Memory, Stream, memory_of};
pub(crate) use rank::{DeviceRank, Setup, Stop};
pub(crate) use staged::{Alarm, Channel, MessagePiece, StagedRank, StagedSetup};
pub(crate) use work::Work;

use crate::error::{Error, ErrorKind};
use crate::ffi::FfiError;
use crate::ffi::nvrtc::CompileError;

/// Why something on a GPU cannot be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Fault {
    /// A library is missing.
    #[error(transparent)]
    Library(#[from] FfiError),
    /// A call of the driver failed.
    #[error("{call} failed: {name}{}", hint(.call, .name))]
    Call {
        /// Which, in words.
        call: &'static str,
        /// The driver's name of the error.
        name: String,
    },
    /// A kernel cannot be compiled.
    #[error("cannot make a kernel: {0}")]
    Compile(#[from] CompileError),
    /// Something else.
    #[error("{0}")]
    Other(String),
}

fn hint(_call: &str, name: &str) -> &'static str {
    if name.contains("OUT_OF_MEMORY") {
        "; the GPU has no memory left"
    } else if name.contains("NO_BINARY_FOR_GPU") || name.contains("INVALID_PTX") {
        "; the kernel cache may be of another GPU: remove the folder kernels in ringway's cache"
    } else {
        ""
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::new(ErrorKind::Device, fault.to_string())
    }
}
