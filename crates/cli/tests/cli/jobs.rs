//! Whole jobs of real processes: every collective, deaths, other people's launchers.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::need;
use crate::process::{Finished, Folder, Running, finish, marked, ringway, signal, start, wait_for};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ringway");

const COLLECTIVES: [&str; 10] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "sendrecv",
    "barrier",
];

/// One job of this many ranks that computed right.
fn assert_right(done: &Finished, ranks: u32) {
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(done.stdout.contains("# Out of bounds values : 0 OK"), "{}", done.stdout);
    let tables = done.stdout.matches("# Out of bounds values").count();
    assert_eq!(tables, 1, "one table for the whole job: {}", done.stdout);
    for rank in 0..ranks {
        assert!(done.stdout.contains(&format!("#  Rank {rank:>2} Group")), "{}", done.stdout);
    }
    assert!(!done.stdout.contains(&format!("#  Rank {ranks:>2} Group")), "{}", done.stdout);
}

/// A port nobody listens on, and nobody will by chance: none of those that the kernel gives to whoever asks for any, as the
/// ranks of other jobs do.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number =
            std::process::id().wrapping_mul(97) % 20_000 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(10_240 + number % 20_000).unwrap();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Rank `rank` of a job that meets at `root`.
pub(crate) fn as_rank(command: &mut Command, rank: u32, size: u32, root: &str) {
    command
        .env("RINGWAY_RANK", rank.to_string())
        .env("RINGWAY_SIZE", size.to_string())
        .env("RINGWAY_ROOT", root)
        .env("RINGWAY_SECRET", "a secret only for the tests of this program");
}

fn sweep(transport: &str) {
    for collective in COLLECTIVES {
        let args = ["perf", collective, "--ranks", "4", "-b", "8", "-e", "1M", "-f", "8"];
        let rest = ["-c", "1", "-n", "2", "--transport", transport];
        let done = finish(&mut ringway(&[&args[..], &rest].concat()));
        assert_right(&done, 4);
    }
}

#[test]
fn every_collective_is_right_in_shared_memory() {
    sweep("shm");
}

#[test]
fn every_collective_is_right_over_tcp() {
    sweep("tcp");
}

#[test]
fn every_type_and_reduction_is_right() {
    for transport in ["shm", "tcp"] {
        for collective in ["all_reduce", "reduce_scatter", "reduce"] {
            let args = ["perf", collective, "--ranks", "3", "-b", "1000", "-e", "1000"];
            let rest = ["-d", "all", "-o", "all", "-n", "1", "--transport", transport];
            assert_right(&finish(&mut ringway(&[&args[..], &rest].concat())), 3);
        }
    }
}

#[test]
fn every_root_and_unaligned_buffers_are_right() {
    for collective in ["broadcast", "reduce", "gather", "scatter"] {
        let args = ["perf", collective, "--ranks", "3", "-b", "1001", "-e", "1001", "-d", "int8"];
        let rest = ["-r", "all", "-u", "1", "-n", "1"];
        assert_right(&finish(&mut ringway(&[&args[..], &rest].concat())), 3);
    }
}

#[test]
fn the_levels_and_algorithms_can_be_chosen() {
    for algorithm in ["ring", "tree", "recursive_doubling", "halving_doubling", "two_shot"] {
        let args = ["perf", "all_reduce", "--ranks", "4", "-b", "64", "-e", "64K", "-f", "32"];
        let rest = ["--algo", algorithm, "--level", "shape", "-n", "1"];
        assert_right(&finish(&mut ringway(&[&args[..], &rest].concat())), 4);
    }
}

/// Four ranks in the middle of a large all_reduce that has no end.
fn endless(way: &[&str], folder: &Folder) -> Vec<Running> {
    let root = format!("127.0.0.1:{}", free_port());
    let log = folder.0.join("log.%p").display().to_string();
    // One sweep without end: between two the ranks gather times and meet in barriers.
    let args = ["perf", "all_reduce", "-b", "64M", "-e", "64M", "-n", "1000000", "-c", "0"];
    let ranks: Vec<Running> = (0..4)
        .map(|rank| {
            let mut command = ringway(&[&args[..], way].concat());
            as_rank(&mut command, rank, 4, &root);
            start(command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_FILE", &log))
        })
        .collect();
    wait_for("the ranks to meet", || {
        let ready = |name: &String| {
            let text = std::fs::read_to_string(folder.0.join(name)).unwrap_or_default();
            text.contains("Init COMPLETE")
        };
        (folder.names().iter().filter(|name| ready(name)).count() == 4).then_some(())
    });
    std::thread::sleep(Duration::from_millis(1500));
    ranks
}

#[test]
fn a_killed_rank_is_named_by_all_others_within_a_second() {
    let ways: [&[&str]; 3] =
        [&["--transport", "shm"], &["--transport", "tcp"], &["--algo", "single_copy"]];
    for way in ways {
        let folder = Folder::new(&format!("kill-{}", way[1]));
        let mut ranks = endless(way, &folder);
        let victim = ranks.remove(2);
        let killed = Instant::now();
        signal("KILL", victim.pid());
        let mut errors = Vec::new();
        for mut rank in ranks {
            // The end of a process takes a while itself: half a gigabyte is given back.
            rank.wait();
            assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
            let done = rank.finish();
            assert_eq!(done.status.code(), Some(2), "{done:?}");
            let host = String::from_utf8(Command::new("uname").arg("-n").output().unwrap().stdout);
            let name = format!("rank 2 (host {}, pid {})", host.unwrap().trim(), victim.pid());
            assert!(done.stderr.contains(&name), "{way:?}: {name}: {}", done.stderr);
            assert!(done.stderr.contains("all_reduce"), "{}", done.stderr);
            let (_, error) = done.stderr.split_once("rank 2 (host").unwrap();
            errors.push(error.to_owned());
        }
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:#?}");
    }
}

#[test]
fn sixty_four_ranks_meet_in_a_barrier() {
    let done = finish(&mut ringway(&["perf", "barrier", "--ranks", "64", "-n", "3"]));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(done.stdout.contains("#  Rank 63 Group"), "{}", done.stdout);
    // A release build takes less than 3 s on two cores; this build shares them with other tests.
    assert!(done.took < Duration::from_secs(40), "{:?}", done.took);
}

/// Abstract sockets leave no file. Those of a directory are removed when the ranks have met; what
/// ranks that were killed before leave, the next job there removes.
#[test]
fn no_process_and_no_socket_stays() {
    let folder = Folder::new("sockets");
    let directory = folder.0.display().to_string();
    let mark = format!("no-socket-stays-{}", std::process::id());
    for name in ["INT", "TERM"] {
        let mut command = ringway(&["perf", "all_reduce", "--ranks", "4", "-N", "0", "-e", "1K"]);
        let running =
            start(command.env("RINGWAY_SHM_DIR", &directory).env("RINGWAY_TEST_MARK", &mark));
        wait_for("the ranks to start", || (marked(&mark).len() == 5).then_some(()));
        std::thread::sleep(Duration::from_millis(if name == "INT" { 1000 } else { 60 }));
        signal(name, running.pid());
        let done = running.finish();
        assert_eq!(done.status.code(), Some(if name == "INT" { 130 } else { 143 }), "{done:?}");
        assert_eq!(marked(&mark), Vec::<u32>::new());
    }
    let mut command = ringway(&["perf", "all_reduce", "--ranks", "4", "-e", "1K", "-n", "1"]);
    assert_right(&finish(command.env("RINGWAY_SHM_DIR", &directory)), 4);
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
fn the_json_file_is_json() {
    let folder = Folder::new("jobs-json");
    let path = folder.0.join("out.json");
    let text = path.display().to_string();
    let args = ["perf", "all_reduce", "--ranks", "2", "-b", "8", "-e", "512", "-f", "8"];
    assert_right(&finish(&mut ringway(&[&args[..], &["-J", &text, "-n", "2"]].concat())), 2);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let rows = json["results"].as_array().expect("results are a list");
    assert_eq!(rows.len(), 3, "{json:#}");
}

/// What a launcher starts is one job of four.
fn assert_one_job(launcher: &mut Command) {
    let sizes = ["-b", "8", "-e", "64K", "-f", "8", "-n", "2"];
    assert_right(&finish(launcher.args([PROGRAM, "perf", "all_reduce"]).args(sizes)), 4);
}

#[test]
fn open_mpi_starts_one_job() {
    let Some(mpirun) = need::open_mpi() else { return };
    let root = ["--allow-run-as-root", "--oversubscribe", "-np", "4"];
    assert_one_job(Command::new(mpirun).args(root));
}

#[test]
fn hydra_starts_one_job() {
    let Some(mpiexec) = need::hydra() else { return };
    assert_one_job(Command::new(mpiexec).args(["-np", "4"]));
}

#[test]
fn torchrun_starts_one_job() {
    let Some(torchrun) = need::torchrun() else { return };
    let folder = Folder::new("torchrun");
    let mut command = Command::new(torchrun);
    command
        .args(["--nproc_per_node=4", &format!("--master_port={}", free_port())])
        // Into files and from there to the terminal: without, torch 1.13 stumbles over Python 3.11.
        .args(["--redirects=1", "--tee=1", "--log_dir", &folder.0.display().to_string()])
        .args(["--no_python", PROGRAM])
        .args(["perf", "all_reduce", "-b", "8", "-e", "64K", "-f", "8", "-n", "2"]);
    assert_right(&finish(&mut command), 4);
}

/// The ranks of a job with these variables for each; the first one's end.
fn launched(ranks: u32, variables: impl Fn(u32) -> Vec<(&'static str, String)>) -> Finished {
    let args = ["perf", "all_reduce", "-b", "8", "-e", "4K", "-f", "8", "-n", "2"];
    let running: Vec<Running> =
        (0..ranks).map(|rank| start(ringway(&args).envs(variables(rank)))).collect();
    let mut ends: Vec<Finished> = running.into_iter().map(Running::finish).collect();
    for end in &ends[1..] {
        assert_eq!(end.status.code(), Some(0), "{end:?}");
    }
    ends.remove(0)
}

/// torchrun's own store listens on the port it names: the ranks must meet elsewhere.
#[test]
fn the_variables_of_torchrun_make_one_job() {
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = store.local_addr().unwrap().port();
    let done = launched(4, |rank| {
        vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "4".to_owned()),
            ("LOCAL_RANK", rank.to_string()),
            ("LOCAL_WORLD_SIZE", "4".to_owned()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
            ("TORCHELASTIC_RUN_ID", "none".to_owned()),
        ]
    });
    assert_right(&done, 4);
}

#[test]
fn the_variables_of_srun_make_one_job() {
    let job = format!("{}", 100_000 + std::process::id());
    let done = launched(3, |rank| {
        vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_NTASKS", "3".to_owned()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_JOB_ID", job.clone()),
            ("SLURM_STEP_ID", "0".to_owned()),
            ("SLURM_STEP_NODELIST", "localhost".to_owned()),
            ("SLURM_NODELIST", "localhost".to_owned()),
            ("SLURM_JOB_NODELIST", "localhost".to_owned()),
        ]
    });
    assert_right(&done, 3);
}

/// A rank that never starts: the others say which one is missing.
#[test]
fn a_missing_rank_is_named() {
    let root = format!("127.0.0.1:{}", free_port());
    let running: Vec<Running> = [0, 2]
        .into_iter()
        .map(|rank| {
            let mut command = ringway(&["perf", "all_reduce", "-e", "64"]);
            as_rank(&mut command, rank, 3, &root);
            start(command.env("RINGWAY_INIT_TIMEOUT", "2s"))
        })
        .collect();
    for rank in running {
        let done = rank.finish();
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        assert!(done.stderr.contains("missing") && done.stderr.contains('1'), "{}", done.stderr);
        assert!(done.took < Duration::from_secs(15), "{:?}", done.took);
    }
}

#[test]
fn a_wrong_secret_is_refused() {
    let root = format!("127.0.0.1:{}", free_port());
    let running: Vec<Running> = (0..2)
        .map(|rank| {
            let mut command = ringway(&["perf", "all_reduce", "-e", "64"]);
            as_rank(&mut command, rank, 2, &root);
            if rank == 1 {
                command.env("RINGWAY_SECRET", "something else, and long enough");
            }
            start(command.env("RINGWAY_INIT_TIMEOUT", "5s"))
        })
        .collect();
    let ends: Vec<Finished> = running.into_iter().map(Running::finish).collect();
    assert!(ends.iter().all(|end| end.status.code() == Some(2)), "{ends:?}");
    assert!(ends[1].stderr.contains("another secret"), "{}", ends[1].stderr);
}
