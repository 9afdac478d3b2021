//! What `ringway env lint` says of the variables that manifests set.

use ringway_k8s::check::{Finding, Verdict as Judged};
use ringway_k8s::model::{Set, Setting, settings};

use crate::doctor::finding::Verdict;
use crate::env::lint::{Input, lint};
use crate::env::source;

/// Rules whose fault the manifest shows better: other checks have them.
const ELSEWHERE: [&str; 5] = [
    "env-forced-algo",
    "env-forced-proto",
    "env-forced-ll128",
    "env-gid-pinned",
    "env-ifname-bridge",
];

/// Findings of all pods, those of one object together, since launchers set what workers read.
pub(super) fn findings(set: &Set<'_>) -> Vec<Finding> {
    let all = settings(set);
    let mut found = Vec::new();
    for resource in &set.resources {
        let ours: Vec<&Setting<'_>> = all
            .iter()
            .filter(|one| std::ptr::eq(set.pods[one.pod].resource.node, resource.node))
            .filter(|one| source::is_ours(&one.name))
            .collect();
        if !ours.is_empty() {
            found.extend(of_one(set, &ours));
        }
    }
    found
}

fn of_one(set: &Set<'_>, ours: &[&Setting<'_>]) -> Vec<Finding> {
    // The place is the number of the setting, so that findings lead back to it.
    let given: Vec<source::Setting> = ours
        .iter()
        .enumerate()
        .map(|(number, one)| source::Setting {
            name: one.name.clone(),
            value: one.value.clone(),
            place: number.to_string(),
        })
        .collect();
    let report = lint(&Input { settings: &given, host: None, dscp: None });
    let pods: Vec<_> = ours.iter().map(|one| &set.pods[one.pod]).collect();
    let resource = pods[0].resource.node;
    let same = || set.pods.iter().filter(|pod| std::ptr::eq(pod.resource.node, resource));
    let is_amd =
        same().flat_map(|pod| &pod.containers).any(|c| c.gpu_resource() == Some("amd.com/gpu"));
    let has_devices = same().flat_map(|pod| &pod.containers).any(|c| !c.devices().is_empty());
    let mut found = Vec::new();
    for one in report.findings {
        let id = one.id.as_str();
        let off = ["env-rdma-off", "env-net-socket"].contains(&id) && has_devices;
        // Off is RCCL's default.
        if ELSEWHERE.contains(&id) || off || is_amd && id == "env-cumem-off" {
            continue;
        }
        let number = one.evidence.first().and_then(|seen| seen.split_once(':')?.0.parse().ok());
        let Some(setting) = number.and_then(|number: usize| ours.get(number)) else { continue };
        let verdict = match one.verdict {
            Verdict::Pass => continue,
            // A benchmark's manifest wants its log.
            Verdict::Warn if id == "env-debug" => Judged::Hint,
            Verdict::Unknown => Judged::Hint,
            Verdict::Warn => Judged::Warn,
            Verdict::Fail => Judged::Fail,
        };
        let edits = match (id, setting.value.as_deref()) {
            ("env-hca-prefix", Some(value)) => match value.strip_prefix('^') {
                Some(list) => setting.set(&format!("^={list}")),
                None => setting.set(&format!("={value}")),
            },
            _ => None,
        };
        found.push(
            Finding::new(
                "K8S-13",
                verdict,
                setting.file,
                setting.node,
                format!("{} ({id})", one.title),
            )
            .within(set.text(setting.file), setting.span.clone())
            .costs(one.cost.unwrap_or_default())
            .fixed_by(one.fix.unwrap_or_default(), "")
            .edited(edits),
        );
    }
    found
}
