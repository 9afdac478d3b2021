//! A stream and the device memory that its calls work on, for whoever has no library of its own for
//! them: measurements, examples.
//!
//! *Invariant:* a queue owns its memory and gives it back only when its stream has come past every call,
//! so a call asks no promise of whoever makes it.

#![allow(unsafe_code, reason = "kernels use addresses of the queue's own memory")]

use std::ffi::c_void;

use super::{Communicator, DeviceWork};
use crate::call::Call;
use crate::device::{Buffer, DeviceStream};
use crate::error::{Error, Result};
use crate::plan::types::{Level, Rank};

/// A place in the memory of a [`DeviceQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The area, as [`DeviceQueue::new`] numbers them.
    pub area: usize,
    /// Bytes from its beginning.
    pub offset: usize,
}

/// A stream of a rank's GPU, with areas of its memory.
///
/// Giving GPU memory back waits for all kernels that the process has on the GPU. Where several ranks share
/// a process, all of them drop their queues when nothing is under way: after a barrier, or once the
/// communicator has failed.
#[derive(Debug)]
pub struct DeviceQueue<'a> {
    comm: &'a Communicator,
    stream: DeviceStream,
    areas: Vec<Buffer>,
}

impl<'a> DeviceQueue<'a> {
    /// A stream, and areas of so many bytes each, filled with zeros.
    ///
    /// # Errors
    /// The communicator has no GPU (see [`Communicator::attach_gpu`]), or the GPU no memory left.
    pub fn new(comm: &'a Communicator, areas: &[usize]) -> Result<Self> {
        let gpu = comm.gpu().ok_or_else(|| {
            let why = comm.gpu_refusal();
            let why = why.unwrap_or_else(|| "all ranks call attach_gpu first".to_owned());
            Error::usage(format!("this communicator has no calls on GPU memory: {why}"))
        })?;
        let stream = DeviceStream::new(&gpu)?;
        let areas =
            areas.iter().map(|bytes| Buffer::new(&gpu, *bytes)).collect::<Result<Vec<_>>>()?;
        Ok(Self { comm, stream, areas })
    }

    /// Copies bytes to the device, behind all calls made so far, and waits for it.
    ///
    /// # Errors
    /// There is no such place, a call before failed, or the driver refuses.
    pub fn write(&self, place: Place, bytes: &[u8]) -> Result<()> {
        self.address(place, bytes.len())?;
        self.finish()?;
        self.areas[place.area].write(place.offset, bytes)
    }

    /// Copies bytes from the device, as all calls made so far leave them.
    ///
    /// # Errors
    /// As [`DeviceQueue::write`].
    pub fn read(&self, place: Place, bytes: &mut [u8]) -> Result<()> {
        self.address(place, bytes.len())?;
        self.finish()?;
        self.areas[place.area].read(place.offset, bytes)
    }

    /// Enqueues a collective and returns.
    ///
    /// # Errors
    /// There is no such place, or as [`Communicator::enqueue`].
    pub fn collective(&self, call: &Call, input: Place, output: Place) -> Result<()> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let work = DeviceWork::Collective {
            call: call.clone(),
            input: self.address(input, call.input_bytes(rank, size)?)?,
            output: self.address(output, call.output_bytes(rank, size)?)?,
            scalar: None,
        };
        self.enqueue(&[work])
    }

    /// Enqueues a collective in place, by NCCL's convention: `place` is where the larger buffer is.
    ///
    /// # Errors
    /// The collective has no such form, or as [`DeviceQueue::collective`].
    pub fn collective_in_place(&self, call: &Call, place: Place) -> Result<()> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let problem = call.problem(size, Level::Run)?;
        if !(0..size).any(|any| problem.in_place(any).is_some()) {
            let collective = call.collective;
            return Err(Error::usage(format!("{collective} has no form in place on GPU memory")));
        }
        // Where only the root has both buffers, the others have one, at its beginning.
        let (of_input, of_output) = problem.in_place(rank).unwrap_or((0, 0));
        let after = |values: u64| -> Result<Place> {
            let bytes = usize::try_from(values).ok();
            let bytes = bytes.and_then(|values| values.checked_mul(call.data_type.size()));
            let offset = bytes.and_then(|bytes| bytes.checked_add(place.offset));
            let offset = offset.ok_or_else(|| Error::argument("a block past the address space"))?;
            Ok(Place { offset, ..place })
        };
        let input = after(of_output.saturating_sub(of_input))?;
        self.collective(call, input, after(of_input.saturating_sub(of_output))?)
    }

    /// Enqueues a message to one rank and one from another, of `bytes` each. With oneself it is a copy.
    ///
    /// # Errors
    /// As [`DeviceQueue::collective`].
    pub fn send_recv(
        &self,
        bytes: usize,
        (to, from_here): (Rank, Place),
        (from, to_here): (Rank, Place),
    ) -> Result<()> {
        let send = self.address(from_here, bytes)?;
        let receive = self.address(to_here, bytes)?;
        self.enqueue(&[
            DeviceWork::Send { peer: to, address: send, bytes },
            DeviceWork::Receive { peer: from, address: receive, bytes },
        ])
    }

    /// Enqueues a message to another rank, of `bytes` from a place.
    ///
    /// # Errors
    /// As [`DeviceQueue::collective`].
    pub fn send(&self, bytes: usize, to: Rank, from_here: Place) -> Result<()> {
        let address = self.address(from_here, bytes)?;
        self.enqueue(&[DeviceWork::Send { peer: to, address, bytes }])
    }

    /// Enqueues the receiving of a message from another rank, of `bytes` to a place.
    ///
    /// # Errors
    /// As [`DeviceQueue::collective`].
    pub fn recv(&self, bytes: usize, from: Rank, to_here: Place) -> Result<()> {
        let address = self.address(to_here, bytes)?;
        self.enqueue(&[DeviceWork::Receive { peer: from, address, bytes }])
    }

    /// Waits until all calls are done; tells the error that ended them, if one did.
    ///
    /// # Errors
    /// That of the communicator, or the driver refuses.
    pub fn finish(&self) -> Result<()> {
        self.stream.synchronize()?;
        self.comm.check()
    }

    /// The address of a place where there are so many bytes.
    fn address(&self, place: Place, bytes: usize) -> Result<*mut c_void> {
        let Place { area, offset } = place;
        let Some(buffer) = self.areas.get(area) else {
            let areas = self.areas.len();
            return Err(Error::argument(format!("area {area} of a queue that has {areas}")));
        };
        match offset.checked_add(bytes) {
            Some(end) if end <= buffer.bytes() => Ok(buffer.address().wrapping_byte_add(offset)),
            _ => Err(Error::argument(format!(
                "bytes {offset}+{bytes} of an area of {}",
                buffer.bytes()
            ))),
        }
    }

    fn enqueue(&self, work: &[DeviceWork]) -> Result<()> {
        // SAFETY:
        // * all addresses are of the queue's areas, which have the bytes that the calls need: every
        //   caller took them from `address`;
        // * areas live until the stream was waited for: see `drop`;
        // * nobody else has them: reads and writes wait for the stream first.
        unsafe { self.comm.enqueue(&[self.stream.stream()], work) }
    }
}

impl Drop for DeviceQueue<'_> {
    fn drop(&mut self) {
        // A stream that failed does nothing more.
        let _failed = self.stream.synchronize();
    }
}
