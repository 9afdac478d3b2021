//! Several "hosts": network namespaces joined by a switch, two ranks in each.
//!
//! Namespaces share the machine's boot id, so ranks try to share memory; the abstract sockets by
//! which they would meet belong to a namespace each, so they find that they cannot, unless they
//! are given a common directory.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::jobs::as_rank;
use crate::need;
use crate::process::{Finished, Folder, Running, start, wait_for};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ringway");
const RANKS_PER_HOST: u32 = 2;

/// How hosts are addressed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Hosts on one switch; gone when dropped.
pub(crate) struct Network {
    prefix: String,
    hosts: u32,
    family: Family,
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {said}", args.join(" "));
}

impl Network {
    pub(crate) fn new(hosts: u32, family: Family) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let network = Self { prefix: format!("rw{}n{number}", std::process::id()), hosts, family };
        let switch = network.switch();
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "br0", "up"]);
        for host in 0..hosts {
            let (name, port) = (network.host(host), format!("port{host}"));
            ip(&["netns", "add", &name]);
            ip(&["-n", &name, "link", "set", "lo", "up"]);
            let veth = ["-n", &name, "link", "add", "eth0", "type", "veth", "peer", "name", &port];
            ip(&[&veth[..], &["netns", &switch]].concat());
            ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"]);
            let address = format!("{}/{}", network.address(host), network.prefix_length());
            // No duplicate address detection: the address is usable at once.
            ip(&["-n", &name, "addr", "add", &address, "dev", "eth0", "nodad"]);
            ip(&["-n", &name, "link", "set", "eth0", "up"]);
        }
        network
    }

    pub(crate) fn switch(&self) -> String {
        format!("{}s", self.prefix)
    }

    pub(crate) fn host(&self, host: u32) -> String {
        format!("{}h{host}", self.prefix)
    }

    pub(crate) fn address(&self, host: u32) -> String {
        match self.family {
            Family::V4 => format!("10.77.0.{}", host + 1),
            Family::V6 => format!("fd77::{}", host + 1),
        }
    }

    fn prefix_length(&self) -> u32 {
        if self.family == Family::V4 { 24 } else { 64 }
    }

    /// Runs `ip` inside one host.
    fn on(&self, host: u32, args: &[&str]) {
        ip(&[&["-n", &self.host(host)], args].concat());
    }

    /// Lets nothing pass between two hosts any more: each sends where nobody is.
    pub(crate) fn cut(&self, a: u32, b: u32) {
        for (from, to) in [(a, b), (b, a)] {
            let nobody = ["lladdr", "02:00:00:00:00:fe", "dev", "eth0", "nud", "permanent"];
            self.on(from, &[&["neigh", "replace", &self.address(to)], &nobody[..]].concat());
        }
    }

    /// Takes [`Network::cut`] back.
    pub(crate) fn heal(&self, a: u32, b: u32) {
        for (from, to) in [(a, b), (b, a)] {
            self.on(from, &["neigh", "del", &self.address(to), "dev", "eth0"]);
        }
    }

    /// Runs `tc` inside one host.
    fn shape(&self, host: u32, args: &[&str]) {
        let name = self.host(host);
        let output =
            Command::new("ip").args(["netns", "exec", &name, "tc"]).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tc {}: {said}", args.join(" "));
    }

    /// Lets a host send no faster than `rate`.
    pub(crate) fn throttle(&self, host: u32, rate: &str) {
        let bucket = ["rate", rate, "burst", "32kbit", "latency", "50ms"];
        self.shape(host, &[&["qdisc", "add", "dev", "eth0", "root", "tbf"][..], &bucket].concat());
    }

    /// The commands of two ranks of one job on every host.
    pub(crate) fn commands(&self, args: &[&str], variables: &[(&str, &str)]) -> Vec<Command> {
        let size = self.hosts * RANKS_PER_HOST;
        let root = match self.family {
            Family::V4 => format!("{}:29555", self.address(0)),
            Family::V6 => format!("[{}]:29555", self.address(0)),
        };
        let command = |rank| {
            let mut command = Command::new("ip");
            let host = self.host(rank / RANKS_PER_HOST);
            command.args(["netns", "exec", &host, PROGRAM, "perf"]).args(args);
            as_rank(&mut command, rank, size, &root);
            command.env("RINGWAY_INIT_TIMEOUT", "30s").envs(variables.iter().copied());
            command
        };
        (0..size).map(command).collect()
    }

    /// Starts two ranks of one job on every host.
    pub(crate) fn start(&self, args: &[&str], variables: &[(&str, &str)]) -> Vec<Running> {
        let commands = self.commands(args, variables).into_iter();
        commands.map(|mut command| start(command.env("NCCL_DEBUG", "INFO"))).collect()
    }

    /// Runs a job to its end; all ranks must succeed.
    pub(crate) fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> Vec<Finished> {
        let ends: Vec<Finished> =
            self.start(args, variables).into_iter().map(Running::finish).collect();
        for end in &ends {
            assert_eq!(end.status.code(), Some(0), "{}\n{}", end.stdout, end.stderr);
        }
        assert!(ends[0].stdout.contains("# Out of bounds values : 0 OK"), "{}", ends[0].stdout);
        ends
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let hosts = (0..self.hosts).map(|host| self.host(host));
        for name in hosts.chain([self.switch()]) {
            let _already_gone = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

const SHORT: [&str; 8] = ["all_reduce", "-b", "8", "-e", "256K", "-f", "16", "-n2"];

/// Lines of a rank's log that have all these words.
pub(crate) fn lines<'a>(end: &'a Finished, words: &[&str]) -> Vec<&'a str> {
    end.stderr.lines().filter(|line| words.iter().all(|word| line.contains(word))).collect()
}

#[test]
fn hosts_share_memory_inside_and_use_the_network_between() {
    if !need::namespaces() {
        return;
    }
    for hosts in [2, 3] {
        let network = Network::new(hosts, Family::V4);
        let ends = network.run(&SHORT, &[]);
        assert!(
            ends[0].stdout.contains(&format!("shm inside {hosts} groups")),
            "{}",
            ends[0].stdout
        );
        assert_eq!(lines(&ends[0], &["0[0] -> 1[1]", "via SHM"]).len(), 1, "{}", ends[0].stderr);
        assert_eq!(lines(&ends[0], &["0[0] -> 2[2]", "via SHM"]).len(), 0, "{}", ends[0].stderr);
        assert_eq!(lines(&ends[0], &["NET/Socket : Using [0]eth0:10.77.0.1<0>"]).len(), 1);
        let far = 2 * hosts - 2;
        let far = format!("reaches 1 by shared memory, single copy, {far} over sockets (");
        assert_eq!(lines(&ends[0], &[&far]).len(), 1, "{}", ends[0].stderr);
        let complete = format!("nNodes {hosts} localRanks 2");
        assert_eq!(lines(&ends[0], &[&complete]).len(), 1, "{}", ends[0].stderr);
        // Whoever goes over the network says why it is not memory, and what would help.
        let sockets: Vec<&str> =
            ends.iter().flat_map(|end| lines(end, &["via NET/Socket"])).collect();
        assert!(!sockets.is_empty());
        for line in sockets {
            assert!(line.contains("RINGWAY_SHM_DIR"), "{line}");
        }
    }
}

#[test]
fn a_common_directory_lets_namespaces_share_memory() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(2, Family::V4);
    let folder = Folder::new("hosts-shm");
    let directory = folder.0.display().to_string();
    let ends = network.run(&SHORT, &[("RINGWAY_SHM_DIR", &directory)]);
    assert_eq!(lines(&ends[0], &["via SHM"]).len(), 3, "{}", ends[0].stderr);
    assert_eq!(lines(&ends[0], &["nNodes 1 localRanks 4"]).len(), 1, "{}", ends[0].stderr);
    assert_eq!(folder.names(), Vec::<String>::new());
}

/// As with containers: who cannot see the other's process cannot read its buffers, and says so.
#[test]
fn processes_that_do_not_see_each_other_share_memory_but_not_buffers() {
    if !need::namespaces() {
        return;
    }
    let folder = Folder::new("hosts-pid");
    let directory = folder.0.display().to_string();
    let root = format!("127.0.0.1:{}", crate::jobs::free_port());
    let ranks: Vec<Running> = (0..2)
        .map(|rank| {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child", PROGRAM, "perf"]);
            command.args(["all_gather", "-b", "1M", "-e", "1M", "-n2"]);
            as_rank(&mut command, rank, 2, &root);
            start(command.env("NCCL_DEBUG", "INFO").env("RINGWAY_SHM_DIR", &directory))
        })
        .collect();
    let ends: Vec<Finished> = ranks.into_iter().map(Running::finish).collect();
    for end in &ends {
        assert_eq!(end.status.code(), Some(0), "{}\n{}", end.stdout, end.stderr);
        let said = lines(end, &["reaches 1 by shared memory, no single copy"]);
        assert_eq!(said.len(), 1, "{}", end.stderr);
    }
    let why = "rank 0 cannot read the buffers of rank 1: its process is not visible from here";
    assert_eq!(lines(&ends[0], &[why]).len(), 1, "{}", ends[0].stderr);
}

/// As with docker0: every host has the same address on a bridge that leads nowhere.
#[test]
fn an_interface_that_leads_nowhere_is_passed_over() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(2, Family::V4);
    for host in 0..2 {
        network.on(host, &["link", "add", "docker0", "type", "bridge"]);
        network.on(host, &["addr", "add", "172.17.0.1/16", "dev", "docker0"]);
        network.on(host, &["link", "set", "docker0", "up"]);
        // And one that does not even answer.
        network.on(host, &["link", "add", "dead0", "type", "veth", "peer", "name", "dead1"]);
        network.on(host, &["link", "set", "dead1", "up"]);
        network.on(host, &["addr", "add", &format!("10.99.{host}.1/24"), "dev", "dead0"]);
        network.on(host, &["link", "set", "dead0", "up"]);
    }
    let ends = network.run(&SHORT, &[]);
    let refused: Vec<&str> = ends.iter().flat_map(|end| lines(end, &["docker0"])).collect();
    assert!(!refused.is_empty(), "{}", ends[0].stderr);
    assert!(refused.iter().any(|line| line.contains("refused")), "{refused:#?}");
    for filter in ["eth0", "=eth0", "^docker,dead,lo"] {
        let ends = network.run(&SHORT, &[("NCCL_SOCKET_IFNAME", filter)]);
        for end in &ends {
            assert_eq!(lines(end, &["via NET/Socket", "172.17."]).len(), 0, "{}", end.stderr);
        }
    }
}

impl Network {
    /// A second interface on the first two hosts: on one cable, or on cables that lead nowhere.
    fn second_rail(&self, joined: bool) {
        if joined {
            let far = self.host(1);
            let veth = ["link", "add", "eth1", "type", "veth", "peer", "name", "eth1"];
            self.on(0, &[&veth[..], &["netns", &far]].concat());
        }
        for host in 0..2 {
            if !joined {
                self.on(host, &["link", "add", "eth1", "type", "veth", "peer", "name", "dead1"]);
                self.on(host, &["link", "set", "dead1", "up"]);
            }
            let address = format!("10.78.0.{}/24", host + 1);
            self.on(host, &["addr", "add", &address, "dev", "eth1"]);
            self.on(host, &["link", "set", "eth1", "up"]);
        }
    }
}

#[test]
fn links_are_spread_over_rails() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(2, Family::V4);
    network.second_rail(true);
    let ends = network.run(&SHORT, &[]);
    let sockets: Vec<&str> = ends.iter().flat_map(|end| lines(end, &["via NET/Socket"])).collect();
    assert!(!sockets.is_empty());
    for line in sockets {
        assert!(line.contains("2 connections over 2 rails, eth0 10.77.0."), "{line}");
        assert!(line.contains("eth1 10.78.0."), "{line}");
    }
    // The filter applies, and with it there is one rail again.
    let ends = network.run(&SHORT, &[("NCCL_SOCKET_IFNAME", "eth1,lo")]);
    let sockets: Vec<&str> = ends.iter().flat_map(|end| lines(end, &["via NET/Socket"])).collect();
    assert!(sockets.iter().all(|line| line.contains("2 connections, eth1")), "{sockets:#?}");
}

#[test]
fn rails_that_are_required_and_missing_are_an_error() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(2, Family::V4);
    let wanted = [("RINGWAY_REQUIRE", "rails=2")];
    let fails = |said: &str| {
        let ends: Vec<Finished> =
            network.start(&SHORT, &wanted).into_iter().map(Running::finish).collect();
        assert!(ends.iter().all(|end| end.status.code() == Some(2)), "{}", ends[0].stderr);
        let told = ends.iter().all(|end| end.stderr.contains("RINGWAY_REQUIRE=rails=2"));
        assert!(told && ends[0].stderr.contains(said), "{}", ends[0].stderr);
    };
    fails("is not met: 1 rails lead from rank 0");
    network.second_rail(false);
    fails("is not met: rail eth1 10.78.0.1 to rank");
    network.on(0, &["link", "del", "eth1"]);
    network.on(1, &["link", "del", "eth1"]);
    network.second_rail(true);
    network.run(&SHORT, &wanted);
}

#[test]
fn a_rail_that_is_down_is_given_up_with_a_word() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(2, Family::V4);
    network.second_rail(false);
    let ends = network.run(&SHORT, &[]);
    let said: Vec<&str> =
        ends.iter().flat_map(|end| lines(end, &["rail eth1 10.78.0.1 is not used"])).collect();
    assert!(!said.is_empty(), "{}", ends[0].stderr);
    let sockets: Vec<&str> = ends.iter().flat_map(|end| lines(end, &["via NET/Socket"])).collect();
    assert!(sockets.iter().all(|line| line.contains("2 connections, eth0")), "{sockets:#?}");
}

#[test]
fn hosts_with_ipv6_alone_work() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(2, Family::V6);
    let ends = network.run(&SHORT, &[]);
    let sockets: Vec<&str> = ends.iter().flat_map(|end| lines(end, &["via NET/Socket"])).collect();
    assert!(sockets.iter().all(|line| line.contains("fd77:")), "{sockets:#?}");
    network.run(&SHORT, &[("NCCL_SOCKET_FAMILY", "AF_INET6")]);
}

#[test]
fn a_slow_link_is_slow_and_right() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(2, Family::V4);
    for host in 0..2 {
        let rate = ["rate", "100mbit", "burst", "64kb", "latency", "50ms"];
        network.shape(host, &[&["qdisc", "add", "dev", "eth0", "root", "tbf"][..], &rate].concat());
    }
    let args = ["all_reduce", "-b", "2M", "-e", "2M", "-n", "2", "-c", "1"];
    let started = Instant::now();
    let ends = network.run(&args, &[]);
    // Out of place and in place, check, warm-up and two iterations of at least 1 MiB each way.
    assert!(started.elapsed() > Duration::from_millis(500), "{}", ends[0].stdout);
}

#[test]
fn a_cut_cable_is_named_within_the_deadline() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(2, Family::V4);
    let folder = Folder::new("hosts-cut");
    let log = folder.0.join("log.%p").display().to_string();
    let args = ["all_reduce", "-b", "1M", "-e", "1M", "-N", "0", "-c", "0"];
    let ranks =
        network.start(&args, &[("RINGWAY_TIMEOUT", "4s"), ("NCCL_DEBUG_FILE", log.as_str())]);
    wait_for("the ranks to meet", || {
        let ready = |name: &String| {
            let text = std::fs::read_to_string(folder.0.join(name)).unwrap_or_default();
            text.contains("Init COMPLETE")
        };
        (folder.names().iter().filter(|name| ready(name)).count() == 4).then_some(())
    });
    std::thread::sleep(Duration::from_millis(700));
    ip(&["-n", &network.switch(), "link", "set", "port1", "down"]);
    let cut = Instant::now();
    for (number, mut rank) in ranks.into_iter().enumerate() {
        rank.wait();
        assert!(cut.elapsed() < Duration::from_secs(12), "{:?}", cut.elapsed());
        let done = rank.finish();
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        // Each side names a rank of the other.
        let others = if number < 2 {
            ["rank 2 (host", "rank 3 (host"]
        } else {
            ["rank 0 (host", "rank 1 (host"]
        };
        assert!(
            others.iter().any(|other| done.stderr.contains(other)),
            "{number}: {}",
            done.stderr
        );
    }
}
