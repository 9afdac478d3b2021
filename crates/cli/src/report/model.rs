//! What a report is made of: sections of blocks, and findings that say how it stands.
//!
//! *Invariant*: texts are plain here, whatever they hold; the page escapes them. Only [`Block::Picture`] is markup, and
//! whoever makes one has escaped what it was told.

use crate::doctor::finding::{Finding, Verdict, summary};

/// Boxes of a timeline that are drawn, all rows together.
pub(super) const BOXES: usize = 2_400;

/// A whole report.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) title: String,
    /// The files and what each was taken for.
    pub(crate) inputs: Vec<(String, String)>,
    pub(crate) sections: Vec<Section>,
}

/// One part of it, about one kind of input.
#[derive(Debug)]
pub(crate) struct Section {
    /// Its place in the page: a word that is no other section's.
    pub(crate) id: &'static str,
    pub(crate) title: String,
    /// What is wrong, or well, by this section.
    pub(crate) findings: Vec<Finding>,
    pub(crate) blocks: Vec<Block>,
}

/// What stands in a section, in order.
#[derive(Debug)]
pub(crate) enum Block {
    /// A heading inside the section.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// A paragraph beside the point: where numbers are from, what was left out.
    Note(String),
    /// Markup, made here.
    Picture(String),
    Table(Table),
    /// What is shown when asked for.
    Folded(String, Vec<Self>),
}

/// A table whose rows are sorted by a click on a heading.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) is_number: bool,
}

/// One cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) text: String,
    /// What it is sorted by, where that is not the text.
    pub(crate) value: Option<f64>,
    /// How it stands, where that is worth a colour.
    pub(crate) mark: Option<Verdict>,
}

impl Section {
    pub(crate) fn new(id: &'static str, title: impl Into<String>) -> Self {
        Self { id, title: title.into(), findings: Vec::new(), blocks: Vec::new() }
    }
}

impl Table {
    /// Without rows yet; a column whose name begins with `#` holds numbers.
    pub(crate) fn new(columns: &[&str]) -> Self {
        let column = |name: &&str| Column {
            name: name.trim_start_matches('#').to_owned(),
            is_number: name.starts_with('#'),
        };
        Self { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A number, as it is shown and as it is sorted.
    pub(crate) fn number(text: impl Into<String>, value: f64) -> Self {
        Self { text: text.into(), value: Some(value), mark: None }
    }

    #[must_use]
    pub(crate) fn marked(mut self, verdict: Verdict) -> Self {
        self.mark = Some(verdict);
        self
    }
}

impl Report {
    /// All findings with their section's place, the worst first.
    pub(crate) fn findings(&self) -> Vec<(&'static str, usize, &Finding)> {
        let mut all: Vec<(&'static str, usize, &Finding)> = Vec::new();
        for section in &self.sections {
            all.extend(section.findings.iter().enumerate().map(|(at, one)| (section.id, at, one)));
        }
        all.sort_by_key(|(_, _, finding)| std::cmp::Reverse(finding.verdict));
        all
    }

    /// The worst of all; what could not be looked at is no fault.
    pub(crate) fn verdict(&self) -> Verdict {
        let all = self.sections.iter().flat_map(|section| &section.findings);
        let known = all.map(|one| one.verdict).filter(|verdict| *verdict != Verdict::Unknown);
        known.max().unwrap_or(Verdict::Pass)
    }

    /// `2 failures, 1 warning`.
    pub(crate) fn summary(&self) -> String {
        summary(self.sections.iter().flat_map(|section| &section.findings))
    }
}
