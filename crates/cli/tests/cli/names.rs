//! Pods that are told where rank 0 is by a name which appears late: namespaces as pods, and a DNS server of the test's own
//! that the system's resolver asks.

use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::hosts::{Family, Network, lines};
use crate::need;
use crate::process::{Finished, Running, ringway, start};

/// What the server answers.
#[derive(Clone, Copy)]
enum Answer {
    /// The name does not exist.
    NoSuchName,
    /// The server cannot say.
    Failure,
    /// Host 0.
    Address,
    /// Nothing at all.
    Silence,
}

/// A DNS server in the first host that knows one name; its answers change as time goes by.
struct Server {
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
    folders: Vec<PathBuf>,
}

impl Server {
    /// Serves all hosts of the network; `answers` hold from their second on.
    fn start(network: &Network, hosts: u32, answers: &'static [(u64, Answer)]) -> Self {
        let address = network.address(0);
        let folders: Vec<PathBuf> =
            (0..hosts).map(|host| PathBuf::from("/etc/netns").join(network.host(host))).collect();
        for folder in &folders {
            fs::create_dir_all(folder).unwrap();
            let text = format!(
                "nameserver {address}\nsearch ns.svc.cluster.local\noptions timeout:1 attempts:2 ndots:5\n"
            );
            fs::write(folder.join("resolv.conf"), text).unwrap();
        }
        let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (name, done, count) = (network.host(0), Arc::clone(&stop), Arc::clone(&refused));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // Only this thread moves; its socket stays where it was made.
            let space = fs::File::open(format!("/run/netns/{name}")).unwrap();
            rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&space),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
            .unwrap();
            let socket = UdpSocket::bind((address.as_str(), 53)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            ready.send(()).unwrap();
            let began = Instant::now();
            let mut query = [0; 512];
            while !done.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut query) else { continue };
                let now = began.elapsed().as_secs();
                let (_, answer) = answers.iter().rev().find(|(since, _)| now >= *since).unwrap();
                if let Some(reply) = reply(&query[..length], *answer) {
                    if matches!(answer, Answer::NoSuchName | Answer::Failure) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    socket.send_to(&reply, from).unwrap();
                }
            }
        });
        is_ready.recv_timeout(Duration::from_secs(30)).unwrap();
        Self { stop, refused, thread: Some(thread), folders }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _panicked = self.thread.take().map(JoinHandle::join);
        for folder in &self.folders {
            let _already_gone = fs::remove_dir_all(folder);
        }
    }
}

/// The reply to a question; host 0's address to those who ask for IPv4.
fn reply(query: &[u8], answer: Answer) -> Option<Vec<u8>> {
    let name_bytes = query.get(12..)?.iter().position(|byte| *byte == 0)? + 1;
    let question = query.get(12..12 + name_bytes + 4)?;
    let is_v4 = question[name_bytes..name_bytes + 2] == [0, 1];
    let (code, answers) = match answer {
        Answer::NoSuchName => (3, 0),
        Answer::Failure => (2, 0),
        Answer::Address => (0, u8::from(is_v4)),
        Answer::Silence => return None,
    };
    let mut reply = query[..2].to_vec();
    reply.extend([0x85, 0x80 | code, 0, 1, 0, answers, 0, 0, 0, 0]);
    reply.extend(question);
    if answers == 1 {
        // The name of the question, IPv4, Internet, for one second.
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 10, 77, 0, 1]);
    }
    Some(reply)
}

const PODS: u32 = 2;
const SHORT: [&str; 8] = ["perf", "all_reduce", "-b", "8", "-e", "64K", "-n2", "-c1"];

/// The program in a pod.
fn in_pod(network: &Network, pod: u32) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &network.host(pod), env!("CARGO_BIN_EXE_ringway")]);
    for (name, value) in ringway(&[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(SHORT).env("NCCL_DEBUG", "INFO").env("RINGWAY_SECRET", "the secret of these pods");
    command
}

/// Four ranks in two pods; all must be right.
fn runs(
    network: &Network,
    variables: impl Fn(u32) -> Vec<(&'static str, String)>,
) -> Vec<Finished> {
    let ranks: Vec<Running> = (0..2 * PODS)
        .map(|rank| {
            let mut command = in_pod(network, rank / 2);
            command
                .env("RINGWAY_LOCAL_SIZE", "2")
                .env("RINGWAY_LOCAL_RANK", (rank % 2).to_string());
            start(command.envs(variables(rank / 2)))
        })
        .collect();
    let ends: Vec<Finished> = ranks.into_iter().map(Running::finish).collect();
    for end in &ends {
        assert_eq!(end.status.code(), Some(0), "{}\n{}", end.stdout, end.stderr);
    }
    assert!(ends[0].stdout.contains("# Out of bounds values : 0 OK"), "{}", ends[0].stdout);
    assert!(ends[0].stdout.contains("#  Rank  3 Group"), "{}", ends[0].stdout);
    let far: Vec<&str> = ends.iter().flat_map(|end| lines(end, &["via NET/Socket"])).collect();
    assert!(!far.is_empty() && far.iter().all(|line| line.contains("RINGWAY_SHM_DIR")), "{far:#?}");
    ends
}

#[test]
fn an_indexed_job_waits_for_the_name_of_its_first_pod() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(PODS, Family::V4);
    let answers = &[(0, Answer::NoSuchName), (4, Answer::Failure), (7, Answer::Address)];
    let server = Server::start(&network, PODS, answers);
    let ends = runs(&network, |pod| {
        vec![
            ("JOB_COMPLETION_INDEX", pod.to_string()),
            ("HOSTNAME", format!("bench-{pod}")),
            ("RINGWAY_SIZE", "4".to_owned()),
            ("RINGWAY_ROOT", "bench-0.bench:29400".to_owned()),
        ]
    });
    assert!(server.refused.load(Ordering::Relaxed) > 3, "it was asked for again");
    for end in &ends[1..] {
        let said = lines(end, &["waits for the root's name", "bench-0.bench"]);
        assert!(!said.is_empty(), "{}", end.stderr);
    }
}

#[test]
fn a_leader_worker_set_waits_for_its_leader() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(PODS, Family::V4);
    let server = Server::start(&network, PODS, &[(0, Answer::NoSuchName), (2, Answer::Address)]);
    runs(&network, |pod| {
        vec![
            ("LWS_WORKER_INDEX", pod.to_string()),
            ("LWS_GROUP_SIZE", PODS.to_string()),
            ("LWS_LEADER_ADDRESS", "serve-0.serve.ns".to_owned()),
        ]
    });
    assert!(server.refused.load(Ordering::Relaxed) > 0, "the name was not there at first");
}

#[test]
fn a_name_that_never_appears_is_an_error_at_the_deadline() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(1, Family::V4);
    let cases: [(&'static [(u64, Answer)], &str); 3] = [
        (&[(0, Answer::NoSuchName)], "Name or service not known"),
        (&[(0, Answer::Failure)], "Temporary failure in name resolution"),
        // The resolver gives up later than the rank does.
        (&[(0, Answer::Silence)], "the resolver has not answered yet"),
    ];
    for (answers, cause) in cases {
        let _server = Server::start(&network, 1, answers);
        let mut command = in_pod(&network, 0);
        command.env("JOB_COMPLETION_INDEX", "1").env("RINGWAY_SIZE", "2");
        command.env("RINGWAY_ROOT", "bench-0.bench:29400").env("RINGWAY_INIT_TIMEOUT", "1500ms");
        let done = start(&mut command).finish();
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        for part in [cause, "1.5 s", "publishNotReadyAddresses", "RINGWAY_INIT_TIMEOUT"] {
            assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
        }
        assert!(done.took < Duration::from_secs(15), "{:?}", done.took);
    }
}
