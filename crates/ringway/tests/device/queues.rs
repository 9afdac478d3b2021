#![allow(unsafe_code, reason = "kernels use addresses of device memory")]
//! Streams of several threads: those that have their first work while other threads enqueue, so that what they wait for must be in no queue behind
//! them; the one handle that is another stream in each thread; and one stream that several ranks use.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ringway::device::{Buffer, DeviceStream, Stream};
use ringway::testing::world_with;
use ringway::{Call, Collective, Communicator, DataType, DeviceWork, ErrorKind};

use crate::collectives::values;
use crate::driver::call;
use crate::graph::OwnStream;
use crate::processes::is_apart;
use crate::world::{self, config, is_real, patience, world};

const RANKS: u32 = 2;
/// Streams of a rank. With those for copies all ranks together have no more than a GPU has queues.
const STREAMS: usize = 12;
/// Calls on each, in a row: the second stands behind the first, and whatever came into the same queue later behind both.
const CALLS: usize = 3;

#[test]
fn first_calls_of_threads_do_not_stand_behind_each_other() {
    const TEST: &str = "queues::first_calls_of_threads_do_not_stand_behind_each_other";
    let Some(mut config) = config() else { return };
    if is_apart(TEST, &[("FAKE_CUDA_FIRST", "200".to_owned())]) {
        // A call that stands is an error, not a test without an end.
        config.timeout = patience(20);
        world_with(RANKS, &config, first_calls);
    }
}

/// All ranks call at once, on streams that nobody has used.
fn first_calls(comm: &Communicator) {
    comm.attach_gpu(None).unwrap();
    let gpu = comm.gpu().expect("a GPU");
    let memory = Buffer::new(&gpu, 8192).unwrap();
    let streams: Vec<_> = (0..=STREAMS).map(|_| DeviceStream::new(&gpu).unwrap()).collect();
    let enqueue = |stream: &DeviceStream| {
        let call = Call::new(Collective::AllReduce, DataType::F32, 100);
        let (input, output) = (memory.address(), memory.address().wrapping_byte_add(4096));
        let work = DeviceWork::Collective { call, input, output, scalar: None };
        // SAFETY: the memory is larger, and lives until the streams were waited for.
        unsafe { comm.enqueue(&[stream.stream()], &[work]) }.unwrap();
    };
    // The kernel is loaded before any waits.
    enqueue(&streams[STREAMS]);
    world::finish(comm, &streams[STREAMS]);
    for stream in &streams[..STREAMS] {
        comm.barrier().unwrap();
        for _ in 0..CALLS {
            enqueue(stream);
        }
        world::finish(comm, stream);
        comm.check().unwrap();
    }
    // Nobody gives memory back while another waits in a kernel.
    comm.barrier().unwrap();
}

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: *mut c_void = std::ptr::without_provenance_mut(2);

/// Puts its first work on this thread's own stream, a byte of device memory, and waits for it.
fn use_once(at: *mut c_void) {
    let OwnStream { cuda, .. } = OwnStream::new();
    let set = call!(cuda, cuMemsetD8Async(at => *mut c_void, 0 => u8, 1 => usize, PER_THREAD => *mut c_void));
    assert_eq!(set, 0);
    assert_eq!(call!(cuda, cuStreamSynchronize(PER_THREAD => *mut c_void)), 0);
}

/// Calls on each thread's own stream come one after another all the same.
#[test]
fn calls_of_threads_on_their_own_streams_keep_their_order() {
    world(2, |comm| {
        comm.attach_gpu(None).unwrap();
        let gpu = comm.gpu().expect("a GPU");
        let [from, to] = [(); 2].map(|()| Buffer::new(&gpu, 3 * 4096).unwrap());
        let input = values(DataType::F32, 3 * 1024, comm.rank().into());
        from.write(0, &input).unwrap();
        let call = Call::new(Collective::AllReduce, DataType::F32, 1000);
        let enqueue = &|stream: Stream, at: usize| {
            let (input, output) = (from.address(), to.address());
            let (input, output) = (input.wrapping_byte_add(at), output.wrapping_byte_add(at));
            let work = DeviceWork::Collective { call: call.clone(), input, output, scalar: None };
            // SAFETY: inside of the memory, which lives until the last of them was waited for.
            unsafe { comm.enqueue(&[stream], &[work]) }.unwrap();
        };
        let own = Stream::from_handle(PER_THREAD);
        let last = DeviceStream::new(&gpu).unwrap();
        enqueue(last.stream(), 0);
        world::finish(comm, &last);
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            let threads = [0, 4096].map(|at| {
                let (go, goes) = channel::<()>();
                let (tell, to) = (tell.clone(), &to);
                scope.spawn(move || {
                    use_once(to.address().wrapping_byte_add(at + 4000));
                    tell.send(()).unwrap();
                    if goes.recv().is_ok() {
                        enqueue(own, at);
                        tell.send(()).unwrap();
                        // A thread that ends leaves its stream to the next.
                        let _goes = goes.recv();
                    }
                });
                go
            });
            drop(tell);
            for _ in &threads {
                told.recv().unwrap();
            }
            // A stream's first work may wait for kernels (under racecheck it seems to), and those for this rank.
            comm.barrier().unwrap();
            if comm.rank() == 1 {
                // The other rank's kernels wait meanwhile: if both were at work, they would be mixed up.
                std::thread::sleep(Duration::from_millis(100));
            }
            for go in &threads {
                go.send(()).unwrap();
                told.recv().unwrap();
            }
            enqueue(last.stream(), 8192);
            world::finish(comm, &last);
        });
        comm.check().unwrap();
        for at in [0, 4096, 8192] {
            let (mut found, mut expected) = (vec![0; 4000], vec![0; 4000]);
            to.read(at, &mut found).unwrap();
            comm.call(&call, &input[at..at + 4000], &mut expected).unwrap();
            assert!(found == expected, "call at {at} on rank {}", comm.rank());
        }
        comm.barrier().unwrap();
    });
}

/// Two ranks that put the same call on one stream: what the first waits for cannot begin. No deadline has to pass to say so.
#[test]
fn calls_of_two_ranks_on_one_stream_are_an_error_at_once() {
    let Some(mut config) = config() else { return };
    config.timeout = patience(120);
    let common = OnceLock::new();
    let errors = world_with(2, &config, |comm| {
        comm.attach_gpu(None).unwrap();
        let gpu = comm.gpu().expect("a GPU");
        let memory = Buffer::new(&gpu, 8192).unwrap();
        let streams = [(); 2].map(|()| DeviceStream::new(&gpu).unwrap());
        let enqueue = |stream: Stream| {
            let call = Call::new(Collective::AllReduce, DataType::F32, 1000);
            let (input, output) = (memory.address(), memory.address().wrapping_byte_add(4096));
            let work = DeviceWork::Collective { call, input, output, scalar: None };
            // SAFETY: the memory is larger, and lives until kernels have ended.
            unsafe { comm.enqueue(&[stream], &[work]) }.unwrap();
        };
        let [own, first] = &streams;
        if comm.rank() == 0 {
            common.get_or_init(|| first.stream());
        }
        comm.barrier().unwrap();
        let common: Stream = *common.get().unwrap();
        // One after the other may use a stream,
        for user in 0..2 {
            enqueue(if comm.rank() == user { common } else { own.stream() });
            world::finish(comm, own);
            if comm.rank() == 0 {
                first.synchronize().unwrap();
            }
            comm.barrier().unwrap();
        }
        // also where the other is long in coming,
        if comm.rank() == 0 {
            enqueue(common);
        }
        std::thread::sleep(Duration::from_millis(2500));
        comm.check().unwrap();
        if comm.rank() == 1 {
            enqueue(own.stream());
        }
        world::finish(comm, if comm.rank() == 0 { first } else { own });
        comm.barrier().unwrap();
        // but not both at once.
        enqueue(common);
        let began = Instant::now();
        loop {
            if let Err(error) = comm.check() {
                return error;
            }
            assert!(began.elapsed() < patience(60), "no error");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    for error in &errors {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{text}");
        assert!(text.contains("launch 4, enqueued for all_reduce of 1000 float"), "{text}");
        assert!(text.contains("put their calls on the same stream"), "{text}");
    }
}

/// A driver may give the handle of a stream that was destroyed to the next, while there is still work in the first.
#[test]
fn calls_on_streams_that_have_the_same_handle_keep_their_order() {
    // More than cards have: launches that meet by the same words.
    const COUNT: usize = 300_000;
    const TEST: &str = "queues::calls_on_streams_that_have_the_same_handle_keep_their_order";
    let Some(mut config) = config() else { return };
    // Where no other test takes a handle that is given back.
    if !is_apart(TEST, &[]) {
        return;
    }
    // A call that stands is an error, not a test without an end.
    config.timeout = patience(30);
    world_with(2, &config, |comm| {
        comm.attach_gpu(None).unwrap();
        let gpu = comm.gpu().expect("a GPU");
        let values: Vec<Buffer> = (0..4).map(|_| Buffer::new(&gpu, 4 * COUNT).unwrap()).collect();
        for (buffer, value) in values.iter().zip([1_u32, 0, 10, 0]) {
            buffer.write(0, &(value * (comm.rank() + 1)).to_le_bytes().repeat(COUNT)).unwrap();
        }
        let mut stream = DeviceStream::new(&gpu).unwrap();
        let sum = |stream: &DeviceStream, from: &Buffer, to: &Buffer| {
            let call = Call::new(Collective::AllReduce, DataType::U32, COUNT as u64);
            let (input, output) = (from.address().cast_const(), to.address());
            let work = DeviceWork::Collective { call, input, output, scalar: None };
            // SAFETY: the memory has the size of the call, and lives until the streams were waited for.
            unsafe { comm.enqueue(&[stream.stream()], &[work]) }.unwrap();
        };
        sum(&stream, &values[0], &values[1]);
        world::finish(comm, &stream);
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            // The other rank's kernels wait meanwhile.
            std::thread::sleep(Duration::from_millis(300));
        }
        sum(&stream, &values[0], &values[1]);
        if comm.rank() == 0 {
            let handle = stream.stream();
            drop(stream);
            stream = DeviceStream::new(&gpu).unwrap();
            assert!(is_real() || stream.stream() == handle, "another handle");
        }
        sum(&stream, &values[2], &values[3]);
        world::finish(comm, &stream);
        comm.check().unwrap();
        for (buffer, expected) in [(&values[1], 3_u32), (&values[3], 30)] {
            let mut found = vec![0; 4 * COUNT];
            buffer.read(0, &mut found).unwrap();
            assert!(
                found == expected.to_le_bytes().repeat(COUNT),
                "not {expected}: {:?}",
                &found[..8]
            );
        }
        comm.barrier().unwrap();
    });
}
