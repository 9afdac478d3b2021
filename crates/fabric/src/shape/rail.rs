//! Rails: which adapter of a host goes to which leaf.
//!
//! In a rail-optimised fabric the first adapters of all hosts of a unit meet on one leaf, the second ones on
//! another. A host's adapters are counted by their names among those of its equals: a host that lost one adapter
//! keeps the numbers of the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::describe;
use crate::model::{Fabric, Host, Kind, NodeIndex};

/// Sets of names that are taken for those of whole hosts; of more, the most frequent.
const CLASSES_MOST: usize = 32;
/// A leaf is of a rail when so many of its adapters are, in percent.
const LEAF_PERCENT: usize = 75;
/// A rail is one when so many of its adapters are on its leaves, in percent.
const RAIL_PERCENT: usize = 75;

/// Who is on which rail; rails count from 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rails {
    /// How many rails; 1 where leaves take any adapter.
    pub count: usize,
    /// The rail each adapter should be on by its name.
    pub of_adapter: BTreeMap<NodeIndex, usize>,
    /// The rail each leaf serves; empty where the fabric has none.
    pub of_switch: BTreeMap<NodeIndex, usize>,
}

impl Rails {
    /// Finds the rails of a fabric.
    #[must_use]
    pub fn of(fabric: &Fabric) -> Self {
        let numbered = numbers(fabric);
        let mut on_leaf: BTreeMap<NodeIndex, BTreeMap<usize, BTreeMap<usize, usize>>> =
            BTreeMap::new();
        for (adapter, (kind, number)) in &numbered {
            for (_, _, end) in fabric.links_of(*adapter) {
                if fabric.nodes[end.node].kind == Kind::Switch {
                    let kinds = on_leaf.entry(end.node).or_default();
                    *kinds.entry(*kind).or_default().entry(*number).or_default() += 1;
                }
            }
        }
        // By number: adapters in all, and those on a leaf that is theirs.
        let mut at_home: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        let mut of_leaf: BTreeMap<NodeIndex, usize> = BTreeMap::new();
        for (leaf, kinds) in &on_leaf {
            // The hosts that most of its adapters are of: a few servers beside them count by themselves.
            let count = |numbers: &BTreeMap<usize, usize>| numbers.values().sum::<usize>();
            let Some(numbers) = kinds.values().max_by_key(|numbers| count(numbers)) else {
                continue;
            };
            let all = count(numbers);
            let most =
                numbers.iter().max_by_key(|(number, count)| (**count, std::cmp::Reverse(**number)));
            let own = most.filter(|(_, count)| **count * 100 >= all * LEAF_PERCENT);
            of_leaf.extend(own.map(|(number, _)| (*leaf, *number)));
            for (number, count) in numbers {
                let known = at_home.entry(*number).or_default();
                known.0 += count;
                known.1 += if own.is_some_and(|(own, _)| own == number) { *count } else { 0 };
            }
        }
        // Adapters for storage may be plugged in anyhow beside those that have rails.
        let rails: BTreeMap<usize, usize> = at_home
            .iter()
            .filter(|(_, (all, home))| home * 100 >= all * RAIL_PERCENT)
            .map(|(number, _)| *number)
            .zip(0..)
            .collect();
        if rails.len() < 2 || rails.len() * 2 <= at_home.len() {
            let of_adapter = numbered.iter().map(|(adapter, (_, number))| (*adapter, *number));
            return Self { count: 1, of_adapter: of_adapter.collect(), of_switch: BTreeMap::new() };
        }
        let of_switch: BTreeMap<NodeIndex, usize> =
            of_leaf.iter().filter_map(|(leaf, own)| Some((*leaf, *rails.get(own)?))).collect();
        let of_adapter = usual_rails(fabric, &numbered, &of_switch);
        Self { count: rails.len(), of_adapter, of_switch }
    }

    /// Adapters that are plugged into a leaf of another rail: the adapter, its rail, the leaf and the leaf's rail.
    #[must_use]
    pub fn crossed(&self, fabric: &Fabric) -> Vec<(NodeIndex, usize, NodeIndex, usize)> {
        let mut found = Vec::new();
        for (adapter, rail) in &self.of_adapter {
            for (_, _, end) in fabric.links_of(*adapter) {
                if let Some(leaf_rail) = self.of_switch.get(&end.node).filter(|leaf| *leaf != rail)
                {
                    found.push((*adapter, *rail, end.node, *leaf_rail));
                }
            }
        }
        found
    }
}

/// Names of a host's adapters, in order.
fn labels<'a>(fabric: &'a Fabric, host: &Host) -> Vec<&'a str> {
    let mut labels: Vec<&str> = host
        .adapters
        .iter()
        .map(|adapter| fabric.nodes[*adapter].label.as_str())
        .filter(|label| !label.is_empty())
        .collect();
    labels.sort_by_cached_key(|label| describe::natural(label));
    labels.dedup();
    labels
}

/// The rail that most adapters of the same name in hosts of the same kind are on.
fn usual_rails(
    fabric: &Fabric,
    numbered: &BTreeMap<NodeIndex, (usize, usize)>,
    of_switch: &BTreeMap<NodeIndex, usize>,
) -> BTreeMap<NodeIndex, usize> {
    let mut votes: BTreeMap<(usize, usize), BTreeMap<usize, usize>> = BTreeMap::new();
    for (adapter, name) in numbered {
        for rail in fabric.links_of(*adapter).filter_map(|(_, _, end)| of_switch.get(&end.node)) {
            *votes.entry(*name).or_default().entry(*rail).or_default() += 1;
        }
    }
    let usual = |name: &(usize, usize)| {
        let most = votes.get(name)?.iter().max_by_key(|(_, count)| **count)?;
        Some(*most.0)
    };
    numbered.iter().filter_map(|(adapter, name)| Some((*adapter, usual(name)?))).collect()
}

/// The kind of host of each adapter, and its number among the adapters of such hosts. A host with one adapter tells
/// nothing of rails.
fn numbers(fabric: &Fabric) -> BTreeMap<NodeIndex, (usize, usize)> {
    let hosts: Vec<(&Host, Vec<&str>)> = fabric
        .hosts
        .iter()
        .filter(|host| host.named)
        .map(|host| (host, labels(fabric, host)))
        .filter(|(_, labels)| !labels.is_empty())
        .collect();
    // How many hosts have these names, and what such hosts are called like.
    let mut sets: BTreeMap<&[&str], (usize, BTreeSet<String>)> = BTreeMap::new();
    for (host, labels) in hosts.iter().filter(|(_, labels)| labels.len() > 1) {
        let known = sets.entry(labels).or_default();
        known.0 += 1;
        known.1.insert(describe::likeness(&host.name));
    }
    let mut sets: Vec<(&[&str], _)> = sets.into_iter().collect();
    sets.sort_by_key(|(labels, (count, _))| std::cmp::Reverse((*count, labels.len())));
    sets.truncate(CLASSES_MOST);
    let classes: Vec<(BTreeMap<&str, usize>, BTreeSet<String>)> = sets
        .into_iter()
        .map(|(labels, (_, called))| (labels.iter().copied().zip(0..).collect(), called))
        .collect();
    let mut found = BTreeMap::new();
    for (host, own) in &hosts {
        // Of the sets that hold its names the most frequent one, of hosts that are called alike, is that of its equals.
        let called = describe::likeness(&host.name);
        let equals = classes.iter().position(|(class, names)| {
            names.contains(&called) && own.iter().all(|label| class.contains_key(label))
        });
        let Some(kind) = equals else { continue };
        for adapter in &host.adapters {
            if let Some(number) = classes[kind].0.get(fabric.nodes[*adapter].label.as_str()) {
                found.insert(*adapter, (kind, *number));
            }
        }
    }
    found
}
