//! What is in one machine, as a graph: CPUs, PCI switches, GPUs, NICs, and the links between them.
//!
//! A topology comes from an [`Element`](document::Element), NCCL's own form, whether that was read from a file
//! ([`xml`]) or found on a machine. From the graph follow the [`path`]s NCCL would count with, the
//! NIC of each GPU ([`nearest`]), the [`channel`]s and the [`matrix`] of `nvidia-smi topo -m`.
//!
//! *Invariant:* every link has both its ends in the graph; the graph has at most [`NODES_MOST`]
//! nodes, so that work on all pairs stays small.

use serde::Serialize;

use bus::BusId;
use cpus::CpuSet;

pub mod bus;
pub mod channel;
pub mod cpus;
pub mod document;
pub mod hca;
pub mod level;
pub mod matrix;
pub mod nearest;
pub mod path;
pub mod picture;
pub mod warning;
pub mod xml;

mod flatten;
mod graph;
#[cfg(test)]
mod tests;

/// Nodes of a topology; the largest machines have some two hundred.
pub const NODES_MOST: usize = 2048;

/// GPUs, and network ports, of a topology.
pub const ENDS_MOST: usize = 256;

/// A node's place in [`Topology::nodes`].
pub type NodeIndex = usize;

/// The machine as a graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Topology {
    /// The nodes; each CPU comes before what hangs on it.
    pub nodes: Vec<Node>,
    /// The links, each in one direction.
    pub links: Vec<Link>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Where it is on the PCI bus.
    pub bus: Option<BusId>,
    /// The node it hangs on: a switch, or a CPU.
    pub parent: Option<NodeIndex>,
    /// Which machine of the file it is in; files of several machines are rare.
    pub host: u32,
    /// Its link towards the CPU.
    pub uplink: Option<PciLink>,
}

/// A PCI link, as it could run and as it does. Speeds are in the kernel's words: `16.0 GT/s PCIe`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PciLink {
    /// Highest speed both ends have; NCCL counts with it, since links slow down when idle.
    pub speed: Option<String>,
    /// Most lanes both ends have.
    pub width: Option<u32>,
    /// Speed now, where known.
    pub current_speed: Option<String>,
    /// Lanes now, where known.
    pub current_width: Option<u32>,
    /// Highest speed the device itself has, where known.
    pub device_speed: Option<String>,
    /// Most lanes the device itself has, where known.
    pub device_width: Option<u32>,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A NUMA node: processors and their memory.
    Cpu(Cpu),
    /// A PCI switch.
    Pci(Pci),
    /// A GPU.
    Gpu(Gpu),
    /// All NVSwitches together, as NCCL sees them.
    NvSwitch,
    /// A network device on the PCI bus; its ports are nodes of their own.
    Nic,
    /// A port of a network device.
    Net(Net),
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Its number.
    pub numa: i64,
    /// Its processors.
    pub cpus: CpuSet,
    /// `x86_64`, `arm64`, `ppc64`.
    pub arch: String,
    /// `GenuineIntel`, `AuthenticAMD`, …
    pub vendor: String,
    /// Family and model, as the processor numbers them.
    pub family: i64,
    /// See `family`.
    pub model: i64,
}

/// A PCI switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pci {
    /// Vendor, device, subsystem vendor and device, 16 bits each.
    pub device: u64,
    /// The host bridge it hangs on, where known: `pci0000:5d`.
    pub host_bridge: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Its number on this machine.
    pub dev: u32,
    /// Compute capability, 90 for 9.0; 0 where not known or not NVIDIA's.
    pub sm: i64,
    /// Architecture of an AMD GPU: `gfx942`.
    pub gcn: Option<String>,
    /// Rank, in a file NCCL wrote.
    pub rank: Option<i64>,
    /// Whether its driver offers GPUDirect RDMA.
    pub gdr: Option<bool>,
    /// Its product name, where known.
    pub model: Option<String>,
    /// The host bridge it hangs on, where known.
    pub host_bridge: Option<String>,
}

/// A port of a network device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Net {
    /// `mlx5_0`, `eth0`.
    pub name: String,
    /// Its number among those NCCL uses.
    pub dev: u32,
    /// Mbit/s; NCCL counts 10,000 where it is not known.
    pub speed: Option<i64>,
    /// Port of the device, from 1.
    pub port: Option<i64>,
    /// Latency the driver states, in microseconds.
    pub latency: Option<f64>,
    /// The device's GUID; ports of one device share it.
    pub guid: Option<String>,
    /// Whether its driver offers GPUDirect RDMA.
    pub gdr: Option<bool>,
    /// Connections it takes.
    pub maxconn: Option<i64>,
    /// Whether it takes collectives (SHARP).
    pub coll: bool,
    /// Why NCCL does not use it, where it does not: `down`, `NCCL_IB_HCA`.
    pub unused: Option<String>,
    /// The host bridge it hangs on, where known.
    pub host_bridge: Option<String>,
}

/// A link in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Where it begins.
    pub from: NodeIndex,
    /// Where it ends.
    pub to: NodeIndex,
    /// What it is.
    pub kind: LinkKind,
    /// GB/s, as NCCL counts.
    pub gb_per_s: f64,
}

/// What a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// Inside a device.
    Local,
    /// That many NVLinks side by side.
    NvLink(u32),
    /// That many XGMI links side by side.
    Xgmi(u32),
    /// Between a CPU and its GPU on one board.
    C2c,
    /// PCI.
    Pci,
    /// Between NUMA nodes.
    System,
    /// From a NIC to its port.
    Net,
}

/// Why an element is no machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// More than [`NODES_MOST`] nodes, or [`ENDS_MOST`] GPUs or ports.
    #[error("more than {most} {what}; that is no machine")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// The most.
        most: usize,
    },
}

impl Topology {
    /// The GPUs, by number.
    #[must_use]
    pub fn gpus(&self) -> Vec<NodeIndex> {
        let mut found = self.indices(|kind| matches!(kind, Kind::Gpu(_)));
        found.sort_by_key(|index| (self.nodes[*index].host, self.gpu(*index).map(|gpu| gpu.dev)));
        found
    }

    /// The ports of network devices, by number.
    #[must_use]
    pub fn nets(&self) -> Vec<NodeIndex> {
        let mut found = self.indices(|kind| matches!(kind, Kind::Net(_)));
        found.sort_by_key(|index| (self.nodes[*index].host, self.net(*index).map(|net| net.dev)));
        found
    }

    /// The NUMA nodes, in the order of the file.
    #[must_use]
    pub fn cpus(&self) -> Vec<NodeIndex> {
        self.indices(|kind| matches!(kind, Kind::Cpu(_)))
    }

    /// The GPU at a node.
    #[must_use]
    pub fn gpu(&self, index: NodeIndex) -> Option<&Gpu> {
        match self.nodes.get(index).map(|node| &node.kind) {
            Some(Kind::Gpu(gpu)) => Some(gpu),
            _ => None,
        }
    }

    /// The port at a node.
    #[must_use]
    pub fn net(&self, index: NodeIndex) -> Option<&Net> {
        match self.nodes.get(index).map(|node| &node.kind) {
            Some(Kind::Net(net)) => Some(net),
            _ => None,
        }
    }

    /// The NUMA node at a node.
    #[must_use]
    pub fn cpu(&self, index: NodeIndex) -> Option<&Cpu> {
        match self.nodes.get(index).map(|node| &node.kind) {
            Some(Kind::Cpu(cpu)) => Some(cpu),
            _ => None,
        }
    }

    /// The NUMA node that a node hangs on.
    #[must_use]
    pub fn cpu_of(&self, index: NodeIndex) -> Option<NodeIndex> {
        let mut at = index;
        // Parents come before their children, so this ends.
        while let Some(parent) = self.nodes.get(at)?.parent {
            at = parent;
        }
        self.cpu(at).map(|_| at)
    }

    /// The bus id of a node, or of the device that a port belongs to.
    #[must_use]
    pub fn bus_of(&self, index: NodeIndex) -> Option<BusId> {
        let node = self.nodes.get(index)?;
        node.bus.or_else(|| self.nodes.get(node.parent?)?.bus)
    }

    /// A short name for people: `GPU0`, `mlx5_0`, `NUMA 1`.
    #[must_use]
    pub fn name(&self, index: NodeIndex) -> String {
        let Some(node) = self.nodes.get(index) else { return String::new() };
        let bus = node.bus.map_or_else(String::new, |bus| format!(" {bus}"));
        match &node.kind {
            Kind::Cpu(cpu) => format!("NUMA {}", cpu.numa),
            Kind::Pci(_) => format!("PCI{bus}"),
            Kind::Gpu(gpu) => format!("GPU{}", gpu.dev),
            Kind::NvSwitch => "NVSwitch".to_owned(),
            Kind::Nic => format!("NIC{bus}"),
            Kind::Net(net) => net.name.clone(),
        }
    }

    /// NVLinks or XGMI links of a GPU to one other node; nothing where there are none.
    #[must_use]
    pub fn direct_links(&self, from: NodeIndex, to: NodeIndex) -> Option<LinkKind> {
        let fast = |kind| matches!(kind, LinkKind::NvLink(_) | LinkKind::Xgmi(_));
        let wanted = |link: &&Link| link.from == from && link.to == to && fast(link.kind);
        self.links.iter().find(wanted).map(|link| link.kind)
    }

    fn indices(&self, wanted: impl Fn(&Kind) -> bool) -> Vec<NodeIndex> {
        (0..self.nodes.len()).filter(|index| wanted(&self.nodes[*index].kind)).collect()
    }

    /// Adds a link; several of one kind between the same nodes are one that is faster.
    fn connect(&mut self, from: NodeIndex, to: NodeIndex, kind: LinkKind, gb_per_s: f64) {
        let alike = |ours: LinkKind| std::mem::discriminant(&ours) == std::mem::discriminant(&kind);
        let same = |link: &&mut Link| link.from == from && link.to == to && alike(link.kind);
        match self.links.iter_mut().find(same) {
            None => self.links.push(Link { from, to, kind, gb_per_s }),
            Some(link) => {
                link.gb_per_s += gb_per_s;
                match (&mut link.kind, kind) {
                    (LinkKind::NvLink(ours), LinkKind::NvLink(more))
                    | (LinkKind::Xgmi(ours), LinkKind::Xgmi(more)) => {
                        *ours = ours.saturating_add(more);
                    }
                    _ => {}
                }
            }
        }
    }

    fn connect_both(&mut self, one: NodeIndex, other: NodeIndex, kind: LinkKind, gb_per_s: f64) {
        self.connect(one, other, kind, gb_per_s);
        self.connect(other, one, kind, gb_per_s);
    }
}
