//! The settings from which ranks derive plans, or speak on connections: they must be equal, or these would differ.

use serde::{Deserialize, Serialize};

use crate::bootstrap::Session;
use crate::config::{Config, TuningChoice};
use crate::error::{Error, Result};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Shared {
    values: Vec<(String, String)>,
}

impl Shared {
    fn of(config: &Config) -> Self {
        let named = |name: &str, value: String| (name.to_owned(), value);
        Self {
            values: vec![
                named("the version of ringway", env!("CARGO_PKG_VERSION").to_owned()),
                named(
                    "NCCL_BUFFSIZE (or RINGWAY_MAX_BYTES, which limits it)",
                    config.scratch_bytes().to_string(),
                ),
                // What it is limited to depends on all of it.
                named("RINGWAY_MAX_BYTES", format!("{:?}", config.max_bytes)),
                named(
                    "NCCL_NSOCKS_PERTHREAD × NCCL_SOCKET_NTHREADS",
                    config.sockets_per_peer().to_string(),
                ),
                named("RINGWAY_TLS", u8::from(config.tls).to_string()),
                named("NCCL_ALGO", format!("{:?}", config.algorithms)),
                named("RINGWAY_LEVEL", config.level.to_string()),
                named("RINGWAY_LANES", format!("{:?}", config.lanes)),
                named(
                    "RINGWAY_TUNING=off",
                    if config.tuning == TuningChoice::Off { "set" } else { "not set" }.to_owned(),
                ),
                named("RINGWAY_CHUNK_BYTES", format!("{:?}", config.chunk_bytes)),
            ],
        }
    }
}

/// Compares the settings of all ranks; names the first that differs, and where.
pub(crate) fn agree(session: &mut Session, config: &Config) -> Result<()> {
    let mine = Shared::of(config);
    let body = serde_json::to_vec(&mine).map_err(|e| Error::internal(e.to_string()))?;
    let all = session.all_gather(&body)?;
    let read = |body: &[u8]| serde_json::from_slice::<Shared>(body).ok();
    let first = read(&all[0]);
    let odd: Vec<(usize, Option<Shared>)> = all
        .iter()
        .map(|body| read(body))
        .enumerate()
        .filter(|(_, settings)| *settings != first)
        .collect();
    let Some((rank, other)) = odd.first() else { return Ok(()) };
    let difference = first.iter().zip(other).find_map(|(first, other)| {
        let pairs = first.values.iter().zip(&other.values);
        pairs.filter(|(a, b)| a != b).map(|(a, b)| (a.0.clone(), a.1.clone(), b.1.clone())).next()
    });
    let (name, here, there) = difference
        .unwrap_or_else(|| ("the version of ringway".into(), "?".into(), "another".into()));
    let culprits = odd.iter().map(|(rank, _)| session.peers[*rank].identity()).collect();
    Err(Error::usage(format!(
        "{name} differs: {here} on {}, {there} on {}{}; set it alike on all ranks",
        session.peers[0].identity(),
        session.peers[*rank].identity(),
        if odd.len() > 1 { format!(" and {} more", odd.len() - 1) } else { String::new() },
    ))
    .with_culprits(culprits))
}
