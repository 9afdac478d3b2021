//! `ringway report`: one page from all that the other commands wrote.
//!
//! ```text
//!   files ──► input (recognised) ──► perf, slow, machines, topology, traces, simulation ──► model ──► page
//! ```
//!
//! [`input`] alone reads files; the parts turn what was read into sections of the [`model`]; [`page`] writes it down.

mod chart;
mod chrome;
mod heat;
pub(crate) mod input;
pub(crate) mod live;
mod machines;
pub(crate) mod model;
pub(crate) mod page;
mod perf;
mod simulation;
mod slow;
mod soak;
#[cfg(test)]
mod tests;
mod topology;
mod traces;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;

use self::input::{Inputs, KNOWN};
use self::model::Report;
use self::page::{Kind, page};
use crate::exit::ExitCode;
use crate::{output, trace};

/// Make one page for a browser from results, findings, traces and more
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "The verdict stands first; then curves against the last run and what was
expected, topologies, findings, timelines and simulations: whatever was given.
Files are recognised by their contents. The page is one file that needs no
network, in light and dark, and on paper.

Examples:
  ringway perf all_reduce -J new.json
  ringway report new.json                         writes report.html
  ringway report new.json --against old.json      and what became slower
  ringway doctor --json > doctor.json
  ringway topo --xml > topo.xml
  ringway report doctor.json topo.xml traces/ -o - > page.html

Exits with 0 when the page was written, whatever its verdict; with 2 when a file
cannot be read or is of no kind that is known. docs/report.md says more."
)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    /// File to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

/// What a page is made from, whether it is written or served.
#[derive(Clone, Debug, Args)]
pub(crate) struct WhatArgs {
    /// Results, findings, topologies, traces, simulations, snapshots
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Results of the last run to compare with; may be given several times
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Vec<PathBuf>,
    /// How much longer is slower, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    pub(crate) threshold: f64,
    /// What the page is called
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>().ok();
    number
        .filter(|number| (0.0..=1000.0).contains(number))
        .ok_or_else(|| "not a percentage of 0 to 1000, as 10".to_owned())
}

/// Reads, and writes the page.
pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    if args.what.files.is_empty() {
        bail!("nothing to report on; give it files: ringway report perf.json doctor.json; {KNOWN}");
    }
    let mut inputs = Inputs::default();
    for path in &args.what.files {
        inputs.read(path)?;
    }
    let report = assemble(inputs, &args.what)?;
    let text = page(&report, Kind::File);
    if args.output == Path::new("-") {
        output::stdout_bytes(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    std::fs::write(&args.output, &text).with_context(|| {
        format!("cannot write {}; -o names another file", args.output.display())
    })?;
    output::line(&format!(
        "wrote {} ({} KiB): {}: {}",
        args.output.display(),
        text.len().div_ceil(1024),
        report.verdict().word(),
        report.summary()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// From what was read to what is shown.
pub(crate) fn assemble(inputs: Inputs, args: &WhatArgs) -> anyhow::Result<Report> {
    let last = input::runs(&args.against)?;
    if !last.is_empty() && inputs.runs.is_empty() {
        bail!(
            "--against compares results of perf, and none are given; give some: ringway report new.json --against old.json"
        );
    }
    let mut files = inputs.files;
    files.extend(last.iter().map(|run| (run.name.clone(), "the last run".to_owned())));
    let mut report = Report {
        title: args.title.clone().unwrap_or_else(|| "Ringway report".to_owned()),
        inputs: files,
        sections: Vec::new(),
    };
    let expected: Vec<_> = inputs.simulated.iter().flat_map(|one| one.expectations()).collect();
    let sections = &mut report.sections;
    if !inputs.runs.is_empty() {
        sections.push(perf::section(&inputs.runs, &last, &expected, args.threshold));
    }
    if !inputs.soaked.is_empty() {
        sections.push(soak::section(&inputs.soaked));
    }
    if !inputs.searched.is_empty() {
        sections.push(slow::section(&inputs.searched));
    }
    if !inputs.doctored.is_empty() {
        sections.push(machines::section(&inputs.doctored));
    }
    if !inputs.traces.is_empty() {
        let traces = trace::read::latest(inputs.traces)?;
        let traces: Vec<_> = traces.into_iter().map(|read| read.trace).collect();
        sections.push(traces::section(&traces));
    }
    if !inputs.events.is_empty() {
        sections.push(chrome::section(&inputs.events));
    }
    if !inputs.machines.is_empty() {
        sections.push(topology::section(&inputs.machines));
    }
    if !inputs.simulated.is_empty() {
        sections.push(simulation::section(&inputs.simulated));
    }
    Ok(report)
}
