//! Which ranks are reached by RDMA: every rank says what ports it has, all decide alike, and links are made when
//! they are first needed.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::bootstrap::Session;
use crate::config::{Config, RdmaSettings, Requirement, TransportChoice};
use crate::error::{Error, Result};
use crate::log;
use crate::plan::types::Rank;
use crate::transport::verbs::adapter::{self, Adapter};
use crate::transport::verbs::meet::{self, Wish};
use crate::transport::verbs::stream::VerbsStream;

/// What a rank says of its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ports {
    /// Those it uses: `mlx5_0:1/RoCE`.
    used: Vec<String>,
    /// Why it uses no more.
    refused: Vec<String>,
}

/// How this rank reaches others by RDMA.
#[derive(Debug)]
pub(crate) struct Rdma {
    adapters: Vec<Arc<Adapter>>,
    settings: RdmaSettings,
    /// For every rank, why it is not reached so.
    refusals: Vec<Option<String>>,
}

/// Finds this rank's ports, and hears of those of all others. All ranks call it; `far` are those that are not
/// reached by memory.
pub(super) fn agree(session: &mut Session, config: &Config, far: &[Rank]) -> Result<Rdma> {
    let mut own = Ports::default();
    let mut adapters = Vec::new();
    let wanted = matches!(config.transport, TransportChoice::Auto | TransportChoice::Verbs);
    if !wanted {
        own.refused.push(format!("RINGWAY_TRANSPORT={}", config.transport));
    } else if !far.is_empty() {
        match adapter::survey(&config.rdma) {
            Ok(found) => {
                own.used = found.adapters.iter().map(|one| one.label()).collect();
                own.refused = found.refused;
                adapters = found.adapters;
            }
            Err(error) => own.refused.push(error.to_string()),
        }
    }
    if session.size == 1 {
        return Ok(Rdma { adapters, settings: config.rdma.clone(), refusals: vec![None] });
    }
    let body = serde_json::to_vec(&own).map_err(|error| Error::internal(error.to_string()))?;
    let all = session.all_gather(&body)?;
    let said: Vec<Ports> =
        all.iter().map(|text| serde_json::from_slice(text).unwrap_or_default()).collect();
    let refusal = |peer: Rank| {
        let lacks = |rank: Rank| {
            let ports = &said[rank as usize];
            let why =
                if ports.refused.is_empty() { "none".to_owned() } else { ports.refused.join("; ") };
            ports.used.is_empty().then(|| format!("rank {rank} has no RDMA port: {why}"))
        };
        lacks(session.rank).or_else(|| lacks(peer))
    };
    let refusals: Vec<_> = (0..session.size)
        .map(|peer| if far.contains(&peer) { refusal(peer) } else { None })
        .collect();
    let rank = u64::from(session.rank);
    if !far.is_empty() && !adapters.is_empty() {
        let list: Vec<String> =
            own.used.iter().enumerate().map(|(at, name)| format!("[{at}]{name}")).collect();
        tracing::info!(target: log::INIT_NET, rank, "NET/IB : Using {}", list.join(" "));
    }
    let insists =
        config.require.contains(&Requirement::Rdma) || config.transport == TransportChoice::Verbs;
    for peer in far {
        let Some(why) = &refusals[*peer as usize] else { continue };
        if insists {
            let asked = if config.require.contains(&Requirement::Rdma) {
                "RINGWAY_REQUIRE=rdma"
            } else {
                "RINGWAY_TRANSPORT=verbs"
            };
            let text =
                format!("{asked} is not met between ranks {} and {peer}: {why}", session.rank);
            return Err(Error::usage(text));
        }
    }
    Ok(Rdma { adapters, settings: config.rdma.clone(), refusals })
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

    /// Makes the stream to a rank over the connection that is there, which does the same.
    pub(super) fn meet(
        &self,
        socket: TcpStream,
        peer: &str,
        deadline: Instant,
    ) -> std::result::Result<(VerbsStream, String), String> {
        let wish = Wish {
            adapters: &self.adapters,
            settings: &self.settings,
            queue_pairs: 1,
            peer,
            deadline,
        };
        meet::meet(socket, &wish)
    }
}
