//! What the flight recorder and metrics cost: the same calls with them and without, in turns.
//!
//!     cargo bench -p ringway --bench recorder             two ranks, 8 B and 1 MiB
//!     cargo bench -p ringway --bench recorder -- 4 20     four ranks, 20 s for each size
//!
//! Ranks are threads. In each of several worlds there are four communicators of the same ranks: one with the recorder and metrics,
//! one with the recorder and two without. A sample is about a millisecond of back-to-back all_reduces on one of them; a round is a sample
//! of each, another one first each time. What is compared are two samples of one round, so that whatever else happens on the
//! machine meets both. The ratio of the two that have no recorder says what the method itself can tell apart. The communicators
//! of each world are made in another order, as where memory lies counts too.

use std::io::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ringway::bootstrap::Options;
use ringway::config::{Config, Environment};
use ringway::{Communicator, ReduceOp, UniqueId};

/// Worlds for each size: new memory, new threads.
const WORLDS: usize = 6;

/// Length of a sample.
const SAMPLE: Duration = Duration::from_millis(1);

const ARMS: usize = 4;

/// Settings of each arm: the recorder and metrics, the recorder alone, twice neither.
const SETTINGS: [&[(&str, &str)]; ARMS] = [
    &[("RINGWAY_RECORDER", "2048"), ("RINGWAY_METRICS", "19400")],
    &[("RINGWAY_RECORDER", "2048")],
    &[("RINGWAY_RECORDER", "0")],
    &[("RINGWAY_RECORDER", "0")],
];

/// The arm that others are compared with.
const OFF: usize = 2;

/// One line of the table.
macro_rules! say {
    ($($text:tt)*) => {
        writeln!(std::io::stdout(), $($text)*).expect("somebody reads the table")
    };
}

fn main() {
    // Cargo itself adds `--bench`.
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let ranks = numbers.first().map_or(2, |ranks| u32::try_from(*ranks).unwrap_or(2).clamp(2, 64));
    let time = Duration::from_secs(numbers.get(1).copied().unwrap_or(6).max(1));
    say!("# {ranks} ranks, threads of one process; medians of rounds, with their 95 % intervals");
    say!(
        "#{:>9} {:>8} {:>12} {:>28} {:>28} {:>28}",
        "bytes",
        "rounds",
        "off us",
        "both / off",
        "recorder / off",
        "off / off"
    );
    for bytes in [8_usize, 1 << 20] {
        let mut rounds = Vec::new();
        for turn in 0..WORLDS {
            rounds.extend(world(ranks, bytes, turn, time / u32::try_from(WORLDS).unwrap_or(1)));
        }
        let median_us = interval(rounds.iter().map(|round| round[OFF]).collect()).1 * 1e6;
        let ratio = |above: usize| {
            let ratios = rounds.iter().map(|round| round[above] / round[OFF]).collect();
            let (low, middle, high) = interval(ratios);
            format!("{middle:.4} ({low:.4} to {high:.4})")
        };
        say!(
            "{bytes:>10} {:>8} {median_us:>12.3} {:>28} {:>28} {:>28}",
            rounds.len(),
            ratio(0),
            ratio(1),
            ratio(3)
        );
    }
}

/// Seconds that a call took in each round, by arm.
fn world(ranks: u32, bytes: usize, turn: usize, time: Duration) -> Vec<[f64; ARMS]> {
    let ids: Vec<UniqueId> = (0..ARMS)
        .map(|_| UniqueId::generate(&Options::default()).expect("this host has a loopback address"))
        .collect();
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let (ids, found) = (&ids, &found);
            scope.spawn(move || {
                let rounds = measure(ids, (rank, ranks), bytes, (turn, time));
                if rank == 0 {
                    *found.lock().expect("only rank 0 takes it") = rounds;
                }
            });
        }
    });
    found.into_inner().expect("rank 0 has left")
}

fn measure(
    ids: &[UniqueId],
    (rank, ranks): (u32, u32),
    bytes: usize,
    (turn, time): (usize, Duration),
) -> Vec<[f64; ARMS]> {
    let mut arms: Vec<(usize, Communicator)> = (0..ARMS)
        .map(|at| {
            let arm = (at + turn) % ARMS;
            let config = Config::load(&Environment::new(SETTINGS[arm].iter().copied()));
            let comm = Communicator::from_unique_id(&ids[arm], rank, ranks, config);
            (arm, comm.expect("ranks of one process meet"))
        })
        .collect();
    arms.sort_by_key(|(arm, _)| *arm);
    let comms: Vec<Communicator> = arms.into_iter().map(|(_, comm)| comm).collect();
    let mut values = vec![1.0_f32; bytes / 4];
    let calls = calibrate(&comms[OFF], &mut values);
    let mut sample = |comm: &Communicator| {
        comm.barrier().expect("nobody leaves");
        let started = Instant::now();
        for _ in 0..calls {
            comm.all_reduce_in_place(&mut values, ReduceOp::Max).expect("nobody leaves");
        }
        started.elapsed().as_secs_f64() / f64::from(calls)
    };
    for comm in &comms {
        (0..10).for_each(|_| _ = sample(comm));
    }
    let mut rounds = Vec::new();
    let started = Instant::now();
    for round in 0.. {
        let mut found = [0.0; ARMS];
        // Another one first each time, and backwards every other time.
        for at in 0..ARMS {
            let turned = if round % 2 == 0 { at } else { ARMS - 1 - at };
            let arm = (turned + round / 2) % ARMS;
            found[arm] = sample(&comms[arm]);
        }
        rounds.push(found);
        let mut over = [i32::from(started.elapsed() > time)];
        comms[OFF].broadcast(&mut over, 0).expect("nobody leaves");
        if over[0] == 1 {
            break;
        }
    }
    rounds
}

/// Calls of a sample: rank 0's count.
fn calibrate(comm: &Communicator, values: &mut [f32]) -> u32 {
    (0..50).for_each(|_| comm.all_reduce_in_place(values, ReduceOp::Max).expect("nobody leaves"));
    let started = Instant::now();
    (0..50).for_each(|_| comm.all_reduce_in_place(values, ReduceOp::Max).expect("nobody leaves"));
    let each = (started.elapsed() / 50).max(Duration::from_nanos(100));
    let calls = u32::try_from(SAMPLE.as_nanos() / each.as_nanos()).unwrap_or(1);
    let mut agreed = [calls.clamp(1, 10_000)];
    comm.broadcast(&mut agreed, 0).expect("nobody leaves");
    agreed[0]
}

/// The median, between the ends of its 95 % interval.
fn interval(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    // Of a median's rank the deviation is half the root of the count.
    let half = n.isqrt() + 1;
    let at = |index: usize| values.get(index.min(n.saturating_sub(1))).copied().unwrap_or(f64::NAN);
    (at((n / 2).saturating_sub(half)), at(n / 2), at(n / 2 + half))
}
