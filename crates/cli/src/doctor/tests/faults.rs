//! One fault for every check, planted in the healthy machine: the check must see it, and no other may.

use std::collections::BTreeSet;

use super::tree::{Tree, gpu, nic, pci, port};
use super::{checks, look, troubles};
use crate::doctor::finding::Verdict::{self, Fail, Warn};

mod devices;
mod network;
pub(super) mod system;

/// A fault: the check that must see it, how bad that is, and how it is planted.
pub(super) type Fault = (&'static str, Verdict, fn(&mut Tree));

/// Checks without a fault here, and why.
const NOT_PLANTED: &[(&str, &str)] = &[("ctr-12", "it needs two looks: rates.rs")];

fn faults() -> Vec<Fault> {
    [system::FAULTS, devices::FAULTS, network::FAULTS].concat()
}

#[test]
fn every_check_has_a_fault() {
    let planted: BTreeSet<&str> = faults().iter().map(|(id, ..)| *id).collect();
    for check in checks::all() {
        let excused = NOT_PLANTED.iter().any(|(id, _)| *id == check.id);
        assert!(
            planted.contains(check.id) != excused,
            "{}: plant a fault, or say why not",
            check.id
        );
    }
    for id in planted {
        assert!(checks::all().iter().any(|check| check.id == id), "there is no check {id}");
    }
}

#[test]
fn each_fault_is_seen_by_its_check_and_by_no_other() {
    let mut tree = Tree::healthy();
    let mut wrong = Vec::new();
    for (id, verdict, plant) in faults() {
        let found = tree.with(plant, look);
        let bad = troubles(&found);
        let seen = bad.get(id).map(|finding| finding.verdict);
        if seen != Some(verdict) {
            wrong.push(format!("{id}: {seen:?} instead of {verdict:?}"));
        }
        for (other, finding) in bad.iter().filter(|(other, _)| **other != id) {
            wrong.push(format!(
                "{id}: {other} complains, too: {:?} {} {:?}",
                finding.verdict, finding.title, finding.evidence
            ));
        }
        if let Some(finding) = bad.get(id) {
            let told =
                finding.cost.is_some() && finding.fix.is_some() && !finding.evidence.is_empty();
            if !told {
                wrong.push(format!("{id}: no cost, fix or evidence"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
    // The edits were taken back.
    assert!(troubles(&look(&tree)).is_empty());
}

/// Sets variables for the processes of the machine.
pub(super) fn set(tree: &mut Tree, variables: &str) {
    tree.append("/commands/environment.txt", variables);
}
