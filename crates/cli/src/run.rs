//! `ringway run`: start a program as the ranks of a job, on this machine or on several hosts.

pub(crate) mod args;
mod forward;
mod hosts;
mod program;
pub(crate) mod remote;

use crate::exit::ExitCode;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::launch::children::{Children, Outcome};
use crate::launch::{self, LocalJob};
use crate::output;
use crate::run::args::RunArgs;
use crate::run::forward::{Forwarder, Label};

/// How long to wait for output that a rank's own children still hold open.
pub(crate) const OUTPUT_PATIENCE: Duration = Duration::from_millis(500);

/// Starts the job and stays until it ends.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    if let Some(shares) = hosts::of(args)? {
        return remote::run(args, &shares);
    }
    let size = launch::ranks("-n", args.ranks)?;
    let (program, rest) = args.command.split_first().context("no program to start")?;
    program::check(program)?;
    if let Some(directory) = args.workdir.as_ref().filter(|directory| !directory.is_dir()) {
        bail!("--workdir {}: no such directory", directory.display());
    }

    let job = LocalJob::new(size)?;
    let mut children = Children::new()?;
    let mut forwarder = Forwarder::default();
    for rank in 0..size {
        let mut command = job.command(rank, program, rest)?;
        command.envs(args.env.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &args.workdir {
            command.current_dir(directory);
        }
        command.stdin(if rank == 0 { Stdio::inherit() } else { Stdio::null() });
        if !args.no_prefix {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let child = children
            .start(&mut command)
            .with_context(|| format!("cannot start rank {rank} of {size}"))?;
        let label = Arc::new(Label::new(rank, size));
        if let Some(stdout) = child.stdout.take() {
            forwarder.stdout(stdout, &label)?;
        }
        if let Some(stderr) = child.stderr.take() {
            forwarder.stderr(stderr, &label)?;
        }
    }

    let say = |text: String| {
        if !args.quiet {
            output::remark(&format!("ringway run: {text}"));
        }
    };
    let outcome = children.wait(args.grace, |death| {
        let others = if size > 1 { "; ending the other ranks" } else { "" };
        say(format!("{death}{others}"));
    });
    forwarder.finish(OUTPUT_PATIENCE);
    if let Outcome::Interrupted(signal) = outcome {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        say(format!("{name}: all {size} ranks ended"));
    }
    Ok(ExitCode::from(outcome.exit_code()))
}
