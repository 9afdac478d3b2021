//! Network interfaces: which count, their subnets, and what ethtool says of them.
//!
//! *Invariant*: any text gives a value or nothing.

use std::collections::BTreeMap;

use ringway::topo::NetDevice;

use super::Host;

impl Host {
    /// Interfaces that are devices.
    pub(crate) fn nics(&self) -> Vec<&NetDevice> {
        self.machine().nets.iter().filter(|net| net.is_device()).collect()
    }

    /// Interfaces of RoCE ports that carry traffic.
    pub(crate) fn roce_interfaces(&self) -> Vec<String> {
        let ports = self.roce_ports();
        let names = ports.iter().flat_map(|port| self.interfaces_of(port.device));
        let mut names: Vec<String> = names.map(str::to_owned).collect();
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
