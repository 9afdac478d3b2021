//! The command line: one variant per subcommand.
//!
//! To add a subcommand: one file with its `Args`, one variant here, one arm in [`Command::run`]
//! and one in [`Command::name`].

use crate::exit::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::completions::CompletionsArgs;
use crate::doctor::DoctorArgs;
use crate::env::EnvArgs;
use crate::exporter::ExporterArgs;
use crate::fabric::FabricArgs;
use crate::k8s::K8sArgs;
use crate::launch::rank_exec::RankExecArgs;
use crate::manual::ManArgs;
use crate::net::NetArgs;
use crate::perf::PerfCommand;
use crate::plan::PlanArgs;
use crate::plan::explain::ExplainArgs;
use crate::report::ReportArgs;
use crate::run::args::RunArgs;
use crate::serve::ServeArgs;
use crate::sim::SimArgs;
use crate::snapshot::SnapshotArgs;
use crate::topo::TopoArgs;
use crate::trace::TraceArgs;
use crate::tune::TuneArgs;
use crate::why::WhyArgs;
use crate::{
    completions, doctor, env, exporter, fabric, k8s, launch, manual, net, output, perf, plan,
    report, run, serve, sim, snapshot, topo, trace, tune, why,
};

/// Help is laid out for this width, however wide the terminal is.
const HELP_COLUMNS: usize = 80;

/// Collective communication: measure it, start it, explain it.
#[derive(Debug, Parser)]
#[command(
    name = "ringway",
    version,
    max_term_width = HELP_COLUMNS,
    after_help = "Examples:
  ringway perf all_reduce                 measure on this machine
  ringway perf all_gather -b 1M -e 64M    with the options of nccl-tests
  ringway run -n 4 -- python train.py     start 4 ranks of a program
  ringway run --hosts a:8,b:8 -- ./train  on several hosts, over ssh
  ringway explain all_reduce -n 4         candidates, prices, the choice
  ringway tune                            measure this machine, keep it
  ringway topo                            GPUs, NICs, what is between them
  ringway net gids                        RDMA addresses, which is used
  ringway net bw node1                    bandwidth to another host
  ringway fabric check topo.txt           what is wrong with a fabric
  ringway sim collective all_reduce --gpus 256    on a fabric of your making
  ringway k8s lint job.yaml               what is wrong with a manifest
  ringway plan verify                     prove every algorithm
  ringway env                             settings, sources, mistakes
  ringway doctor                          what is wrong with this machine
  ringway doctor --log job.log            what is wrong with a job
  ringway exporter                        this node's numbers for Prometheus
  ringway why                             who holds up the jobs on this host
  ringway snapshot                        this machine's facts in a file
  ringway trace show /tmp/t               what the ranks of a job did last
  ringway report perf.json                one page of all these for a browser
  ringway serve                           the same live, with running jobs"
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Perf(Box<PerfCommand>),
    Run(RunArgs),
    Plan(PlanArgs),
    Explain(ExplainArgs),
    Tune(TuneArgs),
    Topo(TopoArgs),
    Net(NetArgs),
    Fabric(FabricArgs),
    Sim(SimArgs),
    K8s(K8sArgs),
    Env(EnvArgs),
    Doctor(DoctorArgs),
    Exporter(ExporterArgs),
    Snapshot(SnapshotArgs),
    Why(WhyArgs),
    Trace(TraceArgs),
    Report(ReportArgs),
    Serve(ServeArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Become one rank of a local job (used by `run` and `perf`)
    #[command(name = "rank-exec", hide = true)]
    RankExec(RankExecArgs),
    /// Start the ranks of one host (used by `run --hosts`)
    #[command(name = "host-agent", hide = true)]
    HostAgent,
}

impl Command {
    /// Runs the subcommand to its exit code.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Perf(args) => perf::run(args),
            Self::Run(args) => run::run(args),
            Self::Plan(args) => plan::run(&args.command, &mut output::Stdout),
            Self::Explain(args) => plan::explain::run(args, &mut output::Stdout),
            Self::Tune(args) => tune::run(args),
            Self::Topo(args) => topo::run(args),
            Self::Net(args) => net::run(args),
            Self::Fabric(args) => fabric::run(args),
            Self::Sim(args) => sim::run(args),
            Self::K8s(args) => k8s::run(args),
            Self::Env(args) => env::run(args),
            Self::Doctor(args) => doctor::run(args),
            Self::Exporter(args) => exporter::run(args),
            Self::Snapshot(args) => snapshot::run(args),
            Self::Why(args) => why::run(args),
            Self::Trace(args) => trace::run(args),
            Self::Report(args) => report::run(args),
            Self::Serve(args) => serve::run(args),
            Self::Completions(args) => completions::run(args),
            Self::Man(args) => manual::run(args),
            Self::RankExec(args) => launch::rank_exec::run(args),
            Self::HostAgent => run::remote::agent::run(),
        }
    }

    /// The subcommand's name, as messages show it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Perf(_) => "perf",
            Self::Run(_) | Self::RankExec(_) | Self::HostAgent => "run",
            Self::Plan(_) => "plan",
            Self::Explain(_) => "explain",
            Self::Tune(_) => "tune",
            Self::Topo(_) => "topo",
            Self::Net(_) => "net",
            Self::Fabric(_) => "fabric",
            Self::Sim(_) => "sim",
            Self::K8s(_) => "k8s",
            Self::Env(_) => "env",
            Self::Doctor(_) => "doctor",
            Self::Exporter(_) => "exporter",
            Self::Snapshot(_) => "snapshot",
            Self::Why(_) => "why",
            Self::Trace(_) => "trace",
            Self::Report(_) => "report",
            Self::Serve(_) => "serve",
            Self::Completions(_) => "completions",
            Self::Man(_) => "man",
        }
    }
}

/// The command line without what is hidden: people read and complete the rest.
pub(crate) fn visible() -> clap::Command {
    let whole = Cli::command();
    let shown = whole.get_subcommands().filter(|one| !one.is_hide_set()).cloned();
    let mut root = clap::Command::new("ringway").subcommands(shown).subcommand_required(true);
    if let Some(text) = whole.get_about() {
        root = root.about(text.clone());
    }
    if let Some(text) = whole.get_after_help() {
        root = root.after_help(text.clone());
    }
    root.version(env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// The texts of a command and of all below it.
    fn helps(command: &mut clap::Command, texts: &mut Vec<String>) {
        texts.push(command.render_long_help().to_string());
        texts.push(command.render_help().to_string());
        for below in command.get_subcommands_mut() {
            helps(below, texts);
        }
    }

    #[test]
    fn every_help_text_fits_80_columns() {
        let mut root = Cli::command();
        root.build();
        let mut texts = Vec::new();
        helps(&mut root, &mut texts);
        for line in texts.iter().flat_map(|text| text.lines()) {
            assert!(line.chars().count() <= HELP_COLUMNS, "too wide: {line:?}");
        }
    }
}
