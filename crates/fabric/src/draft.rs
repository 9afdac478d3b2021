//! A fabric while it is read: dumps are laid over each other here, and it is seen whether they fit together.
//!
//! Dumps tell of links from both ends, each in its own line. A link that only one end tells of, a node that is named
//! but never described, two lines that contradict each other: those are what a dump that was cut short looks
//! like, so they are errors with the line, unless parts are asked for.
//!
//! *Invariant:* what is kept is proportional to what was read; a number in a dump makes nothing grow.

mod ethernet;
mod finish;

use std::collections::{BTreeMap, HashMap};

use crate::counter::Counters;
use crate::describe;
use crate::model::{Kind, Port, Source};
use crate::rate::Rate;

pub(crate) use ethernet::{Neighbour, Role};
pub use finish::FinishOptions;
pub(crate) use finish::stem;

/// The highest port number that is believed.
pub const PORT_MOST: u32 = 4096;

/// Ports of switches that are made, each also with one for reductions.
const PORT_COUNTS: [u32; 28] = [
    8, 12, 16, 18, 20, 24, 32, 36, 37, 40, 41, 48, 64, 65, 72, 73, 80, 81, 96, 108, 128, 129, 144,
    145, 256, 257, 324, 648,
];

/// Why a dump cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{source_name}:{line}: {what}")]
pub struct ReadError {
    /// The file.
    pub source_name: String,
    /// The line, from 1.
    pub line: u32,
    /// What is wrong, and what to do.
    pub what: String,
}

/// Where something was read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Place {
    pub(crate) source: usize,
    pub(crate) line: u32,
}

/// The other end of a port, as one line tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Half {
    pub(crate) node: usize,
    pub(crate) port: u32,
    pub(crate) rate: Option<Rate>,
    pub(crate) place: Place,
    /// Whether the other end's own line may be missing.
    pub(crate) alone: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct DraftPort {
    pub(crate) port: Port,
    pub(crate) half: Option<Half>,
}

#[derive(Clone, Debug)]
pub(crate) struct DraftNode {
    pub(crate) kind: Kind,
    pub(crate) guid: Option<u64>,
    pub(crate) key: String,
    pub(crate) description: String,
    pub(crate) device: Option<String>,
    pub(crate) lid: Option<u32>,
    pub(crate) port_count: u32,
    pub(crate) firmware: Option<String>,
    pub(crate) faults: Vec<String>,
    /// Where its own block stands.
    pub(crate) defined: Option<Place>,
    /// Where it was named first.
    pub(crate) named: Place,
    /// Whether it may go without a block.
    pub(crate) loose: bool,
    /// Host and label, where they do not follow from the description.
    pub(crate) owner: Option<(String, String)>,
    pub(crate) ports: BTreeMap<u32, DraftPort>,
}

/// Whose counters they are.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Counted {
    Lid(u32),
    Guid(u64),
    Interface { host: String, interface: String },
}

/// One block of counters.
#[derive(Clone, Debug)]
pub(crate) struct CounterBlock {
    pub(crate) whose: Counted,
    pub(crate) port: u32,
    pub(crate) values: Counters,
}

/// An adapter as `ibstat` shows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stat {
    pub(crate) label: String,
    pub(crate) guid: u64,
    pub(crate) firmware: Option<String>,
    pub(crate) device: Option<String>,
    pub(crate) ports: Vec<Port>,
    pub(crate) ethernet: bool,
    pub(crate) place: Place,
}

/// A switch as `ibswinfo` shows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vitals {
    pub(crate) guid: Option<u64>,
    pub(crate) firmware: Option<String>,
    pub(crate) part: Option<String>,
    pub(crate) description: String,
    pub(crate) faults: Vec<String>,
    pub(crate) place: Place,
}

/// What is known so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    pub(crate) sources: Vec<Source>,
    pub(crate) nodes: Vec<DraftNode>,
    by_guid: HashMap<u64, usize>,
    by_port_guid: HashMap<u64, usize>,
    by_key: HashMap<String, usize>,
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) roles: BTreeMap<String, Role>,
    pub(crate) counters: Vec<CounterBlock>,
    /// Whether ports that are not told have counted next to nothing.
    pub(crate) errors_listed: bool,
    pub(crate) stats: Vec<Stat>,
    pub(crate) vitals: Vec<Vitals>,
    pub(crate) remarks: Vec<String>,
    /// What looks cut short; an error unless parts are asked for.
    pub(crate) suspicions: Vec<(Place, String)>,
}

impl Draft {
    pub(crate) fn error(&self, place: Place, what: impl Into<String>) -> ReadError {
        let name = self.sources.get(place.source).map_or("input", |source| &source.name);
        ReadError { source_name: name.to_owned(), line: place.line.max(1), what: what.into() }
    }

    /// The node with this GUID, which may also be that of one of its ports.
    pub(crate) fn by_guid(&mut self, guid: u64, kind: Kind, place: Place) -> usize {
        if let Some(known) = self.by_guid.get(&guid).or_else(|| self.by_port_guid.get(&guid)) {
            return *known;
        }
        let index = self.push(kind, Some(guid), format!("{guid:016x}"), place);
        self.by_guid.insert(guid, index);
        index
    }

    /// The node with this name, where dumps have no GUIDs.
    pub(crate) fn by_key(&mut self, key: &str, kind: Kind, place: Place) -> usize {
        let key = key.trim();
        if let Some(known) = self.by_key.get(key) {
            return *known;
        }
        let index = self.push(kind, None, describe::tidied(key), place);
        self.by_key.insert(key.to_owned(), index);
        index
    }

    /// The node with this GUID, if there is one.
    pub(crate) fn known(&self, guid: u64) -> Option<usize> {
        self.by_guid.get(&guid).or_else(|| self.by_port_guid.get(&guid)).copied()
    }

    /// Keeps the GUID of a node's port.
    pub(crate) fn port_guid(&mut self, node: usize, port: u32, guid: u64) {
        self.nodes[node].ports.entry(port).or_default().port.guid = Some(guid);
        self.by_port_guid.entry(guid).or_insert(node);
    }

    /// Nodes by local identifier: a switch's own, those of an adapter's ports.
    pub(crate) fn by_lid(&self) -> HashMap<u32, usize> {
        let mut found = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            match node.kind {
                Kind::Switch => found.extend(node.lid.map(|lid| (lid, index))),
                _ => found.extend(node.ports.values().filter_map(|p| Some((p.port.lid?, index)))),
            }
        }
        found
    }

    fn push(&mut self, kind: Kind, guid: Option<u64>, key: String, named: Place) -> usize {
        self.nodes.push(DraftNode {
            kind,
            guid,
            description: String::new(),
            key,
            device: None,
            lid: None,
            port_count: 0,
            firmware: None,
            faults: Vec::new(),
            defined: None,
            named,
            loose: false,
            owner: None,
            ports: BTreeMap::new(),
        });
        self.nodes.len() - 1
    }

    /// Keeps what a node is called; a description from its own block is better than one from a neighbour's.
    pub(crate) fn describe(&mut self, node: usize, description: &str, own: bool) {
        let node = &mut self.nodes[node];
        if own || node.description.is_empty() {
            node.description = describe::tidied(description);
        }
        if node.kind == Kind::Adapter && describe::is_aggregation(&node.description) {
            node.kind = Kind::Aggregation;
        }
    }

    /// Keeps the line of one end of a link.
    pub(crate) fn join(&mut self, node: usize, port: u32, half: Half) -> Result<(), ReadError> {
        for number in [port, half.port] {
            if number == 0 || number > PORT_MOST {
                return Err(self.error(half.place, format!("no device has a port {number}")));
            }
        }
        if node == half.node && port == half.port {
            return Err(self.error(half.place, format!("port {port} is linked to itself")));
        }
        let known = self.nodes[node].ports.entry(port).or_default();
        match known.half {
            None => known.half = Some(half),
            Some(was) if (was.node, was.port) == (half.node, half.port) => {
                let rate = half.rate.or(was.rate);
                known.half = Some(Half { rate, alone: was.alone && half.alone, ..was });
            }
            Some(was) => {
                let same = was.place.source == half.place.source;
                let first = self.error(was.place, "");
                let hint = if same {
                    "a port has one cable"
                } else {
                    "are the dumps of one moment? two moments are compared by diff"
                };
                let what = format!(
                    "port {port} of {} is linked to {} port {} here and to {} port {} in {} line {}: {hint}",
                    self.called(node),
                    self.called(half.node),
                    half.port,
                    self.called(was.node),
                    was.port,
                    first.source_name,
                    first.line,
                );
                return Err(self.error(half.place, what));
            }
        }
        Ok(())
    }

    /// Tools that list every port of a switch do not say where their list ends. What ends in a switch with a number
    /// of ports that no other switch of the list has was cut in it; a lone switch is compared with those that are made.
    pub(crate) fn ends_whole(&mut self, last: usize, nodes: &[usize], place: Place) {
        let most = |node: usize| self.nodes[node].ports.keys().next_back().copied().unwrap_or(0);
        if self.nodes[last].kind != Kind::Switch {
            return;
        }
        let own = most(last);
        let mut others = nodes
            .iter()
            .filter(|node| **node != last && self.nodes[**node].kind == Kind::Switch)
            .map(|node| most(*node))
            .peekable();
        let whole = match self.nodes[last].port_count {
            // Another dump may tell.
            told @ 1.. => told == own,
            0 if others.peek().is_none() => PORT_COUNTS.contains(&own),
            0 => others.any(|other| other == own),
        };
        if !whole {
            let what = format!(
                "the list ends with port {own} of {}, which is no other switch's last port: the dump was cut short or \
                 filtered; take it again, or, where the switch is the only one of its kind, use what is there with --partial",
                self.called(last)
            );
            self.suspicions.push((place, what));
        }
    }

    /// A node as errors call it.
    pub(crate) fn called(&self, node: usize) -> String {
        let node = &self.nodes[node];
        match (node.kind, node.description.as_str()) {
            (_, "") => node.key.clone(),
            (Kind::Switch, text) => describe::switch(text).0,
            (_, text) => text.to_owned(),
        }
    }
}
