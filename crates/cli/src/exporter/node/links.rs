//! PCI links of GPUs, NICs and NVSwitches, and of the ports right above them: width, speed, errors.

use std::collections::BTreeSet;

use ringway::topo::PciDevice;
use ringway_plan::topology::bus::{BusId, tenths_of_gt};

use super::super::metric::{self, Samples};
use super::super::reading::{Reading, What};
use super::Inventory;

/// What devices say of their errors, in files of the kernel's.
const SEVERITIES: [&str; 3] = ["correctable", "nonfatal", "fatal"];

pub(super) fn samples(reading: &Reading<'_>, inventory: &Inventory, samples: &mut Samples) {
    let mut above: BTreeSet<BusId> = BTreeSet::new();
    for device in &inventory.machine.pci {
        let Some((kind, name)) = kind_of(inventory, device) else { continue };
        of_device(reading, inventory, (device, kind, &name), samples);
        above.extend(device.above.first());
    }
    for device in inventory.machine.pci.iter().filter(|device| above.contains(&device.bus)) {
        of_device(reading, inventory, (device, "port", ""), samples);
    }
}

/// What it is, and what people call it.
fn kind_of(inventory: &Inventory, device: &PciDevice) -> Option<(&'static str, String)> {
    let machine = &inventory.machine;
    if let Some(gpu) = inventory.gpu_at(device.bus) {
        return Some(("gpu", format!("GPU{gpu}")));
    }
    if device.is_nvswitch() {
        return Some(("nvswitch", String::new()));
    }
    let here = Some(device.bus);
    let rdma = machine.rdma.iter().find(|one| one.bus == here).map(|one| one.name.clone());
    let net = || machine.nets.iter().find(|one| one.bus == here).map(|one| one.name.clone());
    (device.is_nic() || rdma.is_some()).then(|| ("nic", rdma.or_else(net).unwrap_or_default()))
}

fn of_device(
    reading: &Reading<'_>,
    inventory: &Inventory,
    (device, kind, name): (&PciDevice, &str, &str),
    samples: &mut Samples,
) {
    let bus = &device.bus;
    samples.add(&metric::PCI_INFO, &[bus, &kind, &name, &inventory.numa(Some(*bus))], 1);
    let folder = reading.real(&format!("/sys/bus/pci/devices/{bus}"));
    // A port tells of the same link as the device below it: its errors alone are news.
    if kind != "port" {
        let width = reading.number(What::Pci, &format!("{folder}/current_link_width"));
        // Virtual functions and parts of a chip have no link: 0, or 255 where the kernel cannot ask.
        let width = width.filter(|width| (1..=32).contains(width));
        let speed = reading.text(What::Pci, &format!("{folder}/current_link_speed"));
        let speed = speed.and_then(|speed| tenths_of_gt(&speed));
        let port = device.above.first();
        let port = port.and_then(|bus| inventory.machine.pci.iter().find(|one| one.bus == *bus));
        let lanes = [device.max_width, port.and_then(|port| port.max_width)];
        let lanes = lanes.into_iter().flatten().filter(|lanes| (1..=32).contains(lanes)).min();
        let speeds = [device.max_speed.as_ref(), port.and_then(|port| port.max_speed.as_ref())];
        let most = speeds.into_iter().flatten().filter_map(|speed| tenths_of_gt(speed)).min();
        samples.add_known(&metric::PCI_WIDTH, &[bus], width);
        samples.add_known(&metric::PCI_WIDTH_MOST, &[bus], width.and(lanes));
        let transfers = |tenths: u32| u64::from(tenths) * 100_000_000;
        samples.add_known(&metric::PCI_SPEED, &[bus], width.and(speed).map(transfers));
        samples.add_known(&metric::PCI_SPEED_MOST, &[bus], width.and(most).map(transfers));
    }
    for severity in SEVERITIES {
        let text = reading.text(What::Pci, &format!("{folder}/aer_dev_{severity}"));
        let count = text.and_then(|text| errors(&text));
        samples.add_known(&metric::PCI_ERRORS, &[bus, &severity], count);
    }
}

/// The total in lines of `NAME COUNT`.
fn errors(text: &str) -> Option<u64> {
    let rows = text.lines().filter_map(|line| {
        let (name, count) = line.rsplit_once(' ')?;
        Some((name, count.parse::<u64>().ok()?))
    });
    let mut sum = None::<u64>;
    for (name, count) in rows {
        if name.starts_with("TOTAL_ERR") {
            return Some(count);
        }
        sum = Some(sum.unwrap_or(0).saturating_add(count));
    }
    sum
}
