//! The counters that ports would show, as `perfquery -x` prints them.
//!
//! What a simulation carried is counted at both ends of each cable, in words of four bytes, beside packets of 4 KiB. Faults
//! and time without credits are not simulated and not written.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringway_fabric::Fabric;
use ringway_fabric::model::{End, Kind};

use crate::network::{Network, Wire};
use crate::outcome::Outcome;

/// Bytes of a packet.
const PACKET: u64 = 4096;

/// Bytes that a port sent and received, by the identifier of its end and its number.
pub type Carried = BTreeMap<(u32, u32), (u64, u64)>;

/// What ports of a fabric had counted before.
#[must_use]
pub fn carried(fabric: &Fabric) -> Carried {
    let mut all = Carried::new();
    for (index, node) in fabric.nodes.iter().enumerate() {
        for (place, port) in node.ports.iter().enumerate() {
            let Some(counters) = &port.counters else { continue };
            if let Some(lid) = lid(fabric, End { node: index, port: place }) {
                let (sent, received) = counters.bytes();
                all.insert((lid, port.number), (sent.unwrap_or(0), received.unwrap_or(0)));
            }
        }
    }
    all
}

/// Writes the counters of every port with a cable, after the run took place so many times, on top of what was counted before.
///
/// # Errors
///
/// When a port has no local identifier, by which counters are told.
pub fn write(
    network: &Network,
    outcome: &Outcome,
    times: u64,
    before: &Carried,
) -> Result<String, String> {
    let fabric = &network.fabric;
    // Bytes of each cable, forward and back.
    let mut bytes = vec![[0.0_f64; 2]; fabric.links.len()];
    for used in &outcome.links {
        if let Wire::Cable { link, forward } = network.links[used.link].what {
            bytes[link][usize::from(!forward)] += used.bytes;
        }
    }
    let mut text = String::new();
    for (index, node) in fabric.nodes.iter().enumerate() {
        if !matches!(node.kind, Kind::Switch | Kind::Adapter) {
            continue;
        }
        for (place, port) in node.ports.iter().enumerate() {
            let Some(link) = port.link else { continue };
            let end = End { node: index, port: place };
            let Some(lid) = lid(fabric, end) else {
                return Err(format!(
                    "{} has no local identifier (LID): counters are written for InfiniBand fabrics alone",
                    fabric.end_name(end)
                ));
            };
            let first = fabric.links[link].ends[0] == end;
            let [forward, back] = bytes[link];
            let (sends, receives) = if first { (forward, back) } else { (back, forward) };
            let (sent, received) = before.get(&(lid, port.number)).copied().unwrap_or_default();
            let sum = |was: u64, one: f64| was.saturating_add(whole(one).saturating_mul(times));
            block(&mut text, (lid, port.number), sum(sent, sends), sum(received, receives));
        }
    }
    Ok(text)
}

/// The identifier by which a port is asked: the switch's, or the adapter's port's own.
fn lid(fabric: &Fabric, end: End) -> Option<u32> {
    let node = &fabric.nodes[end.node];
    let port = node.ports.get(end.port)?;
    match node.kind {
        Kind::Switch => node.lid,
        _ => port.lid.or(node.lid),
    }
    .filter(|lid| *lid > 0)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes are positive, and fewer than 2^64"
)]
fn whole(bytes: f64) -> u64 {
    bytes.max(0.0).round() as u64
}

fn block(text: &mut String, (lid, port): (u32, u32), sent: u64, received: u64) {
    let _ = writeln!(text, "# Port extended counters: Lid {lid} port {port} (CapMask: 0x5300)");
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{:.<33}{value}", format!("{name}:"));
    };
    let packets = |bytes: u64| bytes.div_ceil(PACKET).to_string();
    line("PortSelect", port.to_string());
    line("CounterSelect", "0x0000".to_owned());
    line("PortXmitData", (sent / 4).to_string());
    line("PortRcvData", (received / 4).to_string());
    line("PortXmitPkts", packets(sent));
    line("PortRcvPkts", packets(received));
    line("PortUnicastXmitPkts", packets(sent));
    line("PortUnicastRcvPkts", packets(received));
    line("PortMulticastXmitPkts", "0".to_owned());
    line("PortMulticastRcvPkts", "0".to_owned());
}
