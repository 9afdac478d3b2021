//! `ringway k8s`: manifests, made and looked at by the real program.

use std::path::{Path, PathBuf};

use crate::process::{Finished, finish, ringway};

/// A folder of this test's own, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringway-k8s-{name}-{}", std::process::id()));
        let _gone = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn run(args: &[&str]) -> Finished {
    finish(&mut ringway(&[&["k8s"], args].concat()))
}

fn job() -> String {
    let done = run(&[
        "gen",
        "job",
        "--network",
        "host",
        "--link",
        "eth",
        "--image",
        "i:1",
        "--dscp",
        "26",
    ]);
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""));
    done.stdout
}

#[test]
fn what_is_generated_has_nothing_wrong_and_a_reason_for_each_variable() {
    let folder = Folder::new("gen");
    let text = job();
    for words in [
        "NCCL_IB_TC",
        "value: \"106\"",
        "# Ranks",
        "IPC_LOCK",
        "ClusterFirstWithHostNet",
        "sizeLimit: 16Gi",
    ] {
        let there =
            text.contains(words) || words == "# Ranks" && text.contains("# No interface stood out");
        assert!(there, "{words} in\n{text}");
    }
    assert!(!text.contains("privileged: true") && !text.contains("GID_INDEX\n"), "{text}");
    for kind in ["job", "jobset", "mpijob", "lws", "doctor", "exporter", "cluster"] {
        for network in ["host", "rdma", "sriov", "efa", "pod"] {
            let done = run(&["gen", kind, "--network", network, "--image", "i:1"]);
            let file = folder.file("m.yaml", &done.stdout);
            let looked = run(&["lint", &file]);
            assert_eq!(
                looked.status.code(),
                Some(0),
                "{kind} {network}: {}{}",
                looked.stdout,
                done.stdout
            );
            assert!(looked.stdout.starts_with("nothing wrong found"), "{}", looked.stdout);
        }
    }
}

#[test]
fn faults_are_shown_mended_and_gone() {
    let folder = Folder::new("fix");
    let healthy = job();
    let bad =
        healthy.replace("sizeLimit: 16Gi", "sizeLimit: 64Mi").replace("- IPC_LOCK", "- SYS_PTRACE");
    let file = folder.file("a job.yaml", &bad);
    let done = run(&["lint", &file]);
    assert_eq!(done.status.code(), Some(2));
    assert!(
        done.stdout.contains("[K8S-02]") && done.stdout.contains("[K8S-04]"),
        "{}",
        done.stdout
    );
    assert!(done.stdout.contains("2 failures") && !done.stdout.contains('\x1b'), "{}", done.stdout);
    let diff = run(&["lint", "--diff", &file]);
    let header = format!("--- {file}\t\n+++ {file}\t\n@@ -");
    assert!(diff.stdout.starts_with(&header), "{}", diff.stdout);
    assert!(
        diff.stdout.contains("-          sizeLimit: 64Mi\n+          sizeLimit: 16Gi\n"),
        "{}",
        diff.stdout
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), bad, "--diff alone writes nothing");
    let fixed = run(&["lint", "--fix", &file]);
    assert_eq!(fixed.status.code(), Some(0), "{}", fixed.stdout);
    assert_eq!(fixed.stdout.matches("mended  ").count(), 2, "{}", fixed.stdout);
    let after = std::fs::read_to_string(&file).unwrap();
    assert_eq!(after, healthy.replace("- IPC_LOCK", "- SYS_PTRACE\n            - IPC_LOCK"));
    assert_eq!(run(&["lint", "--fix", &file]).stdout, "nothing wrong found\n");
}

#[test]
fn programs_get_json_sarif_and_junit() {
    let folder = Folder::new("forms");
    let file = folder.file("job.yaml", &job().replace("image: i:1", "image: i"));
    let json: serde_json::Value =
        serde_json::from_str(&run(&["lint", "--format", "json", &file]).stdout).unwrap();
    assert_eq!((&json["version"], &json["verdict"]), (&1.into(), &"warn".into()));
    assert_eq!(json["findings"][0]["id"], "K8S-27");
    let line = usize::try_from(json["findings"][0]["line"].as_u64().unwrap()).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.lines().nth(line - 1).unwrap().contains("image: i"));
    let done = run(&["lint", "--format", "sarif", &file]);
    assert_eq!(done.status.code(), Some(1));
    let sarif: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!((&sarif["version"], &result["level"]), (&"2.1.0".into(), &"warning".into()));
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], line);
    let odd = folder.file("a b%\u{e4}.yaml", &text);
    let done = run(&["lint", "--format", "sarif", &odd]);
    let named: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let place = &named["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    let uri = place["artifactLocation"]["uri"].as_str().unwrap();
    assert!(uri.ends_with("/a%20b%25%C3%A4.yaml"), "{uri}");
    let rule = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
    assert_eq!(sarif["runs"][0]["tool"]["driver"]["rules"][rule]["id"], "K8S-27");
    let junit = run(&["lint", "--format", "junit", &file]).stdout;
    let open = junit.matches("<testcase ").count();
    assert!(junit.contains("failures=\"1\"") && open == 31, "{junit}");
}

#[test]
fn variables_of_env_lint_are_looked_at_in_manifests() {
    let folder = Folder::new("env");
    let file = folder.file("job.yaml", &job().replace("NCCL_IB_TIMEOUT", "NCCL_IB_TIMEOT"));
    let done = run(&["lint", &file]);
    assert!(
        done.stdout.contains("did you mean NCCL_IB_TIMEOUT? (env-unknown) [K8S-13]"),
        "{}",
        done.stdout
    );
}

#[test]
fn what_cannot_be_done_says_why_and_exits_with_3() {
    let folder = Folder::new("wrong");
    let binary = folder.0.join("b.yaml");
    std::fs::write(&binary, [0xff, 0xfe, 0x00]).unwrap();
    let missing = folder.0.join("none.yaml");
    std::fs::create_dir(folder.0.join("empty")).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    for (args, words) in [
        (vec!["lint".to_owned(), path(&missing)], "No such file"),
        (vec!["lint".to_owned(), path(&binary)], "is not UTF-8"),
        (vec!["lint".to_owned(), path(&folder.0.join("empty"))], "no file named *.yaml"),
        (vec!["lint".to_owned()], "required arguments"),
        (vec!["lint".to_owned(), "-".to_owned(), "-".to_owned()], "given twice"),
        (
            ["lint", "--fix", "--format", "json", "-"].map(str::to_owned).to_vec(),
            "leave --format out",
        ),
        (
            ["lint", "--diff", "--format", "json", "-"].map(str::to_owned).to_vec(),
            "give one of them",
        ),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let done = run(&args);
        assert_eq!(done.status.code(), Some(3), "{args:?}");
        assert!(done.stderr.contains(words), "{args:?}: {}", done.stderr);
    }
    for (args, words) in [
        (&["gen", "job"][..], "no --image"),
        (
            &["gen", "job", "--image", "i:1", "--network", "macvlan", "--link", "ib"],
            "are of Ethernet",
        ),
        (&["gen", "job", "--image", "i:1", "--shm", "64Mi"], "at least 1Gi"),
        (&["gen", "job", "--image", "i:1", "--name", "A_b"], "cannot be the name"),
    ] {
        let done = run(args);
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        assert!(done.stderr.contains(words) && done.stdout.is_empty(), "{args:?}: {}", done.stderr);
    }
}

#[test]
fn a_file_named_stdin_is_a_file_and_a_pipe_is_told_what_is_left() {
    let folder = Folder::new("stdin");
    let healthy = job();
    let bad =
        healthy.replace("sizeLimit: 16Gi", "sizeLimit: 64Mi").replace("image: i:1", "image: i");
    folder.file("stdin", &bad);
    let mut command = ringway(&["k8s", "lint", "--fix", "stdin"]);
    let done = finish(command.current_dir(&folder.0));
    assert_eq!(done.status.code(), Some(1), "{}", done.stdout);
    let better = healthy.replace("image: i:1", "image: i");
    assert_eq!(std::fs::read_to_string(folder.0.join("stdin")).unwrap(), better);
    let mut command = ringway(&["k8s", "lint", "--fix", "-"]);
    command.stdin(std::fs::File::open(folder.file("piped", &bad)).unwrap());
    let done = finish(&mut command);
    assert_eq!((done.status.code(), done.stdout.as_str()), (Some(1), better.as_str()));
    assert!(done.stderr.contains("mended  stdin:"), "{}", done.stderr);
    assert!(
        done.stderr.contains("warn    stdin:") && done.stderr.contains("[K8S-27]"),
        "{}",
        done.stderr
    );
}
