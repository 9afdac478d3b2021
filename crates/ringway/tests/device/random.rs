#![allow(unsafe_code, reason = "kernels use addresses of device memory")]
//! Many calls that nobody waits for, on several communicators and streams at once: all of them end, with
//! the bytes of the host. `RINGWAY_SEED` draws others.

use ringway::device::{Buffer, DeviceStream};
use ringway::plan::problem::Counts;
use ringway::plan::types::Level;
use ringway::{Call, Collective, Communicator, DataType, DeviceWork, ReduceOp};

use crate::collectives::values;
use crate::staged::hosts;
use crate::world::{self, world};

/// A draw that is the same on every rank.
struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Self {
        // Never zero, from which nothing else would follow.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % most
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

const COLLECTIVES: [Collective; 8] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
];

/// Whether calls of it may have counts for each rank.
fn has_counts(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllGather
            | Collective::ReduceScatter
            | Collective::Gather
            | Collective::Scatter
    )
}

/// Few, as each takes a kernel.
const KINDS: [(DataType, ReduceOp); 3] = [
    (DataType::F32, ReduceOp::Sum),
    (DataType::Bf16, ReduceOp::Avg),
    (DataType::U8, ReduceOp::Max),
];

/// What is enqueued and not yet looked at.
struct Pending {
    communicator: usize,
    what: What,
    input: Vec<u8>,
    at: usize,
    output: usize,
}

enum What {
    Call(Call),
    /// Everybody sends to the next.
    Message,
}

/// Values of a call at most: with four ranks more than cards have.
const MOST: usize = 60_000;

/// Groups of a batch, and calls of a group, at most.
const GROUPS: usize = 12;
const TOGETHER: usize = 3;

/// Bytes of a buffer: those of a batch of the largest calls of four ranks.
const BYTES: usize = GROUPS * TOGETHER * MOST * 4 * 4;

/// A rank's communicators, streams and memory.
struct Side {
    communicators: Vec<Communicator>,
    streams: Vec<DeviceStream>,
    from: Buffer,
    to: Buffer,
}

impl Side {
    fn of(comm: &Communicator) -> Self {
        let rank = i32::try_from(comm.rank()).unwrap();
        let mut communicators = vec![comm.dup().unwrap()];
        // The same ranks, the other way round; and half of them.
        communicators.extend(comm.split(Some(0), -rank).unwrap());
        communicators.extend(comm.split(Some(comm.rank() % 2), rank).unwrap());
        for one in &communicators {
            one.attach_gpu(None).unwrap();
        }
        let gpu = communicators[0].gpu().expect("a GPU");
        Self {
            communicators,
            streams: (0..3).map(|_| DeviceStream::new(&gpu).unwrap()).collect(),
            from: Buffer::new(&gpu, BYTES).unwrap(),
            to: Buffer::new(&gpu, BYTES).unwrap(),
        }
    }

    /// Makes every kernel be loaded: the driver may wait for kernels at work before it loads one, and those
    /// may wait for the call that the loading thread has yet to make. Ranks with a process or a GPU of their
    /// own need no such care. All ranks go from kernel to kernel together, also where half of them have one.
    fn warm(&self) {
        for comm in &self.communicators {
            for (data_type, op) in KINDS {
                for collective in [Collective::AllReduce, Collective::AllGather] {
                    let call = Call::new(collective, data_type, 16).op(op);
                    let (input, output) = (self.from.address(), self.to.address());
                    let work = DeviceWork::Collective { call, input, output, scalar: None };
                    // SAFETY: the buffers are larger, and live longer.
                    unsafe { comm.enqueue(&[self.streams[0].stream()], &[work]) }.unwrap();
                    world::finish(&self.communicators[0], &self.streams[0]);
                    self.communicators[0].barrier().unwrap();
                }
            }
        }
    }

    /// Draws a call and prepares its memory from `at` on.
    fn prepare(&self, draw: &mut Draw, communicator: usize, at: usize) -> Pending {
        let comm = &self.communicators[communicator];
        let (rank, size) = (comm.rank(), comm.size());

        let most = draw.of(&[10, 1000, 20_000, MOST]);
        let count = draw.below(most);
        let (data_type, op) = draw.of(&KINDS);
        let seed = u64::from(rank) * 101 + count as u64;
        if draw.below(5) == 0 {
            let input = values(DataType::U8, count, seed);
            return Pending { communicator, what: What::Message, input, at, output: count };
        }
        let root = u32::try_from(draw.below(2)).unwrap();
        let collective = draw.of(&COLLECTIVES);
        let mut call = Call::new(collective, data_type, count as u64).op(op).root(root);
        // On the host it is asked for, on a GPU it is so anyway.
        call.level = Some(Level::Shape);
        if has_counts(collective) && draw.below(4) == 0 {
            // Some of them none.
            let counts = (0..size).map(|_| (draw.below(3) * draw.below(count + 1) / 2) as u64);
            call.counts = Some(Counts::PerRank(counts.collect()));
        }
        let input = call.input_bytes(rank, size).unwrap();
        let output = call.output_bytes(rank, size).unwrap();
        let input = values(data_type, input / data_type.size(), seed);
        Pending { communicator, what: What::Call(call), input, at, output }
    }

    fn work(&self, pending: &Pending) -> Vec<DeviceWork> {
        let input = self.from.address().wrapping_byte_add(pending.at);
        let output = self.to.address().wrapping_byte_add(pending.at);
        let comm = &self.communicators[pending.communicator];
        let (rank, size) = (comm.rank(), comm.size());
        let bytes = pending.output;
        match &pending.what {
            What::Call(call) => {
                vec![DeviceWork::Collective { call: call.clone(), input, output, scalar: None }]
            }
            What::Message => vec![
                DeviceWork::Send { peer: (rank + 1) % size, address: input, bytes },
                DeviceWork::Receive { peer: (rank + size - 1) % size, address: output, bytes },
            ],
        }
    }

    /// Compares what arrived with the same call on the host.
    fn look(&self, pending: &Pending) {
        let comm = &self.communicators[pending.communicator];
        let (rank, size) = (comm.rank(), comm.size());
        let mut found = vec![0; pending.output];
        self.to.read(pending.at, &mut found).unwrap();
        let expected = match &pending.what {
            What::Call(call) => {
                let mut expected = vec![0; pending.output];
                comm.call(call, &pending.input, &mut expected).unwrap();
                expected
            }
            What::Message => {
                let before = u64::from((rank + size - 1) % size);
                values(DataType::U8, pending.output, before * 101 + pending.output as u64)
            }
        };
        if let What::Call(call) = &pending.what {
            assert!(found == expected, "{call:?} on rank {rank} of {size}");
        }
        assert!(found == expected, "a message to rank {rank} of {size}");
    }
}

/// What is drawn: `RINGWAY_SEED`, or one that is always the same.
fn seed() -> u64 {
    let seed = std::env::var("RINGWAY_SEED").ok();
    seed.map_or(0, |text| text.parse().expect("RINGWAY_SEED is a whole number"))
}

/// Fewer where each takes long.
fn most() -> usize {
    if world::is_real() { 10_000 / usize::try_from(world::times()).unwrap() } else { 400 }
}

#[test]
fn random_calls_on_many_streams_end_with_the_bytes_of_the_host() {
    let (seed, most) = (seed(), most());
    let made = world(4, |comm| random(comm, seed, most));
    println!("seed {seed}: calls that ended on each rank: {made:?}");
}

/// The same where they are staged: those of a communicator of two ranks are not, where these share a host.
#[test]
fn random_staged_calls_end_with_the_bytes_of_the_host() {
    let (seed, most) = (seed(), most() / 4);
    let made = hosts(&[0, 1, 0, 2], &[], move |comm| random(comm, seed, most));
    println!("seed {seed}: staged calls that ended on each rank: {made:?}");
}

/// Makes so many calls at least; says how many.
fn random(comm: &Communicator, seed: u64, most: usize) -> usize {
    let side = Side::of(comm);
    side.warm();
    comm.barrier().unwrap();
    let mut draw = Draw::new(seed);
    let mut calls = 0;
    while calls < most {
        let mut batch: Vec<Pending> = Vec::new();
        let mut groups = Vec::new();
        let mut at = 0;
        for _ in 0..=draw.below(GROUPS) {
            // A group of one to three calls of one communicator, on one stream or two.
            let communicator = draw.below(side.communicators.len());
            let first = draw.below(side.streams.len());
            let second = draw.below(side.streams.len());
            let size = 1 + draw.below(TOGETHER);
            let mut work = Vec::new();
            for _ in 0..size {
                let pending = side.prepare(&mut draw, communicator, at);
                let comm = &side.communicators[communicator];
                let bytes = pending.input.len().max(pending.output);
                // The same on every rank, whoever is the root: what all have at most.
                at += MOST * 4 * comm.size() as usize;
                assert!(pending.at + bytes <= at);
                side.from.write(pending.at, &pending.input).unwrap();
                side.to.write(pending.at, &vec![0; pending.output]).unwrap();
                work.extend(side.work(&pending));
                batch.push(pending);
            }
            calls += work.len();
            groups.push((communicator, [first, second], work));
        }
        world::meet(comm);
        for (communicator, [first, second], work) in &groups {
            let streams = [*first, *second].map(|stream| side.streams[stream].stream());
            let streams = if first == second { &streams[..1] } else { &streams[..] };
            // SAFETY: the memory is used by nobody else in this batch, and lives longer.
            unsafe { side.communicators[*communicator].enqueue(streams, work) }.unwrap();
        }
        world::meet(comm);
        for stream in &side.streams {
            stream.synchronize().unwrap();
        }
        for pending in &batch {
            side.look(pending);
        }
    }
    for one in &side.communicators {
        one.check().unwrap();
    }
    // Nobody gives memory back while another waits in a kernel.
    comm.barrier().unwrap();
    calls
}
