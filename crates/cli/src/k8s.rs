//! `ringway k8s`: manifests for collectives, written and checked.
//!
//! All that is known of manifests is in `ringway-k8s`; here are arguments, files, pages, and what `ringway env`
//! knows of variables.

mod args;
mod forms;
mod input;
mod make;
mod page;
mod variables;

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use diffy::PatchFormatter;
use ringway_k8s::check::{Outcome, Verdict, lint};
use ringway_k8s::fix::fix;
use ringway_k8s::model::{Reading, Source};

use crate::doctor::finding::EXIT_CANNOT;
use crate::exit::ExitCode;
use crate::output;
pub(crate) use args::K8sArgs;
use args::{Format, K8sCommand, LintArgs};
use input::Texts;

/// Runs the subcommand.
pub(crate) fn run(args: &K8sArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        K8sCommand::Gen(args) => make::run(args),
        K8sCommand::Lint(args) => run_lint(args).or_else(|error| {
            if output::is_broken_pipe(&error) {
                return Err(error);
            }
            output::failure("k8s lint", &error);
            Ok(ExitCode::from(EXIT_CANNOT))
        }),
    }
}

fn run_lint(args: &LintArgs) -> anyhow::Result<ExitCode> {
    let has_form = args.format != Format::Text;
    if args.diff && has_form {
        bail!("--diff prints a patch and --format a list: give one of them");
    }
    let Texts { sources, files } = input::texts(&args.files)?;
    let piped = files.iter().any(Option::is_none);
    if args.fix && piped && sources.len() > 1 {
        bail!("--fix with - writes the mended text to standard output: give - alone");
    }
    if args.fix && piped && has_form {
        bail!("--fix with - writes the mended text to standard output: leave --format out");
    }
    let mut reading = Reading::new(sources);
    let mut mended = Vec::new();
    if args.fix || args.diff {
        let before = reading.sources.clone();
        let fixed = fix(reading.clone(), variables::findings);
        mended = fixed.mended;
        if fixed.is_cut_short {
            output::remark(
                "not all corrections were tried, there are too many: run it again to go on",
            );
        }
        if args.diff {
            let shown = differences(&before, &fixed.reading.sources);
            output::stdout_bytes(shown.as_bytes())?;
        }
        if args.fix {
            write(&before, &fixed.reading.sources, &files, args.diff)?;
            reading = fixed.reading;
        }
    }
    let outcome = lint(&reading, variables::findings);
    let code = ExitCode::from(exit_code(&outcome));
    if args.fix && piped {
        // Standard output is the text; what was mended and what is left is said beside it.
        tell(&page::mended(&mended, &reading.sources));
        tell(&page::left(&outcome, &reading.sources));
        return Ok(code);
    }
    if args.diff && !args.fix {
        return Ok(code);
    }
    match args.format {
        Format::Text => {
            let mut text = String::new();
            if args.fix {
                text.push_str(&page::mended(&mended, &reading.sources));
            }
            text.push_str(&page::text(&outcome, &reading, args.all));
            output::stdout_bytes(text.as_bytes())?;
        }
        Format::Json => output::line(&forms::json(&outcome, &reading, &mended)?)?,
        Format::Sarif => output::line(&forms::sarif(&outcome, &reading)?)?,
        Format::Junit => output::stdout_bytes(forms::junit(&outcome, &reading).as_bytes())?,
    }
    Ok(code)
}

/// 0 when nothing is known to be wrong, 1 for warnings, 2 for failures.
fn exit_code(outcome: &Outcome) -> u8 {
    match outcome.findings.iter().map(|finding| finding.verdict).max() {
        None | Some(Verdict::Hint) => 0,
        Some(Verdict::Warn) => 1,
        Some(Verdict::Fail) => 2,
    }
}

fn write(
    before: &[Source],
    after: &[Source],
    files: &[Option<PathBuf>],
    shown: bool,
) -> anyhow::Result<()> {
    for ((old, new), file) in before.iter().zip(after).zip(files) {
        match file {
            None if !shown => output::stdout_bytes(new.text.as_bytes())?,
            Some(path) if old.text != new.text => {
                std::fs::write(path, &new.text).with_context(|| new.name.clone())?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn tell(lines: &str) {
    if !lines.is_empty() {
        output::remark(lines.trim_end());
    }
}

fn differences(before: &[Source], after: &[Source]) -> String {
    let mut text = String::new();
    for (old, new) in before.iter().zip(after).filter(|(old, new)| old.text != new.text) {
        // Where a name has a space, only a tab says that it is over.
        let end = if old.name.contains(' ') { "\t\n" } else { "\n" };
        text.extend(["--- ", &old.name, end, "+++ ", &new.name, end]);
        let patch = diffy::create_patch(&old.text, &new.text);
        let formatter = PatchFormatter::new().suppress_blank_empty(false);
        // Behind names of its own.
        text.extend(formatter.fmt_patch(&patch).to_string().split_inclusive('\n').skip(2));
    }
    text
}
