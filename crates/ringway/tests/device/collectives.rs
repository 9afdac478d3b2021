#![allow(unsafe_code, reason = "kernels use addresses of device memory")]
//! Collectives on device memory against the same on host memory: equal to the bit.

use std::sync::Arc;

use ringway::device::{Buffer, DeviceStream, Gpu};
use ringway::plan::problem::{Counts, Problem};
use ringway::plan::types::Level;
use ringway::testing::world_with;
use ringway::{Call, Collective, Communicator, DataType, DeviceQueue, DeviceWork, Place, ReduceOp};

use crate::world::{self, config, is_real, world};

/// Bytes that look like numbers of a type: small whole ones, so that narrow types do not overflow at
/// once, and now and then any bits.
pub(crate) fn values(data_type: DataType, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(count * data_type.size());
    for _ in 0..count {
        let word = next();
        let small = i8::try_from(word % 17).unwrap() - 8;
        let any = word % 11 == 0;
        match data_type {
            DataType::F32 if !any => bytes.extend((f32::from(small) / 4.0).to_le_bytes()),
            DataType::F64 if !any => bytes.extend((f64::from(small) / 4.0).to_le_bytes()),
            DataType::Bf16 if !any => {
                bytes.extend(&(f32::from(small) / 4.0).to_le_bytes()[2..]);
            }
            _ => {
                let word = next().to_le_bytes();
                // No infinities or NaNs: of those only the kind is promised.
                let mut one = word[..data_type.size()].to_vec();
                if data_type.is_float() {
                    let last = one.len() - 1;
                    one[last] &= 0xb3;
                }
                bytes.extend(one);
            }
        }
    }
    bytes
}

/// A rank's stream and memory. Giving memory back waits for all kernels of a GPU, also for those of other
/// ranks that wait for this one: so it is taken once, and kept.
pub(crate) struct Side {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) stream: DeviceStream,
    from: Buffer,
    to: Buffer,
}

const MOST_BYTES: usize = 8 << 20;

impl Side {
    pub(crate) fn of(comm: &Communicator) -> Self {
        comm.attach_gpu(None).unwrap();
        let gpu = comm.gpu().unwrap_or_else(|| panic!("no GPU: {:?}", comm.gpu_refusal()));
        let stream = DeviceStream::new(&gpu).unwrap();
        let buffer = || Buffer::new(&gpu, MOST_BYTES).unwrap();
        Self { stream, from: buffer(), to: buffer(), gpu }
    }

    /// One collective on device memory, `shift` bytes into its buffers. Ranks are threads on one GPU: all prepare, then
    /// all call, as what the driver does for one can wait for kernels of the others, and compute-sanitizer takes memory that
    /// is newer than a launch for none.
    fn run(
        &self,
        comm: &Communicator,
        call: &Call,
        input: &[u8],
        output: usize,
        shift: usize,
    ) -> Vec<u8> {
        let Self { from, to, .. } = self;
        from.write(shift, input).unwrap();
        to.write(shift, &vec![0xa5; output]).unwrap();
        let work = DeviceWork::Collective {
            call: call.clone(),
            input: from.address().wrapping_byte_add(shift),
            output: to.address().wrapping_byte_add(shift),
            scalar: None,
        };
        comm.barrier().unwrap();
        // SAFETY: the buffers have the sizes of the call and live until the stream was waited for.
        unsafe { comm.enqueue(&[self.stream.stream()], &[work]) }.unwrap();
        world::finish(comm, &self.stream);
        comm.check().unwrap();
        let mut bytes = vec![0; output];
        to.read(shift, &mut bytes).unwrap();
        bytes
    }

    /// The same in place, by NCCL's convention.
    fn run_in_place(&self, comm: &Communicator, call: &Call, input: &[u8]) -> Option<Vec<u8>> {
        let (rank, size) = (comm.rank(), comm.size());
        let mut problem = Problem::new(call.collective, size, call.count, call.data_type);
        problem.root = call.root;
        let (at_input, at_output) = problem.in_place(rank)?;
        let bytes = |values: u64| usize::try_from(values).unwrap() * call.data_type.size();
        let (skip_input, skip_output) =
            (bytes(at_output.saturating_sub(at_input)), bytes(at_input.saturating_sub(at_output)));
        let output = call.output_bytes(rank, size).unwrap();
        let buffer = &self.from;
        buffer.write(skip_input, input).unwrap();
        let work = DeviceWork::Collective {
            call: call.clone(),
            input: buffer.address().wrapping_byte_add(skip_input),
            output: buffer.address().wrapping_byte_add(skip_output),
            scalar: None,
        };
        comm.barrier().unwrap();
        // SAFETY: as above.
        unsafe { comm.enqueue(&[self.stream.stream()], &[work]) }.unwrap();
        world::finish(comm, &self.stream);
        let mut result = vec![0; output];
        buffer.read(skip_output, &mut result).unwrap();
        Some(result)
    }
}

pub(crate) fn compare(comm: &Communicator, side: &Side, call: &Call, shift: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    let (input, output) =
        (call.input_bytes(rank, size).unwrap(), call.output_bytes(rank, size).unwrap());
    let seed = u64::from(rank) * 7919 + call.count;
    let data = values(call.data_type, input / call.data_type.size(), seed);
    let mut expected = vec![0; output];
    comm.call(&call.clone().level(Level::Shape), &data, &mut expected).unwrap();
    let found = side.run(comm, call, &data, output, shift);
    let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert!(
        wrong.is_none(),
        "{call:?}, shift {shift}, rank {rank} of {size}: byte {wrong:?} is {:02x?}, on the host {:02x?}",
        found.get(wrong.unwrap()..(wrong.unwrap() + 8).min(output)),
        expected.get(wrong.unwrap()..(wrong.unwrap() + 8).min(output)),
    );
    let found = match side.run_in_place(comm, call, &data) {
        Some(found) => found,
        // Others may have an in-place form: all ranks make a call.
        None => side.run(comm, call, &data, output, 0),
    };
    assert!(found == expected, "{call:?} in place, rank {rank} of {size}");
}

/// Calls that differ in their counts alone.
#[test]
fn counts_for_each_rank_are_taken_for_no_others() {
    world(3, |comm| {
        let (side, rank, size) = (Side::of(comm), comm.rank(), comm.size());
        let lists: [Option<[u64; 3]>; 5] =
            [Some([5, 7, 9]), None, Some([9, 7, 5]), Some([5, 7, 9]), None];
        for counts in lists {
            let mut call = Call::new(Collective::AllGather, DataType::F32, 5);
            call.counts = counts.map(|counts| Counts::PerRank(counts.into()));
            let values = values(DataType::F32, 9, rank.into());
            let data = &values[..call.input_bytes(rank, size).unwrap()];
            let mut expected = vec![0; call.output_bytes(rank, size).unwrap()];
            comm.call(&call, data, &mut expected).unwrap();
            let found = side.run(comm, &call, data, expected.len(), 0);
            assert!(found == expected, "{counts:?}, rank {rank}");
        }
    });
}

const OPS: [ReduceOp; 6] = [
    ReduceOp::Sum,
    ReduceOp::Prod,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Avg,
    ReduceOp::PreMulSum,
];

#[test]
fn every_type_and_operation_has_the_bits_of_the_host() {
    let all = std::env::var_os("RINGWAY_TEST_GPU").is_some();
    for ranks in [2, 3, 4, 8] {
        world(ranks, |comm| {
            let side = Side::of(comm);
            for (number, data_type) in DataType::ALL.into_iter().enumerate() {
                for (other, op) in OPS.into_iter().enumerate() {
                    // A compiler takes a second for each: on the fake every type and every operation with
                    // some number of ranks, on a GPU all with all.
                    if !all && !(number + other + ranks as usize).is_multiple_of(8) {
                        continue;
                    }
                    // One by cards, one by buffers.
                    let most = ringway::plan::mapped::card_bytes(ranks) / data_type.size() as u64;
                    for count in [77, most + 5001] {
                        let mut call = Call::new(Collective::AllReduce, data_type, count).op(op);
                        call.scalar = 0.5 + f64::from(comm.rank());
                        compare(comm, &side, &call, 0);
                    }
                }
            }
        });
    }
}

/// Of few values not every rank has a share to fold, but every rank has a factor.
#[test]
fn ranks_without_a_share_have_a_factor() {
    world(8, |comm| {
        let side = Side::of(comm);
        let mut call = Call::new(Collective::AllReduce, DataType::U32, 77).op(ReduceOp::PreMulSum);
        call.scalar = f64::from(1 << comm.rank());
        let data = 1_u32.to_le_bytes().repeat(77);
        let found = side.run(comm, &call, &data, data.len(), 0);
        assert!(found.chunks(4).all(|word| word == 255_u32.to_le_bytes()), "{found:?}");
        comm.barrier().unwrap();
    });
}

#[test]
fn every_collective_has_the_bytes_of_the_host() {
    for ranks in [1, 2, 3, 5] {
        world(ranks, |comm| {
            let side = Side::of(comm);
            for collective in [
                Collective::AllReduce,
                Collective::AllGather,
                Collective::ReduceScatter,
                Collective::Broadcast,
                Collective::Reduce,
                Collective::Gather,
                Collective::Scatter,
                Collective::AllToAll,
            ] {
                for root in [0, ranks - 1] {
                    for (count, data_type, shift) in [
                        (0, DataType::F32, 0),
                        (1, DataType::F16, 0),
                        (1000, DataType::F32, 4),
                        (333, DataType::I8, 3),
                        (40_000, DataType::Bf16, 0),
                        (70_001, DataType::U8, 1),
                        // More than cards have.
                        (1_100_001, DataType::I8, 1),
                    ] {
                        let call = Call::new(collective, data_type, count).root(root);
                        compare(comm, &side, &call, shift);
                    }
                }
            }
        });
    }
}

#[test]
fn messages_of_a_group_go_all_ways_at_once() {
    for ranks in [2, 3, 9] {
        world(ranks, |comm| {
            let side = Side::of(comm);
            let (rank, size) = (comm.rank(), comm.size());
            // Kept until all are done: see `Side`.
            let mut kept = Vec::new();
            for bytes in [8_usize, 5000, 100_000] {
                let length = |from: u32, to: u32| bytes + (from * 31 + to) as usize;
                let fill = |from: u32, to: u32| u8::try_from((from * 16 + to) % 251).unwrap();
                let buffers: Vec<(Buffer, Buffer)> = (0..size)
                    .map(|peer| {
                        let out = Buffer::new(&side.gpu, length(rank, peer)).unwrap();
                        out.write(0, &vec![fill(rank, peer); length(rank, peer)]).unwrap();
                        (out, Buffer::new(&side.gpu, length(peer, rank)).unwrap())
                    })
                    .collect();
                let mut work = Vec::new();
                for (peer, (out, into)) in (0..size).zip(&buffers) {
                    work.push(DeviceWork::Send {
                        peer,
                        address: out.address(),
                        bytes: out.bytes(),
                    });
                    work.push(DeviceWork::Receive {
                        peer,
                        address: into.address(),
                        bytes: into.bytes(),
                    });
                }
                comm.barrier().unwrap();
                // SAFETY: the buffers live until the stream was waited for.
                unsafe { comm.enqueue(&[side.stream.stream()], &work) }.unwrap();
                world::finish(comm, &side.stream);
                for (peer, (_, into)) in (0..size).zip(&buffers) {
                    let mut found = vec![0; into.bytes()];
                    into.read(0, &mut found).unwrap();
                    assert!(found.iter().all(|byte| *byte == fill(peer, rank)), "from {peer}");
                }
                kept.push(buffers);
            }
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn calls_of_a_group_share_launches() {
    world(3, |comm| {
        let side = Side::of(comm);
        let counts = [5_u64, 300, 70_000, 70_000, 40_000, 3];
        let buffers: Vec<(Buffer, Buffer)> = counts
            .iter()
            .map(|count| {
                let bytes = usize::try_from(*count).unwrap() * 4;
                let one = (comm.rank() + 1).to_le_bytes().repeat(bytes / 4);
                let input = Buffer::new(&side.gpu, bytes).unwrap();
                input.write(0, &one).unwrap();
                (input, Buffer::new(&side.gpu, bytes).unwrap())
            })
            .collect();
        let work: Vec<DeviceWork> = counts
            .iter()
            .zip(&buffers)
            .map(|(count, (input, output))| DeviceWork::Collective {
                call: Call::new(Collective::AllReduce, DataType::U32, *count),
                input: input.address(),
                output: output.address(),
                scalar: None,
            })
            .collect();
        for _ in 0..3 {
            // SAFETY: the buffers live until the stream was waited for.
            unsafe { comm.enqueue(&[side.stream.stream()], &work) }.unwrap();
        }
        world::finish(comm, &side.stream);
        for (_, output) in &buffers {
            let mut found = vec![0; output.bytes()];
            output.read(0, &mut found).unwrap();
            assert!(found.chunks(4).all(|word| word == 6_u32.to_le_bytes()));
        }
        comm.barrier().unwrap();
    });
}

/// A rank that is ahead must not write over what another has yet to read.
#[test]
fn barriers_may_follow_each_other_and_calls() {
    world(3, |comm| {
        comm.attach_gpu(None).unwrap();
        let queue = DeviceQueue::new(comm, &[4000, 4000]).unwrap();
        let [from, to] = [0, 1].map(|area| Place { area, offset: 0 });
        queue.write(from, &(comm.rank() + 1).to_le_bytes().repeat(1000)).unwrap();
        let barrier = Call::new(Collective::Barrier, DataType::U8, 0);
        let sum = |count| Call::new(Collective::AllReduce, DataType::U32, count);
        // Both kernels are loaded, and all have prepared: the driver may wait for kernels at work before it loads one, and
        // those may wait for the calls that the loading thread has yet to make.
        for call in [&barrier, &sum(1000)] {
            queue.collective(call, from, to).unwrap();
            queue.finish().unwrap();
            comm.barrier().unwrap();
        }
        for count in [1000, 3, 999] {
            for _ in 0..50 {
                queue.collective(&barrier, from, to).unwrap();
            }
            let call = sum(count);
            queue.collective(&call, from, to).unwrap();
        }
        let mut found = vec![0; 999 * 4];
        queue.read(to, &mut found).unwrap();
        assert!(found.chunks(4).all(|word| word == 6_u32.to_le_bytes()));
        comm.barrier().unwrap();
    });
}

/// Each call takes what the one before it has written: nothing waits between them, and no launch that begins early may
/// read too early. Threefold, as the sums of three ranks are, no value is lost, and an old one stays wrong to the end.
#[test]
fn calls_take_what_those_before_them_have_written() {
    const RANKS: u32 = 3;
    const COUNTS: [usize; 4] = [400_000, 1 << 16, 1000, 77];
    const EACH: usize = 15;
    let Some(mut config) = config() else { return };
    for overlap in [true, false] {
        config.gpu_overlap = overlap;
        world_with(RANKS, &config, |comm| {
            comm.attach_gpu(None).unwrap();
            let path = comm.gpu_path().unwrap();
            // Not every real one can.
            let overlaps = path.contains("launches may overlap");
            assert!(overlaps == overlap || (overlap && is_real()), "{overlap}: {path}");
            let queue = DeviceQueue::new(comm, &[COUNTS[0] * 4; 2]).unwrap();
            let first = |rank: u32| -> Vec<u32> {
                let word = |at: u32| at.wrapping_mul(2_654_435_761) ^ rank;
                (0..u32::try_from(COUNTS[0]).unwrap()).map(word).collect()
            };
            let bytes: Vec<u8> =
                first(comm.rank()).iter().flat_map(|word| word.to_le_bytes()).collect();
            let place = |area: usize| Place { area, offset: 0 };
            queue.write(place(0), &bytes).unwrap();
            // As in `Side::run`: all have prepared.
            comm.barrier().unwrap();
            // What all ranks have from the first step on, where it was written last.
            let all: Vec<Vec<u32>> = (0..RANKS).map(first).collect();
            let sum = |at: usize| all.iter().fold(0_u32, |sum, rank| sum.wrapping_add(rank[at]));
            let mut areas = [vec![0; COUNTS[0]], (0..COUNTS[0]).map(sum).collect::<Vec<u32>>()];
            for (step, count) in COUNTS.into_iter().flat_map(|count| [count; EACH]).enumerate() {
                let (from, to) = (step % 2, (step + 1) % 2);
                let call = Call::new(Collective::AllReduce, DataType::U32, count as u64);
                queue.collective(&call, place(from), place(to)).unwrap();
                // The first is there already.
                let source = areas[from][..if step == 0 { 0 } else { count }].to_vec();
                for (to, from) in areas[to].iter_mut().zip(source) {
                    *to = from.wrapping_mul(RANKS);
                }
            }
            for (area, words) in areas.iter().enumerate() {
                let mut found = vec![0; COUNTS[0] * 4];
                queue.read(place(area), &mut found).unwrap();
                let pairs = found.chunks(4).zip(words);
                let wrong = pairs.enumerate().find(|(_, (a, b))| **a != b.to_le_bytes());
                assert!(wrong.is_none(), "area {area}, overlap {overlap}: {wrong:?}");
            }
            comm.barrier().unwrap();
        });
    }
}

/// Word by word there and back, many before anybody waits.
#[test]
fn messages_one_way_go_in_the_order_of_the_stream() {
    world(2, |comm| {
        comm.attach_gpu(None).unwrap();
        let uuid = comm.gpu().unwrap().uuid();
        let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(parts, [3, 8, 4, 4, 4, 12], "{uuid}");
        assert!(comm.is_gpu_direct(), "{:?}", comm.gpu_path());

        let queue = DeviceQueue::new(comm, &[8, 70_000]).unwrap();
        let [word, long] = [0, 1].map(|area| Place { area, offset: 0 });
        let peer = 1 - comm.rank();
        if comm.rank() == 0 {
            queue.write(word, b"to and f").unwrap();
            queue.write(long, &[7; 70_000]).unwrap();
        }
        comm.barrier().unwrap();
        for _ in 0..20 {
            if comm.rank() == 0 {
                queue.send(8, peer, word).unwrap();
                queue.recv(8, peer, word).unwrap();
            } else {
                queue.recv(8, peer, word).unwrap();
                queue.send(8, peer, word).unwrap();
            }
        }
        match comm.rank() {
            0 => queue.send(70_000, peer, long).unwrap(),
            _ => queue.recv(70_000, peer, long).unwrap(),
        }
        let (mut found, mut all) = ([0; 8], vec![0; 70_000]);
        queue.read(word, &mut found).unwrap();
        queue.read(long, &mut all).unwrap();
        assert!(&found == b"to and f" && all.iter().all(|byte| *byte == 7));
        assert!(queue.send(9, peer, word).is_err() && queue.recv(9, peer, word).is_err());
        comm.barrier().unwrap();
    });
}

#[test]
fn a_queue_refuses_what_is_not_its_own() {
    world(2, |comm| {
        let error = DeviceQueue::new(comm, &[8]).unwrap_err().to_string();
        assert!(error.contains("attach_gpu"), "{error}");
        comm.attach_gpu(None).unwrap();
        let queue = DeviceQueue::new(comm, &[64]).unwrap();
        let at = |area, offset| Place { area, offset };
        let call = Call::new(Collective::AllReduce, DataType::F32, 16);
        for (input, output) in
            [(at(0, 0), at(1, 0)), (at(0, 4), at(0, 0)), (at(0, usize::MAX), at(0, 0))]
        {
            let error = queue.collective(&call, input, output).unwrap_err().to_string();
            assert!(error.contains("area"), "{error}");
        }
        let all_to_all = Call::new(Collective::AllToAll, DataType::F32, 8);
        let error = queue.collective_in_place(&all_to_all, at(0, 0)).unwrap_err().to_string();
        assert!(error.contains("no form in place"), "{error}");
        assert!(queue.read(at(0, 60), &mut [0; 8]).is_err());
        comm.barrier().unwrap();
    });
}

/// By cards, where flags go with values, and by buffers.
#[test]
fn different_calls_are_an_error_that_names_the_ranks() {
    use ReduceOp::{Max, Sum};
    for (counts, ops) in [
        ([40_000, 30_000], [Sum, Sum]),
        ([4_000_000, 3_000_000], [Sum, Sum]),
        ([5, 5], [Sum, Max]),
        ([40_000, 40_000], [Sum, Max]),
        ([4_000_000, 4_000_000], [Sum, Max]),
    ] {
        different_calls(counts, ops);
    }
}

/// The last of three ranks makes the second call.
fn different_calls(counts: [u64; 2], ops: [ReduceOp; 2]) {
    let errors = world(3, |comm| {
        let side = Side::of(comm);
        let which = usize::from(comm.rank() == 2);
        let most = usize::try_from(counts[0]).unwrap() * 4;
        let buffer = Buffer::new(&side.gpu, most).unwrap();
        let work = DeviceWork::Collective {
            call: Call::new(Collective::AllReduce, DataType::F32, counts[which]).op(ops[which]),
            input: buffer.address(),
            output: buffer.address(),
            scalar: None,
        };
        // Kernels of threads that share a GPU are loaded before others wait for them (docs/gpu.md).
        for op in ops {
            let call = Call::new(Collective::AllReduce, DataType::F32, 3).op(op);
            side.run(comm, &call, &[0; 12], 12, 0);
        }
        comm.barrier().unwrap();
        // SAFETY: the buffer is large enough for both, and lives until the stream was waited for.
        if let Err(error) = unsafe { comm.enqueue(&[side.stream.stream()], &[work]) } {
            // The others have seen it already.
            return error;
        }
        side.stream.synchronize().unwrap();
        // Kernels that ended early are no success, from the first look on.
        let error = comm.check().unwrap_err();
        assert_eq!(comm.failure(), Some(error.clone()));
        assert!(DeviceQueue::new(comm, &[]).unwrap().finish().is_err());
        error
    });
    for error in &errors {
        assert!(error.to_string().contains("rank 2"), "{error}");
        assert!(error.to_string().contains("different calls"), "{error}");
        assert_eq!(error, &errors[0]);
    }
}

/// Where a rank does not come, the call that the others wait in is named.
#[test]
fn a_kernel_that_stands_still_is_an_error_that_names_its_call() {
    let Some(mut config) = config() else { return };
    // Long enough for a busy machine to run what does not stand still.
    config.timeout = world::patience(5);
    let errors = world_with(2, &config, |comm| {
        comm.attach_gpu(None).unwrap();
        let queue = DeviceQueue::new(comm, &[160_000]).unwrap();
        let at = Place { area: 0, offset: 0 };
        let call = |count| Call::new(Collective::AllReduce, DataType::F32, count);
        queue.collective_in_place(&call(9), at).unwrap();
        queue.finish().unwrap();
        // Under compute-sanitizer who waits for a stream waits for all kernels of the process.
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            queue.collective_in_place(&call(40_000), at).unwrap();
            let error = queue.finish().unwrap_err();
            let trace = comm.trace();
            let known: Vec<_> = trace.launches.iter().map(|one| (one.number, one.count)).collect();
            assert_eq!((trace.launches_begun, &known[..]), (2, &[(1, 9), (2, 40_000)][..]));
            assert!(trace.launches[0].enqueued_ns < trace.launches[1].enqueued_ns);
            let waited = trace.launches[1].waited.unwrap();
            assert_eq!((waited.rank, waited.waited_ns > 4_000_000_000), (1, true), "{waited:?}");
            return error;
        }
        let start = std::time::Instant::now();
        loop {
            if let Err(error) = comm.check() {
                return error;
            }
            assert!(start.elapsed() < world::patience(40), "no error");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    for error in &errors {
        let text = error.to_string();
        assert!(text.contains("launch 2, enqueued for all_reduce of 40000 float"), "{text}");
    }
}
