//! Graphviz: switches by tier, cables between two switches as one line, hosts of a unit as one box.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::describe;
use crate::model::{Fabric, Kind, NodeIndex};
use crate::shape::Units;

/// Writes the graph.
#[must_use]
pub fn graph(fabric: &Fabric) -> String {
    let units = Units::of(fabric);
    let mut text =
        String::from("graph fabric {\n  rankdir=BT; node [shape=box, fontname=\"sans-serif\"];\n");
    for tier in 1..=fabric.tiers {
        let _ = writeln!(text, "  {{ rank=same;");
        for (index, node) in fabric.tier(tier) {
            let _ = writeln!(text, "    n{index} [label=\"{}\"];", escaped(&node.name));
        }
        let _ = writeln!(text, "  }}");
    }
    for (number, unit) in units.units.iter().enumerate().filter(|(_, unit)| !unit.hosts.is_empty())
    {
        let names =
            describe::folded(unit.hosts.iter().map(|host| fabric.hosts[*host].name.as_str()));
        let _ = writeln!(
            text,
            "  u{number} [shape=note, label=\"{} hosts\\n{}\"];",
            unit.hosts.len(),
            escaped(&names)
        );
    }
    let mut bundles: BTreeMap<(NodeIndex, NodeIndex), usize> = BTreeMap::new();
    let mut to_hosts: BTreeMap<(usize, NodeIndex), usize> = BTreeMap::new();
    for link in &fabric.links {
        let [a, b] = link.ends.map(|end| end.node);
        match (fabric.nodes[a].kind, fabric.nodes[b].kind) {
            (Kind::Switch, Kind::Switch) => *bundles.entry((a.min(b), a.max(b))).or_default() += 1,
            (Kind::Switch, Kind::Adapter) | (Kind::Adapter, Kind::Switch) => {
                let switch = if fabric.nodes[a].kind == Kind::Switch { a } else { b };
                if let Some(unit) = units.of_switch.get(&switch) {
                    *to_hosts.entry((*unit, switch)).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    for ((unit, switch), count) in
        to_hosts.iter().filter(|((unit, _), _)| !units.units[*unit].hosts.is_empty())
    {
        let _ = writeln!(text, "  u{unit} -- n{switch} [label=\"{count}\"];");
    }
    for ((a, b), count) in bundles {
        let (low, high) =
            if fabric.nodes[a].tier <= fabric.nodes[b].tier { (a, b) } else { (b, a) };
        let _ = writeln!(text, "  n{low} -- n{high} [label=\"{count}\"];");
    }
    text.push_str("}\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
