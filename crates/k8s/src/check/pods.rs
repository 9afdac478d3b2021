//! Pods: shared memory, locked memory, DNS, privileges.

use super::{Finding, Verdict};
use crate::model::{Container, Network, Pod, Role, Set, bytes, shm_wanted};
use crate::write::Value;
use crate::yaml::{
    Edit, Node, add_entry, add_item, remove_entry, replace_entry, set_entry, set_scalar,
};

/// Below this, shared memory of a job is too small.
const SHM_LEAST: u64 = 1 << 30;

pub(super) fn check(set: &Set<'_>, found: &mut Vec<Finding>) {
    for pod in &set.pods {
        for container in &pod.containers {
            shm(set, pod, container, found);
            ipc_lock(set, pod, container, found);
            privileged(set, pod, container, found);
        }
        dns(set, pod, found);
    }
}

fn shm<'a>(set: &Set<'a>, pod: &Pod<'a>, container: &Container<'a>, found: &mut Vec<Finding>) {
    let file = pod.resource.file;
    let gpus = container.gpus();
    let mounted = pod.mounted_at(container, "/dev/shm");
    // The host's own: as large as the host says.
    if pod.on_host_ipc() && mounted.is_none() {
        return;
    }
    let Some((volume, _)) = mounted else {
        if gpus >= 2 && !container.is_init && pod.role != Role::Daemon {
            found.push(no_shm(set, pod, container));
        }
        return;
    };
    let Some(empty) = volume.get("emptyDir") else { return };
    if empty.text_at(&["medium"]) != Some("Memory") {
        let edits =
            in_memory(set.text(file), volume, empty, &fitting(container, &shm_wanted(gpus.max(1))));
        found.push(
            Finding::new("K8S-02", Verdict::Fail, file, empty, "/dev/shm is a folder on the node's disk")
                .costs("shared memory at the disk's rate, in place of 10 to 20 GB/s between ranks of a host")
                .fixed_by("give it the medium Memory", "emptyDir:\n  medium: Memory\n")
                .edited(edits),
        );
        return;
    }
    let Some(limit) = empty.get("sizeLimit") else {
        if gpus > 0 {
            let size = fitting(container, &shm_wanted(gpus));
            let edit = set_entry(set.text(file), empty, "sizeLimit", &Value::from(size.as_str()));
            found.push(
                Finding::new("K8S-02", Verdict::Warn, file, empty, "/dev/shm has no sizeLimit")
                    .costs(
                        "it may grow to half of the node's memory, counts as the pod's, and then the pod is killed \
                         without an error of its own",
                    )
                    .fixed_by("say how large it may be", format!("emptyDir:\n  medium: Memory\n  sizeLimit: {size}\n"))
                    .edited(edit.map(|edit| vec![edit])),
            );
        }
        return;
    };
    let Some(size) = limit.text().and_then(bytes) else { return };
    if size < SHM_LEAST && gpus >= 2 {
        let better = fitting(container, &shm_wanted(gpus));
        found.push(
            Finding::new(
                "K8S-02",
                Verdict::Fail,
                file,
                limit,
                format!("/dev/shm of {} is too small for {gpus} ranks", limit.text().unwrap_or("")),
            )
            .costs(
                "each segment of NCCL's takes 9,637,888 bytes: 64 MB hold 6; the next call fails with \"No space \
                 left on device\" or a bus error",
            )
            .fixed_by(
                "at least 1Gi, and 64 MiB for each rank",
                format!("sizeLimit: {better}\n"),
            )
            .edited(set_scalar(limit, &Value::from(better)).map(|edit| vec![edit])),
        );
    }
    within_limit(file, container, limit, size, found);
}

/// Turns a folder into memory of at most this size, or of the size it has.
fn in_memory(text: &str, volume: &Node, empty: &Node, size: &str) -> Option<Vec<Edit>> {
    if empty.entries().is_empty() {
        let memory = Value::map().with("medium", "Memory").with("sizeLimit", size);
        return set_entry(text, volume, "emptyDir", &memory).map(|edit| vec![edit]);
    }
    let mut edits = vec![set_entry(text, empty, "medium", &Value::from("Memory"))?];
    if empty.get("sizeLimit").is_none() {
        edits.push(set_entry(text, empty, "sizeLimit", &Value::from(size))?);
    }
    Some(edits)
}

fn no_shm<'a>(set: &Set<'a>, pod: &Pod<'a>, container: &Container<'a>) -> Finding {
    let file = pod.resource.file;
    let text = set.text(file);
    let size = fitting(container, &shm_wanted(container.gpus()));
    let volume = Value::map()
        .with("name", "dshm")
        .with("emptyDir", Value::map().with("medium", "Memory").with("sizeLimit", size.as_str()));
    let mount = Value::map().with("name", "dshm").with("mountPath", "/dev/shm");
    let add = |map: &Node, key: &str, item: &Value| -> Option<Edit> {
        match map.get(key) {
            Some(list) if !list.items().is_empty() => add_item(text, list, item),
            _ => set_entry(text, map, key, &Value::list([item.clone()])),
        }
    };
    // A volume that is there and only not mounted here is taken.
    let there = pod.volumes().find(|volume| {
        volume.text_at(&["emptyDir", "medium"]) == Some("Memory")
            && volume.text_at(&["name"]).is_some_and(|name| name.contains("shm"))
    });
    let edits = match there.and_then(|volume| volume.text_at(&["name"])) {
        Some(name) => {
            let mount = Value::map().with("name", name).with("mountPath", "/dev/shm");
            add(container.node, "volumeMounts", &mount).map(|edit| vec![edit])
        }
        None => {
            // Both may land on one byte, behind the last container: what stands deeper comes first.
            let mount = add(container.node, "volumeMounts", &mount);
            let volume = add(pod.spec, "volumes", &volume);
            mount.zip(volume).map(|(mount, volume)| vec![mount, volume])
        }
    };
    let yaml = Value::map()
        .with("containers", Value::list([Value::map().with("volumeMounts", Value::list([mount]))]))
        .with("volumes", Value::list([volume]));
    Finding::new(
        "K8S-02",
        Verdict::Fail,
        file,
        container.node,
        format!("{}: /dev/shm is the container's default of 64 MB", container.name()),
    )
    .costs(
        "each segment of NCCL's takes 9,637,888 bytes, so 6 fit; data loaders need more: \"No space left on \
         device\", or a bus error",
    )
    .fixed_by("mount memory at /dev/shm", yaml.block(0))
    .edited(edits)
}

/// A size that fits into the container's memory.
fn fitting(container: &Container<'_>, size: &str) -> String {
    let memory = container.node.text_at(&["resources", "limits", "memory"]).and_then(bytes);
    match (memory, bytes(size)) {
        (Some(memory), Some(wanted)) if wanted > memory / 2 => {
            format!("{}Mi", ((memory / 2) >> 20).max(1))
        }
        _ => size.to_owned(),
    }
}

fn within_limit(
    file: usize,
    container: &Container<'_>,
    limit: &Node,
    size: u64,
    found: &mut Vec<Finding>,
) {
    let Some(node) = container.node.at(&["resources", "limits", "memory"]) else { return };
    let Some(memory) = node.text().and_then(bytes).filter(|memory| *memory < size) else { return };
    let better = format!("{}Mi", (memory >> 20).saturating_add(size >> 20));
    let request = container.node.at(&["resources", "requests", "memory"]);
    let mut edits = set_scalar(node, &Value::from(better.as_str())).map(|edit| vec![edit]);
    // What asks for exactly the limit goes on doing so: the class of the pod hangs on that.
    if let Some(request) = request.filter(|request| request.text() == node.text()) {
        let also = set_scalar(request, &Value::from(better.as_str()));
        edits = edits.zip(also).map(|(mut edits, also)| {
            edits.push(also);
            edits
        });
    }
    found.push(
        Finding::new(
            "K8S-03",
            Verdict::Fail,
            file,
            limit,
            format!(
                "/dev/shm may hold {}, the container's memory is {}",
                limit.text().unwrap_or(""),
                node.text().unwrap_or("")
            ),
        )
        .costs("what is in /dev/shm counts as memory: the pod is killed at 100 % of its limit, not told that it is full")
        .fixed_by(
            "raise the memory limit by what /dev/shm may hold",
            format!("resources:\n  limits:\n    memory: {better}\n"),
        )
        .edited(edits),
    );
}

/// Devices whose memory must be locked by hand; EFA's nodes lift the limit themselves.
fn needs_lock(pod: &Pod<'_>, container: &Container<'_>) -> bool {
    let devices = container.devices();
    let others =
        |name: &str| name.starts_with("vpc.amazonaws.com") || name.starts_with("networking.gke.io");
    let nodes = || {
        let mounts = container.node.get("volumeMounts").map_or(&[][..], Node::items);
        let is = |mount: &Node| mount.text_at(&["mountPath"]) == Some("/dev/infiniband");
        pod.on_host_network() && mounts.iter().any(is)
    };
    devices.iter().any(|(name, ..)| !others(name)) || nodes()
}

fn ipc_lock<'a>(set: &Set<'a>, pod: &Pod<'a>, container: &Container<'a>, found: &mut Vec<Finding>) {
    if !needs_lock(pod, container)
        || container.is_privileged()
        || container.has_capability("IPC_LOCK")
    {
        return;
    }
    let file = pod.resource.file;
    let yaml = "securityContext:\n  capabilities:\n    add: [\"IPC_LOCK\"]\n";
    found.push(
        Finding::new(
            "K8S-04",
            Verdict::Fail,
            file,
            container.node,
            format!("{}: RDMA devices without IPC_LOCK", container.name()),
        )
        .costs(
            "a container may lock 64 KiB by default: registering memory fails with \"ibv_reg_mr failed\" or \
             \"Unable to create QP\" while the port is active",
        )
        .fixed_by("add the capability; privileged is not needed for it", yaml)
        .edited(add_capability(set.text(file), container.node).map(|edit| vec![edit])),
    );
}

/// Adds IPC_LOCK to what a container may do.
fn add_capability(text: &str, container: &Node) -> Option<Edit> {
    let list = Value::list(["IPC_LOCK".into()]);
    let Some(context) = container.get("securityContext") else {
        let context = Value::map().with("capabilities", Value::map().with("add", list));
        return set_entry(text, container, "securityContext", &context);
    };
    let Some(capabilities) = context.get("capabilities") else {
        return match context.entries().is_empty() && !context.is_flow {
            true => None,
            false => set_entry(text, context, "capabilities", &Value::map().with("add", list)),
        };
    };
    match capabilities.get("add") {
        Some(add) if !add.items().is_empty() || add.is_flow => {
            add_item(text, add, &Value::from("IPC_LOCK"))
        }
        _ => set_entry(text, capabilities, "add", &list),
    }
}

fn privileged<'a>(
    set: &Set<'a>,
    pod: &Pod<'a>,
    container: &Container<'a>,
    found: &mut Vec<Finding>,
) {
    // What loads drivers must be; what computes need not.
    if !container.is_privileged() || !pod.is_of_collectives() || pod.role == Role::Daemon {
        return;
    }
    let file = pod.resource.file;
    let Some(context) = container.node.get("securityContext") else { return };
    let Some((_, node)) = context.entry("privileged") else { return };
    // Only where a plugin brings this container its devices is it known to work without.
    let by_plugin = pod.network() == Network::Devices && !container.devices().is_empty();
    let edits = by_plugin.then(|| unprivileged(set.text(file), container, context)).flatten();
    let fix = if by_plugin {
        "the device plugin brings the device nodes; IPC_LOCK is all that is left to ask for"
    } else {
        "let a device plugin bring the device nodes, and ask for IPC_LOCK alone; the resource's name is the plugin's"
    };
    let yaml = if by_plugin {
        "securityContext:\n  capabilities:\n    add: [\"IPC_LOCK\"]\n"
    } else {
        "securityContext:\n  capabilities:\n    add: [\"IPC_LOCK\"]\nresources:\n  limits:\n    rdma/rdma_shared_device_a: 1\n"
    };
    found.push(
        Finding::new("K8S-16", Verdict::Warn, file, node, format!("{}: privileged", container.name()))
            .costs(
                "all device nodes of the host, of every tenant (on 8 GPUs and 8 NICs 16 and more), and all 41 \
                 capabilities in place of 1",
            )
            .fixed_by(fix, yaml)
            .edited(edits),
    );
}

/// In one step: the key goes, the capability comes.
fn unprivileged(text: &str, container: &Container<'_>, context: &Node) -> Option<Vec<Edit>> {
    if container.has_capability("IPC_LOCK") {
        return remove_entry(text, context, "privileged").map(|edit| vec![edit]);
    }
    if context.entry("capabilities").is_some() {
        let gone = remove_entry(text, context, "privileged")?;
        return Some(vec![gone, add_capability(text, container.node)?]);
    }
    let add = Value::map().with("add", Value::list(["IPC_LOCK".into()]));
    replace_entry(text, context, "privileged", "capabilities", &add).map(|edit| vec![edit])
}

fn dns<'a>(set: &Set<'a>, pod: &Pod<'a>, found: &mut Vec<Finding>) {
    if !pod.on_host_network() || pod.role == Role::Daemon || !pod.is_of_collectives() {
        return;
    }
    let policy = pod.spec.get("dnsPolicy");
    if policy.is_some_and(|policy| policy.text() != Some("ClusterFirst")) {
        return;
    }
    let file = pod.resource.file;
    let Some((_, node)) = pod.spec.entry("hostNetwork") else { return };
    let value = Value::from("ClusterFirstWithHostNet");
    let edit = match policy {
        Some(_) => set_entry(set.text(file), pod.spec, "dnsPolicy", &value),
        None => add_entry(set.text(file), pod.spec, "dnsPolicy", &value),
    };
    found.push(
        Finding::new(
            "K8S-15",
            Verdict::Fail,
            file,
            policy.unwrap_or(node),
            "on the host's network, but with the cluster's names unknown",
        )
        .costs("0 of the job's pod and service names resolve: ranks wait for rank 0 until they give up")
        .fixed_by(
            "ask the cluster's DNS also from the host's network",
            "hostNetwork: true\ndnsPolicy: ClusterFirstWithHostNet\n",
        )
        .edited(edit.map(|edit| vec![edit])),
    );
}
