//! Runs the tests of `bench/run`'s Python side, so that `cargo test --workspace` covers them.

use std::path::Path;
use std::process::Command;

#[test]
fn the_summary_is_computed_right() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../test_summary.py");
    let done = Command::new("python3").arg(tests).output().expect("python3 is needed by bench/run");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
