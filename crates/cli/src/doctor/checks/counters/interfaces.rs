//! Counters of network interfaces.

use crate::doctor::checks::{Seen, Tally};
use crate::doctor::host::Host;

pub(super) fn paused(host: &Host) -> Seen {
    let uptime = host.uptime();
    let mut tally = Tally::default();
    for name in host.roce_interfaces() {
        let counters = match host.interface_counters(&name) {
            Ok(counters) => counters,
            Err(why) => {
                tally.unknown(format!("{name}: {why}"));
                continue;
            }
        };
        for (key, total) in counters
            .iter()
            .filter(|(key, _)| key.starts_with("rx_prio") && key.ends_with("_pause_duration"))
        {
            let micros = host.count(&format!("{name}/{key}"), *total);
            let seconds = micros.seconds.or(uptime).filter(|seconds| *seconds > 0.5);
            #[expect(clippy::cast_precision_loss, reason = "a share, not a count")]
            let share = seconds.map(|seconds| micros.value as f64 / 1e6 / seconds);
            let Some(share) = share else { continue };
            let line = format!(
                "ethtool -S {name}: {key} = {} us, {:.2} % of the time {}",
                micros.value,
                share * 100.0,
                micros.span()
            );
            if share > 0.1 {
                tally.fail(line);
            } else if share > 0.01 {
                tally.warn(line);
            } else {
                tally.well(line);
            }
        }
    }
    tally.seen(
        "no RoCE interface counts pauses",
        "the lossless priority was rarely paused",
        "priorities that were paused",
    )
}

pub(super) fn global_pause(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for name in host.roce_interfaces() {
        let counters = match host.interface_counters(&name) {
            Ok(counters) => counters,
            Err(why) => {
                tally.unknown(format!("{name}: {why}"));
                continue;
            }
        };
        let count = |key: &str| Some(host.count(&format!("{name}/{key}"), *counters.get(key)?));
        let Some(all) = count("rx_pause_ctrl_phy") else { continue };
        // Pauses of one priority are counted here, too.
        let paused: Vec<(usize, u64)> = (0..8)
            .filter_map(|priority| {
                Some((priority, count(&format!("rx_prio{priority}_pause"))?.value))
            })
            .collect();
        let of_priority = paused.iter().map(|(_, count)| *count).fold(0, u64::saturating_add);
        let line =
            format!("ethtool -S {name}: rx_pause_ctrl_phy = {all}, of priorities {of_priority}");
        let lossless = host.qos(&name).ok().and_then(|qos| qos.pfc).unwrap_or_default();
        let other = paused
            .iter()
            .find(|(priority, count)| *count > 0 && !lossless.contains(priority))
            .filter(|_| !lossless.is_empty());
        match other {
            _ if all.value > of_priority => tally.fail(line),
            Some((priority, _)) => tally.warn(format!(
                "{line}; rx_prio{priority}_pause counts, and PFC is on for {lossless:?}"
            )),
            None => tally.well(line),
        }
    }
    tally.seen(
        "no RoCE interface counts pauses",
        "no link-wide pauses came in",
        "interfaces that were paused as a whole, or for another priority",
    )
}

pub(super) fn drops(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for nic in host.nics().into_iter().filter(|nic| nic.is_up()) {
        let counters = host.interface_counters(&nic.name).unwrap_or_default();
        let count = |key: &str, total: u64| host.count(&format!("{}/{key}", nic.name), total);
        let statistic = |name: &str| {
            let path = format!("/sys/class/net/{}/statistics/{name}", nic.name);
            let total = host.number(&path)?.unsigned_abs();
            Some(count(&format!("statistics/{name}"), total))
        };
        let packets = statistic("rx_packets");
        let span = packets.map_or_else(|| "since boot".to_owned(), |packets| packets.span());
        let packets = packets.map_or(0, |packets| packets.value);
        let keys = ["rx_discards_phy", "tx_discards_phy", "rx_out_of_buffer", "rx_crc_errors_phy"];
        let mut found: Vec<(&str, u64)> = keys
            .iter()
            .filter_map(|key| Some((*key, count(key, *counters.get(*key)?).value)))
            .collect();
        found.extend(statistic("rx_crc_errors").map(|count| ("rx_crc_errors", count.value)));
        found.retain(|(_, count)| *count > 0);
        let sum = found.iter().map(|(_, count)| *count).fold(0, u64::saturating_add);
        let bad: Vec<String> =
            found.iter().map(|(key, count)| format!("{key} = {count}")).collect();
        let bad = if bad.is_empty() { "none".to_owned() } else { bad.join(", ") };
        let line = format!("{}: {bad}, of {packets} packets {span}", nic.name);
        match sum {
            0 => tally.well(line),
            _ if sum > packets / 1_000_000 => tally.fail(line),
            _ => tally.warn(line),
        }
    }
    tally.seen(
        "no network device",
        "interfaces dropped nothing",
        "interfaces that dropped or received broken packets",
    )
}
