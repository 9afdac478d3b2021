//! What clouds ask for besides: Amazon's EFA, Google's network plugins.

use ringway::topo::GpuMaker;

use super::{Check, Seen, Tally};
use crate::doctor::host::{Host, is_efa};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "efa-01",
        group: "cloud",
        about: "an Amazon machine has all EFA devices of its type",
        reads: "/sys/class/dmi/id/{sys_vendor,product_name}, /sys/class/infiniband",
        cost: "none: libfabric finds no provider and NCCL falls back to TCP; fewer: each is a share of 3200 Gb/s",
        fix: "start the instance with EFA interfaces; Kubernetes: request vpc.amazonaws.com/efa; modprobe efa",
        root: false,
        look: adapters,
    },
    Check {
        id: "efa-03",
        group: "cloud",
        about: "EFA may reach GPU memory",
        reads: "FI_EFA_USE_DEVICE_RDMA, FI_EFA_FORK_SAFE, FI_PROVIDER",
        cost: "without it data goes through host memory: about half",
        fix: "unset FI_EFA_USE_DEVICE_RDMA, or FI_EFA_USE_DEVICE_RDMA=1; unset FI_PROVIDER, or FI_PROVIDER=efa",
        root: false,
        look: device_rdma,
    },
    Check {
        id: "gcp-01",
        group: "cloud",
        about: "a Google machine with GPUs for training has Google's network plugin",
        reads: "/sys/class/dmi/id/sys_vendor, NCCL_NET, NCCL_NET_PLUGIN, /usr/local/gib, /var/lib/{tcpx,tcpxo,fastrak}",
        cost: "without RDMA devices NCCL uses TCP alone: tens of Gb/s in place of 1600 and more",
        fix: "install the plugin of the machine's type (gIB, TCPXO, TCPX) and source its set_nccl_env.sh",
        root: false,
        look: google,
    },
];

/// EFA devices of Amazon's types with GPUs.
const ADAPTERS: &[(&str, usize)] = &[
    ("p4d.24xlarge", 4),
    ("p4de.24xlarge", 4),
    ("p5.48xlarge", 32),
    ("p5e.48xlarge", 32),
    ("p5en.48xlarge", 16),
    ("p6-b200.48xlarge", 8),
    ("p6-b300.48xlarge", 16),
];

fn vendor(host: &Host) -> String {
    host.text("/sys/class/dmi/id/sys_vendor").unwrap_or_default()
}

/// EFA devices: by their PCI function, and where that is not known by their names.
fn efa_devices(host: &Host) -> usize {
    let is = |bus, name: &str| match host.pci_at(bus) {
        Some(pci) => is_efa(pci),
        None => is_named(name),
    };
    let all = host.hcas().iter();
    all.filter(|hca| hca.bus.map_or_else(|| is_named(&hca.name), |bus| is(bus, &hca.name))).count()
}

fn is_named(name: &str) -> bool {
    name.starts_with("rdmap") || name.starts_with("efa_")
}

fn adapters(host: &Host) -> Seen {
    if !vendor(host).starts_with("Amazon") {
        return Seen::absent("no machine of Amazon's");
    }
    let product = host.text("/sys/class/dmi/id/product_name").unwrap_or_default();
    let count = efa_devices(host);
    let evidence = format!("/sys/class/dmi/id/product_name = {product}, {count} EFA devices");
    match ADAPTERS.iter().find(|(name, _)| *name == product) {
        None if count == 0 => Seen::absent("a type of which it is not known whether it has EFA"),
        None => Seen::well(format!("there are {count} EFA devices"), evidence),
        Some((_, wanted)) if count >= *wanted => {
            Seen::well(format!("there are {count} EFA devices"), evidence)
        }
        Some((_, wanted)) => match host.sees_part() {
            Some(what) if count > 0 => {
                let why = format!("{evidence} of {wanted}; {what} may be given a part only");
                Seen::unknown("could not look whether all EFA devices are there", why)
            }
            _ => Seen::fail(
                format!("{count} of the {wanted} EFA devices of a {product} are there"),
                evidence,
            ),
        },
    }
}

fn device_rdma(host: &Host) -> Seen {
    if efa_devices(host) == 0 || host.gpus().is_empty() {
        return Seen::absent("no EFA device with a GPU");
    }
    if !host.knows_variables() {
        let why = "commands/environment.txt is not in the tree";
        return Seen::unknown("could not look whether EFA may reach GPU memory", why);
    }
    let mut tally = Tally::default();
    match host.variable("FI_EFA_USE_DEVICE_RDMA") {
        Some("0") => tally.fail("FI_EFA_USE_DEVICE_RDMA=0"),
        Some(value) => tally.well(format!("FI_EFA_USE_DEVICE_RDMA={value}")),
        // Plugins and libfabric of the last years switch it on where the device can.
        None => tally.well("FI_EFA_USE_DEVICE_RDMA is not set"),
    }
    match host.variable("FI_PROVIDER") {
        Some(provider) if !is_allowed(provider, "efa") => {
            tally.fail(format!("FI_PROVIDER={provider} leaves EFA out"));
        }
        Some(provider) => tally.well(format!("FI_PROVIDER={provider}")),
        None => {}
    }
    if host.variable("FI_EFA_FORK_SAFE") == Some("0") {
        tally.warn("FI_EFA_FORK_SAFE=0: a data loader that forks may corrupt registered memory");
    }
    tally.seen("no EFA device", "EFA may reach GPU memory", "variables keep EFA from its work")
}

/// Whether libfabric's list lets a provider be used: names, or after `^` those that must not be.
fn is_allowed(list: &str, provider: &str) -> bool {
    let (list, named) = match list.trim().strip_prefix('^') {
        Some(rest) => (rest, false),
        None => (list, true),
    };
    let is_in = list.split([',', ';']).any(|word| word.trim() == provider);
    list.trim().is_empty() || is_in == named
}

fn google(host: &Host) -> Seen {
    // A100 came before the plugins; smaller GPUs are not for training across machines.
    const TRAINING: [u16; 5] = [0x2330, 0x2335, 0x2901, 0x2941, 0x3182];
    let many = host
        .gpus()
        .into_iter()
        .filter(|gpu| gpu.gpu_maker() == Some(GpuMaker::Nvidia) && TRAINING.contains(&gpu.device));
    if !vendor(host).starts_with("Google") || many.count() < 4 {
        return Seen::absent("no machine of Google's with GPUs for training");
    }
    let folders = [
        "/usr/local/gib",
        "/home/kubernetes/bin/gib",
        "/var/lib/tcpxo",
        "/var/lib/tcpx",
        "/var/lib/fastrak",
    ];
    let folder = folders.iter().find(|path| host.exists(path));
    let named = ["NCCL_NET", "NCCL_NET_PLUGIN"].iter().find_map(|name| {
        let value = host.variable(name)?;
        let known = ["gib", "fastrak", "gpudirecttcpx"];
        known
            .iter()
            .any(|word| value.to_lowercase().contains(word))
            .then(|| format!("{name}={value}"))
    });
    let devices = host.hcas().len();
    match (named, folder) {
        (Some(named), _) => Seen::well("Google's network plugin is chosen", named),
        (None, Some(path)) => {
            Seen::well("Google's network plugin is there", format!("{path} is there"))
        }
        (None, None) => {
            let evidence = format!(
                "{} are not there, NCCL_NET names no plugin of Google's; {devices} RDMA devices",
                folders.join(", ")
            );
            let title = "Google's network plugin is not there";
            // With RDMA devices NCCL's own way works, without Google's tuning.
            if devices > 0 { Seen::warn(title, evidence) } else { Seen::fail(title, evidence) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_providers_are_read_as_libfabric_does() {
        for (list, allowed) in [
            ("efa", true),
            ("tcp,efa", true),
            ("tcp", false),
            ("^tcp", true),
            ("^efa,tcp", false),
            ("", true),
        ] {
            assert_eq!(is_allowed(list, "efa"), allowed, "{list:?}");
        }
    }
}
