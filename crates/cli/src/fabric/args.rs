//! Arguments of `ringway fabric`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use ringway_fabric::export::kubernetes;
use ringway_fabric::plan::{Layout, Parallel, Request};
use ringway_fabric::rate::Rate;

/// Read a fabric from dumps: show, check, compare, export; plan one
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Dumps are what these print, recognised by what they hold, also several in one
file or pipe: ibnetdiscover (also -p), iblinkinfo (also -l), ibqueryerrors,
perfquery (also -x), ibstat, ibswinfo, net files of ibsim, ethtool -S, and for
Ethernet the JSON of lldpcli show neighbors -f json and of NetQ.
- is standard input; of a folder all files are read.

Examples:
  ibnetdiscover | ringway fabric show
  ringway fabric check topo.txt counters.txt
  ringway fabric diff monday/ today/
  ringway fabric export --format slurm topo.txt
  ringway fabric plan --gpus 2048 --radix 64 --rate NDR --layout rail"
)]
pub(crate) struct FabricArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: FabricCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FabricCommand {
    /// Show tiers, rails, oversubscription, bisection, paths
    Show(ShowArgs),
    /// Say what is wrong with a fabric, what it costs and what to do
    Check(CheckArgs),
    /// Say what changed between two dumps, by name
    Diff(DiffArgs),
    /// Write a fabric for Slurm, Kubernetes, other tools, or as a picture
    Export(ExportArgs),
    /// Plan a fabric: switches, cables, what fits, what a job needs
    Plan(Box<PlanArgs>),
}

/// How dumps are read.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReadingArgs {
    /// Take dumps that show only a part of the fabric
    #[arg(long)]
    pub(crate) partial: bool,
    /// The rate of links whose rate no dump tells: NDR, 4xHDR, 400G
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) rate: Option<Rate>,
}

/// Which dumps are read.
#[derive(Clone, Debug, Args)]
pub(crate) struct DumpArgs {
    /// Dumps of one fabric: files, folders, - for standard input
    #[arg(value_name = "DUMP", default_value = "-")]
    pub(crate) dumps: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FormArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show all evidence, and what was seen
    #[arg(short = 'v', long = "all", visible_alias = "verbose")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Examples:
  ringway fabric show topo.txt          tiers, rails, leaves that differ
  ringway fabric show --all topo.txt    every switch
  ibnetdiscover | ringway fabric show --json

Exits with 0 when the fabric was shown, with 2 when a dump cannot be read."
)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) dumps: DumpArgs,
    /// List every switch, also those that are like the others
    #[arg(short = 'v', long = "all", visible_alias = "verbose")]
    pub(crate) all: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Equals are compared: leaves by their uplinks, hosts by their adapters, links by
their rate, ports by what they carry; no plan is needed. Counters are judged by
thresholds; with --since by what they grew, which says what is wrong now.

Examples:
  ringway fabric check topo.txt
  ringway fabric check topo.txt at10.txt --since at9.txt --interval 3600
  ringway fabric check topo.txt --oversubscription 1
  ibqueryerrors --data | ringway fabric check topo.txt -

Exits with 0 when nothing is wrong, 1 for warnings, 2 for failures, and 3 when
it could not look: wrong arguments, a dump that cannot be read or is cut short."
)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) dumps: DumpArgs,
    /// Earlier counters of the same ports: judge by what they grew
    #[arg(long, value_name = "DUMP", num_args = 1..)]
    pub(crate) since: Vec<PathBuf>,
    /// Seconds between the two
    #[arg(long, value_name = "SECONDS", requires = "since", value_parser = positive)]
    pub(crate) interval: Option<f64>,
    /// What leaves are planned for, as down over up: 1 is non-blocking
    #[arg(long, value_name = "RATIO", value_parser = positive)]
    pub(crate) oversubscription: Option<f64>,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Each side is a dump, or a folder of dumps of one moment: topology, ibstat and
ibswinfo for firmware. Devices are the same when their GUIDs are.

Examples:
  ringway fabric diff monday.txt today.txt
  ringway fabric diff --json week34/ week35/

Exits with 0 when nothing changed, 1 for changes, 2 for losses (links, hosts,
switches, speed, a wrong rail), and 3 when a dump cannot be read."
)]
pub(crate) struct DiffArgs {
    /// The dump from before, or a folder of dumps
    #[arg(value_name = "OLD")]
    pub(crate) old: PathBuf,
    /// The dump of now, or a folder of dumps
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

/// What to write.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Slurm's topology.conf, topology/tree
    Slurm,
    /// Labels of Kubernetes' nodes, YAML
    Kubernetes,
    /// The whole fabric
    Json,
    /// Graphviz
    Dot,
    /// A picture
    Svg,
    /// A dump as ibnetdiscover writes it
    Ibnetdiscover,
}

#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Examples:
  ringway fabric export --format slurm topo.txt > topology.conf
  ringway fabric export --format kubernetes topo.txt |
      kubectl apply --server-side -f -
  ringway fabric export --format svg -o fabric.svg topo.txt"
)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) dumps: DumpArgs,
    /// What to write
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: ExportFormat,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Prefix of Kubernetes' labels
    #[arg(long, value_name = "PREFIX", default_value = kubernetes::PREFIX, value_parser = label_prefix)]
    pub(crate) label_prefix: String,
}

/// How adapters are spread.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LayoutArg {
    /// Any leaf: one tree
    FatTree,
    /// A leaf for each adapter of a unit's hosts; spines join the rails
    Rail,
    /// A tree for each rail
    Planes,
    /// A switch for each rail, no spines
    RailOnly,
}

impl From<LayoutArg> for Layout {
    fn from(layout: LayoutArg) -> Self {
        match layout {
            LayoutArg::FatTree => Self::FatTree,
            LayoutArg::Rail => Self::Rail,
            LayoutArg::Planes => Self::Planes,
            LayoutArg::RailOnly => Self::RailOnly,
        }
    }
}

/// How a job's work is spread.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ParallelArg {
    /// Gradients are reduced over all GPUs
    Data,
    /// Parameters are gathered twice, gradients scattered once
    Fsdp,
}

impl From<ParallelArg> for Parallel {
    fn from(parallel: ParallelArg) -> Self {
        match parallel {
            ParallelArg::Data => Self::Data,
            ParallelArg::Fsdp => Self::Fsdp,
        }
    }
}

/// A fabric out of a few numbers.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DesignArgs {
    /// GPUs in all
    #[arg(long, value_name = "N")]
    pub(crate) gpus: Option<u64>,
    /// GPUs a node
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) gpus_per_node: u64,
    /// Adapters a node; as many as GPUs unless told
    #[arg(long, visible_alias = "nics-per-node", value_name = "N")]
    pub(crate) nics: Option<u64>,
    /// What adapters and links carry: NDR, 4xHDR, 400G [default: NDR]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) rate: Option<Rate>,
    /// Ports of a switch at that rate
    #[arg(long, value_name = "PORTS", default_value_t = 64)]
    pub(crate) radix: u64,
    /// How adapters are spread over leaves
    #[arg(long, value_enum, value_name = "LAYOUT", default_value = "rail")]
    pub(crate) layout: LayoutArg,
    /// What hosts can send over what leaves can pass on: 1 is non-blocking
    #[arg(long, value_name = "RATIO", default_value_t = 1.0, value_parser = positive)]
    pub(crate) oversubscription: f64,
    /// Keep to so many tiers
    #[arg(long, value_name = "N")]
    pub(crate) tiers: Option<u8>,
}

impl DesignArgs {
    /// The rate of every link.
    pub(crate) fn rate(&self) -> anyhow::Result<Rate> {
        match self.rate {
            Some(rate) => Ok(rate),
            None => Rate::wanted("NDR").context("the table of rates has NDR"),
        }
    }

    /// What is wanted, for so many GPUs.
    pub(crate) fn request(&self, gpus: u64) -> anyhow::Result<Request> {
        Ok(Request {
            gpus,
            gpus_per_node: self.gpus_per_node,
            nics_per_node: self.nics.unwrap_or(self.gpus_per_node),
            rate: self.rate()?,
            radix: self.radix,
            layout: self.layout.into(),
            oversubscription: self.oversubscription,
            tiers: self.tiers,
        })
    }
}

#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "A price file is JSON; what it leaves out is not counted:
  {\"currency\": \"EUR\", \"switch\": 0, \"adapter\": 0, \"host_cable\": 0,
   \"switch_cable\": 0, \"switch_watts\": 0, \"adapter_watts\": 0,
   \"host_cable_watts\": 0, \"switch_cable_watts\": 0}

Examples:
  ringway fabric plan --gpus 2048 --radix 64 --rate NDR --layout rail
  ringway fabric plan --gpus 4096 --radix 64 --layout rail --tiers 2
  ringway fabric plan --gpus 1024 --oversubscription 2 --prices prices.json
  ringway fabric plan --gpus 1024 --params 7e9 --bytes 2 --step 1
  ringway fabric plan --gpus 512 --svg plan.svg --dump plan.txt
  ringway fabric plan --rates

Exits with 0 when it fits, with 1 when it does not, with 2 for wrong arguments."
)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) design: DesignArgs,
    /// Count cost and power by this price file
    #[arg(long, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
    /// Parameters of the model that is trained: 7e9
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) params: Option<f64>,
    /// Bytes of a parameter: 2 for bf16
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = positive, requires = "params")]
    pub(crate) bytes: f64,
    /// Seconds of a step
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = positive, requires = "params")]
    pub(crate) step: f64,
    /// The part of a step in which communication may go on
    #[arg(long, value_name = "PART", default_value_t = 1.0, value_parser = part, requires = "params")]
    pub(crate) overlap: f64,
    /// How the work is spread
    #[arg(long, value_enum, value_name = "HOW", default_value = "data", requires = "params")]
    pub(crate) parallel: ParallelArg,
    /// GB/s of a GPU to the others of its node, one direction: 450
    #[arg(long, value_name = "GB/S", value_parser = positive, requires = "params")]
    pub(crate) nvlink: Option<f64>,
    /// Draw the planned fabric into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write the planned fabric as a dump of ibnetdiscover
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: Option<PathBuf>,
    /// Print the table of rates and what arrives of them
    #[arg(long)]
    pub(crate) rates: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A rate that is asked for.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    Rate::wanted(text).ok_or_else(|| "no rate: wanted are NDR, 4xHDR, 400G".to_owned())
}

/// A number above 0.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("wanted is a number above 0".to_owned()),
    }
}

/// A part: above 0, at most 1.
pub(crate) fn part(text: &str) -> Result<f64, String> {
    positive(text)
        .ok()
        .filter(|part| *part <= 1.0)
        .ok_or_else(|| "wanted is a part: above 0, at most 1".to_owned())
}

/// What Kubernetes takes before the slash: names with points between.
fn label_prefix(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let fits = text.len() <= 253
        && text.chars().all(plain)
        && ends(text.chars().next())
        && ends(text.chars().last());
    if fits {
        Ok(text.to_owned())
    } else {
        Err("wanted are names with points between, in lower case".to_owned())
    }
}
