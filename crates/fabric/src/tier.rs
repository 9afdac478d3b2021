//! Which tier a switch stands in.
//!
//! Leaves are the switches that hosts are plugged into; a switch's tier is one more than its distance to the
//! nearest of them. A few hosts on a spine (a subnet manager, a login node) do not make it a leaf: a switch whose
//! neighbours have at least three times its hosts is above them.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{Fabric, Kind, NodeIndex};

/// A neighbour with this many times the hosts is a leaf below.
const TIMES: usize = 3;
/// Switches with a few hosts that are moved up; a bound for nonsense.
const DEMOTIONS_MOST: usize = 2048;

/// Sets the tier of every switch, and how many tiers there are.
pub(crate) fn assign(fabric: &mut Fabric) {
    let neighbours = neighbours(fabric);
    let mut hosts: BTreeMap<NodeIndex, usize> = BTreeMap::new();
    for link in &fabric.links {
        let [a, b] = link.ends.map(|end| end.node);
        for (switch, other) in [(a, b), (b, a)] {
            if fabric.nodes[switch].kind == Kind::Switch
                && fabric.nodes[other].kind == Kind::Adapter
            {
                *hosts.entry(switch).or_default() += 1;
            }
        }
    }
    // The switch with the most leaves below goes first: once it is no leaf, it makes none of its neighbours one less.
    for _ in 0..DEMOTIONS_MOST {
        let below = |switch: NodeIndex, own: usize| {
            let near = neighbours.get(&switch).into_iter().flatten();
            near.filter(|(other, _)| hosts.get(other).is_some_and(|hosts| *hosts >= own * TIMES))
                .count()
        };
        let top = hosts.iter().map(|(switch, own)| (below(*switch, *own), *switch)).max();
        match top {
            Some((leaves, switch)) if leaves >= 2 => hosts.remove(&switch),
            _ => break,
        };
    }
    let mut tiers: BTreeMap<NodeIndex, u8> = hosts.keys().map(|switch| (*switch, 1)).collect();
    let mut queue: VecDeque<NodeIndex> = tiers.keys().copied().collect();
    while let Some(switch) = queue.pop_front() {
        let next = tiers[&switch].saturating_add(1);
        for other in neighbours.get(&switch).into_iter().flat_map(BTreeMap::keys) {
            if !tiers.contains_key(other) {
                tiers.insert(*other, next);
                queue.push_back(*other);
            }
        }
    }
    let most = tiers.values().copied().max().unwrap_or(1);
    fabric.tiers = if fabric.switches().next().is_some() { most } else { 0 };
    for (index, node) in fabric.nodes.iter_mut().enumerate() {
        if node.kind == Kind::Switch {
            // What is plugged into nothing that leads to a host stands on top.
            node.tier = tiers.get(&index).copied().unwrap_or(most);
        }
    }
}

/// The switches next to each switch, and by how many links.
#[must_use]
pub fn neighbours(fabric: &Fabric) -> BTreeMap<NodeIndex, BTreeMap<NodeIndex, u32>> {
    let mut near: BTreeMap<NodeIndex, BTreeMap<NodeIndex, u32>> = BTreeMap::new();
    for link in &fabric.links {
        let [a, b] = link.ends.map(|end| end.node);
        let both = [a, b].iter().all(|node| fabric.nodes[*node].kind == Kind::Switch);
        if both && a != b {
            *near.entry(a).or_default().entry(b).or_default() += 1;
            *near.entry(b).or_default().entry(a).or_default() += 1;
        }
    }
    near
}
