//! Training steps out of a few numbers.
//!
//! A [`Training`] says how large the model is and how it is spread; from that come the time of computing, the calls of each kind
//! with their bytes ([`Training::traffic`], in closed form), and a graph of tasks in which communication overlaps with
//! computing as frameworks let it. The ranks of a tensor group are next to each other, then come the replicas of
//! the data, then the stages of the pipeline.
//!
//! What is not modelled: the optimiser, embeddings, recomputation, stages of unequal length.

mod graph;
mod result;
mod schedule;
#[cfg(test)]
mod tests;

use ringway_plan::types::Collective;
use serde::Serialize;
use thiserror::Error;

use crate::error::SimError;

pub use graph::{Style, tasks};
pub use result::{KindTime, StepTime};
pub use schedule::{Work, one_forward_one_backward};

/// Bytes of a number that travels between layers: half precision.
const ACTIVATION_BYTES: f64 = 2.0;
/// Of a layer's parameters, as multiples of the hidden size squared: attention, and one feed-forward block.
const ATTENTION: f64 = 4.0;
const FEED_FORWARD: f64 = 8.0;

/// Why there is no training step.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum WorkloadError {
    /// The numbers do not fit each other, or the network.
    #[error("{0}")]
    Numbers(String),
    /// A call cannot be.
    #[error(transparent)]
    Call(#[from] SimError),
}

/// How long computing takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Compute {
    /// Microseconds of a GPU in a step.
    Us(f64),
    /// A GPU's TFLOP/s, and the part of them that is reached.
    Rate {
        /// What the maker states.
        tflops: f64,
        /// What arrives of it.
        part: f64,
    },
}

/// One training step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Training {
    /// Parameters of the model.
    pub parameters: f64,
    /// Bytes of a parameter and of a gradient on the wire.
    pub bytes: f64,
    /// Layers.
    pub layers: u32,
    /// Numbers of one token between layers.
    pub hidden: u32,
    /// Tokens of a step in each replica.
    pub tokens: f64,
    /// How long computing takes.
    pub compute: Compute,
    /// Replicas of the data.
    pub data: u32,
    /// GPUs that share a layer.
    pub tensor: u32,
    /// Stages.
    pub pipeline: u32,
    /// Replicas that share experts; 1 where there are none.
    pub expert: u32,
    /// Experts of a layer; 0 where there are none.
    pub experts: u32,
    /// Experts that each token goes to.
    pub top_k: u32,
    /// Whether each replica holds a part of the parameters and gathers the rest layer by layer.
    pub fsdp: bool,
    /// Parts of a stage's layers whose gradients go together, and whose parameters are gathered together.
    pub buckets: u32,
    /// Parts of a step's tokens that go one after another.
    pub microbatches: u32,
}

/// Why bytes go from GPU to GPU.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Gradients are reduced over replicas.
    Gradients,
    /// Gradients are reduced, and each replica keeps its part.
    Scatter,
    /// Parameters are gathered from replicas.
    Gather,
    /// Layers are shared.
    Tensor,
    /// Tokens go to experts and back.
    Expert,
    /// Stages pass on.
    Pipeline,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Gradients, Self::Scatter, Self::Gather, Self::Tensor, Self::Expert, Self::Pipeline];

    /// What people see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gradients => "gradients",
            Self::Scatter => "scatter",
            Self::Gather => "gather",
            Self::Tensor => "tensor",
            Self::Expert => "expert",
            Self::Pipeline => "pipeline",
        }
    }

    /// The collective.
    #[must_use]
    pub const fn collective(self) -> Collective {
        match self {
            Self::Gradients | Self::Tensor => Collective::AllReduce,
            Self::Scatter => Collective::ReduceScatter,
            Self::Gather => Collective::AllGather,
            Self::Expert => Collective::AllToAll,
            Self::Pipeline => Collective::SendRecv,
        }
    }
}

/// The most of anything: what is more is a slip.
const NUMBER_MOST: f64 = 1e15;

/// What one GPU sends in a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// Why.
    pub kind: Kind,
    /// GPUs of a group.
    pub ranks: u32,
    /// Calls in a step.
    pub calls: f64,
    /// Bytes of all of them, as nccl-tests counts a call's.
    pub call_bytes: f64,
    /// Bytes that a GPU sends, by the best algorithm that rings allow.
    pub sent_bytes: f64,
}

impl Training {
    /// GPUs of the job.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        (u64::from(self.data) * u64::from(self.tensor)).saturating_mul(self.pipeline.into())
    }

    /// The rank of a stage, a replica and a place in the tensor group.
    #[must_use]
    pub fn rank(&self, stage: u32, replica: u32, place: u32) -> u32 {
        (stage * self.data + replica) * self.tensor + place
    }

    /// Whether the numbers fit each other.
    ///
    /// # Errors
    ///
    /// When they do not: with the number, and what would fit.
    pub fn check(&self) -> Result<(), WorkloadError> {
        let wrong = |what: String| Err(WorkloadError::Numbers(what));
        let positive = |name: &str, value: f64| match value > 0.0 && value <= NUMBER_MOST {
            true => Ok(()),
            false => Err(WorkloadError::Numbers(format!(
                "{name} {value}: wanted is a number above 0, and at most {NUMBER_MOST:e}"
            ))),
        };
        positive("parameters", self.parameters)?;
        positive("bytes of a parameter", self.bytes)?;
        positive("tokens", self.tokens)?;
        match self.compute {
            Compute::Us(us) => positive("compute time", us)?,
            Compute::Rate { tflops, part } => {
                positive("TFLOP/s", tflops)?;
                positive("the part of them that is reached", part)?;
                if part > 1.0 {
                    return wrong(format!("part {part} of the TFLOP/s: at most 1"));
                }
            }
        }
        let counts = [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("data parallel", self.data),
            ("tensor parallel", self.tensor),
            ("pipeline parallel", self.pipeline),
            ("expert parallel", self.expert),
            ("buckets", self.buckets),
            ("micro-batches", self.microbatches),
        ];
        for (name, count) in counts {
            if count == 0 {
                return wrong(format!("{name} 0: wanted is at least 1"));
            }
        }
        if self.pipeline > self.layers {
            return wrong(format!("{} stages, but {} layers", self.pipeline, self.layers));
        }
        if self.buckets > self.layers.div_ceil(self.pipeline) {
            return wrong(format!(
                "{} buckets, but a stage has {} layers: at most one for each",
                self.buckets,
                self.layers.div_ceil(self.pipeline)
            ));
        }
        if self.buckets > 4096 {
            return wrong(format!("{} buckets: at most 4096", self.buckets));
        }
        if self.microbatches > 4096 {
            return wrong(format!("{} micro-batches: at most 4096", self.microbatches));
        }
        if self.expert > 1 && self.experts == 0 {
            return wrong(format!("expert parallel {}, but no experts", self.expert));
        }
        if self.experts > 0 {
            if !self.data.is_multiple_of(self.expert) {
                return wrong(format!(
                    "expert parallel {} does not divide data parallel {}: experts are shared among replicas",
                    self.expert, self.data
                ));
            }
            if !self.experts.is_multiple_of(self.expert) {
                return wrong(format!(
                    "{} experts cannot be spread evenly over {} replicas",
                    self.experts, self.expert
                ));
            }
            if self.top_k == 0 || self.top_k > self.experts {
                return wrong(format!("top {} of {} experts", self.top_k, self.experts));
            }
        }
        Ok(())
    }

    /// Places that the parameters of one replica are spread over.
    fn places(&self) -> f64 {
        f64::from(self.tensor) * f64::from(self.pipeline)
    }

    /// The part of the parameters that is in experts.
    fn expert_part(&self) -> f64 {
        let experts = f64::from(self.experts) * FEED_FORWARD;
        if self.experts == 0 { 0.0 } else { experts / (ATTENTION + experts) }
    }

    /// Parameters that a token goes through.
    #[must_use]
    pub fn active_parameters(&self) -> f64 {
        if self.experts == 0 {
            return self.parameters;
        }
        let of = |experts: u32| ATTENTION + FEED_FORWARD * f64::from(experts);
        self.parameters * of(self.top_k) / of(self.experts)
    }

    /// Bytes of the parameters at one place of the pipeline and the tensor group, as if nobody shared them otherwise:
    /// those that all replicas hold, and those of one expert-parallel rank's experts.
    #[must_use]
    pub fn held_bytes(&self) -> (f64, f64) {
        let all = self.parameters * self.bytes / self.places();
        let experts = all * self.expert_part();
        (all - experts, experts / f64::from(self.expert))
    }

    /// Bytes of the tokens of a micro-batch between two layers.
    #[must_use]
    pub fn activation_bytes(&self) -> f64 {
        self.tokens / f64::from(self.microbatches) * f64::from(self.hidden) * ACTIVATION_BYTES
    }

    /// Layers of a stage, in the mean.
    #[must_use]
    pub fn stage_layers(&self) -> f64 {
        f64::from(self.layers) / f64::from(self.pipeline)
    }

    /// Microseconds that each GPU computes in a step: 2 floating point operations for each parameter and token forward, 4 back.
    #[must_use]
    pub fn compute_us(&self) -> f64 {
        match self.compute {
            Compute::Us(us) => us,
            Compute::Rate { tflops, part } => {
                let operations = 6.0 * self.active_parameters() * self.tokens;
                operations / self.places() / (tflops * part * 1e6)
            }
        }
    }

    /// Microseconds in which a stage has nothing to do because others fill or drain the pipeline.
    #[must_use]
    pub fn bubble_us(&self) -> f64 {
        self.compute_us() * f64::from(self.pipeline - 1) / f64::from(self.microbatches)
    }

    /// How often a step gathers the parameters and scatters the gradients: with stages once, kept until the last micro-batch;
    /// else for each micro-batch anew.
    #[must_use]
    pub fn fsdp_rounds(&self) -> u32 {
        if self.pipeline > 1 { 1 } else { self.microbatches }
    }

    /// What each kind of communication asks of a GPU, in closed form.
    #[must_use]
    pub fn traffic(&self) -> Vec<Traffic> {
        let mut all = Vec::new();
        let mut add = |kind: Kind, ranks: u32, calls: f64, call_bytes: f64, factor: f64| {
            if ranks > 1 && calls > 0.0 {
                let sent_bytes = call_bytes * factor;
                all.push(Traffic { kind, ranks, calls, call_bytes, sent_bytes });
            }
        };
        let part = |ranks: u32| (f64::from(ranks) - 1.0) / f64::from(ranks);
        let (shared, experts) = self.held_bytes();
        let buckets = f64::from(self.buckets);
        for (bytes, ranks) in [(shared, self.data), (experts, self.data / self.expert.max(1))] {
            if bytes <= 0.0 {
                continue;
            }
            if self.fsdp {
                let rounds = f64::from(self.fsdp_rounds());
                add(Kind::Scatter, ranks, rounds * buckets, rounds * bytes, part(ranks));
                // With stages what was gathered forward is still there on the way back.
                let gathers = rounds * if self.pipeline > 1 { 1.0 } else { 2.0 };
                add(Kind::Gather, ranks, gathers * buckets, gathers * bytes, part(ranks));
            } else {
                add(Kind::Gradients, ranks, buckets, bytes, 2.0 * part(ranks));
            }
        }
        let blocks = self.stage_layers() * f64::from(self.microbatches);
        let activation = self.activation_bytes();
        add(
            Kind::Tensor,
            self.tensor,
            4.0 * blocks,
            4.0 * blocks * activation,
            2.0 * part(self.tensor),
        );
        let dispatched = activation * f64::from(self.top_k) / f64::from(self.tensor);
        add(
            Kind::Expert,
            if self.experts > 0 { self.expert } else { 1 },
            4.0 * blocks,
            4.0 * blocks * dispatched,
            part(self.expert),
        );
        // Each place of a tensor group passes on its part.
        let passes = 2.0 * f64::from(self.microbatches);
        add(
            Kind::Pipeline,
            self.pipeline,
            passes,
            passes * activation / f64::from(self.tensor),
            // The first stage only sends on, the last only back; a stage between them does both.
            if self.pipeline > 2 { 1.0 } else { 0.5 },
        );
        all
    }
}
