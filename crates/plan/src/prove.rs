//! The catalogue of plans that are proved before they ship: behind `ringway plan verify`.
//!
//! Up to [`EVERY`] ranks every algorithm, collective, level and kind of root is proved for every number of
//! ranks, on several placements, with sizes and ways to cut them that change from plan to plan; above
//! that, samples up to 1,024 ranks.
//!
//! **Invariant:** the catalogue is the same on every machine. It spawns nothing and prints nothing: whoever
//! works through it decides how.

use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::build::{Context, Tuning};
use crate::problem::{Counts, Problem};
use crate::types::{Collective, DataType, Level, Rank};
use crate::verify::{Proof, Refusal, verify};

/// Every number of ranks up to this one is in the catalogue.
pub const EVERY: u32 = 64;

/// Numbers of ranks above [`EVERY`] of which one plan each is in the catalogue: around powers of two,
/// primes, and those of real machines.
pub const SAMPLES: [u32; 10] = [65, 96, 100, 127, 128, 256, 509, 512, 1000, 1024];

/// Samples have at most this many steps: where everybody talks to everybody that is 512 ranks.
const SAMPLE_STEPS: usize = 3 << 19;

/// Which ranks share a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// All on one host.
    Together,
    /// Each on its own.
    Apart,
    /// Two on each host.
    Pairs,
    /// Hosts of five, three and one, over and over.
    Uneven,
    /// Rank by rank over two hosts in turn.
    Dealt,
}

impl Placement {
    /// Every placement.
    pub const ALL: [Self; 5] =
        [Self::Together, Self::Apart, Self::Pairs, Self::Uneven, Self::Dealt];

    /// The host of each rank.
    #[must_use]
    pub fn hosts(self, ranks: u32) -> Vec<u32> {
        let uneven = |rank: u32| {
            let inside = match rank % 9 {
                0..5 => 0,
                5..8 => 1,
                _ => 2,
            };
            rank / 9 * 3 + inside
        };
        (0..ranks)
            .map(|rank| match self {
                Self::Together => 0,
                Self::Apart => rank,
                Self::Pairs => rank / 2,
                Self::Uneven => uneven(rank),
                Self::Dealt => rank % 2,
            })
            .collect()
    }
}

/// A plan to prove.
#[derive(Clone, Debug)]
pub struct Job {
    /// How.
    pub algorithm: Algorithm,
    /// What, as each rank sees it: one for all, or one each.
    pub problems: Vec<Problem>,
    /// Where.
    pub hosts: Vec<u32>,
    /// Cut how.
    pub tuning: Tuning,
}

impl Job {
    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.problems[0].ranks
    }

    /// Builds the plan and proves it, with input and output apart and, where the collective has
    /// that form, in place.
    ///
    /// # Errors
    /// The first thing that cannot be proved.
    pub fn prove(&self) -> Result<Proof, Refusal> {
        let plan = match &self.problems[..] {
            [problem] => self.algorithm.plan(problem, &self.hosts, self.tuning),
            problems => self.algorithm.plan_each(problems, &self.hosts, self.tuning),
        };
        for (rank, part) in plan.ranks.iter().enumerate() {
            if part.scratch_bytes > self.tuning.scratch_bytes {
                return Err(Refusal::Malformed(format!(
                    "rank {rank} uses {} bytes of scratch, {} were given",
                    part.scratch_bytes, self.tuning.scratch_bytes
                )));
            }
        }
        let mut proof = Proof::default();
        for in_place in [false, true] {
            let has_form = (0..self.ranks()).any(|rank| plan.problems[0].in_place(rank).is_some());
            let sampled = self.ranks() > EVERY;
            // In place is the harder one; of large plans it is proved alone.
            if (in_place && !has_form) || (!in_place && has_form && sampled) {
                continue;
            }
            let one = verify(&plan, in_place)?;
            proof.steps += one.steps;
            proof.signals += one.signals;
        }
        Ok(proof)
    }
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let problem = &self.problems[0];
        let hosts = self.hosts.iter().max().map_or(0, |host| host + 1);
        write!(
            f,
            "{} {} of {} ranks on {hosts} hosts, level {}, root {}",
            self.algorithm, problem.collective, problem.ranks, problem.level, problem.root,
        )?;
        match &problem.counts {
            Counts::Equal(count) => write!(f, ", {count} values")?,
            Counts::PerRank(_) => write!(f, ", a count per rank")?,
            Counts::Pairwise { .. } => write!(f, ", pairwise counts")?,
        }
        let Tuning { lanes, slot_bytes, .. } = self.tuning;
        write!(f, " of {}, {lanes} lanes, slots of {slot_bytes} bytes", problem.data_type)
    }
}

/// The catalogue for numbers of ranks in `ranks`, smallest first.
pub fn catalogue(ranks: std::ops::RangeInclusive<u32>) -> impl Iterator<Item = Job> {
    (1..=EVERY)
        .chain(SAMPLES)
        .filter(move |count| ranks.contains(count))
        .flat_map(|ranks| Algorithm::ALL.into_iter().map(move |algorithm| (ranks, algorithm)))
        .flat_map(|(ranks, algorithm)| {
            Collective::ALL
                .into_iter()
                .flat_map(move |collective| jobs(ranks, algorithm, collective))
        })
}

/// Sizes, from none to several messages, most of them odd. Of many ranks less, as they have a block
/// or a share each.
fn values(ranks: u32, collective: Collective, turn: usize) -> u64 {
    let blocks =
        !matches!(collective, Collective::AllReduce | Collective::Reduce | Collective::Broadcast);
    let each = u64::from(ranks);
    match turn % 6 {
        _ if ranks > EVERY => 3,
        1 => 1,
        3 => 0,
        0 if ranks <= 16 => 37,
        2 if ranks <= 16 => 200,
        4 if ranks <= 16 => 64,
        5 if ranks <= 9 => 1001,
        turn if blocks => [5, 1, 9, 0, 4, 13][turn],
        turn => [37, 1, each * 3 + 1, 0, 64, each * 5 + 3][turn],
    }
}

const TYPES: [DataType; 4] = [DataType::Bf16, DataType::F32, DataType::I8, DataType::F64];

/// The plans of one algorithm, collective and number of ranks.
fn jobs(ranks: u32, algorithm: Algorithm, collective: Collective) -> Vec<Job> {
    let sampled = ranks > EVERY;
    let pair = algorithm as usize + collective as usize;
    // Every pair of algorithm and collective has one of two large numbers of ranks.
    if ranks > 256 && !(pair + ranks as usize / 3).is_multiple_of(2) {
        return Vec::new();
    }
    let levels: &[Level] = match (collective.reduces(), sampled) {
        (false, _) => &[Level::Run],
        (true, false) => &[Level::Run, Level::Shape],
        (true, true) if ranks.is_multiple_of(2) => &[Level::Run],
        (true, true) => &[Level::Shape],
    };
    let middle = ranks / 2;
    let roots: &[Rank] = match collective.has_root() && ranks > 1 {
        false => &[0],
        true if sampled => &[middle],
        true => &[0, middle],
    };
    let placements = match ranks {
        ..=12 => 5,
        13..=32 => 3,
        33..=EVERY => 2,
        _ => 1,
    };
    let mut jobs = Vec::new();
    for (p, placement) in Placement::ALL.into_iter().enumerate() {
        // Of large plans some placements each, different ones for each number of ranks.
        let turn = (p + ranks as usize) % Placement::ALL.len();
        // Some can be nowhere else.
        let only = placement == Placement::Together && algorithm.stays_on_a_host();
        if turn >= placements && !only {
            continue;
        }
        let hosts = placement.hosts(ranks);
        for level in levels {
            for root in roots {
                let turn = ranks as usize + jobs.len();
                let base = Problem {
                    collective,
                    ranks,
                    root: *root,
                    counts: Counts::Equal(values(ranks, collective, turn)),
                    data_type: TYPES[turn / 2 % TYPES.len()],
                    level: *level,
                };
                if algorithm.supports(&base, &hosts).is_err() {
                    continue;
                }
                let tuning = tuning(ranks, turn);
                if sampled && !affordable(algorithm, &base, &hosts, tuning) {
                    continue;
                }
                for problems in forms(&base, turn) {
                    if problems.iter().all(|problem| algorithm.supports(problem, &hosts).is_ok()) {
                        let hosts = hosts.clone();
                        jobs.push(Job { algorithm, problems, hosts, tuning });
                    }
                }
            }
        }
    }
    jobs
}

fn affordable(algorithm: Algorithm, problem: &Problem, hosts: &[u32], tuning: Tuning) -> bool {
    let part = algorithm.build(Context { problem, rank: problem.ranks - 1, hosts, tuning });
    part.steps() * hosts.len() <= SAMPLE_STEPS
}

/// Small slots, so that small sizes make several messages and credits matter.
fn tuning(ranks: u32, turn: usize) -> Tuning {
    let lanes = if turn.is_multiple_of(3) { 2 } else { 1 };
    // Some algorithms send what is for several ranks in one message.
    let wide = u64::from(ranks / 8).max(1);
    Tuning {
        lanes,
        slot_bytes: wide * if turn.is_multiple_of(2) { 128 } else { 512 },
        slots: 2 + u32::from(turn.is_multiple_of(5)),
        // Room for a cache line or two in each box of each lane, and little more.
        scratch_bytes: u64::from(ranks + 2) * 64 * 16 * u64::from(lanes) * wide,
    }
}

/// The call with equal counts and, now and then, in its `-v` form.
fn forms(base: &Problem, turn: usize) -> Vec<Vec<Problem>> {
    let ranks = u64::from(base.ranks);
    let mut forms = vec![vec![base.clone()]];
    let step = if ranks <= 16 { 9 } else { 2 };
    let odd = |i: u64| (i * 7 + turn as u64) % 5 * (i % 3) * step;
    match base.collective {
        _ if ranks > u64::from(EVERY) || !turn.is_multiple_of(2) => {}
        Collective::AllGather
        | Collective::Gather
        | Collective::Scatter
        | Collective::ReduceScatter => {
            let counts = Counts::PerRank((0..ranks).map(odd).collect::<Arc<[u64]>>());
            forms.push(vec![Problem { counts, ..base.clone() }]);
        }
        Collective::AllToAll if ranks > 1 => {
            let one = |rank: u64| Problem {
                counts: Counts::Pairwise {
                    send: (0..ranks).map(|to| odd(rank * 3 + to)).collect(),
                    receive: (0..ranks).map(|from| odd(from * 3 + rank)).collect(),
                },
                ..base.clone()
            };
            forms.push((0..ranks).map(one).collect());
        }
        _ => {}
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_catalogue_are_proved() {
        let mut proved = 0;
        for job in catalogue(1..=7) {
            if let Err(refusal) = job.prove() {
                panic!("{job}: {refusal}");
            }
            proved += 1;
        }
        assert!(proved > 500, "only {proved} plans");
    }

    #[test]
    fn the_catalogue_has_every_algorithm_and_number_of_ranks() {
        let mut seen = std::collections::BTreeSet::new();
        for job in catalogue(1..=1024) {
            seen.insert((job.ranks(), job.algorithm));
        }
        let numbers = EVERY as usize + SAMPLES.len();
        assert!(seen.len() + numbers > numbers * Algorithm::ALL.len(), "{}", seen.len());
    }
}
