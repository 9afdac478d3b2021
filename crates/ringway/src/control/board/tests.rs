//! Boards in one thread, on a simulated network with seeded delays, kills, partitions, pauses, lost connections and
//! clock offsets.
//!
//! `RINGWAY_SEED=n cargo test -p ringway --lib control::board` replays one seed, `RINGWAY_SEEDS=100000` runs so many,
//! `RINGWAY_SEEDS=2000..3000` those.

use std::cmp::Reverse;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::control::decide::CULPRITS_MAX;
use crate::control::neighbours;
use crate::control::signature::Signature;
use crate::control::signature::tests::all_reduce;
use crate::error::ErrorKind;

mod network;

use network::{Event, Network, Random, identities};

fn culprits(error: &Error) -> BTreeSet<Rank> {
    error.culprits().iter().map(|identity| identity.rank).collect()
}

/// As many of these as an error carries.
fn carried(ranks: &BTreeSet<Rank>) -> BTreeSet<Rank> {
    ranks.iter().copied().take(CULPRITS_MAX).collect()
}

fn kill_some(
    network: &mut Network,
    random: &mut Random,
    most: u64,
    within_us: u64,
) -> BTreeSet<Rank> {
    let n = network.n();
    let count = (1 + random.below(most)).min(u64::from(n) - 1);
    let killed = random.ranks(n, usize::try_from(count).unwrap());
    for &rank in &killed {
        network.at(random.below(within_us), Event::Kill { rank });
    }
    killed
}

/// Most seeds have few ranks, some have a thousand: a verdict among them takes tens of millions of messages.
fn ranks_most(seed: u64) -> u32 {
    match seed {
        _ if seed % 10_000 == 9_999 => 1_000,
        _ if seed % 1_000 == 999 => 300,
        _ if seed % 100 == 99 => 100,
        _ => 33,
    }
}

/// A failure that some rank notices: a death, or deadlines because of a rank that does not come.
fn fail_somehow(network: &mut Network, random: &mut Random) {
    let n = network.n();
    if random.below(2) == 0 {
        kill_some(network, random, 2, 100_000);
        return;
    }
    for _ in 0..1 + random.below(3) {
        let report = Report::Deadline { sequence: 1, waited_ms: 9, waiting_on: None };
        network.report(random.below(100_000), random.rank(n), report);
    }
}

fn one_seed(seed: u64) {
    let mut random = Random(seed ^ 0x5eed);
    let n = 1 + random.rank(ranks_most(seed));
    let mut network = Network::new(n, seed);
    network.all_begin(0);
    network.journals.iter().for_each(|j| j.end(0));
    match random.below(13) {
        0 if n > 1 => {
            // Deaths, close together or not.
            network.all_begin(1);
            let killed = kill_some(&mut network, &mut random, 3, 60_000);
            network.run();
            let error = network.agreed();
            assert_eq!(error.kind(), ErrorKind::Remote);
            assert!(!error.culprits().is_empty() && culprits(&error).is_subset(&killed), "{error}");
        }
        1 if n > 2 => {
            // A minority calls something else; one or both sides notice.
            let odd = usize::try_from(1 + random.below((u64::from(n) - 1) / 2)).unwrap();
            let odd = random.ranks(n, odd);
            network.all_begin(1);
            for &rank in &odd {
                network.journals[rank as usize].begin(&all_reduce(1, 1000));
            }
            for &rank in &odd {
                let with = (rank + 1) % n;
                if !odd.contains(&with) {
                    let time = random.below(3_000);
                    network.report(time, with, Report::Mismatch { sequence: 1, with: rank });
                }
            }
            network.run();
            let error = network.agreed();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            if network.delay_us_max < 20_000 {
                assert_eq!(culprits(&error), carried(&odd), "{error}");
            }
        }
        2 => {
            // Some ranks never enter; the others' deadlines pass.
            let absent = random.below(u64::from(n));
            let absent = random.ranks(n, usize::try_from(absent).unwrap());
            for rank in (0..n).filter(|r| !absent.contains(r)) {
                network.journals[rank as usize].begin(&all_reduce(1, 1024));
                let waited_ms = 1000 + random.below(5);
                let report = Report::Deadline { sequence: 1, waited_ms, waiting_on: None };
                network.report(random.below(8_000), rank, report);
            }
            network.run();
            let error = network.agreed();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            if network.delay_us_max < 20_000 {
                assert_eq!(culprits(&error), carried(&absent), "{error}");
            }
        }
        3 if n > 1 => {
            // Everything at once, deaths in the middle of the agreement.
            network.all_begin(1);
            let killed = kill_some(&mut network, &mut random, 3, 250_000);
            for _ in 0..1 + random.below(4) {
                let rank = random.rank(n);
                network.journals[rank as usize].begin(&all_reduce(1, 7));
                let other = random.rank(n);
                let report = match random.below(5) {
                    0 => Report::Mismatch { sequence: random.below(3), with: other },
                    1 => Report::LinkBroken { peer: other, cause: "reset".into() },
                    2 => Report::Aborted { rank, reason: "enough".into() },
                    3 => Report::Left { rank: other },
                    _ => Report::Deadline { sequence: 1, waited_ms: 9, waiting_on: Some(other) },
                };
                network.report(random.below(200_000), rank, report);
            }
            network.run();
            let survivors = (0..n).filter(|r| !killed.contains(r)).count();
            assert_eq!(survivors, network.ended.iter().filter(|e| e.is_none()).count());
            network.agreed();
        }
        4 if n > 1 => {
            // A goodbye is no error, even of several; a later abort still reaches everyone.
            let most = if n > 12 { 3 } else { 1 };
            let count = usize::try_from(1 + random.below(most)).unwrap().min(n as usize - 1);
            let leaving = random.ranks(n, count);
            for &rank in &leaving {
                network.at(random.below(5_000), Event::Leave { rank });
            }
            network.run();
            assert!(network.boards.iter().all(|b| !b.is_raised()));
            let stay = (0..n).find(|r| !leaving.contains(r)).unwrap();
            assert_eq!(network.boards[stay as usize].gone().collect::<BTreeSet<_>>(), leaving);
            let time = network.now_us + 10;
            network.report(time, stay, Report::Aborted { rank: stay, reason: "done".into() });
            network.run();
            assert_eq!(culprits(&network.agreed()), BTreeSet::from([stay]));
        }
        5 if n > 2 => {
            // One control connection breaks: nobody died.
            network.all_begin(1);
            let a = random.rank(n);
            let near = neighbours(a, n);
            let b = near[usize::try_from(random.below(near.len() as u64)).unwrap()];
            network.at(random.below(2_000), Event::Lost { at: a, peer: b });
            network.at(random.below(2_000), Event::Lost { at: b, peer: a });
            network.run();
            let error = network.agreed();
            if network.delay_us_max < 5_000 {
                assert_eq!(culprits(&error), BTreeSet::from([a, b]), "{error}");
                assert!(error.to_string().contains("connection between"), "{error}");
            }
        }
        6 if n > 1 => {
            // A rank freezes, connections and all: deadlines pass, and it is named.
            network.all_begin(1);
            let frozen = random.rank(n);
            network.at(0, Event::Freeze { rank: frozen });
            for rank in (0..n).filter(|&r| r != frozen && !(r + frozen).is_multiple_of(3)) {
                let report = Report::Deadline { sequence: 1, waited_ms: 9, waiting_on: None };
                network.report(random.below(3_000), rank, report);
            }
            let reporters = network.reports();
            network.run();
            if reporters > 0 {
                let error = network.agreed();
                assert!(culprits(&error).contains(&frozen), "{error}");
                assert!(error.to_string().contains("not answer"), "{error}");
            }
        }
        7 if n > 2 => {
            // Two sides do not reach each other for a moment, in the middle of it.
            network.all_begin(1);
            let count = usize::try_from(1 + random.below(u64::from(n) - 1)).unwrap();
            let from = random.below(150_000);
            let side = random.ranks(n, count);
            network.part(side, from..from + random.below(100_000));
            fail_somehow(&mut network, &mut random);
            network.run();
            network.agreed();
        }
        8 if n > 2 => {
            // Two sides do not reach each other for long: whoever can still hear each other agrees.
            network.all_begin(1);
            let border = 1 + random.rank(n - 1);
            let from = random.below(200_000);
            network.part((0..border).collect(), from..from + 60_000_000);
            fail_somehow(&mut network, &mut random);
            let time = from + 1_000_000;
            for rank in [0, n - 1] {
                let report = Report::Deadline { sequence: 1, waited_ms: 9, waiting_on: None };
                network.report(time, rank, report);
            }
            network.run();
            for side in network.sides() {
                network.agreed_among(&side);
            }
        }
        9 if n > 4 => {
            // Connections are lost between ranks that live, with what was on its way, and something else happens.
            network.all_begin(1);
            for _ in 0..1 + random.below(3) {
                let a = random.rank(n);
                let near = neighbours(a, n);
                let b = near[usize::try_from(random.below(near.len() as u64)).unwrap()];
                network.sever(random.below(100_000), a, b);
            }
            fail_somehow(&mut network, &mut random);
            network.run();
            for side in network.sides() {
                network.agreed_among(&side);
            }
        }
        10 if n > 1 => {
            // A machine with some of the ranks stands still for a while.
            network.all_begin(1);
            let count = usize::try_from(1 + random.below(4)).unwrap().min(n as usize);
            let from = random.below(100_000);
            let when = from..from + random.below(800_000);
            for rank in random.ranks(n, count) {
                network.pause(rank, when.clone());
            }
            fail_somehow(&mut network, &mut random);
            network.run();
            network.agreed();
        }
        _ => {
            // A broken data link, or an abort, from one or several sides.
            network.all_begin(1);
            for _ in 0..1 + random.below(3) {
                let (rank, peer) = (random.rank(n), random.rank(n));
                let report = if random.below(2) == 0 {
                    Report::Aborted { rank, reason: "enough".into() }
                } else {
                    Report::LinkBroken { peer, cause: "connection reset by peer".into() }
                };
                network.report(random.below(30_000), rank, report);
            }
            network.run();
            assert_eq!(network.agreed().kind(), ErrorKind::Remote);
        }
    }
}

/// Seeds that once did not agree, each for a reason of its own.
#[test]
fn all_survivors_agree_on_seeds_that_once_failed() {
    // Two ranks that live knew of each other only by ranks that stood still, for longer than these were waited for.
    one_seed(85_751);
    // Two ranks lost the connection between them while all agreed on a death, and each agreed with those who took the
    // other for dead.
    one_seed(96_257);
}

#[test]
fn all_survivors_agree_on_every_seed() {
    if let Some(seed) = std::env::var("RINGWAY_SEED").ok().and_then(|s| s.parse().ok()) {
        return one_seed(seed);
    }
    // How many, or from which on to below which.
    let seeds = std::env::var("RINGWAY_SEEDS").unwrap_or_else(|_| "2500".to_owned());
    let (from, to) = seeds.split_once("..").unwrap_or(("0", &seeds));
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("RINGWAY_SEEDS={seeds}"));
    let mut seeds: Vec<u64> = (number(from)..number(to)).collect();
    // Those that take longest first, so that none of them is left for the end.
    seeds.sort_by_key(|seed| Reverse(ranks_most(*seed)));
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(BTreeSet::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if std::panic::catch_unwind(|| one_seed(seed)).is_err() {
                        println!("RINGWAY_SEED={seed} failed");
                        failed.lock().unwrap().insert(seed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "seeds {failed:?} failed; replay one with RINGWAY_SEED");
}

/// Runs reports on a quiet network and returns the agreed error.
fn verdict_of(n: u32, prepare: impl FnOnce(&mut Network)) -> Error {
    let mut network = Network::new(n, 7);
    network.delay_us_max = 300;
    prepare(&mut network);
    network.run();
    network.agreed()
}

#[test]
fn a_mismatch_names_the_odd_one() {
    let error = verdict_of(5, |network| {
        for sequence in 0..8 {
            network.journals.iter().take(4).for_each(|j| j.begin(&all_reduce(sequence, 1024)));
        }
        network.journals[1].begin(&all_reduce(7, 1000));
        network.report(5, 0, Report::Mismatch { sequence: 7, with: 1 });
    });
    assert_eq!(
        error.to_string(),
        "call mismatch at operation 7: rank 1 (host h0, pid 101) called all_reduce of 1000 float \
         sum (count 1000 instead of 1024), 3 other ranks called all_reduce of 1024 float sum, \
         rank 4 (host h1, pid 104) has not entered it; \
         make every rank issue the same calls in the same order"
    );
    assert_eq!(culprits(&error), BTreeSet::from([1]));
    assert_eq!(error.operation().unwrap().sequence, 7);
}

#[test]
fn of_two_halves_the_one_with_the_lowest_rank_is_right() {
    let error = verdict_of(2, |network| {
        network.journals[0].begin(&all_reduce(0, 5));
        network.journals[1].begin(&Signature { op: None, ..all_reduce(0, 5) });
        network.report(5, 1, Report::Mismatch { sequence: 0, with: 0 });
    });
    assert_eq!(culprits(&error), BTreeSet::from([1]));
    assert!(error.to_string().contains("reduction none instead of sum"), "{error}");
}

#[test]
fn where_all_wait_in_a_circle_the_silent_link_is_named() {
    let circle = |silent: Option<(Rank, u64)>| {
        verdict_of(4, |network| {
            network.all_begin(1);
            for (rank, journal) in (0..).zip(&network.journals) {
                journal.note_silent(silent.filter(|_| rank == 1));
                journal.wait_begin((rank + 1) % 4, 0);
            }
            let report = Report::Deadline { sequence: 1, waited_ms: 900, waiting_on: Some(0) };
            network.report(5, 3, report);
        })
    };
    let error = circle(Some((2, 800)));
    assert_eq!(culprits(&error), BTreeSet::from([1, 2]), "{error}");
    let words = "pid 102) is silent: nothing sent on it was acknowledged for 800 ms";
    assert!(error.to_string().contains(words), "{error}");
    let error = circle(None);
    assert_eq!(culprits(&error), BTreeSet::from([0, 1, 2, 3]), "{error}");
    assert!(error.to_string().contains("wait for each other"), "{error}");
}

/// A rank that is ahead misses those whom a silent link holds up in the operation before; they are not named for it.
#[test]
fn who_is_held_up_in_an_earlier_operation_is_not_named() {
    let error = verdict_of(6, |network| {
        network.all_begin(1);
        for rank in [0, 1, 5_usize] {
            network.journals[rank].end(1);
            network.journals[rank].begin(&all_reduce(2, 1024));
        }
        for (rank, journal) in (0..).zip(&network.journals) {
            journal.note_silent(Some((1, 3_000)).filter(|_| rank == 3));
            journal.wait_begin((rank + 1) % 6, 0);
        }
        let report = Report::Deadline { sequence: 2, waited_ms: 3_000, waiting_on: Some(4) };
        network.report(5, 0, report);
    });
    assert_eq!(culprits(&error), BTreeSet::from([1, 3]), "{error}");
    let words = "3 ranks are still in operation 1, where the link between rank 1 ";
    assert!(error.to_string().contains(words), "{error}");
    assert!(!error.to_string().contains("rank 4 "), "{error}");
}

#[test]
fn deaths_that_belong_together_are_named_together() {
    let error = verdict_of(6, |network| {
        network.all_begin(3);
        network.at(10, Event::Kill { rank: 2 });
        network.at(9_000, Event::Kill { rank: 5 });
        network.report(20, 1, Report::LinkBroken { peer: 2, cause: "reset".into() });
    });
    assert_eq!(
        error.to_string(),
        "rank 2 (host h0, pid 102) and rank 5 (host h1, pid 105) died (their control connections \
         ended without a goodbye) during operation 3 (all_reduce of 1024 float sum (4096 bytes)); \
         look at the output of that process and at its host's kernel log"
    );
}

#[test]
fn a_deadline_follows_who_waits_for_whom() {
    let waits = |edges: &'static [(Rank, Rank)]| {
        verdict_of(5, move |network| {
            network.all_begin(0);
            for &(rank, on) in edges {
                let since = network.offsets_us[rank as usize] / 1000;
                network.journals[rank as usize].wait_begin(on, since);
            }
            let waiting_on = Some(1);
            network.report(
                2_000_000,
                0,
                Report::Deadline { sequence: 0, waited_ms: 9, waiting_on },
            );
            network.done_us = vec![Some(0); 5];
        })
    };
    let sink = waits(&[(0, 1), (1, 2), (2, 3), (4, 3)]);
    assert_eq!(culprits(&sink), BTreeSet::from([3]));
    assert!(sink.to_string().contains("while ranks 2 and 4 wait for it since 2000 ms"), "{sink}");
    let circle = waits(&[(0, 1), (1, 2), (2, 1), (3, 0)]);
    assert_eq!(culprits(&circle), BTreeSet::from([1, 2]));
    assert!(circle.to_string().ends_with("wait for each other"), "{circle}");
    assert_eq!(circle.kind(), ErrorKind::Timeout);
}

#[test]
fn a_deadline_among_different_calls_is_a_mismatch() {
    let error = verdict_of(3, |network| {
        network.all_begin(0);
        network.journals[2].begin(&all_reduce(0, 1000));
        network.report(5, 1, Report::Deadline { sequence: 0, waited_ms: 9, waiting_on: Some(0) });
    });
    assert_eq!((error.kind(), culprits(&error)), (ErrorKind::InvalidUsage, BTreeSet::from([2])));
}

#[test]
fn who_is_held_up_in_an_earlier_operation_is_not_at_fault() {
    let stuck = |third_is_in: bool| {
        verdict_of(4, move |network| {
            network.journals.iter().take(3).for_each(|j| j.begin(&all_reduce(0, 1024)));
            network.journals[0].end(0);
            network.journals[0].begin(&all_reduce(1, 8));
            network.journals[1].wait_begin(3, 0);
            network.journals[2].wait_begin(3, 0);
            if third_is_in {
                network.journals[3].begin(&all_reduce(0, 1024));
                network.journals[3].end(0);
                network.journals[3].begin(&all_reduce(1, 8));
            }
            let report = Report::Deadline { sequence: 1, waited_ms: 9, waiting_on: Some(1) };
            network.report(5, 0, report);
        })
    };
    for third_is_in in [false, true] {
        let error = stuck(third_is_in);
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(culprits(&error), BTreeSet::from([3]), "{error}");
    }
}

#[test]
fn a_panic_and_a_departure_are_named() {
    let error = verdict_of(4, |network| {
        network.all_begin(0);
        network.report(5, 3, Report::Panicked { rank: 3 });
        network.at(6, Event::Leave { rank: 3 });
    });
    assert!(error.to_string().starts_with("rank 3 (host h0, pid 103) panicked during operation 0"));
    let error = verdict_of(4, |network| {
        network.all_begin(0);
        network.at(6, Event::Leave { rank: 3 });
        network.report(9_000, 1, Report::Left { rank: 3 });
    });
    assert_eq!((error.kind(), culprits(&error)), (ErrorKind::InvalidUsage, BTreeSet::from([3])));
}

#[test]
fn the_first_error_stays() {
    let mut network = Network::new(3, 1);
    network.report(5, 0, Report::Aborted { rank: 0, reason: "first".into() });
    network.run();
    let first = network.agreed();
    let time = network.now_us + 5;
    network.at(time, Event::Kill { rank: 2 });
    network.run();
    assert_eq!(network.agreed(), first);
}

#[test]
fn messages_about_ranks_that_do_not_exist_are_ignored() {
    let mut board = Board::new(0, identities(2), &[1], Arc::new(Journal::new()));
    board.receive(1, Message::Goodbye { rank: 2 }, 0);
    board.receive(1, Message::Report { origin: 9, report: Report::Left { rank: 0 } }, 0);
    board.receive(1, Message::Report { origin: 1, report: Report::PeerDied { rank: 7 } }, 0);
    board.receive(1, Message::Accept { rank: 1, decided_by: 2 }, 0);
    board.local(Report::Left { rank: 3 }, 0);
    assert!(!board.is_raised() && board.take_outgoing().is_empty() && board.gone().count() == 0);
}
