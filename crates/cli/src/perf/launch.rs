//! Starting the ranks of a measurement: copies of this program, which then join the job.

use crate::exit::ExitCode;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use super::json;
use super::settings::Settings;
use crate::launch::LocalJob;
use crate::launch::children::{Children, Death, Outcome};
use crate::output;
use crate::this;

/// Exit code of a rank 0 that found its port taken: try again on another.
pub(crate) const EXIT_PORT_TAKEN: u8 = 75;
/// Exit code of a run whose results are wrong or too slow; the table says so.
pub(crate) const EXIT_NOT_PASSED: u8 = 1;
/// Exit code of a rank that has already said what went wrong.
pub(crate) const EXIT_SAID: u8 = 2;

/// How often to look for another port.
const ATTEMPTS: u32 = 3;
/// How long the other ranks may take to say what they saw when one failed.
const GRACE: Duration = Duration::from_secs(1);

/// Starts `size` ranks with this process's own arguments and stays until they end.
pub(crate) fn start(settings: &Settings, size: u32) -> anyhow::Result<ExitCode> {
    start_copies("perf", &settings.variables, size, |children| {
        if let (Some(path), Some(pid)) = (&settings.json, children.pid(0)) {
            json::discard_temporary(path, pid);
        }
    })
}

/// The same for any subcommand whose ranks are copies of it; `after` sees each job at its end.
pub(crate) fn start_copies(
    name: &str,
    variables: &[(&'static str, String)],
    size: u32,
    after: impl Fn(&Children),
) -> anyhow::Result<ExitCode> {
    let mut attempt = 1;
    loop {
        let outcome = run_job(name, variables, size, &after)?;
        if outcome.exit_code() != EXIT_PORT_TAKEN || attempt == ATTEMPTS {
            return Ok(ExitCode::from(outcome.exit_code()));
        }
        attempt += 1;
    }
}

fn run_job(
    name: &str,
    variables: &[(&'static str, String)],
    size: u32,
    after: impl Fn(&Children),
) -> anyhow::Result<Outcome> {
    let (program, first) = this::again()?;
    let args: Vec<OsString> = [first, this::args()].concat();
    let job = LocalJob::new(size)?;
    let mut children = Children::new()?;
    for rank in 0..size {
        let mut command = job.command(rank, &program, &args)?;
        // Rank 0 prints the table straight to our output; the others only print remarks.
        command.envs(variables.iter().cloned()).stdin(Stdio::null());
        children
            .start(&mut command)
            .with_context(|| format!("cannot start rank {rank} of {size}"))?;
    }
    let outcome = children.wait(GRACE, |death| {
        if !speaks_for_itself(death) {
            output::remark(&format!("ringway {name}: {death}; ending the other ranks"));
        }
    });
    after(&children);
    if let Outcome::Interrupted(_) = outcome {
        output::remark(&format!("ringway {name}: interrupted; all ranks ended"));
    }
    Ok(outcome)
}

/// Whether the rank has said why it ended.
fn speaks_for_itself(death: &Death) -> bool {
    let said = [EXIT_NOT_PASSED, EXIT_SAID, EXIT_PORT_TAKEN, output::EXIT_BROKEN_PIPE];
    death.status.code().is_some_and(|code| said.iter().any(|known| i32::from(*known) == code))
}

/// Makes the choices on the command line known to the library in a process that a launcher
/// started. A running program cannot change its own environment safely, so it starts itself
/// again, once, in the same process.
pub(crate) fn adopt_variables(variables: &[(&'static str, String)]) -> anyhow::Result<()> {
    let set = |(name, value): &(&str, String)| env::var(name).is_ok_and(|now| now == *value);
    if variables.iter().all(set) {
        return Ok(());
    }
    let (program, first) = this::again()?;
    let mut command = Command::new(program);
    let error = command.args(first).args(this::args()).envs(variables.iter().cloned()).exec();
    Err(error).context("starting again with the settings of the command line")
}
