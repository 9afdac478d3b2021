//! Arguments of `ringway sim`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use ringway_plan::types::Collective;
use ringway_sim::pattern::Pattern;
use ringway_sim::route::Way;
use ringway_sim::what_if::Axis;

use crate::fabric::args::{DesignArgs, part, positive};
use crate::plan::call::message_bytes;
use crate::size;

/// Simulate collectives, plans and training steps on a fabric
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "The fabric is generated from a few numbers (--gpus, as ringway fabric plan takes
them) or read from dumps (--dump, as ringway fabric show reads them). Flows
share links max-min fairly; docs/sim.md says what is modelled and what is not.

Examples:
  ringway sim collective all_reduce --gpus 256
  ringway sim collective all_to_all --gpus 512 --routing ecmp --qps 4 --seeds 20
  ringway sim collective all_reduce --dump topo.txt --heat heat.svg
  ringway sim plan all_reduce --gpus 16 --algorithm ring
  ringway sim train --gpus 1024 --params 70e9 --layers 80 --hidden 8192 \\
      --tokens 16384 --fsdp
  ringway sim collective all_to_all --gpus 512 --vary oversubscription=1,2,4

Exits with 0 when it was simulated, with 2 for wrong arguments, for a fabric
that cannot be, and where a flow has no way left."
)]
pub(crate) struct SimArgs {
    /// What to simulate.
    #[command(subcommand)]
    pub(crate) command: SimCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Run collectives, one after another, as flows through the fabric
    Collective(Box<CollectiveArgs>),
    /// Run one of the library's own plans, step by step
    Plan(Box<PlanArgs>),
    /// Run a training step: computing, and communication that overlaps
    Train(Box<TrainArgs>),
}

/// What there is.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Fabric")]
pub(crate) struct FabricArgs {
    /// Dumps of the fabric: files, folders, - for standard input
    #[arg(long, value_name = "DUMP", num_args = 1.., conflicts_with_all = ["radix", "layout", "nics", "oversubscription", "tiers"])]
    pub(crate) dump: Vec<PathBuf>,
    /// Take dumps that show only a part of the fabric
    #[arg(long, requires = "dump")]
    pub(crate) partial: bool,
    #[command(flatten)]
    pub(crate) design: DesignArgs,
    /// A dragonfly: switches a group, adapters a switch, links of a switch to
    /// other groups: 4,2,2
    #[arg(long, value_name = "A,P,H", conflicts_with_all = ["dump", "radix", "layout", "oversubscription", "tiers"], value_parser = three)]
    pub(crate) dragonfly: Option<[usize; 3]>,
}

/// What is at its ends.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Machine")]
pub(crate) struct MachineArgs {
    /// GB/s of a GPU to the others of its node, one direction [default: 450]
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    pub(crate) nvlink: Option<f64>,
    /// GB/s between GPUs and an adapter, one direction [default: 64]
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    pub(crate) pcie: Option<f64>,
    /// Take GPUs, NVLink and PCIe from a topology file as NCCL dumps it
    #[arg(long, value_name = "XML", conflicts_with = "gpus_per_node")]
    pub(crate) topology: Option<PathBuf>,
    /// Microseconds of a message inside a node
    #[arg(long, value_name = "US", default_value_t = 1.0, value_parser = not_negative)]
    pub(crate) inside_us: f64,
    /// Microseconds of a message between nodes, without switches
    #[arg(long, value_name = "US", default_value_t = 3.0, value_parser = not_negative)]
    pub(crate) net_us: f64,
    /// Microseconds of each switch
    #[arg(long, value_name = "US", default_value_t = 0.3, value_parser = not_negative)]
    pub(crate) switch_us: f64,
    /// Go between rails through the fabric, not through the GPU of that rail
    #[arg(long)]
    pub(crate) no_pxn: bool,
}

/// How switches choose among links that lead nearer.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum WayArg {
    /// A hash of each queue pair, with a seed of each switch's own
    Ecmp,
    /// The same hash at every switch, or at those of --polarised
    Polarised,
    /// A part of each flow over each
    Adaptive,
    /// By destination, as InfiniBand's fat-tree routing
    Static,
}

impl From<WayArg> for Way {
    fn from(way: WayArg) -> Self {
        match way {
            WayArg::Ecmp => Self::Ecmp,
            WayArg::Polarised => Self::Polarised,
            WayArg::Adaptive => Self::Adaptive,
            WayArg::Static => Self::Static,
        }
    }
}

impl WayArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ecmp => "ecmp",
            Self::Polarised => "polarised",
            Self::Adaptive => "adaptive",
            Self::Static => "static",
        }
    }
}

impl RoutingArgs {
    /// The first seed.
    pub(crate) fn first_seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }
}

/// How flows find their way.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Routing")]
pub(crate) struct RoutingArgs {
    /// How switches choose among links that lead nearer
    #[arg(long, value_enum, value_name = "HOW", default_value = "adaptive")]
    pub(crate) routing: WayArg,
    /// Switches whose hash is that of the leaves: spine-1,spine-2
    #[arg(long, value_name = "SWITCH", value_delimiter = ',')]
    pub(crate) polarised: Vec<String>,
    /// How many different values the hash takes, at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) entropy: Option<u32>,
    /// What hashes begin with [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Run so many seeds, and tell how far apart they are
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) seeds: u32,
    /// Queue pairs of a connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) qps: u32,
    /// Rings or trees side by side [default: one for each adapter]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) channels: Option<u32>,
}

/// What goes wrong.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Faults")]
pub(crate) struct FaultArgs {
    /// A link or a switch goes down: leaf-1-spine-2@500us, leaf-1:33@1ms,
    /// spine-2@0
    #[arg(long, value_name = "WHAT@TIME")]
    pub(crate) down: Vec<String>,
    /// A link, or all of a switch, is slower from then on: leaf-1-spine-2=50%@0,
    /// spine-2=50%@1ms
    #[arg(long, value_name = "WHAT=PART@TIME")]
    pub(crate) slow: Vec<String>,
    /// A rank begins late (not in training steps): 17=2ms
    #[arg(long, value_name = "RANK=TIME")]
    pub(crate) straggler: Vec<String>,
    /// Lossless Ethernet at its worst: pauses spread to all that share a link
    #[arg(long)]
    pub(crate) pause_spreads: bool,
}

/// What is written.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw how full links were
    #[arg(long, value_name = "SVG")]
    pub(crate) heat: Option<PathBuf>,
    /// Write what happened when, as a page
    #[arg(long, value_name = "HTML")]
    pub(crate) timeline: Option<PathBuf>,
    /// Write a trace for Perfetto or chrome://tracing
    #[arg(long, value_name = "JSON")]
    pub(crate) trace: Option<PathBuf>,
    /// Write what ports would have counted, as perfquery -x
    #[arg(long, value_name = "FILE")]
    pub(crate) counters: Option<PathBuf>,
    /// Count on from these counters
    #[arg(long, value_name = "FILE", requires = "counters")]
    pub(crate) counters_from: Option<PathBuf>,
    /// Count as if it went on over and over for so long: 1h
    #[arg(long, value_name = "TIME", requires = "counters", value_parser = time)]
    pub(crate) counters_for: Option<f64>,
    /// Write the fabric as a dump of ibnetdiscover
    #[arg(long, value_name = "FILE")]
    pub(crate) topology_out: Option<PathBuf>,
    /// Try values of oversubscription, rate, radix, layout, nics, routing,
    /// qps, channels, algorithm or size; twice: each with each
    #[arg(long, value_name = "NAME=A,B,C", value_parser = axis)]
    pub(crate) vary: Vec<Axis>,
}

/// All that the subcommands share.
#[derive(Clone, Debug, Args)]
pub(crate) struct CommonArgs {
    #[command(flatten)]
    pub(crate) fabric: FabricArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    #[command(flatten)]
    pub(crate) routing: RoutingArgs,
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How a collective is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum PatternArg {
    /// What suits the collective and where its ranks are
    Auto,
    /// A ring through all ranks
    Ring,
    /// Two binary trees
    Tree,
    /// Inside nodes first, then a ring for each rail
    Hierarchical,
    /// The same, but along the nodes and back, as the library does it
    Chain,
    /// Everybody to everybody
    Direct,
    /// Switches reduce
    Sharp,
}

impl PatternArg {
    pub(crate) fn pattern(self) -> Option<Pattern> {
        match self {
            Self::Auto => None,
            Self::Ring => Some(Pattern::Ring),
            Self::Tree => Some(Pattern::Tree),
            Self::Hierarchical => Some(Pattern::Hierarchical),
            Self::Chain => Some(Pattern::HierarchicalChain),
            Self::Direct => Some(Pattern::Direct),
            Self::Sharp => Some(Pattern::Sharp),
        }
    }
}

/// A collective, and its size where it has one of its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct CallArg {
    pub(crate) collective: Collective,
    pub(crate) bytes: Option<u64>,
}

#[derive(Clone, Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Sizes are those of nccl-tests' first column. Collectives run one after another:
all_reduce:256M,all_gather:1G; --together lets them share the fabric.

Examples:
  ringway sim collective all_reduce --gpus 256 --bytes 1G
  ringway sim collective all_reduce:256M,all_to_all:64M --gpus 128
  ringway sim collective all_reduce --gpus 256 --routing ecmp --seeds 20
  ringway sim collective all_reduce --gpus 256 --layout fat-tree \\
      --down leaf-1-spine-2@500us --timeline down.html
  ringway sim collective all_reduce --gpus 256 --vary qps=1,4,16 \\
      --routing ecmp

Exits with 0 when it was simulated, with 2 when it cannot be."
)]
pub(crate) struct CollectiveArgs {
    /// Collectives, each with a size after a colon if it has one of its own
    #[arg(value_name = "COLLECTIVE[:SIZE]", required = true, value_delimiter = ',', value_parser = call)]
    pub(crate) calls: Vec<CallArg>,
    /// Bytes (8, 4K, 16M, 1G) [default: 1G]
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) bytes: Option<u64>,
    /// How it is done
    #[arg(short, long, value_enum, value_name = "NAME", default_value = "auto")]
    pub(crate) algorithm: PatternArg,
    /// Ranks that take part: 0-63, 0,8,16 [default: all]
    #[arg(long, value_name = "RANKS")]
    pub(crate) ranks: Option<String>,
    /// Root of broadcast, reduce, gather and scatter [default: 0]
    #[arg(long, value_name = "RANK")]
    pub(crate) root: Option<u32>,
    /// All at once, not one after another
    #[arg(long)]
    pub(crate) together: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Clone, Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Every step of the plan is simulated: copies, reductions, puts, signals, waits.

Examples:
  ringway sim plan all_reduce --gpus 32 --bytes 64M
  ringway sim plan all_reduce --gpus 32 --algorithm ring --timeline ring.html
  ringway plan show all_reduce --ranks 16 --hosts 2 --json plan.json
  ringway sim plan --file plan.json --gpus 16

Exits with 0 when it was simulated, with 2 when it cannot be."
)]
pub(crate) struct PlanArgs {
    /// Collective: all_reduce, all_gather, …
    #[arg(value_name = "COLLECTIVE", required_unless_present = "file")]
    pub(crate) collective: Option<Collective>,
    /// A plan, as ringway plan show --json writes it
    #[arg(long, value_name = "JSON", conflicts_with_all = ["collective", "algorithm", "bytes", "root", "chunk", "lanes"])]
    pub(crate) file: Option<PathBuf>,
    /// Bytes of the larger buffer of a rank (8, 4K, 16M, 1G)
    #[arg(short, long, value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    pub(crate) bytes: u64,
    /// Algorithm of the library [default: what the planner chooses]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,
    /// Root of broadcast, reduce, gather and scatter [default: 0]
    #[arg(long, value_name = "RANK")]
    pub(crate) root: Option<u32>,
    /// Bytes of a message, at most [default: by size]
    #[arg(long, value_name = "SIZE", value_parser = message_bytes)]
    pub(crate) chunk: Option<u64>,
    /// Lanes [default: by size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) lanes: Option<u32>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Clone, Debug, Args)]
#[command(
    max_term_width = 80,
    override_usage = "ringway sim train [OPTIONS] --params N --layers N --hidden N --tokens N",
    after_help = "Ranks of a tensor group are next to each other, then replicas, then stages.
Data parallel is what is left of the GPUs. docs/sim.md says which calls are made.

Examples:
  ringway sim train --gpus 256 --params 7e9 --layers 32 --hidden 4096 \\
      --tokens 8192 --compute 400ms
  ringway sim train --gpus 1024 --params 70e9 --layers 80 --hidden 8192 \\
      --tokens 16384 --fsdp --vary rate=HDR,NDR,XDR
  ringway sim train --gpus 512 --params 70e9 --layers 80 --hidden 8192 \\
      --tokens 65536 --tensor 8 --pipeline 4 --microbatches 16

Exits with 0 when it was simulated, with 2 when it cannot be."
)]
pub(crate) struct TrainArgs {
    /// Parameters of the model: 7e9
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) params: f64,
    /// Bytes of a parameter and of a gradient: 2 for bf16
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = positive)]
    pub(crate) param_bytes: f64,
    /// Layers
    #[arg(long, value_name = "N")]
    pub(crate) layers: u32,
    /// Numbers of a token between layers
    #[arg(long, value_name = "N")]
    pub(crate) hidden: u32,
    /// Tokens of a step in each replica
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) tokens: f64,
    /// Time that a GPU computes in a step: 400ms
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["tflops", "reached"])]
    pub(crate) compute: Option<f64>,
    /// TFLOP/s of a GPU
    #[arg(long, value_name = "N", default_value_t = 989.0, value_parser = positive)]
    pub(crate) tflops: f64,
    /// The part of them that computing alone reaches
    #[arg(long, value_name = "PART", default_value_t = 0.5, value_parser = part)]
    pub(crate) reached: f64,
    /// GPUs that share a layer
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) tensor: u32,
    /// Stages
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) pipeline: u32,
    /// Replicas that share experts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) expert: u32,
    /// Experts of a layer
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) experts: u32,
    /// Experts that each token goes to
    #[arg(long, value_name = "N", default_value_t = 2, requires = "experts")]
    pub(crate) top_k: u32,
    /// Parts of a step's tokens that go one after another [default: 4 for
    /// each stage; 1 without stages]
    #[arg(long, value_name = "N")]
    pub(crate) microbatches: Option<u32>,
    /// Each replica holds a part of the parameters
    #[arg(long)]
    pub(crate) fsdp: bool,
    /// Parts of a stage's layers that communicate together [default: one a
    /// layer, at most 16]
    #[arg(long, value_name = "N")]
    pub(crate) buckets: Option<u32>,
    /// How reductions and gathers are done
    #[arg(short, long, value_enum, value_name = "NAME", default_value = "auto")]
    pub(crate) algorithm: PatternArg,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("wanted is a number, 0 or more".to_owned()),
    }
}

fn three(text: &str) -> Result<[usize; 3], String> {
    let numbers: Result<Vec<usize>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    let numbers: Option<[usize; 3]> = numbers.ok().and_then(|numbers| numbers.try_into().ok());
    let fits = |numbers: &[usize; 3]| numbers.iter().all(|n| (1..=4096).contains(n));
    numbers.filter(fits).ok_or_else(|| "wanted are three numbers: 4,2,2".to_owned())
}

fn axis(text: &str) -> Result<Axis, String> {
    text.parse()
}

fn call(text: &str) -> Result<CallArg, String> {
    let (name, bytes) = match text.split_once(':') {
        Some((name, bytes)) => (name, Some(size::parse(bytes)?)),
        None => (text, None),
    };
    let collective = name.trim().parse::<Collective>().map_err(|error| error.to_string())?;
    Ok(CallArg { collective, bytes })
}

/// Microseconds: `500us`, `2ms`, `1.5s`, `1h`, `0`.
pub(crate) fn time(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "us" | "µs" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "min" => 60e6,
        "h" => 3600e6,
        "" if number == "0" => 1.0,
        _ => return Err("wanted is a time: 500us, 2ms, 1.5s, 1h".to_owned()),
    };
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value * scale),
        _ => Err("wanted is a time: 500us, 2ms, 1.5s, 1h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let table = [("500us", 500.0), ("2ms", 2e3), ("1.5s", 1.5e6), ("1h", 3.6e9), ("0", 0.0)];
        for (text, us) in table {
            assert_eq!(time(text), Ok(us), "{text}");
        }
        for text in ["5", "", "-1ms", "1 day", "1.2.3s", "ms"] {
            assert!(time(text).unwrap_err().contains("500us"), "{text}");
        }
    }

    #[test]
    fn calls_may_have_a_size() {
        let all = call("all_reduce").unwrap();
        assert_eq!((all.collective, all.bytes), (Collective::AllReduce, None));
        assert_eq!(call("alltoall:4K").unwrap().bytes, Some(4096));
        assert_eq!(three("4,2,2"), Ok([4, 2, 2]));
        assert!(three("4,0,2").is_err() && three("4,2").is_err());
        assert!(call("all_reduce:4Q").is_err() && call("allreduse").is_err());
    }
}
