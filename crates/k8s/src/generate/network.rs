//! Networks: what pods ask for, and the objects that describe them.

use super::{Choices, Link, Net};
use crate::write::Value;

/// The resource of a NIC, and how many.
pub(super) fn device(choices: &Choices) -> Option<(String, u64)> {
    match choices.net {
        Net::Pod => None,
        Net::Efa => Some(("vpc.amazonaws.com/efa".to_owned(), choices.nics)),
        Net::Sriov => {
            // The operator's own prefix on OpenShift, the Network Operator's elsewhere.
            let domain = if choices.openshift { "openshift.io" } else { "nvidia.com" };
            Some((format!("{domain}/{}", choices.resource), choices.nics))
        }
        // One shared resource brings all devices that its plugin selects.
        Net::Host | Net::Rdma | Net::Macvlan | Net::Ipvlan => {
            Some((format!("rdma/{}", choices.resource), 1))
        }
    }
}

fn attachment_name(choices: &Choices, index: usize) -> String {
    format!("{}-net{}", choices.name, index + 1)
}

/// Networks beside the pod's own, with the reason.
pub(super) fn annotation(choices: &Choices) -> Option<(String, String)> {
    let nics = usize::try_from(choices.nics).ok()?;
    let names: Vec<String> = match choices.net {
        Net::Sriov => vec![choices.resource.replace('_', "-"); nics],
        Net::Macvlan | Net::Ipvlan => {
            (0..choices.masters.len()).map(|index| attachment_name(choices, index)).collect()
        }
        _ => return None,
    };
    let why = "One network for each NIC: each that is missing is its share of the bandwidth.";
    Some((why.to_owned(), names.join(",")))
}

/// What is to be known of the addresses.
fn addresses(choices: &Choices) -> String {
    let range = "The range is an example: take one of your own, the same on all nodes.";
    match choices.openshift {
        true => range.to_owned(),
        false => format!(
            "{range} The plugin whereabouts hands it out, and must be installed: no operator here brings it."
        ),
    }
}

/// Definitions of macvlan and ipvlan networks.
pub(super) fn attachments(choices: &Choices) -> Vec<Value> {
    let kind = match choices.net {
        Net::Macvlan => "macvlan",
        Net::Ipvlan => "ipvlan",
        _ => return Vec::new(),
    };
    let mode = if kind == "macvlan" { "bridge" } else { "l2" };
    let masters = choices.masters.iter().enumerate();
    masters
        .map(|(index, master)| {
            let config = format!(
                "{{\n  \"cniVersion\": \"0.3.1\",\n  \"type\": \"{kind}\",\n  \"master\": \"{master}\",\n  \"mode\": \
                 \"{mode}\",\n  \"mtu\": {},\n  \"ipam\": {{\"type\": \"whereabouts\", \"range\": \"192.168.{}.0/24\"}}\n}}\n",
                choices.mtu,
                100 + index
            );
            Value::map()
                .with("apiVersion", "k8s.cni.cncf.io/v1")
                .with("kind", "NetworkAttachmentDefinition")
                .with("metadata", choices.metadata(&attachment_name(choices, index)))
                .with(
                    "spec",
                    Value::map().because(
                        &addresses(choices),
                        "config",
                        Value::Lines(config),
                    ),
                )
        })
        .collect()
}

/// SR-IOV: the policy that makes functions, and the network that the operator turns into an attachment.
pub(super) fn sriov(choices: &Choices) -> Vec<Value> {
    let operator = if choices.openshift {
        "openshift-sriov-network-operator"
    } else {
        "nvidia-network-operator"
    };
    let is_ib = choices.link == Link::Ib;
    let labels = choices.selector.iter();
    let labels = labels.fold(Value::map(), |map, (key, value)| map.with(key, value.as_str()));
    let labels = match choices.selector.is_empty() {
        true => Value::map().with("feature.node.kubernetes.io/pci-15b3.present", "true"),
        false => labels,
    };
    let mut nics = Value::map().with("vendor", "15b3");
    if !choices.masters.is_empty() {
        let names = choices.masters.iter().map(|name| Value::from(name.as_str()));
        nics = nics.with("pfNames", Value::list(names));
    }
    let mut spec = Value::map()
        .with("resourceName", choices.resource.as_str())
        .with("nodeSelector", labels)
        .because(
            "Only the cards for collectives; storage and management stay out.",
            "nicSelector",
            nics,
        )
        .with("numVfs", 1_u64)
        .because(
            "The network driver stays: vfio-pci leaves no RDMA device.",
            "deviceType",
            "netdevice",
        )
        .with("isRdma", true)
        .with("linkType", if is_ib { "ib" } else { "eth" });
    if !is_ib {
        spec = spec.because("RDMA packets of 4096 bytes need frames of 4200.", "mtu", choices.mtu);
    }
    let policy = Value::map()
        .with("apiVersion", "sriovnetwork.openshift.io/v1")
        .with("kind", "SriovNetworkNodePolicy")
        .with(
            "metadata",
            Value::map()
                .with("name", choices.resource.replace('_', "-"))
                .with("namespace", operator),
        )
        .with("spec", spec);
    let ipam = "{\n  \"type\": \"whereabouts\",\n  \"range\": \"192.168.100.0/22\"\n}\n";
    let network = Value::map()
        .with("apiVersion", "sriovnetwork.openshift.io/v1")
        .because(
            "The operator makes the NetworkAttachmentDefinition of this name in the namespace below.",
            "kind",
            if is_ib { "SriovIBNetwork" } else { "SriovNetwork" },
        )
        .with("metadata", Value::map().with("name", choices.resource.replace('_', "-")).with("namespace", operator))
        .with(
            "spec",
            Value::map()
                .with("networkNamespace", choices.namespace.as_str())
                .with("resourceName", choices.resource.as_str())
                .with("linkState", if is_ib { "enable" } else { "auto" })
                .because(&addresses(choices), "ipam", Value::Lines(ipam.to_owned())),
        );
    vec![policy, network]
}
