//! `ringway plan verify`: proves the catalogue on all cores, or a plan from a file.

use crate::exit::ExitCode;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ringway_plan::json;
use ringway_plan::plan::Plan;
use ringway_plan::prove::{Job, Maker, catalogue};
use ringway_plan::types::Collective;
use ringway_plan::verify::{Proof, Refusal, verify};

use super::call;

/// Prove that plans are right: results, order, progress, races, bounds
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Without --file every algorithm is proved for every collective on 1 to 64 ranks,
and on samples up to 1024, on several placements, in and out of place; the ways
of GPU memory (cards, buffers) on 1 to 32 ranks and several numbers of blocks.
Exits with 1, naming rank, lane and step, where a plan cannot be proved.

Examples:
  ringway plan verify
  ringway plan verify --ranks 1..16 --algo ring --collective all_reduce
  ringway plan show all_reduce --algo ring --json ring.json
  ringway plan verify --file ring.json"
)]
pub(crate) struct VerifyArgs {
    /// Numbers of ranks: one (8), or from..to (1..64)
    #[arg(short = 'n', long, value_name = "RANKS", value_parser = range)]
    pub(crate) ranks: Option<(u32, u32)>,

    /// Only this algorithm, or way of GPU memory
    #[arg(short, long, value_name = "NAME", conflicts_with = "file")]
    pub(crate) algo: Option<Maker>,

    /// Only this collective
    #[arg(short, long, value_name = "NAME", conflicts_with = "file")]
    pub(crate) collective: Option<Collective>,

    /// A plan in JSON, as `plan show --json` writes it
    #[arg(short, long, value_name = "PLAN.json", conflicts_with = "ranks")]
    pub(crate) file: Option<PathBuf>,

    /// Say nothing unless a plan is refused
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

pub(crate) fn run(args: &VerifyArgs, out: &mut dyn io::Write) -> anyhow::Result<ExitCode> {
    match &args.file {
        Some(path) => prove_file(path, args.quiet, out),
        None => prove_catalogue(args, out),
    }
}

/// `8`, `1..64` or `1..=64`: both ends are meant.
fn range(text: &str) -> Result<(u32, u32), String> {
    let Some((from, to)) = text.split_once("..") else {
        let one = call::ranks(text)?;
        return Ok((one, one));
    };
    let (from, to) = (call::ranks(from)?, call::ranks(to.trim_start_matches('='))?);
    if from > to {
        return Err(format!("{from} comes after {to}"));
    }
    Ok((from, to))
}

fn prove_file(path: &Path, quiet: bool, out: &mut dyn io::Write) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let plan = match json::read_verified(&text) {
        Ok(plan) => plan,
        Err(json::ReadError::Refused(refusal)) => {
            writeln!(out, "{}: refused: {refusal}", path.display())?;
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => bail!("{}: {error}", path.display()),
    };
    let in_place = prove_in_place(&plan);
    if !quiet {
        let steps: usize = plan.ranks.iter().map(|part| part.steps()).sum();
        writeln!(
            out,
            "{}: proved: {} {} of {} ranks, {steps} steps, in {}",
            path.display(),
            plan.algorithm,
            plan.problems[0].collective,
            plan.ranks.len(),
            seconds(start.elapsed()),
        )?;
        if let Err(refusal) = in_place {
            writeln!(out, "not to be run in place: {refusal}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn prove_in_place(plan: &Plan) -> Result<(), Refusal> {
    verify(plan, true).map(|_| ())
}

fn prove_catalogue(args: &VerifyArgs, out: &mut dyn io::Write) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let (from, to) = args.ranks.unwrap_or((1, u32::MAX));
    let wanted = |job: &Job| {
        args.algo.is_none_or(|maker| maker == job.maker)
            && args.collective.is_none_or(|collective| collective == job.problems[0].collective)
    };
    let jobs: Vec<Job> = catalogue(from..=to).filter(wanted).collect();
    if jobs.is_empty() {
        bail!("{}", nothing(args));
    }
    let bar = bar(jobs.len(), args.quiet);
    let (proof, refused) = prove_all(&jobs, &bar);
    bar.finish_and_clear();
    if let Some((index, refusal)) = refused {
        writeln!(out, "refused: {}:\n  {refusal}", jobs[index])?;
        return Ok(ExitCode::FAILURE);
    }
    if !args.quiet {
        writeln!(
            out,
            "proved {} plans ({}) of {} to {} ranks: {} steps, {} signals, in {}",
            jobs.len(),
            kinds(&jobs),
            jobs.iter().map(Job::ranks).min().unwrap_or(0),
            jobs.iter().map(Job::ranks).max().unwrap_or(0),
            proof.steps,
            proof.signals,
            seconds(start.elapsed()),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn nothing(args: &VerifyArgs) -> String {
    match (args.algo, args.collective) {
        (Some(maker), Some(collective)) => {
            let mut able: Vec<&str> = catalogue(8..=8)
                .filter(|job| job.problems[0].collective == collective)
                .map(|job| job.maker.name())
                .collect();
            able.dedup();
            match &able[..] {
                [] => format!("no algorithm makes plans for {collective}"),
                _ => format!(
                    "{maker} has no {collective} on these ranks; choose one of {}",
                    able.join(", ")
                ),
            }
        }
        (None, Some(collective)) => format!("no algorithm makes plans for {collective}"),
        _ => "the catalogue has every number of ranks to 64 and samples to 1024, not this one"
            .to_owned(),
    }
}

/// Proves jobs on all cores. Stops at the first that is refused; of several at once the one
/// earliest in the catalogue, which is the smallest, is told.
fn prove_all(jobs: &[Job], bar: &ProgressBar) -> (Proof, Option<(usize, Refusal)>) {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let refused: Mutex<Option<(usize, Refusal)>> = Mutex::new(None);
    let total: Mutex<Proof> = Mutex::new(Proof::default());
    let work = || {
        let mut mine = Proof::default();
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else {
                break;
            };
            match job.prove() {
                Ok(proof) => {
                    mine.steps += proof.steps;
                    mine.signals += proof.signals;
                }
                Err(refusal) => {
                    stop.store(true, Ordering::Relaxed);
                    let mut first = refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    if first.as_ref().is_none_or(|(other, _)| index < *other) {
                        *first = Some((index, refusal));
                    }
                }
            }
            bar.inc(1);
        }
        let mut all = total.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.steps += mine.steps;
        all.signals += mine.signals;
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..cores.min(jobs.len()) {
            scope.spawn(work);
        }
        work();
    });
    let total = total.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    (total, refused.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

fn bar(jobs: usize, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(jobs as u64), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} plans [{elapsed}]") {
        bar.set_style(style);
    }
    bar
}

fn kinds(jobs: &[Job]) -> String {
    let count = |mut kinds: Vec<&'static str>| {
        kinds.sort_unstable();
        kinds.dedup();
        kinds.len()
    };
    let algorithms = count(jobs.iter().map(|job| job.maker.name()).collect());
    let collectives = count(jobs.iter().map(|job| job.problems[0].collective.name()).collect());
    let plural = |number: usize, what: &str| match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    };
    format!("{}, {}", plural(algorithms, "algorithm"), plural(collectives, "collective"))
}

fn seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}
