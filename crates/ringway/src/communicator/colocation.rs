//! Who shares memory with whom: tried at start, then agreed on by all ranks.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::bootstrap::Session;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::types::Rank;
use crate::transport::shm::{self, Attached, Bell, Layout, Meeting};

/// What this rank found out.
#[derive(Debug)]
pub(crate) struct Colocation {
    /// Ranks with the same number map each other's memory.
    pub(crate) hosts: Vec<u32>,
    /// The segments of the ranks on this host.
    pub(crate) attached: Vec<Attached>,
    /// Why each rank is not reached by shared memory; empty where it is.
    pub(crate) refusals: Vec<String>,
    /// Why ranks of one host do not read each other's buffers, if they do not. The same on all ranks.
    pub(crate) unreadable: Option<String>,
}

/// One rank's view, as it travels.
#[derive(Serialize, Deserialize)]
struct View {
    attached: Vec<Rank>,
    /// Attached ranks whose buffers cannot be read from here, and why.
    unreadable: Vec<(Rank, String)>,
}

/// Tries every rank that could be on this host. All ranks call it together.
pub(crate) fn discover(
    session: &mut Session,
    config: &Config,
    (layout, descriptor, bell): (Layout, &OwnedFd, &Bell),
) -> Result<Colocation> {
    let size = session.size as usize;
    let mut refusals = vec![String::new(); size];
    let candidates = candidates(session, config, &mut refusals);
    let directory = config.shm_dir().map(std::path::Path::to_path_buf);
    let key = session.key.clone();
    let meeting = Meeting {
        rank: session.rank,
        communicator: session.comm_id,
        key: key.as_bytes(),
        directory: directory.as_deref(),
        // Who has no neighbour need not let anybody read its memory.
        reads_memory: config.single_copy && !candidates.is_empty(),
    };
    let door = shm::open_door(&meeting)?;
    session.all_gather(b"door open")?;
    let (attached, refused) =
        shm::attach_all(&meeting, door, (layout, descriptor, bell), &candidates, || {
            session.all_gather(b"attached").map(|_| ())
        })?;
    for refused in refused {
        refusals[refused.peer as usize] = refused.reason;
    }
    let closed = attached.iter().filter_map(|one| Some((one.peer, one.reach.as_ref().err()?)));
    let view = View {
        attached: attached.iter().map(|one| one.peer).collect(),
        unreadable: closed.map(|(peer, why)| (peer, why.clone())).collect(),
    };
    let body = serde_json::to_vec(&view).map_err(|e| Error::internal(e.to_string()))?;
    let views: Vec<View> = session
        .all_gather(&body)?
        .iter()
        .map(|body| serde_json::from_slice(body))
        .collect::<std::result::Result<_, _>>()
        .map_err(|e| Error::system("what a rank says it has attached", e))?;
    let hosts = group(&views);
    let here = hosts[session.rank as usize];
    let mut attached = attached;
    attached.retain(|one| hosts[one.peer as usize] == here);
    for (peer, refusal) in refusals.iter_mut().enumerate() {
        if hosts[peer] != here && refusal.is_empty() {
            "another rank of this host cannot map its memory".clone_into(refusal);
        }
    }
    let unreadable = unreadable(&views, &hosts);
    Ok(Colocation { hosts, attached, refusals, unreadable })
}

/// The first pair of ranks of one host of which one cannot read the other's memory.
fn unreadable(views: &[View], hosts: &[u32]) -> Option<String> {
    (0..).zip(views).find_map(|(rank, view): (Rank, &View)| {
        let near = |peer: Rank| hosts.get(peer as usize) == hosts.get(rank as usize);
        let (peer, why) = view.unreadable.iter().find(|(peer, _)| near(*peer))?;
        Some(format!("rank {rank} cannot read the buffers of rank {peer}: {why}"))
    })
}

/// The ranks worth trying, and why not the others.
fn candidates(session: &Session, config: &Config, refusals: &mut [String]) -> Vec<Rank> {
    let me = &session.peers[session.rank as usize];
    let mut found = Vec::new();
    for peer in session.peers.iter().filter(|peer| peer.rank != session.rank) {
        let refusal = &mut refusals[peer.rank as usize];
        if !config.allows_shm() {
            *refusal = "shared memory is switched off (RINGWAY_TRANSPORT, NCCL_SHM_DISABLE)".into();
        } else if peer.boot_id != me.boot_id {
            *refusal = format!("another host ({}): its boot id differs", peer.host);
        } else if peer.blob != me.blob {
            *refusal = "NCCL_HOSTID differs".into();
        } else {
            found.push(peer.rank);
        }
    }
    found
}

/// Ranks that all map each other, greedily in rank order: the same on every rank.
fn group(views: &[View]) -> Vec<u32> {
    let mutual = |a: usize, b: usize| {
        let sees =
            |from: usize, to: usize| views[from].attached.iter().any(|peer| *peer as usize == to);
        sees(a, b) && sees(b, a)
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for rank in 0..views.len() {
        match groups.iter_mut().find(|group| group.iter().all(|other| mutual(rank, *other))) {
            Some(group) => group.push(rank),
            None => groups.push(vec![rank]),
        }
    }
    let mut hosts = vec![0; views.len()];
    for (number, group) in (0..).zip(&groups) {
        for rank in group {
            hosts[*rank] = number;
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn views(attached: &[&[Rank]]) -> Vec<View> {
        attached
            .iter()
            .map(|list| View { attached: list.to_vec(), unreadable: Vec::new() })
            .collect()
    }

    #[test]
    fn groups_are_cliques() {
        assert_eq!(group(&views(&[&[1, 2], &[0, 2], &[0, 1]])), [0, 0, 0]);
        assert_eq!(group(&views(&[&[], &[], &[]])), [0, 1, 2]);
        // One-sided sight does not count.
        assert_eq!(group(&views(&[&[1], &[], &[]])), [0, 1, 2]);
        // 0 and 2 do not see each other: 2 cannot join them both.
        assert_eq!(group(&views(&[&[1], &[0, 2], &[1]])), [0, 0, 1]);
        assert_eq!(group(&views(&[&[2], &[3], &[0], &[1]])), [0, 1, 0, 1]);
    }

    #[test]
    fn one_that_cannot_read_a_neighbour_speaks_for_all() {
        let mut views = views(&[&[1, 2], &[0, 2], &[0, 1]]);
        assert_eq!(unreadable(&views, &[0, 0, 0]), None);
        views[1].unreadable.push((2, "forbidden".to_owned()));
        let why = unreadable(&views, &[0, 0, 0]).unwrap();
        assert_eq!(why, "rank 1 cannot read the buffers of rank 2: forbidden");
        assert_eq!(unreadable(&views, &[0, 0, 1]), None, "that one is not on its host");
    }
}
