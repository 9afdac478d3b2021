//! Errors that GPUs reported.

use std::collections::BTreeMap;

use crate::doctor::checks::{Seen, Tally};
use crate::doctor::codes::{self, Weight};
use crate::doctor::finding::Verdict;
use crate::doctor::host::Host;

pub(super) fn xids(host: &Host) -> Seen {
    if let Some(absent) = super::nvidia(host) {
        return absent;
    }
    let good = "no Xid is in the kernel's log";
    let log = match host.kernel_log() {
        Ok(log) => log,
        Err(why) => return Seen::unknown(format!("could not look whether {good}"), why),
    };
    let is_fatal = |number: u32, line: &str| {
        let fatal = codes::is_called_fatal(number, line.as_bytes());
        codes::xid_weight(number, fatal) == Weight::Fails
    };
    told(log.xids("Xid"), "Xid", good, "GPUs reported errors", is_fatal)
}

/// The errors of a log, each number once with how often it came and where first.
fn told(
    lines: Vec<(u32, &str)>,
    word: &str,
    good: &str,
    bad: &str,
    is_fatal: impl Fn(u32, &str) -> bool,
) -> Seen {
    let mut numbers = BTreeMap::<u32, (usize, bool, &str)>::new();
    for (number, line) in lines {
        let entry = numbers.entry(number).or_insert((0, false, line));
        entry.0 += 1;
        entry.1 |= is_fatal(number, line);
    }
    if numbers.is_empty() {
        return Seen::well(good, "dmesg: no such line");
    }
    let list: Vec<String> = numbers.keys().map(ToString::to_string).collect();
    let title = format!("{bad}: {word} {}", list.join(", "));
    let mut tally = Tally::default();
    for (number, (count, fatal, line)) in numbers {
        let verdict = if fatal { Verdict::Fail } else { Verdict::Warn };
        let name = codes::known(codes::XIDS, number).filter(|_| word == "Xid");
        let name = name.map(|meaning| format!(" ({})", meaning.name)).unwrap_or_default();
        tally.add(
            verdict,
            format!("{word} {number}{name}, {count} lines of dmesg, first: {}", line.trim()),
        );
    }
    let mut seen = tally.seen(good, good, bad);
    seen.title = title;
    seen
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
    // The driver itself writes which are fatal, right after the number.
    let is_fatal = |number: u32, line: &str| line.contains(&format!(": {number}, Fatal"));
    told(log.xids("SXid"), "SXid", good, "NVSwitches reported errors", is_fatal)
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
