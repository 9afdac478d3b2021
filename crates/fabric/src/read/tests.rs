//! Dumps of our own making, whole, cut and damaged; real ones where `RINGWAY_FIXTURES` names their folder.

mod bounds;
mod fixtures;
mod overlay;
mod samples;

use proptest::prelude::*;

use super::*;
use crate::model::{Kind, PortState};
use crate::rate::Rate;
use crate::shape::Shape;

fn one(name: &str, text: &str) -> Result<Fabric, ReadError> {
    let mut reading = Reading::new();
    reading.read(name, text.as_bytes())?;
    reading.finish(FinishOptions::default())
}

fn partial(text: &str) -> Result<Fabric, ReadError> {
    let mut reading = Reading::new();
    reading.read("dump", text.as_bytes())?;
    reading.finish(FinishOptions { partial: true, rate: None })
}

#[test]
fn every_sample_is_recognised() {
    for (format, text) in samples::ALL {
        let mut reading = Reading::new();
        let formats = reading.read("node1.eth0.txt", text.as_bytes());
        assert_eq!(formats, Ok(vec![*format]), "{text}");
        let fabric = reading
            .finish(FinishOptions::default())
            .unwrap_or_else(|e| panic!("{format}: {e}\n{text}"));
        assert!(!fabric.nodes.is_empty(), "{format}");
    }
}

#[test]
fn ibnetdiscover_gives_switches_hosts_and_links() {
    let fabric = one("topo", samples::NETDISCOVER).unwrap();
    let shape = Shape::of(&fabric);
    assert_eq!(
        (shape.switches, shape.hosts, shape.adapters, shape.aggregation_nodes),
        (2, 2, 2, 1)
    );
    assert_eq!((shape.links, shape.link_ends), (4, 8));
    let names: Vec<&str> = fabric.switches().map(|(_, node)| node.name.as_str()).collect();
    assert_eq!(names, ["leaf-1", "spine-1"]);
    assert_eq!(fabric.nodes.iter().find(|n| n.name == "spine-1").unwrap().tier, 2);
    let host = fabric.hosts.iter().find(|host| host.name == "node1").unwrap();
    let adapter = &fabric.nodes[host.adapters[0]];
    assert_eq!((adapter.label.as_str(), adapter.device.as_deref()), ("mlx5_0", Some("0x1021")));
    assert_eq!(adapter.ports[0].lid, Some(101));
    assert!(fabric.links.iter().all(|link| link.rate == Rate::parse("4xNDR")));
}

#[test]
fn a_port_list_says_the_same_as_the_blocks() {
    let (blocks, list) =
        (one("a", samples::NETDISCOVER).unwrap(), one("b", samples::PORT_LIST).unwrap());
    let (blocks, list) = (Shape::of(&blocks), Shape::of(&list));
    assert_eq!(
        (blocks.switches, blocks.hosts, blocks.tiers.len()),
        (list.switches, list.hosts, list.tiers.len())
    );
    assert_eq!(blocks.bisection, list.bisection);
}

#[test]
fn link_info_tells_states_and_what_could_be() {
    let fabric = one("l", samples::LINK_INFO).unwrap();
    let slow: Vec<&str> = fabric
        .nodes
        .iter()
        .flat_map(|n| &n.ports)
        .filter_map(|p| p.could_be.as_deref())
        .filter(|c| !c.is_empty())
        .collect();
    assert_eq!(slow, ["Could be 4X Could be 25.78125 Gbps"]);
    let down =
        fabric.nodes.iter().flat_map(|n| &n.ports).filter(|p| p.state == PortState::Down).count();
    assert_eq!(down, 12);
    assert_eq!(fabric.hosts.len(), 2);
    let lines = one("l", samples::LINK_INFO_LINES).unwrap();
    assert_eq!(lines.links.len(), fabric.links.len());
    assert_eq!(Shape::of(&lines).switches, Shape::of(&fabric).switches);
}

#[test]
fn link_info_may_tell_more() {
    let more = samples::LINK_INFO.replace("LinkUp)==>", "LinkUp) (HOQ:16 VL_Stall:7)==>");
    let fabric = one("l", &more).unwrap();
    assert_eq!(fabric.links.len(), 3);
    let physical: Vec<&str> =
        fabric.nodes.iter().flat_map(|n| &n.ports).filter_map(|p| p.physical.as_deref()).collect();
    assert!(physical.iter().all(|p| ["LinkUp", "Polling"].contains(p)), "{physical:?}");
    let fdr10 = samples::LINK_INFO.replace("         25.78125 Gbps", "10.0 Gbps (FDR10)");
    assert!(one("l", &fdr10).unwrap().links.iter().any(|link| link.rate == Rate::parse("4xFDR10")));
}

#[test]
fn counters_find_their_ports() {
    let mut reading = Reading::new();
    reading.read("topo", samples::NETDISCOVER.as_bytes()).unwrap();
    reading.read("counters", samples::PERFQUERY.as_bytes()).unwrap();
    reading.read("errors", samples::QUERY_ERRORS.as_bytes()).unwrap();
    let fabric = reading.finish(FinishOptions::default()).unwrap();
    assert_eq!(fabric.remarks, Vec::<String>::new());
    let leaf = fabric.nodes.iter().find(|n| n.name == "leaf-1").unwrap();
    let port = leaf.ports.iter().find(|p| p.number == 1).unwrap();
    let counters = port.counters.as_ref().unwrap();
    assert_eq!(counters.bytes(), (Some(4000), Some(8000)));
    assert_eq!(counters.get("SymbolErrorCounter"), Some(12));
}

#[test]
fn counters_of_another_fabric_are_remarked() {
    let mut reading = Reading::new();
    reading.read("topo", samples::NETDISCOVER.as_bytes()).unwrap();
    reading.read("counters", samples::PERFQUERY.replace("Lid 11 ", "Lid 999 ").as_bytes()).unwrap();
    let fabric = reading.finish(FinishOptions::default()).unwrap();
    assert!(fabric.remarks[0].contains("lid 999"), "{:?}", fabric.remarks);
}

#[test]
fn firmware_comes_from_ibstat_and_ibswinfo() {
    let mut reading = Reading::new();
    reading.read("topo", samples::NETDISCOVER.as_bytes()).unwrap();
    reading.read("node1.txt", samples::IBSTAT.as_bytes()).unwrap();
    reading.read("switches", samples::SWINFO.as_bytes()).unwrap();
    let fabric = reading.finish(FinishOptions::default()).unwrap();
    let of = |name: &str| fabric.nodes.iter().find(|n| n.name == name).unwrap().firmware.clone();
    assert_eq!(of("node1 mlx5_0").as_deref(), Some("28.41.1000"));
    assert_eq!(of("leaf-1").as_deref(), Some("31.2010.3118"));
    let leaf = fabric.nodes.iter().find(|n| n.name == "leaf-1").unwrap();
    assert_eq!(leaf.faults, ["PSU1 DC power: ERROR"]);
}

#[test]
fn dumps_may_stand_in_one_stream() {
    let text = format!("{}\n{}\n{}", samples::NETDISCOVER, samples::PERFQUERY, samples::IBSTAT);
    let mut reading = Reading::new();
    let formats = reading.read("-", text.as_bytes()).unwrap();
    assert_eq!(formats, [Format::Netfile, Format::Perfquery, Format::Ibstat]);
    assert_eq!(reading.finish(FinishOptions::default()).unwrap().hosts.len(), 2);
}

#[test]
fn lldp_of_hosts_and_switches_makes_one_fabric() {
    let mut reading = Reading::new();
    reading.read("node1.json", samples::LLDP_HOST.as_bytes()).unwrap();
    reading.read("leaf1.json", samples::LLDP_SWITCH.as_bytes()).unwrap();
    let fabric = reading.finish(FinishOptions::default()).unwrap();
    assert_eq!(fabric.links.len(), 3, "{fabric:?}");
    let mut hosts: Vec<&str> = fabric.hosts.iter().map(|host| host.name.as_str()).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["node1", "node2"]);
    let rates: Vec<Option<Rate>> = fabric.links.iter().map(|link| link.rate).collect();
    assert!(rates.contains(&Rate::ethernet(400)), "{rates:?}");
    assert_eq!(fabric.switches().count(), 2);
}

#[test]
fn ethtool_finds_its_interface() {
    let mut reading = Reading::new();
    reading.read("node1.json", samples::LLDP_HOST.as_bytes()).unwrap();
    reading.read("node1.ens1f0np0.txt", samples::ETHTOOL.as_bytes()).unwrap();
    let fabric = reading.finish(FinishOptions::default()).unwrap();
    assert_eq!(fabric.remarks, Vec::<String>::new());
    let node = fabric.nodes.iter().find(|n| n.name == "node1 ens1f0np0").unwrap();
    assert_eq!(node.ports[0].counters.as_ref().unwrap().get("rx_prio3_pause"), Some(7));
}

#[test]
fn a_dump_that_was_cut_is_an_error_with_a_line() {
    for (format, text) in samples::ALL {
        // Whole lines: every cut but those that take nothing away.
        let lines: Vec<&str> = text.lines().collect();
        for keep in 1..lines.len() {
            let cut = lines[..keep].join("\n");
            // A whole block of counters may be missing: nobody says how many there are.
            if *format == Format::Perfquery && lines[keep - 1].starts_with("PortXmitWait") {
                continue;
            }
            let lost = lines[keep..].iter().any(|line| samples::counts(*format, line));
            let outcome = one("node1.eth0.txt", &cut);
            if lost && samples::knows_its_end(*format) {
                let error = outcome
                    .err()
                    .unwrap_or_else(|| panic!("{format}: cut after line {keep} passes\n{cut}"));
                assert!(
                    error.line >= 1 && error.line as usize <= keep.max(1),
                    "{format} {keep}: {error}"
                );
            }
        }
    }
}

#[test]
fn errors_name_line_and_thing() {
    let says = |text: &str, words: &[&str]| {
        let error = one("dump", text).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word:?} in {error}");
        }
    };
    says("", &["dump:1:", "printed nothing"]);
    says("hello\n", &["dump:1:", "hello", "known are"]);
    says("\0\0", &["not text"]);
    says(&samples::NETDISCOVER.replacen("4xNDR", "4xFOO", 1), &["4xFOO", "known are"]);
    says(&samples::NETDISCOVER.replacen("[1]\t\"H-", "[1]\t\"H-zz", 1), &["dump:10:", "GUID"]);
    says(&samples::NETDISCOVER.replacen("\"[3]", "\"[4]", 1), &["spine-1"]);
    let twice = format!("{}\n{}", samples::NETDISCOVER, samples::NETDISCOVER);
    says(&twice, &["has a block already"]);
    says(&samples::PORT_LIST.replacen("4x NDR", "4q NDR", 1), &["dump:1:", "width"]);
    says(&samples::IBSTAT.replacen("Rate: 400", "Rate: x", 1), &["cannot be read"]);
    says(&format!("{}ibpanic: [1] main: stat failed", samples::IBSTAT), &["ibstat"]);
    says(&samples::LLDP_HOST[..samples::LLDP_HOST.len() / 2], &["dump:", "JSON"]);
    says("{\"a\": 1}", &["no neighbour"]);
}

#[test]
fn parts_are_taken_when_asked_for() {
    let cut = samples::PORT_LIST.lines().take(2).collect::<Vec<_>>().join("\n");
    assert!(one("dump", &cut).is_err());
    let fabric = partial(&cut).unwrap();
    assert!(fabric.nodes.iter().any(|node| node.kind == Kind::Switch));
    assert!(!fabric.links.is_empty());
}

#[test]
fn two_cables_in_one_port_are_an_error_in_parts_too() {
    let text = "CA   101  1 0xa01 4x NDR - SW    11  1 0x5001 ( 'node1 mlx5_0' - 'leaf-1' )\n\
                CA   102  1 0xa02 4x NDR - SW    11  1 0x5001 ( 'node2 mlx5_0' - 'leaf-1' )\n";
    let error = partial(text).unwrap_err();
    assert!(error.what.contains("a port has one cable"), "{error}");
}

#[test]
fn contradictions_are_errors() {
    let mut reading = Reading::new();
    reading.read("monday", samples::NETDISCOVER.as_bytes()).unwrap();
    let moved = samples::NETDISCOVER
        .replace("[1]\t\"H-0000000000000a01\"[1]", "[9]\t\"H-0000000000000a01\"[1]");
    let read = reading.read("tuesday", moved.as_bytes());
    let error = match read {
        Err(error) => error,
        Ok(_) => reading.finish(FinishOptions::default()).unwrap_err(),
    };
    assert!(error.what.contains("moment") || error.what.contains("damaged"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_bytes_make_it_panic(which in 0..samples::ALL.len(), cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), end in any::<prop::sample::Index>()) {
        let mut bytes = samples::ALL[which].1.as_bytes().to_vec();
        for (at, byte) in cuts {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(end.index(bytes.len()) + 1);
        for partial in [false, true] {
            let mut reading = Reading::new();
            if reading.read("dump.eth0.txt", &bytes).is_ok()
                && let Ok(fabric) = reading.finish(FinishOptions { partial, rate: None })
            {
                let shape = Shape::of(&fabric);
                prop_assert!(shape.links <= bytes.len());
                let _findings = crate::check::check(&fabric, crate::check::CheckOptions::default());
                let whole = one("dump.eth0.txt", samples::ALL[which].1).unwrap();
                for (now, before) in [(&fabric, &whole), (&whole, &fabric)] {
                    let options = crate::check::CheckOptions {
                        before: Some(before),
                        interval_s: Some(60.0),
                        oversubscription: Some(1.0),
                    };
                    let _findings = crate::check::check(now, options);
                    let _changes = crate::diff::diff(before, now);
                }
            }
        }
    }
}
