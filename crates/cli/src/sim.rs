//! `ringway sim`: collectives, plans and training steps on fabrics that need not be there.
//!
//! All that is known of simulation is in `ringway-sim`; here are arguments, files and pages.

mod args;
mod job;
mod page;
mod world;

use crate::exit::ExitCode;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ringway_fabric::draft::FinishOptions;
use ringway_fabric::export;
use ringway_fabric::read::Reading;
use ringway_sim::network::Network;
use ringway_sim::report::summary::{Summary, links_json};
use ringway_sim::report::tally::Group;
use ringway_sim::report::{counters, heat, perfetto, timeline};
use ringway_sim::what_if::{self, Knob, Measure, Point};
use serde_json::json;

use crate::fabric::args::{LayoutArg, positive, rate};
use crate::fabric::write;
use crate::output;
pub(crate) use args::SimArgs;
use args::{CommonArgs, OutputArgs, SimCommand, WayArg};
use job::{Job, Ran};

/// Things that may be varied at once.
const AXES_MOST: usize = 2;
/// How often a bar is drawn.
const TICK: Duration = Duration::from_millis(250);

/// Runs the subcommand.
pub(crate) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        SimCommand::Collective(args) => simulate(args.as_ref()),
        SimCommand::Plan(args) => simulate(args.as_ref()),
        SimCommand::Train(args) => simulate(args.as_ref()),
    }
}

/// A bar on standard error, where that is a terminal.
fn bar(jobs: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(jobs), ProgressDrawTarget::stderr());
    let template = if jobs > 1 {
        "{bar:30} {pos}/{len} {msg} [{elapsed}]"
    } else {
        "{spinner} {msg} [{elapsed}]"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(TICK);
    bar
}

fn simulate<J: Job>(job: &J) -> anyhow::Result<ExitCode> {
    let common = job.common();
    if !common.output.vary.is_empty() {
        return vary(job);
    }
    world::check_routing(&common.routing)?;
    let network = world::network(common)?;
    let seeds = u64::from(common.routing.seeds);
    let bar = bar(seeds, "simulating");
    let mut rates = Vec::new();
    let mut times = Vec::new();
    let mut first: Option<Ran> = None;
    for number in 0..seeds {
        let seed = common.routing.first_seed().wrapping_add(number);
        let options = world::options(common, &network, seed)?;
        let ran = job.run(&network, &options)?;
        times.push(ran.outcome.end_us);
        rates.push(ran.rate);
        first.get_or_insert(ran);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let Some(ran) = first else { bail!("no seed was run") };
    files(&common.output, &network, &ran, &job.title())?;
    let summary = Summary::of(&network, &ran.outcome);
    let spread = (seeds > 1).then(|| page::Spread::of(&times, &rates));
    if common.output.json {
        let mut document = json!({
            "version": 1,
            "job": job.title(),
            "gpus": network.ranks(),
            "routing": common.routing.routing.name(),
            "seed": common.routing.first_seed(),
            "qps": common.routing.qps,
            "summary": summary,
            "links": links_json(&network, &ran.outcome),
            "spans": ran.outcome.spans,
            "seeds": spread,
        });
        if let (Some(document), Some(result)) = (document.as_object_mut(), ran.result.as_object()) {
            document.extend(result.clone());
        }
        output::line(&serde_json::to_string_pretty(&document)?)?;
    } else {
        let mut text = page::head(&network, common);
        text.push_str(&ran.page);
        if let Some(spread) = &spread {
            text.push_str(&spread.text(job.rate_name()));
        }
        text.push_str(&page::links(&summary));
        output::stdout_bytes(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is drawn and written besides.
fn files(args: &OutputArgs, network: &Network, ran: &Ran, title: &str) -> anyhow::Result<()> {
    let outcome = &ran.outcome;
    if let Some(path) = &args.heat {
        write(&heat::svg(network, outcome, title), Some(path))?;
    }
    if let Some(path) = &args.timeline {
        write(&timeline::html(network, outcome, title), Some(path))?;
    }
    if let Some(path) = &args.trace {
        write(&serde_json::to_string(&perfetto::document(outcome))?, Some(path))?;
    }
    if let Some(path) = &args.counters {
        let before = match &args.counters_from {
            Some(earlier) => earlier_counters(network, earlier)?,
            None => counters::Carried::new(),
        };
        let times = args.counters_for.map_or(1.0, |us| us / outcome.end_us.max(1e-3));
        let text = counters::write(network, outcome, page::whole(times.max(1.0)), &before)
            .map_err(anyhow::Error::msg)?;
        write(&text, Some(path))?;
    }
    if let Some(path) = &args.topology_out {
        write(&export::ibnetdiscover::write(&network.fabric), Some(path))?;
    }
    Ok(())
}

/// What ports had counted before, by this fabric's identifiers.
fn earlier_counters(network: &Network, path: &Path) -> anyhow::Result<counters::Carried> {
    let name = path.display().to_string();
    let text = std::fs::read(path).with_context(|| name.clone())?;
    let mut reading = Reading::new();
    reading.read("fabric", export::ibnetdiscover::write(&network.fabric).as_bytes())?;
    reading.read(&name, &text)?;
    let fabric = reading.finish(FinishOptions { partial: true, rate: None })?;
    Ok(counters::carried(&fabric))
}

/// Tries every value, or every pair of values.
fn vary<J: Job>(job: &J) -> anyhow::Result<ExitCode> {
    let common = job.common();
    let axes = &common.output.vary;
    if axes.len() > AXES_MOST {
        bail!("--vary: {} things at once; at most {AXES_MOST} are varied", axes.len());
    }
    if axes.len() == 2 && axes[0].knob == axes[1].knob {
        bail!("--vary {0} is there twice: --vary {0}=a,b,c", axes[0].knob);
    }
    let output = &common.output;
    let written = [
        ("--heat", output.heat.is_some()),
        ("--timeline", output.timeline.is_some()),
        ("--trace", output.trace.is_some()),
        ("--counters", output.counters.is_some()),
        ("--topology-out", output.topology_out.is_some()),
    ];
    if let Some((name, _)) = written.iter().find(|(_, given)| *given) {
        bail!("{name} is of one run: it does not go with --vary");
    }
    // Where routings are tried, what one of them has no use for may be meant for another.
    if axes.iter().all(|axis| axis.knob != Knob::Routing) {
        world::check_routing(&common.routing)?;
    }
    let points: usize = axes.iter().map(|axis| axis.values.len()).product();
    let bar = bar(points as u64, "simulating");
    let tried = what_if::try_all(axes, |point| {
        let measured = measure(job, point).map_err(|error| format!("{error:#}"));
        bar.inc(1);
        measured
    });
    bar.finish_and_clear();
    if let [only] = &tried[..]
        && let Some(why) = &only.why
    {
        bail!("{why}");
    }
    if tried.iter().all(|one| one.measure.is_none()) {
        bail!("{}", tried.first().and_then(|one| one.why.clone()).unwrap_or_default());
    }
    if common.output.json {
        let names: Vec<Knob> = axes.iter().map(|axis| axis.knob).collect();
        let document = json!({
            "version": 1,
            "job": job.title(),
            "varied": names,
            "rate_is": job.rate_name(),
            "tried": tried,
        });
        output::line(&serde_json::to_string_pretty(&document)?)?;
    } else {
        let text = page::varied(axes, &tried, job.rate_name(), &job.title());
        output::stdout_bytes(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs one point; of several seeds the median counts.
fn measure<J: Job>(job: &J, point: &Point<'_>) -> anyhow::Result<Measure> {
    let mut job = job.clone();
    for (knob, value) in point {
        set(&mut job, *knob, value).map_err(anyhow::Error::msg)?;
    }
    let common = job.common();
    let network = world::network(common)?;
    let mut all = Vec::new();
    for number in 0..u64::from(common.routing.seeds) {
        let seed = common.routing.first_seed().wrapping_add(number);
        let ran = job.run(&network, &world::options(common, &network, seed)?)?;
        let summary = Summary::of(&network, &ran.outcome);
        let between = summary.groups.iter().filter(|one| {
            matches!(one.group, Group::Up(_) | Group::Down(_) | Group::Across(_)) && one.used > 0
        });
        let (hottest, imbalance) = between.fold((0.0, 0.0), |(hottest, imbalance), one| {
            (f64::max(hottest, one.most), f64::max(imbalance, one.imbalance))
        });
        all.push(Measure { time_us: summary.time_us, rate: ran.rate, hottest, imbalance });
    }
    all.sort_by(|a, b| a.time_us.total_cmp(&b.time_us));
    all.get(all.len() / 2).copied().context("no seed was run")
}

/// Changes one thing: what all jobs are told here, what is the job's own there.
fn set<J: Job>(job: &mut J, knob: Knob, value: &str) -> Result<(), String> {
    let wrong = |why: &str| format!("{knob} {value}: {why}");
    let common: &mut CommonArgs = job.common_mut();
    let dumped = !common.fabric.dump.is_empty();
    let design = &mut common.fabric.design;
    let number = || value.parse::<u64>().ok().filter(|n| *n > 0).ok_or_else(|| wrong("no number"));
    let of_fabric = matches!(
        knob,
        Knob::Oversubscription | Knob::Rate | Knob::Radix | Knob::Layout | Knob::Nics
    );
    let flies = common.fabric.dragonfly.is_some();
    if flies && matches!(knob, Knob::Oversubscription | Knob::Radix | Knob::Layout) {
        return Err(format!("{knob} is not for a dragonfly; generate another fabric to vary it"));
    }
    if dumped && of_fabric {
        return Err(format!("{knob} is told by the dump; generate a fabric to vary it"));
    }
    match knob {
        Knob::Oversubscription => {
            design.oversubscription = positive(value).map_err(|why| wrong(&why))?;
        }
        Knob::Rate => design.rate = Some(rate(value).map_err(|why| wrong(&why))?),
        Knob::Radix => design.radix = number()?,
        Knob::Nics => design.nics = Some(number()?),
        Knob::Layout => {
            design.layout =
                LayoutArg::from_str(value, true).map_err(|_| wrong("rail or fat-tree"))?;
        }
        Knob::Routing => {
            common.routing.routing = WayArg::from_str(value, true)
                .map_err(|_| wrong("ecmp, polarised, adaptive or static"))?;
        }
        Knob::Qps | Knob::Channels => {
            let number = number()?;
            let most = if knob == Knob::Qps { 1024 } else { 64 };
            let number = u32::try_from(number).ok().filter(|number| *number <= most);
            let number = number.ok_or_else(|| wrong(&format!("at most {most}")))?;
            if knob == Knob::Qps {
                common.routing.qps = number;
            } else {
                common.routing.channels = Some(number);
            }
        }
        Knob::Algorithm | Knob::Size => return job.set(knob, value),
    }
    Ok(())
}
