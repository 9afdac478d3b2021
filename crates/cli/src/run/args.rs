//! Arguments of `ringway run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Start a program as the ranks of a job, here or on several hosts
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Each rank finds its place in RINGWAY_RANK, RINGWAY_SIZE, RINGWAY_LOCAL_RANK,
RINGWAY_LOCAL_SIZE and RINGWAY_ROOT, and the job's secret in RINGWAY_SECRET.
Rank 0 reads standard input. When one rank fails, the others are ended: they
get a moment to report what they saw, then SIGTERM, then SIGKILL two seconds
later. The exit code is that of the first rank that failed (128 + signal when
a signal ended it). Ctrl-C ends all ranks and exits with 130. Colours come on
a terminal only; RINGWAY_COLOR (always, never) and NO_COLOR change that.

With --hosts, ranks are started over ssh, which must not ask for a password;
the host localhost is this machine, without ssh. This program must be there in
the same version, at the same path or at --remote-path. Ranks get this
directory and these variables, but for those that belong to a login (HOME,
USER, TMPDIR, SSH_* and the like) and those of other launchers. A host that is
lost ends the job: within 20 seconds where it just falls silent. Ranks end,
too, when nothing is heard from this program for a minute.

Examples:
  ringway run -n 4 -- python train.py
  ringway run -n 2 --env NCCL_DEBUG=INFO -- ringway perf all_reduce
  ringway run -n 3 -- sh -c 'echo I am $RINGWAY_RANK of $RINGWAY_SIZE'
  ringway run --hosts a:8,b:8 -- python train.py
  ringway run --hosts 'node[01-16]:8' -- ringway perf all_reduce"
)]
pub(crate) struct RunArgs {
    /// Ranks to start [default: one per core, at least 2, at most 8; with
    /// hosts one per slot]
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    pub(crate) ranks: Option<u32>,

    /// Hosts to start them on, with ranks on each: a:4,b:4 or node[01-08]:8
    #[arg(long, value_name = "LIST", conflicts_with = "hostfile")]
    pub(crate) hosts: Option<String>,

    /// The same from a file: a host on each line, with slots=4
    #[arg(long, value_name = "FILE")]
    pub(crate) hostfile: Option<PathBuf>,

    /// The ssh command, with options
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub(crate) ssh: String,

    /// Where ringway is on the hosts [default: where it is here]
    #[arg(long, value_name = "PATH")]
    pub(crate) remote_path: Option<OsString>,

    /// Directory of the ranks [default: this one]
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    /// Set a variable for every rank (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,

    /// Do not put the rank before each line of output
    #[arg(long)]
    pub(crate) no_prefix: bool,

    /// Say nothing about ranks that fail
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Seconds the others may run on after one rank failed
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) grace: Duration,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true
    )]
    pub(crate) command: Vec<OsString>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("not NAME=VALUE; write NCCL_DEBUG=INFO".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|seconds| seconds.as_secs() <= 86_400)
        .ok_or_else(|| "not a number of seconds up to a day; write 0.5 or 10".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_need_a_name() {
        assert_eq!(variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(variable("A="), Ok(("A".to_owned(), String::new())));
        assert!(variable("A").unwrap_err().contains("NAME=VALUE"));
        assert!(variable("=x").is_err());
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["-1", "x", "inf", "NaN", "1e9"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
