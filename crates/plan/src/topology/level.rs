//! How far apart two devices may be to reach each other directly: NCCL's levels.
//!
//! *Invariant:* every verdict has its reason, with the setting that would change it.

use serde::Serialize;

use super::path::{PathClass, Paths};
use super::{Net, NodeIndex, Topology};

/// Classes the old numbers 0 to 5 stand for.
const OLD: [PathClass; 6] = [
    PathClass::Loc,
    PathClass::Pix,
    PathClass::Pxb,
    PathClass::Phb,
    PathClass::Sys,
    PathClass::Sys,
];

/// Reads a level as `NCCL_P2P_LEVEL` and `NCCL_NET_GDR_LEVEL` take it: a class up to `SYS`, in
/// capitals, or one of the old numbers, those past 5 as 5. NCCL ignores anything else, silently.
///
/// A number is read as C's `strtol` does with base 0: `0x2` is 2, `010` is 8, and what follows
/// the digits does not count.
#[must_use]
pub fn parse_level(text: &str) -> Option<PathClass> {
    let named = PathClass::ALL.into_iter().find(|class| class.name() == text);
    if let Some(class) = named {
        return (class <= PathClass::Sys).then_some(class);
    }
    if !text.starts_with(|letter: char| letter.is_ascii_digit()) {
        return None;
    }
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = match hex.filter(|hex| hex.starts_with(|c: char| c.is_ascii_hexdigit())) {
        Some(hex) => (hex, 16),
        None if text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    let number =
        digits.chars().map_while(|digit| digit.to_digit(radix)).fold(0_usize, |sum, digit| {
            let digit = usize::try_from(digit).unwrap_or(0);
            sum.saturating_mul(usize::try_from(radix).unwrap_or(10)).saturating_add(digit)
        });
    Some(OLD[number.min(OLD.len() - 1)])
}

/// Whether a port is a socket of TCP: NCCL numbers the ports of RDMA devices from 1. A plugin that
/// gives TCP access to GPUs says so.
pub(super) fn is_socket(net: &Net) -> bool {
    net.port == Some(0) && net.gdr != Some(true)
}

/// Whether something is done, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Whether it is.
    pub used: bool,
    /// Why, or why not.
    pub reason: String,
}

impl Verdict {
    fn yes(reason: String) -> Self {
        Self { used: true, reason }
    }

    fn no(reason: impl Into<String>) -> Self {
        Self { used: false, reason: reason.into() }
    }
}

/// The settings that decide on direct access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levels {
    /// `NCCL_P2P_LEVEL`, or `LOC` by `NCCL_P2P_DISABLE=1`.
    pub p2p: Option<PathClass>,
    /// `NCCL_NET_GDR_LEVEL`.
    pub gdr: Option<PathClass>,
    /// `NCCL_NET_GDR_READ`; NCCL decides where unset.
    pub gdr_read: Option<bool>,
    /// `NCCL_NET_GDR_C2C`.
    pub gdr_c2c: bool,
    /// Not `NCCL_PXN_DISABLE=1`.
    pub pxn: bool,
    /// `NCCL_PXN_C2C`.
    pub pxn_c2c: bool,
}

impl Default for Levels {
    fn default() -> Self {
        Self { p2p: None, gdr: None, gdr_read: None, gdr_c2c: true, pxn: true, pxn_c2c: true }
    }
}

impl Levels {
    /// The furthest GPUs that reach each other directly, and where that comes from.
    pub(super) fn p2p_level(&self, topology: &Topology) -> (PathClass, &'static str) {
        let amd = topology
            .cpus()
            .first()
            .and_then(|cpu| topology.cpu(*cpu))
            .is_some_and(|cpu| cpu.arch == "x86_64" && cpu.vendor == "AuthenticAMD");
        match self.p2p {
            Some(level) => (level, "NCCL_P2P_LEVEL"),
            None if amd && topology.gpus().len() <= 2 => (PathClass::Sys, "default on AMD CPUs"),
            None => (PathClass::Pxb, "default"),
        }
    }

    /// Whether two GPUs reach each other directly.
    #[must_use]
    pub fn p2p(
        &self,
        topology: &Topology,
        paths: &Paths,
        from: NodeIndex,
        to: NodeIndex,
    ) -> Verdict {
        let class = paths.get(from, to).class;
        let (level, source) = self.p2p_level(topology);
        if class <= level {
            Verdict::yes(format!("{class} is within {level} ({source})"))
        } else {
            let fix = "set NCCL_P2P_LEVEL to allow it";
            Verdict::no(format!("{class} is past {level} ({source}); {fix}"))
        }
    }

    /// The furthest NIC a GPU reaches directly, and where that comes from.
    #[must_use]
    pub fn gdr_level(&self) -> (PathClass, &'static str) {
        match self.gdr {
            Some(level) => (level, "NCCL_NET_GDR_LEVEL"),
            None if self.gdr_c2c => (PathClass::P2c, "default"),
            None => (PathClass::Pxb, "NCCL_NET_GDR_C2C=0"),
        }
    }

    /// The furthest NIC a GPU reaches for another (PXN).
    #[must_use]
    pub fn pxn_class(&self) -> PathClass {
        if self.pxn_c2c { PathClass::P2c } else { PathClass::Pxb }
    }

    /// Whether a NIC writes what it receives straight into a GPU's memory.
    #[must_use]
    pub fn gdr(
        &self,
        topology: &Topology,
        paths: &Paths,
        gpu: NodeIndex,
        net: NodeIndex,
    ) -> Verdict {
        let (Some(card), Some(port)) = (topology.gpu(gpu), topology.net(net)) else {
            return Verdict::no("not a GPU and a NIC");
        };
        if is_socket(port) {
            let why = "a socket (TCP), which always goes through host memory";
            return Verdict::no(format!("{} is {why}; only an RDMA NIC can do more", port.name));
        }
        if port.gdr == Some(false) {
            let fix = "load nvidia-peermem or use DMA-BUF";
            return Verdict::no(format!("{} offers no GPUDirect; {fix}", port.name));
        }
        if card.gdr == Some(false) {
            return Verdict::no(format!("the driver of GPU{} offers no GPUDirect", card.dev));
        }
        let mut path = paths.get(gpu, net);
        if let (PathClass::Pxn, Some(helper)) = (path.class, path.via) {
            path = paths.get(helper, net);
        }
        let (level, source) = self.gdr_level();
        if path.class > level {
            let fix = format!("set NCCL_NET_GDR_LEVEL={} to use it all the same", path.class);
            return Verdict::no(format!("{} is past {level} ({source}); {fix}", path.class));
        }
        let known = port.gdr.is_some() && card.gdr.is_some();
        let caveat = if known { "" } else { ", if both drivers offer it" };
        Verdict::yes(format!("{} is within {level} ({source}){caveat}", path.class))
    }

    /// Whether a NIC reads what it sends straight from a GPU's memory: older GPUs do so only
    /// where NVLink keeps the PCI links free.
    #[must_use]
    pub fn gdr_read(
        &self,
        topology: &Topology,
        paths: &Paths,
        gpu: NodeIndex,
        net: NodeIndex,
    ) -> Verdict {
        let Some(card) = topology.gpu(gpu) else { return Verdict::no("not a GPU") };
        if self.gdr_read == Some(false) {
            return Verdict::no("NCCL_NET_GDR_READ=0");
        }
        if self.gdr_read.is_none() && (1..80).contains(&card.sm) {
            let gpus = topology.gpus();
            let linked =
                |peer: &NodeIndex| *peer != gpu && paths.get(gpu, *peer).class == PathClass::Nvl;
            if gpus.len() > 1 && !gpus.iter().any(linked) {
                let why = format!("sm {} without NVLink; NCCL_NET_GDR_READ=1 forces it", card.sm);
                return Verdict::no(why);
            }
        }
        self.gdr(topology, paths, gpu, net)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_words_or_old_numbers() {
        use PathClass::{Loc, Phb, Pix, Pxb, Pxn, Sys};
        let cases = [
            ("LOC", Some(Loc)),
            ("PXN", Some(Pxn)),
            ("SYS", Some(Sys)),
            ("0", Some(Loc)),
            ("1", Some(Pix)),
            ("2", Some(Pxb)),
            ("3", Some(Phb)),
            ("4", Some(Sys)),
            ("5", Some(Sys)),
            ("99999999999999999999999", Some(Sys)),
            ("2x", Some(Pxb)),
            ("6", Some(Sys)),
            ("0x1", Some(Pix)),
            ("0X2", Some(Pxb)),
            ("0xg", Some(Loc)),
            ("010", Some(Sys)),
            ("02", Some(Pxb)),
            ("08", Some(Loc)),
            ("phb", None),
            ("pix", None),
            ("NET", None),
            ("DIS", None),
            ("-1", None),
            ("", None),
        ];
        for (text, level) in cases {
            assert_eq!(parse_level(text), level, "{text}");
        }
    }
}
