//! `ringway why` on jobs that stand still, each for another reason.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringway::ReduceOp;
use serde_json::Value;

use crate::hosts::{Family, Network};
use crate::jobs::{as_rank, free_port};
use crate::need;
use crate::process::{Finished, Running, finish, ringway, signal, start, wait_for};

fn why(args: &[&str]) -> Finished {
    finish(&mut ringway(&[&["why"], args].concat()))
}

/// The answer about the one communicator of a process; `None` as long as it has none.
fn answer(pid: u32) -> Option<Value> {
    let done = why(&["--json", &pid.to_string()]);
    let cases: Value = serde_json::from_str(&done.stdout).ok()?;
    Some(cases[0].clone())
}

/// Waits until the job of a process is in this condition, and these are at fault; the answer. On a busy machine
/// others may be late at first.
fn wait_until(pid: u32, condition: &str, culprits: &[u32]) -> Value {
    let mut last = None;
    for _ in 0..60 {
        last = answer(pid);
        if let Some(case) = &last
            && case["condition"] == condition
            && case["culprits"] == serde_json::json!(culprits)
        {
            return case.clone();
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("the job of process {pid} is not {condition} for {culprits:?}: {last:?}");
}

fn text(case: &Value) -> &str {
    case["text"].as_str().unwrap()
}

/// The ranks of a job without an end, on this host.
fn endless(ranks: u32) -> Vec<Running> {
    let root = format!("127.0.0.1:{}", free_port());
    let args = ["perf", "all_reduce", "-b", "64K", "-e", "64K", "-n", "100000000", "-c", "0"];
    let start = |rank| {
        let mut command = ringway(&args);
        as_rank(&mut command, rank, ranks, &root);
        start(&mut command)
    };
    (0..ranks).map(start).collect()
}

#[test]
fn a_rank_that_skipped_a_call_is_named() {
    let over = AtomicBool::new(false);
    let met = Barrier::new(4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ringway::testing::world(3, |comm| {
                let mut sum = [0_u32; 4];
                comm.all_reduce(&[1; 4], &mut sum, ReduceOp::Sum).unwrap();
                met.wait();
                // Rank 2 does something else first.
                while comm.rank() == 2 && !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                comm.all_reduce(&[2; 4], &mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [6; 4]);
            });
        });
        met.wait();
        let pid = std::process::id();
        let case = std::panic::catch_unwind(|| wait_until(pid, "slow", &[2]));
        let shown = why(&[&pid.to_string()]);
        // Whatever is wrong, the ranks are let go.
        over.store(true, Ordering::Relaxed);
        let case = case.unwrap();
        assert!(text(&case).starts_with("operation 1 (all_reduce of 4 uint32 sum"), "{case}");
        assert!(text(&case).ends_with(&format!("pid {pid}) has not entered it")), "{case}");
        assert_eq!(shown.status.code(), Some(1), "{shown:?}");
        assert!(shown.stdout.starts_with("slow: operation 1"), "{}", shown.stdout);
        let row = |line: &&str| line.contains(" outside ") && line.contains("after 0");
        assert_eq!(shown.stdout.lines().filter(row).count(), 1, "{}", shown.stdout);
    });
}

#[test]
fn a_stopped_rank_is_named_and_one_that_goes_on_is_not() {
    let ranks = endless(3);
    let pids: Vec<u32> = ranks.iter().map(Running::pid).collect();
    let case = wait_until(pids[0], "healthy", &[]);
    assert_eq!(case["seats"].as_array().unwrap().len(), 3, "{case}");
    signal("STOP", pids[1]);
    let case = wait_until(pids[0], "stuck", &[1]);
    assert!(text(&case).contains(&format!("pid {}) does not answer", pids[1])), "{case}");
    assert!(text(&case).contains("it is stopped or gets no processor"), "{case}");
    // The process that was asked for cannot answer: another of its job does.
    let shown = why(&[&pids[1].to_string()]);
    assert_eq!(shown.status.code(), Some(2), "{shown:?}");
    assert!(shown.stdout.contains(" silent "), "{}", shown.stdout);
    signal("CONT", pids[1]);
    wait_until(pids[1], "healthy", &[]);
}

#[test]
fn a_silent_link_is_named_with_both_ends() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(3, Family::V4);
    let args = ["all_reduce", "-b", "64K", "-e", "64K", "-n", "100000000", "-c", "0"];
    let ranks = network.start(&args, &[]);
    let pid = ranks[0].pid();
    wait_until(pid, "healthy", &[]);
    network.cut(1, 2);
    let case = wait_for("the link to be named", || {
        let link = |case: &Value| text(case).contains("the link between rank ");
        answer(pid).filter(|case| link(case) && case["condition"] == "stuck")
    });
    let culprits = case["culprits"].as_array().unwrap();
    let hosts: Vec<u64> = culprits.iter().map(|rank| rank.as_u64().unwrap() / 2).collect();
    assert_eq!(hosts, [1, 2], "{case}");
    assert!(text(&case).contains("nothing sent on it was acknowledged"), "{case}");
}

#[test]
fn a_rank_that_computes_for_longer_is_late() {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ringway::testing::world(3, |comm| {
                let mut sum = [0_u32; 4096];
                let mut again = 1;
                while again > 0 {
                    let more = u64::from(comm.rank() == 2) * 10;
                    std::thread::sleep(Duration::from_millis(5 + more));
                    comm.all_reduce(&[1; 4096], &mut sum, ReduceOp::Sum).unwrap();
                    // All end with the same call.
                    let mut going = [0];
                    let mine = u32::from(!over.load(Ordering::Relaxed));
                    comm.all_reduce(&[mine], &mut going, ReduceOp::Min).unwrap();
                    again = going[0];
                }
            });
        });
        let pid = std::process::id();
        let found = std::panic::catch_unwind(|| {
            let late = wait_for("the late rank to be named", || {
                answer(pid).filter(|case| case["stragglers"]["late"]["rank"] == 2)
            });
            wait_for("the late rank to be named in words", || {
                let shown = why(&[&pid.to_string()]).stdout;
                shown.contains("late: rank 2 is late: it came last to ").then_some(())
            });
            late
        });
        over.store(true, Ordering::Relaxed);
        let late = found.unwrap()["stragglers"]["late"].clone();
        assert!(late["late_us"].as_u64().unwrap() > 1_000, "{late}");
    });
}

#[test]
fn a_slow_link_is_named_with_what_it_moves() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(3, Family::V4);
    network.throttle(1, "40mbit");
    let args = ["all_reduce", "-b", "1M", "-e", "1M", "-n", "100000000", "-c", "0"];
    let ranks = network.start(&args, &[]);
    // Two ranks on each host. What comes back to it waits behind what it sends, so links to it may seem slow too.
    let is_from_there = |link: &Value| link["from"].as_u64().is_some_and(|rank| rank / 2 == 1);
    let link = wait_for("the slow link to be named", || {
        let case = answer(ranks[0].pid())?;
        case["stragglers"]["slow"].as_array()?.iter().find(|link| is_from_there(link)).cloned()
    });
    assert!(link["rate"].as_u64().unwrap() < 20_000_000, "{link}");
}

#[test]
fn nobody_to_ask_and_wrong_arguments_are_told_apart_from_verdicts() {
    let nobody = why(&["1"]);
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
    assert!(nobody.stderr.contains("process 1 has no communicator"), "{}", nobody.stderr);
    for wrong in [&["one"][..], &["--watch=0"], &["--what"]] {
        let done = why(wrong);
        assert_eq!(done.status.code(), Some(3), "{done:?}");
        assert!(done.stderr.contains("--help"), "{}", done.stderr);
    }
}
