//! RDMA devices: from sysfs, or from the output of ibstat or ibstatus where a tree has nothing else.
//!
//! *Invariant*: any text gives a list; what is not understood is left out.

use std::ops::Deref;

use ringway::topo::{RdmaDevice, RdmaPort};
use ringway_plan::topology::hca::HcaFilter;

use super::Host;

const CLASS: &str = "/sys/class/infiniband";

/// A port, with its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port<'a> {
    /// The device.
    pub(crate) device: &'a RdmaDevice,
    port: &'a RdmaPort,
}

impl Deref for Port<'_> {
    type Target = RdmaPort;

    fn deref(&self) -> &RdmaPort {
        self.port
    }
}

impl Port<'_> {
    /// `mlx5_0:1`.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.device.name, self.number)
    }

    /// Whether it is InfiniBand, which EFA is not.
    pub(crate) fn is_infiniband(&self) -> bool {
        self.link_layer == "InfiniBand"
    }

    /// `mlx5_0/ports/1` below the class's folder.
    pub(crate) fn place(&self) -> String {
        format!("{}/ports/{}", self.device.name, self.number)
    }

    /// Gb/s.
    #[expect(clippy::cast_precision_loss, reason = "a rate, not a count")]
    pub(crate) fn gigabits(&self) -> Option<f64> {
        self.mbit_per_s.map(|mbit| mbit as f64 / 1000.0)
    }
}

/// What board a device is: devices of one board are peers. The type where there is no board.
pub(crate) fn board(device: &RdmaDevice) -> &str {
    device.board_id.as_deref().or(device.board.as_deref()).unwrap_or_default()
}

impl Host {
    /// Its RDMA devices, in the order of their numbers.
    pub(crate) fn hcas(&self) -> &[RdmaDevice] {
        let found = &self.machine().rdma;
        if !found.is_empty() {
            return found;
        }
        self.hcas.get_or_init(|| parse(&self.output("ibstat").unwrap_or_default()))
    }

    /// Network interfaces of a device.
    pub(crate) fn interfaces_of(&self, device: &RdmaDevice) -> Vec<&str> {
        let Some(bus) = device.bus else { return Vec::new() };
        let ours = self.nics().into_iter().filter(|nic| nic.bus == Some(bus));
        ours.map(|nic| nic.name.as_str()).collect()
    }

    /// Ports of all devices.
    pub(crate) fn ports(&self) -> Vec<Port<'_>> {
        let mut found = Vec::new();
        for device in self.hcas() {
            found.extend(device.ports.iter().map(|port| Port { device, port }));
        }
        found
    }

    /// Ports with the Ethernet link layer that carry traffic: RoCE.
    pub(crate) fn roce_ports(&self) -> Vec<Port<'_>> {
        let mut ports = self.ports();
        ports.retain(|port| port.is_ethernet() && port.is_active());
        ports
    }

    /// Whether NCCL_IB_HCA lets NCCL use a port; nothing set lets it use all.
    pub(crate) fn chooses(&self, port: &Port<'_>) -> bool {
        let filter = HcaFilter::parse(self.variable("NCCL_IB_HCA").unwrap_or_default());
        filter.allows(&port.device.name, Some(port.number.into()))
    }

    /// A counter of a port: `counters/symbol_error`.
    pub(crate) fn port_counter(&self, port: &Port<'_>, name: &str) -> Option<u64> {
        self.text(&format!("{CLASS}/{}/{name}", port.place()))?.parse().ok()
    }
}

/// Reads ibstat's output, or ibstatus's.
pub(super) fn parse(text: &str) -> Vec<RdmaDevice> {
    let mut found: Vec<RdmaDevice> = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("CA '").and_then(|rest| rest.split('\'').next()) {
            found.push(bare_device(name));
        } else if let Some(rest) = line.strip_prefix("Infiniband device '") {
            let name = rest.split('\'').next().unwrap_or_default();
            let number = rest.split_whitespace().nth(2).unwrap_or("1");
            if found.last().is_none_or(|device| device.name != name) {
                found.push(bare_device(name));
            }
            if let (Some(device), Ok(number)) = (found.last_mut(), number.parse()) {
                device.ports.push(bare_port(number));
            }
        } else if let Some(device) = found.last_mut() {
            let number = line.strip_prefix("Port ").and_then(|rest| rest.strip_suffix(':'));
            match (number.and_then(|number| number.parse().ok()), line.split_once(':')) {
                (Some(number), _) => device.ports.push(bare_port(number)),
                (None, Some((key, value))) => field(device, &key.to_lowercase(), value.trim()),
                (None, None) => {}
            }
        }
    }
    found
}

fn bare_device(name: &str) -> RdmaDevice {
    RdmaDevice {
        name: name.to_owned(),
        bus: None,
        system_guid: None,
        node_guid: None,
        firmware: None,
        board: None,
        board_id: None,
        ports: Vec::new(),
    }
}

fn bare_port(number: u32) -> RdmaPort {
    RdmaPort {
        number,
        state: String::new(),
        physical_state: String::new(),
        link_layer: String::new(),
        mbit_per_s: None,
        rate: String::new(),
        lid: None,
        sm_lid: None,
        gids: Vec::new(),
    }
}

fn field(device: &mut RdmaDevice, key: &str, value: &str) {
    let word = value.rsplit(':').next().unwrap_or_default().trim();
    match key {
        "ca type" => device.board = Some(value.to_owned()),
        "firmware version" => device.firmware = Some(value.to_owned()),
        "node guid" => device.node_guid = Some(value.to_owned()),
        _ => {}
    }
    let Some(port) = device.ports.last_mut() else { return };
    let number = || match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    };
    match key {
        // The kernel's word: it writes INIT and ACTIVE.
        "state" if word.eq_ignore_ascii_case("initializing") => "INIT".clone_into(&mut port.state),
        "state" => port.state = word.to_uppercase(),
        "physical state" | "phys state" => word.clone_into(&mut port.physical_state),
        "rate" => {
            value.clone_into(&mut port.rate);
            port.mbit_per_s = RdmaPort::mbit_of(value);
        }
        "base lid" => port.lid = number(),
        "sm lid" => port.sm_lid = number(),
        "link layer" | "link_layer" => value.clone_into(&mut port.link_layer),
        _ => {}
    }
}
