//! `ringway doctor`: says what is wrong with a job or a machine, what it costs, and what to do.
//!
//! [`finding`] holds the words all parts report in; [`log`] reads logs. This file only takes the arguments,
//! asks the right part and prints its report.

pub(crate) mod finding;
mod log;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::finding::{EXIT_CANNOT, Report, Style};
use crate::output;

/// Say what is wrong with a job or a machine, what it costs, and the fix
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Logs: NCCL and RCCL debug logs (NCCL_DEBUG=INFO says most), nccl-tests tables,
ib_write_bw tables, kernel and system logs, in any mix. Give all ranks' files:
some faults show only between ranks.

Examples:
  ringway doctor --log job.log
  ringway doctor --log logs/*.log
  kubectl logs pod | ringway doctor --log -
  ringway doctor --json --log job.log

Exits with 0 when nothing is wrong, 1 for warnings, 2 for failures, and 3 when
it could not look: wrong arguments, a file that cannot be read."
)]
pub(crate) struct DoctorArgs {
    /// Read these logs; - is standard input
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    log: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show also what is well and what was seen
    #[arg(short, long)]
    verbose: bool,
}

/// Looks, and prints the report.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    match log::examine(&args.log) {
        Ok(report) => print(&report, args),
        Err(error) => {
            output::failure("doctor", &error);
            Ok(ExitCode::from(EXIT_CANNOT))
        }
    }
}

fn print(report: &Report, args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    if args.json {
        output::line(&report.json()?)?;
    } else {
        let style = Style {
            columns: output::columns(),
            colour: output::stdout_has_colour(),
            all: args.verbose,
        };
        output::stdout_bytes(report.text(style).as_bytes())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}
