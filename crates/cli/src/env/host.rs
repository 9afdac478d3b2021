//! What this machine's network looks like, read from `/sys` below a root folder.
//!
//! *Invariant*: only small files of fixed places are read; what cannot be read is not there. This is the one
//! place to swap for `ringway::topo::Root` when that exists: [`Host::read`] is all that others use.

use std::fs;
use std::path::Path;

/// Entries of a folder that are looked at.
const MOST: usize = 4096;
/// Entries of a port's address table.
const GIDS: usize = 256;

/// One entry of a port's address table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Gid {
    pub(crate) index: u32,
    pub(crate) address: String,
    /// `RoCE v2`, `IB/RoCE v1`.
    pub(crate) kind: String,
}

impl Gid {
    fn is_set(&self) -> bool {
        self.address.bytes().any(|byte| byte != b'0' && byte != b':')
    }

    /// RoCE v2 with an address that is routed: what NCCL should use.
    pub(crate) fn is_routable_v2(&self) -> bool {
        self.kind.contains("v2") && self.is_set() && !self.address.starts_with("fe80")
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
        let mut host = Self::default();
        for device in names(&root.join("sys/class/infiniband")) {
            let ports = root.join("sys/class/infiniband").join(&device).join("ports");
            for port in names(&ports) {
                if let Ok(number) = port.parse() {
                    host.ports.push(read_port(&device, number, &ports.join(&port)));
                }
            }
        }
        for name in names(&root.join("sys/class/net")) {
            let folder = root.join("sys/class/net").join(&name);
            if !folder.is_dir() {
                continue; // bonding_masters
            }
            host.interfaces.push(Interface {
                is_up: word(&folder.join("operstate"))
                    .is_some_and(|state| state == "up" || state == "unknown"),
                is_physical: folder.join("device").exists(),
                speed: word(&folder.join("speed")).and_then(|speed| speed.parse().ok()),
                is_ipoib: word(&folder.join("type")).as_deref() == Some("32"),
                name,
            });
        }
        host
    }

    /// Ports that carry data.
    pub(crate) fn active(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|port| port.is_active)
    }
}

fn read_port(device: &str, port: u32, folder: &Path) -> Port {
    let mut gids = Vec::new();
    for name in names(&folder.join("gids")).into_iter().take(GIDS) {
        let Ok(index) = name.parse() else { continue };
        let address = word(&folder.join("gids").join(&name)).unwrap_or_default();
        let kind = word(&folder.join("gid_attrs/types").join(&name)).unwrap_or_default();
        let gid = Gid { index, address, kind };
        if gid.is_set() {
            gids.push(gid);
        }
    }
    gids.sort_by_key(|gid| gid.index);
    let rate = word(&folder.join("rate")).unwrap_or_default();
    Port {
        device: device.to_owned(),
        port,
        is_ethernet: word(&folder.join("link_layer")).as_deref() == Some("Ethernet"),
        is_active: word(&folder.join("state")).is_some_and(|state| state.contains("ACTIVE")),
        rate: rate.split([' ', '.']).next().and_then(|rate| rate.parse().ok()).unwrap_or(0),
        gids,
    }
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.take(MOST).filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The text of a small file without blanks around it.
fn word(path: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut text = Vec::new();
    fs::File::open(path).ok()?.take(4096).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).trim().to_owned())
}
