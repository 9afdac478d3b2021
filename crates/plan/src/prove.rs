//! The catalogue of plans that are proved before they ship: behind `ringway plan verify`.
//!
//! Up to [`EVERY`] ranks every algorithm, collective, level and kind of root is proved for every number of
//! ranks, on several placements, with sizes and ways to cut them that change from plan to plan; above
//! that, samples up to 1,024 ranks. The plans of ranks that map each other's buffers, as GPUs do, are in it
//! for every number of ranks they are made for, shared out among several numbers of blocks.
//!
//! **Invariant:** the catalogue is the same on every machine. It spawns nothing and prints nothing: whoever
//! works through it decides how.

use std::str::FromStr;
use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::build::{Context, Tuning};
use crate::mapped::{self, Way};
use crate::plan::Plan;
use crate::problem::{Counts, Problem};
use crate::types::{Collective, DataType, Level, Rank, UnknownName};
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

/// Who makes a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Maker {
    /// An algorithm, for host memory.
    Algorithm(Algorithm),
    /// A way for ranks that map each other's buffers, as GPUs do.
    Mapped(Way),
}

impl Maker {
    /// The name used on command lines and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Algorithm(algorithm) => algorithm.name(),
            Self::Mapped(way) => way.name(),
        }
    }
}

impl std::fmt::Display for Maker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Maker {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        let way = Way::ALL.into_iter().find(|way| word.eq_ignore_ascii_case(way.name()));
        if let Some(way) = way {
            return Ok(Self::Mapped(way));
        }
        word.parse().map(Self::Algorithm).map_err(|error: UnknownName| {
            let choices = format!("{}, {}", error.choices, Way::ALL.map(Way::name).join(", "));
            UnknownName { choices, ..error }
        })
    }
}

/// A plan to prove.
#[derive(Clone, Debug)]
pub struct Job {
    /// How.
    pub maker: Maker,
    /// Among how many blocks every lane is shared out; 1 for algorithms.
    pub blocks: u16,
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
        let plan = self.plan();
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

    fn plan(&self) -> Plan {
        match (self.maker, &self.problems[..]) {
            (Maker::Algorithm(algorithm), [problem]) => {
                algorithm.plan(problem, &self.hosts, self.tuning)
            }
            (Maker::Algorithm(algorithm), problems) => {
                algorithm.plan_each(problems, &self.hosts, self.tuning)
            }
            (Maker::Mapped(way), problems) => way.plan(&problems[0], self.blocks),
        }
    }
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let problem = &self.problems[0];
        let hosts = self.hosts.iter().max().map_or(0, |host| host + 1);
        write!(
            f,
            "{} {} of {} ranks on {hosts} hosts, level {}, root {}",
            self.maker, problem.collective, problem.ranks, problem.level, problem.root,
        )?;
        match &problem.counts {
            Counts::Equal(count) => write!(f, ", {count} values")?,
            Counts::PerRank(_) => write!(f, ", a count per rank")?,
            Counts::Pairwise { .. } => write!(f, ", pairwise counts")?,
        }
        write!(f, " of {}", problem.data_type)?;
        let Tuning { lanes, slot_bytes, .. } = self.tuning;
        match self.maker {
            Maker::Algorithm(_) => write!(f, ", {lanes} lanes, slots of {slot_bytes} bytes"),
            Maker::Mapped(_) => write!(f, ", {} blocks", self.blocks),
        }
    }
}

/// The catalogue for numbers of ranks in `ranks`, smallest first.
pub fn catalogue(ranks: std::ops::RangeInclusive<u32>) -> impl Iterator<Item = Job> {
    (1..=EVERY)
        .chain(SAMPLES)
        .filter(move |count| ranks.contains(count))
        .flat_map(|ranks| {
            let algorithms = Algorithm::ALL.into_iter().map(Maker::Algorithm);
            let makers = algorithms.chain(Way::ALL.into_iter().map(Maker::Mapped));
            makers.map(move |maker| (ranks, maker))
        })
        .flat_map(|(ranks, maker)| {
            Collective::ALL.into_iter().flat_map(move |collective| match maker {
                Maker::Algorithm(algorithm) => jobs(ranks, algorithm, collective),
                Maker::Mapped(way) => mapped_jobs(ranks, way, collective),
            })
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
                        let maker = Maker::Algorithm(algorithm);
                        jobs.push(Job { maker, blocks: 1, problems, hosts, tuning });
                    }
                }
            }
        }
    }
    jobs
}

/// The plans of one way, collective and number of ranks that map each other's buffers. Reductions are
/// proved at the stricter level, which they keep at every one.
fn mapped_jobs(ranks: u32, way: Way, collective: Collective) -> Vec<Job> {
    let mut jobs = Vec::new();
    if ranks > mapped::RANKS_MAX {
        return jobs;
    }
    let middle = ranks / 2;
    let roots: &[Rank] = if collective.has_root() && ranks > 1 { &[0, middle] } else { &[0] };
    let sizes = if ranks <= 16 { 6 } else { 3 };
    for root in roots {
        for size in 0..sizes {
            let turn = ranks as usize + size;
            let base = Problem {
                collective,
                ranks,
                root: *root,
                counts: Counts::Equal(values(ranks, collective, turn)),
                data_type: TYPES[turn / 2 % TYPES.len()],
                level: if collective.reduces() { Level::Shape } else { Level::Run },
            };
            // Fewer values than blocks, as many, and more.
            for blocks in [1, 2 + u16::from(turn.is_multiple_of(2)) * 3] {
                let forms = forms(&base, turn).into_iter();
                for problems in forms.filter(|all| way.supports(&all[0]).is_ok()) {
                    jobs.push(Job {
                        maker: Maker::Mapped(way),
                        blocks,
                        problems,
                        hosts: vec![0; ranks as usize],
                        tuning: Tuning::default(),
                    });
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
            if let Maker::Algorithm(algorithm) = job.maker {
                seen.insert((job.ranks(), algorithm));
            }
        }
        let numbers = EVERY as usize + SAMPLES.len();
        assert!(seen.len() + numbers > numbers * Algorithm::ALL.len(), "{}", seen.len());
    }

    #[test]
    fn the_catalogue_has_every_way_of_mapped_buffers() {
        let mut seen = std::collections::BTreeSet::new();
        for job in catalogue(1..=64) {
            if let Maker::Mapped(way) = job.maker {
                seen.insert((way, job.problems[0].collective.name(), job.ranks(), job.blocks > 1));
            }
        }
        // Cards do two collectives; buffers all but messages.
        let collectives = 2 + Collective::ALL.len() - 1;
        assert_eq!(seen.len(), collectives * 2 * mapped::RANKS_MAX as usize);
    }

    #[test]
    fn makers_have_names() {
        assert_eq!("Cards".parse(), Ok(Maker::Mapped(Way::Cards)));
        assert_eq!("ring".parse(), Ok(Maker::Algorithm(Algorithm::Ring)));
        let error = "rings".parse::<Maker>().unwrap_err().to_string();
        assert!(error.contains("hierarchical, cards, buffers"), "{error}");
    }
}
