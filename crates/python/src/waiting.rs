//! Waits: without Python's lock, with Python's signals, and without panics that get out.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use pyo3::prelude::*;
use ringway::{Error, Result};

use crate::error::exception;

/// Runs `work` without Python's lock. In the main thread, Python's signal handlers run meanwhile: what one of them raises
/// (Ctrl-C: `KeyboardInterrupt`) is raised here, and the communicator that waited is given up.
pub(crate) fn waiting<T: Send>(
    py: Python<'_>,
    rank: Option<u32>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    let (outcome, raised) = py.detach(|| {
        if !is_main_thread() {
            return (contain(work), None);
        }
        let raised = Rc::new(Cell::new(None));
        let told = Rc::clone(&raised);
        let check = move || match Python::try_attach(|py| py.check_signals()) {
            Some(Err(signal)) => {
                told.set(Some(signal));
                true
            }
            Some(Ok(())) | None => false,
        };
        let outcome = ringway::interrupt::asking(check, || contain(work));
        (outcome, raised.take())
    });
    match raised {
        Some(signal) => Err(signal),
        None => outcome.map_err(|error| exception(py, &error, rank)),
    }
}

/// Python runs signal handlers in its main thread only. Others do not ask: they would wait for Python's lock.
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Runs `work`; a panic becomes an error.
fn contain<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(Error::internal(format!("a call panicked, which is a bug: {}", words(&*panic))))
    })
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
