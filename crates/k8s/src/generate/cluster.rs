//! What the operator of a cluster applies once: policies of the GPU and network operators, OpenShift's settings.

use super::{Choices, Net, Vendor, network};
use crate::write::Value;

/// Releases of the network operator and its driver, as of 2025-10; others are named in its release notes.
const NETWORK_OPERATOR: &str = "network-operator-v25.10.0";
const NIC_DRIVER: &str = "doca3.2.0-25.10-1.2.8.0-2";
const REPOSITORY: &str = "nvcr.io/nvidia/mellanox";

pub(super) fn documents(choices: &Choices) -> Vec<Value> {
    let mut documents = vec![match choices.vendor {
        Vendor::Nvidia => gpu_operator(choices),
        Vendor::Amd => amd_operator(choices),
    }];
    match choices.net {
        Net::Pod | Net::Efa => {}
        net => {
            documents.push(nic_policy(choices));
            if net == Net::Sriov {
                documents.extend(network::sriov(choices));
            }
        }
    }
    if choices.openshift {
        documents.extend([machine_config(), constraints(choices)]);
    }
    documents
}

fn on(enabled: bool) -> Value {
    Value::map().with("enabled", enabled)
}

fn gpu_operator(choices: &Choices) -> Value {
    let mut rdma = on(!matches!(choices.net, Net::Pod | Net::Efa));
    if !matches!(choices.net, Net::Pod | Net::Efa) {
        let why = "The network operator brings the NIC's driver in a container.";
        rdma = rdma.because(why, "useHostMofed", false);
    }
    let driver = on(true)
        .because("Open modules give GPU memory to NICs by dma-buf.", "kernelModuleType", "open")
        .with("rdma", rdma);
    let mut spec = Value::map()
        .with(
            "operator",
            Value::map()
                .with("defaultRuntime", if choices.openshift { "crio" } else { "containerd" }),
        )
        .with("daemonsets", Value::map().with("updateStrategy", "RollingUpdate"))
        .with("driver", driver)
        .with("toolkit", on(true))
        .with("devicePlugin", on(true))
        .with("dcgm", on(true))
        .with("dcgmExporter", on(true))
        .with("gfd", on(true))
        .with("nodeStatusExporter", on(false));
    if choices.gds {
        spec = spec.because(
            "Loads nvidia-fs, without which cufile reads through the CPU.",
            "gds",
            on(true),
        );
    }
    Value::map()
        .with("apiVersion", "nvidia.com/v1")
        .with("kind", "ClusterPolicy")
        .with("metadata", Value::map().with("name", "cluster-policy"))
        .with("spec", spec)
}

fn amd_operator(choices: &Choices) -> Value {
    let selector = choices.selector.iter();
    let selector = selector.fold(Value::map(), |map, (key, value)| map.with(key, value.as_str()));
    let selector = match choices.selector.is_empty() {
        true => Value::map().with("feature.node.kubernetes.io/amd-gpu", "true"),
        false => selector,
    };
    let spec = Value::map()
        .because(
            "The image has the driver, as cloud images do; true has the operator build it.",
            "driver",
            Value::map().with("enable", false),
        )
        .with("devicePlugin", Value::map().with("enableNodeLabeller", true))
        .with("metricsExporter", Value::map().with("enable", true))
        .with("selector", selector);
    Value::map()
        .with("apiVersion", "amd.com/v1alpha1")
        .with("kind", "DeviceConfig")
        .with("metadata", Value::map().with("name", "amd-gpus").with("namespace", "kube-amd-gpu"))
        .with("spec", spec)
}

fn component(image: &str, version: &str) -> Value {
    Value::map().with("repository", REPOSITORY).with("image", image).with("version", version)
}

fn nic_policy(choices: &Choices) -> Value {
    let link = match choices.link {
        super::Link::Ib => "infiniband",
        super::Link::Eth => "ether",
    };
    let mut spec = Value::map().because(
        "Versions are those of 2025-10: take what your release of the operator names.",
        "ofedDriver",
        component("doca-driver", NIC_DRIVER),
    );
    if choices.net != Net::Sriov {
        let names = match choices.masters.is_empty() {
            true => String::new(),
            false => {
                let names: Vec<String> =
                    choices.masters.iter().map(|name| format!("\"{name}\"")).collect();
                format!(", \"ifNames\": [{}]", names.join(", "))
            }
        };
        let config = format!(
            "{{\n  \"configList\": [\n    {{\n      \"resourceName\": \"{}\",\n      \"rdmaHcaMax\": 63,\n      \
             \"selectors\": {{\"vendors\": [\"15b3\"], \"linkTypes\": [\"{link}\"]{names}}}\n    }}\n  ]\n}}\n",
            choices.resource
        );
        let plugin = component("k8s-rdma-shared-dev-plugin", NETWORK_OPERATOR).because(
            "Selects the cards for collectives; name interfaces to leave storage and management out.",
            "config",
            Value::Lines(config),
        );
        spec = spec.with("rdmaSharedDevicePlugin", plugin);
    }
    // OpenShift brings Multus and the plugins itself.
    if matches!(choices.net, Net::Sriov | Net::Macvlan | Net::Ipvlan) && !choices.openshift {
        let secondary = Value::map()
            .with("cniPlugins", component("plugins", NETWORK_OPERATOR))
            .with("multus", component("multus-cni", NETWORK_OPERATOR));
        spec = spec.with("secondaryNetwork", secondary);
    }
    Value::map()
        .with("apiVersion", "mellanox.com/v1alpha1")
        .with("kind", "NicClusterPolicy")
        .with("metadata", Value::map().with("name", "nic-cluster-policy"))
        .with("spec", spec)
}

fn machine_config() -> Value {
    let labels = Value::map().with("machineconfiguration.openshift.io/role", "worker");
    let ignition = Value::map().with("ignition", Value::map().with("version", "3.2.0"));
    let spec = Value::map().with("config", ignition).because(
        "Devices reach memory without translation: with it every access is translated. Nodes restart.",
        "kernelArguments",
        Value::list(["iommu=pt".into()]),
    );
    Value::map()
        .with("apiVersion", "machineconfiguration.openshift.io/v1")
        .with("kind", "MachineConfig")
        .with("metadata", Value::map().with("name", "99-worker-iommu-pt").with("labels", labels))
        .with("spec", spec)
}

/// What pods of workloads may do.
fn constraints(choices: &Choices) -> Value {
    let host = choices.net == Net::Host;
    let volumes =
        ["configMap", "emptyDir", "projected", "secret", "persistentVolumeClaim", "downwardAPI"];
    constrained(choices, "rdma", Allowed { files: false, host }, &volumes).because(
        "Locked memory is all that RDMA needs.",
        "allowedCapabilities",
        Value::list(["IPC_LOCK".into()]),
    )
}

/// What constraints let through.
pub(super) struct Allowed {
    /// Whether the host's files may be mounted, and read whatever their label is.
    pub(super) files: bool,
    /// Whether pods may have the host's network.
    pub(super) host: bool,
}

/// Constraints of OpenShift's for the account of these choices.
pub(super) fn constrained(
    choices: &Choices,
    what: &str,
    allowed: Allowed,
    volumes: &[&str],
) -> Value {
    let any = |kind: &str| Value::map().with("type", kind);
    let user = format!("system:serviceaccount:{}:{}", choices.namespace, choices.name);
    Value::map()
        .with("apiVersion", "security.openshift.io/v1")
        .with("kind", "SecurityContextConstraints")
        .with("metadata", Value::map().with("name", format!("{}-{what}", choices.name)))
        .with("allowHostDirVolumePlugin", allowed.files)
        .with("allowHostIPC", false)
        .with("allowHostNetwork", allowed.host)
        .with("allowHostPID", false)
        .with("allowHostPorts", allowed.host)
        .with("allowPrivilegedContainer", false)
        .with("readOnlyRootFilesystem", allowed.files)
        .with("runAsUser", any("RunAsAny"))
        .with("seLinuxContext", any(if allowed.files { "RunAsAny" } else { "MustRunAs" }))
        .with("fsGroup", any("RunAsAny"))
        .with("supplementalGroups", any("RunAsAny"))
        .with("volumes", Value::list(volumes.iter().map(|volume| Value::from(*volume))))
        .with("users", Value::list([Value::from(user)]))
}
