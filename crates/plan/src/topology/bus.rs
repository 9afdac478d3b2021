//! Places on the PCI bus, and speeds of PCI links.
//!
//! *Invariant:* a [`BusId`] printed and read again is the same; upper and lower case, short and
//! long domains are the same place.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A place on the PCI bus: `0000:0f:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusId {
    /// The domain (segment).
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device.
    pub device: u8,
    /// The function.
    pub function: u8,
}

/// A text that is no bus id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a PCI bus id such as 0000:0f:00.0")]
pub struct NotABusId;

impl FromStr for BusId {
    type Err = NotABusId;

    fn from_str(text: &str) -> Result<Self, NotABusId> {
        let hex = |part: &str, digits: usize| {
            let plain = part.bytes().all(|byte| byte.is_ascii_hexdigit());
            let fits = (1..=digits).contains(&part.len()) && plain;
            fits.then(|| u32::from_str_radix(part, 16).ok()).flatten().ok_or(NotABusId)
        };
        let byte = |part: &str| u8::try_from(hex(part, 2)?).map_err(|_| NotABusId);
        let (place, function) = text.rsplit_once('.').ok_or(NotABusId)?;
        let mut parts = place.rsplit(':');
        let device = byte(parts.next().ok_or(NotABusId)?)?;
        let bus = byte(parts.next().ok_or(NotABusId)?)?;
        let domain = parts.next().map_or(Ok(0), |domain| hex(domain, 8))?;
        let function = byte(function)?;
        if parts.next().is_some() || function > 0x0f {
            return Err(NotABusId);
        }
        Ok(Self { domain, bus, device, function })
    }
}

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    }
}

impl Serialize for BusId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Transfers per second of a PCI link, in tenths of GT/s, from the kernel's words: `16.0 GT/s
/// PCIe`, `8 GT/s`. Nothing where the text says `Unknown` or is empty.
#[must_use]
pub fn tenths_of_gt(text: &str) -> Option<u32> {
    let word = text.split_whitespace().next()?;
    let (whole, part) = word.split_once('.').unwrap_or((word, "0"));
    let tenth: u32 = part.get(..1)?.parse().ok()?;
    let tenths = whole.parse::<u32>().ok()?.checked_mul(10)?.checked_add(tenth)?;
    (tenths > 0).then_some(tenths)
}

/// GB/s that NCCL counts for a PCI link: 0.8 of the raw rate after coding, and generation 3 where
/// the speed is not known, 16 lanes where the width is not.
#[must_use]
pub fn pci_gb_per_s(speed: Option<&str>, width: Option<u32>) -> f64 {
    // Hundreds of Mbit/s a lane.
    let lane = match speed.and_then(tenths_of_gt) {
        Some(25) => 15.0,
        Some(50) => 30.0,
        Some(160) => 120.0,
        Some(320) => 240.0,
        Some(640) => 480.0,
        _ => 60.0,
    };
    let width = width.filter(|width| *width > 0).unwrap_or(16);
    f64::from(width) * lane / 80.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_read_in_all_spellings() {
        let same = ["0000:0f:00.0", "00000000:0F:00.0", "0f:00.0", "0:f:0.0"];
        for text in same {
            assert_eq!(text.parse::<BusId>().unwrap().to_string(), "0000:0f:00.0", "{text}");
        }
        assert_eq!("fffffff:ff:ff.0".parse::<BusId>().unwrap().domain, 0x0fff_ffff);
        let bad =
            ["", "0f:00", "x:0f:00.0", "0:0:0f:00.0", "0000:0f:00.10", "+1:00:00.0", "1:2:3."];
        for text in bad {
            assert!(text.parse::<BusId>().is_err(), "{text}");
        }
    }

    #[test]
    fn pci_links_have_nccls_bandwidth() {
        let rate = |speed, width| pci_gb_per_s(Some(speed), Some(width));
        assert_eq!(rate("8.0 GT/s PCIe", 16), 12.0);
        assert_eq!(rate("16 GT/s", 16), 24.0);
        assert_eq!(rate("32.0 GT/s PCIe", 16), 48.0);
        assert_eq!(rate("64.0 GT/s PCIe", 8), 48.0);
        assert_eq!(rate("2.5 GT/s PCIe", 1), 15.0 / 80.0);
        assert_eq!(rate("Unknown", 0), 12.0);
        assert_eq!(pci_gb_per_s(None, None), 12.0);
        assert_eq!(tenths_of_gt("2.5 GT/s"), Some(25));
        assert_eq!(tenths_of_gt("99999999999"), None);
    }
}
