//! Counters: faults by threshold and by what they grew, waiting, pauses.
//!
//! One look tells totals since somebody cleared them, which may be long ago: warnings at most. Two looks tell what
//! is wrong now.

use std::collections::HashMap;

use super::{CheckOptions, Finding, Verdict, balance, plural};
use crate::counter::{COUNTERS, Counter, Counters, Form, Meaning};
use crate::model::{End, Fabric, Node, NodeIndex, Port};
use crate::shape::Rails;

/// A fault that came so often did not come by chance.
const CHANCE_LEAST: u64 = 5;
/// Fewer ticks of waiting are nothing: a tenth of a second at 400 Gb/s.
const WAIT_LEAST: u64 = 1_000_000_000;
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

pub(super) struct Counted {
    pub(super) end: End,
    pub(super) values: Counters,
}

pub(super) fn judge(fabric: &Fabric, rails: &Rails, options: &CheckOptions<'_>) -> Vec<Finding> {
    let look = if options.before.is_some() { Look::Grown } else { Look::Total };
    let seconds = options.interval_s.filter(|seconds| *seconds > 0.0);
    let (ports, alone) = counted(fabric, options.before);
    let mut found = Vec::new();
    found.extend(not_compared(fabric, &ports, &alone));
    for counter in COUNTERS {
        if let Meaning::Fault(borne) = counter.meaning {
            found.extend(faults(fabric, &ports, counter, borne, look, seconds));
        }
    }
    found.extend(stopped(fabric, &ports));
    found.extend(waiting(fabric, &ports, look, seconds));
    found.extend(balance::imbalance(fabric, &ports, look));
    found.extend(balance::host_imbalance(fabric, rails, &ports, look));
    found.extend(pauses(fabric, &ports, look, seconds));
    found.extend(pausing(fabric, &ports, look));
    found.extend(global_pauses(fabric, &ports));
    found.extend(congested(fabric, &ports, look));
    found
}

/// Every port with what it counted: in all, or since the other look; and those that only the later look tells.
fn counted(fabric: &Fabric, before: Option<&Fabric>) -> (Vec<Counted>, Vec<End>) {
    let mut earlier = before.map(Earlier::new);
    let nothing = Counters::of(Form::Listed);
    let (mut found, mut alone) = (Vec::new(), Vec::new());
    for (index, node) in fabric.nodes.iter().enumerate() {
        for (at, port) in node.ports.iter().enumerate() {
            let Some(own) = &port.counters else { continue };
            let end = End { node: index, port: at };
            let values = match &mut earlier {
                None => (**own).clone(),
                Some(earlier) => match earlier.counters(node, port) {
                    Some(was) => own.since(was),
                    // A list leaves out ports that counted little.
                    None if earlier.fabric.errors_listed => own.since(&nothing),
                    None => Counters::default(),
                },
            };
            if !values.is_empty() {
                found.push(Counted { end, values });
            } else if !own.is_empty() {
                alone.push(end);
            }
        }
    }
    (found, alone)
}

/// Finds ports in the earlier look.
struct Earlier<'a> {
    fabric: &'a Fabric,
    by_id: HashMap<&'a str, NodeIndex>,
    /// A dump of counters alone knows nodes by their local identifier only.
    by_lid: HashMap<u32, NodeIndex>,
    /// Ports of Ethernet's switches by name; their numbers change with what is plugged in.
    by_name: HashMap<NodeIndex, HashMap<&'a str, usize>>,
}

impl<'a> Earlier<'a> {
    fn new(fabric: &'a Fabric) -> Self {
        let nodes = || fabric.nodes.iter().enumerate();
        let by_lid = nodes().filter_map(|(index, node)| {
            Some((node.lid.or_else(|| node.ports.first().and_then(|port| port.lid))?, index))
        });
        Self {
            fabric,
            by_id: nodes().map(|(index, node)| (node.id.as_str(), index)).collect(),
            by_lid: by_lid.collect(),
            by_name: HashMap::new(),
        }
    }

    fn counters(&mut self, node: &Node, port: &Port) -> Option<&'a Counters> {
        let lid = node.lid.or(port.lid);
        let was = self.by_id.get(node.id.as_str()).or_else(|| self.by_lid.get(&lid?));
        let was = *was?;
        let ports = &self.fabric.nodes[was].ports;
        let at = match &port.name {
            Some(name) => {
                let named = self.by_name.entry(was).or_insert_with(|| {
                    let names = ports.iter().enumerate();
                    names.filter_map(|(at, port)| Some((port.name.as_deref()?, at))).collect()
                });
                // Dumps of counters alone know no names.
                match named.get(name.as_str()) {
                    Some(at) => Some(*at),
                    None if named.is_empty() => find(ports, port.number),
                    None => None,
                }
            }
            None => find(ports, port.number),
        };
        ports.get(at?)?.counters.as_deref()
    }
}

fn find(ports: &[Port], number: u32) -> Option<usize> {
    ports.binary_search_by_key(&number, |port| port.number).ok()
}

/// What cannot be said, since one look is missing.
fn not_compared(fabric: &Fabric, ports: &[Counted], alone: &[End]) -> Option<Finding> {
    if alone.is_empty() {
        return None;
    }
    let title = if ports.is_empty() {
        "no port is counted in both dumps: nothing can be said of what grew".to_owned()
    } else {
        format!(
            "{} counted in the later dump alone: nothing can be said of what grew there",
            plural(alone.len(), "port is", "ports are")
        )
    };
    Some(
        Finding::new("counters", "ctr-dumps", Verdict::Unknown, title)
            .seen(alone.iter().map(|end| named(fabric, *end)))
            .fixed_by(
                "take counters of the same ports twice: perfquery -x for each, or ibqueryerrors --data",
            ),
    )
}

/// Ports whose old counters of data are full: nothing is known of what they carry.
fn stopped(fabric: &Fabric, ports: &[Counted]) -> Option<Finding> {
    let full = |port: &&Counted| {
        ["PortXmitData", "PortRcvData", "PortXmitWait"].iter().any(|name| port.values.ended(name))
    };
    let evidence: Vec<String> =
        ports.iter().filter(full).map(|port| named(fabric, port.end)).collect();
    if evidence.is_empty() {
        return None;
    }
    let title = format!(
        "{} 4294967295 of data or waiting, where the old counters stop: what they carry is not known",
        plural(evidence.len(), "port shows", "ports show")
    );
    Some(
        Finding::new("counters", "ctr-dumps", Verdict::Unknown, title)
            .seen(evidence)
            .fixed_by("take the counters of 64 bits: perfquery -x"),
    )
}

pub(super) fn named(fabric: &Fabric, end: End) -> String {
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
    let full = |port: &Counted| port.values.ended(counter.name);
    let mut over: Vec<(u64, &Counted)> = ports
        .iter()
        .filter_map(|port| Some((port.values.get(counter.name)?, port)))
        .filter(|(value, port)| *value > limit || full(port))
        .collect();
    if over.is_empty() {
        return None;
    }
    over.sort_by_key(|(value, _)| std::cmp::Reverse(*value));
    let most = over[0].0;
    let hourly = |value: u64, seconds: f64| value as f64 / seconds * 3600.0;
    // Few may come together by chance; of many the rate counts, however long it was looked.
    let bad = match interval_s {
        Some(seconds) => most >= CHANCE_LEAST && hourly(most, seconds) > borne as f64,
        None => most > borne,
    };
    let verdict = if look == Look::Grown && bad { Verdict::Fail } else { Verdict::Warn };
    let evidence = over.iter().map(|(value, port)| {
        let name = named(fabric, port.end);
        let end = counter.saturates.unwrap_or(*value);
        match (look, interval_s) {
            (Look::Grown, _) if full(port) => {
                format!("{name}: at least {value}; it stands at {end}, where it stops counting")
            }
            (Look::Grown, Some(seconds)) => {
                format!("{name}: {value} in {seconds:.0} s, {:.0} an hour", hourly(*value, seconds))
            }
            _ if full(port) => format!("{name}: {value}, where it stops counting"),
            _ => format!("{name}: {value}"),
        }
    });
    let when =
        if look == Look::Grown { "between the two dumps" } else { "since they were cleared" };
    let borne_text = match (look, interval_s) {
        (Look::Grown, Some(_)) => format!("{borne} an hour are borne"),
        _ => format!("{borne} are borne"),
    };
    let title = if most == 0 {
        format!(
            "{} of {} where it stops counting: whether it grows cannot be seen",
            plural(over.len(), "port stands at the end", "ports stand at the end"),
            counter.name,
        )
    } else {
        format!(
            "{} counted {} {when}: up to {most}, {borne_text}",
            plural(over.len(), "port", "ports"),
            counter.name,
        )
    };
    let fix = match most {
        0 => "clear it (perfquery -R), wait, and look again",
        _ => counter.fix,
    };
    Some(Finding::new("counters", counter.check, verdict, title).seen(evidence).fixed_by(fix))
}

/// Ports where data waited for credits: of the time between two looks, where that and the rate are known; else of
/// the time in which there was something to send.
fn waiting(
    fabric: &Fabric,
    ports: &[Counted],
    look: Look,
    interval_s: Option<f64>,
) -> Option<Finding> {
    let mut over: Vec<(f64, bool, &Counted)> = Vec::new();
    for port in ports.iter().filter(|port| !port.values.ended("PortXmitWait")) {
        let Some(wait) = port.values.get("PortXmitWait").filter(|wait| *wait > WAIT_LEAST) else {
            continue;
        };
        let own = &fabric.nodes[port.end.node].ports[port.end.port];
        let rate = own.link.and_then(|link| fabric.links.get(link)).and_then(|link| link.rate);
        let seconds = interval_s.filter(|_| look == Look::Grown);
        let (part, of_all) = match (seconds, rate.or(own.rate)) {
            // A tick is the time of one word.
            (Some(seconds), Some(rate)) => {
                (wait as f64 * 32.0 / (rate.gbps() * 1e9) / seconds, true)
            }
            _ => {
                let sent = port.values.bytes().0.map(|bytes| bytes as f64 / 4.0);
                let Some(sent) = sent else { continue };
                (wait as f64 / (wait as f64 + sent), false)
            }
        };
        if part > WAIT_WARN {
            over.push((part, of_all, port));
        }
    }
    over.sort_by(|a, b| b.0.total_cmp(&a.0));
    let worst = over.first()?.0;
    let verdict =
        if worst > WAIT_FAIL && look == Look::Grown { Verdict::Fail } else { Verdict::Warn };
    let all = over.iter().all(|(_, of_all, _)| *of_all);
    let time =
        |of_all: bool| if of_all { "of the time" } else { "of the time it had data to send" };
    let title = format!(
        "{} for credits for more than {:.0} % {}",
        plural(over.len(), "port waits", "ports wait"),
        WAIT_WARN * 100.0,
        if all { "of the time" } else { "of the time with data to send" },
    );
    let evidence = over.iter().map(|(part, of_all, port)| {
        format!("{}: {:.0} % {}", named(fabric, port.end), part * 100.0, time(*of_all))
    });
    Some(
        Finding::new("counters", "ctr-05", verdict, title)
            .seen(evidence)
            .costs(format!("up to {:.0} % of a link's time", worst.min(1.0) * 100.0))
            .fixed_by("find where the queues begin: adaptive routing, more queue pairs, placement; a slow receiver"),
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
    if let (Look::Grown, Some(seconds)) = (look, interval_s) {
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

/// Ports that hold the other end still.
fn pausing(fabric: &Fabric, ports: &[Counted], look: Look) -> Option<Finding> {
    let evidence = outliers(fabric, ports, Meaning::PauseSent, look, "pause frames sent");
    if evidence.is_empty() {
        return None;
    }
    let title = format!(
        "{} far more pause frames than others",
        plural(evidence.len(), "port sends", "ports send")
    );
    Some(
        Finding::new("counters", "ctr-08", Verdict::Warn, title)
            .seen(evidence)
            .costs("what sends to it stands still, switch by switch")
            .fixed_by(
                "see why it takes packets so slowly: PCIe width, IOMMU, memory, a stalled GPU",
            ),
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
