//! The output of `lspci -vvv`, for trees that hold it and no configuration spaces.
//!
//! *Invariant*: any text gives a map; what is not understood is left out.

use std::collections::BTreeMap;

use ringway::topo::PciDevice;
use ringway_plan::topology::bus::BusId;

use super::pci::Config;

/// What lspci says of one function.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Device {
    /// Class and subclass, shifted as sysfs has them; 0 when the name is not known here.
    class: u32,
    /// Vendor, from its name; 0 when it is not known here.
    vendor: u16,
    /// NUMA node.
    node: Option<i64>,
    /// Speed and width the link could have.
    capable: Option<(String, u32)>,
    /// Speed and width it has.
    running: Option<(String, u32)>,
    /// The part of the configuration space that is shown.
    pub(super) config: Option<Config>,
    /// The driver.
    driver: Option<String>,
}

impl Device {
    /// As discovery would describe it; where it hangs is not known.
    pub(super) fn pci(&self, bus: BusId) -> PciDevice {
        let (current_speed, current_width) = self.running.clone().unzip();
        let (max_speed, max_width) = self.capable.clone().unzip();
        PciDevice {
            bus,
            class: self.class,
            vendor: self.vendor,
            device: 0,
            subsystem_vendor: 0,
            subsystem_device: 0,
            driver: self.driver.clone(),
            numa: self.node.unwrap_or(-1),
            above: Vec::new(),
            host_bridge: None,
            current_speed,
            current_width,
            max_speed,
            max_width,
            virtual_functions: None,
            physical_function: None,
        }
    }
}

/// Names of classes, as lspci writes them, and their numbers.
const CLASSES: &[(&str, u32)] = &[
    ("Ethernet controller", 0x02_0000),
    ("Infiniband controller", 0x02_0700),
    ("Network controller", 0x02_8000),
    ("VGA compatible controller", 0x03_0000),
    ("3D controller", 0x03_0200),
    ("Display controller", 0x03_8000),
    ("Processing accelerators", 0x12_0000),
    ("PCI bridge", 0x06_0400),
    ("Bridge", 0x06_8000),
];

/// Reads all functions.
pub(super) fn parse(text: &str) -> BTreeMap<BusId, Device> {
    let mut devices = BTreeMap::new();
    let mut now: Option<(BusId, Device)> = None;
    for line in text.lines() {
        if !line.starts_with(char::is_whitespace) {
            devices.extend(now.take());
            now = heading(line);
        } else if let Some((_, device)) = &mut now {
            detail(device, line.trim());
        }
    }
    devices.extend(now);
    devices
}

/// `01:00.0 3D controller: NVIDIA Corporation …`, with a domain or not, with `[0302]` or not.
fn heading(line: &str) -> Option<(BusId, Device)> {
    let (address, rest) = line.split_once(' ')?;
    let address: BusId = address.parse().ok()?;
    let (class, name) = rest.split_once(':')?;
    let found = CLASSES.iter().find(|(word, _)| class.starts_with(word));
    let vendor = if name.contains("NVIDIA") {
        0x10de
    } else if name.contains("Mellanox") {
        0x15b3
    } else if name.contains("Advanced Micro Devices") {
        0x1002
    } else {
        0
    };
    let class = found.map_or(0, |(_, number)| *number);
    Some((address, Device { class, vendor, ..Device::default() }))
}

fn detail(device: &mut Device, line: &str) {
    if let Some(rest) = line.strip_prefix("LnkCap:") {
        device.capable = link(rest);
    } else if let Some(rest) = line.strip_prefix("LnkSta:") {
        device.running = link(rest);
    } else if let Some(rest) = line.strip_prefix("NUMA node:") {
        device.node = rest.trim().parse().ok();
    } else if let Some(rest) = line.strip_prefix("Kernel driver in use:") {
        device.driver = Some(rest.trim().to_owned());
    } else if line.starts_with("DevCtl:") {
        device.config.get_or_insert_default();
    } else if line.starts_with("RlxdOrd") {
        device.config.get_or_insert_default().relaxed = line.starts_with("RlxdOrd+");
    } else if line.starts_with("MaxPayload") {
        let config = device.config.get_or_insert_default();
        config.payload = number_after(line, "MaxPayload ").unwrap_or(0);
        config.read_request = number_after(line, "MaxReadReq ").unwrap_or(0);
    } else if let Some(rest) = line.strip_prefix("ACSCtl:") {
        let flags = ["SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd"];
        let word = flags.iter().enumerate().fold(0, |word, (bit, flag)| {
            word | u16::from(rest.contains(&format!("{flag}+"))) << bit
        });
        device.config.get_or_insert_default().acs = Some(word);
    } else if let Some(rest) = line.strip_prefix("ATSCtl:") {
        device.config.get_or_insert_default().ats = Some(rest.contains("Enable+"));
    }
}

/// `Port #0, Speed 16GT/s, Width x16 (downgraded)` as sysfs writes it.
fn link(text: &str) -> Option<(String, u32)> {
    let after = |mark: &str| {
        let rest = text.split_once(mark)?.1;
        Some(rest.split([',', ' ']).next()?.to_owned())
    };
    let speed = after("Speed ")?;
    let speed = speed.strip_suffix("GT/s")?;
    let width = after("Width x")?.parse().ok().filter(|width| (1..=64).contains(width))?;
    Some((format!("{speed} GT/s PCIe"), width))
}

fn number_after(line: &str, mark: &str) -> Option<u32> {
    line.split_once(mark)?.1.split_whitespace().next()?.parse().ok()
}
