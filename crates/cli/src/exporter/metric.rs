//! Every metric the exporter tells, in one table, and the samples of one scrape.
//!
//! *Invariant*: a metric that is not in [`ALL`] is told by nobody; no sample is told twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use ringway::exposition::{Label, Page};

/// A metric.
#[derive(Debug)]
pub(crate) struct Metric {
    /// Its name: base units, `_total` where it is a counter.
    pub(crate) name: &'static str,
    /// `counter` or `gauge`.
    pub(crate) kind: &'static str,
    /// Its labels, in order.
    pub(crate) labels: &'static [&'static str],
    /// What it is, in one sentence.
    pub(crate) help: &'static str,
}

macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub(crate) static $id: Metric = Metric {
            name: $name,
            kind: stringify!($kind),
            labels: &[$($label),*],
            help: $help,
        };)*
        /// All of them, in the order in which they are told.
        pub(crate) static ALL: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    NODE_INFO = gauge "ringway_node_info" ["host", "kernel", "product"] "The machine; always 1.";
    PORT_INFO = gauge "ringway_node_rdma_port_info" ["device", "port", "netdev", "pci", "numa", "gpus", "link_layer", "firmware", "board"] "An RDMA port, what it hangs on, and the GPUs that use it first; always 1.";
    PORT_UP = gauge "ringway_node_rdma_port_up" ["device", "port"] "Whether data can go through the port: its state is ACTIVE.";
    PORT_STATE = gauge "ringway_node_rdma_port_state" ["device", "port"] "State of the port as the kernel counts: 1 down, 2 init, 3 armed, 4 active.";
    PORT_PHYSICAL_STATE = gauge "ringway_node_rdma_port_physical_state" ["device", "port"] "Physical state as the kernel counts: 2 polling, 3 disabled, 5 link up.";
    PORT_RATE = gauge "ringway_node_rdma_port_rate_bytes_per_second" ["device", "port"] "Rate the port runs at.";
    PORT_RECEIVED = counter "ringway_node_rdma_port_receive_bytes_total" ["device", "port"] "Bytes received.";
    PORT_SENT = counter "ringway_node_rdma_port_transmit_bytes_total" ["device", "port"] "Bytes sent.";
    PORT_RECEIVED_PACKETS = counter "ringway_node_rdma_port_receive_packets_total" ["device", "port"] "Packets received.";
    PORT_SENT_PACKETS = counter "ringway_node_rdma_port_transmit_packets_total" ["device", "port"] "Packets sent.";
    PORT_WAIT = counter "ringway_node_rdma_port_transmit_wait_ticks_total" ["device", "port"] "Ticks in which the port had data and could not send; how long a tick is, only its maker knows.";
    PORT_ERRORS = counter "ringway_node_rdma_port_errors_total" ["device", "port", "counter"] "Errors of the port, by the kernel's name of the counter.";
    PORT_COUNTERS = counter "ringway_node_rdma_port_events_total" ["device", "port", "counter"] "Other counters of the port, by the kernel's name.";
    PORT_HARDWARE = counter "ringway_node_rdma_port_hw_events_total" ["device", "port", "counter"] "Counters of the driver for the port, by its own names.";
    PORT_HARDWARE_NOW = gauge "ringway_node_rdma_port_hw_value" ["device", "port", "counter"] "What the driver keeps with its counters and grows and shrinks: objects in use.";
    DEVICE_HARDWARE = counter "ringway_node_rdma_device_hw_events_total" ["device", "counter"] "Counters of the driver for the whole device, by its own names.";
    NET_INFO = gauge "ringway_node_net_info" ["netdev", "pci", "numa", "driver", "device", "kind"] "A network interface with the RDMA device on the same function; always 1.";
    NET_UP = gauge "ringway_node_net_up" ["netdev"] "Whether the interface is up.";
    NET_SPEED = gauge "ringway_node_net_speed_bytes_per_second" ["netdev"] "Rate of the link.";
    NET_MTU = gauge "ringway_node_net_mtu_bytes" ["netdev"] "Largest packet.";
    NET_CARRIER = counter "ringway_node_net_carrier_changes_total" ["netdev"] "How often the link came or went.";
    NET_RECEIVED = counter "ringway_node_net_receive_bytes_total" ["netdev"] "Bytes received by the kernel; RDMA passes it by.";
    NET_SENT = counter "ringway_node_net_transmit_bytes_total" ["netdev"] "Bytes sent by the kernel; RDMA passes it by.";
    NET_RECEIVED_PACKETS = counter "ringway_node_net_receive_packets_total" ["netdev"] "Packets received.";
    NET_SENT_PACKETS = counter "ringway_node_net_transmit_packets_total" ["netdev"] "Packets sent.";
    NET_RECEIVE_ERRORS = counter "ringway_node_net_receive_errors_total" ["netdev"] "Packets that came in broken.";
    NET_SEND_ERRORS = counter "ringway_node_net_transmit_errors_total" ["netdev"] "Packets that could not be sent.";
    NET_RECEIVE_DROPS = counter "ringway_node_net_receive_drops_total" ["netdev"] "Packets received and thrown away.";
    NET_SEND_DROPS = counter "ringway_node_net_transmit_drops_total" ["netdev"] "Packets thrown away instead of sent.";
    PCI_INFO = gauge "ringway_node_pci_info" ["pci", "kind", "name", "numa"] "A GPU, NIC or NVSwitch on the PCI bus, or the port above one; always 1.";
    PCI_WIDTH = gauge "ringway_node_pci_link_lanes" ["pci"] "Lanes the link runs with.";
    PCI_WIDTH_MOST = gauge "ringway_node_pci_link_lanes_max" ["pci"] "Lanes both of its ends can do.";
    PCI_SPEED = gauge "ringway_node_pci_link_transfers_per_second" ["pci"] "Transfers a second of each lane; GPUs lower it when idle.";
    PCI_SPEED_MOST = gauge "ringway_node_pci_link_transfers_per_second_max" ["pci"] "Transfers a second both ends can do.";
    PCI_ERRORS = counter "ringway_node_pci_errors_total" ["pci", "class"] "Errors the device reported (AER): correctable, nonfatal, fatal.";
    GPU_INFO = gauge "ringway_node_gpu_info" ["gpu", "pci", "maker", "model", "numa"] "A GPU; always 1.";
    GPU_PAIR = gauge "ringway_node_gpu_nic_pair" ["gpu", "gpu_pci", "device", "port", "nic_pci", "path", "rail"] "The NIC port a GPU uses first, with what lies between; always 1.";
    GPU_UUID = gauge "ringway_node_gpu_uuid_info" ["gpu", "pci", "uuid"] "The driver's name of the GPU; always 1.";
    GPU_TEMPERATURE = gauge "ringway_node_gpu_temperature_celsius" ["gpu"] "Temperature of the GPU.";
    GPU_POWER = gauge "ringway_node_gpu_power_watts" ["gpu"] "Power it takes.";
    GPU_ENERGY = counter "ringway_node_gpu_energy_joules_total" ["gpu"] "Energy it took since the driver was loaded.";
    GPU_MEMORY_USED = gauge "ringway_node_gpu_memory_used_bytes" ["gpu"] "Memory in use.";
    GPU_MEMORY = gauge "ringway_node_gpu_memory_bytes" ["gpu"] "Memory it has.";
    GPU_BUSY = gauge "ringway_node_gpu_busy_ratio" ["gpu"] "Share of the time in which a kernel ran, in the driver's last period.";
    GPU_CLOCK = gauge "ringway_node_gpu_sm_clock_hertz" ["gpu"] "Clock of its processors.";
    GPU_SLOWED = gauge "ringway_node_gpu_slowed" ["gpu", "reason"] "Whether its clock is held down, for this reason.";
    GPU_ECC = counter "ringway_node_gpu_ecc_errors_total" ["gpu", "kind"] "Memory errors since the driver was loaded: corrected, uncorrected.";
    GPU_REPLAYS = counter "ringway_node_gpu_pcie_replays_total" ["gpu"] "Packets it had to send again over PCIe.";
    NVLINK_UP = gauge "ringway_node_nvlink_up" ["gpu", "link"] "Whether the NVLink is up.";
    NVLINK_ERRORS = counter "ringway_node_nvlink_errors_total" ["gpu", "link", "kind"] "Errors of the NVLink: replay, recovery, crc_flit, crc_data.";
    NVLINK_BYTES = counter "ringway_node_nvlink_bytes_total" ["gpu", "direction"] "Data over all NVLinks of the GPU.";
    DOCTOR_CHECK = gauge "ringway_node_doctor_check" ["check", "group"] "What ringway doctor says of the check: 0 well, 1 could be better, 2 broken.";
    DOCTOR_UNKNOWN = gauge "ringway_node_doctor_unknown" ["check", "group"] "A check that could not look; always 1.";
    DOCTOR_TIME = gauge "ringway_node_doctor_timestamp_seconds" [] "When the doctor was done last, in seconds since 1970.";
    DOCTOR_DURATION = gauge "ringway_node_doctor_duration_seconds" [] "How long it took.";
    EXPORTER_INFO = gauge "ringway_exporter_info" ["version"] "The exporter; always 1.";
    EXPORTER_SCRAPES = counter "ringway_exporter_scrapes_total" [] "Answers made.";
    EXPORTER_DURATION = gauge "ringway_exporter_scrape_duration_seconds" [] "How long this answer took to make.";
    EXPORTER_ERRORS = counter "ringway_exporter_scrape_errors_total" ["what"] "Things that could not be read, by what they are of.";
    EXPORTER_CPU = counter "ringway_exporter_cpu_seconds_total" [] "CPU time of the exporter and of programs it ran.";
    EXPORTER_MEMORY = gauge "ringway_exporter_resident_memory_bytes" [] "Memory of the exporter.";
    EXPORTER_JOBS = gauge "ringway_exporter_job_processes" ["state"] "Sockets of jobs on this machine: answered, or failed to.";
}

/// The samples of one scrape.
#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<&'static str, Vec<(Vec<String>, String)>>);

impl Samples {
    /// One more; the labels are values in the metric's order.
    pub(crate) fn add(
        &mut self,
        metric: &'static Metric,
        labels: &[&dyn Display],
        value: impl Display,
    ) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        let labels = labels.iter().map(ToString::to_string).collect();
        self.0.entry(metric.name).or_default().push((labels, value.to_string()));
    }

    /// One more where there is a value: what is not known is not told.
    pub(crate) fn add_known(
        &mut self,
        metric: &'static Metric,
        labels: &[&dyn Display],
        value: Option<impl Display>,
    ) {
        if let Some(value) = value {
            self.add(metric, labels, value);
        }
    }

    /// Adds those of another.
    pub(crate) fn append(&mut self, other: &Self) {
        for (name, rows) in &other.0 {
            self.0.entry(name).or_default().extend_from_slice(rows);
        }
    }

    /// Writes them, metric by metric.
    pub(crate) fn write(&self, page: &mut Page) {
        for metric in ALL {
            let Some(rows) = self.0.get(metric.name) else { continue };
            page.metric(metric.name, metric.kind, metric.help);
            let mut told = BTreeSet::new();
            for (values, value) in rows {
                // Two devices of one name would cost Prometheus the whole answer.
                if !told.insert(values) {
                    continue;
                }
                let labels = metric.labels.iter().copied().zip(values);
                let labels: Vec<Label<'_>> =
                    labels.map(|(name, value)| (name, value as &dyn Display)).collect();
                page.sample(metric.name, &labels, value);
            }
        }
    }

    /// The value of a sample.
    #[cfg(test)]
    pub(crate) fn get(&self, metric: &Metric, labels: &[&str]) -> Option<&str> {
        let rows = self.0.get(metric.name)?;
        rows.iter().find(|(values, _)| values == labels).map(|(_, value)| value.as_str())
    }

    /// How many there are of a metric.
    #[cfg(test)]
    pub(crate) fn count(&self, metric: &Metric) -> usize {
        self.0.get(metric.name).map_or(0, Vec::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_prometheus_conventions() {
        let mut names = BTreeSet::new();
        for metric in ALL {
            assert!(names.insert(metric.name), "{} comes twice", metric.name);
            assert_eq!(
                metric.kind == "counter",
                metric.name.ends_with("_total"),
                "{}",
                metric.name
            );
            assert!(
                ["ringway_node_", "ringway_exporter_"].iter().any(|p| metric.name.starts_with(p)),
                "{}",
                metric.name
            );
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn nothing_is_told_twice() {
        let mut samples = Samples::default();
        samples.add(&NET_UP, &[&"eth0"], 1);
        samples.add(&NET_UP, &[&"eth0"], 0);
        samples.add_known(&NET_MTU, &[&"eth0"], None::<u32>);
        let mut page = Page::default();
        samples.write(&mut page);
        let text = page.into_text();
        assert!(text.ends_with("ringway_node_net_up{netdev=\"eth0\"} 1\n"), "{text}");
        assert!(!text.contains("mtu"), "{text}");
    }
}
