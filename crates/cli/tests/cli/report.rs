//! `ringway report` and `ringway serve` on what the other commands really write.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::process::{Finished, Folder, finish, ringway, signal, start, wait_for};

fn done(args: &[&str], folder: &Folder) -> Finished {
    let done = finish(ringway(args).current_dir(&folder.0));
    assert_eq!(done.status.code(), Some(0), "{args:?}: {done:?}");
    done
}

/// Runs a command and keeps what it prints, whatever its verdict.
fn kept(args: &[&str], folder: &Folder, name: &str) {
    let done = finish(ringway(args).current_dir(&folder.0));
    std::fs::write(folder.0.join(name), done.stdout).unwrap();
}

/// A small measurement of two ranks, with their traces.
fn measured(folder: &Folder, name: &str) {
    let args = [
        "perf",
        "all_reduce",
        "--ranks",
        "2",
        "-b",
        "1K",
        "-e",
        "64K",
        "-f",
        "4",
        "-n",
        "5",
        "-J",
        name,
    ];
    let mut command = ringway(&args);
    command.env("RINGWAY_TRACE_DIR", folder.0.join("traces")).env("RINGWAY_TRACE_ON", "end");
    let done = finish(command.current_dir(&folder.0));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
}

#[test]
fn one_page_holds_what_the_commands_wrote() {
    let folder = Folder::new("report");
    measured(&folder, "old.json");
    measured(&folder, "new.json");
    kept(&["doctor", "--json"], &folder, "doctor.json");
    kept(&["topo", "--json"], &folder, "topo.json");
    kept(&["topo", "--xml"], &folder, "topo.xml");
    kept(&["sim", "collective", "all_reduce", "--gpus", "16", "--json"], &folder, "sim.json");
    done(&["trace", "merge", "traces", "-o", "chrome.json"], &folder);
    done(&["snapshot", "-o", "machine.tar.zst"], &folder);
    let files = [
        "new.json",
        "doctor.json",
        "topo.json",
        "topo.xml",
        "sim.json",
        "traces",
        "chrome.json",
        "machine.tar.zst",
    ];
    let more = ["--against", "old.json", "--title", "Tuesday's <job>", "--threshold", "900"];
    let made = done(&[&["report"], &files[..], &more].concat(), &folder);
    assert!(
        made.stdout.starts_with("wrote report.html (") && made.stdout.lines().count() == 1,
        "{made:?}"
    );
    let page = std::fs::read_to_string(folder.0.join("report.html")).unwrap();
    assert!(page.contains("<h1>Tuesday&#39;s &lt;job&gt;</h1>"));
    for id in ["performance", "doctor", "timeline", "events", "topology", "simulation", "inputs"] {
        assert!(page.contains(&format!("<section id=\"{id}\">")), "{id}");
    }
    for part in [
        "all_reduce, 2 ranks",
        "last run: old.json",
        "what the planner reckoned with",
        "a snapshot",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("=\"http"), "nothing is outside the page");
    // One file for each --against: those that follow are shown.
    let mixed =
        ["report", "--against", "old.json", "--against", "new.json", "new.json", "topo.xml"];
    let mixed = done(&[&mixed[..], &["-o", "-"]].concat(), &folder);
    for part in ["last run: old.json", "last run: new.json", "<section id=\"topology\">"] {
        assert!(mixed.stdout.contains(part), "{part}");
    }
    let printed = done(&["report", "new.json", "-o", "-"], &folder);
    assert!(printed.stdout.starts_with("<!doctype html>") && printed.stdout.ends_with("</html>\n"));
    assert!(!printed.stdout.contains("<section id=\"doctor\">"), "only what was given");
}

#[test]
fn wrong_input_is_named_with_what_would_be_right() {
    let folder = Folder::new("report-wrong");
    std::fs::write(folder.0.join("notes.txt"), "hello").unwrap();
    std::fs::write(folder.0.join("other.json"), "{\"a\": 1}").unwrap();
    std::fs::write(folder.0.join("broken.zst"), b"\x28\xb5\x2f\xfdnothing").unwrap();
    std::fs::create_dir(folder.0.join("empty")).unwrap();
    kept(&["topo", "--xml"], &folder, "topo.xml");
    let table: [(&[&str], &str); 9] = [
        (&[], "nothing to report on; give it files: ringway report perf.json"),
        (&["missing.json"], "cannot read missing.json"),
        (
            &["notes.txt"],
            "notes.txt: it is neither JSON nor XML nor a snapshot; known are: results",
        ),
        (&["other.json"], "other.json: it is JSON of no kind that is known here; known are"),
        (&["broken.zst"], "broken.zst: taken for a snapshot"),
        (&["empty"], "empty holds no traces"),
        (
            &["topo.xml", "--against", "topo.xml"],
            "--against topo.xml: it is a topology file; only results",
        ),
        (&["topo.xml", "-o", "none/report.html"], "cannot write none/report.html"),
        (&["topo.xml", "--threshold", "x"], "not a percentage"),
    ];
    for (args, part) in table {
        let done = finish(ringway(&[&["report"], args].concat()).current_dir(&folder.0));
        assert_eq!((done.status.code(), done.stdout.as_str()), (Some(2), ""), "{args:?}: {done:?}");
        assert!(done.stderr.contains(part), "{args:?}: {}", done.stderr);
    }
    let done = finish(ringway(&["serve", "--port", "1", "--listen", "2"]).current_dir(&folder.0));
    assert!(
        done.status.code() == Some(2) && done.stderr.contains("cannot be used with"),
        "{done:?}"
    );
}

/// Ended when dropped.
struct Serving {
    child: Child,
    address: SocketAddr,
}

impl Serving {
    fn start(folder: &Folder, args: &[&str]) -> Self {
        let mut command = ringway(&[&["serve"], args].concat());
        let mut child = command.current_dir(&folder.0).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().trim_start_matches("serving http://").trim_end_matches('/');
        let address = address.parse().unwrap_or_else(|_| panic!("it says {line:?}"));
        Self { child, address }
    }

    fn ask(&self) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}

#[test]
fn a_job_is_on_the_page_while_it_runs_and_files_as_they_come() {
    let folder = Folder::new("serve");
    let jobs = folder.0.join("jobs");
    std::fs::create_dir(&jobs).unwrap();
    let mut serving =
        Serving::start(&folder, &["late.json", "--jobs", "jobs", "--against", "old.json"]);
    assert!(serving.address.ip().is_loopback());
    let text = serving.ask();
    assert!(text.contains("Content-Type: text/html; charset=utf-8\r\n"), "{text}");
    assert!(
        text.contains("No job tells of itself now") && text.contains("late.json is not there"),
        "{text}"
    );
    let mut command =
        ringway(&["perf", "all_reduce", "--ranks", "2", "-b", "4K", "-e", "4K", "-N", "0"]);
    let job = start(command.env("RINGWAY_METRICS", format!("unix:{}/%h-%p.sock", jobs.display())));
    wait_for("both ranks on the page", || {
        let text = serving.ask();
        text.contains("2 ranks here of 2").then_some(())
    });
    drop(job);
    std::fs::write(folder.0.join("late.json"), "{\"half\": ").unwrap();
    let text = serving.ask();
    assert!(
        text.contains("it is no whole JSON") && text.contains("old.json is not there"),
        "{text}"
    );
    kept(&["doctor", "--json"], &folder, "late.json");
    let text = serving.ask();
    assert!(text.contains("<section id=\"doctor\">") && !text.contains("no whole JSON"), "{text}");
    signal("TERM", serving.child.id());
    let status = wait_for("it to end", || serving.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}
