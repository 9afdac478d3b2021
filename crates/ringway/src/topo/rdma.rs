//! RDMA devices: their ports and the addresses of these.

use std::fmt;

use serde::Serialize;

use super::Root;
use super::net::NetDevice;
use crate::plan::topology::bus::BusId;

const DEVICES: &str = "/sys/class/infiniband";

/// Places of a table in a row that are empty where the rest is taken to be: the kernel fills the first that is
/// free, so holes are of addresses that went, while tables have up to 1024 places.
const GIDS_EMPTY: usize = 32;

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RdmaDevice {
    /// `mlx5_0`.
    pub name: String,
    /// Where it is on the PCI bus; a device made by software is where its network interface is.
    pub bus: Option<BusId>,
    /// GUID of the board: the ports of one board share it.
    pub system_guid: Option<String>,
    /// GUID of the device.
    pub node_guid: Option<String>,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// Model of the board.
    pub board: Option<String>,
    /// The maker's number for exactly this board and its settings: `MT_0000000838`.
    pub board_id: Option<String>,
    /// Its ports.
    pub ports: Vec<RdmaPort>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u32,
    /// `ACTIVE`, `DOWN`, `INIT`, `ARMED`.
    pub state: String,
    /// `LinkUp`, `Polling`, `Disabled`.
    pub physical_state: String,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    /// Mbit/s.
    pub mbit_per_s: Option<u64>,
    /// The rate in the kernel's words: `400 Gb/sec (4X NDR)`.
    pub rate: String,
    /// Local identifier, on InfiniBand.
    pub lid: Option<u32>,
    /// Identifier of the subnet manager, on InfiniBand.
    pub sm_lid: Option<u32>,
    /// Its addresses that are set.
    pub gids: Vec<Gid>,
}

impl RdmaPort {
    /// Whether data can go through it.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Whether it is RoCE rather than InfiniBand.
    #[must_use]
    pub fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }

    /// Mbit/s of a rate in the kernel's words, or in those of ibstat: `400 Gb/sec (4X NDR)`, `400`.
    #[must_use]
    pub fn mbit_of(rate: &str) -> Option<u64> {
        let word = rate.split_whitespace().next()?;
        let (whole, part) = word.split_once('.').unwrap_or((word, "0"));
        let tenth: u64 = part.get(..1)?.parse().ok()?;
        let mbit = whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(100 * tenth)?;
        (mbit > 0).then_some(mbit)
    }
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// Its place in the table, which `NCCL_IB_GID_INDEX` names.
    pub index: usize,
    /// The address.
    pub gid: String,
    /// What it is for.
    pub kind: GidKind,
    /// The network interface it belongs to, on Ethernet.
    pub interface: Option<String>,
}

/// What an address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: not routed.
    RoceV1,
    /// RoCE version 2, over UDP.
    RoceV2,
    /// The kernel does not say.
    Unknown,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Unknown => "unknown",
        })
    }
}

/// Every RDMA device, by name in the order of its numbers.
pub(super) fn devices(root: &Root, nets: &[NetDevice], notes: &mut Vec<String>) -> Vec<RdmaDevice> {
    let names = root.list(DEVICES).unwrap_or_else(|error| {
        notes.push(error.to_string());
        Vec::new()
    });
    let mut found: Vec<RdmaDevice> = names.iter().map(|name| device(root, nets, name)).collect();
    found.sort_by_key(|device| natural(&device.name));
    found
}

/// A name so that `mlx5_2` comes before `mlx5_10`.
pub(super) fn natural(name: &str) -> (String, u64, String) {
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let number = name[stem.len()..].parse().unwrap_or(0);
    (stem.to_owned(), number, name.to_owned())
}

fn device(root: &Root, nets: &[NetDevice], name: &str) -> RdmaDevice {
    let folder = format!("{DEVICES}/{name}");
    let text = |file: &str| {
        let text = root.read(format!("{folder}/{file}")).ok().flatten();
        text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let ports = root.list(format!("{folder}/ports")).unwrap_or_default();
    let mut ports: Vec<u32> = ports.iter().filter_map(|port| port.parse().ok()).collect();
    ports.sort_unstable();
    let ports: Vec<RdmaPort> = ports.iter().map(|number| port(root, &folder, *number)).collect();
    // Soft-RoCE and soft-iWARP have no device of their own, but an interface.
    let over = || {
        let of_address =
            || ports.iter().flat_map(|port| &port.gids).find_map(|gid| gid.interface.clone());
        let interface = text("parent").or_else(of_address)?;
        nets.iter().find(|net| net.name == interface)?.bus_below(nets)
    };
    RdmaDevice {
        name: name.to_owned(),
        bus: bus_of(root, &folder).or_else(over),
        system_guid: text("sys_image_guid"),
        node_guid: text("node_guid"),
        firmware: text("fw_ver"),
        board: text("hca_type").or_else(|| text("board_id")),
        board_id: text("board_id"),
        ports,
    }
}

/// The PCI device that a class device hangs on: the last bus id in where its `device` leads.
pub(super) fn bus_of(root: &Root, folder: &str) -> Option<BusId> {
    let place = root.link(format!("{folder}/device")).ok().flatten()?;
    place.rsplit('/').find_map(|part| part.parse().ok())
}

fn port(root: &Root, device: &str, number: u32) -> RdmaPort {
    let folder = format!("{device}/ports/{number}");
    let text = |file: &str| {
        let text = root.read(format!("{folder}/{file}")).ok().flatten().unwrap_or_default();
        text.trim().to_owned()
    };
    // `4: ACTIVE`, `5: LinkUp`.
    let after = |file: &str| {
        let text = text(file);
        text.split_once(':').map_or_else(|| text.clone(), |(_, word)| word.trim().to_owned())
    };
    let lid = |file: &str| root.number::<u32>(format!("{folder}/{file}")).ok().flatten();
    let link_layer = text("link_layer");
    let rate = text("rate");
    let on_ib = link_layer == "InfiniBand";
    RdmaPort {
        number,
        state: after("state"),
        physical_state: after("phys_state"),
        mbit_per_s: RdmaPort::mbit_of(&rate),
        lid: lid("lid").filter(|_| on_ib),
        sm_lid: lid("sm_lid").filter(|_| on_ib),
        gids: gids(root, &folder, on_ib),
        link_layer,
        rate,
    }
}

fn gids(root: &Root, port: &str, on_ib: bool) -> Vec<Gid> {
    let names = root.list(format!("{port}/gids")).unwrap_or_default();
    let mut indices: Vec<usize> = names.iter().filter_map(|name| name.parse().ok()).collect();
    indices.sort_unstable();
    let mut found = Vec::new();
    let mut empty = 0;
    for index in indices {
        if empty == GIDS_EMPTY {
            break;
        }
        let read = |file: String| root.read(format!("{port}/{file}")).ok().flatten();
        let gid = read(format!("gids/{index}")).unwrap_or_default();
        // An empty place is all zeros; the link-local prefix alone is one too.
        let set = gid.split(':').skip(4).any(|group| group.trim() != "0000");
        if !set {
            empty += 1;
            continue;
        }
        empty = 0;
        let kind = match read(format!("gid_attrs/types/{index}")).as_deref().map(str::trim) {
            Some("RoCE v2") => GidKind::RoceV2,
            // The kernel calls both so; only the link layer tells.
            Some("IB/RoCE v1") if on_ib => GidKind::InfiniBand,
            Some("IB/RoCE v1" | "RoCE v1") => GidKind::RoceV1,
            _ if on_ib => GidKind::InfiniBand,
            _ => GidKind::Unknown,
        };
        let interface = read(format!("gid_attrs/ndevs/{index}")).filter(|name| !name.is_empty());
        found.push(Gid { index, gid: gid.trim().to_owned(), kind, interface });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_names_are_understood() {
        assert_eq!(RdmaPort::mbit_of("400 Gb/sec (4X NDR)"), Some(400_000));
        assert_eq!(RdmaPort::mbit_of("2.5 Gb/sec (1X SDR)"), Some(2_500));
        assert_eq!(RdmaPort::mbit_of("400"), Some(400_000));
        assert_eq!(RdmaPort::mbit_of(""), None);
        assert!(natural("mlx5_2") < natural("mlx5_10"));
        assert!(natural("bnxt_re0") < natural("mlx5_0"));
    }
}
