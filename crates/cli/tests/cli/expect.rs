//! `ringway perf --expect` and single iterations.

use serde_json::Value;

use crate::process::{Finished, Folder, finish, ringway};

/// A run of large enough calls, with more arguments.
fn run(more: &[&str]) -> Finished {
    let args = ["perf", "all_gather", "--ranks", "2", "-b", "8M", "-e", "8M", "-n", "2", "-c", "0"];
    finish(&mut ringway(&[&args[..], more].concat()))
}

#[test]
fn the_verdict_is_in_the_exit_code() {
    let folder = Folder::new("perf-expect");
    let path = folder.0.join("out.json").display().to_string();
    let slow = ["--expect=1", "--expect-rate", "10M", "-J", &path];
    let passes = run(&slow);
    assert_eq!(passes.status.code(), Some(0), "{passes:?}");
    assert!(passes.stdout.contains("0 of 1 rows below the floor OK"), "{}", passes.stdout);
    assert!(passes.stdout.contains("the link of rank 0 (0.00 GB/s, as --expect-rate says)"));
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let row = &json["ringway"]["expectation"]["rows"][0];
    assert_eq!((&row["okay"], &row["size"]), (&Value::Bool(true), &Value::from(8 << 20)));

    // Nothing moves so much; and every row of it is large enough to tell.
    let args =
        ["perf", "all_gather", "--ranks", "2", "-b", "128M", "-e", "128M", "-n", "1", "-c", "0"];
    let args = [&args[..], &["--expect", "--expect-rate", "60GB/s", "-J", &path]].concat();
    let fails = finish(&mut ringway(&args));
    assert_eq!(fails.status.code(), Some(1), "{fails:?}");
    assert!(fails.stdout.contains("1 of 1 rows below the floor FAILED"), "{}", fails.stdout);
    assert!(fails.stderr.contains("of what the link of rank"), "{}", fails.stderr);

    let page = folder.0.join("page.html").display().to_string();
    let made = finish(&mut ringway(&["report", &path, "-o", &page]));
    assert!(made.stdout.contains("FAIL"), "{made:?}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("what the links permit"));
}

#[test]
fn memory_has_the_rate_of_a_copy() {
    let args =
        ["perf", "all_gather", "--ranks", "2", "-b", "64M", "-e", "64M", "-n", "1", "-c", "0"];
    let done = finish(&mut ringway(&[&args[..], &["--expect=1"]].concat()));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(
        done.stdout.contains("limited by") && done.stdout.contains("memory (each rank copies at")
    );
    assert!(done.stdout.contains("# Expected: 1 % of what limits, memory"), "{}", done.stdout);
}

#[test]
fn what_cannot_be_told_is_an_error_with_the_fix() {
    for (more, fix) in [
        (&["--expect", "--transport", "tcp"][..], "of each rank: --expect-rate 20G"),
        (&["--expect", "--expect-rate", "800G"], "raise -e to"),
        (&["--expect=0"], "1 to 100"),
    ] {
        let done = run(more);
        assert_eq!(done.status.code(), Some(2), "{more:?}: {done:?}");
        assert!(done.stderr.contains(fix), "{more:?}: {}", done.stderr);
        assert!(!done.stdout.contains("float"), "no row is measured: {}", done.stdout);
    }
    let once = run(&["--expect", "--transport", "tcp"]).stderr;
    assert_eq!(once.matches("--expect-rate").count(), 1, "{once}");
    let gather = ["perf", "gather", "--ranks", "2", "-b", "8M", "-e", "8M", "-n", "1", "--expect"];
    let done = finish(&mut ringway(&gather));
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(done.stderr.contains("what memory permits gather is not known"), "{}", done.stderr);
}

#[test]
fn every_iteration_of_every_rank_is_kept() {
    let folder = Folder::new("perf-iterations");
    let path = folder.0.join("out.json").display().to_string();
    let args = ["perf", "all_reduce", "--ranks", "3", "-b", "1K", "-e", "4K", "-f", "4", "-n", "6"];
    let done = finish(&mut ringway(&[&args[..], &["-I", "1", "-K", "1", "-J", &path]].concat()));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(
        done.stdout.contains("# Iterations, each as long as its slowest rank's"),
        "{}",
        done.stdout
    );
    assert_eq!(
        done.stdout.lines().filter(|line| line.contains(" of 5)")).count(),
        4,
        "{}",
        done.stdout
    );
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let each = &json["results"][1]["in_place_per_iter"];
    assert_eq!(each["per_process_max_times_us"].as_array().unwrap().len(), 3);
    assert_eq!(each["per_process_max_times_us"][2].as_array().unwrap().len(), 6);
    let slowest = json["ringway"]["slowest_ranks"][1]["in_place"].as_array().unwrap().clone();
    assert_eq!(slowest.len(), 6);
    for (at, rank) in slowest.iter().enumerate() {
        let rank = usize::try_from(rank.as_u64().unwrap()).unwrap();
        assert_eq!(each["per_process_max_times_us"][rank][at], each["times_us"][at]);
    }
    let many = finish(&mut ringway(&["perf", "all_reduce", "-I", "1", "-n", "1000000"]));
    assert_eq!(many.status.code(), Some(2), "{many:?}");
    assert!(many.stderr.contains("8388608 are kept at most"), "{}", many.stderr);
}
