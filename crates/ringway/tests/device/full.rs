#![allow(unsafe_code, reason = "kernels use addresses of device memory")]
//! GPUs whose multiprocessors are all taken by kernels that wait: what they wait for finds a place all the same.

use std::time::Duration;

use ringway::config::Config;
use ringway::device::{Buffer, DeviceStream};
use ringway::plan::types::Level;
use ringway::testing::world_with;
use ringway::{Call, Collective, Communicator, DataType, DeviceWork};

use crate::collectives::values;
use crate::processes::{Folder, RANK, command, root, wait};
use crate::world::{config, is_real, patience};

/// Runs a test in a process of its own, on a fake GPU with so many multiprocessors, each of which runs one block.
fn run_on_few(test: &str, processors: u32) {
    let name = format!("ringway-{}-{}", test.replace("::", "-"), std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&folder.0).unwrap();
    let told = folder.0.join("told");
    let mut command = command(test, 0, 1, &root());
    command.env("FAKE_CUDA_SMS", processors.to_string()).env("FAKE_CUDA_FULL", "1");
    command.stdout(std::fs::File::create(&told).unwrap());
    wait(vec![command.spawn().unwrap()]);
    let told = std::fs::read_to_string(told).unwrap();
    assert!(told.contains("1 passed"), "{test}: {told}");
}

/// Whether this process is one whose GPU has few multiprocessors, or a real one; else runs the test in such a process.
fn is_few(test: &str, processors: u32) -> bool {
    let is_few = is_real() || std::env::var_os(RANK).is_some();
    if !is_few {
        run_on_few(test, processors);
    }
    is_few
}

const RANKS: u32 = 4;
const COMMUNICATORS: usize = 3;

/// Values of a call that has as many blocks as a launch may have.
const COUNT: usize = 600_000;

#[test]
fn calls_that_wait_for_a_late_rank_leave_it_room() {
    if config().is_some() && is_few("full::calls_that_wait_for_a_late_rank_leave_it_room", 16) {
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
        streams[one].synchronize().unwrap();
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

/// Ranks that put the same calls into different launches, on communicators that leave each other fewer blocks than there
/// are parts of a call.
#[test]
fn calls_end_whatever_is_in_a_launch() {
    if config().is_some() && is_few("full::calls_end_whatever_is_in_a_launch", 12) {
        world_with(3, &impatient(), |comm| {
            let others: Vec<_> = (0..3).map(|_| comm.dup().unwrap()).collect();
            for one in others.iter().chain([comm]) {
                one.attach_gpu(None).unwrap();
            }
            together_and_one_by_one(comm);
            // Nobody gives memory back while another waits in a kernel.
            comm.barrier().unwrap();
        });
    }
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
    let run = |work: &[&[DeviceWork]]| {
        comm.barrier().unwrap();
        for group in work {
            // SAFETY: the buffers have the sizes of the calls, and live until the stream was waited for.
            unsafe { comm.enqueue(&[stream.stream()], group) }.unwrap();
        }
        stream.synchronize().unwrap();
        comm.check().unwrap();
    };
    let read = |from: &Buffer| {
        let mut found = vec![0; bytes];
        from.read(0, &mut found).unwrap();
        found
    };
    // Kernels are loaded.
    run(&[&[call(&one)]]);
    let expected = read(&one);
    // Two calls in one launch of rank 0, and in two of the others.
    let (first, second) = ([call(&one)], [call(&two)]);
    match comm.rank() {
        0 => run(&[&[call(&one), call(&two)]]),
        _ => run(&[&first, &second]),
    }
    assert!(read(&one) == expected && read(&two) == expected);
    // Rank 0 sends to both in one launch; rank 2 takes what rank 1 sends first, and that comes after what rank 1 takes.
    let send = |peer: u32| DeviceWork::Send { peer, address: from.address(), bytes };
    let take = |peer: u32, to: &Buffer| DeviceWork::Receive { peer, address: to.address(), bytes };
    match comm.rank() {
        0 => run(&[&[send(1), send(2)]]),
        1 => run(&[&[take(0, &one)], &[send(2)]]),
        _ => run(&[&[take(1, &one)], &[take(0, &two)]]),
    }
    let sent = |rank: u32| values(DataType::F32, COUNT, rank.into());
    match comm.rank() {
        0 => {}
        1 => assert!(read(&one) == sent(0)),
        _ => assert!(read(&one) == sent(1) && read(&two) == sent(0)),
    }
}

#[test]
fn random_calls_end_where_there_is_little_room() {
    if !is_real() && config().is_some() {
        run_on_few("random::random_calls_on_many_streams_end_with_the_bytes_of_the_host", 24);
    }
}

#[test]
fn staged_calls_end_where_there_is_little_room() {
    if is_real() || config().is_none() {
        return;
    }
    for test in ["every_collective_has_the_bytes_of_the_host", "messages_go_all_ways_at_once"] {
        run_on_few(&format!("staged::{test}"), 16);
    }
}
