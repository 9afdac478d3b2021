#![allow(unsafe_code, reason = "calls functions of the driver that the library does not use")]
//! Staged calls where ranks without a GPU take part, or where the driver waits.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringway::device::Stream;
use ringway::{Call, Collective, Communicator, DataType, DeviceWork};

use crate::driver::call;
use crate::graph::OwnStream;
use crate::processes::is_apart;
use crate::staged::{Side, all_alike, failure, hosts, hosts_on};
use crate::world;

/// Time for whoever comes next to come first, if that could be.
const MOMENT: Duration = Duration::from_millis(200);

/// A rank without a GPU waits by itself; the others, of which nobody has called, are told what became of that.
#[test]
fn a_wait_of_a_rank_without_a_gpu_is_everybodys_error() {
    let errors = hosts(&[0, 1, 1], &[0], |comm| {
        if comm.rank() == 0 {
            let side = Side::of(comm);
            let call = Call::new(Collective::Broadcast, DataType::F32, 10).root(1);
            let call = call.deadline(Duration::from_millis(300));
            side.enqueue(comm, &[side.work(&call, 0, 1024)]).unwrap_err();
        }
        failure(comm)
    });
    all_alike(&errors, &["rank 1"]);
}

static IS_OVER: AtomicBool = AtomicBool::new(false);

extern "C" fn takes_a_moment(_: *mut c_void) {
    std::thread::sleep(MOMENT);
    IS_OVER.store(true, Ordering::SeqCst);
}

fn put(stream: &OwnStream, function: extern "C" fn(*mut c_void)) {
    let put = call!(stream.cuda, cuLaunchHostFunc(
        stream.handle => *mut c_void, function => extern "C" fn(*mut c_void), null_mut() => *mut c_void
    ));
    assert_eq!(put, 0);
}

/// A call that names no memory is on the stream of a rank that has one.
#[test]
fn a_barrier_comes_behind_what_the_stream_had_before() {
    hosts(&[0, 1], &[1], |comm| {
        let call = Call::new(Collective::Barrier, DataType::U8, 0);
        let barrier =
            DeviceWork::Collective { call, input: null(), output: null_mut(), scalar: None };
        let enqueue = |streams: &[Stream]| {
            // SAFETY: there is no memory, and the stream is waited for below.
            unsafe { comm.enqueue(streams, std::slice::from_ref(&barrier)) }.unwrap();
        };
        if comm.gpu().is_some() {
            let own = OwnStream::new();
            put(&own, takes_a_moment);
            enqueue(&[own.stream()]);
            own.wait();
        } else {
            enqueue(&[]);
            assert!(IS_OVER.load(Ordering::SeqCst), "the other rank's stream is not there yet");
        }
        comm.check().unwrap();
        comm.barrier().unwrap();
    });
}

extern "C" fn stands(_: *mut c_void) {
    std::thread::sleep(MOMENT);
}

/// Messages that need more pinned memory than there is, while others are under way for which the driver waits then.
#[test]
fn pinned_memory_is_taken_while_messages_are_under_way() {
    const TEST: &str = "mixed::pinned_memory_is_taken_while_messages_are_under_way";
    let settings = [("FAKE_CUDA_PINNED", "wait".to_owned()), ("FAKE_CUDA_DEVICES", "2".to_owned())];
    let Some(config) = world::config() else { return };
    if world::is_real() || !is_apart(TEST, &settings) {
        return;
    }
    // To take memory waits for the kernels of the same GPU alone.
    let ordinal = |rank: u32| i32::try_from(rank).ok();
    hosts_on(config, (&[0, 1], &[]), ordinal, more_and_more);
}

fn more_and_more(comm: &Communicator) {
    const LONG: usize = 3 << 20;
    let (side, other) = (Side::of(comm), 1 - comm.rank());
    let own = OwnStream::of(i32::try_from(comm.rank()).unwrap());
    let enqueue = |bytes: usize, to: usize| {
        let at = |offset: usize| side.address().wrapping_byte_add(offset);
        let send = DeviceWork::Send { peer: other, address: at(0), bytes };
        let work = [send, DeviceWork::Receive { peer: other, address: at(to), bytes }];
        // SAFETY: inside of the side's memory, and the stream is waited for before that goes.
        unsafe { comm.enqueue(&[own.stream()], &work) }.unwrap();
    };
    let fill = |rank: u32| vec![u8::try_from(rank + 7).unwrap(); LONG];
    side.write(0, &fill(comm.rank()));
    enqueue(8, LONG);
    own.wait();
    comm.barrier().unwrap();
    // Those under way ask for their memory while the driver waits for them.
    put(&own, stands);
    enqueue(100, LONG);
    enqueue(LONG, 2 * LONG);
    own.wait();
    comm.check().unwrap();
    assert!(side.read(LONG, 100) == fill(other)[..100] && side.read(2 * LONG, LONG) == fill(other));
    comm.barrier().unwrap();
}

/// One end has more in mind than the other, by parts that messages are cut into: neither takes that for a success.
#[test]
fn a_message_that_is_longer_at_one_end_is_an_error() {
    for (bytes, without) in [([12, 8], &[][..]), ([4, 8], &[]), ([8, 4], &[1])] {
        let errors = hosts(&[0, 1], without, move |comm| {
            let side = Side::of(comm);
            let bytes = bytes[usize::from(comm.rank() == 1)] << 20;
            let (peer, address) = (1 - comm.rank(), side.address());
            let work = match comm.rank() {
                0 => DeviceWork::Send { peer, address, bytes },
                _ => DeviceWork::Receive { peer, address, bytes },
            };
            // A rank without a GPU waits here, and the others may be told already.
            let _told = side.enqueue(comm, &[work]);
            side.wait();
            comm.check().map_or_else(|error| error, |()| failure(comm))
        });
        all_alike(&errors, &["different sizes"]);
    }
}

/// Calls of which one has a part more than the other, and the others are alike.
#[test]
fn a_call_that_is_longer_on_one_rank_is_an_error() {
    for without in [&[][..], &[1]] {
        let errors = hosts(&[0, 1], without, |comm| {
            let side = Side::of(comm);
            let count = if comm.rank() == 0 { 65_536 } else { 98_304 };
            let call = Call::new(Collective::AllReduce, DataType::F32, count);
            let _told = side.enqueue(comm, &[side.work(&call, 0, 1 << 20)]);
            side.wait();
            comm.check().map_or_else(|error| error, |()| failure(comm))
        });
        all_alike(&errors, &["mismatch", "of 65536 float", "of 98304 float"]);
    }
}
