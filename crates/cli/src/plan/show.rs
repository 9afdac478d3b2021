//! `ringway plan show`: one plan as a listing, a drawing or JSON.

use crate::exit::ExitCode;
use std::io;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use ringway_plan::algorithm::Algorithm;
use ringway_plan::draw::{self, SvgOptions, TextOptions};
use ringway_plan::json;
use ringway_plan::mapped::Way;
use ringway_plan::plan::Plan;
use ringway_plan::planner::{self, Request};
use ringway_plan::problem::Problem;
use ringway_plan::prove::Maker;

use super::call::{CallArgs, unsupported};

/// Most steps of a plan that is shown: past that it is no use to anybody.
const STEPS_MAX: u64 = 2_000_000;

/// Print or draw one plan
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Examples:
  ringway plan show all_reduce --ranks 8 --algo ring
  ringway plan show broadcast --ranks 16 --hosts 2 --svg broadcast.svg
  ringway plan show all_reduce --algo tree --json - | less
  ringway plan show all_reduce --algo buffers --lanes 2    on GPU memory"
)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) call: CallArgs,

    /// Algorithm [default: what the planner chooses]; cards or buffers for
    /// GPU memory, where --lanes are the blocks of a kernel
    #[arg(short, long, value_name = "NAME")]
    pub(crate) algo: Option<Maker>,

    /// Draw the plan into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Write the plan as JSON into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// List every step of every rank
    #[arg(long)]
    pub(crate) all: bool,
}

pub(crate) fn run(args: &ShowArgs, out: &mut dyn io::Write) -> anyhow::Result<ExitCode> {
    let plan = plan(args)?;
    if let Some(path) = &args.json {
        let text = json::to_json(&plan);
        if path.as_os_str() == "-" {
            out.write_all(text.as_bytes())?;
        } else {
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
            writeln!(out, "wrote {}", path.display())?;
        }
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, draw::svg(&plan, SvgOptions::default()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(out, "wrote {}", path.display())?;
    }
    if args.json.is_none() && args.svg.is_none() {
        let options = match args.all {
            true => TextOptions { steps: usize::MAX, ranks: usize::MAX, ..TextOptions::default() },
            false => TextOptions::default(),
        };
        out.write_all(draw::text(&plan, options).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &ShowArgs) -> anyhow::Result<Plan> {
    let (problem, hosts) = args.call.resolve()?;
    let request =
        Request { lanes: args.call.lanes, slot_bytes: args.call.chunk, ..Request::default() };
    let algorithm = match args.algo {
        Some(Maker::Mapped(way)) => return mapped(args, way, &problem, &hosts),
        Some(Maker::Algorithm(algorithm)) => {
            if let Err(reason) = algorithm.supports(&problem, &hosts) {
                return Err(unsupported(&reason, &problem, &hosts));
            }
            algorithm
        }
        None => planner::choose_algorithm(&problem, &hosts, &request)?.0,
    };
    let only = |other: Algorithm| match other == algorithm {
        true => Ok(()),
        false => Err(format!("{other} was not asked for")),
    };
    let (_, tuning) =
        planner::choose_algorithm(&problem, &hosts, &Request { allow: &only, ..request })?;
    let first = algorithm.build(ringway_plan::build::Context {
        problem: &problem,
        rank: 0,
        hosts: &hosts,
        tuning,
    });
    let steps = first.steps() as u64 * u64::from(problem.ranks);
    anyhow::ensure!(
        steps <= STEPS_MAX,
        "a plan of about {steps} steps is too long to show; ask for fewer --bytes or --ranks"
    );
    Ok(algorithm.plan(&problem, &hosts, tuning))
}

/// The plan of ranks whose GPUs map each other's buffers.
fn mapped(args: &ShowArgs, way: Way, problem: &Problem, hosts: &[u32]) -> anyhow::Result<Plan> {
    anyhow::ensure!(
        hosts.iter().all(|host| *host == hosts[0]),
        "{way}: ranks map each other's buffers on one host only; drop --hosts and --transport tcp"
    );
    way.supports(problem).map_err(|why| anyhow::anyhow!("{way}: {why}"))?;
    Ok(way.plan(problem, u16::try_from(args.call.lanes.unwrap_or(1)).unwrap_or(1)))
}
