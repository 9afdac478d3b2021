//! `ringway doctor` and `ringway snapshot` as a user meets them.

use std::fs;
use std::path::PathBuf;

use ringway::testing::machine::MachineTree;

use crate::process::{finish, ringway};

/// A folder that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringway-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_list_and_an_explanation() {
    let list = finish(&mut ringway(&["doctor", "--list"]));
    assert_eq!(list.status.code(), Some(0));
    assert!(list.stdout.contains("pci-05") && list.stdout.lines().count() > 100, "{}", list.stdout);
    assert!(list.stdout.lines().all(|line| line.chars().count() <= 100), "{}", list.stdout);
    let one = finish(&mut ringway(&["doctor", "--explain", "pci-05"]));
    assert!(one.stdout.contains("setpci") && one.stdout.contains("ACS"), "{}", one.stdout);
}

#[test]
fn what_cannot_be_done_is_3_and_says_why() {
    for (args, why) in [
        (&["doctor", "--explain", "pci-99"][..], "--list"),
        (&["doctor", "--only", "nonsense"], "the groups are"),
        (&["doctor", "/no/such/file.tar.zst"], "cannot read /no/such/file.tar.zst"),
        (&["doctor", "--log", "x", "--list"], "cannot be used with"),
        (&["doctor", "/"], ""),
    ] {
        let done = finish(&mut ringway(args));
        if args == ["doctor", "/"] {
            assert!(done.status.code() < Some(3), "{}", done.stderr);
            continue;
        }
        assert_eq!(done.status.code(), Some(3), "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(why), "{args:?}: {}", done.stderr);
    }
}

#[test]
fn this_machine_gives_a_verdict_and_valid_json() {
    let done = finish(&mut ringway(&["doctor", "--json"]));
    assert!(done.status.code() < Some(3), "{}", done.stderr);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(json["subject"], "host");
    assert!(json["findings"].as_array().unwrap().len() > 10);
    assert!(!done.stdout.contains('\u{1b}'));
}

#[test]
fn a_fault_in_a_folder_is_found_and_a_snapshot_of_it_says_the_same() {
    let folder = Folder::new("doctor");
    folder.put("tree/proc/sys/kernel/hostname", "node7\n");
    folder.put("tree/proc/sys/net/ipv4/tcp_window_scaling", "0\n");
    folder.put("tree/proc/sys/kernel/numa_balancing", "0\n");
    let tree = folder.text("tree");
    let direct = finish(&mut ringway(&["doctor", "--only", "tcp-window", &tree]));
    assert_eq!(direct.status.code(), Some(2), "{}", direct.stderr);
    assert!(direct.stdout.contains("TCP windows do not scale [tcp-window]"), "{}", direct.stdout);
    assert!(direct.stdout.contains("sysctl -w net.ipv4.tcp_window_scaling=1"), "{}", direct.stdout);
    let file = folder.text("node7.tar.zst");
    let taken = finish(&mut ringway(&["snapshot", "--root", &tree, "-o", &file]));
    assert_eq!(taken.status.code(), Some(0), "{}", taken.stderr);
    let packed = finish(&mut ringway(&["doctor", "--only", "tcp-window", &file]));
    assert_eq!(packed.stdout, direct.stdout);
    // Two of them are a fleet, and a page is written.
    let page = folder.text("page.html");
    let both = finish(&mut ringway(&["doctor", "--html", &page, &file, &tree]));
    assert_eq!(both.status.code(), Some(2), "{}", both.stderr);
    assert!(both.stdout.contains("(on 2 of 2 machines)"), "{}", both.stdout);
    assert!(both.stdout.contains("2 machines compared, 0 differences"), "{}", both.stdout);
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("tcp-window") && !html.contains("<script"), "{html}");
    // Neither GPU nor NIC: nothing to draw.
    assert!(!html.contains("<svg") && !html.contains("Topology"), "{html}");
}

#[test]
fn the_page_of_a_machine_shows_its_topology() {
    let tree = MachineTree::eight_gpus().unwrap();
    let folder = Folder::new("doctor-page");
    let (root, page) = (tree.folder().to_str().unwrap(), folder.text("page.html"));
    let file = folder.text("hgx-0.tar.zst");
    let taken = finish(&mut ringway(&["snapshot", "--root", root, "-o", &file]));
    assert_eq!(taken.status.code(), Some(0), "{}", taken.stderr);
    let shown = |machines: &[&str]| {
        let done = finish(&mut ringway(&[&["doctor", "--html", &page][..], machines].concat()));
        assert!(done.status.code() < Some(3), "{}", done.stderr);
        fs::read_to_string(&page).unwrap()
    };
    let direct = shown(&[root]);
    assert!(direct.contains("<h2>Topology</h2>") && direct.contains("mlx5_7"), "{direct}");
    assert_eq!(direct.matches("<svg ").count(), 1);
    assert!(!direct.contains("http://"), "{direct}");
    assert_eq!(shown(&[&file]), direct);
    // Machines that look the same are drawn once.
    let fleet = shown(&[root, &file]);
    assert_eq!(fleet.matches("<svg ").count(), 1);
    assert!(fleet.contains("<figcaption>hgx-0, hgx-0#2</figcaption>"), "{fleet}");
}

#[test]
fn counters_are_judged_by_how_they_grew() {
    // This machine, whatever it counts.
    let args = ["doctor", "--interval", "1", "--only", "counters,pci-09", "--json"];
    let done = finish(&mut ringway(&args));
    assert!(done.status.code() < Some(3), "{}", done.stderr);
    assert!(done.stdout.contains("as they grew in "), "{}", done.stdout);
    let done = finish(&mut ringway(&["doctor", "--interval", "0"]));
    assert_eq!(done.status.code(), Some(3), "{}", done.stderr);
    // Two copies of another, a minute apart, and its counters far from zero in both.
    let folder = Folder::new("doctor-rates");
    let look = |name: &str, second: u64, errors: u64| {
        let port = format!("{name}/sys/class/infiniband/mlx5_0/ports/1");
        for (path, text) in [
            (
                format!("{name}/manifest.json"),
                format!("{{\"time_unix_s\": {}}}", 1_000_000 + second),
            ),
            (format!("{name}/proc/sys/kernel/hostname"), "node7".to_owned()),
            (format!("{name}/proc/uptime"), format!("{}.5 1.0", 5000 + second)),
            (format!("{name}/sys/class/infiniband/mlx5_0/node_guid"), "1:2:3:4".to_owned()),
            (format!("{port}/state"), "4: ACTIVE".to_owned()),
            (format!("{port}/link_layer"), "InfiniBand".to_owned()),
            (format!("{port}/counters/symbol_error"), errors.to_string()),
        ] {
            folder.put(&path, &text);
        }
        folder.text(name)
    };
    let (first, quiet, worse) =
        (look("first", 0, 5000), look("quiet", 60, 5000), look("worse", 60, 5004));
    let only = ["doctor", "--only", "ctr-01"];
    let of = |machines: &[&str]| finish(&mut ringway(&[&only[..], machines].concat()));
    let alone = of(&[&first]);
    assert_eq!(alone.status.code(), Some(2), "{}", alone.stdout);
    assert!(alone.stdout.contains("5000 since boot"), "{}", alone.stdout);
    let twice = of(&[&quiet, &first]);
    assert_eq!((twice.status.code(), twice.stdout.as_str()), (Some(0), "nothing wrong found\n"));
    let grown = of(&[&first, &worse]);
    assert_eq!(grown.status.code(), Some(1), "{}", grown.stdout);
    let text = grown.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("4 in 60.0 s (5004 since boot)"), "{text}");
}
