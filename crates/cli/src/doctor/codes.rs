//! What numbers of devices mean: statuses of network cards' completions, Xids of GPUs. The one table for logs of
//! jobs and for the checks of a machine.

use memchr::memmem;

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
pub(crate) const XIDS: &[Meaning] = &[
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
    meaning(
        136,
        "link training failed",
        Weight::Fails,
        "A link between GPUs, or to a switch, did not come up.",
        "reset the GPUs; restart the fabric manager; check the seating of the board.",
    ),
    meaning(
        143,
        "GPU does not start",
        Weight::Fails,
        "The GPU did not come up.",
        "power-cycle the host; replace the GPU if it stays.",
    ),
    meaning(145, "NVLink error", Weight::Warns, NVLINK, NVLINK_FIX),
    meaning(149, "NVLink error", Weight::Warns, NVLINK, NVLINK_FIX),
];

/// Xids of NVLink whose line says whether it was fatal: `149, NETIR_LINK_EVT  Fatal   XC0 …`.
const GRADED: std::ops::RangeInclusive<u32> = 144..=150;

/// Whether what stands behind the number of an Xid calls it fatal.
pub(crate) fn is_called_fatal(xid: u32, said: &[u8]) -> bool {
    GRADED.contains(&xid) && memmem::find(said, b" Fatal ").is_some()
}

/// How much an Xid weighs, where it is known whether its lines call it fatal. One that is not in the table is worth
/// a look, and no more is known of it.
pub(crate) fn xid_weight(xid: u32, called_fatal: bool) -> Weight {
    match known(XIDS, xid) {
        _ if called_fatal => Weight::Fails,
        Some(meaning) => meaning.weight,
        None => Weight::Warns,
    }
}

/// The meaning of a code.
pub(crate) fn known(table: &'static [Meaning], code: u32) -> Option<&'static Meaning> {
    table.iter().find(|meaning| meaning.code == code)
}
