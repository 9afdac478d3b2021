//! Arguments of `ringway perf`: those of nccl-tests, and a few of ours.

use std::path::PathBuf;

use clap::{Args, ValueEnum, value_parser};
use ringway_plan::types::{Collective, DataType, Level, ReduceOp};

use super::expect;
use crate::size;

/// Measure a collective, as nccl-tests does
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Starts the ranks itself, one process each, on this machine. Under a launcher
(ringway run, torchrun, mpirun, srun) it joins that job instead. Without
sizes it sweeps 8 B to 128 MiB. Exits with 1 when a result is wrong, or less
than --expect; with 2 when that cannot be told.

Collectives:
  all_reduce all_gather reduce_scatter broadcast reduce gather scatter
  all_to_all sendrecv (each rank to the next) barrier; nccl-tests' names
  with _perf work too. In place, sendrecv copies its buffer aside first.

GPU memory: --memory cuda -g 4 makes this process four ranks, on its GPUs in
turn; with --ranks, or under a launcher, every process has -g of them.

Options of nccl-tests without a meaning here:
  -G -R -x -V -y -M are read and noted in the header, -p is read; -t other
  than 1, -g without --memory cuda and -D above 0 are refused with what to
  use instead.

Examples:
  ringway perf all_reduce
  ringway perf all_reduce --algo all --learn
  ringway perf all_reduce -b 64M -e 1G --expect=90
  ringway perf all_gather --ranks 4 -b 1K -e 16M -f 4 --transport tcp
  ringway perf reduce_scatter -d all -o all -b 1M -e 1M
  ringway perf broadcast -r all -n 100 -w 10 -J broadcast.json
  ringway perf all_reduce --memory cuda -g 4
  mpirun -np 4 ringway perf all_reduce"
)]
pub(crate) struct PerfArgs {
    /// The collective to measure
    #[arg(value_name = "COLLECTIVE", value_parser = collective)]
    pub(crate) collective: Collective,

    /// Processes to start [default: one per core (or GPU), at least 2, at
    /// most 8; with -g 1]
    #[arg(long, value_name = "N", help_heading = "Job")]
    pub(crate) ranks: Option<u32>,
    /// Where the buffers are: host, or cuda for GPU memory
    #[arg(
        long,
        value_name = "WHERE",
        help_heading = "Job",
        default_value = "host",
        hide_possible_values = true
    )]
    pub(crate) memory: Memory,
    /// Ranks of each process, on its GPUs in turn [default: 1]
    #[arg(short = 'g', long = "ngpus", value_name = "N", help_heading = "Job",
          value_parser = value_parser!(u32).range(1..=32))]
    pub(crate) gpus: Option<u32>,
    /// How bytes travel between ranks: shm, tcp or auto
    #[arg(long, value_name = "NAME", help_heading = "Job", hide_possible_values = true)]
    pub(crate) transport: Option<Transport>,
    /// The algorithm, in place of the planner's choice; all: time each that
    /// can do it, and show how far the planner's choice is from the best
    #[arg(long, value_name = "NAME", help_heading = "Job")]
    pub(crate) algo: Option<String>,
    /// With --algo all: write what was seen into the tuning file
    #[arg(long, help_heading = "Job")]
    pub(crate) learn: bool,
    /// What the bits of a result may depend on: run or shape; all: time both,
    /// in turns, and show what the stricter one costs
    #[arg(long, value_name = "LEVEL", help_heading = "Job", value_parser = level)]
    pub(crate) level: Option<Choice<Level>>,

    /// Least size [default: 8]
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", help_heading = "Sizes",
          value_parser = size::parse)]
    pub(crate) min_bytes: Option<u64>,
    /// Greatest size [default: 128M]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", help_heading = "Sizes",
          value_parser = size::parse)]
    pub(crate) max_bytes: Option<u64>,
    /// Bytes from one size to the next
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", help_heading = "Sizes",
          value_parser = size::parse)]
    pub(crate) step_bytes: Option<u64>,
    /// Factor from one size to the next [default: 2]
    #[arg(short = 'f', long = "stepfactor", value_name = "N", help_heading = "Sizes")]
    pub(crate) step_factor: Option<u64>,
    /// Misalign the buffers by so many elements
    #[arg(short = 'u', long = "unalign", value_name = "N", help_heading = "Sizes",
          default_value = "0", value_parser = value_parser!(u32).range(..=4096))]
    pub(crate) unalign: u32,

    /// Reduction: sum, prod, min, max, avg, mulsum or all
    #[arg(short = 'o', long = "op", value_name = "OP", help_heading = "What",
          default_value = "sum", value_parser = operation)]
    pub(crate) op: Choice<ReduceOp>,
    /// Type: int8, half, bfloat16, float, f8e4m3, … or all
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", help_heading = "What",
          default_value = "float", value_parser = data_type)]
    pub(crate) data_type: Choice<DataType>,
    /// Root rank, or all
    #[arg(short = 'r', long = "root", value_name = "RANK", help_heading = "What",
          default_value = "0", allow_hyphen_values = true, value_parser = root)]
    pub(crate) root: Choice<u32>,
    /// Times to check each result; 0 for no check
    #[arg(
        short = 'c',
        long = "check",
        value_name = "N",
        help_heading = "What",
        default_value = "1"
    )]
    pub(crate) check: u32,

    /// Iterations; by default 20, fewer where those would take long
    #[arg(short = 'n', long = "iters", value_name = "N", help_heading = "Timing",
          value_parser = value_parser!(u32).range(1..))]
    pub(crate) iterations: Option<u32>,
    /// Warm-up iterations of each size
    #[arg(
        short = 'w',
        long = "warmup_iters",
        alias = "warmup-iters",
        value_name = "N",
        help_heading = "Timing",
        default_value = "1"
    )]
    pub(crate) warmup: u32,
    /// Calls in each iteration
    #[arg(short = 'm', long = "agg_iters", alias = "agg-iters", value_name = "N",
          help_heading = "Timing", default_value = "1", value_parser = value_parser!(u32).range(1..))]
    pub(crate) aggregate: u32,
    /// Times to run the whole sweep; 0 for ever
    #[arg(
        short = 'N',
        long = "run_cycles",
        alias = "run-cycles",
        value_name = "N",
        help_heading = "Timing",
        default_value = "1"
    )]
    pub(crate) cycles: u32,
    /// 0: queue all calls, wait once; 1: wait and barrier after each call; 2: wait after each
    /// call; 3: barrier after each iteration, not timed [default: 2; on GPU memory 0]
    #[arg(short = 'z', long = "blocking", value_name = "0..3", help_heading = "Timing",
          value_parser = value_parser!(u8).range(..=3))]
    pub(crate) blocking: Option<u8>,
    /// Time shown: 0 rank 0's, 1 average, 2 least, 3 greatest
    #[arg(short = 'a', long = "average", value_name = "0..3", help_heading = "Timing",
          default_value = "1", value_parser = value_parser!(u8).range(..=3))]
    pub(crate) average: u8,
    /// 1: show CPU time in place of elapsed time
    #[arg(short = 'C', long = "report_cputime", alias = "report-cputime", value_name = "0|1",
          help_heading = "Timing", default_value = "0", value_parser = value_parser!(u8).range(..=1))]
    pub(crate) cpu_time: u8,
    /// 1: time every iteration and show the spread
    #[arg(short = 'I', long = "per_iter_timing", alias = "per-iter-timing", value_name = "0|1",
          help_heading = "Timing", default_value = "0", value_parser = value_parser!(u8).range(..=1))]
    pub(crate) per_iteration: u8,
    /// Leading iterations that -I leaves out of its summary
    #[arg(
        short = 'K',
        long = "per_iter_skip",
        alias = "per-iter-skip",
        value_name = "N",
        help_heading = "Timing",
        default_value = "0"
    )]
    pub(crate) per_iteration_skip: u32,
    /// Seconds a call may take before it is an error [default: the library's]
    #[arg(
        short = 'T',
        long = "timeout",
        value_name = "SECONDS",
        help_heading = "Timing",
        default_value = "0",
        hide_default_value = true
    )]
    pub(crate) timeout: u32,

    /// Judge the bus bandwidth by what the links permit: exits with 1 where
    /// less than PERCENT of it is reached [default: 80; 25 of memory]
    #[arg(long, value_name = "PERCENT", help_heading = "Verdict", num_args = 0..=1,
          require_equals = true, value_parser = expect::percent)]
    pub(crate) expect: Option<Option<f64>>,
    /// With --expect: what the link of each host carries (of each rank, on one
    /// host), where the machine does not know: 100G, NDR, 12.5GB/s
    #[arg(long, value_name = "RATE", help_heading = "Verdict", requires = "expect",
          value_parser = expect::rate)]
    pub(crate) expect_rate: Option<f64>,

    /// Write the results in nccl-tests' JSON layout; replaces FILE
    #[arg(
        short = 'J',
        long = "json",
        alias = "output_file",
        value_name = "FILE",
        help_heading = "Output"
    )]
    pub(crate) json: Option<PathBuf>,
    /// 1: add the time of day (UTC) to each row
    #[arg(short = 'S', long = "report_timestamps", alias = "report-timestamps",
          value_name = "0|1", help_heading = "Output", default_value = "0",
          value_parser = value_parser!(u8).range(..=1))]
    pub(crate) timestamps: u8,

    #[command(flatten)]
    pub(crate) foreign: ForeignArgs,
}

/// Options of nccl-tests that are about GPUs, threads or MPI.
#[derive(Debug, Args)]
pub(crate) struct ForeignArgs {
    #[arg(short = 't', long = "nthreads", hide = true, default_value = "1")]
    pub(crate) threads: u32,
    #[arg(short = 'p', long = "parallel_init", hide = true, default_value = "0")]
    pub(crate) parallel_init: u32,
    #[arg(short = 'G', long = "cudagraph", hide = true, default_value = "0")]
    pub(crate) graph: u32,
    #[arg(short = 'R', long = "local_register", hide = true, default_value = "0")]
    pub(crate) register: u32,
    #[arg(short = 'x', long = "cta_policy", hide = true)]
    pub(crate) cta_policy: Option<i32>,
    #[arg(short = 'D', long = "device_implementation", hide = true, default_value = "0")]
    pub(crate) device_implementation: u32,
    #[arg(short = 'V', long = "device_cta_count", hide = true)]
    pub(crate) device_cta_count: Option<u32>,
    #[arg(short = 'y', long = "stream_null", hide = true, default_value = "0")]
    pub(crate) stream_null: u32,
    #[arg(short = 'M', long = "memory_report", hide = true, default_value = "0")]
    pub(crate) memory_report: u32,
}

/// One thing or every thing of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice<T> {
    One(T),
    All,
}

/// Where the buffers of a measurement are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Memory {
    Host,
    Cuda,
}

/// How bytes travel between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    Shm,
    Tcp,
    Verbs,
    Auto,
}

impl Transport {
    /// The name the library's setting takes.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
            Self::Auto => "auto",
        }
    }
}

fn collective(word: &str) -> Result<Collective, String> {
    word.parse::<Collective>().map_err(|error| error.to_string())
}

fn level(word: &str) -> Result<Choice<Level>, String> {
    if word.eq_ignore_ascii_case("all") {
        return Ok(Choice::All);
    }
    word.parse()
        .map(Choice::One)
        .map_err(|error: ringway_plan::types::UnknownName| format!("{error}, all"))
}

fn operation(word: &str) -> Result<Choice<ReduceOp>, String> {
    if word.eq_ignore_ascii_case("all") {
        return Ok(Choice::All);
    }
    word.parse()
        .map(Choice::One)
        .map_err(|error: ringway_plan::types::UnknownName| format!("{error}, all"))
}

fn data_type(word: &str) -> Result<Choice<DataType>, String> {
    if word.eq_ignore_ascii_case("all") {
        return Ok(Choice::All);
    }
    word.parse()
        .map(Choice::One)
        .map_err(|error: ringway_plan::types::UnknownName| format!("{error}, all"))
}

fn root(word: &str) -> Result<Choice<u32>, String> {
    if word.eq_ignore_ascii_case("all") || word == "-1" {
        return Ok(Choice::All);
    }
    word.parse().map(Choice::One).map_err(|_| "not a rank; write 0, 3 or all".to_owned())
}
