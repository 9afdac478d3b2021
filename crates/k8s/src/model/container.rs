//! One container of a pod.

use crate::yaml::Node;

/// Resources with a vendor's name that are no network devices.
const NO_DEVICES: [&str; 15] = [
    "nvidia.com/gpu",
    "nvidia.com/mig-",
    "nvidia.com/pgpu",
    "amd.com/gpu",
    "amd.com/cpx",
    "amd.com/spx",
    "gpu.intel.com/",
    "intel.com/gpu",
    "intel.com/qat",
    "intel.com/fpga",
    "intel.com/sgx",
    "habana.ai/",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "devices.kubevirt.io/",
];

/// One container.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    /// Its node.
    pub node: &'a Node,
    /// Whether it runs to its end before the others.
    pub is_init: bool,
    /// Whether something beside the names says that its devices are of networks: the pod's annotation, or a policy.
    pub has_networks: bool,
}

/// A quantity as a number of bytes: `64Gi`, `32000Mi`, `1e9`.
pub fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite())?;
    let factor = match unit {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return text.parse().ok().filter(|number: &f64| number.is_finite()).map(whole),
    };
    Some(whole(number * factor))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "quantities are not negative here, and the cast saturates"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

/// Whether an image has a version or a digest: without one, or as latest, it is another image tomorrow.
pub fn has_version(image: &str) -> bool {
    let tag = image.rsplit('/').next().and_then(|last| last.split_once(':'));
    image.contains('@') || tag.is_some_and(|(_, tag)| tag != "latest" && !tag.is_empty())
}

/// Whether a vendor's resource is a network's by its name: vendors name GPUs and accelerators in the same way.
fn is_of_network(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let parts = ["rdma", "roce", "sriov", "hostdev", "mlnx", "mlx", "infiniband", "nic"];
    let words = ["ib", "vf", "vfs", "pf", "eth", "cx"];
    let mut own = name.split(|c: char| !c.is_ascii_alphabetic());
    parts.iter().any(|part| name.contains(part)) || own.any(|word| words.contains(&word))
}

/// What /dev/shm is to hold: 2 GiB for each GPU, at least 8: NCCL's segments, and what data loaders hand over.
pub fn shm_wanted(gpus: u64) -> String {
    format!("{}Gi", gpus.saturating_mul(2).max(8))
}

impl<'a> Container<'a> {
    /// All of a pod.
    pub(super) fn all(spec: &'a Node, has_networks: bool) -> Vec<Self> {
        let of = |key: &str, is_init| {
            let items = spec.get(key).map_or(&[][..], Node::items).iter();
            items.map(move |node| Self { node, is_init, has_networks }).collect::<Vec<_>>()
        };
        [of("initContainers", true), of("containers", false)].concat()
    }

    /// Its name.
    pub fn name(&self) -> &'a str {
        self.node.text_at(&["name"]).unwrap_or("")
    }

    /// What it may use at most, and where nothing says so what it asks for.
    pub fn resources(&self) -> impl Iterator<Item = (&'a Node, &'a Node)> {
        let of = |key: &str| self.node.at(&["resources", key]).map_or(&[][..], Node::entries);
        let limits = of("limits");
        let known = move |name: &Node| limits.iter().any(|(limit, _)| limit.text() == name.text());
        let requests = of("requests").iter().filter(move |(name, _)| !known(name));
        limits.iter().chain(requests).map(|(name, value)| (name, value))
    }

    /// GPUs, whole ones.
    pub fn gpus(&self) -> u64 {
        let is_gpu = |name: &str| {
            ["nvidia.com/gpu", "amd.com/gpu"].iter().any(|gpu| {
                name == *gpu || name.strip_prefix(gpu).is_some_and(|rest| rest.starts_with('.'))
            })
        };
        let ours = self.resources().filter(|(name, _)| name.text().is_some_and(is_gpu));
        ours.filter_map(|(_, value)| value.number()).max().unwrap_or(0)
    }

    /// The resource that its GPUs are.
    pub fn gpu_resource(&self) -> Option<&'a str> {
        let mut names = self.resources().filter_map(|(name, _)| name.text());
        names.find(|name| name.ends_with("/gpu"))
    }

    /// Devices of network plugins: name, how many, and where that stands.
    pub fn devices(&self) -> Vec<(&'a str, u64, &'a Node)> {
        let is_device = |name: &str| {
            let (domain, own) = name.split_once('/').unwrap_or(("", name));
            let domains = ["nvidia.com", "openshift.io", "mellanox.com", "intel.com", "amd.com"];
            let others =
                ["vpc.amazonaws.com/efa", "networking.gke.io", "networking.gke.io.networks"];
            !NO_DEVICES.iter().any(|no| name.starts_with(no))
                && name.contains('/')
                && (domain == "rdma"
                    || domains.contains(&domain) && (self.has_networks || is_of_network(own))
                    || others.iter().any(|other| name.starts_with(other)))
        };
        self.resources()
            .filter_map(|(name, value)| Some((name.text()?, value.number()?, value)))
            .filter(|(name, count, _)| is_device(name) && *count > 0)
            .collect()
    }

    /// Whether it may do all that the host's root may.
    pub fn is_privileged(&self) -> bool {
        self.node.at(&["securityContext", "privileged"]).and_then(Node::truth) == Some(true)
    }

    /// Whether it has a capability.
    pub fn has_capability(&self, name: &str) -> bool {
        let added = self.node.at(&["securityContext", "capabilities", "add"]);
        let named = |item: &Node| {
            item.text().is_some_and(|text| {
                text == "ALL" || text.strip_prefix("CAP_").unwrap_or(text) == name
            })
        };
        added.is_some_and(|list| list.items().iter().any(named))
    }

    /// What it runs, in one text: command and arguments.
    pub fn words(&self) -> impl Iterator<Item = &'a Node> {
        let of = |key: &str| self.node.get(key).map_or(&[][..], Node::items).iter();
        of("command").chain(of("args"))
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn quantities_are_read() {
        let cases = [
            ("64Gi", 64 << 30),
            ("32000Mi", 32_000 << 20),
            ("1e9", 1_000_000_000),
            ("1.5Gi", 3 << 29),
        ];
        for (text, wanted) in cases {
            assert_eq!(bytes(text), Some(wanted), "{text}");
        }
        assert_eq!((bytes("many"), bytes("1e400"), bytes("")), (None, None, None));
    }
}
