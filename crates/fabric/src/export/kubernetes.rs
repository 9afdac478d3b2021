//! Labels for Kubernetes' nodes: where each is in the fabric, for schedulers that place by topology.

use std::fmt::Write as _;

use crate::export::slurm::switch_name;
use crate::model::Fabric;
use crate::shape::{Rails, Units};

/// The prefix of labels unless another is asked for.
pub const PREFIX: &str = "fabric.ringway";

/// One document for each node, for `kubectl apply --server-side -f -`.
#[must_use]
pub fn labels(fabric: &Fabric, prefix: &str) -> String {
    let units = Units::of(fabric);
    let rails = Rails::of(fabric);
    let mut nodes: Vec<(String, String)> = Vec::new();
    for (number, unit) in units.units.iter().enumerate() {
        for host in &unit.hosts {
            let name = fabric.hosts[*host].name.to_ascii_lowercase();
            let mut text = format!(
                "apiVersion: v1\nkind: Node\nmetadata:\n  name: {}\n  labels:\n",
                quoted(&name)
            );
            let _ = writeln!(
                text,
                "    {prefix}/tier-1: {}",
                quoted(&value(&switch_name(fabric, &units, number)))
            );
            if units.pods > 1 {
                let _ = writeln!(
                    text,
                    "    {prefix}/tier-2: {}",
                    quoted(&format!("pod{}", unit.pod + 1))
                );
            }
            if rails.count > 1 {
                let _ = writeln!(text, "    {prefix}/rails: \"{}\"", rails.count);
            }
            nodes.push((name, text));
        }
    }
    nodes.sort_by_cached_key(|(name, _)| crate::describe::natural(name));
    let mut out = String::from("# Labels of Kubernetes' nodes, written by ringway fabric export\n");
    for (_, text) in nodes {
        out.push_str("---\n");
        out.push_str(&text);
    }
    out
}

/// A label's value: at most 63 characters, letters and digits at both ends.
fn value(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .take(63)
        .collect();
    plain.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// YAML in quotes, so that no name is taken for a number.
fn quoted(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control() && !"\"\\".contains(*c)).collect();
    format!("\"{plain}\"")
}
