//! `ringway perf pairs`: every rank meets every other one, and what is slower than its like is named.
//!
//! ```text
//!   schedule ──► play ──► grid, judge (suspects) ──► confirm: play again, alone ──► culprits ──► show, document
//! ```
//!
//! All ranks hold the same times, so all come to the same suspects, and play on without being told.

mod confirm;
mod document;
mod grid;
mod judge;
mod play;
mod schedule;
mod show;

use std::collections::BTreeMap;

use clap::Args;
use ringway::Communicator;

use self::confirm::{Alone, Best};
use self::document::Document;
use self::grid::Grid;
use self::judge::Times;
use self::play::Player;
use self::schedule::Pair;
use super::launch::EXIT_NOT_PASSED;
use super::progress::Progress;
use super::ranks;
use super::slow::culprit::Culprit;
use super::slow::head::Head;
use super::slow::places::Places;
use super::slow::{self, PAIRS_FORMAT, SlowArgs, robust};
use super::{clock, json};
use crate::exit::ExitCode;
use crate::output;

/// Measure every pair of ranks, and name what is slow
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "A tournament: in n-1 rounds every rank meets every other one. A match is round
trips of 8 bytes, large messages one way and the other, and the same work on
both processors; with --memory cuda also copies in the memory of both GPUs. Who
stands out by robust statistics is measured again, alone, beside others; only
who is slow then too is named: a host, a GPU, a rank, one way of it, or the
path between two.
Starts the ranks itself, on this machine; under a launcher (ringway run
--hosts, torchrun, mpirun, srun) it joins that job instead.

Exits with 0 when nothing stands out, with 1 when something is named, with 2
when it could not be measured. docs/slow-one.md says more.

Examples:
  ringway perf pairs --ranks 4
  ringway perf pairs --memory cuda
  ringway run --hosts a,b,c,d -- ringway perf pairs -J pairs.json
  srun -N 16 --ntasks-per-node 1 ringway perf pairs -b 4M
  ringway report pairs.json"
)]
pub(crate) struct PairsArgs {
    #[command(flatten)]
    slow: SlowArgs,
    /// Pairs that are measured at the same time [default: as many as have a
    /// processor for each rank and their hosts' links for themselves]
    #[arg(long, value_name = "N", value_parser = at_once)]
    at_once: Option<usize>,
}

fn at_once(text: &str) -> Result<usize, String> {
    let number = text.parse::<usize>().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "not a number of pairs, as 4".to_owned())
}

/// What a tournament came to; the same on all ranks.
#[derive(Debug)]
struct Outcome {
    rounds: usize,
    /// Pairs that were measured at the same time, at most.
    at_once: usize,
    times: Times,
    /// Who stood out at first.
    suspects: usize,
    culprits: Vec<Culprit>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &PairsArgs) -> anyhow::Result<ExitCode> {
    slow::run("pairs", &args.slow, |comm| report(comm, args))
}

fn report(comm: &Communicator, args: &PairsArgs) -> anyhow::Result<ExitCode> {
    let start_time = clock::now();
    let places = Places::exchange(comm, args.slow.memory)?;
    let outcome = tournament(comm, args, &places)?;
    if comm.rank() != 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let page = show::Page {
        head: Head::lines(comm),
        bytes: args.slow.bytes,
        limit: args.slow.limit(),
        columns: output::columns(),
        has_colour: output::stdout_has_colour(),
    };
    output::stdout_bytes(page.text(&outcome, &places).as_bytes())?;
    if let Some(path) = &args.slow.json {
        let head = Head::new(PAIRS_FORMAT, comm, &places, &args.slow, start_time);
        json::write(&Document::new(head, &outcome, args.slow.bytes), path)?;
    }
    Ok(match outcome.culprits.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_NOT_PASSED),
    })
}

/// Plays all rounds, then looks at the suspects again. Every rank calls it.
fn tournament(comm: &Communicator, args: &PairsArgs, places: &Places) -> anyhow::Result<Outcome> {
    let bars = args.slow.bars(places);
    let rounds = schedule::rounds(places.ranks());
    let mut buffer = None;
    let mut player = Player::new(comm, args.slow.memory, args.slow.bytes, &mut buffer)?;
    let progress = (comm.rank() == 0).then(|| Progress::new(Some(rounds.len() as u64)));
    let mut seen = BTreeMap::new();
    let mut at_once = 1;
    for (number, round) in rounds.iter().enumerate() {
        if let Some(progress) = &progress {
            progress.at(format!("round {} of {}", number + 1, rounds.len()));
        }
        for wave in schedule::waves(round, places, args.at_once) {
            at_once = at_once.max(wave.len());
            seen.extend(player.wave(&wave)?);
        }
        if let Some(progress) = &progress {
            progress.step();
        }
    }
    let times = gather(comm, &seen)?;
    let suspects = judge::suspects(&times, places, bars);
    if let Some(progress) = &progress {
        progress.at(format!("{} suspects, again", suspects.len()));
    }
    let culprits = confirm::confirmed(&suspects, places, bars, |pair| -> anyhow::Result<_> {
        let own = player.wave(&[pair])?;
        let times = gather(comm, &own.into_iter().collect())?;
        let value = |grid: &Grid, (a, b): Pair| grid.at(a, b).unwrap_or(f64::INFINITY);
        let (low, high) = pair;
        let best = Best {
            round_trip: value(&times.round_trips, pair),
            messages: [value(&times.messages, pair), value(&times.messages, (high, low))],
        };
        Ok((
            best,
            [low, high].map(|rank| Alone { work: times.works[rank], copy: times.copies[rank] }),
        ))
    })?;
    Ok(Outcome { rounds: rounds.len(), at_once, times, suspects: suspects.len(), culprits })
}

/// What all ranks saw. Every rank calls it.
fn gather(comm: &Communicator, seen: &BTreeMap<usize, play::Seen>) -> anyhow::Result<Times> {
    let ranks = comm.size() as usize;
    let mut own = vec![0.0; 2 * ranks + 2];
    for (other, seen) in seen {
        own[*other] = seen.round_trip_us.unwrap_or(0.0);
        own[ranks + *other] = seen.message_us;
    }
    let works: Vec<f64> = seen.values().map(|seen| seen.work_us).collect();
    own[2 * ranks] = robust::median(&works);
    let copies: Vec<f64> = seen.values().filter_map(|seen| seen.copy_us).collect();
    own[2 * ranks + 1] = robust::median(&copies);
    let mut times = Times {
        round_trips: Grid::new(ranks),
        messages: Grid::new(ranks),
        works: vec![None; ranks],
        copies: vec![None; ranks],
    };
    for (row, all) in ranks::all_gather_numbers(comm, &own)?.iter().enumerate() {
        for column in 0..ranks {
            times.round_trips.set(row, column, all[column]);
            times.round_trips.set(column, row, all[column]);
            times.messages.set(row, column, all[ranks + column]);
        }
        let alone = |at: usize| all.get(2 * ranks + at).copied().filter(|us| *us > 0.0);
        (times.works[row], times.copies[row]) = (alone(0), alone(1));
    }
    Ok(times)
}
