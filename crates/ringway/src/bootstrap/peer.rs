//! What a rank says of itself, and where it can be reached.
//!
//! *Invariant:* what comes from another rank is checked for size before it is used.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use super::BLOB_MAX_BYTES;
use super::dial::Target;
use super::interfaces::Survey;
use crate::error::{Error, RankIdentity, Result};
use crate::plan::types::Rank;

const ADDRESSES_MAX: usize = 256;
const NAME_MAX_BYTES: usize = 1024;

/// What the ranks know of one another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Rank.
    pub rank: Rank,
    /// Host name.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// The kernel's boot id: equal on the same running machine, in any container.
    pub boot_id: String,
    /// Inode of the pid namespace; 0 if unknown.
    pub pid_namespace: u64,
    /// Inode of the network namespace; 0 if unknown.
    pub net_namespace: u64,
    /// Interface and listening address, best first.
    pub addresses: Vec<(String, SocketAddr)>,
    /// Interfaces that are not offered, with the reason.
    pub withheld: Vec<(String, String)>,
    /// What the caller handed in.
    #[serde(with = "super::hex")]
    pub blob: Vec<u8>,
}

impl PeerInfo {
    /// As error messages name it.
    #[must_use]
    pub fn identity(&self) -> RankIdentity {
        RankIdentity { rank: self.rank, host: self.host.clone(), pid: self.pid }
    }

    /// Decodes the JSON form; total over arbitrary bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let info: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::system("decode what a rank says of itself", error))?;
        info.check()?;
        Ok(info)
    }

    /// Whether both run on the same machine and in the same network.
    #[must_use]
    pub fn same_network(&self, other: &Self) -> bool {
        self.boot_id == other.boot_id && self.net_namespace == other.net_namespace
    }

    pub(super) fn check(&self) -> Result<()> {
        let names = self.host.len().max(self.boot_id.len());
        let small = self.addresses.len() <= ADDRESSES_MAX && self.withheld.len() <= ADDRESSES_MAX;
        if small && names <= NAME_MAX_BYTES && self.blob.len() <= BLOB_MAX_BYTES {
            return Ok(());
        }
        Err(Error::internal(format!("what rank {} says of itself is too large", self.rank)))
    }

    pub(super) fn here(rank: Rank, port: u16, survey: Survey, blob: Vec<u8>) -> Self {
        let name = rustix::system::uname();
        let inode = |path: &str| std::fs::metadata(path).map_or(0, |found| found.ino());
        let host = name.nodename().to_string_lossy().into_owned();
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let mut addresses = survey.offered;
        addresses.iter_mut().for_each(|(_, address)| address.set_port(port));
        addresses.truncate(ADDRESSES_MAX);
        Self {
            rank,
            pid: std::process::id(),
            boot_id: boot_id.map_or_else(|_| host.clone(), |text| text.trim().to_owned()),
            host,
            pid_namespace: inode("/proc/self/ns/pid"),
            net_namespace: inode("/proc/self/ns/net"),
            addresses,
            withheld: survey.withheld,
            blob,
        }
    }

    /// The addresses to try from `from`: loopback first within one network, never across two.
    pub(super) fn targets_from(&self, from: &Self) -> Vec<Target> {
        let near = self.same_network(from);
        let mut targets: Vec<Target> = self
            .addresses
            .iter()
            .filter(|(_, address)| near || !address.ip().is_loopback())
            .map(|(label, address)| Target { label: label.clone(), address: *address })
            .collect();
        targets.sort_by_key(|target| !target.address.ip().is_loopback());
        targets
    }
}

/// What all ranks said of themselves, checked.
pub(super) fn introduce(gathered: &[Vec<u8>], size: u32) -> Result<Vec<PeerInfo>> {
    let peers: Vec<PeerInfo> =
        gathered.iter().map(|bytes| PeerInfo::decode(bytes)).collect::<Result<_>>()?;
    let in_order = peers.iter().map(|peer| peer.rank).eq(0..size);
    if !in_order {
        return Err(Error::internal(format!(
            "the introductions of {size} ranks came back incomplete or out of order"
        )));
    }
    Ok(peers)
}
