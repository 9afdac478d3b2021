//! Devices: those that pods must ask for, and the networks they belong to.

use super::{Finding, Verdict};
use crate::model::{Container, Network, Pod, Set};
use crate::write::Value;
use crate::yaml::{Node, set_entry, set_scalar};

pub(super) fn check(set: &Set<'_>, found: &mut Vec<Finding>) {
    for pod in &set.pods {
        requested(set, pod, found);
        networks(pod, found);
        for container in &pod.containers {
            limits(set, pod, container, found);
        }
    }
}

fn requested(set: &Set<'_>, pod: &Pod<'_>, found: &mut Vec<Finding>) {
    if !pod.is_across_nodes() || pod.network() != Network::Pod {
        return;
    }
    let Some(container) = pod.containers.iter().find(|container| container.gpus() > 0) else {
        return;
    };
    let file = pod.resource.file;
    // Where another pod of these texts asks for a device, that is the name.
    let known = set
        .pods
        .iter()
        .flat_map(|pod| &pod.containers)
        .flat_map(Container::devices)
        .find(|(name, ..)| name.starts_with("rdma/"))
        .map(|(name, count, _)| (name.to_owned(), count));
    let (name, count) =
        known.clone().unwrap_or_else(|| ("rdma/rdma_shared_device_a".to_owned(), 1));
    let limits = container.node.at(&["resources", "limits"]);
    let edit = limits.zip(known).and_then(|(limits, (name, count))| {
        set_entry(set.text(file), limits, &name, &Value::from(count))
    });
    let node = container.node.entry("resources").map_or(container.node, |(key, _)| key);
    found.push(
        Finding::new(
            "K8S-01",
            Verdict::Fail,
            file,
            node,
            format!(
                "{} pods with GPUs on several nodes, and no RDMA device: NCCL falls back to TCP",
                pod.count.unwrap_or(2)
            ),
        )
        .costs("25 to 5 GB/s on one 200 Gb/s port, less through an overlay network")
        .fixed_by(
            "ask for the device plugin's resource (`kubectl describe node` shows its name); where TCP is meant, say so: \
             # ringway: allow K8S-01 the reason",
            format!("resources:\n  limits:\n    {name}: {count}\n"),
        )
        .edited(edit.map(|edit| vec![edit])),
    );
}

/// Devices of an SR-IOV plugin come with a network each; shared ones do not.
fn networks(pod: &Pod<'_>, found: &mut Vec<Finding>) {
    let own = ["nvidia.com/", "openshift.io/", "mellanox.com/", "intel.com/"];
    let devices: Vec<(&str, u64, &Node)> = pod
        .containers
        .iter()
        .flat_map(Container::devices)
        .filter(|(name, ..)| own.iter().any(|own| name.starts_with(own)))
        .collect();
    let Some((name, _, node)) = devices.first().copied() else { return };
    let count = devices.iter().map(|(_, count, _)| *count).fold(0, u64::saturating_add);
    let networks = pod.networks();
    let there = networks.len() as u64;
    if there >= count || pod.on_host_network() {
        return;
    }
    let verdict = if there == 0 { Verdict::Fail } else { Verdict::Warn };
    let one = networks.first().cloned().unwrap_or_else(|| "rdma-net".to_owned());
    let times = usize::try_from(count.min(64)).unwrap_or(64);
    let list = vec![one.clone(); times].join(",");
    // Where all are one network already, the same again is meant.
    let annotation = pod.annotation("k8s.v1.cni.cncf.io/networks");
    let plain = annotation.filter(|node| {
        there > 0
            && networks.iter().all(|name| *name == one)
            && node.text().is_some_and(|text| !text.contains(['[', '@']))
    });
    let edit = plain.and_then(|node| set_scalar(node, &Value::from(list.as_str())));
    found.push(
        Finding::new(
            "K8S-06",
            verdict,
            pod.resource.file,
            annotation.unwrap_or(node),
            format!("{count} devices of {name}, but {there} networks"),
        )
        .costs(format!(
            "each device without a network has no address: {} of {count} of the bandwidth is missing",
            count - there
        ))
        .fixed_by(
            "name one network for each device; the same may stand several times",
            format!("metadata:\n  annotations:\n    k8s.v1.cni.cncf.io/networks: {list}\n"),
        )
        .edited(edit.map(|edit| vec![edit])),
    );
}

fn limits<'a>(set: &Set<'a>, pod: &Pod<'a>, container: &Container<'a>, found: &mut Vec<Finding>) {
    let Some(requests) = container.node.at(&["resources", "requests"]) else { return };
    let limits = container.node.at(&["resources", "limits"]);
    let file = pod.resource.file;
    for (name, value) in requests.entries() {
        let Some(text) = name.text().filter(|name| name.contains('/')) else { continue };
        let limit = limits.and_then(|limits| limits.get(text));
        if limit.is_some_and(|limit| limit.text() == value.text()) || value.number().is_none() {
            continue;
        }
        let count = Value::from(value.number().unwrap_or(1));
        let edit = match (limits, container.node.get("resources")) {
            // Which of the two numbers is meant is not known.
            _ if limit.is_some() => None,
            (Some(limits), _) => set_entry(set.text(file), limits, text, &count),
            (None, Some(resources)) => {
                let one = Value::map().with(text, count);
                set_entry(set.text(file), resources, "limits", &one)
            }
            _ => None,
        };
        let shown = value.text().unwrap_or("");
        found.push(
            Finding::new(
                "K8S-31",
                Verdict::Fail,
                file,
                name,
                format!("{text} is requested, but its limit is not the same"),
            )
            .costs("devices cannot be shared out in parts: the API server refuses the manifest, 0 pods start")
            .fixed_by(
                "set the limit; the request follows it",
                format!("resources:\n  limits:\n    {text}: {shown}\n"),
            )
            .edited(edit.map(|edit| vec![edit])),
        );
    }
}
