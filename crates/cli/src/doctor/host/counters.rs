//! Counters printed by perfquery, for trees that hold its output.
//!
//! *Invariant*: any text gives a list; what is no counter is left out.

use std::collections::BTreeMap;

/// Counters of one port by their names in sysfs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counters(pub(crate) BTreeMap<String, u64>);

/// perfquery's names and those of the kernel.
const NAMES: &[(&str, &str)] = &[
    ("SymbolErrorCounter", "symbol_error"),
    ("LinkErrorRecoveryCounter", "link_error_recovery"),
    ("LinkDownedCounter", "link_downed"),
    ("PortRcvErrors", "port_rcv_errors"),
    ("PortRcvRemotePhysicalErrors", "port_rcv_remote_physical_errors"),
    ("PortXmitDiscards", "port_xmit_discards"),
    ("PortXmitData", "port_xmit_data"),
    ("PortXmitWait", "port_xmit_wait"),
];

impl Counters {
    /// Reads lines `Name:.....number`.
    pub(crate) fn parse(text: &str) -> Self {
        let mut found = BTreeMap::new();
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            let known = NAMES.iter().find(|(theirs, _)| *theirs == name.trim());
            if let (Some((_, ours)), Ok(value)) = (known, value.trim_matches(['.', ' ']).parse()) {
                found.insert((*ours).to_owned(), value);
            }
        }
        Self(found)
    }
}
