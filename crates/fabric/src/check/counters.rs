//! Counters: faults by threshold and by what they grew, waiting, imbalance, pauses.
//!
//! One look tells totals since somebody cleared them, which may be long ago: warnings at most. Two looks tell what
//! is wrong now.

use std::collections::BTreeMap;

use super::{CheckOptions, Finding, Verdict, plural};
use crate::counter::{COUNTERS, Counter, Counters, Meaning};
use crate::model::{End, Fabric, NodeIndex};
use crate::rate::Rate;

/// Less than this in the mean, and nothing is said of balance.
const BYTES_LEAST: f64 = 1e8;
/// From here on the busiest of equals carries too much: 20 % over the mean.
const IMBALANCE_WARN: f64 = 0.20;
/// From here on it is a failure.
const IMBALANCE_FAIL: f64 = 0.50;
/// Parts of time that data waited for credits.
const WAIT_WARN: f64 = 0.05;
const WAIT_FAIL: f64 = 0.30;
/// Parts of time that a port stood still by pause frames.
const PAUSE_WARN: f64 = 0.01;
const PAUSE_FAIL: f64 = 0.10;
/// Without time: this many times the median of all ports, and at least so many.
const OUTLIER_TIMES: u64 = 10;
const OUTLIER_LEAST: u64 = 1000;

/// How many looks counters are judged by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Look {
    /// One: totals.
    Total,
    /// Two: what was counted in between.
    Grown,
}

struct Counted {
    end: End,
    values: Counters,
}

pub(super) fn judge(fabric: &Fabric, options: &CheckOptions<'_>) -> Vec<Finding> {
    let look = if options.before.is_some() { Look::Grown } else { Look::Total };
    let ports = counted(fabric, options.before);
    let mut found = Vec::new();
    if look == Look::Grown && ports.is_empty() {
        let title = "no port is counted in both dumps: nothing can be said of what grew";
        found.push(Finding::new("counters", "ctr-dumps", Verdict::Unknown, title).fixed_by(
            "take counters of the same ports twice: perfquery -x for each, or ibqueryerrors --data",
        ));
    }
    for counter in COUNTERS {
        if let Meaning::Fault(borne) = counter.meaning {
            found.extend(faults(fabric, &ports, counter, borne, look, options.interval_s));
        }
    }
    found.extend(waiting(fabric, &ports, look));
    found.extend(imbalance(fabric, &ports, look));
    found.extend(host_imbalance(fabric, &ports, look));
    found.extend(pauses(fabric, &ports, look, options.interval_s));
    found.extend(global_pauses(fabric, &ports));
    found.extend(congested(fabric, &ports, look));
    found
}

/// Every port with what it counted: in all, or since the other look.
fn counted(fabric: &Fabric, before: Option<&Fabric>) -> Vec<Counted> {
    let known: BTreeMap<&str, NodeIndex> = before.map_or_else(BTreeMap::new, |before| {
        before.nodes.iter().enumerate().map(|(index, node)| (node.id.as_str(), index)).collect()
    });
    // A dump of counters alone knows nodes by their local identifier only.
    let by_lid: BTreeMap<u32, NodeIndex> = before.map_or_else(BTreeMap::new, |before| {
        let lids = before.nodes.iter().enumerate().filter_map(|(index, node)| {
            Some((node.lid.or_else(|| node.ports.first().and_then(|port| port.lid))?, index))
        });
        lids.collect()
    });
    let mut found = Vec::new();
    for (index, node) in fabric.nodes.iter().enumerate() {
        for (at, port) in node.ports.iter().enumerate() {
            let Some(own) = &port.counters else { continue };
            let values = match before {
                None => (**own).clone(),
                Some(before) => {
                    let lid = node.lid.or(port.lid);
                    let was =
                        known.get(node.id.as_str()).or_else(|| by_lid.get(&lid?)).and_then(|was| {
                            before.nodes[*was].ports.iter().find(|p| p.number == port.number)
                        });
                    match was.and_then(|was| was.counters.as_ref()) {
                        Some(was) => own.since(was),
                        None => continue,
                    }
                }
            };
            if !values.is_empty() {
                found.push(Counted { end: End { node: index, port: at }, values });
            }
        }
    }
    found
}

fn named(fabric: &Fabric, end: End) -> String {
    let name = fabric.end_name(end);
    let link = fabric.nodes[end.node].ports[end.port].link;
    match link.and_then(|link| fabric.links.get(link)) {
        Some(link) => {
            let other = if link.ends[0] == end { link.ends[1] } else { link.ends[0] };
            format!("{name} (to {})", fabric.end_name(other))
        }
        None => name,
    }
}

fn faults(
    fabric: &Fabric,
    ports: &[Counted],
    counter: &Counter,
    borne: u64,
    look: Look,
    interval_s: Option<f64>,
) -> Option<Finding> {
    let limit = if look == Look::Grown { 0 } else { borne };
    let mut over: Vec<(u64, &Counted)> = ports
        .iter()
        .filter_map(|port| Some((port.values.get(counter.name)?, port)))
        .filter(|(value, _)| *value > limit)
        .collect();
    if over.is_empty() {
        return None;
    }
    over.sort_by_key(|(value, _)| std::cmp::Reverse(*value));
    let most = over[0].0;
    let verdict = if look == Look::Grown && most > borne { Verdict::Fail } else { Verdict::Warn };
    let evidence = over.iter().map(|(value, port)| {
        let full = port.values.narrow && counter.saturates == Some(*value);
        let full = if full { ", where it stops counting" } else { "" };
        let rate = match (look, interval_s) {
            (Look::Grown, Some(seconds)) if seconds > 0.0 => {
                format!(" in {seconds:.0} s, {:.0} an hour", *value as f64 / seconds * 3600.0)
            }
            _ => String::new(),
        };
        format!("{}: {value}{rate}{full}", named(fabric, port.end))
    });
    let when =
        if look == Look::Grown { "between the two dumps" } else { "since they were cleared" };
    let title = format!(
        "{} counted {} {when}: up to {most}, {borne} are borne",
        plural(over.len(), "port", "ports"),
        counter.name,
    );
    Some(
        Finding::new("counters", counter.check, verdict, title)
            .seen(evidence)
            .fixed_by(counter.fix),
    )
}

/// Ports where data waited for credits.
fn waiting(fabric: &Fabric, ports: &[Counted], look: Look) -> Option<Finding> {
    let mut over: Vec<(f64, &Counted)> = Vec::new();
    for port in ports {
        let (Some(wait), Some(sent)) =
            (port.values.get("PortXmitWait"), port.values.get("PortXmitData"))
        else {
            continue;
        };
        let part = wait as f64 / (wait as f64 + sent as f64).max(1.0);
        if part > WAIT_WARN && wait > 1_000_000 {
            over.push((part, port));
        }
    }
    over.sort_by(|a, b| b.0.total_cmp(&a.0));
    let worst = over.first()?.0;
    let verdict =
        if worst > WAIT_FAIL && look == Look::Grown { Verdict::Fail } else { Verdict::Warn };
    let title = format!(
        "{} for credits for more than {:.0} % of the time",
        plural(over.len(), "port waits", "ports wait"),
        WAIT_WARN * 100.0
    );
    let evidence = over.iter().map(|(part, port)| {
        format!("{}: {:.0} % of the time", named(fabric, port.end), part * 100.0)
    });
    Some(
        Finding::new("counters", "ctr-05", verdict, title)
            .seen(evidence)
            .costs(format!("up to {:.0} % of a link's time", worst * 100.0))
            .fixed_by("find where the queues begin: adaptive routing, more queue pairs, placement; a slow receiver"),
    )
}

/// One direction of a switch's uplinks.
struct Spread {
    switch: NodeIndex,
    sends: bool,
    /// Bytes for each Gb/s, with the port.
    loads: Vec<(f64, f64, End)>,
    over: f64,
}

/// Uplinks of one switch that carry far more or less than their equals.
fn imbalance(fabric: &Fabric, ports: &[Counted], look: Look) -> Option<Finding> {
    let values: BTreeMap<End, &Counters> =
        ports.iter().map(|port| (port.end, &port.values)).collect();
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
                    loads.push((bytes / link.rate.map_or(1.0, Rate::gbps), bytes, near));
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
    let verdict = if worst > IMBALANCE_FAIL { Verdict::Fail } else { Verdict::Warn };
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
fn host_imbalance(fabric: &Fabric, ports: &[Counted], look: Look) -> Option<Finding> {
    // Totals of adapters tell of storage and of jobs long gone.
    if look == Look::Total {
        return None;
    }
    let mut by_host: BTreeMap<usize, Vec<(f64, End)>> = BTreeMap::new();
    for port in ports {
        let node = &fabric.nodes[port.end.node];
        if let (Some(host), (Some(sent), _)) = (node.host, port.values.bytes())
            && fabric.hosts[host].named
        {
            by_host.entry(host).or_default().push((sent as f64, port.end));
        }
    }
    let mut over: Vec<(f64, String)> = Vec::new();
    for loads in by_host.values().filter(|loads| loads.len() > 1) {
        let mean = loads.iter().map(|load| load.0).sum::<f64>() / loads.len() as f64;
        let Some(hot) = loads.iter().max_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        let part = hot.0 / mean.max(1.0) - 1.0;
        if mean >= BYTES_LEAST && part > IMBALANCE_WARN {
            let text = format!(
                "{}: {}, {} in the mean",
                named(fabric, hot.1),
                bytes_text(hot.0),
                bytes_text(mean)
            );
            over.push((part, text));
        }
    }
    over.sort_by(|a, b| b.0.total_cmp(&a.0));
    let worst = over.first()?.0;
    let verdict = if worst > IMBALANCE_FAIL { Verdict::Fail } else { Verdict::Warn };
    let title = format!(
        "{} with an adapter more than 20 % over the mean of its host, up to {:.0} %",
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

/// Ports that pause frames held still.
fn pauses(
    fabric: &Fabric,
    ports: &[Counted],
    look: Look,
    interval_s: Option<f64>,
) -> Option<Finding> {
    let mut evidence = Vec::new();
    let mut verdict = Verdict::Warn;
    if let (Look::Grown, Some(seconds)) = (look, interval_s.filter(|seconds| *seconds > 0.0)) {
        for port in ports {
            let part = sum(port, Meaning::PauseTime) as f64 / 1e6 / seconds;
            if part > PAUSE_WARN {
                if part > PAUSE_FAIL {
                    verdict = Verdict::Fail;
                }
                evidence.push(format!(
                    "{}: paused for {:.0} % of {seconds:.0} s",
                    named(fabric, port.end),
                    part * 100.0
                ));
            }
        }
    }
    if evidence.is_empty() {
        evidence = outliers(fabric, ports, Meaning::Pause, look, "pause frames");
    }
    if evidence.is_empty() {
        return None;
    }
    let title =
        format!("{} held still by pause frames", plural(evidence.len(), "port is", "ports are"));
    Some(
        Finding::new("counters", "ctr-08", verdict, title)
            .seen(evidence)
            .costs("a paused link holds up all behind it, switch by switch")
            .fixed_by("find the receiver that is too slow; set the PFC watchdog on the switches"),
    )
}

/// Ports that counted ten times what is in the middle of all ports. Where there are few ports, and two looks: those
/// that counted many.
fn outliers(
    fabric: &Fabric,
    ports: &[Counted],
    wanted: Meaning,
    look: Look,
    what: &str,
) -> Vec<String> {
    let mut counts: Vec<(u64, &Counted)> = ports
        .iter()
        .filter(|port| port.values.iter().any(|(counter, _)| counter.meaning == wanted))
        .map(|port| (sum(port, wanted), port))
        .collect();
    counts.sort_by_key(|(count, _)| *count);
    let median = counts.get(counts.len() / 2).map_or(0, |(count, _)| *count);
    let few = counts.len() < 4;
    let odd = |count: u64| match few {
        true => look == Look::Grown && count > OUTLIER_LEAST,
        false => count > median.saturating_mul(OUTLIER_TIMES).max(OUTLIER_LEAST),
    };
    let shown = counts.iter().rev().filter(|(count, _)| odd(*count));
    shown
        .map(|(count, port)| {
            format!(
                "{}: {count} {what}; {median} are in the middle of all ports",
                named(fabric, port.end)
            )
        })
        .collect()
}

/// All of one meaning that a port counted, priorities together.
fn sum(port: &Counted, wanted: Meaning) -> u64 {
    let of_it = port.values.iter().filter(|(counter, _)| counter.meaning == wanted);
    of_it.fold(0, |sum, (_, value)| sum.saturating_add(value))
}

/// Ports whose packets were marked for congestion far more often than others'.
fn congested(fabric: &Fabric, ports: &[Counted], look: Look) -> Option<Finding> {
    let evidence =
        outliers(fabric, ports, Meaning::Marked, look, "marks and notices of congestion");
    if evidence.is_empty() {
        return None;
    }
    let title = format!(
        "{} far more congestion than others",
        plural(evidence.len(), "port sees", "ports see")
    );
    Some(
        Finding::new("counters", "ctr-10", Verdict::Warn, title)
            .seen(evidence)
            .costs("senders to it slow down, and so does what waits for them")
            .fixed_by("look for many senders to one receiver; adaptive routing, more queue pairs, placement"),
    )
}

/// Ports with pause frames for everything, where priorities should be paused alone.
fn global_pauses(fabric: &Fabric, ports: &[Counted]) -> Option<Finding> {
    let by_priority = |port: &Counted| {
        port.values.iter().any(|(counter, value)| counter.meaning == Meaning::Pause && value > 0)
    };
    let over: Vec<(u64, &Counted)> = ports
        .iter()
        .filter_map(|port| Some((port.values.get("rx_pause_ctrl_phy")?, port)))
        .filter(|(value, port)| *value > 0 && !by_priority(port))
        .collect();
    if over.is_empty() {
        return None;
    }
    let title =
        format!("{} pause frames for all priorities", plural(over.len(), "port gets", "ports get"));
    let evidence = over.iter().map(|(value, port)| format!("{}: {value}", named(fabric, port.end)));
    Some(
        Finding::new("counters", "ctr-09", Verdict::Warn, title)
            .seen(evidence)
            .costs("they stop everything, congestion notices among it")
            .fixed_by(
                "ethtool -A <interface> rx off tx off, and PFC on the priority of RDMA alone",
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
