//! Rows to standard output, and a bar on standard error while a long sweep runs.

use std::io;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// Sweeps of fewer rows are over before a bar helps.
const ROWS_MIN: u64 = 4;

/// Prints lines, keeping the bar (if there is one) below them.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for `rows` rows; `None` for a sweep without end. Drawn only on a terminal.
    pub(crate) fn new(rows: Option<u64>) -> Self {
        let bar = match rows {
            Some(rows) if rows >= ROWS_MIN => {
                ProgressBar::with_draw_target(Some(rows), ProgressDrawTarget::stderr())
            }
            _ => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} [{elapsed}]") {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Says what is being measured.
    pub(crate) fn at(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Prints a line that is no row.
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        self.bar.suspend(|| output::line(text))
    }

    /// Moves on.
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    /// Prints a row and moves on.
    pub(crate) fn row(&self, text: &str) -> io::Result<()> {
        self.line(text)?;
        self.bar.inc(1);
        Ok(())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
