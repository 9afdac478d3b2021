//! Dumps laid over each other: by GUID, by name, in either order.

use super::*;

fn all(dumps: &[(&str, &str)]) -> Fabric {
    let mut reading = Reading::new();
    for (name, text) in dumps {
        reading.read(name, text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    }
    reading.finish(FinishOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// The same fabric as that of `iblinkinfo`'s sample.
fn netdiscover() -> String {
    let header = |word: &str, ports: u32, mark: &str, id: u32, name: &str, lid: u32| {
        format!(
            "\n{word}\t{ports} \"{mark}-{id:016x}\"\t\t# \"{name}\" base port 0 lid {lid} lmc 0\n"
        )
    };
    let line = |port: u32, peer: &str, far: u32, name: &str, lid: u32, rate: &str| {
        format!("[{port}]\t\"{peer}\"[{far}]\t\t# \"{name}\" lid {lid} {rate}\n")
    };
    let (leaf, spine) = ("S-0000000000005001", "S-0000000000005002");
    let adapter = |id: u32, name: &str, lid: u32, far: u32, rate: &str| {
        format!(
            "\nCa\t1 \"H-{id:016x}\"\t\t# \"{name}\"\n[1]({id:x})\t\"{leaf}\"[{far}]\t\t# lid {lid} lmc 0 \"leaf-1\" lid 11 {rate}\n"
        )
    };
    let (one, two) = ("H-0000000000000a01", "H-0000000000000a02");
    [
        header("Switch", 8, "S", 0x5001, "leaf-1", 11),
        line(1, one, 1, "node1 mlx5_0", 101, "4xEDR"),
        line(2, two, 1, "node2 mlx5_0", 102, "1xSDR"),
        line(3, spine, 7, "spine-1", 12, "4xEDR"),
        header("Switch", 8, "S", 0x5002, "spine-1", 12),
        line(7, leaf, 3, "leaf-1", 11, "4xEDR"),
        adapter(0xa01, "node1 mlx5_0", 101, 1, "4xEDR"),
        adapter(0xa02, "node2 mlx5_0", 102, 2, "1xSDR"),
    ]
    .concat()
}

#[test]
fn link_info_lies_over_net_discover_in_either_order() {
    let net = netdiscover();
    let switches_alone =
        samples::LINK_INFO.split_once("Switch:").map(|(_, rest)| format!("Switch:{rest}")).unwrap();
    for info in [samples::LINK_INFO, &switches_alone] {
        for dumps in [[("net", &net[..]), ("info", info)], [("info", info), ("net", &net)]] {
            let fabric = all(&dumps);
            assert_eq!((fabric.nodes.len(), fabric.links.len()), (4, 3), "{dumps:?}");
            let told = fabric.nodes.iter().flat_map(|node| &node.ports);
            assert_eq!(told.filter(|port| port.could_be.as_deref() > Some("")).count(), 1);
        }
    }
}

#[test]
fn the_other_end_is_known_by_its_guid_first() {
    // Two adapters whose identifier is not set yet.
    let text =
        samples::LINK_INFO_LINES.replace("    101 ", "      0 ").replace("    102 ", "      0 ");
    assert_ne!(text, samples::LINK_INFO_LINES);
    let (fabric, whole) = (one("l", &text).unwrap(), one("l", samples::LINK_INFO_LINES).unwrap());
    assert_eq!(fabric.links.len(), whole.links.len());
    assert_eq!(fabric.hosts.len(), 2);
}

#[test]
fn a_list_that_ends_within_its_last_switch_is_cut() {
    // 8 ports are made, but the switch before has 36.
    let mut text = String::new();
    for (guid, lid) in [(0x5001, 11), (0x5002, 12)] {
        text.push_str(&format!("Switch: 0x{guid:016x} sw-{lid}:\n"));
        for port in 1..=36 {
            text.push_str(&format!(
                "          {lid}    {port}[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )\n"
            ));
        }
    }
    assert!(one("l", &text).is_ok());
    let cut: Vec<&str> = text.lines().take(37 + 9).collect();
    let error = one("l", &cut.join("\n")).unwrap_err();
    assert!(error.what.contains("port 8 of sw-12") && error.line == 46, "{error}");
}

const LEAF: &str = r#"{"lldp": {"interface": [
{"swp1": {"chassis": {"node1": {}}, "port": {"id": {"type": "ifname", "value": "eth0"}}}},
{"swp2": {"chassis": {"spine1.dc.example": {}}, "port": {"id": {"type": "ifname", "value": "swp7"}}}}]}}"#;
const SPINE: &str = r#"{"lldp": {"interface": [
{"swp7": {"chassis": {"leaf1": {}}, "port": {"id": {"type": "ifname", "value": "swp2"}}}}]}}"#;

#[test]
fn whole_names_and_short_ones_are_one_machine() {
    let fabric = all(&[("leaf1.dc.example.json", LEAF), ("spine1.dc.example.json", SPINE)]);
    let mut names: Vec<&str> = fabric.switches().map(|(_, node)| node.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["leaf1", "spine1.dc.example"]);
    assert_eq!((fabric.links.len(), fabric.hosts.len()), (2, 1));
}

#[test]
fn of_two_neighbours_the_named_one_counts() {
    let firmware = r#"{"swp1": {"chassis": {"id": {"type": "mac", "value": "00:11:22:33:44:55"}}, "port": {"id": {"type": "mac", "value": "00:11:22:33:44:55"}}}},"#;
    let text = LEAF.replacen("[\n", &format!("[\n{firmware}\n"), 1);
    let fabric = all(&[("leaf1.json", &text)]);
    assert_eq!((fabric.links.len(), fabric.hosts.len()), (2, 1));
    assert!(fabric.remarks[0].contains("leaf1 hears 1 more"), "{:?}", fabric.remarks);
}

#[test]
fn counters_of_a_switchs_port_invent_no_host() {
    let ethtool = |port: &str| format!("# leaf1 {port}\n{}", samples::ETHTOOL);
    let known = ethtool("swp2");
    let quiet = ethtool("swp9");
    let fabric = all(&[("leaf1.json", LEAF), ("a", &known), ("b", &quiet)]);
    assert_eq!(fabric.hosts.len(), 1);
    let leaf = fabric.nodes.iter().find(|node| node.name == "leaf1").unwrap();
    let counted: Vec<_> =
        leaf.ports.iter().filter(|p| p.counters.is_some()).map(|p| p.called()).collect();
    assert_eq!(counted, ["swp2", "swp9"]);
    assert_eq!(all(&[("b", &quiet)]).hosts.len(), 0);
}

#[test]
fn two_looks_at_ethernet_match_ports_by_name() {
    let more = LEAF.replace("\"swp2\"", "\"swp3\"").replacen(
        "[\n",
        "[\n{\"swp0\": {\"chassis\": {\"node0\": {}}, \"port\": {\"id\": {\"type\": \"ifname\", \"value\": \"eth0\"}}}},\n",
        1,
    );
    let stat = |value: u64| {
        format!("# leaf1 swp1\nNIC statistics:\n     rx_discards_phy: {value}\n     tx_bytes: 1\n")
    };
    let (was, is) = (stat(1000), stat(1001));
    let (before, now) =
        (all(&[("leaf1.json", LEAF), ("c", &was)]), all(&[("leaf1.json", &more), ("c", &is)]));
    let options = crate::check::CheckOptions {
        before: Some(&before),
        ..crate::check::CheckOptions::default()
    };
    let found = crate::check::check(&now, options);
    let discards = found.iter().find(|finding| finding.id == "ctr-11").unwrap();
    assert!(discards.title.contains("up to 1,"), "{found:#?}");
}

#[test]
fn the_sum_of_all_ports_is_no_port() {
    let all_ports = samples::PERFQUERY.replace("port 1 ", "port 255 ");
    assert_ne!(all_ports, samples::PERFQUERY);
    let fabric = all(&[("net", samples::NETDISCOVER), ("sum", &all_ports)]);
    assert!(fabric.nodes.iter().flat_map(|node| &node.ports).all(|port| port.number != 255));
}

#[test]
fn a_line_without_its_comment_is_cut_and_no_slow_link() {
    let net = netdiscover();
    let line = net.lines().find(|line| line.starts_with("[3]")).unwrap();
    let cut = net.replacen(line, line.split('#').next().unwrap(), 1);
    let error = one("net", &cut).unwrap_err();
    assert!(error.what.contains("no rate"), "{error}");
}

#[test]
fn ends_that_tell_different_rates_are_remarked() {
    let net = netdiscover();
    let line = net.lines().find(|line| line.starts_with("[3]")).unwrap();
    let fabric = one("net", &net.replacen(line, &line.replace("4xEDR", "4xHDR"), 1)).unwrap();
    assert!(fabric.remarks[0].contains("4xHDR and 4xEDR"), "{:?}", fabric.remarks);
    assert!(fabric.links.iter().all(|link| link.rate != Rate::parse("4xHDR")));
}

#[test]
fn ethernet_of_40_carries_40() {
    let text = samples::IBSTAT.replace("Rate: 400", "Rate: 40").replace("InfiniBand", "Ethernet");
    let fabric = one("node1.txt", &text).unwrap();
    let rates: Vec<_> =
        fabric.nodes.iter().flat_map(|node| &node.ports).filter_map(|port| port.rate).collect();
    assert!(
        !rates.is_empty() && rates.iter().all(|rate| *rate == Rate::ethernet(40).unwrap()),
        "{rates:?}"
    );
}
