#![allow(unsafe_code, reason = "kernels use addresses of device memory")]
//! GPUs whose multiprocessors are all taken by kernels that wait: what they wait for finds a place all the same.

use std::time::Duration;

use ringway::config::Config;
use ringway::device::{Buffer, DeviceStream};
use ringway::plan::problem::Counts;
use ringway::plan::types::Level;
use ringway::testing::world_with;
use ringway::{Call, Collective, Communicator, DataType, DeviceWork};

use crate::collectives::values;
use crate::processes::{is_apart, run_apart};
use crate::world::{self, config, is_real, patience};

/// A fake GPU with so many multiprocessors, each of which runs one block.
fn few(processors: u32) -> [(&'static str, String); 2] {
    [("FAKE_CUDA_SMS", processors.to_string()), ("FAKE_CUDA_FULL", "1".to_owned())]
}

const RANKS: u32 = 4;
const COMMUNICATORS: usize = 3;

/// Values of a call that has as many blocks as a launch may have.
const COUNT: usize = 600_000;

#[test]
fn calls_that_wait_for_a_late_rank_leave_it_room() {
    if config().is_some()
        && is_apart("full::calls_that_wait_for_a_late_rank_leave_it_room", &few(16))
    {
        world_with(RANKS, &impatient(), late);
    }
}

/// A rank that finds no place is an error, not a test without an end.
fn impatient() -> Config {
    let mut config = config().unwrap();
    config.timeout = patience(20);
    config
}

/// Calls of several communicators side by side, of which the last rank makes its own late, and the other way round.
fn late(comm: &Communicator) {
    let communicators: Vec<_> = (0..COMMUNICATORS).map(|_| comm.dup().unwrap()).collect();
    for one in &communicators {
        one.attach_gpu(None).unwrap();
    }
    let gpu = communicators[0].gpu().expect("a GPU");
    let streams: Vec<_> = (0..COMMUNICATORS).map(|_| DeviceStream::new(&gpu).unwrap()).collect();
    let buffer = || Buffer::new(&gpu, COUNT * 4).unwrap();
    let buffers: Vec<_> = (0..COMMUNICATORS).map(|_| (buffer(), buffer())).collect();
    let call = Call::new(Collective::AllReduce, DataType::F32, COUNT as u64);
    let enqueue = |one: usize| {
        let (input, output) = (buffers[one].0.address(), buffers[one].1.address());
        let work = DeviceWork::Collective { call: call.clone(), input, output, scalar: None };
        // SAFETY: the buffers have the sizes of the call, and live until the streams were waited for.
        unsafe { communicators[one].enqueue(&[streams[one].stream()], &[work]) }.unwrap();
    };
    let finish = |one: usize| {
        world::finish(comm, &streams[one]);
        communicators[one].check().unwrap();
    };
    for (one, (from, _)) in buffers.iter().enumerate() {
        let input = values(DataType::F32, COUNT, u64::from(comm.rank()) * 7 + one as u64);
        from.write(0, &input).unwrap();
        // The kernel is loaded before others wait.
        comm.barrier().unwrap();
        enqueue(one);
        finish(one);
    }
    for _ in 0..3 {
        comm.barrier().unwrap();
        if comm.rank() + 1 == RANKS {
            std::thread::sleep(Duration::from_millis(200));
            (0..COMMUNICATORS).rev().for_each(enqueue);
        } else {
            (0..COMMUNICATORS).for_each(enqueue);
        }
        (0..COMMUNICATORS).for_each(finish);
    }
    comm.barrier().unwrap();
    for (one, (from, to)) in buffers.iter().enumerate() {
        let (mut input, mut found) = (vec![0; COUNT * 4], vec![0; COUNT * 4]);
        from.read(0, &mut input).unwrap();
        to.read(0, &mut found).unwrap();
        let mut expected = vec![0; COUNT * 4];
        communicators[one].call(&call.clone().level(Level::Shape), &input, &mut expected).unwrap();
        assert!(found == expected, "communicator {one} on rank {}", comm.rank());
    }
    // Nobody gives memory back while another waits in a kernel.
    comm.barrier().unwrap();
}

/// Runs `body` on three ranks whose communicator has others beside it, which leave it fewer blocks than there are parts of a call.
fn among_others(test: &str, processors: u32, body: fn(&Communicator)) {
    if config().is_none() || !is_apart(test, &few(processors)) {
        return;
    }
    world_with(3, &impatient(), |comm| {
        let others: Vec<_> = (0..3).map(|_| comm.dup().unwrap()).collect();
        for one in others.iter().chain([comm]) {
            one.attach_gpu(None).unwrap();
        }
        body(comm);
        // Nobody gives memory back while another waits in a kernel.
        comm.barrier().unwrap();
    });
}

/// Enqueues groups of calls that all ranks make, and waits for them.
fn run(comm: &Communicator, stream: &DeviceStream, groups: &[&[DeviceWork]]) {
    comm.barrier().unwrap();
    for group in groups {
        // SAFETY: buffers have the sizes of the calls, and live until the stream was waited for.
        unsafe { comm.enqueue(&[stream.stream()], group) }.unwrap();
    }
    world::finish(comm, stream);
    comm.check().unwrap();
}

fn read(from: &Buffer, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    from.read(0, &mut found).unwrap();
    found
}

/// Ranks that put the same calls into different launches.
#[test]
fn calls_end_whatever_is_in_a_launch() {
    among_others("full::calls_end_whatever_is_in_a_launch", 12, together_and_one_by_one);
}

fn together_and_one_by_one(comm: &Communicator) {
    let gpu = comm.gpu().expect("a GPU");
    let stream = DeviceStream::new(&gpu).unwrap();
    let bytes = COUNT * 4;
    let [from, one, two] = [(); 3].map(|()| Buffer::new(&gpu, bytes).unwrap());
    let input = values(DataType::F32, COUNT, comm.rank().into());
    from.write(0, &input).unwrap();
    let call = |output: &Buffer| DeviceWork::Collective {
        call: Call::new(Collective::AllReduce, DataType::F32, COUNT as u64),
        input: from.address(),
        output: output.address(),
        scalar: None,
    };
    // Kernels are loaded.
    run(comm, &stream, &[&[call(&one)]]);
    let expected = read(&one, bytes);
    // Two calls in one launch of rank 0, and in two of the others.
    let (first, second) = ([call(&one)], [call(&two)]);
    match comm.rank() {
        0 => run(comm, &stream, &[&[call(&one), call(&two)]]),
        _ => run(comm, &stream, &[&first, &second]),
    }
    assert!(read(&one, bytes) == expected && read(&two, bytes) == expected);
    // Rank 0 sends to both in one launch; rank 2 takes what rank 1 sends first, and that comes after what rank 1 takes.
    let send = |peer: u32| DeviceWork::Send { peer, address: from.address(), bytes };
    let take = |peer: u32, to: &Buffer| DeviceWork::Receive { peer, address: to.address(), bytes };
    match comm.rank() {
        0 => run(comm, &stream, &[&[send(1), send(2)]]),
        1 => run(comm, &stream, &[&[take(0, &one)], &[send(2)]]),
        _ => run(comm, &stream, &[&[take(1, &one)], &[take(0, &two)]]),
    }
    let sent = |rank: u32| values(DataType::F32, COUNT, rank.into());
    match comm.rank() {
        0 => {}
        1 => assert!(read(&one, bytes) == sent(0)),
        _ => assert!(read(&one, bytes) == sent(1) && read(&two, bytes) == sent(0)),
    }
}

/// Whoever has no values to show is waited for by nobody: what was shown before must not be shown over meanwhile. Seen where a rank has fewer blocks
/// than others, and is long about what it reads.
#[test]
fn calls_of_nothing_come_between_others() {
    among_others("full::calls_of_nothing_come_between_others", 48, something_and_nothing);
}

fn something_and_nothing(comm: &Communicator) {
    const VALUES: usize = 20_000;
    let gpu = comm.gpu().expect("a GPU");
    let stream = DeviceStream::new(&gpu).unwrap();
    let [from, one, two] = [(); 3].map(|()| Buffer::new(&gpu, VALUES * 4).unwrap());
    from.write(0, &values(DataType::F32, VALUES, comm.rank().into())).unwrap();
    let work = |call: Call, output: &Buffer| {
        let (input, output) = (from.address(), output.address());
        [DeviceWork::Collective { call, input, output, scalar: None }]
    };
    let reduce = |count: usize| Call::new(Collective::AllReduce, DataType::F32, count as u64);
    let (all, nothing) = (work(reduce(VALUES), &one), work(reduce(0), &two));
    // The last rank has nothing; only it waits for the others.
    let gather = Call::new(Collective::AllGather, DataType::F32, 0);
    let gather = work(gather.counts(Counts::PerRank([5, 7, 0].into())), &two);
    // Kernels are loaded.
    run(comm, &stream, &[&all]);
    run(comm, &stream, &[&gather]);
    let expected = read(&one, VALUES * 4);
    for round in 0..30 {
        let between = if round % 2 == 0 { &nothing } else { &gather };
        run(comm, &stream, &[&all, between, &all, between, &all]);
        assert!(read(&one, VALUES * 4) == expected, "round {round} on rank {}", comm.rank());
    }
}

#[test]
fn random_calls_end_where_there_is_little_room() {
    if !is_real() && config().is_some() {
        run_apart("random::random_calls_on_many_streams_end_with_the_bytes_of_the_host", &few(24));
    }
}

#[test]
fn staged_calls_end_where_there_is_little_room() {
    if is_real() || config().is_none() {
        return;
    }
    for test in ["every_collective_has_the_bytes_of_the_host", "messages_go_all_ways_at_once"] {
        run_apart(&format!("staged::{test}"), &few(16));
    }
}
