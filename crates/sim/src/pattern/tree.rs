//! Up and down two binary trees, half the data each: those of the library, over the ranks in a channel's order.

use ringway_plan::algorithm::tree_parents;
use ringway_plan::types::Collective;

use super::{Group, Named};
use crate::work::Stream;

pub(super) fn streams(group: &Group<'_>) -> Vec<Named> {
    let channels = group.channels();
    let mut streams = Vec::new();
    for channel in 0..channels {
        let order = group.order(channel, false);
        let root = order.iter().position(|rank| *rank == group.root()).unwrap_or(0);
        let place = |place: usize| u32::try_from(place).unwrap_or(0);
        let trees = tree_parents(place(order.len()), place(root));
        for (tree, parents) in trees.iter().enumerate() {
            let bytes = group.bytes / 2.0 / f64::from(channels);
            let stream = one(group, &order, parents, (bytes, channel));
            streams.push((format!("channel {channel} tree {tree}"), stream));
        }
    }
    streams
}

fn one(
    group: &Group<'_>,
    order: &[u32],
    parents: &[Option<u32>],
    (bytes, channel): (f64, u32),
) -> Stream {
    let rises = group.call.collective != Collective::Broadcast;
    let falls = group.call.collective != Collective::Reduce;
    let bytes = if group.call.collective == Collective::Barrier { 0.0 } else { bytes };
    let mut flows = Vec::new();
    let mut deepest_us: f64 = 0.0;
    for (place, parent) in parents.iter().enumerate() {
        let Some(parent) = parent else { continue };
        let (child, up) = (order[place], order[*parent as usize]);
        if rises {
            group.between(&mut flows, (child, up), 1.0, channel);
        }
        if falls {
            group.between(&mut flows, (up, child), 1.0, channel);
        }
        // As deep as the logarithm of the ranks.
        let mut depth_us = 0.0;
        let mut at = place;
        while let Some(Some(next)) = parents.get(at) {
            depth_us += group.latency_us(order[at], order[*next as usize]);
            at = *next as usize;
        }
        deepest_us = deepest_us.max(depth_us);
    }
    let passes = if rises && falls { 2.0 } else { 1.0 };
    Stream { bytes, flows, latency_us: passes * deepest_us }
}
