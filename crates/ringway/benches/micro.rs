//! Microbenchmarks: reduction kernels, the dispatch of a call, the shared-memory handshake.
//!
//!     cargo bench -p ringway

use std::sync::mpsc::{Receiver, channel};

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use ringway::bootstrap::Options;
use ringway::config::Config;
use ringway::control::{Journal, Signature};
use ringway::plan::types::Form;
use ringway::reduce::{Kernel, Operand};
use ringway::{Collective, Communicator, DataType, Level, ReduceOp, UniqueId};

fn main() {
    divan::main();
}

/// Operands that fit the second-level cache.
const FOLDED_BYTES: usize = 64 << 10;

#[divan::bench(args = [DataType::F32, DataType::Bf16, DataType::F16, DataType::F64, DataType::I32])]
fn sum_of_two(bencher: Bencher<'_, '_>, data_type: DataType) {
    fold(bencher, data_type, ReduceOp::Sum, 2);
}

#[divan::bench(args = [DataType::F32, DataType::Bf16, DataType::F8e4m3, DataType::I8])]
fn sum_of_eight(bencher: Bencher<'_, '_>, data_type: DataType) {
    fold(bencher, data_type, ReduceOp::Sum, 8);
}

#[divan::bench(args = [ReduceOp::Prod, ReduceOp::Max, ReduceOp::Avg])]
fn f32_of_two(bencher: Bencher<'_, '_>, op: ReduceOp) {
    fold(bencher, DataType::F32, op, 2);
}

fn fold(bencher: Bencher<'_, '_>, data_type: DataType, op: ReduceOp, operands: usize) {
    let kernel = Kernel::new(data_type, op, 8);
    let inputs = vec![vec![0_u64; FOLDED_BYTES / 8]; operands];
    let mut output = vec![0_u64; FOLDED_BYTES / 8];
    let list: Vec<Operand> = inputs
        .iter()
        .map(|input| Operand { address: input.as_ptr().cast(), form: Form::Element, scale: None })
        .collect();
    let count = FOLDED_BYTES / data_type.size();
    bencher.counter(BytesCount::new(FOLDED_BYTES * operands)).bench_local(|| {
        let target = output.as_mut_ptr().cast();
        // SAFETY: all buffers have so many values, and nobody else uses them.
        #[expect(unsafe_code, reason = "kernels take addresses")]
        unsafe {
            kernel.reduce(target, Form::Element, true, &list, count);
        }
    });
}

fn join(id: &UniqueId, rank: u32, ranks: u32) -> Communicator {
    Communicator::from_unique_id(id, rank, ranks, Config::default()).expect("this host has memory")
}

fn unique_id() -> UniqueId {
    UniqueId::generate(&Options::default()).expect("this host has a loopback address")
}

/// A call that was made before, of one rank: all that happens besides talking to others.
#[divan::bench]
fn dispatch(bencher: Bencher<'_, '_>) {
    let comm = join(&unique_id(), 0, 1);
    let mut values = [1.0_f32; 2];
    bencher.bench_local(|| {
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum).expect("nobody to disagree with");
    });
}

/// What it takes to name a call so that ranks can compare it, and to note that it was entered and left.
#[divan::bench]
fn signature_and_journal(bencher: Bencher<'_, '_>) {
    let journal = Journal::new();
    let (mut history, mut sequence) = (0, 0);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for _ in 0..BATCH {
            let signature = Signature {
                sequence,
                collective: Collective::AllReduce,
                count: 2,
                data_type: Some(DataType::F32),
                op: Some(ReduceOp::Sum),
                root: None,
                level: Level::Run,
                extra: 0,
            };
            journal.begin(&signature);
            history = signature.tag_after(history);
            journal.end(sequence);
            sequence += 1;
        }
        history
    });
}

/// Calls that are timed together: telling the other rank how many come next takes time itself.
const BATCH: usize = 1000;

/// Two ranks on shared memory: there and back through cards, with and without values.
#[divan::bench]
fn barrier_of_two(bencher: Bencher<'_, '_>) {
    of_two(bencher, |comm| comm.barrier().expect("both are there"));
}

#[divan::bench]
fn all_reduce_of_two(bencher: Bencher<'_, '_>) {
    of_two(bencher, |comm| {
        let mut values = [1.0_f32; 2];
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum).expect("both are there");
    });
}

/// Through a stage and counters.
#[divan::bench]
fn all_reduce_of_two_1_kib(bencher: Bencher<'_, '_>) {
    of_two(bencher, |comm| {
        let mut values = [1.0_f32; 256];
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum).expect("both are there");
    });
}

fn of_two(bencher: Bencher<'_, '_>, call: fn(&Communicator)) {
    let id = unique_id();
    std::thread::scope(|scope| {
        let (sender, batches): (_, Receiver<usize>) = channel();
        let other = &id;
        scope.spawn(move || {
            let comm = join(other, 1, 2);
            for batch in batches {
                (0..batch).for_each(|_| call(&comm));
            }
        });
        let comm = join(&id, 0, 2);
        bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
            sender.send(BATCH).expect("the other rank is there");
            (0..BATCH).for_each(|_| call(&comm));
        });
        drop(sender);
    });
}
