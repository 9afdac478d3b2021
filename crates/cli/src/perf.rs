//! `ringway perf`: measure a collective and print nccl-tests' table.
//!
//! Words beside the collectives are commands of their own ([`Word`]): each has its file, its `Args` and one variant here.
//!
//! Without a launcher this process starts the ranks ([`launch`]), each a copy of itself; under
//! one it is a rank, or several on GPU memory ([`rank`]). Only [`ranks`] and [`device`] know the library.

pub(crate) mod args;
mod bisect;
mod check;
mod clock;
mod compare;
mod data;
mod device;
mod element;
mod expect;
mod identity;
mod json;
pub(crate) mod late;
pub(crate) mod launch;
pub(crate) mod layout;
mod measure;
pub(crate) mod memory;
mod number;
mod pairs;
pub(crate) mod progress;
mod rank;
pub(crate) mod ranks;
mod settings;
pub(crate) mod slow;
pub(crate) mod soak;
mod stats;
mod table;

use crate::exit::ExitCode;

use clap::{ArgMatches, Args, FromArgMatches, Subcommand};

use self::args::{Memory, PerfArgs};
use self::bisect::BisectArgs;
use self::pairs::PairsArgs;
use self::settings::Settings;
use self::soak::SoakArgs;
use crate::launch::environment::{self, Place};

/// A measurement, or a word in the place of its collective.
#[derive(Debug)]
pub(crate) enum PerfCommand {
    Measure(PerfArgs),
    Word(Word),
}

/// What stands in the place of a collective.
#[derive(Debug, Subcommand)]
pub(crate) enum Word {
    Pairs(PairsArgs),
    Bisect(BisectArgs),
    Soak(SoakArgs),
}

impl Args for PerfCommand {
    fn augment_args(command: clap::Command) -> clap::Command {
        Word::augment_subcommands(PerfArgs::augment_args(command))
            .about("Measure a collective, as nccl-tests does, or find what is slow")
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand_required(false)
            .arg_required_else_help(false)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PerfCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand() {
            Some(_) => Word::from_arg_matches(matches).map(Self::Word),
            None => PerfArgs::from_arg_matches(matches).map(Self::Measure),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Runs what the command line asks for.
pub(crate) fn run(command: &PerfCommand) -> anyhow::Result<ExitCode> {
    match command {
        PerfCommand::Measure(args) => measure(args),
        PerfCommand::Word(Word::Pairs(args)) => pairs::run(args),
        PerfCommand::Word(Word::Bisect(args)) => bisect::run(args),
        PerfCommand::Word(Word::Soak(args)) => start(args.settings()?, args.ranks, args.gpus),
    }
}

/// Measures, as a rank of the job this process belongs to or by starting one.
fn measure(args: &PerfArgs) -> anyhow::Result<ExitCode> {
    start(Settings::new(args)?, args.ranks, args.gpus)
}

/// Starts the ranks, or is one.
fn start(
    mut settings: Settings,
    ranks: Option<u32>,
    gpus_asked: Option<u32>,
) -> anyhow::Result<ExitCode> {
    if let Some(place) = environment::place()? {
        place.check_ranks(ranks)?;
        launch::adopt_variables(&settings.variables)?;
        return rank::run(settings, &place);
    }
    let processes = match settings.memory {
        Memory::Host => crate::launch::ranks("--ranks", ranks)?,
        Memory::Cuda => {
            // Told once, before any rank is there to tell it.
            let gpus = ranks::gpus()?;
            let alone = gpus_asked.map_or_else(|| gpus.clamp(2, 8), |_| 1);
            crate::launch::ranks("--ranks", Some(ranks.unwrap_or(alone)))?
        }
    };
    let size = processes * settings.ranks_per_process;
    settings.roots(size)?;
    settings.check_records(size)?;
    memory::fit(&mut settings, size, size)?;
    if let Some(path) = &settings.json {
        json::check_path(path)?;
    }
    if settings.memory == Memory::Cuda && processes == 1 {
        launch::adopt_variables(&settings.variables)?;
        return rank::run(settings, &Place::alone());
    }
    launch::start(&settings, processes)
}
