//! Calls that run in the background.
//!
//! The buffers move into the call and come back from [`Work::wait`]: while the call runs, nobody
//! else can touch them.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::known::Buffers;
use super::order::Ticket;
use super::{Communicator, Inner};
use crate::call::Call;
use crate::element::{self, Element};
use crate::error::{Error, Result};
use crate::plan::types::{Collective, ReduceOp};
use crate::transport::Area;

/// A call under way.
///
/// ```
/// use ringway::ReduceOp;
/// ringway::testing::world(2, |comm| {
///     let work = comm.start_all_reduce(vec![1.0_f32; 1000], ReduceOp::Sum).unwrap();
///     // … compute something else meanwhile …
///     let sums = work.wait().unwrap();
///     assert_eq!(sums, vec![2.0; 1000]);
/// });
/// ```
#[derive(Debug)]
#[must_use = "the result comes from wait"]
pub struct Work<T> {
    state: Arc<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    outcome: Mutex<Option<Result<Vec<T>>>>,
    done: Condvar,
}

impl<T> Work<T> {
    /// Whether the call is over, well or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.outcome.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits for the call and returns its output.
    ///
    /// # Errors
    /// Those of the call.
    pub fn wait(self) -> Result<Vec<T>> {
        let mut outcome = self.state.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            outcome = self.state.done.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for at most `limit`; gives the work back if it is not over then.
    ///
    /// # Errors
    /// The work itself.
    pub fn wait_for(self, limit: Duration) -> std::result::Result<Result<Vec<T>>, Self> {
        let deadline = Instant::now() + limit;
        let mut outcome = self.state.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = outcome.take() {
                return Ok(outcome);
            }
            let Some(rest) = deadline.checked_duration_since(Instant::now()) else {
                drop(outcome);
                return Err(self);
            };
            outcome = self
                .state
                .done
                .wait_timeout(outcome, rest)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

type Job = Box<dyn FnOnce(&Inner) + Send>;

/// The thread that runs background calls; started by the first of them.
#[derive(Debug, Default)]
pub(super) struct Worker {
    jobs: Option<Sender<Queued>>,
}

/// A call on its way to the worker. It keeps its communicator alive: the handles may go before
/// the work is done.
struct Queued {
    ticket: Ticket,
    job: Job,
    inner: Arc<Inner>,
}

impl Communicator {
    /// Starts an all-reduce of `values` and returns at once.
    ///
    /// # Errors
    /// The background thread cannot be started.
    pub fn start_all_reduce<T: Element>(&self, values: Vec<T>, op: ReduceOp) -> Result<Work<T>> {
        let call = Call::new(Collective::AllReduce, T::DATA_TYPE, values.len() as u64).op(op);
        self.start_call(&call, Vec::new(), values)
    }

    /// Starts a collective and returns at once: in place on `output` where `input` is empty and
    /// the call needs one, else from `input` to `output`.
    ///
    /// # Errors
    /// A buffer has the wrong size, or the background thread cannot be started.
    pub fn start_call<T: Element>(
        &self,
        call: &Call,
        input: Vec<T>,
        mut output: Vec<T>,
    ) -> Result<Work<T>> {
        // Only what will run is looked at; a wrong size is an error now, not later.
        let in_place = input.is_empty();
        let (rank, size) = (self.rank(), self.size());
        if in_place {
            let whole = call.input_bytes(rank, size)?.max(call.output_bytes(rank, size)?);
            let found = size_of_val(&output[..]);
            if found != whole {
                return Err(super::wrong_size("in-place buffer", call, found, whole));
            }
        } else {
            self.check_bytes(call, size_of_val(&input[..]), size_of_val(&output[..]))?;
        }
        let state = Arc::new(State { outcome: Mutex::new(None), done: Condvar::new() });
        let (shared, call) = (Arc::clone(&state), call.clone());
        let queued = self.inner.recording.now();
        let job = Box::new(move |inner: &Inner| {
            let source = element::as_bytes(&input);
            let from = Area { address: source.as_ptr().cast_mut(), bytes: source.len() };
            let target = element::as_bytes_mut(&mut output);
            let to = Area { address: target.as_mut_ptr(), bytes: target.len() };
            let buffers = if in_place { Buffers::InPlace(to) } else { Buffers::Apart(from, to) };
            let outcome = inner.call_queued(&call, buffers, queued).map(|()| output);
            *shared.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            shared.done.notify_all();
        });
        self.submit(job)?;
        Ok(Work { state })
    }

    /// Queues a job behind everything that was called before it.
    fn submit(&self, job: Job) -> Result<()> {
        let mut worker = self.inner.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.jobs.is_none() {
            let (sender, receiver) = channel::<Queued>();
            std::thread::Builder::new()
                .name(format!("ringway-work-{}", self.rank()))
                .spawn(move || {
                    for Queued { ticket, job, inner } in receiver {
                        let _turn = inner.order.wait(ticket);
                        job(&inner);
                    }
                })
                .map_err(|e| Error::system("cannot start the background thread", e))?;
            worker.jobs = Some(sender);
        }
        let ticket = self.inner.order.take();
        worker
            .jobs
            .as_ref()
            .expect("started just now")
            .send(Queued { ticket, job, inner: Arc::clone(&self.inner) })
            .map_err(|_| Error::internal("the background thread has ended"))
    }
}
