//! Lines with numbers to read: completion errors of network cards, Xids of GPUs, SXids of NVSwitches, links
//! that flap.
//!
//! *Invariant*: one entry for each status, Xid and SXid number and interface, each with a bounded list of names.

use std::collections::{BTreeMap, BTreeSet};

use memchr::memmem;

use super::super::codes;
use super::nccl::{Parts, number_after};
use super::sight::{Place, Sight, Tally};

/// Names kept with one entry.
const NAMES: usize = 16;
/// Numbers of Xids, and of SXids, kept apart.
const XIDS: usize = 64;

/// Words that make a line worth a look here.
pub(crate) const WORDS: &[&str] =
    &["Got completion", "Xid (", "lost carrier", "Link down", "Link is Down", "Link Down"];

/// Errors of one status (or Xid).
#[derive(Clone, Debug, Default)]
pub(crate) struct Errors {
    pub(crate) sight: Sight,
    /// Peers of completions, buses of Xids and SXids.
    pub(crate) names: BTreeSet<String>,
    /// Cards of completions.
    pub(crate) cards: BTreeSet<String>,
    pub(crate) vendor: BTreeSet<u32>,
    /// Whether the driver itself calls one of them fatal.
    pub(crate) fatal: bool,
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Devices {
    /// By `ibv_wc_status`.
    pub(crate) completions: BTreeMap<u32, Errors>,
    pub(crate) xids: BTreeMap<u32, Errors>,
    /// Those of NVSwitches.
    pub(crate) sxids: BTreeMap<u32, Errors>,
    /// By interface.
    pub(crate) flaps: Tally<String>,
    pub(crate) left_out: u64,
}

impl Devices {
    pub(crate) fn new() -> Self {
        Self {
            completions: BTreeMap::new(),
            xids: BTreeMap::new(),
            sxids: BTreeMap::new(),
            flaps: Tally::of(1024),
            left_out: 0,
        }
    }

    /// Reads a line that holds one of [`WORDS`]; whether it was one of ours.
    pub(crate) fn read(&mut self, line: &[u8], parts: Option<&Parts<'_>>, place: Place) -> bool {
        let host = parts.and_then(Parts::host);
        self.completion(line, host, place) || self.xid(line, place) || self.flap(line, place)
    }

    /// `Got completion from peer 10.0.0.2<4> with status=IBV_WC_RETRY_EXC_ERR(12) … vendor_err=129 … hca mlx5_0`,
    /// `… with status=12 opcode=1 len=0 vendor err 129 (Send) …`, `… with error 12, opcode 1, …`.
    fn completion(&mut self, line: &[u8], host: Option<&str>, place: Place) -> bool {
        if memmem::find(line, b"Got completion").is_none() {
            return false;
        }
        let named = memmem::find(line, b"status=IBV_WC_").and_then(|at| {
            let open = at + line[at..].iter().take(64).position(|byte| *byte == b'(')?;
            number_after(&line[open..], "(")
        });
        let status = named
            .or_else(|| number_after(line, "status="))
            .or_else(|| number_after(line, "with error "));
        let Some(status) = status.and_then(whole).filter(|status| *status < 32) else {
            return false;
        };
        let errors = self.completions.entry(status).or_default();
        errors.sight.add(place, line, host);
        keep(&mut errors.names, word_after(line, "from peer "));
        keep(&mut errors.cards, word_after(line, " hca "));
        let vendor =
            number_after(line, "vendor_err=").or_else(|| number_after(line, "vendor err "));
        if let Some(vendor) = vendor.and_then(whole)
            && errors.vendor.len() < NAMES
        {
            errors.vendor.insert(vendor);
        }
        true
    }

    /// `NVRM: Xid (PCI:0000:9b:00): 119, pid=…`, and of an NVSwitch
    /// `nvidia-nvswitch0: SXid (PCI:0000:a1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up`.
    fn xid(&mut self, line: &[u8], place: Place) -> bool {
        let Some(at) = memmem::find(line, b"Xid (") else { return false };
        let of_switch = at > 0 && line[at - 1] == b'S';
        let rest = &line[at + 5..];
        let Some(close) = memmem::find(rest, b"): ") else { return false };
        let number = number_after(&rest[close..], "): ").and_then(whole);
        let Some(number) = number.filter(|number| *number < 100_000) else { return false };
        let said =
            memmem::find(&rest[close..], b",").map_or(&[][..], |comma| &rest[close + comma..]);
        let fatal = if of_switch {
            // Two more lines belong to each event; they tell nothing of their own.
            if said.starts_with(b", Severity ") || said.starts_with(b", Data {") {
                return true;
            }
            said.starts_with(b", Fatal")
        } else {
            codes::is_called_fatal(number, said)
        };
        let table = if of_switch { &mut self.sxids } else { &mut self.xids };
        if table.len() >= XIDS && !table.contains_key(&number) {
            self.left_out += 1;
            return true;
        }
        let errors = table.entry(number).or_default();
        errors.sight.add(place, line, None);
        errors.fatal |= fatal;
        let bus = String::from_utf8_lossy(&rest[..close.min(40)]);
        keep(&mut errors.names, bus.trim_start_matches("PCI:"));
        true
    }

    /// `ib6: lost carrier`, `mlx5_core 0000:3b:00.0 ens1: Link down`.
    fn flap(&mut self, line: &[u8], place: Place) -> bool {
        let marks: [&[u8]; 4] =
            [b": lost carrier", b": Link down", b": Link Down", b" Link is Down"];
        let Some(at) = marks.iter().find_map(|mark| memmem::find(line, mark)) else { return false };
        let before = &line[..at];
        let start = before.iter().rposition(|byte| *byte == b' ').map_or(0, |space| space + 1);
        let name = String::from_utf8_lossy(&before[start..]).trim_end_matches(':').to_owned();
        let virtual_ones =
            ["lo", "docker", "veth", "cali", "cni", "virbr", "br-", "tap", "flannel", "lxc"];
        let is_virtual = virtual_ones.iter().any(|prefix| name.starts_with(prefix));
        if !is_virtual && !name.is_empty() && name.len() < 64 {
            self.flaps.add(name.as_str(), place, line, None);
        }
        true
    }
}

fn keep(names: &mut BTreeSet<String>, name: &str) {
    if !name.is_empty() && name.len() < 80 && names.len() < NAMES {
        names.insert(name.to_owned());
    }
}

fn word_after<'a>(line: &'a [u8], mark: &str) -> &'a str {
    let Some(at) = memmem::find(line, mark.as_bytes()) else { return "" };
    let rest = &line[at + mark.len()..];
    let end = rest.iter().position(|b| b.is_ascii_whitespace() || *b == b'<').unwrap_or(rest.len());
    std::str::from_utf8(&rest[..end]).unwrap_or("").trim_end_matches([',', ')', '.'])
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded just before")]
fn whole(number: f64) -> Option<u32> {
    (0.0..=1e9).contains(&number).then_some(number as u32)
}
