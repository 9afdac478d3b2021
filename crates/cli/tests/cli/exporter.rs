//! The exporter as a process: a job beside it, wrong arguments, rude askers, SIGTERM.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::process::{Folder, finish, ringway, signal, start, wait_for};

/// Ended when dropped.
struct Serving {
    child: Child,
    address: SocketAddr,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let mut command = ringway(&["exporter", "--listen", "127.0.0.1:0", "--doctor-every", "0"]);
        let mut child = command.args(args).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("it says {line:?}")).parse().unwrap();
        Self { child, address }
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn metrics(&self) -> String {
        self.ask("GET /metrics HTTP/1.1\r\n\r\n")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}

#[test]
fn a_jobs_metrics_come_and_go_with_it() {
    let folder = Folder::new("exporter");
    let jobs = folder.0.to_str().unwrap();
    let mut serving = Serving::start(&["--jobs", jobs]);
    assert!(!serving.metrics().contains("ringway_operations_total"));
    let mut command =
        ringway(&["perf", "all_reduce", "--ranks", "2", "-b", "4K", "-e", "4K", "-N", "0"]);
    let job = start(command.env("RINGWAY_METRICS", format!("unix:{jobs}/%h-%p.sock")));
    let text = wait_for("both ranks' metrics", || {
        let text = serving.metrics();
        let ranks = (0..2).all(|rank| {
            let labels = format!("rank=\"{rank}\",collective=\"all_reduce\"}}");
            text.lines().any(|l| l.starts_with("ringway_operations_total{") && l.contains(&labels))
        });
        ranks.then_some(text)
    });
    assert_eq!(text.matches("# TYPE ringway_operations_total").count(), 1);
    assert!(text.contains("ringway_exporter_job_processes{state=\"failed\"} 0"), "{text}");
    signal("INT", job.pid());
    job.finish();
    wait_for("them to go", || {
        (!serving.metrics().contains("ringway_operations_total")).then_some(())
    });
    // Whatever is asked, the next one is answered.
    assert!(serving.ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(serving.ask("GET /../etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    let _silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(serving.address).unwrap()).collect();
    let mut endless = TcpStream::connect(serving.address).unwrap();
    let _sent_away = endless.write_all(&vec![b'x'; 1 << 20]);
    assert!(serving.metrics().starts_with("HTTP/1.1 200 OK"));
    signal("TERM", serving.child.id());
    let status = wait_for("it to end", || serving.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

#[test]
fn wrong_arguments_say_what_is_right() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|place| (place.to_string(), taken)).unwrap();
    for (args, words) in [
        (vec!["--listen", "here"], "address:port"),
        (vec!["--listen", &taken.0], "--listen takes another"),
        (vec!["--root", "/nonexistent"], "/nonexistent"),
        (vec!["--root", "/dev"], "holds neither sys nor proc"),
        (vec!["--doctor-every", "soon"], "not a time"),
        (vec!["--gpu-every", "0"], "--nvml off"),
        (vec!["--nvml", "maybe"], "maybe"),
    ] {
        let done = finish(ringway(&["exporter"]).args(&args));
        assert_eq!(done.status.code(), Some(2), "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(words), "{args:?}: {}", done.stderr);
    }
}

#[test]
fn once_prints_the_page_and_ends() {
    let done = finish(&mut ringway(&["exporter", "--once", "--jobs", "/nonexistent"]));
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    for name in ["ringway_node_info{", "ringway_node_doctor_check{", "ringway_exporter_info{"] {
        assert!(done.stdout.contains(name), "{}", done.stdout);
    }
}
