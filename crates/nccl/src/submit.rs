#![allow(unsafe_code, reason = "runs operations on memory that a C program gave by address")]
//! Runs what a group has collected: for each communicator its operations, in the order of the calls.
//!
//! One of the two places that know of GPUs, with `memory`. On host memory operations run at once:
//! when [`submit`] returns they are over, and streams mean nothing, but that those which may still use pinned memory are
//! waited for first. So they do on a rank without a GPU whose peers have some.
//!
//! Several ranks of one process may be in one group, from one thread: each communicator's operations
//! run in a thread of their own, but for the first, so that all make progress together.

use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use ringway::device::Stream;
use ringway::{Communicator, DeviceWork, Error, Group, Result};

use crate::boundary::contain;
use crate::comm::{Comm, Inside};
use crate::memory::{Memory, current_gpu, memory_of};
use crate::operation::{Kind, Operation};
use crate::operator::Factor;

/// A communicator's part of a group.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) comm: Arc<Comm>,
    pub(crate) operations: Vec<Operation>,
    /// Where its buffers are, once it is submitted: before, the communicator may not be there yet.
    place: Place,
}

/// Where the buffers of operations are. To ask the driver takes time, so it is asked once.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Some are in GPU memory.
    on_device: bool,
    /// Some that are used are not.
    on_host: bool,
    /// Some are in memory that streams may use.
    is_pinned: bool,
    /// Some ranks take part in one call from GPU memory and others from the host's: then the others cannot know where the
    /// memory of this one is, and all goes one way.
    is_mixed: bool,
}

impl Place {
    /// Whether the calls go by streams.
    fn is_enqueued(self) -> bool {
        self.on_device || self.is_mixed
    }

    /// Whether streams are waited for first.
    fn waits(self) -> bool {
        self.is_pinned && !self.on_device
    }

    /// Whether streams mean something.
    fn uses_streams(self) -> bool {
        self.is_enqueued() || self.is_pinned
    }
}

/// Runs batches of different communicators side by side; what became of each, in their order.
///
/// Their buffers are as nccl.h asks: valid, of the sizes the calls say, and left alone by everybody
/// else until the group is over.
pub(crate) fn submit(batches: &mut [Batch]) -> Vec<Result<()>> {
    batches.iter_mut().for_each(Batch::find);
    // What only enqueues needs no threads; a rank without a GPU among those with one waits.
    if batches.iter().all(|batch| batch.place.on_device && !batch.place.is_mixed) {
        return enqueue_all(batches);
    }
    let Some((first, others)) = batches.split_first() else { return Vec::new() };
    if others.is_empty() {
        return vec![run(first)];
    }
    // Nothing of a group is done of which a part is refused.
    if others.iter().any(|batch| batch.place.uses_streams() && batch.is_for_this_thread()) {
        let error = Error::argument(
            "cudaStreamPerThread is another stream in the threads that work for the communicators of a group; \
             give them streams of your own",
        );
        return refuse(batches, &error);
    }
    if let Some(error) = batches.iter().find_map(|batch| check(batch).err()) {
        return refuse(batches, &error);
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
        if batch.place.waits() {
            wait(&inside.communicator, &batch.operations)?;
        }
        match batch.place.is_enqueued() {
            true => enqueue(&inside.communicator, batch),
            false => batch.group(&inside.communicator)?.run(),
        }
    })
}

/// Refuses what cannot be done, before anything is done of a group of several communicators: those whose part was done would
/// wait for those whose part was not.
fn check(batch: &Batch) -> Result<()> {
    contain("a group of calls", || {
        let Inside { communicator, .. } = &batch.comm.enter()?;
        if batch.place.waits() {
            wait(communicator, &batch.operations)?;
        }
        if batch.place.is_enqueued() {
            // SAFETY: the program promises, by nccl.h, streams that are alive.
            return unsafe {
                communicator.check_enqueue(&streams(&batch.operations), &batch.work()?)
            };
        }
        batch.group(communicator)?.check()
    })
}

impl Batch {
    pub(crate) fn new(comm: Arc<Comm>, operation: Operation) -> Self {
        Self { comm, operations: vec![operation], place: Place::default() }
    }

    /// Whether it names a stream that is another one in another thread.
    pub(crate) fn is_for_this_thread(&self) -> bool {
        streams(&self.operations).into_iter().any(Stream::is_per_thread)
    }

    /// Finds out where its buffers are. Where it uses none, its calls go the way of the communicator's GPU: for those of
    /// other ranks that meet them may have addresses, where this one's have NULL.
    fn find(&mut self) {
        let communicator = self.comm.communicator().ok();
        let is_mixed = communicator.as_ref().is_some_and(Communicator::has_ranks_without_gpu);
        let mut place = Place { is_mixed, ..Place::default() };
        let mut is_used = false;
        for buffer in self.operations.iter().flat_map(Operation::buffers) {
            let memory = memory_of(buffer.address);
            is_used |= buffer.is_used;
            place.on_device |= memory == Memory::Device;
            place.on_host |= buffer.is_used && memory != Memory::Device;
            place.is_pinned |= buffer.is_used && memory == Memory::Pinned;
        }
        if !is_used {
            place.on_device |= communicator.is_some_and(|one| one.gpu().is_some());
        }
        self.place = place;
    }

    /// Its operations as calls on GPU memory.
    fn work(&self) -> Result<Vec<DeviceWork>> {
        if self.place.on_host && !self.place.is_mixed {
            return Err(Error::usage(
                "one buffer of a call is in GPU memory and another in the host's",
            ));
        }
        let mut work = Vec::with_capacity(self.operations.len());
        for operation in &self.operations {
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
                        input: std::ptr::with_exposed_provenance(input.address),
                        output: std::ptr::with_exposed_provenance_mut(output.address),
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
        Ok(work)
    }

    /// Its operations as calls on host memory.
    fn group<'a>(&self, communicator: &'a Communicator) -> Result<Group<'a>> {
        let mut group = communicator.group();
        for operation in &self.operations {
            add(&mut group, &operation.kind)?;
        }
        Ok(group)
    }
}

/// Waits for the streams of operations, each of which is to come behind what its stream has before.
fn wait(communicator: &Communicator, operations: &[Operation]) -> Result<()> {
    let gpu = communicator.gpu().map_or_else(current_gpu, Ok)?;
    for stream in streams(operations) {
        // SAFETY: the program promises, by nccl.h, streams that are alive.
        unsafe { gpu.wait(stream, || communicator.check()) }?;
    }
    Ok(())
}

/// The streams of operations, each once.
fn streams(operations: &[Operation]) -> Vec<Stream> {
    let mut streams: Vec<Stream> = Vec::with_capacity(1);
    for operation in operations {
        let stream = Stream::from_handle(std::ptr::with_exposed_provenance_mut(operation.stream));
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }
    streams
}

/// Puts operations on GPU memory on their streams.
fn enqueue(communicator: &Communicator, batch: &Batch) -> Result<()> {
    let work = batch.work()?;
    // SAFETY: the program promises, by nccl.h, buffers that are valid until the stream has come past the
    // calls, and streams that are alive.
    unsafe { communicator.enqueue(&streams(&batch.operations), &work) }
}

/// Puts operations of communicators on their streams; none where some are refused.
fn enqueue_all(batches: &[Batch]) -> Vec<Result<()>> {
    if let [batch] = batches {
        return vec![contain("a group of calls", || {
            enqueue(&batch.comm.enter()?.communicator, batch)
        })];
    }
    let prepare = |batch: &Batch| {
        contain("a group of calls", || {
            let (streams, work) = (streams(&batch.operations), batch.work()?);
            // SAFETY: as for `enqueue`.
            unsafe { batch.comm.enter()?.communicator.check_enqueue(&streams, &work) }?;
            Ok((streams, work))
        })
    };
    let prepared: Vec<_> = match batches.iter().map(prepare).collect() {
        Ok(prepared) => prepared,
        Err(error) => return refuse(batches, &error),
    };
    // A communicator is entered for its own part alone: one that is given up waits for no other's.
    let enqueue = |(batch, (streams, work)): (&Batch, (Vec<Stream>, Vec<DeviceWork>))| {
        contain("a group of calls", || {
            // SAFETY: as for `enqueue`.
            unsafe { batch.comm.enter()?.communicator.enqueue(&streams, &work) }
        })
    };
    batches.iter().zip(prepared).map(enqueue).collect()
}

/// Of a group nothing was done.
fn refuse(batches: &[Batch], error: &Error) -> Vec<Result<()>> {
    batches.iter().map(|_| Err(error.clone())).collect()
}

/// Adds an operation on host memory.
fn add(group: &mut Group<'_>, kind: &Kind) -> Result<()> {
    match kind {
        Kind::Collective { call, factor, input, output } => {
            let mut call = call.clone();
            if let Some(factor) = factor {
                call.scalar = factor.value()?;
            }
            let input = std::ptr::with_exposed_provenance(input.address);
            let output = std::ptr::with_exposed_provenance_mut(output.address);
            // SAFETY: the program promises buffers of the sizes the call says, which are left
            // alone until the group is over; it is when `submit` returns.
            unsafe { group.call_raw(&call, input, output) }
        }
        Kind::Send { buffer, bytes, peer } => {
            // SAFETY: as above.
            unsafe { group.send_raw(std::ptr::with_exposed_provenance(*buffer), *bytes, *peer) }
        }
        Kind::Receive { buffer, bytes, peer } => {
            // SAFETY: as above.
            unsafe { group.recv_raw(std::ptr::with_exposed_provenance_mut(*buffer), *bytes, *peer) }
        }
    }
}
