//! The arguments, checked and made whole: what to measure, in which order, how.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use ringway_plan::types::{Collective, DataType, ReduceOp};

use super::args::{Choice, Memory, PerfArgs, Transport};
use super::expect::Wanted;
use super::soak::Soak;
use super::stats::Average;
use super::table::Columns;

const MIN_BYTES: u64 = 8;
const MAX_BYTES: u64 = 128 << 20;
/// Iterations where nobody says and time allows.
pub(crate) const ITERATIONS: u32 = 20;
/// More rows than this are a slip of the keyboard.
const ROWS_MAX: usize = 1_000_000;
/// Times that `-I` keeps, of all ranks and rows: as JSON some 200 MB.
const TIMES_MAX: u64 = 1 << 23;

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
    /// What the run is judged by.
    pub(crate) expect: Option<Wanted>,
    /// One call over and over, in place of a sweep.
    pub(crate) soak: Option<Soak>,
    /// Remarks on options that were read but do nothing.
    pub(crate) notes: Vec<String>,
}

/// One kind of call.
#[derive(Clone, Debug)]
pub(crate) struct Repeated {
    pub(crate) collective: Collective,
    pub(crate) bytes: u64,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) root: u32,
    pub(crate) check: u32,
    /// 0 for the library's.
    pub(crate) timeout_s: u32,
    pub(crate) memory: Memory,
    pub(crate) gpus: Option<u32>,
    pub(crate) transport: Option<Transport>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) soak: Soak,
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
            deadline: limit(args.timeout),
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
            expect: expect(args)?,
            soak: None,
            notes,
        })
    }

    /// One call over and over.
    pub(crate) fn repeated(call: &Repeated) -> Self {
        let Repeated { collective, bytes, memory, .. } = *call;
        Self {
            collective,
            memory,
            ranks_per_process: call.gpus.unwrap_or(1),
            sweep: match collective {
                Collective::Barrier => Sweep { min_bytes: 0, max_bytes: 0, step: Step::Factor(2) },
                _ => Sweep { min_bytes: bytes, max_bytes: bytes, step: Step::Factor(2) },
            },
            max_bytes_given: true,
            data_types: vec![call.data_type],
            ops: vec![collective.reduces().then_some(call.op)],
            root: Choice::One(call.root),
            unalign: 0,
            check: if collective == Collective::Barrier { 0 } else { call.check },
            iterations: None,
            warmup: 1,
            aggregate: 1,
            cycles: 1,
            blocking: Blocking::Call,
            average: Average::from_option(1),
            per_iteration_skip: 0,
            deadline: limit(call.timeout_s),
            columns: Columns::default(),
            json: call.json.clone(),
            parallel_init: false,
            variables: as_variables(call.transport, None, None, memory, call.timeout_s),
            compare: None,
            learn: false,
            expect: None,
            soak: Some(call.soak),
            notes: Vec::new(),
        }
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

    /// Fails where `-I` would keep more times of a job of `size` ranks than there is room for.
    pub(crate) fn check_records(&self, size: u32) -> anyhow::Result<()> {
        if !self.columns.iterations {
            return Ok(());
        }
        let rows = self.roots(size)?.len() * self.data_types.len() * self.ops.len();
        let rows = (rows as u64).saturating_mul(self.sweep.sizes().count() as u64);
        let iterations = u64::from(self.iterations.unwrap_or(ITERATIONS));
        // Without end no row is kept but the last.
        let rows = if self.cycles == 0 { 1 } else { rows.saturating_mul(self.cycles.into()) };
        let times = [iterations, rows, 2].into_iter().fold(u64::from(size), u64::saturating_mul);
        if times > TIMES_MAX {
            bail!(
                "-I 1: these are {times} times of single iterations ({size} ranks, {iterations} iterations, {rows} rows, \
                 out of place and in place), and {TIMES_MAX} are kept at most; lower -n, or take fewer sizes"
            );
        }
        Ok(())
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

fn expect(args: &PerfArgs) -> anyhow::Result<Option<Wanted>> {
    let Some(percent) = args.expect else { return Ok(None) };
    if let Some(compare) = Compare::asked(args) {
        bail!("--expect: not with {}, which has a table of its own", compare.option());
    }
    anyhow::ensure!(args.collective != Collective::Barrier, "--expect: a barrier moves no data");
    anyhow::ensure!(args.cycles > 0, "--expect: a run without end (-N 0) has no verdict");
    Ok(Some(Wanted { percent, rate_gbs: args.expect_rate }))
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
    let level = match args.level {
        Some(Choice::One(level)) => Some(level.name().to_owned()),
        _ => None,
    };
    // For what is measured alone: barriers and the like around it are nobody's choice.
    let algo = args.algo.as_ref().filter(|algo| !all(algo)).map(|algo| match algo.contains(':') {
        true => algo.clone(),
        false => format!("{}:{algo}", args.collective.name()),
    });
    as_variables(args.transport, level, algo, args.memory, args.timeout)
}

fn limit(timeout_s: u32) -> Option<Duration> {
    (timeout_s > 0).then(|| Duration::from_secs(timeout_s.into()))
}

fn as_variables(
    transport: Option<Transport>,
    level: Option<String>,
    algo: Option<String>,
    memory: Memory,
    timeout_s: u32,
) -> Vec<(&'static str, String)> {
    let transport = transport.map(|transport| transport.name().to_owned());
    // A call on GPU memory has no deadline of its own: kernels have the communicator's.
    let has_limit = memory == Memory::Cuda && timeout_s > 0;
    let timeout = has_limit.then(|| format!("{timeout_s}s"));
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

/// On GPU memory the call alone decides how it is done, unless the host does it.
fn check_memory(args: &PerfArgs) -> anyhow::Result<()> {
    if args.memory == Memory::Host {
        return Ok(());
    }
    anyhow::ensure!(
        args.algo.is_none(),
        "--algo: on GPU memory the call alone decides, unless ranks do not map each other's: then NCCL_ALGO does; drop it"
    );
    anyhow::ensure!(
        args.level != Some(Choice::All),
        "--level all: on GPU memory both levels are the same plans, unless ranks do not map each other's; take one of them"
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
mod tests;
