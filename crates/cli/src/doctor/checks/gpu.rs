//! GPUs: driver, errors, clocks, modes.

use ringway::topo::GpuMaker;

use super::{Check, Seen, Tally};
use crate::doctor::finding::Verdict;
use crate::doctor::host::{Gpu, Host, Smi};

mod health;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "gpu-01",
        group: "gpu",
        about: "no GPU error (Xid) is in the kernel's log",
        reads: "dmesg",
        cost: "a fatal Xid ends the job; 79 means the GPU fell off the bus",
        fix: "drain the machine; nvidia-smi -r; return the GPU if it comes back",
        root: true,
        look: health::xids,
    },
    Check {
        id: "gpu-02",
        group: "gpu",
        about: "no NVSwitch error (SXid) is in the kernel's log",
        reads: "dmesg",
        cost: "a fatal SXid takes part of the NVLink fabric away: 480 to about 20 GB/s",
        fix: "systemctl restart nvidia-fabricmanager; if it comes back: exchange the baseboard",
        root: true,
        look: health::switch_xids,
    },
    Check {
        id: "gpu-03",
        group: "gpu",
        about: "GPU memory has no uncorrected errors and no repair waiting",
        reads: "nvidia-smi -q",
        cost: "an uncorrected error kills the process; a waiting repair slows every retry",
        fix: "drain, then nvidia-smi --gpu-reset; a remapping failure means the GPU must be exchanged",
        root: false,
        look: health::memory_errors,
    },
    Check {
        id: "gpu-04",
        group: "gpu",
        about: "no GPU is slowed down by heat or power",
        reads: "nvidia-smi -q",
        cost: "the slowest GPU sets the speed of every collective; hardware slowdown halves its clock",
        fix: "cooling, power supplies, power cables; nvidia-smi -q -d PERFORMANCE",
        root: false,
        look: health::throttling,
    },
    Check {
        id: "gpu-05",
        group: "gpu",
        about: "driver, library and module have one version",
        reads: "/sys/module/nvidia/version, /proc/driver/nvidia/version, nvidia-smi -q",
        cost: "\"Driver/library version mismatch\": no GPU job starts",
        fix: "reload the driver or reboot after the package update",
        root: false,
        look: versions,
    },
    Check {
        id: "gpu-06",
        group: "gpu",
        about: "persistence mode is on",
        reads: "nvidia-smi -q",
        cost: "1 to 3 s for each GPU whenever the first process opens it",
        fix: "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1",
        root: false,
        look: persistence,
    },
    Check {
        id: "gpu-07",
        group: "gpu",
        about: "the module nvidia_uvm is loaded",
        reads: "/sys/module/nvidia_uvm",
        cost: "CUDA does not start; NCCL's memory pools (2.23 and later) need it",
        fix: "modprobe nvidia_uvm",
        root: false,
        look: uvm,
    },
    Check {
        id: "gpu-count",
        group: "gpu",
        about: "the driver sees every GPU on the bus",
        reads: "/sys/bus/pci/devices, nvidia-smi -q",
        cost: "one of 8 GPUs gone: jobs of 8 ranks do not start",
        fix: "dmesg | grep -i xid; power cycle; exchange the GPU if it stays away",
        root: false,
        look: count,
    },
    Check {
        id: "gpu-equal",
        group: "gpu",
        about: "GPUs are of one kind with one firmware",
        reads: "nvidia-smi -q",
        cost: "the slowest kind sets the speed; mixed firmware is a common cause of rare errors",
        fix: "update the VBIOS of the odd one (vendor's tool), or leave it out (CUDA_VISIBLE_DEVICES)",
        root: false,
        look: equal,
    },
    Check {
        id: "gpu-ecc",
        group: "gpu",
        about: "error correction is on, and will stay as it is",
        reads: "nvidia-smi -q",
        cost: "without it a flipped bit goes into the weights unseen",
        fix: "nvidia-smi -e 1, then reset the GPU",
        root: false,
        look: error_correction,
    },
    Check {
        id: "gpu-mig",
        group: "gpu",
        about: "GPUs are not split (MIG)",
        reads: "nvidia-smi -q",
        cost: "slices of a GPU have no NVLink and no peer access: 480 to about 20 GB/s",
        fix: "nvidia-smi -mig 0, when no slice is in use",
        root: false,
        look: slices,
    },
    Check {
        id: "gpu-mode",
        group: "gpu",
        about: "the compute mode lets several processes use a GPU",
        reads: "nvidia-smi -q",
        cost: "a second process on the GPU (a monitor, a debugger) fails; Prohibited lets none start",
        fix: "nvidia-smi -c 0",
        root: false,
        look: compute_mode,
    },
    Check {
        id: "gpu-power",
        group: "gpu",
        about: "power limits are the makers'",
        reads: "nvidia-smi -q",
        cost: "a GPU with 80 % of its power is the straggler of every collective",
        fix: "nvidia-smi -pl DEFAULT (see nvidia-smi -q -d POWER)",
        root: false,
        look: power,
    },
    Check {
        id: "gpu-replay",
        group: "gpu",
        about: "GPUs rarely repeat PCIe packets",
        reads: "nvidia-smi -q",
        cost: "more than 8 a minute take link time and precede Xid 79",
        fix: "reseat the GPU or its riser; pci-09 shows which side counts errors",
        root: false,
        look: replays,
    },
    Check {
        id: "pci-11",
        group: "gpu",
        about: "the window onto GPU memory (BAR1) is as large as the memory",
        reads: "nvidia-smi -q",
        cost: "a 256 MiB window limits what GPUDirect can register",
        fix: "BIOS: Above 4G Decoding and Resizable BAR",
        root: false,
        look: window,
    },
];

fn nvidia(host: &Host) -> Option<Seen> {
    let any = host.has_gpu(GpuMaker::Nvidia) || host.smi().is_ok();
    (!any).then(|| Seen::absent("no NVIDIA GPU"))
}

/// Asks every GPU of `nvidia-smi -q`.
fn each(host: &Host, good: &str, bad: &str, look: impl Fn(&Gpu, &mut Tally)) -> Seen {
    if let Some(absent) = nvidia(host) {
        return absent;
    }
    match host.smi() {
        Ok(smi) => {
            let mut tally = Tally::default();
            for gpu in &smi.gpus {
                look(gpu, &mut tally);
            }
            tally.seen("nvidia-smi -q does not say", good, bad)
        }
        Err(why) => Seen::unknown(format!("could not look whether {good}"), why),
    }
}

fn versions(host: &Host) -> Seen {
    if let Some(absent) = nvidia(host) {
        return absent;
    }
    if let Ok(text) = host.output("nvidia-smi-q")
        && text.contains("version mismatch")
    {
        let line = text.lines().find(|line| line.contains("version mismatch")).unwrap_or_default();
        return Seen::fail(
            "driver and library have different versions",
            format!("nvidia-smi -q: {line}"),
        );
    }
    let module = host.text("/sys/module/nvidia/version");
    let running = host.text("/proc/driver/nvidia/version").and_then(|text| {
        let words = text.lines().next()?.split_whitespace();
        words.into_iter().find(|word| is_version(word)).map(str::to_owned)
    });
    let library = host.smi().ok().and_then(|smi| smi.general.get("Driver Version").cloned());
    let known: Vec<(&str, String)> = [
        ("/sys/module/nvidia/version", module),
        ("/proc/driver/nvidia/version", running),
        ("nvidia-smi -q: Driver Version", library),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect();
    let evidence: Vec<String> =
        known.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    if known.is_empty() && !host.knows_modules() {
        return Seen::unknown("could not look at the driver's version", "/sys/module is not there");
    }
    let Some((_, first)) = known.first() else {
        return Seen::fail(
            "the NVIDIA driver is not loaded",
            "/sys/module/nvidia/version is not there",
        )
        .fixed_by("modprobe nvidia; dmesg says why it does not load");
    };
    if known.iter().all(|(_, value)| value == first) {
        Seen::well(format!("the driver's version is {first} everywhere"), evidence.join(", "))
    } else {
        Seen::fail("driver, module and library have different versions", evidence.join(", "))
    }
}

fn is_version(word: &str) -> bool {
    word.split('.').count() >= 2
        && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

fn persistence(host: &Host) -> Seen {
    each(host, "persistence mode is on", "GPUs without persistence mode", |gpu, tally| {
        let Some(mode) = gpu.get("Persistence Mode") else { return };
        let line = format!("{}: Persistence Mode = {mode}", gpu.address);
        if mode == "Enabled" { tally.well(line) } else { tally.warn(line) }
    })
}

fn uvm(host: &Host) -> Seen {
    if let Some(absent) = nvidia(host) {
        return absent;
    }
    let path = "/sys/module/nvidia_uvm";
    if host.exists(path) {
        Seen::well("nvidia_uvm is loaded", format!("{path} is there"))
    } else if !host.knows_modules() {
        Seen::unknown("could not look whether nvidia_uvm is loaded", "/sys/module is not there")
    } else {
        Seen::fail("nvidia_uvm is not loaded", format!("{path} is not there"))
    }
}

fn count(host: &Host) -> Seen {
    let gpus = host.gpus();
    let ours = gpus.iter().filter(|gpu| gpu.gpu_maker() == Some(GpuMaker::Nvidia));
    let on_bus: Vec<String> = ours.map(|gpu| gpu.bus.to_string()).collect();
    if on_bus.is_empty() {
        return nvidia(host).unwrap_or_else(|| Seen::absent("the bus is not in the tree"));
    }
    let smi = match host.smi() {
        Ok(smi) => smi,
        Err(why) => return Seen::unknown("could not look whether the driver sees every GPU", why),
    };
    let missing: Vec<&str> = on_bus
        .iter()
        .filter(|address| !smi.gpus.iter().any(|gpu| gpu.address == **address))
        .map(String::as_str)
        .collect();
    let counts = format!("{} on the bus, {} in nvidia-smi -q", on_bus.len(), smi.gpus.len());
    if missing.is_empty() {
        Seen::well("the driver sees every GPU", counts)
    } else if let Some(what) = host.sees_part() {
        let good = "could not look whether the driver sees every GPU";
        Seen::unknown(good, format!("{counts}; {what} may be given a part only"))
    } else {
        Seen::fail(format!("the driver does not see {}", missing.join(", ")), counts)
    }
}

fn equal(host: &Host) -> Seen {
    if let Some(absent) = nvidia(host) {
        return absent;
    }
    let smi = match host.smi() {
        Ok(smi) => smi,
        Err(why) => return Seen::unknown("could not look whether GPUs are of one kind", why),
    };
    let mut kinds = std::collections::BTreeMap::<String, Vec<&str>>::new();
    for gpu in &smi.gpus {
        let kind = ["Product Name", "VBIOS Version"].map(|name| gpu.get(name).unwrap_or("?"));
        kinds.entry(kind.join(", VBIOS ")).or_default().push(&gpu.address);
    }
    let lines: Vec<String> =
        kinds.iter().map(|(kind, gpus)| format!("{kind}: {}", gpus.join(", "))).collect();
    let Some(first) = lines.first() else { return Seen::absent("nvidia-smi -q lists no GPU") };
    let mut seen = match lines.len() {
        1 => Seen::well("GPUs are of one kind", first.clone()),
        many => Seen::warn(format!("GPUs are of {many} kinds"), first.clone()),
    };
    seen.evidence.extend(lines.into_iter().skip(1));
    seen
}

fn error_correction(host: &Host) -> Seen {
    each(
        host,
        "error correction is on",
        "GPUs whose error correction is off or will change",
        |gpu, tally| {
            let Some(now) = gpu.get("ECC Mode/Current") else { return };
            let next = gpu.get("ECC Mode/Pending").unwrap_or(now);
            let line = format!("{}: ECC Mode: Current = {now}, Pending = {next}", gpu.address);
            if now == "Enabled" && next == now { tally.well(line) } else { tally.warn(line) }
        },
    )
}

fn slices(host: &Host) -> Seen {
    each(host, "GPUs are not split", "GPUs split by MIG", |gpu, tally| {
        let now = gpu.get("MIG Mode/Current").unwrap_or("Disabled");
        let line = format!("{}: MIG Mode = {now}", gpu.address);
        if now == "Enabled" { tally.warn(line) } else { tally.well(line) }
    })
}

fn compute_mode(host: &Host) -> Seen {
    each(
        host,
        "the compute mode lets several processes in",
        "GPUs with a closed compute mode",
        |gpu, tally| {
            let Some(mode) = gpu.get("Compute Mode") else { return };
            let verdict = match mode {
                "Default" => Verdict::Pass,
                "Prohibited" => Verdict::Fail,
                _ => Verdict::Warn,
            };
            tally.add(verdict, format!("{}: Compute Mode = {mode}", gpu.address));
        },
    )
}

fn power(host: &Host) -> Seen {
    each(
        host,
        "power limits are the makers'",
        "GPUs with less power than the maker's limit",
        |gpu, tally| {
            let read = |name: &str| {
                let new = gpu.number(&format!("GPU Power Readings/{name}"));
                new.or_else(|| gpu.number(&format!("Power Readings/{name}")))
            };
            let (Some(now), Some(maker)) = (
                read("Current Power Limit").or_else(|| read("Power Limit")),
                read("Default Power Limit"),
            ) else {
                return;
            };
            let line = format!("{}: power limit {now} W, default {maker} W", gpu.address);
            if now < maker * 0.98 { tally.warn(line) } else { tally.well(line) }
        },
    )
}

fn replays(host: &Host) -> Seen {
    // What NVIDIA's own health check allows. A link of 16 lanes with the error rate that PCIe permits (1e-12) repeats
    // a packet every few seconds under load, so a count alone says nothing.
    const A_MINUTE: f64 = 8.0;
    // Where the time since boot is not known.
    const HOUR: f64 = 3600.0;
    let uptime = host.uptime().unwrap_or(HOUR);
    each(
        host,
        "GPUs rarely repeat PCIe packets",
        "GPUs that repeat many PCIe packets",
        |gpu, tally| {
            let whole = |name: &str| gpu.get(name)?.parse::<u64>().ok();
            let Some(total) = whole("PCI/Replays Since Reset") else { return };
            let count = host.count(&format!("{}/replays", gpu.address), total);
            let minutes = count.seconds.unwrap_or(uptime).max(1.0) / 60.0;
            #[expect(clippy::cast_precision_loss, reason = "a rate, not a count")]
            let rate = count.value as f64 / minutes;
            // Four times in a row without success: the link had to train again.
            let rollovers = whole("PCI/Replay Number Rollovers").unwrap_or(0);
            let rollovers = host.count(&format!("{}/rollovers", gpu.address), rollovers).value;
            let line = format!(
                "{}: {count}, {rate:.2} a minute; Replay Number Rollovers = {rollovers}",
                gpu.address
            );
            // Few within a short time are no rate yet.
            let many = rate > A_MINUTE && count.value > 8;
            if many || rollovers > 0 { tally.warn(line) } else { tally.well(line) }
        },
    )
}

fn window(host: &Host) -> Seen {
    each(host, "BAR1 is as large as the memory", "GPUs with a small BAR1", |gpu, tally| {
        let (Some(window), Some(memory)) =
            (gpu.number("BAR1 Memory Usage/Total"), gpu.number("FB Memory Usage/Total"))
        else {
            return;
        };
        let line = format!("{}: BAR1 {window} MiB, memory {memory} MiB", gpu.address);
        // Consumer cards are made with 256 MiB.
        let consumer = ["Product Brand", "Product Name"]
            .iter()
            .any(|name| gpu.get(name).is_some_and(|name| name.contains("GeForce")));
        if window >= memory || consumer {
            tally.well(line);
        } else if window >= 256.0 {
            tally.warn(line);
        } else {
            tally.fail(line);
        }
    })
}

/// Whether NVLink goes through switches: several GPUs that report a fabric.
pub(super) fn has_fabric(smi: &Smi) -> bool {
    smi.gpus.iter().any(|gpu| gpu.get("Fabric/State").is_some())
}
