//! Copies of machines that never were: trees of files and links, as `/sys` has them.
//!
//! For tests of whatever reads a machine through [`Root`](crate::topo::Root). *Invariant:* a tree
//! lies in a folder of its own below the temporary folder and is gone when dropped.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A tree of files.
#[derive(Debug)]
pub struct MachineTree {
    folder: PathBuf,
}

/// A PCI device to be written.
#[derive(Clone, Copy, Debug)]
pub struct PciSpec<'a> {
    /// Where it hangs: `pci0000:10/0000:10:01.0/0000:11:00.0`.
    pub above: &'a str,
    /// Its bus id.
    pub bus: &'a str,
    /// Class, vendor and device: `0x030200 0x10de 0x26b9`.
    pub ids: &'a str,
    /// Its NUMA node.
    pub numa: i64,
    /// Its driver.
    pub driver: &'a str,
    /// Speed of its link, now and at the most: `32.0 GT/s PCIe`.
    pub speed: &'a str,
    /// Lanes now.
    pub width: u32,
}

impl MachineTree {
    /// An empty tree.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringway-machine-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file: `sys/class/net/eth0/mtu`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn file(&self, path: &str, text: &str) -> io::Result<()> {
        let path = self.folder.join(path.trim_start_matches('/'));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, format!("{text}\n"))
    }

    /// Makes a link to an absolute path of the machine, written relative, as `/sys` does.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn link(&self, path: &str, target: &str) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        let up = "../".repeat(path.matches('/').count());
        let place = self.folder.join(path);
        if let Some(folder) = place.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::os::unix::fs::symlink(format!("{up}{}", target.trim_start_matches('/')), place)
    }

    /// Writes a NUMA node with its processors.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn numa(&self, id: u32, cpus: &str) -> io::Result<()> {
        let folder = format!("sys/devices/system/node/node{id}");
        self.file(&format!("{folder}/cpulist"), cpus)?;
        self.file(&format!("{folder}/meminfo"), &format!("Node {id} MemTotal:  1048576 kB"))
    }

    /// Writes `/proc/cpuinfo` of an Intel machine, Sapphire Rapids.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn cpuinfo(&self, count: u32, flags: &str) -> io::Result<()> {
        let one = |number: u32| {
            format!(
                "processor\t: {number}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: \
                 143\nmodel name\t: Test CPU\nflags\t\t: fpu {flags}\n"
            )
        };
        self.file("proc/cpuinfo", &(0..count).map(one).collect::<Vec<_>>().join("\n"))
    }

    /// Writes a PCI device, and its link in the list of all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn pci(&self, spec: &PciSpec<'_>) -> io::Result<()> {
        let folder = format!("sys/devices/{}/{}", spec.above, spec.bus);
        let mut ids = spec.ids.split_whitespace();
        for name in ["class", "vendor", "device"] {
            self.file(&format!("{folder}/{name}"), ids.next().unwrap_or("0x0"))?;
        }
        self.file(&format!("{folder}/subsystem_vendor"), "0x0000")?;
        self.file(&format!("{folder}/subsystem_device"), "0x0000")?;
        self.file(&format!("{folder}/numa_node"), &spec.numa.to_string())?;
        self.file(&format!("{folder}/current_link_speed"), spec.speed)?;
        self.file(&format!("{folder}/max_link_speed"), spec.speed)?;
        self.file(&format!("{folder}/current_link_width"), &spec.width.to_string())?;
        self.file(&format!("{folder}/max_link_width"), "16")?;
        if !spec.driver.is_empty() {
            let driver = format!("sys/bus/pci/drivers/{}", spec.driver);
            std::fs::create_dir_all(self.folder.join(&driver))?;
            self.link(&format!("{folder}/driver"), &driver)?;
        }
        self.link(&format!("sys/bus/pci/devices/{}", spec.bus), &folder)
    }

    /// Writes an RDMA device with one port, and its network interface, on a PCI device that was
    /// written before at `place` (`pci0000:10/…/0000:15:00.0`).
    ///
    /// # Errors
    /// It cannot be written.
    pub fn rdma(&self, name: &str, interface: &str, place: &str, state: &str) -> io::Result<()> {
        let device = format!("sys/devices/{place}");
        let folder = format!("{device}/infiniband/{name}");
        let port = format!("{folder}/ports/1");
        self.file(
            &format!("{folder}/sys_image_guid"),
            &format!("b83f:d203:0000:{:04x}", name.len()),
        )?;
        self.file(&format!("{folder}/fw_ver"), "28.41.1000")?;
        self.file(&format!("{folder}/board_id"), "MT_0000000838")?;
        self.file(&format!("{port}/state"), state)?;
        self.file(&format!("{port}/phys_state"), "5: LinkUp")?;
        self.file(&format!("{port}/link_layer"), "Ethernet")?;
        self.file(&format!("{port}/rate"), "400 Gb/sec (4X NDR)")?;
        self.file(&format!("{port}/gids/0"), "fe80:0000:0000:0000:ba3f:d2ff:fe00:0001")?;
        self.file(&format!("{port}/gid_attrs/types/0"), "IB/RoCE v1")?;
        self.file(&format!("{port}/gid_attrs/ndevs/0"), interface)?;
        self.file(&format!("{port}/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001")?;
        self.file(&format!("{port}/gid_attrs/types/3"), "RoCE v2")?;
        self.file(&format!("{port}/gid_attrs/ndevs/3"), interface)?;
        self.file(&format!("{port}/gids/4"), "0000:0000:0000:0000:0000:0000:0000:0000")?;
        self.link(&format!("{folder}/device"), &device)?;
        self.link(&format!("sys/class/infiniband/{name}"), &folder)?;
        self.interface(interface, Some(place), "up", 400_000)
    }

    /// Writes a network interface, on a device or made by software.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn interface(
        &self,
        name: &str,
        place: Option<&str>,
        state: &str,
        mbit: i64,
    ) -> io::Result<()> {
        let folder = match place {
            Some(place) => format!("sys/devices/{place}/net/{name}"),
            None => format!("sys/devices/virtual/net/{name}"),
        };
        self.file(&format!("{folder}/operstate"), state)?;
        self.file(&format!("{folder}/speed"), &mbit.to_string())?;
        self.file(&format!("{folder}/mtu"), "9000")?;
        self.file(&format!("{folder}/type"), if name == "lo" { "772" } else { "1" })?;
        self.file(&format!("{folder}/address"), "02:00:00:00:00:01")?;
        if let Some(place) = place {
            self.link(&format!("{folder}/device"), &format!("sys/devices/{place}"))?;
        }
        self.link(&format!("sys/class/net/{name}"), &folder)
    }

    /// A server with two sockets, four PCI switches, and on each switch two GPUs and two NICs. The
    /// GPUs have no NVLinks. [`EIGHT_GPUS`] is what `nvidia-smi topo -m` would print.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn eight_gpus() -> io::Result<Self> {
        let tree = Self::new()?;
        tree.file("proc/sys/kernel/hostname", "hgx-0")?;
        tree.file("sys/class/dmi/id/sys_vendor", "Example Corp")?;
        tree.file("sys/class/dmi/id/product_name", "EX-8000")?;
        tree.cpuinfo(64, "avx512f")?;
        tree.numa(0, "0-31,64-95")?;
        tree.numa(1, "32-63,96-127")?;
        for (switch, top) in [0x10_u32, 0x30, 0x90, 0xb0].into_iter().enumerate() {
            let numa = i64::from(top >= 0x80);
            let (port, upstream) =
                (format!("0000:{top:02x}:01.0"), format!("0000:{:02x}:00.0", top + 1));
            let bridge = |above: &str, bus: &str| {
                tree.pci(&PciSpec {
                    above,
                    bus,
                    ids: "0x060400 0x104c 0x8232",
                    numa,
                    driver: "pcieport",
                    speed: "32.0 GT/s PCIe",
                    width: 16,
                })
            };
            let root = format!("pci0000:{top:02x}");
            bridge(&root, &port)?;
            bridge(&format!("{root}/{port}"), &upstream)?;
            let inside = format!("{root}/{port}/{upstream}");
            for slot in 0..4_u32 {
                let below = format!("0000:{:02x}:{slot:02x}.0", top + 2);
                bridge(&inside, &below)?;
                let bus = format!("0000:{:02x}:00.0", top + 3 + slot);
                let above = format!("{inside}/{below}");
                let number = 2 * switch + usize::try_from(slot % 2).unwrap_or(0);
                let (ids, driver) = match slot {
                    0 | 1 => ("0x030200 0x10de 0x26b9", "nvidia"),
                    _ => ("0x020000 0x15b3 0x1021", "mlx5_core"),
                };
                let (speed, width) = ("32.0 GT/s PCIe", 16);
                tree.pci(&PciSpec { above: &above, bus: &bus, ids, numa, driver, speed, width })?;
                if slot < 2 {
                    let path = format!("proc/driver/nvidia/gpus/{bus}/information");
                    tree.file(&path, "Model: \t\t NVIDIA Example\nIRQ:   \t\t 1")?;
                } else {
                    let place = format!("{above}/{bus}");
                    let (name, interface) = (format!("mlx5_{number}"), format!("eth{number}"));
                    tree.rdma(&name, &interface, &place, "4: ACTIVE")?;
                }
            }
        }
        tree.interface("lo", None, "unknown", -1)?;
        tree.interface("docker0", None, "up", -1)?;
        tree.file("commands/nvidia-smi-topo-m.txt", EIGHT_GPUS)?;
        Ok(tree)
    }
}

impl Drop for MachineTree {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

/// What `nvidia-smi topo -m` would print on [`MachineTree::eight_gpus`].
pub const EIGHT_GPUS: &str = "\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tNIC0\tNIC1\tNIC2\tNIC3\tNIC4\tNIC5\tNIC6\tNIC7\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t0-31,64-95\t0\t\tN/A
GPU1\tPIX\t X \tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t0-31,64-95\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tPIX\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\t0-31,64-95\t0\t\tN/A
GPU3\tNODE\tNODE\tPIX\t X \tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\t0-31,64-95\t0\t\tN/A
GPU4\tSYS\tSYS\tSYS\tSYS\t X \tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tNODE\tNODE\t32-63,96-127\t1\t\tN/A
GPU5\tSYS\tSYS\tSYS\tSYS\tPIX\t X \tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tNODE\tNODE\t32-63,96-127\t1\t\tN/A
GPU6\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\t X \tPIX\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\tPIX\t32-63,96-127\t1\t\tN/A
GPU7\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\t X \tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\tPIX\t32-63,96-127\t1\t\tN/A
NIC0\tPIX\tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t X \tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS
NIC1\tPIX\tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\tPIX\t X \tNODE\tNODE\tSYS\tSYS\tSYS\tSYS
NIC2\tNODE\tNODE\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\t X \tPIX\tSYS\tSYS\tSYS\tSYS
NIC3\tNODE\tNODE\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\t X \tSYS\tSYS\tSYS\tSYS
NIC4\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t X \tPIX\tNODE\tNODE
NIC5\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\tPIX\t X \tNODE\tNODE
NIC6\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\t X \tPIX
NIC7\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\t X

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
  NIC2: mlx5_2
  NIC3: mlx5_3
  NIC4: mlx5_4
  NIC5: mlx5_5
  NIC6: mlx5_6
  NIC7: mlx5_7
";
