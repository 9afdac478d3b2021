//! `ringway tune`: measure this machine's links and algorithms, and keep what was seen.
//!
//! As with `perf`, without a launcher this process starts the ranks, each a copy of itself; under one
//! it is a rank. Rank 0 writes the file that communicators of the same topology then go by.

mod show;
mod survey;

use crate::exit::ExitCode;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use ringway::config::{Config, TuningChoice};
use ringway_plan::calibration::Topology;

use crate::launch::environment;
use crate::perf::args::Transport;
use crate::perf::launch;
use crate::perf::ranks;

/// Measure this machine's links and algorithms, for the planner to go by
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Starts the ranks itself, one process each, on this machine; under a launcher it
joins that job instead. Times every algorithm that can do a collective at many
sizes, fits latencies and rates to the times, and writes one file into the
cache folder, named after processor, cores, ranks and transport. From then on
communicators of that topology go by it. RINGWAY_TUNING=off ignores it.

Examples:
  ringway tune
  ringway tune --ranks 4 --transport tcp
  ringway tune --quick
  ringway tune --show
  mpirun -np 4 ringway tune"
)]
pub(crate) struct TuneArgs {
    /// Ranks to start [default: one per core, at least 2, at most 8]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) ranks: Option<u32>,
    /// How bytes travel between ranks: shm, tcp or auto
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    pub(crate) transport: Option<Transport>,
    /// Fewer collectives and sizes: some seconds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Show what is known, measure nothing
    #[arg(long, conflicts_with_all = ["quick", "out"])]
    pub(crate) show: bool,
    /// Write to this file in place of the one in the cache folder
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// Measures, or shows what was measured.
pub(crate) fn run(args: &TuneArgs) -> anyhow::Result<ExitCode> {
    let transport = args.transport.map(|transport| transport.name().to_owned());
    let variables: Vec<(&'static str, String)> =
        transport.map(|transport| ("RINGWAY_TRANSPORT", transport)).into_iter().collect();
    if args.show {
        return show::run(args);
    }
    if let Some(place) = environment::place()? {
        place.check_ranks(args.ranks)?;
        launch::adopt_variables(&variables)?;
        let measured = survey::run(args).with_context(|| format!("rank {}", place.rank));
        return measured.or_else(|error| match place.rank {
            0 if ranks::port_was_taken(&error) => Ok(ExitCode::from(launch::EXIT_PORT_TAKEN)),
            _ => Err(error),
        });
    }
    let size = crate::launch::ranks("--ranks", args.ranks)?;
    if size == 1 {
        bail!("--ranks 1: one rank has nothing to choose; give at least 2");
    }
    launch::start_copies("tune", &variables, size, |_| {})
}

/// Where to keep what is measured: also where nobody is to go by it for now.
pub(crate) fn path(config: &Config, topology: &Topology) -> anyhow::Result<PathBuf> {
    match &config.tuning {
        TuningChoice::File(path) => Ok(path.clone()),
        TuningChoice::Auto | TuningChoice::Off => config
            .cache_dir()
            .map(|folder| folder.join(topology.file_name()))
            .context("no cache folder: set RINGWAY_CACHE_DIR, or HOME"),
    }
}
