//! Findings of a fabric in the doctor's words, and their page.

use crate::exit::ExitCode;

use ringway_fabric::check::{Finding as Found, Verdict as Judged};
use ringway_fabric::{Fabric, shape::Shape};

use super::args::FormArgs;
use crate::doctor::finding::{Finding, Report, Style, Verdict};
use crate::output;

/// Lines of evidence that a page shows unless all are asked for.
const EVIDENCE_LINES: usize = 12;

/// The same in the doctor's words.
pub(super) fn finding(found: Found) -> Finding {
    let verdict = match found.verdict {
        Judged::Unknown => Verdict::Unknown,
        Judged::Warn => Verdict::Warn,
        Judged::Fail => Verdict::Fail,
    };
    let mut finding = Finding::new(found.group, found.id, verdict, found.title);
    finding.evidence = found.evidence;
    finding.cost = found.cost;
    finding.fix = found.fix;
    finding
}

/// What was seen besides.
pub(super) fn facts(report: &mut Report, fabric: &Fabric) {
    let shape = Shape::of(fabric);
    for source in &fabric.sources {
        report.fact(&source.name, source.format.clone());
    }
    report.fact("switches", shape.switches.to_string());
    report.fact("hosts", shape.hosts.to_string());
    report.fact("adapters", shape.adapters.to_string());
    report.fact("links", shape.links.to_string());
}

/// Prints the report; its exit code is the verdict.
pub(super) fn print(report: &Report, form: FormArgs) -> anyhow::Result<ExitCode> {
    if form.json {
        output::line(&report.json()?)?;
    } else {
        let style = Style {
            columns: output::columns(),
            colour: output::stdout_has_colour(),
            all: form.all,
        };
        let mut shown = report.clone();
        for finding in shown.findings.iter_mut().filter(|_| !form.all) {
            let lines = finding.evidence.len();
            if lines > EVIDENCE_LINES + 1 {
                finding.evidence.truncate(EVIDENCE_LINES);
                finding
                    .evidence
                    .push(format!("and {} more: --all shows them", lines - EVIDENCE_LINES));
            }
        }
        output::stdout_bytes(shown.text(style).as_bytes())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}
