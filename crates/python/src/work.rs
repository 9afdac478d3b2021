//! Calls that run in the background, as Python sees them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ringway::Result;

use crate::arguments::duration;
use crate::error::exception;

/// How long Ctrl-C may stand before it is noticed.
const SLICE: Duration = Duration::from_millis(50);

/// A call under way.
#[pyclass(frozen, module = "ringway._native")]
#[derive(Debug)]
pub(crate) struct Work {
    state: Arc<State>,
    rank: u32,
}

/// What the background thread and those who wait share.
#[derive(Debug, Default)]
pub(crate) struct State {
    outcome: Mutex<Option<Result<()>>>,
    over: Condvar,
    /// What must not go before the call is over. Whoever sees that it is lets go of it: the background thread would have
    /// to wait for Python's lock.
    keep: Mutex<Option<Py<PyAny>>>,
}

impl State {
    pub(crate) fn keeping(keep: Option<Py<PyAny>>) -> Arc<Self> {
        Arc::new(Self { keep: Mutex::new(keep), ..Self::default() })
    }

    /// The call is over.
    pub(crate) fn end(&self, outcome: Result<()>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.over.notify_all();
    }

    /// How it ended, if it has. Lets go of what was kept.
    fn look(&self) -> Option<Result<()>> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if outcome.is_some() {
            // First out of the lock: what goes may run code of Python's.
            let kept = self.keep.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(kept);
        }
        outcome
    }

    /// Waits for at most `limit`; whether it is over.
    fn wait(&self, limit: Duration) -> bool {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.over.wait_timeout_while(outcome, limit, |outcome| outcome.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }
}

impl Work {
    pub(crate) fn new(state: Arc<State>, rank: u32) -> Self {
        Self { state, rank }
    }
}

#[pymethods]
impl Work {
    /// Waits until the call is over, or for `timeout` seconds: then returns False. Raises the call's error.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let limit = timeout.map(duration).transpose();
        let limit = limit.map_err(|error| exception(py, &error, Some(self.rank)))?;
        let began = Instant::now();
        loop {
            if let Some(outcome) = self.state.look() {
                return match outcome {
                    Ok(()) => Ok(true),
                    Err(error) => Err(exception(py, &error, Some(self.rank))),
                };
            }
            let left = limit.map_or(SLICE, |limit| limit.saturating_sub(began.elapsed()));
            if left.is_zero() {
                return Ok(false);
            }
            py.detach(|| self.state.wait(left.min(SLICE)));
            py.check_signals()?;
        }
    }

    /// Whether the call is over, well or not.
    fn is_done(&self) -> bool {
        self.state.look().is_some()
    }

    /// The call's error; None while it is under way, or if it ended well.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        let outcome = self.state.look()?;
        outcome.err().map(|error| exception(py, &error, Some(self.rank)))
    }

    fn __repr__(&self) -> &'static str {
        match self.state.look() {
            None => "<ringway.Work under way>",
            Some(Ok(())) => "<ringway.Work done>",
            Some(Err(_)) => "<ringway.Work failed>",
        }
    }
}
