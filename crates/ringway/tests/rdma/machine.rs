//! The machine these tests need: two rails, each with a device at either end (rxea0 and rxeb0, rxea1 and
//! rxeb1), and the tool `rail` for what can befall one.

use std::io::Write as _;
use std::process::Command;

use crate::harness::settings;

/// Whether this is the machine; if not, says so.
pub(crate) fn is_here() -> bool {
    let here = std::env::var_os("RINGWAY_TEST_RDMA").is_some();
    if !here {
        // The real standard error, which the test harness does not keep back.
        let _closed =
            writeln!(std::io::stderr(), "SKIPPED rdma: needs the RDMA machine; run .ci/rdma");
    }
    here
}

/// Whether this is the machine, which then must be the one with two sockets.
pub(crate) fn has_sockets() -> bool {
    let kind = std::env::var("RDMA_VM_PCI").unwrap_or_default();
    let here = is_here();
    assert!(!here || kind == "numa", "wants the machine of RDMA_VM_PCI=numa, not {kind:?}");
    here
}

/// `rail cut 1`, `rail restore 1`, `rail impair 1 loss 1%`, `rail clear 1`.
pub(crate) fn rail(words: &str) {
    let status = Command::new("rail").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "rail {words}: {status}");
}

/// Bytes that an end of a rail has sent: `ra0`, `rb1`.
pub(crate) fn sent(interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics/tx_bytes");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// The library's log, from here on.
pub(crate) struct Log {
    from: usize,
}

const LOG: &str = "/tmp/rdma-suite.log";

impl Log {
    pub(crate) fn begin() -> Self {
        let config = settings(&[
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_DEBUG_SUBSYS", "ALL"),
            ("NCCL_DEBUG_FILE", LOG),
        ]);
        ringway::log::install(&config);
        Self { from: std::fs::read(LOG).map_or(0, |all| all.len()) }
    }

    /// What was logged since, whole.
    pub(crate) fn text(&self) -> String {
        let all = std::fs::read(LOG).unwrap_or_default();
        String::from_utf8_lossy(all.get(self.from..).unwrap_or_default()).into_owned()
    }

    /// Panics where a line with all these words is missing.
    pub(crate) fn expect(&self, words: &[&str]) {
        let text = self.text();
        let found = text.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(found, "no line with {words:?} in\n{text}");
    }
}
