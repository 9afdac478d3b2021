//! Fabrics out of a few numbers: fat trees of two and three tiers, with or without rails, and dragonflies.
//!
//! What is generated reads like what was read: the same model, so that it can be shown, checked, exported,
//! written as a dump and simulated.

mod dragonfly;

use std::fmt;

use crate::draft::{Draft, FinishOptions, Half, Place, ReadError};
use crate::model::{Fabric, Kind, Source};
use crate::rate::Rate;

pub use dragonfly::Dragonfly;

/// The most hosts or switches that are generated.
pub const NODES_MOST: usize = 1 << 20;

/// A fat tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FatTree {
    /// Hosts.
    pub hosts: usize,
    /// Adapters a host.
    pub adapters: usize,
    /// Whether each adapter of a host has leaves of its own.
    pub rails: bool,
    /// Hosts' links a leaf.
    pub down: usize,
    /// Uplinks a leaf.
    pub up: usize,
    /// Switches of the second tier; in three tiers those of one pod.
    pub spines: usize,
    /// Leaves of a pod; 0 where there are two tiers.
    pub pod_leaves: usize,
    /// Uplinks of a switch of the second tier; 0 where there are two tiers.
    pub spine_up: usize,
    /// Switches of the third tier; 0 where there are two tiers.
    pub cores: usize,
    /// What every link carries.
    pub rate: Rate,
}

/// Why a tree cannot be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GenerateError(String);

impl fmt::Display for GenerateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GenerateError {}

impl FatTree {
    /// Builds it.
    ///
    /// # Errors
    ///
    /// When links do not divide evenly, or there are too many of anything.
    pub fn build(&self) -> Result<Fabric, GenerateError> {
        let wrong = |what: String| Err(GenerateError(what));
        if self.hosts == 0 || self.adapters == 0 || self.down == 0 {
            return wrong("a fabric has hosts, adapters and leaves".to_owned());
        }
        let ends = self.hosts.saturating_mul(self.adapters);
        if ends > NODES_MOST {
            return wrong(format!("{ends} adapters; at most {NODES_MOST} are generated"));
        }
        let leaves = self.leaves();
        if self.spines > 0 && !self.up.is_multiple_of(self.spines) {
            return wrong(format!(
                "{} uplinks cannot be spread evenly over {} switches",
                self.up, self.spines
            ));
        }
        if leaves > 1 && self.spines == 0 && !self.rails {
            return wrong(format!("{leaves} leaves need a tier above"));
        }
        if self.cores > 0 && (self.pod_leaves == 0 || self.spine_up == 0) {
            return wrong("three tiers need leaves of a pod and uplinks of its spines".to_owned());
        }
        let mut tree = Tree::new(self.rate);
        self.cable(&mut tree, leaves)?;
        tree.finish()
    }

    fn leaves(&self) -> usize {
        match self.rails {
            true => self.hosts.div_ceil(self.down) * self.adapters,
            false => (self.hosts * self.adapters).div_ceil(self.down),
        }
    }

    fn cable(&self, tree: &mut Tree, leaves: usize) -> Result<(), GenerateError> {
        let leaf: Vec<usize> = (0..leaves)
            .map(|number| {
                let name = match self.rails {
                    true => format!(
                        "leaf-{}-{}",
                        number / self.adapters + 1,
                        number % self.adapters + 1
                    ),
                    false => format!("leaf-{}", number + 1),
                };
                tree.switch(name, self.down + self.up)
            })
            .collect();
        for host in 0..self.hosts {
            for adapter in 0..self.adapters {
                let node = tree.adapter(format!("node{} mlx5_{adapter}", host + 1));
                let place = match self.rails {
                    true => host / self.down * self.adapters + adapter,
                    false => (host * self.adapters + adapter) / self.down,
                };
                tree.link(leaf[place], node)?;
            }
        }
        let pods = if self.cores > 0 { leaves.div_ceil(self.pod_leaves) } else { 1 };
        let pod_leaves = if self.cores > 0 { self.pod_leaves } else { leaves };
        let mut spines: Vec<usize> = Vec::new();
        for pod in 0..pods {
            let first = spines.len();
            for spine in 0..self.spines {
                let name = match self.cores {
                    0 => format!("spine-{}", spine + 1),
                    _ => format!("spine-{}-{}", pod + 1, spine + 1),
                };
                spines.push(
                    tree.switch(name, pod_leaves * self.up / self.spines.max(1) + self.spine_up),
                );
            }
            let end = leaves.min((pod + 1) * pod_leaves);
            for leaf in &leaf[pod * pod_leaves..end] {
                for spine in &spines[first..] {
                    for _ in 0..self.up / self.spines {
                        tree.link(*leaf, *spine)?;
                    }
                }
            }
        }
        let cores: Vec<usize> =
            (0..self.cores).map(|core| tree.switch(format!("core-{}", core + 1), 0)).collect();
        for (number, spine) in spines.iter().enumerate().filter(|_| !cores.is_empty()) {
            // Spines of the same place in their pods meet on the same cores.
            let place = number % self.spines;
            for up in 0..self.spine_up {
                tree.link(*spine, cores[(place * self.spine_up + up) % cores.len()])?;
            }
        }
        Ok(())
    }
}

/// Switches and adapters, while they are cabled.
struct Tree {
    draft: Draft,
    rate: Rate,
    /// Ports of each node that are taken.
    used: Vec<u32>,
}

impl Tree {
    fn new(rate: Rate) -> Self {
        let generated = || "generated".to_owned();
        let mut draft = Draft::default();
        draft.sources.push(Source { name: generated(), format: generated() });
        Self { draft, rate, used: Vec::new() }
    }

    fn finish(self) -> Result<Fabric, GenerateError> {
        self.draft.finish(FinishOptions::default()).map_err(|error| GenerateError(error.what))
    }

    fn node(&mut self, kind: Kind, guid: u64, description: &str) -> usize {
        let place = Place { source: 0, line: 1 };
        let node = self.draft.by_guid(guid, kind, place);
        self.draft.describe(node, description, true);
        self.draft.nodes[node].defined = Some(place);
        self.used.resize(self.used.len().max(node + 1), 0);
        node
    }

    fn switch(&mut self, name: String, ports: usize) -> usize {
        let guid = 0x5a00_0000_0000_0000 + self.used.len() as u64;
        let node = self.node(Kind::Switch, guid, &name);
        self.draft.nodes[node].port_count = u32::try_from(ports).unwrap_or(0);
        self.draft.nodes[node].lid = u32::try_from(node + 1).ok();
        node
    }

    fn adapter(&mut self, name: String) -> usize {
        let guid = 0x4c00_0000_0000_0000 + self.used.len() as u64;
        let node = self.node(Kind::Adapter, guid, &name);
        self.draft.nodes[node].port_count = 1;
        let lid = u32::try_from(node + 1).ok();
        self.draft.nodes[node].ports.entry(1).or_default().port.lid = lid;
        node
    }

    /// Plugs a cable into the next free ports of both.
    fn link(&mut self, a: usize, b: usize) -> Result<(), GenerateError> {
        self.used[a] += 1;
        self.used[b] += 1;
        let (a_port, b_port) = (self.used[a], self.used[b]);
        let place = Place { source: 0, line: 1 };
        let half = |node, port| Half { node, port, rate: Some(self.rate), place, alone: true };
        let (to_b, to_a) = (half(b, b_port), half(a, a_port));
        let wrong = |error: ReadError| GenerateError(format!("too many ports: {}", error.what));
        self.draft.join(a, a_port, to_b).map_err(wrong)?;
        self.draft.join(b, b_port, to_a).map_err(wrong)
    }
}

#[cfg(test)]
impl FatTree {
    /// The one that tests begin with: 16 hosts, 4 rails, non-blocking.
    pub(crate) fn railed() -> Self {
        Self {
            hosts: 16,
            adapters: 4,
            rails: true,
            down: 8,
            up: 8,
            spines: 4,
            pod_leaves: 0,
            spine_up: 0,
            cores: 0,
            rate: Rate::parse("4xNDR").expect("a rate"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    fn ndr() -> Rate {
        Rate::parse("4xNDR").expect("a rate")
    }

    #[test]
    fn a_two_tier_tree_has_the_textbooks_numbers() {
        let tree = FatTree {
            hosts: 128,
            adapters: 1,
            rails: false,
            down: 8,
            up: 8,
            spines: 8,
            pod_leaves: 0,
            spine_up: 0,
            cores: 0,
            rate: ndr(),
        };
        let shape = Shape::of(&tree.build().unwrap());
        assert_eq!((shape.switches, shape.hosts, shape.links), (24, 128, 256));
        assert_eq!(shape.tiers.len(), 2);
        assert_eq!(shape.tiers[0].oversubscription, Some(1.0));
        assert_eq!(shape.bisection.gbps, 64.0 * 400.0);
        assert_eq!(shape.paths.unwrap().usual, 8);
    }

    #[test]
    fn a_three_tier_tree_of_k_4_is_the_textbooks() {
        // k = 8: 4 hosts a leaf, 4 leaves and 4 spines a pod, 8 pods, 16 cores.
        let tree = FatTree {
            hosts: 128,
            adapters: 1,
            rails: false,
            down: 4,
            up: 4,
            spines: 4,
            pod_leaves: 4,
            spine_up: 4,
            cores: 16,
            rate: ndr(),
        };
        let shape = Shape::of(&tree.build().unwrap());
        assert_eq!((shape.switches, shape.hosts, shape.links), (80, 128, 384));
        let tiers: Vec<usize> = shape.tiers.iter().map(|tier| tier.switches).collect();
        assert_eq!(tiers, [32, 32, 16]);
        assert_eq!(shape.bisection.gbps, 64.0 * 400.0);
        let paths = shape.paths.unwrap();
        assert_eq!((paths.least, paths.most, paths.fewer, paths.switches_most), (16, 16, 0, 5));
    }

    #[test]
    fn a_switch_of_too_many_ports_is_an_error() {
        let tree = FatTree {
            hosts: 5000,
            adapters: 1,
            rails: false,
            down: 5000,
            up: 0,
            spines: 0,
            pod_leaves: 0,
            spine_up: 0,
            cores: 0,
            rate: ndr(),
        };
        let error = tree.build().unwrap_err().to_string();
        assert!(error.contains("4097"), "{error}");
    }

    #[test]
    fn rails_are_seen() {
        let tree = FatTree { spines: 8, ..FatTree::railed() };
        let shape = Shape::of(&tree.build().unwrap());
        assert_eq!((shape.rails, shape.units, shape.switches), (4, 2, 16));
    }
}
