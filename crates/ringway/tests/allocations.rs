//! A call that was made before allocates nothing.

#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ringway::{Collective, Communicator, DataType, ReduceOp};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what each thread allocates.
struct Counting;

// SAFETY: everything is the system allocator's; counting touches a plain thread-local only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of this thread while `body` runs.
fn count(body: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    body();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert!(count(|| drop(std::hint::black_box(vec![1_u8; 100]))) >= 1);
    assert_eq!(count(|| ()), 0);
}

/// One of each, in place and not, small and in many pieces.
fn calls(comm: &Communicator, buffers: &mut (Vec<f32>, Vec<f32>)) {
    let size = comm.size() as usize;
    let (input, output) = buffers;
    for count in [1, 300, 100_000] {
        comm.all_reduce(&input[..count], &mut output[..count], ReduceOp::Sum).unwrap();
        comm.all_reduce_in_place(&mut output[..count], ReduceOp::Avg).unwrap();
        comm.broadcast(&mut output[..count], 1).unwrap();
        comm.all_gather(&input[..count], &mut output[..count * size]).unwrap();
        let whole = &input[..count * size];
        comm.reduce_scatter(whole, &mut output[..count], ReduceOp::Max).unwrap();
        comm.all_to_all(whole, &mut output[..count * size]).unwrap();
    }
    comm.barrier().unwrap();
    let call = ringway::Call::new(Collective::AllReduce, DataType::F64, 4);
    comm.call(&call, &[0; 32], &mut [0; 32]).unwrap();
}

fn check(config: &ringway::config::Config) {
    let counts = ringway::testing::world_with(2, config, |comm| {
        let mut buffers = (vec![1.0; 200_000], vec![0.0; 200_000]);
        for _ in 0..3 {
            calls(comm, &mut buffers);
        }
        count(|| (0..10).for_each(|_| calls(comm, &mut buffers)))
    });
    assert_eq!(counts, [0, 0]);
}

#[test]
fn a_call_made_before_allocates_nothing_over_shared_memory() {
    check(&ringway::config::Config::default());
}
