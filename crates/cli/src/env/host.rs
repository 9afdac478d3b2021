//! What settings must fit of a machine: its RDMA ports and network interfaces.
//!
//! *Invariant*: what cannot be read is not there.

use ringway::topo::{GidKind, Machine, NetDevice, RdmaPort, Root};

/// One entry of a port's address table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Gid {
    pub(crate) index: u32,
    pub(crate) address: String,
    pub(crate) kind: GidKind,
}

impl Gid {
    /// RoCE v2 with an address that is routed: what NCCL should use.
    pub(crate) fn is_routable_v2(&self) -> bool {
        self.kind == GidKind::RoceV2 && !self.address.starts_with("fe80")
    }
}

/// What a port's link is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: the port speaks RoCE.
    Ethernet,
    /// AWS's Elastic Fabric Adapter, which NCCL's own RDMA cannot use.
    Efa,
    /// The kernel names none of the two.
    Unknown,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Port {
    pub(crate) device: String,
    pub(crate) port: u32,
    pub(crate) link: Link,
    pub(crate) is_active: bool,
    /// Gb/s.
    pub(crate) rate: u32,
    pub(crate) gids: Vec<Gid>,
}

impl Port {
    /// Whether NCCL itself, without a plugin, can use it.
    pub(crate) fn is_verbs(&self) -> bool {
        matches!(self.link, Link::InfiniBand | Link::Ethernet)
    }
}

/// A network interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) is_up: bool,
    /// It leaves the machine and belongs to no bond: a card or a bond, not a bridge or tunnel.
    pub(crate) is_useful: bool,
    /// Over USB: the way to the machine's own management controller.
    pub(crate) is_usb: bool,
    /// Mb/s, where the driver tells.
    pub(crate) speed: Option<u32>,
    /// IP over InfiniBand.
    pub(crate) is_ipoib: bool,
}

/// What was read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Host {
    pub(crate) ports: Vec<Port>,
    pub(crate) interfaces: Vec<Interface>,
}

impl Host {
    /// Reads a machine, this one or a copy.
    pub(crate) fn read(root: &Root) -> Self {
        let machine = Machine::discover(root);
        let ports = machine
            .rdma
            .iter()
            .flat_map(|device| device.ports.iter().map(|port| port_of(root, &device.name, port)));
        let interfaces = machine.nets.iter().map(interface_of);
        Self { ports: ports.collect(), interfaces: interfaces.collect() }
    }

    /// Ports that carry data, and that NCCL itself can use.
    pub(crate) fn verbs(&self) -> impl Iterator<Item = &Port> {
        self.active().filter(|port| port.is_verbs())
    }

    /// Ports that carry data.
    pub(crate) fn active(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|port| port.is_active)
    }
}

fn port_of(root: &Root, device: &str, port: &RdmaPort) -> Port {
    let gids = port.gids.iter().map(|gid| Gid {
        index: u32::try_from(gid.index).unwrap_or(u32::MAX),
        address: gid.gid.clone(),
        kind: gid.kind,
    });
    let gbit_per_s = port.mbit_per_s.unwrap_or(0) / 1000;
    Port {
        device: device.to_owned(),
        port: port.number,
        link: link_of(root, device, &port.link_layer),
        is_active: port.is_active(),
        rate: u32::try_from(gbit_per_s).unwrap_or(u32::MAX),
        gids: gids.collect(),
    }
}

/// EFA is known by its driver, or where that cannot be read by its names; its link layer is `Unknown` or
/// `Unspecified`.
fn link_of(root: &Root, device: &str, layer: &str) -> Link {
    let place = root.link(format!("/sys/class/infiniband/{device}/device/driver")).ok().flatten();
    let driver = place.as_deref().and_then(|place| place.rsplit('/').next());
    let named = device.starts_with("rdmap") || device.starts_with("efa_");
    match (layer, driver) {
        (_, Some("efa")) => Link::Efa,
        ("InfiniBand", _) => Link::InfiniBand,
        ("Ethernet", _) => Link::Ethernet,
        (_, None) if named => Link::Efa,
        _ => Link::Unknown,
    }
}

fn interface_of(net: &NetDevice) -> Interface {
    Interface {
        name: net.name.clone(),
        is_up: net.state == "up" || net.state == "unknown",
        is_useful: net.is_useful(),
        is_usb: is_usb(&net.name, net.driver.as_deref()),
        speed: net.mbit_per_s.and_then(|speed| u32::try_from(speed).ok()),
        is_ipoib: net.is_ipoib,
    }
}

/// By the driver, and where that is not known by the name.
fn is_usb(name: &str, driver: Option<&str>) -> bool {
    match driver {
        Some(driver) => ["cdc_ether", "cdc_ncm", "cdc_eem", "rndis_host"].contains(&driver),
        None => ["bmc", "usb", "enx"].iter().any(|prefix| name.starts_with(prefix)),
    }
}
