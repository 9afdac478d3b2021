//! Broadcom switches show themselves as two levels though they are one; NCCL makes them one.

use super::{Kind, LinkKind, NodeIndex, Topology};

/// The generation of a Broadcom switch at a level of its two; 0 for other switches.
fn generation(device: u64, level: u64) -> u8 {
    match device & !0xfff {
        0x1000_c010_1000_a000 => 4,
        id if id == 0x1000_c030_1000_0000 | level << 12 => 5,
        _ => 0,
    }
}

impl Topology {
    /// The graph as NCCL counts paths on it: a two-level Broadcom switch is one. Node indices stay
    /// what they are; an inner switch keeps its node but no links.
    #[must_use]
    pub fn as_nccl_sees_it(&self) -> Self {
        let mut graph = self.clone();
        let mut done = vec![false; graph.nodes.len()];
        // Each turn marks one switch; an outer one comes before its inner ones.
        while let Some(outer) = (0..graph.nodes.len())
            .find(|index| !done[*index] && switch_generation(&graph, *index, 0) != 0)
        {
            done[outer] = true;
            let kind = switch_generation(&graph, outer, 0);
            let inner: Vec<NodeIndex> = (0..graph.nodes.len())
                .filter(|index| {
                    graph.nodes[*index].parent == Some(outer)
                        && switch_generation(&graph, *index, 1) == kind
                })
                .collect();
            for sub in inner {
                done[sub] = true;
                graph.links.retain(|link| {
                    let ends = (link.from, link.to);
                    ends != (outer, sub) && ends != (sub, outer)
                });
                for link in &mut graph.links {
                    if link.kind == LinkKind::Pci {
                        link.from = if link.from == sub { outer } else { link.from };
                        link.to = if link.to == sub { outer } else { link.to };
                    }
                }
                for node in &mut graph.nodes {
                    if node.parent == Some(sub) {
                        node.parent = Some(outer);
                    }
                }
                graph.nodes[sub].parent = None;
            }
        }
        graph
    }
}

fn switch_generation(graph: &Topology, index: NodeIndex, level: u64) -> u8 {
    match &graph.nodes[index].kind {
        Kind::Pci(pci) => generation(pci.device, level),
        _ => 0,
    }
}
