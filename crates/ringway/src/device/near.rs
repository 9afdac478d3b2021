//! Threads that serve a GPU run near it: on the processors of its NUMA node, among those they may use.

use std::path::Path;

use rustix::thread::{CpuSet as Mask, sched_setaffinity};

use super::gpu::Gpu;
use crate::plan::topology::cpus::CpuSet;

/// Where the kernel says which processors are near a PCI device.
const DEVICES: &str = "/sys/bus/pci/devices";

/// Ties this thread to the processors near a GPU, of those that the launcher left it. Says which; nothing
/// where there is nothing to choose, or nobody knows.
pub(super) fn stay(gpu: &Gpu) -> Option<CpuSet> {
    let allowed = crate::os::allowed_cpus()?;
    let chosen = choose(&local(Path::new(DEVICES), gpu.bus_address())?, &allowed)?;
    let mut mask = Mask::new();
    for cpu in chosen.iter() {
        mask.set(cpu as usize);
    }
    sched_setaffinity(None, &mask).ok()?;
    Some(chosen)
}

/// The processors near the device at a PCI address.
fn local(devices: &Path, bus: &str) -> Option<CpuSet> {
    let file = devices.join(bus.to_ascii_lowercase()).join("local_cpulist");
    Some(CpuSet::from_list(&std::fs::read_to_string(file).ok()?))
}

/// Those of `local` that are allowed; nothing where these are none, or all that are allowed.
fn choose(local: &CpuSet, allowed: &CpuSet) -> Option<CpuSet> {
    let both: CpuSet = allowed.iter().filter(|cpu| local.contains(*cpu)).collect();
    (!both.is_empty() && both != *allowed).then_some(both)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn set(list: &str) -> CpuSet {
        CpuSet::from_list(list)
    }

    #[test]
    fn near_processors_that_are_allowed_are_chosen() {
        assert_eq!(choose(&set("0-15"), &set("0-31")), Some(set("0-15")));
        assert_eq!(choose(&set("0-15"), &set("12-20")), Some(set("12-15")));
        // One node, a launcher that tied the rank elsewhere, and a kernel that does not know.
        assert_eq!(choose(&set("0-31"), &set("0-31")), None);
        assert_eq!(choose(&set("0-15"), &set("16-31")), None);
        assert_eq!(choose(&set(""), &set("0-31")), None);
    }

    #[test]
    fn the_kernels_list_is_read_by_the_drivers_address() {
        let folder = std::env::temp_dir().join(format!("ringway-near-{}", std::process::id()));
        let device = folder.join("0000:1b:00.0");
        assert!(std::fs::create_dir_all(&device).is_ok());
        assert!(std::fs::write(device.join("local_cpulist"), "0-3,8\n").is_ok());
        let found = local(&folder, "0000:1B:00.0");
        let missing = local(&folder, "0000:1c:00.0");
        assert!(std::fs::remove_dir_all(&folder).is_ok());
        assert_eq!((found, missing), (Some(set("0-3,8")), None));
    }
}
