//! The pods that an object makes, and what they are to each other.

use super::{Container, Resource};
use crate::yaml::Node;

/// The annotation that Multus reads.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// What a pod is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// One of several that compute together.
    Worker,
    /// Starts others, computes nothing.
    Launcher,
    /// One on each node.
    Daemon,
    /// By itself, or one of several alike that know nothing of each other.
    Single,
}

/// How a pod reaches others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Network {
    /// Devices of a plugin: RDMA, SR-IOV, EFA, or a claim.
    Devices,
    /// The host's own network and device nodes.
    Host,
    /// Networks beside the pod's own, by annotation.
    Secondary,
    /// The pod's own network alone.
    Pod,
}

/// One template of pods.
#[derive(Clone, Debug)]
pub struct Pod<'a> {
    /// What makes it.
    pub resource: Resource<'a>,
    /// What it is for.
    pub role: Role,
    /// How many compute together, where that is written: those of all groups of the object.
    pub count: Option<u64>,
    /// Counts that may be meant as well: where an object holds several jobs, those of one.
    pub parts: Vec<u64>,
    /// Where the count stands.
    pub count_node: Option<&'a Node>,
    /// The template: `metadata` and `spec`.
    pub template: &'a Node,
    /// Its `spec`.
    pub spec: &'a Node,
    /// Its containers, those that run before the others first.
    pub containers: Vec<Container<'a>>,
}

/// The pods of an object.
pub(super) fn of<'a>(resource: Resource<'a>) -> Vec<Pod<'a>> {
    let mut found = Vec::new();
    let Some(spec) = resource.spec() else { return found };
    let mut add = |role: Role, count: Option<&'a Node>, times: u64, template: Option<&'a Node>| {
        found.extend(template.and_then(|template| made(resource, role, (count, times), template)));
    };
    // Others have a Job, too.
    let kind = if resource.group() == "batch" { resource.kind } else { "" };
    match if resource.kind == "Job" { kind } else { resource.kind } {
        "Pod" => add(Role::Single, None, 1, Some(resource.node)),
        "Job" => job(spec, 1, false, &mut add),
        "CronJob" => {
            if let Some(spec) = spec.at(&["jobTemplate", "spec"]) {
                job(spec, 1, false, &mut add);
            }
        }
        "DaemonSet" => add(Role::Daemon, None, 1, spec.get("template")),
        "StatefulSet" => add(Role::Single, spec.get("replicas"), 1, spec.get("template")),
        "JobSet" => {
            for one in spec.get("replicatedJobs").map_or(&[][..], Node::items) {
                let times = one.get("replicas").and_then(Node::number).unwrap_or(1);
                if let Some(spec) = one.at(&["template", "spec"]) {
                    // Those of a set have indices where they say nothing else.
                    let several = spec.get("completions").and_then(Node::number) > Some(1);
                    let free = spec.text_at(&["completionMode"]).is_none() && several;
                    job(spec, times, free, &mut add);
                }
            }
            together(&mut found, true);
        }
        "LeaderWorkerSet" => {
            let Some(both) = spec.get("leaderWorkerTemplate") else { return found };
            add(Role::Worker, both.get("size"), 1, both.get("leaderTemplate"));
            add(Role::Worker, both.get("size"), 1, both.get("workerTemplate"));
        }
        "RayCluster" => {
            add(Role::Single, None, 1, spec.at(&["headGroupSpec", "template"]));
            for group in spec.get("workerGroupSpecs").map_or(&[][..], Node::items) {
                add(Role::Worker, group.get("replicas"), 1, group.get("template"));
            }
        }
        _ => {
            // Volcano's jobs are lists of tasks.
            let tasks = spec.get("tasks").map_or(&[][..], Node::items);
            for one in tasks.iter().filter(|one| one.get("template").is_some()) {
                add(Role::Worker, one.get("replicas"), 1, one.get("template"));
            }
            // Kubeflow's jobs: MPIJob, PyTorchJob and their kin.
            let specs = spec
                .entries()
                .iter()
                .find(|(key, _)| key.text().is_some_and(|key| key.ends_with("ReplicaSpecs")));
            match specs {
                Some((_, specs)) => {
                    for (name, one) in specs.entries() {
                        let role = match name.text() {
                            Some("Launcher") => Role::Launcher,
                            _ => Role::Worker,
                        };
                        add(role, one.get("replicas"), 1, one.get("template"));
                    }
                    together(&mut found, false);
                }
                None if !tasks.is_empty() => together(&mut found, false),
                None => {}
            }
        }
    }
    if found.is_empty() {
        anywhere(resource.node, 0, &mut |template| {
            found.extend(made(resource, Role::Single, (None, 1), template));
        });
    }
    found
}

fn made<'a>(
    resource: Resource<'a>,
    role: Role,
    (count_node, times): (Option<&'a Node>, u64),
    template: &'a Node,
) -> Option<Pod<'a>> {
    let spec = template.get("spec")?;
    let has_networks = template.at(&["metadata", "annotations", NETWORKS]).is_some();
    let each = count_node.and_then(Node::number);
    let count = each.map(|count| count.saturating_mul(times));
    Some(Pod {
        resource,
        role,
        count,
        parts: each.into_iter().chain(count).collect(),
        count_node,
        template,
        spec,
        containers: Container::all(spec, has_networks),
    })
}

/// Groups of one object with GPUs compute together: a master and its workers, a leader and its. Where they may also
/// be jobs of their own, the counts of each stay beside.
fn together(pods: &mut [Pod<'_>], may_be_apart: bool) {
    let is_one = |pod: &Pod<'_>| pod.role != Role::Launcher && pod.gpus() > 0;
    let groups = pods.iter().filter(|pod| is_one(pod)).count();
    // A group without a count is of one pod.
    let sum = |sum: u64, pod: &Pod<'_>| sum.saturating_add(pod.count.unwrap_or(1));
    let all = pods.iter().filter(|pod| is_one(pod)).fold(0, sum);
    for pod in pods.iter_mut().filter(|pod| is_one(pod)) {
        if groups > 1 {
            (pod.role, pod.count) = (Role::Worker, Some(all));
        }
        if !may_be_apart {
            pod.parts.clear();
        }
    }
}

/// Pods of a job compute together where each has an index.
fn job<'a>(
    spec: &'a Node,
    times: u64,
    by_default: bool,
    add: &mut impl FnMut(Role, Option<&'a Node>, u64, Option<&'a Node>),
) {
    let count = spec.get("parallelism").or_else(|| spec.get("completions"));
    let indexed = by_default || spec.text_at(&["completionMode"]) == Some("Indexed");
    let role = match indexed || times > 1 || count.and_then(Node::number) > Some(1) {
        true => Role::Worker,
        false => Role::Single,
    };
    add(role, count, times, spec.get("template"));
}

/// Templates in kinds that are not known: whatever has a `spec` with `containers`.
fn anywhere<'a>(node: &'a Node, depth: usize, see: &mut impl FnMut(&'a Node)) {
    if depth > 12 {
        return;
    }
    if node.at(&["spec", "containers"]).is_some_and(|list| !list.items().is_empty()) {
        see(node);
        return;
    }
    for (_, value) in node.entries() {
        anywhere(value, depth + 1, see);
    }
    for item in node.items() {
        anywhere(item, depth + 1, see);
    }
}

impl<'a> Pod<'a> {
    /// GPUs of all its containers.
    pub fn gpus(&self) -> u64 {
        self.containers.iter().map(Container::gpus).fold(0, u64::saturating_add)
    }

    /// Whether it and others on other nodes compute together.
    pub fn is_across_nodes(&self) -> bool {
        self.role == Role::Worker && self.count.unwrap_or(1) > 1 && self.gpus() > 0
    }

    /// Whether it is about collectives: it has GPUs or RDMA devices, or starts those that do.
    pub fn is_of_collectives(&self) -> bool {
        self.role == Role::Launcher
            || self.containers.iter().any(|c| c.gpus() > 0 || !c.devices().is_empty())
    }

    /// Whether it has the host's memory between processes, and with it the host's /dev/shm.
    pub fn on_host_ipc(&self) -> bool {
        self.spec.get("hostIPC").and_then(Node::truth) == Some(true)
    }

    /// Whether it uses the host's network.
    pub fn on_host_network(&self) -> bool {
        self.spec.get("hostNetwork").and_then(Node::truth) == Some(true)
    }

    /// An annotation of the pod.
    pub fn annotation(&self, name: &str) -> Option<&'a Node> {
        self.template.at(&["metadata", "annotations", name])
    }

    /// How it reaches others.
    pub fn network(&self) -> Network {
        let claims = self.spec.get("resourceClaims").is_some_and(|list| !list.items().is_empty());
        let devices = self.containers.iter().any(|container| !container.devices().is_empty());
        let privileged = self.containers.iter().any(Container::is_privileged);
        let nodes = self.volumes().any(|volume| {
            volume.text_at(&["hostPath", "path"]).is_some_and(|p| p.starts_with("/dev/infiniband"))
        });
        if devices {
            Network::Devices
        } else if privileged && (self.on_host_network() || nodes) {
            Network::Host
        } else if !self.networks().is_empty()
            || self.annotation("networking.gke.io/interfaces").is_some()
        {
            Network::Secondary
        } else if claims && !self.on_host_network() {
            Network::Devices
        } else {
            Network::Pod
        }
    }

    /// Networks of the annotation that Multus reads, by name.
    pub fn networks(&self) -> Vec<String> {
        let Some(text) = self.annotation(NETWORKS).and_then(Node::text) else {
            return Vec::new();
        };
        if text.trim_start().starts_with('[') {
            let list: Vec<serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
            let name = |one: &serde_json::Value| Some(one.get("name")?.as_str()?.to_owned());
            return list.iter().filter_map(name).collect();
        }
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect()
    }

    /// Its interfaces, where the manifest tells them all: the pod's own, and those of other networks.
    pub fn interfaces(&self) -> Option<Vec<String>> {
        if self.on_host_network() {
            return None;
        }
        let mut found = vec!["eth0".to_owned(), "lo".to_owned()];
        for index in 1..=self.networks().len() {
            found.push(format!("net{index}"));
        }
        let texts = [self.annotation(NETWORKS), self.annotation("networking.gke.io/interfaces")];
        for text in texts.into_iter().flatten().filter_map(Node::text) {
            for part in text.split(',').filter_map(|part| part.split_once('@')) {
                found.push(part.1.trim().to_owned());
            }
            let list: Vec<serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
            for key in ["interface", "interfaceName"] {
                let names = list.iter().filter_map(|one| one.get(key)?.as_str());
                found.extend(names.map(str::to_owned));
            }
        }
        Some(found)
    }

    /// Its volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &'a Node> {
        self.spec.get("volumes").map_or(&[][..], Node::items).iter()
    }

    /// The volume that a container mounts at a path, and the mount.
    pub fn mounted_at(
        &self,
        container: &Container<'a>,
        path: &str,
    ) -> Option<(&'a Node, &'a Node)> {
        let mounts = container.node.get("volumeMounts").map_or(&[][..], Node::items);
        let mount = mounts.iter().find(|mount| {
            mount.text_at(&["mountPath"]).map(|at| at.trim_end_matches('/')) == Some(path)
        })?;
        let name = mount.text_at(&["name"])?;
        let volume = self.volumes().find(|volume| volume.text_at(&["name"]) == Some(name))?;
        Some((volume, mount))
    }
}
