//! Network interfaces that leave the machine. Those that containers make are many, short-lived and left out.

use ringway::topo::NetKind;

use super::super::metric::{self, Metric, Samples};
use super::super::reading::{Reading, What};
use super::Inventory;

const COUNTERS: &[(&str, &Metric)] = &[
    ("carrier_changes", &metric::NET_CARRIER),
    ("statistics/rx_bytes", &metric::NET_RECEIVED),
    ("statistics/tx_bytes", &metric::NET_SENT),
    ("statistics/rx_packets", &metric::NET_RECEIVED_PACKETS),
    ("statistics/tx_packets", &metric::NET_SENT_PACKETS),
    ("statistics/rx_errors", &metric::NET_RECEIVE_ERRORS),
    ("statistics/tx_errors", &metric::NET_SEND_ERRORS),
    ("statistics/rx_dropped", &metric::NET_RECEIVE_DROPS),
    ("statistics/tx_dropped", &metric::NET_SEND_DROPS),
    ("mtu", &metric::NET_MTU),
];

pub(super) fn samples(reading: &Reading<'_>, inventory: &Inventory, samples: &mut Samples) {
    let rdma = &inventory.machine.rdma;
    for net in &inventory.machine.nets {
        let kind = match net.kind {
            NetKind::Physical => "physical",
            NetKind::VirtualFunction => "virtual_function",
            NetKind::Bond => "bond",
            NetKind::Vlan => "vlan",
            NetKind::Bridge | NetKind::Loopback | NetKind::Virtual => continue,
        };
        let folder = reading.real(&format!("/sys/class/net/{}", net.name));
        let device = rdma.iter().find(|device| device.bus.is_some() && device.bus == net.bus);
        let device = device.map(|device| device.name.clone()).unwrap_or_default();
        let pci = net.bus.map(|bus| bus.to_string()).unwrap_or_default();
        let driver = net.driver.clone().unwrap_or_default();
        let numa = inventory.numa(net.bus);
        samples.add(&metric::NET_INFO, &[&net.name, &pci, &numa, &driver, &device, &kind], 1);
        let state = reading.text(What::Net, &format!("{folder}/operstate"));
        // Virtual ones say `unknown` and carry data.
        let up = state.map(|state| u8::from(state == "up" || state == "unknown"));
        samples.add_known(&metric::NET_UP, &[&net.name], up);
        let mbit = reading.number(What::Net, &format!("{folder}/speed"));
        let mbit = mbit.filter(|mbit| (1..100_000_000).contains(mbit));
        samples.add_known(&metric::NET_SPEED, &[&net.name], mbit.map(|mbit| mbit * 125_000));
        for (file, metric) in COUNTERS {
            let value = reading.number(What::Net, &format!("{folder}/{file}"));
            samples.add_known(metric, &[&net.name], value);
        }
    }
}
