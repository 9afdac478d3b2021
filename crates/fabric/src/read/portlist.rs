//! `ibnetdiscover -p`: a line for each port.
//!
//! ```text
//! CA   134  1 0x7cfe9003003b4bde 4x EDR - SW  1719 10 0x7cfe9003009ce5b0 ( 'node1 HCA-1' - 'leaf1' )
//! SW  2052 37 0x506b4b03005c2740 4x ???                                    'leaf2'
//! ```

use super::{Line, guid, shown};
use crate::draft::{Draft, Half, ReadError};
use crate::model::{Kind, PortState};
use crate::rate::Rate;

pub(super) fn read(draft: &mut Draft, lines: &[Line<'_>]) -> Result<(), ReadError> {
    let mut nodes: Vec<usize> = Vec::new();
    let mut end = Default::default();
    for line in lines {
        let text = line.text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        nodes.push(row(draft, line, text)?);
        end = line.place;
    }
    nodes.dedup();
    if let Some(last) = nodes.last() {
        draft.ends_whole(*last, &nodes, end);
    }
    Ok(())
}

struct PortName {
    kind: Kind,
    lid: u32,
    port: u32,
    guid: u64,
}

fn row(draft: &mut Draft, line: &Line<'_>, text: &str) -> Result<usize, ReadError> {
    let cut = |draft: &Draft, what: &str| {
        draft.error(line.place, format!("{} {what}: the line is cut or damaged", shown(text)))
    };
    let words: Vec<&str> = text.split_whitespace().take(12).collect();
    let (Some(own), Some(width), Some(speed)) = (port_name(&words), words.get(4), words.get(5))
    else {
        return Err(cut(draft, "is no port of ibnetdiscover -p"));
    };
    let lanes = width.strip_suffix(['x', 'X']).and_then(|lanes| lanes.parse::<u8>().ok());
    let Some(lanes) = lanes else { return Err(cut(draft, "wants a width such as 4x")) };
    let rate = match *speed {
        "???" => None,
        name => match Rate::infiniband(lanes, name) {
            None => return Err(cut(draft, "tells a rate that is not known")),
            rate => rate,
        },
    };
    let node = of_port(draft, &own, line);
    draft.nodes[node].defined.get_or_insert(line.place);
    if words.get(6) != Some(&"-") {
        // A port with nothing at its other end.
        let name = text.split_once(speed).map_or("", |(_, rest)| rest).trim().trim_matches('\'');
        if name.is_empty() {
            return Err(cut(draft, "does not tell whose port it is"));
        }
        draft.describe(node, name, true);
        let port = &mut draft.nodes[node].ports.entry(own.port).or_default().port;
        port.state = PortState::Down;
        return Ok(node);
    }
    let names =
        text.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).map(|(names, _)| names);
    let (Some(peer), Some(names)) = (port_name(&words[7..]), names) else {
        return Err(cut(draft, "does not tell its other end whole"));
    };
    let Some((own_name, peer_name)) = names.split_once("' - '") else {
        return Err(cut(draft, "wants both names in quotes"));
    };
    let other = of_port(draft, &peer, line);
    draft.describe(node, own_name.trim().trim_matches('\''), true);
    draft.describe(other, peer_name.trim().trim_matches('\''), false);
    let half = Half { node: other, port: peer.port, rate, place: line.place, alone: false };
    draft.join(node, own.port, half)?;
    Ok(node)
}

fn port_name(words: &[&str]) -> Option<PortName> {
    let kind = match *words.first()? {
        "SW" => Kind::Switch,
        "CA" => Kind::Adapter,
        "RT" => Kind::Router,
        _ => return None,
    };
    let lid = words.get(1)?.parse().ok()?;
    let port = words.get(2)?.parse().ok()?;
    let guid = guid(words.get(3)?).filter(|guid| *guid != 0)?;
    Some(PortName { kind, lid, port, guid })
}

fn of_port(draft: &mut Draft, name: &PortName, line: &Line<'_>) -> usize {
    let node = draft.by_guid(name.guid, name.kind, line.place);
    match name.kind {
        Kind::Switch => draft.nodes[node].lid = Some(name.lid),
        _ => draft.nodes[node].ports.entry(name.port).or_default().port.lid = Some(name.lid),
    }
    node
}
