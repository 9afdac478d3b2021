#![allow(unsafe_code, reason = "kernels use addresses of device memory")]
//! GPUs whose multiprocessors are all taken by kernels that wait: what they wait for finds a place all the same.

use std::time::Duration;

use ringway::device::{Buffer, DeviceStream};
use ringway::plan::types::Level;
use ringway::testing::world_with;
use ringway::{Call, Collective, Communicator, DataType, DeviceWork};

use crate::collectives::values;
use crate::processes::{RANK, command, root, wait};
use crate::world::{config, is_real, patience};

/// Runs a test in a process of its own, on a fake GPU with so many multiprocessors, each of which runs one block.
fn run_on_few(test: &str, processors: u32) {
    let mut command = command(test, 0, 1, &root());
    command.env("FAKE_CUDA_SMS", processors.to_string()).env("FAKE_CUDA_FULL", "1");
    wait(vec![command.spawn().unwrap()]);
}

const RANKS: u32 = 4;
const COMMUNICATORS: usize = 3;

/// Values of a call that has as many blocks as a launch may have.
const COUNT: usize = 600_000;

#[test]
fn calls_that_wait_for_a_late_rank_leave_it_room() {
    let Some(mut config) = config() else { return };
    if !is_real() && std::env::var_os(RANK).is_none() {
        return run_on_few("full::calls_that_wait_for_a_late_rank_leave_it_room", 16);
    }
    // A rank that finds no place is an error, not a test without an end.
    config.timeout = patience(20);
    world_with(RANKS, &config, late);
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
    for one in 0..COMMUNICATORS {
        let input = values(DataType::F32, COUNT, u64::from(comm.rank()) * 7 + one as u64);
        buffers[one].0.write(0, &input).unwrap();
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
