//! Real dumps, where the folder that `RINGWAY_FIXTURES` names has them, with the numbers that were counted in them by
//! other means.

use std::io::Write as _;
use std::path::PathBuf;

use super::*;
use crate::check::{self, CheckOptions};

/// A file of the fixtures; nothing, with a word on why, where it is not at hand.
fn file(name: &str) -> Option<Vec<u8>> {
    let folder = std::env::var("RINGWAY_FIXTURES").unwrap_or_default();
    let found = std::fs::read(PathBuf::from(&folder).join(name)).ok();
    if folder.is_empty() || found.is_none() {
        let why = "RINGWAY_FIXTURES names no folder that has it";
        // They are no part of the project, so `all` does not ask for them.
        let required = std::env::var("RINGWAY_TEST_REQUIRE").unwrap_or_default();
        let asked = required.split([',', ' ']).any(|word| word == "fixtures");
        assert!(!asked, "{name}: {why} (RINGWAY_TEST_REQUIRE={required})");
        let _closed = writeln!(std::io::stderr(), "SKIPPED {name}: {why}");
    }
    found
}

fn read(name: &str, partial: bool) -> Option<Fabric> {
    let bytes = file(name)?;
    let mut reading = Reading::new();
    reading.read(name, &bytes).unwrap_or_else(|error| panic!("{error}"));
    Some(
        reading
            .finish(FinishOptions { partial, rate: None })
            .unwrap_or_else(|error| panic!("{error}")),
    )
}

#[test]
fn the_fabric_of_40_switches_has_its_golden_numbers() {
    let Some(fabric) = read("ibnetdiscover/topograph-example.out", false) else { return };
    let shape = Shape::of(&fabric);
    assert_eq!(
        (shape.switches, shape.adapters + shape.aggregation_nodes, shape.aggregation_nodes),
        (40, 582, 40)
    );
    let tiers: Vec<usize> = shape.tiers.iter().map(|tier| tier.switches).collect();
    assert_eq!(tiers, [31, 9]);
    assert_eq!((shape.hosts, shape.link_ends), (123, 2228));
    let hosts: Vec<(usize, usize)> =
        shape.host_counts.iter().map(|c| (c.hosts, c.adapters)).collect();
    assert_eq!(hosts, [(109, 4), (11, 3), (2, 2), (1, 1)]);
    assert_eq!(shape.rates.len(), 1);
    assert_eq!(shape.rates[0].rate, Rate::parse("4xNDR"));
    let full = shape
        .switch_list
        .iter()
        .filter(|one| one.tier == 1 && one.up_links == 18 && one.up_switches == 9);
    assert_eq!(full.count(), 19);
    assert_eq!(shape.rails, 4);
    let found = check::check(&fabric, CheckOptions::default());
    let title =
        |id: &str| found.iter().find(|f| f.id == id).map(|f| f.title.clone()).unwrap_or_default();
    assert!(
        title("fab-02")
            .starts_with("12 of 31 leaves of tier 1 have fewer than 18 uplinks, down to 14"),
        "{found:#?}"
    );
    assert!(
        title("fab-03").starts_with("14 of 123 hosts have fewer than 4 adapters"),
        "{found:#?}"
    );
    assert!(title("fab-15").starts_with("69 adapters"), "{found:#?}");
}

#[test]
fn the_university_has_its_golden_numbers() {
    let Some(fabric) = read("ibnetdiscover/loginoff-topo.txt", false) else { return };
    let shape = Shape::of(&fabric);
    assert_eq!((shape.switches, shape.hosts, shape.link_ends), (8, 144, 384));
    let rates: Vec<(String, usize)> =
        shape.rates.iter().map(|c| (c.rate.unwrap().to_string(), c.links * 2)).collect();
    assert_eq!(rates, [("4xQDR".to_owned(), 290), ("4xFDR10".to_owned(), 94)]);
    let tiers: Vec<usize> = shape.tiers.iter().map(|tier| tier.switches).collect();
    assert_eq!(tiers, [6, 2]);
    let ib2 = shape.switch_list.iter().find(|one| one.name == "ib2").unwrap();
    assert_eq!((ib2.host_links, ib2.up_links), (24, 8));
    let found = check::check(&fabric, CheckOptions::default());
    let uplinks = found.iter().find(|f| f.id == "fab-02").unwrap();
    assert!(
        uplinks.title.starts_with("1 of 6 leaves of tier 1 have fewer than 8 uplinks"),
        "{}",
        uplinks.title
    );
}

#[test]
fn the_others_are_read() {
    if let Some(fabric) =
        read("ibnetdiscover/superbench-ib_traffic_topo_aware_ibnetdiscover.txt", true)
    {
        let shape = Shape::of(&fabric);
        assert_eq!((shape.switches, shape.adapters), (8, 10), "{shape:?}");
    }
    if let Some(fabric) = read("ibnetdiscover/treydock-p-test.out", true) {
        let shape = Shape::of(&fabric);
        assert_eq!((shape.switches, shape.hosts), (4, 3), "{shape:?}");
        let down = fabric
            .nodes
            .iter()
            .flat_map(|n| &n.ports)
            .filter(|p| p.state == PortState::Down)
            .count();
        assert_eq!(down, 2);
    }
    let _fabric = read("ibnetdiscover/treydock-p-test3.out", true);
    // Made by hand: one port is on two switches.
    if let Some(bytes) = file("ibnetdiscover/treydock-p-test2.out") {
        let mut reading = Reading::new();
        reading.read("test2", &bytes).unwrap();
        let error = reading.finish(FinishOptions { partial: true, rate: None }).unwrap_err();
        assert_eq!(error.line, 5, "{error}");
    }
    if let Some(bytes) = file("ibnetdiscover/topograph-example-bad.out") {
        let error = Reading::new().read("bad", &bytes).unwrap_err();
        assert!(error.what.contains("no link"), "{error}");
    }
    for name in ["net", "net.2sw2path"] {
        if let Some(fabric) = read(&format!("ibsim_net/{name}"), false) {
            assert_eq!(
                (fabric.switches().count(), fabric.hosts.len(), fabric.links.len()),
                (2, 2, 4),
                "{name}"
            );
        }
    }
    if let Some(fabric) = read("ibstat/gpud-ibstat.47.0.h100.some.down.with.polling.1.txt", false) {
        let states = |wanted: PortState| {
            fabric.nodes.iter().flat_map(|n| &n.ports).filter(|p| p.state == wanted).count()
        };
        assert_eq!((states(PortState::Active), states(PortState::Down)), (10, 2));
        let found = check::check(&fabric, CheckOptions::default());
        assert_eq!(found.iter().map(|f| f.id).collect::<Vec<_>>(), ["fab-17"], "{found:#?}");
    }
    if let Some(fabric) = read("netq/topograph-topologyGraph.json", false) {
        assert_eq!(
            (fabric.switches().count(), fabric.links.len()),
            (3, 79),
            "{:?}",
            fabric.hosts.len()
        );
    }
}

#[test]
fn counters_of_real_ports_are_read() {
    if let Some(fabric) = read("perfquery/treydock-0x506b4b03005c2740.out", false) {
        let counters = fabric.nodes[0].ports[0].counters.as_ref().unwrap();
        assert_eq!(counters.get("PortXmitDiscards"), Some(20046));
        assert_eq!(counters.bytes().0, Some(178_791_657_177_235 * 4));
        let found = check::check(&fabric, CheckOptions::default());
        let ids: Vec<&str> = found.iter().map(|f| f.id).collect();
        assert_eq!(ids, ["ctr-04"], "{found:#?}");
    }
    for name in [
        "treydock-test2.out",
        "treydock-test3.out",
        "treydock-test-err1.out",
        "treydock-test-err3.out",
        "sckyzo-vitals1.out",
    ] {
        let _fabric = read(&format!("ibswinfo/{name}"), false);
    }
}

#[test]
fn every_cut_of_a_real_dump_is_an_error_or_the_whole() {
    for name in ["ibnetdiscover/topograph-example.out", "ibnetdiscover/loginoff-topo.txt"] {
        let Some(bytes) = file(name) else { continue };
        let whole = Shape::of(&read(name, false).unwrap());
        let text = String::from_utf8(bytes).unwrap();
        for part in 1..200 {
            let mut end = text.len() * part / 200;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            match one("cut", &text[..end]) {
                Ok(fabric) => {
                    assert_eq!(Shape::of(&fabric).link_ends, whole.link_ends, "{name} cut at {end}")
                }
                Err(error) => assert!(error.line >= 1, "{error}"),
            }
        }
    }
}
