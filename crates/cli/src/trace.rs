//! `ringway trace`: what the flight recorders of a job's ranks held.
//!
//! [`read`] takes files and folders, [`show`] prints them as tables, [`merge`] joins the ranks on one clock
//! ([`clocks`]) and writes what other tools read: [`chrome`] for Perfetto, [`pytorch`] for the analyser of PyTorch's
//! own flight recorder. *Invariant*: files come from anywhere; whatever is in them is an error that names the file,
//! or is shown.

mod chrome;
pub(crate) mod clocks;
mod merge;
mod pickle;
mod pytorch;
pub(crate) mod read;
pub(crate) mod show;
#[cfg(test)]
pub(crate) mod synthetic;

use crate::exit::ExitCode;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Show and join traces of the flight recorder
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Examples:
  RINGWAY_TRACE_DIR=/tmp/t ringway run -n 4 -- ./job    traces when it fails
  ringway trace show /tmp/t                             what each rank did
  ringway trace merge /tmp/t -o job.json                for ui.perfetto.dev
  ringway trace merge /tmp/t -o fr_ --format pytorch    for torchfrtrace

docs/trace.md says how a job writes traces, and what is in them."
)]
pub(crate) struct TraceArgs {
    /// What to do.
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    Show(ShowArgs),
    Merge(MergeArgs),
}

/// Print the last operations of each rank
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Examples:
  ringway trace show /tmp/t                  the last 20 operations of each
  ringway trace show --last 1 /tmp/t         where each rank stands
  ringway trace show --all rank0.json        every operation that was kept"
)]
struct ShowArgs {
    /// Traces, or folders of them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How many of the last operations to show
    #[arg(long, default_value_t = 20, value_name = "COUNT")]
    last: usize,
    /// Show every operation that was kept
    #[arg(long, conflicts_with = "last")]
    all: bool,
}

/// Join the traces of several ranks on one clock
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Examples:
  ringway trace merge /tmp/t -o job.json                for ui.perfetto.dev
  ringway trace merge a.json b.json -o both.json
  ringway trace merge /tmp/t -o fr_ --format pytorch    fr_0, fr_1, …
  torchfrtrace . --prefix fr_                           reads those

The offsets between the clocks are estimated from operations that all ranks
left, and printed."
)]
struct MergeArgs {
    /// Traces, or folders of them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// File to write; for pytorch the beginning of the files' names
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value_t = Format::Chrome)]
    format: Format,
}

/// What `merge` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Trace events, for Perfetto and chrome://tracing
    Chrome,
    /// A pickle for each rank, as PyTorch's flight recorder writes them
    Pytorch,
    /// All traces in one file, their times moved to one clock
    Ringway,
}

/// Runs the command.
pub(crate) fn run(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        TraceCommand::Show(args) => {
            let last = if args.all { usize::MAX } else { args.last };
            show::run(&read::all(&args.files)?, last)?;
        }
        TraceCommand::Merge(args) => {
            merge::run(read::all(&args.files)?, &args.output, args.format)?
        }
    }
    Ok(ExitCode::SUCCESS)
}
