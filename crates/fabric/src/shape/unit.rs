//! Units: leaves that serve the same hosts, and, in three tiers, pods of them.
//!
//! A scheduler wants a tree; a rail-optimised fabric is none, since each host is on several leaves. Leaves that
//! share more than half of the hosts of the larger one are one unit, so one cable in a wrong leaf does not join two units.

use std::collections::BTreeMap;

use crate::model::{Fabric, HostIndex, Kind, NodeIndex};

/// Leaves that serve the same hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unit {
    /// The leaves.
    pub leaves: Vec<NodeIndex>,
    /// The hosts most of whose adapters are on them; named ones only.
    pub hosts: Vec<HostIndex>,
    /// The pod it is in, from 0; all are in one where there are fewer than three tiers.
    pub pod: usize,
}

/// All units.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Units {
    /// In the order of their first leaf's name.
    pub units: Vec<Unit>,
    /// How many pods there are.
    pub pods: usize,
    /// The unit of each leaf.
    pub of_switch: BTreeMap<NodeIndex, usize>,
    /// The pod of each switch below the top tier, where there are pods.
    pub pod_of_switch: BTreeMap<NodeIndex, usize>,
}

impl Units {
    /// Finds the units of a fabric.
    #[must_use]
    pub fn of(fabric: &Fabric) -> Self {
        let mut leaves: Vec<NodeIndex> = fabric.tier(1).map(|(index, _)| index).collect();
        leaves.sort_by_cached_key(|leaf| crate::describe::natural(&fabric.nodes[*leaf].name));
        let on = hosts_on(fabric);
        let mut parent: BTreeMap<NodeIndex, NodeIndex> =
            leaves.iter().map(|leaf| (*leaf, *leaf)).collect();
        for ((a, b), shared) in shared(fabric, &on) {
            // Of the larger: a leaf for storage shares hosts with all, and joins none of them.
            let more = on.get(&a).map_or(0, Vec::len).max(on.get(&b).map_or(0, Vec::len));
            if shared * 2 > more {
                let (a, b) = (root(&mut parent, a), root(&mut parent, b));
                parent.insert(a.max(b), a.min(b));
            }
        }
        let mut units: Vec<Unit> = Vec::new();
        let mut of_root: BTreeMap<NodeIndex, usize> = BTreeMap::new();
        let mut of_switch = BTreeMap::new();
        for leaf in leaves {
            let next = units.len();
            let unit = *of_root.entry(root(&mut parent, leaf)).or_insert(next);
            if unit == next {
                units.push(Unit::default());
            }
            units[unit].leaves.push(leaf);
            of_switch.insert(leaf, unit);
        }
        let mut all = Self { units, pods: 1, of_switch, pod_of_switch: BTreeMap::new() };
        all.place_hosts(fabric);
        all.place_pods(fabric);
        all
    }

    fn place_hosts(&mut self, fabric: &Fabric) {
        for (index, host) in fabric.hosts.iter().enumerate().filter(|(_, host)| host.named) {
            let mut votes: BTreeMap<usize, usize> = BTreeMap::new();
            for adapter in &host.adapters {
                for (_, _, end) in fabric.links_of(*adapter) {
                    if let Some(unit) = self.of_switch.get(&end.node) {
                        *votes.entry(*unit).or_default() += 1;
                    }
                }
            }
            let most =
                votes.iter().max_by_key(|(unit, votes)| (**votes, std::cmp::Reverse(**unit)));
            if let Some((unit, _)) = most {
                self.units[*unit].hosts.push(index);
            }
        }
    }

    /// Parts that are left when the top tier is taken away.
    fn place_pods(&mut self, fabric: &Fabric) {
        if fabric.tiers < 3 {
            return;
        }
        let near = crate::tier::neighbours(fabric);
        let below = |node: NodeIndex| fabric.nodes[node].tier < fabric.tiers;
        let mut pods = 0;
        for unit in 0..self.units.len() {
            let known = self.units[unit]
                .leaves
                .iter()
                .find_map(|leaf| self.pod_of_switch.get(leaf).copied());
            let pod = known.unwrap_or(pods);
            pods = pods.max(pod + 1);
            self.units[unit].pod = pod;
            let mut queue: Vec<NodeIndex> = self.units[unit].leaves.clone();
            while let Some(node) = queue.pop() {
                if self.pod_of_switch.contains_key(&node) {
                    continue;
                }
                self.pod_of_switch.insert(node, pod);
                let others = near.get(&node).into_iter().flat_map(BTreeMap::keys);
                queue.extend(others.filter(|other| below(**other)));
            }
        }
        self.pods = pods.max(1);
    }
}

fn root(parent: &mut BTreeMap<NodeIndex, NodeIndex>, mut node: NodeIndex) -> NodeIndex {
    while let Some(up) = parent.get(&node).copied().filter(|up| *up != node) {
        // Each step halves the way for those who come after.
        let above = parent.get(&up).copied().unwrap_or(up);
        parent.insert(node, above);
        node = above;
    }
    node
}

/// The hosts on each leaf.
fn hosts_on(fabric: &Fabric) -> BTreeMap<NodeIndex, Vec<HostIndex>> {
    let mut on: BTreeMap<NodeIndex, Vec<HostIndex>> = BTreeMap::new();
    for (index, host) in fabric.hosts.iter().enumerate().filter(|(_, host)| host.named) {
        for adapter in &host.adapters {
            for (_, _, end) in fabric.links_of(*adapter) {
                let other = &fabric.nodes[end.node];
                if other.kind == Kind::Switch && other.tier == 1 {
                    on.entry(end.node).or_default().push(index);
                }
            }
        }
    }
    for hosts in on.values_mut() {
        hosts.dedup();
    }
    on
}

/// How many hosts each pair of leaves shares. Hosts with very many leaves say nothing of units.
fn shared(
    fabric: &Fabric,
    on: &BTreeMap<NodeIndex, Vec<HostIndex>>,
) -> BTreeMap<(NodeIndex, NodeIndex), usize> {
    let mut of_host: Vec<Vec<NodeIndex>> = vec![Vec::new(); fabric.hosts.len()];
    for (leaf, hosts) in on {
        for host in hosts {
            of_host[*host].push(*leaf);
        }
    }
    let mut pairs = BTreeMap::new();
    for leaves in of_host.iter().filter(|leaves| leaves.len() <= 64) {
        for (at, a) in leaves.iter().enumerate() {
            for b in &leaves[at + 1..] {
                *pairs.entry((*a, *b)).or_default() += 1;
            }
        }
    }
    pairs
}
