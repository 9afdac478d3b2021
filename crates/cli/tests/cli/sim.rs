//! `ringway sim`: collectives, plans, training steps; what is written; what is refused.

use std::process::Command;

use serde_json::Value;

use crate::process::{Finished, Folder, finish, ringway};

fn sim(args: &[&str]) -> Finished {
    finish(&mut ringway(&[&["sim"], args].concat()))
}

fn shown(args: &[&str]) -> String {
    let done = sim(args);
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""), "{done:?}");
    for line in done.stdout.lines().filter(|_| !args.contains(&"--json")) {
        assert!(line.chars().count() <= 80 && !line.contains('\u{1b}'), "{line}");
    }
    done.stdout
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&shown(&[args, &["--json"]].concat())).expect("JSON")
}

#[test]
fn collectives_reach_their_closed_forms() {
    // 8 nodes of 8 GPUs and adapters: 400 GB/s for a ring, 450 with layers, 56.2 for everybody to everybody.
    let all = json(&["collective", "all_reduce", "--gpus", "64", "--bytes", "16G"]);
    let near = |value: &Value, wanted: f64| {
        let value = value.as_f64().expect("a number");
        assert!((value / wanted - 1.0).abs() < 0.01, "{value}, wanted {wanted}");
    };
    near(&all["calls"][0]["busbw_gbytes"], 450.0);
    let flat = ["collective", "all_reduce", "--gpus", "64", "--bytes", "16G", "-a", "ring"];
    near(&json(&flat)["calls"][0]["busbw_gbytes"], 400.0);
    let exchange = json(&["collective", "all_to_all", "--gpus", "64", "--bytes", "16G"]);
    near(&exchange["calls"][0]["busbw_gbytes"], 56.25);
    assert_eq!(all["summary"]["hottest"].as_array().map(Vec::len), Some(10));
    assert!(all["links"].as_array().is_some_and(|links| links.len() > 100));
}

#[test]
fn sequences_seeds_and_faults_are_told() {
    let page = shown(&["collective", "all_reduce:64M,all_gather:32M", "--gpus", "32"]);
    assert!(page.contains("all_reduce hierarchical  32     64 MiB"), "{page}");
    assert!(page.contains("all_gather hierarchical  32     32 MiB"), "{page}");
    let tree = ["--gpus", "64", "--layout", "fat-tree", "--radix", "16"];
    let seeds = ["collective", "all_to_all", "--routing", "ecmp", "--seeds", "5", "-b", "64M"];
    let page = shown(&[&seeds[..], &tree].concat());
    assert!(page.contains("5 seeds") && page.contains("median"), "{page}");
    let down = ["--down", "leaf-1-spine-2@100us", "--straggler", "3=50us"];
    let page = shown(&[&["collective", "all_reduce"], &tree[..], &down].concat());
    assert!(page.contains("Incidents:") && page.contains("went down"), "{page}");
    let slow =
        json(&[&["collective", "all_reduce"], &tree[..], &["--slow", "leaf-1:1=50%@0"]].concat());
    let well = json(&[&["collective", "all_reduce"], &tree[..]].concat());
    let us = |json: &Value| json["summary"]["time_us"].as_f64().expect("a time");
    assert!(us(&slow) > us(&well) * 1.5, "{} {}", us(&slow), us(&well));
    shown(&["collective", "all_to_all", "-b", "1M", "--gpus", "64", "--dragonfly", "4,8,2"]);
}

#[test]
fn the_librarys_plans_run() {
    let plan = json(&["plan", "all_reduce", "--gpus", "16", "--algorithm", "ring", "-b", "16M"]);
    assert!(plan["calls"][0]["steps"].as_u64().is_some_and(|steps| steps > 16), "{plan}");
    let folder = Folder::new("sim-plan");
    let path = folder.0.join("plan.json");
    let path = path.to_str().expect("UTF-8");
    let mut made =
        ringway(&["plan", "show", "all_reduce", "-n", "16", "--hosts", "2", "--json", path]);
    assert_eq!(finish(&mut made).status.code(), Some(0));
    assert!(shown(&["plan", "--file", path, "--gpus", "16"]).contains("run one by one"));
    let done = sim(&["plan", "all_reduce", "--gpus", "16", "--algorithm", "bruck"]);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
}

#[test]
fn training_steps_and_what_ifs_are_tables() {
    let model =
        ["train", "--params", "7e9", "--layers", "32", "--hidden", "4096", "--tokens", "8192"];
    let step = json(&[&model[..], &["--gpus", "64", "--fsdp"]].concat());
    let sent = step["step"]["kinds"].as_array().expect("kinds").iter();
    let sent: f64 = sent.filter_map(|kind| kind["sent_bytes"].as_f64()).sum();
    assert!((sent / (42e9 * 63.0 / 64.0) - 1.0).abs() < 1e-6, "{sent}");
    let page = shown(&[&model[..], &["--gpus", "64", "--tensor", "8", "--pipeline", "2"]].concat());
    assert!(page.contains("bubble") && page.contains("tensor     all_reduce"), "{page}");
    let page = shown(&[&model[..], &["--gpus", "64", "--vary", "rate=HDR,NDR"]].concat());
    assert!(page.lines().any(|line| line.starts_with("NDR") && line.ends_with("best")), "{page}");
    let wide = ["collective", "all_to_all", "-b", "64M", "--gpus", "64", "--layout", "fat-tree"];
    let two = ["--radix", "16", "--vary", "oversubscription=1,2,4", "--vary", "qps=1,2"];
    let tried = json(&[&wide[..], &two].concat());
    assert_eq!(tried["tried"].as_array().map(Vec::len), Some(6));
}

#[test]
fn wrong_arguments_say_what_would_be_right() {
    let tree = ["--gpus", "64", "--layout", "fat-tree", "--radix", "16"];
    let table: [(&[&str], &str); 21] = [
        (&["--down", "leaf-1-spin-2@0"], "did you mean spine-2?"),
        (&["--down", "leaf-1-spine-2"], "wanted is WHAT@TIME"),
        (&["--down", "leaf-1-leaf-2@0"], "no cable joins leaf-1 and leaf-2"),
        (&["--slow", "leaf-1-spine-2=150%@0"], "150% is no part"),
        (&["--straggler", "64=1ms"], "64 is no rank: 0 to 63"),
        (&["--ranks", "0-64"], "ranks of 0 to 63"),
        (
            &["--routing", "polarised", "--polarised", "spine-9"],
            "no such switch; did you mean spine-",
        ),
        (&["--polarised", "spine-1"], "--polarised is for --routing polarised"),
        (&["--entropy", "2"], "adaptive has no hash"),
        (&["--seeds", "3", "--routing", "static"], "static has no hash"),
        (&["--channels", "2"], "--channels is for --algorithm ring and tree; hierarchical"),
        (&["--vary", "channels=1,2"], "--channels is for"),
        (&["--dragonfly", "4,2,2"], "cannot be used with"),
        (&["--vary", "colour=1"], "cannot be varied"),
        (&["--vary", "qps=1,2", "--heat", "x.svg"], "does not go with --vary"),
        (&["--vary", "qps=1,2", "--entropy", "4"], "adaptive has no hash"),
        (&["--vary", "qps=1,2", "--seeds", "3"], "adaptive has no hash"),
        (&["--seed", "9"], "adaptive has no hash"),
        (&["--root", "9"], "none of the collectives has a root"),
        (&["--together"], "there is one collective"),
        (&["--no-pxn"], "what goes between rails"),
    ];
    for (args, part) in table {
        let done = sim(&[&["collective", "all_reduce"], &tree[..], args].concat());
        assert_eq!((done.status.code(), done.stdout.as_str()), (Some(2), ""), "{done:?}");
        assert!(done.stderr.contains(part), "{}", done.stderr);
    }
    let none = sim(&["collective", "all_reduce"]);
    assert!(none.status.code() == Some(2) && none.stderr.contains("--gpus"), "{none:?}");
    let tree = sim(&["collective", "all_to_all", "--gpus", "16", "-a", "tree"]);
    assert!(tree.status.code() == Some(2) && tree.stderr.contains("choose one of"), "{tree:?}");
    let train = ["train", "--params", "1e9", "--layers", "2", "--hidden", "64", "--tokens", "64"];
    let split = sim(&[&train[..], &["--gpus", "24", "--tensor", "5"]].concat());
    assert!(split.stderr.contains("24 GPUs cannot be divided"), "{split:?}");
    let train = [&train[..], &["--gpus", "16"]].concat();
    let plan = ["plan", "all_gather", "--gpus", "16"];
    let sized = ["collective", "all_reduce:1M,all_gather:2M", "--gpus", "16"];
    let table: [(&[&str], &[&str], &str); 9] = [
        (&train, &["--fsdp", "--algorithm", "tree"], "tree: it has no all_gather"),
        (&train, &["--straggler", "0=1ms"], "not modelled"),
        (&train, &["--buckets", "3"], "3 buckets, but a stage has 2 layers"),
        (&plan, &["--qps", "4"], "a plan has lanes of its own"),
        (&plan, &["--bytes", "8"], "less than one value"),
        (&plan, &["--chunk", "0"], "a message has 64 bytes to 1G"),
        (&plan, &["--root", "3"], "all_gather has no root"),
        (&train, &["--top-k", "7"], "--experts"),
        (&sized, &["--bytes", "5G"], "a size of its own"),
    ];
    for (job, args, part) in table {
        let done = sim(&[job, args].concat());
        assert_eq!((done.status.code(), done.stdout.as_str()), (Some(2), ""), "{done:?}");
        assert!(done.stderr.contains(part), "{}", done.stderr);
    }
    // Of the routings that are tried one may have no use for what another needs; titles leave out what is varied.
    let tried = ["--routing", "ecmp", "--vary", "routing=ecmp,adaptive", "--entropy", "4"];
    let tried =
        json(&[&["collective", "all_reduce", "--gpus", "16", "-b", "1M"], &tried[..]].concat());
    assert_eq!(tried["tried"].as_array().map(Vec::len), Some(2));
    let sizes = json(&["collective", "all_reduce", "--gpus", "16", "--vary", "size=1M,16M"]);
    assert_eq!(sizes["job"], "all_reduce");
    let barrier = json(&["collective", "barrier", "--gpus", "16"]);
    assert_eq!(barrier["calls"][0]["bytes"], 0);
}

/// The commands of the page, run one after another in one folder, print what the page says they do.
#[test]
fn the_worked_example_runs_as_printed() {
    let page = include_str!("../../../../docs/slow-fabric.md");
    let folder = Folder::new("sim-story");
    let mut inside = false;
    let mut printed = String::new();
    let (mut commands, mut checked) = (0, 0);
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside {
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            let mut command: Command = ringway(&words);
            let done = finish(command.current_dir(&folder.0));
            let wrong = words.contains(&"tuesday.txt") && words.contains(&"monday.txt");
            let wanted = if wrong && words[0] == "fabric" { 2 } else { 0 };
            assert_eq!(done.status.code(), Some(wanted), "{line}: {done:?}");
            printed = done.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
            commands += 1;
        } else if let Some(quoted) = line.strip_prefix("    ") {
            let plain = quoted.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(printed.contains(&plain), "{plain:?} is not in {printed}");
            checked += 1;
        }
    }
    assert!(commands == 8 && checked >= 10, "{commands} commands, {checked} lines");
    for name in ["slow.svg", "slow.html"] {
        let text = std::fs::read_to_string(folder.0.join(name)).expect("a file");
        assert!(text.contains("spine-1"), "{name}");
    }
}
