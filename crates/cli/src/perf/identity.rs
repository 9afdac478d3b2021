//! Who the ranks are: each tells all others its process and host.

use super::ranks::{self, Collectives};
use super::table::Device;

/// Bytes of a host name that travel; longer ones are cut.
const HOST_BYTES: usize = 120;

/// All ranks as the header names them. Every rank calls it.
pub(crate) fn exchange(comm: &dyn Collectives) -> anyhow::Result<Vec<Device>> {
    let records = ranks::all_gather(comm, &record(std::process::id(), &host_name()))?;
    Ok(devices(&records))
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
        let host = String::from_utf8_lossy(host).trim_end_matches('\0').to_owned();
        let before = devices.iter().filter(|device| device.host == host).count();
        devices.push(Device {
            rank,
            pid: u32::from_le_bytes(pid.try_into().unwrap_or([0; 4])),
            device: u32::try_from(before).unwrap_or(0),
            host,
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
