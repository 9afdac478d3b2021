//! GPUDirect Storage: `cufile.json` and the kernel module it needs.

use super::{Finding, Verdict};
use crate::model::{Container, Pod, Set};
use crate::write::Value;
use crate::yaml::{Edit, Node, add_item, set_entry};

pub(super) fn check(set: &Set<'_>, found: &mut Vec<Finding>) {
    let mut used = false;
    for pod in &set.pods {
        for container in pod.containers.iter().filter(|container| uses_cufile(pod, container)) {
            used = true;
            if !has_module(pod, container) {
                found.push(without_module(set, pod, container));
            }
        }
    }
    for policy in set.of_kind("ClusterPolicy").filter(|policy| policy.group() == "nvidia.com") {
        let gds = policy.node.at(&["spec", "gds", "enabled"]);
        if !used || gds.and_then(Node::truth) == Some(true) {
            continue;
        }
        let Some(spec) = policy.spec() else { continue };
        let text = set.text(policy.file);
        let edit = match spec.get("gds") {
            Some(gds) => set_entry(text, gds, "enabled", &Value::from(true)),
            None => set_entry(text, spec, "gds", &Value::map().with("enabled", true)),
        };
        found.push(
            Finding::new(
                "K8S-29",
                Verdict::Fail,
                policy.file,
                gds.unwrap_or(spec),
                "pods use cufile, but the GPU Operator does not load nvidia-fs",
            )
            .costs(COST)
            .fixed_by("have it loaded", "spec:\n  gds:\n    enabled: true\n")
            .edited(edit.map(|edit| vec![edit])),
        );
    }
}

const COST: &str = "reads go through the CPU and its memory without a word (compat mode): 0 of them go straight into GPU memory";

fn env<'a>(container: &Container<'a>, name: &str) -> Option<&'a Node> {
    let list = container.node.get("env").map_or(&[][..], Node::items);
    list.iter().find(|item| item.text_at(&["name"]) == Some(name))
}

fn uses_cufile(pod: &Pod<'_>, container: &Container<'_>) -> bool {
    let mounts = container.node.get("volumeMounts").map_or(&[][..], Node::items);
    let mounted = mounts.iter().any(|mount| {
        ["mountPath", "subPath"]
            .iter()
            .any(|key| mount.text_at(&[key]).is_some_and(|text| text.ends_with("cufile.json")))
    });
    (mounted || env(container, "CUFILE_ENV_PATH_JSON").is_some())
        && pod.containers.iter().any(|container| container.gpus() > 0)
}

fn has_module(pod: &Pod<'_>, container: &Container<'_>) -> bool {
    let asked = env(container, "NVIDIA_GDS").and_then(|item| item.text_at(&["value"]));
    let nodes = pod.volumes().any(|volume| {
        volume
            .text_at(&["hostPath", "path"])
            .is_some_and(|path| path == "/dev" || path.starts_with("/dev/nvidia-fs"))
    });
    asked == Some("enabled") || nodes || container.is_privileged()
}

fn without_module(set: &Set<'_>, pod: &Pod<'_>, container: &Container<'_>) -> Finding {
    let file = pod.resource.file;
    let text = set.text(file);
    let one = Value::map().with("name", "NVIDIA_GDS").with("value", "enabled");
    let edit: Option<Edit> = match container.node.get("env") {
        Some(list) if !list.items().is_empty() => match env(container, "NVIDIA_GDS") {
            Some(item) => set_entry(text, item, "value", &Value::from("enabled")),
            None => add_item(text, list, &one),
        },
        _ => set_entry(text, container.node, "env", &Value::list([one])),
    };
    Finding::new(
        "K8S-29",
        Verdict::Warn,
        file,
        container.node,
        format!("{}: cufile.json, but no device nodes of nvidia-fs", container.name()),
    )
    .costs(COST)
    .fixed_by(
        "ask the container toolkit for them; the node needs the module nvidia-fs",
        "env:\n- name: NVIDIA_GDS\n  value: enabled\n",
    )
    .edited(edit.map(|edit| vec![edit]))
}
