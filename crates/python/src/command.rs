//! The command line, for `python -m ringway` and the script `ringway`.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command `words` (the first is its name) and returns its exit code. `again` is what starts it again, to be the
/// ranks of a job.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, words: Vec<OsString>, again: Vec<OsString>) -> u8 {
    py.detach(|| ringway_cli::run(words, Some(again)))
}
