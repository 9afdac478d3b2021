//! How much each link was used, and which links are equals.

use std::fmt;

use ringway_fabric::model::{Kind, NodeIndex};
use serde::{Serialize, Serializer};

use crate::network::{LinkId, Network, Wire};
use crate::outcome::Outcome;

/// Links that join the same kinds of things, in the same direction.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Group {
    /// From adapters to switches.
    HostsUp,
    /// From switches to adapters.
    HostsDown,
    /// From a tier to the one above.
    Up(u8),
    /// To a tier from the one above.
    Down(u8),
    /// Between switches of a tier.
    Across(u8),
    /// Between the GPUs of a host.
    Inside,
    /// Between GPUs and adapters.
    Bus,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostsUp => f.pad("hosts up"),
            Self::HostsDown => f.pad("hosts down"),
            Self::Up(tier) => f.pad(&format!("tier {tier} up")),
            Self::Down(tier) => f.pad(&format!("tier {tier} down")),
            Self::Across(tier) => f.pad(&format!("tier {tier} across")),
            Self::Inside => f.pad("inside hosts"),
            Self::Bus => f.pad("PCIe"),
        }
    }
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Whose link it is: links of one owner in one group are equals.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Owner {
    /// A switch: the lower one of two.
    Switch(NodeIndex),
    /// A host.
    Host(usize),
}

/// What one link did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Which.
    pub link: LinkId,
    /// What it joins.
    pub group: Group,
    /// Whose it is.
    pub owner: Owner,
    /// Bytes that it carried.
    pub bytes: f64,
    /// The part of what it could have carried until the end.
    pub part: f64,
    /// The part of the time in which it was full.
    pub full: f64,
}

/// Every link of the network, those that carried nothing too, by place.
#[must_use]
pub fn usages(network: &Network, outcome: &Outcome) -> Vec<Usage> {
    let mut all: Vec<Usage> = (0..network.links.len())
        .map(|link| {
            let (group, owner) = place(network, link);
            Usage { link, group, owner, bytes: 0.0, part: 0.0, full: 0.0 }
        })
        .collect();
    let end_us = outcome.end_us;
    for used in &outcome.links {
        let Some(usage) = all.get_mut(used.link) else { continue };
        usage.bytes = used.bytes;
        if end_us > 0.0 {
            let most = network.links[used.link].capacity * end_us;
            usage.part = if most > 0.0 { used.bytes / most } else { 0.0 };
            usage.full = used.full_us / end_us;
        }
    }
    all
}

/// What a link joins, and whose it is.
fn place(network: &Network, link: LinkId) -> (Group, Owner) {
    let fabric = &network.fabric;
    let host_of = |adapter: NodeIndex| fabric.nodes[adapter].host.unwrap_or(usize::MAX);
    match network.links[link].what {
        Wire::InsideOut(rank) | Wire::InsideIn(rank) => {
            let host = network.hosts.get(rank as usize).copied().unwrap_or(usize::MAX);
            (Group::Inside, Owner::Host(host))
        }
        Wire::BusOut(adapter) | Wire::BusIn(adapter) => (Group::Bus, Owner::Host(host_of(adapter))),
        Wire::Cable { link, forward } => {
            let ends = fabric.links[link].ends;
            let (from, to) = if forward { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
            let (below, above) = (&fabric.nodes[from.node], &fabric.nodes[to.node]);
            match (below.kind == Kind::Switch, above.kind == Kind::Switch) {
                (false, _) => (Group::HostsUp, Owner::Host(host_of(from.node))),
                (_, false) => (Group::HostsDown, Owner::Host(host_of(to.node))),
                _ if below.tier < above.tier => (Group::Up(below.tier), Owner::Switch(from.node)),
                _ if below.tier > above.tier => (Group::Down(above.tier), Owner::Switch(to.node)),
                _ => (Group::Across(below.tier), Owner::Switch(from.node)),
            }
        }
    }
}

/// The hottest links, the one with the highest use first.
#[must_use]
pub fn hottest(usages: &[Usage], most: usize) -> Vec<Usage> {
    let mut used: Vec<Usage> = usages.iter().filter(|usage| usage.bytes > 0.0).copied().collect();
    let hotter = |a: &Usage, b: &Usage| {
        b.part.total_cmp(&a.part).then(a.group.cmp(&b.group)).then(a.link.cmp(&b.link))
    };
    if used.len() > most {
        used.select_nth_unstable_by(most, hotter);
        used.truncate(most);
    }
    used.sort_by(hotter);
    used
}
