//! Strangers at the ports of a job: noise, half handshakes, those that somebody between two ranks heard, said again, thousands of
//! connections. The job goes on.

use std::collections::{BTreeMap, HashSet};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::jobs::{as_rank, free_port};
use crate::process::{Folder, marked, ringway, signal, wait_for};

const RANKS: u32 = 3;
const LIMIT: Duration = Duration::from_secs(5);

/// Connections to each port that are gone at once.
const CONNECTIONS: u32 = 10_000;

/// Memory a rank may have taken more, after everything.
const GROWTH_MOST_KIB: u64 = 16 << 10;

/// Hands what comes to one port on to another, and keeps what the dialers said.
struct Relay {
    port: u16,
    said: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Relay {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = listener.local_addr().unwrap().port();
        let said = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&said);
        std::thread::spawn(move || {
            for dialer in listener.incoming().map_while(Result::ok) {
                // The root may not listen yet: the dialer tries again.
                let Ok(root) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
                let (back, forth) = (root.try_clone().unwrap(), dialer.try_clone().unwrap());
                std::thread::spawn(move || pass(back, forth, |_| {}));
                let index = {
                    let mut kept = kept.lock().unwrap();
                    kept.push(Vec::new());
                    kept.len() - 1
                };
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || {
                    pass(dialer, root, |bytes| kept.lock().unwrap()[index].extend(bytes));
                });
            }
        });
        Self { port: own, said }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut keep: impl FnMut(&[u8])) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(got @ 1..) = from.read(&mut bytes) {
        keep(&bytes[..got]);
        if to.write_all(&bytes[..got]).is_err() {
            break;
        }
    }
    let _already_closed = to.shutdown(Shutdown::Write);
}

/// The job's ranks; ended when dropped.
struct Job {
    ranks: Vec<std::process::Child>,
    output: std::path::PathBuf,
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _already_gone = rank.kill();
            let _already_reaped = rank.wait();
        }
    }
}

impl Job {
    /// Lines of the table so far.
    fn rows(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.output).unwrap();
        let rows = text.lines().filter(|line| line.trim_start().starts_with("65536 "));
        rows.map(str::to_owned).collect()
    }

    fn goes_on(&self) {
        let before = self.rows().len();
        wait_for("the job to go on", || (self.rows().len() > before + 1).then_some(()));
    }
}

/// Where a process listens.
fn ports(pid: u32) -> Vec<SocketAddr> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let sockets: HashSet<String> = descriptors
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        })
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, local, _, "0A", ..] = fields[..] else { continue };
            if sockets.contains(fields[9]) {
                let port = u16::from_str_radix(local.rsplit(':').next().unwrap(), 16).unwrap();
                found.push(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn dial(port: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&port, LIMIT).ok()?;
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    Some(stream)
}

/// Sends bytes until they are all out or the other end has had enough.
fn send(port: SocketAddr, bytes: &[u8]) -> usize {
    let Some(mut stream) = dial(port) else { return 0 };
    bytes.chunks(4096).take_while(|few| stream.write_all(few).is_ok()).map(<[u8]>::len).sum()
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Connections that a rank has refused, by reason, as its metrics say.
fn refusals(socket: &Path) -> Option<BTreeMap<String, u64>> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let lines = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("ringway_refused_connections_total{")?;
        let (reason, count) = rest.split_once("reason=\"")?.1.split_once("\"} ")?;
        Some((reason.to_owned(), count.parse().ok()?))
    });
    Some(lines.collect())
}

#[test]
fn strangers_do_a_job_no_harm() {
    let folder = Folder::new("hostile");
    let output = folder.0.join("table");
    let mark = format!("hostile-{}", std::process::id());
    let root = free_port();
    let relay = Relay::to(root);
    let begin = |rank: u32, port: u16| {
        let mut command = ringway(&["perf", "all_reduce", "-b", "64K", "-e", "64K", "-N", "0"]);
        command.args(["-n", "100", "-c", "1", "--transport", "tcp"]);
        as_rank(&mut command, rank, RANKS, &format!("127.0.0.1:{port}"));
        command.env("RINGWAY_TEST_MARK", &mark).env("NCCL_SOCKET_IFNAME", "=lo");
        let metrics = format!("unix:{}/%p.sock", folder.0.display());
        command.env("RINGWAY_METRICS", metrics);
        let file =
            std::fs::File::create(if rank == 0 { output.clone() } else { "/dev/null".into() });
        let log = std::fs::File::create(folder.0.join(format!("log{rank}"))).unwrap();
        command.stdout(file.unwrap()).stderr(log).stdin(Stdio::null()).spawn().unwrap()
    };
    let mut job = Job { ranks: vec![begin(0, root)], output: output.clone() };
    // Who stands between a rank and the root hears whole handshakes, and is let in by none of them.
    job.ranks.push(begin(1, relay.port));
    wait_for("a handshake", || {
        relay.said.lock().unwrap().iter().any(|said| said.len() > 64).then_some(())
    });
    if let Some(mut deceived) = job.ranks.pop() {
        deceived.kill().unwrap();
        deceived.wait().unwrap();
    }
    job.ranks.extend((1..RANKS).map(|rank| begin(rank, root)));
    wait_for("the job to run", || (job.rows().len() > 2).then_some(()));
    let pids: Vec<u32> = job.ranks.iter().map(std::process::Child::id).collect();
    let all: Vec<(u32, SocketAddr)> =
        pids.iter().flat_map(|pid| ports(*pid).into_iter().map(|port| (*pid, port))).collect();
    for pid in &pids {
        assert!(all.iter().any(|(owner, _)| owner == pid), "rank {pid} listens nowhere: {all:?}");
    }
    let before: Vec<(u64, usize)> =
        pids.iter().map(|pid| (resident_kib(*pid), descriptors(*pid))).collect();

    let said: Vec<Vec<u8>> =
        relay.said.lock().unwrap().iter().filter(|said| said.len() > 64).cloned().collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let noise: Vec<u8> = (0..10_000_000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect();
    let mut silent = Vec::new();
    // Connections that the port with the fewest has seen.
    let mut least = u64::MAX;
    for (_, port) in &all {
        // Ten million bytes, by as many connections as it takes.
        let mut rest = &noise[..];
        while !rest.is_empty() {
            rest = &rest[send(*port, rest).max(64 << 10).min(rest.len())..];
        }
        // Everything that ranks said when they came in, again; whole, and cut in half.
        for said in &said {
            send(*port, said);
            if let Some(mut half) = dial(*port) {
                half.write_all(&said[..said.len().min(100) / 2]).unwrap();
                silent.push(half);
            }
        }
        let got_through = (0..CONNECTIONS).filter(|_| dial(*port).is_some()).count() as u64;
        least = least.min(got_through);
        silent.extend((0..100).filter_map(|_| dial(*port)));
    }
    job.goes_on();
    drop(silent);
    job.goes_on();
    for (pid, (memory, open)) in pids.iter().zip(&before) {
        let now = resident_kib(*pid);
        assert!(now < memory + GROWTH_MOST_KIB, "rank {pid}: {memory} KiB, then {now}");
        wait_for("strangers' connections to be closed", || {
            (descriptors(*pid) <= open + 2).then_some(())
        });
    }
    // Every one of them was counted, by what was wrong with it.
    assert!(least > u64::from(CONNECTIONS) / 2, "{least}");
    for pid in &pids {
        let socket = folder.0.join(format!("{pid}.sock"));
        wait_for("all strangers to be counted", || {
            let refused = refusals(&socket)?;
            let of = |reason: &str| refused.get(reason).copied().unwrap_or(0);
            let all: u64 = refused.values().sum();
            let replayed = of("another secret") + of("too many at once");
            let is_all = all >= least && of("not ringway") > 0 && replayed >= said.len() as u64;
            is_all.then_some(())
        });
    }
    let rows = job.rows();
    for row in &rows {
        let words: Vec<&str> = row.split_ascii_whitespace().collect();
        assert_eq!((words.get(8), words.get(12)), (Some(&"0"), Some(&"0")), "{row}");
    }
    for pid in &pids {
        signal("TERM", *pid);
    }
    for rank in &mut job.ranks {
        wait_for("the rank to end", || rank.try_wait().unwrap());
    }
    assert_eq!(marked(&mark), Vec::<u32>::new());
}
