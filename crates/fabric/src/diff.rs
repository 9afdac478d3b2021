//! What changed between two dumps of one fabric, by name.
//!
//! Nodes are the same when their GUIDs are (else their names); what a change brings about is folded into it: a host
//! that is gone is one finding, not one for each of its links; a cable that moved is not one that is gone and one
//! that is new.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{Finding, Verdict, plural};
use crate::describe;
use crate::model::{Fabric, Kind, NodeIndex};
use crate::rate::Rate;
use crate::shape::Rails;

/// One end of a cable by what does not change: the node's id and the port's number or name.
type Plug = (String, String);
/// Cables whose change is told already, each by its ends in order.
type Told = BTreeSet<(Plug, Plug)>;

/// A cable by its ends in order.
fn cable(a: &Plug, b: &Plug) -> (Plug, Plug) {
    if a <= b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) }
}

struct Side<'a> {
    fabric: &'a Fabric,
    ids: BTreeMap<&'a str, NodeIndex>,
    hosts: BTreeSet<&'a str>,
    rails: Rails,
    /// Both directions.
    cables: BTreeMap<Plug, (Plug, Option<Rate>)>,
}

impl<'a> Side<'a> {
    fn new(fabric: &'a Fabric) -> Self {
        let ids = fabric
            .nodes
            .iter()
            .enumerate()
            .map(|(index, node)| (node.id.as_str(), index))
            .collect();
        let hosts = fabric.hosts.iter().map(|host| host.name.as_str()).collect();
        let mut cables = BTreeMap::new();
        for link in &fabric.links {
            let [a, b] = link.ends.map(|end| {
                let node = &fabric.nodes[end.node];
                (node.id.clone(), node.ports[end.port].called())
            });
            cables.insert(a.clone(), (b.clone(), link.rate));
            cables.insert(b, (a, link.rate));
        }
        Self { fabric, ids, hosts, rails: Rails::of(fabric), cables }
    }

    fn name(&self, id: &str) -> String {
        self.ids.get(id).map_or_else(|| id.to_owned(), |node| self.fabric.nodes[*node].name.clone())
    }

    fn plug_name(&self, plug: &Plug) -> String {
        let name = self.name(&plug.0);
        match self.ids.get(plug.0.as_str()).map(|node| &self.fabric.nodes[*node]) {
            Some(node) if node.kind == Kind::Adapter && node.ports.len() < 2 => name,
            _ => format!("{name} port {}", plug.1),
        }
    }

    fn host_of(&self, id: &str) -> Option<&str> {
        let node = &self.fabric.nodes[*self.ids.get(id)?];
        Some(self.fabric.hosts[node.host?].name.as_str())
    }

    fn is_switch(&self, id: &str) -> bool {
        self.ids.get(id).is_some_and(|node| self.fabric.nodes[*node].kind == Kind::Switch)
    }
}

/// Everything that changed.
#[must_use]
pub fn diff(old: &Fabric, new: &Fabric) -> Vec<Finding> {
    let (old, new) = (Side::new(old), Side::new(new));
    let mut found = Vec::new();
    let mut told = Told::new();
    found.extend(replaced(&old, &new, &mut told));
    found.extend(nodes_gone(&old, &new, false, &mut told));
    found.extend(nodes_gone(&new, &old, true, &mut told));
    found.extend(moved(&old, &new, &mut told));
    found.extend(links_gone(&old, &new, false, &mut told));
    found.extend(links_gone(&new, &old, true, &mut told));
    found.extend(rates(&old, &new, &told));
    found.extend(firmware(&old, &new));
    found.extend(renamed(&old, &new));
    found
}

/// Adapters with another GUID in the same place: exchanged.
fn replaced(old: &Side<'_>, new: &Side<'_>, told: &mut Told) -> Vec<Finding> {
    let by_name = |side: &Side<'_>, other: &Side<'_>| -> BTreeMap<String, String> {
        let nodes = side
            .fabric
            .nodes
            .iter()
            .filter(|node| node.kind != Kind::Aggregation && node.guid.is_some());
        let known = |node: &&crate::model::Node| !other.ids.contains_key(node.id.as_str());
        let named =
            |node: &&crate::model::Node| node.host.is_none_or(|host| side.fabric.hosts[host].named);
        nodes.filter(known).filter(named).map(|node| (node.name.clone(), node.id.clone())).collect()
    };
    let (gone, come) = (by_name(old, new), by_name(new, old));
    let mut found = Vec::new();
    for (name, was) in &gone {
        let Some(is) = come.get(name) else { continue };
        let was_at: Vec<String> =
            plugs(old, was).iter().map(|(_, peer)| old.plug_name(peer)).collect();
        let is_at: Vec<String> =
            plugs(new, is).iter().map(|(_, peer)| new.plug_name(peer)).collect();
        for (own, peer) in plugs(old, was).into_iter().chain(plugs(new, is)) {
            told.insert(cable(&own, &peer));
        }
        let moved = if was_at == is_at {
            String::new()
        } else {
            format!(", and is on {} instead of {}", is_at.join(", "), was_at.join(", "))
        };
        found.push(
            Finding::new(
                "nodes",
                "diff-replaced",
                Verdict::Warn,
                format!("{name} is another device{moved}"),
            )
            .seen([format!("{was} before, {is} now")]),
        );
    }
    found
}

fn plugs(side: &Side<'_>, id: &str) -> Vec<(Plug, Plug)> {
    let own = side.cables.range((id.to_owned(), String::new())..);
    own.take_while(|(plug, _)| plug.0 == id)
        .map(|(plug, (peer, _))| (plug.clone(), peer.clone()))
        .collect()
}

/// Switches and hosts that only one side has. `fresh`: the side is the new one.
fn nodes_gone(side: &Side<'_>, other: &Side<'_>, fresh: bool, told: &mut Told) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in &side.fabric.nodes {
        let loose =
            plugs(side, &node.id).iter().any(|(own, peer)| !told.contains(&cable(own, peer)));
        if other.ids.contains_key(node.id.as_str()) || !loose {
            continue;
        }
        match (node.kind, side.host_of(&node.id)) {
            (Kind::Switch | Kind::Router, _) => {
                let links = plugs(side, &node.id);
                let (verdict, word) =
                    if fresh { (Verdict::Warn, "new") } else { (Verdict::Fail, "gone") };
                let id = if fresh { "diff-switch-new" } else { "diff-switch-gone" };
                let title = format!(
                    "switch {} is {word}, with {}",
                    node.name,
                    plural(links.len(), "link", "links")
                );
                found.push(Finding::new("nodes", id, verdict, title).seen([node.id.clone()]));
                told.extend(links.iter().map(|(own, peer)| cable(own, peer)));
            }
            (Kind::Adapter, Some(host)) => hosts.entry(host).or_default().push(&node.id),
            _ => {}
        }
    }
    for (host, adapters) in hosts {
        let whole = !other.hosts.contains(host);
        for id in &adapters {
            told.extend(plugs(side, id).iter().map(|(own, peer)| cable(own, peer)));
        }
        let names: Vec<String> = adapters.iter().map(|id| side.name(id)).collect();
        let at: Vec<String> = adapters
            .iter()
            .flat_map(|id| plugs(side, id))
            .map(|(own, peer)| format!("{} - {}", side.plug_name(&own), side.plug_name(&peer)))
            .collect();
        let (verdict, word) = if fresh { (Verdict::Warn, "new") } else { (Verdict::Fail, "gone") };
        let (id, title) = match (whole, fresh) {
            (true, false) => (
                "diff-host-gone",
                format!(
                    "host {host} is gone, with {}",
                    plural(adapters.len(), "adapter", "adapters")
                ),
            ),
            (true, true) => (
                "diff-host-new",
                format!(
                    "host {host} is new, with {}",
                    plural(adapters.len(), "adapter", "adapters")
                ),
            ),
            (false, fresh) => {
                let id = if fresh { "diff-adapter-new" } else { "diff-adapter-gone" };
                (
                    id,
                    format!(
                        "{} {word} of {host}: {}",
                        plural(adapters.len(), "adapter is", "adapters are"),
                        names.join(", ")
                    ),
                )
            }
        };
        found.push(Finding::new("nodes", id, verdict, title).seen(at));
    }
    found
}

/// Hosts' cables that are in another place, by host.
fn moved(old: &Side<'_>, new: &Side<'_>, told: &mut Told) -> Vec<Finding> {
    let mut by_host: BTreeMap<String, Vec<(Plug, Plug, Plug)>> = BTreeMap::new();
    let mut between: Vec<(Plug, Plug, Plug)> = Vec::new();
    for (own, (was, _)) in &old.cables {
        let Some((is, _)) = new.cables.get(own) else { continue };
        if was == is || told.contains(&cable(own, was)) || told.contains(&cable(own, is)) {
            continue;
        }
        match new.host_of(&own.0) {
            Some(host) => by_host.entry(host.to_owned()).or_default().push((
                own.clone(),
                was.clone(),
                is.clone(),
            )),
            // Told by the adapter, or by the lower end of a cable between switches.
            None if new.is_switch(&was.0) && new.is_switch(&is.0) => {
                between.push((own.clone(), was.clone(), is.clone()))
            }
            None => {}
        }
    }
    let mut found = Vec::new();
    for (host, cables) in by_host {
        for (own, was, is) in &cables {
            told.extend([cable(own, was), cable(own, is)]);
        }
        let mut wrong = 0;
        let evidence: Vec<String> = cables
            .iter()
            .map(|(own, was, is)| {
                let rail = |side: &Side<'_>, plug: &Plug| {
                    side.ids
                        .get(plug.0.as_str())
                        .and_then(|leaf| side.rails.of_switch.get(leaf).copied())
                };
                let wanted = new
                    .ids
                    .get(own.0.as_str())
                    .and_then(|node| new.rails.of_adapter.get(node).copied());
                let (before, now) = (rail(old, was), rail(new, is));
                let crossed = now.is_some() && now != wanted && now != before;
                wrong += usize::from(crossed);
                let rails = match (before, now) {
                    (Some(before), Some(now)) if before != now => {
                        format!(", rail {} to rail {}", before + 1, now + 1)
                    }
                    _ => String::new(),
                };
                format!(
                    "{}: from {} to {}{rails}",
                    new.plug_name(own),
                    old.plug_name(was),
                    new.plug_name(is)
                )
            })
            .collect();
        let many = plural(cables.len(), "cable", "cables");
        let finding = if wrong > 0 {
            Finding::new(
                "links",
                "diff-rail",
                Verdict::Fail,
                format!("{host} is re-cabled to a wrong rail ({many})"),
            )
            .costs("its rail's traffic goes over the spines: three switches instead of one")
            .fixed_by("swap the cables back")
        } else {
            Finding::new(
                "links",
                "diff-moved",
                Verdict::Warn,
                format!("{host} is re-cabled ({many})"),
            )
        };
        found.push(finding.seen(evidence));
    }
    found.extend(moved_between(old, new, between, told));
    found
}

/// Cables between switches of which one end is where it was.
fn moved_between(
    old: &Side<'_>,
    new: &Side<'_>,
    mut cables: Vec<(Plug, Plug, Plug)>,
    told: &mut Told,
) -> Option<Finding> {
    // The lower end stays: a cable of a leaf that goes to another spine, not one of a spine that changed leaves.
    let tier = |plug: &Plug| new.ids.get(plug.0.as_str()).map(|node| new.fabric.nodes[*node].tier);
    cables.sort_by_key(|(own, ..)| tier(own));
    let mut evidence = Vec::new();
    for (own, was, is) in cables {
        // One cable of now accounts for one of then: what is over is gone, or new.
        if told.contains(&cable(&own, &was)) || told.contains(&cable(&own, &is)) {
            continue;
        }
        evidence.push(format!(
            "{}: from {} to {}",
            new.plug_name(&own),
            old.plug_name(&was),
            new.plug_name(&is)
        ));
        told.extend([cable(&own, &was), cable(&own, &is)]);
    }
    if evidence.is_empty() {
        return None;
    }
    let title = format!("{} between switches moved", plural(evidence.len(), "cable", "cables"));
    Some(Finding::new("links", "diff-moved", Verdict::Warn, title).seen(evidence))
}

/// Links that only one side has, by the pair of nodes.
fn links_gone(side: &Side<'_>, other: &Side<'_>, fresh: bool, told: &mut Told) -> Vec<Finding> {
    let mut pairs: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (own, (peer, _)) in &side.cables {
        let same = other.cables.get(own).is_some_and(|(now, _)| now == peer);
        if own > peer || same || told.contains(&cable(own, peer)) {
            continue;
        }
        let text = format!("{} - {}", side.plug_name(own), side.plug_name(peer));
        pairs.entry((side.name(&own.0), side.name(&peer.0))).or_default().push(text);
        told.insert(cable(own, peer));
    }
    let mut found = Vec::new();
    for ((a, b), links) in pairs {
        let (id, verdict, word) = match fresh {
            false => ("diff-link-gone", Verdict::Fail, "gone"),
            true => ("diff-link-new", Verdict::Warn, "new"),
        };
        let title = format!(
            "{} between {a} and {b} {} {word}",
            plural(links.len(), "link", "links"),
            if links.len() == 1 { "is" } else { "are" }
        );
        let finding = Finding::new("links", id, verdict, title).seen(links);
        found.push(match fresh {
            true => finding,
            false => {
                finding.fixed_by("look at both ports with iblinkinfo; reseat or replace the cable")
            }
        });
    }
    found
}

/// Links that carry another rate.
fn rates(old: &Side<'_>, new: &Side<'_>, told: &Told) -> Vec<Finding> {
    let mut changes: BTreeMap<(Rate, Rate), Vec<String>> = BTreeMap::new();
    for (own, (peer, was)) in &old.cables {
        let Some((now_peer, is)) = new.cables.get(own) else { continue };
        if own > peer || now_peer != peer || told.contains(&cable(own, peer)) {
            continue;
        }
        if let (Some(was), Some(is)) = (was, is)
            && was != is
        {
            let text = format!("{} - {}", new.plug_name(own), new.plug_name(peer));
            changes.entry((*was, *is)).or_default().push(text);
        }
    }
    let mut found = Vec::new();
    for ((was, is), links) in changes {
        let slower = is.mbps() < was.mbps();
        let verdict = if slower { Verdict::Fail } else { Verdict::Warn };
        let title =
            format!("{} from {was} to {is}", plural(links.len(), "link went", "links went"));
        let finding = Finding::new("links", "diff-rate", verdict, title).seen(links);
        found.push(if slower {
            finding.fixed_by(
                "reseat or replace the cable; restart the port: ibportstate <lid> <port> reset",
            )
        } else {
            finding
        });
    }
    found
}

/// Firmware, by what it changed from and to.
fn firmware(old: &Side<'_>, new: &Side<'_>) -> Vec<Finding> {
    let mut changes: BTreeMap<(Kind, &str, &str), Vec<&str>> = BTreeMap::new();
    for node in &new.fabric.nodes {
        let was = old
            .ids
            .get(node.id.as_str())
            .and_then(|was| old.fabric.nodes[*was].firmware.as_deref());
        if let (Some(was), Some(is)) = (was, node.firmware.as_deref())
            && was != is
        {
            changes.entry((node.kind, was, is)).or_default().push(&node.name);
        }
    }
    let mut found = Vec::new();
    for ((kind, was, is), names) in changes {
        let what =
            if kind == Kind::Switch { ("switch", "switches") } else { ("adapter", "adapters") };
        let title =
            format!("firmware of {} went from {was} to {is}", plural(names.len(), what.0, what.1));
        found.push(
            Finding::new("nodes", "diff-firmware", Verdict::Warn, title)
                .seen(names.iter().map(|name| (*name).to_owned())),
        );
    }
    found
}

/// Nodes with another name.
fn renamed(old: &Side<'_>, new: &Side<'_>) -> Option<Finding> {
    let mut evidence = Vec::new();
    for node in &new.fabric.nodes {
        if let Some(was) = old.ids.get(node.id.as_str()).map(|was| &old.fabric.nodes[*was])
            && was.name != node.name
        {
            evidence.push(format!("{}: {} is now {}", node.id, was.name, node.name));
        }
    }
    if evidence.is_empty() {
        return None;
    }
    evidence.sort_by_cached_key(|text| describe::natural(text));
    let title = format!("{} another name", plural(evidence.len(), "node has", "nodes have"));
    Some(Finding::new("nodes", "diff-renamed", Verdict::Warn, title).seen(evidence))
}
