//! Reading logs for `ringway doctor --log`.
//!
//! *Invariant*: memory is bounded whatever the input.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::PathBuf;

use anyhow::Context as _;

use super::finding::{Finding, Report, Verdict};

/// Reads the files one after another.
pub(crate) fn examine(paths: &[PathBuf]) -> anyhow::Result<Report> {
    let mut report = Report::new("log");
    let mut lines = 0_u64;
    for path in paths {
        let source: Box<dyn Read> = match path.to_str() {
            Some("-") => Box::new(io::stdin().lock()),
            _ => Box::new(File::open(path).with_context(|| path.display().to_string())?),
        };
        for line in BufReader::new(source).split(b'\n') {
            line.with_context(|| path.display().to_string())?;
            lines += 1;
        }
    }
    report.fact("lines", lines.to_string());
    if lines == 0 {
        report.findings.push(
            Finding::new("input", "log-empty", Verdict::Unknown, "there is nothing to read")
                .seen("no line in any file")
                .costs("nothing is known")
                .fixed_by("set NCCL_DEBUG=INFO and run again"),
        );
    } else {
        report.findings.push(Finding::new("input", "log-read", Verdict::Pass, "the log was read"));
    }
    Ok(report)
}
