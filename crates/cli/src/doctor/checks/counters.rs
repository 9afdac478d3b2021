//! Error counters of ports and interfaces, since they were last cleared.

use super::{Check, Seen, Tally};
use crate::doctor::finding::Verdict;
use crate::doctor::host::{Counters, Host, Port};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "ctr-01",
        group: "counters",
        about: "ports saw no symbol errors",
        reads: "/sys/class/infiniband/*/ports/*/counters/symbol_error",
        cost: "more than 10 is a bad cable or optic; a storm of them comes before connections break",
        fix: "clean or exchange the optic; then clear with perfquery -R and watch",
        root: false,
        look: |host| {
            counted(
                host,
                &["counters/symbol_error"],
                10,
                "ports saw no symbol errors",
                "ports with symbol errors",
            )
        },
    },
    Check {
        id: "ctr-02",
        group: "counters",
        about: "links did not go down or train again",
        reads: "/sys/class/infiniband/*/ports/*/counters/{link_downed,link_error_recovery}",
        cost: "each time connections stall up to 30 s; 255 is a full counter, not a number",
        fix: "exchange the cable; clear with perfquery -R and watch",
        root: false,
        look: |host| {
            let names = ["counters/link_downed", "counters/link_error_recovery"];
            counted(
                host,
                &names,
                u64::MAX,
                "links did not go down",
                "ports whose link went down or trained again",
            )
        },
    },
    Check {
        id: "ctr-03",
        group: "counters",
        about: "ports received no broken packets",
        reads: "/sys/class/infiniband/*/ports/*/counters/port_rcv_{errors,remote_physical_errors}",
        cost: "every broken packet is sent again; remote physical errors point at a link further up",
        fix: "walk the path with ibtracert; exchange the cable that counts first",
        root: false,
        look: |host| {
            let names = ["counters/port_rcv_errors", "counters/port_rcv_remote_physical_errors"];
            counted(
                host,
                &names,
                10,
                "ports received no broken packets",
                "ports that received broken packets",
            )
        },
    },
    Check {
        id: "ctr-04",
        group: "counters",
        about: "ports dropped nothing when sending",
        reads: "/sys/class/infiniband/*/ports/*/counters/port_xmit_discards",
        cost: "InfiniBand loses nothing by design: a discard is a timeout at a stuck or dead port",
        fix: "look for credit loops and slow receivers; ibqueryerrors names the port",
        root: false,
        look: |host| {
            counted(
                host,
                &["counters/port_xmit_discards"],
                100,
                "ports dropped nothing",
                "ports that dropped packets when sending",
            )
        },
    },
    Check {
        id: "ctr-05",
        group: "counters",
        about: "InfiniBand ports rarely wait for credits",
        reads: "/sys/class/infiniband/*/ports/*/counters/port_xmit_{wait,data}",
        cost: "the share of the time in which data waited is bandwidth lost",
        fix: "adaptive routing; place the job below one leaf; look for oversubscribed links",
        root: false,
        look: waiting,
    },
    Check {
        id: "ctr-06",
        group: "counters",
        about: "nothing was sent twice",
        reads: "/sys/class/infiniband/*/ports/*/hw_counters/{packet_seq_err,out_of_sequence,local_ack_timeout_err}",
        cost: "each missing acknowledgement stalls its connection for ms to s",
        fix: "look for drops on the path: flow control and DSCP (roc-07 to roc-10), cables",
        root: false,
        look: sent_twice,
    },
    Check {
        id: "ctr-07",
        group: "counters",
        about: "receivers were ready",
        reads: "/sys/class/infiniband/*/ports/*/hw_counters/{rnr_nak_retry_err,out_of_buffer}",
        cost: "a sender that finds no buffer waits 0.01 to 500 ms and tries again",
        fix: "the receiving host is too slow: bind its ranks to cores (num-03), look for other load",
        root: false,
        look: |host| {
            let names = ["hw_counters/rnr_nak_retry_err", "hw_counters/out_of_buffer"];
            counted(
                host,
                &names,
                u64::MAX,
                "receivers were ready",
                "ports whose receiver was not ready",
            )
        },
    },
    Check {
        id: "ctr-08",
        group: "counters",
        about: "the lossless priority was rarely paused",
        reads: "ethtool -S (rx_prioN_pause_duration), /proc/uptime",
        cost: "the share of the time in which the link was paused is bandwidth lost, here and upstream",
        fix: "find the slow receiver; set a PFC watchdog on the switch",
        root: false,
        look: paused,
    },
    Check {
        id: "ctr-09",
        group: "counters",
        about: "no link-wide pauses came in",
        reads: "ethtool -S (rx_pause_ctrl_phy)",
        cost: "a link-wide pause stops everything, congestion notifications too",
        fix: "ethtool -A INTERFACE rx off tx off, on the switch too",
        root: false,
        look: global_pause,
    },
    Check {
        id: "ctr-10",
        group: "counters",
        about: "no congestion notification was ignored",
        reads: "/sys/class/infiniband/*/ports/*/hw_counters/rp_cnp_ignored",
        cost: "a sender that does not slow down fills queues until flow control stops the fabric",
        fix: "enable congestion control for the lossless priority (roc-10)",
        root: false,
        look: |host| {
            counted(
                host,
                &["hw_counters/rp_cnp_ignored"],
                0,
                "no notification was ignored",
                "ports that ignored congestion notifications",
            )
        },
    },
    Check {
        id: "ctr-11",
        group: "counters",
        about: "interfaces dropped nothing and received nothing broken",
        reads: "ethtool -S, /sys/class/net/*/statistics",
        cost: "RoCE that loses packets falls to less than 1 GB/s (nccl#378)",
        fix: "crc errors: cable; discards: flow control headroom, receive ring (ethtool -G)",
        root: false,
        look: drops,
    },
];

/// Counters that should be zero: above zero is a warning, above `most` a failure.
fn counted(host: &Host, names: &[&str], most: u64, good: &str, bad: &str) -> Seen {
    let mut tally = Tally::default();
    for port in host.ports() {
        for name in names {
            let Some(count) = counter(host, &port, name) else { continue };
            let line =
                format!("/sys/class/infiniband/{}/{name} = {count} since boot", port.place());
            let verdict = match count {
                0 => Verdict::Pass,
                _ if count > most => Verdict::Fail,
                _ => Verdict::Warn,
            };
            tally.add(verdict, line);
        }
    }
    tally.seen("no RDMA port has this counter", good, bad)
}

/// A port's counter from sysfs, or from `commands/perfquery-DEVICE-PORT.txt` of a copied tree.
fn counter(host: &Host, port: &Port<'_>, name: &str) -> Option<u64> {
    host.port_counter(port, name).or_else(|| {
        let output = format!("perfquery-{}", port.name().replace(':', "-"));
        let text = host.root().command_output(&output).ok().flatten()?;
        Counters::parse(&text).0.get(name.rsplit('/').next()?).copied()
    })
}

fn waiting(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for port in host.ports() {
        if port.is_ethernet() {
            continue;
        }
        let read = |name: &str| counter(host, &port, &format!("counters/{name}"));
        let (Some(wait), Some(data)) = (read("port_xmit_wait"), read("port_xmit_data")) else {
            continue;
        };
        if wait.saturating_add(data) < 1 << 20 {
            tally.well(format!("{}: too little was sent to tell", port.name()));
            continue;
        }
        #[expect(clippy::cast_precision_loss, reason = "a share, not a count")]
        let share = wait as f64 / (wait as f64 + data as f64);
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

fn sent_twice(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for port in host.ports() {
        let timeouts = counter(host, &port, "hw_counters/local_ack_timeout_err");
        if let Some(count) = timeouts {
            let line = format!(
                "/sys/class/infiniband/{}/hw_counters/local_ack_timeout_err = {count}",
                port.place()
            );
            // One sample does not say when: it may have been long ago.
            if count > 0 { tally.warn(line + " since boot") } else { tally.well(line) }
        }
        // Words of four bytes.
        let sent =
            counter(host, &port, "counters/port_xmit_data").unwrap_or(0).saturating_mul(4) >> 30;
        for name in ["packet_seq_err", "out_of_sequence"] {
            let Some(count) = counter(host, &port, &format!("hw_counters/{name}")) else {
                continue;
            };
            let line = format!(
                "/sys/class/infiniband/{}/hw_counters/{name} = {count} in {sent} GiB sent",
                port.place()
            );
            match count {
                0 => tally.well(line),
                _ if count > sent.max(1) => tally.fail(line),
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

fn paused(host: &Host) -> Seen {
    let uptime = host
        .text("/proc/uptime")
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    let mut tally = Tally::default();
    for name in host.roce_interfaces() {
        let counters = match host.interface_counters(&name) {
            Ok(counters) => counters,
            Err(why) => {
                tally.unknown(format!("{name}: {why}"));
                continue;
            }
        };
        for (key, micros) in counters
            .iter()
            .filter(|(key, _)| key.starts_with("rx_prio") && key.ends_with("_pause_duration"))
        {
            #[expect(clippy::cast_precision_loss, reason = "a share, not a count")]
            let share = uptime.filter(|up| *up > 1.0).map(|up| *micros as f64 / 1e6 / up);
            let Some(share) = share else { continue };
            let line = format!(
                "ethtool -S {name}: {key} = {micros} us, {:.2} % of the time since boot",
                share * 100.0
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

fn global_pause(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for name in host.roce_interfaces() {
        match host.interface_counters(&name) {
            Ok(counters) => {
                let Some(count) = counters.get("rx_pause_ctrl_phy") else { continue };
                // Pauses of one priority are counted here, too.
                let of_priority: u64 = counters
                    .iter()
                    .filter(|(key, _)| key.starts_with("rx_prio") && key.ends_with("_pause"))
                    .map(|(_, count)| *count)
                    .fold(0, u64::saturating_add);
                let line = format!(
                    "ethtool -S {name}: rx_pause_ctrl_phy = {count}, of priorities {of_priority}"
                );
                if *count > of_priority { tally.fail(line) } else { tally.well(line) }
            }
            Err(why) => tally.unknown(format!("{name}: {why}")),
        }
    }
    tally.seen(
        "no RoCE interface counts pauses",
        "no link-wide pauses came in",
        "interfaces that were paused as a whole",
    )
}

fn drops(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for nic in host.nics().into_iter().filter(|nic| nic.is_up()) {
        let counters = host.interface_counters(&nic.name).unwrap_or_default();
        let statistic = |name: &str| {
            host.number(&format!("/sys/class/net/{}/statistics/{name}", nic.name))
                .map(i64::unsigned_abs)
        };
        let packets = statistic("rx_packets").unwrap_or(0);
        let mut bad = Vec::new();
        let mut sum = 0_u64;
        for key in ["rx_discards_phy", "tx_discards_phy", "rx_out_of_buffer", "rx_crc_errors_phy"] {
            if let Some(count) = counters.get(key).filter(|count| **count > 0) {
                bad.push(format!("{key} = {count}"));
                sum = sum.saturating_add(*count);
            }
        }
        if let Some(count) = statistic("rx_crc_errors").filter(|count| *count > 0) {
            bad.push(format!("rx_crc_errors = {count}"));
            sum = sum.saturating_add(count);
        }
        let line = format!(
            "{}: {}, of {packets} packets",
            nic.name,
            if bad.is_empty() { "none".to_owned() } else { bad.join(", ") }
        );
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
