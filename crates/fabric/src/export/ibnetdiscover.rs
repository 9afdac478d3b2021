//! As `ibnetdiscover` would print it: for tools that read dumps, and to keep one.

use std::fmt::Write as _;

use crate::model::{End, Fabric, Kind, Node};

/// Where GUIDs begin for nodes that have none.
const INVENTED: u64 = 0xe000_0000_0000_0000;

/// Writes the dump.
#[must_use]
pub fn write(fabric: &Fabric) -> String {
    let mut text = String::from("#\n# Topology file: written by ringway\n#\n");
    for wanted in [Kind::Switch, Kind::Router, Kind::Aggregation, Kind::Adapter] {
        for (index, node) in fabric.nodes.iter().enumerate().filter(|(_, node)| node.kind == wanted)
        {
            block(&mut text, fabric, index, node);
        }
    }
    text
}

fn guid(fabric: &Fabric, index: usize) -> u64 {
    fabric.nodes[index].guid.unwrap_or(INVENTED + index as u64)
}

fn id(fabric: &Fabric, index: usize) -> String {
    let mark = match fabric.nodes[index].kind {
        Kind::Switch => 'S',
        Kind::Router => 'R',
        Kind::Adapter | Kind::Aggregation => 'H',
    };
    format!("{mark}-{:016x}", guid(fabric, index))
}

fn description(node: &Node) -> String {
    let plain = node.name.replace('"', "'");
    match &node.model {
        Some(model) => format!("MF0;{plain}:{model}/U1"),
        None => plain,
    }
}

fn lid(node: &Node, port: usize) -> u32 {
    node.lid.or_else(|| node.ports.get(port).and_then(|port| port.lid)).unwrap_or(0)
}

fn block(text: &mut String, fabric: &Fabric, index: usize, node: &Node) {
    let number = guid(fabric, index);
    let _ = writeln!(text, "\nvendid=0x2c9");
    if let Some(device) = &node.device {
        let _ = writeln!(text, "devid={}", device.replace(char::is_whitespace, "_"));
    }
    let most = node.ports.iter().map(|port| port.number).max().unwrap_or(1);
    let count = node.port_count.max(most);
    let (word, key) = match node.kind {
        Kind::Switch => ("Switch", "switchguid"),
        Kind::Router => ("Rt", "rtguid"),
        Kind::Adapter | Kind::Aggregation => ("Ca", "caguid"),
    };
    let own = description(node);
    match node.kind {
        Kind::Switch => {
            let _ = writeln!(text, "{key}=0x{number:x}({number:x})");
            let _ = writeln!(
                text,
                "{word}\t{count} \"{}\"\t\t# \"{own}\" enhanced port 0 lid {} lmc 0",
                id(fabric, index),
                lid(node, 0)
            );
        }
        _ => {
            let _ = writeln!(text, "{key}=0x{number:x}");
            let _ = writeln!(text, "{word}\t{count} \"{}\"\t\t# \"{own}\"", id(fabric, index));
        }
    }
    for (at, port) in node.ports.iter().enumerate() {
        let Some(link) = port.link.and_then(|link| fabric.links.get(link)) else { continue };
        let here = End { node: index, port: at };
        let far = if link.ends[0] == here { link.ends[1] } else { link.ends[0] };
        let other = &fabric.nodes[far.node];
        let far_port = &other.ports[far.port];
        // Ethernet's rates have no name there; what is nearest says the same number.
        let rate = link.rate.map_or_else(
            || "4x???".to_owned(),
            |rate| match rate.generation() {
                Some(_) => rate.to_string(),
                None => crate::rate::Rate::from_stated(rate.mbps() / 1000)
                    .filter(|same| same.generation().is_some())
                    .map_or_else(|| "4x???".to_owned(), |same| same.to_string()),
            },
        );
        let peer = description(other);
        let port_guid = |fallback: u64, port: &crate::model::Port| port.guid.unwrap_or(fallback);
        let _ = match node.kind {
            Kind::Switch => {
                let far_guid = match other.kind {
                    Kind::Switch => String::new(),
                    _ => format!("({:x}) ", port_guid(guid(fabric, far.node), far_port)),
                };
                writeln!(
                    text,
                    "[{}]\t\"{}\"[{}]{far_guid}\t\t# \"{peer}\" lid {} {rate}",
                    port.number,
                    id(fabric, far.node),
                    far_port.number,
                    lid(other, far.port),
                )
            }
            _ => writeln!(
                text,
                "[{}]({:x}) \t\"{}\"[{}]\t\t# lid {} lmc 0 \"{peer}\" lid {} {rate}",
                port.number,
                port_guid(number, port),
                id(fabric, far.node),
                far_port.number,
                port.lid.unwrap_or(0),
                lid(other, far.port),
            ),
        };
    }
}
