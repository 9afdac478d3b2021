//! `ringway perf soak`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::process::{Folder, finish, marked, ringway, signal, start, wait_for};

fn json(path: &str) -> Option<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

#[test]
fn a_short_run_has_windows_a_report_and_a_file() {
    let folder = Folder::new("soak");
    let path = folder.0.join("soak.json").display().to_string();
    let args = [
        "perf",
        "soak",
        "all_gather",
        "--ranks",
        "2",
        "-b",
        "64K",
        "--for",
        "3s",
        "--every",
        "300ms",
    ];
    let args = [&args[..], &["--drift", "900", "-J", &path]].concat();
    let done = finish(&mut ringway(&args));
    // On a busy machine somebody may really be late.
    assert!(matches!(done.status.code(), Some(0 | 1)), "{done:?}");
    let windows = done.stdout.lines().filter(|line| line.starts_with("   ")).count();
    assert!((3..=10).contains(&windows), "{}", done.stdout);
    for part in [
        "# soak: all_gather of 64 KiB float for 3s in windows of 300ms",
        "# Jitter",
        "# Drift",
        "# Hiccups",
        "# Stragglers",
        "# Wrong      : 0 OK",
        "# Verdict",
    ] {
        assert!(done.stdout.contains(part), "{part}: {}", done.stdout);
    }
    let file = json(&path).unwrap();
    assert_eq!(
        (&file["format"], &file["finished"]),
        (&Value::from("ringway soak 1"), &Value::Bool(true))
    );
    assert_eq!(file["windows"].as_array().unwrap().len(), windows);
    assert_eq!(file["windows"][0]["wrong"], 0);
    assert_eq!(file["ranks"].as_array().unwrap().len(), 2);
    assert_eq!(folder.names(), ["soak.json"]);

    let page = folder.0.join("page.html").display().to_string();
    let made = finish(&mut ringway(&["report", &path, "-o", &page]));
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("window by window"));
}

#[test]
fn ctrl_c_ends_it_with_the_report() {
    let folder = Folder::new("soak-interrupt");
    let path = folder.0.join("soak.json").display().to_string();
    let mark = format!("soak-interrupt-{}", std::process::id());
    let args = [
        "perf", "soak", "--ranks", "2", "-b", "4K", "--for", "30m", "--every", "300ms", "-J", &path,
    ];
    let mut command = ringway(&args);
    let running = start(command.env("RINGWAY_TEST_MARK", &mark));
    wait_for("two windows in the file", || {
        json(&path).filter(|file| file["windows"].as_array().is_some_and(|all| all.len() >= 2))
    });
    signal("INT", running.pid());
    let done = running.finish();
    assert_eq!(done.status.code(), Some(130), "{done:?}");
    assert!(done.stdout.contains("# Verdict"), "{}", done.stdout);
    let file = json(&path).unwrap();
    assert_eq!(file["finished"], false);
    assert!(file["windows"].as_array().unwrap().len() >= 2);
    assert_eq!(marked(&mark), Vec::<u32>::new());
    assert_eq!(folder.names(), ["soak.json"]);
}

#[test]
fn a_killed_rank_is_named_and_what_was_seen_is_told() {
    let folder = Folder::new("soak-kill");
    let path = folder.0.join("soak.json").display().to_string();
    let args = [
        "perf", "soak", "--ranks", "3", "-b", "4K", "--for", "30m", "--every", "300ms", "-J", &path,
    ];
    let running = start(&mut ringway(&args));
    let file = wait_for("a window in the file", || {
        json(&path).filter(|file| file["windows"].as_array().is_some_and(|all| !all.is_empty()))
    });
    let victim = u32::try_from(file["ranks"][2]["pid"].as_u64().unwrap()).unwrap();
    signal("KILL", victim);
    let done = running.finish();
    assert!(!matches!(done.status.code(), Some(0 | 1)), "{done:?}");
    assert!(done.stderr.contains(&format!("(pid {victim}) was ended by SIGKILL")), "{done:?}");
    assert!(
        done.stdout.contains("# Error      : ") && done.stdout.contains("rank 2"),
        "{}",
        done.stdout
    );
    assert!(done.stdout.contains("# Verdict    : FAILED"), "{}", done.stdout);
    let file = json(&path).unwrap();
    assert!(file["errors"][0].as_str().unwrap().contains("rank 2"), "{file}");
    assert_eq!(file["finished"], false);
}

/// A rank that is stopped again and again holds up the others, and the recorder knows whom they waited for.
#[test]
fn a_rank_that_stands_still_is_waited_for() {
    let folder = Folder::new("soak-late");
    let path = folder.0.join("soak.json").display().to_string();
    let args = [
        "perf", "soak", "--ranks", "2", "-b", "256K", "--for", "3s", "--every", "500ms", "-J",
        &path,
    ];
    let running = start(&mut ringway(&args));
    let file = wait_for("a window in the file", || {
        json(&path).filter(|file| file["windows"].as_array().is_some_and(|all| !all.is_empty()))
    });
    let late = u32::try_from(file["ranks"][1]["pid"].as_u64().unwrap()).unwrap();
    for _ in 0..8 {
        signal("STOP", late);
        std::thread::sleep(std::time::Duration::from_millis(60));
        signal("CONT", late);
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    let done = running.finish();
    let file = json(&path).unwrap();
    let waited = |rank: usize| file["ranks"][rank]["waited_for_s"].as_f64().unwrap();
    assert!(waited(1) > 0.1, "{done:?} {}", file["ranks"]);
}

#[test]
fn wrong_arguments_are_found_before_any_rank_starts() {
    for (args, fix) in [
        (&["--for", "soon"][..], "10m or 2h"),
        (&["--for", "10h", "--every", "1s"], "more than 10000 windows"),
        (&["--for", "5s", "--every", "10s"], "raise --for"),
        (&["--for", "2s", "-J", "/no/such/folder/x.json"], "no file can be written"),
        (&["broadcast", "--ranks", "2", "-r", "7", "--for", "2s"], "0 to 1"),
        (&["all_redcue"], "all_reduce"),
        (&["--drift", "0"], "as 10"),
    ] {
        let done = finish(&mut ringway(&[&["perf", "soak"], args].concat()));
        assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        assert!(done.stderr.contains(fix), "{args:?}: {}", done.stderr);
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_run() {
    let mut command =
        ringway(&["perf", "soak", "--ranks", "2", "-b", "64", "--for", "30m", "--every", "200ms"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("# ringway"), "{line}");
    let status = wait_for("the run to end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(141));
}
