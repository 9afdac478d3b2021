//! What `ringway doctor` said: of a machine, a fleet, a job's logs or a fabric.

use serde::Deserialize;
use serde_json::Value;

use super::model::{Block, Cell, Section, Table};
use crate::doctor::finding::{Fact, Finding, Verdict};
use crate::doctor::fleet::{Difference, in_common};
use crate::fabric::show::many;

/// Machines that are listed.
const LISTED: usize = 200;

/// One report of the doctor.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Examined {
    #[serde(default)]
    subject: String,
    #[serde(default)]
    machine: Option<String>,
    #[serde(default)]
    cause: Option<String>,
    #[serde(default)]
    facts: Vec<Fact>,
    findings: Vec<Finding>,
    #[serde(skip)]
    file: String,
}

/// Several machines, compared.
#[derive(Deserialize)]
struct Fleet {
    #[serde(default)]
    differences: Vec<Difference>,
    machines: Vec<Examined>,
}

/// What was read of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doctored {
    pub(crate) reports: Vec<Examined>,
    pub(crate) differences: Vec<Difference>,
}

impl Doctored {
    /// Reads the JSON of the doctor.
    pub(crate) fn parse(name: &str, value: Value) -> Result<Self, String> {
        let is_fleet = value["machines"].is_array();
        let mut read = if is_fleet {
            let fleet: Fleet = serde_json::from_value(value).map_err(|error| error.to_string())?;
            Self { reports: fleet.machines, differences: fleet.differences }
        } else {
            let one: Examined = serde_json::from_value(value).map_err(|error| error.to_string())?;
            Self { reports: vec![one], differences: Vec::new() }
        };
        for one in &mut read.reports {
            one.file = name.to_owned();
        }
        Ok(read)
    }

    /// What the doctor said just now of a snapshot.
    pub(crate) fn of(name: &str, machine: &str, facts: Vec<Fact>, findings: Vec<Finding>) -> Self {
        let one = Examined {
            subject: "host".to_owned(),
            machine: Some(machine.to_owned()),
            cause: None,
            facts,
            findings,
            file: name.to_owned(),
        };
        Self { reports: vec![one], differences: Vec::new() }
    }

    /// What it is about, for people.
    pub(crate) fn kind(&self) -> String {
        match &self.reports[..] {
            [one] => format!("findings of the doctor ({})", one.subject),
            many => format!("findings of the doctor ({} machines)", many.len()),
        }
    }
}

impl Examined {
    fn name(&self) -> String {
        let told = self.facts.iter().find(|fact| fact.name == "machine").map(|fact| &fact.value);
        let name = self.machine.as_ref().or(told);
        name.cloned().unwrap_or_else(|| format!("{} ({})", self.file, self.subject))
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }
}

/// The section of all of them.
pub(super) fn section(read: &[Doctored]) -> Section {
    let reports: Vec<&Examined> = read.iter().flat_map(|one| &one.reports).collect();
    let mut section = Section::new("doctor", "Doctor");
    for cause in reports.iter().filter_map(|one| one.cause.as_ref()) {
        section.blocks.push(Block::Text(format!("Likely cause: {cause}")));
    }
    if let [one] = &reports[..] {
        section.findings.clone_from(&one.findings);
        section
            .blocks
            .push(Block::Folded(format!("What was seen of {}", one.name()), vec![facts(one)]));
        return section;
    }
    // Machines are compared; logs and fabrics stand for themselves.
    let (machines, others): (Vec<&Examined>, Vec<&Examined>) =
        reports.iter().partition(|one| one.subject == "host");
    let named: Vec<(String, &Examined)> = machines.iter().map(|one| (one.name(), *one)).collect();
    let each: Vec<(&str, &[Finding])> =
        named.iter().map(|(name, one)| (name.as_str(), one.findings.as_slice())).collect();
    section.findings = match &machines[..] {
        [one] => one.findings.clone(),
        _ => in_common(&each),
    };
    section.findings.extend(others.iter().flat_map(|one| one.findings.iter().cloned()));
    section.findings.extend(read.iter().flat_map(|one| &one.differences).map(Difference::finding));
    let mut table = Table::new(&["looked at", "#failures", "#warnings", "#unknown", "#well"]);
    for one in reports.iter().take(LISTED) {
        let count = |verdict| {
            let count = one.count(verdict);
            let cell = Cell::number(count.to_string(), count as f64);
            if count > 0 && verdict >= Verdict::Warn { cell.marked(verdict) } else { cell }
        };
        table.rows.push(vec![
            Cell::text(one.name()),
            count(Verdict::Fail),
            count(Verdict::Warn),
            count(Verdict::Unknown),
            count(Verdict::Pass),
        ]);
    }
    section.blocks.push(Block::Table(table));
    if let Some(more @ 1..) = reports.len().checked_sub(LISTED) {
        let note = format!("Not listed: {}.", many(more, "machine", "machines"));
        section.blocks.push(Block::Note(note));
    }
    section
}

fn facts(one: &Examined) -> Block {
    let mut table = Table::new(&["what", "value"]);
    for fact in &one.facts {
        table.rows.push(vec![Cell::text(fact.name.clone()), Cell::text(fact.value.clone())]);
    }
    Block::Table(table)
}
