#![allow(unsafe_code, reason = "takes buffers by address, for callers in other languages")]
//! Calls whose buffers are given by address: what a C program hands over.
//!
//! Nothing is known of such buffers but what the caller promises. Where input and output coincide as
//! NCCL's convention says, the call is in place; where they overlap in another way it is refused.

use super::engine::MessagePart;
use super::group::Group;
use super::known::Buffers;
use super::work::Afterwards;
use super::{Communicator, Inner, Request};
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
        let (input, output, meeting) = self.communicator.areas_at(call, input, output)?;
        if meeting == Meeting::Copied {
            self.copied.push(self.requests.len());
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

    /// Copies the inputs that are to be copied: the calls use the copies, as long as they are there.
    pub(super) fn copy_inputs(&mut self) -> Vec<Vec<u8>> {
        let copy = |number: usize| {
            let input = &mut self.requests[number].input;
            // SAFETY: whoever added the call promises that the input can be read until the group has run.
            let copy = unsafe { copy_of(*input) };
            input.address = copy.as_ptr().cast_mut();
            copy
        };
        std::mem::take(&mut self.copied).into_iter().map(copy).collect()
    }

    fn message(&mut self, area: Area, peer: Rank, sends: bool) -> Result<()> {
        self.check_peer(peer)?;
        if area.bytes > 0 && area.address.is_null() {
            let what = if sends { "send" } else { "receive" };
            return Err(Error::argument(format!("the buffer of a {what} is NULL")));
        }
        self.messages.push(MessagePart { peer, area, sends, mark: 0 });
        Ok(())
    }
}

/// How input and output of a call lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    /// Apart, or in place: the call can be made on them as they are.
    Fits,
    /// They begin at the same address, but are not in place: the input is copied first.
    Copied,
}

impl Communicator {
    /// Makes a collective on buffers given by address; in place on `output`, as [`Communicator::call_in_place`], where
    /// `input` is null.
    ///
    /// # Errors
    /// As [`Communicator::call`]; an address is null, or the buffers overlap in part.
    ///
    /// # Safety
    /// Until it returns, `input` can be read and `output` written for as many bytes as the call's
    /// [`input_bytes`](Call::input_bytes) and [`output_bytes`](Call::output_bytes) say (`output` for the more of them where
    /// `input` is null), and nobody else touches them.
    pub unsafe fn call_at(&self, call: &Call, input: *const u8, output: *mut u8) -> Result<()> {
        let (buffers, meeting) = self.buffers_at(call, input, output)?;
        let _turn = self.inner.turn();
        // SAFETY: the caller's promise.
        unsafe { self.inner.call_copied(call, (buffers, meeting), 0) }
    }

    /// Starts a collective on buffers given by address, as [`Communicator::call_at`], behind everything that was called
    /// before, and returns. `done` is told how it ended, in the background thread and before anything that was called
    /// later begins: it must not call the communicator. What it returns runs when that has begun, and may; but it must
    /// not wait there for other background work of this communicator.
    ///
    /// # Errors
    /// The arguments are wrong, or the background thread cannot be started; then `done` is not called.
    ///
    /// # Safety
    /// As [`Communicator::call_at`], until `done` is called.
    pub unsafe fn start_at(
        &self,
        call: &Call,
        input: *const u8,
        output: *mut u8,
        done: impl FnOnce(Result<()>) -> Option<Afterwards> + Send + 'static,
    ) -> Result<()> {
        let buffers = self.buffers_at(call, input, output)?;
        let (call, queued) = (call.clone(), self.inner.recording.now());
        // SAFETY: the caller's promise.
        let job = move |inner: &Inner| unsafe { inner.call_copied(&call, buffers, queued) };
        self.submit(Box::new(job), Box::new(done))
    }

    /// The memory of a call, checked.
    fn buffers_at(
        &self,
        call: &Call,
        input: *const u8,
        output: *mut u8,
    ) -> Result<(Buffers, Meeting)> {
        if !input.is_null() {
            let (input, output, meeting) = self.areas_at(call, input, output)?;
            return Ok((Buffers::Apart(input, output), meeting));
        }
        let (rank, size) = (self.rank(), self.size());
        let bytes = call.input_bytes(rank, size)?.max(call.output_bytes(rank, size)?);
        if bytes > 0 && output.is_null() {
            return Err(Error::argument(format!("the buffer of {} is NULL", call.collective)));
        }
        // Nothing is somewhere, too: slices are made of it.
        let nothing = std::ptr::NonNull::dangling().as_ptr();
        let address = if output.is_null() { nothing } else { output };
        Ok((Buffers::InPlace(Area { address, bytes }), Meeting::Fits))
    }

    fn areas_at(
        &self,
        call: &Call,
        input: *const u8,
        output: *mut u8,
    ) -> Result<(Area, Area, Meeting)> {
        let (rank, size) = (self.rank(), self.size());
        let input = Area { address: input.cast_mut(), bytes: call.input_bytes(rank, size)? };
        let output = Area { address: output, bytes: call.output_bytes(rank, size)? };
        for (what, area) in [("input", input), ("output", output)] {
            if area.bytes > 0 && area.address.is_null() {
                return Err(Error::argument(format!("{what} of {} is NULL", call.collective)));
            }
        }
        if !overlap(input, output) || self.is_in_place(call, input, output)? {
            return Ok((input, output, Meeting::Fits));
        }
        if input.address == output.address {
            return Ok((input, output, Meeting::Copied));
        }
        Err(Error::argument(format!(
            "input and output of {} overlap, but are not in place: input at {:p}, output at {:p}",
            call.collective, input.address, output.address
        )))
    }

    /// Whether input and output lie as NCCL's convention says.
    fn is_in_place(&self, call: &Call, input: Area, output: Area) -> Result<bool> {
        let problem = call.problem(self.size(), Level::Run)?;
        let bytes = |values: u64| usize::try_from(values).unwrap_or(usize::MAX);
        let size = call.data_type.size();
        Ok(problem.in_place(self.rank()).is_some_and(|(into, out)| {
            let input = input.address.addr().checked_add(bytes(into).saturating_mul(size));
            input.is_some_and(|at| {
                output.address.addr().checked_add(bytes(out).saturating_mul(size)) == Some(at)
            })
        }))
    }
}

impl Inner {
    /// Makes a call by whoever has the turn, on a copy of its input where that is wanted.
    ///
    /// # Safety
    /// As [`Communicator::call_at`].
    unsafe fn call_copied(
        &self,
        call: &Call,
        (buffers, meeting): (Buffers, Meeting),
        queued: u64,
    ) -> Result<()> {
        match (buffers, meeting) {
            (Buffers::Apart(input, output), Meeting::Copied) => {
                // SAFETY: the caller promises that the input can be read.
                let copy = unsafe { copy_of(input) };
                let input = Area { address: copy.as_ptr().cast_mut(), bytes: copy.len() };
                self.call_queued(call, Buffers::Apart(input, output), queued)
            }
            _ => self.call_queued(call, buffers, queued),
        }
    }
}

/// A copy of what lies in an area.
///
/// # Safety
/// It can be read, and nobody writes it meanwhile.
unsafe fn copy_of(area: Area) -> Vec<u8> {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(area.address, area.bytes) }.to_vec()
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
    fn work_on_addresses_keeps_its_order_and_says_when_it_is_over() {
        world(2, |comm| {
            let (sender, ended) = std::sync::mpsc::channel();
            let mut sums = [1_u8; 4];
            let mut theirs = [0_u8; 4];
            let at = sums.as_mut_ptr();
            for number in 0..3 {
                let sender = sender.clone();
                let done = move |outcome: crate::Result<()>| {
                    // Time for whoever comes next to come before it, if that could be.
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    sender.send((number, outcome.is_ok())).unwrap();
                    None
                };
                // SAFETY: the buffer is local, and all work on it is awaited below.
                unsafe {
                    let null = std::ptr::null();
                    comm.start_at(&call(Collective::AllReduce, 4), null, at, done).unwrap();
                }
            }
            let other = 1 - comm.rank();
            let mut group = comm.group();
            // SAFETY: as above.
            unsafe { group.send_raw(at, 4, other) }.unwrap();
            // SAFETY: as above.
            unsafe { group.recv_raw(theirs.as_mut_ptr(), 4, other) }.unwrap();
            let again = comm.clone();
            let done = move |outcome: crate::Result<()>| -> Option<crate::Afterwards> {
                sender.send((3, outcome.is_ok())).unwrap();
                let again = move || {
                    again.barrier().unwrap();
                    sender.send((4, true)).unwrap();
                };
                Some(Box::new(again))
            };
            // SAFETY: as above.
            unsafe { group.start(done) }.unwrap();
            comm.barrier().unwrap();
            let mut told: Vec<_> = ended.try_iter().collect();
            assert_eq!(told[..4], [0, 1, 2, 3].map(|n| (n, true)));
            comm.drain();
            told.extend(ended.try_iter());
            assert_eq!(told[4..], [(4, true)]);
            assert_eq!((sums, theirs), ([8; 4], [8; 4]));
        });
    }

    #[test]
    fn a_call_at_one_address_that_is_not_in_place_is_made_on_a_copy() {
        world(2, |comm| {
            let rank = u8::try_from(comm.rank()).unwrap();
            let mut all = [rank + 1, 9];
            let at = all.as_mut_ptr();
            // SAFETY: the buffer is local.
            unsafe { comm.call_at(&call(Collective::AllGather, 1), at, at) }.unwrap();
            assert_eq!(all, [1, 2]);
            let null = std::ptr::null_mut();
            // SAFETY: there is nothing to touch.
            unsafe { comm.call_at(&call(Collective::Barrier, 0), null, null) }.unwrap();
            // SAFETY: as above.
            unsafe { comm.call_at(&call(Collective::AllToAll, 0), null, null) }.unwrap();
            // SAFETY: as above; it is refused.
            let error = unsafe { comm.call_at(&call(Collective::AllGather, 1), null, null) };
            assert!(error.unwrap_err().to_string().contains("is NULL"));
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
