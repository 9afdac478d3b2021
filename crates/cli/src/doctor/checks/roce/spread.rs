//! RoCE: whether traffic is spread over ports and paths.

use crate::doctor::checks::{Seen, Tally};
use crate::doctor::finding::Verdict;
use crate::doctor::host::{self, Host};

pub(super) fn bonds(host: &Host) -> Seen {
    let rails = host.roce_interfaces();
    let pairs = host.whole("NCCL_IB_QPS_PER_CONNECTION").unwrap_or(1);
    let mut tally = Tally::default();
    for name in host.list("/proc/net/bonding") {
        let Some(text) = host.text(&format!("/proc/net/bonding/{name}")) else { continue };
        let field = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim).unwrap_or("")
        };
        let (mode, hash) = (field("Bonding Mode:"), field("Transmit Hash Policy:"));
        let slaves = text.lines().filter_map(|line| line.strip_prefix("Slave Interface:"));
        let slaves: Vec<&str> = slaves.map(str::trim).collect();
        if !slaves.iter().any(|slave| rails.iter().any(|rail| rail == slave)) {
            continue;
        }
        // A device over both ports: the card itself puts each queue pair on one of them.
        let device = host.hcas().iter().find(|hca| {
            hca.name.starts_with("mlx5_bond_")
                && host.interfaces_of(hca).iter().any(|name| slaves.contains(name))
        });
        let slaves = slaves.len();
        let line = format!(
            "/proc/net/bonding/{name}: {mode}, hash {hash}, {slaves} ports, {pairs} queue pairs a connection{}",
            device.map(|device| format!(", device {}", device.name)).unwrap_or_default()
        );
        let balances = mode.contains("802.3ad") || mode.contains("balance") || mode.contains("xor");
        let by_flow = hash.starts_with("layer3+4")
            || hash.starts_with("encap3+4")
            || hash.starts_with("vlan");
        match (slaves < 2 || !balances || pairs > 1, device.is_some(), by_flow) {
            (true, ..) | (false, false, true) => tally.well(line),
            // Connections of other channels may still take the other port.
            (false, true, true) | (false, false, false) => tally.warn(line),
            (false, true, false) => tally.fail(line),
        }
    }
    tally.seen(
        "no bond of RoCE interfaces",
        "bonds spread connections",
        "bonds that put all connections of a peer on one port",
    )
}

/// What the fabric's plan says is not known; rails of one machine that differ fit no plan.
pub(super) fn adaptive_routing(host: &Host) -> Seen {
    let mut known = Vec::new();
    let mut why = None;
    for port in host.roce_ports().iter().filter(|port| port.device.name.starts_with("mlx5_")) {
        let name = &port.device.name;
        match host.output(&format!("mlxreg-roce-{name}")) {
            Ok(text) => known.extend(host::adaptive_routing(&text).map(|on| (name, on))),
            Err(error) => why = Some(error),
        }
    }
    if known.is_empty() {
        return match why {
            Some(why) => {
                Seen::unknown("could not look whether rails agree on adaptive routing", why)
            }
            None => Seen::absent("no RoCE port that tells of adaptive routing"),
        };
    }
    let on = known.iter().filter(|(_, on)| *on).count();
    let mut tally = Tally::default();
    for (name, is_on) in &known {
        let odd = *is_on != (on * 2 > known.len()) && on > 0;
        let verdict = if odd { Verdict::Fail } else { Verdict::Pass };
        tally.add(verdict, format!("{name}: adaptive_routing_forced_en = {}", u8::from(*is_on)));
    }
    tally.seen(
        "no RoCE port",
        "rails agree on adaptive routing",
        "rails that differ from most in adaptive routing",
    )
}
