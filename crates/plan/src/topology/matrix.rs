//! The matrix of `nvidia-smi topo -m`, as a value: made from a topology, read from saved text,
//! printed.
//!
//! *Invariant:* the matrix is square; a cell that is not known says so. Reading is total and bounded.

use std::fmt::{self, Write as _};

use serde::{Serialize, Serializer};

use super::path::{PathClass, Paths};
use super::{Kind, LinkKind, NodeIndex, Topology};

mod text;

pub use text::{MatrixError, read, read_nvidia_smi, read_rocm_smi};

/// What is between two devices, in the words of `nvidia-smi`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// The same device.
    Same,
    /// That many NVLinks.
    NvLink(u32),
    /// XGMI.
    Xgmi,
    /// The link between NUMA nodes.
    Sys,
    /// Two host bridges of one NUMA node.
    Node,
    /// One host bridge.
    Phb,
    /// Several PCI switches.
    Pxb,
    /// One PCI switch.
    Pix,
    /// PCI, and no more is known.
    Pcie,
    /// A word of another vendor.
    Other(String),
    /// Not known.
    Unknown,
}

impl Cell {
    /// Reads a cell.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "X" => Self::Same,
            "XGMI" => Self::Xgmi,
            "SYS" => Self::Sys,
            "NODE" => Self::Node,
            "PHB" => Self::Phb,
            "PXB" => Self::Pxb,
            "PIX" => Self::Pix,
            "PCIE" => Self::Pcie,
            "" | "?" | "N/A" | "NA" => Self::Unknown,
            other => match other.strip_prefix("NV").and_then(|count| count.parse().ok()) {
                Some(count) => Self::NvLink(count),
                None => Self::Other(other.to_owned()),
            },
        }
    }

    /// How near, the nearest first.
    #[must_use]
    pub fn rank(&self) -> u8 {
        match self {
            Self::Same => 0,
            Self::NvLink(_) | Self::Xgmi => 1,
            Self::Other(_) => 2,
            Self::Pix => 3,
            Self::Pxb => 4,
            Self::Phb => 5,
            Self::Pcie => 6,
            Self::Node => 7,
            Self::Sys => 8,
            Self::Unknown => 9,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.pad("X"),
            Self::NvLink(count) => f.pad(&format!("NV{count}")),
            Self::Xgmi => f.pad("XGMI"),
            Self::Sys => f.pad("SYS"),
            Self::Node => f.pad("NODE"),
            Self::Phb => f.pad("PHB"),
            Self::Pxb => f.pad("PXB"),
            Self::Pix => f.pad("PIX"),
            Self::Pcie => f.pad("PCIE"),
            Self::Other(word) => f.pad(word),
            Self::Unknown => f.pad("?"),
        }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One row: a device and what is between it and each of the devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// `GPU0`, `NIC1`.
    pub name: String,
    /// The device's own name, where the legend tells it: `mlx5_1`.
    pub device: Option<String>,
    /// One for each row.
    pub cells: Vec<Cell>,
    /// Processors near to it: `0-31,64-95`.
    pub cpus: Option<String>,
    /// Its NUMA node.
    pub numa: Option<String>,
}

/// The matrix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// GPUs, then NICs.
    pub rows: Vec<Row>,
}

impl Matrix {
    /// The matrix of a machine. NICs are named `NIC0`, …, with their own names in the legend.
    #[must_use]
    pub fn of(topology: &Topology) -> Self {
        let paths = Paths::physical(topology);
        let (gpus, nets) = (topology.gpus(), topology.nets());
        let all: Vec<NodeIndex> = gpus.iter().chain(&nets).copied().collect();
        let mut rows = Vec::new();
        for (index, &node) in all.iter().enumerate() {
            let cells = all.iter().map(|other| cell(topology, &paths, node, *other)).collect();
            let mut row =
                Row { name: topology.name(node), device: None, cells, cpus: None, numa: None };
            if index < gpus.len() {
                let cpu = topology.cpu_of(node).and_then(|cpu| topology.cpu(cpu));
                row.cpus = cpu.map(|cpu| cpu.cpus.to_string()).filter(|cpus| !cpus.is_empty());
                row.numa = cpu.filter(|cpu| cpu.numa >= 0).map(|cpu| cpu.numa.to_string());
            } else {
                row.device = Some(row.name);
                row.name = format!("NIC{}", index - gpus.len());
            }
            rows.push(row);
        }
        Self { rows }
    }

    /// The cell between two devices, by the names of their rows or their own.
    #[must_use]
    pub fn between(&self, one: &str, other: &str) -> Option<&Cell> {
        let place = |name: &str| {
            self.rows.iter().position(|r| r.name == name || r.device.as_deref() == Some(name))
        };
        self.rows.get(place(one)?)?.cells.get(place(other)?)
    }

    /// The rows of GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = (usize, &Row)> {
        self.rows.iter().enumerate().filter(|(_, row)| !row.name.starts_with("NIC"))
    }

    /// The rows of NICs.
    pub fn nics(&self) -> impl Iterator<Item = (usize, &Row)> {
        self.rows.iter().enumerate().filter(|(_, row)| row.name.starts_with("NIC"))
    }

    /// The NICs nearest to a GPU's row, and how near they are.
    #[must_use]
    pub fn nearest(&self, gpu: usize) -> Option<(Vec<&Row>, &Cell)> {
        let cells = &self.rows.get(gpu)?.cells;
        let known = |(at, row)| Some((row, cells.get(at).filter(|cell| **cell != Cell::Unknown)?));
        let nics: Vec<(&Row, &Cell)> = self.nics().filter_map(known).collect();
        let (_, best) = nics.iter().min_by_key(|(_, cell)| cell.rank())?;
        let near = nics.iter().filter(|(_, cell)| cell.rank() == best.rank());
        Some((near.map(|(row, _)| *row).collect(), best))
    }

    /// The table, without the legend.
    #[must_use]
    pub fn table(&self) -> String {
        let cpus = self.rows.iter().any(|row| row.cpus.is_some());
        let numa = self.rows.iter().any(|row| row.numa.is_some());
        let mut lines: Vec<Vec<String>> = Vec::new();
        let mut head = vec![String::new()];
        head.extend(self.rows.iter().map(|row| row.name.clone()));
        head.extend(cpus.then(|| "CPU Affinity".to_owned()));
        head.extend(numa.then(|| "NUMA Affinity".to_owned()));
        lines.push(head);
        for row in &self.rows {
            let mut line = vec![row.name.clone()];
            line.extend(row.cells.iter().map(ToString::to_string));
            line.extend(cpus.then(|| row.cpus.clone().unwrap_or_default()));
            line.extend(numa.then(|| row.numa.clone().unwrap_or_default()));
            lines.push(line);
        }
        let columns = lines.first().map_or(0, Vec::len);
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut table = String::new();
        for line in &lines {
            let mut text = String::new();
            for (word, width) in line.iter().zip(&widths) {
                let _ = write!(text, "{word:<0$}", width + 2);
            }
            let _ = writeln!(table, "{}", text.trim_end());
        }
        table
    }

    /// What the words of the table mean, and the NICs' own names.
    #[must_use]
    pub fn legend(&self) -> String {
        let meanings: [(&str, &str); 11] = [
            ("X", "the same device"),
            ("SYS", "across the link between NUMA nodes (UPI, Infinity Fabric)"),
            ("NODE", "across two PCIe host bridges of one NUMA node"),
            ("PHB", "through a PCIe host bridge (the CPU)"),
            ("PXB", "through several PCIe switches, not the host bridge"),
            ("PIX", "through one PCIe switch at the most"),
            ("PCIE", "over PCIe; no more is known"),
            ("NV#", "over # NVLinks"),
            ("XGMI", "over XGMI links"),
            ("HCCS", "over HCCS links"),
            ("?", "not known"),
        ];
        let word = |cell: &Cell| match cell {
            Cell::NvLink(_) => "NV#".to_owned(),
            other => other.to_string(),
        };
        let used: Vec<String> =
            self.rows.iter().flat_map(|row| row.cells.iter().map(word)).collect();
        let mut legend = String::new();
        for (name, meaning) in meanings {
            if used.iter().any(|word| word == name) {
                let _ = writeln!(legend, "  {name:<5} = {meaning}");
            }
        }
        for row in &self.rows {
            if let Some(device) = &row.device {
                let _ = writeln!(legend, "  {:<5} = {device}", row.name);
            }
        }
        legend
    }
}

/// What is between two devices of a machine.
fn cell(topology: &Topology, paths: &Paths, from: NodeIndex, to: NodeIndex) -> Cell {
    if from == to {
        return Cell::Same;
    }
    if let Some(cell) = fast_link(topology, from, to) {
        return cell;
    }
    let class = pci_class(topology, paths, from, to);
    match class {
        PathClass::Phb if !same_bridge(topology, from, to) => Cell::Node,
        PathClass::Phb | PathClass::P2c | PathClass::Pxn => Cell::Phb,
        PathClass::Loc | PathClass::Pix => Cell::Pix,
        PathClass::Pxb => Cell::Pxb,
        PathClass::Sys => Cell::Sys,
        PathClass::C2c => Cell::Node,
        PathClass::Nvl | PathClass::Nvb | PathClass::Net | PathClass::Dis => Cell::Unknown,
    }
}

/// NVLinks or XGMI between two GPUs, directly or through switches that join all.
fn fast_link(topology: &Topology, from: NodeIndex, to: NodeIndex) -> Option<Cell> {
    match topology.direct_links(from, to) {
        Some(LinkKind::NvLink(count)) => return Some(Cell::NvLink(count)),
        Some(LinkKind::Xgmi(_)) => return Some(Cell::Xgmi),
        _ => {}
    }
    let switch = topology.nodes.iter().position(|node| matches!(node.kind, Kind::NvSwitch))?;
    match (topology.direct_links(from, switch), topology.direct_links(switch, to)) {
        (Some(LinkKind::NvLink(ours)), Some(LinkKind::NvLink(theirs))) => {
            Some(Cell::NvLink(ours.min(theirs)))
        }
        _ => None,
    }
}

/// The class by the PCI tree alone: how the parents of two devices meet.
fn pci_class(topology: &Topology, paths: &Paths, from: NodeIndex, to: NodeIndex) -> PathClass {
    let direct = paths.get(from, to).class;
    if direct != PathClass::Nvb {
        return direct;
    }
    // Two GPUs that others join by NVLink: nvidia-smi shows the PCI way.
    let above = |node: NodeIndex| {
        let mut chain = vec![node];
        while let Some(parent) = topology.nodes[chain[chain.len() - 1]].parent {
            chain.push(parent);
        }
        chain
    };
    let (ours, theirs) = (above(from), above(to));
    let Some(meeting) = ours.iter().find(|node| theirs.contains(node)) else {
        return PathClass::Sys;
    };
    let steps = |chain: &[NodeIndex]| chain.iter().position(|node| node == meeting).unwrap_or(0);
    match topology.nodes[*meeting].kind {
        Kind::Cpu(_) => PathClass::Phb,
        _ if steps(&ours) == 1 && steps(&theirs) == 1 => PathClass::Pix,
        _ => PathClass::Pxb,
    }
}

/// Whether two devices of one CPU hang on one host bridge; where that is not known, they do.
fn same_bridge(topology: &Topology, from: NodeIndex, to: NodeIndex) -> bool {
    let bridge = |node: NodeIndex| match &topology.nodes[node].kind {
        Kind::Gpu(gpu) => gpu.host_bridge.as_deref(),
        Kind::Net(net) => net.host_bridge.as_deref(),
        _ => None,
    };
    match (bridge(from), bridge(to)) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => true,
    }
}
