//! `iblinkinfo`: a header for each node and a line for each port, or with `-l` all in one line.
//!
//! ```text
//! Switch: 0x2c5e leaf-1:
//!     73    1[  ] ==( 4X    106.25 Gbps Active/  LinkUp)==>     647    1[  ] "node1 mlx5_0" ( )
//!     73    2[  ] ==(                Down/ Polling)==>             [  ] "" ( )
//! ```
//!
//! Without `-l` the other end is told by its local identifier and its name alone.

use std::collections::{BTreeMap, BTreeSet};

use super::{Line, guid, shown};
use crate::describe;
use crate::draft::{Draft, Half, ReadError};
use crate::model::{Kind, PortState};
use crate::rate::Rate;

/// Ports of an adapter, at most: what has more is a switch.
const ADAPTER_PORTS: u32 = 4;

struct Row<'a> {
    node: usize,
    port: u32,
    rate: Option<Rate>,
    peer: Option<Peer<'a>>,
    line: Line<'a>,
}

/// Whose ports the next lines are of.
#[derive(Clone, Copy)]
enum Header<'a> {
    Node(usize),
    /// An adapter's GUID stands in its ports' lines; its name may be that of many.
    Adapter {
        name: &'a str,
        line: Line<'a>,
    },
}

struct Peer<'a> {
    guid: Option<u64>,
    lid: u32,
    port: u32,
    name: &'a str,
}

pub(super) fn read<'a>(draft: &mut Draft, lines: &[Line<'a>]) -> Result<(), ReadError> {
    let mut node: Option<Header<'a>> = None;
    let mut rows: Vec<Row<'a>> = Vec::new();
    let mut adapters_told = false;
    let mut header_at: Option<(Line<'_>, usize)> = None;
    for line in lines {
        let text = line.text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some((before, rest)) = text.split_once("==(") {
            let row = row(draft, &mut node, line, before, rest)?;
            adapters_told |= draft.nodes[row.node].kind == Kind::Adapter;
            rows.push(row);
            continue;
        }
        let head = ["Switch: ", "CA: ", "Router: "];
        let Some(word) = head.iter().find(|word| text.starts_with(**word)) else {
            let what = format!("{} is no line of iblinkinfo: cut or damaged", shown(text));
            return Err(draft.error(line.place, what));
        };
        told(draft, header_at, rows.len())?;
        node = Some(header(draft, word, text, line)?);
        header_at = Some((*line, rows.len()));
    }
    told(draft, header_at, rows.len())?;
    join(draft, &rows, adapters_told)?;
    if let Some(last) = rows.last() {
        let mut nodes: Vec<usize> = rows.iter().map(|row| row.node).collect();
        nodes.dedup();
        draft.ends_whole(last.node, &nodes, last.line.place);
    }
    Ok(())
}

/// A node is told of for the sake of its ports.
fn told(draft: &Draft, header: Option<(Line<'_>, usize)>, rows: usize) -> Result<(), ReadError> {
    match header {
        Some((line, before)) if before == rows => {
            let what = format!("{} has no port below it: the dump was cut short", shown(line.text));
            Err(draft.error(line.place, what))
        }
        _ => Ok(()),
    }
}

/// `Switch: 0x2c5e leaf-1:`, `CA: node1 mlx5_0:`
fn header<'a>(
    draft: &mut Draft,
    word: &str,
    text: &'a str,
    line: &Line<'a>,
) -> Result<Header<'a>, ReadError> {
    let rest = text[word.len()..].trim();
    let Some(rest) = rest.strip_suffix(':') else {
        return Err(
            draft.error(line.place, format!("{} does not end with a colon: cut", shown(text)))
        );
    };
    if word != "Switch: " {
        return Ok(Header::Adapter { name: rest, line: *line });
    }
    let (id, name) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let Some(id) = guid(id) else {
        return Err(draft.error(line.place, format!("{} holds no GUID", shown(text))));
    };
    let node = draft.by_guid(id, Kind::Switch, line.place);
    draft.describe(node, name, true);
    draft.nodes[node].defined = Some(line.place);
    Ok(Header::Node(node))
}

/// The adapter of a heading: one that another dump told of, by a port's GUID, or a new one.
fn adapter(draft: &mut Draft, name: &str, line: &Line<'_>, own: Option<u64>) -> usize {
    let known = own.and_then(|own| draft.known(own));
    let node = known.unwrap_or_else(|| {
        draft.by_key(&format!("{name} line {}", line.number), Kind::Adapter, line.place)
    });
    draft.describe(node, name, true);
    draft.nodes[node].defined = Some(line.place);
    node
}

fn row<'a>(
    draft: &mut Draft,
    header: &mut Option<Header<'a>>,
    line: &Line<'a>,
    before: &str,
    rest: &'a str,
) -> Result<Row<'a>, ReadError> {
    let cut = |draft: &Draft, what: &str| {
        draft.error(line.place, format!("{} {what}: the line is cut or damaged", shown(line.text)))
    };
    let Some((state, remote)) = rest.split_once(")==>") else {
        return Err(cut(draft, "does not tell the other end"));
    };
    // `0xguid "name" lid port[ext]`, `0xguid lid port[ext]` or `lid port[ext]`.
    let (before, name) = match before.split_once('"') {
        Some((front, rest)) => {
            let (name, back) = rest.rsplit_once('"').unwrap_or((rest, ""));
            (format!("{front} {back}"), Some(name.trim()))
        }
        None => (before.to_owned(), None),
    };
    let place = before.split('[').next().unwrap_or_default();
    let words: Vec<&str> = place.split_whitespace().collect();
    let own = words.first().and_then(|word| word.strip_prefix("0x")).and_then(guid);
    let (lid, number) = match words[..] {
        [.., lid, number] => (lid.parse::<u32>().ok(), number.parse::<u32>().ok()),
        _ => (None, None),
    };
    let (Some(lid), Some(number)) = (lid, number) else {
        return Err(cut(draft, "wants a local identifier and a port"));
    };
    if number > crate::draft::PORT_MOST {
        return Err(cut(draft, "names a port that no device has"));
    }
    let node = match (*header, name, own) {
        // With -l each line tells its own node; what it is, is seen at the end.
        (_, Some(name), Some(own)) => {
            let node = draft.by_guid(own, Kind::Adapter, line.place);
            draft.describe(node, name, true);
            draft.nodes[node].defined.get_or_insert(line.place);
            if number > ADAPTER_PORTS {
                draft.nodes[node].kind = Kind::Switch;
            }
            node
        }
        (Some(Header::Node(node)), ..) => node,
        (Some(Header::Adapter { name, line }), ..) => {
            let node = adapter(draft, name, &line, own);
            *header = Some(Header::Node(node));
            node
        }
        _ => return Err(cut(draft, "stands under no node")),
    };
    if let (Kind::Adapter, Some(own)) = (draft.nodes[node].kind, own) {
        draft.port_guid(node, number, own);
        let kept = &mut draft.nodes[node];
        kept.guid = kept.guid.or(Some(own));
    }
    if lid > 0 {
        draft.nodes[node].lid = Some(lid);
    }
    let (state, physical, rate) = link_state(state).ok_or_else(|| cut(draft, "tells no state"))?;
    let peer = peer(remote).map_err(|what| cut(draft, what))?;
    let could = remote.rsplit_once('(').map_or("", |(_, note)| note).trim_end_matches(')').trim();
    let port = &mut draft.nodes[node].ports.entry(number).or_default().port;
    port.lid = Some(lid).filter(|lid| *lid > 0).or(port.lid);
    port.state = state;
    port.physical = Some(physical.to_owned());
    port.could_be = Some(if could.contains("Could be") { could.to_owned() } else { String::new() });
    Ok(Row { node, port: number, rate, peer, line: *line })
}

/// ` 4X  106.25 Gbps Active/  LinkUp`
fn link_state(text: &str) -> Option<(PortState, &str, Option<Rate>)> {
    let (front, physical) = text.rsplit_once('/')?;
    let words: Vec<&str> = front.split_whitespace().collect();
    let state = match *words.last()? {
        "Active" => PortState::Active,
        "Init" | "Initialize" | "Armed" => PortState::Init,
        "Down" => PortState::Down,
        _ => return None,
    };
    let lanes = words.first().and_then(|word| word.strip_suffix(['X', 'x']));
    let rate = lanes
        .and_then(|lanes| lanes.parse().ok())
        .and_then(|lanes| Rate::from_lane(lanes, words.get(1)?, front.contains("FDR10")));
    // With -p more follows in parentheses.
    let physical = physical.split(')').next().unwrap_or_default();
    Some((state, physical.trim(), rate))
}

/// `647 1[  ] "node1 mlx5_0" ( )`, with `-l` led by a GUID; nothing where no one is there.
fn peer(text: &str) -> Result<Option<Peer<'_>>, &'static str> {
    let (Some(open), Some(close)) = (text.find('"'), text.rfind('"')) else {
        return Err("does not name the other end");
    };
    if open == close {
        return Err("does not end the other end's name");
    }
    let name = text[open + 1..close].trim();
    let place = text[..open].split('[').next().unwrap_or_default();
    let words: Vec<&str> = place.split_whitespace().collect();
    if name.is_empty() || name == "Port not available" || words.is_empty() {
        return Ok(None);
    }
    if !text.trim_end().ends_with(')') {
        return Err("does not end with the note in parentheses");
    }
    match words[..] {
        [lid, port] | [_, lid, port] => {
            let own = if words.len() == 3 { guid(words[0]) } else { None };
            match (lid.parse(), port.parse()) {
                (Ok(lid), Ok(port)) => Ok(Some(Peer { guid: own, lid, port, name })),
                _ => Err("wants the other end's identifier and port"),
            }
        }
        _ => Err("wants the other end's identifier and port"),
    }
}

/// Joins the rows, now that all nodes are known.
fn join(draft: &mut Draft, rows: &[Row<'_>], adapters_told: bool) -> Result<(), ReadError> {
    let with_rows: BTreeSet<usize> = rows.iter().map(|row| row.node).collect();
    let before = draft.by_lid();
    // Switches are known by their own identifier, adapters by that of a port.
    let mut by_lid: BTreeMap<u32, usize> = BTreeMap::new();
    for row in rows {
        if let Some(lid) = draft.nodes[row.node].ports.get(&row.port).and_then(|port| port.port.lid)
        {
            by_lid.insert(lid, row.node);
        }
    }
    let many: BTreeMap<usize, usize> = rows.iter().fold(BTreeMap::new(), |mut many, row| {
        *many.entry(row.node).or_default() += 1;
        many
    });
    for (node, ports) in many {
        if u32::try_from(ports).is_ok_and(|ports| ports > ADAPTER_PORTS) {
            draft.nodes[node].kind = Kind::Switch;
        }
    }
    for row in rows {
        let Some(peer) = &row.peer else { continue };
        // The GUID is the node's own; the identifier 0 is nobody's.
        let by_guid = peer.guid.and_then(|id| draft.known(id));
        let lid = Some(peer.lid).filter(|lid| *lid > 0);
        let told = by_guid.or_else(|| by_lid.get(&lid?).copied());
        // What another dump told of is the same where it is called the same: planes use the same identifiers.
        let elsewhere = || {
            let node = *before.get(&lid?)?;
            (draft.nodes[node].description == describe::tidied(peer.name)).then_some(node)
        };
        let other = match told.or_else(elsewhere) {
            Some(other) => other,
            None => {
                if peer.port > ADAPTER_PORTS || adapters_told {
                    let what = format!(
                        "{} (lid {}) is at the other end, but has no block of its own: the dump was cut short; take \
                         it again",
                        shown(peer.name),
                        peer.lid
                    );
                    return Err(draft.error(row.line.place, what));
                }
                // Dumps of switches alone tell of adapters from one side.
                let node = match peer.guid {
                    Some(id) => draft.by_guid(id, Kind::Adapter, row.line.place),
                    None => {
                        let key = format!("lid {} {}", peer.lid, peer.name);
                        draft.by_key(&key, Kind::Adapter, row.line.place)
                    }
                };
                draft.nodes[node].loose = true;
                node
            }
        };
        draft.describe(other, peer.name, false);
        let kept = draft.nodes[other].ports.entry(peer.port).or_default();
        kept.port.lid = kept.port.lid.or(lid);
        let alone = !with_rows.contains(&other);
        let half =
            Half { node: other, port: peer.port, rate: row.rate, place: row.line.place, alone };
        draft.join(row.node, row.port, half)?;
        if [row.node, other].iter().all(|node| draft.nodes[*node].kind == Kind::Adapter) {
            let what = format!(
                "{} and {} are linked to each other, and neither shows the ports of a switch: the dump was cut short or \
                 filtered; take it again, or use what is there with --partial",
                draft.called(row.node),
                draft.called(other)
            );
            draft.suspicions.push((row.line.place, what));
        }
    }
    Ok(())
}
