//! PCI functions: what they are, where they sit, and what their configuration space says.
//!
//! *Invariant*: a configuration space is walked at most once around, whatever its pointers say.

use super::{Host, lspci};

const DEVICES: &str = "/sys/bus/pci/devices";

/// A PCI function.
#[derive(Clone, Debug)]
pub(crate) struct Pci {
    /// `0000:1b:00.0`.
    pub(crate) address: String,
    /// Class, subclass and interface: 0x020700.
    pub(crate) class: u32,
    /// Vendor.
    pub(crate) vendor: u32,
    /// Device.
    pub(crate) device: u32,
    /// The host bridge: `pci0000:10`; empty when unknown.
    pub(crate) bridge: String,
    /// Functions above it, from the root port down.
    pub(crate) above: Vec<String>,
    /// The driver that has it.
    pub(crate) driver: Option<String>,
    /// Its NUMA node; -1 when the firmware does not say.
    pub(crate) node: i64,
}

/// How far two functions are from each other, in nvidia-smi's words.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Distance {
    /// Below one PCIe switch.
    Pix,
    /// Over several bridges, not over the host's.
    Pxb,
    /// Over the host bridge.
    Phb,
    /// Over several host bridges of a NUMA node.
    Node,
    /// Between NUMA nodes.
    Sys,
}

impl Distance {
    /// nvidia-smi's word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }
}

impl Pci {
    /// A GPU of NVIDIA.
    pub(crate) fn is_nvidia(&self) -> bool {
        self.vendor == 0x10de && matches!(self.class >> 8, 0x0300 | 0x0302)
    }

    /// An accelerator of AMD.
    pub(crate) fn is_amd(&self) -> bool {
        self.vendor == 0x1002 && matches!(self.class >> 8, 0x0300 | 0x0302 | 0x0380 | 0x1200)
    }

    /// A GPU.
    pub(crate) fn is_gpu(&self) -> bool {
        self.is_nvidia() || self.is_amd()
    }

    /// An NVSwitch.
    pub(crate) fn is_nvswitch(&self) -> bool {
        self.vendor == 0x10de && self.class >> 8 == 0x0680
    }

    /// A network controller.
    pub(crate) fn is_nic(&self) -> bool {
        self.class >> 16 == 0x02
    }

    /// A network controller whose maker builds it for RDMA: Mellanox/NVIDIA, EFA.
    pub(crate) fn is_rdma_nic(&self) -> bool {
        self.is_nic()
            && (self.vendor == 0x15b3 || self.vendor == 0x1d0f && self.device >> 4 == 0xefa)
    }

    /// How far another is.
    pub(crate) fn distance(&self, other: &Self) -> Distance {
        let same = self.above.iter().zip(&other.above).take_while(|(a, b)| a == b).count();
        if self.bridge != other.bridge || self.bridge.is_empty() {
            return if self.node == other.node { Distance::Node } else { Distance::Sys };
        }
        match same {
            0 => Distance::Phb,
            // One port of the switch for each of the two is left.
            _ if self.above.len() - same <= 1 && other.above.len() - same <= 1 => Distance::Pix,
            _ => Distance::Pxb,
        }
    }
}

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

/// GB/s of a PCIe link, as NCCL counts: speed in GT/s, lanes.
pub(crate) fn link_gigabytes(speed: &str, width: &str) -> Option<f64> {
    let speed: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let width: u32 = width.trim().trim_start_matches('x').parse().ok()?;
    // Encoding (8/10 up to 5 GT/s, then 128/130) and packet headers leave about this share.
    let share = if speed < 8.0 { 0.8 } else { 0.985 } * 0.93;
    Some(speed / 8.0 * f64::from(width.min(64)) * share)
}

impl Host {
    /// All PCI functions.
    pub(crate) fn pci(&self) -> &[Pci] {
        self.pci.get_or_init(|| {
            let found: Vec<Pci> = self
                .list(DEVICES)
                .iter()
                .filter_map(|address| self.pci_function(address))
                .collect();
            if !found.is_empty() {
                return found;
            }
            // A tree with nothing but the output of lspci.
            let class = |device: &lspci::Device| device.class;
            self.lspci()
                .iter()
                .map(|(address, device)| Pci {
                    address: address.clone(),
                    class: class(device),
                    vendor: device.vendor,
                    device: 0,
                    bridge: String::new(),
                    above: Vec::new(),
                    driver: device.driver.clone(),
                    node: device.node.unwrap_or(-1),
                })
                .collect()
        })
    }

    fn pci_function(&self, address: &str) -> Option<Pci> {
        let hex = |name: &str| {
            self.number(&format!("{DEVICES}/{address}/{name}")).and_then(|n| u32::try_from(n).ok())
        };
        let place = self.root.link(format!("{DEVICES}/{address}")).ok().flatten()?;
        let mut parts: Vec<&str> =
            place.split('/').skip_while(|part| !part.starts_with("pci")).collect();
        parts.pop();
        Some(Pci {
            address: address.to_owned(),
            class: hex("class")?,
            vendor: hex("vendor").unwrap_or(0),
            device: hex("device").unwrap_or(0),
            bridge: parts.first().map(|part| (*part).to_owned()).unwrap_or_default(),
            above: parts.iter().skip(1).map(|part| (*part).to_owned()).collect(),
            driver: self.link_name(&format!("{DEVICES}/{address}/driver")),
            node: self.number(&format!("{DEVICES}/{address}/numa_node")).unwrap_or(-1),
        })
    }

    /// A function by its address.
    pub(crate) fn pci_at(&self, address: &str) -> Option<&Pci> {
        self.pci().iter().find(|pci| pci.address == address)
    }

    /// Its GPUs.
    pub(crate) fn gpus(&self) -> Vec<&Pci> {
        self.pci().iter().filter(|pci| pci.is_gpu()).collect()
    }

    /// Functions that carry the traffic of collectives over a network: those with an RDMA device; without
    /// any, all network controllers.
    pub(crate) fn rails(&self) -> Vec<&Pci> {
        let mut rails: Vec<&Pci> =
            self.hcas().iter().filter_map(|hca| self.pci_at(hca.pci.as_deref()?)).collect();
        if rails.is_empty() {
            rails = self.pci().iter().filter(|pci| pci.is_nic()).collect();
        }
        rails
    }

    /// A file of a function.
    pub(crate) fn pci_text(&self, address: &str, name: &str) -> Option<String> {
        self.text(&format!("{DEVICES}/{address}/{name}"))
    }

    /// Speed and width of a link, `current` or `max`, with where that was read.
    pub(crate) fn link_of(&self, address: &str, which: &str) -> Option<(String, String)> {
        let from_files = self
            .pci_text(address, &format!("{which}_link_speed"))
            .zip(self.pci_text(address, &format!("{which}_link_width")));
        from_files.or_else(|| {
            let device = self.lspci().get(address)?;
            if which == "max" { device.capable.clone() } else { device.running.clone() }
        })
    }

    /// What the configuration space says, or why that is not known.
    pub(crate) fn config(&self, address: &str) -> Result<Config, String> {
        if let Some(known) = self.configs.borrow().get(address) {
            return known.clone();
        }
        let found = self.read_config(address);
        self.configs.borrow_mut().insert(address.to_owned(), found.clone());
        found
    }

    fn read_config(&self, address: &str) -> Result<Config, String> {
        let path = format!("{DEVICES}/{address}/config");
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
        found.or_else(|why| self.lspci().get(address).and_then(|device| device.config).ok_or(why))
    }

    fn lspci(&self) -> &std::collections::BTreeMap<String, lspci::Device> {
        self.lspci.get_or_init(|| lspci::parse(&self.output("lspci-vvv").unwrap_or_default()))
    }
}
