//! Order, and what is wrong with it.

use ringway_fabric::generate::FatTree;
use ringway_fabric::rate::Rate;

use super::*;
use crate::machine::Machine;

fn network() -> Network {
    let tree = FatTree {
        hosts: 2,
        adapters: 1,
        rails: false,
        down: 2,
        up: 0,
        spines: 0,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("400G").expect("a rate"),
    };
    let machine = Machine { gpus: 1, ..Machine::default() };
    Network::build(tree.build().expect("a fabric"), machine, None).expect("a network")
}

fn wait(us: f64, after: &[TaskId]) -> Task {
    let name = format!("wait {us}");
    Task { name, row: "core".to_owned(), after: after.to_vec(), what: What::Wait { us } }
}

#[test]
fn tasks_begin_when_those_before_are_over() {
    let tasks = [wait(5.0, &[]), wait(7.0, &[]), wait(1.0, &[0, 1]), wait(2.0, &[0])];
    let outcome = run(&network(), &tasks, &Options::default()).expect("it runs");
    assert_eq!(outcome.end_us, 8.0);
    let spans: Vec<(&str, f64, f64)> =
        outcome.spans.iter().map(|s| (s.name.as_str(), s.start_us, s.end_us)).collect();
    let want =
        [("wait 5", 0.0, 5.0), ("wait 7", 0.0, 7.0), ("wait 2", 5.0, 7.0), ("wait 1", 7.0, 8.0)];
    assert_eq!(spans, want);
}

#[test]
fn circles_and_strangers_are_errors() {
    let refused = |tasks: &[Task]| {
        run(&network(), tasks, &Options::default()).expect_err("it is refused").to_string()
    };
    let error = refused(&[wait(1.0, &[1]), wait(1.0, &[0])]);
    assert!(error.contains("task 0 (wait 1): it waits for itself"), "{error}");
    let error = refused(&[wait(1.0, &[7])]);
    assert!(error.contains("waits for task 7"), "{error}");
    let error = refused(&[wait(f64::NAN, &[])]);
    assert!(error.contains("no time to wait"), "{error}");
}
