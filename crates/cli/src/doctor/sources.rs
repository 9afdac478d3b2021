//! What is read of a machine: one table, for the checks, for discovery (`ringway::topo`) and for `ringway snapshot`.
//!
//! *Invariant*: the checks read no path and run no program that is not in these tables (a debug build stops
//! when one does), so a snapshot holds all that they need. It holds what discovery reads, too: tests compare a
//! machine with its snapshot.

use ringway::topo::{NVIDIA_OUTPUTS, Root, RootError};

/// What is wanted of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Want {
    /// The text in it.
    Text,
    /// Its bytes: a configuration space.
    Bytes,
    /// That it is there: a device node, a module's folder.
    Name,
    /// Where it leads: a link of /sys.
    Link,
}

/// Paths that are read. In a component `*` stands for any characters and `{a,b}` for either word.
#[rustfmt::skip]
pub(crate) const PATHS: &[(Want, &str)] = &[
    // The system.
    (Want::Text, "/proc/{cmdline,cpuinfo,meminfo,version,uptime}"),
    (Want::Text, "/proc/self/{limits,status,cgroup}"),
    (Want::Text, "/proc/1/{cgroup,limits}"),
    (Want::Text, "/proc/driver/nvidia/{version,params}"),
    (Want::Text, "/proc/driver/nvidia/gpus/*/information"),
    (Want::Text, "/proc/net/route"),
    (Want::Text, "/proc/net/bonding/*"),
    (Want::Name, "/proc/net/vlan/*"),
    (Want::Text, "/proc/sys/kernel/{hostname,osrelease,numa_balancing,pid_max,threads-max,dmesg_restrict}"),
    (Want::Text, "/proc/sys/kernel/yama/ptrace_scope"),
    (Want::Text, "/proc/sys/vm/{overcommit_memory,zone_reclaim_mode,max_map_count,swappiness}"),
    (Want::Text, "/proc/sys/net/core/{rmem_max,wmem_max,somaxconn,netdev_max_backlog}"),
    (Want::Text, "/proc/sys/net/ipv4/{tcp_rmem,tcp_wmem,tcp_timestamps,tcp_sack,tcp_window_scaling,tcp_max_syn_backlog,tcp_congestion_control,ip_local_port_range,tcp_moderate_rcvbuf}"),
    (Want::Text, "/proc/sys/net/ipv4/conf/*/{arp_ignore,arp_announce,rp_filter}"),
    (Want::Name, "/.dockerenv"),
    (Want::Name, "/run/.containerenv"),
    (Want::Name, "/run/systemd/system"),
    (Want::Name, "/var/run/reboot-required"),
    (Want::Text, "/etc/{os-release,nccl.conf,hosts,hostname}"),
    (Want::Text, "/etc/systemd/logind.conf"),
    (Want::Text, "/etc/systemd/logind.conf.d/*.conf"),
    (Want::Text, "/{etc,lib}/systemd/system/{slurmd.service,docker.service,containerd.service,kubelet.service,crio.service}"),
    (Want::Text, "/usr/lib/systemd/system/{slurmd.service,docker.service,containerd.service,kubelet.service,crio.service}"),
    (Want::Text, "/etc/systemd/system/{slurmd.service.d,docker.service.d,containerd.service.d,kubelet.service.d,crio.service.d}/*.conf"),
    (Want::Text, "/sys/class/dmi/id/{sys_vendor,product_name,board_name,bios_vendor,bios_version,bios_date,chassis_asset_tag}"),
    (Want::Text, "/sys/hypervisor/type"),
    (Want::Text, "/var/run/nvidia-topologyd/virtualTopology.xml"),
    // Processors and memory.
    (Want::Text, "/sys/devices/system/cpu/{online,offline,present,isolated,nohz_full}"),
    (Want::Text, "/sys/devices/system/cpu/smt/{control,active}"),
    (Want::Text, "/sys/devices/system/cpu/intel_pstate/{no_turbo,status}"),
    (Want::Text, "/sys/devices/system/cpu/cpufreq/boost"),
    (Want::Text, "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
    (Want::Text, "/sys/devices/system/cpu/cpu*/topology/physical_package_id"),
    (Want::Text, "/sys/devices/system/cpu/cpu0/cpuidle/state*/{name,latency,disable}"),
    (Want::Text, "/sys/devices/system/node/node*/{cpulist,meminfo,distance}"),
    (Want::Text, "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    (Want::Text, "/sys/kernel/mm/transparent_hugepage/{enabled,defrag}"),
    (Want::Text, "/sys/kernel/mm/memory_peers/{nv_mem,nv_mem_nc,amdkfd}/version"),
    (Want::Text, "/sys/kernel/iommu_groups/*/type"),
    (Want::Text, "/sys/kernel/config/rdma_cm/*/ports/*/{default_roce_mode,default_roce_tos}"),
    // Limits of a container.
    (Want::Text, "/sys/fs/cgroup/{memory.max,memory.current,memory.stat,cpu.max,cpu.stat,pids.max,pids.current}"),
    (Want::Text, "/sys/fs/cgroup/memory/{memory.limit_in_bytes,memory.usage_in_bytes,memory.stat}"),
    (Want::Text, "/sys/fs/cgroup/devices/devices.list"),
    (Want::Text, "/sys/fs/cgroup/cpu/{cpu.cfs_quota_us,cpu.cfs_period_us,cpu.stat}"),
    (Want::Text, "/sys/fs/cgroup/pids/{pids.max,pids.current}"),
    // Modules.
    (Want::Name, "/sys/module/*"),
    (Want::Text, "/sys/module/{nvidia,nvidia_uvm,nvidia_peermem,gdrdrv,amdgpu,mlx5_core,mlx5_ib,ib_core,efa,bnxt_en,bnxt_re,ice,irdma}/version"),
    (Want::Text, "/sys/module/ib_core/parameters/netns_mode"),
    (Want::Text, "/sys/module/pcie_aspm/parameters/policy"),
    // PCI.
    (Want::Link, "/sys/bus/pci/devices/*"),
    (Want::Text, "/sys/bus/pci/devices/*/{class,vendor,device,subsystem_vendor,subsystem_device,numa_node,local_cpulist,current_link_speed,current_link_width,max_link_speed,max_link_width,sriov_totalvfs,sriov_numvfs,aer_dev_correctable,aer_dev_nonfatal,aer_dev_fatal}"),
    (Want::Bytes, "/sys/bus/pci/devices/*/config"),
    (Want::Link, "/sys/bus/pci/devices/*/{driver,iommu_group,physfn}"),
    // AMD's GPUs.
    (Want::Text, "/sys/class/kfd/kfd/topology/nodes/*/properties"),
    (Want::Text, "/sys/class/kfd/kfd/topology/nodes/*/io_links/*/properties"),
    // RDMA.
    (Want::Link, "/sys/class/infiniband/*"),
    (Want::Link, "/sys/class/infiniband/*/device"),
    (Want::Text, "/sys/class/infiniband/*/{fw_ver,board_id,hca_type,node_guid,sys_image_guid,node_desc}"),
    (Want::Text, "/sys/class/infiniband/*/ports/*/{state,phys_state,rate,link_layer,lid,sm_lid}"),
    (Want::Text, "/sys/class/infiniband/*/ports/*/gids/*"),
    (Want::Text, "/sys/class/infiniband/*/ports/*/gid_attrs/types/*"),
    (Want::Text, "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*"),
    (Want::Text, "/sys/class/infiniband/*/ports/*/{counters,hw_counters}/*"),
    (Want::Text, "/sys/class/infiniband/*/tc/*/traffic_class"),
    (Want::Name, "/dev/infiniband/*"),
    (Want::Name, "/dev/{nvidia0,nvidiactl,nvidia-uvm,gdrdrv,kfd}"),
    (Want::Name, "/dev/shm/nccl-*"),
    (Want::Name, "/dev/nvidia-caps-imex-channels/*"),
    // Google's network plugins.
    (Want::Name, "/usr/local/gib"),
    (Want::Name, "/home/kubernetes/bin/gib"),
    (Want::Name, "/var/lib/{tcpx,tcpxo,fastrak}"),
    // Network interfaces.
    (Want::Link, "/sys/class/net/*"),
    (Want::Link, "/sys/class/net/*/{device,master}"),
    (Want::Link, "/sys/class/net/*/device/{driver,physfn}"),
    (Want::Link, "/sys/class/net/*/lower_*"),
    (Want::Name, "/sys/class/net/*/{bonding,bridge}"),
    (Want::Text, "/sys/class/net/*/{mtu,speed,duplex,operstate,type,address,carrier_changes,uevent}"),
    (Want::Text, "/sys/class/net/*/statistics/{rx_crc_errors,rx_dropped,rx_errors,tx_errors,rx_packets}"),
    (Want::Text, "/sys/class/net/*/qos/trust"),
    (Want::Text, "/sys/class/net/*/ecn/{roce_np,roce_rp}/enable/*"),
    (Want::Text, "/sys/class/net/*/ecn/roce_np/{cnp_dscp,cnp_802p_prio}"),
];

/// How often a program is run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Each {
    /// Once.
    Machine,
    /// For every network interface that is a device; its name follows the arguments.
    Interface,
    /// For every RDMA device of NVIDIA's driver mlx5; its name follows the arguments.
    Adapter,
}

/// A program whose output the doctor reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    /// Its output's name: `commands/NAME.txt`, or `commands/NAME-DEVICE.txt`.
    pub(crate) name: &'static str,
    /// The program and its arguments.
    pub(crate) call: &'static [&'static str],
    /// How often.
    pub(crate) each: Each,
}

const fn once(name: &'static str, call: &'static [&'static str]) -> Program {
    Program { name, call, each: Each::Machine }
}

const fn per_interface(name: &'static str, call: &'static [&'static str]) -> Program {
    Program { name, call, each: Each::Interface }
}

const fn per_adapter(name: &'static str, call: &'static [&'static str]) -> Program {
    Program { name, call, each: Each::Adapter }
}

/// Programs that are run; none of them changes anything.
pub(crate) const PROGRAMS: &[Program] = &[
    once(NVIDIA_OUTPUTS[0].0, NVIDIA_OUTPUTS[0].1),
    once(NVIDIA_OUTPUTS[1].0, NVIDIA_OUTPUTS[1].1),
    once("dmesg", &["dmesg"]),
    once("nvidia-smi-q", &["nvidia-smi", "-q"]),
    once("nvidia-smi-p2p", &["nvidia-smi", "topo", "-p2p", "n"]),
    once("nvidia-smi-nvlink-s", &["nvidia-smi", "nvlink", "-s"]),
    once("nvidia-smi-nvlink-e", &["nvidia-smi", "nvlink", "-e"]),
    once("nvidia-imex-ctl", &["nvidia-imex-ctl", "-N"]),
    once("rocm-smi-showtopo", &["rocm-smi", "--showtopo"]),
    once("fabricmanager", &["tail", "-n", "2000", "/var/log/fabricmanager.log"]),
    once("ibstat", &["ibstat"]),
    once("lspci-vvv", &["lspci", "-vvv"]),
    once("chronyc", &["chronyc", "-n", "tracking"]),
    once("timedatectl", &["timedatectl", "show"]),
    per_interface("ethtool-S", &["ethtool", "-S"]),
    per_interface("ethtool-g", &["ethtool", "-g"]),
    per_interface("ethtool-k", &["ethtool", "-k"]),
    per_interface("ethtool-l", &["ethtool", "-l"]),
    per_interface("mlnx_qos", &["mlnx_qos", "-i"]),
    per_adapter("mlxlink", &["mlxlink", "-c", "-d"]),
    per_adapter("mlxreg-roce", &["mlxreg", "--reg_name", "ROCE_ACCL", "--get", "-d"]),
];

/// Variables that concern collectives; the only ones that are looked at.
const VARIABLES: &[&str] = &[
    "NCCL_",
    "RCCL_",
    "RINGWAY_",
    "UCX_",
    "FI_",
    "OMPI_MCA_",
    "TORCH_NCCL_",
    "TORCH_FR_",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "KUBERNETES_SERVICE_HOST",
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
];

/// Whether a variable concerns collectives.
pub(crate) fn is_wanted_variable(name: &str) -> bool {
    VARIABLES.iter().any(|start| name.starts_with(start))
}

/// Whether the table names this path.
pub(crate) fn covers(path: &str) -> bool {
    PATHS.iter().filter(|(_, pattern)| path.starts_with(literal(pattern))).any(|(_, pattern)| {
        let (mut ours, mut theirs) = (pattern.split('/'), path.split('/'));
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return true,
                (Some(pattern), Some(name)) if fits(pattern, name) => {}
                _ => return false,
            }
        }
    })
}

/// What a path must begin with to fit a pattern.
fn literal(pattern: &str) -> &str {
    &pattern[..pattern.find(['*', '{']).unwrap_or(pattern.len())]
}

/// Whether the table names a folder whose names are listed: one with a `*` right below it.
pub(crate) fn covers_folder(path: &str) -> bool {
    PATHS.iter().any(|(_, pattern)| {
        let mut ours = pattern.split('/');
        path.split('/').all(|name| ours.next().is_some_and(|pattern| fits(pattern, name)))
            && ours.next().is_some()
    })
}

/// Whether a component fits its pattern.
fn fits(pattern: &str, name: &str) -> bool {
    match words(pattern) {
        Some(words) => words.into_iter().any(|word| word == name),
        None => match pattern.split_once('*') {
            None => pattern == name,
            Some((before, after)) => {
                name.len() >= before.len() + after.len()
                    && name.starts_with(before)
                    && name.ends_with(after)
            }
        },
    }
}

/// The words of `{a,b}`.
fn words(pattern: &str) -> Option<Vec<&str>> {
    let inside = pattern.strip_prefix('{')?.strip_suffix('}')?;
    Some(inside.split(',').collect())
}

/// The paths of a root that a pattern names, in order, at most `most`. What cannot be listed is told to
/// `trouble`.
pub(crate) fn expand(
    root: &Root,
    pattern: &str,
    most: usize,
    trouble: &mut dyn FnMut(String),
) -> Vec<String> {
    let mut paths = vec![String::new()];
    for part in pattern.split('/').skip(1) {
        let mut longer = Vec::new();
        for path in paths {
            if let Some(words) = words(part) {
                longer.extend(words.iter().map(|word| format!("{path}/{word}")));
            } else if part.contains('*') {
                match root.list(if path.is_empty() { "/" } else { &path }) {
                    Ok(names) => longer.extend(
                        names
                            .iter()
                            .filter(|name| fits(part, name))
                            .map(|name| format!("{path}/{name}")),
                    ),
                    // A plain file among folders has nothing below it: bonding_masters.
                    Err(RootError::NotAFolder { .. }) => {}
                    Err(error) => trouble(error.to_string()),
                }
            } else {
                longer.push(format!("{path}/{part}"));
            }
            if longer.len() > most {
                trouble(format!("{pattern} names more than {most} paths; the rest is left out"));
                longer.truncate(most);
                break;
            }
        }
        paths = longer;
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_what_they_say() {
        assert!(covers("/sys/class/net/eth0/mtu"));
        assert!(covers("/sys/devices/system/cpu/cpu12/cpufreq/scaling_governor"));
        assert!(covers("/proc/cmdline"));
        for path in ["/sys/class/net/eth0/flags", "/proc/kcore", "/sys/class/net/eth0/mtu/x", "/"] {
            assert!(!covers(path), "{path}");
        }
        assert!(covers_folder("/sys/class/net") && covers_folder("/dev/infiniband"));
        assert!(!covers_folder("/proc/driver/other"));
    }

    #[test]
    fn patterns_are_of_the_two_kinds_that_are_understood() {
        for part in PATHS.iter().flat_map(|(_, pattern)| pattern.split('/')) {
            let braces = part.contains(['{', '}']);
            assert!(
                !braces || words(part).is_some_and(|words| !words.concat().contains(['*', '{'])),
                "{part}"
            );
            assert!(part.matches('*').count() <= 1, "{part}");
        }
    }

    #[test]
    fn names_of_outputs_are_unique_and_plain() {
        let mut names: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(names.iter().all(|name| !name.contains(['/', ' '])));
    }
}
