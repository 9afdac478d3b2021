//! Variables whose fault the manifest itself shows. What is wrong with their names and values alone is `env lint`'s.

use super::{Finding, Verdict};
use crate::model::{Container, Network, Pod, Set, Setting, settings};
use crate::yaml::Node;

pub(super) fn check(set: &Set<'_>, found: &mut Vec<Finding>) {
    for setting in settings(set) {
        let pod = &set.pods[setting.pod];
        match setting.name.as_str() {
            "NCCL_ALGO" | "NCCL_PROTO" => pinned(set, &setting, found),
            "NCCL_IB_GID_INDEX" => gid(set, pod, &setting, found),
            "NCCL_SOCKET_IFNAME" | "GLOO_SOCKET_IFNAME" => interface(set, pod, &setting, found),
            "NCCL_IB_DISABLE" | "NCCL_NET" => switched_off(set, pod, &setting, found),
            "NCCL_TOPO_FILE" => topology_file(set, pod, &setting, found),
            _ => {}
        }
    }
}

fn finding(
    set: &Set<'_>,
    setting: &Setting<'_>,
    id: &'static str,
    verdict: Verdict,
    title: String,
) -> Finding {
    Finding::new(id, verdict, setting.file, setting.node, title)
        .within(set.text(setting.file), setting.span.clone())
}

fn pinned(set: &Set<'_>, setting: &Setting<'_>, found: &mut Vec<Finding>) {
    let Some(value) = setting.value.as_deref().filter(|value| !value.is_empty()) else { return };
    let (cost, verdict) = match setting.name.as_str() {
        "NCCL_ALGO" => (
            "a pinned Tree gave 50 of 200 GB/s at large sizes; a pinned Ring costs latency at small ones",
            Verdict::Warn,
        ),
        _ if !value.starts_with('^') && value.to_ascii_uppercase().contains("LL128") => {
            ("wrong results without a word where 128-byte stores are not kept whole", Verdict::Fail)
        }
        _ => (
            "LL carries 4 bytes of data in 8: half the bandwidth; Simple alone costs latency at small sizes",
            Verdict::Warn,
        ),
    };
    let title = format!("{}={value} for all sizes", setting.name);
    found.push(
        finding(set, setting, "K8S-23", verdict, title)
            .costs(cost)
            .fixed_by(format!("take {} out: NCCL chooses by size", setting.name), "")
            .edited(setting.remove.clone()),
    );
}

fn gid(set: &Set<'_>, pod: &Pod<'_>, setting: &Setting<'_>, found: &mut Vec<Finding>) {
    let Some(value) = setting.value.as_deref().filter(|v| v.parse::<u32>().is_ok()) else { return };
    let pods = if pod.on_host_network() { "hosts" } else { "pods" };
    let title = format!("GID index {value} for all {pods}");
    found.push(
        finding(set, setting, "K8S-24", Verdict::Warn, title)
            .costs(
                "the same address has index 5 in one pod and 7 in another (macvlan, SR-IOV): 0 connections, \
                 \"Network is unreachable\" or completion error 12",
            )
            .fixed_by(
                "take it out: NCCL 2.21 and later find the RoCE v2 entry; older ones take this in its place",
                "- name: NCCL_IB_ROCE_VERSION_NUM\n  value: \"2\"\n",
            )
            .edited(setting.remove.clone()),
    );
}

fn interface(set: &Set<'_>, pod: &Pod<'_>, setting: &Setting<'_>, found: &mut Vec<Finding>) {
    let Some(value) = setting.value.as_deref() else { return };
    if value.is_empty() || value.starts_with('^') {
        return;
    }
    // What a launcher sets holds in the workers.
    let pod = set.worker_of(pod);
    let exact = value.starts_with('=');
    let names: Vec<&str> = value.trim_start_matches('=').split(',').map(str::trim).collect();
    let local = ["lo", "docker", "virbr", "veth", "cni", "mlx5", "bnxt_re", "ionic_"];
    let only_local = |name: &&str| local.iter().any(|local| name.starts_with(local));
    let fits = |there: &String| {
        names.iter().any(|name| if exact { there == name } else { there.starts_with(name) })
    };
    let missing = pod.interfaces().filter(|there| !there.iter().any(fits));
    let title = if names.iter().all(only_local) {
        format!("{}={value}: no other host is reached by it", setting.name)
    } else if let Some(there) = missing {
        let there: Vec<String> = there.into_iter().filter(|name| name != "lo").collect();
        let many = if there.len() > 3 {
            format!("{} … {}", there[0], there[there.len() - 1])
        } else {
            there.join(", ")
        };
        format!("{}={value}: the pod has {many} and no such interface", setting.name)
    } else {
        return;
    };
    let edits = pod.interfaces().and_then(|_| setting.set("eth0"));
    found.push(
        finding(set, setting, "K8S-25", Verdict::Fail, title)
            .costs("\"no socket interface found\": 0 of the ranks meet")
            .fixed_by(
                "the pod's own interface is eth0; networks beside it are net1, net2, …",
                format!("- name: {}\n  value: eth0\n", setting.name),
            )
            .edited(edits),
    );
}

fn switched_off(set: &Set<'_>, pod: &Pod<'_>, setting: &Setting<'_>, found: &mut Vec<Finding>) {
    let Some(value) = setting.value.as_deref() else { return };
    let off = match setting.name.as_str() {
        "NCCL_NET" => value.eq_ignore_ascii_case("socket"),
        _ => value == "1",
    };
    let same = |other: &&Pod<'_>| std::ptr::eq(other.resource.node, pod.resource.node);
    let device = set
        .pods
        .iter()
        .filter(same)
        .filter(|pod| pod.network() == Network::Devices)
        .flat_map(|pod| &pod.containers)
        .flat_map(Container::devices)
        // EFA and GKE's networks have plugins of their own, which that variable leaves alone.
        .find(|(name, ..)| {
            let others = ["vpc.amazonaws.com/", "networking.gke.io"];
            setting.name == "NCCL_NET" || !others.iter().any(|other| name.starts_with(other))
        });
    let Some((name, ..)) = device.filter(|_| off) else { return };
    found.push(
        finding(
            set,
            setting,
            "K8S-26",
            Verdict::Fail,
            format!("{}={value}, though the pods ask for {name}", setting.name),
        )
        .costs("25 to 5 GB/s on one 200 Gb/s port, while the device is taken and idle")
        .fixed_by(format!("take {} out", setting.name), "")
        .edited(setting.remove.clone()),
    );
}

fn topology_file(set: &Set<'_>, pod: &Pod<'_>, setting: &Setting<'_>, found: &mut Vec<Finding>) {
    let Some(path) = setting.value.as_deref().filter(|value| value.starts_with('/')) else {
        return;
    };
    let pod = set.worker_of(pod);
    let mounts = pod
        .containers
        .iter()
        .flat_map(|container| container.node.get("volumeMounts").map_or(&[][..], Node::items));
    let covers = |mount: &Node| {
        mount.text_at(&["mountPath"]).is_some_and(|at| {
            let at = at.trim_end_matches('/');
            path == at || path.strip_prefix(at).is_some_and(|rest| rest.starts_with('/'))
        })
    };
    // Files that come with images: those of the plugins' installers.
    let in_image = ["/opt/", "/usr/"].iter().any(|folder| path.starts_with(folder));
    if mounts.into_iter().any(covers) {
        return;
    }
    let verdict = if in_image { Verdict::Hint } else { Verdict::Fail };
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    found.push(
        finding(set, setting, "K8S-14", verdict, format!("{path} is mounted by no volume"))
            .costs("NCCL goes on without it: in virtual machines 25 to 56 % of the bandwidth of bare metal")
            .fixed_by(
                "mount it from a ConfigMap, unless the image has it",
                format!(
                    "volumeMounts:\n- name: topology\n  mountPath: {folder}\nvolumes:\n- name: topology\n  configMap:\n    \
                     name: <with the key {file}>\n"
                ),
            ),
    );
}
