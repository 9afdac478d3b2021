//! The report as one page for a browser: no script, nothing from a network, light and dark by the reader's
//! choice.
//!
//! *Invariant*: everything that was read from a machine is escaped.

use std::fmt::Write as _;

use super::examine::{Examined, UNKNOWN_SHOWN};
use super::finding::{Finding, Verdict};
use super::fleet::Fleet;
use crate::output::escaped;

/// Colours by day.
pub(crate) const LIGHT: &str = "--paper:#fff;--ink:#1b1f24;--soft:#59636e;--line:#d8dee4;--card:#f6f8fa;\
--fail:#b42318;--warn:#8a5a00;--unknown:#0b6e99;--ok:#1a7f37";

/// Colours by night.
pub(crate) const DARK: &str = "--paper:#0e1116;--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--card:#161b22;\
--fail:#ff7b72;--warn:#e3b341;--unknown:#79c0ff;--ok:#56d364";

/// Rules of texts and findings.
pub(crate) const TEXTS: &str = "\
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}\
.soft{color:var(--soft)}article{border:1px solid var(--line);border-left:.3rem solid var(--soft);\
border-radius:.4rem;background:var(--card);padding:.6rem .9rem;margin:.6rem 0;overflow-wrap:anywhere}\
article p{margin:.2rem 0}.fail{border-left-color:var(--fail)}.warn{border-left-color:var(--warn)}\
.unknown{border-left-color:var(--unknown)}.pass{border-left-color:var(--ok)}\
.word{font-weight:600;text-transform:uppercase;font-size:.8rem;letter-spacing:.04em}\
.fail .word{color:var(--fail)}.warn .word{color:var(--warn)}.unknown .word{color:var(--unknown)}\
.pass .word{color:var(--ok)}code,li{font:13px/1.5 ui-monospace,monospace}ul{margin:.3rem 0;padding-left:1.2rem}\
details>summary{cursor:pointer;margin:1rem 0 .3rem}";

const STYLE: &str = "\
body{margin:0 auto;max-width:60rem;padding:2rem 1rem;background:var(--paper);color:var(--ink);\
font:16px/1.5 system-ui,sans-serif}\
table{border-collapse:collapse}td{padding:.1rem 1rem .1rem 0;vertical-align:top}\
figure{box-sizing:border-box;width:calc(100vw - 3rem);margin:.5rem 0 1rem 50%;transform:translateX(-50%);\
overflow-x:auto;border:1px solid var(--line);border-radius:.4rem}\
figure svg{display:block;margin:auto;height:auto;max-width:max(100%,72rem)}figcaption{padding:.4rem .9rem}";

/// Different pictures of a fleet that are shown.
const PICTURES: usize = 8;

/// The whole page.
pub(super) fn page(machines: &[Examined], fleet: Option<&Fleet>) -> String {
    let title = match machines {
        [one] => one.name.clone(),
        many => format!("{} machines", many.len()),
    };
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>ringway doctor: {0}</title>\n<style>\
         :root{{color-scheme:light dark;{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}{TEXTS}{STYLE}\
         </style>\n</head>\n\
         <body>\n<h1>{0}</h1>\n",
        escaped(&title)
    );
    match (fleet, machines) {
        (Some(fleet), _) => {
            let merged = fleet.merged(machines);
            findings(&mut page, &merged.findings);
            let _ = writeln!(page, "<h2>Machines</h2>\n<table>");
            for machine in machines {
                let count = |verdict| {
                    machine.report.findings.iter().filter(|f| f.verdict == verdict).count()
                };
                let _ = writeln!(
                    page,
                    "<tr><td>{}</td><td>{} failures</td><td>{} warnings</td></tr>",
                    escaped(&machine.name),
                    count(Verdict::Fail),
                    count(Verdict::Warn)
                );
            }
            page.push_str("</table>\n");
            topologies(&mut page, machines);
        }
        (None, machines) => {
            for machine in machines {
                findings(&mut page, &machine.report.findings);
                topologies(&mut page, std::slice::from_ref(machine));
                page.push_str("<h2>Seen</h2>\n<table>\n");
                for fact in &machine.report.facts {
                    let _ = writeln!(
                        page,
                        "<tr><td>{}</td><td>{}</td></tr>",
                        escaped(&fact.name),
                        escaped(&fact.value)
                    );
                }
                page.push_str("</table>\n");
            }
        }
    }
    page.push_str("</body>\n</html>\n");
    page
}

/// The pictures of machines, those that look the same once; nothing where there is none.
fn topologies(page: &mut String, machines: &[Examined]) {
    let mut kinds: Vec<(&str, Vec<&str>)> = Vec::new();
    for machine in machines {
        let (Some(picture), name) = (machine.picture.as_deref(), machine.name.as_str()) else {
            continue;
        };
        match kinds.iter_mut().find(|(known, _)| *known == picture) {
            Some((_, names)) => names.push(name),
            None => kinds.push((picture, vec![name])),
        }
    }
    if kinds.is_empty() {
        return;
    }
    page.push_str("<section id=\"topology\">\n<h2>Topology</h2>\n");
    kinds.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    for (picture, names) in kinds.iter().take(PICTURES) {
        // Inside a page the name of the format's namespace is not needed.
        let picture = picture.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
        let _ = writeln!(page, "<figure>\n{picture}");
        if machines.len() > 1 {
            let _ = writeln!(page, "<figcaption>{}</figcaption>", escaped(&named(names)));
        }
        page.push_str("</figure>\n");
    }
    if let Some(more) = kinds.len().checked_sub(PICTURES).filter(|more| *more > 0) {
        let _ = writeln!(page, "<p class=\"soft\">and {more} other kinds of machines</p>");
    }
    page.push_str("</section>\n");
}

/// Names of machines, not too many.
fn named(names: &[&str]) -> String {
    const SHOWN: usize = 12;
    let list = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{list} and {more} more"),
        _ => list,
    }
}

fn findings(page: &mut String, all: &[Finding]) {
    let count = |verdict| all.iter().filter(|finding| finding.verdict == verdict).count();
    let _ = writeln!(
        page,
        "<p class=\"soft\">{} failures, {} warnings, {} unknown, {} well</p>",
        count(Verdict::Fail),
        count(Verdict::Warn),
        count(Verdict::Unknown),
        count(Verdict::Pass)
    );
    let folded = |verdict| match verdict {
        Verdict::Pass => Some("are well"),
        // A tree that holds little is no news.
        Verdict::Unknown if count(verdict) > UNKNOWN_SHOWN => Some("could not look"),
        _ => None,
    };
    for (verdict, heading) in [
        (Verdict::Fail, "Failures"),
        (Verdict::Warn, "Warnings"),
        (Verdict::Unknown, "Not known"),
        (Verdict::Pass, "Well"),
    ] {
        let these = all.iter().filter(|finding| finding.verdict == verdict);
        let (count, folded) = (count(verdict), folded(verdict));
        if count == 0 {
            continue;
        }
        let _ = match folded {
            Some(how) => writeln!(page, "<details><summary>{count} checks {how}</summary>"),
            None => writeln!(page, "<h2>{heading}</h2>"),
        };
        these.for_each(|finding| article(page, finding, &finding.id));
        if folded.is_some() {
            page.push_str("</details>\n");
        }
    }
}

/// The word by which pages style a verdict.
pub(crate) fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fail => "fail",
        Verdict::Warn => "warn",
        Verdict::Unknown => "unknown",
        Verdict::Pass => "pass",
    }
}

/// One finding with what it costs, the fix and the evidence, at the place `anchor`.
pub(crate) fn article(page: &mut String, finding: &Finding, anchor: &str) {
    let class = class(finding.verdict);
    let _ = writeln!(
        page,
        "<article class=\"{class}\" id=\"{}\"><p><span class=\"word\">{class}</span> {} <span class=\"soft\">{} · {}</span></p>",
        escaped(anchor),
        escaped(&finding.title),
        escaped(&finding.group),
        escaped(&finding.id),
    );
    if let Some(cost) = &finding.cost {
        let _ = writeln!(page, "<p><span class=\"soft\">costs</span> {}</p>", escaped(cost));
    }
    if let Some(fix) = &finding.fix {
        let _ =
            writeln!(page, "<p><span class=\"soft\">fix</span> <code>{}</code></p>", escaped(fix));
    }
    if !finding.evidence.is_empty() {
        page.push_str("<ul>");
        for line in &finding.evidence {
            let _ = write!(page, "<li>{}</li>", escaped(line));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</article>\n");
}
