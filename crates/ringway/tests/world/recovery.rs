//! A job that goes on: ranks in processes of their own, one of which is killed again and again; the others go on
//! without it, then with another process in its seat.
//!
//! `RINGWAY_CHAOS_ROUNDS` sets the number of rounds (four times as many as here).

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ringway::config::{Config, TransportChoice};
use ringway::{Communicator, Error, ReduceOp, UniqueId};

use crate::harness::{Random, seed, watchdog};

const SIZE: u32 = 8;
const ROUNDS: u64 = 3;
/// Longest silence of a job that is well.
const PATIENCE: Duration = Duration::from_secs(60);

/// Set in the processes of the ranks: the seat, and the id to join by.
const SEAT: &str = "RINGWAY_TEST_SEAT";
const ID: &str = "RINGWAY_TEST_ID";

/// Set there too where ranks use sockets alone.
const SOCKETS: &str = "RINGWAY_TEST_SOCKETS";

fn config() -> Config {
    let sockets = std::env::var_os(SOCKETS).is_some();
    let mut config = Config::default();
    config.transport = if sockets { TransportChoice::Tcp } else { TransportChoice::Auto };
    config
}

/// What a rank says, on a line of its own.
fn say(words: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "\n@ {words}").unwrap();
    out.flush().unwrap();
}

/// The sum of the numbers of `ranks`, by all of them.
fn sum(comm: &Communicator, ranks: &BTreeSet<u32>) -> Result<(), Error> {
    assert_eq!(ranks.len(), comm.size() as usize);
    let own = *ranks.iter().nth(comm.rank() as usize).unwrap();
    let mut data = vec![f64::from(own + 1); 1 << 12];
    comm.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
    let expected: f64 = ranks.iter().map(|rank| f64::from(rank + 1)).sum();
    assert!(data.iter().all(|value| *value == expected), "{expected}: {:?}", &data[..4]);
    Ok(())
}

/// One rank: works until somebody dies, goes on without it, and then with another in its seat.
fn work(seat: u32, id: &UniqueId) {
    let all: BTreeSet<u32> = (0..SIZE).collect();
    let mut comm = Communicator::from_unique_id(id, seat, SIZE, config()).unwrap();
    for round in 0_u64.. {
        for _ in 0..3 {
            sum(&comm, &all).unwrap();
        }
        say(&format!("whole {seat}"));
        let error = loop {
            if let Err(error) = sum(&comm, &all) {
                break error;
            }
        };
        let began = Instant::now();
        let dead: Vec<u32> = error.culprits().iter().map(|culprit| culprit.rank).collect();
        let left: BTreeSet<u32> = all.iter().copied().filter(|rank| !dead.contains(rank)).collect();
        let rest = comm.shrink(&dead).unwrap();
        sum(&rest, &left).unwrap();
        say(&format!("shrunk {} {dead:?}", began.elapsed().as_millis()));
        let first = left.first() == Some(&seat);
        let id = first.then(|| Communicator::unique_id(&config()).unwrap());
        if let Some(id) = &id {
            say(&format!("id {} {id}", dead[0]));
        }
        let began = Instant::now();
        let whole = comm.replace(&dead, id.as_ref()).unwrap();
        sum(&whole, &all).unwrap();
        say(&format!("replaced {} {round}", began.elapsed().as_millis()));
        comm = whole;
    }
}

/// The processes of a job, and what they say; killed when dropped.
struct Job {
    ranks: Vec<Child>,
    sockets: bool,
    words: Receiver<String>,
    said: Sender<String>,
    /// Said before it was listened for.
    early: Vec<String>,
}

impl Job {
    fn start((seat, id): (u32, &str), sockets: bool, said: &Sender<String>) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if sockets {
            command.env(SOCKETS, "1");
        }
        let mut child = command
            .args(["--exact", "recovery::a_killed_rank_is_replaced", "--nocapture"])
            .args(["--test-threads=1"])
            .env(SEAT, seat.to_string())
            .env(ID, id)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, said) = (child.stdout.take().unwrap(), said.clone());
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(words) = line.strip_prefix("@ ") {
                    let _nobody_listens = said.send(words.to_owned());
                }
            }
        });
        child
    }

    /// What `count` ranks say after a word. An id that is said meanwhile fills a seat; what else is said is for later,
    /// as ranks do not wait for each other's words.
    fn hear(&mut self, word: &str, count: u32) -> Vec<String> {
        let mut heard = Vec::new();
        let mut later = Vec::new();
        for words in std::mem::take(&mut self.early) {
            Self::sort(word, words, &mut heard, &mut later);
        }
        while heard.len() < count as usize {
            let words = self.words.recv_timeout(PATIENCE).unwrap_or_else(|_| {
                panic!("{} of {count} said {word:?}, then nothing for {PATIENCE:?}", heard.len())
            });
            match words.strip_prefix("id ").and_then(|rest| rest.split_once(' ')) {
                None => Self::sort(word, words, &mut heard, &mut later),
                Some((seat, id)) => self.fill(seat.parse().unwrap(), id),
            }
        }
        self.early = later;
        heard
    }

    fn sort(word: &str, words: String, heard: &mut Vec<String>, later: &mut Vec<String>) {
        match words.strip_prefix(word) {
            Some(rest) => heard.push(rest.trim().to_owned()),
            None => later.push(words),
        }
    }

    /// Puts a new process into a seat.
    fn fill(&mut self, seat: u32, id: &str) {
        let new = Self::start((seat, id), self.sockets, &self.said);
        std::mem::replace(&mut self.ranks[seat as usize], new).wait().unwrap();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _already_gone = rank.kill();
            let _already_reaped = rank.wait();
        }
    }
}

fn milliseconds(heard: &[String]) -> u64 {
    heard.iter().map(|words| words.split(' ').next().unwrap().parse().unwrap()).max().unwrap()
}

#[expect(clippy::print_stdout, reason = "shown by --nocapture")]
fn show(what: &str, mut took: Vec<u64>) {
    took.sort_unstable();
    let (middle, last) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{what}: median {middle} ms, most {last} ms of {}", took.len());
}

/// Within so many milliseconds of a kill those who are left should have their next sum.
const WITHIN_MS: u64 = 500;

/// What it takes is measured: one job at a time.
static TURN: Mutex<()> = Mutex::new(());

#[expect(clippy::print_stdout, reason = "shown by --nocapture")]
fn kill_and_replace(sockets: bool) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let rounds = std::env::var("RINGWAY_CHAOS_ROUNDS").ok();
    let rounds =
        rounds.and_then(|text| text.parse::<u64>().ok()).map_or(ROUNDS, |all| (all / 4).max(1));
    let mut random = Random::new(seed(), 7);
    let id = Communicator::unique_id(&Config::default()).unwrap().to_string();
    let (said, words) = channel();
    let ranks = (0..SIZE).map(|seat| Job::start((seat, &id), sockets, &said)).collect();
    let mut job = Job { ranks, sockets, words, said, early: Vec::new() };
    let (mut shrunk, mut since_kill, mut replaced) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let _watchdog = watchdog("a killed rank is replaced");
        job.hear("whole", SIZE);
        thread::sleep(Duration::from_millis(random.next() % 30));
        let victim = (random.next() % u64::from(SIZE)) as usize;
        let began = Instant::now();
        job.ranks[victim].kill().unwrap();
        let heard = job.hear("shrunk", SIZE - 1);
        since_kill.push(began.elapsed().as_millis() as u64);
        let named = heard.iter().all(|words| words.ends_with(&format!(" [{victim}]")));
        assert!(named, "round {round}: rank {victim} was killed: {heard:?}");
        shrunk.push(milliseconds(&heard));
        replaced.push(milliseconds(&job.hear("replaced", SIZE - 1)));
    }
    job.hear("whole", SIZE);
    let way = if sockets { "sockets" } else { "shared memory" };
    let late = since_kill.iter().filter(|ms| **ms > WITHIN_MS).count();
    println!("{way}: {late} of {rounds} sums later than {WITHIN_MS} ms after the kill");
    show(&format!("{way}: from the error to the next sum of those left"), shrunk);
    show(&format!("{way}: from the kill to that sum, and words of it"), since_kill);
    show(&format!("{way}: to the next sum with another in the seat"), replaced);
}

#[test]
fn a_killed_rank_is_replaced() {
    if let (Ok(seat), Ok(id)) = (std::env::var(SEAT), std::env::var(ID)) {
        // Nobody is left behind by a test that ends as it should not: its end closes this.
        thread::spawn(|| {
            let _end = std::io::stdin().read(&mut [0]);
            std::process::abort();
        });
        return work(seat.parse().unwrap(), &id.parse().unwrap());
    }
    kill_and_replace(false);
}

#[test]
fn a_killed_rank_is_replaced_over_sockets() {
    kill_and_replace(true);
}
