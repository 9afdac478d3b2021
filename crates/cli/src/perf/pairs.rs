//! `ringway perf pairs`: every rank meets every other one, and what is slower than its like is named.

use anyhow::bail;
use clap::Args;

use crate::exit::ExitCode;

/// Measure every pair of ranks, and name what is slow
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Examples:
  ringway perf pairs"
)]
pub(crate) struct PairsArgs {}

/// Runs the subcommand.
pub(crate) fn run(_args: &PairsArgs) -> anyhow::Result<ExitCode> {
    bail!("pairs: it is not built yet; ringway perf sendrecv measures each rank with the next")
}
