//! `ringway doctor`: says what is wrong with a job or a machine, what it costs, and what to do.
//!
//! [`finding`] holds the words all parts report in; [`log`] reads logs; [`examine`] looks at machines with the
//! [`checks`], and [`fleet`] compares them. This file only takes the arguments, asks the right part and prints
//! its report.

pub(crate) mod checks;
mod codes;
pub(crate) mod examine;
pub(crate) mod finding;
pub(crate) mod fleet;
pub(crate) mod host;
pub(crate) mod html;
pub(crate) mod log;
mod moment;
pub(crate) mod sources;
#[cfg(test)]
pub(crate) mod tests;

use crate::exit::ExitCode;
use std::path::PathBuf;

use clap::Args;

use self::examine::{Form, HostArgs};
use self::finding::{EXIT_CANNOT, Report, Style};
use crate::output;

/// Say what is wrong with a job or a machine, what it costs, and the fix
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Without --log it looks at this machine, or at the snapshots (`ringway snapshot`)
and folders given; of several it says what differs, too, and two snapshots of
one machine show how its counters grew. It changes nothing and needs no root.

Logs: NCCL and RCCL debug logs (NCCL_DEBUG=INFO says most), nccl-tests tables,
ib_write_bw tables, kernel and system logs, in any mix, also packed with gzip or
zstd. Give all ranks' files: some faults show only between ranks.

Examples:
  ringway doctor                          this machine
  ringway doctor --only pci,gdr-06        some checks
  ringway doctor --explain pci-05         what a check is about
  ringway doctor --interval 30            counters as they grow in 30 s
  ringway doctor node*.tar.zst            a fleet
  ringway doctor --log job.log
  ringway doctor --log logs/*.log.gz
  ringway doctor --pairs --log job.log    each pair of ranks in a line
  kubectl logs pod | ringway doctor --log -
  ringway doctor --json --log job.log

Exits with 0 when nothing is wrong, 1 for warnings, 2 for failures, and 3 when
it could not look: wrong arguments, a file that cannot be read."
)]
pub(crate) struct DoctorArgs {
    /// Read these logs; - is standard input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,
    /// List every pair of ranks in the logs, with the way it took
    #[arg(long, requires = "log")]
    pairs: bool,
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
        log::examine(&args.log).and_then(|(report, pairs)| print(&report, &pairs, args))
    };
    match done {
        Err(error) if !output::is_broken_pipe(&error) => {
            output::failure("doctor", &error);
            Ok(ExitCode::from(EXIT_CANNOT))
        }
        done => done,
    }
}

fn print(report: &Report, pairs: &log::Pairs, args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    if args.json {
        output::line(&report.json_with(Some(pairs.listing(args.pairs)))?)?;
    } else {
        let style = Style {
            columns: output::columns(),
            colour: output::stdout_has_colour(),
            all: args.all,
        };
        let ways = pairs.text(args.pairs);
        let gap = if ways.is_empty() { "" } else { "\n" };
        let told = report.text(style);
        // A long list does not push what is wrong out of sight.
        let page =
            if args.pairs { format!("{ways}{gap}{told}") } else { format!("{told}{gap}{ways}") };
        output::stdout_bytes(page.as_bytes())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}
