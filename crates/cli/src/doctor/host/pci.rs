//! PCI functions: which count, their links, and what their configuration space says.
//!
//! *Invariant*: a configuration space is walked at most once around, whatever its pointers say.

use std::collections::BTreeMap;

use ringway::topo::{GpuMaker, PciDevice};
use ringway_plan::topology::bus::BusId;

use super::{Host, lspci};

const DEVICES: &str = "/sys/bus/pci/devices";

/// The part of a configuration space that matters here.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Config {
    /// Relaxed ordering may be used.
    pub(crate) relaxed: bool,
    /// Bytes of payload in one packet.
    pub(crate) payload: u32,
    /// Bytes asked for by one read.
    pub(crate) read_request: u32,
    /// Access control services, where the function has them.
    pub(crate) acs: Option<u16>,
    /// Address translation services: whether on, where the function has them.
    pub(crate) ats: Option<bool>,
}

impl Config {
    /// Reads a configuration space; nothing when its capabilities are not there.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let two = bytes.get(at..at + 2)?;
            Some(u16::from_le_bytes([two[0], two[1]]))
        };
        let mut at = usize::from(*bytes.get(0x34)?) & 0xfc;
        let mut control = None;
        for _ in 0..48 {
            if at < 0x40 {
                break;
            }
            if *bytes.get(at)? == 0x10 {
                control = word(at + 8);
                break;
            }
            at = usize::from(*bytes.get(at + 1)?) & 0xfc;
        }
        let control = control?;
        let size = |shift: u16| 128_u32 << u32::from(control >> shift & 7).min(5);
        let mut found = Self {
            relaxed: control & 0x10 != 0,
            payload: size(5),
            read_request: size(12),
            acs: None,
            ats: None,
        };
        let mut at = 0x100;
        for _ in 0..96 {
            let (Some(id), Some(next)) = (word(at), word(at + 2)) else { break };
            match id {
                0 | 0xffff => break,
                0x000d => found.acs = word(at + 6),
                0x000f => found.ats = word(at + 6).map(|control| control & 0x8000 != 0),
                _ => {}
            }
            at = usize::from(next >> 4);
            if at < 0x100 {
                break;
            }
        }
        Some(found)
    }
}

/// GB/s that a PCIe link carries at the most: speed in GT/s, lanes. NCCL counts less.
pub(crate) fn link_gigabytes(speed: &str, width: u32) -> Option<f64> {
    let speed: f64 = speed.split_whitespace().next()?.parse().ok()?;
    // Encoding (8/10 up to 5 GT/s, then 128/130) and packet headers leave about this share.
    let share = if speed < 8.0 { 0.8 } else { 0.985 } * 0.93;
    Some(speed / 8.0 * f64::from(width.min(64)) * share)
}

/// Mellanox's ids of virtual functions, ConnectX-4 and later: in a virtual machine nothing else tells.
const VIRTUAL_FUNCTIONS: &[u16] = &[0x1014, 0x1016, 0x1018, 0x101a, 0x101c, 0x101e];

/// Whether it is a virtual function: part of a card that someone else owns.
pub(crate) fn is_virtual_function(pci: &PciDevice) -> bool {
    let by_id = pci.vendor == 0x15b3 && VIRTUAL_FUNCTIONS.contains(&pci.device);
    pci.physical_function.is_some() || by_id
}

/// Whether it is Amazon's Elastic Fabric Adapter.
pub(crate) fn is_efa(pci: &PciDevice) -> bool {
    pci.vendor == 0x1d0f || pci.driver.as_deref() == Some("efa")
}

/// Which speed and width of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Which {
    /// What it has.
    Current,
    /// What it could have.
    Max,
}

impl Host {
    /// All PCI functions: those of sysfs, or of lspci in a tree with nothing but its output.
    pub(crate) fn pci(&self) -> &[PciDevice] {
        let found = &self.machine().pci;
        if !found.is_empty() {
            return found;
        }
        self.pci.get_or_init(|| self.lspci().iter().map(|(bus, device)| device.pci(*bus)).collect())
    }

    /// A function by its place.
    pub(crate) fn pci_at(&self, bus: BusId) -> Option<&PciDevice> {
        self.pci().iter().find(|pci| pci.bus == bus)
    }

    /// Its GPUs.
    pub(crate) fn gpus(&self) -> Vec<&PciDevice> {
        let whole = self.pci().iter().filter(|pci| pci.physical_function.is_none());
        whole.filter(|pci| pci.is_gpu() && self.computes(pci)).collect()
    }

    /// Whether a GPU is for computing: the display of an AMD processor is not.
    fn computes(&self, pci: &PciDevice) -> bool {
        let in_kfd =
            || self.machine().gpus.iter().any(|gpu| gpu.bus == pci.bus && gpu.gcn.is_some());
        match (pci.gpu_maker(), pci.class >> 8) {
            (Some(GpuMaker::Amd), 0x1200 | 0x0302) => true,
            (Some(GpuMaker::Amd), 0x0380) => in_kfd(),
            (Some(GpuMaker::Amd), _) => false,
            _ => true,
        }
    }

    /// RDMA devices whose NIC uses the kernel's ways to reach GPU memory: all but EFA, which has its own.
    pub(crate) fn has_peer_hca(&self) -> bool {
        self.hcas().iter().any(|hca| !hca.bus.and_then(|bus| self.pci_at(bus)).is_some_and(is_efa))
    }

    /// Whether it has a GPU of this maker.
    pub(crate) fn has_gpu(&self, maker: GpuMaker) -> bool {
        self.gpus().iter().any(|gpu| gpu.gpu_maker() == Some(maker))
    }

    /// Functions that carry the traffic of collectives over a network: those with an RDMA device; without
    /// any, all network controllers with a cable.
    pub(crate) fn rails(&self) -> Vec<&PciDevice> {
        let mut rails: Vec<&PciDevice> =
            self.hcas().iter().filter_map(|hca| self.pci_at(hca.bus?)).collect();
        if rails.is_empty() {
            let wired = |pci: &&PciDevice| [0x0200, 0x0207].contains(&(pci.class >> 8));
            rails = self.pci().iter().filter(wired).collect();
        }
        rails
    }

    /// Rails whose configuration space is the card's own: no virtual functions, and no EFA.
    pub(crate) fn whole_rails(&self) -> Vec<&PciDevice> {
        let mut rails = self.rails();
        rails.retain(|pci| !is_virtual_function(pci) && !is_efa(pci));
        rails
    }

    /// A file of a function.
    pub(crate) fn pci_text(&self, bus: BusId, name: &str) -> Option<String> {
        self.text(&format!("{DEVICES}/{bus}/{name}"))
    }

    /// Speed and lanes of a function's link.
    pub(crate) fn link_of(&self, bus: BusId, which: Which) -> Option<(String, u32)> {
        let known = |device: &PciDevice| match which {
            Which::Current => device.current_speed.clone().zip(device.current_width),
            Which::Max => device.max_speed.clone().zip(device.max_width),
        };
        let from_files = self.pci_at(bus).and_then(known);
        from_files.or_else(|| known(&self.lspci().get(&bus)?.pci(bus)))
    }

    /// What the configuration space says, or why that is not known.
    pub(crate) fn config(&self, bus: BusId) -> Result<Config, String> {
        if let Some(known) = self.configs.borrow().get(&bus) {
            return known.clone();
        }
        let found = self.read_config(bus);
        self.configs.borrow_mut().insert(bus, found.clone());
        found
    }

    fn read_config(&self, bus: BusId) -> Result<Config, String> {
        let path = format!("{DEVICES}/{bus}/config");
        let found = match self.config_bytes(&path) {
            Ok(Some(bytes)) if bytes.len() <= 64 => {
                self.note_denied(&format!("{DEVICES}/*/config beyond 64 bytes"));
                Err(format!("{path} shows 64 bytes to this user; root sees all"))
            }
            Ok(Some(bytes)) => {
                Config::parse(&bytes).ok_or_else(|| format!("{path} has no PCI Express capability"))
            }
            Ok(None) => Err(format!("{path} is not there")),
            Err(error) => Err(error.to_string()),
        };
        found.or_else(|why| self.lspci().get(&bus).and_then(|device| device.config).ok_or(why))
    }

    fn lspci(&self) -> &BTreeMap<BusId, lspci::Device> {
        self.lspci.get_or_init(|| lspci::parse(&self.output("lspci-vvv").unwrap_or_default()))
    }
}
