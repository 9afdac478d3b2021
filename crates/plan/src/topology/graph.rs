//! From elements to the graph, as NCCL builds it.
//!
//! Beyond NCCL: a PCI device of the class of GPUs or network devices counts as one even where the
//! file has no `<gpu>` or `<net>` for it. The files of clouds have none, since NCCL fills them in
//! on the machine.

use super::bus::{BusId, pci_gb_per_s};
use super::cpus::CpuSet;
use super::document::Element;
use super::{
    Cpu, ENDS_MOST, Gpu, Kind, LinkKind, NODES_MOST, Net, Node, NodeIndex, Pci, PciLink, Topology,
    TopologyError,
};

/// GB/s inside a device.
pub(super) const LOCAL_GB_PER_S: f64 = 5000.0;

/// A GPU's element waiting for its links: they may lead to GPUs that stand further down.
struct Pending<'a> {
    node: NodeIndex,
    element: &'a Element,
}

/// The graph while it is built.
struct Work<'a> {
    graph: Topology,
    hosts: Vec<Option<String>>,
    pending: Vec<Pending<'a>>,
    switches: Option<NodeIndex>,
}

/// Where an element stands.
#[derive(Clone)]
struct Place {
    parent: NodeIndex,
    host: u32,
    host_bridge: Option<String>,
}

impl Topology {
    /// The graph of a machine that was written down as elements.
    ///
    /// # Errors
    /// There is more in it than in any machine.
    pub fn from_document(system: &Element) -> Result<Self, TopologyError> {
        let mut work =
            Work { graph: Self::default(), hosts: Vec::new(), pending: Vec::new(), switches: None };
        for cpu in system.children_named("cpu") {
            work.add_cpu(cpu)?;
        }
        work.number_the_nameless();
        for pending in std::mem::take(&mut work.pending) {
            work.add_links(&pending);
        }
        work.connect_cpus();
        Ok(work.graph)
    }
}

impl<'a> Work<'a> {
    fn push(&mut self, node: Node) -> Result<NodeIndex, TopologyError> {
        let kind = std::mem::discriminant(&node.kind);
        let ends = matches!(node.kind, Kind::Gpu(_) | Kind::Net(_));
        let alike = |other: &&Node| std::mem::discriminant(&other.kind) == kind;
        if self.graph.nodes.len() == NODES_MOST {
            return Err(TopologyError::TooLarge { what: "nodes", most: NODES_MOST });
        }
        if ends && self.graph.nodes.iter().filter(alike).count() == ENDS_MOST {
            let what = "GPUs or network ports";
            return Err(TopologyError::TooLarge { what, most: ENDS_MOST });
        }
        self.graph.nodes.push(node);
        Ok(self.graph.nodes.len() - 1)
    }

    fn add_cpu(&mut self, element: &'a Element) -> Result<(), TopologyError> {
        let hash = element.get("host_hash").map(str::to_owned);
        let known = self.hosts.iter().position(|host| *host == hash);
        let host = known.unwrap_or_else(|| {
            self.hosts.push(hash);
            self.hosts.len() - 1
        });
        let host = u32::try_from(host).unwrap_or(u32::MAX);
        let text = |name| element.get(name).unwrap_or_default().to_owned();
        let cpu = Cpu {
            numa: element.number("numaid").unwrap_or(-1),
            cpus: CpuSet::from_mask(&text("affinity")),
            arch: text("arch"),
            vendor: text("vendor"),
            family: element.number("familyid").unwrap_or(0),
            model: element.number("modelid").unwrap_or(0),
        };
        let kind = Kind::Cpu(cpu);
        let parent = self.push(Node { kind, bus: None, parent: None, host, uplink: None })?;
        let place = Place { parent, host, host_bridge: None };
        for child in &element.children {
            match child.name.as_str() {
                "pci" => self.add_pci(child, &place)?,
                // Ports with no PCI device: as near to the CPU as can be.
                "nic" => {
                    let nic = self.push(Node {
                        kind: Kind::Nic,
                        bus: None,
                        parent: Some(parent),
                        host,
                        uplink: None,
                    })?;
                    self.graph.connect_both(parent, nic, LinkKind::Pci, LOCAL_GB_PER_S);
                    self.add_ports(child, &Place { parent: nic, ..place.clone() })?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add_pci(&mut self, element: &'a Element, place: &Place) -> Result<(), TopologyError> {
        let mut place = place.clone();
        if let Some(bridge) = element.get("host_bridge") {
            place.host_bridge = Some(bridge.to_owned());
        }
        let bus: Option<BusId> = element.get("busid").and_then(|text| text.parse().ok());
        let uplink = uplink_of(element);
        let gb_per_s = pci_gb_per_s(uplink.speed.as_deref(), uplink.width);
        let (parent, host) = (place.parent, place.host);
        let node =
            |kind| Node { kind, bus, parent: Some(parent), host, uplink: Some(uplink.clone()) };

        if let Some(gpu) = gpu_of(element, &place) {
            let index = self.push(node(Kind::Gpu(gpu)))?;
            self.graph.connect_both(parent, index, LinkKind::Pci, gb_per_s);
            if let Some(element) = element.child("gpu") {
                self.pending.push(Pending { node: index, element });
            }
            return Ok(());
        }
        let class = element.get("class").unwrap_or_default();
        if let Some(nic) = element.child("nic") {
            let index = self.push(node(Kind::Nic))?;
            self.graph.connect_both(parent, index, LinkKind::Pci, gb_per_s);
            return self.add_ports(nic, &Place { parent: index, ..place });
        }
        if class.starts_with("0x02") {
            let index = self.push(node(Kind::Nic))?;
            self.graph.connect_both(parent, index, LinkKind::Pci, gb_per_s);
            let name = bus.map_or_else(String::new, |bus| bus.to_string());
            let net = Net { name, dev: u32::MAX, host_bridge: place.host_bridge, ..Net::default() };
            return self.add_net(net, index, place.host);
        }
        // A switch; devices of other classes are kept as one too, as NCCL does.
        let device = ["vendor", "device", "subsystem_vendor", "subsystem_device"]
            .into_iter()
            .fold(0, |id, name| id << 16 | field(element, name));
        let pci = Pci { device, host_bridge: place.host_bridge.clone() };
        let index = self.push(node(Kind::Pci(pci)))?;
        self.graph.connect_both(parent, index, LinkKind::Pci, gb_per_s);
        for child in element.children_named("pci") {
            self.add_pci(child, &Place { parent: index, ..place.clone() })?;
        }
        Ok(())
    }

    fn add_ports(&mut self, nic: &Element, place: &Place) -> Result<(), TopologyError> {
        for element in nic.children_named("net") {
            // Such an entry is for other uses than send and receive.
            if element.number("net") == Some(0) {
                continue;
            }
            let flag = |name| element.number(name).map(|number| number != 0);
            let dev = element.number("dev").and_then(|dev| u32::try_from(dev).ok());
            let net = Net {
                name: element.get("name").unwrap_or_default().to_owned(),
                dev: dev.unwrap_or(u32::MAX),
                speed: element.number("speed").filter(|speed| *speed > 0),
                port: element.number("port"),
                latency: element.get("latency").and_then(|text| text.parse().ok()),
                guid: element.get("guid").map(str::to_owned),
                gdr: flag("gdr"),
                maxconn: element.number("maxconn"),
                coll: flag("coll").unwrap_or(false),
                unused: element.get("unused").map(str::to_owned),
                host_bridge: place.host_bridge.clone(),
            };
            self.add_net(net, place.parent, place.host)?;
        }
        Ok(())
    }

    fn add_net(&mut self, net: Net, nic: NodeIndex, host: u32) -> Result<(), TopologyError> {
        let mbit = net.speed.unwrap_or(10_000).min(100_000_000);
        #[expect(clippy::cast_precision_loss, reason = "at most 10^8")]
        let gb_per_s = mbit as f64 / 8000.0;
        let kind = Kind::Net(net);
        let index = self.push(Node { kind, bus: None, parent: Some(nic), host, uplink: None })?;
        self.graph.connect_both(nic, index, LinkKind::Net, gb_per_s);
        Ok(())
    }

    /// Numbers those GPUs and ports for which the file has no number, after those it has.
    fn number_the_nameless(&mut self) {
        let (mut gpu_next, mut net_next) = (0, 0);
        for node in &self.graph.nodes {
            match &node.kind {
                Kind::Gpu(gpu) if gpu.dev != u32::MAX => gpu_next = gpu_next.max(gpu.dev + 1),
                Kind::Net(net) if net.dev != u32::MAX => net_next = net_next.max(net.dev + 1),
                _ => {}
            }
        }
        for node in &mut self.graph.nodes {
            let (dev, next) = match &mut node.kind {
                Kind::Gpu(gpu) => (&mut gpu.dev, &mut gpu_next),
                Kind::Net(net) => (&mut net.dev, &mut net_next),
                _ => continue,
            };
            if *dev == u32::MAX {
                *dev = *next;
                *next = next.saturating_add(1);
            }
        }
        for node in &mut self.graph.nodes {
            if let Kind::Net(net) = &mut node.kind
                && net.name.is_empty()
            {
                net.name = format!("net{}", net.dev);
            }
        }
    }

    /// The NVLinks, XGMI links and chip-to-chip links of one GPU.
    fn add_links(&mut self, pending: &Pending<'a>) {
        let from = pending.node;
        let Some(gpu) = self.graph.gpu(from).cloned() else { return };
        for link in &pending.element.children {
            let count = link.number("count").and_then(|count| u32::try_from(count).ok());
            let count = count.unwrap_or(0).min(1 << 10);
            let many = f64::from(count);
            let class = link.get("tclass").unwrap_or_default();
            let target: Option<BusId> = link.get("target").and_then(|text| text.parse().ok());
            let host = self.graph.nodes[from].host;
            let peer = || {
                let is_it = |node: &Node| {
                    node.bus == target && node.host == host && matches!(node.kind, Kind::Gpu(_))
                };
                self.graph.nodes.iter().position(is_it).filter(|peer| *peer != from)
            };
            match link.name.as_str() {
                "nvlink" if class.starts_with("0x03") => {
                    if let Some(to) = peer() {
                        let rate = many * nvlink_gb_per_s(gpu.sm);
                        self.graph.connect(from, to, LinkKind::NvLink(count), rate);
                    }
                }
                "nvlink" => {
                    let kind = LinkKind::NvLink(count);
                    let rate = many * nvlink_gb_per_s(gpu.sm);
                    let to =
                        if class == "0x068001" { self.graph.cpu_of(from) } else { self.switch() };
                    if let Some(to) = to {
                        self.graph.connect_both(from, to, kind, rate);
                    }
                }
                "xgmi" => {
                    if let Some(to) = peer() {
                        let rate = many * xgmi_gb_per_s(gpu.gcn.as_deref());
                        self.graph.connect(from, to, LinkKind::Xgmi(count), rate);
                    }
                }
                "c2c" => {
                    let rate = link.number("bw").and_then(|bw| i32::try_from(bw).ok());
                    let rate = f64::from(rate.unwrap_or(0).max(0)) * many / 1000.0;
                    if let Some(cpu) = self.graph.cpu_of(from) {
                        self.graph.connect_both(from, cpu, LinkKind::C2c, rate);
                    }
                }
                _ => {}
            }
        }
    }

    /// The one node for all NVSwitches.
    fn switch(&mut self) -> Option<NodeIndex> {
        if self.switches.is_none() {
            let kind = Kind::NvSwitch;
            let node = Node { kind, bus: None, parent: None, host: 0, uplink: None };
            self.switches = self.push(node).ok();
        }
        self.switches
    }

    fn connect_cpus(&mut self) {
        let cpus = self.graph.cpus();
        for &one in &cpus {
            for &other in &cpus {
                let same_host = self.graph.nodes[one].host == self.graph.nodes[other].host;
                if one != other && same_host {
                    let rate = self.graph.cpu(one).map_or(LOCAL_GB_PER_S, between_cpus);
                    self.graph.connect(one, other, LinkKind::System, rate);
                }
            }
        }
    }
}

/// Whether a PCI device is a GPU, and which.
fn gpu_of(element: &Element, place: &Place) -> Option<Gpu> {
    let model = element.get("name").map(str::to_owned);
    let host_bridge = place.host_bridge.clone();
    if let Some(gpu) = element.child("gpu").or_else(|| element.child("apu")) {
        let dev = gpu.number("dev").and_then(|dev| u32::try_from(dev).ok());
        return Some(Gpu {
            dev: dev.filter(|dev| *dev < u32::MAX).unwrap_or(u32::MAX),
            sm: gpu.number("sm").unwrap_or(0),
            gcn: gpu.get("gcn").map(str::to_owned),
            rank: gpu.number("rank"),
            gdr: gpu.number("gdr").map(|gdr| gdr != 0),
            model: gpu.get("name").map(str::to_owned).or(model),
            host_bridge,
        });
    }
    let vendor = element.get("vendor").unwrap_or_default();
    // A BMC's graphics is of that class too.
    let makes_gpus = matches!(vendor, "" | "0x10de" | "0x1002" | "0x8086" | "0xffff");
    let class = element.get("class").unwrap_or_default();
    let is_gpu = class.starts_with("0x03") || class.starts_with("0x1200");
    let gpu = Gpu { dev: u32::MAX, model, host_bridge, ..Gpu::default() };
    (is_gpu && makes_gpus).then_some(gpu)
}

fn uplink_of(element: &Element) -> PciLink {
    let text = |name| element.get(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let width = |name| {
        let width = element.number(name).and_then(|width| u32::try_from(width).ok());
        width.filter(|width| (1..=64).contains(width))
    };
    PciLink {
        speed: text("link_speed"),
        width: width("link_width"),
        current_speed: text("current_link_speed"),
        current_width: width("current_link_width"),
        device_speed: text("max_link_speed"),
        device_width: width("max_link_width"),
    }
}

fn field(element: &Element, name: &str) -> u64 {
    let number = element.number(name).and_then(|number| u64::try_from(number).ok());
    number.unwrap_or(0) & 0xffff
}

/// GB/s of one NVLink, by compute capability.
fn nvlink_gb_per_s(sm: i64) -> f64 {
    match sm {
        100.. => 40.1,
        90..100 => 20.6,
        86 => 12.0,
        60..70 => 18.0,
        _ => 20.0,
    }
}

/// GB/s of one XGMI link, by architecture, as RCCL counts.
fn xgmi_gb_per_s(gcn: Option<&str>) -> f64 {
    match gcn.unwrap_or_default() {
        name if name.starts_with("gfx94") || name.starts_with("gfx95") => 48.0,
        "940" | "941" | "942" | "950" => 48.0,
        name if name.starts_with("gfx90a") || name == "910" => 36.0,
        _ => 24.0,
    }
}

/// GB/s between two NUMA nodes.
fn between_cpus(cpu: &Cpu) -> f64 {
    match (cpu.arch.as_str(), cpu.vendor.as_str()) {
        ("ppc64", _) => 32.0,
        ("arm64", _) => 6.0,
        ("x86_64", "GenuineIntel") => match (cpu.family, cpu.model) {
            (6, 0xcf..) => 40.0,
            (6, 0x8f..0xcf) => 22.0,
            (6, 0x55..0x8f) => 10.0,
            _ => 6.0,
        },
        ("x86_64", "AuthenticAMD") => 16.0,
        ("x86_64", "CentaurHauls" | "  Shanghai  ") if (cpu.family, cpu.model) == (7, 0x5b) => 9.0,
        ("x86_64", "CentaurHauls" | "  Shanghai  ") => 6.0,
        _ => LOCAL_GB_PER_S,
    }
}
