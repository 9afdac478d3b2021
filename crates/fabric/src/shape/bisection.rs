//! What crosses the middle of a fabric.
//!
//! Hosts are cut into two halves, each plane of a fabric that has several alike. What a leaf can send up is the
//! less of what its hosts send and what its uplinks carry; likewise for every tier above; half of what the
//! narrowest tier carries crosses the middle.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::{Fabric, Kind, NodeIndex};
use crate::rate::Rate;

/// What crosses the middle, in Gb/s in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bisection {
    /// What the links carry.
    pub gbps: f64,
    /// What half of the hosts could send.
    pub wanted_gbps: f64,
}

impl Bisection {
    /// The part of what hosts could send; 1 where nothing is in the way.
    #[must_use]
    pub fn part(&self) -> f64 {
        if self.wanted_gbps > 0.0 { self.gbps / self.wanted_gbps } else { 1.0 }
    }
}

/// Computes it.
#[must_use]
pub fn bisection(fabric: &Fabric) -> Bisection {
    let unknown = fabric.links.iter().filter_map(|link| link.rate).min().map_or(1.0, Rate::gbps);
    let worth = |rate: Option<Rate>| rate.map_or(unknown, Rate::gbps);
    let mut total = Bisection::default();
    for part in parts(fabric) {
        let mut from_hosts = 0.0;
        // By tier: what passes from it to the one above.
        let mut passes: BTreeMap<u8, f64> = BTreeMap::new();
        let top = part.iter().map(|node| fabric.nodes[*node].tier).max().unwrap_or(1);
        for node in &part {
            let tier = fabric.nodes[*node].tier;
            let (mut down, mut up) = (0.0, 0.0);
            for (_, link, end) in fabric.links_of(*node) {
                let other = &fabric.nodes[end.node];
                match other.kind {
                    Kind::Adapter => {
                        down += worth(link.rate);
                        from_hosts += worth(link.rate);
                    }
                    Kind::Switch if other.tier < tier => down += worth(link.rate),
                    Kind::Switch if other.tier > tier => up += worth(link.rate),
                    _ => {}
                }
            }
            if tier < top {
                *passes.entry(tier).or_default() += f64::min(down, up);
            }
        }
        let leaves = part.iter().filter(|node| fabric.nodes[**node].tier == 1).count();
        // Leaves that are linked to each other alone: half of those links cross.
        let among = if top == 1 && leaves > 1 { mesh(fabric, &part, worth) } else { f64::INFINITY };
        let narrowest = passes.values().copied().fold(f64::min(from_hosts, among), f64::min);
        total.gbps += narrowest / 2.0;
        total.wanted_gbps += from_hosts / 2.0;
    }
    total
}

fn mesh(fabric: &Fabric, part: &[NodeIndex], worth: impl Fn(Option<Rate>) -> f64) -> f64 {
    let ends = part.iter().flat_map(|node| fabric.links_of(*node));
    let between = ends.filter(|(_, _, end)| fabric.nodes[end.node].kind == Kind::Switch);
    // Each link is seen from both ends.
    between.map(|(_, link, _)| worth(link.rate)).sum::<f64>() / 2.0
}

/// Switches that are linked to each other, part by part; only parts with hosts.
#[must_use]
pub(crate) fn parts(fabric: &Fabric) -> Vec<Vec<NodeIndex>> {
    let near = crate::tier::neighbours(fabric);
    let mut seen = vec![false; fabric.nodes.len()];
    let mut parts = Vec::new();
    for (start, _) in fabric.switches() {
        if seen[start] {
            continue;
        }
        seen[start] = true;
        let mut part = vec![start];
        let mut at = 0;
        while at < part.len() {
            for other in near.get(&part[at]).into_iter().flat_map(BTreeMap::keys) {
                if !seen[*other] {
                    seen[*other] = true;
                    part.push(*other);
                }
            }
            at += 1;
        }
        let has_hosts = part.iter().any(|node| {
            fabric.links_of(*node).any(|(_, _, end)| fabric.nodes[end.node].kind == Kind::Adapter)
        });
        if has_hosts {
            parts.push(part);
        }
    }
    parts
}
