//! RDMA devices, their ports and addresses, and which of them would be used.

use serde::Serialize;

use crate::config::RdmaSettings;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::verbs::{
    Context, Device, GidEntry, LinkLayer, Mtu, Port, Transport, Verbs, VerbsError,
};
use crate::topo::{RdmaPort, Root};
use crate::transport::verbs::adapter;
use crate::transport::verbs::select::{self, Chosen, Wanted};

/// An RDMA device, or why it cannot be opened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceReport {
    /// `mlx5_0`.
    pub name: String,
    /// Its GUID.
    pub guid: String,
    /// `InfiniBand` (which RoCE is too), `iWARP`, or what the maker has.
    pub transport: String,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// Vendor's and part's numbers.
    pub vendor: Option<(u32, u32)>,
    /// Most queue pairs, and work requests of one.
    pub queue_pairs: Option<u32>,
    /// Work requests of one queue at the most.
    pub requests: Option<u32>,
    /// Its ports.
    pub ports: Vec<PortReport>,
    /// Why it cannot be asked.
    pub error: Option<String>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PortReport {
    /// Its number, from 1.
    pub number: u8,
    /// `ACTIVE`, `DOWN`, …
    pub state: String,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    /// The kernel's words: `400 Gb/sec (4X NDR)`.
    pub rate: Option<String>,
    /// Bytes of a packet now, and at the most.
    pub mtu: Option<u32>,
    /// Bytes of a packet at the most.
    pub max_mtu: Option<u32>,
    /// Local identifier, on InfiniBand.
    pub lid: Option<u16>,
    /// The network interface, on Ethernet.
    pub interface: Option<String>,
    /// Its addresses that are set.
    pub gids: Vec<AddressReport>,
    /// Whether it would be used.
    pub used: bool,
    /// Why, or why not.
    pub reason: String,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AddressReport {
    /// Its place in the table.
    pub index: u32,
    /// The address.
    pub gid: String,
    /// The IPv4 address in it.
    pub ipv4: Option<String>,
    /// `RoCE v2`.
    pub kind: &'static str,
    /// The network interface it belongs to.
    pub interface: Option<String>,
    /// Whether it would be used.
    pub used: bool,
    /// Why, or why not.
    pub reason: String,
}

/// Every RDMA device of this machine.
///
/// # Errors
/// Where the library is missing, or the kernel has no device; the text says what to do.
pub fn devices(settings: &RdmaSettings) -> Result<Vec<DeviceReport>> {
    let wanted = adapter::wanted(settings);
    let mut devices = Verbs::open().and_then(|verbs| verbs.devices()).map_err(failed)?;
    devices.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(devices.iter().map(|device| report(device, &wanted)).collect())
}

pub(super) fn failed(error: VerbsError) -> Error {
    Error::new(ErrorKind::System, error.to_string())
}

fn report(device: &Device, wanted: &Wanted) -> DeviceReport {
    let guid = device.guid();
    let mut report = DeviceReport {
        name: device.name().to_owned(),
        guid: format!(
            "{:04x}:{:04x}:{:04x}:{:04x}",
            guid >> 48,
            guid >> 32 & 0xffff,
            guid >> 16 & 0xffff,
            guid & 0xffff
        ),
        transport: match device.transport() {
            Transport::InfiniBand => "InfiniBand".to_owned(),
            Transport::Iwarp => "iWARP".to_owned(),
            Transport::Other(number) => format!("other ({number})"),
        },
        firmware: None,
        vendor: None,
        queue_pairs: None,
        requests: None,
        ports: Vec::new(),
        error: None,
    };
    let asked = device.open().and_then(|context| {
        let limits = context.limits()?;
        report.firmware = Some(limits.firmware).filter(|text| !text.is_empty());
        report.vendor = Some((limits.vendor, limits.part));
        report.queue_pairs = Some(limits.queue_pairs);
        report.requests = Some(limits.requests);
        for number in 1..=limits.ports {
            let port = context.port(number)?;
            report.ports.push(port_report(&context, &port, wanted)?);
        }
        Ok(())
    });
    report.error = asked.err().map(|error| error.to_string());
    report
}

fn port_report(
    context: &Context,
    port: &Port,
    wanted: &Wanted,
) -> std::result::Result<PortReport, VerbsError> {
    let table = context.gids(port)?;
    let usable = select::port(wanted, context.name(), port);
    let choice = select::gid(wanted, port, &table);
    let chosen = choice.as_ref().ok();
    let interface = chosen
        .and_then(|chosen| table.iter().find(|entry| entry.index == u32::from(chosen.index)))
        .or_else(|| table.first())
        .and_then(|entry| entry.interface.clone());
    let (used, reason) = match (&usable, &choice) {
        (Err(why), _) | (Ok(()), Err(why)) => (false, why.clone()),
        (Ok(()), Ok(chosen)) => (true, format!("GID {}: {}", chosen.index, chosen.reason)),
    };
    let gids = table.iter().map(|entry| address(wanted, port, entry, chosen)).collect();
    let folder = format!("/sys/class/infiniband/{}/ports/{}", context.name(), port.number);
    let rate = Root::live().read(format!("{folder}/rate")).ok().flatten();
    let bytes = |number| Mtu::from_number(number).map(Mtu::bytes);
    Ok(PortReport {
        number: port.number,
        state: port.state.to_string(),
        link_layer: match port.link_layer {
            LinkLayer::InfiniBand => "InfiniBand".to_owned(),
            LinkLayer::Ethernet => "Ethernet".to_owned(),
            LinkLayer::Unspecified => "unspecified".to_owned(),
        },
        rate: rate
            .map(|rate| rate.trim().to_owned())
            .filter(|rate| RdmaPort::mbit_of(rate).is_some()),
        mtu: bytes(port.active_mtu),
        max_mtu: bytes(port.max_mtu),
        lid: (port.link_layer == LinkLayer::InfiniBand).then_some(port.lid),
        interface,
        gids,
        used,
        reason,
    })
}

fn address(
    wanted: &Wanted,
    port: &Port,
    entry: &GidEntry,
    chosen: Option<&Chosen>,
) -> AddressReport {
    let used = chosen.is_some_and(|chosen| entry.index == u32::from(chosen.index));
    let on_roce = port.link_layer != LinkLayer::InfiniBand;
    let reason = match chosen {
        Some(chosen) if used => chosen.reason.clone(),
        Some(chosen) if wanted.gid_index.is_some() => {
            format!("index {} is set to be used", chosen.index)
        }
        other => {
            let refused = on_roce.then(|| select::refusal(wanted, entry)).flatten();
            match (refused, other) {
                (Some(refused), _) => refused,
                (None, Some(chosen)) => select::passed_over(entry, chosen),
                (None, None) => String::new(),
            }
        }
    };
    AddressReport {
        index: entry.index,
        gid: entry.gid.ipv6().segments().map(|word| format!("{word:04x}")).join(":"),
        ipv4: entry.gid.ipv4().map(|address| address.to_string()),
        kind: select::kind_name(entry.kind),
        interface: entry.interface.clone(),
        used,
        reason,
    }
}
