//! `ringway trace`, and the traces that jobs leave.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::jobs::{as_rank, free_port};
use crate::need;
use crate::process::{Finished, Folder, Running, finish, ringway, signal, start, wait_for};

/// A short job of `ranks` that leaves traces when it ends.
fn job(folder: &Folder, ranks: &str, more: &[&str]) -> Finished {
    let args = ["perf", "all_reduce", "--ranks", ranks, "-b", "8", "-e", "64K", "-n", "3"];
    let mut command = ringway(&[&args[..], more].concat());
    command.env("RINGWAY_TRACE_DIR", &folder.0).env("RINGWAY_TRACE_ON", "end");
    finish(&mut command)
}

fn trace(args: &[&str], paths: &[&Path]) -> Finished {
    let mut command = ringway(&[&["trace"], args].concat());
    finish(command.args(paths))
}

/// The ranks of a job without end, with traces in the folder.
fn endless(folder: &Folder, ranks: u32, on: &str, more: &[(&str, &str)]) -> Vec<Running> {
    let root = format!("127.0.0.1:{}", free_port());
    let args = ["perf", "all_reduce", "-b", "1M", "-e", "1M", "-n", "1000000", "-c", "0"];
    let log = folder.0.join("log.%p").display().to_string();
    let running = (0..ranks).map(|rank| {
        let mut command = ringway(&args);
        as_rank(&mut command, rank, ranks, &root);
        command.env("RINGWAY_TRACE_DIR", folder.0.join("traces")).env("RINGWAY_TRACE_ON", on);
        command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_FILE", &log);
        start(command.envs(more.iter().copied()))
    });
    let running = running.collect();
    wait_for("the ranks to meet", || {
        (logs(folder, "Init COMPLETE") == ranks as usize).then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
    running
}

/// Logs in the folder that say something.
fn logs(folder: &Folder, text: &str) -> usize {
    let says = |name: &String| {
        let log = std::fs::read_to_string(folder.0.join(name)).unwrap_or_default();
        name.starts_with("log.") && log.contains(text)
    };
    folder.names().iter().filter(|name| says(name)).count()
}

/// Whole traces in the folder's `traces`.
fn written(folder: &Folder) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder.0.join("traces")) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".json")).collect();
    names.sort();
    names
}

#[test]
fn a_job_leaves_traces_that_can_be_shown_and_joined() {
    let folder = Folder::new("trace-job");
    let done = job(&folder, "3", &[]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let names = folder.names();
    assert_eq!(names.len() % 3, 0, "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("ringway-") && name.ends_with("-end.json")));

    let shown = trace(&["show"], &[&folder.0]);
    assert_eq!((shown.status.code(), shown.stderr.as_str()), (Some(0), ""), "{shown:?}");
    for rank in 0..3 {
        assert!(shown.stdout.contains(&format!("# rank {rank} of 3, host ")), "{}", shown.stdout);
    }
    assert!(shown.stdout.contains(" all_reduce ") && shown.stdout.contains("taken on end"));
    assert!(
        shown.stdout.lines().all(|line| line.chars().count() <= 120 || line.starts_with("# /"))
    );

    let out = folder.0.join("out.json");
    let merged = trace(&["merge", "-o", &out.to_string_lossy()], &[&folder.0]);
    assert_eq!((merged.status.code(), merged.stderr.as_str()), (Some(0), ""), "{merged:?}");
    assert!(merged.stdout.contains("the reference"), "{}", merged.stdout);
    let page: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    let events = page["traceEvents"].as_array().unwrap();
    for rank in 0..3 {
        let of = |event: &&serde_json::Value| event["ph"] == "X" && event["pid"] == rank;
        assert!(events.iter().filter(of).count() > 10, "rank {rank}");
    }
    assert!(events.iter().all(|event| event["ts"].as_f64().is_none_or(|ts| ts >= 0.0)));

    // What was joined can be read again.
    let joined = folder.0.join("joined.json");
    let merge = ["merge", "--format", "ringway", "-o", &joined.to_string_lossy()];
    assert_eq!(trace(&merge, &[&folder.0]).status.code(), Some(0));
    let shown = trace(&["show", "--last", "1"], &[&joined]);
    assert!(shown.stdout.contains("# rank 2 of 3"), "{shown:?}");
}

#[test]
fn pytorch_reads_a_file_of_each_rank() {
    let folder = Folder::new("trace-torch");
    assert_eq!(job(&folder, "2", &[]).status.code(), Some(0));
    let prefix = folder.0.join("fr_").display().to_string();
    let merged = trace(&["merge", "--format", "pytorch", "-o", &prefix], &[&folder.0]);
    assert_eq!(merged.status.code(), Some(0), "{merged:?}");
    let script = format!(
        "import pickle\n\
         for rank in range(2):\n\
         \x20   dump = pickle.load(open({prefix:?} + str(rank), 'rb'))\n\
         \x20   assert dump['version'] == '2.10', dump['version']\n\
         \x20   group = list(dump['pg_config'].values())[0]\n\
         \x20   assert group['ranks'] == '[0, 1]' and group['desc'] == 'default_pg', group\n\
         \x20   entries = dump['entries']\n\
         \x20   assert len(entries) > 10\n\
         \x20   assert all(e['state'] == 'completed' and e['process_group'][1] == 'default_pg' for e in entries)\n\
         \x20   assert [e['record_id'] for e in entries] == list(range(len(entries)))\n\
         \x20   assert any(e['profiling_name'] == 'nccl:all_reduce' for e in entries)\n\
         \x20   assert all(e['time_created_ns'] > 1 << 60 for e in entries)\n"
    );
    if !need::python() {
        return;
    }
    let done = finish(Command::new("python3").args(["-c", &script]));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
}

#[test]
fn survivors_of_a_killed_rank_leave_traces_with_the_verdict() {
    let folder = Folder::new("trace-killed");
    let mut ranks = endless(&folder, 3, "error", &[]);
    let victim = ranks.remove(1);
    let pid = victim.pid();
    signal("KILL", pid);
    for rank in ranks {
        assert_ne!(rank.finish().status.code(), Some(0));
    }
    let names = written(&folder);
    assert_eq!(names.len(), 2, "{names:?}");
    let shown = trace(&["show", "--last", "1"], &[&folder.0.join("traces")]);
    let named = "rank 1 (host ";
    assert_eq!(shown.stdout.matches("# error: ").count(), 2, "{}", shown.stdout);
    assert!(shown.stdout.contains(named) && shown.stdout.contains(&pid.to_string()));
    // One of them may have been between two calls: then none of its operations failed, and the other's did.
    assert!(shown.stdout.contains(" failed"), "{}", shown.stdout);
    let out = folder.0.join("out.json").display().to_string();
    let merged = trace(&["merge", "-o", &out], &[&folder.0.join("traces")]);
    assert_eq!(merged.status.code(), Some(0), "{merged:?}");
    assert!(merged.stderr.contains("no trace of rank 1 of communicator 0x"), "{}", merged.stderr);
}

#[test]
fn a_signal_writes_traces_and_the_job_goes_on() {
    let folder = Folder::new("trace-signal");
    let mut ranks = endless(&folder, 2, "usr2", &[]);
    for wanted in [2, 4] {
        ranks.iter().for_each(|rank| signal("USR2", rank.pid()));
        wait_for("the traces", || (written(&folder).len() == wanted).then_some(()));
    }
    assert!(written(&folder).iter().any(|name| name.ends_with("-signal-1.json")));
    let shown = trace(&["show", "--last", "3"], &[&folder.0.join("traces")]);
    assert!(shown.stdout.contains("taken on signal"), "{}", shown.stdout);
    for rank in &mut ranks {
        signal("TERM", rank.pid());
        rank.wait();
    }
}

/// A job that cannot write its traces, and says so.
fn warned(done: &Finished, place: &Path) {
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let warning = format!("the trace (end) could not be written to {}/ringway-", place.display());
    assert_eq!(done.stderr.matches(&warning).count(), 2, "{}", done.stderr);
    assert!(done.stderr.contains("see RINGWAY_TRACE_DIR"), "{}", done.stderr);
}

#[test]
fn a_folder_that_cannot_be_written_is_a_warning() {
    let folder = Folder::new("trace-file");
    let file = folder.0.join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let inside = Folder(file.clone());
    warned(&job(&inside, "2", &[]), &file);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not a folder");
}

#[test]
fn a_full_disk_is_a_warning() {
    if !need::mounts() {
        return;
    }
    let folder = Folder::new("trace-full");
    let mount = r#"mount -t tmpfs -o size=4k tmpfs "$RINGWAY_TRACE_DIR" && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", mount, "sh", env!("CARGO_BIN_EXE_ringway")]);
    command.args(["perf", "all_reduce", "--ranks", "2", "-b", "8", "-e", "64K"]);
    command.env("RINGWAY_TRACE_DIR", &folder.0).env("RINGWAY_TRACE_ON", "error,end");
    let done = finish(command.env("RINGWAY_TUNING", "off"));
    warned(&done, &folder.0);
    assert!(done.stderr.contains("No space left on device"), "{}", done.stderr);
}

#[test]
fn what_is_no_trace_is_an_error_that_names_the_file() {
    let folder = Folder::new("trace-hostile");
    assert_eq!(job(&folder, "2", &[]).status.code(), Some(0));
    let name = folder.names().into_iter().find(|name| name.contains("rank0")).unwrap();
    let good = std::fs::read_to_string(folder.0.join(name)).unwrap();
    let bad = folder.0.join("bad.json");
    let deep = format!("{{\"x\":{}", "[".repeat(200_000));
    let table: [(&str, &str); 9] = [
        ("", "EOF while parsing"),
        ("{}", "\"format\" is \"\", not \"ringway-trace\""),
        ("[1, 2", "line 1 column"),
        ("\0\u{1b}[2J", "line 1 column 1"),
        (&deep, "EOF while parsing a list"),
        (&good.replace("\"version\":1", "\"version\":9"), "\"version\" is 9"),
        (&good.replace("\"size\":2", "\"size\":0"), "\"size\" is 0"),
        (&good.replace("\"count\":", "\"cnt\":"), "missing field `count` at line 2"),
        (&good.replace("all_reduce", "all_reduces"), "unknown variant `all_reduces`"),
    ];
    for (text, wanted) in table {
        std::fs::write(&bad, text).unwrap();
        let out = folder.0.join("out.json").display().to_string();
        for args in [&["show"][..], &["merge", "-o", &out]] {
            let done = trace(args, &[&bad]);
            assert_eq!(done.status.code(), Some(2), "{wanted}: {done:?}");
            assert!(done.stderr.contains("bad.json: "), "{wanted}: {}", done.stderr);
            assert!(done.stderr.contains(wanted), "{wanted}: {}", done.stderr);
        }
        assert!(!Path::new(&out).exists(), "nothing is written of a bad file");
    }
    // Words of the file do not steer the terminal.
    std::fs::write(&bad, good.replace("all_reduce", "\\u001b[2J")).unwrap();
    let done = trace(&["show"], &[&bad]);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(done.stderr.contains("[2J") && !done.stderr.contains('\u{1b}'), "{:?}", done.stderr);
    // Two jobs that go by one name.
    let other = good.replace("\"size\":2", "\"size\":10").replace("\"rank\":0", "\"rank\":5");
    std::fs::write(&bad, &other).unwrap();
    let first = folder.0.join("first.json");
    std::fs::write(&first, &good).unwrap();
    let done = trace(&["show"], &[&first, &bad]);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(done.stderr.contains("has 2 and 10 ranks"), "{}", done.stderr);
    // Numbers at the edge of what fits.
    let far = good
        .replace("\"realtime_offset_ns\":", "\"realtime_offset_ns\":-9223372036854775808,\"x\":");
    let far = far.replace("\"count\":", "\"count\":18446744073709551615,\"x\":");
    std::fs::write(&bad, far).unwrap();
    let out = folder.0.join("out").display().to_string();
    for args in [
        &["show"][..],
        &["merge", "-o", &out],
        &["merge", "-o", &out, "--format", "pytorch"],
        &["merge", "-o", &out, "--format", "ringway"],
    ] {
        let done = trace(args, &[&bad]);
        assert_eq!(done.status.code(), Some(0), "{done:?}");
    }
}

#[test]
fn wrong_arguments_say_the_fix() {
    let folder = Folder::new("trace-args");
    let empty = trace(&["show"], &[&folder.0]);
    assert_eq!(empty.status.code(), Some(2));
    assert!(empty.stderr.contains("holds no traces") && empty.stderr.contains("RINGWAY_TRACE_DIR"));
    let absent = trace(&["show"], &[&folder.0.join("no.json")]);
    assert!(absent.stderr.contains("cannot read") && absent.stderr.contains("no.json"));
    let table: [(&[&str], &str); 3] = [
        (&["trace", "merge", "x"], "--output"),
        (&["trace", "merge", "x", "-o", "y", "--format", "perfetto"], "chrome"),
        (&["trace", "show", "--all", "--last", "3", "x"], "cannot be used with"),
    ];
    for (args, fix) in table {
        let done = finish(&mut ringway(args));
        assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        assert!(done.stderr.contains(fix), "{args:?}: {}", done.stderr);
    }
}
