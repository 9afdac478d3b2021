use ringway_fabric::check::{self, CheckOptions};
use ringway_fabric::draft::FinishOptions;
use ringway_fabric::generate::FatTree;
use ringway_fabric::model::{Fabric, Kind};
use ringway_fabric::rate::Rate;
use ringway_fabric::read::Reading;
use ringway_fabric::{export, shape::Shape};

use ringway_plan::types::Collective;

use super::summary::{Summary, Timed, extent};
use super::tally::{self, Group};
use super::{counters, heat, perfetto, timeline};
use crate::dag;
use crate::engine::Options;
use crate::machine::Machine;
use crate::network::{Network, Wire};
use crate::outcome::{Incident, LinkUse, Outcome, Span};
use crate::pattern::{self, Call, Pattern};

fn tree() -> FatTree {
    FatTree {
        hosts: 16,
        adapters: 4,
        rails: true,
        down: 8,
        up: 8,
        spines: 4,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("4xNDR").expect("a rate"),
    }
}

/// 1,620 switches in three tiers.
fn many() -> FatTree {
    FatTree {
        hosts: 11_664,
        adapters: 1,
        rails: false,
        down: 18,
        up: 18,
        spines: 18,
        pod_leaves: 18,
        spine_up: 18,
        cores: 324,
        ..tree()
    }
}

fn network(fabric: Fabric) -> Network {
    let gpus = fabric.adapters().count() / fabric.hosts.len();
    let machine = Machine { gpus, ..Machine::default() };
    Network::build(fabric, machine, None).expect("a network")
}

/// A second in which every link between switches carries a quarter of what it can, those of one spine nothing, and those
/// of another twice as much.
fn polarised(network: &Network) -> Outcome {
    let fabric = &network.fabric;
    let mut links = Vec::new();
    for (link, one) in network.links.iter().enumerate() {
        let Wire::Cable { link: cable, .. } = one.what else { continue };
        let ends = fabric.links[cable].ends.map(|end| &fabric.nodes[end.node]);
        let spine = ends.iter().find(|node| node.tier == fabric.tiers);
        let part = match spine.map(|node| node.name.rsplit('-').next().unwrap_or("")) {
            None => 0.5,
            Some("1") => 0.0,
            Some("2") => 0.5,
            Some(_) => 0.25,
        };
        if part > 0.0 {
            let bytes = one.capacity * 1e6 * part;
            links.push(LinkUse { link, bytes, busy_us: 1e6, full_us: 0.0 });
        }
    }
    Outcome { end_us: 1e6, links, ..Outcome::default() }
}

#[test]
fn use_is_counted_by_what_links_join() {
    let network = network(tree().build().unwrap());
    let summary = Summary::of(&network, &polarised(&network));
    let groups: Vec<(String, usize, usize)> =
        summary.groups.iter().map(|one| (one.group.to_string(), one.links, one.used)).collect();
    let expected = [
        ("hosts up", 64, 64),
        ("hosts down", 64, 64),
        ("tier 1 up", 64, 48),
        ("tier 1 down", 64, 48),
        ("inside hosts", 128, 0),
        ("PCIe", 128, 0),
    ];
    assert_eq!(groups, expected.map(|(name, links, used)| (name.to_owned(), links, used)));
    let up = summary.groups[2];
    assert!((up.mean - 0.25).abs() < 1e-9 && (up.most - 0.5).abs() < 1e-9, "{up:?}");
    assert!((up.imbalance - 1.0).abs() < 1e-9, "{up:?}");
    assert_eq!(summary.hottest.len(), 10);
    assert!(summary.hottest.iter().all(|hot| (hot.part - 0.5).abs() < 1e-9));
    assert!(summary.hottest[0].name.contains(" > "), "{:?}", summary.hottest[0]);
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(
        (&json["groups"][2]["group"], &json["hottest"][0]["use"]),
        (&"tier 1 up".into(), &0.5.into())
    );
}

#[test]
fn a_job_on_a_part_of_the_fabric_is_no_imbalance() {
    let network = network(tree().build().unwrap());
    let mut outcome = polarised(&network);
    let usages = tally::usages(&network, &outcome);
    let first = usages.iter().find(|usage| usage.group == Group::Up(1)).expect("an uplink").owner;
    outcome.links.retain(|used| {
        let usage = usages[used.link];
        usage.group == Group::Up(1) && usage.owner == first
    });
    let summary = Summary::of(&network, &outcome);
    // One leaf of eight: its own mean, not that of all.
    assert!((summary.groups[2].mean - 0.25).abs() < 1e-9, "{:?}", summary.groups[2]);
}

#[test]
fn bandwidth_is_as_nccl_tests_has_it() {
    let timed = Timed {
        name: "all_reduce".to_owned(),
        collective: Collective::AllReduce,
        bytes: 1_000_000_000,
        ranks: 16,
        start_us: 0.0,
        end_us: 10_000.0,
    };
    assert!((timed.algbw() - 100.0).abs() < 1e-9);
    assert!((timed.busbw() - 187.5).abs() < 1e-9);
    let spans = [span("a", "x", 1.0, 3.0), span("b", "x", 2.0, 5.0), span("c", "y", 0.0, 9.0)];
    assert_eq!(extent(&spans, "x"), Some((1.0, 5.0)));
    assert_eq!(extent(&spans, "z"), None);
}

fn read(texts: &[(&str, &str)], partial: bool) -> Fabric {
    let mut reading = Reading::new();
    for (name, text) in texts {
        reading.read(name, text.as_bytes()).expect("a dump");
    }
    reading.finish(FinishOptions { partial, rate: None }).expect("a fabric")
}

#[test]
fn counters_read_back_and_are_checked() {
    let network = network(tree().build().unwrap());
    let outcome = polarised(&network);
    let topology = export::ibnetdiscover::write(&network.fabric);
    let none = Outcome::default();
    let before = counters::write(&network, &none, 1, &counters::Carried::new()).unwrap();
    let once = counters::write(&network, &outcome, 1, &counters::Carried::new()).unwrap();
    // 60 more runs on top of the first.
    let had = counters::carried(&read(&[("topo", &topology), ("counters", &once)], false));
    let after = counters::write(&network, &outcome, 60, &had).unwrap();
    let now = read(&[("topo", &topology), ("counters", &after)], false);
    assert_eq!(now.remarks, Vec::<String>::new());
    let carried = counters::carried(&now);
    assert_eq!(carried.len(), network.fabric.links.len() * 2);
    let (lid, number) = {
        let leaf = network.fabric.nodes.iter().find(|node| node.name == "leaf-1-1").unwrap();
        (leaf.lid.unwrap(), leaf.ports[0].number)
    };
    // To a host: half of 50 GB/s for 61 seconds.
    assert_eq!(carried[&(lid, number)], (61 * 25_000_000_000, 61 * 25_000_000_000));
    let earlier = read(&[("before", &before)], true);
    let options = CheckOptions { before: Some(&earlier), ..CheckOptions::default() };
    let findings = check::check(&now, options);
    let found = findings.iter().find(|one| one.id == "fab-06").expect("fab-06");
    let seen = found.evidence.join("\n");
    assert!(seen.contains("spine-1") && seen.contains("leaf-1-1 sends"), "{seen}");
    // Balanced, nothing is found.
    let mut even = outcome;
    even.links = (0..network.links.len())
        .map(|link| LinkUse { link, bytes: 1e9, busy_us: 1.0, full_us: 0.0 })
        .collect();
    let after = counters::write(&network, &even, 1, &counters::Carried::new()).unwrap();
    let now = read(&[("topo", &topology), ("counters", &after)], false);
    assert_eq!(check::check(&now, options), []);
}

#[test]
fn counters_want_identifiers() {
    let mut network = network(tree().build().unwrap());
    for node in network.fabric.nodes.iter_mut().filter(|node| node.kind == Kind::Switch) {
        node.lid = None;
    }
    let none = counters::Carried::new();
    let error = counters::write(&network, &Outcome::default(), 1, &none).unwrap_err();
    assert!(error.contains("leaf-1-1 port 1 has no local identifier"), "{error}");
}

fn span(name: &str, row: &str, start_us: f64, end_us: f64) -> Span {
    Span { name: name.to_owned(), row: row.to_owned(), start_us, end_us }
}

#[test]
fn the_heat_map_names_switches_and_links_and_is_xml() {
    let mut network = network(tree().build().unwrap());
    network.fabric.nodes[0].name = "leaf \"<&1>\"".to_owned();
    let svg = heat::svg(&network, &polarised(&network), "a <test>");
    roxmltree::Document::parse(&svg).unwrap();
    for part in ["spine-1", "spine-4", "tier 2: 4 switches", "1 unused", "leaf-2-4", "16 hosts"] {
        assert!(svg.contains(part), "{part}");
    }
    assert!(svg.contains("Hottest links") && svg.contains("node1 mlx5_0 &gt; "), "{svg}");
    let nothing = heat::svg(&network, &Outcome::default(), "nothing");
    roxmltree::Document::parse(&nothing).unwrap();
    assert!(nothing.contains("No link carried anything."));
}

#[test]
fn the_heat_map_of_many_switches_has_a_cell_each() {
    let network = network(many().build().unwrap());
    assert_eq!(Shape::of(&network.fabric).switches, 1620);
    let svg = heat::svg(&network, &polarised(&network), "many");
    roxmltree::Document::parse(&svg).unwrap();
    assert!(svg.contains("tier 3: 324 switches"), "{}", &svg[..3000]);
    assert!(svg.contains("11664 hosts"));
    let cells = svg.matches("height=\"13\"").count();
    assert_eq!(cells, 1620);
}

#[test]
fn the_timeline_stacks_joins_and_escapes() {
    let network = network(tree().build().unwrap());
    let outcome = Outcome {
        end_us: 2000.0,
        spans: vec![
            span("forward <0>", "stage 0", 0.0, 500.0),
            span("all_reduce 1 MiB", "stage 0 data", 400.0, 900.0),
            span("all_reduce 1 MiB", "stage 0 data", 400.0, 1000.0),
            span("all_gather 1 MiB", "stage 0 data", 600.0, 1200.0),
        ],
        incidents: vec![Incident { us: 700.0, what: "leaf-1 & spine-2 went down".to_owned() }],
        ..Outcome::default()
    };
    let html = timeline::html(&network, &outcome, "a step");
    let start = html.find("<svg").unwrap();
    let end = html.find("</svg>").unwrap() + 6;
    let document = roxmltree::Document::parse(&html[start..end]).unwrap();
    let boxes: Vec<f64> = document
        .descendants()
        .filter(|node| node.attribute("class").is_some_and(|class| class.starts_with("box")))
        .filter_map(|node| node.attribute("y")?.parse().ok())
        .collect();
    assert_eq!(boxes.len(), 3, "{html}");
    assert!(boxes[1] < boxes[2], "what overlaps is stacked: {boxes:?}");
    assert!(html.contains("all_reduce 1 MiB (2 side by side): 400.0 us to 1.00 ms, 600.0 us"));
    assert!(html.contains("forward &lt;0&gt;") && html.contains("leaf-1 &amp; spine-2 went down"));
    assert!(!html.contains("<script") && !html.contains("http://www.w3.org/1999"));
}

#[test]
fn traces_have_a_track_for_each_row() {
    let outcome = Outcome {
        spans: vec![span("a", "x", 1.0, 3.0), span("b", "y", 2.0, 5.0), span("c", "x", 3.0, 4.0)],
        incidents: vec![Incident { us: 2.0, what: "gone".to_owned() }],
        ..Outcome::default()
    };
    let document = perfetto::document(&outcome);
    let events = document["traceEvents"].as_array().unwrap();
    let spans: Vec<(f64, f64, u64)> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| {
            let number = |key: &str| event[key].as_f64().unwrap();
            (number("ts"), number("dur"), event["tid"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(spans, [(1.0, 2.0, 1), (2.0, 3.0, 2), (3.0, 1.0, 1)]);
    let names: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    assert_eq!(names, ["x", "y"]);
    assert!(events.iter().any(|event| event["ph"] == "i" && event["name"] == "gone"));
}

#[test]
fn what_is_full_is_told() {
    let network = network(tree().build().unwrap());
    let call = Call::new(Collective::AllReduce, 1 << 30, Pattern::Ring);
    let mut tasks = Vec::new();
    pattern::tasks(&network, &call, &[], &mut tasks).unwrap();
    let outcome = dag::run(&network, &tasks, &Options::default()).unwrap();
    let summary = Summary::of(&network, &outcome);
    // Full until the last byte has left; messages then take their time to arrive.
    let hot = &summary.hottest[0];
    assert!((hot.full - hot.part).abs() < 1e-6 && hot.full > 0.9, "{hot:?}");
}
