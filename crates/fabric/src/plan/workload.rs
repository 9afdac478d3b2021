//! What a workload wants of the network, and what a design gives.

use serde::Serialize;

use super::Design;
use crate::rate;

/// How the work is spread.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Parallel {
    /// Each GPU has the whole model: gradients are reduced over all once a step.
    Data,
    /// Each GPU has a part: parameters are gathered twice and gradients scattered once a step.
    Fsdp,
}

/// One training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Parameters of the model.
    pub parameters: f64,
    /// Bytes of each.
    pub bytes: f64,
    /// Seconds of a step.
    pub step_s: f64,
    /// The part of the step in which communication may go on.
    pub overlap: f64,
    /// How the work is spread.
    pub parallel: Parallel,
    /// GB/s of one GPU to the others of its node, in one direction; nothing where they have no fast links.
    pub inside: Option<f64>,
}

/// What is wanted of each GPU's link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Demand {
    /// Bytes that each GPU sends in a step.
    pub step_bytes: f64,
    /// GB/s of each GPU, so that it is done in time.
    pub gbytes: f64,
}

/// What is given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Supply {
    /// GB/s of each GPU by its part of the adapters alone.
    pub alone: f64,
    /// GB/s of a ring that enters and leaves each node once, all adapters together, and inside at most by the GPUs'
    /// own links; nothing where those are not told.
    pub ring: Option<f64>,
    /// GB/s of each GPU to all others, where all that leaves the node leaves the leaf too; at most by the GPUs' own links.
    pub all_to_all: f64,
    /// What is given over what is wanted, by the better of the first two.
    pub headroom: f64,
    /// Seconds of a step that the network is busy.
    pub busy_s: f64,
}

impl Workload {
    /// What is wanted, on so many GPUs.
    #[must_use]
    pub fn demand(&self, gpus: u64) -> Demand {
        let n = gpus.max(1) as f64;
        let times = match self.parallel {
            Parallel::Data => 2.0,
            Parallel::Fsdp => 3.0,
        };
        let step_bytes = times * (n - 1.0) / n * self.parameters * self.bytes;
        Demand { step_bytes, gbytes: step_bytes / 1e9 / (self.step_s * self.overlap) }
    }

    /// What a design gives.
    #[must_use]
    pub fn supply(&self, design: &Design) -> Supply {
        let demand = self.demand(design.gpus);
        let part = |name: &str| rate::rule(name).map_or(1.0, |rule| rule.part);
        let alone = design.gpu_gbytes() * part("nic");
        let node = design.nics_per_node as f64 * design.rate.gbps() / 8.0;
        let ring = self
            .inside
            .map(|inside| f64::min(node * part("collective-1g"), inside * part("nvlink")));
        let best = f64::max(alone, ring.unwrap_or(0.0));
        let (n, g) = (design.gpus as f64, design.gpus_per_node as f64);
        let leaves_node = if n > g { (n - 1.0) / (n - g) } else { 1.0 };
        Supply {
            alone,
            ring,
            all_to_all: f64::min(
                design.gpu_gbytes() * part("nic") * leaves_node / design.oversubscription.max(1.0),
                self.inside.map_or(f64::INFINITY, |inside| inside * part("nvlink")),
            ),
            headroom: best / demand.gbytes.max(f64::MIN_POSITIVE),
            busy_s: demand.step_bytes / 1e9 / best,
        }
    }
}
