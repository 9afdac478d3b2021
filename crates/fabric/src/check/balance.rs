//! Balance: uplinks of one switch, and adapters of one host, that carry far more or less than their equals.

use std::collections::BTreeMap;

use super::counters::{Counted, named};
use super::{Finding, Look, Verdict, plural};
use crate::counter::Counters;
use crate::model::{End, Fabric, Kind, NodeIndex};
use crate::rate::Rate;
use crate::shape::Rails;

/// Less than this in the mean, and nothing is said of balance.
const BYTES_LEAST: f64 = 1e8;
/// From here on the busiest of equals carries too much: 20 % over the mean.
const IMBALANCE_WARN: f64 = 0.20;
/// From here on it is a failure.
const IMBALANCE_FAIL: f64 = 0.50;

/// One direction of a switch's uplinks.
struct Spread {
    switch: NodeIndex,
    sends: bool,
    /// Bytes for each Gb/s, with the port.
    loads: Vec<(f64, f64, End)>,
    over: f64,
}

/// Uplinks of one switch that carry far more or less than their equals.
pub(super) fn imbalance(fabric: &Fabric, ports: &[Counted], look: Look) -> Option<Finding> {
    let values: BTreeMap<End, &Counters> =
        ports.iter().map(|port| (port.end, &port.values)).collect();
    // A link of unknown rate counts as the slowest that is known.
    let unknown = fabric.links.iter().filter_map(|link| link.rate).min().map_or(1.0, Rate::gbps);
    let mut spreads: Vec<Spread> = Vec::new();
    let mut by_above: BTreeMap<NodeIndex, f64> = BTreeMap::new();
    for (switch, _) in fabric.switches() {
        for sends in [true, false] {
            let mut loads = Vec::new();
            for (_, link, far) in fabric.uplinks(switch) {
                let near = if link.ends[0] == far { link.ends[1] } else { link.ends[0] };
                // What this end sends the other end receives: either may be counted.
                let own = values.get(&near).map(|values| values.bytes());
                let other = values.get(&far).map(|values| values.bytes());
                let bytes = match sends {
                    true => own.and_then(|own| own.0).or_else(|| other.and_then(|other| other.1)),
                    false => own.and_then(|own| own.1).or_else(|| other.and_then(|other| other.0)),
                };
                if let Some(bytes) = bytes {
                    let bytes = bytes as f64;
                    *by_above.entry(far.node).or_default() += bytes;
                    loads.push((bytes / link.rate.map_or(unknown, Rate::gbps), bytes, near));
                }
            }
            let mean_bytes =
                loads.iter().map(|load| load.1).sum::<f64>() / loads.len().max(1) as f64;
            let mean = loads.iter().map(|load| load.0).sum::<f64>() / loads.len().max(1) as f64;
            if loads.len() < 2 || mean_bytes < BYTES_LEAST {
                continue;
            }
            loads.sort_by(|a, b| b.0.total_cmp(&a.0));
            let over = loads[0].0 / mean - 1.0;
            let under = 1.0 - loads[loads.len() - 1].0 / mean;
            if over > IMBALANCE_WARN || under > IMBALANCE_WARN {
                spreads.push(Spread { switch, sends, loads, over: f64::max(over, under) });
            }
        }
    }
    spreads.sort_by(|a, b| b.over.total_cmp(&a.over));
    let worst = spreads.first()?.over;
    let loss = spreads.iter().map(|spread| {
        let mean = spread.loads.iter().map(|load| load.0).sum::<f64>() / spread.loads.len() as f64;
        1.0 - mean / spread.loads[0].0
    });
    let loss = loss.fold(0.0, f64::max);
    // Totals tell of days that are long gone.
    let now = look == Look::Grown;
    let verdict = if worst > IMBALANCE_FAIL && now { Verdict::Fail } else { Verdict::Warn };
    let mut switches: Vec<NodeIndex> = spreads.iter().map(|spread| spread.switch).collect();
    switches.sort_unstable();
    switches.dedup();
    let mut evidence = Vec::new();
    evidence.extend(above_evidence(fabric, &by_above));
    for spread in &spreads {
        let (hot, cold) = (spread.loads[0], spread.loads[spread.loads.len() - 1]);
        let mean = spread.loads.iter().map(|load| load.1).sum::<f64>() / spread.loads.len() as f64;
        evidence.push(format!(
            "{} {} {} over {} uplinks in the mean, {} over {}, {} over {}",
            fabric.nodes[spread.switch].name,
            if spread.sends { "sends" } else { "receives" },
            bytes_text(mean),
            spread.loads.len(),
            bytes_text(hot.1),
            named(fabric, hot.2),
            bytes_text(cold.1),
            named(fabric, cold.2),
        ));
    }
    let when = if look == Look::Grown { "" } else { " (totals since they were cleared)" };
    let title = format!(
        "uplinks of {} differ by more than 20 % from their mean, up to {:.0} %{when}",
        plural(switches.len(), "switch", "switches"),
        worst * 100.0,
    );
    Some(
        Finding::new("counters", "fab-06", verdict, title)
            .seen(evidence)
            .costs(format!("the busiest link sets the pace: up to {:.0} % of what the uplinks could carry", loss * 100.0))
            .fixed_by("adaptive routing; else other hash seeds for each tier, and more queue pairs: NCCL_IB_QPS_PER_CONNECTION=4"),
    )
}

/// Whether some switches above carry little of it all: hashes that think alike use only a part of them.
fn above_evidence(fabric: &Fabric, by_above: &BTreeMap<NodeIndex, f64>) -> Option<String> {
    let mean = by_above.values().sum::<f64>() / by_above.len().max(1) as f64;
    let idle: Vec<&str> = by_above
        .iter()
        .filter(|(_, bytes)| **bytes < mean / 2.0)
        .map(|(node, _)| fabric.nodes[*node].name.as_str())
        .collect();
    if idle.is_empty() || by_above.len() < 2 {
        return None;
    }
    let shown = idle.iter().take(4).copied().collect::<Vec<_>>().join(", ");
    let more = if idle.len() > 4 { format!(" and {} more", idle.len() - 4) } else { String::new() };
    Some(format!(
        "{} of {} switches above carry less than half of the mean: {shown}{more}",
        idle.len(),
        by_above.len()
    ))
}

/// Adapters of one host that carry far more or less than the others.
pub(super) fn host_imbalance(
    fabric: &Fabric,
    rails: &Rails,
    ports: &[Counted],
    look: Look,
) -> Option<Finding> {
    // Totals of adapters tell of storage and of jobs long gone.
    if look == Look::Total {
        return None;
    }
    // Adapters of storage, which carry what they carry, are of another rate, another make, or on leaves of no rail.
    type Equals<'a> = (usize, Option<Rate>, Option<&'a str>, bool);
    let mut by_host: BTreeMap<Equals<'_>, Vec<(f64, End)>> = BTreeMap::new();
    for port in ports {
        let node = &fabric.nodes[port.end.node];
        let (Some(host), (Some(sent), received)) = (node.host, port.values.bytes()) else {
            continue;
        };
        if node.kind != Kind::Adapter || !fabric.hosts[host].named {
            continue;
        }
        let link = node.ports[port.end.port].link.and_then(|link| fabric.links.get(link));
        let on_rail =
            link.is_some_and(|link| rails.of_switch.contains_key(&link.across(port.end.node).node));
        let equals = (host, link.and_then(|link| link.rate), node.device.as_deref(), on_rail);
        let bytes = sent as f64 + received.unwrap_or(0) as f64;
        by_host.entry(equals).or_default().push((bytes, port.end));
    }
    let mut over: Vec<(f64, String)> = Vec::new();
    for loads in by_host.values().filter(|loads| loads.len() > 1) {
        let mean = loads.iter().map(|load| load.0).sum::<f64>() / loads.len() as f64;
        if mean < BYTES_LEAST {
            continue;
        }
        let off = |load: &(f64, End)| (load.0 / mean - 1.0).abs();
        let odd = loads.iter().max_by(|a, b| off(a).total_cmp(&off(b)));
        if let Some(odd) = odd.filter(|odd| off(odd) > IMBALANCE_WARN) {
            let text = format!(
                "{}: {}, {} in the mean",
                named(fabric, odd.1),
                bytes_text(odd.0),
                bytes_text(mean)
            );
            over.push((off(odd), text));
        }
    }
    over.sort_by(|a, b| b.0.total_cmp(&a.0));
    let worst = over.first()?.0;
    let verdict = if worst > IMBALANCE_FAIL { Verdict::Fail } else { Verdict::Warn };
    let title = format!(
        "{} with an adapter more than 20 % off the mean of its equals in the host, up to {:.0} %",
        plural(over.len(), "host", "hosts"),
        worst * 100.0
    );
    Some(
        Finding::new("counters", "ctr-12", verdict, title)
            .seen(over.into_iter().map(|(_, text)| text))
            .costs("the busiest rail sets the pace")
            .fixed_by(
                "see which GPU uses which adapter: ringway topo; NCCL_IB_HCA, NCCL_CROSS_NIC",
            ),
    )
}

fn bytes_text(bytes: f64) -> String {
    let (value, unit) = match bytes {
        bytes if bytes >= 1e15 => (bytes / 1e15, "PB"),
        bytes if bytes >= 1e12 => (bytes / 1e12, "TB"),
        bytes if bytes >= 1e9 => (bytes / 1e9, "GB"),
        bytes => (bytes / 1e6, "MB"),
    };
    format!("{value:.1} {unit}")
}
