//! Network interfaces: what they are, what they hang on, how they run.

use serde::Serialize;

use super::Root;
use super::rdma::{bus_of, natural};
use crate::plan::topology::bus::BusId;

const DEVICES: &str = "/sys/class/net";

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetDevice {
    /// `eth0`.
    pub name: String,
    /// What it is.
    pub kind: NetKind,
    /// `up`, `down`, `unknown`.
    pub state: String,
    /// Mbit/s, where the driver says.
    pub mbit_per_s: Option<u64>,
    /// Largest packet, in bytes.
    pub mtu: Option<u32>,
    /// Its driver.
    pub driver: Option<String>,
    /// Where it is on the PCI bus.
    pub bus: Option<BusId>,
    /// Its hardware address.
    pub address: Option<String>,
    /// The bond or bridge it belongs to.
    pub master: Option<String>,
    /// Whether it is IP over InfiniBand.
    pub is_ipoib: bool,
    /// Whether it is Ethernet.
    pub is_ethernet: bool,
    /// Members of a bond or bridge, or what a VLAN stands on.
    pub below: Vec<String>,
}

/// What a network interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NetKind {
    /// A device, real or given by a hypervisor.
    Physical,
    /// A virtual function of a device.
    VirtualFunction,
    /// Several as one.
    Bond,
    /// One network of several on a wire.
    Vlan,
    /// A switch in the kernel.
    Bridge,
    /// The loopback.
    Loopback,
    /// Made by software: veth, tunnels, dummies.
    Virtual,
}

impl NetDevice {
    /// Whether it is up, as far as is known: virtual ones say `unknown`.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == "up" || self.state == "unknown"
    }

    /// Whether it is a device, real or virtual, rather than made by software.
    #[must_use]
    pub fn is_device(&self) -> bool {
        matches!(self.kind, NetKind::Physical | NetKind::VirtualFunction)
    }

    /// Whether a job's traffic may go over it: it leaves the machine, and it is up.
    #[must_use]
    pub fn is_useful(&self) -> bool {
        use NetKind::{Bond, Physical, VirtualFunction, Vlan};
        let leaves = matches!(self.kind, Physical | VirtualFunction | Bond | Vlan);
        leaves && self.state != "down" && self.master.is_none()
    }

    /// Where it is on the PCI bus; of a bond or VLAN, where the first of what it stands on is.
    #[must_use]
    pub fn bus_below(&self, all: &[Self]) -> Option<BusId> {
        let below = |name: &String| all.iter().find(|net| net.name == *name)?.bus;
        self.bus.or_else(|| self.below.iter().find_map(below))
    }
}

/// Every network interface, by name in the order of its numbers.
pub(super) fn devices(root: &Root, notes: &mut Vec<String>) -> Vec<NetDevice> {
    let names = root.list(DEVICES).unwrap_or_else(|error| {
        notes.push(error.to_string());
        Vec::new()
    });
    let is_device = |name: &&String| root.exists(format!("{DEVICES}/{name}/mtu"));
    let mut found: Vec<NetDevice> =
        names.iter().filter(is_device).map(|name| device(root, name)).collect();
    found.sort_by_key(|device| natural(&device.name));
    found
}

fn device(root: &Root, name: &str) -> NetDevice {
    let folder = format!("{DEVICES}/{name}");
    let text = |file: &str| {
        let text = root.read(format!("{folder}/{file}")).ok().flatten();
        text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let base = |file: &str| {
        let place = root.link(format!("{folder}/{file}")).ok().flatten()?;
        place.rsplit('/').next().map(str::to_owned)
    };
    let names = root.list(&folder).unwrap_or_default();
    let lower: Vec<String> =
        names.iter().filter_map(|file| file.strip_prefix("lower_")).map(str::to_owned).collect();
    let has = |file: &str| root.exists(format!("{folder}/{file}"));
    let uevent = text("uevent").unwrap_or_default();
    let kind = if name == "lo" || text("type").as_deref() == Some("772") {
        NetKind::Loopback
    } else if has("bonding") {
        NetKind::Bond
    } else if has("bridge") {
        NetKind::Bridge
    } else if uevent.contains("DEVTYPE=vlan") || root.exists(format!("/proc/net/vlan/{name}")) {
        NetKind::Vlan
    } else if has("device/physfn") {
        NetKind::VirtualFunction
    } else if has("device") {
        NetKind::Physical
    } else {
        NetKind::Virtual
    };
    let speed = root.number::<u64>(format!("{folder}/speed")).ok().flatten();
    NetDevice {
        name: name.to_owned(),
        kind,
        state: text("operstate").unwrap_or_else(|| "unknown".to_owned()),
        // A link that is down answers -1, or an error; older kernels the largest 32-bit number.
        mbit_per_s: speed.filter(|mbit| (1..100_000_000).contains(mbit)),
        mtu: root.number(format!("{folder}/mtu")).ok().flatten(),
        driver: base("device/driver"),
        bus: bus_of(root, &folder),
        address: text("address"),
        master: base("master"),
        is_ipoib: text("type").as_deref() == Some("32"),
        is_ethernet: text("type").as_deref() == Some("1"),
        below: lower,
    }
}
