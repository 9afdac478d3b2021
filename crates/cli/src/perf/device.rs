//! A rank's GPU memory in a measurement: calls are enqueued on it, and results copied back.

use ringway::{Communicator, DeviceQueue, Place};
use ringway_plan::types::Collective;

use super::check::Case;
use super::ranks::Call;

/// The two buffers of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Input,
    Output,
}

/// Buffers on a GPU, and the stream of their calls.
#[derive(Debug)]
pub(crate) struct Device<'a> {
    queue: DeviceQueue<'a>,
    skew: usize,
}

impl<'a> Device<'a> {
    /// Buffers of so many bytes, `skew` bytes past an aligned address. All ranks call it; when one fails
    /// it must abort the communicator.
    pub(crate) fn new(
        comm: &'a Communicator,
        (input, output): (usize, usize),
        skew: usize,
    ) -> anyhow::Result<Self> {
        let queue = DeviceQueue::new(comm, &[input + skew, output + skew])?;
        Ok(Self { queue, skew })
    }

    fn place(&self, side: Side) -> Place {
        Place { area: side as usize, offset: self.skew }
    }

    /// Copies to the device.
    pub(crate) fn write(&self, side: Side, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.queue.write(self.place(side), bytes)?)
    }

    /// Copies from the device what the calls so far have left there.
    pub(crate) fn read(&self, side: Side, bytes: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.queue.read(self.place(side), bytes)?)
    }

    /// Enqueues a call.
    pub(crate) fn call(&self, case: &Case, call: &Call, in_place: bool) -> anyhow::Result<()> {
        let (input, output) = (self.place(Side::Input), self.place(Side::Output));
        // Without a form in place, what is there is copied aside first.
        let copied = matches!(case.collective, Collective::SendRecv | Collective::AllToAll);
        if in_place && copied {
            self.copy(case.layout.table_bytes(), case.rank)?;
        }
        match case.collective {
            Collective::SendRecv => {
                let (to, from) = ((case.next(), input), (case.previous(), output));
                self.queue.send_recv(case.layout.table_bytes(), to, from)?;
            }
            _ if in_place && !copied && case.collective != Collective::Barrier => {
                self.call_in_place(&call.of_library())?;
            }
            _ => self.queue.collective(&call.of_library(), input, output)?,
        }
        Ok(())
    }

    /// Enqueues a message from the output to another rank.
    pub(crate) fn send(&self, bytes: usize, to: u32) -> anyhow::Result<()> {
        Ok(self.queue.send(bytes, to, self.place(Side::Output))?)
    }

    /// Enqueues the receiving of one into the output.
    pub(crate) fn receive(&self, bytes: usize, from: u32) -> anyhow::Result<()> {
        Ok(self.queue.recv(bytes, from, self.place(Side::Output))?)
    }

    /// Enqueues a collective in the output.
    pub(crate) fn call_in_place(&self, call: &ringway::Call) -> anyhow::Result<()> {
        Ok(self.queue.collective_in_place(call, self.place(Side::Output))?)
    }

    /// Enqueues a copy from the output to the input, on this rank's own GPU.
    pub(crate) fn copy(&self, bytes: usize, rank: u32) -> anyhow::Result<()> {
        let (from, to) = (self.place(Side::Output), self.place(Side::Input));
        Ok(self.queue.send_recv(bytes, (rank, from), (rank, to))?)
    }

    /// Waits until all calls are done.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        Ok(self.queue.finish()?)
    }
}

/// Ends a measurement on GPU memory: when it is over on all ranks, or has failed on one and all know. Only then may
/// its buffers go. Every rank calls it.
pub(crate) fn over<T>(comm: &Communicator, measured: anyhow::Result<T>) -> anyhow::Result<T> {
    let measured = measured.and_then(|value| Ok(comm.barrier().map(|()| value)?));
    if let Err(error) = &measured {
        comm.abort(&format!("its measurement ended: {error:#}"));
    }
    measured
}
