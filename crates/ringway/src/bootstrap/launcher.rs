//! Who am I, how many are we, where is the root: read from what launchers leave in the environment.
//!
//! | launcher | rank, size | root |
//! |---|---|---|
//! | `ringway run`, or by hand | `RINGWAY_RANK`, `RINGWAY_SIZE` | `RINGWAY_ROOT` |
//! | torchrun | `RANK`, `WORLD_SIZE` | `MASTER_ADDR`, candidate ports |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `…_SIZE` | the host of `mpirun`, candidate ports |
//! | MPICH (Hydra) | `PMI_RANK`, `PMI_SIZE` | published through `PMI_FD` |
//! | Slurm | `SLURM_PROCID`, `SLURM_NTASKS` | first node of the step, candidate ports |
//!
//! `RINGWAY_ROOT` or `NCCL_COMM_ID` (`host:port`) names the root for any of them. Where several
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

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::auth::{Key, digest_of};
use crate::error::{Error, Result};
use crate::plan::types::Rank;

pub use hostlist::first_host;

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
                ports
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(", ")
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
            return Err(Error::argument(format!(
                "rank {rank} does not exist among {size} ranks"
            )));
        }
        Ok(place)
    }

    /// Reads the place from an environment.
    pub fn from_environment(environment: &Environment) -> Result<Self> {
        let e = Reader { environment };
        let mut half = None;
        for recognise in [ringway, torchrun, open_mpi, mpich, slurm] {
            match recognise(&e)? {
                Recognised::No => {}
                Recognised::Half(why) => half = half.or(Some(why)),
                Recognised::Yes(place) => return finish(&e, *place),
            }
        }
        Err(half.unwrap_or_else(|| {
            Error::usage(
                "no launcher found: looked for RINGWAY_RANK (ringway run), RANK and WORLD_SIZE \
                 (torchrun), OMPI_COMM_WORLD_RANK (Open MPI), PMI_RANK (MPICH), SLURM_PROCID \
                 (srun); start the program with one of them, for example: ringway run -n 4 -- prog",
            )
        }))
    }

    /// The key of the job.
    pub fn key(&self) -> Result<Key> {
        let secret = match &self.secret {
            SecretSource::Text(text) => text.clone().into_bytes(),
            SecretSource::File(path) => {
                let bytes = std::fs::read(path).map_err(|error| {
                    Error::system(
                        format!("read RINGWAY_SECRET_FILE={}", path.display()),
                        error,
                    )
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

enum Recognised {
    No,
    /// Some of its variables are set: the error, if nobody else is complete.
    Half(Error),
    Yes(Box<Found>),
}

/// What one launcher says.
struct Found {
    launcher: Launcher,
    rank: (&'static str, u32),
    size: (&'static str, u32),
    local_rank: Option<u32>,
    local_size: Option<u32>,
    identity: String,
    root: Root,
}

/// Where a launcher says the root is.
enum Root {
    Hosts(Vec<String>),
    Pmi(i32),
    Unknown(&'static str),
}

struct Reader<'a> {
    environment: &'a Environment,
}

impl<'a> Reader<'a> {
    /// A variable's value; an empty one is unset.
    fn text(&self, name: &str) -> Option<&'a str> {
        self.environment
            .get(name)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }

    fn first(&self, names: &[&str]) -> Option<&'a str> {
        names.iter().find_map(|name| self.text(name))
    }

    fn number(&self, name: &str) -> Result<Option<u32>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| {
            Error::argument(format!(
                "{name}={text}: expected a whole number that is not negative"
            ))
        })
    }

    /// Rank and size of a launcher, both or neither.
    fn pair(
        &self,
        rank: &'static str,
        size: &'static str,
        launcher: Launcher,
    ) -> Result<Result<(u32, u32), Recognised>> {
        Ok(match (self.number(rank)?, self.number(size)?) {
            (Some(rank), Some(size)) => Ok((rank, size)),
            (None, None) => Err(Recognised::No),
            (have, _) => {
                let (set, unset) = if have.is_some() {
                    (rank, size)
                } else {
                    (size, rank)
                };
                Err(Recognised::Half(Error::usage(format!(
                    "{set}={} is set but {unset} is not; {launcher} sets both",
                    self.text(set).unwrap_or_default()
                ))))
            }
        })
    }
}

/// Checks the numbers, and settles root and secret.
fn finish(e: &Reader<'_>, found: Found) -> Result<Placement> {
    let ((rank_name, rank), (size_name, size)) = (found.rank, found.size);
    if size == 0 {
        return Err(Error::argument(format!(
            "{size_name}=0: a job has at least one rank"
        )));
    }
    if rank >= size {
        return Err(Error::argument(format!(
            "{rank_name}={rank} but {size_name}={size}: ranks run from 0 to {}",
            size - 1
        )));
    }
    let named = ["RINGWAY_ROOT", "NCCL_COMM_ID"]
        .into_iter()
        .find_map(|name| e.text(name).map(|value| (name, value)));
    let root = match (named, found.root) {
        (Some((name, value)), _) => {
            let (host, port) = host_and_port(name, value)?;
            RootHint::At { host, port }
        }
        _ if size == 1 => RootHint::Alone,
        (None, Root::Pmi(fd)) => RootHint::Pmi { fd },
        (None, Root::Hosts(hosts)) => RootHint::Candidates {
            hosts,
            ports: candidate_ports(&found.identity),
        },
        (None, Root::Unknown(why)) => {
            return Err(Error::usage(format!(
                "{why}; set RINGWAY_ROOT=host:port (a free port on rank 0's host) for all ranks"
            )));
        }
    };
    let secret = match (e.text("RINGWAY_SECRET"), e.text("RINGWAY_SECRET_FILE")) {
        (Some(_), Some(_)) => {
            return Err(Error::usage(
                "RINGWAY_SECRET and RINGWAY_SECRET_FILE are both set; keep one",
            ));
        }
        (Some(text), None) => SecretSource::Text(text.to_owned()),
        (None, Some(path)) => SecretSource::File(path.into()),
        (None, None) => SecretSource::JobIdentity,
    };
    Ok(Placement {
        rank,
        size,
        local_rank: found.local_rank,
        local_size: found.local_size,
        launcher: found.launcher,
        root,
        secret,
        identity: found.identity,
    })
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

fn ringway(e: &Reader<'_>) -> Result<Recognised> {
    let (rank, size) = match e.pair("RINGWAY_RANK", "RINGWAY_SIZE", Launcher::Ringway)? {
        Ok(pair) => pair,
        // Ours: half of it is a mistake even if another launcher is complete.
        Err(Recognised::Half(error)) => return Err(error),
        Err(other) => return Ok(other),
    };
    let root = e
        .first(&["RINGWAY_ROOT", "NCCL_COMM_ID"])
        .unwrap_or("nowhere");
    Ok(Recognised::Yes(Box::new(Found {
        launcher: Launcher::Ringway,
        rank: ("RINGWAY_RANK", rank),
        size: ("RINGWAY_SIZE", size),
        local_rank: e.number("RINGWAY_LOCAL_RANK")?,
        local_size: e.number("RINGWAY_LOCAL_SIZE")?,
        identity: format!("ringway {root}"),
        root: Root::Unknown("RINGWAY_RANK and RINGWAY_SIZE are set but RINGWAY_ROOT is not"),
    })))
}

fn torchrun(e: &Reader<'_>) -> Result<Recognised> {
    let (rank, size) = match e.pair("RANK", "WORLD_SIZE", Launcher::Torchrun)? {
        Ok(pair) => pair,
        Err(other) => return Ok(other),
    };
    let local_size = e.number("LOCAL_WORLD_SIZE")?;
    let identity = identity(
        "torchrun",
        e,
        &[
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "MASTER_ADDR",
            "MASTER_PORT",
        ],
    );
    let hosts = e
        .text("MASTER_ADDR")
        .map(|host| host.trim_matches(['[', ']']).to_owned());
    Ok(Recognised::Yes(Box::new(Found {
        launcher: Launcher::Torchrun,
        rank: ("RANK", rank),
        size: ("WORLD_SIZE", size),
        local_rank: e.number("LOCAL_RANK")?,
        local_size,
        identity,
        root: root_hosts(
            hosts.into_iter().collect(),
            local_size == Some(size),
            "RANK and WORLD_SIZE are set but MASTER_ADDR is not",
        ),
    })))
}

fn open_mpi(e: &Reader<'_>) -> Result<Recognised> {
    let names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    let (rank, size) = match e.pair(names.0, names.1, Launcher::OpenMpi)? {
        Ok(pair) => pair,
        Err(other) => return Ok(other),
    };
    let local_size = e.number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let mut hosts = Vec::new();
    let uris = [
        "OMPI_MCA_orte_hnp_uri",
        "PRTE_MCA_prte_hnp_uri",
        "PMIX_SERVER_URI41",
    ];
    for uri in uris.iter().filter_map(|name| e.text(name)).take(1) {
        hosts.extend(uri_hosts(uri));
    }
    // Open MPI 5: the namespace is prterun-HOST-PID@N.
    let namespace = e
        .text("PMIX_NAMESPACE")
        .and_then(|text| text.strip_prefix("prterun-"));
    if let Some((host, _)) = namespace.and_then(|text| text.rsplit_once('-')) {
        hosts.push(host.to_owned());
    }
    Ok(Recognised::Yes(Box::new(Found {
        launcher: Launcher::OpenMpi,
        rank: (names.0, rank),
        size: (names.1, size),
        local_rank: e.number("OMPI_COMM_WORLD_LOCAL_RANK")?,
        local_size,
        // The transports' key is random and known to the ranks only, where there is one.
        identity: identity(
            "openmpi",
            e,
            &["PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports"],
        ),
        root: root_hosts(
            hosts,
            local_size == Some(size),
            "Open MPI does not say where mpirun runs (no OMPI_MCA_orte_hnp_uri)",
        ),
    })))
}

fn mpich(e: &Reader<'_>) -> Result<Recognised> {
    let (rank, size) = match e.pair("PMI_RANK", "PMI_SIZE", Launcher::Mpich)? {
        Ok(pair) => pair,
        Err(other) => return Ok(other),
    };
    let fd = e.number("PMI_FD")?.and_then(|fd| i32::try_from(fd).ok());
    Ok(Recognised::Yes(Box::new(Found {
        launcher: Launcher::Mpich,
        rank: ("PMI_RANK", rank),
        size: ("PMI_SIZE", size),
        local_rank: e.number("MPI_LOCALRANKID")?,
        local_size: e.number("MPI_LOCALNRANKS")?,
        identity: identity("mpich", e, &["RINGWAY_ROOT", "NCCL_COMM_ID", "PMI_PORT"]),
        root: fd.map_or(
            Root::Unknown("PMI_RANK and PMI_SIZE are set but PMI_FD is not"),
            Root::Pmi,
        ),
    })))
}

fn slurm(e: &Reader<'_>) -> Result<Recognised> {
    let sizes = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
    let size_name = sizes
        .into_iter()
        .find(|name| e.text(name).is_some())
        .unwrap_or("SLURM_NTASKS");
    // A shell inside an allocation knows the number of tasks but is none of them.
    if e.text("SLURM_PROCID").is_none() {
        return Ok(Recognised::No);
    }
    let (rank, size) = match e.pair("SLURM_PROCID", size_name, Launcher::Slurm)? {
        Ok(pair) => pair,
        Err(other) => return Ok(other),
    };
    let nodes = [
        "SLURM_STEP_NODELIST",
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
    ];
    let host = match nodes
        .into_iter()
        .find_map(|name| Some((name, e.text(name)?)))
    {
        Some((name, list)) => Some(first_host(list).ok_or_else(|| {
            Error::argument(format!(
                "{name}={list}: expected a list such as node[01-04],login"
            ))
        })?),
        None => None,
    };
    Ok(Recognised::Yes(Box::new(Found {
        launcher: Launcher::Slurm,
        rank: ("SLURM_PROCID", rank),
        size: (size_name, size),
        local_rank: e.number("SLURM_LOCALID")?,
        local_size: None,
        identity: identity(
            "slurm",
            e,
            &[
                "SLURM_CLUSTER_NAME",
                "SLURM_JOB_ID",
                "SLURM_STEP_ID",
                "SLURM_RESTART_COUNT",
            ],
        ),
        root: root_hosts(
            host.into_iter().collect(),
            false,
            "SLURM_PROCID is set but no node list (SLURM_STEP_NODELIST) is",
        ),
    })))
}

fn root_hosts(mut hosts: Vec<String>, all_local: bool, why: &'static str) -> Root {
    if all_local {
        hosts.insert(0, "127.0.0.1".to_owned());
    }
    let mut seen = Vec::new();
    hosts.retain(|host| {
        let fresh = !seen.contains(host);
        seen.push(host.clone());
        fresh
    });
    if hosts.is_empty() {
        Root::Unknown(why)
    } else {
        Root::Hosts(hosts)
    }
}

fn identity(launcher: &str, e: &Reader<'_>, names: &[&str]) -> String {
    let words = names
        .iter()
        .map(|name| format!(" {name}={}", e.text(name).unwrap_or("")));
    std::iter::once(launcher.to_owned()).chain(words).collect()
}

/// The hosts of `id;tcp://a,b:port;tcp6://[c]:port`; total over arbitrary text.
#[must_use]
pub fn uri_hosts(uri: &str) -> Vec<String> {
    let mut hosts = Vec::new();
    for part in uri.split(';').skip(1) {
        let Some((scheme, rest)) = part.split_once("://") else {
            continue;
        };
        let Some((addresses, _port)) = rest.rsplit_once(':') else {
            continue;
        };
        if scheme.starts_with("tcp") {
            let words = addresses
                .split(',')
                .map(|word| word.trim_matches(['[', ']']));
            hosts.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
        }
    }
    hosts
}

#[cfg(test)]
mod tests;
