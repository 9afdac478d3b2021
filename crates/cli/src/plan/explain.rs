//! `ringway explain`: the algorithms a call could use, what each would take, and the choice.

use crate::exit::ExitCode;
use std::io;

use clap::Args;
use ringway::config::Config;
use ringway::tuning;
use ringway_plan::algorithm::Algorithm;
use ringway_plan::build::Context;
use ringway_plan::calibration::Calibration;
use ringway_plan::cost::{Cost, Links, price_rank};
use ringway_plan::planner::{self, Candidate, Choice, Outcome, Request};
use ringway_plan::problem::Problem;
use ringway_plan::types::Collective;

use super::call::CallArgs;
use crate::size;

/// List the candidate plans of a call, their predicted cost, and the choice
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Predictions come from a model of links and cores. What was measured, and the
links, come from the tuning file of these ranks where ringway tune or ringway
perf --learn has made one; ~ is taken from sizes beside. Nothing is run.

Examples:
  ringway explain all_reduce --bytes 1M --ranks 4
  ringway explain all_reduce --bytes 64M --ranks 16 --hosts 2
  ringway explain broadcast --bytes 8 --ranks 64 --transport tcp"
)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) call: CallArgs,
}

pub(crate) fn run(args: &ExplainArgs, out: &mut dyn io::Write) -> anyhow::Result<ExitCode> {
    let (problem, hosts) = args.call.resolve()?;
    let (source, known) = known(&hosts);
    let request = Request {
        lanes: args.call.lanes,
        slot_bytes: args.call.chunk,
        links: known.as_ref().map_or_else(Links::default, |known| known.links),
        measured: known.as_ref(),
        ..Request::default()
    };
    let choice = planner::choose(&problem, &hosts, &request)?;
    write_head(args, &problem, &hosts, &choice, &request.links, out)?;
    write_table_head(&source, out)?;
    for candidate in &choice.candidates {
        let part = candidate.predicted_us.map(|_| {
            let tuning = choice.tuning;
            let context = Context { problem: &problem, rank: problem.root, hosts: &hosts, tuning };
            let part = candidate.algorithm.build(context);
            price_rank(&part, &problem, problem.root, &hosts, &request.links)
        });
        write_candidate(candidate, part, &choice, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What was measured of ranks like these, and where that is written.
fn known(hosts: &[u32]) -> (String, Option<Calibration>) {
    let config = Config::from_env();
    let apart = hosts.iter().max().map_or(1, |most| most + 1);
    // Hosts are machines; where nothing is known of those, ranks that share a machine but no memory
    // are what comes nearest.
    let mut problem = None;
    for machines in if apart > 1 { vec![apart, 1] } else { vec![1] } {
        match tuning::read(&config, &tuning::topology(hosts, machines)) {
            Ok(Some((path, known))) => return (path.display().to_string(), Some(known)),
            Ok(None) => {}
            Err(why) => problem = Some(why),
        }
    }
    let none = || "defaults; no tuning file (see ringway tune)".to_owned();
    (problem.unwrap_or_else(none), None)
}

fn write_head(
    args: &ExplainArgs,
    problem: &Problem,
    hosts: &[u32],
    choice: &Choice,
    links: &Links,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let count = hosts.last().map_or(1, |host| host + 1);
    let plural = |number: u32, what: &str| match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    };
    let what = match problem.collective {
        Collective::Barrier => String::new(),
        _ => format!(" of {}", size::display(args.call.bytes)),
    };
    writeln!(
        out,
        "{}{what}, {} on {}, level {}: {}",
        problem.collective,
        plural(problem.ranks, "rank"),
        plural(count, "host"),
        problem.level,
        choice.algorithm
    )?;
    writeln!(
        out,
        "cut into messages of at most {} in {}",
        size::display(choice.tuning.slot_bytes),
        plural(choice.tuning.lanes, "lane")
    )?;
    writeln!(
        out,
        "links: shm {:.2} us {:.1} GB/s, network {:.1} us {:.1} GB/s, a core folds {:.1} GB/s",
        links.shm.latency_us,
        links.shm.bandwidth_gbs,
        links.net.latency_us,
        links.net.bandwidth_gbs,
        links.reduce_gbs
    )
}

fn write_table_head(source: &str, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "numbers: {source}\n")?;
    writeln!(
        out,
        "{:<18} {:>9} {:>10} {:>6} {:>9} {:>9}",
        "candidate", "predicted", "measured", "steps", "moved", "folded"
    )
}

fn write_candidate(
    candidate: &Candidate,
    part: Option<Cost>,
    choice: &Choice,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let name = Algorithm::name(candidate.algorithm);
    let (Some(predicted_us), Some(part)) = (candidate.predicted_us, part) else {
        let Outcome::Refused(reason) = &candidate.outcome else {
            return Ok(());
        };
        return writeln!(out, "{name:<18} {:>9}  {reason}", "-");
    };
    let best_us = choice.candidates.first().and_then(|first| first.expected_us);
    let verdict = match candidate.outcome {
        Outcome::Chosen => "chosen".to_owned(),
        _ => slower(candidate.expected_us.unwrap_or(predicted_us), best_us),
    };
    let measured = candidate.measured.map_or_else(
        || "-".to_owned(),
        |seen| format!("{}{}", if seen.exact { "" } else { "~" }, time(seen.us)),
    );
    writeln!(
        out,
        "{name:<18} {:>9} {measured:>10} {:>6} {:>9} {:>9}  {verdict}",
        time(predicted_us),
        part.steps,
        size::display(part.bytes_put + part.bytes_copied),
        size::display(part.bytes_reduced),
    )
}

fn slower(predicted_us: f64, best_us: Option<f64>) -> String {
    match best_us {
        Some(best_us) if best_us > 0.0 => {
            let times = predicted_us / best_us;
            match times {
                _ if times < 1.01 => "as quick".to_owned(),
                _ if times < 2.0 => format!("{:.0}% slower", (times - 1.0) * 100.0),
                _ => format!("{times:.1}x slower"),
            }
        }
        _ => "as quick".to_owned(),
    }
}

fn time(us: f64) -> String {
    match us {
        _ if us < 10.0 => format!("{us:.2} us"),
        _ if us < 1000.0 => format!("{us:.0} us"),
        _ if us < 1_000_000.0 => format!("{:.2} ms", us / 1000.0),
        _ => format!("{:.2} s", us / 1_000_000.0),
    }
}
