//! The PCI bus: every device, what it hangs on, and how its link runs.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::Root;
use super::gpu::GpuMaker;
use crate::plan::topology::bus::{BusId, tenths_of_gt};

/// Where the kernel lists the devices.
const DEVICES: &str = "/sys/bus/pci/devices";

/// One device on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PciDevice {
    /// Where it is.
    pub bus: BusId,
    /// Class, subclass and interface: 0x030200 is a GPU without display.
    pub class: u32,
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Vendor of the board.
    pub subsystem_vendor: u16,
    /// The board.
    pub subsystem_device: u16,
    /// Its driver, where one is bound.
    pub driver: Option<String>,
    /// Its NUMA node; -1 where the firmware does not say.
    pub numa: i64,
    /// The bridges above it, the nearest first.
    pub above: Vec<BusId>,
    /// The host bridge at the top: `pci0000:5d`.
    pub host_bridge: Option<String>,
    /// Speed now.
    pub current_speed: Option<String>,
    /// Lanes now.
    pub current_width: Option<u32>,
    /// The device's own highest speed.
    pub max_speed: Option<String>,
    /// The device's own number of lanes.
    pub max_width: Option<u32>,
    /// Virtual functions it has, and could have, where it can have any.
    pub virtual_functions: Option<(u32, u32)>,
    /// The device it is a virtual function of.
    pub physical_function: Option<BusId>,
}

impl PciDevice {
    /// Whether it is a GPU of a maker whose GPUs compute.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.may_compute() && [0x10de, 0x1002].contains(&self.vendor)
    }

    /// Whether it is of a class that GPUs have: displays (which a BMC has too) and processing accelerators
    /// (Instinct).
    fn may_compute(&self) -> bool {
        [0x03, 0x12].contains(&(self.class >> 16))
    }

    /// Who makes it, where it is a GPU.
    #[must_use]
    pub fn gpu_maker(&self) -> Option<GpuMaker> {
        let maker = if self.vendor == 0x10de { GpuMaker::Nvidia } else { GpuMaker::Amd };
        self.is_gpu().then_some(maker)
    }

    /// Whether it is a network controller.
    #[must_use]
    pub fn is_nic(&self) -> bool {
        self.class >> 16 == 0x02
    }

    /// Whether it is a network controller that its maker builds for RDMA: Mellanox/NVIDIA, EFA.
    #[must_use]
    pub fn is_rdma_nic(&self) -> bool {
        let efa = self.vendor == 0x1d0f && self.device >> 4 == 0xefa;
        self.is_nic() && (self.vendor == 0x15b3 || efa)
    }

    /// Whether it is an NVSwitch.
    #[must_use]
    pub fn is_nvswitch(&self) -> bool {
        self.vendor == 0x10de && self.class >> 8 == 0x0680
    }
}

/// Functions of the PCI bus, as lspci names them: `0000:43:00.0`, or vendor and device `1da3:1060`, or all displays
/// and processing accelerators of a vendor, `1da3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciSelector {
    /// The one at that place.
    Place(BusId),
    /// All of that vendor and kind.
    Device {
        /// The vendor.
        vendor: u16,
        /// The device; where unset any display or processing accelerator.
        device: Option<u16>,
    },
}

impl PciSelector {
    /// Whether it means this function; never a bridge or a network controller.
    #[must_use]
    pub fn means(&self, function: &PciDevice) -> bool {
        let is_meant = match self {
            Self::Place(bus) => function.bus == *bus,
            Self::Device { vendor, device: Some(device) } => {
                (function.vendor, function.device) == (*vendor, *device)
            }
            Self::Device { vendor, device: None } => {
                function.vendor == *vendor && function.may_compute()
            }
        };
        is_meant && !function.is_nic() && function.class >> 16 != 0x06
    }
}

impl FromStr for PciSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(bus) = text.parse() {
            return Ok(Self::Place(bus));
        }
        let wrong = || {
            format!(
                "{text:?} names no PCI function; write 0000:43:00.0, or vendor and device 1da3:1060, or vendor 1da3"
            )
        };
        let number = |part: &str| {
            let is_hex = part.len() == 4 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex.then(|| u16::from_str_radix(part, 16).ok()).flatten().ok_or_else(wrong)
        };
        let (vendor, device) = match text.split_once(':') {
            Some((vendor, device)) => (vendor, Some(number(device)?)),
            None => (text, None),
        };
        Ok(Self::Device { vendor: number(vendor)?, device })
    }
}

impl fmt::Display for PciSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place(bus) => write!(f, "{bus}"),
            Self::Device { vendor, device: Some(device) } => write!(f, "{vendor:04x}:{device:04x}"),
            Self::Device { vendor, device: None } => write!(f, "{vendor:04x}"),
        }
    }
}

/// Every device, by bus id. What cannot be read is left out and noted.
pub(super) fn devices(root: &Root, notes: &mut Vec<String>) -> Vec<PciDevice> {
    let names = root.list(DEVICES).unwrap_or_else(|error| {
        notes.push(error.to_string());
        Vec::new()
    });
    let mut found: Vec<PciDevice> = Vec::new();
    for name in names {
        let Ok(bus) = name.parse::<BusId>() else { continue };
        match device(root, bus, &format!("{DEVICES}/{name}")) {
            Ok(device) => found.push(device),
            Err(error) => notes.push(error.to_string()),
        }
    }
    found.sort_by_key(|device| device.bus);
    found
}

fn device(root: &Root, bus: BusId, folder: &str) -> Result<PciDevice, super::RootError> {
    let place = root.link(folder)?.unwrap_or_default();
    let mut above = Vec::new();
    let mut host_bridge = None;
    for part in place.split('/') {
        if let Ok(one) = part.parse::<BusId>() {
            above.push(one);
        } else if above.is_empty() && part.starts_with("pci") {
            host_bridge = Some(part.to_owned());
        }
    }
    // The last is the device itself.
    above.pop();
    above.reverse();
    let word = |name: &str| root.read(format!("{folder}/{name}")).ok().flatten();
    let text = |name: &str| word(name).filter(|text| !text.is_empty() && !text.contains("Unknown"));
    let number = |name: &str| root.number::<u32>(format!("{folder}/{name}")).ok().flatten();
    // A device without a PCI Express link has 255 lanes, or none.
    let width = |name: &str| number(name).filter(|width| (1..=64).contains(width));
    let id = |name: &str| number(name).and_then(|id| u16::try_from(id).ok()).unwrap_or(0);
    let base = |name: &str| {
        let target = root.link(format!("{folder}/{name}")).ok().flatten()?;
        target.rsplit('/').next().map(str::to_owned)
    };
    let class = root.number::<u32>(format!("{folder}/class"))?.unwrap_or(0);
    let most = number("sriov_totalvfs").filter(|most| *most > 0);
    Ok(PciDevice {
        bus,
        class,
        vendor: id("vendor"),
        device: id("device"),
        subsystem_vendor: id("subsystem_vendor"),
        subsystem_device: id("subsystem_device"),
        driver: base("driver"),
        numa: root.number(format!("{folder}/numa_node")).ok().flatten().unwrap_or(-1),
        above,
        host_bridge,
        current_speed: text("current_link_speed"),
        current_width: width("current_link_width"),
        max_speed: text("max_link_speed"),
        max_width: width("max_link_width"),
        virtual_functions: most.map(|most| (number("sriov_numvfs").unwrap_or(0), most)),
        physical_function: base("physfn").and_then(|name| name.parse().ok()),
    })
}

/// What a link can do: the lesser of its two ends.
pub(super) fn agreed(device: &PciDevice, port: Option<&PciDevice>) -> (String, u32) {
    let slower = |one: &Option<String>, other: Option<&String>| {
        let rate = |text: Option<&String>| text.and_then(|text| tenths_of_gt(text));
        match (rate(one.as_ref()), rate(other)) {
            (Some(ours), Some(theirs)) if theirs < ours => other.cloned(),
            (None, _) => other.cloned(),
            _ => one.clone(),
        }
    };
    let speed = slower(&device.max_speed, port.and_then(|port| port.max_speed.as_ref()));
    let widths = [device.max_width, port.and_then(|port| port.max_width)];
    let width = widths.into_iter().flatten().min().unwrap_or(0);
    (speed.unwrap_or_default(), width)
}
