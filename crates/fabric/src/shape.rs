//! What a fabric is like: tiers, oversubscription, bisection, paths, rails, hosts.

mod bisection;
mod path;
mod rail;
mod unit;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::{Fabric, Host, Kind, NodeIndex};
use crate::rate::Rate;

pub(crate) use bisection::parts;
pub use bisection::{Bisection, bisection};
pub use path::{Paths, paths};
pub use rail::Rails;
pub use unit::{Unit, Units};

/// Links of one rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateCount {
    /// The rate; nothing where it is not told.
    pub rate: Option<Rate>,
    /// How many links have it.
    pub links: usize,
}

/// Hosts with so many adapters.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct HostCount {
    /// Adapters of different names.
    pub adapters: usize,
    /// How many hosts have that many.
    pub hosts: usize,
}

/// One tier of switches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierShape {
    /// From 1, next to the hosts.
    pub tier: u8,
    /// How many switches.
    pub switches: usize,
    /// Their models.
    pub models: Vec<String>,
    /// Links to hosts and to the tier below.
    pub down_links: usize,
    /// What they carry in one direction, in Gb/s.
    pub down_gbps: f64,
    /// Links to the tier above.
    pub up_links: usize,
    /// What they carry in one direction, in Gb/s.
    pub up_gbps: f64,
    /// Down over up; nothing on top.
    pub oversubscription: Option<f64>,
    /// The least of any switch.
    pub least: Option<f64>,
    /// The most of any switch.
    pub most: Option<f64>,
}

/// One switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SwitchShape {
    /// Its name.
    pub name: String,
    /// Its tier.
    pub tier: u8,
    /// Links to hosts.
    pub host_links: usize,
    /// Links to the tier below.
    pub down_links: usize,
    /// Links to the tier above.
    pub up_links: usize,
    /// To how many switches above.
    pub up_switches: usize,
    /// Down over up, by what links carry; nothing where there is no up.
    pub oversubscription: Option<f64>,
    /// The rail it is of, from 1.
    pub rail: Option<usize>,
    /// The unit it is in, from 1.
    pub unit: Option<usize>,
    /// Place in the fabric.
    #[serde(skip)]
    pub node: NodeIndex,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// Switches.
    pub switches: usize,
    /// Hosts; adapters that carry one maker's name count as one.
    pub hosts: usize,
    /// Hosts whose names are known.
    pub hosts_named: usize,
    /// Adapters that carry their maker's name instead of a host's.
    pub adapters_unnamed: usize,
    /// Adapters.
    pub adapters: usize,
    /// Switches' own ends for reductions.
    pub aggregation_nodes: usize,
    /// Cables.
    pub links: usize,
    /// Ends of cables: twice as many.
    pub link_ends: usize,
    /// Links by rate, the most frequent first.
    pub rates: Vec<RateCount>,
    /// Whether a dump tells the rate of any link; without, links count 1 Gb/s each.
    pub rates_known: bool,
    /// Hosts by adapters, the most frequent first.
    pub host_counts: Vec<HostCount>,
    /// Tiers, from the hosts up.
    pub tiers: Vec<TierShape>,
    /// Parts that are not linked to each other, and hold hosts.
    pub parts: usize,
    /// What crosses the middle.
    pub bisection: Bisection,
    /// Shortest ways between leaves.
    pub paths: Option<Paths>,
    /// How many rails there are; 1 where hosts' adapters are plugged in anyhow.
    pub rails: usize,
    /// Groups of leaves that serve the same hosts.
    pub units: usize,
    /// Every switch, by tier and name.
    pub switch_list: Vec<SwitchShape>,
}

impl Shape {
    /// Describes a fabric.
    #[must_use]
    pub fn of(fabric: &Fabric) -> Self {
        let rails = Rails::of(fabric);
        let units = Units::of(fabric);
        let switch_list = switch_list(fabric, &rails, &units);
        let tiers = (1..=fabric.tiers).map(|tier| tier_shape(fabric, tier, &switch_list)).collect();
        let count = |kind: Kind| fabric.nodes.iter().filter(|node| node.kind == kind).count();
        let unnamed = fabric.hosts.iter().filter(|host| !host.named);
        Self {
            switches: count(Kind::Switch),
            hosts: fabric.hosts.len(),
            hosts_named: fabric.hosts.iter().filter(|host| host.named).count(),
            adapters_unnamed: unnamed.map(|host| host.adapters.len()).sum(),
            adapters: count(Kind::Adapter),
            aggregation_nodes: count(Kind::Aggregation),
            links: fabric.links.len(),
            link_ends: fabric.links.len() * 2,
            rates: rate_counts(fabric),
            rates_known: fabric.links.iter().any(|link| link.rate.is_some()),
            host_counts: host_counts(fabric),
            tiers,
            parts: parts(fabric).len(),
            bisection: bisection(fabric),
            paths: paths(fabric),
            rails: rails.count,
            units: units.units.len(),
            switch_list,
        }
    }
}

/// Adapters of a host by name: those that are linked, where anything is.
#[must_use]
pub fn adapters_of(fabric: &Fabric, host: &Host) -> usize {
    let linked = |node: &&NodeIndex| {
        !fabric.has_topology() || fabric.nodes[**node].ports.iter().any(|port| port.link.is_some())
    };
    let mut labels: Vec<(&str, NodeIndex)> = host
        .adapters
        .iter()
        .filter(linked)
        .map(|node| (fabric.nodes[*node].label.as_str(), *node))
        // Adapters that tell nothing but their host are each one; those of the maker's name count as one.
        .map(|(label, node)| (label, if label.is_empty() && host.named { node } else { 0 }))
        .collect();
    labels.sort_unstable();
    labels.dedup();
    labels.len()
}

/// Gb/s of links; a link of unknown rate counts as the slowest that is known, so that nothing is promised.
pub(crate) fn gbps<'a>(
    fabric: &Fabric,
    links: impl Iterator<Item = &'a crate::model::Link>,
) -> f64 {
    let unknown = fabric.links.iter().filter_map(|link| link.rate).min().map_or(1.0, Rate::gbps);
    // Adding to zero: the sum of nothing is -0.
    links.map(|link| link.rate.map_or(unknown, Rate::gbps)).fold(0.0, |sum, one| sum + one)
}

fn rate_counts(fabric: &Fabric) -> Vec<RateCount> {
    let mut by_rate: BTreeMap<Option<Rate>, usize> = BTreeMap::new();
    for link in &fabric.links {
        *by_rate.entry(link.rate).or_default() += 1;
    }
    let mut counts: Vec<RateCount> =
        by_rate.into_iter().map(|(rate, links)| RateCount { rate, links }).collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.links));
    counts
}

fn host_counts(fabric: &Fabric) -> Vec<HostCount> {
    let mut by_count: BTreeMap<usize, usize> = BTreeMap::new();
    for host in &fabric.hosts {
        *by_count.entry(adapters_of(fabric, host)).or_default() += 1;
    }
    let mut counts: Vec<HostCount> =
        by_count.into_iter().map(|(adapters, hosts)| HostCount { adapters, hosts }).collect();
    counts.sort_by_key(|count| std::cmp::Reverse((count.hosts, count.adapters)));
    counts
}

fn switch_list(fabric: &Fabric, rails: &Rails, units: &Units) -> Vec<SwitchShape> {
    // One pass: asking for the slowest rate for every switch would be one over all links each time.
    let unknown = fabric.links.iter().filter_map(|link| link.rate).min().map_or(1.0, Rate::gbps);
    let worth = |rate: Option<Rate>| rate.map_or(unknown, Rate::gbps);
    let mut list: Vec<SwitchShape> = Vec::new();
    for (index, node) in fabric.switches() {
        let (mut hosts, mut down, mut up) = (0, 0, 0);
        let (mut down_gbps, mut up_gbps) = (0.0, 0.0);
        let mut above: Vec<NodeIndex> = Vec::new();
        for (_, link, end) in fabric.links_of(index) {
            let other = &fabric.nodes[end.node];
            match other.kind {
                Kind::Adapter => hosts += 1,
                Kind::Switch if other.tier < node.tier => down += 1,
                Kind::Switch if other.tier > node.tier => {
                    up += 1;
                    up_gbps += worth(link.rate);
                    above.push(end.node);
                    continue;
                }
                _ => continue,
            }
            down_gbps += worth(link.rate);
        }
        above.sort_unstable();
        above.dedup();
        list.push(SwitchShape {
            name: node.name.clone(),
            tier: node.tier,
            host_links: hosts,
            down_links: down,
            up_links: up,
            up_switches: above.len(),
            oversubscription: (up_gbps > 0.0).then(|| down_gbps / up_gbps),
            rail: rails.of_switch.get(&index).map(|rail| rail + 1),
            unit: units.of_switch.get(&index).map(|unit| unit + 1),
            node: index,
        });
    }
    list.sort_by_cached_key(|one| (one.tier, crate::describe::natural(&one.name)));
    list
}

fn tier_shape(fabric: &Fabric, tier: u8, list: &[SwitchShape]) -> TierShape {
    let of_tier: Vec<&SwitchShape> = list.iter().filter(|one| one.tier == tier).collect();
    let mut models: Vec<String> =
        of_tier.iter().filter_map(|one| fabric.nodes[one.node].model.clone()).collect();
    models.sort();
    models.dedup();
    let up_gbps = gbps(
        fabric,
        of_tier.iter().flat_map(|one| fabric.uplinks(one.node)).map(|(_, link, _)| link),
    );
    let down_gbps = gbps(
        fabric,
        of_tier.iter().flat_map(|one| fabric.downlinks(one.node)).map(|(_, link, _)| link),
    );
    let ratios = || of_tier.iter().filter_map(|one| one.oversubscription);
    TierShape {
        tier,
        switches: of_tier.len(),
        models,
        down_links: of_tier.iter().map(|one| one.host_links + one.down_links).sum(),
        down_gbps,
        up_links: of_tier.iter().map(|one| one.up_links).sum(),
        up_gbps,
        oversubscription: (up_gbps > 0.0).then(|| down_gbps / up_gbps),
        least: ratios().min_by(f64::total_cmp),
        most: ratios().max_by(f64::total_cmp),
    }
}
