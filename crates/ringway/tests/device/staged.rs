#![allow(unsafe_code, reason = "kernels use addresses of device memory")]
//! Calls on GPU memory that ranks do not map from each other: through pinned memory, by the host. Ranks are
//! threads that say they are on different hosts.

use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ringway::config::{Config, Source};
use ringway::device::{Buffer, DeviceStream};
use ringway::plan::problem::{Counts, Problem};
use ringway::plan::types::Level;
use ringway::{Call, Collective, Communicator, DataType, DeviceWork, Error, ReduceOp};

use crate::graph::OwnStream;
use crate::world;

/// Runs `body` on ranks of so many hosts each, those named without a GPU. Nothing where none can be faked.
pub(crate) fn hosts<R: Send + 'static>(
    hosts: &[u32],
    without: &[u32],
    body: impl Fn(&Communicator) -> R + Send + Sync + 'static,
) -> Vec<R> {
    hosts_with(hosts, without, &[], body)
}

/// The same with settings.
pub(crate) fn hosts_with<R: Send + 'static>(
    hosts: &[u32],
    without: &[u32],
    settings: &[(&str, &str)],
    body: impl Fn(&Communicator) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let Some(mut config) = world::config() else { return Vec::new() };
    for (name, value) in settings {
        config.set(name, value, Source::Default).unwrap();
    }
    hosts_on(config, (hosts, without), |_| None, body)
}

/// The same with a GPU of each rank's own, as `ordinal` says.
pub(crate) fn hosts_on<R: Send + 'static>(
    config: Config,
    (hosts, without): (&[u32], &[u32]),
    ordinal: fn(u32) -> Option<i32>,
    body: impl Fn(&Communicator) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let ranks = u32::try_from(hosts.len()).unwrap();
    let id = Communicator::unique_id(&Config::default()).unwrap();
    let (done, waits) = channel();
    let (hosts, without) = (hosts.to_vec(), without.to_vec());
    let whole = std::thread::spawn(move || {
        let body = &body;
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..ranks)
                .map(|rank| {
                    let mut config = config.clone();
                    config.host_id = Some(format!("host {}", hosts[rank as usize]));
                    config.gpu = !without.contains(&rank);
                    config.gpu_channels = 2;
                    config.timeout = world::patience(20);
                    scope.spawn(move || {
                        let comm = Communicator::from_unique_id(&id, rank, ranks, config).unwrap();
                        comm.attach_gpu(ordinal(rank)).unwrap();
                        body(&comm)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<R>>()
        });
        done.send(results).unwrap();
    });
    let limit = world::patience(100);
    match waits.recv_timeout(limit) {
        Ok(results) => {
            whole.join().unwrap();
            results
        }
        Err(RecvTimeoutError::Disconnected) => std::panic::resume_unwind(whole.join().unwrap_err()),
        Err(RecvTimeoutError::Timeout) => panic!("still running after {limit:?}"),
    }
}

/// A rank's memory: on its GPU, or on the host where it has none. Taken once and kept to the end of a test: giving
/// device memory back waits for all kernels of the process, and one of them may wait for the rank that gives back.
pub(crate) enum Side {
    Gpu { stream: DeviceStream, memory: Buffer },
    Host(Mutex<Vec<u64>>),
}

const BYTES: usize = 24 << 20;

impl Side {
    pub(crate) fn of(comm: &Communicator) -> Self {
        match comm.gpu() {
            Some(gpu) => Self::Gpu {
                stream: DeviceStream::new(&gpu).unwrap(),
                memory: Buffer::new(&gpu, BYTES).unwrap(),
            },
            None => Self::Host(Mutex::new(vec![0; BYTES / 8])),
        }
    }

    pub(crate) fn address(&self) -> *mut std::ffi::c_void {
        match self {
            Self::Gpu { memory, .. } => memory.address(),
            Self::Host(memory) => memory.lock().unwrap().as_mut_ptr().cast(),
        }
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        match self {
            Self::Gpu { memory, .. } => memory.write(at, bytes).unwrap(),
            Self::Host(_) => {
                assert!(at + bytes.len() <= BYTES);
                let to = self.address().cast::<u8>().wrapping_add(at);
                // SAFETY: inside of the memory, which nobody else uses now.
                unsafe { to.copy_from(bytes.as_ptr(), bytes.len()) };
            }
        }
    }

    pub(crate) fn read(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        match self {
            Self::Gpu { memory, .. } => memory.read(at, &mut bytes).unwrap(),
            Self::Host(_) => {
                assert!(at + length <= BYTES);
                let from = self.address().cast::<u8>().wrapping_add(at);
                // SAFETY: inside of the memory, which nobody else uses now.
                unsafe { bytes.as_mut_ptr().copy_from(from, length) };
            }
        }
        bytes
    }

    pub(crate) fn enqueue(&self, comm: &Communicator, work: &[DeviceWork]) -> Result<(), Error> {
        let streams: Vec<_> = match self {
            Self::Gpu { stream, .. } => vec![stream.stream()],
            Self::Host(_) => Vec::new(),
        };
        // SAFETY: all buffers are inside of the memory, and `wait` comes before it goes.
        unsafe { comm.enqueue(&streams, work) }
    }

    /// Enqueues what all ranks do, and waits for it.
    pub(crate) fn run(&self, comm: &Communicator, work: &[DeviceWork]) {
        world::meet(comm);
        self.enqueue(comm, work).unwrap();
        world::meet(comm);
        self.wait();
    }

    pub(crate) fn wait(&self) {
        if let Self::Gpu { stream, .. } = self {
            stream.synchronize().unwrap();
        }
    }

    /// A collective with its input at `from` and its output at `to`.
    pub(crate) fn work(&self, call: &Call, from: usize, to: usize) -> DeviceWork {
        DeviceWork::Collective {
            call: call.clone(),
            input: self.address().wrapping_byte_add(from),
            output: self.address().wrapping_byte_add(to),
            scalar: None,
        }
    }
}

/// Numbers that are not all alike, and whose sums depend on the order where they are floats.
fn values(data_type: DataType, bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut all = Vec::with_capacity(bytes + 8);
    while all.len() < bytes {
        let word = next();
        match data_type {
            DataType::F32 => {
                let value = f32::from(i16::try_from(word % 20_000).unwrap()) / 7.0;
                all.extend(value.to_le_bytes());
            }
            DataType::Bf16 => {
                let value = f32::from(i8::try_from(word % 100).unwrap()) / 8.0;
                all.extend(&value.to_le_bytes()[2..]);
            }
            _ => all.extend(word.to_le_bytes()),
        }
    }
    all.truncate(bytes);
    all
}

/// One call on GPU memory against the same on the host, apart and in place.
fn compare(comm: &Communicator, side: &Side, call: &Call) {
    let (rank, size) = (comm.rank(), comm.size());
    let (input, output) =
        (call.input_bytes(rank, size).unwrap(), call.output_bytes(rank, size).unwrap());
    let data = values(call.data_type, input, u64::from(rank) * 7919 + call.count);
    let mut expected = vec![0; output];
    comm.call(call, &data, &mut expected).unwrap();
    let to = BYTES / 2;
    side.write(0, &data);
    side.write(to, &vec![0xa5; output]);
    comm.barrier().unwrap();
    side.run(comm, &[side.work(call, 0, to)]);
    comm.check().unwrap();
    assert!(side.read(to, output) == expected, "{call:?}, rank {rank} of {size}");
    let mut problem = Problem::new(call.collective, size, call.count, call.data_type);
    problem.root = call.root;
    if let Some(counts) = &call.counts {
        problem.counts = counts.clone();
    }
    let bytes = |values: u64| usize::try_from(values).unwrap() * call.data_type.size();
    let (from, to) = match problem.in_place(rank) {
        Some((from, to)) => (bytes(to.saturating_sub(from)), bytes(from.saturating_sub(to))),
        None => (0, BYTES / 2),
    };
    side.write(from, &data);
    comm.barrier().unwrap();
    side.run(comm, &[side.work(call, from, to)]);
    assert!(side.read(to, output) == expected, "{call:?} in place, rank {rank} of {size}");
}

#[test]
fn an_all_reduce_goes_by_the_host() {
    hosts(&[0, 1], &[], |comm| {
        let path = comm.gpu_path().unwrap();
        assert!(path.contains("staged") && path.contains("on another host"), "{path}");
        assert_eq!(comm.gpu_refusal(), None);
        let side = Side::of(comm);
        let call = Call::new(Collective::AllReduce, DataType::F32, 1000).level(Level::Shape);
        compare(comm, &side, &call);
    });
}

const COLLECTIVES: [Collective; 8] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
];

/// All collectives, from nothing to more chunks than there are slots.
fn every_collective(comm: &Communicator, side: &Side) {
    for collective in COLLECTIVES {
        let root = if collective.has_root() { comm.size() - 1 } else { 0 };
        let blocks = !matches!(
            collective,
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce
        );
        for (count, data_type) in [
            (0, DataType::F32),
            (1, DataType::Bf16),
            (1000, DataType::F32),
            (333, DataType::U8),
            (if blocks { 80_001 } else { 230_001 }, DataType::F32),
        ] {
            let call = Call::new(collective, data_type, count).root(root).level(Level::Shape);
            compare(comm, side, &call);
        }
    }
    side.run(comm, &[side.work(&Call::new(Collective::Barrier, DataType::U8, 0), 0, 0)]);
    comm.barrier().unwrap();
}

#[test]
fn every_collective_has_the_bytes_of_the_host() {
    hosts(&[0, 0, 1], &[], |comm| every_collective(comm, &Side::of(comm)));
}

#[test]
fn ranks_without_a_gpu_take_part() {
    let paths = hosts(&[0, 0, 1], &[0], |comm| {
        let side = Side::of(comm);
        every_collective(comm, &side);
        messages(comm, &side);
        assert!(comm.has_ranks_without_gpu());
        // The others do not know where a rank's memory is: host memory of one with a GPU will do.
        let host = Side::Host(Mutex::new(vec![0; BYTES / 8]));
        let call = Call::new(Collective::AllReduce, DataType::F32, 230_001).level(Level::Shape);
        compare(comm, if comm.rank() == 1 { &host } else { &side }, &call);
        comm.barrier().unwrap();
        (comm.gpu().is_some(), comm.gpu_path().unwrap())
    });
    for (rank, (has_gpu, path)) in paths.iter().enumerate() {
        assert_eq!(*has_gpu, rank != 0);
        assert!(path.contains("1 of 3 ranks without a GPU"), "{path}");
        assert!(path.contains("because rank 0: RINGWAY_GPU is 0"), "{path}");
    }
}

/// Blocks of different lengths, some of them empty, one of several chunks; apart and in place.
fn uneven(comm: &Communicator) {
    let side = Side::of(comm);
    let lists: [&[u64]; 3] = [&[5, 0, 1000], &[0, 0, 0], &[300_001, 17, 150_000]];
    for collective in
        [Collective::AllGather, Collective::ReduceScatter, Collective::Gather, Collective::Scatter]
    {
        for counts in lists {
            let call = Call::new(collective, DataType::F32, 0).root(1).level(Level::Shape);
            compare(comm, &side, &call.counts(Counts::PerRank(counts.into())));
        }
    }
    // In a group with others, each behind the one before.
    let gather = Call::new(Collective::AllGather, DataType::U8, 0)
        .counts(Counts::PerRank([4, 8, 12].into()));
    let sum = Call::new(Collective::AllReduce, DataType::U8, 24);
    side.write(0, &[1; 12]);
    let work = [side.work(&gather, 0, 64), side.work(&sum, 64, 128)];
    side.run(comm, &work);
    assert_eq!(side.read(128, 24), [3; 24]);
    comm.barrier().unwrap();
}

#[test]
fn counts_for_each_rank_have_the_bytes_of_the_host() {
    hosts(&[0, 0, 1], &[], uneven);
}

#[test]
fn counts_for_each_rank_are_those_of_ranks_without_a_gpu_too() {
    hosts(&[0, 1, 1], &[2], uneven);
}

/// Where adapters were to reach GPU memory and do not, the reason is told, and calls go through pinned memory.
#[test]
fn without_rdma_there_is_no_gpudirect() {
    let told = hosts_with(
        &[0, 1, 1],
        &[],
        &[("RINGWAY_GPUDIRECT", "1"), ("NCCL_IB_DISABLE", "1")],
        |comm| {
            every_collective(comm, &Side::of(comm));
            comm.gpu_path().unwrap()
        },
    );
    for path in told {
        let why = "no GPUDirect RDMA: rank 0: it does not reach rank 1 by RDMA: ";
        assert!(path.contains(why) && path.contains("NCCL_IB_DISABLE=1"), "{path}");
    }
    let told = hosts_with(&[0, 0, 0], &[1], &[("RINGWAY_GPUDIRECT", "1")], |comm| {
        comm.gpu_path().unwrap()
    });
    for path in told {
        let why =
            "no GPUDirect RDMA: rank 0: it shares memory with rank 1; RINGWAY_TRANSPORT=verbs";
        assert!(path.contains(why), "{path}");
    }
    // Nobody asks, nobody is told.
    for path in hosts(&[0, 1], &[], |comm| comm.gpu_path().unwrap()) {
        assert!(!path.contains("GPUDirect"), "{path}");
    }
}

#[test]
fn without_any_gpu_there_is_none() {
    hosts(&[0, 1], &[0, 1], |comm| {
        assert!(comm.gpu_refusal().unwrap().contains("RINGWAY_GPU is 0"));
        assert_eq!(comm.gpu_path(), None);
        let error = Side::of(comm).enqueue(comm, &[]).unwrap_err();
        assert!(error.to_string().contains("no calls on GPU memory"), "{error}");
    });
}

#[test]
fn every_operation_has_the_bits_of_the_host() {
    hosts(&[0, 1, 2], &[], |comm| {
        let side = Side::of(comm);
        for op in ReduceOp::ALL {
            for data_type in [DataType::F32, DataType::Bf16, DataType::U8, DataType::I64] {
                let mut call = Call::new(Collective::AllReduce, data_type, 777).op(op);
                call.scalar = 2.0 + f64::from(comm.rank());
                compare(comm, &side, &call);
                compare(comm, &side, &call.level(Level::Shape));
            }
        }
    });
}

#[test]
fn a_factor_in_gpu_memory_goes_along() {
    hosts(&[0, 1], &[], |comm| {
        let side = Side::of(comm);
        let factor = 0.5_f32 + comm.rank() as f32;
        side.write(64, &factor.to_le_bytes());
        side.write(256, &2.0_f32.to_le_bytes().repeat(100));
        let call = Call::new(Collective::AllReduce, DataType::F32, 100).op(ReduceOp::PreMulSum);
        let DeviceWork::Collective { call, input, output, .. } = side.work(&call, 256, 1024) else {
            unreachable!("a collective");
        };
        let scalar = Some(side.address().wrapping_byte_add(64).cast_const());
        let work = DeviceWork::Collective { call, input, output, scalar };
        side.run(comm, &[work]);
        assert_eq!(side.read(1024, 400), 4.0_f32.to_le_bytes().repeat(100));
        comm.barrier().unwrap();
    });
}

/// Messages between all ranks, also with themselves: none, short ones, and some of several parts.
fn messages(comm: &Communicator, side: &Side) {
    let (rank, size) = (comm.rank(), comm.size());
    for bytes in [0, 8, 5000, 2_200_000] {
        let length =
            |from: u32, to: u32| bytes + if bytes == 0 { 0 } else { (from * 5 + to) as usize };
        let fill = |from: u32, to: u32| u8::try_from(1 + from * 16 + to).unwrap();
        // From rank 0 to rank 1 two of them, the first of two parts where they are long.
        let twice = |from: u32, to: u32| from == 0 && to == 1;
        let long = |from: u32, to: u32| 2 * length(from, to);
        let (mut work, mut found, mut at) = (Vec::new(), Vec::new(), 0);
        let mut place = |length: usize| {
            at += length.next_multiple_of(64) + 64;
            assert!(at <= BYTES);
            at - length.next_multiple_of(64) - 64 + 3
        };
        for peer in 0..size {
            let mut send = |length: usize, fill: u8| {
                let at = place(length);
                side.write(at, &vec![fill; length]);
                let address = side.address().wrapping_byte_add(at);
                work.push(DeviceWork::Send { peer, address, bytes: length });
            };
            if twice(rank, peer) {
                send(long(rank, peer), 200);
            }
            send(length(rank, peer), fill(rank, peer));
            let mut receive = |length: usize, fill: u8| {
                let at = place(length);
                side.write(at, &vec![0; length]);
                let address = side.address().wrapping_byte_add(at);
                work.push(DeviceWork::Receive { peer, address, bytes: length });
                found.push((peer, at, length, fill));
            };
            if twice(peer, rank) {
                receive(long(peer, rank), 200);
            }
            receive(length(peer, rank), fill(peer, rank));
        }
        side.run(comm, &work);
        comm.check().unwrap();
        for (peer, at, length, fill) in found {
            let whole = side.read(at, length).iter().all(|byte| *byte == fill);
            assert!(whole, "{length} bytes from {peer} to {rank}");
        }
    }
    comm.barrier().unwrap();
}

#[test]
fn messages_go_all_ways_at_once() {
    hosts(&[0, 1, 0], &[], |comm| messages(comm, &Side::of(comm)));
}

/// Calls of a group, messages among them, several groups before anybody waits.
#[test]
fn groups_keep_their_order() {
    hosts(&[0, 1], &[], |comm| {
        let side = Side::of(comm);
        let other = 1 - comm.rank();
        let ones = 1_u32.to_le_bytes().repeat(100_000);
        side.write(0, &ones);
        let sum = Call::new(Collective::AllReduce, DataType::U32, 100_000);
        let mut work = Vec::new();
        // Each takes the result of the one before.
        for step in 0..5_usize {
            work.push(side.work(&sum, step * 400_000, (step + 1) * 400_000));
        }
        world::meet(comm);
        side.enqueue(comm, &work).unwrap();
        let last = side.address().wrapping_byte_add(5 * 400_000);
        let here = side.address().wrapping_byte_add(6 * 400_000);
        for _ in 0..3 {
            let send = DeviceWork::Send { peer: other, address: last, bytes: 400_000 };
            let receive = DeviceWork::Receive { peer: other, address: here, bytes: 400_000 };
            let again = side.work(&sum, 6 * 400_000, 6 * 400_000);
            side.enqueue(comm, &[send, receive]).unwrap();
            side.enqueue(comm, &[again]).unwrap();
        }
        world::meet(comm);
        side.wait();
        comm.check().unwrap();
        assert!(side.read(6 * 400_000, 400_000) == 64_u32.to_le_bytes().repeat(100_000));
        comm.barrier().unwrap();
    });
}

/// The error that ended the communicator.
pub(crate) fn failure(comm: &Communicator) -> Error {
    let start = Instant::now();
    loop {
        if let Err(error) = comm.check() {
            return error;
        }
        assert!(start.elapsed() < world::patience(30), "no error");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn all_alike(errors: &[Error], words: &[&str]) {
    for error in errors {
        for word in words {
            assert!(error.to_string().contains(word), "no {word:?} in {error}");
        }
        assert_eq!(error, &errors[0]);
    }
}

#[test]
fn different_calls_are_the_same_error_everywhere() {
    let errors = hosts(&[0, 1, 2], &[], |comm| {
        let side = Side::of(comm);
        let count = if comm.rank() == 2 { 30_000 } else { 300_000 };
        let call = Call::new(Collective::AllReduce, DataType::F32, count);
        // The last to come may be told at once.
        let _told = side.enqueue(comm, &[side.work(&call, 0, BYTES / 2)]);
        side.wait();
        // Whose kernels ended early is told so at once.
        comm.check().unwrap_err()
    });
    all_alike(&errors, &["mismatch", "rank 2", "of 30000 float", "of 300000 float"]);
}

#[test]
fn kernels_end_when_a_rank_gives_up() {
    for without in [&[][..], &[1]] {
        let errors = hosts(&[0, 1, 2], without, |comm| {
            let side = Side::of(comm);
            if comm.rank() == 2 {
                std::thread::sleep(Duration::from_millis(50));
                comm.abort("enough");
                return failure(comm);
            }
            let call = Call::new(Collective::AllReduce, DataType::F32, 300_000);
            // A rank without a GPU waits here, and gets the error at once.
            let _waited = side.enqueue(comm, &[side.work(&call, 0, BYTES / 2)]);
            side.wait();
            failure(comm)
        });
        all_alike(&errors, &["enough", "aborted the communicator"]);
    }
}

#[test]
fn kernels_end_when_a_rank_leaves() {
    let errors = hosts(&[0, 1, 2], &[], |comm| {
        if comm.rank() == 2 {
            return None;
        }
        let side = Side::of(comm);
        let call = Call::new(Collective::AllReduce, DataType::F32, 300_000);
        let _told = side.enqueue(comm, &[side.work(&call, 0, BYTES / 2)]);
        side.wait();
        Some(failure(comm))
    });
    let errors: Vec<Error> = errors.into_iter().flatten().collect();
    all_alike(&errors, &["rank 2", "left"]);
}

/// A call past its deadline ends the kernels of all.
#[test]
fn kernels_end_when_a_rank_does_not_come() {
    let errors = hosts(&[0, 1], &[], |comm| {
        if comm.rank() == 0 {
            let side = Side::of(comm);
            let call = Call::new(Collective::AllReduce, DataType::F32, 10)
                .deadline(Duration::from_millis(300));
            side.enqueue(comm, &[side.work(&call, 0, BYTES / 2)]).unwrap();
            side.wait();
            return comm.failure().unwrap();
        }
        failure(comm)
    });
    all_alike(&errors, &["rank 1"]);
}

#[test]
fn what_cannot_be_is_refused() {
    hosts(&[0, 1], &[], |comm| {
        let side = Side::of(comm);
        let (send, receive) = ([1, 2].into(), [1, 2].into());
        let pairs = Counts::Pairwise { send, receive };
        let call = Call::new(Collective::AllToAll, DataType::U8, 0).counts(pairs);
        let error = side.enqueue(comm, &[side.work(&call, 0, 64)]).unwrap_err();
        assert!(error.to_string().contains("each pair of ranks"), "{error}");
        let null = DeviceWork::Collective {
            call: Call::new(Collective::AllReduce, DataType::U8, 4),
            input: std::ptr::null(),
            output: side.address(),
            scalar: None,
        };
        let error = side.enqueue(comm, &[null]).unwrap_err();
        assert!(error.to_string().contains("input of all_reduce is NULL"), "{error}");
        let call = Call::new(Collective::AllReduce, DataType::U8, 4);
        // SAFETY: nothing is enqueued.
        let error = unsafe { comm.enqueue(&[], &[side.work(&call, 0, 64)]) }.unwrap_err();
        assert!(error.to_string().contains("want a stream"), "{error}");
        comm.barrier().unwrap();
    });
}

/// A captured launch is replayed, with nobody on the host knowing of it. A rank without a GPU calls as often.
fn captured(comm: &Communicator) {
    let side = Side::of(comm);
    let count = 200_000_usize;
    side.write(0, &1_u32.to_le_bytes().repeat(count));
    let call = Call::new(Collective::AllReduce, DataType::U32, count as u64);
    let (sum, after) = (side.work(&call, 0, 0), side.work(&call, 0, BYTES / 4));
    let other = 1 - comm.rank();
    let at = |offset: usize| side.address().wrapping_byte_add(offset);
    let send = DeviceWork::Send { peer: other, address: at(0), bytes: 4 * count };
    let receive = DeviceWork::Receive { peer: other, address: at(BYTES / 2), bytes: 4 * count };
    let (messages, all) = ([send.clone(), receive.clone()], [sum, send, receive]);
    if comm.gpu().is_some() {
        let own = OwnStream::new();
        let put = |work: &[DeviceWork]| {
            // SAFETY: the buffers are inside of the side's memory, and the stream is waited for below.
            unsafe { comm.enqueue(&[own.stream()], work) }.unwrap();
        };
        world::meet(comm);
        // Pinned memory for messages is taken before: a capture takes none.
        put(&messages);
        world::meet(comm);
        own.wait();
        let graph = own.capture(|| put(&all));
        // To make a graph may wait for kernels of the process (racecheck does), and those for this rank.
        comm.barrier().unwrap();
        graph.replay(5);
        // Proxies are asleep by now.
        std::thread::sleep(Duration::from_millis(20));
        comm.barrier().unwrap();
        graph.replay(1);
    } else {
        side.run(comm, &messages);
        comm.barrier().unwrap();
        for _ in 0..5 {
            side.enqueue(comm, &all).unwrap();
        }
        comm.barrier().unwrap();
        side.enqueue(comm, &all).unwrap();
    }
    comm.check().unwrap();
    // On another stream: behind what was launched, and not behind what was captured only.
    side.run(comm, &[after]);
    assert!(side.read(BYTES / 4, 4 * count) == 128_u32.to_le_bytes().repeat(count), "after");
    let expected = 64_u32.to_le_bytes().repeat(count);
    assert!(side.read(0, 4 * count) == expected, "sums");
    assert!(side.read(BYTES / 2, 4 * count) == expected, "messages");
    comm.barrier().unwrap();
}

#[test]
fn captured_calls_are_replayed() {
    hosts(&[0, 1], &[], captured);
}

#[test]
fn captured_calls_are_replayed_beside_a_rank_without_a_gpu() {
    hosts(&[0, 1], &[1], captured);
}

/// More ranks than map each other's memory, all on one host.
#[test]
fn many_ranks_of_a_host_go_by_the_host() {
    if world::is_real() {
        eprintln!("skipped: a GPU has 32 queues, and 33 ranks of one process need one each");
        return;
    }
    hosts(&[0; 33], &[], |comm| {
        let path = comm.gpu_path().unwrap();
        assert!(path.contains("33 ranks; at most 32"), "{path}");
        let gpu = comm.gpu().unwrap();
        let memory = Buffer::new(&gpu, 1 << 16).unwrap();
        let side = Side::Gpu { stream: DeviceStream::new(&gpu).unwrap(), memory };
        side.write(0, &[u8::try_from(comm.rank()).unwrap(); 77]);
        let call = Call::new(Collective::AllGather, DataType::U8, 77);
        side.enqueue(comm, &[side.work(&call, 0, 1024)]).unwrap();
        side.wait();
        let expected: Vec<u8> = (0..33).flat_map(|rank| [rank; 77]).collect();
        assert!(side.read(1024, 33 * 77) == expected);
        comm.barrier().unwrap();
    });
}
