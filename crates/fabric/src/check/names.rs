//! What no two may share, what all should have, and what switches say of themselves.

use std::collections::BTreeMap;

use super::{Finding, Verdict, plural, usual};
use crate::model::{Fabric, Kind, Node};

/// Two switches with one name, two ports with one local identifier, two adapters of one host with one name.
pub(super) fn twice(fabric: &Fabric) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut by_name: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    // Without a topology names are those of makers, or numbers.
    for (_, node) in fabric.switches().filter(|_| fabric.has_topology()) {
        by_name.entry(&node.name).or_default().push(node);
    }
    for (name, nodes) in by_name.iter().filter(|(_, nodes)| nodes.len() > 1) {
        let title = format!("{} switches are called {name}", nodes.len());
        let evidence = nodes.iter().map(|node| {
            let lid = node.lid.map_or(String::new(), |lid| format!(", lid {lid}"));
            format!("{} (tier {}{lid})", node.id, node.tier)
        });
        found.push(
            Finding::new("switches", "fab-07", Verdict::Warn, title)
                .seen(evidence)
                .costs("nobody can tell which of them a message is about")
                .fixed_by("give each a name of its own: on managed switches by their console, else in the node name map"),
        );
    }
    // Planes that are not joined have identifiers of their own.
    let part = connected(fabric);
    let mut by_lid: BTreeMap<(usize, u32), Vec<String>> = BTreeMap::new();
    for (index, node) in fabric.nodes.iter().enumerate() {
        let part = part[index];
        match node.kind {
            Kind::Switch => {
                if let Some(lid) = node.lid.filter(|lid| *lid > 0) {
                    by_lid.entry((part, lid)).or_default().push(node.name.clone());
                }
            }
            _ => {
                for lid in node.ports.iter().filter_map(|port| port.lid).filter(|lid| *lid > 0) {
                    by_lid.entry((part, lid)).or_default().push(node.name.clone());
                }
            }
        }
    }
    let shared: Vec<_> = by_lid.iter().filter(|(_, names)| names.len() > 1).collect();
    if !shared.is_empty() {
        let title = format!(
            "{} shared",
            plural(shared.len(), "local identifier is", "local identifiers are")
        );
        let evidence =
            shared.iter().map(|((_, lid), names)| format!("lid {lid}: {}", names.join(", ")));
        found.push(
            Finding::new("switches", "fab-18", Verdict::Fail, title)
                .seen(evidence)
                .costs("packets for one arrive at the other")
                .fixed_by(
                    "are two subnet managers at work? one may be master: sminfo; then restart it",
                ),
        );
    }
    let mut evidence = Vec::new();
    for host in fabric.hosts.iter().filter(|host| host.named) {
        let mut labels: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for adapter in &host.adapters {
            let node = &fabric.nodes[*adapter];
            labels.entry(&node.label).or_default().push(&node.id);
        }
        for (label, ids) in labels.iter().filter(|(_, ids)| ids.len() > 1) {
            evidence.push(format!("{} {label}: {}", host.name, ids.join(", ")));
        }
    }
    if !evidence.is_empty() {
        let title = format!(
            "{} of one name twice: two hosts are called alike, or labels repeat",
            plural(evidence.len(), "host has an adapter", "hosts have an adapter")
        );
        found.push(
            Finding::new("hosts", "fab-19", Verdict::Warn, title)
                .seen(evidence)
                .fixed_by("give each host a name of its own, then systemctl restart rdma-ndd"),
        );
    }
    found
}

/// Which part each node is of: those that are linked are of one. Ports of one adapter may be of two fabrics.
fn connected(fabric: &Fabric) -> Vec<usize> {
    let mut part: Vec<usize> = (0..fabric.nodes.len()).collect();
    let mut seen = vec![false; fabric.nodes.len()];
    for start in 0..fabric.nodes.len() {
        if std::mem::replace(&mut seen[start], true) {
            continue;
        }
        let mut queue = vec![start];
        while let Some(node) = queue.pop() {
            part[node] = start;
            for (_, _, end) in fabric.links_of(node) {
                if !std::mem::replace(&mut seen[end.node], true) {
                    queue.push(end.node);
                }
            }
        }
    }
    part
}

/// Switches without an end for reductions, where most have one.
pub(super) fn aggregation(fabric: &Fabric) -> Option<Finding> {
    let mut without = Vec::new();
    let mut with = 0;
    for (index, node) in fabric.switches() {
        let has = fabric
            .links_of(index)
            .any(|(_, _, end)| fabric.nodes[end.node].kind == Kind::Aggregation);
        if has { with += 1 } else { without.push(node.name.clone()) }
    }
    if without.is_empty() || with <= without.len() {
        return None;
    }
    let title = format!(
        "{} of {} switches have no aggregation node, though most have",
        without.len(),
        without.len() + with
    );
    Some(
        Finding::new("switches", "fab-09", Verdict::Warn, title)
            .seen(without)
            .costs(
                "reductions in the network leave them out: up to twice the bytes of an all-reduce",
            )
            .fixed_by(
                "restart the aggregation manager (sharp_am); look in its log for these switches",
            ),
    )
}

/// Devices of one kind with different firmware.
pub(super) fn firmware(fabric: &Fabric) -> Vec<Finding> {
    let mut kinds: BTreeMap<(Kind, &str), Vec<(&str, &Node)>> = BTreeMap::new();
    for node in &fabric.nodes {
        if let (Some(device), Some(version)) = (&node.device, &node.firmware) {
            kinds.entry((node.kind, device)).or_default().push((version, node));
        }
    }
    let mut found = Vec::new();
    for ((kind, device), nodes) in kinds {
        let Some((version, _)) = usual(nodes.iter().map(|(version, _)| *version)) else { continue };
        let odd: Vec<_> = nodes.iter().filter(|(own, _)| *own != version).collect();
        if odd.is_empty() {
            continue;
        }
        let what = if kind == Kind::Switch { "switches" } else { "adapters" };
        // Half and half says nothing of who is odd.
        let (title, evidence): (String, Vec<String>) = if odd.len() * 2 < nodes.len() {
            let title = format!(
                "{} of {} {device} {what} have other firmware than {version}",
                odd.len(),
                nodes.len()
            );
            (title, odd.iter().map(|(own, node)| format!("{}: {own}", node.name)).collect())
        } else {
            let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
            for (own, _) in &nodes {
                *versions.entry(own).or_default() += 1;
            }
            let title = format!(
                "{} {device} {what} have {} versions of firmware, none of them most",
                nodes.len(),
                versions.len()
            );
            (title, versions.iter().map(|(own, count)| format!("{own}: {count}")).collect())
        };
        let group = if kind == Kind::Switch { "switches" } else { "hosts" };
        found.push(
            Finding::new(group, "fab-11", Verdict::Warn, title)
                .seen(evidence)
                .fixed_by("bring all to one version: flint, mlxfwmanager"),
        );
    }
    found
}

/// Fans and power supplies.
pub(super) fn vitals(fabric: &Fabric) -> Option<Finding> {
    let broken: Vec<&Node> = fabric.nodes.iter().filter(|node| !node.faults.is_empty()).collect();
    if broken.is_empty() {
        return None;
    }
    let evidence = broken.iter().map(|node| format!("{}: {}", node.name, node.faults.join(", ")));
    let title = format!(
        "{} of a fault in fans or power",
        plural(broken.len(), "switch tells", "switches tell")
    );
    Some(
        Finding::new("switches", "fab-20", Verdict::Fail, title)
            .seen(evidence)
            .costs("hot optics make errors; a switch on one supply is gone with it")
            .fixed_by("replace the part; see ibswinfo"),
    )
}
