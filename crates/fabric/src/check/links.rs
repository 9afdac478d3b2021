//! Links: slow ones, missing ones, uneven ones, and ports where one should be.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Verdict, plural, usual};
use crate::model::{Fabric, Kind, Link, Node, NodeIndex, PortState};
use crate::rate::Rate;
use crate::shape::{Shape, SwitchShape};

/// Above this part of a kind, slower links are a kind of their own: another generation, not a fault.
const MINORITY: usize = 3;

/// Links that carry less than their equals, or than their ends could.
pub(super) fn slow(fabric: &Fabric) -> Option<Finding> {
    let mut wrong: BTreeMap<usize, (Rate, String)> = BTreeMap::new();
    let mut kinds: BTreeMap<LinkKind<'_>, Vec<usize>> = BTreeMap::new();
    let mut bundles: BTreeMap<Bundle<'_>, Vec<usize>> = BTreeMap::new();
    let labels = LabelRates::of(fabric);
    for (index, link) in fabric.links.iter().enumerate() {
        kinds.entry(kind(fabric, link)).or_default().push(index);
        bundles.entry(bundle(fabric, link)).or_default().push(index);
    }
    let mut compare = |links: &[usize], whole_kind: bool| {
        let rates = links.iter().filter_map(|index| fabric.links[*index].rate);
        let Some((expected, _)) = usual(rates) else { return };
        let slower: Vec<usize> = links
            .iter()
            .copied()
            .filter(|index| {
                fabric.links[*index].rate.is_some_and(|rate| rate.mbps() < expected.mbps())
            })
            .collect();
        if whole_kind && slower.len() * MINORITY > links.len() {
            return;
        }
        for index in slower {
            let told = fabric.links[index]
                .ends
                .map(|end| &fabric.nodes[end.node].ports[end.port].could_be);
            // Where iblinkinfo says that both ends do what they can, the slower end is made so.
            let all_they_can = told.iter().any(|could| could.as_deref() == Some(""));
            if !all_they_can && !labels.made_so(fabric, &fabric.links[index]) {
                wrong
                    .entry(index)
                    .or_insert_with(|| (expected, format!("{expected} is usual here")));
            }
        }
    };
    kinds.values().for_each(|links| compare(links, true));
    bundles.values().filter(|links| links.len() > 1).for_each(|links| compare(links, false));
    for (index, link) in fabric.links.iter().enumerate() {
        for end in link.ends {
            let could = fabric.nodes[end.node].ports[end.port].could_be.as_deref();
            if let (Some(could), Some(rate)) = (could.filter(|could| !could.is_empty()), link.rate)
            {
                wrong.insert(index, (rate, could.to_owned()));
            }
        }
    }
    if wrong.is_empty() {
        return None;
    }
    let worst = wrong.iter().filter_map(|(index, (expected, _))| {
        let rate = fabric.links[*index].rate?;
        Some(rate.gbps() / expected.gbps())
    });
    let worst = worst.fold(1.0, f64::min);
    let evidence = wrong.iter().map(|(index, (_, why))| {
        let link = &fabric.links[*index];
        let rate = link.rate.map_or_else(|| "?".to_owned(), |rate| rate.to_string());
        format!("{}: {rate}; {why}", fabric.link_name(link))
    });
    let title = format!(
        "{} below the width or speed of its equals",
        plural(wrong.len(), "link is", "links are")
    );
    let mut finding = Finding::new("links", "fab-01", Verdict::Fail, title.replace("are below the width or speed of its", "are below the width or speed of their"))
        .seen(evidence)
        .fixed_by("reseat the cable, then replace it; see both ends with iblinkinfo -l, restart with ibportstate <lid> <port> reset");
    if worst < 1.0 {
        finding = finding.costs(format!(
            "down to {:.0} % of what the others carry; a ring is as slow as its slowest link",
            worst * 100.0
        ));
    }
    Some(finding)
}

/// Tiers, the adapter's device, the models of the switches.
type LinkKind<'a> = (u8, u8, &'a str, [&'a str; 2]);
/// Who is at the ends, the adapter's device, the switch's model.
type Bundle<'a> = (usize, usize, &'a str, &'a str);

/// Which links are equals: those of hosts with one kind of adapter on one kind of switch; those between two tiers.
fn kind<'a>(fabric: &'a Fabric, link: &Link) -> LinkKind<'a> {
    let nodes = link.ends.map(|end| &fabric.nodes[end.node]);
    let mut tiers = nodes.map(|node| node.tier);
    tiers.sort_unstable();
    let mut models = nodes.map(made_as);
    models.sort_unstable();
    let adapter = nodes.iter().find(|node| node.kind == Kind::Adapter);
    let other = nodes.iter().any(|node| matches!(node.kind, Kind::Aggregation | Kind::Router));
    let device = adapter.and_then(|node| node.device.as_deref()).unwrap_or_default();
    (tiers[0], tiers[1], if other { "own" } else { device }, models)
}

/// A switch's model, or its device where the model is not told; nothing of an adapter.
fn made_as(node: &Node) -> &str {
    let told = node.model.as_deref().or(node.device.as_deref());
    told.filter(|_| node.kind == Kind::Switch).unwrap_or_default()
}

/// Links of adapters of one kind in one host to switches of one kind, or between the same two switches.
fn bundle<'a>(fabric: &'a Fabric, link: &Link) -> Bundle<'a> {
    let [a, b] = link.ends.map(|end| end.node);
    let adapter = [a, b].into_iter().find(|node| fabric.nodes[*node].kind == Kind::Adapter);
    let host = adapter.and_then(|node| fabric.nodes[node].host);
    match (adapter, host.filter(|host| fabric.hosts[*host].named)) {
        (Some(adapter), Some(host)) => {
            let device = fabric.nodes[adapter].device.as_deref().unwrap_or_default();
            let model = made_as(&fabric.nodes[link.across(adapter).node]);
            (usize::MAX, host, device, model)
        }
        _ => (a.min(b), a.max(b), "", ""),
    }
}

/// What adapters of one name have in all hosts: those for storage may be slower by design.
struct LabelRates<'a> {
    rates: BTreeMap<(&'a str, &'a str), Vec<u32>>,
}

impl<'a> LabelRates<'a> {
    fn of(fabric: &'a Fabric) -> Self {
        let mut rates: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
        for link in &fabric.links {
            if let (Some(name), Some(rate)) = (Self::name(fabric, link), link.rate) {
                rates.entry(name).or_default().push(rate.mbps());
            }
        }
        rates.values_mut().for_each(|rates| rates.sort_unstable());
        Self { rates }
    }

    fn name(fabric: &'a Fabric, link: &Link) -> Option<(&'a str, &'a str)> {
        let nodes = link.ends.map(|end| &fabric.nodes[end.node]);
        let adapter = nodes.into_iter().find(|node| node.kind == Kind::Adapter)?;
        let label = Some(adapter.label.as_str()).filter(|label| !label.is_empty())?;
        Some((label, adapter.device.as_deref().unwrap_or_default()))
    }

    /// Whether most adapters of this name are no faster.
    fn made_so(&self, fabric: &'a Fabric, link: &Link) -> bool {
        let rates = Self::name(fabric, link).and_then(|name| self.rates.get(&name));
        rates.zip(link.rate).is_some_and(|(rates, rate)| {
            let no_faster = rates.partition_point(|one| *one <= rate.mbps());
            no_faster > 1 && no_faster * 2 > rates.len()
        })
    }
}

/// Switches whose equals have more links to the tier above.
pub(super) fn missing_uplinks(fabric: &Fabric, shape: &Shape) -> Vec<Finding> {
    let mut found = Vec::new();
    for group in equals(fabric, shape) {
        let Some((expected, have)) = usual(group.iter().map(|one| one.up_links)) else { continue };
        let short: Vec<&&SwitchShape> =
            group.iter().filter(|one| one.up_links < expected).collect();
        if short.is_empty() {
            continue;
        }
        let links_to = per_switch_above(fabric, &group);
        // What most equals are linked to, and by how many links.
        let mut counts: BTreeMap<NodeIndex, Vec<u32>> = BTreeMap::new();
        for (up, count) in links_to.values().flatten() {
            counts.entry(*up).or_default().push(*count);
        }
        let usual_to: BTreeMap<NodeIndex, u32> = counts
            .into_iter()
            .filter_map(|(up, counts)| Some((up, usual(counts)?)))
            .filter(|(_, (_, times))| times * 2 > group.len())
            .map(|(up, (count, _))| (up, count))
            .collect();
        let fewest = short.iter().map(|one| one.up_links).min().unwrap_or(0);
        let lost: usize = short.iter().map(|one| expected - one.up_links).sum();
        let evidence = short.iter().map(|one| {
            let own = &links_to[&one.node];
            // In pods few are linked to the same switches above: there the nearest equal tells what is missing.
            let whole = if usual_to.is_empty() {
                nearest(fabric, one.node, &links_to, expected)
            } else {
                Some(&usual_to)
            };
            let mut missing: Vec<String> = Vec::new();
            for (up, count) in whole.into_iter().flatten() {
                let has = own.get(up).copied().unwrap_or(0);
                if has < *count {
                    missing.push(format!("{has} of {count} to {}", fabric.nodes[*up].name));
                }
            }
            let where_to = match missing.is_empty() {
                true => format!(", to {}", plural(one.up_switches, "switch", "switches")),
                false => format!("; {}", missing.join(", ")),
            };
            format!("{}: {} of {expected} uplinks{where_to}", one.name, one.up_links)
        });
        let what = if group[0].tier == 1 { "leaves" } else { "switches" };
        let title = format!(
            "{} of {} {what} of tier {} have fewer than {expected} uplinks, down to {fewest} ({} in all)",
            short.len(),
            group.len(),
            group[0].tier,
            plural(lost, "link", "links"),
        );
        // Of two that differ nobody can say which is wrong.
        let verdict = if have * 2 > group.len() { Verdict::Fail } else { Verdict::Warn };
        let loss = (expected - fewest) as f64 / expected as f64 * 100.0;
        found.push(
            Finding::new("links", "fab-02", verdict, title)
                .seen(evidence)
                .costs(format!("up to {loss:.0} % of what leaves such a switch; routes crowd on the links that are left"))
                .fixed_by("look at the ports with iblinkinfo; ibportstate <lid> <port> enable; else reseat or replace the cable"),
        );
    }
    found
}

/// The links of the switch that is linked to most of the same switches above, and has all its links.
fn nearest<'a>(
    fabric: &Fabric,
    switch: NodeIndex,
    links_to: &'a BTreeMap<NodeIndex, BTreeMap<NodeIndex, u32>>,
    expected: usize,
) -> Option<&'a BTreeMap<NodeIndex, u32>> {
    let mut shared: BTreeMap<NodeIndex, usize> = BTreeMap::new();
    for up in links_to.get(&switch)?.keys() {
        for (_, _, end) in fabric.downlinks(*up) {
            if end.node != switch && links_to.contains_key(&end.node) {
                *shared.entry(end.node).or_default() += 1;
            }
        }
    }
    let is_whole = |node: &NodeIndex| {
        links_to[node].values().map(|count| u64::from(*count)).sum::<u64>() == expected as u64
    };
    let whole = shared.into_iter().filter(|(node, _)| is_whole(node));
    let (node, _) = whole.max_by_key(|(node, count)| (*count, std::cmp::Reverse(*node)))?;
    links_to.get(&node)
}

/// Switches that have all their links up, but not evenly.
pub(super) fn uneven_uplinks(fabric: &Fabric, shape: &Shape) -> Vec<Finding> {
    let mut found = Vec::new();
    for group in equals(fabric, shape) {
        let Some((expected, _)) = usual(group.iter().map(|one| one.up_links)) else { continue };
        let links_to = per_switch_above(fabric, &group);
        let Some((usual_above, _)) = usual(group.iter().map(|one| one.up_switches)) else {
            continue;
        };
        let mut evidence = Vec::new();
        for one in group.iter().filter(|one| one.up_links == expected && one.up_links > 0) {
            let counts = &links_to[&one.node];
            let most = counts.values().copied().max().unwrap_or(0);
            let least = counts.values().copied().min().unwrap_or(0);
            let even = one.up_links % one.up_switches.max(1) == 0;
            if most - least > u32::from(!even) || one.up_switches < usual_above {
                let named = |wanted: u32| {
                    let names = counts.iter().filter(|(_, count)| **count == wanted);
                    names
                        .map(|(up, _)| fabric.nodes[*up].name.as_str())
                        .take(3)
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                evidence.push(format!(
                    "{}: {} uplinks to {} of {usual_above} switches; {most} to {}, {least} to {}",
                    one.name,
                    one.up_links,
                    one.up_switches,
                    named(most),
                    named(least),
                ));
            }
        }
        if !evidence.is_empty() {
            let title = format!(
                "{} of tier {} {} its uplinks unevenly over the tier above",
                plural(evidence.len(), "switch", "switches"),
                group[0].tier,
                if evidence.len() == 1 { "spreads" } else { "spread" },
            );
            found.push(
                Finding::new("links", "fab-14", Verdict::Warn, title)
                    .seen(evidence)
                    .costs("routing that spreads flows evenly over switches overloads the thinner bundle")
                    .fixed_by("re-cable so that each switch above has the same number of links"),
            );
        }
    }
    found
}

/// Switches of one tier and model that have a tier above.
fn equals<'a>(fabric: &Fabric, shape: &'a Shape) -> Vec<Vec<&'a SwitchShape>> {
    let mut groups: BTreeMap<(u8, Option<&str>), Vec<&SwitchShape>> = BTreeMap::new();
    for one in shape.switch_list.iter().filter(|one| one.tier < fabric.tiers) {
        let model = fabric.nodes[one.node].model.as_deref();
        groups.entry((one.tier, model)).or_default().push(one);
    }
    groups.into_values().filter(|group| group.iter().any(|one| one.up_links > 0)).collect()
}

fn per_switch_above(
    fabric: &Fabric,
    group: &[&SwitchShape],
) -> BTreeMap<NodeIndex, BTreeMap<NodeIndex, u32>> {
    let mut all = BTreeMap::new();
    for one in group {
        let mut counts: BTreeMap<NodeIndex, u32> = BTreeMap::new();
        for (_, _, end) in fabric.uplinks(one.node) {
            *counts.entry(end.node).or_default() += 1;
        }
        all.insert(one.node, counts);
    }
    all
}

/// Leaves with more below than was planned.
pub(super) fn oversubscribed(shape: &Shape, planned: Option<f64>) -> Option<Finding> {
    let planned = planned?;
    let over: Vec<&SwitchShape> = shape
        .switch_list
        .iter()
        .filter(|one| one.oversubscription.is_some_and(|o| o > planned * 1.001))
        .collect();
    let worst = over.iter().filter_map(|one| one.oversubscription).max_by(f64::total_cmp)?;
    let verdict = if worst > planned * 1.1 { Verdict::Fail } else { Verdict::Warn };
    let evidence = over.iter().map(|one| {
        let ratio = one.oversubscription.unwrap_or(0.0);
        format!(
            "{}: {ratio:.2}:1 ({} down, {} up)",
            one.name,
            one.host_links + one.down_links,
            one.up_links
        )
    });
    let title = format!(
        "{} over the planned oversubscription of {planned:.2}:1, up to {worst:.2}:1",
        plural(over.len(), "switch is", "switches are"),
    );
    Some(
        Finding::new("links", "fab-04", verdict, title)
            .seen(evidence)
            .costs(format!("traffic between leaves gets {:.0} % of the hosts' rate", 100.0 / worst))
            .fixed_by("add uplinks, or place jobs within leaves"),
    )
}

/// Ports that are down in most hosts, by the adapter's name: the second ports of adapters that have two.
fn unused_ports(fabric: &Fabric) -> BTreeSet<(&str, u32)> {
    // In all, and how many are down; by the adapter's name, and by number in one host.
    let mut by_label: BTreeMap<(&str, u32), (usize, usize)> = BTreeMap::new();
    let mut alone: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for host in fabric.hosts.iter().filter(|host| host.named) {
        for node in host.adapters.iter().map(|node| &fabric.nodes[*node]) {
            for port in &node.ports {
                let down = usize::from(port.state == PortState::Down);
                for known in [
                    by_label.entry((&node.label, port.number)).or_default(),
                    alone.entry(port.number).or_default(),
                ] {
                    *known = (known.0 + 1, known.1 + down);
                }
            }
        }
    }
    // Of one host: where no second port of several is up, none is cabled.
    let one_host = fabric.hosts.len() == 1;
    let unused = by_label.iter().filter(|((_, number), (all, down))| match alone.get(number) {
        Some((ports, all_down)) if one_host => *number > 1 && *ports > 1 && ports == all_down,
        _ => *all > 1 && down * 2 > *all,
    });
    unused.map(|(port, _)| *port).collect()
}

/// Ports of hosts that are down while their equals are not.
pub(super) fn down(fabric: &Fabric) -> Option<Finding> {
    let mut evidence = Vec::new();
    let unused = unused_ports(fabric);
    for host in &fabric.hosts {
        let ports = || {
            host.adapters.iter().flat_map(|node| {
                let node = &fabric.nodes[*node];
                node.ports.iter().map(move |port| (node, port))
            })
        };
        if !ports().any(|(_, port)| port.state == PortState::Active) {
            continue;
        }
        for (node, port) in ports() {
            let why = match port.state {
                PortState::Down if unused.contains(&(node.label.as_str(), port.number)) => continue,
                PortState::Down => "Down",
                PortState::Init => "not made active by a subnet manager",
                _ => continue,
            };
            let physical =
                port.physical.as_deref().map_or(String::new(), |text| format!(" ({text})"));
            evidence.push(format!("{} port {}: {why}{physical}", node.name, port.called()));
        }
    }
    // A switch's free ports are down too: only an initialised one lacks its manager.
    for (_, node) in fabric.switches() {
        for port in node.ports.iter().filter(|port| port.state == PortState::Init) {
            evidence.push(format!(
                "{} port {}: not made active by a subnet manager",
                node.name,
                port.called()
            ));
        }
    }
    if evidence.is_empty() {
        return None;
    }
    let title = format!(
        "{} down while others of their host are up",
        plural(evidence.len(), "port is", "ports are")
    );
    Some(
        Finding::new("links", "fab-17", Verdict::Warn, title)
            .seen(evidence)
            .costs("a rail of that host is missing")
            .fixed_by("check the cable and its other end; a port that is not cabled on purpose may be disabled: ibportstate <lid> <port> disable"),
    )
}

/// Parts of the fabric that hosts of the others cannot reach.
pub(super) fn parted(fabric: &Fabric) -> Option<Finding> {
    let parts = crate::shape::parts(fabric);
    if parts.len() < 2 || fabric.switches().count() < 2 {
        return None;
    }
    let hosts_of = |part: &Vec<NodeIndex>| -> BTreeSet<usize> {
        let links = part.iter().flat_map(|node| fabric.links_of(*node));
        links.filter_map(|(_, _, end)| fabric.nodes[end.node].host).collect()
    };
    let all: Vec<BTreeSet<usize>> = parts.iter().map(hosts_of).collect();
    // Planes of one fabric share their hosts.
    let apart = all.iter().skip(1).any(|hosts| hosts.is_disjoint(&all[0]));
    if !apart {
        return None;
    }
    let evidence = parts.iter().zip(&all).map(|(part, hosts)| {
        let names: Vec<&str> =
            part.iter().take(3).map(|node| fabric.nodes[*node].name.as_str()).collect();
        format!(
            "{} with {}: {}",
            plural(part.len(), "switch", "switches"),
            plural(hosts.len(), "host", "hosts"),
            names.join(", ")
        )
    });
    let title = format!("the fabric is in {} parts that are not linked", parts.len());
    Some(
        Finding::new("links", "fab-16", Verdict::Fail, title)
            .seen(evidence)
            .costs("jobs that span them cannot use the fabric at all")
            .fixed_by("plug the links between them, or check each part's dump on its own"),
    )
}
