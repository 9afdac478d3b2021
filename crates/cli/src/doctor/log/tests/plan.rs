//! What NCCL planned against what the GPUs could do.

use std::fmt::Write as _;

use super::*;

/// Eight GPUs joined at this rate, and a line besides.
fn joined(rate: &str, more: &str) -> Vec<String> {
    let mut text = String::new();
    for from in 0..8 {
        let _ = write!(text, "a:1:2 [{from}] NCCL INFO GPU/0-{from}000 :");
        for to in (0..8).filter(|to| *to != from) {
            let _ = write!(text, "GPU/0-{to}000 (2/{rate}/NVL) ");
        }
        text.push('\n');
    }
    let _ = writeln!(text, "a:1:2 [0] NCCL INFO {more}");
    troubles(&read(text.as_bytes())).into_iter().map(str::to_owned).collect()
}

#[test]
fn few_channels_behind_switches_are_named() {
    let channels = |many: u32| format!("{many} coll channels, 0 nvls channels, 2 p2p channels");
    assert_eq!(joined("360.0", &channels(2)), ["few-channels"]);
    assert!(joined("360.0", &channels(16)).is_empty());
    // Bridges between pairs carry no more.
    assert!(joined("40.0", &channels(2)).is_empty());
}

#[test]
fn switches_that_could_reduce_are_named_where_they_do_not() {
    let absent = "NVLS multicast support is not available on dev 0";
    assert_eq!(joined("360.0", absent), ["nvls-absent"]);
    // A100: its switches cannot.
    assert!(joined("240.0", absent).is_empty());
}
