//! Machines as `ringway topo` knows them: the picture, which NIC each GPU uses, the matrix.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use super::model::{Block, Cell, Section, Table};
use crate::doctor::finding::{Finding, Verdict};
use crate::fabric::show::many;
use crate::output::escaped;
use crate::topo::Drawn;

/// Different machines that are drawn.
const PICTURES: usize = 8;
/// Rows and columns of a matrix.
const MATRIX: usize = 64;

/// One machine.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Machine {
    #[serde(default)]
    title: String,
    #[serde(default)]
    affinities: Vec<Affinity>,
    #[serde(default)]
    matrix: Matrix,
    #[serde(default)]
    warnings: Vec<String>,
    #[serde(default)]
    notes: Vec<String>,
    /// Drawn here, never read.
    #[serde(skip)]
    picture: Option<String>,
    #[serde(skip)]
    file: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Affinity {
    gpu: String,
    nic: Option<String>,
    class: Value,
    #[serde(default)]
    gb_per_s: f64,
    numa: Option<i64>,
    #[serde(default)]
    gpu_direct: bool,
    #[serde(default)]
    gpu_direct_reason: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Matrix {
    #[serde(default)]
    rows: Vec<MatrixRow>,
}

#[derive(Clone, Debug, Deserialize)]
struct MatrixRow {
    name: String,
    #[serde(default)]
    cells: Vec<Value>,
}

impl Machine {
    /// Reads the JSON of `ringway topo`.
    pub(crate) fn parse(name: &str, value: Value) -> Result<Self, String> {
        let one: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        Ok(Self { file: name.to_owned(), ..one })
    }

    /// A topology file, called `title` below its picture.
    pub(crate) fn drawn(name: &str, title: &str, drawn: Drawn) -> Self {
        Self {
            title: title.to_owned(),
            warnings: drawn.warnings,
            notes: drawn.notes,
            picture: Some(drawn.picture),
            file: name.to_owned(),
            ..Self::default()
        }
    }

    /// A machine that was drawn from its files.
    pub(crate) fn pictured(name: &str, machine: &str, picture: String) -> Self {
        let picture = Some(picture);
        Self { title: machine.to_owned(), picture, file: name.to_owned(), ..Self::default() }
    }
}

/// The section of all machines.
pub(super) fn section(machines: &[Machine]) -> Section {
    let mut section = Section::new("topology", "Topology");
    for machine in machines {
        for warning in &machine.warnings {
            let finding = Finding::new("topology", "topology", Verdict::Warn, warning.clone());
            section.findings.push(finding.seen(machine.file.clone()));
        }
    }
    pictures(&mut section, machines);
    for machine in machines.iter().filter(|one| one.picture.is_none()) {
        section.blocks.push(Block::Heading(machine.title.clone()));
        tables(&mut section, machine);
    }
    let notes = machines.iter().flat_map(|one| &one.notes);
    section.blocks.extend(notes.take(MATRIX).map(|note| Block::Note(note.clone())));
    section
}

/// Machines that look the same once.
fn pictures(section: &mut Section, machines: &[Machine]) {
    let mut kinds: Vec<(&str, Vec<&Machine>)> = Vec::new();
    for machine in machines {
        let Some(picture) = machine.picture.as_deref() else { continue };
        match kinds.iter_mut().find(|(known, _)| *known == picture) {
            Some((_, same)) => same.push(machine),
            None => kinds.push((picture, vec![machine])),
        }
    }
    kinds.sort_by_key(|(_, same)| std::cmp::Reverse(same.len()));
    for (picture, same) in kinds.iter().take(PICTURES) {
        let names: Vec<&str> = same.iter().map(|one| one.title.as_str()).take(12).collect();
        let more = same.len() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let mut markup = format!("<figure class=\"topology\" tabindex=\"0\">\n{}", bare(picture));
        // The picture has a heading, which may say it already.
        let names = escaped(&names.join(", "));
        if same.len() > 1 || !picture.contains(&names) {
            let _ = write!(markup, "<figcaption>{names}{more}</figcaption>");
        }
        markup.push_str("</figure>");
        section.blocks.push(Block::Picture(markup));
    }
    if let Some(more @ 1..) = kinds.len().checked_sub(PICTURES) {
        let note = format!("Not drawn: {} that look otherwise.", many(more, "machine", "machines"));
        section.blocks.push(Block::Note(note));
    }
}

/// A picture without its style sheet, which the page has, and without the name of the format.
fn bare(picture: &str) -> String {
    let picture = picture.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
    match (picture.find("<style>"), picture.find("</style>")) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{}", &picture[..from], &picture[to + "</style>".len()..])
        }
        _ => picture,
    }
}

fn tables(section: &mut Section, machine: &Machine) {
    if machine.affinities.is_empty() && machine.matrix.rows.is_empty() {
        section.blocks.push(Block::Note("There is neither GPU nor NIC in it.".to_owned()));
    }
    if !machine.affinities.is_empty() {
        let mut table =
            Table::new(&["GPU", "NUMA", "NIC", "class", "#GB/s", "GPUDirect", "because"]);
        for one in &machine.affinities {
            let direct = if one.gpu_direct { "yes" } else { "no" };
            table.rows.push(vec![
                Cell::text(one.gpu.clone()),
                Cell::text(one.numa.map_or_else(|| "-".to_owned(), |numa| numa.to_string())),
                Cell::text(one.nic.clone().unwrap_or_else(|| "-".to_owned())),
                Cell::text(word(&one.class)),
                Cell::number(format!("{:.1}", one.gb_per_s), one.gb_per_s),
                Cell::text(direct),
                Cell::text(one.gpu_direct_reason.clone()),
            ]);
        }
        section.blocks.push(Block::Table(table));
    }
    if machine.matrix.rows.len() > 1 {
        let names: Vec<&str> = machine.matrix.rows.iter().map(|row| row.name.as_str()).collect();
        let names = &names[..names.len().min(MATRIX)];
        let mut table = Table::new(&[&[""], names].concat());
        for row in machine.matrix.rows.iter().take(MATRIX) {
            let mut cells = vec![Cell::text(row.name.clone())];
            cells.extend(row.cells.iter().take(MATRIX).map(|cell| Cell::text(word(cell))));
            table.rows.push(cells);
        }
        section.blocks.push(Block::Folded("The matrix".to_owned(), vec![Block::Table(table)]));
    }
    section.blocks.push(Block::Note(format!(
        "{}: for a picture give the machine as XML (ringway topo --xml) or a snapshot.",
        machine.file
    )));
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
