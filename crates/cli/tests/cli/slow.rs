//! `ringway perf pairs` and `ringway perf bisect`. Whom they name on a busy machine is not tested here: `bench/slow-one` counts that.

use crate::process::{Folder, finish, ringway};

/// Nothing, or somebody: both are answers.
fn is_answer(code: Option<i32>, stdout: &str) {
    let named = stdout.lines().any(|line| line.starts_with("slow: "));
    let nothing = stdout.contains("nothing stands out by 35 % or more");
    assert!(named != nothing, "{stdout}");
    assert_eq!(code, Some(i32::from(named)), "{stdout}");
}

#[test]
fn a_tournament_draws_its_maps_and_writes_them() {
    let folder = Folder::new("slow-pairs");
    let path = folder.0.join("pairs.json").display().to_string();
    let done = finish(&mut ringway(&["perf", "pairs", "--ranks", "4", "-b", "64K", "-J", &path]));
    is_answer(done.status.code(), &done.stdout);
    for text in ["# 6 pairs in 3 rounds", "bandwidth from row to column", "round trips: usually"] {
        assert!(done.stdout.contains(text), "{text}\n{}", done.stdout);
    }
    let widest = done.stdout.lines().filter(|line| line.starts_with("# 3 "));
    assert_eq!(widest.count(), 2, "{}", done.stdout);
    let text = std::fs::read_to_string(folder.0.join("pairs.json")).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&file["format"], &file["rounds"]), (&"ringway-pairs-1".into(), &3.into()));
    assert!(file["bandwidth_gbytes"][1][0].is_f64() && file["bandwidth_gbytes"][1][1].is_null());
    assert_eq!(file["round_trip_us"][0][3], file["round_trip_us"][3][0]);
    assert_eq!(folder.names(), ["pairs.json"]);

    let page = folder.0.join("page.html").display().to_string();
    let report = finish(&mut ringway(&["report", &path, "-o", &page]));
    assert_eq!(report.status.code(), Some(0), "{report:?}");
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("How much longer than usual"), "the map is on the page");
}

#[test]
fn a_bisection_says_what_each_round_compared() {
    let folder = Folder::new("slow-bisect");
    let path = folder.0.join("bisect.json").display().to_string();
    let program = env!("CARGO_BIN_EXE_ringway");
    let args = ["run", "-n", "5", "--", program, "perf", "bisect", "-b", "64K", "-J", &path];
    let done = finish(&mut ringway(&args));
    let text = std::fs::read_to_string(&path).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(file["format"], "ringway-bisect-1");
    let rounds = file["rounds"].as_array().unwrap();
    assert!(!rounds.is_empty() && rounds.iter().all(|round| round["found"] != ""), "{text}");
    assert_eq!(rounds[0]["work_us"].as_array().unwrap().len(), 5);
    for number in 1..=rounds.len() {
        assert!(done.stdout.contains(&format!("round {number}: ")), "{}", done.stdout);
    }
    let slow = file["culprits"].as_array().unwrap().len();
    assert_eq!(done.status.code() == Some(0), slow == 0, "{done:?}");
}

#[test]
fn wrong_arguments_say_the_fix() {
    let table: [(&[&str], &str); 7] = [
        (&["pairs", "--ranks", "2"], "start 3 or more: --ranks 4"),
        (&["bisect", "--ranks", "1"], "start 3 or more: --ranks 4"),
        (&["pairs", "--memory", "cuda"], "ringway perf sendrecv --memory cuda"),
        (&["bisect", "--threshold", "3"], "10 to 1000"),
        (&["pairs", "--at-once", "0"], "as 4"),
        (&["pairs", "--bytes", "4G"], "1 byte to 1 GiB"),
        (&["bisect", "-J", "/no/such/folder/x.json"], "no file can be written"),
    ];
    for (args, fix) in table {
        let done = finish(&mut ringway(&[&["perf"], args].concat()));
        assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        assert!(done.stderr.contains(fix), "{args:?}: {}", done.stderr);
    }
}
