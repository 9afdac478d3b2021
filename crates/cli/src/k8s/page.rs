//! Findings for people, in the doctor's layout, with the corrected YAML below each.

use std::fmt::Write as _;

use ringway_k8s::check::{Finding, Outcome, Verdict};
use ringway_k8s::fix::Mended;
use ringway_k8s::model::{Reading, Source};

use crate::doctor::finding::folded;
use crate::output;

/// The page.
pub(super) fn text(outcome: &Outcome, reading: &Reading, all: bool) -> String {
    let columns = output::columns();
    let colour = output::stdout_has_colour();
    let mut page = String::new();
    let mut file = usize::MAX;
    for finding in &outcome.findings {
        if finding.file != file {
            file = finding.file;
            let gap = if page.is_empty() { "" } else { "\n" };
            let name = shown(&reading.sources[file].name);
            let _ = match colour {
                true => writeln!(page, "{gap}\x1b[1m{name}\x1b[0m"),
                false => writeln!(page, "{gap}{name}"),
            };
        }
        one(&mut page, finding, &reading.sources[file], columns, colour);
    }
    if !page.is_empty() {
        page.push('\n');
    }
    if all {
        let documents: usize = reading.streams.iter().map(|stream| stream.documents.len()).sum();
        let _ = writeln!(
            page,
            "{} in {}",
            count(documents, "document"),
            count(reading.sources.len(), "file")
        );
    }
    let _ = writeln!(page, "{}", summary(outcome));
    page
}

/// What was mended, a line each.
pub(super) fn mended(mended: &[Mended], sources: &[Source]) -> String {
    let mut page = String::new();
    for one in mended {
        let finding = &one.finding;
        let name = shown(&sources[finding.file].name);
        let _ = writeln!(
            page,
            "mended  {name}:{}: {} [{}]",
            finding.place.line,
            shown(&finding.title),
            finding.id
        );
    }
    if !page.is_empty() {
        page.push('\n');
    }
    page
}

/// What is left, a line each.
pub(super) fn left(outcome: &Outcome, sources: &[Source]) -> String {
    let mut page = String::new();
    for finding in &outcome.findings {
        let (word, _) = named(finding.verdict);
        let _ = writeln!(
            page,
            "{word:<7} {}:{}: {} [{}]; fix: {}",
            shown(&sources[finding.file].name),
            finding.place.line,
            shown(&finding.title),
            finding.id,
            shown(&finding.fix)
        );
    }
    page
}

/// What a verdict is called, and its colour.
fn named(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Hint => ("hint", "\x1b[36m"),
        Verdict::Warn => ("warn", "\x1b[33m"),
        Verdict::Fail => ("FAIL", "\x1b[1;31m"),
    }
}

fn one(page: &mut String, finding: &Finding, source: &Source, columns: usize, colour: bool) {
    let (word, on) = named(finding.verdict);
    let (on, off) = if colour { (on, "\x1b[0m") } else { ("", "") };
    let title = format!("{} [{}]", finding.title, finding.id);
    for (number, line) in folded(&title, columns.saturating_sub(10)).iter().enumerate() {
        let _ = match number {
            0 => writeln!(page, "  {on}{word:<7}{off} {line}"),
            _ => writeln!(page, "          {line}"),
        };
    }
    let line = source.text.lines().nth(finding.place.line.saturating_sub(1)).unwrap_or("");
    let place = format!("{}:{}: {}", finding.place.line, finding.place.column, cut(line.trim()));
    let can = if finding.edits.is_empty() { "" } else { " (--fix writes it)" };
    let fix = format!("{}{can}", finding.fix);
    for (label, text) in [("costs", &finding.cost), ("fix", &fix), ("seen", &place)] {
        if text.trim().is_empty() {
            continue;
        }
        for (number, line) in folded(text, columns.saturating_sub(16)).iter().enumerate() {
            let label = if number == 0 { label } else { "" };
            let _ = writeln!(page, "          {label:<5} {line}");
        }
        if label == "fix" {
            for line in finding.yaml.iter().flat_map(|yaml| yaml.lines()) {
                let _ = writeln!(page, "                  {}", shown(line));
            }
        }
    }
}

fn cut(line: &str) -> String {
    match line.char_indices().nth(120) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// Control characters must not reach the terminal.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '·' } else { c }).collect()
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

fn summary(outcome: &Outcome) -> String {
    let of = |verdict| outcome.findings.iter().filter(|f| f.verdict == verdict).count();
    let mut words = Vec::new();
    for (verdict, what) in
        [(Verdict::Fail, "failure"), (Verdict::Warn, "warning"), (Verdict::Hint, "hint")]
    {
        if of(verdict) > 0 {
            words.push(count(of(verdict), what));
        }
    }
    if outcome.allowed > 0 {
        words.push(format!("{} allowed by comments", outcome.allowed));
    }
    if outcome.findings.is_empty() {
        words.insert(0, "nothing wrong found".to_owned());
    }
    words.join(", ")
}
