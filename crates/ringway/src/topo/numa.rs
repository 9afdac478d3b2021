//! Processors and NUMA nodes.

use serde::Serialize;

use super::Root;
use crate::plan::topology::cpus::CpuSet;

const NODES: &str = "/sys/devices/system/node";

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its processors.
    pub cpus: CpuSet,
    /// Its memory, in KiB, where known.
    pub memory_kib: Option<u64>,
    /// Distance to each node, as the firmware counts: 10 is itself.
    pub distances: Vec<u32>,
}

/// What the processors are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Processor {
    /// `x86_64`, `arm64`, `ppc64`.
    pub arch: String,
    /// `GenuineIntel`, `AuthenticAMD`.
    pub vendor: String,
    /// The maker's name for it.
    pub model_name: String,
    /// Family.
    pub family: i64,
    /// Model.
    pub model: i64,
    /// Processors in all.
    pub count: usize,
    /// Whether they run under a hypervisor.
    pub hypervisor: bool,
}

/// The NUMA nodes, by number. A kernel without them has one.
pub(super) fn nodes(root: &Root, notes: &mut Vec<String>) -> Vec<NumaNode> {
    let names = root.list(NODES).unwrap_or_else(|error| {
        notes.push(error.to_string());
        Vec::new()
    });
    let mut found: Vec<NumaNode> = names
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok())
        .map(|id| {
            let word = |name: &str| root.read(format!("{NODES}/node{id}/{name}")).ok().flatten();
            let list = word("cpulist").unwrap_or_default();
            let distances = word("distance").unwrap_or_default();
            NumaNode {
                id,
                cpus: CpuSet::from_list(&list),
                memory_kib: word("meminfo").as_deref().and_then(total_kib),
                distances: distances.split_whitespace().filter_map(|n| n.parse().ok()).collect(),
            }
        })
        .collect();
    found.sort_by_key(|node| node.id);
    if found.is_empty() {
        let online = root.read("/sys/devices/system/cpu/online").ok().flatten();
        let cpus = CpuSet::from_list(&online.unwrap_or_default());
        found.push(NumaNode { id: 0, cpus, memory_kib: None, distances: Vec::new() });
    }
    found
}

/// `Node 0 MemTotal:  16339712 kB`.
fn total_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"))?;
    line.split_whitespace().rev().nth(1)?.parse().ok()
}

/// What `/proc/cpuinfo` says. Some machines have thousands of processors in it.
pub(super) fn processor(root: &Root, notes: &mut Vec<String>) -> Processor {
    let text = match root.read_at_most("/proc/cpuinfo", 16 << 20) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) => {
            notes.push(error.to_string());
            String::new()
        }
    };
    let field = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    let number = |name: &str| field(name).and_then(|text| text.parse().ok()).unwrap_or(0);
    let vendor = field("vendor_id").unwrap_or_default();
    let arch = if field("CPU implementer").is_some() {
        "arm64"
    } else if field("cpu").is_some_and(|name| name.starts_with("POWER")) {
        "ppc64"
    } else {
        "x86_64"
    };
    let flags = field("flags").unwrap_or_default();
    let is_one = |line: &&str| line.split(':').next().is_some_and(|key| key.trim() == "processor");
    Processor {
        arch: arch.to_owned(),
        vendor,
        model_name: field("model name").or_else(|| field("cpu")).unwrap_or_default(),
        family: number("cpu family"),
        model: number("model"),
        count: text.lines().filter(is_one).count(),
        hypervisor: flags.split_whitespace().any(|flag| flag == "hypervisor"),
    }
}
