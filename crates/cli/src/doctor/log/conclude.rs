//! From what was seen to what is wrong: findings, facts, and the likely cause.
//!
//! *Invariant*: the cause is the finding of the worst verdict that is nearest to the root (`order`), however
//! often others were seen. A log of a sound job yields no finding.

mod facts;
mod judge;
mod plan;

use super::super::finding::{Finding, Report, Verdict};
use super::Seen;
use super::curve::expect;
use super::lines::{LINE_MOST, Totals};
use super::rules;
use super::sight::{Place, at};

/// A finding with its rank among causes.
#[derive(Debug)]
pub(crate) struct Ranked {
    order: u16,
    finding: Finding,
    cause: String,
    place: Place,
}

impl Ranked {
    pub(crate) fn new(
        order: u16,
        finding: Finding,
        cause: impl Into<String>,
        place: Place,
    ) -> Self {
        Self { order, finding, cause: cause.into(), place }
    }
}

/// Findings of one kind shown.
const ALIKE: usize = 5;

/// All of it.
pub(crate) fn report(seen: &mut Seen, files: &[String], totals: &[Totals]) -> Report {
    let mut report = Report::new("log");
    let mut found: Vec<Ranked> = Vec::new();
    for (number, sight) in &seen.hits {
        let Some((_, rule)) = rules::all().nth(*number) else { continue };
        // Some tries belong to every start.
        if rule.id == "connect-retry"
            && seen.job.comms.values().any(|comm| !comm.complete.is_empty())
        {
            continue;
        }
        let mut finding = Finding::new(rule.group, rule.id, rule.verdict, rule.title)
            .costs(rule.cost)
            .fixed_by(rule.fix);
        finding.evidence = sight.evidence(files);
        let mut cause = rule.cause.to_owned();
        if let Some(absent) = (rule.id == "watchdog").then(|| judge::absent(&seen.job)).flatten() {
            cause = format!("{absent} {cause}");
            finding.evidence.push(absent);
        }
        found.push(Ranked::new(rule.order, finding, cause, sight.first()));
    }
    found.extend(judge::devices(&seen.devices, files));
    found.extend(judge::job(seen, files));
    found.extend(plan::few_channels(&seen.job, files));
    found.extend(plan::no_multicast(&seen.job, files));
    found.extend(judge::settings(&seen.job, files));
    found.extend(expect::judge(&seen.tables, judge::nics(&seen.job), files));
    found.extend(seen.perftest.judge(files));
    judge::leftovers(seen, files, &mut found);
    found.sort_by_key(|one| (std::cmp::Reverse(one.finding.verdict), one.order, one.place));
    report.cause = found.first().and_then(|first| cause(first, &found, files));
    let mut alike = std::collections::BTreeMap::<String, usize>::new();
    for one in found {
        let count = alike.entry(one.finding.id.clone()).or_default();
        *count += 1;
        if *count <= ALIKE {
            report.findings.push(one.finding);
        }
    }
    for (id, count) in alike.into_iter().filter(|(_, count)| *count > ALIKE) {
        if let Some(last) = report.findings.iter_mut().rfind(|finding| finding.id == id) {
            last.evidence.push(format!("and {} more findings of this kind", count - ALIKE));
        }
    }
    input(seen, files, totals, &mut report);
    facts::write(seen, totals, &mut report);
    report
}

/// The paragraph: what happened, where, and what to do.
fn cause(first: &Ranked, found: &[Ranked], files: &[String]) -> Option<String> {
    if first.finding.verdict < Verdict::Warn {
        return None;
    }
    let mut text = first.cause.clone();
    if first.place.line > 0 {
        text.push_str(&format!(" Seen first at {}.", at(first.place, files)));
    }
    if let Some(fix) = &first.finding.fix {
        let mut letters = fix.chars();
        if let Some(initial) = letters.next() {
            text.push_str(&format!(" What to do: {initial}{}", letters.as_str()));
        }
    }
    let others = found.iter().filter(|one| one.finding.verdict == Verdict::Fail).count();
    if others > 1 && first.finding.verdict == Verdict::Fail {
        let many = others - 1;
        let rest = if many == 1 {
            "The other failure".to_owned()
        } else {
            format!("The other {many} failures")
        };
        text.push_str(&format!(" {rest} below may follow from it."));
    }
    Some(text)
}

/// What is to be said about the input itself.
fn input(seen: &Seen, files: &[String], totals: &[Totals], report: &mut Report) {
    let long = totals
        .iter()
        .enumerate()
        .filter_map(|(file, t)| Some((file, t.first_too_long?, t.too_long)));
    for (file, line, count) in long.take(ALIKE) {
        let name = files.get(file).map_or("?", String::as_str);
        report.findings.push(
            Finding::new(
                "input",
                "line-too-long",
                Verdict::Unknown,
                format!("lines longer than {LINE_MOST} bytes, of which only the first bytes were read: {count}"),
            )
            .seen(format!("{name}:{line}: the first of them"))
            .fixed_by("if that hides something, cut the file into lines first."),
        );
    }
    for (file, totals) in totals.iter().enumerate().filter(|(_, t)| t.fault.is_some()).take(ALIKE) {
        let name = files.get(file).map_or("?", String::as_str);
        let fault = totals.fault.as_deref().unwrap_or_default();
        report.findings.push(
            Finding::new(
                "input",
                "cut-off",
                Verdict::Unknown,
                "a packed file is cut off or broken: what comes after is not known",
            )
            .seen(format!("{name}: {fault}; {} lines stand before it", totals.lines))
            .fixed_by("give the whole file, or the log as it is while the job still writes it."),
        );
    }
    let left_out = seen.job.all_left_out() + seen.devices.left_out + seen.tables.left_out;
    if left_out > 0 {
        report.findings.push(Finding::new(
            "input",
            "left-out",
            Verdict::Unknown,
            format!(
                "the log holds more kinds of things than are kept: {left_out} were counted only"
            ),
        ));
    }
    let knows_nothing = seen.job.nccl_lines == 0
        && seen.tables.curves.is_empty()
        && seen.perftest.tables == 0
        && report.findings.is_empty();
    if knows_nothing {
        report.findings.push(
            Finding::new(
                "input",
                "nothing-known",
                Verdict::Unknown,
                "nothing of NCCL, nccl-tests, perftest or a fault of the kernel is in it",
            )
            .fixed_by("run the job with NCCL_DEBUG=INFO, and give the output of all ranks."),
        );
    } else if report.verdict() == Verdict::Pass {
        report.findings.push(Finding::new(
            "input",
            "log-well",
            Verdict::Pass,
            "no line says that anything is wrong",
        ));
    }
}
