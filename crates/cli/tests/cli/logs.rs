//! `ringway doctor --log` and `ringway env lint` as scripts and people use them.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::process::{Finished, finish, ringway};

const SOCKET: &str = "a:1:2 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n\
    a:1:2 [0] NCCL INFO Using network Socket\n\
    a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n";

/// A file that goes with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringway-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// Runs a program that reads `input` from a file given as standard input.
fn with_input(args: &[&str], input: &str) -> Finished {
    let file = File::new(&format!("stdin-{}", args.len()), input);
    let mut command = ringway(args);
    command.stdin(Stdio::from(std::fs::File::open(&file.0).unwrap()));
    finish(&mut command)
}

fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.contains("CCL_")) {
        command.env_remove(name);
    }
    command
}

#[test]
fn the_exit_code_is_the_verdict() {
    let bad = File::new("bad.log", SOCKET);
    let done = finish(&mut ringway(&["doctor", "--log", bad.name()]));
    assert_eq!(done.status.code(), Some(2), "{}", done.stdout);
    assert!(
        done.stdout.contains("[net-socket]")
            && done.stdout.contains("NCCL_IB_DISABLE keeps RDMA off")
    );
    assert!(done.stdout.contains("bad.log:2"), "{}", done.stdout);
    assert!(!done.stdout.contains('\x1b'), "colour in a pipe");
    let good = File::new("good.log", "a:1:2 [0] NCCL INFO Using network IB\n");
    let done = finish(&mut ringway(&["doctor", "--log", good.name()]));
    assert_eq!((done.status.code(), done.stdout.as_str()), (Some(0), "nothing wrong found\n"));
}

#[test]
fn pairs_are_summed_up_or_listed_also_from_packed_logs() {
    let log = "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n\
               b:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0\n\
               a:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n";
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(log.as_bytes()).unwrap();
    let plain = File::new("pairs.log", log);
    let packed = File::new("pairs.log.gz", "");
    std::fs::write(&packed.0, packer.finish().unwrap()).unwrap();
    for file in [&plain, &packed] {
        let done = finish(&mut ringway(&["doctor", "--log", file.name()]));
        let words: Vec<&str> = done.stdout.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words, ["1", "2", "NET/IB", "yes", "no", "0", "->", "1"], "{}", done.stdout);
        let done = finish(&mut ringway(&["doctor", "--pairs", "--log", file.name()]));
        assert!(done.stdout.starts_with("pairs of ranks\n"), "{}", done.stdout);
        let done = finish(&mut ringway(&["doctor", "--json", "--pairs", "--log", file.name()]));
        let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        let expected = serde_json::json!([{
            "transport": "NET/IB",
            "channels": 2,
            "gpudirect": {"send": "yes", "receive": "no"},
            "ranks": [[0, 1]],
        }]);
        assert_eq!(json["pairs"]["all"], expected);
        assert_eq!(json["pairs"]["summary"][0]["pairs"], 1);
    }
    let done = finish(&mut ringway(&["doctor", "--pairs"]));
    assert_eq!(done.status.code(), Some(3), "{}", done.stderr);
}

#[test]
fn standard_input_and_several_files_are_read() {
    let done = with_input(&["doctor", "--json", "--log", "-"], SOCKET);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((json["version"].as_u64(), json["verdict"].as_str()), (Some(1), Some("fail")));
    assert_eq!(json["findings"][0]["id"], "net-socket");
    let (one, two) = (
        File::new("v1.log", "NCCL version 2.20.5+cuda12.4\n"),
        File::new("v2.log", "NCCL version 2.27.7+cuda12.9\n"),
    );
    let done = finish(&mut ringway(&["doctor", "--log", one.name(), two.name()]));
    assert!(done.stdout.contains("versions-mixed"), "{}", done.stdout);
}

#[test]
fn what_cannot_be_looked_at_exits_with_3() {
    let missing = finish(&mut ringway(&["doctor", "--log", "/no/such.log"]));
    assert_eq!(missing.status.code(), Some(3));
    assert!(missing.stderr.contains("/no/such.log"), "{}", missing.stderr);
    for args in [
        &["doctor", "--bogus"][..],
        &["doctor", "--log"],
        &["env", "lint", "--bogus"],
        &["env", "lint", "/no/such"],
    ] {
        let done = finish(&mut ringway(args));
        assert_eq!(done.status.code(), Some(3), "{args:?}: {}", done.stderr);
        assert!(!done.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn a_script_is_linted_with_lines_and_fixes() {
    let script = File::new(
        "job.sh",
        "#!/bin/sh\nexport NCCL_IB_GID_INDX=3\nmpirun -x NCCL_IB_TIMEOUT=14 ./prog\n",
    );
    let done = finish(&mut ringway(&["env", "lint", script.name()]));
    assert_eq!(done.status.code(), Some(2), "{}", done.stdout);
    for text in
        ["job.sh:2", "did you mean NCCL_IB_GID_INDEX?", "job.sh:3", "2^14 × 7 retries = 470 ms"]
    {
        assert!(done.stdout.contains(text), "{text}: {}", done.stdout);
    }
    let done = with_input(&["env", "lint", "-"], "NCCL_DEBUG=WARN\n");
    assert_eq!((done.status.code(), done.stdout.as_str()), (Some(0), "nothing wrong found\n"));
}

#[test]
fn the_environment_is_linted() {
    let folder = std::env::temp_dir().join(format!("ringway-lint-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let root = folder.to_str().unwrap();
    let lint = || {
        let mut command = ringway(&["env", "lint", "--root", root]);
        finish(without_settings(&mut command).env("NCCL_PROTO", "LL128"))
    };
    let done = lint();
    assert_eq!(done.status.code(), Some(2), "{}", done.stdout);
    assert!(
        done.stdout.contains("env-forced-ll128")
            && done.stdout.contains("environment: NCCL_PROTO=LL128")
    );
    // A copy that has variables of its own, and a snapshot of it.
    std::fs::create_dir_all(folder.join("commands")).unwrap();
    std::fs::write(folder.join("commands/environment.txt"), "NCCL_IB_TIMEOUT=14\n").unwrap();
    let copied = lint();
    let file = folder.join("x.tar.zst");
    let taken = ["snapshot", "--root", root, "-o", file.to_str().unwrap()];
    assert_eq!(finish(&mut ringway(&taken)).status.code(), Some(0));
    let packed = finish(&mut ringway(&["env", "lint", "--root", file.to_str().unwrap()]));
    let block = finish(&mut ringway(&["env", "suggest", "--root", file.to_str().unwrap()]));
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(copied.stdout.contains("environment: NCCL_IB_TIMEOUT=14"), "{}", copied.stdout);
    assert!(!copied.stdout.contains("NCCL_PROTO"), "{}", copied.stdout);
    assert_eq!(copied.stdout, packed.stdout);
    assert!(block.stdout.contains("NCCL_"), "{}{}", block.stdout, block.stderr);
    let done = finish(&mut ringway(&["env", "lint", "--root", "/no/such/root"]));
    assert_eq!(done.status.code(), Some(3), "{}", done.stdout);
    assert!(done.stderr.contains("/no/such/root"), "{}", done.stderr);
}

#[test]
fn variables_are_listed_explained_and_suggested() {
    let done = finish(&mut ringway(&["env", "explain", "nccl_ib_tc"]));
    assert!(
        done.stdout.starts_with("NCCL_IB_TC\n") && done.stdout.contains("255"),
        "{}",
        done.stdout
    );
    let done = finish(&mut ringway(&["env", "explain", "NCCL_IB_TCC"]));
    assert!(done.stderr.contains("did you mean NCCL_IB_TC?"), "{}", done.stderr);
    let done = finish(&mut ringway(&["env", "list", "--json", "gid", "index"]));
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert!(json.as_array().unwrap().iter().any(|one| one["name"] == "NCCL_IB_GID_INDEX"));
    let done = finish(&mut ringway(&[
        "env",
        "suggest",
        "--fabric",
        "roce",
        "--dscp",
        "26",
        "--root",
        env!("CARGO_TARGET_TMPDIR"),
    ]));
    assert!(done.stdout.contains("NCCL_IB_TC=106\n"), "{}", done.stdout);
    let done = finish(&mut ringway(&["env", "list", "zzzzqqqq"]));
    assert_eq!(done.status.code(), Some(2));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut command = ringway(&["env", "list"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(141));
    let _all = std::io::stdout().flush();
}
