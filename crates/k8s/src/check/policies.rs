//! What operators of clusters apply: GPU Operator, SR-IOV, device plugins, networks.

use serde_json::Value as Json;

use super::{Finding, Verdict};
use crate::model::{Resource, Set};
use crate::write::Value;
use crate::yaml::{Node, set_entry, set_scalar};

/// PCI vendor of Mellanox, now NVIDIA, whose cards are there for RDMA.
const MELLANOX: &str = "15b3";

pub(super) fn check(set: &Set<'_>, found: &mut Vec<Finding>) {
    for resource in &set.resources {
        match resource.kind {
            "SriovNetworkNodePolicy" => policy(set, resource, found),
            "SriovNetworkNodeState" => state(resource, found),
            "MacvlanNetwork" => macvlan(set, resource, found),
            "NicClusterPolicy" => {
                let config = ["spec", "rdmaSharedDevicePlugin", "config"];
                if let Some(node) = resource.node.at(&config) {
                    shared(resource, node, found);
                }
            }
            "ConfigMap" => {
                for (_, node) in resource.node.get("data").map_or(&[][..], Node::entries) {
                    if node.text().is_some_and(|text| text.contains("\"configList\"")) {
                        shared(resource, node, found);
                    }
                }
            }
            "ClusterPolicy" if resource.group() == "nvidia.com" => {
                if let Some(spec) = resource.spec() {
                    operator(set, resource, spec, found);
                }
            }
            // Values for the GPU Operator's chart are the same tree.
            "" if resource.node.get("driver").is_some()
                && resource.node.get("toolkit").is_some() =>
            {
                operator(set, resource, resource.node, found);
            }
            _ => {}
        }
    }
}

/// Whether a policy's functions are meant for RDMA.
fn is_for_rdma(set: &Set<'_>, resource: &Resource<'_>, spec: &Node) -> bool {
    let name = spec.text_at(&["resourceName"]).unwrap_or("");
    let word = |text: &str| ["rdma", "roce", "_ib", "-ib", "mlnx"].iter().any(|w| text.contains(w));
    let vendor = spec.text_at(&["nicSelector", "vendor"]) == Some(MELLANOX);
    let used = set.pods.iter().any(|pod| {
        pod.gpus() > 0
            && pod.containers.iter().flat_map(|c| c.devices()).any(|(device, ..)| {
                device.split_once('/').is_some_and(|(_, device)| device == name)
            })
    });
    vendor || used || word(name) || word(resource.name) || spec.text_at(&["linkType"]) == Some("ib")
}

fn policy(set: &Set<'_>, resource: &Resource<'_>, found: &mut Vec<Finding>) {
    let Some(spec) = resource.spec() else { return };
    if !is_for_rdma(set, resource, spec) {
        return;
    }
    let file = resource.file;
    let text = set.text(file);
    if let Some(node) = spec.get("deviceType").filter(|node| node.text() == Some("vfio-pci")) {
        found.push(
            Finding::new("K8S-30", Verdict::Fail, file, node, "functions go to vfio-pci, so no RDMA device is left")
                .costs("0 RDMA devices in the pods: vfio-pci is for programs that drive the card themselves (DPDK, VMs)")
                .fixed_by("keep the network driver", "deviceType: netdevice\nisRdma: true\n")
                .edited(set_scalar(node, &Value::from("netdevice")).map(|edit| vec![edit])),
        );
    }
    let rdma = spec.get("isRdma");
    if rdma.and_then(Node::truth) != Some(true) {
        let edit = set_entry(text, spec, "isRdma", &Value::from(true));
        found.push(
            Finding::new("K8S-08", Verdict::Fail, file, rdma.unwrap_or(spec), "the policy's functions come without RDMA")
                .costs("pods get a network card without /dev/infiniband: NCCL falls back to TCP, 25 to 5 GB/s")
                .fixed_by("say that they are for RDMA", "isRdma: true\n")
                .edited(edit.map(|edit| vec![edit])),
        );
    }
    let name = spec.text_at(&["resourceName"]).unwrap_or("");
    let network = set
        .of_kind("SriovIBNetwork")
        .find(|network| network.node.text_at(&["spec", "resourceName"]) == Some(name));
    let link = spec.get("linkType");
    let is_ib = link.is_some_and(|link| link.text().is_some_and(|t| t.eq_ignore_ascii_case("ib")));
    if network.is_some() && !is_ib {
        let edit = set_entry(text, spec, "linkType", &Value::from("ib"));
        found.push(
            Finding::new(
                "K8S-08",
                Verdict::Fail,
                file,
                link.unwrap_or(spec),
                "an InfiniBand network, but the policy's link type is not ib",
            )
            .costs("the operator tries for ever: \"operation not supported\", 0 functions")
            .fixed_by("say that the links are InfiniBand", "linkType: ib\n")
            .edited(edit.map(|edit| vec![edit])),
        );
    } else if !is_ib {
        mtu(text, file, spec, found);
    }
}

/// Ethernet that carries RDMA wants large frames.
fn mtu(text: &str, file: usize, spec: &Node, found: &mut Vec<Finding>) {
    let node = spec.get("mtu");
    let edit = set_entry(text, spec, "mtu", &Value::from(9000_u64)).map(|edit| vec![edit]);
    let finding = match node.and_then(Node::number) {
        Some(mtu) if mtu >= 4200 => return,
        Some(mtu) => Finding::new("K8S-09", Verdict::Fail, file, node.unwrap_or(spec), format!("MTU {mtu} for RDMA over Ethernet"))
            .costs(match mtu {
                // Headers take about 100 bytes of a frame.
                0..2200 => "RDMA then takes packets of 1024 bytes or less in place of 4096: 4 times the packets",
                _ => "RDMA then takes packets of 2048 bytes in place of 4096: twice the packets",
            }),
        None if node.is_some() => return,
        // The card's own MTU holds, which may be right.
        None => Finding::new("K8S-09", Verdict::Hint, file, spec, "no MTU: functions get what the card has, often 1500")
            .costs("at 1500 RDMA takes packets of 1024 bytes in place of 4096: 4 times the packets"),
    };
    let safe = node.is_some();
    found.push(
        finding
            .fixed_by(
                "9000, if the switches have it (4200 is the least for packets of 4096)",
                "mtu: 9000\n",
            )
            .edited(edit.filter(|_| safe)),
    );
}

fn macvlan(set: &Set<'_>, resource: &Resource<'_>, found: &mut Vec<Finding>) {
    let Some(spec) = resource.spec() else { return };
    if spec.get("mtu").and_then(Node::number).is_some_and(|mtu| (1..4200).contains(&mtu)) {
        mtu(set.text(resource.file), resource.file, spec, found);
    }
}

fn state(resource: &Resource<'_>, found: &mut Vec<Finding>) {
    let Some(node) = resource.node.at(&["status", "syncStatus"]) else { return };
    let error = resource.node.text_at(&["status", "lastSyncError"]).unwrap_or("");
    let (verdict, title) = match node.text() {
        Some("Failed") => {
            (Verdict::Fail, format!("{}: its functions were not made: {error}", resource.name))
        }
        Some("InProgress") => {
            (Verdict::Warn, format!("{}: its functions are being made", resource.name))
        }
        _ => return,
    };
    found.push(
        Finding::new("K8S-17", verdict, resource.file, node, title.trim_end_matches([' ', ':']))
            .costs("0 functions on this node: pods that want them stay in ContainerCreating")
            .fixed_by(
                "mend what the error names; for a zero GUID: ip link set <pf> vf <n> node_guid <g> port_guid <g>, then rebind it",
                "",
            ),
    );
}

/// The configuration of the shared device plugin, which is JSON.
fn shared(resource: &Resource<'_>, node: &Node, found: &mut Vec<Finding>) {
    let Some(text) = node.text() else { return };
    // What is no JSON is told elsewhere.
    let Ok(config) = serde_json::from_str::<Json>(text) else { return };
    let mut wrong = |title: String, yaml: &str| {
        found.push(
            Finding::new("K8S-10", Verdict::Fail, resource.file, node, title)
                .costs("the plugin ends with an error, or offers 0 devices: pods stay pending")
                .fixed_by("which cards there are: lspci -nn -d 15b3:", yaml),
        );
    };
    let example = "{\"resourceName\": \"rdma_shared_device_a\", \"rdmaHcaMax\": 63, \"selectors\": {\"vendors\": [\"15b3\"]}}\n";
    let list = config.get("configList").and_then(Json::as_array);
    let Some(list) = list.filter(|list| !list.is_empty()) else {
        wrong("configList is empty: the plugin offers nothing".to_owned(), example);
        return;
    };
    for one in list {
        let name = one.get("resourceName").and_then(Json::as_str).unwrap_or("");
        if name.is_empty() {
            wrong("a resource without resourceName".to_owned(), example);
        }
        if one.get("rdmaHcaMax").and_then(Json::as_i64).unwrap_or(0) <= 0 {
            wrong(format!("{name}: rdmaHcaMax is not above 0, so no pod gets one"), example);
        }
        let devices =
            one.get("devices").and_then(Json::as_array).is_some_and(|list| !list.is_empty());
        let selectors = one.get("selectors").and_then(Json::as_object);
        let known = ["vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"];
        let selects = |key: &str| {
            selectors.and_then(|s| s.get(key)?.as_array()).is_some_and(|list| !list.is_empty())
        };
        if !devices && !known.iter().any(|key| selects(key)) {
            wrong(format!("{name}: it selects no card: neither devices nor selectors"), example);
        }
        for key in selectors.into_iter().flatten().map(|(key, _)| key) {
            if !known.contains(&key.as_str()) {
                wrong(
                    format!("{name}: {key} is no selector; there are {}", known.join(", ")),
                    example,
                );
            }
        }
        for (key, digits) in [("vendors", 4), ("deviceIDs", 4)] {
            let ids = selectors.and_then(|s| s.get(key)?.as_array()).into_iter().flatten();
            for id in ids.filter_map(Json::as_str) {
                let hex = id.len() == digits && id.bytes().all(|byte| byte.is_ascii_hexdigit());
                if !hex {
                    wrong(
                        format!(
                            "{name}: {key} has {id:?}, which fits no card: 4 hexadecimal digits, as \"15b3\""
                        ),
                        example,
                    );
                }
            }
        }
    }
}

/// The GPU Operator, as policy or as values of its chart.
fn operator(set: &Set<'_>, resource: &Resource<'_>, spec: &Node, found: &mut Vec<Finding>) {
    let file = resource.file;
    let Some(driver) = spec.get("driver") else { return };
    // A driver of the host's is none of the operator's.
    if driver.get("enabled").and_then(Node::truth) == Some(false) {
        return;
    }
    let rdma = driver.get("rdma");
    let on = rdma.and_then(|rdma| rdma.get("enabled"));
    // Open kernel modules with dma-buf need no module of their own.
    let kind = driver.text_at(&["kernelModuleType"]);
    let open = kind.is_some_and(|kind| kind != "proprietary")
        || driver.get("useOpenKernelModules").and_then(Node::truth) == Some(true);
    if on.and_then(Node::truth) != Some(true) && !open {
        // Where nothing says, the operator takes what fits the GPU: open modules for the newer ones.
        let is_sure = kind.is_some();
        let edit = match rdma {
            _ if !is_sure => None,
            Some(rdma) if !rdma.entries().is_empty() => {
                set_entry(set.text(file), rdma, "enabled", &Value::from(true))
            }
            _ => set_entry(set.text(file), driver, "rdma", &Value::map().with("enabled", true)),
        };
        found.push(
            Finding::new(
                "K8S-07",
                if is_sure { Verdict::Fail } else { Verdict::Hint },
                file,
                on.unwrap_or(driver),
                "the GPU Operator's driver does not serve RDMA",
            )
            .costs("data is staged in host memory: 11 in place of 23 GB/s on one HDR port")
            .fixed_by(
                "load nvidia-peermem, or take open kernel modules (dma-buf)",
                "driver:\n  rdma:\n    enabled: true\n",
            )
            .edited(edit.map(|edit| vec![edit])),
        );
    }
    let host = rdma.and_then(|rdma| rdma.get("useHostMofed"));
    let containers = set
        .of_kind("NicClusterPolicy")
        .any(|policy| policy.node.at(&["spec", "ofedDriver"]).is_some());
    if let Some(node) = host.filter(|node| containers && node.truth() == Some(true)) {
        found.push(
            Finding::new("K8S-07", Verdict::Fail, file, node, "useHostMofed, but the Network Operator brings the NIC driver")
                .costs("nvidia-peermem is built against the other driver and does not load: GPUDirect off, 11 in place of 23 GB/s")
                .fixed_by("the driver is in a container", "driver:\n  rdma:\n    useHostMofed: false\n")
                .edited(set_scalar(node, &Value::from(false)).map(|edit| vec![edit])),
        );
    }
}
