//! A machine written into a folder: two sockets, eight GPUs with a RoCE NIC each, one InfiniBand card.
//!
//! Edits are remembered and can be taken back, so that many faults are planted in one tree.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

mod outputs;

/// What was at a place before an edit.
enum Before {
    Nothing,
    File(Vec<u8>),
    Link(PathBuf),
    /// A folder, which was moved here.
    Folder(PathBuf),
    /// Nothing; a folder was made.
    NoFolder,
}

/// The folder; gone when dropped.
pub(crate) struct Tree {
    folder: PathBuf,
    before: Option<Vec<(PathBuf, Before)>>,
}

pub(crate) const GPUS: usize = 8;

/// Address of a GPU.
pub(crate) fn gpu(index: usize) -> String {
    format!("0000:{:02x}:00.0", 0x10 * (index + 1) + 3)
}

/// Address of a NIC.
pub(crate) fn nic(index: usize) -> String {
    format!("0000:{:02x}:00.0", 0x10 * (index + 1) + 4)
}

/// A file of a PCI function.
pub(crate) fn pci(address: &str, name: &str) -> String {
    format!("/sys/bus/pci/devices/{address}/{name}")
}

/// A file of a port.
pub(crate) fn port(index: usize, name: &str) -> String {
    format!("/sys/class/infiniband/mlx5_{index}/ports/1/{name}")
}

impl Tree {
    /// An empty folder.
    pub(crate) fn empty() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Thousands of small files: in memory where that is at hand.
        let memory = Path::new("/dev/shm");
        let above = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = above.join(format!("ringway-doctor-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self { folder, before: None }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    /// The place behind the links of a path, so that edits are made there.
    fn real(&mut self, path: &str) -> PathBuf {
        let path = self.at(path);
        let (folder, name) = (path.parent().unwrap(), path.file_name().unwrap());
        let missing =
            folder.ancestors().take_while(|above| !above.exists()).last().map(Path::to_owned);
        if let (Some(before), Some(missing)) = (&mut self.before, missing) {
            before.push((missing, Before::NoFolder));
        }
        fs::create_dir_all(folder).unwrap();
        folder.canonicalize().unwrap().join(name)
    }

    fn remember(&mut self, place: &Path) {
        let Some(before) = &mut self.before else { return };
        let was = match fs::symlink_metadata(place) {
            Err(_) => Before::Nothing,
            Ok(found) if found.is_symlink() => Before::Link(fs::read_link(place).unwrap()),
            Ok(found) if found.is_dir() => {
                let aside = self.folder.join(format!(".aside-{}", before.len()));
                Before::Folder(aside)
            }
            Ok(_) => Before::File(fs::read(place).unwrap()),
        };
        before.push((place.to_owned(), was));
    }

    /// Writes a file, with an end of line.
    pub(crate) fn put(&mut self, path: &str, text: impl std::fmt::Display) {
        self.bytes(path, format!("{text}\n").as_bytes());
    }

    pub(crate) fn bytes(&mut self, path: &str, bytes: &[u8]) {
        let place = self.real(path);
        self.remember(&place);
        fs::write(place, bytes).unwrap();
    }

    /// Replaces a part of a text file, which must be there.
    pub(crate) fn replace(&mut self, path: &str, old: &str, new: &str) {
        let text = fs::read_to_string(self.real(path)).unwrap();
        assert!(text.contains(old), "{path} holds no {old:?}");
        self.bytes(path, text.replacen(old, new, 1).as_bytes());
    }

    /// Adds a line.
    pub(crate) fn append(&mut self, path: &str, line: &str) {
        let text = fs::read_to_string(self.real(path)).unwrap_or_default();
        self.bytes(path, format!("{text}{line}\n").as_bytes());
    }

    /// Sets two bytes of a configuration space.
    pub(crate) fn config(&mut self, address: &str, at: usize, word: u16) {
        let path = pci(address, "config");
        let mut bytes = fs::read(self.real(&path)).unwrap();
        bytes[at..at + 2].copy_from_slice(&word.to_le_bytes());
        self.bytes(&path, &bytes);
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        let place = self.real(path);
        self.remember(&place);
        let _gone = fs::remove_file(&place);
        // All targets are absolute paths of the machine: made relative to the tree.
        let up = "../".repeat(
            place.strip_prefix(self.folder.canonicalize().unwrap()).unwrap().components().count()
                - 1,
        );
        symlink(format!("{up}{}", target.trim_start_matches('/')), place).unwrap();
    }

    /// Takes a file, link or folder away.
    pub(crate) fn remove(&mut self, path: &str) {
        let place = self.real(path);
        let found = fs::symlink_metadata(&place).unwrap_or_else(|e| panic!("{path}: {e}"));
        self.remember(&place);
        if found.is_dir() {
            match self.before.as_ref().and_then(|before| before.last()) {
                Some((_, Before::Folder(aside))) => fs::rename(&place, aside).unwrap(),
                _ => fs::remove_dir_all(&place).unwrap(),
            }
        } else {
            fs::remove_file(&place).unwrap();
        }
    }

    /// Plants a fault, looks, and takes the fault back.
    pub(crate) fn with<T>(
        &mut self,
        plant: impl FnOnce(&mut Self),
        look: impl FnOnce(&Self) -> T,
    ) -> T {
        self.before = Some(Vec::new());
        plant(self);
        let found = look(self);
        for (place, before) in self.before.take().unwrap().into_iter().rev() {
            let _gone = fs::remove_file(&place);
            match before {
                Before::Nothing => {}
                Before::NoFolder => fs::remove_dir_all(place).unwrap(),
                Before::File(bytes) => fs::write(place, bytes).unwrap(),
                Before::Link(target) => symlink(target, place).unwrap(),
                Before::Folder(aside) => fs::rename(aside, place).unwrap(),
            }
        }
        found
    }

    /// The machine.
    pub(crate) fn healthy() -> Self {
        let mut tree = Self::empty();
        tree.system();
        tree.processors();
        tree.devices();
        tree.rdma();
        tree.interfaces();
        outputs::write(&mut tree);
        tree
    }

    fn system(&mut self) {
        self.put("/proc/sys/kernel/hostname", "node1");
        self.put("/proc/sys/kernel/osrelease", "6.8.0-60-generic");
        self.put("/proc/version", "Linux version 6.8.0-60-generic");
        self.put("/proc/uptime", "864000.00 9000000.00");
        self.put(
            "/proc/cmdline",
            "BOOT_IMAGE=/vmlinuz-6.8.0 root=UUID=1234 ro iommu=pt pci=pcie_bus_perf",
        );
        self.put("/proc/sys/kernel/numa_balancing", 0);
        self.put("/proc/sys/kernel/pid_max", 4_194_304);
        self.put("/proc/sys/kernel/yama/ptrace_scope", 1);
        for (name, value) in [
            ("overcommit_memory", 0),
            ("zone_reclaim_mode", 0),
            ("max_map_count", 262_144),
            ("swappiness", 10),
        ] {
            self.put(&format!("/proc/sys/vm/{name}"), value);
        }
        for (name, value) in [
            ("rmem_max", 67_108_864),
            ("wmem_max", 67_108_864),
            ("somaxconn", 16_384),
            ("netdev_max_backlog", 250_000),
        ] {
            self.put(&format!("/proc/sys/net/core/{name}"), value);
        }
        let tcp = [
            ("tcp_rmem", "4096 131072 67108864"),
            ("tcp_wmem", "4096 65536 67108864"),
            ("tcp_timestamps", "1"),
            ("tcp_sack", "1"),
            ("tcp_window_scaling", "1"),
            ("tcp_max_syn_backlog", "16384"),
            ("tcp_congestion_control", "cubic"),
            ("ip_local_port_range", "32768 60999"),
        ];
        for (name, value) in tcp {
            self.put(&format!("/proc/sys/net/ipv4/{name}"), value);
        }
        self.put(
            "/proc/meminfo",
            "MemTotal:       2113929216 kB\nMemFree:        2000000000 kB\nSwapTotal:             0 kB\n\
             SwapFree:              0 kB\nHugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB",
        );
        let limits = [
            ("Max stack size", "8388608"),
            ("Max processes", "unlimited"),
            ("Max open files", "1048576"),
            ("Max locked memory", "unlimited"),
        ];
        let mut text =
            "Limit                     Soft Limit           Hard Limit           Units\n"
                .to_owned();
        for (name, value) in limits {
            let _ = writeln!(text, "{name:<26}{value:<21}{value:<21}x");
        }
        self.put("/proc/self/limits", text.trim_end());
        self.put(
            "/proc/self/status",
            "Name:\tringway\nCapEff:\t0000000000000000\nSeccomp:\t0\nCpus_allowed_list:\t0-7",
        );
        self.put("/proc/1/cgroup", "0::/init.scope");
        self.put("/etc/hosts", "127.0.0.1 localhost\n10.0.0.1 node1");
        self.put("/etc/systemd/logind.conf", "[Login]\nRemoveIPC=no");
        self.put("/run/systemd/system/x", "");
        self.put("/lib/systemd/system/slurmd.service", "[Service]\nLimitMEMLOCK=infinity");
        self.put("/sys/class/dmi/id/product_name", "Box of eight");
        self.put("/sys/class/dmi/id/bios_version", "1.2");
        self.put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
        self.put("/sys/kernel/mm/transparent_hugepage/defrag", "always defer [madvise] never");
        self.put(
            "/sys/module/pcie_aspm/parameters/policy",
            "[default] performance powersave powersupersave",
        );
        self.put("/sys/module/ib_core/parameters/netns_mode", "Y");
        self.put("/sys/module/ib_uverbs/refcnt", 1);
        for module in ["nvidia", "nvidia_uvm", "nvidia_peermem"] {
            self.put(&format!("/sys/module/{module}/version"), "570.10.01");
        }
        self.put(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.10.01  Release Build",
        );
        for (name, value) in [
            ("memory.max", "1099511627776"),
            ("memory.current", "1073741824"),
            ("cpu.max", "800000 10000"),
            ("pids.max", "100000"),
            ("pids.current", "100"),
        ] {
            self.put(&format!("/sys/fs/cgroup/{name}"), value);
        }
        self.put("/sys/fs/cgroup/cpu.stat", "usage_usec 5\nnr_throttled 0");
    }

    fn processors(&mut self) {
        let cpu = "/sys/devices/system/cpu";
        let mut info = String::new();
        for index in 0..8 {
            let _ = write!(
                info,
                "processor\t: {index}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nflags\t\t: fpu vme de sse2\n\n"
            );
            self.put(&format!("{cpu}/cpu{index}/cpufreq/scaling_governor"), "performance");
            self.put(&format!("{cpu}/cpu{index}/topology/physical_package_id"), index / 4);
        }
        self.put("/proc/cpuinfo", info.trim_end());
        for (name, value) in
            [("online", "0-7"), ("present", "0-7"), ("offline", ""), ("isolated", "")]
        {
            self.put(&format!("{cpu}/{name}"), value);
        }
        self.put(&format!("{cpu}/smt/control"), "on");
        self.put(&format!("{cpu}/intel_pstate/no_turbo"), 0);
        for (state, name, latency) in [(0, "POLL", 0), (1, "C1", 2), (2, "C6", 190)] {
            let folder = format!("{cpu}/cpu0/cpuidle/state{state}");
            self.put(&format!("{folder}/name"), name);
            self.put(&format!("{folder}/latency"), latency);
            self.put(&format!("{folder}/disable"), u8::from(latency > 50));
        }
        for node in 0..2 {
            let folder = format!("/sys/devices/system/node/node{node}");
            self.put(&format!("{folder}/cpulist"), if node == 0 { "0-3" } else { "4-7" });
            self.put(
                &format!("{folder}/meminfo"),
                format!("Node {node} MemTotal:       1056964608 kB"),
            );
        }
        self.put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
    }

    fn devices(&mut self) {
        for index in 0..GPUS {
            let bus = 0x10 * (index + 1);
            let root = format!("/sys/devices/pci0000:{bus:02x}");
            let port = format!("{root}/0000:{bus:02x}:01.0");
            let up = format!("{port}/0000:{:02x}:00.0", bus + 1);
            let (a, b) = (
                format!("{up}/0000:{:02x}:00.0", bus + 2),
                format!("{up}/0000:{:02x}:01.0", bus + 2),
            );
            for bridge in [&port, &up, &a, &b] {
                self.function(bridge, 0x06_0400, (0x1000, 0xc030), index / 4, "pcieport");
            }
            self.function(
                &format!("{a}/{}", gpu(index)),
                0x03_0200,
                (0x10de, 0x2330),
                index / 4,
                "nvidia",
            );
            self.function(
                &format!("{b}/{}", nic(index)),
                0x02_0000,
                (0x15b3, 0x1021),
                index / 4,
                "mlx5_core",
            );
        }
        let port = "/sys/devices/pci0000:00/0000:00:01.0";
        self.function(port, 0x06_0400, (0x8086, 0x1), 0, "pcieport");
        self.function(&format!("{port}/0000:01:00.0"), 0x02_0700, (0x15b3, 0x101b), 0, "mlx5_core");
        let port = "/sys/devices/pci0000:a0/0000:a0:01.0";
        self.function(port, 0x06_0400, (0x8086, 0x1), 1, "pcieport");
        self.function(
            &format!("{port}/0000:a1:00.0"),
            0x06_8000,
            (0x10de, 0x22a3),
            1,
            "nvidia-nvswitch",
        );
    }

    fn function(&mut self, place: &str, class: u32, ids: (u32, u32), node: usize, driver: &str) {
        let address = place.rsplit('/').next().unwrap().to_owned();
        for (name, value) in [
            ("class", format!("0x{class:06x}")),
            ("vendor", format!("0x{:04x}", ids.0)),
            ("device", format!("0x{:04x}", ids.1)),
            ("numa_node", node.to_string()),
            ("local_cpulist", if node == 0 { "0-3" } else { "4-7" }.to_owned()),
            ("current_link_speed", "32.0 GT/s PCIe".to_owned()),
            ("max_link_speed", "32.0 GT/s PCIe".to_owned()),
            ("current_link_width", "16".to_owned()),
            ("max_link_width", "16".to_owned()),
            ("aer_dev_correctable", "RxErr 0\nTOTAL_ERR_COR 0".to_owned()),
            ("aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 0".to_owned()),
            ("aer_dev_fatal", "Undefined 0\nTOTAL_ERR_FATAL 0".to_owned()),
        ] {
            self.put(&format!("{place}/{name}"), value);
        }
        let mut config = vec![0_u8; 4096];
        config[0x34] = 0x40;
        config[0x40] = 0x10;
        // Relaxed ordering, 256 bytes of payload, 4096 bytes a read.
        config[0x48..0x4a].copy_from_slice(&0x5030_u16.to_le_bytes());
        config[0x100] = if class >> 16 == 6 { 0x0d } else { 0x0f };
        config[0x102] = 1;
        if class >> 16 != 6 {
            config[0x107] = 0x80;
        }
        self.bytes(&format!("{place}/config"), &config);
        self.link(&format!("/sys/bus/pci/devices/{address}"), place);
        self.link(&format!("{place}/driver"), &format!("/sys/bus/pci/drivers/{driver}"));
        let group = address.replace([':', '.'], "");
        self.put(&format!("/sys/kernel/iommu_groups/{group}/type"), "identity");
        self.link(&format!("{place}/iommu_group"), &format!("/sys/kernel/iommu_groups/{group}"));
    }

    fn rdma(&mut self) {
        for index in 0..=GPUS {
            let ib = index == GPUS;
            let address = if ib { "0000:01:00.0".to_owned() } else { nic(index) };
            let place = format!("/sys/bus/pci/devices/{address}/infiniband/mlx5_{index}");
            self.put(&format!("{place}/fw_ver"), if ib { "20.40.1000" } else { "28.39.1002" });
            self.put(
                &format!("{place}/board_id"),
                if ib { "MT_0000000223" } else { "MT_0000000838" },
            );
            self.put(&format!("{place}/node_guid"), format!("a088:c203:00ad:ea{index:02x}"));
            let real = fs::canonicalize(self.at(&place)).unwrap();
            let real = real.strip_prefix(self.folder.canonicalize().unwrap()).unwrap().to_owned();
            let real = format!("/{}", real.display());
            self.link(&format!("/sys/class/infiniband/mlx5_{index}"), &real);
            let device = real.split("/infiniband/").next().unwrap().to_owned();
            self.link(&format!("{real}/device"), &device);
            for (name, value) in [
                ("state", "4: ACTIVE"),
                ("phys_state", "5: LinkUp"),
                ("rate", if ib { "200 Gb/sec (4X HDR)" } else { "400 Gb/sec (4X NDR)" }),
                ("link_layer", if ib { "InfiniBand" } else { "Ethernet" }),
                ("lid", if ib { "0x12" } else { "0x0" }),
                ("sm_lid", if ib { "0x1" } else { "0x0" }),
                ("counters/port_xmit_data", "230442669431839"),
            ] {
                self.put(&port(index, name), value);
            }
            for name in [
                "symbol_error",
                "link_downed",
                "link_error_recovery",
                "port_rcv_errors",
                "port_rcv_remote_physical_errors",
                "port_xmit_discards",
                "port_xmit_wait",
            ] {
                self.put(&port(index, &format!("counters/{name}")), 0);
            }
            for name in [
                "packet_seq_err",
                "out_of_sequence",
                "local_ack_timeout_err",
                "rnr_nak_retry_err",
                "out_of_buffer",
                "rp_cnp_ignored",
            ] {
                self.put(&port(index, &format!("hw_counters/{name}")), 0);
            }
            if !ib {
                let gids = [
                    ("fe80:0000:0000:0000:a088:c2ff:fead:ea", "IB/RoCE v1"),
                    ("0000:0000:0000:0000:0000:ffff:0a00:00", "RoCE v2"),
                ];
                for (gid, (address, kind)) in gids.iter().enumerate() {
                    self.put(&port(index, &format!("gids/{gid}")), format!("{address}{index:02x}"));
                    self.put(&port(index, &format!("gid_attrs/types/{gid}")), kind);
                }
                self.put(&port(index, "gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000");
                self.put(
                    &format!("/sys/class/infiniband/mlx5_{index}/tc/1/traffic_class"),
                    "Global tclass=106",
                );
                self.put(
                    &format!("/sys/kernel/config/rdma_cm/mlx5_{index}/ports/1/default_roce_mode"),
                    "RoCE v2",
                );
            }
            self.put(&format!("/dev/infiniband/uverbs{index}"), "");
        }
    }

    fn interfaces(&mut self) {
        let mut routes =
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
                .to_owned();
        for who in ["all", "default"] {
            for (name, value) in [("arp_ignore", 1), ("arp_announce", 2), ("rp_filter", 2)] {
                self.put(&format!("/proc/sys/net/ipv4/conf/{who}/{name}"), value);
            }
        }
        for index in 0..GPUS {
            let name = format!("eth{index}");
            let device =
                fs::canonicalize(self.at(&format!("/sys/bus/pci/devices/{}", nic(index)))).unwrap();
            let device =
                device.strip_prefix(self.folder.canonicalize().unwrap()).unwrap().to_owned();
            let device = format!("/{}", device.display());
            let place = format!("{device}/net/{name}");
            for (file, value) in [
                ("mtu", "9000"),
                ("speed", "400000"),
                ("duplex", "full"),
                ("operstate", "up"),
                ("type", "1"),
                ("address", "02:00:00:00:00:01"),
                ("qos/trust", "dscp"),
                ("ecn/roce_np/cnp_dscp", "48"),
                ("statistics/rx_packets", "100000000000"),
                ("statistics/rx_crc_errors", "0"),
                ("ecn/roce_np/enable/3", "1"),
                ("ecn/roce_rp/enable/3", "1"),
            ] {
                self.put(&format!("{place}/{file}"), value);
            }
            self.link(&format!("{place}/device"), &device);
            self.link(&format!("/sys/class/net/{name}"), &place);
            // All rails in one subnet.
            let _ =
                writeln!(routes, "{name}\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0");
            for file in ["arp_ignore", "arp_announce", "rp_filter"] {
                self.put(&format!("/proc/sys/net/ipv4/conf/{name}/{file}"), 0);
            }
        }
        // One more, for storage, that is no RDMA device.
        let place = "/sys/devices/virtual/x/net/stor0";
        for (file, value) in [
            ("mtu", "9000"),
            ("speed", "100000"),
            ("duplex", "full"),
            ("operstate", "up"),
            ("type", "1"),
            ("statistics/rx_packets", "5"),
        ] {
            self.put(&format!("{place}/{file}"), value);
        }
        self.put("/sys/devices/virtual/x/uevent", "");
        self.link(&format!("{place}/device"), "/sys/devices/virtual/x");
        self.link("/sys/class/net/stor0", place);
        self.put("/proc/net/route", routes.trim_end());
        let slaves = "Slave Interface: eth6\nSlave Interface: eth7";
        self.put("/proc/net/bonding/bond0", format!("Bonding Mode: IEEE 802.3ad Dynamic link aggregation\nTransmit Hash Policy: layer3+4 (1)\n{slaves}"));
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.folder);
    }
}
