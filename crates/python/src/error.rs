//! Errors of the library as Python's exceptions. Their classes are Python's own: `ringway/_errors.py`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use ringway::Error;

static FROM_NATIVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// What the message says to do next: errors say the cause first, the place, and then the fix.
fn advice(message: &str) -> Option<&str> {
    message.rsplit_once("; ").map(|(_, advice)| advice)
}

/// The exception for an error that happened on `rank`.
pub(crate) fn exception(py: Python<'_>, error: &Error, rank: Option<u32>) -> PyErr {
    made(py, error, rank).unwrap_or_else(|unmade| unmade)
}

fn made(py: Python<'_>, error: &Error, rank: Option<u32>) -> PyResult<PyErr> {
    let message = error.to_string();
    let mut culprits = Vec::with_capacity(error.culprits().len());
    for one in error.culprits() {
        let culprit = PyDict::new(py);
        culprit.set_item("rank", one.rank)?;
        culprit.set_item("host", &one.host)?;
        culprit.set_item("pid", one.pid)?;
        culprits.push(culprit);
    }
    let operation = error.operation().map(ToString::to_string);
    let make = FROM_NATIVE.import(py, "ringway._errors", "from_native")?;
    let advice = advice(&message);
    let arguments = (error.kind().name(), &message, rank, culprits, operation, advice);
    Ok(PyErr::from_value(make.call1(arguments)?))
}

/// A wrong argument, before there is a communicator to ask.
pub(crate) fn argument(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, &Error::argument(message), None)
}
