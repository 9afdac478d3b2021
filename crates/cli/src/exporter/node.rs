//! The machine: its ports, interfaces and PCI links, out of files and nothing else.
//!
//! What is there is found now and then ([`Inventory`]); what its counters stand at is read at every scrape.
//!
//! *Invariant*: a function of a root: no clock, no library, no program.

mod interfaces;
mod links;
mod ports;

use std::collections::BTreeMap;

use ringway::topo::{DocumentOptions, GpuMaker, Machine, Root};
use ringway_plan::topology::bus::BusId;
use ringway_plan::topology::level::Levels;
use ringway_plan::topology::nearest::affinities;
use ringway_plan::topology::path::Paths;

use super::metric::{self, Samples};
use super::reading::Reading;

/// What is in the machine, and which GPU uses which port.
#[derive(Debug)]
pub(crate) struct Inventory {
    machine: Machine,
    kernel: String,
    pairs: Vec<Pair>,
}

/// A GPU and the port it uses first.
#[derive(Debug)]
struct Pair {
    gpu: String,
    gpu_bus: Option<BusId>,
    device: String,
    port: u32,
    nic_bus: Option<BusId>,
    path: String,
    rail: Option<usize>,
}

impl Inventory {
    /// Looks what is there.
    pub(crate) fn read(root: &Root) -> Self {
        let machine = Machine::from_files(root);
        let kernel = root.read("/proc/sys/kernel/osrelease").ok().flatten().unwrap_or_default();
        let pairs = pairs(root, &machine);
        Self { machine, kernel: kernel.trim().to_owned(), pairs }
    }

    /// Whether the devices that come and go are still those of now.
    pub(crate) fn is_of(&self, root: &Root) -> bool {
        let rdma = self.machine.rdma.iter();
        let mut known: Vec<&str> = rdma.map(|device| device.name.as_str()).collect();
        known.sort_unstable();
        root.list("/sys/class/infiniband").is_ok_and(|names| names == known)
    }

    /// The number of the GPU at a place.
    pub(crate) fn gpu_at(&self, bus: BusId) -> Option<u32> {
        self.machine.gpus.iter().find(|gpu| gpu.bus == bus).map(|gpu| gpu.index)
    }

    /// Whether NVML has something to tell.
    pub(crate) fn has_nvidia(&self) -> bool {
        self.machine.gpus.iter().any(|gpu| gpu.maker == GpuMaker::Nvidia)
    }

    fn numa(&self, bus: Option<BusId>) -> String {
        let found = self.machine.pci.iter().find(|device| Some(device.bus) == bus);
        found.filter(|device| device.numa >= 0).map(|d| d.numa.to_string()).unwrap_or_default()
    }
}

/// Which port each GPU uses first, by NCCL's rules; none where the machine is too odd for a graph.
fn pairs(root: &Root, machine: &Machine) -> Vec<Pair> {
    let base = ringway::topo::load(root, None).ok().flatten();
    let options = DocumentOptions { base, ..DocumentOptions::default() };
    let Ok(topology) = machine.topology(&options) else { return Vec::new() };
    let levels = Levels::default();
    let paths = Paths::as_used(&topology, &levels);
    let pair = |one: &ringway_plan::topology::nearest::Affinity| {
        let net = topology.net(one.net?)?;
        Some(Pair {
            gpu: topology.gpu(one.gpu)?.dev.to_string(),
            gpu_bus: topology.bus_of(one.gpu),
            device: net.name.clone(),
            port: net.port.and_then(|port| u32::try_from(port).ok()).unwrap_or(1),
            nic_bus: one.net.and_then(|net| topology.bus_of(net)),
            path: one.class.to_string(),
            rail: one.rail,
        })
    };
    affinities(&topology, &paths, &levels).iter().filter_map(pair).collect()
}

/// Everything files tell at this moment.
pub(crate) fn samples(reading: &Reading<'_>, inventory: &Inventory) -> Samples {
    let mut samples = Samples::default();
    let machine = &inventory.machine;
    let product = machine.platform.product.clone().unwrap_or_default();
    samples.add(&metric::NODE_INFO, &[&machine.host, &inventory.kernel, &product], 1);
    for gpu in &machine.gpus {
        let maker = match gpu.maker {
            GpuMaker::Nvidia => "nvidia",
            GpuMaker::Amd => "amd",
            GpuMaker::Other => "other",
        };
        let model = gpu.name.clone().unwrap_or_default();
        let labels: [&dyn std::fmt::Display; 5] =
            [&gpu.index, &gpu.bus, &maker, &model, &inventory.numa(Some(gpu.bus))];
        samples.add(&metric::GPU_INFO, &labels, 1);
    }
    for pair in &inventory.pairs {
        let bus = |bus: Option<BusId>| bus.map(|bus| bus.to_string()).unwrap_or_default();
        let rail = pair.rail.map(|rail| rail.to_string()).unwrap_or_default();
        let (gpu_bus, nic_bus) = (bus(pair.gpu_bus), bus(pair.nic_bus));
        samples.add(
            &metric::GPU_PAIR,
            &[&pair.gpu, &gpu_bus, &pair.device, &pair.port, &nic_bus, &pair.path, &rail],
            1,
        );
    }
    let mut users: BTreeMap<(&str, u32), Vec<&str>> = BTreeMap::new();
    for pair in &inventory.pairs {
        users.entry((pair.device.as_str(), pair.port)).or_default().push(&pair.gpu);
    }
    ports::samples(reading, inventory, &users, &mut samples);
    interfaces::samples(reading, inventory, &mut samples);
    links::samples(reading, inventory, &mut samples);
    samples
}

#[cfg(test)]
mod tests;
