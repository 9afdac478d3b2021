//! Around all ranks, or along them.

use ringway_plan::types::Collective;

use super::{Group, Named};
use crate::work::Stream;

pub(super) fn streams(group: &Group<'_>) -> Vec<Named> {
    let channels = group.channels();
    (0..channels)
        .map(|channel| (format!("channel {channel}"), channel_stream(group, channel, channels)))
        .collect()
}

fn channel_stream(group: &Group<'_>, channel: u32, channels: u32) -> Stream {
    let count = group.count();
    let share = group.bytes / f64::from(channels);
    let mut order = group.order(channel, true);
    // How often a byte passes each link, and each hop's latency counts.
    let (around, passes) = match group.call.collective {
        Collective::AllReduce => (true, 2.0 * (count - 1.0) / count),
        Collective::ReduceScatter | Collective::AllGather => (true, (count - 1.0) / count),
        Collective::Barrier => (true, 2.0 * (count - 1.0) / count),
        _ => (false, 1.0),
    };
    let bytes = match group.call.collective {
        Collective::Barrier => 0.0,
        _ => share * passes,
    };
    if !around {
        let root = order.iter().position(|rank| *rank == group.root()).unwrap_or(0);
        // A broadcast begins with the root, a reduction ends there.
        let ends = usize::from(group.call.collective == Collective::Reduce);
        let first = (root + ends) % order.len();
        order.rotate_left(first);
    }
    let hops = if around { order.len() } else { order.len() - 1 };
    let mut flows = Vec::with_capacity(hops * group.qps as usize);
    let mut latency_us = 0.0;
    for hop in 0..hops {
        let ends = (order[hop], order[(hop + 1) % order.len()]);
        latency_us += group.latency_us(ends.0, ends.1) * passes;
        group.between(&mut flows, ends, 1.0, channel);
    }
    if !around {
        latency_us += group.fill_us(hops, share);
    }
    Stream { bytes, flows, latency_us }
}
