//! Paths between GPUs, NICs and CPUs: what they go through, and how fast they are.
//!
//! [`Paths::physical`] has the shortest way through the hardware, which `nvidia-smi topo -m` shows.
//! [`Paths::as_used`] has the way NCCL takes: over the CPU where GPUs may not reach each other or
//! a NIC directly, over another GPU where that is nearer to the NIC (PXN).
//!
//! *Invariant:* a path's class is the worst of its parts, its bandwidth that of the slowest.

use std::fmt;

use serde::{Serialize, Serializer};

use super::level::Levels;
use super::nearest::Ends;
use super::{Kind, Link, LinkKind, NodeIndex, Topology};

/// What a path goes through, the best first, as NCCL orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathClass {
    /// The same device.
    Loc,
    /// NVLink or XGMI.
    Nvl,
    /// NVLink through another GPU.
    Nvb,
    /// Chip to chip between CPU and GPU.
    C2c,
    /// One PCI switch.
    Pix,
    /// Several PCI switches.
    Pxb,
    /// Chip to chip to the CPU, then PCI to the NIC.
    P2c,
    /// NVLink to another GPU, then PCI to the NIC.
    Pxn,
    /// The PCI host bridge of a CPU.
    Phb,
    /// The link between NUMA nodes.
    Sys,
    /// The network.
    Net,
    /// There is no path.
    Dis,
}

impl PathClass {
    /// All classes, the best first.
    pub const ALL: [Self; 12] = [
        Self::Loc,
        Self::Nvl,
        Self::Nvb,
        Self::C2c,
        Self::Pix,
        Self::Pxb,
        Self::P2c,
        Self::Pxn,
        Self::Phb,
        Self::Sys,
        Self::Net,
        Self::Dis,
    ];

    /// NCCL's name: `PIX`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loc => "LOC",
            Self::Nvl => "NVL",
            Self::Nvb => "NVB",
            Self::C2c => "C2C",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::P2c => "P2C",
            Self::Pxn => "PXN",
            Self::Phb => "PHB",
            Self::Sys => "SYS",
            Self::Net => "NET",
            Self::Dis => "DIS",
        }
    }
}

impl fmt::Display for PathClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for PathClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Path {
    /// What it goes through.
    pub class: PathClass,
    /// GB/s, as NCCL counts.
    pub gb_per_s: f64,
    /// Links on it.
    pub hops: u32,
    /// The CPU or GPU that NCCL sends it through, where the hardware has a shorter way.
    pub via: Option<NodeIndex>,
    /// What the hardware's own way goes through.
    pub direct: PathClass,
    /// The next node on the way.
    next: Option<NodeIndex>,
}

const NO_PATH: Path = Path {
    class: PathClass::Dis,
    gb_per_s: 0.0,
    hops: 0,
    via: None,
    direct: PathClass::Dis,
    next: None,
};

/// Paths from every node to every GPU, NIC port and CPU.
#[derive(Clone, Debug)]
pub struct Paths {
    /// For each node that is an end: the path to it from each node.
    to: Vec<Option<Vec<Path>>>,
}

impl Paths {
    /// The shortest ways through the hardware.
    #[must_use]
    pub fn physical(topology: &Topology) -> Self {
        let mut links: Vec<Vec<Link>> = vec![Vec::new(); topology.nodes.len()];
        for link in &topology.links {
            links[link.from].push(*link);
        }
        for row in &mut links {
            // NCCL tries the fastest first; among equals, the first on the list.
            row.sort_by(|a, b| b.gb_per_s.total_cmp(&a.gb_per_s));
        }
        let to = (0..topology.nodes.len())
            .map(|end| match topology.nodes[end].kind {
                Kind::Cpu(_) | Kind::Gpu(_) | Kind::Net(_) => Some(search(topology, &links, end)),
                Kind::Pci(_) | Kind::NvSwitch | Kind::Nic => None,
            })
            .collect();
        Self { to }
    }

    /// The ways NCCL takes, with these settings.
    #[must_use]
    pub fn as_used(topology: &Topology, levels: &Levels) -> Self {
        let graph = topology.as_nccl_sees_it();
        let mut paths = Self::physical(&graph);
        let ends = Ends::of(&graph);
        let Ends { gpus, nets } = &ends;
        let (p2p_level, _) = levels.p2p_level(&graph);
        for &from in gpus {
            for &to in gpus {
                if from != to && paths.get(from, to).class > p2p_level {
                    paths.divert_through_cpu(&graph, from, to, to);
                }
            }
        }
        for &gpu in gpus {
            paths.prefer_chip_to_chip(&graph, gpu, nets);
        }
        for &net in nets {
            let helper = paths.gpu_of_net(&graph, net, &ends);
            for &gpu in gpus {
                if let Some(helper) = helper.filter(|helper| *helper != gpu && levels.pxn) {
                    paths.consider_pxn(&graph, levels, gpu, helper, net);
                }
                let near = paths.get(gpu, net).class < PathClass::Phb;
                if near && !levels.gdr(&graph, &paths, gpu, net).used {
                    paths.divert_through_cpu(&graph, gpu, net, gpu);
                    paths.divert_through_cpu(&graph, net, gpu, gpu);
                }
            }
        }
        paths
    }

    /// The path between two nodes; the second must be a GPU, a NIC's port or a CPU.
    #[must_use]
    pub fn get(&self, from: NodeIndex, to: NodeIndex) -> Path {
        let row = self.to.get(to).and_then(Option::as_ref);
        row.and_then(|row| row.get(from)).copied().unwrap_or(NO_PATH)
    }

    /// The nodes on the way, both ends with it; empty where there is no path.
    #[must_use]
    pub fn nodes(&self, from: NodeIndex, to: NodeIndex) -> Vec<NodeIndex> {
        let path = self.get(from, to);
        if path.class == PathClass::Dis {
            return Vec::new();
        }
        if let Some(via) = path.via {
            let mut nodes = self.direct_nodes(from, via);
            nodes.extend(self.direct_nodes(via, to).into_iter().skip(1));
            return nodes;
        }
        self.direct_nodes(from, to)
    }

    fn direct_nodes(&self, from: NodeIndex, to: NodeIndex) -> Vec<NodeIndex> {
        let mut nodes = vec![from];
        let mut at = from;
        while at != to && nodes.len() <= self.to.len() {
            let Some(next) = self.get(at, to).next else { return Vec::new() };
            nodes.push(next);
            at = next;
        }
        nodes
    }

    /// The nearest of some nodes: highest bandwidth, then best class, as NCCL orders them; then
    /// the shortest way through the hardware, so that a GPU without GPUDirect, whose data goes
    /// through the CPU anyway, still takes the NIC of its switch.
    #[must_use]
    pub fn nearest(&self, from: NodeIndex, among: &[NodeIndex]) -> Vec<NodeIndex> {
        let mut best = (f64::INFINITY, PathClass::Dis, PathClass::Dis);
        let mut found = Vec::new();
        for &to in among {
            let path = self.get(from, to);
            let order = (-path.gb_per_s, path.class, path.direct);
            if path.gb_per_s > 0.0 && order < best {
                best = order;
                found.clear();
            }
            if order == best {
                found.push(to);
            }
        }
        found
    }

    /// The CPU next to a GPU: the nearest, by the fewest links.
    pub(super) fn local_cpu(&self, topology: &Topology, gpu: NodeIndex) -> Option<NodeIndex> {
        let near = self.nearest(gpu, &topology.cpus());
        near.into_iter().min_by_key(|cpu| self.get(gpu, *cpu).hops)
    }

    fn set(&mut self, from: NodeIndex, to: NodeIndex, path: Path) {
        if let Some(slot) = self.to[to].as_mut().and_then(|row| row.get_mut(from)) {
            *slot = path;
        }
    }

    fn joined(&self, from: NodeIndex, via: NodeIndex, to: NodeIndex) -> Path {
        let (first, second) = (self.get(from, via), self.get(via, to));
        let (best, worst) = (first.class.min(second.class), first.class.max(second.class));
        let class = match (best, worst) {
            (PathClass::C2c, PathClass::Phb) => PathClass::P2c,
            _ => worst,
        };
        Path {
            class,
            gb_per_s: first.gb_per_s.min(second.gb_per_s),
            hops: first.hops.saturating_add(second.hops),
            via: Some(via),
            direct: self.get(from, to).direct,
            next: first.next,
        }
    }

    /// Sends a path over the CPU next to `near`.
    fn divert_through_cpu(
        &mut self,
        topology: &Topology,
        from: NodeIndex,
        to: NodeIndex,
        near: NodeIndex,
    ) {
        if let Some(cpu) = self.local_cpu(topology, near) {
            self.set(from, to, self.joined(from, cpu, to));
        }
    }

    /// Where the GPU hangs on its CPU by a chip-to-chip link, the way to the CPU's own NICs is good.
    fn prefer_chip_to_chip(&mut self, topology: &Topology, gpu: NodeIndex, nets: &[NodeIndex]) {
        let Some(cpu) = self.local_cpu(topology, gpu) else { return };
        for net in self.nearest(gpu, nets) {
            let classes = (self.get(gpu, cpu).class, self.get(net, cpu).class);
            let both = [(PathClass::C2c, PathClass::Phb), (PathClass::Phb, PathClass::C2c)];
            if both.contains(&classes) {
                for (from, to) in [(gpu, net), (net, gpu)] {
                    let path = self.get(from, to);
                    let class = path.class.min(PathClass::P2c);
                    self.set(from, to, Path { class, ..path });
                }
            }
        }
    }

    fn consider_pxn(
        &mut self,
        topology: &Topology,
        levels: &Levels,
        gpu: NodeIndex,
        helper: NodeIndex,
        net: NodeIndex,
    ) {
        let (mine, theirs) = (self.get(gpu, net), self.get(helper, net));
        let reaches =
            theirs.class <= levels.pxn_class() && levels.gdr_read(topology, self, helper, net).used;
        let linked = self.get(helper, gpu).class <= PathClass::Nvl;
        let same_host = topology.nodes[gpu].host == topology.nodes[helper].host;
        let worth = theirs.gb_per_s > mine.gb_per_s || mine.class > PathClass::Pxn;
        if reaches && linked && same_host && worth {
            let path = self.joined(gpu, helper, net);
            self.set(gpu, net, Path { class: PathClass::Pxn, ..path });
        }
    }
}

/// The best path from every node to one, breadth first.
fn search(topology: &Topology, links: &[Vec<Link>], end: NodeIndex) -> Vec<Path> {
    let mut paths = vec![NO_PATH; topology.nodes.len()];
    let here = super::graph::LOCAL_GB_PER_S;
    paths[end] = Path { class: PathClass::Loc, gb_per_s: here, direct: PathClass::Loc, ..NO_PATH };
    let kind = |index: NodeIndex| &topology.nodes[index].kind;
    let is_gpu = |index| matches!(kind(index), Kind::Gpu(_));
    let is_pci = |index| matches!(kind(index), Kind::Pci(_));
    let is_cpu = |index| matches!(kind(index), Kind::Cpu(_));
    let mut frontier = vec![end];
    while !frontier.is_empty() {
        let mut reached = Vec::new();
        for node in frontier {
            let path = paths[node];
            for link in &links[node] {
                let far = link.to;
                let fast = matches!(link.kind, LinkKind::NvLink(_) | LinkKind::Xgmi(_));
                // Through a GPU, only one more NVLink may follow.
                let passes = fast && is_gpu(far) && path.hops <= 1;
                if node != end && is_gpu(node) && !passes {
                    continue;
                }
                let class = match link.kind {
                    LinkKind::Local | LinkKind::Net => PathClass::Loc,
                    LinkKind::NvLink(_) | LinkKind::Xgmi(_) => {
                        let relayed = is_gpu(node) && node != end && path.class == PathClass::Nvl;
                        if relayed { PathClass::Nvb } else { PathClass::Nvl }
                    }
                    LinkKind::C2c => PathClass::C2c,
                    LinkKind::Pci if is_cpu(node) || is_cpu(far) => PathClass::Phb,
                    LinkKind::Pci if is_pci(node) && is_pci(far) => PathClass::Pxb,
                    LinkKind::Pci => PathClass::Pix,
                    LinkKind::System => PathClass::Sys,
                };
                let class = class.max(path.class);
                let gb_per_s = path.gb_per_s.min(link.gb_per_s);
                let old = paths[far];
                let rate = gb_per_s.total_cmp(&old.gb_per_s);
                let better = class < old.class
                    || (class == old.class && rate.is_gt())
                    || (class == old.class && rate.is_eq() && old.hops > path.hops + 1);
                if better {
                    let hops = path.hops + 1;
                    let next = Some(node);
                    paths[far] = Path { class, gb_per_s, hops, via: None, direct: class, next };
                    if !reached.contains(&far) {
                        reached.push(far);
                    }
                }
            }
        }
        frontier = reached;
    }
    paths
}
