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
use super::slow::culprit::Culprit;
use super::slow::head::Head;
use super::slow::places::Places;
use super::slow::{self, BISECT_FORMAT, SlowArgs};
use super::{clock, json};
use crate::exit::ExitCode;
use crate::{output, size};

/// Split the ranks until the slow one is named
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Every rank does the same work first: a slow processor is named by that; with
--memory cuda every GPU copies in its own memory: a slow GPU is named by that.
Then group testing: both halves of the hosts (or GPUs, or ranks) run all_reduce,
small and large, one after the other; the slow half is split again, filled up
with sound ones, until one is left, which is measured again three times beside
sound ones. Where the halves are alike, rings with other neighbours each time
find a slow path; there are none where GPUs use each other's memory directly.
About log2(n) + 4 rounds; each says what was compared.
Starts the ranks itself, on this machine; under a launcher (ringway run
--hosts, torchrun, mpirun, srun) it joins that job instead.

Exits with 0 when nothing stands out, with 1 when something is named, with 2
when it could not be measured. docs/slow-one.md says more.

Examples:
  ringway perf bisect --ranks 8
  ringway perf bisect --memory cuda -b 16M
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
    #[serde(flatten)]
    head: Head<'a>,
    rounds: &'a [Round],
    culprits: &'a [Culprit],
}

/// Runs the subcommand.
pub(crate) fn run(args: &BisectArgs) -> anyhow::Result<ExitCode> {
    slow::run("bisect", &args.slow, |comm| report(comm, &args.slow))
}

fn report(comm: &Communicator, args: &SlowArgs) -> anyhow::Result<ExitCode> {
    let start_time = clock::now();
    let places = Places::exchange(comm, args.memory)?;
    let prints = comm.rank() == 0;
    if prints {
        Head::lines(comm).iter().try_for_each(|line| output::line(line))?;
        let bytes = size::display(args.bytes);
        output::line(&format!("# all_reduce of 8 B and of {bytes}, the quickest of some turns"))?;
    }
    let mut bench = Bench::new(comm, &places, args)?;
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
        let head = Head::new(BISECT_FORMAT, comm, &places, args, start_time);
        let document = Document { head, rounds: &bench.rounds, culprits: &culprits };
        json::write(&document, path)?;
    }
    Ok(match culprits.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_NOT_PASSED),
    })
}
