//! Which ranks are reached by RDMA: every rank says what ports it has, all decide alike, and links are made when
//! they are first needed.

use std::net::TcpStream;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bootstrap::Session;
use crate::config::{Config, RdmaSettings};
use crate::error::{Error, Result};
use crate::plan::types::Rank;
use crate::transport::verbs::adapter::{self, Adapter};
use crate::transport::verbs::region::Callers;
pub(super) use crate::transport::verbs::region::Regions;
pub(super) use crate::transport::verbs::stream::LINK_BYTES;
use crate::transport::verbs::stream::{self, VerbsStream, Wish};

/// What a rank says of its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ports {
    /// Those it uses: `mlx5_0:1/RoCE`.
    used: Vec<String>,
    /// The place of each among those that the settings name.
    places: Vec<u32>,
    /// Why it uses no more.
    refused: Vec<String>,
}

/// How this rank reaches others by RDMA.
#[derive(Debug)]
pub(crate) struct Rdma {
    adapters: Vec<Arc<Adapter>>,
    regions: Arc<Regions>,
    settings: RdmaSettings,
    insists: Option<&'static str>,
    /// What each rank said.
    said: Vec<Ports>,
    /// For every rank, why it is not reached so.
    refusals: Vec<Option<String>>,
}

/// Finds this rank's ports, and hears of those of all others. All ranks call it; `far` are those that are not
/// reached by memory, `hosts` say who shares it with whom, `taken` is what the
/// communicator has of memory already.
pub(super) fn agree(
    session: &mut Session,
    config: &Config,
    (far, hosts): (&[Rank], &[u32]),
    taken: u64,
) -> Result<Rdma> {
    let needed = taken.saturating_add(LINK_BYTES.saturating_mul(far.len() as u64));
    let forbids = config.forbids_rdma().map(str::to_owned).or_else(|| {
        let most = config.max_bytes.filter(|most| needed > *most)?;
        let peers = far.len();
        Some(format!(
            "RINGWAY_MAX_BYTES={most} is less than the {needed} that RDMA to {peers} ranks can take"
        ))
    });
    let (own, adapters) = match forbids {
        Some(why) => (Ports { refused: vec![why], ..Ports::default() }, Vec::new()),
        None if far.is_empty() => Default::default(),
        None => find(&config.rdma),
    };
    let said = if session.size == 1 {
        vec![own]
    } else {
        let body = serde_json::to_vec(&own).map_err(|error| Error::internal(error.to_string()))?;
        let all = session.all_gather(&body)?;
        all.iter().map(|text| serde_json::from_slice(text).unwrap_or_default()).collect()
    };
    let lacks = |rank: Rank| {
        let Ports { used, refused, .. } = &said[rank as usize];
        let why = if refused.is_empty() { "none".to_owned() } else { refused.join("; ") };
        used.is_empty().then(|| format!("rank {rank} uses no RDMA port: {why}"))
    };
    let refusal = |peer: Rank| lacks(session.rank).or_else(|| lacks(peer));
    let refusals: Vec<_> = (0..session.size)
        .map(|peer| if far.contains(&peer) { refusal(peer) } else { None })
        .collect();
    let insists = config.insists_on_rdma();
    if let Some(asks) = insists {
        // The same first pair for all, whoever of them shares memory with whom.
        let ranks = || 0..session.size;
        let apart = |a: Rank, b: Rank| hosts[a as usize] != hosts[b as usize];
        let pairs = ranks().flat_map(|a| ranks().map(move |b| (a, b)));
        let mut broken = pairs.filter(|(a, b)| a < b && apart(*a, *b));
        let found = broken.find_map(|(a, b)| Some((a, b, lacks(a).or_else(|| lacks(b))?)));
        if let Some((a, b, why)) = found {
            let name = |rank: Rank| session.peers[rank as usize].identity();
            let text = format!("{asks} is not met between {} and {}: {why}", name(a), name(b));
            let culprit = if lacks(a).is_some() { a } else { b };
            return Err(Error::usage(text).with_culprits(vec![name(culprit)]));
        }
    }
    let callers = if config.rdma.register { Callers::Registered } else { Callers::Copied };
    let regions = Arc::new(Regions::new(&adapters, callers, session.rank.into()));
    Ok(Rdma { adapters, regions, settings: config.rdma.clone(), insists, said, refusals })
}

/// The ports of this rank that can be used, and why no others.
fn find(settings: &RdmaSettings) -> (Ports, Vec<Arc<Adapter>>) {
    let mut ports = Ports::default();
    let found = match adapter::survey(settings) {
        Ok(found) => found,
        Err(error) => {
            ports.refused.push(error.to_string());
            return (ports, Vec::new());
        }
    };
    ports.refused = found.refused;
    let mut adapters = Vec::new();
    for adapter in found.adapters {
        match stream::try_port(&adapter) {
            Ok(()) => {
                ports.used.push(adapter.label());
                ports.places.push(adapter.place);
                adapters.push(adapter);
            }
            Err(why) => ports.refused.push(why),
        }
    }
    (ports, adapters)
}

impl Rdma {
    /// Whether a rank is reached so; else why not.
    pub(super) fn reaches(&self, peer: Rank) -> std::result::Result<(), &str> {
        match self.refusals.get(peer as usize) {
            Some(Some(why)) => Err(why),
            _ if self.adapters.is_empty() => Err("this rank has no RDMA port"),
            _ => Ok(()),
        }
    }

    /// What adapters know of this rank's memory.
    pub(super) fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// This rank's ports, as NCCL has them in its log: `mlx5_0:1/RoCE`.
    pub(super) fn labels(&self) -> Vec<String> {
        self.adapters.iter().map(|one| one.label()).collect()
    }

    /// The devices of this rank's ports: `mlx5_0`.
    pub(super) fn devices(&self) -> Vec<&str> {
        self.adapters.iter().map(|one| one.context.name()).collect()
    }

    /// Memory that links will take besides the communicator's own, for people.
    pub(super) fn memory_in_words(&self) -> String {
        if self.adapters.is_empty() {
            return String::new();
        }
        format!(", {} more for each rank talked to by RDMA", LINK_BYTES)
    }

    /// Why this rank uses no more ports.
    pub(super) fn refused(&self, rank: Rank) -> &[String] {
        &self.said[rank as usize].refused
    }

    /// The stream to a rank beside the connection that is there; it makes one too.
    ///
    /// # Errors
    /// When the system has no memory or descriptors left.
    pub(super) fn stream(
        &self,
        socket: TcpStream,
        (rank, peer): (Rank, Rank),
        name: String,
    ) -> std::io::Result<(VerbsStream, String)> {
        let (mine, theirs) = (&self.said[rank as usize].places, &self.said[peer as usize].places);
        let chosen = counterparts(mine, theirs, self.settings.cross == 1);
        let adapters: Vec<_> =
            chosen.into_iter().map(|at| Arc::clone(&self.adapters[at])).collect();
        let detail = adapters.iter().map(|one| one.label()).collect::<Vec<_>>().join(" ");
        let wish = Wish {
            adapters,
            regions: Arc::clone(&self.regions),
            settings: self.settings.clone(),
            insists: self.insists.map(str::to_owned),
            leads: rank < peer,
            rank: rank.into(),
            peer: name,
        };
        Ok((VerbsStream::new(socket, wish)?, detail))
    }
}

/// Which of this rank's ports are used for a peer, by the places of both: those that the peer has too, or all where it has
/// none of them. Where ports may cross, those of the rank with fewer are used again from the first.
fn counterparts(mine: &[u32], theirs: &[u32], cross: bool) -> Vec<usize> {
    if cross {
        return (0..mine.len()).cycle().take(mine.len().max(theirs.len())).collect();
    }
    let all = 0..mine.len();
    let common: Vec<usize> = all.clone().filter(|at| theirs.contains(&mine[*at])).collect();
    if common.is_empty() { all.collect() } else { common }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ports_at_the_same_place_are_used() {
        assert_eq!(counterparts(&[0, 1], &[0, 1], false), [0, 1]);
        assert_eq!(counterparts(&[0, 1], &[0], false), [0]);
        // The peer's first port is down: its second one talks to this rank's second.
        assert_eq!(counterparts(&[0, 1], &[1], false), [1]);
        assert_eq!(counterparts(&[3], &[0], false), [0]);
        assert_eq!(counterparts(&[0, 1], &[0], true), [0, 1]);
        assert_eq!(counterparts(&[0], &[0, 1], true), [0, 0]);
    }
}
