#![allow(unsafe_code, reason = "takes buffers by address, for callers in other languages")]
//! Calls whose buffers are given by address: what a C program hands over.
//!
//! Nothing is known of such buffers but what the caller promises. Where input and output coincide as
//! NCCL's convention says, the call is in place; where they overlap in another way it is refused.

use super::Request;
use super::engine::MessagePart;
use super::group::Group;
use crate::call::Call;
use crate::error::{Error, Result};
use crate::plan::types::{Level, Rank};
use crate::transport::Area;

impl Group<'_> {
    /// Adds a collective, in place by NCCL's convention where the two addresses say so.
    ///
    /// # Errors
    /// The call cannot be made, an address is null, or the buffers overlap in part.
    ///
    /// # Safety
    /// Until the group has run, `input` can be read and `output` written for as many bytes as the
    /// call's [`input_bytes`](Call::input_bytes) and [`output_bytes`](Call::output_bytes) say, and
    /// nobody else touches them.
    pub unsafe fn call_raw(
        &mut self,
        call: &Call,
        input: *const u8,
        output: *mut u8,
    ) -> Result<()> {
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        let mut input = Area { address: input.cast_mut(), bytes: call.input_bytes(rank, size)? };
        let output = Area { address: output, bytes: call.output_bytes(rank, size)? };
        for (what, area) in [("input", input), ("output", output)] {
            if area.bytes > 0 && area.address.is_null() {
                return Err(Error::argument(format!("{what} of {} is NULL", call.collective)));
            }
        }
        if overlap(input, output) && !self.is_in_place(call, input, output)? {
            if input.address != output.address {
                return Err(Error::argument(format!(
                    "input and output of {} overlap, but are not in place: input at {:p}, output at {:p}",
                    call.collective, input.address, output.address
                )));
            }
            // SAFETY: the caller promises that the input can be read.
            let copy = unsafe { std::slice::from_raw_parts(input.address, input.bytes) }.to_vec();
            input.address = copy.as_ptr().cast_mut();
            self.copies.push(copy);
        }
        self.requests.push(Request { call: call.clone(), input, output });
        Ok(())
    }

    /// Adds a message of `bytes` bytes to `to`.
    ///
    /// # Errors
    /// The rank does not exist, or the address is null.
    ///
    /// # Safety
    /// Until the group has run, `buffer` can be read and nobody writes it.
    pub unsafe fn send_raw(&mut self, buffer: *const u8, bytes: usize, to: Rank) -> Result<()> {
        self.message(Area { address: buffer.cast_mut(), bytes }, to, true)
    }

    /// Adds a message of `bytes` bytes from `from`.
    ///
    /// # Errors
    /// The rank does not exist, or the address is null.
    ///
    /// # Safety
    /// Until the group has run, `buffer` can be written and nobody else touches it.
    pub unsafe fn recv_raw(&mut self, buffer: *mut u8, bytes: usize, from: Rank) -> Result<()> {
        self.message(Area { address: buffer, bytes }, from, false)
    }

    fn message(&mut self, area: Area, peer: Rank, sends: bool) -> Result<()> {
        self.check_peer(peer)?;
        if area.bytes > 0 && area.address.is_null() {
            let what = if sends { "send" } else { "receive" };
            return Err(Error::argument(format!("the buffer of a {what} is NULL")));
        }
        self.messages.push(MessagePart { peer, area, sends });
        Ok(())
    }

    /// Whether input and output lie as NCCL's convention says.
    fn is_in_place(&self, call: &Call, input: Area, output: Area) -> Result<bool> {
        let problem = call.problem(self.communicator.size(), Level::Run)?;
        let bytes = |values: u64| usize::try_from(values).unwrap_or(usize::MAX);
        let size = call.data_type.size();
        Ok(problem.in_place(self.communicator.rank()).is_some_and(|(into, out)| {
            let input = input.address.addr().checked_add(bytes(into).saturating_mul(size));
            input.is_some_and(|at| {
                output.address.addr().checked_add(bytes(out).saturating_mul(size)) == Some(at)
            })
        }))
    }
}

fn overlap(one: Area, other: Area) -> bool {
    let end = |area: Area| area.address.addr().saturating_add(area.bytes);
    one.bytes > 0
        && other.bytes > 0
        && one.address.addr() < end(other)
        && other.address.addr() < end(one)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::call::Call;
    use crate::error::ErrorKind;
    use crate::plan::types::{Collective, DataType};
    use crate::testing::world;

    fn call(collective: Collective, count: u64) -> Call {
        Call::new(collective, DataType::U8, count)
    }

    #[test]
    fn buffers_that_coincide_are_in_place() {
        world(3, |comm| {
            let rank = u8::try_from(comm.rank()).unwrap();
            let mut sums = [rank; 5];
            let mut all = [rank; 3];
            let mut swapped = [10 * rank, 10 * rank + 1, 10 * rank + 2];
            let mut group = comm.group();
            let at = sums.as_mut_ptr();
            // SAFETY: all buffers are local and live until the group has run.
            unsafe { group.call_raw(&call(Collective::AllReduce, 5), at, at) }.unwrap();
            let at = all.as_mut_ptr();
            let mine = at.wrapping_add(usize::from(rank));
            // SAFETY: as above.
            unsafe { group.call_raw(&call(Collective::AllGather, 1), mine, at) }.unwrap();
            let at = swapped.as_mut_ptr();
            // SAFETY: as above.
            unsafe { group.call_raw(&call(Collective::AllToAll, 1), at, at) }.unwrap();
            group.run().unwrap();
            assert_eq!(sums, [3; 5]);
            assert_eq!(all, [0, 1, 2]);
            assert_eq!(swapped, [rank, 10 + rank, 20 + rank]);
        });
    }

    #[test]
    fn what_cannot_be_is_refused() {
        world(2, |comm| {
            let mut buffer = [0_u8; 8];
            let at = buffer.as_mut_ptr();
            let mut group = comm.group();
            // SAFETY: the buffer is local, and nothing is run.
            let shifted =
                unsafe { group.call_raw(&call(Collective::AllReduce, 4), at.wrapping_add(1), at) };
            let error = shifted.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("overlap"), "{error}");
            let null = std::ptr::null();
            // SAFETY: as above.
            let none = unsafe { group.call_raw(&call(Collective::AllReduce, 4), null, at) };
            assert!(none.unwrap_err().to_string().contains("input of all_reduce is NULL"));
            // SAFETY: as above.
            let far = unsafe { group.send_raw(at, 1, 7) };
            assert!(far.unwrap_err().to_string().contains("rank 7 does not exist"));
        });
    }

    #[test]
    fn messages_go_by_address() {
        world(2, |comm| {
            let (mine, mut theirs) = ([comm.rank(); 4], [9_u32; 4]);
            let other = 1 - comm.rank();
            let mut group = comm.group();
            // SAFETY: both buffers are local and live until the group has run.
            unsafe { group.send_raw(mine.as_ptr().cast(), 16, other) }.unwrap();
            // SAFETY: as above.
            unsafe { group.recv_raw(theirs.as_mut_ptr().cast(), 16, other) }.unwrap();
            group.run().unwrap();
            assert_eq!(theirs, [other; 4]);
        });
    }
}
