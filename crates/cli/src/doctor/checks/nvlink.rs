//! NVLink: links, errors, the fabric manager, peer access.

use ringway::topo::GpuMaker;

use super::{Check, Seen, Tally};
use crate::doctor::finding::Verdict;
use crate::doctor::host::Host;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "nvl-01",
        group: "nvlink",
        about: "all NVLinks of all GPUs are up",
        reads: "nvidia-smi nvlink -s",
        cost: "25 GB/s for each link and direction (50 on B200): 1 of 18 lost is 5.6 %",
        fix: "systemctl restart nvidia-fabricmanager; reset the GPUs; if it stays: exchange the baseboard",
        root: false,
        look: links,
    },
    Check {
        id: "nvl-02",
        group: "nvlink",
        about: "NVLinks report no errors",
        reads: "nvidia-smi nvlink -e",
        cost: "replays take link time; Xid 74 follows",
        fix: "reset the GPUs; if it grows again: exchange the baseboard",
        root: false,
        look: errors,
    },
    Check {
        id: "nvl-03",
        group: "nvlink",
        about: "the NVLink fabric is set up",
        reads: "nvidia-smi -q (Fabric), /var/log/fabricmanager.log",
        cost: "CUDA does not start on GPUs behind NVSwitches (error 802)",
        fix: "systemctl restart nvidia-fabricmanager; its version must be the driver's",
        root: false,
        look: fabric,
    },
    Check {
        id: "nvl-04",
        group: "nvlink",
        about: "the NVLink domain of several machines (IMEX) is up",
        reads: "nvidia-imex-ctl -N, /dev/nvidia-caps-imex-channels, nvidia-smi -q (Fabric)",
        cost: "memory is not shared between machines: 900 GB/s over NVLink become 50 over the NIC, or CUDA error 800",
        fix: "the same /etc/nvidia-imex/nodes_config.cfg and version on all; systemctl restart nvidia-imex; give the job a channel",
        root: false,
        look: domain,
    },
    Check {
        id: "nvl-05",
        group: "nvlink",
        about: "GPUs reach each other over NVLink",
        reads: "nvidia-smi topo -p2p n",
        cost: "without peer access data goes through host memory: 480 to about 20 GB/s",
        fix: "nvl-01 and nvl-03 first; then ACS (pci-05) and the IOMMU (pci-10)",
        root: false,
        look: peers,
    },
];

fn links(host: &Host) -> Seen {
    if host.smi().is_err() && !host.has_gpu(GpuMaker::Nvidia) {
        return Seen::absent("no NVIDIA GPU");
    }
    let text = match host.output("nvidia-smi-nvlink-s") {
        Ok(text) => text,
        Err(why) => return Seen::unknown("could not look whether all NVLinks are up", why),
    };
    let gpus = super::super::host::active_links(&text);
    let most = gpus.iter().map(|(_, active, down)| active + down).max().unwrap_or(0);
    let dead = text.contains("all links are inactive");
    if most == 0 && !dead {
        return Seen::absent("GPUs without NVLink");
    }
    let mut tally = Tally::default();
    for (gpu, active, down) in &gpus {
        let line = format!("{gpu}: {active} links up, {down} down; the most of any GPU is {most}");
        if *active < most || *active == 0 { tally.fail(line) } else { tally.well(line) }
    }
    tally.seen("no NVLink", "all NVLinks are up", "GPUs with NVLinks down")
}

fn errors(host: &Host) -> Seen {
    if !host.has_gpu(GpuMaker::Nvidia) && host.smi().is_err() {
        return Seen::absent("no NVIDIA GPU");
    }
    let text = match host.output("nvidia-smi-nvlink-e") {
        Ok(text) => text,
        Err(why) => return Seen::unknown("could not look whether NVLinks report no errors", why),
    };
    if !text.contains("Link ") {
        return Seen::absent("GPUs without NVLink");
    }
    let mut tally = Tally::default();
    let mut rate = false;
    for (gpu, name, count) in super::super::host::link_errors(&text) {
        if !is_error(&name) {
            continue;
        }
        let count = host.count(&format!("nvlink {gpu} {name}"), count);
        rate |= count.is_rate();
        if count.value > 0 {
            let verdict = if name.contains("Replay") { Verdict::Warn } else { Verdict::Fail };
            tally.add(verdict, format!("{gpu}: {name} = {count}"));
        }
    }
    let seen = tally.seen("", "", "NVLinks report errors");
    if seen.verdict.is_none() {
        let how = if rate { "no counter grew" } else { "all counters are 0" };
        Seen::well("NVLinks report no errors", format!("nvidia-smi nvlink -e: {how}"))
    } else {
        seen
    }
}

/// Whether a counter of `nvlink -e` counts errors. Newer GPUs list packets and bytes, error rates, successful
/// recoveries and what was corrected (FEC and symbol errors are there on every healthy link), too.
fn is_error(name: &str) -> bool {
    let name = name.to_lowercase();
    let corrected = name.contains("fec") || name.contains("symbol");
    (name.contains("error") && !corrected && !name.contains("rate"))
        || name.contains("recovery failed")
}

fn fabric(host: &Host) -> Seen {
    let switches = host.pci().iter().any(|pci| pci.is_nvswitch());
    let smi = match host.smi() {
        Ok(smi) => smi,
        Err(why) if switches => {
            return Seen::unknown("could not look whether the fabric is set up", why);
        }
        Err(_) => return Seen::absent("no NVIDIA GPU with an NVLink fabric"),
    };
    if !switches && !super::gpu::has_fabric(smi) {
        return Seen::absent("no NVLink fabric");
    }
    let mut tally = Tally::default();
    for gpu in &smi.gpus {
        let Some(state) = gpu.get("Fabric/State") else { continue };
        let status = gpu.get("Fabric/Status").unwrap_or("?");
        let line = format!("{}: Fabric State = {state}, Status = {status}", gpu.address);
        match (state, status) {
            ("Completed", "Success") => tally.well(line),
            ("In Progress", _) => tally.warn(line),
            _ => tally.fail(line),
        }
    }
    let log = host.output("fabricmanager").unwrap_or_default();
    let line = log.lines().rev().find(|line| line.contains("[ERROR]") || line.contains("[FATAL]"));
    let good = "the NVLink fabric is set up";
    let seen = tally.seen("no NVLink fabric", good, "the NVLink fabric is not set up");
    let Some(line) = line else { return seen };
    let line = format!("/var/log/fabricmanager.log: {}", line.trim());
    match seen.verdict {
        Some(Verdict::Pass) => {
            Seen::warn(format!("{good} now, and its log has errors of before"), line)
        }
        _ => seen.and(line),
    }
}

fn domain(host: &Host) -> Seen {
    let gpus = host.smi().map(|smi| smi.gpus.as_slice()).unwrap_or_default();
    let is_domain = |uuid: &str| uuid.bytes().any(|byte| byte.is_ascii_hexdigit() && byte != b'0');
    let of_domain: Vec<_> =
        gpus.iter().filter(|gpu| gpu.get("Fabric/ClusterUUID").is_some_and(is_domain)).collect();
    let told = host.output("nvidia-imex-ctl");
    // The program may be there, and its daemon not wanted.
    let is_told = told.as_ref().is_ok_and(|text| text.contains("Domain State:"));
    if of_domain.is_empty() && !is_told {
        return Seen::absent("no NVLink beyond this machine");
    }
    let mut tally = Tally::default();
    let cliques: std::collections::BTreeSet<&str> =
        of_domain.iter().filter_map(|gpu| gpu.get("Fabric/CliqueId")).collect();
    let line =
        format!("nvidia-smi -q: Fabric CliqueId {}", Vec::from_iter(cliques.clone()).join(", "));
    if cliques.len() > 1 {
        tally.fail(line);
    } else if !cliques.is_empty() {
        tally.well(line);
    }
    match &told {
        Ok(text) => daemon(text, &mut tally),
        Err(why) => tally.unknown(why.as_str()),
    }
    let folder = "/dev/nvidia-caps-imex-channels";
    let channels = host.list(folder);
    let closed =
        channels.iter().find(|name| host.fact(&format!("usable {name}")).as_deref() == Some("no"));
    match (channels.first(), closed) {
        (_, Some(name)) => tally.fail(format!("{folder}/{name} may not be opened by this user")),
        (Some(name), None) => tally.well(format!("{folder}/{name} is there")),
        // Without a word of the daemon it may be a machine that needs none.
        (None, None) if host.facts().is_empty() || !is_told => {
            tally.unknown(format!("{folder} holds no channel"));
        }
        (None, None) => tally.fail(format!("{folder} holds no channel")),
    }
    tally.seen(
        "no NVLink beyond this machine",
        "the NVLink domain is up",
        "parts of the NVLink domain are not up",
    )
}

/// What the daemon says of the domain and its machines.
fn daemon(text: &str, tally: &mut Tally) {
    let state =
        text.lines().find_map(|line| line.trim().strip_prefix("Domain State:")).map(str::trim);
    match state {
        Some("UP") => tally.well("nvidia-imex-ctl -N: Domain State: UP"),
        Some(state) => tally.fail(format!("nvidia-imex-ctl -N: Domain State: {state}")),
        None => tally.unknown("nvidia-imex-ctl -N: no Domain State"),
    }
    let node = |line: &str| line.trim().starts_with("Node #").then(|| line.trim().to_owned());
    for line in text.lines().filter_map(node).filter(|line| !line.contains("- READY")).take(64) {
        tally.fail(format!("nvidia-imex-ctl -N: {line}"));
    }
}

fn peers(host: &Host) -> Seen {
    let linked = host.output("nvidia-smi-nvlink-s").is_ok_and(|text| text.contains("GB/s"));
    if !linked {
        return Seen::absent("GPUs without NVLink");
    }
    let text = match host.output("nvidia-smi-p2p") {
        Ok(text) => text,
        Err(why) => return Seen::unknown("could not look whether GPUs reach each other", why),
    };
    // Which pairs have NVLink: bridges join two GPUs of four.
    let joined: std::collections::BTreeMap<String, Vec<String>> = host
        .output("nvidia-smi-topo-m")
        .map(|text| super::super::host::matrix(&text).into_iter().collect())
        .unwrap_or_default();
    let is_joined = |gpu: &str, other: usize| match joined.get(gpu).and_then(|row| row.get(other)) {
        Some(cell) => cell.starts_with("NV"),
        None => true,
    };
    let mut tally = Tally::default();
    for (gpu, entries) in super::super::host::matrix(&text) {
        let bad: Vec<String> = entries
            .iter()
            .enumerate()
            .filter(|(other, entry)| {
                !["X", "OK"].contains(&entry.as_str()) && is_joined(&gpu, *other)
            })
            .map(|(other, entry)| format!("GPU{other} {entry}"))
            .collect();
        if bad.is_empty() {
            tally.well(format!("{gpu}: OK with all"));
        } else {
            tally.fail(format!("{gpu}: {}", bad.join(", ")));
        }
    }
    tally.seen(
        "no matrix",
        "GPUs reach each other over NVLink",
        "GPUs that do not reach all others",
    )
}
