//! JSON of Ethernet fabrics: `lldpcli -f json` (and `json0`), and NetQ's topology.
//!
//! `lldpcli` tells who is heard on each interface of one machine, which it names only in `show chassis`: the
//! machine is named by that, by the key the document stands under, or by the file. Several documents may follow
//! one another.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::describe;
use crate::draft::{Draft, Neighbour, Place, ReadError, Role};
use crate::rate::Rate;

pub(super) fn read(draft: &mut Draft, source: usize, text: &str) -> Result<(), ReadError> {
    let mut machine: Option<String> = None;
    let mut found = 0;
    let mut finder = Finder::new(text, source);
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let (mut counted, mut begins) = (0, 1_u32);
    while let Some(document) = stream.next() {
        finder.from = begins;
        let end = stream.byte_offset();
        let more = text
            .as_bytes()
            .get(counted..end)
            .unwrap_or_default()
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        begins = begins.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        counted = end;
        let document = document.map_err(|error| {
            let line = u32::try_from(error.line()).unwrap_or(u32::MAX);
            draft.error(Place { source, line }, format!("JSON cannot be read: {error}"))
        })?;
        if let Some(chassis) = document.get("local-chassis") {
            machine = chassis_name(first(chassis).get("chassis")).or(machine);
            if let (Some(name), Some(chassis)) = (&machine, first(chassis).get("chassis")) {
                role(draft, name, chassis);
            }
        }
        found += documents(draft, &document, machine.as_deref(), &mut finder)?;
    }
    if found == 0 {
        let what = "the JSON holds no neighbour: wanted is that of lldpcli show neighbors -f json, or NetQ's topology";
        return Err(draft.error(Place { source, line: 1 }, what));
    }
    Ok(())
}

/// The lines of keys, and of what is called `name` or `id`: one pass over the text, then each is looked up.
struct Finder<'a> {
    lines: HashMap<&'a str, Vec<u32>>,
    /// Where the document or the machine begins whose parts are looked for.
    from: u32,
    source: usize,
}

impl<'a> Finder<'a> {
    fn new(text: &'a str, source: usize) -> Self {
        let mut lines: HashMap<&str, Vec<u32>> = HashMap::new();
        let bytes = text.as_bytes();
        let (mut at, mut line) = (0, 1_u32);
        let mut key = "";
        while at < bytes.len() {
            match bytes[at] {
                b'\n' => line = line.saturating_add(1),
                b'"' => {
                    let begin = at + 1;
                    at = begin;
                    while at < bytes.len() && bytes[at] != b'"' {
                        at += if bytes[at] == b'\\' { 2 } else { 1 };
                    }
                    // A sign that an escape takes in may be of several bytes: then it is no word of ours.
                    let word = text.get(begin..at.min(bytes.len())).unwrap_or_default();
                    let is_key = bytes[(at + 1).min(bytes.len())..]
                        .iter()
                        .find(|byte| !byte.is_ascii_whitespace())
                        .is_some_and(|byte| *byte == b':');
                    if is_key || matches!(key, "name" | "id") {
                        let known = lines.entry(word).or_default();
                        if known.last() != Some(&line) {
                            known.push(line);
                        }
                    }
                    key = if is_key { word } else { "" };
                }
                _ => {}
            }
            at += 1;
        }
        Self { lines, from: 1, source }
    }

    /// The first line with this word from the beginning on.
    fn line(&self, word: &str) -> u32 {
        let found = self.lines.get(word).and_then(|lines| {
            let next = lines.partition_point(|line| *line < self.from);
            lines.get(next).copied()
        });
        found.unwrap_or(self.from)
    }

    fn place(&self, word: &str) -> Place {
        Place { source: self.source, line: self.line(word) }
    }
}

/// Reads whatever a document holds; tells how many links.
fn documents(
    draft: &mut Draft,
    document: &Value,
    machine: Option<&str>,
    finder: &mut Finder<'_>,
) -> Result<usize, ReadError> {
    if let Some(lldp) = document.get("lldp") {
        let file =
            draft.sources.get(finder.source).map_or("machine", |source| source.name.as_str());
        let name = machine.map_or_else(|| machine_of(file).to_owned(), ToOwned::to_owned);
        return lldp_neighbours(draft, lldp, &name, finder);
    }
    if document.get("links").is_some() && document.get("nodes").is_some() {
        return netq(draft, document, finder);
    }
    let mut found = 0;
    match document {
        Value::Array(parts) => {
            for part in parts.iter().filter(|part| part.is_object()) {
                found += documents(draft, part, machine, finder)?;
            }
        }
        // `{"leaf1": {"lldp": …}, …}`
        Value::Object(parts) => {
            let whole = finder.from;
            for (name, part) in parts.iter().filter(|(_, part)| part.get("lldp").is_some()) {
                finder.from = whole;
                finder.from = finder.line(name);
                found += documents(draft, part, Some(name), finder)?;
            }
            finder.from = whole;
        }
        _ => {}
    }
    Ok(found)
}

/// The machine whose file it is: `leaf1.example.org.json`. Names of machines hold points.
fn machine_of(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    let ends = [".json", ".json0", ".txt"];
    ends.iter().find_map(|end| name.strip_suffix(end)).filter(|n| !n.is_empty()).unwrap_or(name)
}

/// `json0` wraps every value into a list.
fn first(value: &Value) -> &Value {
    match value {
        Value::Array(parts) => parts.first().unwrap_or(&Value::Null),
        value => value,
    }
}

/// A text, also as `[{"value": "…"}]`.
fn text(value: Option<&Value>) -> Option<String> {
    let value = first(value?);
    let plain = value.as_str().or_else(|| value.get("value").and_then(Value::as_str))?;
    Some(describe::tidied(plain)).filter(|plain| !plain.is_empty())
}

/// `{"leaf1": {…}}`, `[{"name": [{"value": "leaf1"}], …}]`, or its id where it has no name.
fn chassis_name(chassis: Option<&Value>) -> Option<String> {
    chassis_told(chassis).map(|(name, _)| name)
}

/// What a chassis is called, and whether that is a name.
fn chassis_told(chassis: Option<&Value>) -> Option<(String, bool)> {
    let chassis = first(chassis?);
    if let Some(name) = text(chassis.get("name")) {
        return Some((name, true));
    }
    if chassis.get("id").is_some() {
        return Some((text(chassis.get("id"))?, false));
    }
    let named = chassis.as_object()?.iter().find(|(_, value)| value.is_object())?;
    Some((describe::tidied(named.0), true))
}

fn role(draft: &mut Draft, name: &str, chassis: &Value) {
    let chassis = first(chassis);
    let inner = chassis.get(name).unwrap_or(chassis);
    let Some(capabilities) = inner.get("capability") else { return };
    let list = match capabilities {
        Value::Array(list) => &list[..],
        one => std::slice::from_ref(one),
    };
    let forwards = list.iter().any(|one| {
        let kind = one.get("type").and_then(Value::as_str);
        matches!(kind, Some("Bridge" | "Router")) && one.get("enabled") == Some(&Value::Bool(true))
    });
    draft.role(name, if forwards { Role::Forwards } else { Role::Host });
}

fn lldp_neighbours(
    draft: &mut Draft,
    lldp: &Value,
    machine: &str,
    finder: &Finder<'_>,
) -> Result<usize, ReadError> {
    let lldp = first(lldp);
    let mut heard: Vec<(&str, &Value)> = Vec::new();
    let listed = match lldp.get("interface") {
        Some(Value::Array(list)) => &list[..],
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    for one in listed {
        let named = one.get("name").and_then(Value::as_str);
        match (named, one.as_object()) {
            (Some(name), _) => heard.push((name, one)),
            (None, Some(by_name)) => heard.extend(by_name.iter().map(|(n, v)| (n.as_str(), v))),
            (None, None) => {}
        }
    }
    for (interface, told) in &heard {
        let place = finder.place(interface);
        let remote = chassis_told(told.get("chassis"));
        let port = told.get("port").map(first);
        let remote_port = port.and_then(port_name);
        let (Some((remote, named)), Some(remote_port)) = (remote, remote_port) else {
            let what = format!(
                "what {machine} hears on {interface} has no chassis or port: cut or damaged"
            );
            return Err(draft.error(place, what));
        };
        if let Some(chassis) = told.get("chassis") {
            role(draft, &remote, chassis);
        }
        let negotiated = port.and_then(|port| port.get("auto-negotiation")).map(first);
        let current = negotiated.and_then(|negotiated| text(negotiated.get("current")));
        draft.neighbours.push(Neighbour {
            local: describe::tidied(machine),
            local_port: describe::tidied(interface),
            remote,
            remote_port,
            rate: current.as_deref().and_then(ethernet_rate),
            place,
            named,
        });
    }
    Ok(heard.len())
}

/// The interface's name; where the id is a hardware address, the description has it.
fn port_name(port: &Value) -> Option<String> {
    let id = port.get("id").map(first);
    let kind = id.and_then(|id| id.get("type")).and_then(Value::as_str);
    let value = id.and_then(|id| text(Some(id)));
    match kind {
        Some("ifname" | "local") => value,
        _ => text(port.get("descr")).or(value),
    }
}

/// `400GbaseDR4`, `10GigBaseT`, `1000BaseTFD`
fn ethernet_rate(text: &str) -> Option<Rate> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u32 = text[..digits].parse().ok()?;
    match text[digits..].chars().next() {
        Some('G' | 'g') => Rate::ethernet(number),
        Some('B' | 'b') => Rate::ethernet(number / 1000),
        _ => None,
    }
}

/// NetQ: nodes grouped by tier, links with the interfaces of both ends.
fn netq(draft: &mut Draft, document: &Value, finder: &Finder<'_>) -> Result<usize, ReadError> {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for group in list(document.get("nodes")) {
        let inside = list(group.get("compounded_nodes"));
        let nodes = if inside.is_empty() { vec![group] } else { inside };
        for node in nodes {
            let (Some(id), Some(name)) = (text(node.get("id")), text(node.get("name"))) else {
                continue;
            };
            let times = taken.entry(name.clone()).or_default();
            *times += 1;
            let name = if *times > 1 { format!("{name} ({id})") } else { name };
            match node.get("device_type").and_then(Value::as_str) {
                Some(kind) if kind.contains("switch") => draft.role(&name, Role::Switch),
                Some(kind) if kind.contains("host") => draft.role(&name, Role::Host),
                _ => {}
            }
            names.insert(id, name);
        }
    }
    let mut found = 0;
    for bundle in list(document.get("links")) {
        let inside = list(bundle.get("compounded_links"));
        let links = if inside.is_empty() { vec![bundle] } else { inside };
        for link in links {
            let place = text(link.get("id")).map(|id| finder.place(&id)).unwrap_or_default();
            let ends: Vec<(Option<String>, Option<String>)> = list(link.get("interfaces"))
                .iter()
                .map(|end| (text(end.get("node")), text(end.get("interface"))))
                .collect();
            let [(Some(a), Some(a_port)), (Some(b), Some(b_port))] = &ends[..] else {
                return Err(
                    draft.error(place, "a link without a node and an interface at both ends")
                );
            };
            let (Some(local), Some(remote)) = (names.get(a), names.get(b)) else {
                let what = format!(
                    "the link names {a} and {b}, but nodes has only one of them or none: cut short"
                );
                return Err(draft.error(place, what));
            };
            draft.neighbours.push(Neighbour {
                local: local.clone(),
                local_port: a_port.clone(),
                remote: remote.clone(),
                remote_port: b_port.clone(),
                rate: None,
                place,
                named: true,
            });
            found += 1;
        }
    }
    Ok(found)
}
