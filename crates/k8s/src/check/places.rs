//! Where pods land: near each other, near their NICs, in one NVLink domain.

use super::{Finding, Verdict};
use crate::model::{Network, Pod, Set, settings};
use crate::yaml::Node;

pub(super) fn check(set: &Set<'_>, found: &mut Vec<Finding>) {
    // Objects that ask for NVLink between nodes by a variable.
    let asking: Vec<&Node> = settings(set)
        .into_iter()
        .filter(|one| one.name == "NCCL_MNNVL_ENABLE" && one.value.as_deref() == Some("1"))
        .map(|one| set.pods[one.pod].resource.node)
        .collect();
    for pod in &set.pods {
        topology(pod, found);
        imex(&asking, pod, found);
    }
    kubelet(set, found);
}

/// Labels and annotations by which schedulers keep a job together.
fn topology(pod: &Pod<'_>, found: &mut Vec<Finding>) {
    if !pod.is_across_nodes() || pod.count.is_some_and(|count| count <= 2) {
        return;
    }
    let annotated = |node: Option<&Node>| {
        node.map_or(&[][..], Node::entries).iter().any(|(key, _)| {
            key.text().is_some_and(|key| key.contains("topology") || key.contains("queue-name"))
        })
    };
    let hinted = annotated(pod.template.at(&["metadata", "annotations"]))
        || annotated(pod.template.at(&["metadata", "labels"]))
        || annotated(pod.resource.node.at(&["metadata", "annotations"]))
        || annotated(pod.resource.node.at(&["metadata", "labels"]))
        || pod.spec.at(&["affinity", "podAffinity"]).is_some()
        || pod.spec.get("topologySpreadConstraints").is_some()
        || pod.spec.get("schedulerName").is_some();
    if hinted {
        return;
    }
    let node = pod.count_node.unwrap_or(pod.spec);
    found.push(
        Finding::new(
            "K8S-12",
            Verdict::Hint,
            pod.resource.file,
            node,
            format!("{} pods, and nothing keeps them near each other", pod.count.unwrap_or(0)),
        )
        .costs("where leaves are oversubscribed 2 to 1, traffic between them has half the bandwidth")
        .fixed_by(
            "if the job may span leaves, name the label of a leaf (`ringway fabric export --format kubernetes` makes them)",
            "affinity:\n  podAffinity:\n    preferredDuringSchedulingIgnoredDuringExecution:\n    - weight: 100\n      \
             podAffinityTerm:\n        topologyKey: fabric.ringway/tier-1\n        labelSelector:\n          \
             matchLabels:\n            app: <the job's label>\n",
        ),
    );
}

fn imex(asking: &[&Node], pod: &Pod<'_>, found: &mut Vec<Finding>) {
    if !pod.is_across_nodes() {
        return;
    }
    let rack = ["GB200", "GB300", "gb200", "gb300"];
    let selected = pod.spec.get("nodeSelector").map_or(&[][..], Node::entries).iter();
    let labelled = selected
        .filter_map(|(_, value)| value.text())
        .any(|value| rack.iter().any(|name| value.contains(name)));
    let asked = asking.iter().any(|node| std::ptr::eq(*node, pod.resource.node));
    let claims = pod.spec.get("resourceClaims").is_some_and(|list| !list.items().is_empty());
    let mounted = pod.volumes().any(|volume| {
        volume.text_at(&["hostPath", "path"]).is_some_and(|path| path.contains("imex"))
    });
    if !(labelled || asked) || claims || mounted {
        return;
    }
    found.push(
        Finding::new(
            "K8S-18",
            Verdict::Fail,
            pod.resource.file,
            pod.spec.get("nodeSelector").unwrap_or(pod.spec),
            "NVLink between nodes, but no IMEX channel for the pods",
        )
        .costs("traffic drops from NVLink's 900 to the NIC's 50 GB/s for each GPU, or \"Cuda failure 800\"")
        .fixed_by(
            "a ComputeDomain with as many nodes as pods, and its claim in each pod",
            "resourceClaims:\n- name: compute-domain-channel\n  resourceClaimTemplateName: <the domain's template>\n\
             containers:\n- resources:\n    claims:\n    - name: compute-domain-channel\n",
        ),
    );
}

/// The kubelet's policies, where a text shows them, against pods with part of a node.
fn kubelet(set: &Set<'_>, found: &mut Vec<Finding>) {
    for config in &set.resources {
        let node = match config.kind {
            "KubeletConfiguration" => config.node,
            "KubeletConfig" => match config.node.at(&["spec", "kubeletConfig"]) {
                Some(node) => node,
                None => continue,
            },
            _ => continue,
        };
        let policy = node.text_at(&["topologyManagerPolicy"]).unwrap_or("none");
        let cpus = node.text_at(&["cpuManagerPolicy"]).unwrap_or("none");
        let aligned = ["single-numa-node", "restricted"].contains(&policy) && cpus == "static";
        if aligned {
            continue;
        }
        let part = set
            .pods
            .iter()
            .any(|pod| (1..4).contains(&pod.gpus()) && pod.network() == Network::Devices);
        let verdict = if policy == "best-effort" || !part { Verdict::Warn } else { Verdict::Fail };
        found.push(
            Finding::new(
                "K8S-11",
                verdict,
                config.file,
                node.get("topologyManagerPolicy").or_else(|| node.get("cpuManagerPolicy")).unwrap_or(node),
                format!("topologyManagerPolicy {policy}, cpuManagerPolicy {cpus}: a GPU may get a NIC of the other socket"),
            )
            .costs("GPUDirect across sockets reads at a few GB/s, in place of 23 on one HDR port")
            .fixed_by(
                "keep devices and CPUs of a pod on one NUMA node",
                "topologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\n",
            ),
        );
    }
}
