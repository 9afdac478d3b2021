//! What is at the ends of a fabric: hosts with GPUs, the links between them, and the way to the adapters.

use ringway_plan::topology::path::Paths;
use ringway_plan::topology::{Kind, LinkKind, NodeIndex, Topology};

use crate::error::SimError;

/// A host. All hosts of a simulation are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// GPUs a host: each is a rank.
    pub gpus: usize,
    /// GB/s of a GPU to the others of its host, in each direction, through a switch that blocks nobody.
    pub inside_gbytes: f64,
    /// GB/s between a GPU and an adapter in each direction (PCIe); shared by the GPUs of that adapter.
    pub bus_gbytes: f64,
    /// Microseconds from a send to its arrival inside a host.
    pub inside_us: f64,
    /// Microseconds from a send to its arrival between hosts, without switches.
    pub net_us: f64,
    /// Microseconds of each switch.
    pub switch_us: f64,
    /// GB/s at which a GPU reduces or copies in its own memory.
    pub memory_gbytes: f64,
    /// Whether messages to another rail go through the GPU of that rail in the sender's host first.
    pub through_rail: bool,
}

impl Default for Machine {
    /// Eight GPUs on an NVSwitch of the Hopper generation.
    fn default() -> Self {
        Self {
            gpus: 8,
            inside_gbytes: 450.0,
            bus_gbytes: 64.0,
            inside_us: 1.0,
            net_us: 3.0,
            switch_us: 0.3,
            memory_gbytes: 1500.0,
            through_rail: true,
        }
    }
}

impl Machine {
    /// A host as a topology describes it: GPUs, what their NVLinks (or XGMI) carry together, and the PCI links to the
    /// nearest adapter. What a topology does not tell is the default's.
    ///
    /// # Errors
    ///
    /// When there is no GPU, or nothing joins them.
    pub fn from_topology(topology: &Topology) -> Result<Self, SimError> {
        let wrong = |what: String| Err(SimError::Network(what));
        let gpus = topology.gpus();
        let Some(first) = gpus.first() else {
            return wrong("the topology has no GPU".to_owned());
        };
        let host = topology.nodes[*first].host;
        let gpus: Vec<NodeIndex> =
            gpus.into_iter().filter(|gpu| topology.nodes[*gpu].host == host).collect();
        let paths = Paths::physical(topology);
        let least = |one: f64, other: f64| if one <= other { one } else { other };
        let mut machine = Self { gpus: gpus.len(), ..Self::default() };
        if gpus.len() > 1 {
            let inside = gpus.iter().map(|gpu| inside_gbytes(topology, &paths, *gpu, &gpus));
            machine.inside_gbytes = inside.fold(f64::INFINITY, least);
            if machine.inside_gbytes <= 0.0 {
                return wrong(format!("nothing joins the {} GPUs of the topology", gpus.len()));
            }
        }
        let nets = topology.nets();
        let bus = gpus.iter().filter_map(|gpu| bus_gbytes(topology, &paths, *gpu, &nets));
        let bus = bus.fold(f64::INFINITY, least);
        if !nets.is_empty() {
            if !bus.is_finite() || bus <= 0.0 {
                return wrong("no GPU of the topology has a way to a network port".to_owned());
            }
            machine.bus_gbytes = bus;
        }
        Ok(machine)
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        if self.gpus == 0 {
            return Err(SimError::Network("a host without GPUs has no ranks".to_owned()));
        }
        for (name, value) in [
            ("inside", self.inside_gbytes),
            ("bus", self.bus_gbytes),
            ("memory", self.memory_gbytes),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(SimError::Network(format!("{name}: {value} GB/s is no bandwidth")));
            }
        }
        for (name, value) in
            [("inside", self.inside_us), ("net", self.net_us), ("switch", self.switch_us)]
        {
            if !(value.is_finite() && value >= 0.0) {
                return Err(SimError::Network(format!("{name}: {value} µs is no latency")));
            }
        }
        Ok(())
    }
}

/// All NVLinks of a GPU together or, without any, the slowest way to another GPU.
fn inside_gbytes(topology: &Topology, paths: &Paths, gpu: NodeIndex, gpus: &[NodeIndex]) -> f64 {
    let fast = |kind| matches!(kind, LinkKind::NvLink(_) | LinkKind::Xgmi(_));
    let links = topology.links.iter().filter(|link| link.from == gpu && fast(link.kind));
    let sum: f64 = links.map(|link| link.gb_per_s).fold(0.0, |sum, one| sum + one);
    if sum > 0.0 {
        return sum;
    }
    let others = gpus.iter().filter(|other| **other != gpu);
    others.map(|other| paths.get(gpu, *other).gb_per_s).fold(f64::INFINITY, f64::min)
}

/// The slowest PCI link on the way from a GPU to its nearest port; that of the network is the fabric's.
fn bus_gbytes(
    topology: &Topology,
    paths: &Paths,
    gpu: NodeIndex,
    nets: &[NodeIndex],
) -> Option<f64> {
    let net = *paths.nearest(gpu, nets).first()?;
    let nodes = paths.nodes(gpu, net);
    let mut least: Option<f64> = None;
    for pair in nodes.windows(2) {
        if matches!(topology.nodes[pair[1]].kind, Kind::Net(_)) {
            continue;
        }
        let link = topology.links.iter().find(|link| link.from == pair[0] && link.to == pair[1])?;
        least = Some(least.map_or(link.gb_per_s, |least| least.min(link.gb_per_s)));
    }
    least
}

#[cfg(test)]
mod tests;
