//! `ringway perf bisect`: groups of ranks run a collective, and the slow group is split until the culprit is alone.
//!
//! [`search`] decides, [`measure`] measures and shows. All ranks hold the same times, so all decide alike.

mod measure;
mod search;

use clap::Args;
use ringway::Communicator;
use serde::Serialize;

use self::measure::{Bench, Round};
use self::search::Search;
use super::launch::EXIT_NOT_PASSED;
use super::ranks::Collectives as _;
use super::slow::culprit::Culprit;
use super::slow::places::{Place, Places};
use super::slow::{self, BISECT_FORMAT, SlowArgs};
use super::{clock, json};
use crate::exit::ExitCode;
use crate::{output, size};

/// Split the ranks until the slow one is named
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Every rank does the same work first: a slow processor is named by that. Then
group testing: both halves of the hosts (or ranks) run all_reduce, small and
large, one after the other; the slow half is split again, filled up with sound
ones, until one is left, which is measured again three times beside sound ones.
Where the halves are alike, rings with other neighbours each time find a slow
path. About log2(n) + 4 rounds; each says what was compared.
Starts the ranks itself, on this machine; under a launcher (ringway run
--hosts, torchrun, mpirun, srun) it joins that job instead.

Exits with 0 when nothing stands out, with 1 when something is named, with 2
when it could not be measured. docs/slow-one.md says more.

Examples:
  ringway perf bisect --ranks 8
  ringway run --hosts a,b,c,d -- ringway perf bisect
  srun -N 64 --ntasks-per-node 1 ringway perf bisect -b 16M -J bisect.json"
)]
pub(crate) struct BisectArgs {
    #[command(flatten)]
    slow: SlowArgs,
}

/// The JSON form.
#[derive(Debug, Serialize)]
struct Document<'a> {
    format: &'static str,
    version: &'static str,
    start_time: String,
    end_time: String,
    connection: String,
    ranks: &'a [Place],
    bytes: u64,
    /// So many times as long is slow.
    limit: f64,
    rounds: &'a [Round],
    culprits: &'a [Culprit],
}

/// Runs the subcommand.
pub(crate) fn run(args: &BisectArgs) -> anyhow::Result<ExitCode> {
    slow::run("bisect", &args.slow, |comm| report(comm, &args.slow))
}

fn report(comm: &Communicator, args: &SlowArgs) -> anyhow::Result<ExitCode> {
    let start_time = clock::now();
    let places = Places::exchange(comm)?;
    let prints = comm.rank() == 0;
    if prints {
        let version = env!("CARGO_PKG_VERSION");
        let ranks = places.ranks();
        output::line(&format!("# ringway {version} {} ranks {ranks}", comm.describe()))?;
        let bytes = size::display(args.bytes);
        output::line(&format!("# all_reduce of 8 B and of {bytes}, the quickest of some turns"))?;
    }
    let mut bench = Bench::new(comm, &places, args.bytes);
    let culprits = Search::new(&mut bench, &places, args.bars(&places)).run()?;
    if !prints {
        return Ok(ExitCode::SUCCESS);
    }
    for culprit in &culprits {
        output::line(&format!("slow: {}", culprit.sentence()))?;
        output::line(&format!("      {}", culprit.advice()))?;
    }
    if culprits.is_empty() {
        output::line(&format!("nothing stands out by {:.0} % or more", args.threshold))?;
    }
    if let Some(path) = &args.json {
        let document = Document {
            format: BISECT_FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            start_time,
            end_time: clock::now(),
            connection: comm.describe(),
            ranks: &places.0,
            bytes: args.bytes,
            limit: args.limit(),
            rounds: &bench.rounds,
            culprits: &culprits,
        };
        json::write(&document, path)?;
    }
    Ok(match culprits.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_NOT_PASSED),
    })
}
