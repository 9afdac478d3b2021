//! Hosts: how many adapters they have, and on which rail those are.

use std::collections::BTreeMap;

use super::{Finding, Verdict, plural, usual};
use crate::describe;
use crate::model::Fabric;
use crate::shape::{Rails, adapters_of};

/// A name with its numbers taken out: hosts of one kind are called alike.
fn likeness(name: &str) -> String {
    let mut shape = String::new();
    for c in name.chars() {
        if !c.is_ascii_digit() {
            shape.push(c);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    shape
}

/// Hosts with fewer adapters than their equals. Hosts that are called alike are equals; one that is called like no
/// other is compared with all.
pub(super) fn fewer_adapters(fabric: &Fabric) -> Option<Finding> {
    let counts: Vec<usize> = fabric.hosts.iter().map(|host| adapters_of(fabric, host)).collect();
    let (most_have, _) = usual(counts.iter().copied())?;
    let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, host) in fabric.hosts.iter().enumerate() {
        kinds.entry(likeness(&host.name)).or_default().push(index);
    }
    let mut short: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for hosts in kinds.values() {
        let own = usual(hosts.iter().map(|host| counts[*host])).map_or(most_have, |(own, _)| own);
        let expected = if hosts.len() > 1 { own } else { most_have };
        for host in hosts.iter().filter(|host| counts[**host] < expected) {
            short.entry((expected, counts[*host])).or_default().push(*host);
        }
    }
    if short.is_empty() {
        return None;
    }
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
        let missing = missing_labels(fabric, hosts, *expected);
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
        host.named && kinds[&likeness(&host.name)].len() > 1
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

/// Which names are missing, where all of these hosts miss the same.
fn missing_labels(fabric: &Fabric, short: &[usize], expected: usize) -> String {
    let labels = |host: usize| -> Vec<&str> {
        let mut labels: Vec<&str> = fabric.hosts[host]
            .adapters
            .iter()
            .map(|node| fabric.nodes[*node].label.as_str())
            .collect();
        labels.sort_unstable();
        labels
    };
    let whole = (0..fabric.hosts.len()).map(labels).filter(|labels| labels.len() == expected);
    let Some((class, _)) = usual_set(whole) else { return String::new() };
    let named: Vec<usize> =
        short.iter().copied().filter(|host| fabric.hosts[*host].named).collect();
    let missing_of = |host: usize| -> Vec<&str> {
        let own = labels(host);
        class.iter().copied().filter(|label| !own.contains(label)).collect()
    };
    let Some(first) = named.first().map(|host| missing_of(*host)) else { return String::new() };
    let alike = named.iter().filter(|host| missing_of(**host) == first).count();
    if first.is_empty()
        || first.len() + labels(named[0]).len() != expected
        || alike * 2 <= named.len()
    {
        return String::new();
    }
    format!("; {alike} without {}", first.join(", "))
}

fn usual_set<'a>(sets: impl Iterator<Item = Vec<&'a str>>) -> Option<(Vec<&'a str>, usize)> {
    let mut counts: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
    for set in sets {
        *counts.entry(set).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count)
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
