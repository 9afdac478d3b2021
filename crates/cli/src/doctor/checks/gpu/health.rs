//! Errors that GPUs reported.

use crate::doctor::checks::{Seen, Tally};
use crate::doctor::finding::Verdict;
use crate::doctor::host::Host;

/// Errors after which a GPU must be reset or exchanged.
const FATAL: &[u32] = &[48, 62, 64, 74, 79, 95, 109, 119, 120, 136, 140, 143];

pub(super) fn xids(host: &Host) -> Seen {
    if let Some(absent) = super::nvidia(host) {
        return absent;
    }
    let good = "no Xid is in the kernel's log";
    let log = match host.kernel_log() {
        Ok(log) => log,
        Err(why) => return Seen::unknown(format!("could not look whether {good}"), why),
    };
    let mut tally = Tally::default();
    for (number, line) in log.xids("Xid") {
        let verdict = if FATAL.contains(&number) { Verdict::Fail } else { Verdict::Warn };
        tally.add(verdict, format!("Xid {number}: dmesg: {}", line.trim()));
    }
    let seen = tally.seen(good, good, "GPUs reported errors");
    if seen.verdict.is_none() { Seen::well(good, "dmesg: no such line") } else { seen }
}

pub(super) fn switch_xids(host: &Host) -> Seen {
    if let Some(absent) = super::nvidia(host) {
        return absent;
    }
    let good = "no SXid is in the kernel's log";
    let log = match host.kernel_log() {
        Ok(log) => log,
        Err(why) => return Seen::unknown(format!("could not look whether {good}"), why),
    };
    let mut tally = Tally::default();
    for (number, line) in log.xids("SXid") {
        // The driver itself writes which are fatal.
        let non_fatal = line.contains("Non-fatal") || line.contains("non-fatal");
        let verdict = if non_fatal { Verdict::Warn } else { Verdict::Fail };
        tally.add(verdict, format!("SXid {number}: dmesg: {}", line.trim()));
    }
    let seen = tally.seen(good, good, "NVSwitches reported errors");
    if seen.verdict.is_none() { Seen::well(good, "dmesg: no such line") } else { seen }
}

pub(super) fn memory_errors(host: &Host) -> Seen {
    super::each(
        host,
        "GPU memory is sound",
        "GPUs with memory errors or a repair waiting",
        |gpu, tally| {
            let mut bad: Vec<(Verdict, String)> = Vec::new();
            for name in [
                "SRAM Uncorrectable",
                "DRAM Uncorrectable",
                "SRAM Uncorrectable Parity",
                "SRAM Uncorrectable SEC-DED",
            ] {
                let path = format!("ECC Errors/Volatile/{name}");
                if let Some(count) = gpu.number(&path).filter(|count| *count > 0.0) {
                    bad.push((Verdict::Fail, format!("{path} = {count}")));
                }
            }
            for (path, verdict) in [
                ("Remapped Rows/Remapping Failure Occurred", Verdict::Fail),
                ("Remapped Rows/Pending", Verdict::Warn),
                ("Retired Pages/Pending Page Blacklist", Verdict::Warn),
                ("GPU Reset Status/Reset Required", Verdict::Fail),
            ] {
                if gpu.get(path) == Some("Yes") {
                    bad.push((verdict, format!("{path} = Yes")));
                }
            }
            // A page or two retired over the years is what retiring is for.
            if let Some(count) =
                gpu.number("Retired Pages/Double Bit ECC").filter(|count| *count > 60.0)
            {
                bad.push((Verdict::Fail, format!("Retired Pages/Double Bit ECC = {count}")));
            }
            let worst = bad.iter().map(|(verdict, _)| *verdict).max().unwrap_or(Verdict::Pass);
            let lines: Vec<&str> = bad.iter().map(|(_, line)| line.as_str()).collect();
            let text = if lines.is_empty() { "no errors".to_owned() } else { lines.join(", ") };
            tally.add(worst, format!("{}: {text}", gpu.address));
        },
    )
}

pub(super) fn throttling(host: &Host) -> Seen {
    super::each(host, "no GPU is slowed down", "GPUs slowed down by heat or power", |gpu, tally| {
        let mut worst = Verdict::Pass;
        let mut reasons = Vec::new();
        for heading in ["Clocks Event Reasons", "Clocks Throttle Reasons"] {
            for (name, verdict) in [
                ("HW Slowdown", Verdict::Fail),
                ("HW Slowdown/HW Thermal Slowdown", Verdict::Fail),
                ("HW Slowdown/HW Power Brake Slowdown", Verdict::Fail),
                ("SW Thermal Slowdown", Verdict::Warn),
                ("SW Power Cap", Verdict::Warn),
            ] {
                if gpu.get(&format!("{heading}/{name}")) == Some("Active") {
                    worst = worst.max(verdict);
                    reasons.push(name.rsplit('/').next().unwrap_or(name));
                }
            }
        }
        let text =
            if reasons.is_empty() { "no reason active".to_owned() } else { reasons.join(", ") };
        tally.add(worst, format!("{}: {text}", gpu.address));
    })
}
