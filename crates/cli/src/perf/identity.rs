//! Who the ranks are: each tells all others its process and host, and its GPU where it has one.

use serde::{Deserialize, Serialize};

use super::ranks::{self, Collectives};
use super::table::{Device, NO_ADDRESS, NO_GPU};

/// Bytes of a host name that travel; longer ones are cut.
const HOST_BYTES: usize = 120;

/// A rank's GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    /// Its number in the rank's process.
    pub(crate) index: u32,
    /// Its address on the PCI bus; empty where the driver does not say, as the others.
    pub(crate) address: String,
    pub(crate) uuid: String,
    pub(crate) name: String,
}

impl Gpu {
    /// `NVIDIA H200 at 0000:18:00.0`, as far as it is known.
    pub(crate) fn model(&self) -> String {
        match (self.name.as_str(), self.address.as_str()) {
            (name, "") => name.to_owned(),
            ("", address) => format!("at {address}"),
            (name, address) => format!("{name} at {address}"),
        }
    }
}

/// All ranks as the header names them. Every rank calls it.
pub(crate) fn exchange(comm: &dyn Collectives) -> anyhow::Result<Vec<Device>> {
    let records = ranks::all_gather(comm, &record(std::process::id(), &host_name()))?;
    Ok(devices(&records))
}

/// Tells all ranks this one's GPU, and learns theirs. Every rank calls it.
pub(crate) fn exchange_gpus(comm: &dyn Collectives, own: &Gpu) -> anyhow::Result<Vec<Gpu>> {
    let all = ranks::all_gather_texts(comm, &serde_json::to_string(own)?)?;
    all.iter().map(|text| Ok(serde_json::from_str(text)?)).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

/// This host's name.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn record(pid: u32, host: &str) -> Vec<u8> {
    let mut bytes = pid.to_le_bytes().to_vec();
    bytes.extend(host.bytes().take(HOST_BYTES));
    bytes.resize(4 + HOST_BYTES, 0);
    bytes
}

fn devices(records: &[Vec<u8>]) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for (rank, record) in (0..).zip(records) {
        let (pid, host) = record.split_at(4);
        let host = text(host);
        let before = devices.iter().filter(|device| device.host == host).count();
        devices.push(Device {
            rank,
            pid: u32::from_le_bytes(pid.try_into().unwrap_or([0; 4])),
            device: u32::try_from(before).unwrap_or(0),
            host,
            address: NO_ADDRESS.to_owned(),
            name: NO_GPU.to_owned(),
        });
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbered_per_host() {
        let records = [record(1, "a"), record(2, "b"), record(3, "a")];
        let devices = devices(&records);
        let short: Vec<_> =
            devices.iter().map(|d| (d.rank, d.pid, d.host.as_str(), d.device)).collect();
        assert_eq!(short, [(0, 1, "a", 0), (1, 2, "b", 0), (2, 3, "a", 1)]);
    }

    #[test]
    fn long_names_are_cut() {
        let devices = devices(&[record(7, &"x".repeat(300))]);
        assert_eq!(devices[0].host.len(), HOST_BYTES);
        assert_eq!(devices[0].pid, 7);
    }
}
