//! Counters of RDMA ports.

use std::collections::BTreeMap;

use crate::doctor::checks::{Seen, Tally};
use crate::doctor::finding::Verdict;
use crate::doctor::host::{Count, Counters, Host, Port, board};

/// How many of something are a failure, since boot and between two looks; one is a warning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) boot: u64,
    pub(super) window: u64,
}

/// Counters that should be zero: above zero is a warning, above the limit a failure.
pub(super) fn counted(host: &Host, names: &[&str], limits: Limits, good: &str, bad: &str) -> Seen {
    let mut tally = Tally::default();
    for port in host.ports() {
        for name in names {
            let Some(count) = counter(host, &port, name) else { continue };
            let most = if count.is_rate() { limits.window } else { limits.boot };
            let verdict = match count.value {
                0 => Verdict::Pass,
                value if value > most => Verdict::Fail,
                _ => Verdict::Warn,
            };
            tally.add(verdict, format!("/sys/class/infiniband/{}/{name} = {count}", port.place()));
        }
    }
    tally.seen("no RDMA port has this counter", good, bad)
}

/// A port's counter from sysfs, or from `commands/perfquery-DEVICE-PORT.txt` of a copied tree.
fn counter(host: &Host, port: &Port<'_>, name: &str) -> Option<Count> {
    let total = host.port_counter(port, name).or_else(|| {
        let output = format!("perfquery-{}", port.name().replace(':', "-"));
        let text = host.root().command_output(&output).ok().flatten()?;
        Counters::parse(&text).0.get(name.rsplit('/').next()?).copied()
    })?;
    Some(host.count(&format!("{}/{name}", port.place()), total))
}

pub(super) fn waiting(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for port in host.ports() {
        if port.is_ethernet() {
            continue;
        }
        let read = |name: &str| counter(host, &port, &format!("counters/{name}"));
        let (Some(wait), Some(data)) = (read("port_xmit_wait"), read("port_xmit_data")) else {
            continue;
        };
        if wait.value.saturating_add(data.value) < 1 << 20 {
            let span = data.span();
            tally.well(format!("{}: too little was sent {span} to tell", port.name()));
            continue;
        }
        #[expect(clippy::cast_precision_loss, reason = "a share, not a count")]
        let share = wait.value as f64 / (wait.value as f64 + data.value as f64);
        let line = format!(
            "{}: port_xmit_wait = {wait}, port_xmit_data = {data}: {:.1} % waited",
            port.name(),
            share * 100.0
        );
        if share > 0.3 {
            tally.fail(line);
        } else if share > 0.05 {
            tally.warn(line);
        } else {
            tally.well(line);
        }
    }
    tally.seen(
        "no InfiniBand port",
        "ports rarely wait for credits",
        "ports that waited for credits",
    )
}

pub(super) fn sent_twice(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for port in host.ports() {
        if let Some(count) = counter(host, &port, "hw_counters/local_ack_timeout_err") {
            let line = format!(
                "/sys/class/infiniband/{}/hw_counters/local_ack_timeout_err = {count}",
                port.place()
            );
            match (count.value, count.is_rate()) {
                (0, _) => tally.well(line),
                // One sample does not say when: it may have been long ago.
                (_, false) => tally.warn(line),
                (_, true) => tally.fail(line),
            }
        }
        // Words of four bytes.
        let sent = counter(host, &port, "counters/port_xmit_data");
        let sent = sent.map_or(0, |sent| sent.value).saturating_mul(4) >> 30;
        for name in ["packet_seq_err", "out_of_sequence"] {
            let Some(count) = counter(host, &port, &format!("hw_counters/{name}")) else {
                continue;
            };
            let line = format!(
                "/sys/class/infiniband/{}/hw_counters/{name} = {count}, {sent} GiB sent",
                port.place()
            );
            match count.value {
                0 => tally.well(line),
                value if value > sent.max(1) => tally.fail(line),
                _ => tally.warn(line),
            }
        }
    }
    tally.seen(
        "no RDMA port has these counters",
        "nothing was sent twice",
        "ports that had to send again",
    )
}

/// Only between two looks: since boot other jobs have run, and storage has a rail of its own.
pub(super) fn balance(host: &Host) -> Seen {
    let none = "needs two looks (--interval), and traffic on several rails";
    // Those of the kind that there are most of: storage has a card of its own.
    let mut kinds = BTreeMap::<_, Vec<Port<'_>>>::new();
    for port in host.ports().into_iter().filter(|port| port.is_active() && host.chooses(port)) {
        kinds.entry((board(port.device), port.mbit_per_s)).or_default().push(port);
    }
    let ports = kinds.into_values().max_by_key(Vec::len).unwrap_or_default();
    let mut rails: Vec<(String, f64)> = Vec::new();
    for port in &ports {
        let Some(sent) = counter(host, port, "counters/port_xmit_data") else { continue };
        let Some(seconds) = sent.seconds else { return Seen::absent(none) };
        #[expect(clippy::cast_precision_loss, reason = "a rate, not a count")]
        let gigabytes = sent.value as f64 * 4.0 / 1e9 / seconds;
        rails.push((port.name(), gigabytes));
    }
    #[expect(clippy::cast_precision_loss, reason = "a few rails")]
    let mean = rails.iter().map(|(_, rate)| rate).sum::<f64>() / rails.len().max(1) as f64;
    // Less than that is no job.
    if rails.len() < 2 || mean < 0.1 {
        return Seen::absent(none);
    }
    let most = rails.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let verdict = match most / mean - 1.0 {
        over if over > 0.3 => Verdict::Fail,
        over if over > 0.1 => Verdict::Warn,
        _ => Verdict::Pass,
    };
    let mut sorted: Vec<f64> = rails.iter().map(|(_, rate)| *rate).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted[sorted.len() / 2];
    let mut tally = Tally::default();
    for (name, rate) in &rails {
        let odd = (rate / middle - 1.0).abs() > 0.1 || (*rate >= most && middle <= 0.0);
        let line = format!("{name}: sent {rate:.2} GB/s, the mean is {mean:.2}");
        tally.add(if odd { verdict } else { Verdict::Pass }, line);
    }
    tally.seen(none, "rails carry alike", "rails that carry more or less than most")
}
