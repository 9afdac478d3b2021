//! Slurm's `topology.conf` (topology/tree).
//!
//! Slurm wants a tree in which each node hangs on one switch. Leaves that serve the same hosts, the rails of a
//! unit, are one switch there; what is above is one for each pod, and one on top.

use std::collections::{BTreeMap, BTreeSet};
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
    let names = unique_names(fabric, &units);
    let name = |unit: usize| names[unit].clone();
    for unit in &used {
        let own = &units.units[*unit];
        if own.leaves.len() > 1 {
            let leaves: Vec<String> =
                own.leaves.iter().map(|leaf| plain(&fabric.nodes[*leaf].name)).collect();
            let leaves = describe::folded(leaves.iter().map(String::as_str));
            let _ = writeln!(text, "# {}: {leaves}", name(*unit));
        }
        let hosts: Vec<String> =
            own.hosts.iter().map(|host| plain(&fabric.hosts[*host].name)).collect();
        let hosts = describe::folded(hosts.iter().map(String::as_str));
        let _ = writeln!(text, "SwitchName={} Nodes={hosts}", name(*unit));
    }
    let part = parts_of(fabric, &units);
    let mut tops: BTreeMap<usize, Vec<String>> = BTreeMap::new();
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
                let of_pod = used.iter().find(|unit| units.units[**unit].pod == pod);
                let part = of_pod.map_or(0, |unit| part[*unit]);
                tops.entry(part).or_default().push(format!("pod{}", pod + 1));
            }
        }
    } else {
        for unit in &used {
            tops.entry(part[*unit]).or_default().push(name(*unit));
        }
    }
    // Parts that are not linked are trees of their own.
    for (number, tops) in (1..).zip(tops.values()) {
        if tops.len() > 1 {
            let number = if number == 1 { String::new() } else { format!("{number}") };
            let below = describe::folded(tops.iter().map(String::as_str));
            let _ = writeln!(text, "SwitchName=fabric{number} Switches={below}");
        }
    }
    text
}

/// The name of each unit, none of them twice, and none that a pod or the top has.
fn unique_names(fabric: &Fabric, units: &Units) -> Vec<String> {
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut names = Vec::with_capacity(units.units.len());
    for unit in 0..units.units.len() {
        let mut name = switch_name(fabric, units, unit);
        if name.starts_with("fabric") || name.starts_with("pod") || taken.contains(&name) {
            name = format!("{name}_{}", unit + 1);
        }
        while !taken.insert(name.clone()) {
            name.push('_');
        }
        names.push(name);
    }
    names
}

/// The part of the fabric that each unit is in. Planes that share hosts are one part.
fn parts_of(fabric: &Fabric, units: &Units) -> Vec<usize> {
    let mut of_switch: BTreeMap<usize, usize> = BTreeMap::new();
    let parts = crate::shape::parts(fabric);
    for (number, part) in parts.iter().enumerate() {
        of_switch.extend(part.iter().map(|node| (*node, number)));
    }
    let mut first: Vec<usize> = (0..parts.len()).collect();
    let root = |first: &[usize], mut part: usize| {
        while first[part] != part {
            part = first[part];
        }
        part
    };
    let leaves_of = |unit: &crate::shape::Unit| -> Vec<usize> {
        let adapters = unit.hosts.iter().flat_map(|host| &fabric.hosts[*host].adapters);
        let far =
            adapters.flat_map(|adapter| fabric.links_of(*adapter)).map(|(_, _, end)| end.node);
        unit.leaves.iter().copied().chain(far).collect()
    };
    for unit in &units.units {
        let mut of_unit = leaves_of(unit).into_iter().filter_map(|leaf| of_switch.get(&leaf));
        let Some(one) = of_unit.next() else { continue };
        for other in of_unit {
            let (a, b) = (root(&first, *one), root(&first, *other));
            first[a.max(b)] = a.min(b);
        }
    }
    let of_unit = |unit: &crate::shape::Unit| {
        let leaf = unit.leaves.first().and_then(|leaf| of_switch.get(leaf));
        leaf.map_or(0, |part| root(&first, *part))
    };
    units.units.iter().map(of_unit).collect()
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
