//! From the draft to the fabric: what must fit together does, or is an error; the rest is attached.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Counted, Draft, Half, ReadError, ethernet};
use crate::describe;
use crate::model::{End, Fabric, Host, Kind, Link, Node, Port, PortState};
use crate::rate::Rate;
use crate::tier;

/// What `perfquery -a` calls the sum of all ports.
const ALL_PORTS: u32 = 255;

/// How to take what does not fit.
#[derive(Clone, Copy, Debug, Default)]
pub struct FinishOptions {
    /// Take a dump that shows only a part of the fabric.
    pub partial: bool,
    /// The rate of links whose rate no dump tells.
    pub rate: Option<Rate>,
}

impl Draft {
    /// The fabric.
    pub(crate) fn finish(mut self, options: FinishOptions) -> Result<Fabric, ReadError> {
        self.settle_neighbours()?;
        self.attach_stats();
        self.attach_vitals();
        if let Some((place, what)) = self.suspicions.first().filter(|_| !options.partial) {
            return Err(self.error(*place, what.clone()));
        }
        self.all_are_described(options.partial)?;
        self.both_sides_tell(options.partial)?;
        self.attach_counters();
        let mut fabric = self.build(options);
        tier::assign(&mut fabric);
        Ok(fabric)
    }

    /// Every node that a link names has a block of its own.
    fn all_are_described(&self, partial: bool) -> Result<(), ReadError> {
        let missing = |node: &&super::DraftNode| node.defined.is_none() && !node.loose;
        let Some(first) = self.nodes.iter().find(missing) else { return Ok(()) };
        if partial {
            return Ok(());
        }
        let many = self.nodes.iter().filter(missing).count();
        let what = format!(
            "{} is named here, but it has no block of its own ({many} such in all): the dump was cut short or \
             filtered; take it again, or use what is there with --partial",
            if first.description.is_empty() { &first.key } else { &first.description },
        );
        Err(self.error(first.named, what))
    }

    /// Every link is told of by both its ends, and they agree.
    fn both_sides_tell(&mut self, partial: bool) -> Result<(), ReadError> {
        let mut alone: Vec<(usize, u32, Half)> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for (number, port) in &node.ports {
                let Some(half) = port.half else { continue };
                let back = self.nodes[half.node].ports.get(&half.port).and_then(|port| port.half);
                match back {
                    Some(back) if (back.node, back.port) == (index, *number) => {}
                    Some(back) => {
                        let other = self.error(back.place, "");
                        let what = format!(
                            "{} port {number} is linked to {} port {}, but {} line {} links that port to {} port {}: \
                             the dump is damaged, or was taken while cables moved",
                            self.called(index),
                            self.called(half.node),
                            half.port,
                            other.source_name,
                            other.line,
                            self.called(back.node),
                            back.port,
                        );
                        return Err(self.error(half.place, what));
                    }
                    None => alone.push((index, *number, half)),
                }
            }
        }
        let unexcused: Vec<_> = alone.iter().filter(|(.., half)| !half.alone).collect();
        if let Some((index, number, half)) = unexcused.first().filter(|_| !partial) {
            let what = format!(
                "{} port {number} is linked to {} port {}, but no line of {} says so ({} such links in all): the \
                 dump was cut short or filtered; take it again, or use what is there with --partial",
                self.called(*index),
                self.called(half.node),
                half.port,
                self.called(half.node),
                unexcused.len(),
            );
            return Err(self.error(half.place, what));
        }
        for (index, number, half) in alone {
            let port = self.nodes[half.node].ports.entry(half.port).or_default();
            let back = Half { node: index, port: number, ..half };
            match port.half.replace(back) {
                Some(other) if (other.node, other.port) != (index, number) => {
                    let what = format!(
                        "{} port {} is at the other end of {} port {number}, and of {} port {} too: a port has one cable",
                        self.called(half.node),
                        half.port,
                        self.called(index),
                        self.called(other.node),
                        other.port,
                    );
                    return Err(self.error(half.place, what));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What `ibstat` tells of adapters, which need not be in a dump of the fabric.
    fn attach_stats(&mut self) {
        let stats = std::mem::take(&mut self.stats);
        let infiniband = self.nodes.iter().any(|node| node.guid.is_some());
        // Adapters of one file are of one host: whose the first known one is, theirs all are.
        let mut hosts: BTreeMap<usize, String> = BTreeMap::new();
        for stat in &stats {
            let known =
                self.known(stat.guid).filter(|node| !self.nodes[*node].description.is_empty());
            if let Some(node) = known {
                let owner = describe::adapter(&self.nodes[node].description);
                if owner.named {
                    hosts.entry(stat.place.source).or_insert(owner.host);
                }
            }
        }
        for stat in stats {
            // Beside a dump of InfiniBand, Ethernet's adapters are of another fabric.
            if stat.ethernet && infiniband && self.known(stat.guid).is_none() {
                continue;
            }
            let node = self.by_guid(stat.guid, Kind::Adapter, stat.place);
            for port in &stat.ports {
                if let Some(guid) = port.guid {
                    self.by_port_guid.entry(guid).or_insert(node);
                }
            }
            let source = stat.place.source;
            let kept = &mut self.nodes[node];
            kept.loose = true;
            kept.firmware = stat.firmware.or_else(|| kept.firmware.take());
            kept.device = kept.device.take().or(stat.device);
            if kept.description.is_empty() {
                let file = self.sources.get(source).map_or("host", |source| source.name.as_str());
                let host = hosts.get(&source).cloned().unwrap_or_else(|| stem(file).to_owned());
                kept.description = format!("{host} {}", stat.label);
                kept.owner = Some((host, stat.label));
            }
            for told in stat.ports {
                let port = &mut kept.ports.entry(told.number).or_default().port;
                port.number = told.number;
                port.state = told.state;
                port.physical = told.physical;
                port.rate = told.rate;
                port.lid = port.lid.or(told.lid);
                port.guid = port.guid.or(told.guid);
            }
        }
    }

    /// What `ibswinfo` tells of switches.
    fn attach_vitals(&mut self) {
        for vitals in std::mem::take(&mut self.vitals) {
            let node = match vitals.guid {
                Some(guid) => self.by_guid(guid, Kind::Switch, vitals.place),
                None => {
                    let file = self.sources.get(vitals.place.source);
                    let name =
                        stem(file.map_or("switch", |source| source.name.as_str())).to_owned();
                    self.by_key(&name, Kind::Switch, vitals.place)
                }
            };
            let kept = &mut self.nodes[node];
            kept.loose = true;
            kept.firmware = vitals.firmware.or_else(|| kept.firmware.take());
            kept.device = vitals.part.or_else(|| kept.device.take());
            kept.faults.extend(vitals.faults);
            if kept.description.is_empty() {
                kept.description = vitals.description;
            }
        }
    }

    fn attach_counters(&mut self) {
        // Planes that are not joined use the same identifiers: then they say nothing.
        let mut by_lid: HashMap<u32, usize> = HashMap::new();
        let mut twice: BTreeSet<u32> = BTreeSet::new();
        let mut know = |lid: u32, index: usize| {
            if by_lid.insert(lid, index).is_some_and(|other| other != index) {
                twice.insert(lid);
            }
        };
        let mut interfaces: HashMap<(String, String), (usize, u32)> = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(lid) = node.lid.filter(|_| node.kind == Kind::Switch) {
                know(lid, index);
            }
            for (number, port) in &node.ports {
                if let Some(lid) = port.port.lid.filter(|_| node.kind != Kind::Switch) {
                    know(lid, index);
                }
                let name = port.port.name.clone().unwrap_or_default();
                let host = match &node.owner {
                    Some((host, _)) => host.clone(),
                    None => node.description.clone(),
                };
                if !name.is_empty() {
                    interfaces.insert((host, name), (index, *number));
                }
            }
        }
        let machines = self.machines();
        let alone = self.nodes.is_empty();
        let mut strangers = Vec::new();
        let mut unclear: BTreeSet<u32> = BTreeSet::new();
        for block in std::mem::take(&mut self.counters) {
            if block.port == 0 || block.port > super::PORT_MOST {
                continue;
            }
            // Asked for all ports, a switch answers as port 255 with their sum: it says nothing of any of them.
            if matches!(block.whose, Counted::Lid(_)) && block.port == ALL_PORTS {
                continue;
            }
            if let Counted::Lid(lid) = &block.whose
                && twice.contains(lid)
            {
                unclear.insert(*lid);
                continue;
            }
            let found = match &block.whose {
                Counted::Lid(lid) => by_lid.get(lid).map(|node| (*node, block.port)),
                Counted::Guid(guid) => self.known(*guid).map(|node| (node, block.port)),
                Counted::Interface { host, interface } => {
                    let host = machines.get(host).unwrap_or(host);
                    interfaces.get(&(host.clone(), interface.clone())).copied()
                }
            };
            let place = found.unwrap_or_else(|| self.stranger(&block.whose, block.port));
            if found.is_none() {
                // A switch's port that hears nobody is the switch's all the same.
                if self.nodes[place.0].ports.len() < 2 {
                    strangers.push(self.called(place.0));
                }
                match block.whose {
                    Counted::Lid(lid) => {
                        by_lid.insert(lid, place.0);
                    }
                    Counted::Interface { host, interface } => {
                        interfaces.insert((host, interface), place);
                    }
                    Counted::Guid(_) => {}
                }
            }
            let port = &mut self.nodes[place.0].ports.entry(place.1).or_default().port;
            port.counters.get_or_insert_default().merge(&block.values);
        }
        if let Some(lid) = unclear.first() {
            self.remarks.push(format!(
                "counters of lid {lid} and {} more may be of several devices with that identifier: left out; read each \
                 plane with its counters on its own",
                unclear.len() - 1
            ));
        }
        strangers.sort();
        strangers.dedup();
        if !alone && !strangers.is_empty() {
            let names = strangers.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            let more = strangers.len().saturating_sub(5);
            let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
            self.remarks.push(format!(
                "counters of {names}{rest} belong to nothing in the topology: dumps of one fabric and moment?"
            ));
        }
    }

    /// Machines of Ethernet by the first part of their names, where only one begins so, and is called otherwise.
    fn machines(&self) -> HashMap<String, String> {
        let mut found: HashMap<String, Option<String>> = HashMap::new();
        let nodes = self.nodes.iter().filter(|node| node.guid.is_none());
        for node in nodes {
            let name = match (&node.owner, node.kind) {
                (Some((host, _)), _) => host,
                (None, Kind::Switch) => &node.description,
                _ => continue,
            };
            let short = name.split('.').next().unwrap_or(name).to_owned();
            let one = found.entry(short).or_insert_with(|| Some(name.clone()));
            if one.as_ref() != Some(name) {
                *one = None;
            }
        }
        found.into_iter().filter_map(|(short, one)| Some((short, one?))).collect()
    }

    fn is_known_switch(&self, name: &str) -> bool {
        self.by_key.get(name).is_some_and(|node| self.nodes[*node].kind == Kind::Switch)
    }

    /// A node of which nothing is known but counters.
    fn stranger(&mut self, whose: &Counted, port: u32) -> (usize, u32) {
        let place = super::Place::default();
        let (node, number) = match whose {
            Counted::Lid(lid) => {
                let node = self.by_key(&format!("lid {lid}"), Kind::Switch, place);
                self.nodes[node].lid = Some(*lid);
                (node, port)
            }
            Counted::Guid(guid) => (self.by_guid(*guid, Kind::Switch, place), port),
            Counted::Interface { host, interface }
                if self.is_known_switch(host) || ethernet::is_switch(None, &[interface]) =>
            {
                let node = self.by_key(host, Kind::Switch, place);
                let ports = &mut self.nodes[node].ports;
                let number = ports.keys().next_back().map_or(1, |last| last.saturating_add(1));
                let port = &mut ports.entry(number).or_default().port;
                port.name = Some(describe::tidied(interface));
                (node, number)
            }
            Counted::Interface { host, interface } => {
                let node = self.by_key(&format!("{host} {interface}"), Kind::Adapter, place);
                self.nodes[node].owner = Some((host.clone(), interface.clone()));
                (node, 1)
            }
        };
        let kept = &mut self.nodes[node];
        kept.loose = true;
        if kept.description.is_empty() {
            kept.description = kept.key.clone();
        }
        (node, number)
    }

    fn build(self, options: FinishOptions) -> Fabric {
        let mut fabric =
            Fabric { sources: self.sources, remarks: self.remarks, ..Fabric::default() };
        fabric.errors_listed = self.errors_listed;
        // Where each port of the draft went.
        let mut places: Vec<BTreeMap<u32, usize>> = Vec::with_capacity(self.nodes.len());
        let mut hosts: BTreeMap<(String, bool), Vec<usize>> = BTreeMap::new();
        let mut ids = BTreeSet::new();
        for (index, draft) in self.nodes.iter().enumerate() {
            let (name, label, model) = match draft.kind {
                Kind::Adapter => {
                    let owner = match &draft.owner {
                        Some((host, label)) => describe::Owner {
                            host: host.clone(),
                            label: label.clone(),
                            named: true,
                        },
                        None => describe::adapter(&draft.description),
                    };
                    hosts.entry((owner.host.clone(), owner.named)).or_default().push(index);
                    let name = match (owner.named, owner.label.as_str()) {
                        (false, _) => format!("{} {}", owner.host, draft.key),
                        (true, "") => owner.host,
                        (true, label) => format!("{} {label}", owner.host),
                    };
                    (name, owner.label, None)
                }
                _ if draft.description.is_empty() => (draft.key.clone(), String::new(), None),
                _ => {
                    let (name, model) = describe::switch(&draft.description);
                    (name, String::new(), model)
                }
            };
            let mut at = BTreeMap::new();
            let mut ports = Vec::with_capacity(draft.ports.len());
            for (number, port) in &draft.ports {
                at.insert(*number, ports.len());
                ports.push(Port { number: *number, link: None, ..port.port.clone() });
            }
            places.push(at);
            let id = draft.guid.map_or_else(|| draft.key.clone(), |guid| format!("0x{guid:016x}"));
            fabric.nodes.push(Node {
                kind: draft.kind,
                id: unlike(&mut ids, id),
                guid: draft.guid,
                name,
                label,
                model,
                device: draft.device.clone(),
                lid: draft.lid,
                port_count: draft.port_count,
                firmware: draft.firmware.clone(),
                faults: draft.faults.clone(),
                host: None,
                tier: 0,
                ports,
            });
        }
        let mut disagree = Vec::new();
        for (index, draft) in self.nodes.iter().enumerate() {
            for (number, port) in &draft.ports {
                let Some(half) = port.half else { continue };
                if (half.node, half.port) < (index, *number) {
                    continue;
                }
                let back = self.nodes[half.node].ports.get(&half.port).and_then(|port| port.half);
                let far = back.and_then(|back| back.rate);
                // Of two that differ the slower one is promised.
                let rate = match (half.rate, far) {
                    (Some(a), Some(b)) if a != b => {
                        disagree.push((index, *number, a, b));
                        Some(if a.mbps() <= b.mbps() { a } else { b })
                    }
                    (a, b) => a.or(b).or(options.rate),
                };
                let ends = [(index, *number), (half.node, half.port)];
                let ends = ends.map(|(node, port)| End { node, port: places[node][&port] });
                for end in ends {
                    let port = &mut fabric.nodes[end.node].ports[end.port];
                    port.link = Some(fabric.links.len());
                    if port.state == PortState::Unknown {
                        port.state = PortState::Active;
                    }
                }
                fabric.links.push(Link { ends, rate });
            }
        }
        if let Some((node, port, a, b)) = disagree.first() {
            fabric.remarks.push(format!(
                "the ends of {} tell different rates, the first at {} port {port}: {a} and {b}; the slower one is taken",
                describe::plural(disagree.len(), "link", "links"),
                fabric.nodes[*node].name,
            ));
        }
        for ((name, named), mut adapters) in hosts {
            adapters.sort_by_cached_key(|index| describe::natural(&fabric.nodes[*index].label));
            for adapter in &adapters {
                fabric.nodes[*adapter].host = Some(fabric.hosts.len());
            }
            fabric.hosts.push(Host { name, named, adapters });
        }
        fabric
    }
}

/// The id, or the id with a number where another node has it: names that were cut or tidied may be alike then.
fn unlike(taken: &mut BTreeSet<String>, id: String) -> String {
    let mut unlike = id.clone();
    for number in 2.. {
        if taken.insert(unlike.clone()) {
            break;
        }
        unlike = format!("{id} #{number}");
    }
    unlike
}

/// A file's name without folders and what follows the first point.
pub(crate) fn stem(name: &str) -> &str {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or(file)
}
