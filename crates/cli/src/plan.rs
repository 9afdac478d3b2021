//! `ringway plan`: prove plans, show them, explain the choice among them.
//!
//! All of it is computed here and now: no rank is started and no byte moves.

pub(crate) mod call;
pub(crate) mod explain;
pub(crate) mod show;
pub(crate) mod verify;

use crate::exit::ExitCode;
use std::io;

use clap::{Args, Subcommand};

/// Prove, show and explain the plans behind collectives
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Examples:
  ringway plan verify                            prove every algorithm
  ringway plan verify --file ring.json           prove a plan read from a file
  ringway plan show all_reduce --ranks 8 --algo ring --svg ring.svg
  ringway plan explain all_reduce --bytes 1M --ranks 4"
)]
pub(crate) struct PlanArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: PlanCommand,
}

/// What can be done with plans.
#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    Verify(verify::VerifyArgs),
    Show(show::ShowArgs),
    Explain(explain::ExplainArgs),
}

/// Runs the command; what it says goes to `out`.
pub(crate) fn run(command: &PlanCommand, out: &mut dyn io::Write) -> anyhow::Result<ExitCode> {
    match command {
        PlanCommand::Verify(args) => verify::run(args, out),
        PlanCommand::Show(args) => show::run(args, out),
        PlanCommand::Explain(args) => explain::run(args, out),
    }
}
