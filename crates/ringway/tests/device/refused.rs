#![allow(unsafe_code, reason = "kernels use addresses of device memory")]
//! Addresses and streams that are not as they should be: what nobody uses means nothing, and the rest is refused before
//! anything is launched.

use std::ffi::c_void;

use ringway::device::{Buffer, DeviceStream};
use ringway::testing::world_with;
use ringway::{Call, Collective, Communicator, DataType, DeviceWork, Error};

use crate::graph::OwnStream;
use crate::staged;
use crate::world::{config, patience};

/// Values of a call: more than cards have.
const COUNT: usize = 300_000;
const BYTES: usize = COUNT * 4;

/// A rank's stream, and memory for four buffers of a call.
struct Side<'a> {
    comm: &'a Communicator,
    stream: DeviceStream,
    memory: Buffer,
}

impl<'a> Side<'a> {
    fn new(comm: &'a Communicator) -> Self {
        if comm.gpu().is_none() {
            comm.attach_gpu(None).unwrap();
        }
        let gpu = comm.gpu().expect("a GPU");
        let (stream, memory) =
            (DeviceStream::new(&gpu).unwrap(), Buffer::new(&gpu, 4 * BYTES).unwrap());
        memory.write(0, &(comm.rank() + 1).to_le_bytes().repeat(4 * COUNT)).unwrap();
        // All have their memory before one launches.
        comm.barrier().unwrap();
        Self { comm, stream, memory }
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.memory.address().wrapping_byte_add(offset)
    }

    fn enqueue(&self, call: &Call, input: *const c_void, output: *mut c_void) -> Result<(), Error> {
        let work = DeviceWork::Collective { call: call.clone(), input, output, scalar: None };
        // SAFETY: what a rank uses is inside of the memory, or refused; the stream is waited for.
        unsafe { self.comm.enqueue(&[self.stream.stream()], &[work]) }
    }

    /// Waits, and says what is in the memory.
    fn wait(&self, offset: usize) -> Vec<u32> {
        self.stream.synchronize().unwrap();
        self.comm.check().unwrap();
        let mut found = vec![0; BYTES];
        self.memory.read(offset, &mut found).unwrap();
        let words = found.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        words.collect()
    }
}

/// Two ranks, of which none waits for ever.
fn world(body: impl Fn(&Communicator) + Sync) {
    let Some(mut config) = config() else { return };
    config.timeout = patience(20);
    world_with(2, &config, body);
}

/// The same for ranks that map each other's memory, and for such that do not.
fn worlds(body: fn(&Communicator)) {
    world(body);
    staged::hosts(&[0, 1], &[], body);
}

/// Programs hand over what they have, where a rank has no use for it.
#[test]
fn what_a_rank_does_not_use_may_be_anywhere() {
    worlds(|comm| {
        let side = Side::new(comm);
        let nowhere = std::ptr::without_provenance_mut(usize::MAX - 0xfff);
        let is_root = comm.rank() == 0;
        let sum = Call::new(Collective::Reduce, DataType::U32, COUNT as u64);
        let output = if is_root { side.at(BYTES) } else { nowhere };
        side.enqueue(&sum, side.at(0), output).unwrap();
        let found = side.wait(BYTES);
        assert!(found.iter().all(|word| *word == if is_root { 3 } else { 2 }), "reduce");
        let broadcast = Call::new(Collective::Broadcast, DataType::U32, COUNT as u64);
        let input = if is_root { side.at(0) } else { nowhere };
        side.enqueue(&broadcast, input, side.at(BYTES)).unwrap();
        assert!(side.wait(BYTES).iter().all(|word| *word == 1), "broadcast");
        let nothing = Call::new(Collective::AllReduce, DataType::U32, 0);
        side.enqueue(&nothing, nowhere, nowhere).unwrap();
        let (peer, address) = (1 - comm.rank(), nowhere);
        let send = DeviceWork::Send { peer, address, bytes: 0 };
        let take = DeviceWork::Receive { peer, address, bytes: 0 };
        // SAFETY: of nothing, nothing is used.
        unsafe { comm.enqueue(&[side.stream.stream()], &[send, take]) }.unwrap();
        side.wait(0);
        comm.barrier().unwrap();
    });
}

#[test]
fn a_call_without_a_stream_is_refused() {
    world(|comm| {
        let side = Side::new(comm);
        let (input, output) = (side.at(0).cast_const(), side.at(BYTES));
        let call = Call::new(Collective::AllReduce, DataType::U32, COUNT as u64);
        let work = [DeviceWork::Collective { call: call.clone(), input, output, scalar: None }];
        // SAFETY: the memory is long enough, and lives until the stream was waited for.
        let error = unsafe { comm.enqueue(&[], &work) }.unwrap_err().to_string();
        assert!(error.contains("stream"), "{error}");
        side.enqueue(&call, input, output).unwrap();
        assert!(side.wait(BYTES).iter().all(|word| *word == 3));
        comm.barrier().unwrap();
    });
}

/// A kernel that uses them would end the GPU's context, and with it all that the process has there.
#[test]
fn addresses_that_no_kernel_can_use_are_refused() {
    world(|comm| {
        let side = Side::new(comm);
        let sum = |count: usize| Call::new(Collective::AllReduce, DataType::U32, count as u64);
        let (from, to, null) = (side.at(0), side.at(2 * BYTES), std::ptr::null_mut());
        for (input, output, expected) in [
            (null, to, "input of all_reduce is NULL"),
            (from, null, "output of all_reduce is NULL"),
            (from.wrapping_byte_add(2), to, "aligned"),
            (from, to.wrapping_byte_add(1), "aligned"),
        ] {
            let error = side.enqueue(&sum(COUNT), input, output).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let (peer, address, bytes) = (1 - comm.rank(), null, 8);
        let send = DeviceWork::Send { peer, address: address.cast_const(), bytes };
        for message in [send, DeviceWork::Receive { peer, address, bytes }] {
            // SAFETY: nothing is enqueued.
            let error = unsafe { comm.enqueue(&[side.stream.stream()], &[message]) }.unwrap_err();
            assert!(error.to_string().contains("8 bytes is NULL"), "{error}");
        }
        side.enqueue(&sum(COUNT), from, to).unwrap();
        assert!(side.wait(2 * BYTES).iter().all(|word| *word == 3));
        comm.barrier().unwrap();
    });
}

/// In place is as NCCL has it; what overlaps otherwise would be written before others have read it.
#[test]
fn buffers_that_overlap_are_in_place_or_refused() {
    worlds(|comm| {
        let side = Side::new(comm);
        let (rank, half) = (comm.rank() as usize, COUNT / 2);
        let of = |collective| Call::new(collective, DataType::U32, half as u64);
        let block = rank * half * 4;
        for (collective, input, output) in [
            // At the other rank's block.
            (Collective::AllGather, BYTES / 2 - block, 0),
            (Collective::ReduceScatter, 0, BYTES / 2 - block),
            (Collective::AllReduce, 0, 4),
            (Collective::AllReduce, BYTES / 2 - 4, 0),
            (Collective::AllToAll, 0, BYTES / 2),
        ] {
            let call = of(collective);
            let error = side.enqueue(&call, side.at(input), side.at(output)).unwrap_err();
            assert!(error.to_string().contains("overlap"), "{error}");
        }
        side.enqueue(&of(Collective::AllGather), side.at(block), side.at(0)).unwrap();
        let gathered = side.wait(0);
        let is_right = |(at, word): (usize, &u32)| *word as usize == at / half + 1;
        assert!(gathered.iter().enumerate().all(is_right));
        // One behind the other, without a gap.
        side.enqueue(&of(Collective::AllReduce), side.at(0), side.at(BYTES / 2)).unwrap();
        assert!(side.wait(BYTES / 2)[..half].iter().all(|word| *word == 2));
        comm.barrier().unwrap();
    });
}

/// What is refused of a group is refused before anything of it is launched: the others make the next call.
#[test]
fn of_a_group_with_a_wrong_call_nothing_is_done() {
    worlds(|comm| {
        let side = Side::new(comm);
        let (input, output) = (side.at(0).cast_const(), side.at(BYTES));
        let rank = comm.rank();
        let sum = |count: u64| Call::new(Collective::AllReduce, DataType::U32, count);
        let collective = |call: Call, output: *mut c_void| DeviceWork::Collective {
            call,
            input,
            output,
            scalar: None,
        };
        let nowhere = collective(sum(10), std::ptr::null_mut());
        let rootless = collective(Call::new(Collective::Reduce, DataType::U32, 10).root(9), output);
        let send = DeviceWork::Send { peer: rank, address: input, bytes: 8 };
        let take = DeviceWork::Receive { peer: rank, address: output, bytes: 4 };
        let over = collective(sum(10), input.cast_mut().wrapping_byte_add(4));
        let wrong = [vec![rootless], vec![send, take], vec![nowhere], vec![over]];
        for (round, wrong) in (0..).zip(wrong) {
            let mut group =
                vec![collective(sum(10), output), collective(sum(COUNT as u64), output)];
            group.extend(wrong);
            if rank == 0 {
                // SAFETY: the memory is long enough, and lives until the stream was waited for.
                unsafe { comm.enqueue(&[side.stream.stream()], &group) }.unwrap_err();
            }
            // Another call than the first of the group.
            side.enqueue(&sum(20 + round), input, output).unwrap();
            assert_eq!(side.wait(BYTES)[..20], [3; 20], "round {round}");
        }
        comm.barrier().unwrap();
    });
}

/// What is captured with one stream of a call cannot wait for another that is not.
#[test]
fn streams_of_a_call_are_captured_together_or_not_at_all() {
    world(|comm| {
        let side = Side::new(comm);
        let (own, plain) = (OwnStream::new(), side.stream.stream());
        let (input, output) = (side.at(0).cast_const(), side.at(BYTES));
        let call = Call::new(Collective::AllReduce, DataType::U32, COUNT as u64);
        let work = [DeviceWork::Collective { call: call.clone(), input, output, scalar: None }];
        let graph = own.capture(|| {
            for streams in [[plain, own.stream()], [own.stream(), plain]] {
                // SAFETY: the memory is long enough, and lives until the streams were waited for.
                let error = unsafe { comm.enqueue(&streams, &work) }.unwrap_err().to_string();
                assert!(error.contains("captured"), "{error}");
            }
            // SAFETY: as above.
            unsafe { comm.enqueue(&[own.stream()], &work) }.unwrap();
        });
        side.enqueue(&call, input, output).unwrap();
        assert!(side.wait(BYTES).iter().all(|word| *word == 3));
        comm.barrier().unwrap();
        graph.replay(2);
        assert!(side.wait(BYTES).iter().all(|word| *word == 3));
        comm.barrier().unwrap();
    });
}

/// A program that captures forbids other threads what could wait for its stream, unless they say that it does not.
#[test]
fn a_communicator_ends_while_another_thread_captures() {
    const ROUNDS: usize = 3;
    world(|comm| {
        let side = Side::new(comm);
        // One captures at a time: what the other frees is the graph's end where it is not told apart.
        for round in 0..ROUNDS {
            let other = comm.dup().unwrap();
            other.attach_gpu(None).unwrap();
            let spare = Buffer::new(&comm.gpu().unwrap(), BYTES).unwrap();
            let capturing = usize::try_from(comm.rank()).unwrap() == round % 2;
            if capturing {
                let own = OwnStream::new();
                let call = Call::new(Collective::AllReduce, DataType::U32, COUNT as u64);
                let (input, output) = (side.at(0).cast_const(), side.at(BYTES));
                let work = [DeviceWork::Collective { call, input, output, scalar: None }];
                drop((other, spare));
                let _graph = own.capture_for_all(|| {
                    comm.barrier().unwrap();
                    // SAFETY: it is not replayed.
                    unsafe { comm.enqueue(&[own.stream()], &work) }.unwrap();
                    comm.barrier().unwrap();
                });
            } else {
                comm.barrier().unwrap();
                drop((other, spare));
                comm.barrier().unwrap();
            }
            comm.barrier().unwrap();
        }
    });
}
