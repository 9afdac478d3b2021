//! `ringway perf`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::Duration;

use crate::process::{Folder, finish, marked, ringway, signal, start, wait_for};

/// The fields of the table's rows.
fn rows(stdout: &str) -> Vec<Vec<&str>> {
    let lines = stdout.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn the_table_is_nccl_tests() {
    let args = ["perf", "all_reduce", "--ranks", "3", "-b", "8", "-e", "512", "-f", "8", "-n", "2"];
    let done = finish(&mut ringway(&args));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(done.stderr, "");
    let rows = rows(&done.stdout);
    assert_eq!(rows.len(), 3, "{}", done.stdout);
    for (row, bytes) in rows.iter().zip(["8", "64", "512"]) {
        assert_eq!(row.len(), 13);
        assert_eq!((row[0], row[2], row[3], row[4]), (bytes, "float", "sum", "-1"));
        assert_eq!((row[8], row[12]), ("0", "0"));
    }
    for line in [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 512 step: 8(factor) warmup iters: 1 iters: 2",
        "# Using devices",
        "#  Rank  2 Group  0 Pid ",
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : ",
        "# Collective test concluded: all_reduce_perf",
    ] {
        assert!(done.stdout.lines().any(|l| l.starts_with(line)), "{line}\n{}", done.stdout);
    }
}

/// Between real processes: the kernel copies from one to the other.
#[test]
fn single_copy_gives_right_values() {
    for (collective, ranks) in [
        ("all_reduce", "3"),
        ("all_gather", "3"),
        ("reduce_scatter", "3"),
        ("broadcast", "2"), // several readers of the same pages would wait for each other
        ("gather", "3"),
        ("scatter", "3"),
        ("alltoall", "3"),
    ] {
        let args = ["perf", collective, "--algo", "single_copy", "--ranks", ranks];
        let args = [&args[..], &["-b", "4", "-e", "1M", "-f", "64", "-n", "2", "-c", "1"]].concat();
        let done = finish(&mut ringway(&args));
        assert_eq!(done.status.code(), Some(0), "{collective}: {done:?}");
        assert_eq!(done.stderr, "", "{collective}");
        assert!(done.stdout.contains("# Out of bounds values : 0 OK"), "{}", done.stdout);
    }
}

/// What was asked for and cannot be had is said.
#[test]
fn single_copy_that_is_switched_off_is_said() {
    let args = ["perf", "all_gather", "--algo", "single_copy", "--ranks", "2", "-b", "1M"];
    let args = [&args[..], &["-e", "1M", "-n", "1"]].concat();
    let done = finish(ringway(&args).env("RINGWAY_SINGLE_COPY", "0"));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let why = "rank 0 cannot read the buffers of rank 1: RINGWAY_SINGLE_COPY=0";
    assert!(done.stderr.contains(why), "{done:?}");
}

#[test]
fn every_collective_runs() {
    for collective in [
        "all_gather",
        "reduce_scatter_perf",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "alltoall",
        "sendrecv",
        "barrier",
    ] {
        let args = ["perf", collective, "--ranks", "2", "-b", "1K", "-e", "1K", "-n", "1"];
        let done = finish(&mut ringway(&args));
        assert_eq!(done.status.code(), Some(0), "{collective}: {done:?}");
        assert_eq!(rows(&done.stdout).len(), 1, "{collective}: {}", done.stdout);
    }
}

#[test]
fn json_replaces_the_file_whole() {
    let folder = Folder::new("perf-json");
    let file = folder.0.join("out.json");
    std::fs::write(&file, "old").unwrap();
    let path = file.display().to_string();
    let args = ["perf", "all_gather", "--ranks", "2", "-b", "64", "-e", "256", "-J", &path];
    let done = finish(&mut ringway(&args));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"version\": 3") && text.contains("\"out_of_bounds\""), "{text}");
    assert!(!text.contains("RINGWAY_SECRET"));
    assert!(done.stdout.contains("in place of the older file"), "{}", done.stdout);
    assert_eq!(folder.names(), ["out.json"]);
}

#[test]
fn under_a_launcher_it_joins_the_job() {
    let program = env!("CARGO_BIN_EXE_ringway");
    let args = ["run", "-n", "3", "--", program, "perf", "all_reduce", "-b", "64", "-e", "64"];
    let done = finish(&mut ringway(&args));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(done.stdout.contains("#  Rank  2 Group"), "{}", done.stdout);
    let table = done.stdout.lines().filter(|line| line.contains("float")).count();
    assert_eq!(table, 1, "one table for the whole job: {}", done.stdout);

    let args = [&args[..7], &["--ranks", "5"]].concat();
    let done = finish(&mut ringway(&args));
    assert_ne!(done.status.code(), Some(0));
    assert!(done.stderr.contains("a job of 3 that ringway run started"), "{}", done.stderr);
}

#[test]
fn ctrl_c_leaves_no_process_and_no_file() {
    let folder = Folder::new("perf-interrupt");
    let path = folder.0.join("out.json").display().to_string();
    let mark = format!("perf-interrupt-{}", std::process::id());
    let args = ["perf", "all_reduce", "--ranks", "3", "-N", "0", "-e", "64", "-J", &path];
    let mut command = ringway(&args);
    let running = start(command.env("RINGWAY_TEST_MARK", &mark));
    wait_for("the ranks to start", || (marked(&mark).len() == 4).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    signal("INT", running.pid());
    let done = running.finish();
    assert_eq!(done.status.code(), Some(130), "{done:?}");
    assert_eq!(marked(&mark), Vec::<u32>::new());
    assert_eq!(folder.names(), Vec::<String>::new());
    assert!(!done.stdout.contains("Avg bus bandwidth"), "{}", done.stdout);
}

#[test]
fn a_killed_rank_is_named() {
    let mark = format!("perf-kill-{}", std::process::id());
    let mut command = ringway(&["perf", "all_reduce", "--ranks", "2", "-N", "0", "-e", "64"]);
    let running = start(command.env("RINGWAY_TEST_MARK", &mark));
    let parent = running.pid();
    let victim = wait_for("the ranks to start", || {
        let ranks: Vec<u32> = marked(&mark).into_iter().filter(|pid| *pid != parent).collect();
        (ranks.len() == 2).then(|| ranks[0])
    });
    std::thread::sleep(Duration::from_millis(300));
    signal("KILL", victim);
    let done = running.finish();
    assert!(done.stderr.contains(&format!("(pid {victim}) was ended by SIGKILL")), "{done:?}");
    assert_ne!(done.status.code(), Some(0));
    assert_eq!(marked(&mark), Vec::<u32>::new());
}

#[test]
fn wrong_arguments_are_found_before_any_rank_starts() {
    let table: [(&[&str], &str); 8] = [
        (&["perf", "all_reduce", "-b", "1Q"], "not a size; write 8, 4K, 16M, 1G"),
        (&["perf", "all_reduce", "-b", "2M", "-e", "1M"], "swap them"),
        (&["perf", "all_reduce", "-f", "1"], "use -i"),
        (&["perf", "all_reduce", "-J", "/no/such/folder/x.json"], "no file can be written"),
        (&["perf", "all_reduce", "--ranks", "5000"], "at most 1024"),
        (&["perf", "broadcast", "--ranks", "2", "-r", "7"], "0 to 1"),
        (&["perf", "all_reduce", "-e", "8T"], "lower -e"),
        (&["perf", "all_redcue"], "all_reduce"),
    ];
    for (args, fix) in table {
        let done = finish(&mut ringway(args));
        assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        assert!(done.stderr.contains(fix), "{args:?}: {}", done.stderr);
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_run_without_complaint() {
    let mut command = ringway(&["perf", "all_reduce", "--ranks", "2", "-N", "0", "-e", "64"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("# ringway"), "{line}");
    let status = wait_for("the run to end", || child.try_wait().unwrap());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(141), ""));
}

#[test]
fn too_slow_a_run_fails_when_a_bandwidth_is_asked_for() {
    let args = ["perf", "all_reduce", "--ranks", "2", "-b", "64", "-e", "64", "-n", "1"];
    let done = finish(ringway(&args).env("NCCL_TESTS_MIN_BW", "100000"));
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(done.stdout.contains("FAILED"), "{}", done.stdout);
}
