//! The one public error.
//!
//! Every error says the exact cause first, then what to look at or change. [`ErrorKind`] maps one
//! to one onto `ncclResult_t`. An error that broke a communicator carries the ranks at fault and
//! the operation it happened in; it is latched, so that every later call, on every rank,
//! returns the same first cause.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::types::Rank;

/// The result of ringway's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of error it is: the codes of `ncclResult_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
#[repr(u8)]
pub enum ErrorKind {
    /// A GPU's driver refused something (`ncclUnhandledCudaError`).
    Device = 1,
    /// The operating system refused something (`ncclSystemError`).
    System = 2,
    /// A broken invariant inside ringway (`ncclInternalError`).
    Internal = 3,
    /// An argument is out of its range (`ncclInvalidArgument`).
    InvalidArgument = 4,
    /// The calls do not fit together: across ranks, or in this order (`ncclInvalidUsage`).
    InvalidUsage = 5,
    /// Another rank died, or the network to it broke (`ncclRemoteError`).
    Remote = 6,
    /// A deadline passed (`ncclTimeout`).
    Timeout = 8,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Device,
        Self::System,
        Self::Internal,
        Self::InvalidArgument,
        Self::InvalidUsage,
        Self::Remote,
        Self::Timeout,
    ];

    /// A word for it, as metrics name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::System => "system",
            Self::Internal => "internal",
            Self::InvalidArgument => "invalid_argument",
            Self::InvalidUsage => "invalid_usage",
            Self::Remote => "remote",
            Self::Timeout => "timeout",
        }
    }
}

/// A rank as an operator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RankIdentity {
    /// Rank in the communicator.
    pub rank: Rank,
    /// Host name.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
}

impl fmt::Display for RankIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// An operation of a communicator, as messages name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OperationName {
    /// Position in the communicator's sequence of operations, from 0.
    pub sequence: u64,
    /// What it is, with its size: `all_reduce of 262144 float (1048576 bytes)`.
    pub call: String,
}

impl fmt::Display for OperationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {} ({})", self.sequence, self.call)
    }
}

/// The error of every public function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    culprits: Vec<RankIdentity>,
    operation: Option<OperationName>,
}

impl Error {
    /// An error with its message; `culprits` and `operation` can be added.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), culprits: Vec::new(), operation: None }
    }

    /// The operating system refused `what`.
    #[must_use]
    pub fn system(what: impl fmt::Display, cause: impl fmt::Display) -> Self {
        Self::new(ErrorKind::System, format!("{what}: {cause}"))
    }

    /// An argument is wrong.
    #[must_use]
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// Calls do not fit together.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidUsage, message)
    }

    /// A broken invariant of ringway's own.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Names the ranks at fault.
    #[must_use]
    pub fn with_culprits(mut self, culprits: Vec<RankIdentity>) -> Self {
        self.culprits = culprits;
        self
    }

    /// Names the operation it happened in.
    #[must_use]
    pub fn with_operation(mut self, operation: OperationName) -> Self {
        self.operation = Some(operation);
        self
    }

    /// What kind of error it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The ranks at fault; empty when no rank is.
    #[must_use]
    pub fn culprits(&self) -> &[RankIdentity] {
        &self.culprits
    }

    /// The operation it happened in.
    #[must_use]
    pub fn operation(&self) -> Option<&OperationName> {
        self.operation.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
