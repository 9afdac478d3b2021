//! Arguments of `ringway perf soak`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::{Args, value_parser};
use ringway::config::{format_duration, parse_duration};
use ringway_plan::types::{Collective, DataType, ReduceOp};

use super::Soak;
use crate::perf::args::{Memory, Transport};
use crate::perf::settings::{Repeated, Settings};
use crate::size;

/// Windows of a run, at most: they are all kept.
const WINDOWS_MOST: u128 = 10_000;
/// Windows where nobody says how long one is.
const WINDOWS: u32 = 360;
/// The longest run.
const LENGTH_MOST: Duration = Duration::from_secs(366 * 86_400);

/// Run one collective for hours: does it drift or jitter, who is waited for
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Starts the ranks itself, one process each, on this machine; under a launcher
(ringway run, torchrun, mpirun, srun) it joins that job instead. Shows on a
terminal how it goes, else one line a window; then drift, jitter, hiccups and
stragglers. Ctrl-C ends it with the report of what was seen; -J writes the
file anew after each window. docs/soak.md says what the words mean.

Exits with 1 when it becomes slower than --drift allows, when ranks wait for
one over and over, or when a result is wrong; with 2 when a rank fails; with
130 after Ctrl-C.

Examples:
  ringway perf soak --for 8h -J soak.json
  ringway perf soak all_gather -b 64M --for 10m --every 5s
  ringway run --hosts a:8,b:8 -- ringway perf soak --for 2h
  ringway report soak.json"
)]
pub(crate) struct SoakArgs {
    /// The collective
    #[arg(value_name = "COLLECTIVE", default_value = "all_reduce")]
    collective: Collective,
    /// For how long: 30s, 10m, 8h
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    length: Duration,
    /// Length of a window [default: a 360th of the time, 1s to 1m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    every: Option<Duration>,
    /// How much slower the median may become, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = drift)]
    drift: f64,

    /// Size of each call
    #[arg(short = 'b', long = "size", value_name = "SIZE", default_value = "16M",
          value_parser = size::parse)]
    bytes: u64,
    /// Type: int8, half, bfloat16, float, …
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float")]
    data_type: DataType,
    /// Reduction: sum, prod, min, max, avg
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum")]
    op: ReduceOp,
    /// Root rank
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value = "0")]
    root: u32,
    /// Results to check after each window; 0 for none
    #[arg(short = 'c', long = "check", value_name = "N", default_value = "1")]
    check: u32,
    /// Seconds a call may take before it is an error [default: the library's]
    #[arg(
        short = 'T',
        long = "timeout",
        value_name = "SECONDS",
        default_value = "0",
        hide_default_value = true
    )]
    timeout: u32,

    /// Processes to start [default: one per core (or GPU), at least 2, at
    /// most 8; with -g 1]
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<u32>,
    /// Where the buffers are: host, or cuda for GPU memory
    #[arg(long, value_name = "WHERE", default_value = "host", hide_possible_values = true)]
    memory: Memory,
    /// Ranks of each process, on its GPUs in turn [default: 1]
    #[arg(short = 'g', long = "ngpus", value_name = "N", value_parser = value_parser!(u32).range(1..=32))]
    pub(crate) gpus: Option<u32>,
    /// How bytes travel between ranks: shm, tcp or auto
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    transport: Option<Transport>,
    /// Write what was seen as JSON, anew after each window; replaces FILE
    #[arg(short = 'J', long = "json", value_name = "FILE")]
    json: Option<PathBuf>,
}

fn drift(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>().ok();
    number
        .filter(|number| (0.1..=1000.0).contains(number))
        .ok_or_else(|| "not a percentage of 0.1 to 1000, as 10".to_owned())
}

impl SoakArgs {
    /// The arguments, checked.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let soak = self.soak()?;
        if let (Memory::Host, Some(gpus @ 2..)) = (self.memory, self.gpus) {
            bail!("-g {gpus}: for more ranks use --ranks {gpus}, for GPU memory add --memory cuda");
        }
        Ok(Settings::repeated(&Repeated {
            collective: self.collective,
            bytes: self.bytes,
            data_type: self.data_type,
            op: self.op,
            root: self.root,
            check: self.check,
            timeout_s: self.timeout,
            memory: self.memory,
            gpus: self.gpus,
            transport: self.transport,
            json: self.json.clone(),
            soak,
        }))
    }

    fn soak(&self) -> anyhow::Result<Soak> {
        let shortest = Duration::from_secs(1);
        ensure!(self.length >= shortest, "--for: a run takes a second at least, as --for 10m");
        ensure!(self.length <= LENGTH_MOST, "--for: a run takes a year at most, as --for 8h");
        let usual = (self.length / WINDOWS).clamp(shortest, Duration::from_mins(1));
        let least = Duration::from_nanos(
            u64::try_from(self.length.as_nanos().div_ceil(WINDOWS_MOST)).unwrap_or(u64::MAX),
        );
        let window = match self.every {
            None => usual.max(least),
            Some(every) => every,
        };
        ensure!(
            window >= Duration::from_millis(200),
            "--every: a window takes 200ms at least, as --every 10s"
        );
        ensure!(
            window <= self.length,
            "--every {}: longer than the run; lower it, or raise --for",
            format_duration(window)
        );
        ensure!(
            window >= least,
            "--every {}: these are more than {WINDOWS_MOST} windows; raise it to {} or more",
            format_duration(window),
            format_duration(Duration::from_secs(least.as_secs() + 1))
        );
        Ok(Soak { length: self.length, window, drift_percent: self.drift })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        soak: SoakArgs,
    }

    fn settings(words: &str) -> Result<Settings, String> {
        let line = Line::try_parse_from(["soak"].into_iter().chain(words.split_whitespace()))
            .map_err(|error| error.to_string())?;
        line.soak.settings().map_err(|error| error.to_string())
    }

    fn window(words: &str) -> Duration {
        settings(words).unwrap().soak.unwrap().window
    }

    #[test]
    fn windows_follow_from_the_time() {
        assert_eq!(window(""), Duration::from_secs(10));
        assert_eq!(window("--for 1s"), Duration::from_secs(1));
        assert_eq!(window("--for 24h"), Duration::from_mins(1));
        assert_eq!(window("--for 100h --every 1m"), Duration::from_mins(1));
        assert!(window("--for 300d") > Duration::from_mins(40), "a bounded number of them");
        let soak = settings("all_gather --for 3s --every 500ms --drift 5% -b 1M -c 0").unwrap();
        assert_eq!(soak.soak.unwrap().drift_percent, 5.0);
        assert_eq!((soak.collective, soak.check), (Collective::AllGather, 0));
        assert_eq!(soak.sweep.sizes().collect::<Vec<_>>(), [1 << 20]);
    }

    #[test]
    fn wrong_arguments_say_the_fix() {
        for (words, fix) in [
            ("--for soon", "10m or 2h"),
            ("--for 10ms", "a second at least"),
            ("--for 1000d", "a year at most"),
            ("--every 1ms", "200ms at least"),
            ("--for 5s --every 10s", "raise --for"),
            ("--for 300d --every 1s", "raise it to"),
            ("--drift 0", "as 10"),
            ("-b big", "16M"),
            ("-d f31", "bfloat16"),
            ("-g 4", "--ranks 4"),
            ("all_produce", "all_to_all"),
        ] {
            let error = settings(words).unwrap_err();
            assert!(error.contains(fix), "{words}: {error}");
        }
    }
}
