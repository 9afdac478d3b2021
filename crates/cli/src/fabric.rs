//! `ringway fabric`: the network as a whole, from saved dumps: shown, checked, compared, exported, planned.
//!
//! All that is known of fabrics is in `ringway-fabric`; here are arguments, files and pages.

pub(crate) mod args;
mod findings;
pub(crate) mod input;
mod plan;
pub(crate) mod show;

use crate::exit::ExitCode;
use std::path::Path;

use anyhow::Context as _;
use ringway_fabric::check::{self, CheckOptions};
use ringway_fabric::diff;
use ringway_fabric::export;

use crate::doctor::finding::{EXIT_CANNOT, Report};
use crate::output;
pub(crate) use args::FabricArgs;
use args::{CheckArgs, DiffArgs, ExportArgs, ExportFormat, FabricCommand};

/// Runs the subcommand.
pub(crate) fn run(args: &FabricArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        FabricCommand::Show(args) => show::run(args),
        FabricCommand::Check(args) => verdict("fabric check", run_check(args)),
        FabricCommand::Diff(args) => verdict("fabric diff", run_diff(args)),
        FabricCommand::Export(args) => run_export(args),
        FabricCommand::Plan(args) => plan::run(args),
    }
}

/// The exit code of a run that judges: one that could not be done is no verdict.
fn verdict(command: &str, done: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    match done {
        Err(error) if !output::is_broken_pipe(&error) => {
            output::failure(command, &error);
            Ok(ExitCode::from(EXIT_CANNOT))
        }
        done => done,
    }
}

fn run_check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let fabric = input::fabric(&args.dumps)?;
    // A dump of counters shows ports of switches that another dump describes.
    let before = match args.since.is_empty() {
        true => None,
        false => Some(input::parts(&args.since, &args.dumps)?),
    };
    let options = CheckOptions {
        before: before.as_ref(),
        interval_s: args.interval,
        oversubscription: args.oversubscription,
    };
    let mut report = Report::new("fabric");
    findings::facts(&mut report, &fabric);
    report.findings = check::check(&fabric, options).into_iter().map(findings::finding).collect();
    findings::print(&report, args.form)
}

fn run_diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let old = input::one(&args.old, &args.reading)?;
    let new = input::one(&args.new, &args.reading)?;
    let mut report = Report::new("fabric diff");
    findings::facts(&mut report, &new);
    report.findings = diff::diff(&old, &new).into_iter().map(findings::finding).collect();
    findings::print(&report, args.form)
}

fn run_export(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let fabric = input::fabric(&args.dumps)?;
    let text = match args.format {
        ExportFormat::Slurm => export::slurm::topology_conf(&fabric),
        ExportFormat::Kubernetes => export::kubernetes::labels(&fabric, &args.label_prefix),
        ExportFormat::Json => {
            format!("{}\n", serde_json::to_string_pretty(&export::json::document(&fabric))?)
        }
        ExportFormat::Dot => export::dot::graph(&fabric),
        ExportFormat::Svg => export::picture::svg(&fabric, &input::title(&fabric)),
        ExportFormat::Ibnetdiscover => export::ibnetdiscover::write(&fabric),
    };
    write(&text, args.output.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a text into a file, or to standard output.
pub(crate) fn write(text: &str, path: Option<&Path>) -> anyhow::Result<()> {
    match path {
        Some(path) => std::fs::write(path, text).with_context(|| format!("{}", path.display()))?,
        None => output::stdout_bytes(text.as_bytes())?,
    }
    Ok(())
}
