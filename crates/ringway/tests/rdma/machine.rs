//! The machine these tests need: two rails, each with a device at either end (rxea0 and rxeb0, rxea1 and
//! rxeb1), and the tool `rail` for what can befall one.

use std::io::Write as _;
use std::process::Command;

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
