//! What a check found: the words that every part of `ringway doctor` reports in, and their two forms.
//!
//! A [`Finding`] is one cause: what is wrong, where that was read, what it costs and what to do. A
//! [`Report`] holds the findings of one run, what was seen besides, and the likely cause in one paragraph.
//!
//! *Invariant*: a check that could not look reports [`Verdict::Unknown`], never [`Verdict::Pass`]. The text
//! form shows nothing that is well unless asked; both forms are made of the same values.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Exit code of a run that could not be done: wrong arguments, a file that cannot be read.
pub(crate) const EXIT_CANNOT: u8 = 3;

/// Version of the JSON form; it grows when a field changes its meaning or goes away.
const JSON_VERSION: u32 = 1;

/// How it stands.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// Looked at, and well.
    Pass,
    /// Could not be looked at; the evidence says what was in the way.
    Unknown,
    /// Works, but slower or more fragile than it could.
    Warn,
    /// Broken, or so slow that it is as good as broken.
    Fail,
}

impl Verdict {
    /// What people call it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pass => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::Pass => "\x1b[32m",
            Self::Unknown => "\x1b[36m",
            Self::Warn => "\x1b[33m",
            Self::Fail => "\x1b[1;31m",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// Short and stable, in lower case with dashes: what scripts match on.
    pub(crate) id: String,
    /// What part of the machine it is about: the heading it stands under.
    pub(crate) group: String,
    /// How it stands.
    pub(crate) verdict: Verdict,
    /// One sentence.
    pub(crate) title: String,
    /// Where it was read: `file:line: text`, or a path with what stands in it.
    pub(crate) evidence: Vec<String>,
    /// What it costs, with a number.
    pub(crate) cost: Option<String>,
    /// What to do about it.
    pub(crate) fix: Option<String>,
}

impl Finding {
    /// A finding without evidence, cost or fix yet.
    pub(crate) fn new(group: &str, id: &str, verdict: Verdict, title: impl Into<String>) -> Self {
        Self {
            id: id.to_owned(),
            group: group.to_owned(),
            verdict,
            title: title.into(),
            evidence: Vec::new(),
            cost: None,
            fix: None,
        }
    }

    /// Adds where it was read.
    #[must_use]
    pub(crate) fn seen(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    /// Says what it costs.
    #[must_use]
    pub(crate) fn costs(mut self, cost: impl Into<String>) -> Self {
        self.cost = Some(cost.into());
        self
    }

    /// Says what to do.
    #[must_use]
    pub(crate) fn fixed_by(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Something that was seen and is neither good nor bad: a version, a count.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fact {
    /// What it is.
    pub(crate) name: String,
    /// What it was found to be.
    pub(crate) value: String,
}

/// All of one run.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Report {
    /// What was looked at: `log`, `host`.
    pub(crate) subject: String,
    /// The likely cause of what is wrong, and the fix, in one paragraph.
    pub(crate) cause: Option<String>,
    /// What was seen besides.
    pub(crate) facts: Vec<Fact>,
    /// What was found.
    pub(crate) findings: Vec<Finding>,
}

/// How the text form is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// Columns of a line.
    pub(crate) columns: usize,
    /// Whether to colour.
    pub(crate) colour: bool,
    /// Whether to show what is well and what was seen, too.
    pub(crate) all: bool,
}

#[derive(Serialize)]
struct Json<'a, P: Serialize> {
    version: u32,
    subject: &'a str,
    verdict: Verdict,
    cause: Option<&'a str>,
    facts: &'a [Fact],
    findings: &'a [Finding],
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs: Option<P>,
}

impl Report {
    /// An empty report.
    pub(crate) fn new(subject: &str) -> Self {
        Self { subject: subject.to_owned(), ..Self::default() }
    }

    /// Adds something seen.
    pub(crate) fn fact(&mut self, name: &str, value: impl Into<String>) {
        self.facts.push(Fact { name: name.to_owned(), value: value.into() });
    }

    /// The worst of the findings.
    pub(crate) fn verdict(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Pass)
    }

    /// 0 when nothing is known to be wrong, 1 for warnings, 2 for failures. (3, [`EXIT_CANNOT`], is no
    /// verdict: the run could not be done.)
    pub(crate) fn exit_code(&self) -> u8 {
        match self.verdict() {
            Verdict::Pass | Verdict::Unknown => 0,
            Verdict::Warn => 1,
            Verdict::Fail => 2,
        }
    }

    /// For programs. docs/logs.md lists the fields.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        self.json_with(None::<()>)
    }

    /// The same, with which way pairs of ranks took.
    pub(crate) fn json_with(&self, pairs: Option<impl Serialize>) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&Json {
            version: JSON_VERSION,
            subject: &self.subject,
            verdict: self.verdict(),
            cause: self.cause.as_deref(),
            facts: &self.facts,
            findings: &self.findings,
            pairs,
        })
    }

    /// For people: the cause, the findings by group with the worst first, and one line of count.
    pub(crate) fn text(&self, style: Style) -> String {
        let mut page = String::new();
        if let Some(cause) = &self.cause {
            heading(&mut page, "likely cause", style);
            paragraph(&mut page, "  ", "  ", cause, style.columns);
        }
        let mut shown: Vec<&Finding> = self
            .findings
            .iter()
            .filter(|finding| style.all || finding.verdict > Verdict::Pass)
            .collect();
        let worst_of = |group: &str| {
            let of_group = self.findings.iter().filter(|finding| finding.group == group);
            of_group.map(|finding| finding.verdict).max()
        };
        // Among groups that are equally bad the one that was reported first stands first.
        let first_of =
            |group: &str| self.findings.iter().position(|finding| finding.group == group);
        shown.sort_by_key(|finding| {
            let worst = std::cmp::Reverse(worst_of(&finding.group));
            (worst, first_of(&finding.group), std::cmp::Reverse(finding.verdict))
        });
        let mut group = "";
        for finding in shown {
            if finding.group != group {
                group = &finding.group;
                heading(&mut page, group, style);
            }
            finding.write(&mut page, style);
        }
        if style.all && !self.facts.is_empty() {
            heading(&mut page, "seen", style);
            let widest = self.facts.iter().map(|fact| fact.name.chars().count()).max().unwrap_or(0);
            let hang = " ".repeat(widest + 4);
            for fact in &self.facts {
                let first = format!("  {:widest$}  ", fact.name);
                paragraph(&mut page, &first, &hang, &fact.value, style.columns);
            }
        }
        if !page.is_empty() {
            page.push('\n');
        }
        let _ = writeln!(page, "{}", self.summary());
        page
    }

    fn summary(&self) -> String {
        summary(&self.findings)
    }
}

/// How many are wrong: `2 failures, 1 warning`.
pub(crate) fn summary<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let mut counts = [0_usize; 3];
    for finding in findings {
        match finding.verdict {
            Verdict::Fail => counts[0] += 1,
            Verdict::Warn => counts[1] += 1,
            Verdict::Unknown => counts[2] += 1,
            Verdict::Pass => {}
        }
    }
    let names = [("failure", "failures"), ("warning", "warnings"), ("unknown", "unknown")];
    let words: Vec<String> = counts
        .iter()
        .zip(names)
        .filter(|(count, _)| **count > 0)
        .map(|(count, (one, many))| format!("{count} {}", if *count == 1 { one } else { many }))
        .collect();
    if words.is_empty() { "nothing wrong found".to_owned() } else { words.join(", ") }
}

impl Finding {
    fn write(&self, page: &mut String, style: Style) {
        let (on, off) = if style.colour { (self.verdict.colour(), "\x1b[0m") } else { ("", "") };
        let word = self.verdict.word();
        let title = format!("{} [{}]", self.title, self.id);
        let lines = folded(&title, style.columns.saturating_sub(10));
        for (number, line) in lines.iter().enumerate() {
            let _ = match number {
                0 => writeln!(page, "  {on}{word:<7}{off} {line}"),
                _ => writeln!(page, "          {line}"),
            };
        }
        let labelled = [("costs", &self.cost), ("fix", &self.fix)];
        for (label, text) in labelled {
            if let Some(text) = text {
                paragraph(
                    page,
                    &format!("          {label:<5} "),
                    &" ".repeat(16),
                    text,
                    style.columns,
                );
            }
        }
        for (number, text) in self.evidence.iter().enumerate() {
            let first = if number == 0 { "          seen  ".to_owned() } else { " ".repeat(16) };
            paragraph(page, &first, &" ".repeat(18), text, style.columns);
        }
    }
}

fn heading(page: &mut String, text: &str, style: Style) {
    let gap = if page.is_empty() { "" } else { "\n" };
    let (on, off) = if style.colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let _ = writeln!(page, "{gap}{on}{text}{off}");
}

/// Writes text folded to the columns: `first` before the first line, `hang` before the others.
fn paragraph(page: &mut String, first: &str, hang: &str, text: &str, columns: usize) {
    let room = columns.saturating_sub(first.chars().count().max(hang.chars().count())).max(20);
    for (number, line) in folded(text, room).iter().enumerate() {
        let _ = writeln!(page, "{}{line}", if number == 0 { first } else { hang });
    }
}

/// The words of `text` in lines of at most `columns`; a longer word is broken. Control characters, which
/// evidence from logs may hold, are shown as `·` so that they cannot reach the terminal.
pub(crate) fn folded(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(8);
    let mut lines: Vec<String> = Vec::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let mut word: Vec<char> =
            word.chars().map(|c| if c.is_control() { '·' } else { c }).collect();
        if !lines.is_empty() && used + 1 + word.len() <= columns {
            let line = lines.last_mut().expect("there is a line: it was just asked");
            line.push(' ');
            line.extend(&word);
            used += 1 + word.len();
            continue;
        }
        while word.len() > columns {
            lines.push(word.drain(..columns).collect());
        }
        used = word.len();
        if used > 0 {
            lines.push(word.into_iter().collect());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style { columns: 60, colour: false, all: false };

    fn sample() -> Report {
        let mut report = Report::new("log");
        report.fact("ranks", "16 of 16");
        report.findings = vec![
            Finding::new("ranks", "ranks-all", Verdict::Pass, "all ranks were seen"),
            Finding::new("network", "net-slow", Verdict::Warn, "one stream per channel"),
            Finding::new("network", "net-socket", Verdict::Fail, "traffic goes over TCP")
                .seen("a.log:12: NCCL INFO Using network Socket with a rather long tail of words")
                .costs("25 to 5 GB/s")
                .fixed_by("unset NCCL_IB_DISABLE"),
        ];
        report
    }

    #[test]
    fn the_worst_stands_first_and_what_is_well_is_not_shown() {
        let text = sample().text(PLAIN);
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word} in {text}"));
        assert!(at("net-socket") < at("net-slow"), "{text}");
        assert!(!text.contains("all ranks") && !text.contains("16 of 16"), "{text}");
        assert!(text.ends_with("1 failure, 1 warning\n"), "{text}");
        let all = sample().text(Style { all: true, ..PLAIN });
        assert!(all.contains("ok      all ranks") && all.contains("16 of 16"), "{all}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for columns in [40, 60, 100] {
            let style = Style { columns, colour: false, all: true };
            for line in sample().text(style).lines() {
                assert!(line.chars().count() <= columns, "{columns}: {line}");
            }
        }
    }

    #[test]
    fn a_well_report_says_so_in_one_line() {
        assert_eq!(Report::new("log").text(PLAIN), "nothing wrong found\n");
        assert_eq!(Report::new("log").exit_code(), 0);
    }

    #[test]
    fn the_exit_code_follows_the_worst() {
        let mut report = sample();
        assert_eq!(report.exit_code(), 2);
        report.findings.pop();
        assert_eq!(report.exit_code(), 1);
        report.findings = vec![Finding::new("x", "y", Verdict::Unknown, "could not look")];
        assert_eq!(report.exit_code(), 0);
        assert!(report.text(PLAIN).contains("1 unknown"));
    }

    #[test]
    fn json_has_every_field() {
        let json: serde_json::Value = serde_json::from_str(&sample().json().unwrap()).unwrap();
        assert_eq!(json["version"], 1);
        assert_eq!(json["verdict"], "fail");
        assert_eq!(json["findings"][2]["id"], "net-socket");
        assert_eq!(json["findings"][0]["cost"], serde_json::Value::Null);
        assert_eq!(json["facts"][0]["value"], "16 of 16");
    }

    #[test]
    fn colour_only_where_wanted_and_never_from_evidence() {
        let mut report = sample();
        report.findings[2].evidence.push("a\x1b[31mred".to_owned());
        assert!(!report.text(PLAIN).contains('\x1b'));
        assert!(report.text(Style { colour: true, ..PLAIN }).contains("\x1b[1;31mFAIL"));
    }
}
