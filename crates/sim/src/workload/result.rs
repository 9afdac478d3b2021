//! What a training step came to.

use serde::Serialize;

use super::graph::row;
use super::{Kind, Traffic, Training};
use crate::outcome::{Outcome, Span};

/// One kind of communication.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KindTime {
    /// What a GPU sends for it.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Microseconds in which any of it was under way, in the stage with most.
    pub busy_us: f64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// Microseconds of the step.
    pub step_us: f64,
    /// Of these each GPU computed.
    pub compute_us: f64,
    /// Of these a stage had nothing to do while the pipeline filled and drained.
    pub bubble_us: f64,
    /// In these something was under way, in the stage with most.
    pub communication_us: f64,
    /// What communication added: the step less computing and bubble.
    pub exposed_us: f64,
    /// The part of the step in which GPUs computed.
    pub utilisation: f64,
    /// Tokens of all replicas, a second.
    pub tokens_per_s: f64,
    /// By kind.
    pub kinds: Vec<KindTime>,
}

impl StepTime {
    /// Counts.
    #[must_use]
    pub fn of(training: &Training, outcome: &Outcome) -> Self {
        let step_us = outcome.end_us;
        let (compute_us, bubble_us) = (training.compute_us(), training.bubble_us());
        let mut kinds: Vec<KindTime> = Vec::new();
        for traffic in training.traffic() {
            let busy =
                |stage| covered(&outcome.spans, &[row(training, stage, traffic.kind.name())]);
            let busy_us = (0..training.pipeline).map(busy).fold(0.0, f64::max);
            match kinds.iter_mut().find(|known| known.traffic.kind == traffic.kind) {
                // Experts' parameters and all others: one kind to those who read.
                Some(known) => {
                    known.traffic.calls += traffic.calls;
                    known.traffic.call_bytes += traffic.call_bytes;
                    known.traffic.sent_bytes += traffic.sent_bytes;
                }
                None => kinds.push(KindTime { traffic, busy_us }),
            }
        }
        let all = |stage| {
            let rows = Kind::ALL.map(|kind| row(training, stage, kind.name()));
            covered(&outcome.spans, &rows)
        };
        Self {
            step_us,
            compute_us,
            bubble_us,
            communication_us: (0..training.pipeline).map(all).fold(0.0, f64::max),
            exposed_us: (step_us - compute_us - bubble_us).max(0.0),
            utilisation: if step_us > 0.0 { compute_us / step_us } else { 0.0 },
            tokens_per_s: if step_us > 0.0 {
                training.tokens * f64::from(training.data) / step_us * 1e6
            } else {
                0.0
            },
            kinds,
        }
    }
}

/// Microseconds in which any span of these rows was under way.
fn covered(spans: &[Span], rows: &[String]) -> f64 {
    let mut pieces: Vec<(f64, f64)> = spans
        .iter()
        .filter(|span| rows.contains(&span.row))
        .map(|span| (span.start_us, span.end_us))
        .collect();
    pieces.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, f64::NEG_INFINITY);
    for (start, end) in pieces {
        if end > until {
            sum += end - f64::max(start, until);
            until = end;
        }
    }
    sum
}
