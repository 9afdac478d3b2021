//! One operation as a program asked for it, checked as far as this rank alone can.

use std::ffi::c_int;
use std::sync::PoisonError;

use ringway::{Call, Collective, Error, Result};

use crate::comm::Comm;
use crate::operator::Factor;
use crate::types::data_type;

/// An operation; its buffers are addresses in whatever memory.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    /// The stream it is ordered by; means nothing to host memory.
    pub(crate) stream: usize,
}

/// A buffer of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) address: usize,
    /// Whether this rank has bytes there; what it does not use may be anywhere.
    pub(crate) is_used: bool,
}

/// What an operation is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A collective.
    Collective { call: Call, factor: Option<Factor>, input: Buffer, output: Buffer },
    /// A message to a rank.
    Send { buffer: usize, bytes: usize, peer: u32 },
    /// A message from a rank.
    Receive { buffer: usize, bytes: usize, peer: u32 },
}

/// A collective as C says it; reduction and root are none where they do not apply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    pub(crate) collective: Collective,
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) count: usize,
    pub(crate) data_type: c_int,
    pub(crate) op: Option<c_int>,
    pub(crate) root: Option<c_int>,
    pub(crate) stream: usize,
}

impl Operation {
    /// A collective on `comm`.
    pub(crate) fn collective(comm: &Comm, given: Arguments) -> Result<Self> {
        let data_type = data_type(given.data_type)?;
        let mut call = Call::new(given.collective, data_type, given.count as u64);
        let mut factor = None;
        if let Some(number) = given.op {
            let operators = comm.operators.lock().unwrap_or_else(PoisonError::into_inner);
            let (op, with) = operators.find(number, data_type)?;
            (call, factor) = (call.op(op), with);
        }
        if let Some(root) = given.root {
            call = call.root(rank_of(comm, root, "root")?);
        }
        let (rank, size) = (comm.rank, comm.size);
        let buffer = |name: &str, bytes: usize, address: usize| match bytes > 0 {
            true if address == 0 => {
                Err(Error::argument(format!("{name} of {} is NULL", call.collective)))
            }
            is_used => Ok(Buffer { address, is_used }),
        };
        let input = buffer("sendbuff", call.input_bytes(rank, size)?, given.input)?;
        let output = buffer("recvbuff", call.output_bytes(rank, size)?, given.output)?;
        let kind = Kind::Collective { call, factor, input, output };
        Ok(Self { kind, stream: given.stream })
    }

    /// A message to or from a rank.
    pub(crate) fn message(
        comm: &Comm,
        (buffer, count): (usize, usize),
        number: c_int,
        (peer, sends): (c_int, bool),
        stream: usize,
    ) -> Result<Self> {
        let data_type = data_type(number)?;
        let peer = rank_of(comm, peer, "peer")?;
        let bytes = count
            .checked_mul(data_type.size())
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| {
                Error::argument(format!("{count} {data_type} do not fit the address space"))
            })?;
        if bytes > 0 && buffer == 0 {
            let name = if sends { "sendbuff" } else { "recvbuff" };
            return Err(Error::argument(format!("{name} is NULL")));
        }
        let kind = if sends {
            Kind::Send { buffer, bytes, peer }
        } else {
            Kind::Receive { buffer, bytes, peer }
        };
        Ok(Self { kind, stream })
    }

    /// Its buffers that have an address.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = Buffer> {
        let (first, second) = match self.kind {
            Kind::Collective { input, output, .. } => (input, Some(output)),
            Kind::Send { buffer, bytes, .. } | Kind::Receive { buffer, bytes, .. } => {
                (Buffer { address: buffer, is_used: bytes > 0 }, None)
            }
        };
        [Some(first), second].into_iter().flatten().filter(|buffer| buffer.address != 0)
    }
}

fn rank_of(comm: &Comm, number: c_int, name: &str) -> Result<u32> {
    u32::try_from(number).ok().filter(|rank| *rank < comm.size).ok_or_else(|| {
        Error::argument(format!("{name} {number} does not exist; ranks are 0 to {}", comm.size - 1))
    })
}
