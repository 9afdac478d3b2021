//! Which NIC each GPU uses, and which rail that makes.
//!
//! *Invariant:* the choice is NCCL's: the ports with the highest bandwidth, of these the nearest, and
//! GPUs that are equally near to several ports are spread over them.

use serde::Serialize;

use super::level::{Levels, Verdict};
use super::path::{PathClass, Paths};
use super::{NodeIndex, Topology};

/// Channels NCCL has at the most.
const CHANNELS_MOST: usize = 64;

/// A GPU with the port it uses first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Affinity {
    /// The GPU's node.
    pub gpu: NodeIndex,
    /// The port's node; none where the GPU reaches no NIC.
    pub net: Option<NodeIndex>,
    /// The other ports it takes turns with.
    pub others: Vec<NodeIndex>,
    /// What lies between.
    pub class: PathClass,
    /// GB/s, as NCCL counts.
    pub gb_per_s: f64,
    /// The NUMA node of the GPU.
    pub numa: Option<i64>,
    /// The rail: the number of the port among those in use, in order.
    pub rail: Option<usize>,
    /// Whether the NIC reaches the GPU's memory itself.
    pub gdr: Verdict,
}

/// The ports a GPU takes in turn, channel by channel.
struct Turns {
    near: Vec<NodeIndex>,
    start: usize,
    each: usize,
}

impl Turns {
    fn of(topology: &Topology, paths: &Paths, gpu: NodeIndex, ends: &Ends) -> Option<Self> {
        let near = paths.nearest(gpu, &ends.nets);
        let first = *near.first()?;
        let sharing = paths.nearest(first, &ends.gpus).len().max(1);
        let each = near.len().div_ceil(sharing);
        let dev = usize::try_from(topology.gpu(gpu)?.dev).unwrap_or(0);
        let mut start = dev % sharing;
        if near.len().is_power_of_two() {
            start = mirrored(start, near.len());
        }
        Some(Self { near, start, each })
    }

    fn port(&self, channel: usize) -> NodeIndex {
        self.near[(self.start + channel % self.each) % self.near.len()]
    }

    /// The first channel on which the port is used.
    fn channel(&self, port: NodeIndex) -> Option<usize> {
        (0..self.each.min(CHANNELS_MOST)).find(|channel| self.port(*channel) == port)
    }
}

/// The GPUs and the ports in use, in order.
pub(super) struct Ends {
    pub(super) gpus: Vec<NodeIndex>,
    pub(super) nets: Vec<NodeIndex>,
}

impl Ends {
    pub(super) fn of(topology: &Topology) -> Self {
        let used = |net: &NodeIndex| topology.net(*net).is_some_and(|net| net.unused.is_none());
        Self { gpus: topology.gpus(), nets: topology.nets().into_iter().filter(used).collect() }
    }
}

impl Paths {
    /// The port a GPU uses on a channel.
    #[must_use]
    pub fn net_of_gpu(
        &self,
        topology: &Topology,
        gpu: NodeIndex,
        channel: usize,
    ) -> Option<NodeIndex> {
        let turns = Turns::of(topology, self, gpu, &Ends::of(topology))?;
        Some(turns.port(channel))
    }

    /// The GPU that a port serves first, which others may use it through.
    pub(super) fn gpu_of_net(
        &self,
        topology: &Topology,
        net: NodeIndex,
        ends: &Ends,
    ) -> Option<NodeIndex> {
        let near = self.nearest(net, &ends.gpus);
        let first = |gpu: &NodeIndex| {
            let turns = Turns::of(topology, self, *gpu, ends)?;
            Some((turns.channel(net)?, *gpu))
        };
        near.iter().filter_map(first).min_by_key(|(channel, _)| *channel).map(|(_, gpu)| gpu)
    }
}

/// The bits of a number below a power of two, the other way round: neighbours get ports far apart.
fn mirrored(value: usize, power: usize) -> usize {
    let bits = power.trailing_zeros();
    (0..bits).fold(0, |mirror, bit| mirror | (value >> bit & 1) << (bits - 1 - bit))
}

/// Every GPU with its port.
#[must_use]
pub fn affinities(topology: &Topology, paths: &Paths, levels: &Levels) -> Vec<Affinity> {
    let ends = Ends::of(topology);
    let gpus = &ends.gpus;
    let chosen: Vec<Vec<NodeIndex>> = gpus
        .iter()
        .map(|gpu| match Turns::of(topology, paths, *gpu, &ends) {
            Some(turns) => (0..turns.each).map(|channel| turns.port(channel)).collect(),
            None => Vec::new(),
        })
        .collect();
    let rails = rails(&ends, &chosen);
    gpus.iter()
        .zip(&chosen)
        .map(|(&gpu, ports)| {
            let net = ports.first().copied();
            let path = net.map(|net| paths.get(gpu, net));
            let cpu = topology.cpu_of(gpu).and_then(|cpu| topology.cpu(cpu));
            let none = || Verdict { used: false, reason: "the GPU reaches no NIC".to_owned() };
            Affinity {
                gpu,
                net,
                others: ports.iter().skip(1).copied().collect(),
                class: path.map_or(PathClass::Dis, |path| path.class),
                gb_per_s: path.map_or(0.0, |path| path.gb_per_s),
                numa: cpu.map(|cpu| cpu.numa).filter(|numa| *numa >= 0),
                rail: net.and_then(|net| rails.iter().position(|rail| *rail == net)),
                gdr: net.map_or_else(none, |net| levels.gdr(topology, paths, gpu, net)),
            }
        })
        .collect()
}

/// The ports in use, in their order: rail i is the i-th.
fn rails(ends: &Ends, chosen: &[Vec<NodeIndex>]) -> Vec<NodeIndex> {
    let used = |net: &NodeIndex| chosen.iter().any(|ports| ports.contains(net));
    ends.nets.iter().copied().filter(used).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn bits_are_mirrored() {
        let row: Vec<usize> = (0..8).map(|value| super::mirrored(value, 8)).collect();
        assert_eq!(row, [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(super::mirrored(0, 1), 0);
    }
}
