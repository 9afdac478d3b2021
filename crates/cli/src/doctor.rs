//! `ringway doctor`: says what is wrong with a job or a machine, what it costs, and what to do.
//!
//! [`finding`] holds the words all parts report in; [`log`] reads logs; [`examine`] looks at machines with the
//! [`checks`], and [`fleet`] compares them. This file only takes the arguments, asks the right part and prints
//! its report.

pub(crate) mod checks;
pub(crate) mod examine;
pub(crate) mod finding;
mod fleet;
pub(crate) mod host;
mod html;
mod log;
pub(crate) mod sources;
#[cfg(test)]
pub(crate) mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::examine::{Form, HostArgs};
use self::finding::{EXIT_CANNOT, Report, Style};
use crate::output;

/// Say what is wrong with a job or a machine, what it costs, and the fix
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Without --log it looks at this machine, or at the snapshots (`ringway snapshot`)
and folders given; of several it says what differs, too. It changes nothing and
needs no root.

Logs: NCCL and RCCL debug logs (NCCL_DEBUG=INFO says most), nccl-tests tables,
ib_write_bw tables, kernel and system logs, in any mix. Give all ranks' files:
some faults show only between ranks.

Examples:
  ringway doctor                          this machine
  ringway doctor --only pci,gdr-06        some checks
  ringway doctor --explain pci-05         what a check is about
  ringway doctor node*.tar.zst            a fleet
  ringway doctor --log job.log
  ringway doctor --log logs/*.log
  kubectl logs pod | ringway doctor --log -
  ringway doctor --json --log job.log

Exits with 0 when nothing is wrong, 1 for warnings, 2 for failures, and 3 when
it could not look: wrong arguments, a file that cannot be read."
)]
pub(crate) struct DoctorArgs {
    /// Read these logs; - is standard input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,
    #[command(flatten)]
    host: HostArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show also what is well and what was seen
    #[arg(short = 'v', long = "all", visible_alias = "verbose")]
    all: bool,
}

/// Looks, and prints the report.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let done = if args.log.is_empty() {
        examine::run(&args.host, Form { json: args.json, all: args.all })
    } else {
        log::examine(&args.log).and_then(|report| print(&report, args))
    };
    match done {
        Err(error) if !output::is_broken_pipe(&error) => {
            output::failure("doctor", &error);
            Ok(ExitCode::from(EXIT_CANNOT))
        }
        done => done,
    }
}

fn print(report: &Report, args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    if args.json {
        output::line(&report.json()?)?;
    } else {
        let style = Style {
            columns: output::columns(),
            colour: output::stdout_has_colour(),
            all: args.all,
        };
        output::stdout_bytes(report.text(style).as_bytes())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}
