//! How near a port is to the memory that is sent: by the processors of the thread that makes the link, as that is where its
//! memory lies. Threads that serve a GPU run on the processors near it.

use std::path::Path;

use crate::plan::topology::cpus::CpuSet;

/// Distances of ports; the kernel may not know.
pub(super) const NEAR: u32 = 0;
const PARTLY: u32 = 1;
const FAR: u32 = 2;

/// How far a device is from this thread.
pub(super) fn distance(device: &str) -> u32 {
    let Some(allowed) = crate::os::allowed_cpus() else { return PARTLY };
    local(Path::new("/sys/class"), device).map_or(PARTLY, |local| judge(&local, &allowed))
}

fn judge(local: &CpuSet, allowed: &CpuSet) -> u32 {
    match allowed.iter().filter(|cpu| local.contains(*cpu)).count() {
        0 => FAR,
        here if here == allowed.iter().count() => NEAR,
        _ => PARTLY,
    }
}

/// The processors near a device; those of its network interface, where it has no place of its own.
fn local(class: &Path, device: &str) -> Option<CpuSet> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let folder = class.join("infiniband").join(device);
    let list = read(&folder.join("device/local_cpulist")).or_else(|| {
        let interface = read(&folder.join("ports/1/gid_attrs/ndevs/0"))?;
        read(&class.join("net").join(interface.trim()).join("device/local_cpulist"))
    })?;
    Some(CpuSet::from_list(&list)).filter(|list| !list.is_empty())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ports_of_the_threads_own_node_are_near() {
        let set = CpuSet::from_list;
        assert_eq!(judge(&set("0-15"), &set("3-7")), NEAR);
        assert_eq!(judge(&set("0-15"), &set("0-31")), PARTLY);
        assert_eq!(judge(&set("0-15"), &set("16-31")), FAR);
    }

    #[test]
    fn a_devices_processors_are_read_or_those_of_its_interface() {
        let class = std::env::temp_dir().join(format!("ringway-class-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = class.join(path);
            assert!(std::fs::create_dir_all(path.parent().unwrap_or(&class)).is_ok());
            assert!(std::fs::write(path, text).is_ok());
        };
        write("infiniband/mlx5_0/device/local_cpulist", "0-3\n");
        write("infiniband/rxe0/ports/1/gid_attrs/ndevs/0", "eth0\n");
        write("net/eth0/device/local_cpulist", "4-7\n");
        write("infiniband/rxe1/ports/1/gid_attrs/ndevs/0", "veth0\n");
        let found = ["mlx5_0", "rxe0", "rxe1", "none"].map(|name| local(&class, name));
        assert!(std::fs::remove_dir_all(&class).is_ok());
        let set = CpuSet::from_list;
        assert_eq!(found, [Some(set("0-3")), Some(set("4-7")), None, None]);
    }
}
