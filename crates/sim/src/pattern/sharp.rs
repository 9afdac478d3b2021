//! Reduced by switches: each rail's slice goes up a tree of switches once, and down once.
//!
//! The tree of a rail stands on the leaves of its adapters. Its top is a switch that is as near as can be to
//! the farthest of them; of those that are, each rail takes another. Where ranks have several adapters, a rail has a tree
//! for each, with as much of the slice. Only all_reduce is done so: what comes down reaches everybody.

use std::collections::{BTreeMap, BTreeSet};

use super::layered::{Layer, normal};
use super::{Group, Named};
use crate::error::SimError;
use crate::network::{FAR, Place};
use crate::work::{Flow, Stream};

pub(super) fn streams(group: &Group<'_>) -> Result<Vec<Named>, SimError> {
    let rails = group.hosts.iter().map(Vec::len).min().unwrap_or(1);
    let mut streams = Vec::new();
    for rail in 0..rails {
        let own = group.hosts.iter().map(|host| group.own_adapters(host[rail]));
        let ways = own.min().unwrap_or(1);
        for way in 0..ways {
            let name = match ways {
                1 => format!("rail {rail}"),
                _ => format!("rail {rail} adapter {way}"),
            };
            streams.push((name, Slice { group, rail, rails, way, ways }.stream()?));
        }
    }
    Ok(streams)
}

/// What goes by one adapter of each rank of a rail.
struct Slice<'a> {
    group: &'a Group<'a>,
    rail: usize,
    rails: usize,
    way: u32,
    ways: u32,
}

impl Slice<'_> {
    fn stream(&self) -> Result<Stream, SimError> {
        let group = self.group;
        let bytes = group.bytes / super::amount(self.rails) / f64::from(self.ways);
        let layer = Layer { group, rail: self.rail, rails: self.rails };
        let mut flows = Vec::new();
        let mut latency_us = layer.take(&mut flows, bytes) + layer.give(&mut flows, bytes);
        if group.hosts.len() > 1 {
            let tree = Tree::new(self)?;
            let switch =
                |place: u32| Place::Switch(group.network.switches[place as usize] as usize);
            for (rank, leaf) in &tree.leaves {
                let own = group.own_adapters(*rank);
                self.both_ways(&mut flows, (Place::Rank(*rank), switch(*leaf)), bytes, own);
            }
            for (child, up) in &tree.parents {
                self.both_ways(&mut flows, (switch(*child), switch(*up)), bytes, self.ways);
            }
            let machine = &group.network.machine;
            let way_us = machine.net_us + machine.switch_us * f64::from(tree.depth + 1);
            latency_us += way_us * 2.0;
        }
        Ok(normal(flows, latency_us))
    }

    /// Up and down between two places, by the adapter of this slice where a rank has `own` of them.
    fn both_ways(&self, flows: &mut Vec<Flow>, ends: (Place, Place), bytes: f64, own: u32) {
        let qps = self.group.qps;
        for qp in 0..qps {
            let nth = self.rail as u64 * u64::from(qps) + u64::from(qp);
            let key = nth * u64::from(own) + u64::from(self.way);
            let share = bytes / f64::from(qps);
            flows.push(Flow { from: ends.0, to: ends.1, share, key });
            flows.push(Flow { from: ends.1, to: ends.0, share, key });
        }
    }
}

/// A tree of switches, by their places.
struct Tree {
    /// The leaf of each rank.
    leaves: Vec<(u32, u32)>,
    parents: BTreeMap<u32, u32>,
    depth: u16,
}

impl Tree {
    fn new(slice: &Slice<'_>) -> Result<Self, SimError> {
        let Slice { group, rail, .. } = *slice;
        let network = group.network;
        let mut leaves = Vec::new();
        for host in &group.hosts {
            let adapter = network.adapter_of(host[rail], slice.way.into());
            let cables = network.cables.of(adapter).iter();
            let mut switches = cables.map(|(_, far)| network.switch_of[*far as usize]);
            let Some(leaf) = switches.find(|place| *place != u32::MAX) else {
                return Err(SimError::Call(format!(
                    "{}: {} is plugged into no switch that could reduce",
                    group.call.name,
                    network.rank_name(host[rail])
                )));
            };
            leaves.push((host[rail], leaf));
        }
        let bottom: BTreeSet<u32> = leaves.iter().map(|(_, leaf)| *leaf).collect();
        let mut tree = Self { leaves, parents: BTreeMap::new(), depth: 0 };
        if bottom.len() == 1 {
            return Ok(tree);
        }
        let mut farthest = vec![0; network.switches.len()];
        for leaf in &bottom {
            for (most, far) in farthest.iter_mut().zip(network.distances(*leaf)) {
                *most = (*far).max(*most);
            }
        }
        tree.depth = farthest.iter().copied().min().unwrap_or(FAR);
        if tree.depth == FAR {
            let why = "no switch is linked to the leaves of all its hosts";
            return Err(SimError::Call(format!("{}: {why}", group.call.name)));
        }
        let tops = || (0..).zip(&farthest).filter(|(_, far)| **far == tree.depth);
        let top: Option<(u32, &u16)> = tops().nth(rail % tops().count());
        let Some((top, _)) = top else { return Ok(tree) };
        let far = network.distances(top);
        for leaf in bottom {
            let mut at = leaf;
            while at != top && !tree.parents.contains_key(&at) {
                let node = network.switches[at as usize] as usize;
                let nearer: BTreeSet<u32> = network
                    .cables
                    .of(node)
                    .iter()
                    .map(|(_, far)| network.switch_of[*far as usize])
                    .filter(|p| *p != u32::MAX && far[*p as usize] < far[at as usize])
                    .collect();
                let joined = nearer.iter().find(|p| **p == top || tree.parents.contains_key(p));
                let next = joined.or_else(|| nearer.iter().nth(rail % nearer.len().max(1)));
                let Some(next) = next.copied() else { break };
                tree.parents.insert(at, next);
                at = next;
            }
        }
        Ok(tree)
    }
}
