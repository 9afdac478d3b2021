//! Faults of processors, kernel, limits, containers, TCP and variables.

use super::{Fail, Fault, Warn, set};
use crate::doctor::tests::tree::{Tree, gpu, pci};

const CPU: &str = "/sys/devices/system/cpu";
const DMESG: &str = "/commands/dmesg.txt";
const LIMITS: &str = "/proc/self/limits";

/// Makes the machine a container with all RDMA devices.
fn container(tree: &mut Tree) {
    tree.put("/.dockerenv", "");
}

/// Memory of a control group of version 1: what is used, and files that need not be kept.
pub(in crate::doctor::tests) fn old_group(tree: &mut Tree, used: &str, files: &str) {
    for name in ["memory.max", "memory.current"] {
        tree.remove(&format!("/sys/fs/cgroup/{name}"));
    }
    let folder = "/sys/fs/cgroup/memory";
    tree.put(&format!("{folder}/memory.limit_in_bytes"), "1099511627776");
    tree.put(&format!("{folder}/memory.usage_in_bytes"), used);
    let stat = format!("inactive_file 4096\ntotal_inactive_file {files}");
    tree.put(&format!("{folder}/memory.stat"), stat);
}

/// Changes a limit of this process, keeping the columns.
fn limit(tree: &mut Tree, name: &str, old: &str, new: &str) {
    tree.replace(LIMITS, &format!("{name:<26}{old:<21}"), &format!("{name:<26}{new:<21}"));
}

pub(super) const FAULTS: &[Fault] = &[
    ("num-08", Warn, |t| t.put(&format!("{CPU}/cpu3/cpufreq/scaling_governor"), "powersave")),
    ("num-08", Fail, |t| {
        for cpu in 0..8 {
            t.put(&format!("{CPU}/cpu{cpu}/cpufreq/scaling_governor"), "powersave");
        }
    }),
    ("cpu-turbo", Warn, |t| t.put(&format!("{CPU}/intel_pstate/no_turbo"), 1)),
    ("cpu-idle", Warn, |t| t.put(&format!("{CPU}/cpu0/cpuidle/state2/disable"), 0)),
    ("cpu-offline", Warn, |t| t.put(&format!("{CPU}/offline"), "6-7")),
    ("cpu-isolated", Warn, |t| t.put(&format!("{CPU}/isolated"), "0-7")),
    ("cpu-clock", Warn, |t| {
        t.put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")
    }),
    ("sys-thp", Warn, |t| {
        t.put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
    }),
    ("sys-thp-defrag", Warn, |t| {
        t.put("/sys/kernel/mm/transparent_hugepage/defrag", "[always] defer madvise never")
    }),
    ("sys-hugepages", Warn, |t| {
        t.replace("/proc/meminfo", "HugePages_Free:        0", "HugePages_Free:   400000")
    }),
    ("sys-swap", Warn, |t| {
        t.replace("/proc/meminfo", "SwapTotal:             0", "SwapTotal:      16777216")
    }),
    ("sys-overcommit", Warn, |t| t.put("/proc/sys/vm/overcommit_memory", 2)),
    ("sys-zone-reclaim", Warn, |t| t.put("/proc/sys/vm/zone_reclaim_mode", 1)),
    ("sys-reboot", Warn, |t| t.put("/var/run/reboot-required", "*** System restart required ***")),
    ("sys-oom", Warn, |t| {
        t.append(DMESG, "[99.0] Out of memory: Killed process 4242 (python) total-vm:1kB")
    }),
    ("sys-mce", Warn, |t| {
        t.append(DMESG, "[99.0] mce: [Hardware Error]: Machine check events logged")
    }),
    ("sys-stuck", Warn, |t| {
        t.append(DMESG, "[99.0] INFO: task python:4242 blocked for more than 122 seconds.")
    }),
    ("num-02", Fail, |t| t.put(&pci(&gpu(2), "numa_node"), "-1")),
    ("num-03", Warn, |t| {
        t.replace("/proc/self/status", "Cpus_allowed_list:\t0-7", "Cpus_allowed_list:\t0-3")
    }),
    ("num-04", Warn, |t| {
        let info = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu";
        t.put("/proc/cpuinfo", info);
        // GPUs that talk over PCIe.
        t.put("/commands/nvidia-smi-nvlink-s.txt", "");
        t.put("/commands/nvidia-smi-nvlink-e.txt", "");
        t.put("/sys/bus/pci/devices/0000:a1:00.0/class", "0x060400");
    }),
    ("num-07", Warn, |t| t.put("/proc/sys/kernel/numa_balancing", 1)),
    ("num-memory", Fail, |t| {
        t.put("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       0 kB")
    }),
    ("mem-01", Fail, |t| limit(t, "Max locked memory", "unlimited", "65536")),
    ("mem-01", Warn, |t| limit(t, "Max locked memory", "unlimited", "17179869184")),
    ("mem-02", Fail, |t| {
        container(t);
        // It may place memory, so that mem-08 is content.
        t.replace("/proc/self/status", "CapEff:\t0000000000000000", "CapEff:\t0000000000800000");
        limit(t, "Max locked memory", "unlimited", "17179869184");
    }),
    ("mem-03", Fail, |t| {
        t.replace("/commands/ringway.txt", "shm_bytes = 1082331758592", "shm_bytes = 67108864");
        t.replace(
            "/commands/ringway.txt",
            "shm_free_bytes = 1082331758592",
            "shm_free_bytes = 67108864",
        );
    }),
    ("mem-04", Fail, |t| {
        t.replace(
            "/commands/ringway.txt",
            "shm_free_bytes = 1082331758592",
            "shm_free_bytes = 1048576",
        )
    }),
    ("mem-04", Warn, |t| {
        for index in 0..70 {
            t.put(&format!("/dev/shm/nccl-{index:06}"), "");
        }
    }),
    ("mem-05", Fail, |t| limit(t, "Max open files", "1048576", "1024")),
    ("mem-06", Warn, |t| limit(t, "Max stack size", "8388608", "unlimited")),
    ("mem-07", Warn, |t| {
        t.put("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no");
        t.put("/etc/os-release", "ID=ubuntu\nID_LIKE=debian");
    }),
    ("mem-08", Warn, container),
    ("lim-nproc", Warn, |t| limit(t, "Max processes", "unlimited", "4096")),
    ("lim-pid-max", Warn, |t| {
        t.put("/proc/sys/kernel/pid_max", 32_768);
        t.put(&format!("{CPU}/online"), "0-127");
    }),
    ("lim-maps", Warn, |t| t.put("/proc/sys/vm/max_map_count", 1024)),
    ("lim-units", Warn, |t| {
        t.put("/etc/systemd/system/slurmd.service.d/10-x.conf", "[Service]\nLimitMEMLOCK=8M")
    }),
    ("cg-memory", Warn, |t| t.put("/sys/fs/cgroup/memory.current", "1099511627000")),
    ("cg-memory", Warn, |t| {
        old_group(t, "1099511627000", "1073741824");
    }),
    ("cg-cpu", Warn, |t| t.put("/sys/fs/cgroup/cpu.max", "80000 10000")),
    ("cg-cpu", Warn, |t| t.put("/sys/fs/cgroup/cpu.stat", "usage_usec 5\nnr_throttled 17")),
    ("cg-pids", Warn, |t| t.put("/sys/fs/cgroup/pids.max", 1024)),
    ("k8s-03", Warn, |t| t.put("/sys/fs/cgroup/memory.max", "68719476736")),
    ("mem-09", Fail, |t| t.remove("/dev/infiniband/uverbs4")),
    ("mem-09", Fail, |t| {
        t.replace("/commands/ringway.txt", "usable uverbs0 = yes", "usable uverbs0 = no")
    }),
    ("mem-09", Fail, |t| {
        t.put("/sys/fs/cgroup/devices/devices.list", "c 1:3 rwm\nc 195:* rw\nb *:* m");
    }),
    ("mem-10", Warn, |t| t.put("/sys/module/ib_core/parameters/netns_mode", "N")),
    ("box-ptrace", Warn, |t| t.put("/proc/sys/kernel/yama/ptrace_scope", 2)),
    ("eth-mtu", Warn, |t| t.put("/sys/class/net/stor0/mtu", 1500)),
    ("eth-speed", Warn, |t| t.put("/sys/class/net/eth5/speed", 100_000)),
    ("eth-duplex", Fail, |t| t.put("/sys/class/net/stor0/duplex", "half")),
    ("eth-state", Fail, |t| t.put("/sys/class/net/eth6/operstate", "down")),
    ("eth-ring", Warn, |t| {
        t.replace("/commands/ethtool-g-eth1.txt", "settings:\nRX:\t\t8192", "settings:\nRX:\t\t256")
    }),
    ("eth-offload", Warn, |t| {
        t.replace(
            "/commands/ethtool-k-eth1.txt",
            "generic-receive-offload: on",
            "generic-receive-offload: off",
        )
    }),
    ("eth-queues", Warn, |t| {
        t.replace(
            "/commands/ethtool-l-eth1.txt",
            "settings:\nCombined:\t63",
            "settings:\nCombined:\t1",
        )
    }),
    ("tcp-rmem", Warn, |t| t.put("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 262144")),
    ("tcp-wmem", Warn, |t| t.put("/proc/sys/net/ipv4/tcp_wmem", "4096 65536 262144")),
    ("tcp-window", Fail, |t| t.put("/proc/sys/net/ipv4/tcp_window_scaling", 0)),
    ("tcp-sack", Warn, |t| t.put("/proc/sys/net/ipv4/tcp_sack", 0)),
    ("tcp-timestamps", Warn, |t| t.put("/proc/sys/net/ipv4/tcp_timestamps", 0)),
    ("tcp-backlog", Warn, |t| t.put("/proc/sys/net/core/netdev_max_backlog", 1000)),
    ("net-02", Warn, |t| t.put("/proc/sys/net/ipv4/ip_local_port_range", "60000 60999")),
    ("net-03", Warn, |t| t.replace("/etc/hosts", "10.0.0.1 node1", "127.0.1.1 node1")),
    ("net-04", Warn, |t| t.put("/proc/sys/net/core/somaxconn", 128)),
    ("net-05", Fail, |t| {
        t.replace("/commands/chronyc.txt", "0.000012345 seconds", "0.120000000 seconds")
    }),
    ("net-05", Warn, |t| {
        t.append("/commands/chronyc.txt", "Leap status     : Not synchronised");
    }),
    ("net-05", Warn, |t| {
        t.remove("/commands/chronyc.txt");
        t.put("/commands/timedatectl.txt", "NTP=no\nNTPSynchronized=no");
    }),
    ("env-01", Fail, |t| set(t, "NCCL_IB_DISABLE=1")),
    ("env-01", Fail, |t| t.put("/etc/nccl.conf", "# site\nNCCL_NET=Socket")),
    ("env-02", Fail, |t| set(t, "NCCL_P2P_DISABLE=1")),
    ("env-03", Fail, |t| set(t, "NCCL_SOCKET_IFNAME=ens")),
    ("env-04", Fail, |t| t.put("/commands/environment.txt", "NCCL_IB_HCA==mlx6_0")),
    ("env-04", Warn, |t| {
        t.put("/commands/environment.txt", "NCCL_IB_HCA=mlx5_1,mlx5_2");
        t.put("/sys/class/infiniband/mlx5_10/fw_ver", "28.39.1002");
        t.put("/sys/class/infiniband/mlx5_10/board_id", "MT_0000000838");
        t.put("/dev/infiniband/uverbs10", "");
    }),
    ("env-05", Fail, |t| set(t, "NCCL_PROTO=LL")),
    ("env-05", Warn, |t| set(t, "NCCL_MAX_NCHANNELS=2")),
    ("env-06", Warn, |t| set(t, "NCCL_IB_TIMEOUT=0x10")),
    ("env-06", Fail, |t| set(t, "NCCL_IB_TIMEOUT=10")),
    ("env-07", Warn, |t| {
        set(t, "NCCL_CROSS_NIC=1");
        let head =
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT";
        let rail =
            |i: usize| format!("eth{i}\t00{i:02}000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0");
        let rails: Vec<String> = (0..8).map(rail).collect();
        t.put("/proc/net/route", format!("{head}\n{}", rails.join("\n")));
    }),
    ("env-08", Warn, |t| set(t, "NCCL_DEBUG=INFO")),
    ("env-10", Fail, |t| {
        let path = "/lib/x86_64-linux-gnu/libmlx5.so.1 IBVERBS_PRIVATE_";
        t.replace("/commands/ringway.txt", &format!("{path}34"), &format!("{path}25"));
    }),
    ("env-10", Warn, |t| {
        t.append(
            "/commands/ringway.txt",
            "library libibverbs.so.1 1 = /opt/rdma-core/lib/libibverbs.so.1 IBVERBS_PRIVATE_25",
        );
    }),
    ("job-04", Warn, |t| set(t, "TORCH_NCCL_DUMP_ON_TIMEOUT=1")),
    ("job-04", Warn, |t| set(t, "TORCH_FR_BUFFER_SIZE=2000")),
    ("num-05", Warn, |t| set(t, "NCCL_TOPO_FILE=/etc/topo.xml")),
    ("num-05", Fail, |t| {
        set(t, "NCCL_TOPO_FILE=/etc/topo.xml");
        t.put("/etc/topo.xml", "<system version=\"1\"><cpu");
    }),
    ("num-05", Fail, |t| {
        set(t, "NCCL_TOPO_FILE=/etc/topo.xml");
        let gpus = "<pci busid=\"0000:13:00.0\" class=\"0x030200\"/>\
                    <pci busid=\"0000:f3:00.0\" class=\"0x030200\"/>";
        t.put("/etc/topo.xml", format!("<system version=\"1\"><cpu>{gpus}</cpu></system>"));
    }),
];
