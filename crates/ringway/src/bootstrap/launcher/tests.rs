//! Environments as real launchers leave them.

use super::*;

fn environment(text: &str) -> Environment {
    text.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn place(text: &str) -> Placement {
    Placement::from_environment(&environment(text)).unwrap()
}

fn refusal(text: &str) -> String {
    Placement::from_environment(&environment(text)).unwrap_err().to_string()
}

fn hosts(place: &Placement) -> Vec<String> {
    match &place.root {
        RootHint::Candidates { hosts, ports } => {
            assert_eq!(*ports, candidate_ports(&place.identity));
            hosts.clone()
        }
        other => panic!("expected candidates, got {other:?}"),
    }
}

const RINGWAY: &str = "RINGWAY_RANK=1 RINGWAY_SIZE=4 RINGWAY_ROOT=127.0.0.1:29400 \
    RINGWAY_LOCAL_RANK=1 RINGWAY_LOCAL_SIZE=4 RINGWAY_SECRET=0123456789abcdef";
const TORCHRUN: &str = "LOCAL_RANK=1 RANK=9 GROUP_RANK=1 ROLE_RANK=9 ROLE_NAME=default \
    LOCAL_WORLD_SIZE=8 WORLD_SIZE=16 GROUP_WORLD_SIZE=2 ROLE_WORLD_SIZE=16 MASTER_ADDR=node-a \
    MASTER_PORT=29500 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=3 \
    TORCHELASTIC_RUN_ID=job42 TORCHELASTIC_USE_AGENT_STORE=True OMP_NUM_THREADS=1";
const OPEN_MPI_4: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 \
    OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_UNIVERSE_SIZE=2 \
    OMPI_MCA_orte_hnp_uri=1952186368.0;tcp://192.0.2.2,10.0.0.1:56909;tcp6://[fd00::2]:34483 \
    OMPI_MCA_orte_precondition_transports=d7613bf0ae937358-a0613f078740e74d \
    PMIX_NAMESPACE=1952186369 PMIX_RANK=1";
const OPEN_MPI_5: &str = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 \
    OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 \
    PMIX_NAMESPACE=prterun-login-3-12345@1 \
    PMIX_SERVER_URI41=prterun-login-3-12345@0.0;tcp4://127.0.0.1:40123";
const MPICH: &str = "PMI_RANK=2 PMI_SIZE=4 PMI_FD=7 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 \
    GFORTRAN_UNBUFFERED_PRECONNECTED=y";
const SLURM: &str = "SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 \
    SLURM_JOB_ID=991 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=gpu[08-11] SLURM_JOB_NODELIST=gpu[07-11] \
    SLURM_STEP_NUM_TASKS=8";

#[test]
fn ringway_run() {
    let place = place(RINGWAY);
    assert_eq!((place.rank, place.size), (1, 4));
    assert_eq!((place.local_rank, place.local_size), (Some(1), Some(4)));
    assert_eq!(place.launcher, Launcher::Ringway);
    assert_eq!(place.root, RootHint::At { host: "127.0.0.1".into(), port: 29400 });
    assert!(!format!("{place:?}").contains("0123456789abcdef"), "a secret is not printed");
}

#[test]
fn torchrun_env() {
    let first = place(TORCHRUN);
    assert_eq!((first.rank, first.size, first.local_rank), (9, 16, Some(1)));
    assert_eq!(first.launcher, Launcher::Torchrun);
    assert_eq!(hosts(&first), ["node-a"]);
    let again = place(&TORCHRUN.replace("RESTART_COUNT=0", "RESTART_COUNT=1"));
    assert_ne!(first.identity, again.identity, "a restart does not meet its predecessor");
    let local = place(&TORCHRUN.replace("LOCAL_WORLD_SIZE=8", "LOCAL_WORLD_SIZE=16"));
    assert_eq!(hosts(&local), ["127.0.0.1", "node-a"]);
}

#[test]
fn open_mpi_env() {
    let four = place(OPEN_MPI_4);
    assert_eq!((four.rank, four.size, four.local_rank), (1, 2, Some(1)));
    assert_eq!(hosts(&four), ["192.0.2.2", "10.0.0.1", "fd00::2"]);
    assert!(four.identity.contains("d7613bf0"));
    let five = place(OPEN_MPI_5);
    assert_eq!(five.launcher, Launcher::OpenMpi);
    assert_eq!(hosts(&five), ["127.0.0.1", "login-3"]);
}

#[test]
fn mpich_env() {
    let place = place(MPICH);
    assert_eq!((place.rank, place.size, place.local_rank), (2, 4, Some(0)));
    assert_eq!(place.root, RootHint::Pmi { fd: 7 });
}

#[test]
fn slurm_env() {
    let place = place(SLURM);
    assert_eq!((place.rank, place.size, place.local_rank), (3, 8, Some(1)));
    assert_eq!(hosts(&place), ["gpu08"]);
    assert!(refusal("SLURM_NTASKS=4 SLURM_JOB_ID=1").contains("no launcher"), "salloc's shell");
}

const JOB: &str = "JOB_COMPLETION_INDEX=3 HOSTNAME=bench-3 RINGWAY_SIZE=4 \
    RINGWAY_ROOT=bench-0.bench:29400 KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_SERVICE_PORT=443";
const LWS: &str = "LWS_LEADER_ADDRESS=serve-1.serve.default LWS_GROUP_SIZE=4 LWS_WORKER_INDEX=2 \
    HOSTNAME=serve-1-2 KUBERNETES_SERVICE_HOST=10.96.0.1";

#[test]
fn kubernetes_indexed_job() {
    let one = place(JOB);
    assert_eq!((one.rank, one.size, one.local_rank), (3, 4, None));
    assert_eq!(one.launcher, Launcher::Kubernetes);
    assert_eq!(one.root, RootHint::At { host: "bench-0.bench".into(), port: 29400 });
    let other = place(&JOB.replace("INDEX=3", "INDEX=0").replace("bench-3", "bench-0"));
    assert_eq!(one.identity, other.identity, "all pods know the job by the same name");
    // Two processes in each pod.
    let two = place(&format!("{JOB} RINGWAY_SIZE=8 RINGWAY_LOCAL_SIZE=2 RINGWAY_LOCAL_RANK=1"));
    assert_eq!((two.rank, two.size), (7, 8));
    assert_eq!((two.local_rank, two.local_size), (Some(1), Some(2)));
    // What the manifest says of the rank holds; so do launchers inside the pod.
    assert_eq!(place(&format!("{JOB} RINGWAY_RANK=1")).launcher, Launcher::Ringway);
    assert_eq!(place(&format!("{JOB} {TORCHRUN}")).launcher, Launcher::Torchrun);
}

#[test]
fn leader_worker_set() {
    let one = place(LWS);
    assert_eq!((one.rank, one.size), (2, 4));
    assert_eq!(one.launcher, Launcher::LeaderWorkerSet);
    assert_eq!(hosts(&one), ["serve-1.serve.default"]);
    let leader = place(&LWS.replace("INDEX=2", "INDEX=0"));
    assert_eq!((leader.rank, &leader.identity), (0, &one.identity));
    let replica = place(&LWS.replace("serve-1.", "serve-0."));
    assert_ne!(replica.identity, one.identity, "groups are jobs of their own");
    let two = place(&format!("{LWS} RINGWAY_LOCAL_SIZE=8 RINGWAY_LOCAL_RANK=3"));
    assert_eq!((two.rank, two.size), (19, 32));
    let named = place(&format!("{LWS} RINGWAY_ROOT=serve-1.serve:29400"));
    assert_eq!(named.root, RootHint::At { host: "serve-1.serve".into(), port: 29400 });
}

#[test]
fn pods_that_are_half_described_say_what_is_missing() {
    let table = [
        ("JOB_COMPLETION_INDEX=3", "RINGWAY_SIZE is not"),
        (
            "JOB_COMPLETION_INDEX=3 RINGWAY_SIZE=4 HOSTNAME=bench-3",
            "the first pod of this Job is bench-0.SERVICE",
        ),
        ("JOB_COMPLETION_INDEX=4 RINGWAY_SIZE=4 RINGWAY_ROOT=a:1", "there are 4 pods"),
        ("JOB_COMPLETION_INDEX=x RINGWAY_SIZE=4 RINGWAY_ROOT=a:1", "JOB_COMPLETION_INDEX=x"),
        ("JOB_COMPLETION_INDEX=0 RINGWAY_SIZE=0 RINGWAY_ROOT=a:1", "there are 0 pods"),
        (
            "JOB_COMPLETION_INDEX=0 RINGWAY_SIZE=4 RINGWAY_LOCAL_SIZE=2 RINGWAY_ROOT=a:1",
            "RINGWAY_LOCAL_RANK is not",
        ),
        (
            "JOB_COMPLETION_INDEX=0 RINGWAY_SIZE=5 RINGWAY_LOCAL_SIZE=2 RINGWAY_LOCAL_RANK=0",
            "no multiple",
        ),
        (
            "JOB_COMPLETION_INDEX=0 RINGWAY_SIZE=4 RINGWAY_LOCAL_SIZE=2 RINGWAY_LOCAL_RANK=2",
            "RINGWAY_LOCAL_RANK=2 but RINGWAY_LOCAL_SIZE=2",
        ),
        (
            "JOB_COMPLETION_INDEX=0 RINGWAY_SIZE=4 RINGWAY_LOCAL_SIZE=0 RINGWAY_ROOT=a:1",
            "at least one rank",
        ),
        ("LWS_WORKER_INDEX=1", "LWS_GROUP_SIZE is not"),
        ("LWS_GROUP_SIZE=2 LWS_LEADER_ADDRESS=a", "LWS_WORKER_INDEX is not"),
        ("LWS_WORKER_INDEX=1 LWS_GROUP_SIZE=2", "LWS_LEADER_ADDRESS is not"),
        ("LWS_WORKER_INDEX=2 LWS_GROUP_SIZE=2 LWS_LEADER_ADDRESS=a", "there are 2 pods"),
        ("LWS_WORKER_INDEX=2 LWS_GROUP_SIZE=-2 LWS_LEADER_ADDRESS=a", "LWS_GROUP_SIZE=-2"),
        ("RINGWAY_SIZE=4", "RINGWAY_RANK is not"),
    ];
    for (environment, expected) in table {
        let text = refusal(environment);
        assert!(text.contains(expected), "{environment:?} gave {text:?}");
    }
}

#[test]
fn several_roots_are_tried() {
    let place = place("RINGWAY_RANK=0 RINGWAY_SIZE=2 RINGWAY_ROOT=10.0.0.1:7000,[fd00::1]:7000");
    let hosts = vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()];
    assert_eq!(place.root, RootHint::Candidates { hosts, ports: vec![7000] });
    let text = refusal("RINGWAY_RANK=0 RINGWAY_SIZE=2 RINGWAY_ROOT=a:1,b");
    assert!(text.contains("RINGWAY_ROOT=b"), "{text}");
}

#[test]
fn the_innermost_wins() {
    let nested = format!("{SLURM} {OPEN_MPI_4} {TORCHRUN} {MPICH}");
    assert_eq!(place(&nested).launcher, Launcher::Torchrun);
    assert_eq!(place(&format!("{nested} {RINGWAY}")).launcher, Launcher::Ringway);
    assert_eq!(place(&format!("{SLURM} {MPICH}")).launcher, Launcher::Mpich);
    assert_eq!(place(&format!("{SLURM} RANK=3")).launcher, Launcher::Slurm, "half a torchrun");
}

#[test]
fn a_named_root_serves_every_launcher() {
    let expected = RootHint::At { host: "fd00::7".into(), port: 4000 };
    for launcher in [TORCHRUN, OPEN_MPI_4, MPICH, SLURM] {
        assert_eq!(place(&format!("{launcher} NCCL_COMM_ID=[fd00::7]:4000")).root, expected);
        assert_eq!(place(&format!("{launcher} RINGWAY_ROOT=[fd00::7]:4000")).root, expected);
    }
}

#[test]
fn mistakes_name_the_variable_and_the_fix() {
    let table = [
        ("", "ringway run -n 4 -- prog"),
        ("RINGWAY_RANK=1", "RINGWAY_RANK=1 is set but RINGWAY_SIZE is not"),
        ("RINGWAY_RANK=1 RINGWAY_SIZE=2", "RINGWAY_ROOT is not"),
        ("RINGWAY_RANK=4 RINGWAY_SIZE=4 RINGWAY_ROOT=a:1", "ranks run from 0 to 3"),
        ("RINGWAY_RANK=0 RINGWAY_SIZE=0", "RINGWAY_SIZE=0"),
        ("RINGWAY_RANK=-1 RINGWAY_SIZE=2", "RINGWAY_RANK=-1"),
        ("RINGWAY_RANK=x RINGWAY_SIZE=2", "RINGWAY_RANK=x: expected a whole number"),
        (
            "RINGWAY_RANK=0 RINGWAY_SIZE=2 RINGWAY_ROOT=host",
            "RINGWAY_ROOT=host: expected host:port",
        ),
        ("RINGWAY_RANK=0 RINGWAY_SIZE=2 RINGWAY_ROOT=::1:5", "expected host:port"),
        ("RANK=0", "RANK=0 is set but WORLD_SIZE is not"),
        ("RANK=0 WORLD_SIZE=2", "MASTER_ADDR is not"),
        ("RANK=2 WORLD_SIZE=2 MASTER_ADDR=a", "RANK=2 but WORLD_SIZE=2"),
        ("PMI_RANK=0 PMI_SIZE=2", "PMI_FD is not"),
        ("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=a[", "SLURM_JOB_NODELIST=a["),
        ("RINGWAY_RANK=0 RINGWAY_SIZE=1 RINGWAY_SECRET=a RINGWAY_SECRET_FILE=b", "keep one"),
    ];
    for (environment, expected) in table {
        let text = refusal(environment);
        assert!(text.contains(expected), "{environment:?} gave {text:?}");
    }
}

#[test]
fn one_rank_needs_no_root() {
    assert_eq!(place("RINGWAY_RANK=0 RINGWAY_SIZE=1").root, RootHint::Alone);
    assert_eq!(place("RANK=0 WORLD_SIZE=1").root, RootHint::Alone);
}

#[test]
fn candidate_ports_are_many_and_stable() {
    let ports = candidate_ports("slurm job 1");
    assert_eq!(ports.len(), CANDIDATE_PORTS);
    assert_eq!(ports, candidate_ports("slurm job 1"));
    assert_ne!(ports, candidate_ports("slurm job 2"));
    assert!(ports.iter().all(|port| (20_000..32_768).contains(port)));
    let different: std::collections::BTreeSet<_> = ports.iter().collect();
    assert_eq!(different.len(), CANDIDATE_PORTS);
}

#[test]
fn keys_depend_on_secret_and_job() {
    let key =
        |secret: &str, root: &str| Placement::explicit(0, 2, root, secret).unwrap().key().unwrap();
    assert_eq!(key("s", "a:1"), key("s", "a:1"));
    assert_ne!(key("s", "a:1"), key("t", "a:1"));
    assert_ne!(key("s", "a:1"), key("s", "a:2"));
    assert!(Placement::explicit(0, 2, "a:1", "").unwrap().key().is_err());
    assert!(Placement::explicit(2, 2, "a:1", "s").is_err());
}
