//! Whether a launcher has already made this process a rank of a job.

use anyhow::{Context as _, bail};
use ringway::bootstrap::launcher::Placement;

/// What says the place of a process in a pod.
const POD_VARIABLES: [&str; 9] = [
    "JOB_COMPLETION_INDEX",
    "HOSTNAME",
    "LWS_WORKER_INDEX",
    "LWS_GROUP_SIZE",
    "LWS_LEADER_ADDRESS",
    "RINGWAY_SIZE",
    "RINGWAY_LOCAL_RANK",
    "RINGWAY_LOCAL_SIZE",
    "RINGWAY_ROOT",
];

/// A launcher and the variables by which it tells a process its place.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    local_size: &'static str,
    /// Whether a size of 1 may just mean "not started as a job" (a shell inside an allocation).
    one_is_none: bool,
    /// Whether the numbers are those of pods, which may hold several ranks.
    pods: bool,
}

const LAUNCHERS: [Launcher; 7] = [
    Launcher {
        name: "ringway run",
        rank: "RINGWAY_RANK",
        size: "RINGWAY_SIZE",
        local_size: "RINGWAY_LOCAL_SIZE",
        one_is_none: false,
        pods: false,
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        local_size: "LOCAL_WORLD_SIZE",
        one_is_none: false,
        pods: false,
    },
    Launcher {
        name: "mpirun (Open MPI)",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        one_is_none: false,
        pods: false,
    },
    Launcher {
        name: "mpiexec (PMI)",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_size: "MPI_LOCALNRANKS",
        one_is_none: false,
        pods: false,
    },
    Launcher {
        name: "srun",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_size: "SLURM_NTASKS_PER_NODE",
        one_is_none: true,
        pods: false,
    },
    Launcher {
        name: "Kubernetes (indexed Job)",
        rank: "JOB_COMPLETION_INDEX",
        size: "RINGWAY_SIZE",
        local_size: "RINGWAY_LOCAL_SIZE",
        one_is_none: false,
        pods: true,
    },
    Launcher {
        name: "Kubernetes (LeaderWorkerSet)",
        rank: "LWS_WORKER_INDEX",
        size: "LWS_GROUP_SIZE",
        local_size: "RINGWAY_LOCAL_SIZE",
        one_is_none: false,
        pods: true,
    },
];

/// A process's place in a job that a launcher started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The launcher, as messages name it.
    pub(crate) launcher: &'static str,
    /// This process's rank.
    pub(crate) rank: u32,
    /// Ranks in the job.
    pub(crate) size: u32,
    /// Ranks on this host, as far as the launcher says.
    pub(crate) local_size: u32,
}

impl Place {
    /// The place of a process that is a job of its own.
    pub(crate) fn alone() -> Self {
        Self { launcher: "nobody", rank: 0, size: 1, local_size: 1 }
    }

    /// Refuses another number of ranks than the launcher started.
    pub(crate) fn check_ranks(&self, asked: Option<u32>) -> anyhow::Result<()> {
        let Self { launcher, rank, size, .. } = self;
        if let Some(asked) = asked.filter(|asked| asked != size) {
            bail!(
                "--ranks {asked}: this is rank {rank} of a job of {size} that {launcher} started; drop --ranks, \
                 or run it outside of that job"
            );
        }
        Ok(())
    }
}

/// This process's place, by its environment; `None` when no launcher started it.
pub(crate) fn place() -> anyhow::Result<Option<Place>> {
    place_in(|name| std::env::var(name).ok())
}

fn place_in(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<Place>> {
    for launcher in &LAUNCHERS {
        let Some(rank) = variable(launcher.rank) else {
            continue;
        };
        let Some(size) = variable(launcher.size) else {
            // Half a launcher is common for the generic names; for our own it is a mistake.
            if launcher.rank.starts_with("RINGWAY_") {
                bail!("{} is set but {} is not: set both or neither", launcher.rank, launcher.size);
            }
            continue;
        };
        if launcher.pods {
            return in_pod(launcher.name, &variable).map(Some);
        }
        let rank = number(launcher.rank, &rank)?;
        let size = number(launcher.size, &size)?;
        if size <= 1 && launcher.one_is_none {
            continue;
        }
        if rank >= size {
            bail!("{}={rank} is not a rank of {}={size}", launcher.rank, launcher.size);
        }
        let local_size = variable(launcher.local_size)
            .and_then(|text| text.parse().ok())
            .filter(|local| (1..=size).contains(local))
            .unwrap_or(1);
        return Ok(Some(Place { launcher: launcher.name, rank, size, local_size }));
    }
    Ok(None)
}

/// The place of a process in a pod, as the library reads it.
fn in_pod(name: &'static str, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Place> {
    let read = POD_VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), variable(name)?)));
    let place = Placement::from_environment(&read.collect())?;
    Ok(Place {
        launcher: name,
        rank: place.rank,
        size: place.size,
        local_size: place.local_size.unwrap_or(1),
    })
}

fn number(name: &str, text: &str) -> anyhow::Result<u32> {
    text.trim().parse().with_context(|| format!("{name}={text:?} is not a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Set = &'static [(&'static str, &'static str)];

    fn with(set: &[(&str, &str)]) -> anyhow::Result<Option<Place>> {
        place_in(|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_are_recognised() {
        let table: [(Set, Option<(u32, u32)>); 8] = [
            (&[], None),
            (&[("RINGWAY_RANK", "1"), ("RINGWAY_SIZE", "4")], Some((1, 4))),
            (&[("RANK", "0"), ("WORLD_SIZE", "1")], Some((0, 1))),
            (&[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4")], Some((3, 4))),
            (&[("PMI_RANK", "2"), ("PMI_SIZE", "3")], Some((2, 3))),
            (&[("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8")], Some((5, 8))),
            (&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")], None),
            (&[("RANK", "0")], None),
        ];
        for (set, expected) in table {
            let found = with(set).unwrap().map(|place| (place.rank, place.size));
            assert_eq!(found, expected, "{set:?}");
        }
    }

    #[test]
    fn pods_are_recognised() {
        let job = [("JOB_COMPLETION_INDEX", "1"), ("RINGWAY_SIZE", "4"), ("RINGWAY_ROOT", "a:1")];
        let place = with(&job).unwrap().unwrap();
        assert_eq!((place.rank, place.size, place.local_size), (1, 4, 1));
        let several = [("RINGWAY_LOCAL_SIZE", "2"), ("RINGWAY_LOCAL_RANK", "1")];
        let place = with(&[&job[..], &several].concat()).unwrap().unwrap();
        assert_eq!((place.rank, place.size, place.local_size), (3, 4, 2));
        let set =
            [("LWS_WORKER_INDEX", "1"), ("LWS_GROUP_SIZE", "2"), ("LWS_LEADER_ADDRESS", "a.b")];
        let place = with(&set).unwrap().unwrap();
        assert_eq!((place.rank, place.size), (1, 2));
        // A pod of a Job whose pods have nothing to do with each other.
        assert_eq!(with(&job[..1]).unwrap(), None);
        assert!(with(&job[..2]).unwrap_err().to_string().contains("RINGWAY_ROOT"));
    }

    #[test]
    fn our_own_variables_win() {
        let set =
            [("RINGWAY_RANK", "1"), ("RINGWAY_SIZE", "2"), ("RANK", "0"), ("WORLD_SIZE", "9")];
        assert_eq!(with(&set).unwrap().unwrap().launcher, "ringway run");
    }

    #[test]
    fn another_number_of_ranks_than_the_jobs_is_refused_with_the_way_out() {
        let place = with(&[("RANK", "1"), ("WORLD_SIZE", "4")]).unwrap().unwrap();
        assert!(place.check_ranks(None).is_ok() && place.check_ranks(Some(4)).is_ok());
        assert_eq!(
            place.check_ranks(Some(8)).unwrap_err().to_string(),
            "--ranks 8: this is rank 1 of a job of 4 that torchrun started; drop --ranks, or run it outside of that job"
        );
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let cases: [&[(&str, &str)]; 3] = [
            &[("RANK", "x"), ("WORLD_SIZE", "2")],
            &[("RINGWAY_RANK", "2"), ("RINGWAY_SIZE", "2")],
            &[("RINGWAY_RANK", "2")],
        ];
        for set in cases {
            let error = with(set).unwrap_err().to_string();
            assert!(error.contains(set[0].0), "{error}");
        }
    }
}
