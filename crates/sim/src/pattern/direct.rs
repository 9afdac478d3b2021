//! Straight from source to destination, each flow by itself.

use ringway_plan::types::Collective;

use super::{Group, Named};
use crate::work::Stream;

pub(super) fn streams(group: &Group<'_>) -> Vec<Named> {
    let ranks = &group.ranks;
    let root = group.root();
    let others = || ranks.iter().copied().filter(|rank| *rank != root);
    let block = group.bytes / group.count();
    let mut flows = Vec::new();
    let mut bytes = block;
    match group.call.collective {
        Collective::Gather => {
            others().for_each(|rank| group.between(&mut flows, (rank, root), 1.0, 0));
        }
        Collective::Scatter | Collective::Broadcast => {
            others().for_each(|rank| group.between(&mut flows, (root, rank), 1.0, 0));
        }
        Collective::SendRecv => {
            for (place, rank) in ranks.iter().enumerate() {
                let next = ranks[(place + 1) % ranks.len()];
                group.between(&mut flows, (*rank, next), 1.0, 0);
            }
        }
        _ => {
            flows.reserve(ranks.len() * (ranks.len() - 1) * group.qps as usize);
            for from in ranks {
                for to in ranks.iter().filter(|to| *to != from) {
                    group.between(&mut flows, (*from, *to), 1.0, 0);
                }
            }
        }
    }
    // Messages of one rank begin one after another.
    let mut latency_us = others().map(|rank| group.latency_us(root, rank)).sum();
    match group.call.collective {
        Collective::Broadcast => bytes = group.bytes,
        Collective::SendRecv => {
            bytes = group.bytes;
            let place = |place: usize| ranks[place % ranks.len()];
            let hops = (0..ranks.len()).map(|at| group.latency_us(place(at), place(at + 1)));
            latency_us = hops.fold(0.0, f64::max);
        }
        _ => {}
    }
    vec![(String::new(), Stream { bytes, flows, latency_us })]
}
