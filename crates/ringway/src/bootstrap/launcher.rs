//! Who am I, how many are we, where is the root: read from what launchers leave in the environment.
//!
//! | launcher | rank, size | root |
//! |---|---|---|
//! | `ringway run`, or by hand | `RINGWAY_RANK`, `RINGWAY_SIZE` | `RINGWAY_ROOT` |
//! | torchrun | `RANK`, `WORLD_SIZE` | `MASTER_ADDR`, candidate ports |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `…_SIZE` | the host of `mpirun`, candidate ports |
//! | MPICH (Hydra) | `PMI_RANK`, `PMI_SIZE` | published through `PMI_FD` |
//! | Slurm | `SLURM_PROCID`, `SLURM_NTASKS` | first node of the step, candidate ports |
//! | Kubernetes, indexed Job | `JOB_COMPLETION_INDEX`, `RINGWAY_SIZE` | `RINGWAY_ROOT` |
//! | LeaderWorkerSet | `LWS_WORKER_INDEX`, `LWS_GROUP_SIZE` | `LWS_LEADER_ADDRESS`, candidate ports |
//!
//! `RINGWAY_ROOT` (a list of `host:port`) or `NCCL_COMM_ID` (one) names the root for any of them. Where several
//! launchers have set their variables (torchrun inside srun), the innermost wins: the first row of
//! the table that is complete.
//!
//! Where no port is known, all ranks derive the same sixteen *candidate ports* from the identity of
//! the job; rank 0 takes the first that is free and the others try them all. A wrong service on one
//! of them fails authentication and is passed over.
//!
//! **The key.** With `RINGWAY_SECRET` or `RINGWAY_SECRET_FILE` it is derived from that secret and the
//! identity of the job. Without, it is derived from the identity and the user id alone: that
//! keeps jobs apart and keeps out whoever cannot see the job's environment, but is no protection
//! against one who can guess a job number.
//!
//! *Invariant:* pure: the environment is an argument; only [`Placement::key`] reads a file.

mod hostlist;
mod recognise;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::auth::{Key, digest_of};
use crate::error::{Error, Result};
use crate::plan::types::Rank;

pub use hostlist::{expand_hosts, first_host};
pub use recognise::uri_hosts;

/// Variables by name.
pub type Environment = BTreeMap<String, String>;

/// Ports that are tried where none is given.
pub const CANDIDATE_PORTS: usize = 16;
/// Below the range from which Linux takes the ports of outgoing connections.
const PORT_FIRST: u64 = 20_000;
const PORT_END: u64 = 32_768;

/// What started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// `ringway run`, or `RINGWAY_*` set by hand.
    Ringway,
    /// The program itself said its rank: [`Placement::explicit`].
    Explicit,
    /// torchrun.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's Hydra, or another that speaks PMI-1.
    Mpich,
    /// `srun`.
    Slurm,
    /// Kubernetes, as a pod of an indexed Job.
    Kubernetes,
    /// Kubernetes, as a pod of a LeaderWorkerSet.
    LeaderWorkerSet,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ringway => "ringway run",
            Self::Explicit => "the program",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Slurm => "Slurm",
            Self::Kubernetes => "Kubernetes",
            Self::LeaderWorkerSet => "LeaderWorkerSet",
        })
    }
}

/// Where the root is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootHint {
    /// At this `host:port`.
    At {
        /// Host name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// On one of these hosts, at one of these ports.
    Candidates {
        /// Names or addresses of rank 0's host.
        hosts: Vec<String>,
        /// The ports, in the order in which rank 0 tries them.
        ports: Vec<u16>,
    },
    /// Published by rank 0 through the PMI server at this descriptor.
    Pmi {
        /// The number of the descriptor.
        fd: i32,
    },
    /// Nobody to meet: the job has one rank.
    Alone,
}

impl fmt::Display for RootHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::At { host, port } => write!(f, "{host}:{port}"),
            Self::Candidates { hosts, ports } => write!(
                f,
                "{}, ports {}",
                hosts.join(" or "),
                ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ),
            Self::Pmi { fd } => write!(f, "the PMI server at descriptor {fd}"),
            Self::Alone => f.write_str("this process"),
        }
    }
}

/// Where the key of the job comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// `RINGWAY_SECRET`.
    Text(String),
    /// `RINGWAY_SECRET_FILE`.
    File(PathBuf),
    /// Nothing but what the launcher says of the job: see the module's words on the key.
    JobIdentity,
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::JobIdentity => f.write_str("JobIdentity"),
        }
    }
}

/// This process's place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Rank of this process.
    pub rank: Rank,
    /// Ranks of the job.
    pub size: u32,
    /// Rank among those on this host, where the launcher says it.
    pub local_rank: Option<u32>,
    /// Ranks on this host, where the launcher says it.
    pub local_size: Option<u32>,
    /// What started this process.
    pub launcher: Launcher,
    /// Where the root is.
    pub root: RootHint,
    /// Where the key comes from.
    pub secret: SecretSource,
    /// What tells this job from others; the same on all ranks.
    pub identity: String,
}

impl Placement {
    /// A place the program itself names; `root` is `host:port`, the secret is shared by all ranks.
    pub fn explicit(rank: Rank, size: u32, root: &str, secret: &str) -> Result<Self> {
        let (host, port) = host_and_port("root", root)?;
        let place = Self {
            rank,
            size,
            local_rank: None,
            local_size: None,
            launcher: Launcher::Explicit,
            root: RootHint::At { host, port },
            secret: SecretSource::Text(secret.to_owned()),
            identity: format!("explicit {root}"),
        };
        if rank >= size {
            return Err(Error::argument(format!("rank {rank} does not exist among {size} ranks")));
        }
        Ok(place)
    }

    /// Reads the place from an environment.
    pub fn from_environment(environment: &Environment) -> Result<Self> {
        recognise::place(environment)
    }

    /// The key of the job.
    pub fn key(&self) -> Result<Key> {
        let secret = match &self.secret {
            SecretSource::Text(text) => text.clone().into_bytes(),
            SecretSource::File(path) => {
                let bytes = std::fs::read(path).map_err(|error| {
                    Error::system(format!("read RINGWAY_SECRET_FILE={}", path.display()), error)
                })?;
                bytes.trim_ascii().to_vec()
            }
            SecretSource::JobIdentity => {
                tracing::info!(
                    target: "ringway::BOOTSTRAP",
                    "no RINGWAY_SECRET: the key is derived from the job's identity alone ({})",
                    self.launcher
                );
                let user = rustix::process::getuid().as_raw();
                format!("no secret, user {user}").into_bytes()
            }
        };
        if secret.is_empty() {
            return Err(Error::argument(
                "the secret is empty: put at least 16 random characters into RINGWAY_SECRET or \
                 RINGWAY_SECRET_FILE, the same for all ranks",
            ));
        }
        Ok(Key::derive(&secret, self.identity.as_bytes()))
    }

    /// The number joiners name at the root.
    pub(crate) fn knock(&self) -> u64 {
        let digest = digest_of(&[b"ringway knock", self.identity.as_bytes()]);
        u64::from_le_bytes(std::array::from_fn(|at| digest[at]))
    }
}

/// The candidate ports of a job: sixteen different ones, the same for all who know its identity.
#[must_use]
pub fn candidate_ports(identity: &str) -> Vec<u16> {
    let mut ports = Vec::with_capacity(CANDIDATE_PORTS);
    let mut round = 0_u64;
    while ports.len() < CANDIDATE_PORTS {
        let digest = digest_of(&[b"ringway ports", identity.as_bytes(), &round.to_le_bytes()]);
        let draw = u64::from_le_bytes(std::array::from_fn(|at| digest[at]));
        let port = PORT_FIRST + draw % (PORT_END - PORT_FIRST);
        let port = u16::try_from(port).expect("the range ends below 32768");
        if !ports.contains(&port) {
            ports.push(port);
        }
        round += 1;
    }
    ports
}

/// Where a list of `host:port` says the root is.
fn roots(name: &str, value: &str) -> Result<RootHint> {
    let words = value.split(',').map(str::trim).filter(|word| !word.is_empty());
    let mut places = words.map(|word| host_and_port(name, word)).collect::<Result<Vec<_>>>()?;
    match places.len() {
        0 => Err(Error::argument(format!("{name}={value}: expected host:port"))),
        1 => {
            let (host, port) = places.remove(0);
            Ok(RootHint::At { host, port })
        }
        _ => {
            let (mut hosts, mut ports) = (Vec::new(), Vec::new());
            for (host, port) in places {
                if !hosts.contains(&host) {
                    hosts.push(host);
                }
                if !ports.contains(&port) {
                    ports.push(port);
                }
            }
            Ok(RootHint::Candidates { hosts, ports })
        }
    }
}

/// Splits `host:port`, `[v6]:port`.
fn host_and_port(name: &str, value: &str) -> Result<(String, u16)> {
    let wrong = || {
        Error::argument(format!(
            "{name}={value}: expected host:port, for example 10.0.0.1:29400 or [fd00::1]:29400"
        ))
    };
    let (host, port) = value.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or_else(wrong)?,
        None if host.contains(':') => return Err(wrong()),
        None => host,
    };
    if host.is_empty() || port == 0 {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests;
