//! The numbers: how long, how fast, how full.

use std::collections::BTreeMap;

use ringway_plan::types::Collective;
use serde::Serialize;

use super::tally::{self, Group, Owner, Usage};
use crate::network::{Network, Wire};
use crate::outcome::{Incident, Outcome, Span};

/// Links that are named.
pub const HOTTEST: usize = 10;

/// Links of a group together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GroupUse {
    /// What they join.
    pub group: Group,
    /// How many there are.
    pub links: usize,
    /// How many carried something.
    pub used: usize,
    /// Bytes of all.
    pub bytes: f64,
    /// Part of what they could carry, in the mean over links whose owner carried something.
    pub mean: f64,
    /// Part of what the hottest could carry.
    pub most: f64,
    /// The hottest over the mean, less 1: 0 where all carry the same.
    pub imbalance: f64,
}

/// One of the hottest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hot {
    /// As people call it.
    pub name: String,
    /// What it joins.
    pub group: Group,
    /// Bytes.
    pub bytes: f64,
    /// Part of what it could carry until the end.
    #[serde(rename = "use")]
    pub part: f64,
    /// Part of the time in which it was full.
    pub full: f64,
}

/// A collective that was run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timed {
    /// What people see.
    pub name: String,
    /// Which.
    pub collective: Collective,
    /// Bytes as nccl-tests counts them.
    pub bytes: u64,
    /// Ranks that took part.
    pub ranks: u32,
    /// When it began.
    pub start_us: f64,
    /// When it ended.
    pub end_us: f64,
}

impl Timed {
    /// Bytes over time, in GB/s.
    #[must_use]
    pub fn algbw(&self) -> f64 {
        let us = self.end_us - self.start_us;
        if us > 0.0 { self.bytes as f64 / us / 1000.0 } else { 0.0 }
    }

    /// What the links show, whatever the collective and however many ranks, in GB/s.
    #[must_use]
    pub fn busbw(&self) -> f64 {
        self.algbw() * self.collective.bus_factor(self.ranks)
    }
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// When all was over.
    pub time_us: f64,
    /// Flows that were simulated.
    pub flows: u64,
    /// How often rates were shared out anew.
    pub solves: u64,
    /// Links by what they join, from the hosts up.
    pub groups: Vec<GroupUse>,
    /// The ten hottest.
    pub hottest: Vec<Hot>,
    /// What happened to the network.
    pub incidents: Vec<Incident>,
}

impl Summary {
    /// Counts.
    #[must_use]
    pub fn of(network: &Network, outcome: &Outcome) -> Self {
        let usages = tally::usages(network, outcome);
        let hottest = tally::hottest(&usages, HOTTEST)
            .into_iter()
            .map(|usage| Hot {
                name: network.link_name(usage.link),
                group: usage.group,
                bytes: usage.bytes,
                part: usage.part,
                full: usage.full,
            })
            .collect();
        Self {
            time_us: outcome.end_us,
            flows: outcome.flows,
            solves: outcome.solves,
            groups: groups(&usages),
            hottest,
            incidents: outcome.incidents.clone(),
        }
    }
}

/// Each group's use.
#[must_use]
pub fn groups(usages: &[Usage]) -> Vec<GroupUse> {
    // A job on a part of the fabric leaves the rest idle: that is no imbalance.
    let mut owners: BTreeMap<(Group, Owner), f64> = BTreeMap::new();
    for usage in usages {
        *owners.entry((usage.group, usage.owner)).or_default() += usage.bytes;
    }
    let mut groups: BTreeMap<Group, (GroupUse, usize)> = BTreeMap::new();
    for usage in usages {
        let group = usage.group;
        let (links, used, bytes) = (0, 0, 0.0);
        let none = GroupUse { group, links, used, bytes, mean: 0.0, most: 0.0, imbalance: 0.0 };
        let (sum, counted) = groups.entry(group).or_insert((none, 0));
        sum.links += 1;
        sum.used += usize::from(usage.bytes > 0.0);
        sum.bytes += usage.bytes;
        sum.most = sum.most.max(usage.part);
        if owners.get(&(group, usage.owner)).is_some_and(|bytes| *bytes > 0.0) {
            sum.mean += usage.part;
            *counted += 1;
        }
    }
    let finished = groups.into_values().map(|(mut sum, counted)| {
        sum.mean /= counted.max(1) as f64;
        sum.imbalance = if sum.mean > 0.0 { (sum.most / sum.mean - 1.0).max(0.0) } else { 0.0 };
        sum
    });
    finished.collect()
}

/// When the spans of a row began and ended.
#[must_use]
pub fn extent(spans: &[Span], row: &str) -> Option<(f64, f64)> {
    let mut of_row = spans.iter().filter(|span| span.row == row);
    let first = of_row.next()?;
    let both = (first.start_us, first.end_us);
    Some(of_row.fold(both, |(start, end), span| {
        (f64::min(start, span.start_us), f64::max(end, span.end_us))
    }))
}

/// Every link that carried something, for other tools.
#[must_use]
pub fn links_json(network: &Network, outcome: &Outcome) -> Vec<serde_json::Value> {
    let usages = tally::usages(network, outcome);
    outcome
        .links
        .iter()
        .filter_map(|used| {
            let usage = usages.get(used.link)?;
            let kind = match network.links[used.link].what {
                Wire::Cable { .. } => "cable",
                Wire::InsideOut(_) | Wire::InsideIn(_) => "inside",
                Wire::BusOut(_) | Wire::BusIn(_) => "bus",
            };
            Some(serde_json::json!({
                "name": network.link_name(used.link),
                "kind": kind,
                "group": usage.group,
                "bytes": used.bytes,
                "use": usage.part,
                "busy_us": used.busy_us,
                "full_us": used.full_us,
            }))
        })
        .collect()
}
