//! `ringway perf` on GPU memory: on the fake GPU, and without one.

use std::process::Command;

use crate::fakes;
use crate::process::{Finished, Folder, finish, ringway};

/// The program on the fake GPU; nothing where it cannot be compiled.
pub(crate) fn on_fake(args: &[&str]) -> Option<Command> {
    let fakes::Cuda { driver, nvrtc } = fakes::cuda()?;
    let mut command = ringway(args);
    command.env("RINGWAY_CUDA_LIBRARY", driver).env("RINGWAY_NVRTC_LIBRARY", nvrtc);
    command.env("RINGWAY_CACHE_DIR", fakes::cache().join("ringway-cache"));
    // A hang is an error before the test's own patience ends.
    command.env("RINGWAY_TIMEOUT", "30s").env_remove("CUDA_VISIBLE_DEVICES");
    Some(command)
}

/// The rows, each split at blanks; every result of them was checked and right.
fn right_rows(done: &Finished) -> Vec<Vec<String>> {
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let lines = done.stdout.lines().filter(|line| !line.starts_with('#'));
    let rows: Vec<Vec<String>> =
        lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    for row in &rows {
        assert_eq!((row[8].as_str(), row[12].as_str()), ("0", "0"), "{row:?}");
    }
    rows
}

#[test]
fn every_collective_checks_out_on_ranks_that_are_threads() {
    for collective in [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "alltoall",
        "sendrecv",
    ] {
        let sizes = ["-b", "192", "-e", "196608", "-f", "1024", "-n", "3"];
        let args = [&["perf", collective, "--memory", "cuda", "-g", "3"][..], &sizes].concat();
        let Some(mut command) = on_fake(&args) else { return };
        let done = finish(&mut command);
        assert_eq!(right_rows(&done).len(), 2, "{collective}: {}", done.stdout);
        assert!(done.stdout.contains("nGpus 3"), "{}", done.stdout);
        assert!(done.stdout.contains("# GPU memory: direct access"), "{}", done.stdout);
        let devices = done.stdout.matches("device  0 [0000:01:00] NVIDIA Fake").count();
        assert_eq!(devices, 3, "{}", done.stdout);
    }
}

#[test]
fn ways_of_timing_types_and_barriers() {
    for words in [
        "all_reduce -b 64 -e 64 -I 1 -n 3",
        "all_reduce -b 64 -e 64 -z 1",
        "all_reduce -b 64 -e 64 -z 2 -m 2 -C 1",
        "all_reduce -b 64 -e 64 -z 3 -u 1 -d half",
        "reduce -b 64 -e 64 -o mulsum -r 1 -w 0",
    ] {
        let args: Vec<&str> = words.split(' ').collect();
        let args = [&["perf", "--memory", "cuda", "-g", "2"][..], &args].concat();
        let Some(mut command) = on_fake(&args) else { return };
        let done = finish(&mut command);
        if words.contains("-I") {
            assert_eq!(done.status.code(), Some(0), "{done:?}");
        } else {
            assert_eq!(right_rows(&done).len(), 1, "{words}: {}", done.stdout);
        }
    }
    let Some(mut command) = on_fake(&["perf", "barrier", "--memory", "cuda", "-g", "2"]) else {
        return;
    };
    let done = finish(&mut command);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
}

#[test]
fn processes_have_their_gpus_in_turn_and_json_says_so() {
    let folder = Folder::new("perf-gpu");
    let path = folder.0.join("out.json").display().to_string();
    let args = ["perf", "all_gather", "--memory", "cuda", "--ranks", "2", "-g", "2", "-b", "1K"];
    let args = [&args[..], &["-e", "64K", "-f", "64", "-J", &path]].concat();
    let Some(mut command) = on_fake(&args) else { return };
    let done = finish(command.env("FAKE_CUDA_DEVICES", "3"));
    assert_eq!(right_rows(&done).len(), 2, "{}", done.stdout);
    let text = std::fs::read_to_string(&path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["config"]["ngpus"], 2);
    let devices = json["config"]["devices"].as_array().unwrap();
    let numbers: Vec<_> = devices.iter().map(|device| device["device"].as_u64()).collect();
    assert_eq!(numbers, [Some(0), Some(1), Some(2), Some(0)]);
    assert_eq!(devices[1]["device_hex"], "0000:02:00");
    assert_eq!(devices[1]["device_info"], "NVIDIA Fake");
    let path = json["ringway"]["gpu_path"].as_str().unwrap();
    assert!(path.contains("2 peers in other processes"), "{path}");
}

#[test]
fn under_a_launcher_every_process_is_a_rank() {
    let program = env!("CARGO_BIN_EXE_ringway");
    let args = ["run", "-n", "2", "--", program, "perf", "all_reduce", "--memory", "cuda"];
    let args = [&args[..], &["-b", "4K", "-e", "4K"]].concat();
    let Some(mut command) = on_fake(&args) else { return };
    let done = finish(&mut command);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let table = done.stdout.lines().filter(|line| line.contains("float")).count();
    assert_eq!(table, 1, "one table for the whole job: {}", done.stdout);
    assert!(done.stdout.contains("1 peers in other processes"), "{}", done.stdout);
}

#[test]
fn without_a_gpu_the_error_names_what_is_missing() {
    let missing = "/no/such/folder/libcuda.so.1";
    let args = ["perf", "all_reduce", "--memory", "cuda", "-g", "2", "-b", "64", "-e", "64"];
    let done = finish(ringway(&args).env("RINGWAY_CUDA_LIBRARY", missing));
    assert_eq!((done.status.code(), done.stdout.as_str()), (Some(2), ""), "{done:?}");
    assert!(done.stderr.contains("--memory cuda needs a GPU"), "{}", done.stderr);
    assert!(done.stderr.contains(missing), "{}", done.stderr);

    for word in ["pairs", "bisect"] {
        let mut command = ringway(&["perf", word, "--memory", "cuda"]);
        let done = finish(command.env("RINGWAY_CUDA_LIBRARY", missing));
        assert_eq!((done.status.code(), done.stdout.as_str()), (Some(2), ""), "{done:?}");
        let lines = done.stderr.matches("--memory cuda needs a GPU").count();
        assert_eq!(lines, 1, "told once: {}", done.stderr);
    }

    let done = finish(ringway(&args).env("RINGWAY_GPU", "0"));
    assert_eq!((done.status.code(), done.stdout.as_str()), (Some(2), ""), "{done:?}");
    assert!(done.stderr.contains("RINGWAY_GPU is 0"), "{}", done.stderr);

    // Ranks that a launcher started tell each other.
    let program = env!("CARGO_BIN_EXE_ringway");
    let args = [&["run", "-n", "2", "--", program], &args[..]].concat();
    let done = finish(ringway(&args).env("RINGWAY_CUDA_LIBRARY", missing));
    assert_ne!(done.status.code(), Some(0), "{done:?}");
    assert!(done.stderr.contains("GPU memory cannot be used: rank 0 on "), "{}", done.stderr);
    assert!(!done.stdout.contains("float"), "{}", done.stdout);
}

#[test]
fn where_one_rank_has_no_gpu_all_name_it() {
    let program = env!("CARGO_BIN_EXE_ringway");
    for word in ["all_reduce", "pairs", "bisect"] {
        // Of three ranks the second has none.
        let script = format!(
            "if [ $RINGWAY_RANK = 1 ]; then export RINGWAY_GPU=0; fi; exec {program} perf {word} --memory cuda"
        );
        let Some(mut command) = on_fake(&["run", "-n", "3", "--", "sh", "-c", &script]) else {
            return;
        };
        let done = finish(&mut command);
        assert_eq!(done.status.code(), Some(2), "{word}: {done:?}");
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let named = format!("GPU memory cannot be used: rank 1 on {host}: RINGWAY_GPU is 0");
        assert!(done.stderr.contains(&named), "{word}: {}", done.stderr);
        assert!(!done.stdout.contains("round 1"), "{word}: {}", done.stdout);
    }
}

#[test]
fn a_gpu_without_memory_ends_all_ranks() {
    let args = ["perf", "all_reduce", "--memory", "cuda", "-g", "2", "-b", "64M", "-e", "64M"];
    let Some(mut command) = on_fake(&args) else { return };
    // Room for the buffers of one rank.
    let done = finish(command.env("FAKE_CUDA_MEMORY", "160000000"));
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(done.stderr.contains("the GPU has no memory left"), "{}", done.stderr);
}

#[test]
fn a_damaged_kernel_cache_is_made_anew() {
    let folder = Folder::new("perf-gpu-cache");
    let args = ["perf", "all_reduce", "--memory", "cuda", "-g", "2", "-b", "64", "-e", "64"];
    let run = || {
        let mut command = on_fake(&args)?;
        let done = finish(command.env("RINGWAY_CACHE_DIR", &folder.0));
        assert_eq!(right_rows(&done).len(), 1, "{}", done.stdout);
        Some(())
    };
    let Some(()) = run() else { return };
    let kernels = folder.0.join("ringway/kernels");
    let files = || -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(&kernels).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let whole: Vec<_> = files().iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert!(!whole.is_empty());
    let cut = &whole[0][..whole[0].len() / 2];
    for damage in [&b""[..], b"garbage", cut] {
        for file in files() {
            std::fs::write(file, damage).unwrap();
        }
        run();
        for file in files() {
            assert!(std::fs::read(&file).unwrap().len() > cut.len(), "{}", file.display());
        }
    }
}

#[test]
fn long_runs_and_expectations_know_gpu_memory() {
    let soak = ["perf", "soak", "--memory", "cuda", "-g", "2", "-b", "4K", "--for", "1s"];
    let Some(mut command) = on_fake(&soak) else { return };
    let done = finish(&mut command);
    assert!(matches!(done.status.code(), Some(0 | 1)), "{done:?}");
    assert!(done.stdout.contains("# Wrong      : 0 OK"), "{}", done.stdout);

    let judged = ["perf", "all_reduce", "--memory", "cuda", "-g", "2", "-b", "1M", "-e", "1M"];
    let judged = [&judged[..], &["-n", "1", "--expect"]].concat();
    let Some(mut command) = on_fake(&judged) else { return };
    let done = finish(&mut command);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(done.stderr.contains("what rank 0 can move is not known"), "{}", done.stderr);
    let Some(mut command) = on_fake(&[&judged[..], &["--expect-rate", "10M"]].concat()) else {
        return;
    };
    let done = finish(&mut command);
    assert!(done.stdout.contains("of 1 rows below the floor"), "{done:?}");
}
