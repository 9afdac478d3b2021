//! One function per launcher: what its variables say, if they are there.

mod kubernetes;

use super::{
    Environment, Launcher, Placement, RootHint, SecretSource, candidate_ports, first_host, roots,
};
use crate::error::{Error, Result};

/// Reads the place from the first launcher that is complete.
pub(super) fn place(environment: &Environment) -> Result<Placement> {
    let e = Reader { environment };
    let mut half = None;
    let launchers = [
        ringway,
        torchrun,
        open_mpi,
        mpich,
        slurm,
        kubernetes::indexed_job,
        kubernetes::leader_worker_set,
    ];
    for recognise in launchers {
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
                 (srun), JOB_COMPLETION_INDEX and RINGWAY_SIZE (Kubernetes), LWS_WORKER_INDEX \
                 (LeaderWorkerSet); start the program with one of them, for example: ringway run -n 4 -- prog",
        )
    }))
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
    Unknown(String),
}

struct Reader<'a> {
    environment: &'a Environment,
}

impl<'a> Reader<'a> {
    /// A variable's value; an empty one is unset.
    fn text(&self, name: &str) -> Option<&'a str> {
        self.environment.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    fn first(&self, names: &[&str]) -> Option<&'a str> {
        names.iter().find_map(|name| self.text(name))
    }

    fn number(&self, name: &str) -> Result<Option<u32>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| {
            Error::argument(format!("{name}={text}: expected a whole number that is not negative"))
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
                let (set, unset) = if have.is_some() { (rank, size) } else { (size, rank) };
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
        return Err(Error::argument(format!("{size_name}=0: a job has at least one rank")));
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
        (Some((name, value)), _) => roots(name, value)?,
        _ if size == 1 => RootHint::Alone,
        (None, Root::Pmi(fd)) => RootHint::Pmi { fd },
        (None, Root::Hosts(hosts)) => {
            RootHint::Candidates { hosts, ports: candidate_ports(&found.identity) }
        }
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

fn ringway(e: &Reader<'_>) -> Result<Recognised> {
    let (rank, size) = match e.pair("RINGWAY_RANK", "RINGWAY_SIZE", Launcher::Ringway)? {
        Ok(pair) => pair,
        // A pod is told by its manifest how many there are, and by Kubernetes which it is.
        Err(Recognised::Half(_))
            if e.text("RINGWAY_RANK").is_none() && kubernetes::is_numbered_pod(e) =>
        {
            return Ok(Recognised::No);
        }
        // Ours: half of it is a mistake even if another launcher is complete.
        Err(Recognised::Half(error)) => return Err(error),
        Err(other) => return Ok(other),
    };
    let root = e.first(&["RINGWAY_ROOT", "NCCL_COMM_ID"]).unwrap_or("nowhere");
    Ok(Recognised::Yes(Box::new(Found {
        launcher: Launcher::Ringway,
        rank: ("RINGWAY_RANK", rank),
        size: ("RINGWAY_SIZE", size),
        local_rank: e.number("RINGWAY_LOCAL_RANK")?,
        local_size: e.number("RINGWAY_LOCAL_SIZE")?,
        identity: format!("ringway {root}"),
        root: Root::Unknown(
            "RINGWAY_RANK and RINGWAY_SIZE are set but RINGWAY_ROOT is not".to_owned(),
        ),
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
        &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"],
    );
    let hosts = e.text("MASTER_ADDR").map(|host| host.trim_matches(['[', ']']).to_owned());
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
    let uris = ["OMPI_MCA_orte_hnp_uri", "PRTE_MCA_prte_hnp_uri", "PMIX_SERVER_URI41"];
    for uri in uris.iter().filter_map(|name| e.text(name)).take(1) {
        hosts.extend(uri_hosts(uri));
    }
    // Open MPI 5: the namespace is prterun-HOST-PID@N.
    let namespace = e.text("PMIX_NAMESPACE").and_then(|text| text.strip_prefix("prterun-"));
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
        root: fd.map_or_else(
            || Root::Unknown("PMI_RANK and PMI_SIZE are set but PMI_FD is not".to_owned()),
            Root::Pmi,
        ),
    })))
}

fn slurm(e: &Reader<'_>) -> Result<Recognised> {
    let sizes = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
    let size_name = sizes.into_iter().find(|name| e.text(name).is_some()).unwrap_or("SLURM_NTASKS");
    // A shell inside an allocation knows the number of tasks but is none of them.
    if e.text("SLURM_PROCID").is_none() {
        return Ok(Recognised::No);
    }
    let (rank, size) = match e.pair("SLURM_PROCID", size_name, Launcher::Slurm)? {
        Ok(pair) => pair,
        Err(other) => return Ok(other),
    };
    let nodes = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let host = match nodes.into_iter().find_map(|name| Some((name, e.text(name)?))) {
        Some((name, list)) => Some(first_host(list).ok_or_else(|| {
            Error::argument(format!("{name}={list}: expected a list such as node[01-04],login"))
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
            &["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
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
    if hosts.is_empty() { Root::Unknown(why.to_owned()) } else { Root::Hosts(hosts) }
}

fn identity(launcher: &str, e: &Reader<'_>, names: &[&str]) -> String {
    let words = names.iter().map(|name| format!(" {name}={}", e.text(name).unwrap_or("")));
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
            let words = addresses.split(',').map(|word| word.trim_matches(['[', ']']));
            hosts.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
        }
    }
    hosts
}
