//! Who the ranks are: each tells all others its process and host, and its GPU where it has one.

use super::ranks::{self, Collectives};
use super::table::{Device, NO_ADDRESS, NO_GPU};

/// Bytes of a host name that travel; longer ones are cut.
const HOST_BYTES: usize = 120;
/// Likewise of a GPU's address and name.
const ADDRESS_BYTES: usize = 16;
const NAME_BYTES: usize = 64;

/// A rank's GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    /// Its number in the rank's process.
    pub(crate) ordinal: u32,
    /// Its address on the PCI bus.
    pub(crate) address: String,
    pub(crate) name: String,
}

/// All ranks as the header names them. Every rank calls it.
pub(crate) fn exchange(comm: &dyn Collectives) -> anyhow::Result<Vec<Device>> {
    let records = ranks::all_gather(comm, &record(std::process::id(), &host_name()))?;
    Ok(devices(&records))
}

/// Tells all ranks this one's GPU, and learns theirs. Every rank calls it.
pub(crate) fn exchange_gpus(
    comm: &dyn Collectives,
    own: &Gpu,
    devices: &mut [Device],
) -> anyhow::Result<()> {
    let records = ranks::all_gather(comm, &gpu_record(own))?;
    for (device, record) in devices.iter_mut().zip(&records) {
        let gpu = gpu_of(record);
        (device.device, device.address, device.name) = (gpu.ordinal, gpu.address, gpu.name);
    }
    Ok(())
}

fn gpu_record(gpu: &Gpu) -> Vec<u8> {
    let mut bytes = gpu.ordinal.to_le_bytes().to_vec();
    // nccl-tests leaves the function out.
    let address = gpu.address.split('.').next().unwrap_or_default();
    bytes.extend(address.bytes().take(ADDRESS_BYTES));
    bytes.resize(4 + ADDRESS_BYTES, 0);
    bytes.extend(gpu.name.bytes().take(NAME_BYTES));
    bytes.resize(4 + ADDRESS_BYTES + NAME_BYTES, 0);
    bytes
}

fn gpu_of(record: &[u8]) -> Gpu {
    let (ordinal, rest) = record.split_at(4);
    let (address, name) = rest.split_at(ADDRESS_BYTES);
    Gpu {
        ordinal: u32::from_le_bytes(ordinal.try_into().unwrap_or([0; 4])),
        address: text(address),
        name: text(name),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

fn host_name() -> String {
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
    fn gpus_travel_whole() {
        let gpu = |address: &str| Gpu {
            ordinal: 3,
            address: address.to_owned(),
            name: "NVIDIA H200".to_owned(),
        };
        let record = gpu_record(&gpu("0000:18:00.0"));
        assert_eq!(record.len(), gpu_record(&gpu("")).len());
        assert_eq!(gpu_of(&record), gpu("0000:18:00"));
    }

    #[test]
    fn long_names_are_cut() {
        let devices = devices(&[record(7, &"x".repeat(300))]);
        assert_eq!(devices[0].host.len(), HOST_BYTES);
        assert_eq!(devices[0].pid, 7);
    }
}
