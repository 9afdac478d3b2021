//! The memory that the calls of a search work on: the host's, or that of the rank's GPU.
//!
//! *Invariant*: a call on GPU memory is over when its stream has come past it, so times end after [`Area::finish`].

use ringway::Communicator;

use super::super::args::Memory;
use super::super::device::Device;
use super::super::memory::Buffer;

/// Memory of one communicator's calls.
#[derive(Debug)]
pub(crate) enum Area<'a> {
    Host { comm: &'a Communicator, buffer: &'a mut Buffer },
    Gpu(Device<'a>),
}

impl<'a> Area<'a> {
    /// Host memory for so many bytes of messages; none where they are in GPU memory.
    pub(crate) fn buffer(memory: Memory, bytes: usize) -> Buffer {
        let mut buffer = Buffer::new(if memory == Memory::Host { bytes } else { 0 }, 0);
        // Sums of zeros stay zeros, however often they are made.
        buffer.first(bytes).fill(0);
        buffer
    }

    /// `buffer`, or so many bytes of zeros in the memory of the communicator's GPU.
    pub(crate) fn new(
        comm: &'a Communicator,
        memory: Memory,
        bytes: usize,
        buffer: &'a mut Buffer,
    ) -> anyhow::Result<Self> {
        Ok(match memory {
            Memory::Host => Self::Host { comm, buffer },
            Memory::Cuda => Self::Gpu(Device::new(comm, (0, bytes), 0)?),
        })
    }

    /// Sends its first bytes.
    pub(crate) fn send(&mut self, bytes: usize, to: u32) -> anyhow::Result<()> {
        match self {
            Self::Host { comm, buffer } => Ok(comm.send(buffer.first(bytes), to)?),
            Self::Gpu(device) => device.send(bytes, to),
        }
    }

    /// Receives into them.
    pub(crate) fn receive(&mut self, bytes: usize, from: u32) -> anyhow::Result<()> {
        match self {
            Self::Host { comm, buffer } => Ok(comm.recv(buffer.first(bytes), from)?),
            Self::Gpu(device) => device.receive(bytes, from),
        }
    }

    /// A collective in them.
    pub(crate) fn call(&mut self, call: &ringway::Call, bytes: usize) -> anyhow::Result<()> {
        match self {
            Self::Host { comm, buffer } => Ok(comm.call_in_place(call, buffer.first(bytes))?),
            Self::Gpu(device) => device.call_in_place(call),
        }
    }

    /// Waits for what is under way: calls on host memory are over when they return.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        match self {
            Self::Host { .. } => Ok(()),
            Self::Gpu(device) => device.finish(),
        }
    }
}
