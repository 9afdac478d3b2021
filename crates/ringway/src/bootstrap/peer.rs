//! What a rank says of itself, and where it can be reached.
//!
//! *Invariant:* what comes from another rank is checked for size before it is used.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use super::BLOB_MAX_BYTES;
use super::dial::Target;
use super::interfaces::Survey;
use super::rails::Rail;
use crate::error::{Error, RankIdentity, Result};
use crate::plan::types::Rank;

const ADDRESSES_MAX: usize = 256;
const NAME_MAX_BYTES: usize = 1024;
const CPU_WORDS_MAX: usize = 1024;

/// A whole rank, in the units in which time on CPUs is counted.
const SHARE: u64 = 1 << 16;

/// Who else runs on a rank's CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// No rank that is known.
    None,
    /// Others, and there is a CPU for each.
    Some,
    /// More ranks than CPUs.
    Crowd,
}

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
    /// The CPUs it may run on: bit `i % 64` of word `i / 64`. Empty if unknown.
    pub cpus: Vec<u64>,
    /// Interface and listening address, best first.
    pub addresses: Vec<(String, SocketAddr)>,
    /// The interfaces among them that may carry lanes side by side.
    pub rails: Vec<Rail>,
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

    /// Who else runs on the CPUs this rank may use, `cores` of them, however it is reached: ranks of
    /// one machine take each other's time also where they share no memory.
    #[must_use]
    pub fn company(&self, peers: &[Self], cores: usize) -> Company {
        let here = peers.iter().filter(|peer| peer.boot_id == self.boot_id);
        let count = |words: &mut dyn Iterator<Item = u64>| -> u64 {
            words.map(|word| u64::from(word.count_ones())).sum()
        };
        // A rank with several CPUs is on each of them for a part of its time.
        let load = |peer: &Self| {
            let all = count(&mut peer.cpus.iter().copied());
            let shared = count(&mut peer.cpus.iter().zip(&self.cpus).map(|(a, b)| a & b));
            if all == 0 || self.cpus.is_empty() { SHARE } else { SHARE * shared / all }
        };
        match here.map(load).sum::<u64>() {
            wanted if wanted > SHARE * cores as u64 => Company::Crowd,
            wanted if wanted > SHARE => Company::Some,
            _ => Company::None,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let names = self.host.len().max(self.boot_id.len());
        let small = self.addresses.len() <= ADDRESSES_MAX
            && self.withheld.len() <= ADDRESSES_MAX
            && self.rails.len() <= ADDRESSES_MAX
            && self.cpus.len() <= CPU_WORDS_MAX;
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
        let mut rails = survey.rails;
        rails.iter_mut().for_each(|rail| rail.address.set_port(port));
        rails.truncate(ADDRESSES_MAX);
        Self {
            rank,
            pid: std::process::id(),
            boot_id: boot_id.map_or_else(|_| host.clone(), |text| text.trim().to_owned()),
            host,
            pid_namespace: inode("/proc/self/ns/pid"),
            net_namespace: inode("/proc/self/ns/net"),
            cpus: allowed_cpus(),
            addresses,
            rails,
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
            .map(|(label, address)| Target { label: label.clone(), address: *address, from: None })
            .collect();
        targets.sort_by_key(|target| !target.address.ip().is_loopback());
        targets
    }
}

/// The CPUs the kernel lets this thread run on, a bit for each.
fn allowed_cpus() -> Vec<u64> {
    let mut words = Vec::new();
    for cpu in crate::os::allowed_cpus().iter().flat_map(|cpus| cpus.iter()) {
        let word = cpu as usize / 64;
        words.resize(words.len().max(word + 1), 0);
        words[word] |= 1 << (cpu % 64);
    }
    words
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: Rank, boot_id: &str, cpus: &[u64]) -> PeerInfo {
        let here = PeerInfo::here(rank, 1, Survey::default(), Vec::new());
        PeerInfo { boot_id: boot_id.into(), cpus: cpus.to_vec(), ..here }
    }

    #[test]
    fn ranks_that_share_cpus_know_it() {
        let on = |all: &[&[u64]]| -> Vec<PeerInfo> {
            (0..).zip(all).map(|(number, cpus)| rank(number, "a", cpus)).collect()
        };
        let company = |ranks: &[PeerInfo], cores| ranks[0].company(ranks, cores);
        let both = on(&[&[3], &[3]]);
        assert_eq!(company(&both, 2), Company::Some);
        // Memory or not: whoever shares the CPUs counts.
        assert_eq!(company(&on(&[&[3], &[3], &[3], &[3]]), 2), Company::Crowd);
        // Each has a CPU of its own: nobody is in the way, though each sees one CPU only.
        assert_eq!(company(&on(&[&[1], &[2], &[4], &[8]]), 1), Company::None);
        assert_eq!(company(&on(&[&[1], &[1], &[4], &[8]]), 1), Company::Crowd);
        // A limit on time (a container's) counts as so many CPUs.
        assert_eq!(company(&both, 1), Company::Crowd);
        // CPUs nobody told are taken to be the same ones.
        assert_eq!(company(&on(&[&[], &[3], &[3]]), 2), Company::Crowd);
        // Another machine's CPUs are others.
        assert_eq!(company(&[rank(0, "a", &[1]), rank(1, "b", &[1])], 1), Company::None);
    }

    #[test]
    fn this_thread_may_run_somewhere() {
        assert!(allowed_cpus().iter().any(|word| *word != 0));
    }
}
