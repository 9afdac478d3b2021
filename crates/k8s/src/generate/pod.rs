//! The pod that all workloads share.

use super::network;
use super::{Choices, Kind, Net, Vendor};
use crate::write::{Entry, Value, item};

/// The port on which rank 0 is met.
pub(super) const PORT: u64 = 29_400;
const CUFILE: &str = "/etc/cufile/cufile.json";

/// Label by which the pods of a job are found.
pub(super) fn labels(choices: &Choices) -> Value {
    Value::map().with("app.kubernetes.io/name", choices.name.as_str())
}

/// The template: labels, annotations, spec.
pub(super) fn template(
    choices: &Choices,
    variables: Vec<Entry>,
    command: Value,
    restart: &str,
) -> Value {
    let mut metadata = Value::map().with("labels", labels(choices));
    if let Some((why, networks)) = network::annotation(choices) {
        let annotations = Value::map().because(&why, "k8s.v1.cni.cncf.io/networks", networks);
        metadata = metadata.with("annotations", annotations);
    }
    Value::map().with("metadata", metadata).with("spec", spec(choices, variables, command, restart))
}

fn spec(choices: &Choices, variables: Vec<Entry>, command: Value, restart: &str) -> Value {
    let mut spec = around(choices, Value::map());
    if choices.kind == Kind::Job {
        spec = spec.because(
            "Pods are found by name: NAME-0.NAME is rank 0.",
            "subdomain",
            choices.name.as_str(),
        );
    }
    if !restart.is_empty() {
        spec = spec.with("restartPolicy", restart);
    }
    spec = placed(choices, spec);
    let mut mounts = vec![Value::map().with("name", "dshm").with("mountPath", "/dev/shm")];
    if choices.gds {
        mounts.push(
            Value::map()
                .with("name", "cufile")
                .with("mountPath", "/etc/cufile")
                .with("readOnly", true),
        );
    }
    let container = Value::map()
        .with("name", "worker")
        .with("image", choices.image.as_str())
        .with("command", command)
        .with("env", Value::List(variables));
    let container = secured(choices, container);
    let container = limited(choices, container).with("volumeMounts", Value::list(mounts));
    spec.with("containers", Value::list([container])).with("volumes", volumes(choices))
}

/// The host's network, and who the pod is.
pub(super) fn around(choices: &Choices, spec: Value) -> Value {
    let mut spec = spec;
    if choices.net == Net::Host {
        spec = spec.with("hostNetwork", true).because(
            "Names of the cluster resolve also from the host's network.",
            "dnsPolicy",
            "ClusterFirstWithHostNet",
        );
    }
    if choices.openshift {
        spec = spec.with("serviceAccountName", choices.name.as_str());
    }
    spec
}

/// Where it runs.
pub(super) fn placed(choices: &Choices, spec: Value) -> Value {
    let mut spec = spec;
    if !choices.selector.is_empty() {
        let labels = choices.selector.iter();
        let labels = labels.fold(Value::map(), |map, (key, value)| map.with(key, value.as_str()));
        spec = spec.with("nodeSelector", labels);
    }
    let toleration = Value::map()
        .with("key", choices.gpu_resource())
        .with("operator", "Exists")
        .with("effect", "NoSchedule");
    spec = spec.with("tolerations", Value::list([toleration]));
    if choices.nodes > 1 {
        let key = choices.topology.as_deref().unwrap_or("topology.kubernetes.io/zone");
        let term = Value::map()
            .with("topologyKey", key)
            .with("labelSelector", Value::map().with("matchLabels", labels(choices)));
        let one = Value::map().with("weight", 100_u64).with("podAffinityTerm", term);
        let near = Value::map()
            .with("preferredDuringSchedulingIgnoredDuringExecution", Value::list([one]));
        spec = spec.because(
            "Near each other where that can be: traffic between leaves pays their oversubscription.",
            "affinity",
            Value::map().with("podAffinity", near),
        );
    }
    spec
}

fn secured(choices: &Choices, container: Value) -> Value {
    if matches!(choices.net, Net::Pod | Net::Efa) {
        return container;
    }
    let add = Value::map().with("add", Value::list(["IPC_LOCK".into()]));
    container.because(
        "RDMA locks its memory; that is all it needs. Not privileged.",
        "securityContext",
        Value::map().with("capabilities", add),
    )
}

/// GPUs and NICs.
fn limited(choices: &Choices, container: Value) -> Value {
    let mut limits = Value::map().with(choices.gpu_resource(), choices.gpus);
    if let Some((name, count)) = network::device(choices) {
        limits = limits.with(&name, count);
    }
    let resources = Value::map().with("limits", limits);
    if choices.net == Net::Pod && choices.nodes > 1 {
        let why = "ringway: allow K8S-01 TCP on the pod network is what was asked for";
        return container.because(why, "resources", resources);
    }
    container.with("resources", resources)
}

fn volumes(choices: &Choices) -> Value {
    let memory = Value::map().with("medium", "Memory").because(
        "It counts as the pod's memory.",
        "sizeLimit",
        choices.shm.as_str(),
    );
    let mut list = vec![Value::map().with("name", "dshm").with("emptyDir", memory)];
    if choices.gds {
        let map = Value::map().with("name", format!("{}-cufile", choices.name));
        list.push(Value::map().with("name", "cufile").with("configMap", map));
    }
    Value::list(list)
}

/// Variables of the choices, each with its reason.
pub(super) fn variables(choices: &Choices) -> Vec<Entry> {
    let mut list: Vec<Entry> =
        choices.variables.iter().map(|one| item(&one.why, plain(&one.name, &one.value))).collect();
    if choices.gds {
        list.push(item(
            "The container toolkit brings the device nodes of nvidia-fs.",
            plain("NVIDIA_GDS", "enabled"),
        ));
        list.push(item(
            "Where libcufile finds its settings.",
            plain("CUFILE_ENV_PATH_JSON", CUFILE),
        ));
    }
    list
}

/// A variable with this value.
pub(super) fn plain(name: &str, value: &str) -> Value {
    Value::map().with("name", name).with("value", value)
}

/// A variable out of the pod's own fields.
pub(super) fn field(name: &str, path: &str) -> Value {
    let from = Value::map().with("fieldRef", Value::map().with("fieldPath", path));
    Value::map().with("name", name).with("valueFrom", from)
}

/// How the pods of a job find each other: for the benchmark what Kubernetes does not tell by itself, for programs torchrun's
/// variables. `index` is the field that says which of the pods this is.
pub(super) fn meeting(choices: &Choices, root: &str, index: &str) -> Vec<Entry> {
    let nodes = choices.nodes.to_string();
    if choices.command.is_empty() {
        let mut list = Vec::new();
        if choices.kind != Kind::LeaderWorkerSet {
            list.push(item(
                "How many pods there are; which of them this is, Kubernetes says in JOB_COMPLETION_INDEX.",
                plain("RINGWAY_SIZE", &nodes),
            ));
        }
        list.push(item("Where rank 0 is met.", plain("RINGWAY_ROOT", &format!("{root}:{PORT}"))));
        return list;
    }
    vec![
        item(
            "torchrun reads its options from PET_ variables: which of the pods this is,",
            field("PET_NODE_RANK", index),
        ),
        item("how many there are,", plain("PET_NNODES", &nodes)),
        item("one rank for each GPU,", plain("PET_NPROC_PER_NODE", &choices.gpus.to_string())),
        item("and where rank 0 is met.", plain("PET_MASTER_ADDR", root)),
        item("Its port.", plain("PET_MASTER_PORT", &PORT.to_string())),
    ]
}

/// The program, or the benchmark.
pub(super) fn command(choices: &Choices) -> Value {
    let words: Vec<String> = match choices.command.is_empty() {
        false => choices.command.clone(),
        true => {
            let gpus = choices.gpus.to_string();
            let bench = [
                "ringway",
                "perf",
                "all_reduce",
                "--memory",
                "cuda",
                "-g",
                &gpus,
                "-b",
                "8",
                "-e",
                "4G",
                "-f",
                "2",
            ];
            bench.map(str::to_owned).to_vec()
        }
    };
    Value::list(words.into_iter().map(Value::from))
}

/// What stands beside a workload: its account, its settings.
pub(super) fn beside(choices: &Choices) -> Vec<Value> {
    let mut documents = network::attachments(choices);
    if choices.openshift {
        documents.push(account(choices));
    }
    if choices.gds && choices.vendor == Vendor::Nvidia {
        let settings = "{\n  \"properties\": {\n    \"allow_compat_mode\": false\n  }\n}\n";
        let data = Value::map().because(
            "Reads that cannot go straight to the GPU are an error, in place of a slow way that nobody sees.",
            "cufile.json",
            Value::Lines(settings.to_owned()),
        );
        documents.push(
            Value::map()
                .with("apiVersion", "v1")
                .with("kind", "ConfigMap")
                .with("metadata", choices.metadata(&format!("{}-cufile", choices.name)))
                .with("data", data),
        );
    }
    documents
}

/// The account by which OpenShift knows what pods may do.
pub(super) fn account(choices: &Choices) -> Value {
    Value::map()
        .with("apiVersion", "v1")
        .with("kind", "ServiceAccount")
        .with("metadata", choices.metadata(&choices.name))
}

/// A headless service: the pods' names resolve to their addresses, before they are ready, too.
pub(super) fn service(choices: &Choices) -> Value {
    let spec = Value::map()
        .with("clusterIP", "None")
        .because("Ranks meet before any of them is ready.", "publishNotReadyAddresses", true)
        .with("selector", labels(choices));
    Value::map()
        .with("apiVersion", "v1")
        .with("kind", "Service")
        .with("metadata", choices.metadata(&choices.name))
        .with("spec", spec)
}
