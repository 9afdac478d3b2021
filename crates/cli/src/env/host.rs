//! What settings must fit of a machine: its RDMA ports and network interfaces.
//!
//! *Invariant*: what cannot be read is not there.

use std::path::Path;

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

/// A port of an RDMA device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Port {
    pub(crate) device: String,
    pub(crate) port: u32,
    pub(crate) is_ethernet: bool,
    pub(crate) is_active: bool,
    /// Gb/s.
    pub(crate) rate: u32,
    pub(crate) gids: Vec<Gid>,
}

/// A network interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) is_up: bool,
    /// A card, not a bridge or tunnel.
    pub(crate) is_physical: bool,
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
    /// Reads below `root`, `/` for this machine.
    pub(crate) fn read(root: &Path) -> Self {
        let root = if root == Path::new("/") { Root::live() } else { Root::at(root) };
        let machine = Machine::discover(&root);
        let ports = machine
            .rdma
            .iter()
            .flat_map(|device| device.ports.iter().map(|port| port_of(&device.name, port)));
        let interfaces = machine.nets.iter().map(interface_of);
        Self { ports: ports.collect(), interfaces: interfaces.collect() }
    }

    /// Ports that carry data.
    pub(crate) fn active(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|port| port.is_active)
    }
}

fn port_of(device: &str, port: &RdmaPort) -> Port {
    let gids = port.gids.iter().map(|gid| Gid {
        index: u32::try_from(gid.index).unwrap_or(u32::MAX),
        address: gid.gid.clone(),
        kind: gid.kind,
    });
    let gbit_per_s = port.mbit_per_s.unwrap_or(0) / 1000;
    Port {
        device: device.to_owned(),
        port: port.number,
        is_ethernet: port.is_ethernet(),
        is_active: port.is_active(),
        rate: u32::try_from(gbit_per_s).unwrap_or(u32::MAX),
        gids: gids.collect(),
    }
}

fn interface_of(net: &NetDevice) -> Interface {
    Interface {
        name: net.name.clone(),
        is_up: net.is_up(),
        is_physical: net.is_device(),
        speed: net.mbit_per_s.and_then(|speed| u32::try_from(speed).ok()),
        is_ipoib: net.is_ipoib,
    }
}
