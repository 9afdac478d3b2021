//! Which tier a switch stands in.
//!
//! Leaves are the switches that hosts are plugged into; a switch's tier is one more than its distance to the
//! nearest of them. A few hosts on a spine (a subnet manager, a login node) do not make it a leaf: a switch whose
//! neighbours have at least three times its hosts is above them; so is one whose neighbours are of several pods, on a
//! core. A leaf without hosts is a leaf all the same, where it shares its neighbours with one that has some, and
//! is called like it.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::describe;
use crate::model::{Fabric, Kind, NodeIndex};

/// A neighbour with this many times the hosts is a leaf below.
const TIMES: usize = 3;
/// Steps that looking at the neighbours of neighbours may take; a bound for nonsense.
const STEPS_MOST: usize = 50_000_000;

type Near = BTreeMap<NodeIndex, BTreeMap<NodeIndex, u32>>;

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
    next_to_leaves(&neighbours, &mut hosts);
    let mut steps = STEPS_MOST;
    above_leaves(&neighbours, &mut hosts, &mut steps);
    let empty = empty_leaves(fabric, &neighbours, &hosts, &mut steps);
    let leaves = hosts.keys().chain(&empty);
    let mut tiers: BTreeMap<NodeIndex, u8> = leaves.map(|switch| (*switch, 1)).collect();
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

/// Takes away the hosts of switches that leaves are plugged into. The switch with the most leaves below goes first:
/// once it is no leaf, its neighbours have one less.
fn next_to_leaves(near: &Near, hosts: &mut BTreeMap<NodeIndex, usize>) {
    let below = |hosts: &BTreeMap<NodeIndex, usize>, switch: NodeIndex| {
        let own = hosts.get(&switch).copied().unwrap_or(0);
        let others = near.get(&switch).into_iter().flat_map(BTreeMap::keys);
        others.filter(|other| hosts.get(other).is_some_and(|hosts| *hosts >= own * TIMES)).count()
    };
    let mut queue: BinaryHeap<(usize, NodeIndex)> =
        hosts.keys().map(|switch| (below(hosts, *switch), *switch)).collect();
    while let Some((leaves, switch)) = queue.pop().filter(|(leaves, _)| *leaves >= 2) {
        // It may have lost some since it was counted.
        let now = below(hosts, switch);
        if now == leaves {
            hosts.remove(&switch);
        } else {
            queue.push((now, switch));
        }
    }
}

/// Takes away the hosts of switches two steps above leaves: service nodes on a core. Its neighbours are of several
/// pods, and no leaf is plugged into two of those; the neighbours of a leaf share leaves.
fn above_leaves(near: &Near, hosts: &mut BTreeMap<NodeIndex, usize>, steps: &mut usize) {
    let next = |switch: &NodeIndex| near.get(switch).into_iter().flat_map(BTreeMap::keys);
    let most = hosts.values().copied().max().unwrap_or(0);
    let few: Vec<(NodeIndex, usize)> = hosts
        .iter()
        .filter(|(_, own)| own.saturating_mul(TIMES) <= most)
        .map(|(switch, own)| (*switch, *own))
        .collect();
    for (switch, own) in few {
        // The pods of its neighbours: those that share a leaf are in one.
        let mut pod_of_leaf: BTreeMap<NodeIndex, usize> = BTreeMap::new();
        let mut pods: Vec<usize> = Vec::new();
        for spine in next(&switch).filter(|other| !hosts.contains_key(other)) {
            if !spend(steps, near.get(spine).map_or(0, BTreeMap::len)) {
                return;
            }
            let pod = pods.len();
            let mut leads = false;
            for leaf in
                next(spine).filter(|leaf| hosts.get(leaf).is_some_and(|h| *h >= own * TIMES))
            {
                if !leads {
                    pods.push(pod);
                    leads = true;
                }
                let other = *pod_of_leaf.entry(*leaf).or_insert(pod);
                let (a, b) = (first_of(&pods, other), first_of(&pods, pod));
                pods[a.max(b)] = a.min(b);
            }
        }
        if pods.iter().enumerate().filter(|(pod, first)| pod == *first).count() > 1 {
            hosts.remove(&switch);
        }
    }
}

fn first_of(pods: &[usize], mut pod: usize) -> usize {
    while pods[pod] != pod {
        pod = pods[pod];
    }
    pod
}

/// Switches without hosts that have more than half of their neighbours in common with a leaf.
fn empty_leaves(
    fabric: &Fabric,
    near: &Near,
    hosts: &BTreeMap<NodeIndex, usize>,
    steps: &mut usize,
) -> Vec<NodeIndex> {
    let mut found = Vec::new();
    for (switch, own) in near.iter().filter(|(switch, _)| !hosts.contains_key(switch)) {
        // What leaves are plugged into is above them.
        if own.keys().any(|other| hosts.contains_key(other)) {
            continue;
        }
        let mut shared: BTreeMap<NodeIndex, usize> = BTreeMap::new();
        for next in own.keys().filter_map(|other| near.get(other)) {
            if !spend(steps, next.len()) {
                return found;
            }
            for peer in next.keys().filter(|peer| hosts.contains_key(peer)) {
                *shared.entry(*peer).or_default() += 1;
            }
        }
        // The cores of a lone pod share its spines too: they are called otherwise.
        let called = |node: NodeIndex| describe::likeness(&fabric.nodes[node].name);
        let alike = |(peer, shared): (&NodeIndex, &usize)| {
            shared * 2 > near.get(peer).map_or(0, BTreeMap::len).max(own.len())
                && called(*peer) == called(*switch)
        };
        if shared.iter().any(alike) {
            found.push(*switch);
        }
    }
    found
}

/// Whether there are that many steps left.
fn spend(steps: &mut usize, wanted: usize) -> bool {
    match steps.checked_sub(wanted) {
        Some(left) => {
            *steps = left;
            true
        }
        None => false,
    }
}

/// The switches next to each switch, and by how many links.
#[must_use]
pub fn neighbours(fabric: &Fabric) -> Near {
    let mut near: Near = BTreeMap::new();
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
