//! Real files, where the folder that `RINGWAY_FIXTURES` names has them.

use std::io::Write as _;
use std::path::PathBuf;

use super::*;

/// The files of one kind; none, with a word on why, where they are not at hand.
fn files(kind: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = std::env::var("RINGWAY_FIXTURES").unwrap_or_default();
    let mut found = Vec::new();
    if folder.is_empty() {
        let why = "RINGWAY_FIXTURES names no folder";
        let _closed = writeln!(std::io::stderr(), "SKIPPED real files of {kind}: {why}");
        return found;
    }
    for entry in std::fs::read_dir(PathBuf::from(folder).join(kind)).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        found.push((path, bytes));
    }
    assert!(!found.is_empty(), "no files of {kind}");
    found
}

#[test]
fn every_real_topology_is_read_and_written_without_loss() {
    for (path, bytes) in files("nccl_topo_xml") {
        let name = path.display();
        let document = xml::read(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let again = xml::read(xml::write(&document).as_bytes());
        assert_eq!(again.as_ref(), Ok(&document), "{name}");
        // A file cut off is an error with a place.
        let end = bytes.iter().rposition(|byte| *byte == b'<').unwrap();
        let error = xml::read(&bytes[..end]).unwrap_err();
        assert!(error.line > 1, "{name}: {error}");
        let topology = Topology::from_document(&document).unwrap();
        assert!(!topology.cpus().is_empty(), "{name}");
    }
}

/// The PCI switches above a device, the nearest first, then its CPU: by the file alone.
fn above(topology: &Topology, mut node: NodeIndex) -> Vec<NodeIndex> {
    let mut chain = Vec::new();
    while let Some(parent) = topology.nodes[node].parent {
        chain.push(parent);
        node = parent;
    }
    chain
}

#[test]
fn each_gpu_of_a_real_machine_takes_a_nic_of_its_nearest_switch() {
    let mut checked = 0;
    for (path, bytes) in files("nccl_topo_xml") {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let document = xml::read(&bytes).unwrap();
        let topology = Topology::from_document(&document).unwrap().as_nccl_sees_it();
        let (gpus, nets) = (topology.gpus(), topology.nets());
        if gpus.is_empty() || nets.is_empty() {
            continue;
        }
        for one in nics(&topology, &Levels::default()) {
            // How far up the GPU's chain a port joins it; the lowest is the nearest.
            let chain = above(&topology, one.gpu);
            let meets = |net: NodeIndex| {
                let other = above(&topology, net);
                chain.iter().position(|node| other.contains(node)).unwrap_or(usize::MAX)
            };
            let speed = |net: NodeIndex| topology.net(net).unwrap().speed;
            let chosen = one.net.unwrap_or_else(|| panic!("{name}: a GPU reaches no NIC"));
            // A faster port may be worth a longer way; among equals, the nearest.
            let alike: Vec<usize> = nets
                .iter()
                .filter(|net| speed(**net) == speed(chosen))
                .map(|net| meets(*net))
                .collect();
            let nearest = alike.iter().copied().min().unwrap();
            let cpu_at = chain.len() - 1;
            // Within switches the class tells; past the CPU there is only "this CPU" or "another".
            let level = |at: usize| at.min(cpu_at + 1);
            assert_eq!(level(meets(chosen)), level(nearest), "{name} {}", topology.name(one.gpu));
            checked += 1;
        }
        let paths = Paths::as_used(&topology, &Levels::default());
        for ring in channels(&topology, &paths, CrossNic::Never) {
            assert_eq!(ring.gpus.len(), gpus.len(), "{name}");
            assert_eq!(ring.enters, ring.leaves, "{name}");
        }
    }
    let _closed = writeln!(std::io::stderr(), "{checked} GPUs checked");
}

#[test]
fn gpus_of_a_cloud_machine_that_share_no_nic_take_different_ones() {
    for (path, bytes) in files("nccl_topo_xml") {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let topology = Topology::from_document(&xml::read(&bytes).unwrap()).unwrap();
        let paired = ["superbench-ndv4", "oci-H100", "rcclx-topo_8p_950"];
        if !paired.iter().any(|known| name.starts_with(known)) {
            continue;
        }
        let found = nics(&topology, &Levels::default());
        let mut chosen: Vec<_> = found.iter().map(|one| one.net).collect();
        chosen.sort_unstable();
        chosen.dedup();
        assert_eq!((found.len(), chosen.len()), (8, 8), "{name}");
    }
}

#[test]
fn real_matrices_are_read() {
    for (path, bytes) in files("nvidia_smi_topo") {
        let text = String::from_utf8_lossy(&bytes);
        let matrix = matrix::read(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(matrix.gpus().count(), 8, "{}", path.display());
        assert!(matrix.rows.iter().all(|row| row.cells.len() == matrix.rows.len()));
    }
    for (path, bytes) in files("rocm_smi_topo") {
        let text = String::from_utf8_lossy(&bytes);
        let outcome = matrix::read(&text);
        // Not all files of that folder are of the command's output.
        if text.contains("ROCm System Management Interface") {
            let matrix = outcome.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_eq!(matrix.rows.len(), 8, "{}", path.display());
            assert!(matrix.rows.iter().all(|row| row.numa.is_some()));
        }
    }
}
