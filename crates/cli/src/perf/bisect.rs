//! `ringway perf bisect`: groups of ranks are measured, and the slow one is split until the culprit is alone.

use anyhow::bail;
use clap::Args;

use crate::exit::ExitCode;

/// Split the ranks until the slow one is named
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Examples:
  ringway perf bisect"
)]
pub(crate) struct BisectArgs {}

/// Runs the subcommand.
pub(crate) fn run(_args: &BisectArgs) -> anyhow::Result<ExitCode> {
    bail!("bisect: it is not built yet; ringway perf measures whole jobs")
}
