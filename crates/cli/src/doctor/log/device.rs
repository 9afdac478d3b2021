//! Lines with numbers to read: completion errors of network cards, Xids of GPUs, SXids of NVSwitches, links
//! that flap.
//!
//! *Invariant*: one entry for each status, Xid and SXid number and interface, each with a bounded list of names.

use std::collections::{BTreeMap, BTreeSet};

use memchr::memmem;

use super::nccl::{Parts, number_after};
use super::sight::{Place, Sight, Tally};

/// Names kept with one entry.
const NAMES: usize = 16;
/// Numbers of Xids, and of SXids, kept apart.
const XIDS: usize = 64;
/// Xids of NVLink whose line says whether it was fatal: `149, NETIR_LINK_EVT  Fatal   XC0 …`.
pub(crate) const GRADED: std::ops::RangeInclusive<u32> = 144..=150;

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
            GRADED.contains(&number) && memmem::find(said, b" Fatal ").is_some()
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

/// How much a status or an Xid weighs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Weight {
    /// The device, or the way to it, failed.
    Fails,
    /// A fault of the program, or one that was contained: the device goes on.
    Warns,
    /// It follows from another error, or announces one.
    Follows,
}

/// What a status or an Xid means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meaning {
    pub(crate) code: u32,
    pub(crate) name: &'static str,
    pub(crate) weight: Weight,
    pub(crate) cause: &'static str,
    pub(crate) fix: &'static str,
}

const fn meaning(
    code: u32,
    name: &'static str,
    weight: Weight,
    cause: &'static str,
    fix: &'static str,
) -> Meaning {
    Meaning { code, name, weight, cause, fix }
}

const BUFFERS: &str = "look for a mismatch of counts or versions between the two ranks; with GPUDirect check \
    ACS, IOMMU and relaxed ordering (NCCL_IB_PCI_RELAXED_ORDERING=0 to try).";
const PEER_LOG: &str = "look in the peer's log for what came first.";

/// Statuses of completions, `ibv_wc_status`.
pub(crate) const STATUSES: &[Meaning] = &[
    meaning(
        1,
        "local length error",
        Weight::Fails,
        "A message was longer than the buffer for it, or than the path's MTU \
        allows.",
        "check that both ends run the same NCCL and the same MTU.",
    ),
    meaning(
        2,
        "local QP operation error",
        Weight::Fails,
        "The card refused the request as malformed.",
        BUFFERS,
    ),
    meaning(
        4,
        "local protection error",
        Weight::Fails,
        "The card was not allowed to reach local memory: a registration \
        that is gone, or PCIe access control (ACS) between GPU and NIC.",
        "switch ACS redirection off above GPU and NIC (setpci, BIOS); check nvidia_peermem.",
    ),
    meaning(
        5,
        "flushed",
        Weight::Follows,
        "The queue was already in error: this follows from an earlier error on the \
        same connection.",
        "find the first error on this connection, here or at the peer.",
    ),
    meaning(
        6,
        "memory window bind error",
        Weight::Fails,
        "A memory window could not be bound.",
        BUFFERS,
    ),
    meaning(
        7,
        "bad response",
        Weight::Fails,
        "The peer answered with something unexpected.",
        PEER_LOG,
    ),
    meaning(
        8,
        "local access error",
        Weight::Fails,
        "The card may not write where the peer's data should go.",
        BUFFERS,
    ),
    meaning(
        9,
        "remote invalid request",
        Weight::Fails,
        "The peer's card refused the request: it is longer than the \
        buffer there, or the two ends disagree.",
        BUFFERS,
    ),
    meaning(
        10,
        "remote access error",
        Weight::Fails,
        "The peer's card may not reach the memory that was named to us: a \
        registration that is gone, ACS or IOMMU between its GPU and NIC, or different calls on the two ranks.",
        BUFFERS,
    ),
    meaning(
        11,
        "remote operation error",
        Weight::Fails,
        "The peer's card failed while it carried out the request.",
        "look at the peer's card: dmesg, firmware, PCIe errors.",
    ),
    meaning(
        12,
        "no answer, retries exhausted",
        Weight::Fails,
        "The peer's card did not acknowledge: 4.096 µs × \
        2^NCCL_IB_TIMEOUT × NCCL_IB_RETRY_CNT, 30 s by default. Within the first minute and on all hosts it is \
        configuration (GID, MTU, PFC, ACL on the switch); after hours and towards one peer it is a link that went \
        down or a peer that died.",
        "name the card and the peer, then look at both ports: link_downed, symbol errors, dmesg \"Link down\"; on \
         RoCE also the GID index, MTU and PFC along the path. NCCL_IB_TIMEOUT=22 (2 minutes) rides over short flaps.",
    ),
    meaning(
        13,
        "receiver not ready, retries exhausted",
        Weight::Fails,
        "The peer had no receive posted for too long: its \
        process is stuck or its proxy thread gets no processor.",
        "look at the peer: is it alive, is its CPU over-committed (cores per rank, affinity)?",
    ),
    meaning(
        19,
        "fatal",
        Weight::Fails,
        "The card failed.",
        "look at dmesg and firmware of this host's card.",
    ),
    meaning(20, "response timeout", Weight::Fails, "The peer's card did not answer.", PEER_LOG),
    meaning(
        21,
        "general error",
        Weight::Fails,
        "The card reports an error without a name.",
        "look at the vendor error \
        and the card's firmware.",
    ),
];

const NVLINK: &str =
    "A link between GPU and NVSwitch reported an error; the line itself says whether it was fatal.";
const NVLINK_FIX: &str = "after a fatal one reset the GPUs; if it comes back look at the fabric manager's log for \
    the switch and port.";

/// Xids that matter to a job. Those the driver may call fatal or not in the line itself weigh less here.
pub(crate) const XIDS_KNOWN: &[Meaning] = &[
    meaning(
        13,
        "kernel exception",
        Weight::Warns,
        "A kernel of the program did something illegal.",
        "run the program \
        under compute-sanitizer; if several programs show it on one GPU, drain it.",
    ),
    meaning(
        31,
        "memory page fault",
        Weight::Warns,
        "A kernel touched an address that is not mapped: mostly a fault of \
        the program.",
        "run the program under compute-sanitizer.",
    ),
    meaning(
        43,
        "stopped by a program's fault",
        Weight::Follows,
        "The GPU was reset after a fault of the program.",
        "find the \
        Xid before it.",
    ),
    meaning(
        45,
        "clean-up after another error",
        Weight::Follows,
        "The driver ended a program's work after an earlier error \
        or a kill.",
        "find the Xid before it.",
    ),
    meaning(
        48,
        "double-bit memory error",
        Weight::Fails,
        "GPU memory is broken.",
        "drain the host, reset the GPU; replace \
        it if the error returns.",
    ),
    meaning(
        62,
        "internal halt",
        Weight::Fails,
        "The GPU's own processor halted.",
        "reset the GPU; replace it if it returns.",
    ),
    meaning(
        63,
        "row remapped",
        Weight::Follows,
        "A bad row of memory was replaced; this takes effect with the next reset.",
        "reset the GPU when the job is over.",
    ),
    meaning(
        64,
        "row remapping failed",
        Weight::Fails,
        "A bad row of memory could not be replaced.",
        "replace the GPU.",
    ),
    meaning(
        74,
        "NVLink error",
        Weight::Fails,
        "A link between GPUs, or to a switch, fails.",
        "reset the GPUs; check the \
        seating of board or bridge; nvidia-smi nvlink -e shows which link.",
    ),
    meaning(
        79,
        "fallen off the bus",
        Weight::Fails,
        "The GPU does not answer on PCIe any more: power, heat, seating or \
        board.",
        "drain the host, power-cycle it, look at the system's event log.",
    ),
    meaning(
        92,
        "many single-bit errors",
        Weight::Follows,
        "Memory errors are corrected, but often.",
        "reset the GPU soon.",
    ),
    meaning(
        94,
        "contained memory error",
        Weight::Warns,
        "A memory error was contained: the program that met it is lost, \
        others are not.",
        "restart the job; reset the GPU when idle.",
    ),
    meaning(
        95,
        "uncontained memory error",
        Weight::Fails,
        "A memory error was not contained: all programs of this GPU are \
        lost.",
        "drain the host and reset the GPU.",
    ),
    meaning(
        109,
        "context switch timeout",
        Weight::Fails,
        "A kernel did not end in time.",
        "look for a program that hangs \
        on this GPU; update the driver.",
    ),
    meaning(
        119,
        "GSP timeout",
        Weight::Fails,
        "The GPU's system processor does not answer: every call to this GPU hangs \
        for seconds and the ranks on it fall behind or die.",
        "drain the host and reset the GPU (or reboot); update the driver; \
         NVreg_EnableGpuFirmware=0 works around it on some.",
    ),
    meaning(
        120,
        "GSP error",
        Weight::Fails,
        "The GPU's system processor failed.",
        "reset the GPU; update the driver.",
    ),
    meaning(
        140,
        "uncorrected memory error",
        Weight::Fails,
        "GPU memory met an error that could not be corrected.",
        "drain the host and reset the GPU; replace it if the error returns.",
    ),
    meaning(145, "NVLink error", Weight::Warns, NVLINK, NVLINK_FIX),
    meaning(149, "NVLink error", Weight::Warns, NVLINK, NVLINK_FIX),
];

/// The meaning of a code.
pub(crate) fn known(table: &'static [Meaning], code: u32) -> Option<&'static Meaning> {
    table.iter().find(|meaning| meaning.code == code)
}
