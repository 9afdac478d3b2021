//! Slurm's `topology.conf` (topology/tree).
//!
//! Slurm wants a tree in which each node hangs on one switch. Leaves that serve the same hosts, the rails of a
//! unit, are one switch there; what is above is one for each pod, and one on top.

use std::fmt::Write as _;

use crate::describe;
use crate::model::Fabric;
use crate::shape::Units;

/// Writes it. Hosts without a name are left out, with a word.
#[must_use]
pub fn topology_conf(fabric: &Fabric) -> String {
    let units = Units::of(fabric);
    let mut text = String::from("# Slurm topology.conf, written by ringway fabric export\n");
    let nameless: usize =
        fabric.hosts.iter().filter(|host| !host.named).map(|host| host.adapters.len()).sum();
    if nameless > 0 {
        let _ = writeln!(
            text,
            "# {nameless} adapters carry no host's name: their hosts are missing here"
        );
    }
    let used: Vec<usize> =
        (0..units.units.len()).filter(|unit| !units.units[*unit].hosts.is_empty()).collect();
    let name = |unit: usize| switch_name(fabric, &units, unit);
    for unit in &used {
        let own = &units.units[*unit];
        if own.leaves.len() > 1 {
            let leaves = own.leaves.iter().map(|leaf| fabric.nodes[*leaf].name.as_str());
            let _ = writeln!(text, "# {}: {}", name(*unit), describe::folded(leaves));
        }
        let hosts = own.hosts.iter().map(|host| fabric.hosts[*host].name.as_str());
        let _ = writeln!(text, "SwitchName={} Nodes={}", name(*unit), describe::folded(hosts));
    }
    let mut tops: Vec<String> = Vec::new();
    if units.pods > 1 {
        for pod in 0..units.pods {
            let inside: Vec<String> = used
                .iter()
                .filter(|unit| units.units[**unit].pod == pod)
                .map(|unit| name(*unit))
                .collect();
            if !inside.is_empty() {
                let _ = writeln!(
                    text,
                    "SwitchName=pod{} Switches={}",
                    pod + 1,
                    describe::folded(inside.iter().map(String::as_str))
                );
                tops.push(format!("pod{}", pod + 1));
            }
        }
    } else {
        tops.extend(used.iter().map(|unit| name(*unit)));
    }
    if tops.len() > 1 {
        let _ = writeln!(
            text,
            "SwitchName=fabric Switches={}",
            describe::folded(tops.iter().map(String::as_str))
        );
    }
    text
}

/// A leaf's own name; `unit3` where several are one.
pub(super) fn switch_name(fabric: &Fabric, units: &Units, unit: usize) -> String {
    match &units.units[unit].leaves[..] {
        [leaf] => plain(&fabric.nodes[*leaf].name),
        _ => format!("unit{}", unit + 1),
    }
}

/// Slurm's names hold neither blanks nor brackets.
fn plain(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
        .collect()
}
