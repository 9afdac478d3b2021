#![allow(unsafe_code, reason = "runs operations on memory that a C program gave by address")]
//! Runs what a group has collected: for each communicator its operations, in the order of the calls.
//!
//! One of the two places that know of GPUs, with `memory`. On host memory operations run at once:
//! when [`submit`] returns they are over, and streams mean nothing. So they do on a rank without a GPU whose
//! peers have some.
//!
//! Several ranks of one process may be in one group, from one thread: each communicator's operations
//! run in a thread of their own, but for the first, so that all make progress together.

use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use ringway::device::Stream;
use ringway::{Communicator, DeviceWork, Error, Group, Result};

use crate::boundary::contain;
use crate::comm::Comm;
use crate::memory::{Memory, memory_of};
use crate::operation::{Kind, Operation};
use crate::operator::Factor;

/// A communicator's part of a group.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) comm: Arc<Comm>,
    pub(crate) operations: Vec<Operation>,
}

/// Runs batches of different communicators side by side; what became of each, in their order.
///
/// Their buffers are as nccl.h asks: valid, of the sizes the calls say, and left alone by everybody
/// else until the group is over.
pub(crate) fn submit(batches: &[Batch]) -> Vec<Result<()>> {
    // What only enqueues needs no threads; a rank without a GPU among those with one waits.
    if batches.iter().all(|batch| batch.is_on_device() && !batch.is_mixed()) {
        let on_device = |batch: &Batch| {
            contain("a group of calls", || {
                let inside = batch.comm.enter()?;
                enqueue(&inside.communicator, &batch.operations)
            })
        };
        return batches.iter().map(on_device).collect();
    }
    let Some((first, others)) = batches.split_first() else { return Vec::new() };
    if others.is_empty() {
        return vec![run(first)];
    }
    std::thread::scope(|scope| {
        let threads: Vec<std::io::Result<ScopedJoinHandle<'_, Result<()>>>> = others
            .iter()
            .map(|batch| {
                let builder =
                    std::thread::Builder::new().name(format!("ringway-group-{}", batch.comm.rank));
                builder.spawn_scoped(scope, move || run(batch))
            })
            .collect();
        let mut outcomes = vec![run(first)];
        outcomes.extend(threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(Error::internal("a thread died"))),
            Err(error) => Err(Error::system("cannot start a thread for a communicator", error)),
        }));
        outcomes
    })
}

fn run(batch: &Batch) -> Result<()> {
    contain("a group of calls", || {
        ringway::log::set_thread_rank(batch.comm.rank);
        let inside = batch.comm.enter()?;
        if batch.is_on_device() || batch.is_mixed() {
            return enqueue(&inside.communicator, &batch.operations);
        }
        let mut group = inside.communicator.group();
        for operation in &batch.operations {
            add(&mut group, &operation.kind)?;
        }
        group.run()
    })
}

impl Batch {
    /// Whether its ranks take part in one call from GPU memory and from the host's: then the others cannot
    /// know where the memory of this one is, and all goes one way.
    fn is_mixed(&self) -> bool {
        self.comm.communicator().is_ok_and(|communicator| communicator.has_ranks_without_gpu())
    }

    /// Whether a buffer of it is in GPU memory. Then all must be: a mixture is refused when it is run.
    fn is_on_device(&self) -> bool {
        let is_on_device = |address: usize| address != 0 && memory_of(address) == Memory::Device;
        self.operations.iter().any(|operation| match &operation.kind {
            Kind::Collective { input, output, .. } => is_on_device(*output) || is_on_device(*input),
            Kind::Send { buffer, .. } | Kind::Receive { buffer, .. } => is_on_device(*buffer),
        })
    }
}

/// Puts operations on GPU memory on their streams.
fn enqueue(communicator: &Communicator, operations: &[Operation]) -> Result<()> {
    if !communicator.has_ranks_without_gpu() {
        for operation in operations {
            on_device(communicator, &operation.kind)?;
        }
    }
    let mut streams: Vec<Stream> = Vec::with_capacity(1);
    let mut work = Vec::with_capacity(operations.len());
    for operation in operations {
        let handle = std::ptr::with_exposed_provenance_mut(operation.stream);
        let stream = Stream::from_handle(handle);
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        work.push(match &operation.kind {
            Kind::Collective { call, factor, input, output } => {
                let mut call = call.clone();
                let mut scalar = None;
                match factor {
                    Some(Factor::At { scalar: at, .. })
                        if memory_of(at.address()) == Memory::Device =>
                    {
                        scalar = Some(std::ptr::with_exposed_provenance(at.address()));
                    }
                    Some(factor) => call.scalar = factor.value()?,
                    None => {}
                }
                DeviceWork::Collective {
                    call,
                    input: std::ptr::with_exposed_provenance(*input),
                    output: std::ptr::with_exposed_provenance_mut(*output),
                    scalar,
                }
            }
            Kind::Send { buffer, bytes, peer } => DeviceWork::Send {
                peer: *peer,
                address: std::ptr::with_exposed_provenance(*buffer),
                bytes: *bytes,
            },
            Kind::Receive { buffer, bytes, peer } => DeviceWork::Receive {
                peer: *peer,
                address: std::ptr::with_exposed_provenance_mut(*buffer),
                bytes: *bytes,
            },
        });
    }
    // SAFETY: the program promises, by nccl.h, buffers that are valid until the stream has come past the
    // calls, and streams that are alive.
    unsafe { communicator.enqueue(&streams, &work) }
}

fn add(group: &mut Group<'_>, kind: &Kind) -> Result<()> {
    match kind {
        Kind::Collective { call, factor, input, output } => {
            host(&[*input, *output])?;
            let mut call = call.clone();
            if let Some(factor) = factor {
                call.scalar = factor.value()?;
            }
            let input = std::ptr::with_exposed_provenance(*input);
            let output = std::ptr::with_exposed_provenance_mut(*output);
            // SAFETY: the program promises buffers of the sizes the call says, which are left
            // alone until the group is over; it is when `submit` returns.
            unsafe { group.call_raw(&call, input, output) }
        }
        Kind::Send { buffer, bytes, peer } => {
            host(&[*buffer])?;
            // SAFETY: as above.
            unsafe { group.send_raw(std::ptr::with_exposed_provenance(*buffer), *bytes, *peer) }
        }
        Kind::Receive { buffer, bytes, peer } => {
            host(&[*buffer])?;
            // SAFETY: as above.
            unsafe { group.recv_raw(std::ptr::with_exposed_provenance_mut(*buffer), *bytes, *peer) }
        }
    }
}

/// Refuses memory that the processor cannot reach.
fn host(addresses: &[usize]) -> Result<()> {
    all_in(Memory::Host, addresses)
}

/// Refuses memory that kernels cannot reach. What a rank does not use, as a root's buffer on the others, may
/// be anywhere.
fn on_device(communicator: &Communicator, kind: &Kind) -> Result<()> {
    let (rank, size) = (communicator.rank(), communicator.size());
    match kind {
        Kind::Collective { call, input, output, .. } => {
            let used = |address: usize, bytes: usize| if bytes > 0 { address } else { 0 };
            let input = used(*input, call.input_bytes(rank, size)?);
            all_in(Memory::Device, &[input, used(*output, call.output_bytes(rank, size)?)])
        }
        Kind::Send { buffer, bytes, .. } | Kind::Receive { buffer, bytes, .. } => {
            all_in(Memory::Device, &[if *bytes > 0 { *buffer } else { 0 }])
        }
    }
}

fn all_in(memory: Memory, addresses: &[usize]) -> Result<()> {
    if addresses.iter().all(|address| *address == 0 || memory_of(*address) == memory) {
        return Ok(());
    }
    Err(Error::usage("one buffer of a call is in GPU memory and another in the host's"))
}
