//! Time, bytes, faults and pauses on networks small enough to reckon by hand.

use ringway_fabric::generate::FatTree;
use ringway_fabric::rate::Rate;

use super::*;
use crate::dag::run;
use crate::fault::Change;
use crate::machine::Machine;
use crate::network::Place;
use crate::route::Way;
use crate::work::{Task, What};

/// `hosts` hosts of one GPU; `down` on a leaf; 50,000 bytes a microsecond everywhere.
fn network(hosts: usize, down: usize, up: usize, spines: usize) -> Network {
    let tree = FatTree {
        hosts,
        adapters: 1,
        rails: false,
        down,
        up,
        spines,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("400G").expect("a rate"),
    };
    let machine = Machine { gpus: 1, ..Machine::default() };
    Network::build(tree.build().expect("a fabric"), machine, None).expect("a network")
}

fn flow(from: u32, to: u32) -> Flow {
    Flow { from: Place::Rank(from), to: Place::Rank(to), share: 1.0, key: 0 }
}

fn send(bytes: f64, flows: Vec<Flow>) -> Task {
    let what = What::Flows(Stream { bytes, flows, latency_us: 0.0 });
    Task { name: "send".to_owned(), row: "network".to_owned(), after: Vec::new(), what }
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() <= want.abs() * 1e-6, "{got}, not {want}");
}

#[test]
fn what_is_left_goes_faster_when_others_have_ended() {
    let network = network(4, 4, 0, 0);
    let tasks = [send(1e6, vec![flow(0, 2)]), send(3e6, vec![flow(1, 2)])];
    let outcome = run(&network, &tasks, &Options::default()).expect("it runs");
    // Half the rate until 40 µs, then all of it for the 2 MB that are left.
    near(outcome.spans[0].end_us, 40.0);
    near(outcome.end_us, 80.0);
    let bytes: f64 = outcome.links.iter().map(|link| link.bytes).sum();
    near(bytes, 4.0 * 4e6);
    let last = outcome.links.iter().max_by(|a, b| a.bytes.total_cmp(&b.bytes)).expect("a link");
    near(last.busy_us, 80.0);
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let network = network(32, 8, 8, 4);
    let flows = || (0..32).flat_map(|a| (0..32).filter(move |b| a != *b).map(move |b| flow(a, b)));
    let tasks = [send(1e6, flows().collect())];
    let once = |seed| {
        let routing = Routing { seed, ..Routing::default() };
        run(&network, &tasks, &Options { routing, ..Options::default() }).expect("it runs")
    };
    assert_eq!(once(1), once(1));
    assert_ne!(once(1).end_us, once(2).end_us);
    // However the switches hash, every byte goes through a bus at each end.
    let bus = |outcome: &crate::outcome::Outcome| -> f64 {
        let is_bus = |id| network.tier_of(id) == crate::network::Tier::Bus;
        outcome.links.iter().filter(|link| is_bus(link.link)).map(|link| link.bytes).sum()
    };
    near(bus(&once(1)), 2.0 * 32.0 * 31.0 * 1e6);
}

#[test]
fn efficiency_of_hashing_is_the_textbooks() {
    // 64 hosts on a leaf to 64 on another through 64 spines: 64 flows on 64 links.
    let network = network(128, 64, 64, 64);
    for (qps, want) in [(1_u32, 26.0), (4, 43.0), (16, 62.0)] {
        let mut sum = 0.0;
        for seed in 0..100 {
            let part = |qp: u32| {
                move |rank: u32| Flow {
                    share: 1.0 / f64::from(qps),
                    key: u64::from(qp),
                    ..flow(rank, rank + 64)
                }
            };
            let flows = (0..qps).flat_map(|qp| (0..64).map(part(qp)));
            let routing = Routing { seed, ..Routing::default() };
            let options = Options { routing, ..Options::default() };
            let tasks = [send(50_000.0, flows.collect())];
            sum += run(&network, &tasks, &options).expect("it runs").end_us;
        }
        // Of line rate a flow takes 1 µs: its time is the load of the worst link.
        let efficiency = 100.0 / (sum / 100.0);
        assert!((efficiency - want).abs() < 3.0, "{qps} queue pairs: {efficiency} %");
    }
}

#[test]
fn a_polarised_hash_leaves_cables_unused() {
    // 4 spines with 2 cables to each of 2 leaves of 8 hosts.
    let network = network(16, 8, 8, 4);
    let flows = || (0..8).flat_map(|a| (8..16).map(move |b| flow(a, b)));
    let used = |way| {
        let routing = Routing { way, seed: 3, ..Routing::default() };
        let tasks = [send(1e6, flows().collect())];
        let outcome = run(&network, &tasks, &Options { routing, ..Options::default() });
        let outcome = outcome.expect("it runs");
        let down = crate::network::Tier::Cable { from: 2, to: 1 };
        (
            outcome.links.iter().filter(|link| network.tier_of(link.link) == down).count(),
            outcome.end_us,
        )
    };
    assert_eq!(used(Way::Ecmp).0, 8);
    assert_eq!(used(Way::Polarised).0, 4);
    assert_eq!(used(Way::Adaptive).0, 8);
    assert!(used(Way::Polarised).1 > 1.5 * used(Way::Adaptive).1);
    near(used(Way::Adaptive).1, 8.0 * 20.0);
}

#[test]
fn a_link_that_breaks_sends_its_flows_another_way() {
    let network = network(4, 2, 2, 2);
    let spine = network.switch_named("spine-1").expect("a spine");
    let other = network.switch_named("spine-2").expect("a spine");
    let tasks = [send(1e7, vec![flow(0, 2), flow(1, 3)])];
    let broken = |faults| {
        let routing = Routing { way: Way::Static, ..Routing::default() };
        run(&network, &tasks, &Options { routing, faults, ..Options::default() })
    };
    near(broken(Vec::new()).expect("it runs").end_us, 200.0);
    let down = |us, node| Fault { us, what: Change::SwitchDown(node) };
    let outcome = broken(vec![down(100.0, spine)]).expect("it runs");
    // One goes on alone; the other waits 1,000 µs, and then has the spine for itself.
    near(outcome.end_us, 1200.0);
    assert_eq!(outcome.incidents.len(), 1);
    assert_eq!(outcome.incidents[0].what, "spine-1 went down; 1 flows look for another way");
    let error = broken(vec![down(100.0, spine), down(150.0, other)]).unwrap_err().to_string();
    assert!(error.contains("no way from rank"), "{error}");
    let error = broken(vec![down(100.0, 9999)]).unwrap_err().to_string();
    assert!(error.contains("no switch"), "{error}");
}

#[test]
fn cables_that_go_down_together_are_one_incident() {
    // Two leaves with two cables to each of two spines.
    let network = network(4, 2, 4, 2);
    let leaf = network.switch_named("leaf-1").expect("a leaf");
    let spine = network.switch_named("spine-1").expect("a spine");
    assert_eq!(network.cables_between(leaf, spine).len(), 2);
    let flows = (0..8).map(|key| Flow { key, share: 1.0 / 8.0, ..flow(0, 2) });
    let tasks = [send(1e7, flows.collect())];
    let routing = Routing { way: Way::Adaptive, ..Routing::default() };
    let with = |what| {
        let faults = vec![Fault { us: 100.0, what }];
        run(&network, &tasks, &Options { routing: routing.clone(), faults, ..Options::default() })
    };
    let outcome = with(Change::CablesDown(spine, leaf)).expect("it runs");
    let told: Vec<&str> = outcome.incidents.iter().map(|one| one.what.as_str()).collect();
    let want = "the 2 cables between spine-1 and leaf-1 went down; 8 flows look for another way";
    assert_eq!(told, [want]);
    let error = with(Change::CablesDown(leaf, 9999)).unwrap_err().to_string();
    assert!(error.contains("there are no nodes"), "{error}");
}

#[test]
fn what_is_broken_from_the_start_interrupts_nobody() {
    let network = network(4, 2, 2, 2);
    let spine = network.switch_named("spine-1").expect("a spine");
    let tasks = [send(1e7, vec![flow(0, 2), flow(1, 3)])];
    let faults = vec![Fault { us: 0.0, what: Change::SwitchDown(spine) }];
    let outcome = run(&network, &tasks, &Options { faults, ..Options::default() });
    let outcome = outcome.expect("it runs");
    // Both share the other spine, and neither waits.
    near(outcome.end_us, 400.0);
    assert_eq!(outcome.incidents.len(), 1);
    assert_eq!(outcome.incidents[0].us, 0.0);
    assert!(outcome.incidents[0].what.contains("spine-1 went down"));
}

#[test]
fn a_link_that_comes_up_carries_what_begins_after() {
    let network = network(4, 2, 1, 1);
    let leaf = network.switch_named("leaf-1").expect("a leaf");
    let spine = network.switch_named("spine-1").expect("a spine");
    let link = network.cables_between(leaf, spine)[0];
    let what = What::Wait { us: 100.0 };
    let wait = Task { name: "wait".to_owned(), row: String::new(), after: Vec::new(), what };
    let tasks = [wait, Task { after: vec![0], ..send(1e6, vec![flow(0, 2)]) }];
    let down = Fault { us: 10.0, what: Change::LinkDown(link) };
    let up = Fault { us: 50.0, what: Change::LinkUp(link) };
    let with = |faults| run(&network, &tasks, &Options { faults, ..Options::default() });
    let error = with(vec![down]).expect_err("there is no other way").to_string();
    assert!(error.contains("no way from rank"), "{error}");
    let outcome = with(vec![down, up]).expect("it runs");
    near(outcome.end_us, 120.0);
    assert!(outcome.incidents[1].what.contains("came up"));
}

#[test]
fn adaptive_routing_goes_around_a_slow_cable() {
    // Four leaves of 4 hosts, with one cable to each spine, and with two.
    for (up, spines) in [(4, 4), (8, 4)] {
        let network = network(16, 4, up, spines);
        let leaf = network.switch_named("leaf-1").expect("a leaf");
        let spine = network.switch_named("spine-1").expect("a spine");
        let link = network.cables_between(leaf, spine)[0];
        let flows = (0..16).flat_map(|a| (0..16).filter(move |b| a != *b).map(move |b| flow(a, b)));
        let tasks = [send(1e6, flows.collect())];
        let time = |faults| {
            let routing = Routing { way: Way::Adaptive, ..Routing::default() };
            let options = Options { routing, faults, ..Options::default() };
            run(&network, &tasks, &options).expect("it runs").end_us
        };
        let slow = |us| vec![Fault { us, what: Change::LinkSlow { link, part: 0.1 } }];
        let whole = time(Vec::new());
        let times = time(slow(0.0)) / whole;
        assert!((0.99..1.2).contains(&times), "{times} times as long, {up} uplinks");
        // What is under way keeps its parts.
        assert!(time(slow(whole / 2.0)) > 1.2 * whole);
    }
}

#[test]
fn what_is_slow_or_late_holds_up_its_own() {
    let network = network(4, 4, 0, 0);
    let tasks = [send(1e6, vec![flow(0, 1)]), send(1e6, vec![flow(2, 3)])];
    let slow = Change::RankSlow { rank: 0, part: 0.25 };
    let faults = vec![Fault { us: 10.0, what: slow }];
    let late = vec![(2, 500.0)];
    let outcome =
        run(&network, &tasks, &Options { faults, late, ..Options::default() }).expect("it runs");
    // The bus of 64 GB/s at a quarter is 16: 0.5 MB take 31.25 µs.
    near(outcome.spans[0].end_us, 10.0 + 31.25);
    near(outcome.spans[1].start_us, 500.0);
    near(outcome.end_us, 520.0);
}

#[test]
fn pauses_hold_up_those_who_only_share_the_way() {
    // Three hosts send to one behind the other leaf, and one of them also to a free host there.
    let network = network(8, 4, 1, 1);
    let tasks = [
        send(1e6, vec![flow(0, 4)]),
        send(1e6, vec![flow(5, 4), flow(6, 4)]),
        send(1e6, vec![flow(1, 7)]),
    ];
    let victim = |pause| {
        let outcome = run(&network, &tasks, &Options { pause, ..Options::default() });
        outcome.expect("it runs").spans[2].end_us
    };
    // Without, the victim has what the uplink leaves: 2/3 of it. With, no more than the others: 1/3.
    near(victim(Pause::Never), 30.0);
    near(victim(Pause::Spreads), 60.0);
}

#[test]
fn links_that_pauses_hold_up_count_as_full() {
    let network = network(8, 4, 1, 1);
    let tasks = [send(1e6, vec![flow(0, 4), flow(5, 4), flow(6, 4), flow(1, 7)])];
    let leaf = network.switch_named("leaf-1").expect("a leaf");
    let spine = network.switch_named("spine-1").expect("a spine");
    let link = network.cables_between(leaf, spine)[0];
    let options = Options { pause: Pause::Spreads, ..Options::default() };
    let outcome = run(&network, &tasks, &options).expect("it runs");
    let up = outcome.links.iter().filter(|one| one.link / 2 == link).collect::<Vec<_>>();
    // Two flows with a third of it each: it is not full, but held up.
    assert_eq!(up.len(), 1);
    near(up[0].bytes, 2e6);
    near(up[0].busy_us, 60.0);
    near(up[0].full_us, 60.0);
}

#[test]
fn latency_comes_after_the_last_byte_and_timers_at_their_time() {
    let network = network(2, 2, 0, 0);
    let mut engine = Engine::new(&network, &Options::default()).expect("an engine");
    let timer = engine.after(25.0);
    let stream = Stream { bytes: 1e6, flows: vec![flow(0, 1)], latency_us: 7.0 };
    let id = engine.start(&stream).expect("a way");
    assert_eq!(engine.next().expect("goes on"), Some((25.0, Event::Timer(timer))));
    let (end_us, event) = engine.next().expect("goes on").expect("an end");
    near(end_us, 27.0);
    assert_eq!(event, Event::Done(id));
    assert_eq!(engine.next().expect("goes on"), None);
}

#[test]
fn a_place_is_used_again_only_when_its_end_was_told() {
    let network = network(4, 4, 0, 0);
    let mut engine = Engine::new(&network, &Options::default()).expect("an engine");
    let stream = |from, to| Stream { bytes: 1e6, flows: vec![flow(from, to)], latency_us: 0.0 };
    let both = [(0, 1), (2, 3)].map(|(from, to)| engine.start(&stream(from, to)).expect("a way"));
    let (_, first) = engine.next().expect("goes on").expect("an end");
    assert_eq!(first, Event::Done(both[0]));
    assert_eq!(engine.start(&stream(0, 1)).expect("a way"), both[0]);
    let (at_us, second) = engine.next().expect("goes on").expect("an end");
    assert_eq!(second, Event::Done(both[1]));
    near(at_us, 20.0);
}
