//! How many shortest ways there are between leaves.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::model::{Fabric, NodeIndex};

/// Leaves from which ways are counted; of more, every n-th.
const SOURCES_MOST: usize = 512;

/// Shortest ways between pairs of leaves, those that are farthest from each other. Parallel cables are ways of their own.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Paths {
    /// The fewest of any pair.
    pub least: u64,
    /// What most pairs have.
    pub usual: u64,
    /// The most of any pair.
    pub most: u64,
    /// Pairs, near ones too, with fewer than is usual at their distance.
    pub fewer: usize,
    /// Pairs without any way.
    pub none: usize,
    /// Pairs that were looked at.
    pub pairs: usize,
    /// Switches on the longest of the shortest ways, both leaves among them.
    pub switches_most: u32,
}

/// Counts them; nothing where there are fewer than two leaves.
#[must_use]
pub fn paths(fabric: &Fabric) -> Option<Paths> {
    let leaves: Vec<NodeIndex> = fabric.tier(1).map(|(index, _)| index).collect();
    if leaves.len() < 2 {
        return None;
    }
    let near = dense(fabric);
    let step = leaves.len().div_ceil(SOURCES_MOST);
    // By how many switches are on the way: near pairs have fewer ways than far ones, and that is well.
    let mut by_distance: BTreeMap<u32, BTreeMap<u64, usize>> = BTreeMap::new();
    let (mut none, mut pairs) = (0, 0);
    for source in leaves.iter().step_by(step) {
        let reached = ways_from(&near, *source, fabric.nodes.len());
        for target in leaves.iter().filter(|target| *target != source) {
            pairs += 1;
            match reached[*target] {
                (0, _) => none += 1,
                (switches, ways) => {
                    *by_distance.entry(switches).or_default().entry(ways).or_default() += 1;
                }
            }
        }
    }
    let usual_of = |ways: &BTreeMap<u64, usize>| {
        ways.iter().max_by_key(|(ways, count)| (**count, **ways)).map_or(0, |(ways, _)| *ways)
    };
    let fewer_of = |ways: &BTreeMap<u64, usize>| -> usize {
        ways.range(..usual_of(ways)).map(|(_, count)| count).sum()
    };
    let nothing = BTreeMap::new();
    let (switches_most, farthest) =
        by_distance.iter().next_back().map_or((0, &nothing), |(switches, ways)| (*switches, ways));
    Some(Paths {
        least: if none > 0 { 0 } else { farthest.keys().next().copied().unwrap_or(0) },
        usual: usual_of(farthest),
        most: farthest.keys().next_back().copied().unwrap_or(0),
        fewer: by_distance.values().map(fewer_of).sum::<usize>() + none,
        none,
        pairs,
        switches_most,
    })
}

fn dense(fabric: &Fabric) -> Vec<Vec<(NodeIndex, u32)>> {
    let mut near = vec![Vec::new(); fabric.nodes.len()];
    for (node, others) in crate::tier::neighbours(fabric) {
        near[node] = others.into_iter().collect();
    }
    near
}

/// For each node: switches on the way, the first among them, and ways. 0 switches: not reached.
fn ways_from(near: &[Vec<(NodeIndex, u32)>], source: NodeIndex, nodes: usize) -> Vec<(u32, u64)> {
    let mut reached = vec![(0_u32, 0_u64); nodes];
    reached[source] = (1, 1);
    let mut queue = VecDeque::from([source]);
    while let Some(node) = queue.pop_front() {
        let (switches, ways) = reached[node];
        for (other, cables) in &near[node] {
            let more = ways.saturating_mul(u64::from(*cables));
            let known = &mut reached[*other];
            if known.0 == 0 {
                *known = (switches + 1, more);
                queue.push_back(*other);
            } else if known.0 == switches + 1 {
                known.1 = known.1.saturating_add(more);
            }
        }
    }
    reached
}
