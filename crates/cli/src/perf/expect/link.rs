//! The links of one rank, as its machine knows them: the ports it uses, and those of its GPU.
//!
//! Rates are topo's: the ports' own, or PCI's as NCCL counts them where that is less.

use anyhow::Context as _;
use ringway::Communicator;
use ringway::topo::NetKind::{Bridge, Loopback, Virtual};
use ringway::topo::{DocumentOptions, Machine, Root};
use ringway_plan::topology::bus::{BusId, pci_gb_per_s, tenths_of_gt};
use ringway_plan::topology::{LinkKind, Topology};
use serde::{Deserialize, Serialize};

use crate::perf::table::Device;

/// A link and what it carries in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Port {
    pub(super) name: String,
    /// Nothing where nobody knows.
    pub(super) gbs: Option<f64>,
}

/// What a rank tells the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Own {
    /// Ranks with which it shares memory, itself with them.
    pub(super) near: u32,
    /// Whether ranks of its own machine are reached over the network.
    pub(super) loops: bool,
    /// The ports over which it reaches other machines.
    pub(super) ports: Vec<Port>,
    /// The links of its GPU, where the buffers are there.
    pub(super) gpu: Option<Port>,
}

impl Own {
    /// Looks at this rank's machine.
    pub(super) fn find(comm: &Communicator, devices: &[Device], on_gpu: bool) -> Self {
        let by_memory = |peer: u32| comm.carrier(peer) == "SHM";
        let near = (0..comm.size()).filter(|peer| by_memory(*peer)).count();
        let own = devices.get(comm.rank() as usize);
        let same_machine = |device: &&Device| own.is_some_and(|own| own.host == device.host);
        let loops = devices.iter().filter(same_machine).any(|device| !by_memory(device.rank));
        let names = comm.ports();
        let mut found = Self {
            near: u32::try_from(near).unwrap_or(1),
            loops: loops && !on_gpu,
            ports: Vec::new(),
            gpu: None,
        };
        if names.is_empty() && !on_gpu {
            return found;
        }
        let root = Root::live();
        let machine = if on_gpu { Machine::discover(&root) } else { Machine::from_files(&root) };
        found.ports = names.iter().map(|name| port(&machine, name)).collect();
        if on_gpu {
            let staged = comm.gpu_path().is_some_and(|path| path.contains("staged"));
            let address = own.map_or("", |own| own.address.as_str());
            found.gpu = Some(gpu(&machine, address, staged));
        }
        found
    }

    pub(super) fn encode(&self) -> anyhow::Result<String> {
        serde_json::to_string(self).context("writing down this rank's links")
    }

    pub(super) fn decode(text: &str) -> anyhow::Result<Self> {
        serde_json::from_str(text).context("reading another rank's links")
    }
}

/// A port of the network: `mlx5_0:1`, or an interface.
pub(super) fn port(machine: &Machine, name: &str) -> Port {
    let (device, number) = name.rsplit_once(':').unwrap_or((name, ""));
    let rdma = machine.rdma.iter().find(|one| one.name == device);
    let number = number.parse::<u32>().ok();
    let (mbit, bus) = match (rdma, number) {
        (Some(device), Some(number)) => {
            let port = device.ports.iter().find(|port| port.number == number);
            // One made by software has no firmware, and a rate that says nothing.
            let port = port.filter(|_| device.firmware.is_some());
            (port.and_then(|port| port.mbit_per_s), device.bus)
        }
        _ => {
            let net = machine.nets.iter().find(|net| net.name == name);
            // The kernel has 10 Gb/s for any veth.
            let wire = net.filter(|net| !matches!(net.kind, Virtual | Bridge | Loopback));
            (wire.and_then(|net| net.mbit_per_s), net.and_then(|net| net.bus_below(&machine.nets)))
        }
    };
    #[expect(clippy::cast_precision_loss, reason = "rates of ports")]
    let gbs = mbit.map(|mbit| mbit as f64 / 8e3);
    let pci = bus.and_then(|bus| pci(machine, bus));
    match (gbs, pci) {
        (Some(gbs), Some((slot, most))) if most < gbs => {
            Port { name: format!("{slot} below {name}"), gbs: Some(most) }
        }
        _ => Port { name: name.to_owned(), gbs },
    }
}

/// A device's link on the PCI bus and what NCCL counts for it: the best that both its ends have, where that is known.
fn pci(machine: &Machine, bus: BusId) -> Option<(String, f64)> {
    let find = |bus: BusId| machine.pci.iter().find(|device| device.bus == bus);
    let device = find(bus)?;
    let above = device.above.first().and_then(|bus| find(*bus));
    let ends = [Some(device), above];
    let speed = ends.iter().flatten().filter_map(|end| end.max_speed.as_deref());
    let speed = speed.min_by_key(|speed| tenths_of_gt(speed).unwrap_or(u32::MAX))?;
    let width = ends.iter().flatten().filter_map(|end| end.max_width).filter(|lanes| *lanes > 0);
    let width = width.min()?;
    tenths_of_gt(speed)?;
    Some((
        format!("PCI ({} x{width})", speed.trim_end_matches(" PCIe")),
        pci_gb_per_s(Some(speed), Some(width)),
    ))
}

/// A GPU: its NVLinks, or its place on the PCI bus.
fn gpu(machine: &Machine, address: &str, staged: bool) -> Port {
    // nccl-tests leaves the function out.
    let bus = format!("{address}.0").parse::<BusId>().ok();
    let graph = machine.topology(&DocumentOptions::default()).ok();
    let number = machine.gpus.iter().find(|gpu| Some(gpu.bus) == bus).map(|gpu| gpu.index);
    let name = number.map_or_else(|| format!("GPU {address}"), |number| format!("GPU{number}"));
    let links = graph.as_ref().zip(bus).and_then(|(graph, bus)| fast_links(graph, bus));
    if let Some((kind, gbs)) = links.filter(|_| !staged) {
        return Port { name: format!("{kind} of {name}"), gbs: Some(gbs) };
    }
    match bus.and_then(|bus| pci(machine, bus)) {
        Some((slot, gbs)) => Port { name: format!("{slot} of {name}"), gbs: Some(gbs) },
        None => Port { name, gbs: None },
    }
}

/// What a GPU's links to other GPUs carry together.
fn fast_links(graph: &Topology, bus: BusId) -> Option<(String, f64)> {
    let gpus = graph.gpus();
    let node = gpus.into_iter().find(|node| graph.bus_of(*node) == Some(bus))?;
    let mut gbs = 0.0;
    let mut count = 0;
    let mut word = "";
    for link in graph.links.iter().filter(|link| link.from == node) {
        let (kind, links) = match link.kind {
            LinkKind::NvLink(links) => ("NVLinks", links),
            LinkKind::Xgmi(links) => ("XGMI links", links),
            _ => continue,
        };
        word = kind;
        count += links;
        gbs += link.gb_per_s;
    }
    (count > 0).then(|| (format!("{count} {word}"), gbs))
}
