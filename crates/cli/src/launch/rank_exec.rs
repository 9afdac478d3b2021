//! The last step before a rank's program: tie the process to its launcher, then become the
//! program.
//!
//! A process can only ask for itself to be ended with its parent, and the wish survives
//! `execve`; so the launcher starts this program, which asks and then replaces itself.

use crate::exit::ExitCode;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Arguments of the hidden `rank-exec`.
#[derive(Debug, Args)]
pub(crate) struct RankExecArgs {
    /// Process id of the launcher
    #[arg(long)]
    parent: u32,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the program; returns only when that fails.
pub(crate) fn run(args: &RankExecArgs) -> anyhow::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .context("asking to be ended together with the launcher")?;
    // The launcher may have died before the kernel was asked.
    let parent = getppid().map(Pid::as_raw_pid).and_then(|pid| u32::try_from(pid).ok());
    if parent != Some(args.parent) {
        return Ok(ExitCode::FAILURE);
    }
    let (program, rest) = args.command.split_first().context("no program to start")?;
    let error = Command::new(program).args(rest).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
