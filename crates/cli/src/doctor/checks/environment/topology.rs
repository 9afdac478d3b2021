//! The topology file that a variable names.

use ringway_plan::topology::bus::BusId;
use ringway_plan::topology::document::Element;
use ringway_plan::topology::xml;

use crate::doctor::checks::Seen;
use crate::doctor::host::Host;

/// Addresses that are named in evidence.
const NAMED: usize = 4;

pub(super) fn file(host: &Host) -> Seen {
    let Some(path) = host.variable("NCCL_TOPO_FILE").filter(|path| !path.is_empty()) else {
        return Seen::absent("NCCL_TOPO_FILE is not set");
    };
    let evidence = format!("NCCL_TOPO_FILE={path}");
    if let Some(seen) = content(host, path, &evidence) {
        return seen;
    }
    if host.is_virtual() {
        Seen::well("NCCL_TOPO_FILE is set in a virtual machine", evidence)
    } else {
        Seen::warn(
            "NCCL_TOPO_FILE is set on bare metal, where NCCL sees the topology itself",
            evidence,
        )
    }
}

/// What is wrong with the file itself.
fn content(host: &Host, path: &str, evidence: &str) -> Option<Seen> {
    if !path.starts_with('/') {
        return None; // below whatever folder the job runs in
    }
    // No table can name it, and a snapshot does not hold it.
    let limit = u64::try_from(xml::BYTES_MOST).unwrap_or(u64::MAX);
    let live = host.root().is_live();
    let bytes = match host.root().bytes_at_most(path, limit) {
        Ok(Some(bytes)) => bytes,
        Ok(None) if live => {
            return Some(Seen::fail("the file NCCL_TOPO_FILE names is not there", evidence));
        }
        Err(error) if live => {
            let title = "could not read the file NCCL_TOPO_FILE names";
            return Some(Seen::unknown(title, error.to_string()));
        }
        Ok(None) | Err(_) => return None,
    };
    match xml::read(&bytes) {
        Ok(document) => of_another(host, &document, evidence),
        Err(error) => {
            let title = "the file NCCL_TOPO_FILE names is no topology";
            Some(Seen::fail(title, format!("{evidence}: {error}")))
        }
    }
}

/// A failure where the file lists GPUs that this machine has not.
fn of_another(host: &Host, document: &Element, evidence: &str) -> Option<Seen> {
    let ours: Vec<BusId> = host.gpus().iter().map(|gpu| gpu.bus).collect();
    let theirs = gpu_addresses(document);
    let stale: Vec<String> =
        theirs.iter().filter(|bus| !ours.contains(bus)).map(ToString::to_string).collect();
    if ours.is_empty() || stale.is_empty() {
        return None;
    }
    let named = stale[..stale.len().min(NAMED)].join(", ");
    Some(Seen::fail(
        format!(
            "the file NCCL_TOPO_FILE names is of another machine: {} of its {} GPUs are not here",
            stale.len(),
            theirs.len()
        ),
        format!("{evidence}: {named}; this machine has {} GPUs", ours.len()),
    ))
}

/// Addresses of the PCI functions that are GPUs by their class, or hold a `gpu`.
fn gpu_addresses(document: &Element) -> Vec<BusId> {
    let mut found = Vec::new();
    let mut open = vec![document];
    while let Some(element) = open.pop() {
        open.extend(&element.children);
        let class = element.get("class").unwrap_or_default();
        let is_gpu = class.starts_with("0x03") || class.starts_with("0x12");
        if element.name == "pci"
            && (is_gpu || element.child("gpu").is_some())
            && let Some(bus) = element.get("busid").and_then(|bus| bus.parse().ok())
        {
            found.push(bus);
        }
    }
    found.sort();
    found
}
