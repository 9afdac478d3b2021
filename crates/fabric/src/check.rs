//! What is wrong with a fabric, by comparing equals.
//!
//! No plan of the fabric is needed: leaves of one tier have as many uplinks as each other, hosts of one kind as many
//! adapters, links of one kind the same rate. What differs is named, with where it was seen, what it costs and
//! what to do.
//!
//! *Invariant:* a fabric in which equals are equal yields nothing, however odd it is.

mod balance;
mod counters;
mod hosts;
mod links;
mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

pub(crate) use crate::describe::plural;
use crate::model::Fabric;
use crate::shape::{Rails, Shape};

pub use counters::Look;

/// How bad it is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Could not be looked at.
    Unknown,
    /// Works, but slower or more fragile than it could.
    Warn,
    /// Broken, or so slow that it is as good as broken.
    Fail,
}

/// One cause.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Finding {
    /// Short and stable: `fab-02`.
    pub id: &'static str,
    /// `links`, `hosts`, `switches`, `counters`.
    pub group: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// One sentence.
    pub title: String,
    /// Where it was seen, all of it.
    pub evidence: Vec<String>,
    /// What it costs.
    pub cost: Option<String>,
    /// What to do.
    pub fix: Option<String>,
}

impl Finding {
    pub(crate) fn new(
        group: &'static str,
        id: &'static str,
        verdict: Verdict,
        title: impl Into<String>,
    ) -> Self {
        let (evidence, cost, fix) = (Vec::new(), None, None);
        Self { id, group, verdict, title: title.into(), evidence, cost, fix }
    }

    pub(crate) fn seen(mut self, evidence: impl IntoIterator<Item = String>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    pub(crate) fn costs(mut self, cost: impl Into<String>) -> Self {
        self.cost = Some(cost.into());
        self
    }

    pub(crate) fn fixed_by(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// What to check against.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions<'a> {
    /// An earlier look at the same ports, for counters by what they grew.
    pub before: Option<&'a Fabric>,
    /// Seconds between the two looks.
    pub interval_s: Option<f64>,
    /// The oversubscription that is planned for.
    pub oversubscription: Option<f64>,
}

/// Everything that is wrong.
#[must_use]
pub fn check(fabric: &Fabric, options: CheckOptions<'_>) -> Vec<Finding> {
    let shape = Shape::of(fabric);
    let rails = Rails::of(fabric);
    let mut found = Vec::new();
    found.extend(links::slow(fabric));
    found.extend(links::missing_uplinks(fabric, &shape));
    found.extend(links::uneven_uplinks(fabric, &shape));
    found.extend(links::oversubscribed(&shape, options.oversubscription));
    found.extend(links::down(fabric));
    found.extend(links::parted(fabric));
    found.extend(hosts::fewer_adapters(fabric));
    found.extend(hosts::crossed_rails(fabric, &rails));
    found.extend(hosts::unnamed(fabric));
    found.extend(names::twice(fabric));
    found.extend(names::aggregation(fabric));
    found.extend(names::firmware(fabric));
    found.extend(names::vitals(fabric));
    found.extend(counters::judge(fabric, &rails, &options));
    found.extend(
        fabric
            .remarks
            .iter()
            .map(|remark| Finding::new("dumps", "fab-dumps", Verdict::Unknown, remark.clone())),
    );
    found
}

/// What most have; of equals the larger. With how many have it.
pub(crate) fn usual<T: Copy + Ord>(values: impl IntoIterator<Item = T>) -> Option<(T, usize)> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(value, count)| (*count, *value))
}
