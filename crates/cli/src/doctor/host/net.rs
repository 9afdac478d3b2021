//! Network interfaces, their subnets, and what ethtool says of them.
//!
//! *Invariant*: any text gives a value or nothing.

use std::collections::BTreeMap;

use super::Host;

const CLASS: &str = "/sys/class/net";

/// A network interface that is a device.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    /// `eth0`.
    pub(crate) name: String,
    /// The device behind it: a PCI address, `virtio0`.
    pub(crate) device: String,
    /// Bytes of a packet.
    pub(crate) mtu: Option<i64>,
    /// Mb/s; nothing for a link that is down or virtual.
    pub(crate) speed: Option<i64>,
    /// `up`.
    pub(crate) state: String,
    /// Ethernet, by its type.
    pub(crate) ethernet: bool,
}

impl Nic {
    /// It is up, as far as is known: virtual ones say `unknown`.
    pub(crate) fn is_up(&self) -> bool {
        self.state == "up" || self.state == "unknown"
    }
}

impl Host {
    /// Interfaces that are devices.
    pub(crate) fn nics(&self) -> &[Nic] {
        self.nics.get_or_init(|| {
            let mut found = Vec::new();
            for name in self.list(CLASS) {
                let file = |file: &str| format!("{CLASS}/{name}/{file}");
                let Some(device) = self.link_name(&file("device")) else { continue };
                let speed = self.number(&file("speed")).filter(|speed| *speed > 0);
                found.push(Nic {
                    device,
                    mtu: self.number(&file("mtu")),
                    speed: speed.filter(|speed| *speed < 100_000_000),
                    state: self.text(&file("operstate")).unwrap_or_default(),
                    ethernet: self.number(&file("type")) == Some(1),
                    name,
                });
            }
            found
        })
    }

    /// Interfaces of RoCE ports that carry traffic.
    pub(crate) fn roce_interfaces(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.roce_ports().iter().flat_map(|(hca, _)| hca.interfaces.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Interfaces by the IPv4 subnet that is directly on them, from the kernel's routes.
    pub(crate) fn subnets(&self) -> BTreeMap<String, Vec<String>> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in self.text("/proc/net/route").unwrap_or_default().lines().skip(1).take(4096) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [interface, target, gateway, _, _, _, _, mask, ..] = words[..] else { continue };
            if gateway == "00000000" && mask != "00000000" {
                let names = found.entry(format!("{target}/{mask}")).or_default();
                if !names.iter().any(|name| name == interface) {
                    names.push(interface.to_owned());
                }
            }
        }
        found
    }

    /// Numbers of `ethtool -S`.
    pub(crate) fn interface_counters(
        &self,
        interface: &str,
    ) -> Result<BTreeMap<String, u64>, String> {
        let text = self.output(&format!("ethtool-S-{interface}"))?;
        let number = |line: &str| {
            let (name, value) = line.trim().split_once(':')?;
            Some((name.trim().to_owned(), value.trim().parse().ok()?))
        };
        Ok(text.lines().take(1 << 16).filter_map(number).collect())
    }
}

/// The two halves of `ethtool -g` and `-l`: what could be and what is.
pub(crate) fn maximums(text: &str) -> Option<(BTreeMap<String, u64>, BTreeMap<String, u64>)> {
    let (most, now) = text.split_once("Current hardware settings:")?;
    let numbers = |part: &str| -> BTreeMap<String, u64> {
        let number = |line: &str| {
            let (name, value) = line.trim().split_once(':')?;
            Some((name.trim().to_owned(), value.trim().parse().ok()?))
        };
        part.lines().filter_map(number).collect()
    };
    Some((numbers(most), numbers(now)))
}
