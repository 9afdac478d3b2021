//! A machine written down as NCCL does it.
//!
//! As in NCCL, every second bridge is left out: a switch is its upstream port, and the port below
//! it that leads to the device says nothing more. Devices the file of a cloud already has keep the
//! place they have there.
//!
//! *Invariant:* a port that NCCL would not use has no `dev`, so that NCCL, reading the file, does
//! not use it either; `unused` says why.

use serde::Serialize;

use super::gpu::{GpuDevice, GpuMaker};
use super::net::NetDevice;
use super::numa::Processor;
use super::pci::{PciDevice, agreed};
use super::rdma::{RdmaDevice, RdmaPort};
use super::{Machine, Root};
use crate::plan::topology::bus::BusId;
use crate::plan::topology::cpus::CpuSet;
use crate::plan::topology::document::Element;
use crate::plan::topology::hca::HcaFilter;
use crate::plan::topology::{Topology, TopologyError};

/// Whether NICs may reach GPU memory, as far as files tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuDirect {
    /// The kernel module that offers GPU memory to RDMA devices, where one is loaded.
    pub peer_module: Option<String>,
}

impl GpuDirect {
    /// NCCL looks for the same files. Without them DMA-BUF may still do it, which only a driver
    /// can tell.
    pub(super) fn discover(root: &Root) -> Self {
        let places = [
            ("/sys/kernel/mm/memory_peers/nv_mem/version", "nv_peer_mem"),
            ("/sys/kernel/mm/memory_peers/nv_mem_nc/version", "nv_peer_mem_nc"),
            ("/sys/module/nvidia_peermem/version", "nvidia-peermem"),
            ("/sys/kernel/mm/memory_peers/amdkfd/version", "amdkfd"),
        ];
        let found = places.iter().find(|(path, _)| root.exists(path));
        Self { peer_module: found.map(|(_, name)| (*name).to_owned()) }
    }
}

/// What decides on how a machine is written down.
#[derive(Clone, Debug, Default)]
pub struct DocumentOptions {
    /// `NCCL_IB_HCA`.
    pub hca: HcaFilter,
    /// A file read before: what it says stands, the rest is added.
    pub base: Option<Element>,
}

/// One port to be written down.
struct Port<'a> {
    bus: Option<BusId>,
    numa: i64,
    net: Element,
    unused: Option<&'a str>,
}

impl Machine {
    /// The machine as elements.
    #[must_use]
    pub fn document(&self, options: &DocumentOptions) -> Element {
        let fresh = || Element::new("system").with("version", 1);
        let mut system = options.base.clone().unwrap_or_else(fresh);
        if options.base.is_none() {
            for node in &self.numa {
                self.cpu(&mut system, i64::from(node.id));
            }
        }
        for gpu in &self.gpus {
            let element = gpu_element(gpu, &self.pci);
            if let Some(pci) = self.pci_element(&mut system, gpu.bus, -1) {
                if let Some(name) = &gpu.name {
                    pci.set_missing("name", name);
                }
                if pci.child("gpu").is_none() {
                    pci.children.push(element);
                }
            }
        }
        let mut dev = 0;
        for mut port in self.ports(&options.hca) {
            match port.unused {
                Some(why) => port.net.set("unused", why),
                None => {
                    port.net.set("dev", dev);
                    dev += 1;
                }
            }
            self.add_port(&mut system, port);
        }
        system
    }

    /// The machine as a graph.
    ///
    /// # Errors
    /// There is more in it than in any machine.
    pub fn topology(&self, options: &DocumentOptions) -> Result<Topology, TopologyError> {
        Topology::from_document(&self.document(options))
    }

    fn device(&self, bus: BusId) -> Option<&PciDevice> {
        self.pci.iter().find(|device| device.bus == bus)
    }

    /// The ports NCCL sees: RDMA devices, and where none is active, network interfaces.
    fn ports<'a>(&self, hca: &HcaFilter) -> Vec<Port<'a>> {
        let rdma =
            self.rdma.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
        let mut found: Vec<Port<'a>> =
            rdma.map(|(device, port)| self.rdma_port(device, port, hca)).collect();
        if found.iter().all(|port| port.unused.is_some()) {
            let useful = self.nets.iter().filter(|net| net.is_useful());
            found.extend(useful.map(|net| self.socket_port(net)));
        }
        found
    }

    fn rdma_port<'a>(&self, device: &RdmaDevice, port: &RdmaPort, hca: &HcaFilter) -> Port<'a> {
        let mut net = Element::new("net").with("name", &device.name);
        net.set("speed", port.mbit_per_s.unwrap_or(0));
        net.set("port", port.number);
        net.set("latency", "0.000000");
        let guid = device.system_guid.as_ref().or(device.node_guid.as_ref());
        if let Some(guid) = guid {
            net.set("guid", format!("0x{}", guid.replace(':', "")));
        }
        net.set("maxconn", 131_072);
        if self.gpu_direct.peer_module.is_some() {
            net.set("gdr", 1);
        }
        let allowed = hca.allows(&device.name, Some(i64::from(port.number)));
        let unused = if !port.is_active() {
            Some("down")
        } else if !allowed {
            Some("NCCL_IB_HCA")
        } else {
            None
        };
        Port { bus: device.bus, numa: -1, net, unused }
    }

    fn socket_port<'a>(&self, device: &NetDevice) -> Port<'a> {
        let bus = device.bus_below(&self.nets);
        let mut net = Element::new("net").with("name", &device.name);
        // NCCL counts 10 Gb/s where nothing is said.
        if let Some(mbit) = device.mbit_per_s {
            net.set("speed", mbit);
        }
        net.set("port", 0);
        net.set("latency", "0.000000");
        net.set("maxconn", 65_536);
        net.set("gdr", 0);
        Port { bus, numa: -1, net, unused: None }
    }

    fn add_port(&self, system: &mut Element, port: Port<'_>) {
        // Functions of one device are one NIC with several ports.
        let first = port.bus.map(|bus| BusId { function: 0, ..bus });
        let bus = match (port.bus, first.and_then(|bus| self.device(bus))) {
            (Some(bus), Some(first))
                if self.device(bus).is_some_and(|d| d.class == first.class) =>
            {
                Some(first.bus)
            }
            (bus, _) => bus,
        };
        let holder = match bus.and_then(|bus| self.device(bus)) {
            Some(device) => self.pci_element(system, device.bus, port.numa),
            None => Some(self.cpu(system, port.numa)),
        };
        let Some(holder) = holder else { return };
        if holder.child("nic").is_none() {
            holder.children.push(Element::new("nic"));
        }
        let nic = holder.children.iter_mut().find(|child| child.name == "nic");
        let Some(nic) = nic else { return };
        let same = |net: &Element| {
            net.get("name") == port.net.get("name") && net.get("port") == port.net.get("port")
        };
        match nic.children.iter_mut().find(|net| same(net)) {
            Some(known) => {
                for (name, value) in &port.net.attributes {
                    known.set_missing(name, value);
                }
            }
            None => nic.children.push(port.net),
        }
    }

    /// The element of a NUMA node, made where it is missing.
    fn cpu<'a>(&self, system: &'a mut Element, numa: i64) -> &'a mut Element {
        // Firmware that does not say where a device is: on a machine of one node, there.
        let numa = match (numa, self.numa.as_slice()) {
            (..0, [only]) => i64::from(only.id),
            _ => numa,
        };
        let is_it = |cpu: &Element| cpu.name == "cpu" && cpu.number("numaid") == Some(numa);
        let at = match system.children.iter().position(is_it) {
            Some(at) => at,
            None => {
                let node = self.numa.iter().find(|node| i64::from(node.id) == numa);
                let cpus = node.map_or_else(CpuSet::default, |node| node.cpus.clone());
                let Processor { arch, vendor, family, model, .. } = &self.processor;
                let cpu = Element::new("cpu")
                    .with("numaid", numa)
                    .with("affinity", cpus.mask())
                    .with("arch", arch)
                    .with("vendor", vendor)
                    .with("familyid", family)
                    .with("modelid", model);
                system.children.push(cpu);
                system.children.len() - 1
            }
        };
        &mut system.children[at]
    }

    /// The element of a PCI device, made with the switches above it where it is missing.
    fn pci_element<'a>(
        &self,
        system: &'a mut Element,
        bus: BusId,
        numa: i64,
    ) -> Option<&'a mut Element> {
        let device = self.device(bus)?;
        // The nearest first: the device, then every second bridge.
        let mut chain = vec![bus];
        chain.extend(device.above.iter().skip(1).step_by(2).copied());
        let known = |element: &Element, bus: BusId| {
            element.name == "pci"
                && element.get("busid").and_then(|id| id.parse().ok()) == Some(bus)
        };
        let depth =
            chain.iter().position(|bus| system.find_mut(&|element| known(element, *bus)).is_some());
        let numa = if device.numa >= 0 { device.numa } else { numa };
        let mut at = match depth {
            Some(depth) => system.find_mut(&|element| known(element, chain[depth]))?,
            None => self.cpu(system, numa),
        };
        for bus in chain[..depth.unwrap_or(chain.len())].iter().rev() {
            at.children.push(self.bare_element(*bus));
            at = at.children.last_mut()?;
        }
        if depth == Some(0) {
            for (name, value) in self.bare_element(bus).attributes {
                at.set_missing(&name, value);
            }
        }
        Some(at)
    }

    fn bare_element(&self, bus: BusId) -> Element {
        let mut element = Element::new("pci").with("busid", bus);
        let Some(device) = self.device(bus) else {
            return element.with("class", "0x060400").with("link_speed", "").with("link_width", 0);
        };
        let port = device.above.first().and_then(|bus| self.device(*bus));
        let (speed, width) = agreed(device, port);
        element.set("class", format!("0x{:06x}", device.class));
        element.set("vendor", format!("0x{:04x}", device.vendor));
        element.set("device", format!("0x{:04x}", device.device));
        element.set("subsystem_vendor", format!("0x{:04x}", device.subsystem_vendor));
        element.set("subsystem_device", format!("0x{:04x}", device.subsystem_device));
        element.set("link_speed", speed);
        element.set("link_width", width);
        let extra = [
            ("current_link_speed", device.current_speed.clone()),
            ("current_link_width", device.current_width.map(|width| width.to_string())),
            ("max_link_speed", device.max_speed.clone()),
            ("max_link_width", device.max_width.map(|width| width.to_string())),
            ("host_bridge", device.host_bridge.clone()),
        ];
        for (name, value) in extra {
            if let Some(value) = value {
                element.set(name, value);
            }
        }
        element
    }
}

fn gpu_element(gpu: &GpuDevice, pci: &[PciDevice]) -> Element {
    let mut element = Element::new("gpu").with("dev", gpu.index);
    if let Some(sm) = gpu.sm {
        element.set("sm", sm);
    }
    if let Some(gcn) = &gpu.gcn {
        element.set("gcn", gcn);
    }
    for link in &gpu.links {
        let class = |bus: BusId| pci.iter().find(|device| device.bus == bus).map(|d| d.class);
        let (name, target, class) = match (link.to, gpu.maker) {
            (Some(bus), GpuMaker::Nvidia) => ("nvlink", bus, class(bus).unwrap_or(0x03_0200)),
            (Some(bus), GpuMaker::Amd | GpuMaker::Other) => {
                ("xgmi", bus, class(bus).unwrap_or(0x12_0000))
            }
            (None, _) => {
                let switch = pci.iter().find(|device| device.is_nvswitch());
                let nowhere = BusId { domain: 0xffff, bus: 0xff, device: 0x1f, function: 7 };
                ("nvlink", switch.map_or(nowhere, |device| device.bus), 0x06_8000)
            }
        };
        element.children.push(
            Element::new(name)
                .with("target", target)
                .with("count", link.count)
                .with("tclass", format!("0x{class:06x}")),
        );
    }
    element
}
