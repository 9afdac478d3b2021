//! What happens when something goes wrong: every rank gets the same error, soon, and it names who
//! is at fault.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use ringway::config::Config;
use ringway::element::as_bytes;
use ringway::{Call, Collective, Communicator, DataType, Error, ErrorKind, Level, ReduceOp};

use crate::harness::{settings, watchdog, world_each};
use crate::sweep::Hosts;

const SOON: Duration = Duration::from_secs(1);

/// For how long the machine gave a thread no processor that only wants to look at the clock.
///
/// What is promised within a second is promised by a machine that runs.
struct Stalls {
    lost_ms: Arc<AtomicU64>,
    _alive: Sender<()>,
}

impl Stalls {
    /// Watches until dropped.
    #[must_use]
    fn watch() -> Self {
        const TICK: Duration = Duration::from_millis(5);
        let (alive, gone) = channel::<()>();
        let lost_ms = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&lost_ms);
        thread::spawn(move || {
            let mut last = Instant::now();
            while gone.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let late = last.elapsed().saturating_sub(2 * TICK).as_millis();
                lost.fetch_add(u64::try_from(late).unwrap(), Ordering::Relaxed);
                last = Instant::now();
            }
        });
        Self { lost_ms, _alive: alive }
    }

    /// All of it since the watch began.
    fn so_far(&self) -> Duration {
        Duration::from_millis(self.lost_ms.load(Ordering::Relaxed))
    }
}

/// What every rank got, and how long it took, less what the machine stood still.
type Outcomes = Vec<(Result<(), Error>, Duration)>;

/// Runs one call on a world whose ranks have already met in `before` operations.
fn outcomes(
    (ranks, hosts, before): (u32, Hosts, u32),
    call: impl Fn(&Communicator) -> Result<(), Error> + Sync,
) -> Outcomes {
    let gate = Barrier::new(ranks as usize);
    let stalls = Stalls::watch();
    world_each(
        ranks,
        |rank| hosts.config(rank, Config::default()),
        |comm| {
            let comm = comm.unwrap();
            for _ in 0..before {
                let mut sum = [0.0_f32; 10];
                comm.all_reduce(&[1.0; 10], &mut sum, ReduceOp::Sum).unwrap();
            }
            gate.wait();
            let (started, stalled) = (Instant::now(), stalls.so_far());
            let outcome = call(&comm);
            let took = started.elapsed().saturating_sub(stalls.so_far() - stalled);
            if let Err(first) = &outcome {
                let again = comm.barrier().unwrap_err();
                assert_eq!(again, *first, "the first error stays");
            }
            // Whoever is done early must not be missed by the others.
            gate.wait();
            (outcome, took)
        },
    )
}

/// Everybody got the same error, in time; returns it.
fn agreed(outcomes: &Outcomes, within: Duration) -> Error {
    let found = outcomes.iter().find_map(|(outcome, _)| outcome.clone().err());
    let first = found.expect("somebody gets an error");
    for (rank, (outcome, took)) in outcomes.iter().enumerate() {
        assert_eq!(outcome.as_ref(), Err(&first), "rank {rank}");
        assert!(took < &within, "rank {rank} took {took:?} to say: {first}");
    }
    first
}

/// Lets the ranks that are right go first, so that it is clear who is the odd one.
struct First {
    right: u32,
    entering: AtomicU32,
}

impl First {
    fn new(right: u32) -> Self {
        Self { right, entering: AtomicU32::new(0) }
    }

    /// To be called right before the call, by every rank.
    fn pass(&self, odd: bool) {
        if !odd {
            self.entering.fetch_add(1, Ordering::Relaxed);
            return;
        }
        while self.entering.load(Ordering::Relaxed) < self.right {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The error of a call that rank 1 makes differently.
fn mismatch(
    (ranks, hosts, before): (u32, Hosts, u32),
    odd: impl Fn(&Communicator) -> Result<(), Error> + Sync,
) -> Error {
    let first = First::new(ranks - 1);
    let outcomes = outcomes((ranks, hosts, before), |comm| {
        let (input, mut output) = ([1.0_f32; 64], [0.0_f32; 64]);
        first.pass(comm.rank() == 1);
        let outcome = match comm.rank() {
            1 => odd(comm),
            _ => comm.all_reduce(&input, &mut output, ReduceOp::Sum),
        };
        assert_eq!(as_bytes(&input), as_bytes(&[1.0_f32; 64]), "inputs are intact");
        outcome
    });
    let error = agreed(&outcomes, SOON);
    assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
    let culprits: Vec<u32> = error.culprits().iter().map(|culprit| culprit.rank).collect();
    assert_eq!(culprits, [1], "{error}");
    let text = error.to_string();
    let pid = std::process::id();
    assert!(text.contains("rank 1 (host ") && text.contains(&format!("pid {pid})")), "{text}");
    error
}

const WORLDS: [(u32, Hosts, u32); 8] = [
    (2, Hosts::One, 0),
    (2, Hosts::One, 3),
    (2, Hosts::Each, 0),
    (2, Hosts::Each, 3),
    (4, Hosts::One, 0),
    (4, Hosts::One, 3),
    (4, Hosts::Each, 0),
    (4, Hosts::Each, 3),
];

#[test]
fn another_count_is_named_within_a_second() {
    let _watchdog = watchdog("contracts::another_count_is_named_within_a_second");
    for world in WORLDS {
        for odd in [63_usize, 65, 1, 0, 100_000] {
            let error = mismatch(world, |comm| {
                let outcome =
                    comm.all_reduce(&vec![1.0_f32; odd], &mut vec![0.0; odd], ReduceOp::Sum);
                // Who has nothing to wait for is done before anybody could object.
                if odd == 0 { outcome.and_then(|()| comm.barrier()) } else { outcome }
            });
            let text = error.to_string();
            assert!(text.contains(&format!("all_reduce of {odd} float")), "{world:?}: {text}");
        }
    }
}

#[test]
fn any_other_difference_is_named_within_a_second() {
    let _watchdog = watchdog("contracts::any_other_difference_is_named_within_a_second");
    type Odd = fn(&Communicator) -> Result<(), Error>;
    let table: [(&str, Odd); 8] = [
        ("int32", |comm| comm.all_reduce(&[1_i32; 64], &mut [0; 64], ReduceOp::Sum)),
        ("max", |comm| comm.all_reduce(&[1.0_f32; 64], &mut [0.0; 64], ReduceOp::Max)),
        ("avg", |comm| comm.all_reduce(&[1.0_f32; 64], &mut [0.0; 64], ReduceOp::Avg)),
        ("broadcast", |comm| comm.broadcast(&mut [1.0_f32; 64], 0)),
        ("barrier", Communicator::barrier),
        ("reduce", |comm| {
            // Who only sends is done before anybody could object.
            comm.reduce(&[1.0_f32; 64], &mut [], ReduceOp::Sum, 0).and_then(|()| comm.barrier())
        }),
        ("all_gather", |comm| {
            comm.all_gather(&[1.0_f32; 64], &mut vec![0.0; 64 * comm.size() as usize])
        }),
        ("shape", |comm| {
            let call = Call::new(Collective::AllReduce, DataType::F32, 64).level(Level::Shape);
            comm.call(&call, &[0; 256], &mut [0; 256])
        }),
    ];
    for world in [(2, Hosts::One, 1), (4, Hosts::One, 0), (4, Hosts::Each, 0), (4, Hosts::Each, 1)]
    {
        for (word, odd) in table {
            let text = mismatch(world, odd).to_string();
            assert!(text.contains(word), "{world:?} {word}: {text}");
        }
    }
}

#[test]
fn another_root_is_named_within_a_second() {
    let _watchdog = watchdog("contracts::another_root_is_named_within_a_second");
    for hosts in [Hosts::One, Hosts::Each] {
        for before in [0, 2] {
            let first = First::new(3);
            let outcomes = outcomes((4, hosts, before), |comm| {
                let root = if comm.rank() == 1 { 3 } else { 0 };
                first.pass(root == 3);
                comm.broadcast(&mut [0_u8; 1000], root).and_then(|()| comm.barrier())
            });
            let error = agreed(&outcomes, SOON);
            assert_eq!(error.culprits()[0].rank, 1, "{error}");
            assert!(error.to_string().contains("root"), "{error}");
        }
    }
}

#[test]
fn counts_that_do_not_meet_are_named_within_a_second() {
    let _watchdog = watchdog("contracts::counts_that_do_not_meet_are_named_within_a_second");
    for (ranks, hosts, before) in WORLDS {
        // What rank 1 sends to rank 0, and what rank 0 expects of it; all others exchange one.
        for (sent, expected) in [(1, 2), (2, 1), (0, 1), (1, 0), (5000, 4999), (0, 9000)] {
            let outcomes = outcomes((ranks, hosts, before), |comm| {
                let mut send = vec![1_usize; ranks as usize];
                let mut receive = send.clone();
                match comm.rank() {
                    0 => receive[1] = expected,
                    1 => send[0] = sent,
                    _ => {}
                }
                let input = vec![7_u32; send.iter().sum()];
                let mut output = vec![0_u32; receive.iter().sum()];
                let outcome = comm.all_to_all_v((&input, &send), (&mut output, &receive));
                // Only these two exchange something else than they think.
                if comm.rank() > 1 { outcome.and_then(|()| comm.barrier()) } else { outcome }
            });
            let error = agreed_but_for_early(&outcomes, SOON);
            let culprits: Vec<u32> = error.culprits().iter().map(|culprit| culprit.rank).collect();
            assert_eq!(culprits, [0, 1], "{hosts:?} {sent} {expected}: {error}");
            assert!(error.to_string().contains("disagree about the counts"), "{error}");
        }
    }
}

/// As [`agreed`], but one of ranks 0 and 1 may be done before the other has come: it has what its
/// own call promises.
fn agreed_but_for_early(outcomes: &Outcomes, within: Duration) -> Error {
    let errors: Vec<&Error> =
        outcomes.iter().filter_map(|(outcome, _)| outcome.as_ref().err()).collect();
    assert!(errors.len() + 1 >= outcomes.len(), "{outcomes:?}");
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    assert!(outcomes.iter().all(|(_, took)| *took < within), "{outcomes:?}");
    errors[0].clone()
}

#[test]
fn the_majority_is_right() {
    let _watchdog = watchdog("contracts::the_majority_is_right");
    for hosts in [Hosts::One, Hosts::Each] {
        let first = First::new(3);
        let outcomes = outcomes((5, hosts, 1), |comm| {
            let count = [8, 9, 8, 8, 7][comm.rank() as usize];
            first.pass(count != 8);
            comm.all_reduce(&vec![0_u8; count], &mut vec![0; count], ReduceOp::Sum)
        });
        let error = agreed(&outcomes, SOON);
        let ranks: Vec<u32> = error.culprits().iter().map(|culprit| culprit.rank).collect();
        // The second may not have entered yet when the first was found out.
        assert!([&[1][..], &[4], &[1, 4]].contains(&&ranks[..]), "{error}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let _watchdog = watchdog("contracts::a_rank_that_does_not_come_is_named_at_the_deadline");
    for (ranks, hosts, before) in WORLDS {
        // Rank 1 comes when the others have given up.
        let given_up = Barrier::new(ranks as usize);
        let outcomes = outcomes((ranks, hosts, before), |comm| {
            if comm.rank() == 1 {
                given_up.wait();
                return comm.barrier();
            }
            let call = Call::new(Collective::Barrier, DataType::U8, 0)
                .deadline(Duration::from_millis(300));
            let outcome = comm.call(&call, &[], &mut []);
            given_up.wait();
            outcome
        });
        let error = agreed(&outcomes, Duration::from_secs(2));
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert_eq!(error.culprits().len(), 1, "{error}");
        assert_eq!(error.culprits()[0].rank, 1, "{error}");
        let text = error.to_string();
        assert!(text.contains("rank 1 (host ") && text.contains("not entered"), "{text}");
        assert!(text.contains("barrier"), "{text}");
    }
}

#[test]
fn the_deadline_of_a_communicator_holds_for_every_call() {
    let _watchdog = watchdog("contracts::the_deadline_of_a_communicator_holds_for_every_call");
    for hosts in [Hosts::One, Hosts::Each] {
        let over = Barrier::new(2);
        let stalls = Stalls::watch();
        let took = world_each(
            2,
            |rank| hosts.config(rank, settings(&[("RINGWAY_TIMEOUT", "200ms")])),
            |comm| {
                let comm = comm.unwrap();
                comm.barrier().unwrap();
                let started = Instant::now();
                let outcome = if comm.rank() == 0 { comm.recv(&mut [0; 8], 1) } else { Ok(()) };
                let took = started.elapsed();
                over.wait();
                if comm.rank() == 0 {
                    let error = outcome.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
                    assert!(error.to_string().contains("rank 1 (host "), "{error}");
                }
                took
            },
        );
        assert!(took[0] >= Duration::from_millis(200), "{took:?}");
        assert!(took[0] < Duration::from_millis(1500) + stalls.so_far(), "{took:?}");
    }
}

#[test]
fn the_messages_of_a_batch_share_its_deadline() {
    let _watchdog = watchdog("contracts::the_messages_of_a_batch_share_its_deadline");
    for hosts in [Hosts::One, Hosts::Each] {
        world_each(
            2,
            |rank| hosts.config(rank, settings(&[("RINGWAY_TIMEOUT", "700ms")])),
            |comm| {
                let comm = comm.unwrap();
                comm.barrier().unwrap();
                // None of them is late, all of them are.
                let error = if comm.rank() == 0 {
                    let mut came = [[0; 8]; 20];
                    let mut group = comm.group();
                    came.iter_mut().for_each(|one| group.recv(one, 1).unwrap());
                    group.run().unwrap_err()
                } else {
                    let late = (0..20).find_map(|_| {
                        thread::sleep(Duration::from_millis(200));
                        comm.send(&[1; 8], 0).err()
                    });
                    late.expect("the other gives up first")
                };
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            },
        );
    }
}

#[test]
fn a_late_rank_is_waited_for() {
    let _watchdog = watchdog("contracts::a_late_rank_is_waited_for");
    for hosts in [Hosts::One, Hosts::Each] {
        let outcomes = outcomes((3, hosts, 1), |comm| {
            if comm.rank() == 2 {
                thread::sleep(Duration::from_millis(400));
            }
            comm.all_reduce(&[1_u8; 100_000], &mut vec![0; 100_000], ReduceOp::Sum)
        });
        for (outcome, _) in &outcomes {
            outcome.as_ref().unwrap();
        }
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    let _watchdog = watchdog("contracts::a_rank_that_leaves_is_named");
    for hosts in [Hosts::One, Hosts::Each] {
        for before in [0, 1] {
            let errors = world_each(
                4,
                |rank| hosts.config(rank, Config::default()),
                |comm| {
                    let comm = comm.unwrap();
                    for _ in 0..before {
                        comm.barrier().unwrap();
                    }
                    if comm.rank() == 2 {
                        return None;
                    }
                    let started = Instant::now();
                    let error =
                        comm.all_reduce(&[1_u32; 5000], &mut [0; 5000], ReduceOp::Sum).unwrap_err();
                    assert!(started.elapsed() < Duration::from_secs(2), "{error}");
                    Some(error)
                },
            );
            let errors: Vec<Error> = errors.into_iter().flatten().collect();
            assert_eq!(errors.len(), 3);
            assert!(errors.iter().all(|error| *error == errors[0]), "{errors:#?}");
            assert_eq!(errors[0].culprits()[0].rank, 2, "{}", errors[0]);
            let text = errors[0].to_string();
            assert!(text.contains("rank 2 (host ") && text.contains("left"), "{text}");
        }
    }
}

/// The end of a job is no error: the first to be done may leave at once.
#[test]
fn leaving_after_the_last_operation_is_fine() {
    let _watchdog = watchdog("contracts::leaving_after_the_last_operation_is_fine");
    for hosts in [Hosts::One, Hosts::Each] {
        for ranks in [2, 3, 5, 8] {
            for _ in 0..4 {
                world_each(
                    ranks,
                    |rank| hosts.config(rank, Config::default()),
                    |comm| {
                        let comm = comm.unwrap();
                        if comm.rank() == 1 {
                            thread::sleep(Duration::from_millis(5));
                        }
                        comm.broadcast(&mut vec![7_u8; 100_000], 0).unwrap();
                    },
                );
            }
        }
    }
}

#[test]
fn a_rank_that_panics_is_named() {
    let _watchdog = watchdog("contracts::a_rank_that_panics_is_named");
    for transport in ["shm", "tcp"] {
        let config = settings(&[("RINGWAY_TRANSPORT", transport)]);
        let errors = std::sync::Mutex::new(Vec::new());
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ringway::testing::world_with(3, &config, |comm| {
                let met = comm.barrier();
                assert!(comm.rank() != 1, "a bug in the program");
                // The panic may overtake the first barrier.
                let error = met.and_then(|()| comm.barrier()).unwrap_err();
                errors.lock().unwrap().push(error);
            })
        }))
        .unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("rank 1 panicked: a bug in the program"), "{text}");
        let errors = errors.into_inner().unwrap();
        assert_eq!(errors.len(), 2);
        assert_eq!(errors[0], errors[1]);
        assert_eq!(errors[0].culprits()[0].rank, 1);
        assert!(errors[0].to_string().contains("panicked"), "{}", errors[0]);
    }
}

#[test]
fn a_wrong_argument_does_no_harm() {
    let _watchdog = watchdog("contracts::a_wrong_argument_does_no_harm");
    for hosts in [Hosts::One, Hosts::Each] {
        world_each(
            3,
            |rank| hosts.config(rank, Config::default()),
            |comm| {
                let comm = comm.unwrap();
                let huge = Call::new(Collective::AllReduce, DataType::F64, u64::MAX / 4);
                let sum = ReduceOp::Sum;
                for (what, outcome) in [
                    ("output too short", comm.all_reduce(&[1_u8; 4], &mut [0; 3], sum)),
                    ("output too long", comm.all_reduce(&[1_u8; 4], &mut [0; 5], sum)),
                    ("no room for all", comm.all_gather(&[1_u8; 4], &mut [0; 11])),
                    ("not divisible", comm.all_to_all(&[1_u8; 7], &mut [0; 7])),
                    ("no such root", comm.broadcast(&mut [1_u8; 4], 3)),
                    ("too few counts", comm.all_gather_v(&[1_u8], &mut [0; 2], &[1, 1])),
                    ("more than memory", comm.call(&huge, &[], &mut [])),
                    ("in place", comm.call_in_place(&huge.clone(), &mut [0; 8])),
                ] {
                    let error = outcome.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{what}: {error}");
                }
                // One rank alone is wrong: the others just wait for it.
                if comm.rank() == 1 {
                    comm.all_reduce(&[1_u8; 4], &mut [0; 3], sum).unwrap_err();
                }
                let mut total = [0_u8; 4];
                comm.all_reduce(&[1; 4], &mut total, sum).unwrap();
                assert_eq!(total, [3; 4]);
            },
        );
    }
}

/// An algorithm that cannot do the call is refused on every rank alike, and nothing is broken.
#[test]
fn an_algorithm_that_cannot_is_refused() {
    let _watchdog = watchdog("contracts::an_algorithm_that_cannot_is_refused");
    use ringway::plan::algorithm::Algorithm;
    ringway::testing::world(2, |comm| {
        let call =
            Call::new(Collective::Gather, DataType::U8, 1).algorithm(Algorithm::HalvingDoubling);
        let mut output = vec![0; if comm.rank() == 0 { 2 } else { 0 }];
        let error = comm.call(&call, &[1], &mut output).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        assert!(error.to_string().contains("halving_doubling"), "{error}");
        comm.barrier().unwrap();
    });
}
