//! `ibstat`: the adapters of one host.

use super::{Line, guid, shown};
use crate::describe;
use crate::draft::{Draft, ReadError, Stat};
use crate::model::{Port, PortState};
use crate::rate::Rate;

#[derive(Default)]
struct Adapter {
    stat: Stat,
    ports_told: usize,
    layers: usize,
    /// The last port's rate as it stands there.
    stated_gbps: Option<u32>,
}

pub(super) fn read(draft: &mut Draft, lines: &[Line<'_>]) -> Result<(), ReadError> {
    let mut adapters: Vec<Adapter> = Vec::new();
    for line in lines {
        let text = line.text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some(rest) = text.strip_prefix("CA '") {
            let Some(label) = rest.strip_suffix('\'') else {
                return Err(draft.error(line.place, format!("{} is cut", shown(text))));
            };
            let label = describe::tidied(label);
            let stat = Stat { label, place: line.place, ..Stat::default() };
            adapters.push(Adapter { stat, ..Adapter::default() });
            continue;
        }
        let (Some(adapter), Some((key, value))) = (adapters.last_mut(), text.split_once(':'))
        else {
            let what = format!(
                "{} is no line of ibstat: it failed, or the dump is cut or damaged",
                shown(text)
            );
            return Err(draft.error(line.place, what));
        };
        if fact(adapter, key.trim(), value.trim()).is_none() {
            let what = format!("{} cannot be read: cut, damaged, or ibstat failed", shown(text));
            return Err(draft.error(line.place, what));
        }
    }
    for adapter in adapters {
        let stat = &adapter.stat;
        let ports = stat.ports.iter().filter(|port| port.guid.is_some()).count();
        if ports < adapter.ports_told.max(1) || adapter.layers < ports {
            let what = format!(
                "{} says it has {} ports, but {ports} are told whole: the dump was cut short",
                stat.label, adapter.ports_told
            );
            let end = lines.last().map_or(stat.place, |line| line.place);
            return Err(draft.error(end, what));
        }
        draft.stats.push(adapter.stat);
    }
    Ok(())
}

/// Takes one line over; nothing where its value cannot be.
fn fact(adapter: &mut Adapter, key: &str, value: &str) -> Option<()> {
    // What ibstat says when it fails has a colon too: `ibpanic: …`.
    if !key.starts_with(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    let stat = &mut adapter.stat;
    let tidy = || Some(describe::tidied(value)).filter(|text| !text.is_empty());
    match key {
        "CA type" => stat.device = tidy(),
        "Firmware version" => stat.firmware = tidy(),
        "Number of ports" => {
            adapter.ports_told = value.parse().ok().filter(|count| *count < 256)?
        }
        "Node GUID" => stat.guid = guid(value)?,
        "Link layer" => {
            adapter.layers += 1;
            stat.ethernet |= value == "Ethernet";
        }
        _ => {}
    }
    if let Some(number) = key.strip_prefix("Port ").and_then(|number| number.parse::<u32>().ok()) {
        if number == 0 || number > 255 || !value.is_empty() {
            return None;
        }
        stat.ports.push(Port { number, ..Port::default() });
        adapter.stated_gbps = None;
        return Some(());
    }
    let Some(port) = stat.ports.last_mut() else { return Some(()) };
    match key {
        "State" => {
            port.state = match value {
                "Active" => PortState::Active,
                "Down" => PortState::Down,
                "Initializing" | "Armed" | "Init" => PortState::Init,
                _ => return None,
            };
        }
        "Physical state" => port.physical = Some(describe::tidied(value)),
        "Rate" => {
            let number = value.split_whitespace().next()?.split('.').next()?;
            let stated = number.parse().ok()?;
            adapter.stated_gbps = Some(stated);
            port.rate = Rate::from_stated(stated);
        }
        // InfiniBand's 40 Gb/s carry 32, Ethernet's 40.
        "Link layer" if value == "Ethernet" => {
            port.rate = adapter.stated_gbps.and_then(Rate::ethernet);
        }
        "Base lid" => port.lid = Some(parse_lid(value)?).filter(|lid| *lid > 0 && *lid < 0xffff),
        "Port GUID" => port.guid = Some(guid(value)?),
        _ => {}
    }
    Some(())
}

fn parse_lid(value: &str) -> Option<u32> {
    match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    }
}
