//! What NCCL planned against what the GPUs of the log could do.

use std::collections::{BTreeMap, BTreeSet};

use super::super::super::finding::{Finding, Verdict};
use super::super::job::Job;
use super::super::nccl::to_u32;
use super::Ranked;

/// GB/s between GPUs that only NVSwitches give: A100 and later.
const SWITCHED: f64 = 200.0;
/// GB/s between GPUs of a kind whose switches can multicast: H100 and later.
const MULTICAST: f64 = 300.0;
/// GPUs of one host.
const WHOLE: usize = 8;
/// Channels that use a few of the links only.
const FEW: u32 = 2;

/// The host with the most GPUs joined by NVLink, and their slowest pair.
fn joined(job: &Job) -> Option<(usize, f64)> {
    let mut hosts = BTreeMap::<&str, (BTreeSet<&str>, f64)>::new();
    for ((host, from, _), (bw, ..)) in &job.nvlinks {
        let entry = hosts.entry(host).or_insert_with(|| (BTreeSet::new(), f64::MAX));
        entry.0.insert(from);
        entry.1 = entry.1.min(*bw);
    }
    hosts.into_values().map(|(gpus, bw)| (gpus.len(), bw)).max_by_key(|(gpus, _)| *gpus)
}

/// Few channels on a machine whose switches carry many.
pub(super) fn few_channels(job: &Job, files: &[String]) -> Option<Ranked> {
    let (gpus, bw) = joined(job)?;
    let count = |text: &str| {
        text.split_once(" coll channels")?.0.trim().parse::<f64>().ok().and_then(to_u32)
    };
    let most = job.channels.seen.keys().filter_map(|text| count(text)).max()?;
    if gpus < WHOLE || bw < SWITCHED || most > FEW || most == 0 {
        return None;
    }
    let sight = job.channels.seen.values().next()?;
    let set = ["NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"]
        .into_iter()
        .find(|name| job.settings.contains_key(*name));
    let mut finding = Finding::new(
        "topology",
        "few-channels",
        Verdict::Fail,
        format!("{most} channels on {gpus} GPUs that NVSwitches join"),
    )
    .costs("2 of 16 channels move an eighth of what the links carry")
    .fixed_by(match set {
        Some(name) => format!("unset {name}."),
        None => {
            "look for a wrong topology: ringway topo on that host, NCCL_TOPO_DUMP_FILE.".to_owned()
        }
    });
    finding.evidence = sight.evidence(files);
    let cause = match set {
        Some(name) => format!("NCCL was held to few channels by {name}."),
        None => "NCCL found a topology in which few rings fit.".to_owned(),
    };
    Some(Ranked::new(64, finding, cause, sight.first()))
}

/// GPUs whose switches can multicast, and a driver that does not offer it.
pub(super) fn no_multicast(job: &Job, files: &[String]) -> Option<Ranked> {
    let (gpus, bw) = joined(job)?;
    let absent = &job.nvls_absent;
    if gpus < WHOLE || bw < MULTICAST || absent.count == 0 || job.nvls_present.count > 0 {
        return None;
    }
    let mut finding = Finding::new(
        "topology",
        "nvls-absent",
        Verdict::Warn,
        "NVSwitches that could reduce (NVLS) are not used",
    )
    .costs("8 H200: 367 GB/s by ring, 480 with NVLS")
    .fixed_by(
        "fabric manager up and of the driver's version; NCCL_CUMEM_ENABLE and NCCL_NVLS_ENABLE not 0; no MIG.",
    );
    finding.evidence = absent.evidence(files);
    let cause = "The driver offers no multicast over NVLink, though these GPUs and switches can.";
    Some(Ranked::new(620, finding, cause, absent.first()))
}
