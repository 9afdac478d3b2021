//! Findings for programs: JSON, SARIF 2.1.0, JUnit.

use std::fmt::Write as _;

use ringway_k8s::check::{ALL, Finding, Outcome, Verdict};
use ringway_k8s::fix::Mended;
use ringway_k8s::model::Reading;
use ringway_k8s::yaml::Place;
use serde_json::{Value, json};

use crate::output::escaped;

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Hint => "hint",
        Verdict::Warn => "warn",
        Verdict::Fail => "fail",
    }
}

/// docs/k8s.md lists the fields.
pub(super) fn json(
    outcome: &Outcome,
    reading: &Reading,
    mended: &[Mended],
) -> serde_json::Result<String> {
    let one = |finding: &Finding| {
        json!({
            "id": finding.id,
            "verdict": word(finding.verdict),
            "title": finding.title,
            "file": reading.sources[finding.file].name,
            "line": finding.place.line,
            "column": finding.place.column,
            "cost": finding.cost,
            "fix": finding.fix,
            "yaml": finding.yaml,
            "can_be_written": !finding.edits.is_empty(),
        })
    };
    let worst = outcome.findings.iter().map(|finding| finding.verdict).max();
    serde_json::to_string_pretty(&json!({
        "version": 1,
        "subject": "k8s",
        "verdict": worst.map_or("pass", word),
        "allowed": outcome.allowed,
        "mended": mended.iter().map(|one_mended| one(&one_mended.finding)).collect::<Vec<_>>(),
        "findings": outcome.findings.iter().map(one).collect::<Vec<_>>(),
    }))
}

/// Lines and columns of a span, as SARIF counts them: from 1, the end behind the last character.
fn region(text: &str, span: &std::ops::Range<usize>) -> Value {
    let (start, end) = (Place::of(text, span.start), Place::of(text, span.end));
    json!({"startLine": start.line, "startColumn": start.column, "endLine": end.line, "endColumn": end.column})
}

/// A path as a reference of RFC 3986: what is no plain letter there is written by its bytes.
fn uri(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// For code review: GitHub, GitLab and editors show it beside the lines.
pub(super) fn sarif(outcome: &Outcome, reading: &Reading) -> serde_json::Result<String> {
    let rules: Vec<Value> = ALL
        .iter()
        .map(|check| {
            json!({"id": check.id, "name": check.name, "shortDescription": {"text": check.name},
                   "properties": {"group": check.group}})
        })
        .collect();
    let results: Vec<Value> =
        outcome.findings.iter().map(|finding| result(finding, reading)).collect();
    serde_json::to_string_pretty(&json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "ringway k8s lint", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    }))
}

fn result(finding: &Finding, reading: &Reading) -> Value {
    let source = &reading.sources[finding.file];
    let level = match finding.verdict {
        Verdict::Hint => "note",
        Verdict::Warn => "warning",
        Verdict::Fail => "error",
    };
    let artifact = json!({"uri": uri(&source.name)});
    // What could not be read has a place, but no span.
    let region_of_it = match finding.span.is_empty() {
        true => json!({"startLine": finding.place.line, "startColumn": finding.place.column}),
        false => region(&source.text, &finding.span),
    };
    let mut text = format!("{}. It costs: {}. Fix: {}.", finding.title, finding.cost, finding.fix);
    if let Some(yaml) = &finding.yaml {
        let _ = write!(text, "\n\n{yaml}");
    }
    let mut result = json!({
        "ruleId": finding.id,
        "ruleIndex": ALL.iter().position(|check| check.id == finding.id),
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": region_of_it}}],
    });
    if !finding.edits.is_empty() {
        let replacements: Vec<Value> = finding
            .edits
            .iter()
            .map(|edit| {
                json!({"deletedRegion": region(&source.text, &edit.span), "insertedContent": {"text": edit.text}})
            })
            .collect();
        result["fixes"] = json!([{
            "description": {"text": finding.fix},
            "artifactChanges": [{"artifactLocation": {"uri": uri(&source.name)}, "replacements": replacements}],
        }]);
    }
    result
}

/// For CI: one suite a file, one case a check.
pub(super) fn junit(outcome: &Outcome, reading: &Reading) -> String {
    let mut page = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"ringway k8s lint\">\n",
    );
    for (file, source) in reading.sources.iter().enumerate() {
        let of_file: Vec<&Finding> =
            outcome.findings.iter().filter(|one| one.file == file).collect();
        let of = |id: &str, hint: bool| {
            let is = |one: &&&Finding| one.id == id && (one.verdict == Verdict::Hint) == hint;
            of_file.iter().copied().filter(|one| is(&one)).collect::<Vec<_>>()
        };
        let failed = ALL.iter().filter(|check| !of(check.id, false).is_empty()).count();
        let hinted = ALL
            .iter()
            .filter(|check| of(check.id, false).is_empty() && !of(check.id, true).is_empty());
        let _ = writeln!(
            page,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\" errors=\"0\" skipped=\"{}\">",
            escaped(&source.name),
            ALL.len(),
            hinted.count()
        );
        for check in ALL {
            let _ = write!(
                page,
                "    <testcase classname=\"{}\" name=\"{}\"",
                check.id,
                escaped(check.name)
            );
            let (bad, hints) = (of(check.id, false), of(check.id, true));
            if bad.is_empty() && hints.is_empty() {
                page.push_str("/>\n");
                continue;
            }
            page.push_str(">\n");
            let lines = |list: &[&Finding]| {
                let line = |one: &&Finding| {
                    format!(
                        "{}:{}:{}: {}\n  costs {}\n  fix {}\n{}",
                        source.name,
                        one.place.line,
                        one.place.column,
                        one.title,
                        one.cost,
                        one.fix,
                        one.yaml.as_deref().unwrap_or("")
                    )
                };
                list.iter().map(line).collect::<String>()
            };
            let _ = match bad.iter().map(|one| one.verdict).max() {
                Some(verdict) => writeln!(
                    page,
                    "      <failure type=\"{}\" message=\"{}\">{}</failure>",
                    word(verdict),
                    escaped(&bad[0].title),
                    escaped(&lines(&bad))
                ),
                None => writeln!(page, "      <skipped message=\"{}\"/>", escaped(&hints[0].title)),
            };
            page.push_str("    </testcase>\n");
        }
        page.push_str("  </testsuite>\n");
    }
    page.push_str("</testsuites>\n");
    page
}
