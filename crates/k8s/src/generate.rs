//! Manifests out of a few choices: workloads, the doctor and the exporter on every node, and what a cluster's operator applies once.
//!
//! *Invariant*: what is generated is what [`crate::check`] finds nothing wrong with.

mod cluster;
mod doctor;
mod exporter;
mod job;
mod jobset;
mod lws;
mod mpijob;
mod network;
mod node;
mod pod;
#[cfg(test)]
pub(crate) mod tests;

use crate::model::bytes;
use crate::write::Value;

/// What is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// An indexed Job with a headless Service.
    Job,
    /// A JobSet.
    JobSet,
    /// An MPIJob: launcher and workers.
    MpiJob,
    /// A LeaderWorkerSet.
    LeaderWorkerSet,
    /// The doctor on every node.
    Doctor,
    /// The exporter on every node.
    Exporter,
    /// What the cluster needs: operators' policies, networks, OpenShift's machine configuration.
    Cluster,
}

/// Whose GPUs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
}

/// How pods reach each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Net {
    /// The host's network, RDMA devices by the shared device plugin.
    Host,
    /// RDMA devices by the shared device plugin, no network beside the pod's.
    Rdma,
    /// Functions of their own, by SR-IOV.
    Sriov,
    /// Shared RDMA devices, with macvlan interfaces.
    Macvlan,
    /// Shared RDMA devices, with ipvlan interfaces.
    Ipvlan,
    /// AWS's Elastic Fabric Adapter.
    Efa,
    /// The pod's own network: TCP.
    Pod,
}

/// What links are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Link {
    /// InfiniBand.
    Ib,
    /// Ethernet, RoCE.
    Eth,
}

/// One variable with the reason for it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Why.
    pub why: String,
}

/// All choices.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Choices {
    /// What is made.
    pub kind: Kind,
    /// Whose GPUs.
    pub vendor: Vendor,
    /// How pods reach each other.
    pub net: Net,
    /// What links are.
    pub link: Link,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// What runs.
    pub image: String,
    /// Pods, one a node.
    pub nodes: u64,
    /// GPUs of a node.
    pub gpus: u64,
    /// NICs of a node for collectives.
    pub nics: u64,
    /// The resource by which NICs are asked for, without its domain; the domain follows from the network.
    pub resource: String,
    /// Interfaces of the node that carry networks.
    pub masters: Vec<String>,
    /// Frames.
    pub mtu: u64,
    /// What /dev/shm may hold.
    pub shm: String,
    /// The label whose value the nodes of a job should share.
    pub topology: Option<String>,
    /// Nodes with these labels.
    pub selector: Vec<(String, String)>,
    /// The program; the benchmark where it is empty.
    pub command: Vec<String>,
    /// Its variables.
    pub variables: Vec<Variable>,
    /// Whether the cluster is OpenShift.
    pub openshift: bool,
    /// Whether storage is read straight into GPU memory.
    pub gds: bool,
}

impl Choices {
    fn metadata(&self, name: &str) -> Value {
        Value::map().with("name", name).with("namespace", self.namespace.as_str())
    }

    fn gpu_resource(&self) -> &'static str {
        match self.vendor {
            Vendor::Nvidia => "nvidia.com/gpu",
            Vendor::Amd => "amd.com/gpu",
        }
    }
}

/// Why choices do not fit together.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Misfit(String);

/// The manifest, ready for kubectl.
pub fn manifest(choices: &Choices) -> Result<String, Misfit> {
    fit(choices)?;
    let mut documents = match choices.kind {
        Kind::Job => job::documents(choices),
        Kind::JobSet => jobset::documents(choices),
        Kind::MpiJob => mpijob::documents(choices),
        Kind::LeaderWorkerSet => lws::documents(choices),
        Kind::Doctor => doctor::documents(choices),
        Kind::Exporter => exporter::documents(choices),
        Kind::Cluster => cluster::documents(choices),
    };
    if !matches!(choices.kind, Kind::Doctor | Kind::Exporter | Kind::Cluster) {
        documents.extend(pod::beside(choices));
    }
    Ok(documents.iter().map(|document| document.block(0)).collect::<Vec<_>>().join("---\n"))
}

fn fit(choices: &Choices) -> Result<(), Misfit> {
    let no = |text: String| Err(Misfit(text));
    if choices.nodes == 0 || choices.gpus == 0 || choices.nics == 0 {
        return no("a job needs at least 1 node, 1 GPU and 1 NIC".to_owned());
    }
    for (what, most, count) in
        [("nodes", 100_000, choices.nodes), ("GPUs", 64, choices.gpus), ("NICs", 64, choices.nics)]
    {
        if count > most {
            return no(format!("{count} {what}: the most is {most}"));
        }
    }
    words_fit(choices)?;
    let program =
        choices.command.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
    if choices.kind == Kind::MpiJob && matches!(program, "torchrun" | "accelerate" | "deepspeed") {
        return no(format!(
            "{program} starts a rank for each GPU, and mpirun would start {program} for each: give mpijob the program \
             itself, or take job, jobset or lws"
        ));
    }
    if choices.net == Net::Efa && choices.vendor == Vendor::Amd {
        return no("EFA comes with NVIDIA's GPUs: AWS has no instances with AMD's".to_owned());
    }
    if matches!(choices.net, Net::Macvlan | Net::Ipvlan) && choices.link == Link::Ib {
        return no(
            "macvlan and ipvlan are of Ethernet: take --network rdma or sriov with --link ib"
                .to_owned(),
        );
    }
    if matches!(choices.net, Net::Macvlan | Net::Ipvlan)
        && choices.masters.len() as u64 != choices.nics
    {
        return no(format!(
            "{} NICs but {} interfaces: name one interface of the node for each NIC, as --master ens1f0np0,ens2f0np0",
            choices.nics,
            choices.masters.len()
        ));
    }
    if choices.gds && choices.vendor == Vendor::Amd {
        return no("GPUDirect Storage is of NVIDIA's GPUs".to_owned());
    }
    Ok(())
}

/// What is written into the manifest as a name must be one there.
fn words_fit(choices: &Choices) -> Result<(), Misfit> {
    let no = |text: String| Err(Misfit(text));
    let is_low = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    // Services, which carry the name, want a letter first; a namespace may begin with a digit.
    for (what, text, first, begins) in [
        (
            "the name",
            &choices.name,
            "a letter first",
            choices.name.starts_with(|c: char| c.is_ascii_lowercase()),
        ),
        ("the namespace", &choices.namespace, "no - first", choices.namespace.starts_with(is_low)),
    ] {
        let fits = (1..=50).contains(&text.len())
            && begins
            && text.ends_with(is_low)
            && text.chars().all(|c| is_low(c) || c == '-');
        if !fits {
            return no(format!(
                "{text:?} cannot be {what}: up to 50 of a to z, 0 to 9 and -, {first} and no - last"
            ));
        }
    }
    let resource = &choices.resource;
    let fits = (1..=50).contains(&resource.len())
        && resource.starts_with(is_low)
        && resource.ends_with(is_low)
        && resource.chars().all(|c| is_low(c) || c == '-' || c == '_');
    if !fits {
        return no(format!(
            "{resource:?} cannot be the resource: up to 50 of a to z, 0 to 9, - and _, with a letter or digit at its ends"
        ));
    }
    for master in &choices.masters {
        let is_of_it = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !(1..=15).contains(&master.len()) || !master.chars().all(is_of_it) {
            return no(format!(
                "{master:?} is no interface: up to 15 letters, digits, and . _ -, as ens1f0np0"
            ));
        }
    }
    for key in choices.selector.iter().map(|(key, _)| key).chain(&choices.topology) {
        if !is_label_key(key) {
            return no(format!("{key:?} is no label: as pool, or example.com/pool"));
        }
    }
    for (key, value) in &choices.selector {
        if !value.is_empty() && !is_label_part(value) {
            return no(format!(
                "{value:?} cannot be the value of the label {key}: up to 63 letters, digits, and - _ . between them"
            ));
        }
    }
    if bytes(&choices.shm).is_none_or(|size| !(1 << 30..1 << 50).contains(&size)) {
        return no(format!(
            "/dev/shm of {:?}: at least 1Gi and below 1024Ti, written as 16Gi",
            choices.shm
        ));
    }
    Ok(())
}

fn is_label_key(key: &str) -> bool {
    let is_prefix = |text: &str| {
        let is_low = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        text.len() <= 253
            && text.split('.').all(|part| {
                part.starts_with(is_low)
                    && part.ends_with(is_low)
                    && part.chars().all(|c| is_low(c) || c == '-')
            })
    };
    match key.split_once('/') {
        Some((prefix, name)) => is_prefix(prefix) && is_label_part(name),
        None => is_label_part(key),
    }
}

fn is_label_part(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    (1..=63).contains(&text.len())
        && text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(|c| is_end(c) || "-_.".contains(c))
}
