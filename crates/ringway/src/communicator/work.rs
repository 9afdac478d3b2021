//! Calls that run in the background.
//!
//! [`Communicator::start_at`] takes buffers by address, for callers in other languages. All else stands on it: there the
//! buffers move into the call and come back from [`Work::wait`], so that while the call runs nobody else can touch them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::order::Ticket;
use super::{Communicator, Inner};
use crate::call::Call;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::plan::types::{Collective, ReduceOp};

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

type Job = Box<dyn FnOnce(&Inner) -> Result<()> + Send>;
type Done = Box<dyn FnOnce(Result<()>) -> Option<Afterwards> + Send>;

/// What is left to do when the turn of background work is over; see [`Communicator::start_at`]. The calls behind it wait
/// for its end, unless it says [`crate::hand_over`].
pub type Afterwards = Box<dyn FnOnce() + Send>;

/// A call on its way to its turn. It keeps its communicator alive: the handles may go before the work is done.
struct Queued {
    ticket: Ticket,
    job: Job,
    done: Done,
    inner: Arc<Inner>,
}

impl Queued {
    fn run(self) {
        let Self { ticket, job, done, inner } = self;
        let turn = inner.await_turn(ticket);
        let outcome = catch_unwind(AssertUnwindSafe(|| job(&inner)));
        let outcome = outcome.unwrap_or_else(|_| {
            // The others must not wait for what will never come.
            inner.abort("a call of it panicked in the background");
            Err(Error::internal(
                "a call panicked in the background, which is a bug; see its output",
            ))
        });
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let afterwards = done(outcome);
            drop(turn);
            if let Some(afterwards) = afterwards {
                afterwards();
            }
        }));
        if ended.is_err() {
            inner.abort("what it does at the end of a background call panicked");
        }
    }
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
        let shared = Arc::clone(&state);
        let from = if in_place { std::ptr::null() } else { input.as_ptr().cast() };
        let to = output.as_mut_ptr().cast();
        let done = move |outcome: Result<()>| {
            let _until_now = input;
            let outcome = outcome.map(|()| output);
            *shared.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            shared.done.notify_all();
            None
        };
        // SAFETY: `done` owns both vectors, whose sizes were checked; nobody else has their elements until it runs.
        #[expect(unsafe_code, reason = "the vectors wait in `done`")]
        unsafe {
            self.start_at(call, from, to, done)?;
        }
        Ok(Work { state })
    }

    /// Queues a job behind everything that was called before it. `done` is told how it ended, in its turn.
    pub(super) fn submit(&self, job: Job, done: Done) -> Result<()> {
        let background = &self.inner.background;
        // With the lock, so that calls are queued in the order of their tickets.
        let mut background = background.lock().unwrap_or_else(PoisonError::into_inner);
        let background = background.open(|| format!("ringway-work-{}", self.rank()))?;
        let ticket = self.inner.order.take();
        let queued = Queued { ticket, job, done, inner: Arc::clone(&self.inner) };
        background.submit(Box::new(|| queued.run()));
        Ok(())
    }

    /// Waits until everything that was called or started on this rank before is over, well or not, and the background
    /// thread has ended; it starts again with the next work. Dropping the last handle then leaves nothing behind.
    ///
    /// Returns at once in the background thread itself.
    ///
    /// ```
    /// use ringway::ReduceOp;
    /// ringway::testing::world(2, |comm| {
    ///     let work = comm.start_all_reduce(vec![comm.rank()], ReduceOp::Max).unwrap();
    ///     comm.drain();
    ///     assert!(work.is_done());
    /// });
    /// ```
    pub fn drain(&self) {
        let background = || self.inner.background.lock().unwrap_or_else(PoisonError::into_inner);
        if background().is_of_this_thread() {
            return;
        }
        drop(self.inner.turn());
        let ended = std::mem::take(&mut *background());
        ended.end();
    }
}
