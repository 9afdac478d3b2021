//! What ranks on GPUs tell each other when they meet, and what all derive from it.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::{PARTS_MOST, Setup};
use crate::device::Fault;
use crate::device::share::{Share, Trial};
use crate::device::station::Layout;
use crate::error::{Error, Result};
use crate::ffi::cuda::{Address, IPC_BYTES, IpcHandle};
use crate::plan::mapped;
use crate::plan::types::Rank;

/// What ranks tell each other first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Introduction {
    /// Why this rank has no GPU, if it has none.
    pub(super) refusal: Option<String>,
    pub(super) process: [u8; 16],
    pub(super) ordinal: i32,
    pub(super) uuid: [u8; 16],
    pub(super) processors: u32,
}

/// What they tell next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Location {
    pub(super) address: Address,
    pub(super) handle: Option<Vec<u8>>,
    /// Memory that is passed as descriptors, to be tried, or why there is none.
    pub(super) trial: std::result::Result<Vec<u8>, String>,
}

/// And last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) refusal: Option<String>,
    /// Ranks whose memory could not be mapped by descriptors, and why.
    pub(super) unreached: Vec<(Rank, String)>,
}

/// What tells this process from all others.
pub(super) fn process() -> [u8; 16] {
    static PROCESS: OnceLock<[u8; 16]> = OnceLock::new();
    *PROCESS.get_or_init(|| {
        let mut random = [0; 16];
        let _read = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        random
    })
}

/// All-gather of what each rank tells.
pub(super) fn exchange<T: Serialize + for<'de> Deserialize<'de>>(
    setup: &Setup<'_>,
    own: &T,
) -> Result<Vec<T>> {
    let blob = serde_json::to_vec(own)
        .map_err(|error| Error::internal(format!("cannot write a GPU's introduction: {error}")))?;
    (setup.exchange)(&blob)?
        .iter()
        .map(|blob| {
            serde_json::from_slice(blob).map_err(|error| {
                Error::internal(format!("cannot read a GPU's introduction: {error}"))
            })
        })
        .collect()
}

/// A rank's reason, with its number.
pub(super) fn refused(rank: Rank, why: &str) -> String {
    format!("rank {rank}: {why}")
}

/// What all ranks derive from what they told each other.
pub(super) fn agree(all: &[Introduction], hosts: &[u32]) -> std::result::Result<Layout, String> {
    if let Some((rank, why)) =
        (0..).zip(all).find_map(|(rank, one)| Some((rank, one.refusal.as_ref()?)))
    {
        return Err(refused(rank, why));
    }
    let ranks = u32::try_from(all.len()).unwrap_or(u32::MAX);
    if ranks > mapped::RANKS_MAX {
        return Err(format!(
            "{ranks} ranks; at most {} map each other's memory",
            mapped::RANKS_MAX
        ));
    }
    if let Some(rank) = hosts.iter().position(|host| *host != hosts[0]) {
        return Err(format!("rank {rank} is on another host than rank 0"));
    }
    // All ranks of a GPU run at once; where other communicators leave less, a block does several parts.
    let parts = all.iter().map(|one| {
        let here = all.iter().filter(|other| other.uuid == one.uuid).count();
        one.processors / u32::try_from(here).unwrap_or(u32::MAX)
    });
    let parts = parts.min().unwrap_or(1);
    Ok(Layout::new(ranks, parts.clamp(1, PARTS_MOST)))
}

/// Processes that have ranks on a GPU.
pub(super) fn processes(all: &[Introduction], uuid: [u8; 16]) -> u32 {
    let here = all.iter().filter(|one| one.uuid == uuid);
    let here: std::collections::BTreeSet<_> = here.map(|one| one.process).collect();
    u32::try_from(here.len()).unwrap_or(u32::MAX).max(1)
}

/// The door of a rank, if all others have come through.
pub(super) fn agreed(
    trial: Trial,
    rank: Rank,
    outcomes: &[Outcome],
) -> std::result::Result<Share, String> {
    let refused = (0_u32..).zip(outcomes).find_map(|(by, one)| {
        let (_, why) = one.unreached.iter().find(|(whom, _)| *whom == rank)?;
        Some(format!("rank {by} cannot map it: {why}"))
    });
    match refused {
        None => Ok(trial.end()),
        Some(why) => Err(why),
    }
}

/// A handle as a peer told it.
pub(super) fn handle_of(handle: Option<&[u8]>) -> std::result::Result<IpcHandle, Fault> {
    let bytes = handle.and_then(|h| <[u8; IPC_BYTES]>::try_from(h).ok());
    bytes.map(IpcHandle).ok_or_else(|| Fault::Other("a peer could not name its memory".to_owned()))
}
