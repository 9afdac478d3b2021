//! Hosts: how many adapters they have, and on which rail those are.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Verdict, plural, usual};
use crate::describe;
use crate::model::Fabric;
use crate::shape::{Rails, adapters_of};

/// Hosts with fewer adapters than their equals. Hosts that are called alike are equals; one that is called like no
/// other, and has several, is compared with all.
pub(super) fn fewer_adapters(fabric: &Fabric) -> Option<Finding> {
    let counts: Vec<usize> = fabric.hosts.iter().map(|host| adapters_of(fabric, host)).collect();
    let (most_have, _) = usual(counts.iter().copied())?;
    let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, host) in fabric.hosts.iter().enumerate() {
        kinds.entry(describe::likeness(&host.name)).or_default().push(index);
    }
    // Where names have nothing in common, they say nothing of kinds.
    let nameless = kinds.len() * 2 > fabric.hosts.len();
    let mut short: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for hosts in kinds.values() {
        let own = usual(hosts.iter().map(|host| counts[*host])).map_or(most_have, |(own, _)| own);
        let expected = match hosts[..] {
            // A login node, a manager: one adapter is all it wants.
            [host] if fabric.hosts[host].named && counts[host] == 1 && !nameless => continue,
            [_] => most_have,
            _ => own,
        };
        for host in hosts.iter().filter(|host| counts[**host] < expected) {
            short.entry((expected, counts[*host])).or_default().push(*host);
        }
    }
    if short.is_empty() {
        return None;
    }
    let classes = usual_labels(fabric);
    let all: usize = short.values().map(Vec::len).sum();
    let expected = short.keys().map(|(expected, _)| *expected).max().unwrap_or(most_have);
    let evidence = short.iter().rev().map(|((expected, count), hosts)| {
        let named = hosts.iter().filter(|host| fabric.hosts[**host].named);
        let names = describe::folded(named.map(|host| fabric.hosts[*host].name.as_str()));
        let unnamed: Vec<String> = hosts
            .iter()
            .filter(|host| !fabric.hosts[**host].named)
            .map(|host| {
                let host = &fabric.hosts[*host];
                format!(
                    "{:?}, the maker's name on {}",
                    host.name,
                    plural(host.adapters.len(), "adapter", "adapters")
                )
            })
            .collect();
        let missing = missing_labels(fabric, hosts, classes.get(expected));
        let who = [names, unnamed.join(", ")]
            .into_iter()
            .filter(|s| !s.is_empty())
            .collect::<Vec<_>>()
            .join(", ");
        format!(
            "{} with {count} of {expected}: {who}{missing}",
            plural(hosts.len(), "host", "hosts")
        )
    });
    let fail = short.values().flatten().any(|host| {
        let host = &fabric.hosts[*host];
        host.named && kinds[&describe::likeness(&host.name)].len() > 1
    });
    let verdict = if fail { Verdict::Fail } else { Verdict::Warn };
    let title = format!(
        "{all} of {} hosts have fewer than {expected} adapters on the fabric",
        fabric.hosts.len()
    );
    Some(
        Finding::new("hosts", "fab-03", verdict, title)
            .seen(evidence)
            .costs("a job with such a host goes at the rate of the rails it has left")
            .fixed_by("on the host: ringway doctor, ibstat; then its cable and the leaf's port"),
    )
}

/// Names of a host's adapters.
fn labels(fabric: &Fabric, host: usize) -> BTreeSet<&str> {
    let nodes = fabric.hosts[host].adapters.iter();
    nodes.map(|node| fabric.nodes[*node].label.as_str()).collect()
}

/// By how many adapters a host has: the names that most such hosts have.
fn usual_labels(fabric: &Fabric) -> BTreeMap<usize, BTreeSet<&str>> {
    let mut sets: BTreeMap<BTreeSet<&str>, usize> = BTreeMap::new();
    for host in (0..fabric.hosts.len()).filter(|host| fabric.hosts[*host].named) {
        *sets.entry(labels(fabric, host)).or_default() += 1;
    }
    let mut most: BTreeMap<usize, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for (set, count) in sets {
        let known = most.entry(set.len()).or_default();
        if count > known.0 {
            *known = (count, set);
        }
    }
    most.into_iter().map(|(adapters, (_, set))| (adapters, set)).collect()
}

/// Which names are missing, where most of these hosts miss the same.
fn missing_labels(fabric: &Fabric, short: &[usize], class: Option<&BTreeSet<&str>>) -> String {
    let Some(class) = class else { return String::new() };
    let mut missing: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
    let mut named = 0;
    for host in short.iter().filter(|host| fabric.hosts[**host].named) {
        named += 1;
        let own = labels(fabric, *host);
        if own.is_subset(class) {
            *missing.entry(class.difference(&own).copied().collect()).or_default() += 1;
        }
    }
    match missing.iter().max_by_key(|(_, count)| **count) {
        Some((missing, alike)) if alike * 2 > named && !missing.is_empty() => {
            format!("; {alike} without {}", missing.join(", "))
        }
        _ => String::new(),
    }
}

/// Adapters on a leaf of another rail.
pub(super) fn crossed_rails(fabric: &Fabric, rails: &Rails) -> Option<Finding> {
    let mut crossed = rails.crossed(fabric);
    if crossed.is_empty() {
        return None;
    }
    crossed.sort_by_cached_key(|(adapter, ..)| describe::natural(&fabric.nodes[*adapter].name));
    let mut hosts: Vec<usize> =
        crossed.iter().filter_map(|(adapter, ..)| fabric.nodes[*adapter].host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let evidence = crossed.iter().map(|(adapter, rail, leaf, leaf_rail)| {
        format!(
            "{} (rail {}) is on {}, which serves rail {}",
            fabric.nodes[*adapter].name,
            rail + 1,
            fabric.nodes[*leaf].name,
            leaf_rail + 1,
        )
    });
    let title = format!(
        "{} of {} {} plugged into a leaf of another rail",
        plural(crossed.len(), "adapter", "adapters"),
        plural(hosts.len(), "host", "hosts"),
        if crossed.len() == 1 { "is" } else { "are" },
    );
    Some(
        Finding::new("hosts", "fab-05", Verdict::Warn, title)
            .seen(evidence)
            .costs("its rail's traffic goes over the spines: three switches instead of one")
            .fixed_by("swap the cables back; until then NCCL_CROSS_NIC=1"),
    )
}

/// Adapters that do not tell whose they are.
pub(super) fn unnamed(fabric: &Fabric) -> Option<Finding> {
    if !fabric.has_topology() {
        return None;
    }
    let mut evidence = Vec::new();
    let mut all = 0;
    for host in fabric.hosts.iter().filter(|host| !host.named) {
        all += host.adapters.len();
        let mut by_leaf: BTreeMap<&str, usize> = BTreeMap::new();
        for adapter in &host.adapters {
            for (_, _, end) in fabric.links_of(*adapter) {
                *by_leaf.entry(&fabric.nodes[end.node].name).or_default() += 1;
            }
        }
        let places: Vec<String> =
            by_leaf.iter().map(|(leaf, count)| format!("{count} on {leaf}")).collect();
        evidence.push(format!("{:?}: {}", host.name, places.join(", ")));
    }
    if all == 0 {
        return None;
    }
    let title = format!(
        "{} the maker's name instead of a host's",
        plural(all, "adapter carries", "adapters carry")
    );
    Some(
        Finding::new("hosts", "fab-15", Verdict::Warn, title)
            .seen(evidence)
            .costs("nobody can tell which hosts they are of: not counted as hosts, on no rail, in no scheduler's topology")
            .fixed_by("on those hosts: systemctl restart rdma-ndd (it sets the node description); is the host's name set?"),
    )
}
