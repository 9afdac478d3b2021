//! RDMA ports: state, rate, and every counter the kernel and the driver have for them.

use std::collections::BTreeMap;
use std::fmt::Display;

use ringway::topo::{RdmaDevice, RdmaPort};

use super::super::metric::{self, Metric, Samples};
use super::super::reading::{Reading, What};
use super::Inventory;

/// The kernel's counters with a metric of their own, and what one of it is.
const NAMED: &[(&str, &Metric, u8)] = &[
    // In words of four bytes, on Ethernet too.
    ("port_rcv_data", &metric::PORT_RECEIVED, 4),
    ("port_xmit_data", &metric::PORT_SENT, 4),
    ("port_rcv_packets", &metric::PORT_RECEIVED_PACKETS, 1),
    ("port_xmit_packets", &metric::PORT_SENT_PACKETS, 1),
    ("port_xmit_wait", &metric::PORT_WAIT, 1),
];

/// Those that count errors.
const ERRORS: &[&str] = &[
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "symbol_error",
];

/// Whether a driver's number also shrinks; nothing for what is a setting, not a number of things.
fn is_level(name: &str) -> Option<bool> {
    match name {
        // How old a number may be before the driver asks the device again, in milliseconds.
        "lifespan" => None,
        _ => Some(name.starts_with("active_") || name.starts_with("watermark_")),
    }
}

pub(super) fn samples(
    reading: &Reading<'_>,
    inventory: &Inventory,
    users: &BTreeMap<(&str, u32), Vec<&str>>,
    samples: &mut Samples,
) {
    for device in &inventory.machine.rdma {
        let folder = reading.real(&format!("/sys/class/infiniband/{}", device.name));
        for port in &device.ports {
            let gpus = users.get(&(device.name.as_str(), port.number));
            let gpus = gpus.map(|gpus| gpus.join(",")).unwrap_or_default();
            info(inventory, (device, port), &gpus, samples);
            let labels: [&dyn Display; 2] = [&device.name, &port.number];
            of_port(reading, &format!("{folder}/ports/{}", port.number), labels, samples);
        }
        let own = format!("{folder}/hw_counters");
        for name in reading.list(What::Rdma, &own) {
            if is_level(&name) == Some(false) {
                let value = reading.number(What::Rdma, &format!("{own}/{name}"));
                samples.add_known(&metric::DEVICE_HARDWARE, &[&device.name, &name], value);
            }
        }
    }
}

fn info(
    inventory: &Inventory,
    (device, port): (&RdmaDevice, &RdmaPort),
    gpus: &str,
    samples: &mut Samples,
) {
    let of_address = port.gids.iter().find_map(|gid| gid.interface.clone());
    let on_function = || {
        let same = |net: &&ringway::topo::NetDevice| net.bus.is_some() && net.bus == device.bus;
        inventory.machine.nets.iter().find(same).map(|net| net.name.clone())
    };
    let netdev = of_address.or_else(on_function).unwrap_or_default();
    let pci = device.bus.map(|bus| bus.to_string()).unwrap_or_default();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let labels: [&dyn Display; 9] = [
        &device.name,
        &port.number,
        &netdev,
        &pci,
        &inventory.numa(device.bus),
        &gpus,
        &port.link_layer,
        &text(&device.firmware),
        &text(&device.board_id),
    ];
    samples.add(&metric::PORT_INFO, &labels, 1);
}

fn of_port(reading: &Reading<'_>, folder: &str, labels: [&dyn Display; 2], samples: &mut Samples) {
    let text = |name: &str| reading.text(What::Rdma, &format!("{folder}/{name}"));
    // `4: ACTIVE`.
    let state = |name: &str| text(name)?.split(':').next()?.trim().parse::<u8>().ok();
    let now = state("state");
    samples.add_known(&metric::PORT_STATE, &labels, now);
    samples.add_known(&metric::PORT_UP, &labels, now.map(|now| u8::from(now == 4)));
    samples.add_known(&metric::PORT_PHYSICAL_STATE, &labels, state("phys_state"));
    let mbit = text("rate").and_then(|rate| RdmaPort::mbit_of(&rate));
    samples.add_known(&metric::PORT_RATE, &labels, mbit.map(|mbit| mbit.saturating_mul(125_000)));
    let counters = format!("{folder}/counters");
    for name in reading.list(What::Rdma, &counters) {
        let Some(value) = reading.number(What::Rdma, &format!("{counters}/{name}")) else {
            continue;
        };
        let [device, port] = labels;
        match NAMED.iter().find(|(known, ..)| *known == name) {
            Some((_, metric, unit)) => {
                samples.add(metric, &labels, u128::from(value) * u128::from(*unit));
            }
            None if ERRORS.contains(&name.as_str()) => {
                samples.add(&metric::PORT_ERRORS, &[device, port, &name], value);
            }
            None => samples.add(&metric::PORT_COUNTERS, &[device, port, &name], value),
        }
    }
    let hardware = format!("{folder}/hw_counters");
    for name in reading.list(What::Rdma, &hardware) {
        let metric = match is_level(&name) {
            None => continue,
            Some(true) => &metric::PORT_HARDWARE_NOW,
            Some(false) => &metric::PORT_HARDWARE,
        };
        let value = reading.number(What::Rdma, &format!("{hardware}/{name}"));
        samples.add_known(metric, &[labels[0], labels[1], &name], value);
    }
}
