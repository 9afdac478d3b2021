//! `ibnetdiscover`, and the net files of `ibsim`, which have the same form with names instead of GUIDs.
//!
//! ```text
//! vendid=0x2c9                                        one block a node
//! switchguid=0x2c5e(2c5e)
//! Switch  65 "S-2c5e"   # "MF0;leaf-1:MQM9701/U1" enhanced port 0 lid 73 lmc 0
//! [1]     "H-e09d"[1](e09d)    # "node1 mlx5_0" lid 647 4xNDR
//! Ca      1 "H-e09d"    # "node1 mlx5_0"
//! [1](e09d)  "S-2c5e"[1]       # lid 647 lmc 0 "MF0;leaf-1:MQM9701/U1" lid 73 4xNDR
//! ```

use super::{Line, guid, quoted, shown};
use crate::draft::{Draft, Half, ReadError};
use crate::model::Kind;
use crate::rate::{INFINIBAND, Rate};

pub(super) fn read(draft: &mut Draft, lines: &[Line<'_>]) -> Result<(), ReadError> {
    let mut node: Option<usize> = None;
    let mut device: Option<String> = None;
    let mut links = 0;
    // A net file tells no identifiers at all: a line without them among others that have some is cut.
    let simulated = !lines.iter().any(|line| parted(line.text).1.contains("lid "));
    for line in lines {
        let text = line.text.trim();
        let wrong = |draft: &Draft, what: String| draft.error(line.place, what);
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some((key, value)) = text.split_once('=').filter(|(key, _)| is_key(key)) {
            node = None;
            if key == "devid" {
                device = value.split_whitespace().next().map(ToOwned::to_owned);
            }
            if key.ends_with("guid") && guid(first_number(value)).is_none() {
                return Err(wrong(
                    draft,
                    format!("{} is no GUID: the line is cut or damaged", shown(value)),
                ));
            }
            continue;
        }
        if text.starts_with('[') {
            let Some(node) = node else {
                return Err(wrong(
                    draft,
                    "a port without the node that it is of: the beginning is missing".into(),
                ));
            };
            port(draft, node, line, simulated)?;
            links += 1;
            continue;
        }
        let word = text.split_whitespace().next().unwrap_or_default();
        match word {
            "Switch" | "Ca" | "Hca" | "Rt" => {
                node = Some(header(draft, word, line, device.take())?);
            }
            "Chassis" | "Hostname:" | "Non-Chassis" => node = None,
            _ => {
                let what = format!("{} is no line of ibnetdiscover: cut or damaged", shown(text));
                return Err(wrong(draft, what));
            }
        }
    }
    if links == 0 {
        let last = lines.last().map_or_else(Default::default, |line| line.place);
        let what = "the dump has no link: ibnetdiscover failed, the port it started from is down, or it was cut short";
        return Err(draft.error(last, what));
    }
    Ok(())
}

fn is_key(key: &str) -> bool {
    matches!(
        key,
        "vendid" | "devid" | "sysimgguid" | "switchguid" | "caguid" | "rtguid" | "chassisguid"
    )
}

fn first_number(value: &str) -> &str {
    value.split(|c: char| c == '(' || c.is_whitespace()).next().unwrap_or_default()
}

/// `Switch 65 "S-2c5e" # "name" enhanced port 0 lid 73 lmc 0`
fn header(
    draft: &mut Draft,
    word: &str,
    line: &Line<'_>,
    device: Option<String>,
) -> Result<usize, ReadError> {
    let (front, comment) = parted(line.text);
    let kind = match word {
        "Switch" => Kind::Switch,
        "Rt" => Kind::Router,
        _ => Kind::Adapter,
    };
    let count = front.split_whitespace().nth(1).and_then(|count| count.parse::<u32>().ok());
    let id = quoted(front, '"').map(|(id, _)| id);
    let (Some(count), Some(id)) = (count, id.filter(|id| !id.is_empty())) else {
        let what = format!(
            "{} wants a number of ports and a name in quotes: the line is cut or damaged",
            word
        );
        return Err(draft.error(line.place, what));
    };
    let node = by_id(draft, id, kind, line)?;
    let known = &mut draft.nodes[node];
    if let Some(before) = known.defined.filter(|before| before.source == line.place.source) {
        let what = format!(
            "{id} has a block already, in line {}: two devices with one GUID, or two dumps in one",
            before.line
        );
        return Err(draft.error(line.place, what));
    }
    known.defined = Some(line.place);
    known.port_count = count;
    known.device = device.or_else(|| known.device.take());
    if known.guid.is_none() {
        known.kind = kind;
    } else if known.kind != kind && known.kind != Kind::Aggregation {
        let what = format!(
            "{id} is a {word} here, but line {} takes it for something else",
            known.named.line
        );
        return Err(draft.error(line.place, what));
    }
    let (description, rest) = quoted(comment, '"').unwrap_or(("", comment));
    if comment.contains('"') && quoted(comment, '"').is_none() {
        return Err(draft.error(line.place, "the name's closing quote is missing: the line is cut"));
    }
    known.lid = after(rest, "lid").and_then(|lid| lid.parse().ok()).or(known.lid);
    let description = if description.is_empty() { id } else { description };
    draft.describe(node, description, true);
    Ok(node)
}

/// `[1](e09d) "S-2c5e"[1] # lid 647 lmc 0 "name" lid 73 4xNDR`
fn port(draft: &mut Draft, node: usize, line: &Line<'_>, simulated: bool) -> Result<(), ReadError> {
    let (front, comment) = parted(line.text);
    let cut = |draft: &Draft, what: &str| {
        let text = format!("{} {what}: the line is cut or damaged", shown(line.text));
        draft.error(line.place, text)
    };
    let Some((own, rest)) = front.trim_start().split_once('"') else {
        return Err(cut(draft, "names no other end"));
    };
    let Some((peer, back)) = rest.split_once('"') else {
        return Err(cut(draft, "does not end the other end's name"));
    };
    let (Some(number), Some(peer_port)) = (bracketed(own), bracketed(back)) else {
        return Err(cut(draft, "wants the numbers of both ports in brackets"));
    };
    let kind = match peer.get(..2) {
        Some("S-") => Kind::Switch,
        Some("R-") => Kind::Router,
        _ => Kind::Adapter,
    };
    let (description, tail) = quoted(comment, '"').unwrap_or(("", comment));
    let rate = match rate_of(tail, back, simulated) {
        Ok(rate) => rate,
        Err(word) => {
            let names: Vec<&str> = INFINIBAND.iter().map(|generation| generation.name).collect();
            let what = format!(
                "{} is no known rate; known are {}, with lanes: 4xNDR",
                shown(word),
                names.join(" ")
            );
            return Err(draft.error(line.place, what));
        }
    };
    if !simulated && rate.is_none() && !tail.contains("???") {
        return Err(cut(draft, "tells no rate at its end"));
    }
    let other = by_id(draft, peer, kind, line)?;
    if !description.is_empty() {
        draft.describe(other, description, false);
    }
    if let Some(own_guid) = parenthesised(own).and_then(guid) {
        draft.port_guid(node, number, own_guid);
    }
    if let Some(peer_guid) = parenthesised(back).and_then(guid) {
        draft.port_guid(other, peer_port, peer_guid);
    }
    let lid = after(tail, "lid").and_then(|lid| lid.parse::<u32>().ok());
    match draft.nodes[other].kind {
        Kind::Switch => draft.nodes[other].lid = draft.nodes[other].lid.or(lid),
        _ => draft.nodes[other].ports.entry(peer_port).or_default().port.lid = lid,
    }
    let half = Half { node: other, port: peer_port, rate, place: line.place, alone: false };
    draft.join(node, number, half)
}

/// What is before and behind the comment sign. Names stand in quotes before it and hold none.
fn parted(text: &str) -> (&str, &str) {
    text.split_once('#').unwrap_or((text, ""))
}

/// The node of an id: `S-` and `H-` carry GUIDs, others are names.
fn by_id(draft: &mut Draft, id: &str, kind: Kind, line: &Line<'_>) -> Result<usize, ReadError> {
    let number = id.get(2..).filter(|_| id.get(1..2) == Some("-")).and_then(guid);
    match number {
        Some(0) => {
            Err(draft
                .error(line.place, format!("{id} has no GUID: flash one, or the dump is damaged")))
        }
        Some(number) => Ok(draft.by_guid(number, kind, line.place)),
        None if id.starts_with("S-") || id.starts_with("H-") => Err(draft
            .error(line.place, format!("{} holds no GUID: the line is cut or damaged", shown(id)))),
        // A net file's names do not tell what they are: the block does.
        None => Ok(draft.by_key(id, kind, line.place)),
    }
}

fn bracketed(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']')?.0.trim().parse().ok()
}

fn parenthesised(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('(')?;
    Some(rest.split_once(')')?.0)
}

/// The word after the last such word.
fn after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let mut words = text.split_whitespace();
    let mut found = None;
    while let Some(one) = words.next() {
        if one == word {
            found = words.next();
        }
    }
    found
}

/// `4xNDR` at the end of a comment; in net files of `ibsim` `w=4` and `s=4`, of which 4x SDR is the default.
fn rate_of<'a>(tail: &'a str, back: &str, simulated: bool) -> Result<Option<Rate>, &'a str> {
    let is_rate = |word: &&str| {
        let digits = word.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0 && word[digits..].starts_with('x')
    };
    if let Some(word) = tail.split_whitespace().find(is_rate) {
        return match Rate::parse(word) {
            None if word.ends_with("???") => Ok(None),
            None => Err(word),
            rate => Ok(rate),
        };
    }
    if !simulated {
        return Ok(None);
    }
    let number = |key: &str| {
        let word = back.split_whitespace().find_map(|word| word.strip_prefix(key));
        word.and_then(|value| value.parse::<u8>().ok())
    };
    let generation = match number("s=") {
        Some(2) => "DDR",
        Some(4) => "QDR",
        _ => "SDR",
    };
    Ok(Rate::infiniband(number("w=").unwrap_or(4), generation))
}
