//! `ringway perf pairs` and `ringway perf bisect`. Whom they name on a busy machine is not tested here: `bench/slow-one` counts that;
//! but a GPU that is many times slower than others is named on any.

use crate::gpu::on_fake;
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
    let table: [(&[&str], &str); 6] = [
        (&["pairs", "--ranks", "2"], "start 3 or more: --ranks 4"),
        (&["bisect", "--ranks", "1"], "start 3 or more: --ranks 4"),
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

#[test]
fn a_slow_gpu_is_named_with_all_that_is_known_of_it() {
    for word in ["pairs", "bisect"] {
        let folder = Folder::new(&format!("slow-gpu-{word}"));
        let path = folder.0.join("found.json").display().to_string();
        let args = ["perf", word, "--memory", "cuda", "--ranks", "4", "-b", "64K", "-J", &path];
        // What else runs here makes nothing so slow.
        let args = [&args[..], &["--threshold", "150"]].concat();
        let Some(mut command) = on_fake(&args) else { return };
        let done = finish(command.env("FAKE_CUDA_DEVICES", "4").env("FAKE_CUDA_SLOW", "2:4000"));
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        let text = std::fs::read_to_string(&path).unwrap();
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(file["gpu_path"].as_str().unwrap().starts_with("direct access"), "{text}");
        assert_eq!(file["ranks"][3]["gpu"]["index"], 3, "{text}");
        let culprits = file["culprits"].as_array().unwrap();
        let slow = culprits.iter().find(|one| one["ranks"] == serde_json::json!([2]));
        let slow = slow.unwrap_or_else(|| panic!("{}", done.stdout));
        assert_eq!(slow["gpus"][0]["address"], "0000:03:00.0", "{text}");
        let line = done.stdout.lines().find(|line| line.starts_with("slow: GPU 2 of "));
        let line = line.unwrap_or_else(|| panic!("{}", done.stdout));
        assert!(line.contains(" (rank 2) [NVIDIA Fake at 0000:03:00.0, GPU-"), "{line}");
        assert!(line.contains(" times as long as elsewhere"), "{line}");

        let page = folder.0.join("page.html").display().to_string();
        let report = finish(&mut ringway(&["report", &path, "-o", &page]));
        let page = std::fs::read_to_string(&page).unwrap();
        assert!(page.contains("GPU 2 of ") && page.contains("in GPU memory: direct"), "{report:?}");
    }
}

/// Three ranks on one GPU, by way of its memory and, as ranks of several hosts would, by way of the host's.
#[test]
fn ranks_may_share_a_gpu_and_reach_each_other_in_any_way() {
    for word in ["pairs", "bisect"] {
        for (transport, path) in [("shm", "direct access on GPU 0"), ("tcp", "staged through")] {
            let args = ["perf", word, "--memory", "cuda", "--ranks", "3", "-b", "64K"];
            let args = [&args[..], &["--transport", transport]].concat();
            let Some(mut command) = on_fake(&args) else { return };
            let done = finish(&mut command);
            is_answer(done.status.code(), &done.stdout);
            let told = done.stdout.lines().find(|line| line.starts_with("# GPU memory: "));
            assert!(told.is_some_and(|told| told.contains(path)), "{}", done.stdout);
        }
    }
}
