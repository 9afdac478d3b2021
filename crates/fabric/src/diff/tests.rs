//! Changes made by hand, each told once.

use super::*;
use crate::draft::FinishOptions;
use crate::export::ibnetdiscover;
use crate::generate::FatTree;
use crate::read::Reading;

fn rails() -> Fabric {
    FatTree::railed().build().unwrap()
}

fn read(text: &str, firmware: &str) -> Fabric {
    let mut reading = Reading::new();
    reading.read("topo", text.as_bytes()).unwrap();
    if !firmware.is_empty() {
        reading.read("switches", firmware.as_bytes()).unwrap();
    }
    reading.finish(FinishOptions::default()).unwrap()
}

fn swinfo(guid: u64, version: &str) -> String {
    format!(
        "part number | MQM9790\nGUID | 0x{guid:016x}\nfirmware version | {version}\n------\nfan status | OK\n------\n"
    )
}

/// The dump without the lines of one cable, told by both ends.
fn pulled(text: &str, a: (&str, u32), b: (&str, u32)) -> String {
    let mut block = String::new();
    let mut kept = String::new();
    for line in text.lines() {
        if let Some(id) = line.split('"').nth(1).filter(|_| !line.starts_with('[')) {
            block = id.to_owned();
        }
        let ends = [(a, b), (b, a)];
        let is_it = ends.iter().any(|((own, port), (peer, peer_port))| {
            block == *own
                && line.starts_with(&format!("[{port}]"))
                && line.contains(&format!("\"{peer}\"[{peer_port}]"))
        });
        if !is_it {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[test]
fn the_same_dump_twice_is_no_change() {
    let fabric = rails();
    assert_eq!(diff(&fabric, &fabric), []);
    assert_eq!(diff(&fabric, &read(&ibnetdiscover::write(&fabric), "")), []);
}

#[test]
fn a_pulled_uplink_a_wrong_rail_and_new_firmware_are_three_findings() {
    let fabric = rails();
    let text = ibnetdiscover::write(&fabric);
    let id = |name: &str| {
        let node = fabric.nodes.iter().find(|node| node.name == name).unwrap();
        let mark = if node.kind == Kind::Switch { "S" } else { "H" };
        format!("{mark}-{:016x}", node.guid.unwrap())
    };
    let leaf = fabric.nodes.iter().find(|node| node.name == "leaf-1-1").unwrap();
    let (leaf1, leaf2, spine) = (id("leaf-1-1"), id("leaf-1-2"), id("spine-1"));
    // An uplink: port 9 of the first leaf is its first one.
    let changed = pulled(&text, (&leaf1, 9), (&spine, 1));
    assert_ne!(changed.len(), text.len());
    // The first adapter of node3 goes to a free port of the second rail's leaf.
    let adapter = id("node3 mlx5_0");
    let port = fabric
        .links_of(fabric.nodes.iter().position(|n| n.name == "node3 mlx5_0").unwrap())
        .next()
        .unwrap()
        .2
        .port
        + 1;
    let port = u32::try_from(port).unwrap();
    let line = |text: &str, block: &str, port: u32| {
        let start = text.find(&format!("\"{block}\"\t\t#")).unwrap();
        let at = start + text[start..].find(&format!("\n[{port}]")).unwrap() + 1;
        let end = at + text[at..].find('\n').unwrap() + 1;
        (at, end)
    };
    let (from, to) = line(&changed, &leaf1, port);
    let moved_line = changed[from..to].replacen(&format!("[{port}]"), "[40]", 1);
    let mut recabled = format!("{}{}", &changed[..from], &changed[to..]);
    let (from, _) = line(&recabled, &leaf2, 1);
    recabled.insert_str(from, &moved_line);
    let recabled = recabled.replace(
        &format!(
            "\"{leaf1}\"[{port}]\t\t# lid {} ",
            fabric.nodes.iter().find(|n| n.name == "node3 mlx5_0").unwrap().ports[0].lid.unwrap()
        ),
        &format!(
            "\"{leaf2}\"[40]\t\t# lid {} ",
            fabric.nodes.iter().find(|n| n.name == "node3 mlx5_0").unwrap().ports[0].lid.unwrap()
        ),
    );
    assert!(recabled.contains(&adapter));
    let old = read(&text, &swinfo(leaf.guid.unwrap(), "31.2010.1000"));
    let new = read(&recabled, &swinfo(leaf.guid.unwrap(), "31.2012.2000"));
    let found = diff(&old, &new);
    let ids: Vec<&str> = found.iter().map(|finding| finding.id).collect();
    assert_eq!(ids, ["diff-rail", "diff-link-gone", "diff-firmware"], "{found:#?}");
    assert!(found[0].title.contains("node3"), "{found:#?}");
    assert!(found[0].evidence[0].contains("rail 1 to rail 2"), "{found:#?}");
    assert!(
        found[1].title.contains("leaf-1-1") && found[1].title.contains("spine-1"),
        "{found:#?}"
    );
}

#[test]
fn a_host_that_is_gone_is_one_finding() {
    let fabric = rails();
    let mut text = ibnetdiscover::write(&fabric);
    for adapter in 0..4 {
        let name = format!("node5 mlx5_{adapter}");
        let node = fabric.nodes.iter().position(|node| node.name == name).unwrap();
        let (_, _, end) = fabric.links_of(node).next().unwrap();
        let leaf = &fabric.nodes[end.node];
        let id = format!("H-{:016x}", fabric.nodes[node].guid.unwrap());
        text = pulled(
            &text,
            (&id, 1),
            (&format!("S-{:016x}", leaf.guid.unwrap()), leaf.ports[end.port].number),
        );
        text = text
            .lines()
            .filter(|line| !(line.starts_with("Ca") && line.contains(&id)))
            .collect::<Vec<_>>()
            .join("\n");
    }
    let found = diff(&fabric, &read(&text, ""));
    let titles: Vec<&str> = found.iter().map(|finding| finding.title.as_str()).collect();
    assert_eq!(titles, ["host node5 is gone, with 4 adapters"], "{found:#?}");
    let back = diff(&read(&text, ""), &fabric);
    assert_eq!(back.len(), 1, "{back:#?}");
    assert_eq!(back[0].id, "diff-host-new");
}

#[test]
fn a_slower_link_is_told_once() {
    let fabric = rails();
    let mut slow = fabric.clone();
    slow.links[0].rate = Rate::parse("4xSDR");
    let found = diff(&fabric, &slow);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].id, found[0].verdict), ("diff-rate", Verdict::Fail));
    assert!(found[0].title.contains("4xNDR to 4xSDR"), "{found:#?}");
}

#[test]
fn firmware_of_many_is_one_finding() {
    let fabric = rails();
    let (mut old, mut new) = (fabric.clone(), fabric);
    for (side, version) in [(&mut old, "1"), (&mut new, "2")] {
        for node in side.nodes.iter_mut().filter(|node| node.kind == Kind::Adapter) {
            node.firmware = Some(version.to_owned());
        }
    }
    let found = diff(&old, &new);
    assert_eq!(found.len(), 1);
    assert!(found[0].title.contains("64 adapters went from 1 to 2"), "{found:#?}");
}

#[test]
fn a_pulled_uplink_whose_far_port_was_taken_is_gone() {
    let old = rails();
    let mut new = rails();
    let first_uplink = |name: &str| {
        let node = old.nodes.iter().position(|node| node.name == name).unwrap();
        let (index, link, spine) = old.uplinks(node).next().unwrap();
        (index, usize::from(link.ends[1] == spine), spine)
    };
    // The cable of one leaf is pulled, and that of another is put where it was.
    let ((pulled, _, freed), (moved, side, _)) =
        (first_uplink("leaf-1-1"), first_uplink("leaf-1-2"));
    new.links[moved].ends[side] = freed;
    new.links.remove(pulled);
    for port in new.nodes.iter_mut().flat_map(|node| &mut node.ports) {
        port.link = None;
    }
    for (index, link) in new.links.iter().enumerate() {
        for end in link.ends {
            new.nodes[end.node].ports[end.port].link = Some(index);
        }
    }
    let found = diff(&old, &new);
    let ids: Vec<&str> = found.iter().map(|finding| finding.id).collect();
    assert_eq!(ids, ["diff-moved", "diff-link-gone"], "{found:#?}");
    assert!(found[1].title.contains("leaf-1-1"), "{found:#?}");
}
