//! The arguments, checked and made whole: what to measure, in which order, how.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use ringway_plan::types::{Collective, DataType, ReduceOp};

use super::args::{Choice, Memory, PerfArgs};
use super::stats::Average;
use super::table::Columns;

const MIN_BYTES: u64 = 8;
const MAX_BYTES: u64 = 128 << 20;
/// Iterations where nobody says and time allows.
pub(crate) const ITERATIONS: u32 = 20;
/// More rows than this are a slip of the keyboard.
const ROWS_MAX: usize = 1_000_000;

/// The sizes of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(crate) min_bytes: u64,
    pub(crate) max_bytes: u64,
    pub(crate) step: Step,
}

/// The way from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Bytes(u64),
    Factor(u64),
}

impl Sweep {
    /// The sizes, in order.
    pub(crate) fn sizes(self) -> impl Iterator<Item = u64> {
        let next = move |size: &u64| match self.step {
            Step::Bytes(bytes) => size.checked_add(bytes),
            // From 0 no factor leads on; go on where sweeps usually begin.
            Step::Factor(_) if *size == 0 => Some(MIN_BYTES),
            Step::Factor(factor) => size.checked_mul(factor),
        };
        std::iter::successors(Some(self.min_bytes), next)
            .take_while(move |size| *size <= self.max_bytes)
    }
}

/// When a rank waits (`-z`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    /// Queue the calls, wait once at the end.
    Queue,
    /// Wait and barrier after each call.
    CallAndBarrier,
    /// Wait after each call.
    Call,
    /// Barrier after each iteration, outside the time.
    IterationAndBarrier,
}

/// Everything `perf` needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) collective: Collective,
    pub(crate) memory: Memory,
    /// Ranks of each process: threads, each on a GPU.
    pub(crate) ranks_per_process: u32,
    pub(crate) sweep: Sweep,
    /// Whether the greatest size was asked for, and so must not be lowered silently.
    pub(crate) max_bytes_given: bool,
    pub(crate) data_types: Vec<DataType>,
    /// `None` alone where nothing is reduced.
    pub(crate) ops: Vec<Option<ReduceOp>>,
    pub(crate) root: Choice<u32>,
    pub(crate) unalign: usize,
    pub(crate) check: u32,
    /// `None`: up to [`ITERATIONS`], as time allows.
    pub(crate) iterations: Option<u32>,
    pub(crate) warmup: u32,
    pub(crate) aggregate: u32,
    /// 0 for ever.
    pub(crate) cycles: u32,
    pub(crate) blocking: Blocking,
    pub(crate) average: Average,
    pub(crate) per_iteration_skip: u32,
    pub(crate) deadline: Option<Duration>,
    pub(crate) columns: Columns,
    pub(crate) json: Option<PathBuf>,
    pub(crate) parallel_init: bool,
    /// Variables by which the choices on the command line reach the library.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// What is timed beside each other, in a table of its own.
    pub(crate) compare: Option<Compare>,
    /// Whether what is seen goes into the tuning file.
    pub(crate) learn: bool,
    /// Remarks on options that were read but do nothing.
    pub(crate) notes: Vec<String>,
}

impl Settings {
    /// Checks the arguments and fills in what they leave open.
    pub(crate) fn new(args: &PerfArgs) -> anyhow::Result<Self> {
        let notes = notes_on(args)?;
        let collective = args.collective;
        let per_iteration = args.per_iteration == 1;
        let iterations_max = args.iterations.unwrap_or(ITERATIONS);
        if args.per_iteration_skip > 0 && !per_iteration {
            bail!("-K {}: only with -I 1", args.per_iteration_skip);
        }
        if args.per_iteration_skip >= iterations_max {
            bail!(
                "-K {}: leaves nothing of {iterations_max} iterations; raise -n or lower -K",
                args.per_iteration_skip
            );
        }
        check_compare(args)?;
        check_memory(args)?;
        Ok(Self {
            collective,
            memory: args.memory,
            ranks_per_process: args.gpus.unwrap_or(1),
            sweep: sweep(args)?,
            max_bytes_given: args.max_bytes.is_some() || args.min_bytes.is_some(),
            data_types: match args.data_type {
                Choice::One(data_type) => vec![data_type],
                Choice::All => DataType::ALL.to_vec(),
            },
            ops: match args.op {
                _ if !collective.reduces() => vec![None],
                Choice::One(op) => vec![Some(op)],
                Choice::All => ReduceOp::ALL.map(Some).to_vec(),
            },
            root: args.root,
            unalign: args.unalign as usize,
            check: if collective == Collective::Barrier { 0 } else { args.check },
            iterations: args.iterations,
            warmup: args.warmup,
            aggregate: args.aggregate,
            cycles: args.cycles,
            blocking: match (args.blocking, args.memory) {
                (Some(0), _) | (None, Memory::Cuda) => Blocking::Queue,
                (Some(1), _) => Blocking::CallAndBarrier,
                (Some(3), _) => Blocking::IterationAndBarrier,
                _ => Blocking::Call,
            },
            average: Average::from_option(args.average),
            per_iteration_skip: args.per_iteration_skip,
            deadline: (args.timeout > 0).then(|| Duration::from_secs(args.timeout.into())),
            columns: Columns {
                iterations: per_iteration,
                timestamps: args.timestamps == 1,
                cpu_time: args.cpu_time == 1,
            },
            json: args.json.clone(),
            parallel_init: args.foreign.parallel_init > 0,
            variables: variables(args),
            compare: Compare::asked(args),
            learn: args.learn,
            notes,
        })
    }

    /// The roots to measure in a job of `size` ranks.
    pub(crate) fn roots(&self, size: u32) -> anyhow::Result<Vec<Option<u32>>> {
        match self.root {
            _ if !self.collective.has_root() => Ok(vec![None]),
            Choice::All => Ok((0..size).map(Some).collect()),
            Choice::One(root) if root < size => Ok(vec![Some(root)]),
            Choice::One(root) => {
                bail!("-r {root}: the ranks are 0 to {}; write one of them or all", size - 1)
            }
        }
    }

    /// The name nccl-tests gives this test.
    pub(crate) fn program(&self) -> String {
        match self.collective {
            Collective::AllToAll => "alltoall_perf".to_owned(),
            Collective::SendRecv => "sendrecv_perf".to_owned(),
            collective => format!("{collective}_perf"),
        }
    }
}

fn sweep(args: &PerfArgs) -> anyhow::Result<Sweep> {
    let step = match (args.step_factor, args.step_bytes) {
        (Some(factor @ 0..=1), _) => {
            bail!("-f {factor}: the factor is 2 or more; for a fixed step use -i")
        }
        (Some(factor), _) => Step::Factor(factor),
        (None, Some(0)) => bail!("-i 0: the step is 1 or more bytes"),
        (None, Some(bytes)) => Step::Bytes(bytes),
        (None, None) => Step::Factor(2),
    };
    let (min_bytes, max_bytes) = match (args.min_bytes, args.max_bytes) {
        (Some(min), Some(max)) if min > max => {
            bail!("-b {min} is greater than -e {max}: swap them")
        }
        (Some(min), Some(max)) => (min, max),
        (Some(min), None) => (min, min.max(MAX_BYTES)),
        (None, Some(max)) => (max.min(MIN_BYTES), max),
        (None, None) => (MIN_BYTES, MAX_BYTES),
    };
    if args.collective == Collective::Barrier {
        return Ok(Sweep { min_bytes: 0, max_bytes: 0, step });
    }
    let sweep = Sweep { min_bytes, max_bytes, step };
    if sweep.sizes().take(ROWS_MAX + 1).count() > ROWS_MAX {
        bail!("these are more than {ROWS_MAX} sizes: raise -i, or use -f");
    }
    Ok(sweep)
}

fn variables(args: &PerfArgs) -> Vec<(&'static str, String)> {
    let transport = args.transport.map(|transport| transport.name().to_owned());
    let level = match args.level {
        Some(Choice::One(level)) => Some(level.name().to_owned()),
        _ => None,
    };
    // For what is measured alone: barriers and the like around it are nobody's choice.
    let algo = args.algo.as_ref().filter(|algo| !all(algo)).map(|algo| match algo.contains(':') {
        true => algo.clone(),
        false => format!("{}:{algo}", args.collective.name()),
    });
    // A call on GPU memory has no deadline of its own: kernels have the communicator's.
    let has_limit = args.memory == Memory::Cuda && args.timeout > 0;
    let timeout = has_limit.then(|| format!("{}s", args.timeout));
    [
        ("RINGWAY_TRANSPORT", transport),
        ("RINGWAY_LEVEL", level),
        ("NCCL_ALGO", algo),
        ("RINGWAY_TIMEOUT", timeout),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

fn all(word: &str) -> bool {
    word.eq_ignore_ascii_case("all")
}

/// What is timed beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// Every algorithm (`--algo all`).
    Algorithms,
    /// Every level (`--level all`).
    Levels,
}

impl Compare {
    fn asked(args: &PerfArgs) -> Option<Self> {
        if args.algo.as_ref().is_some_and(|algo| all(algo)) {
            return Some(Self::Algorithms);
        }
        (args.level == Some(Choice::All)).then_some(Self::Levels)
    }

    fn option(self) -> &'static str {
        match self {
            Self::Algorithms => "--algo all",
            Self::Levels => "--level all",
        }
    }
}

/// A comparison makes a table of its own, of one kind of call.
fn check_compare(args: &PerfArgs) -> anyhow::Result<()> {
    let asked = Compare::asked(args);
    let learns = asked == Some(Compare::Algorithms);
    anyhow::ensure!(learns || !args.learn, "--learn: only with --algo all");
    let Some(option) = asked.map(Compare::option) else { return Ok(()) };
    let both = learns && args.level == Some(Choice::All);
    anyhow::ensure!(!both, "--algo all and --level all: one at a time");
    let many = args.data_type == Choice::All
        || args.root == Choice::All
        || (args.op == Choice::All && args.collective.reduces());
    anyhow::ensure!(!many, "{option}: choose one -d, one -o and one -r");
    anyhow::ensure!(args.json.is_none(), "{option}: its table has no JSON form; drop -J");
    anyhow::ensure!(
        args.collective != Collective::SendRecv,
        "{option}: sendrecv is planned for each pair of ranks; there is nothing to choose"
    );
    Ok(())
}

/// On GPU memory the size of a call alone decides how it is done.
fn check_memory(args: &PerfArgs) -> anyhow::Result<()> {
    if args.memory == Memory::Host {
        return Ok(());
    }
    anyhow::ensure!(
        args.algo.is_none(),
        "--algo: on GPU memory the plan follows from the size of a call; drop it"
    );
    anyhow::ensure!(
        args.level != Some(Choice::All),
        "--level all: on GPU memory both levels are the same plans; drop it"
    );
    Ok(())
}

fn notes_on(args: &PerfArgs) -> anyhow::Result<Vec<String>> {
    let foreign = &args.foreign;
    let on_host = args.memory == Memory::Host;
    let gpus = args.gpus.filter(|gpus| *gpus > 1 && on_host);
    if let Some(gpus) = gpus {
        bail!(
            "-g {gpus}: every rank is a process with one buffer in host memory; for more ranks use \
             --ranks {gpus}, for GPU memory add --memory cuda"
        );
    }
    let threads = foreign.threads;
    if threads != 1 {
        let instead = if on_host { "--ranks" } else { "-g" };
        bail!(
            "-t {threads}: for more ranks use {instead} {threads}, or start more under your launcher"
        );
    }
    let implementation = foreign.device_implementation;
    match on_host {
        _ if implementation == 0 => {}
        true => bail!(
            "-D {implementation}: there are no device kernels on host memory; choose an algorithm \
             with --algo"
        ),
        false => bail!(
            "-D {implementation}: there is one implementation, which follows from the size; drop -D"
        ),
    }
    let given = [
        ("-G", foreign.graph > 0, "CUDA graphs"),
        ("-R", foreign.register > 0, "buffer registration"),
        ("-x", foreign.cta_policy.is_some(), "the CTA policy"),
        ("-V", foreign.device_cta_count.is_some(), "the number of CTAs"),
        ("-y", foreign.stream_null > 0, "the null stream"),
        ("-M", foreign.memory_report > 0, "the report of GPU memory"),
    ];
    let place = if on_host { "host" } else { "GPU" };
    Ok(given
        .into_iter()
        .filter(|(_, given, _)| *given)
        .map(|(option, _, what)| format!("{option} has no effect on {place} memory ({what})"))
        .collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        perf: PerfArgs,
    }

    fn settings(words: &str) -> Result<Settings, String> {
        let line = Line::try_parse_from(["perf"].into_iter().chain(words.split_whitespace()))
            .map_err(|error| error.to_string())?;
        Settings::new(&line.perf).map_err(|error| error.to_string())
    }

    #[test]
    fn options_of_nccl_tests_are_taken_short_and_long() {
        let short = settings(
            "all_reduce -b 8 -e 1M -f 4 -n 10 -w 3 -m 2 -N 5 -c 0 -o max -d half -r 1 -z 1 -a 3 \
             -p 1 -t 1 -g 1 -C 1 -J out.json -S 1 -T 30 -I 1 -K 2 -u 1",
        )
        .unwrap();
        let long = settings(
            "all_reduce_perf --minbytes 8 --maxbytes 1M --stepfactor 4 --iters 10 \
             --warmup_iters 3 --agg_iters 2 --run_cycles 5 --check 0 --op max --datatype half \
             --root 1 --blocking 1 --average 3 --parallel_init 1 --nthreads 1 --ngpus 1 \
             --report_cputime 1 --output_file out.json --report_timestamps 1 --timeout 30 \
             --per_iter_timing 1 --per_iter_skip 2 --unalign 1",
        )
        .unwrap();
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
        assert_eq!(short.sweep, Sweep { min_bytes: 8, max_bytes: 1 << 20, step: Step::Factor(4) });
        assert_eq!(short.iterations, Some(10));
        assert_eq!(short.deadline, Some(Duration::from_secs(30)));
        assert_eq!(short.data_types, [DataType::F16]);
    }

    #[test]
    fn names_of_collectives() {
        let table = [
            ("all_reduce", "all_reduce_perf"),
            ("alltoall_perf", "alltoall_perf"),
            ("all_to_all", "alltoall_perf"),
            ("sendrecv", "sendrecv_perf"),
            ("reduce_scatter_perf", "reduce_scatter_perf"),
            ("barrier", "barrier_perf"),
        ];
        for (word, program) in table {
            assert_eq!(settings(word).unwrap().program(), program);
        }
    }

    #[test]
    fn sweeps() {
        let sizes = |words: &str| settings(words).unwrap().sweep.sizes().collect::<Vec<_>>();
        let all = sizes("all_reduce");
        assert_eq!((all.first(), all.last(), all.len()), (Some(&8), Some(&(128 << 20)), 25));
        assert_eq!(sizes("all_reduce -b 1K -e 3K -i 1K"), [1024, 2048, 3072]);
        assert_eq!(sizes("all_reduce -b 8 -e 600 -f 8"), [8, 64, 512]);
        assert_eq!(sizes("all_reduce -b 1G"), [1 << 30]);
        assert_eq!(sizes("all_reduce -e 4"), [4]);
        assert_eq!(sizes("all_reduce -b 0 -e 16"), [0, 8, 16]);
        assert_eq!(sizes("barrier -e 1G"), [0]);
    }

    #[test]
    fn wrong_arguments_say_the_fix() {
        let table = [
            ("all_reduce -b 1Q", "write 8, 4K, 16M, 1G"),
            ("all_reduce -b 2M -e 1M", "swap them"),
            ("all_reduce -f 1", "use -i"),
            ("all_reduce -i 0", "1 or more"),
            ("all_reduce -i 1 -e 1G", "raise -i"),
            ("all_reduce -n 0", "0 is not in 1.."),
            ("all_reduce -t 4", "--ranks 4"),
            ("all_reduce -g 8", "--ranks 8"),
            ("all_reduce -D 1", "--algo"),
            ("all_reduce --memory cuda -D 1", "drop -D"),
            ("all_reduce --memory cuda -t 4", "-g 4"),
            ("all_reduce --memory cuda -g 0", "0 is not in 1..=32"),
            ("all_reduce --memory cuda --algo ring", "drop it"),
            ("all_reduce --memory cuda --level all", "drop it"),
            ("all_reduce --memory hip", "host, cuda"),
            ("all_reduce -d f31", "bfloat16"),
            ("all_reduce -o plus", "mulsum, all"),
            ("all_reduce -r x", "0, 3 or all"),
            ("all_reduce -K 2", "-I 1"),
            ("all_reduce -I 1 -K 20", "raise -n"),
            ("all_produce", "all_to_all"),
            ("all_reduce --level fast", "run, shape"),
            ("all_reduce --learn", "only with --algo all"),
            ("all_reduce --algo all --level all", "one at a time"),
            ("all_reduce --level all -d all", "--level all: choose one -d"),
            ("all_reduce --algo all -d all", "choose one -d"),
            ("all_reduce --algo all -J x.json", "drop -J"),
            ("sendrecv --algo all", "nothing to choose"),
        ];
        for (words, fix) in table {
            let error = settings(words).unwrap_err();
            assert!(error.contains(fix), "{words}: {error}");
        }
    }

    #[test]
    fn roots_are_ranks() {
        let roots = |words: &str| settings(words).unwrap().roots(3).map_err(|e| e.to_string());
        assert_eq!(roots("broadcast -r all").unwrap(), [Some(0), Some(1), Some(2)]);
        assert_eq!(roots("broadcast -r -1").unwrap().len(), 3);
        assert_eq!(roots("broadcast").unwrap(), [Some(0)]);
        assert_eq!(roots("all_reduce -r 9").unwrap(), [None]);
        assert!(roots("reduce -r 3").unwrap_err().contains("0 to 2"));
    }

    #[test]
    fn gpu_options_are_noted() {
        let settings = settings("all_reduce -G 1 -R 2 -x 1 -V 8 -y 1").unwrap();
        assert_eq!(settings.notes.len(), 5);
        assert!(settings.notes[0].contains("-G"));
    }

    #[test]
    fn gpu_memory_queues_calls_and_has_ranks_as_threads() {
        let host = settings("all_reduce").unwrap();
        assert_eq!((host.blocking, host.ranks_per_process), (Blocking::Call, 1));
        let gpu = settings("all_reduce --memory cuda -g 4 -T 5").unwrap();
        assert_eq!((gpu.blocking, gpu.ranks_per_process), (Blocking::Queue, 4));
        assert_eq!(gpu.variables, [("RINGWAY_TIMEOUT", "5s".to_owned())]);
        let waits = settings("all_reduce --memory cuda -z 2").unwrap();
        assert_eq!((waits.blocking, waits.ranks_per_process), (Blocking::Call, 1));
    }

    #[test]
    fn choices_reach_the_library_as_variables() {
        let settings = settings("all_reduce --transport tcp --algo ring --level shape").unwrap();
        assert_eq!(
            settings.variables,
            [
                ("RINGWAY_TRANSPORT", "tcp".to_owned()),
                ("RINGWAY_LEVEL", "shape".to_owned()),
                ("NCCL_ALGO", "all_reduce:ring".to_owned())
            ]
        );
    }
}
