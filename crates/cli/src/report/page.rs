//! The page: one file that needs nothing else.
//!
//! *Invariant*: everything that was read is escaped. Were something not, it still could not run or load: the policy in the
//! head allows the one style sheet and the one script below, by their hashes, and no other resource.

use std::fmt::Write as _;

use ringway_plan::topology::picture;
use sha2::{Digest as _, Sha256};

use super::model::{Block, Cell, Report, Section, Table};
use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::html::{DARK, LIGHT, TEXTS, article, class};
use crate::output::escaped;

/// Findings that are named at the top.
const REASONS: usize = 8;
/// Findings of one verdict that a section shows.
const FINDINGS: usize = 300;
/// Files that are listed.
const FILES: usize = 200;

const RULES: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const REFRESH: &str = include_str!("live.js");

/// Colours of curves and heat, by day and by night.
const MORE_LIGHT: &str = "--link:#0550ae;--band:#f3f5f8;--s0:#0b62ba;--s1:#b3530a;--s2:#6f42c1;--s3:#0f6b57;\
--s4:#9b2257;--s5:#57606a;--h1:#fde7c8;--h2:#fbc178;--h3:#f08a3c;--h4:#d1531a;--h5:#97260b";
const MORE_DARK: &str = "--link:#79c0ff;--band:#151b23;--s0:#58a6ff;--s1:#f0883e;--s2:#bc8cff;--s3:#3fb99a;\
--s4:#f778ba;--s5:#9198a1;--h1:#3d2a14;--h2:#6b3f12;--h3:#a35a17;--h4:#dd8030;--h5:#ffb77a";

/// How often a page that is served draws itself anew.
const AGAIN_MS: u32 = 3000;

/// Whether the page stands alone, or is served and keeps itself up to date.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    File,
    Served,
}

/// The whole page.
pub(crate) fn page(report: &Report, kind: Kind) -> String {
    let style = style();
    let (script, connect, again) = match kind {
        Kind::File => (SCRIPT.to_owned(), "", String::new()),
        Kind::Served => (
            format!("{SCRIPT}{REFRESH}"),
            "; connect-src 'self'",
            format!(" data-again=\"{AGAIN_MS}\""),
        ),
    };
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"{again}>\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; \
         style-src '{}'; script-src '{}'; base-uri 'none'; form-action 'none'{connect}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}: {verdict}</title>\n<style>{style}</style>\n</head>\n<body>\n\
         <header><h1>{title}</h1><button id=\"theme\" type=\"button\">light / dark</button></header>\n<main>\n",
        hash(&style),
        hash(&script),
        title = escaped(&report.title),
        verdict = report.verdict().word(),
    );
    top(&mut page, report);
    for section in &report.sections {
        whole_section(&mut page, section);
    }
    inputs(&mut page, report);
    let told = if kind == Kind::Served { " · <span id=\"told\">live</span>" } else { "" };
    let _ = write!(
        page,
        "</main>\n<footer class=\"soft\">ringway {}{told}</footer>\n<script>{script}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    );
    page
}

/// The one style sheet. On paper it is day.
fn style() -> String {
    let (light, dark) = (picture::LIGHT, picture::DARK);
    let night = |which: &str| {
        format!("{which}{{color-scheme:dark;{DARK};{MORE_DARK}}}{which} .topology{{{dark}}}")
    };
    format!(
        ":root{{color-scheme:light dark;{LIGHT};{MORE_LIGHT}}}:root[data-theme=light]{{color-scheme:light}}\
         {TEXTS}{RULES}.topology{{{light}}}\
         @media screen and (prefers-color-scheme:dark){{{}}}@media screen{{{}}}",
        night(":root:not([data-theme=light])"),
        night(":root[data-theme=dark]"),
    )
}

/// A source of the policy: what has these bytes and no other.
fn hash(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(text.as_bytes())))
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |place: usize| u32::from(three.get(place).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place > three.len() { '=' } else { char::from(letter) });
        }
    }
    text
}

/// The verdict, its first reasons, and where to go from there.
fn top(page: &mut String, report: &Report) {
    let verdict = report.verdict();
    let _ = writeln!(
        page,
        "<div class=\"verdict {}\" id=\"verdict\"><p><span class=\"word\">{}</span> {}</p>",
        class(verdict),
        verdict.word(),
        escaped(&report.summary())
    );
    let all = report.findings();
    let wrong: Vec<_> =
        all.iter().filter(|(_, _, finding)| finding.verdict >= Verdict::Warn).collect();
    if !wrong.is_empty() {
        page.push_str("<ul>\n");
        for (section, at, finding) in wrong.iter().take(REASONS) {
            let _ = writeln!(
                page,
                "<li class=\"{0}\"><span class=\"word\">{0}</span> <a href=\"#{section}-{at}\">{1}</a></li>",
                class(finding.verdict),
                escaped(&finding.title)
            );
        }
        if let Some(more @ 1..) = wrong.len().checked_sub(REASONS) {
            let _ = writeln!(page, "<li class=\"soft\">and {more} more below</li>");
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</div>\n");
    if report.sections.len() > 1 {
        page.push_str("<nav aria-label=\"Sections\">\n");
        for section in &report.sections {
            let _ = writeln!(page, "<a href=\"#{}\">{}</a>", section.id, escaped(&section.title));
        }
        page.push_str("</nav>\n");
    }
}

fn whole_section(page: &mut String, section: &Section) {
    let id = section.id;
    let _ = writeln!(page, "<section id=\"{id}\">\n<h2>{}</h2>", escaped(&section.title));
    findings(page, id, &section.findings);
    for block in &section.blocks {
        one_block(page, block);
    }
    page.push_str("</section>\n");
}

/// What is wrong in full; what is well, or could not be looked at, when asked for.
fn findings(page: &mut String, id: &str, findings: &[Finding]) {
    let mut all: Vec<(usize, &Finding)> = findings.iter().enumerate().collect();
    all.sort_by_key(|(_, finding)| std::cmp::Reverse(finding.verdict));
    let of = |verdict| all.iter().filter(move |(_, finding)| finding.verdict == verdict);
    let show = |page: &mut String, verdict| {
        let shown = of(verdict).take(FINDINGS);
        shown.for_each(|(at, finding)| article(page, finding, &format!("{id}-{at}")));
        if let Some(more @ 1..) = of(verdict).count().checked_sub(FINDINGS) {
            let _ = writeln!(page, "<p class=\"soft\">and {more} more</p>");
        }
    };
    show(page, Verdict::Fail);
    show(page, Verdict::Warn);
    for (verdict, how) in [(Verdict::Unknown, "unknown"), (Verdict::Pass, "passed")] {
        let count = of(verdict).count();
        if count > 0 {
            let _ = writeln!(page, "<details><summary>{count} {how}</summary>");
            show(page, verdict);
            page.push_str("</details>\n");
        }
    }
}

fn one_block(page: &mut String, block: &Block) {
    let _ = match block {
        Block::Heading(text) => writeln!(page, "<h3>{}</h3>", escaped(text)),
        Block::Text(text) => writeln!(page, "<p>{}</p>", escaped(text)),
        Block::Note(text) => writeln!(page, "<p class=\"soft\">{}</p>", escaped(text)),
        Block::Picture(markup) => writeln!(page, "{markup}"),
        Block::Table(one) => {
            table(page, one);
            Ok(())
        }
        Block::Folded(summary, blocks) => {
            let _ = writeln!(page, "<details><summary>{}</summary>", escaped(summary));
            blocks.iter().for_each(|block| one_block(page, block));
            writeln!(page, "</details>")
        }
    };
}

/// Letters from which a text is broken into lines.
const LONG: usize = 48;

fn table(page: &mut String, table: &Table) {
    page.push_str("<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>");
    for column in &table.columns {
        let class = if column.is_number { " class=\"n\"" } else { "" };
        let _ = write!(
            page,
            "<th{class} scope=\"col\"><button type=\"button\">{}</button></th>",
            escaped(&column.name)
        );
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        page.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let is_number = table.columns.get(at).is_some_and(|column| column.is_number);
            one_cell(page, cell, is_number);
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
}

fn one_cell(page: &mut String, cell: &Cell, is_number: bool) {
    let mut classes = Vec::new();
    if is_number {
        classes.push("n");
    } else if cell.text.chars().count() > LONG {
        classes.push("long");
    }
    classes.extend(cell.mark.map(class));
    let classes = match classes.is_empty() {
        true => String::new(),
        false => format!(" class=\"{}\"", classes.join(" ")),
    };
    let value = match cell.value.filter(|value| value.is_finite()) {
        Some(value) => format!(" data-v=\"{value}\""),
        None => String::new(),
    };
    let _ = write!(page, "<td{classes}{value}>{}</td>", escaped(&cell.text));
}

fn inputs(page: &mut String, report: &Report) {
    if report.inputs.is_empty() {
        return;
    }
    let mut list = Table::new(&["file", "taken for"]);
    for (name, what) in report.inputs.iter().take(FILES) {
        list.rows.push(vec![Cell::text(name), Cell::text(what)]);
    }
    page.push_str("<section id=\"inputs\">\n<h2>Made from</h2>\n");
    table(page, &list);
    if let Some(more @ 1..) = report.inputs.len().checked_sub(FILES) {
        let _ = writeln!(page, "<p class=\"soft\">and {more} more</p>");
    }
    page.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_the_standard_has_it() {
        let table =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (plain, coded) in table {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn nothing_in_a_report_is_markup() {
        let evil = "</script></title><img src=x onerror=alert(1)>\"'&";
        let mut section = Section::new("doctor", evil);
        let finding = Finding::new(evil, evil, Verdict::Fail, evil);
        section.findings.push(finding.seen(evil).costs(evil).fixed_by(evil));
        let mut table = Table::new(&[evil]);
        table.rows.push(vec![Cell::text(evil)]);
        let text = || Block::Text(evil.to_owned());
        section.blocks = vec![
            Block::Heading(evil.to_owned()),
            text(),
            Block::Note(evil.to_owned()),
            Block::Table(table),
            Block::Folded(evil.to_owned(), vec![text()]),
        ];
        let report = Report {
            title: evil.to_owned(),
            inputs: vec![(evil.to_owned(), evil.to_owned())],
            sections: vec![section],
        };
        for kind in [Kind::File, Kind::Served] {
            let page = page(&report, kind);
            assert!(!page.contains("<img"), "{page}");
            assert_eq!(page.matches("</script>").count(), 1);
            assert_eq!(page.matches("</title>").count(), 1);
            assert!(page.matches("&lt;img src=x onerror=alert(1)&gt;").count() >= 12, "{page}");
        }
    }

    #[test]
    fn a_page_names_nothing_outside_itself() {
        let page = page(&Report::default(), Kind::File);
        assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
        assert!(page.contains("default-src 'none'") && !page.contains("connect-src"));
        assert!(!page.contains("fetch("));
        assert!(super::page(&Report::default(), Kind::Served).contains("connect-src 'self'"));
    }
}
