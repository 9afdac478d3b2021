//! `ringway fabric`: dumps from files, folders and pipes; verdicts; plans.

use crate::process::{Finished, Folder, finish, ringway};

fn fabric(args: &[&str]) -> Finished {
    finish(&mut ringway(&[&["fabric"], args].concat()))
}

fn shown(args: &[&str]) -> String {
    let done = fabric(args);
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""), "{done:?}");
    done.stdout
}

/// A fabric of 64 nodes with 8 rails, as a dump.
fn dump(folder: &Folder) -> String {
    let path = folder.0.join("topo.txt");
    let path = path.to_str().expect("UTF-8");
    shown(&["plan", "--gpus", "512", "--layout", "rail", "--dump", path]);
    std::fs::read_to_string(path).expect("the dump")
}

/// The lines of a dump, each with the node whose block it is in.
fn lines(text: &str) -> Vec<(String, String)> {
    let mut block = String::new();
    let mut all = Vec::new();
    for line in text.lines() {
        if let Some(id) = line.split('"').nth(1).filter(|_| !line.starts_with('[')) {
            block = id.to_owned();
        }
        all.push((block.clone(), line.to_owned()));
    }
    all
}

fn joined(lines: &[(String, String)]) -> String {
    lines.iter().map(|(_, line)| format!("{line}\n")).collect()
}

fn id_of(text: &str, name: &str) -> String {
    let line =
        text.lines().find(|line| !line.starts_with('[') && line.contains(&format!("# \"{name}\"")));
    line.unwrap_or_else(|| panic!("no {name}")).split('"').nth(1).expect("an id").to_owned()
}

/// Takes out the first cable between two nodes, at both ends.
fn pull(text: &str, a: &str, b: &str) -> String {
    let (a, b) = (id_of(text, a), id_of(text, b));
    let mut all = lines(text);
    let at = all
        .iter()
        .position(|(block, line)| *block == a && line.contains(&format!("\t\"{b}\"[")))
        .expect("a cable");
    let number = |line: &str| line.split(['[', ']']).nth(1).expect("a port").to_owned();
    let (own, far) = (
        number(&all[at].1),
        all[at]
            .1
            .split(&format!("\"{b}\"["))
            .nth(1)
            .expect("a port")
            .split(']')
            .next()
            .expect("a port")
            .to_owned(),
    );
    all.remove(at);
    let back = all.iter().position(|(block, line)| {
        *block == b
            && line.starts_with(&format!("[{far}]"))
            && line.contains(&format!("\"{a}\"[{own}]"))
    });
    all.remove(back.expect("the other end"));
    joined(&all)
}

/// Swaps the cables of two adapters that are each on one leaf.
fn swap(text: &str, a: &str, b: &str) -> String {
    let (a, b) = (id_of(text, a), id_of(text, b));
    let mut all = lines(text);
    let of = |all: &[(String, String)], id: &str| {
        all.iter().position(|(block, line)| block == id && line.starts_with('[')).expect("a port")
    };
    let on = |all: &[(String, String)], id: &str| {
        all.iter()
            .position(|(_, line)| line.starts_with('[') && line.contains(&format!("\t\"{id}\"[")))
            .expect("a leaf's port")
    };
    let (a_leaf, b_leaf) = (on(&all, &a), on(&all, &b));
    let tail = |line: &str| line.split_once('\t').expect("a tab").1.to_owned();
    let head = |line: &str| line.split_once('\t').expect("a tab").0.to_owned();
    let (one, other) = (all[a_leaf].1.clone(), all[b_leaf].1.clone());
    all[a_leaf].1 = format!("{}\t{}", head(&one), tail(&other));
    all[b_leaf].1 = format!("{}\t{}", head(&other), tail(&one));
    // An adapter's own line: its peer, and behind the comment sign its own identifier, which stays.
    let (a_own, b_own) = (of(&all, &a), of(&all, &b));
    let peer = |line: &str| {
        line.split_once('\t').expect("a tab").1.split("\t\t#").next().expect("a peer").to_owned()
    };
    let (one, other) = (all[a_own].1.clone(), all[b_own].1.clone());
    all[a_own].1 = one.replacen(&peer(&one), &peer(&other), 1);
    all[b_own].1 = other.replacen(&peer(&other), &peer(&one), 1);
    joined(&all)
}

fn swinfo(id: &str, version: &str) -> String {
    format!(
        "part number | MQM9790\nGUID | 0x{}\nfirmware version | {version}\n----\nfan status | OK\n----\n",
        &id[2..]
    )
}

#[test]
fn a_planned_fabric_is_shown_and_healthy() {
    let folder = Folder::new("fabric-shown");
    dump(&folder);
    let path = folder.0.join("topo.txt");
    let path = path.to_str().expect("UTF-8");
    let page = shown(&["show", path]);
    assert!(page.contains("24 in 2 tiers, 8 rails, 2 units"), "{page}");
    assert!(page.contains("64: 64 with 8 adapters"), "{page}");
    assert!(
        page.contains("102 Tb/s of the 102 Tb/s that half of the hosts could send (100 %)"),
        "{page}"
    );
    assert_eq!(shown(&["check", path]), "nothing wrong found\n");
    // The same from a pipe.
    let mut command = ringway(&["fabric", "show", "--json"]);
    command.stdin(std::fs::File::open(path).expect("the dump"));
    let json: serde_json::Value = serde_json::from_str(&finish(&mut command).stdout).expect("JSON");
    assert_eq!(
        (&json["switches"], &json["rails"], &json["hosts"]),
        (&24.into(), &8.into(), &64.into())
    );
}

#[test]
fn a_week_with_three_changes_has_three_findings() {
    let folder = Folder::new("fabric-week");
    let text = dump(&folder);
    let leaf = id_of(&text, "leaf-2-3");
    let changed = swap(&pull(&text, "leaf-1-1", "spine-2"), "node7 mlx5_2", "node7 mlx5_5");
    for (side, topology, version) in
        [("monday", &text, "31.2010.1000"), ("today", &changed, "31.2012.2000")]
    {
        std::fs::create_dir(folder.0.join(side)).expect("a folder");
        std::fs::write(folder.0.join(format!("{side}/topo.txt")), topology).expect("a file");
        std::fs::write(folder.0.join(format!("{side}/firmware.txt")), swinfo(&leaf, version))
            .expect("a file");
    }
    let (old, new) = (folder.0.join("monday"), folder.0.join("today"));
    let (old, new) = (old.to_str().expect("UTF-8"), new.to_str().expect("UTF-8"));
    let done = fabric(&["diff", "--json", old, new]);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let titles: Vec<&str> = json["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|f| f["title"].as_str())
        .collect();
    assert_eq!(
        titles,
        [
            "node7 is re-cabled to a wrong rail (2 cables)",
            "1 link between leaf-1-1 and spine-2 is gone",
            "firmware of 1 switch went from 31.2010.1000 to 31.2012.2000",
        ]
    );
    assert_eq!(fabric(&["diff", old, old]).status.code(), Some(0));
    // The fabric of today is not well, either.
    let done = fabric(&["check", new]);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(
        done.stdout.contains("[fab-02]") && done.stdout.contains("[fab-05]"),
        "{}",
        done.stdout
    );
}

#[test]
fn a_dump_that_was_cut_is_refused_with_its_line() {
    let folder = Folder::new("fabric-cut");
    let text = dump(&folder);
    let cut = folder.0.join("cut.txt");
    std::fs::write(&cut, &text[..text.len() * 2 / 3]).expect("a file");
    let path = cut.to_str().expect("UTF-8");
    for (command, code) in [("check", 3), ("show", 2)] {
        let done = fabric(&[command, path]);
        assert_eq!((done.status.code(), done.stdout.as_str()), (Some(code), ""), "{done:?}");
        assert!(done.stderr.contains("cut.txt:"), "{}", done.stderr);
    }
    assert_eq!(fabric(&["check", "no-such-file"]).status.code(), Some(3));
    assert_eq!(fabric(&["check", "--interval", "0"]).status.code(), Some(3));
}

#[test]
fn plans_fit_or_say_why_not() {
    let page = shown(&["plan", "--gpus", "2048", "--params", "7e9", "--nvlink", "450"]);
    assert!(page.contains("96: 64 leaves, 32 spines"), "{page}");
    assert!(page.contains("= 51.2 TB/s in one direction"), "{page}");
    assert!(page.contains("28.0 GB/s of each GPU"), "{page}");
    let done = fabric(&["plan", "--gpus", "4096", "--tiers", "2"]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(done.stdout.starts_with("It does not fit: 128 leaves"), "{}", done.stdout);
    assert!(
        done.stdout.contains("--layout planes") && done.stdout.contains("--radix 128"),
        "{}",
        done.stdout
    );
    assert!(shown(&["plan", "--rates"]).contains("NDR"));
    assert_eq!(fabric(&["plan", "--gpus", "8", "--radix", "1"]).status.code(), Some(2));
}

#[test]
fn exports_are_written() {
    let folder = Folder::new("fabric-exports");
    dump(&folder);
    let path = folder.0.join("topo.txt");
    let path = path.to_str().expect("UTF-8");
    let starts = [
        ("slurm", "# Slurm topology.conf"),
        ("kubernetes", "# Labels"),
        ("json", "{"),
        ("dot", "graph fabric {"),
        ("svg", "<svg"),
        ("ibnetdiscover", "#\n# Topology file"),
    ];
    for (format, start) in starts {
        let text = shown(&["export", "--format", format, path]);
        assert!(text.starts_with(start), "{format}: {}", &text[..text.len().min(80)]);
    }
    assert!(
        shown(&["export", "--format", "slurm", path])
            .contains("SwitchName=unit1 Nodes=node[1-9],node[10-32]\n")
    );
}
