//! Random faults on jobs of real processes: kills, stops, pauses of all, cut and healed links, closed sockets, on 3 to 8
//! ranks over shared memory, TCP and both.
//!
//! *Invariant*: whatever happens, every rank that lives ends with an error that names who is at fault and
//! nobody else, or goes on if the fault passes; no rank hangs, and no result that was shown is wrong. Traces of the
//! flight recorder change nothing about that, also where the disk is full.
//!
//! `RINGWAY_CHAOS_ROUNDS` sets the number of rounds, `RINGWAY_SEED` the seed of the first.

mod traces;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::hosts::{Family, Network};
use crate::jobs::{as_rank, free_port};
use crate::need;
use crate::process::{ringway, signal, wait_for};
use traces::Traces;

/// Rounds unless more are asked for.
const ROUNDS: u64 = 12;
/// Jobs at once, where nothing is measured.
const AT_ONCE: usize = 2;
/// How long an operation may take where a fault does not pass.
const TIMEOUT: &str = "3s";
/// A rank that has not ended so long after the fault hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(end)).unwrap()
    }

    fn ranks(&mut self, count: usize, of: u32) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        while found.len() < count {
            found.insert(self.below(of));
        }
        found
    }
}

/// What this machine lets a test do.
#[derive(Clone, Copy)]
struct Means {
    namespaces: bool,
    /// Whether connections of other processes can be closed.
    closes: bool,
    /// Whether a rank can have a disk of its own.
    mounts: bool,
}

impl Means {
    fn find() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let there = listener.accept().unwrap();
        let (from, to) = (here.local_addr().unwrap().port(), there.1.port());
        assert_eq!(from, to);
        close(from, listener.local_addr().unwrap().port());
        here.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let left = here.read(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
        Self { namespaces: need::namespaces(), closes: !left, mounts: need::mounts() }
    }
}

/// Resets the connection between two ports of this host, if the kernel lets us.
fn close(from: u16, to: u16) {
    let filter = format!("( sport = :{from} and dport = :{to} )");
    let _no_such_program = Command::new("ss").args(["-K", "-tn", &filter]).output();
}

/// What goes wrong.
#[derive(Clone, Debug)]
enum Fault {
    /// Processes are killed.
    Kill(BTreeSet<u32>),
    /// A process is stopped for good.
    Stop(u32),
    /// A process is stopped and goes on, milliseconds later.
    Pause(u32, u32),
    /// All processes stand still, for so many milliseconds, as when their machine is paused: longer than an
    /// operation may take.
    Freeze(u32),
    /// Nothing passes between two hosts any more.
    Cut(u32, u32),
    /// Nothing passes between two hosts, for so many milliseconds.
    Flap(u32, u32, u32),
    /// All connections between two ranks are reset.
    Close(u32, u32),
}

impl Fault {
    /// Whether the job goes on.
    fn passes(&self) -> bool {
        matches!(self, Self::Pause(..) | Self::Freeze(..) | Self::Flap(..))
    }
}

type Lines = Arc<Mutex<Vec<(Instant, String)>>>;

fn collect(stream: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let kept = Arc::clone(&lines);
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            kept.lock().unwrap().push((Instant::now(), line));
        }
    });
    lines
}

/// One rank; killed when dropped.
struct Rank {
    child: Child,
    stdout: Lines,
    stderr: Lines,
}

impl Rank {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = collect(child.stdout.take().unwrap());
        let stderr = collect(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    /// Rows of the table, each a result that was checked.
    fn rows(&self) -> usize {
        let lines = self.stdout.lock().unwrap();
        lines.iter().filter(|(_, line)| !line.starts_with('#') && !line.is_empty()).count()
    }

    fn wrong(&self) -> Option<String> {
        let lines = self.stdout.lock().unwrap();
        let wrong = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            !line.starts_with('#') && words.len() == 13 && (words[8] != "0" || words[12] != "0")
        };
        lines.iter().find(|(_, line)| wrong(line)).map(|(_, line)| line.clone())
    }

    /// The error it ended with, without the rank's own name before it, and when it was said.
    fn error(&self) -> Option<(Instant, String)> {
        let lines = self.stderr.lock().unwrap();
        let (at, line) = lines.iter().find(|(_, line)| line.starts_with("ringway perf: "))?;
        let text = line.trim_start_matches("ringway perf: ");
        let text = text.strip_prefix("rank ").map_or(text, |rest| {
            let own = rest.split_once(": ").filter(|(number, _)| number.parse::<u32>().is_ok());
            own.map_or(text, |(_, text)| text)
        });
        Some((*at, text.to_owned()))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}

/// The ranks that an error names with host and process.
fn named(error: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for piece in error.split("rank ").skip(1) {
        if let Some((number, rest)) = piece.split_once(' ')
            && rest.starts_with("(host ")
        {
            found.extend(number.parse::<u32>());
        }
    }
    found
}

/// A job under attack.
struct Job {
    ranks: Vec<Rank>,
    /// Where its ranks are, if not all on this host.
    network: Option<Network>,
    traces: Traces,
    about: String,
}

const ARGS: [&str; 11] = ["all_reduce", "-b", "8", "-e", "1M", "-f", "16", "-n2", "-c", "1", "-N0"];

impl Job {
    fn start(random: &mut Random, means: Means, timeout: Option<&str>) -> Self {
        let kinds = if means.namespaces { 3 } else { 2 };
        let kind = ["shm", "tcp", "both"][random.below(kinds) as usize];
        let mut variables = vec![("RINGWAY_INIT_TIMEOUT", "30s"), ("NCCL_DEBUG", "INFO")];
        variables.extend(timeout.map(|timeout| ("RINGWAY_TIMEOUT", timeout)));
        let (network, commands) = if kind == "both" {
            let network = Network::new(3 + random.below(2), Family::V4);
            let commands = network.commands(&ARGS, &variables);
            (Some(network), commands)
        } else {
            let size = 3 + random.below(6);
            let root = format!("127.0.0.1:{}", free_port());
            let command = |rank| {
                let mut command = ringway(&[&["perf"], &ARGS[..], &["--transport", kind]].concat());
                as_rank(&mut command, rank, size, &root);
                command.envs(variables.iter().copied());
                command
            };
            (None, (0..size).map(command).collect())
        };
        // Drawn aside: a seed's faults stay what they are.
        let traces = Traces::choose(Random(!random.0).below(3), means.mounts);
        let start = |one| Rank::start(&mut traces.of(one));
        let ranks: Vec<Rank> = commands.into_iter().map(start).collect();
        let about = format!("{} ranks, {kind}", ranks.len());
        let job = Self { ranks, network, traces, about };
        wait_for(&format!("{} to work", job.about), || {
            let failed = job.ranks.iter().find_map(Rank::error);
            assert!(
                failed.is_none(),
                "{} before any fault: {failed:?}\n{}",
                job.about,
                job.words()
            );
            (job.ranks[0].rows() > 3).then_some(())
        });
        thread::sleep(Duration::from_millis(u64::from(random.below(200))));
        job
    }

    /// What the ranks have said, for whoever has to find out why they failed.
    fn words(&self) -> String {
        let of = |(rank, one): (usize, &Rank)| {
            let lines = one.stderr.lock().unwrap();
            let lines: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
            format!("rank {rank}:\n{}\n", lines.join("\n"))
        };
        self.ranks.iter().enumerate().map(of).collect()
    }

    fn size(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap()
    }

    fn pid(&self, rank: u32) -> u32 {
        self.ranks[rank as usize].child.id()
    }

    /// The connections between two ranks, by their ports.
    fn connections(&self, a: u32, b: u32) -> Vec<(u16, u16)> {
        let list = Command::new("ss").args(["-tnpH", "state", "established"]).output().unwrap();
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let of = |rank: u32| -> Vec<(u16, u16)> {
            let mark = format!("pid={},", self.pid(rank));
            let port = |word: &str| word.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
            list.lines()
                .filter(|line| line.contains(&mark))
                .map(|line| {
                    let words: Vec<&str> = line.split_whitespace().collect();
                    (port(words[2]), port(words[3]))
                })
                .collect()
        };
        let others = of(b);
        of(a).into_iter().filter(|(here, there)| others.contains(&(*there, *here))).collect()
    }

    /// Who may be named, and who must still end.
    fn inflict(&mut self, fault: &Fault) -> (BTreeSet<u32>, BTreeSet<u32>) {
        let mut ends: BTreeSet<u32> = (0..self.size()).collect();
        let of_hosts = |a: u32, b: u32| (0..8).filter(|r| r / 2 == a || r / 2 == b).collect();
        let pause = |ms: u32| thread::sleep(Duration::from_millis(u64::from(ms)));
        match fault {
            Fault::Kill(victims) => {
                victims.iter().for_each(|rank| signal("KILL", self.pid(*rank)));
                ends.retain(|rank| !victims.contains(rank));
                (victims.clone(), ends)
            }
            Fault::Stop(rank) => {
                signal("STOP", self.pid(*rank));
                ends.remove(rank);
                (BTreeSet::from([*rank]), ends)
            }
            Fault::Pause(rank, ms) => {
                signal("STOP", self.pid(*rank));
                pause(*ms);
                signal("CONT", self.pid(*rank));
                (BTreeSet::new(), BTreeSet::new())
            }
            Fault::Freeze(ms) => {
                (0..self.size()).for_each(|rank| signal("STOP", self.pid(rank)));
                pause(*ms);
                (0..self.size()).for_each(|rank| signal("CONT", self.pid(rank)));
                (BTreeSet::new(), BTreeSet::new())
            }
            Fault::Cut(a, b) => {
                self.network.as_ref().unwrap().cut(*a, *b);
                (of_hosts(*a, *b), ends)
            }
            Fault::Flap(a, b, ms) => {
                let network = self.network.as_ref().unwrap();
                network.cut(*a, *b);
                pause(*ms);
                network.heal(*a, *b);
                (BTreeSet::new(), BTreeSet::new())
            }
            Fault::Close(a, b) => {
                self.connections(*a, *b).iter().for_each(|(here, there)| close(*here, *there));
                (BTreeSet::from([*a, *b]), ends)
            }
        }
    }
}

/// The kind of fault, drawn first: processes are killed below 3.
fn kind(random: &mut Random, means: Means) -> u32 {
    random.below(if means.namespaces { 10 } else { 7 })
}

fn choose(random: &mut Random, means: Means) -> (Fault, Job) {
    let mut kind = kind(random, means);
    if kind == 5 && !means.closes {
        kind = 4;
    }
    let lasting = [3, 6, 7].contains(&kind).then_some(TIMEOUT);
    // Some faults are of one kind of job alone.
    let job = loop {
        let job = Job::start(random, means, lasting);
        let fits = match kind {
            5 => job.about.ends_with("tcp"),
            7.. => job.network.is_some(),
            _ => true,
        };
        if fits {
            break job;
        }
    };
    let size = job.size();
    let fault = match kind {
        0..=1 => Fault::Kill(random.ranks(1, size)),
        2 => Fault::Kill(random.ranks(2, size)),
        3 => Fault::Stop(random.below(size)),
        4 => Fault::Pause(random.below(size), 50 + random.below(900)),
        5 => loop {
            // Not all ranks talk to each other; neighbours do.
            let ends: Vec<u32> = random.ranks(2, size).into_iter().collect();
            if !job.connections(ends[0], ends[1]).is_empty() {
                break Fault::Close(ends[0], ends[1]);
            }
        },
        6 => Fault::Freeze(3_200 + random.below(800)),
        _ => {
            let ends: Vec<u32> = random.ranks(2, size / 2).into_iter().collect();
            match kind {
                7 => Fault::Cut(ends[0], ends[1]),
                _ => Fault::Flap(ends[0], ends[1], 50 + random.below(700)),
            }
        }
    };
    (fault, job)
}

/// One fault; how long the ranks took to say so, if they had to.
#[expect(clippy::print_stdout, reason = "shown where a round fails, or by --nocapture")]
fn round(seed: u64, means: Means) -> Vec<Duration> {
    let mut random = Random(seed);
    let (fault, mut job) = choose(&mut random, means);
    let about = format!("seed {seed}: {fault:?} on {}, {}", job.about, job.traces.about());
    let began = Instant::now();
    let (culprits, ends) = job.inflict(&fault);
    let mut took = Vec::new();
    if fault.passes() {
        let rows = job.ranks[0].rows();
        let going = || {
            let failed = job.ranks.iter().find_map(Rank::error);
            assert!(failed.is_none(), "{about}: {failed:?}\n{}", job.words());
            (job.ranks[0].rows() > rows + 4).then_some(())
        };
        wait_for(&format!("{about} to go on"), going);
    } else {
        let mut errors: BTreeSet<String> = BTreeSet::new();
        for rank in ends {
            let status = loop {
                if let Some(status) = job.ranks[rank as usize].child.try_wait().unwrap() {
                    break status;
                }
                if began.elapsed() > PATIENCE {
                    let why = Command::new(env!("CARGO_BIN_EXE_ringway")).arg("why").output();
                    let why = String::from_utf8_lossy(&why.unwrap().stdout).into_owned();
                    panic!("{about}: rank {rank} hangs\n{why}");
                }
                thread::sleep(Duration::from_millis(2));
            };
            let said = || job.ranks[rank as usize].error();
            let (at, error) = wait_for(&format!("{about}: the words of rank {rank}"), said);
            assert_eq!(status.code(), Some(2), "{about}: rank {rank}: {error}");
            let named = named(&error);
            assert!(!named.is_empty(), "{about}: rank {rank} names nobody: {error}");
            assert!(named.is_subset(&culprits), "{about}: rank {rank} is wrong: {error}");
            took.push(at.duration_since(began));
            errors.insert(error);
        }
        assert!(errors.len() == 1, "{about}: {errors:#?}");
    }
    for rank in &job.ranks {
        assert_eq!(rank.wrong(), None, "{about}");
    }
    job.traces.check(&about, &job.ranks);
    if let Fault::Stop(rank) = fault {
        signal("CONT", job.pid(rank));
    }
    match (&fault, took.iter().max()) {
        (Fault::Kill(_), Some(most)) => println!("{about}: named after {most:?}"),
        _ => println!("{about}"),
    }
    if matches!(fault, Fault::Kill(_)) { took } else { Vec::new() }
}

#[test]
fn whatever_happens_the_true_culprit_is_named_and_nobody_hangs() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("RINGWAY_SEED").unwrap_or(1);
    let end = first + number("RINGWAY_CHAOS_ROUNDS").unwrap_or(ROUNDS);
    let means = Means::find();
    if !means.closes {
        println!("this kernel closes no connections of other processes: such faults are left out");
    }
    let is_kill = |seed: &u64| kind(&mut Random(*seed), means) < 3;
    let (deadly, others): (Vec<u64>, Vec<u64>) = (first..end).partition(is_kill);
    // How long a death takes to be told is measured: one job at a time.
    let mut kills: Vec<Duration> = deadly.into_iter().flat_map(|seed| round(seed, means)).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(seed) = others.get(next.fetch_add(1, Ordering::Relaxed)) {
                    round(*seed, means);
                }
            });
        }
    });
    kills.sort();
    if let (Some(middle), Some(last)) = (kills.get(kills.len() / 2), kills.last()) {
        let p99 = kills[kills.len() * 99 / 100];
        println!("kill to error: median {middle:?}, p99 {p99:?}, most {last:?} of {}", kills.len());
    }
}
