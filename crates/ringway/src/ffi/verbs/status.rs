//! What completions say, in words.
//!
//! *Invariant:* every status has a name, a text and a likely cause; one that is not known says its number.

use std::ffi::c_int;
use std::fmt;

/// `enum ibv_wc_status`: how a work request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Status(pub(crate) c_int);

struct Row(&'static str, &'static str, &'static str);

/// Name, text, and what it mostly means where ranks talk over reliable connections.
const ROWS: [Row; 24] = [
    Row("SUCCESS", "success", ""),
    Row("LOC_LEN_ERR", "local length error", "a message was longer than the receive posted for it"),
    Row(
        "LOC_QP_OP_ERR",
        "local QP operation error",
        "the adapter could not carry the request out: the port's link is down, or the request is not one for this queue pair",
    ),
    Row("LOC_EEC_OP_ERR", "local EE context operation error", "not used by reliable connections"),
    Row("LOC_PROT_ERR", "local protection error", "the local memory is not registered any more"),
    Row(
        "WR_FLUSH_ERR",
        "work request flushed",
        "the queue pair had failed before: look at the first completion that failed, here and at the peer",
    ),
    Row("MW_BIND_ERR", "memory window bind error", "not used here"),
    Row("BAD_RESP_ERR", "bad response", "the peer's adapter answered what was not asked: firmware"),
    Row(
        "LOC_ACCESS_ERR",
        "local access error",
        "the local memory was registered without this right",
    ),
    Row(
        "REM_INV_REQ_ERR",
        "remote invalid request",
        "the peer's adapter refused the request: an operation it does not do, or a message longer than its receive",
    ),
    Row(
        "REM_ACCESS_ERR",
        "remote access error",
        "the peer's memory is not registered at that address and key, or the peer has gone",
    ),
    Row("REM_OP_ERR", "remote operation error", "the peer's adapter failed: look at its log"),
    Row(
        "RETRY_EXC_ERR",
        "transport retry counter exceeded",
        "the peer did not answer: it died, or the path is broken (link, switch, GID, VLAN, MTU, firewall on UDP 4791) or loses much; see NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT",
    ),
    Row(
        "RNR_RETRY_EXC_ERR",
        "receiver not ready, retries exceeded",
        "the peer had no receive posted: it is stuck or much too slow",
    ),
    Row("LOC_RDD_VIOL_ERR", "local RDD violation", "not used by reliable connections"),
    Row("REM_INV_RD_REQ_ERR", "remote invalid RD request", "not used by reliable connections"),
    Row(
        "REM_ABORT_ERR",
        "operation aborted by the peer",
        "the peer's adapter gave up: look at its log",
    ),
    Row("INV_EECN_ERR", "invalid EE context number", "not used by reliable connections"),
    Row("INV_EEC_STATE_ERR", "invalid EE context state", "not used by reliable connections"),
    Row("FATAL_ERR", "fatal error", "the adapter failed: look at the kernel's log"),
    Row("RESP_TIMEOUT_ERR", "response timeout", "the peer's adapter did not answer in time"),
    Row("GENERAL_ERR", "general error", "the adapter's vendor code says more"),
    Row("TM_ERR", "tag matching error", "not used here"),
    Row("TM_RNDV_INCOMPLETE", "tag matching rendezvous incomplete", "not used here"),
];

impl Status {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const FLUSHED: Self = Self(5);
    pub(crate) const REMOTE_ACCESS: Self = Self(10);
    pub(crate) const RETRIES_EXCEEDED: Self = Self(12);
    pub(crate) const RECEIVER_NOT_READY: Self = Self(13);

    fn row(self) -> Option<&'static Row> {
        usize::try_from(self.0).ok().and_then(|index| ROWS.get(index))
    }

    /// `RETRY_EXC_ERR`, without the `IBV_WC_` in front.
    pub(crate) fn name(self) -> &'static str {
        self.row().map_or("UNKNOWN", |row| row.0)
    }

    /// What it says.
    pub(crate) fn text(self) -> &'static str {
        self.row().map_or("unknown status", |row| row.1)
    }

    /// What mostly causes it; empty for success.
    pub(crate) fn cause(self) -> &'static str {
        self.row().map_or("newer than this program", |row| row.2)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IBV_WC_{} ({}, status {})", self.name(), self.text(), self.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_headers_names_and_a_cause() {
        assert_eq!(
            Status(12).to_string(),
            "IBV_WC_RETRY_EXC_ERR (transport retry counter exceeded, status 12)"
        );
        assert_eq!(Status::RETRIES_EXCEEDED.name(), "RETRY_EXC_ERR");
        assert_eq!(Status::RECEIVER_NOT_READY.name(), "RNR_RETRY_EXC_ERR");
        assert_eq!(Status::FLUSHED.name(), "WR_FLUSH_ERR");
        assert_eq!(Status::REMOTE_ACCESS.name(), "REM_ACCESS_ERR");
        assert_eq!(Status(23).name(), "TM_RNDV_INCOMPLETE");
        for code in 1..24 {
            assert!(!Status(code).cause().is_empty(), "{code}");
        }
        assert_eq!(Status(99).to_string(), "IBV_WC_UNKNOWN (unknown status, status 99)");
        assert_eq!(Status(-1).cause(), "newer than this program");
    }
}
