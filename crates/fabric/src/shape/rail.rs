//! Rails: which adapter of a host goes to which leaf.
//!
//! In a rail-optimised fabric the first adapters of all hosts of a unit meet on one leaf, the second ones on
//! another. A host's adapters are counted by their names among those of its equals: a host that lost one adapter
//! keeps the numbers of the others.

use std::collections::BTreeMap;

use crate::describe;
use crate::model::{Fabric, Host, Kind, NodeIndex};

/// Sets of names that are taken for those of whole hosts; of more, the most frequent.
const CLASSES_MOST: usize = 32;
/// A leaf is of a rail when so many of its adapters are, in percent.
const LEAF_PERCENT: usize = 75;
/// A fabric has rails when so many of its leaves do, in percent.
const FABRIC_PERCENT: usize = 80;

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
        let of_adapter = numbers(fabric);
        let mut on_leaf: BTreeMap<NodeIndex, BTreeMap<usize, usize>> = BTreeMap::new();
        for (adapter, rail) in &of_adapter {
            for (_, _, end) in fabric.links_of(*adapter) {
                if fabric.nodes[end.node].kind == Kind::Switch {
                    *on_leaf.entry(end.node).or_default().entry(*rail).or_default() += 1;
                }
            }
        }
        let leaves = on_leaf.len();
        let mut of_switch = BTreeMap::new();
        for (leaf, rails) in &on_leaf {
            let all: usize = rails.values().sum();
            let most =
                rails.iter().max_by_key(|(rail, count)| (**count, std::cmp::Reverse(**rail)));
            if let Some((rail, count)) = most
                && count * 100 >= all * LEAF_PERCENT
            {
                of_switch.insert(*leaf, *rail);
            }
        }
        let mut served: Vec<usize> = of_switch.values().copied().collect();
        served.sort_unstable();
        served.dedup();
        let railed = served.len() > 1 && of_switch.len() * 100 >= leaves * FABRIC_PERCENT;
        if !railed {
            return Self { count: 1, of_adapter, of_switch: BTreeMap::new() };
        }
        Self { count: served.len(), of_adapter, of_switch }
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

/// The number of each adapter among those of its host's equals.
fn numbers(fabric: &Fabric) -> BTreeMap<NodeIndex, usize> {
    let mut sets: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
    let hosts: Vec<(&Host, Vec<&str>)> = fabric
        .hosts
        .iter()
        .filter(|host| host.named)
        .map(|host| (host, labels(fabric, host)))
        .filter(|(_, labels)| !labels.is_empty())
        .collect();
    for (_, labels) in &hosts {
        *sets.entry(labels.clone()).or_default() += 1;
    }
    let mut sets: Vec<(Vec<&str>, usize)> = sets.into_iter().collect();
    sets.sort_by_key(|(labels, count)| std::cmp::Reverse((*count, labels.len())));
    sets.truncate(CLASSES_MOST);
    let classes: Vec<BTreeMap<&str, usize>> =
        sets.iter().map(|(labels, _)| labels.iter().copied().zip(0..).collect()).collect();
    let mut found = BTreeMap::new();
    for (host, own) in hosts {
        // Of the sets that hold its names the most frequent one is that of its equals.
        let equals = classes.iter().find(|class| own.iter().all(|label| class.contains_key(label)));
        let alone: BTreeMap<&str, usize>;
        let class = match equals {
            Some(class) => class,
            None => {
                alone = own.iter().copied().zip(0..).collect();
                &alone
            }
        };
        for adapter in &host.adapters {
            if let Some(number) = class.get(fabric.nodes[*adapter].label.as_str()) {
                found.insert(*adapter, *number);
            }
        }
    }
    found
}
