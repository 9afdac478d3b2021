//! What an operator should look at: links that run below what they could, GPUs far from a NIC.
//!
//! *Invariant:* a warning names the device, what is wrong, and what to look at.

use super::bus::tenths_of_gt;
use super::level::is_socket;
use super::nearest::Affinity;
use super::path::{PathClass, Paths};
use super::{Kind, LinkKind, NodeIndex, Topology};

/// Everything odd about a machine, the worst first within each kind.
#[must_use]
pub fn warnings(topology: &Topology, affinities: &[Affinity]) -> Vec<String> {
    let mut found = Vec::new();
    far_nics(topology, affinities, &mut found);
    ports(topology, affinities, &mut found);
    for index in 0..topology.nodes.len() {
        slow_link(topology, index, &mut found);
    }
    uneven_nvlinks(topology, &mut found);
    found
}

/// GPUs whose traffic goes through the CPU because every NIC is far: not where it goes there for want of
/// GPUDirect, nor where there are only sockets, which always go through host memory.
fn far_nics(topology: &Topology, affinities: &[Affinity], found: &mut Vec<String>) {
    let is_rdma = |net: &NodeIndex| {
        topology.net(*net).is_some_and(|net| net.unused.is_none() && !is_socket(net))
    };
    let nets: Vec<NodeIndex> = topology.nets().into_iter().filter(is_rdma).collect();
    let paths = Paths::physical(&topology.as_nccl_sees_it());
    let nearest = |gpu: NodeIndex| nets.iter().map(|net| paths.get(gpu, *net).class).min();
    let far: Vec<(NodeIndex, PathClass)> = affinities
        .iter()
        .filter(|one| one.net.is_some() && one.class >= PathClass::Phb)
        .filter_map(|one| Some((one.gpu, nearest(one.gpu)?)))
        .collect();
    for class in [PathClass::Sys, PathClass::Phb] {
        let names: Vec<String> =
            far.iter().filter(|(_, is)| *is == class).map(|(gpu, _)| topology.name(*gpu)).collect();
        if names.is_empty() {
            continue;
        }
        let (verb, all) = (if names.len() == 1 { "has" } else { "have" }, names.join(", "));
        found.push(format!(
            "{all} {verb} no NIC nearer than {class}: traffic goes through the CPU; look for NICs \
             that are down or filtered, or for another slot"
        ));
    }
    let without: Vec<String> = affinities
        .iter()
        .filter(|one| one.net.is_none())
        .map(|one| topology.name(one.gpu))
        .collect();
    if !without.is_empty() {
        found.push(format!(
            "{}: no NIC at all; other machines cannot be reached",
            without.join(", ")
        ));
    }
}

fn ports(topology: &Topology, affinities: &[Affinity], found: &mut Vec<String>) {
    for index in topology.nets() {
        let Some(net) = topology.net(index) else { continue };
        match net.unused.as_deref() {
            Some("down") => found.push(format!(
                "{} is down: NCCL leaves it out without a word; look at its cable and switch port",
                net.name
            )),
            Some(why) => found.push(format!("{} is left out by {why}", net.name)),
            None => {}
        }
    }
    let serves = |net: NodeIndex| {
        affinities.iter().any(|one| one.net == Some(net) || one.others.contains(&net))
    };
    // Where each GPU should have a NIC of its own, two on one are a loss.
    let used: Vec<NodeIndex> = topology
        .nets()
        .into_iter()
        .filter(|net| topology.net(*net).is_some_and(|net| net.unused.is_none()))
        .collect();
    let idle: Vec<String> =
        used.iter().filter(|net| !serves(**net)).map(|net| topology.name(*net)).collect();
    if !affinities.is_empty() && !idle.is_empty() && used.len() <= affinities.len() {
        let (verb, names) = (if idle.len() == 1 { "serves" } else { "serve" }, idle.join(", "));
        found.push(format!("{names} {verb} no GPU, while GPUs share other NICs"));
    }
}

fn slow_link(topology: &Topology, index: NodeIndex, found: &mut Vec<String>) {
    let node = &topology.nodes[index];
    let Some(link) = &node.uplink else { return };
    let name = match (&node.kind, node.bus) {
        (Kind::Gpu(_), Some(bus)) => format!("{} ({bus})", topology.name(index)),
        (Kind::Nic, Some(bus)) => {
            let below = topology.nodes.iter().position(|node| node.parent == Some(index));
            let name = below.map_or_else(|| "NIC".to_owned(), |net| topology.name(net));
            format!("{name} ({bus})")
        }
        _ => topology.name(index),
    };
    if let (Some(now), Some(could)) = (link.current_width, link.width)
        && now < could
    {
        found.push(format!(
            "{name} runs at x{now} where x{could} is possible; reseat the card or its riser"
        ));
    } else if let (Some(slot), Some(own)) = (link.width, link.device_width)
        && slot < own
    {
        found.push(format!("{name} has x{own} lanes but its slot has x{slot}"));
    }
    let rate = |speed: &Option<String>| speed.as_deref().and_then(tenths_of_gt);
    let shown = |speed: &Option<String>| {
        let words = speed.as_deref().unwrap_or_default();
        words.trim_end_matches("PCIe").trim().to_owned()
    };
    // GPUs slow their links down when idle; NICs do not.
    if let (Some(now), Some(could)) = (rate(&link.current_speed), rate(&link.speed))
        && now < could
        && matches!(node.kind, Kind::Nic)
    {
        let (now, could) = (shown(&link.current_speed), shown(&link.speed));
        found.push(format!("{name} runs at {now} where {could} is possible"));
    }
}

/// NVLinks that one end has and the other lacks, and GPUs with fewer than the rest. A GPU without links of
/// which no driver told even the architecture was not seen by it: nothing is known of its links.
fn uneven_nvlinks(topology: &Topology, found: &mut Vec<String>) {
    let has_links = |gpu: NodeIndex| {
        let fast = |kind| matches!(kind, LinkKind::NvLink(_) | LinkKind::Xgmi(_));
        topology.links.iter().any(|link| link.from == gpu && fast(link.kind))
    };
    let is_known = |gpu: &NodeIndex| {
        let told = topology.gpu(*gpu).is_some_and(|gpu| gpu.sm > 0 || gpu.gcn.is_some());
        told || has_links(*gpu)
    };
    let gpus: Vec<NodeIndex> = topology.gpus().into_iter().filter(is_known).collect();
    let count = |kind: LinkKind| match kind {
        LinkKind::NvLink(count) | LinkKind::Xgmi(count) => count,
        _ => 0,
    };
    let between = |one, other| topology.direct_links(one, other).map_or(0, count);
    for (at, &one) in gpus.iter().enumerate() {
        for &other in &gpus[at + 1..] {
            let (there, back) = (between(one, other), between(other, one));
            if there != back {
                let (one, other) = (topology.name(one), topology.name(other));
                found.push(format!(
                    "{one} sees {there} of the NVLinks or XGMI links to {other}, which sees {back}; \
                     a link is broken"
                ));
            }
        }
    }
    let total = |gpu: NodeIndex| -> u32 {
        let own = topology.links.iter().filter(|link| link.from == gpu);
        own.map(|link| count(link.kind)).sum()
    };
    let most = gpus.iter().map(|gpu| total(*gpu)).max().unwrap_or(0);
    for &gpu in &gpus {
        let own = total(gpu);
        if own < most {
            let name = topology.name(gpu);
            found.push(format!("{name} has {own} NVLinks or XGMI links up, others have {most}"));
        }
    }
}
