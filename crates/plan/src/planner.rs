//! Which algorithm, and cut how: candidates, prices, a choice, and the reasons kept.
//!
//! There is no table of thresholds. Every algorithm that can do the call is priced, by way of the
//! plans it makes, on the links it would use.
//!
//! **Invariant:** a choice is a function of arguments that are equal on all ranks, so that all ranks choose alike
//! without a word between them. What differs by rank (the counts of an all_to_all_v) is not
//! looked at.

use thiserror::Error;

use crate::algorithm::Algorithm;
use crate::build::{Context, Tuning};
use crate::calibration::{Calibration, Corrections, Measured};
use crate::cost::{Links, World};
use crate::problem::{Counts, Problem};
use crate::sim::{self, Times};
use crate::types::Rank;

/// What the planner may and must use. Equal on all ranks.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Whether the user allows an algorithm, else why not.
    pub allow: &'a dyn Fn(Algorithm) -> Result<(), String>,
    /// Lanes, where the user has set them.
    pub lanes: Option<u32>,
    /// Bytes of a slot, where the user has set them.
    pub slot_bytes: Option<u64>,
    /// Scratch memory there is.
    pub scratch_bytes: u64,
    /// What links and cores cost.
    pub links: Links,
    /// What calls were seen to take.
    pub measured: Option<&'a Calibration>,
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("lanes", &self.lanes)
            .field("slot_bytes", &self.slot_bytes)
            .field("scratch_bytes", &self.scratch_bytes)
            .field("links", &self.links)
            .field("measured", &self.measured.is_some())
            .finish_non_exhaustive()
    }
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self {
            allow: &|_| Ok(()),
            lanes: None,
            slot_bytes: None,
            scratch_bytes: Tuning::default().scratch_bytes,
            links: Links::default(),
            measured: None,
        }
    }
}

/// What became of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is the one.
    Chosen,
    /// Another is quicker.
    Slower,
    /// It cannot, or may not, do this call.
    Refused(String),
}

/// An algorithm that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Which.
    pub algorithm: Algorithm,
    /// What it would take by the model, where it was not refused.
    pub predicted_us: Option<f64>,
    /// What it was seen to take.
    pub measured: Option<Measured>,
    /// What the choice goes by: the prediction, corrected by what was seen.
    pub expected_us: Option<f64>,
    /// What became of it.
    pub outcome: Outcome,
}

/// How a call is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// How it cuts.
    pub tuning: Tuning,
    /// All algorithms, the quickest first, the refused last.
    pub candidates: Vec<Candidate>,
}

/// No algorithm can do a call.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no algorithm for this {collective}: {reasons}")]
pub struct NoAlgorithm {
    /// The collective.
    pub collective: String,
    /// Why each was refused.
    pub reasons: String,
}

/// Chooses, and says why.
///
/// # Errors
/// Where every algorithm is refused.
pub fn choose(
    problem: &Problem,
    hosts: &[u32],
    request: &Request<'_>,
) -> Result<Choice, NoAlgorithm> {
    let tuning = tune(problem, hosts, request);
    let mut candidates: Vec<Candidate> = Algorithm::ALL
        .into_iter()
        .map(|algorithm| match admit(algorithm, problem, hosts, tuning, request) {
            Ok(()) => Candidate {
                algorithm,
                predicted_us: Some(predict(algorithm, problem, hosts, tuning, &request.links)),
                measured: None,
                expected_us: None,
                outcome: Outcome::Slower,
            },
            Err(reason) => Candidate {
                algorithm,
                predicted_us: None,
                measured: None,
                expected_us: None,
                outcome: Outcome::Refused(reason),
            },
        })
        .collect();
    let corrections = corrections(problem, hosts, request);
    let admitted: Vec<Algorithm> = candidates
        .iter()
        .filter(|candidate| candidate.predicted_us.is_some())
        .map(|candidate| candidate.algorithm)
        .collect();
    for candidate in &mut candidates {
        let predicted_us = candidate.predicted_us;
        candidate.measured =
            predicted_us.and_then(|us| corrections.measured(candidate.algorithm, us));
        candidate.expected_us =
            predicted_us.map(|us| us * corrections.ratio(candidate.algorithm, &admitted));
    }
    // Stable, so that of equals the first of `Algorithm::ALL` is chosen.
    let order = |candidate: &Candidate| candidate.expected_us.unwrap_or(f64::INFINITY);
    candidates.sort_by(|a, b| {
        let refused = a.expected_us.is_none().cmp(&b.expected_us.is_none());
        refused.then(order(a).total_cmp(&order(b)))
    });
    match candidates.first_mut() {
        Some(first) if first.outcome == Outcome::Slower => {
            first.outcome = Outcome::Chosen;
            Ok(Choice { algorithm: first.algorithm, tuning, candidates })
        }
        _ => Err(no_algorithm(problem, &candidates)),
    }
}

/// The choice of [`choose`], without its reasons: for the path that runs before every first call
/// of a kind.
///
/// # Errors
/// As [`choose`].
pub fn choose_algorithm(
    problem: &Problem,
    hosts: &[u32],
    request: &Request<'_>,
) -> Result<(Algorithm, Tuning), NoAlgorithm> {
    let tuning = tune(problem, hosts, request);
    let admitted: Vec<Algorithm> = Algorithm::ALL
        .into_iter()
        .filter(|algorithm| admit(*algorithm, problem, hosts, tuning, request).is_ok())
        .collect();
    match admitted.as_slice() {
        [only] => return Ok((*only, tuning)),
        [first, ..] if problem.ranks == 1 => return Ok((*first, tuning)),
        _ => {}
    }
    let corrections = corrections(problem, hosts, request);
    admitted
        .iter()
        .map(|algorithm| {
            let predicted_us = predict(*algorithm, problem, hosts, tuning, &request.links);
            (*algorithm, predicted_us * corrections.ratio(*algorithm, &admitted))
        })
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(algorithm, _)| (algorithm, tuning))
        .ok_or_else(|| match choose(problem, hosts, request) {
            Err(error) => error,
            Ok(_) => no_algorithm(problem, &[]),
        })
}

/// Microseconds by the model alone, cut as [`choose`] would.
#[must_use]
pub fn predict_us(
    algorithm: Algorithm,
    problem: &Problem,
    hosts: &[u32],
    request: &Request<'_>,
) -> f64 {
    predict(algorithm, problem, hosts, tune(problem, hosts, request), &request.links)
}

/// What was measured of calls like this one.
fn corrections(problem: &Problem, hosts: &[u32], request: &Request<'_>) -> Corrections {
    match request.measured {
        Some(measured) => measured.corrections(problem.collective, hosts, buffer_bytes(problem)),
        None => Corrections::default(),
    }
}

fn no_algorithm(problem: &Problem, candidates: &[Candidate]) -> NoAlgorithm {
    let mut reasons: Vec<&str> = Vec::new();
    for candidate in candidates {
        if let Outcome::Refused(reason) = &candidate.outcome
            && !reasons.contains(&reason.as_str())
        {
            reasons.push(reason);
        }
    }
    NoAlgorithm { collective: problem.collective.name().to_owned(), reasons: reasons.join("; ") }
}

/// Bytes of the larger buffer of a rank, as far as all ranks know them.
fn buffer_bytes(problem: &Problem) -> u64 {
    let known = nominal(problem);
    let values = known.input_count(known.root).max(known.output_count(known.root));
    values.saturating_mul(known.data_type.size() as u64)
}

/// The call with counts that are equal on all ranks: those of an all_to_all_v are not.
fn nominal(problem: &Problem) -> Problem {
    let counts = match &problem.counts {
        Counts::Pairwise { .. } => Counts::Equal((64 << 10) / problem.data_type.size() as u64),
        known => known.clone(),
    };
    Problem { counts, ..problem.clone() }
}

/// How a call is cut, whatever the algorithm.
fn tune(problem: &Problem, hosts: &[u32], request: &Request<'_>) -> Tuning {
    let mapped = hosts.iter().all(|host| Some(host) == hosts.first());
    let bytes = buffer_bytes(problem);
    let most = if mapped { 256 << 10 } else { 512 << 10 };
    // Large messages cost fewer signals; two of them at least, so that one can be made while another
    // is under way. Among many ranks over a network some algorithms send half a buffer at once: four.
    let parts = if mapped || problem.ranks <= 4 { 2 } else { 4 };
    let slot_bytes = request.slot_bytes.unwrap_or_else(|| {
        let part = (bytes / parts).checked_next_power_of_two().unwrap_or(most);
        part.clamp(64 << 10, most)
    });
    let wanted = match request.lanes {
        Some(lanes) => lanes.max(1),
        // One core copies and folds inside a host; a network takes more than one connection gives,
        // if there is enough to send.
        None if mapped || bytes < 4 << 20 => 1,
        None => 2,
    };
    let slots = 2;
    let lanes = (1..=wanted)
        .rev()
        .find(|lanes| scratch_least(problem.ranks, *lanes, slots) <= request.scratch_bytes)
        .unwrap_or(1);
    Tuning { lanes, slot_bytes, slots, scratch_bytes: request.scratch_bytes }
}

/// A cache line for each box that everybody may need for everybody.
fn scratch_least(ranks: u32, lanes: u32, slots: u32) -> u64 {
    64 * u64::from(lanes) * u64::from(slots) * (3 * u64::from(ranks) + 4)
}

fn admit(
    algorithm: Algorithm,
    problem: &Problem,
    hosts: &[u32],
    tuning: Tuning,
    request: &Request<'_>,
) -> Result<(), String> {
    (request.allow)(algorithm)?;
    algorithm.supports(problem, hosts)?;
    let least = scratch_least(problem.ranks, tuning.lanes, tuning.slots);
    if problem.ranks > 1 && tuning.scratch_bytes < least {
        return Err(format!(
            "{} ranks need {least} bytes of scratch, there are {}",
            problem.ranks, tuning.scratch_bytes
        ));
    }
    Ok(())
}

/// Most steps that are looked at to price a call, where a few ranks do not tell enough.
const STEPS_PRICED: usize = 60_000;

/// Microseconds that `algorithm` would take.
fn predict(
    algorithm: Algorithm,
    problem: &Problem,
    hosts: &[u32],
    tuning: Tuning,
    links: &Links,
) -> f64 {
    let known = nominal(problem);
    let bytes = buffer_bytes(&known);
    // Long calls are so many rounds of the same: two short ones tell what a round takes. Of few
    // ranks they may be longer, so that each rank's share takes some rounds too.
    let ranks = u64::from(known.ranks);
    let rounds = (64 / ranks).clamp(2, 2 * ranks);
    let long = rounds * tuning.slot_bytes * u64::from(tuning.lanes);
    if bytes <= long {
        return price(algorithm, &known, hosts, tuning, links).end_us;
    }
    let short = long / 2;
    let [a, b] = [short, long].map(|part| {
        let scaled = scale(&known, part, bytes);
        let times = price(algorithm, &scaled, hosts, tuning, links);
        (to_f64(buffer_bytes(&scaled)), times)
    });
    // Short calls may leave links idle that long ones keep busy.
    let more_us = [b.1.end_us - a.1.end_us, b.1.core_us - a.1.core_us, b.1.net_us - a.1.net_us]
        .into_iter()
        .fold(0.0, f64::max);
    b.1.end_us + more_us * (to_f64(bytes) - b.0) / (b.0 - a.0).max(1.0)
}

/// The call with `part / whole` of its values.
fn scale(problem: &Problem, part: u64, whole: u64) -> Problem {
    let less = |count: u64| {
        let scaled = u128::from(count) * u128::from(part) / u128::from(whole.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    };
    let counts = match &problem.counts {
        Counts::Equal(count) => Counts::Equal(less(*count)),
        Counts::PerRank(counts) => {
            Counts::PerRank(counts.iter().map(|count| less(*count)).collect())
        }
        pairwise => pairwise.clone(),
    };
    Problem { counts, ..problem.clone() }
}

/// The worst that the first, the last and the root rank see, each with the ranks of its host.
fn price(
    algorithm: Algorithm,
    problem: &Problem,
    hosts: &[u32],
    tuning: Tuning,
    links: &Links,
) -> Times {
    let build = |rank: Rank| algorithm.build(Context { problem, rank, hosts, tuning });
    let last = problem.ranks.saturating_sub(1);
    let mut seeds = vec![0, last];
    if problem.collective.has_root() {
        seeds.push(problem.root);
    }
    // The mirror does not show who else uses the network of the same host.
    let crowded = hosts.windows(2).any(|pair| pair[0] != pair[1]);
    if crowded {
        let near = (0..).zip(hosts).filter(|(_, host)| **host == hosts[0]);
        seeds.extend(near.map(|(rank, _)| rank).take(8));
    }
    seeds.sort_unstable();
    seeds.dedup();
    let world = World::new(hosts, problem.data_type);
    sim::estimate(&seeds, world, links, &build, STEPS_PRICED)
}

#[expect(clippy::cast_precision_loss, reason = "a prediction is not exact to the byte")]
fn to_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests;
