//! What `ringway topo` knows of a machine, and its JSON form.

use ringway::topo::{Machine, NetDevice};
use ringway_plan::topology::bus::BusId;
use ringway_plan::topology::channel::{Channel, channels};
use ringway_plan::topology::matrix::Matrix;
use ringway_plan::topology::nearest::{Affinity, affinities};
use ringway_plan::topology::path::{PathClass, Paths};
use ringway_plan::topology::warning::warnings;
use ringway_plan::topology::{NodeIndex, Topology};
use serde::Serialize;

use super::settings::Settings;

/// What is known beside the topology.
#[derive(Debug)]
pub(super) struct Rest {
    /// The machine, unless a file was read.
    pub(super) machine: Option<Machine>,
    /// The topology file that was taken into account.
    pub(super) source: Option<String>,
    /// The file's name, in place of the machine's.
    pub(super) name: Option<String>,
}

/// Everything there is to show.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) topology: &'a Topology,
    pub(super) matrix: Matrix,
    pub(super) rest: Rest,
    affinities: Vec<Affinity>,
    pub(super) channels: Vec<Channel>,
    pub(super) warnings: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl<'a> Report<'a> {
    pub(super) fn new(topology: &'a Topology, settings: &Settings, mut rest: Rest) -> Self {
        let paths = Paths::as_used(topology, &settings.levels);
        let affinities = affinities(topology, &paths, &settings.levels);
        let mut warnings = warnings(topology, &affinities);
        warnings.extend(settings.remarks.iter().cloned());
        let mut notes = Vec::new();
        if let Some(machine) = &mut rest.machine {
            notes.append(&mut machine.notes);
            let several = machine.gpus.len() > 1 && topology.nets().len() > 1;
            if machine.platform.virtual_machine && several && rest.source.is_none() {
                warnings.push(
                    "a virtual machine may hide its PCI switches; ask the provider for a topology \
                     file and name it in NCCL_TOPO_FILE"
                        .to_owned(),
                );
            }
        }
        Self {
            matrix: Matrix::of(topology),
            channels: channels(topology, &paths, settings.cross),
            topology,
            rest,
            affinities,
            warnings,
            notes,
        }
    }

    pub(super) fn affinities(&self) -> &[Affinity] {
        &self.affinities
    }

    /// What the machine is made of.
    pub(super) fn parts(&self) -> String {
        let many = |count: usize, one: &str, more: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {more}"),
        };
        let cpus: usize = self
            .topology
            .cpus()
            .iter()
            .filter_map(|cpu| self.topology.cpu(*cpu))
            .map(|cpu| cpu.cpus.len())
            .sum();
        let parts = [
            many(self.topology.cpus().len(), "NUMA node", "NUMA nodes"),
            many(cpus, "CPU", "CPUs"),
            many(self.topology.gpus().len(), "GPU", "GPUs"),
            many(self.topology.nets().len(), "NIC port", "NIC ports"),
        ];
        parts.join(", ")
    }

    /// One line on what machine it is.
    pub(super) fn title(&self) -> String {
        let mut name = self.rest.name.clone().unwrap_or_default();
        if let Some(machine) = &self.rest.machine {
            let platform = &machine.platform;
            let made = [platform.vendor.as_deref(), platform.product.as_deref()];
            let made: Vec<&str> = made.into_iter().flatten().collect();
            name = if machine.host.is_empty() {
                "this machine".to_owned()
            } else {
                machine.host.clone()
            };
            if !made.is_empty() {
                name = format!("{name} ({})", made.join(" "));
            }
            if platform.virtual_machine {
                name += ", a virtual machine";
                if let Some(whose) = &platform.hypervisor {
                    name += &format!(" ({whose})");
                }
            }
        }
        format!("{name}: {}", self.parts())
    }

    /// The form for programs.
    pub(super) fn json(&self) -> Json<'_> {
        let name = |node: Option<NodeIndex>| node.map(|node| self.topology.name(node));
        let ring = |ring: &Channel| JsonRing {
            enters: name(ring.enters),
            gpus: ring.gpus.iter().map(|gpu| self.topology.name(*gpu)).collect(),
            leaves: name(ring.leaves),
            class_inside: ring.inside,
            class_outside: ring.outside,
            gb_per_s: ring.gb_per_s,
        };
        Json {
            title: self.title(),
            topology_file: self.rest.source.as_deref(),
            machine: self.rest.machine.as_ref(),
            topology: self.topology,
            matrix: &self.matrix,
            affinities: self.affinities.iter().map(|one| self.json_affinity(one)).collect(),
            rings: self.channels.iter().map(ring).collect(),
            warnings: &self.warnings,
            notes: &self.notes,
        }
    }

    fn json_affinity<'b>(&self, one: &'b Affinity) -> JsonAffinity<'b> {
        JsonAffinity {
            gpu: self.topology.name(one.gpu),
            gpu_bus: self.topology.bus_of(one.gpu),
            nic: one.net.map(|net| self.topology.name(net)),
            nic_bus: one.net.and_then(|net| self.topology.bus_of(net)),
            other_nics: one.others.iter().map(|net| self.topology.name(*net)).collect(),
            class: one.class,
            gb_per_s: one.gb_per_s,
            numa: one.numa,
            rail: one.rail,
            gpu_direct: one.gdr.used,
            gpu_direct_reason: &one.gdr.reason,
        }
    }

    /// Network interfaces worth showing: not the many that containers make.
    pub(super) fn interfaces(&self) -> Vec<&NetDevice> {
        use ringway::topo::NetKind::{Loopback, Virtual};
        let machine = self.rest.machine.as_ref();
        let all = machine.map(|machine| machine.nets.as_slice()).unwrap_or_default();
        all.iter().filter(|net| !matches!(net.kind, Virtual | Loopback)).collect()
    }
}

/// See docs/topology.md: fields are added, never changed or taken away.
#[derive(Serialize)]
pub(super) struct Json<'a> {
    title: String,
    topology_file: Option<&'a str>,
    machine: Option<&'a Machine>,
    topology: &'a Topology,
    matrix: &'a Matrix,
    affinities: Vec<JsonAffinity<'a>>,
    rings: Vec<JsonRing>,
    warnings: &'a [String],
    notes: &'a [String],
}

#[derive(Serialize)]
struct JsonAffinity<'a> {
    gpu: String,
    gpu_bus: Option<BusId>,
    nic: Option<String>,
    nic_bus: Option<BusId>,
    other_nics: Vec<String>,
    class: PathClass,
    gb_per_s: f64,
    numa: Option<i64>,
    rail: Option<usize>,
    gpu_direct: bool,
    gpu_direct_reason: &'a str,
}

#[derive(Serialize)]
struct JsonRing {
    enters: Option<String>,
    gpus: Vec<String>,
    leaves: Option<String>,
    class_inside: PathClass,
    class_outside: PathClass,
    gb_per_s: f64,
}
