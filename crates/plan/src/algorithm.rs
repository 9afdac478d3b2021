//! The algorithms: small pure functions from a call to one rank's part of a plan.
//!
//! | algorithm | collectives | moves |
//! |---|---|---|
//! | tiny | all | cards: values and flag in one cache line |
//! | one_shot | all_reduce, reduce, reduce_scatter | everybody reads every input |
//! | two_shot | all_reduce, reduce, broadcast | reduce-scatter, then all-gather, all to all |
//! | ring | all_reduce, reduce_scatter, all_gather, broadcast, reduce | neighbours only |
//! | direct | all_gather, broadcast, gather, scatter, all_to_all | straight to whom it concerns |
//! | recursive_doubling | all_reduce, all_gather | all a rank has, with ranks twice as far each round |
//! | halving_doubling | all_reduce, reduce_scatter, all_gather | half as much each round, then back |
//! | bruck | all_gather, all_to_all, barrier | by the binary digits of the distance |
//! | tree | all_reduce, broadcast, reduce | up and down two binary trees, half the data each |
//! | pat | all_reduce, all_gather, reduce_scatter | a binomial tree for each block, blocks travel together |
//! | single_copy | all but reduce and barrier | everybody reads the others' buffers where they lie |
//! | hierarchical | all_reduce, all_gather, reduce_scatter, broadcast, reduce | inside hosts, and between hosts rail by rail |
//!
//! A new algorithm is one file here and one line in each table below; it is then proved, run,
//! simulated, priced and drawn with no other change.
//!
//! **Invariant:** all ranks derive their parts from the same arguments alone, and a rank's cost is
//! proportional to its own steps.

mod bruck;
mod cube;
mod direct;
mod exchange;
mod halving_doubling;
mod hierarchical;
mod one_shot;
mod pat;
mod recursive_doubling;
mod ring;
mod single_copy;
mod tiny;
mod tree;
mod two_shot;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::build::{Builder, Context, PortSize, Tuning};
use crate::plan::{Plan, RankPlan};
use crate::problem::{Extent, Problem};
use crate::types::{Collective, Rank, UnknownName};

pub use tree::parents as tree_parents;

/// The known algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Cards that all ranks of a host see, values and flag in one cache line: least latency.
    Tiny,
    /// Everybody reads every input and folds it alone: fewest steps.
    OneShot,
    /// Each rank folds its share and shows it to all: fewest bytes in two steps.
    TwoShot,
    /// Around the ring: fewest bytes, neighbours only.
    Ring,
    /// Straight from source to destination.
    Direct,
    /// All a rank has, with ranks twice as far each round: fewest rounds.
    RecursiveDoubling,
    /// Half as much each round, then back: fewest bytes in few rounds.
    HalvingDoubling,
    /// By the binary digits of the distance: fewest rounds for any number of ranks.
    Bruck,
    /// Up and down two binary trees at once: few steps for many ranks.
    Tree,
    /// A binomial tree for each block, all at once, with shared messages: few steps for small
    /// blocks.
    Pat,
    /// Everybody reads the others' buffers where they lie: fewest copies, done by the kernel.
    SingleCopy,
    /// Shared memory inside hosts, the network between them: every byte crosses once.
    Hierarchical,
}

impl Algorithm {
    /// Whether ranks read each other's buffers, which the kernel may forbid.
    #[must_use]
    pub const fn reads_buffers(self) -> bool {
        matches!(self, Self::SingleCopy)
    }

    /// Whether all ranks must be on one host.
    #[must_use]
    pub const fn stays_on_a_host(self) -> bool {
        matches!(self, Self::Tiny | Self::SingleCopy)
    }

    /// Every algorithm.
    pub const ALL: [Self; 12] = [
        Self::Tiny,
        Self::OneShot,
        Self::TwoShot,
        Self::Ring,
        Self::Direct,
        Self::RecursiveDoubling,
        Self::HalvingDoubling,
        Self::Bruck,
        Self::Tree,
        Self::Pat,
        Self::SingleCopy,
        Self::Hierarchical,
    ];

    /// The name used on the command line and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::OneShot => "one_shot",
            Self::TwoShot => "two_shot",
            Self::Ring => "ring",
            Self::Direct => "direct",
            Self::RecursiveDoubling => "recursive_doubling",
            Self::HalvingDoubling => "halving_doubling",
            Self::Bruck => "bruck",
            Self::Tree => "tree",
            Self::Pat => "pat",
            Self::SingleCopy => "single_copy",
            Self::Hierarchical => "hierarchical",
        }
    }

    /// Whether the algorithm can do this call on these hosts.
    ///
    /// # Errors
    /// The reason why not.
    pub fn supports(self, problem: &Problem, hosts: &[u32]) -> Result<(), String> {
        let collectives: &[Collective] = match self {
            Self::Tiny => tiny::COLLECTIVES,
            Self::OneShot => one_shot::COLLECTIVES,
            Self::TwoShot => two_shot::COLLECTIVES,
            Self::Ring => ring::COLLECTIVES,
            Self::Direct => direct::COLLECTIVES,
            Self::RecursiveDoubling => recursive_doubling::COLLECTIVES,
            Self::HalvingDoubling => halving_doubling::COLLECTIVES,
            Self::Bruck => bruck::COLLECTIVES,
            Self::Tree => tree::COLLECTIVES,
            Self::Pat => pat::COLLECTIVES,
            Self::SingleCopy => single_copy::COLLECTIVES,
            Self::Hierarchical => hierarchical::COLLECTIVES,
        };
        if !collectives.contains(&problem.collective) {
            return Err(format!("{self} has no {}", problem.collective));
        }
        match self {
            Self::Tiny => tiny::supports(problem, hosts),
            Self::Bruck => bruck::supports(problem),
            Self::SingleCopy => single_copy::supports(problem, hosts),
            Self::Hierarchical => hierarchical::supports(problem, hosts),
            _ => Ok(()),
        }
    }

    /// One rank's part. Call only where [`Algorithm::supports`] says yes.
    #[must_use]
    pub fn build(self, context: Context<'_>) -> RankPlan {
        let mut builder = Builder::new(context);
        if context.ranks() == 1 {
            alone(&mut builder);
        } else {
            match self {
                Self::Tiny => tiny::build(&mut builder),
                Self::OneShot => one_shot::build(&mut builder),
                Self::TwoShot => two_shot::build(&mut builder),
                Self::Ring => ring::build(&mut builder),
                Self::Direct => direct::build(&mut builder),
                Self::RecursiveDoubling => recursive_doubling::build(&mut builder),
                Self::HalvingDoubling => halving_doubling::build(&mut builder),
                Self::Bruck => bruck::build(&mut builder),
                Self::Tree => tree::build(&mut builder),
                Self::Pat => pat::build(&mut builder),
                Self::SingleCopy => single_copy::build(&mut builder),
                Self::Hierarchical => hierarchical::build(&mut builder),
            }
        }
        builder.finish()
    }

    /// Every rank's part.
    #[must_use]
    pub fn plan(self, problem: &Problem, hosts: &[u32], tuning: Tuning) -> Plan {
        self.plan_each(&vec![problem.clone(); problem.ranks as usize], hosts, tuning)
    }

    /// Every rank's part where the ranks' calls differ (all_to_all_v).
    #[must_use]
    pub fn plan_each(self, problems: &[Problem], hosts: &[u32], tuning: Tuning) -> Plan {
        let ranks = (0..)
            .zip(problems)
            .map(|(rank, problem)| self.build(Context { problem, rank, hosts, tuning }))
            .collect();
        Plan {
            algorithm: self.name().to_owned(),
            problems: problems.to_vec(),
            hosts: hosts.to_vec(),
            ranks,
        }
    }
}

impl FromStr for Algorithm {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        let plain = word.to_ascii_lowercase().replace(['_', '-'], "");
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name().replace('_', "") == plain)
            .ok_or_else(|| UnknownName {
                kind: "algorithm",
                given: word.to_owned(),
                choices: Self::ALL.map(Self::name).join(", "),
            })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One rank: every collective is a copy or a finished reduction of its own input.
fn alone(builder: &mut Builder<'_>) {
    let problem = builder.context().problem;
    let count = problem.output_count(0).min(problem.input_count(0));
    let whole = Extent::new(0, count);
    let lane = 0;
    builder.port(lane, PortSize { boxes: 0, slot_bytes: 0, stage_bytes: 0, slots: 1 });
    if problem.collective.reduces() {
        let own = builder.own(whole);
        builder.reduce(lane, &[own], builder.output(whole), true);
    } else {
        builder.copy(lane, builder.input(whole), builder.output(whole));
    }
}

/// The box at `to` for messages of `from` when everybody sends to everybody.
fn box_from(from: Rank, to: Rank, ranks: Rank) -> u32 {
    (from + ranks - to) % ranks - 1
}

/// What `rank` takes of `from` as it is, in collectives with equal counts or a list of them: where it
/// stands in that rank's input, and where it goes in the output.
fn taken(problem: &Problem, rank: Rank, from: Rank) -> (Extent, u64) {
    let whole = Extent::new(0, problem.block(from).count);
    match problem.collective {
        Collective::Broadcast if from == problem.root => (Extent::new(0, problem.count()), 0),
        Collective::Scatter if from == problem.root => (problem.block(rank), 0),
        Collective::AllGather => (whole, problem.block(from).start),
        Collective::Gather if rank == problem.root => (whole, problem.block(from).start),
        Collective::AllToAll => (problem.block(rank), problem.block(from).start),
        _ => (Extent::new(0, 0), 0),
    }
}

/// The most values, of `most`, that may be dealt with at a time, at least one: `bytes` says how
/// much scratch of a lane it takes to deal with so many, and grows with them.
fn fitting(context: Context<'_>, most: u64, bytes: impl Fn(u64) -> u64) -> u64 {
    let room = context.tuning.scratch_bytes / u64::from(context.tuning.lanes);
    if bytes(most) <= room {
        return most.max(1);
    }
    let (mut fits, mut exceeds) = (0, most);
    while fits + 1 < exceeds {
        let middle = fits + (exceeds - fits) / 2;
        if bytes(middle) <= room {
            fits = middle;
        } else {
            exceeds = middle;
        }
    }
    let ragged = fits % context.grain();
    if fits > ragged { fits - ragged } else { fits }.max(1)
}

/// The rounds in which one lane goes through every rank's share, a piece of each at a time.
///
/// All ranks have the same number of rounds; a share that is shorter than the longest has empty
/// cuts in the last ones.
struct Rounds {
    parts: Vec<Extent>,
    piece: u64,
    longest: u64,
}

impl Rounds {
    fn new(context: Context<'_>, lane: u32, piece: u64, share: impl Fn(Rank) -> Extent) -> Self {
        let lanes = u64::from(context.tuning.lanes);
        let parts: Vec<Extent> = (0..context.ranks())
            .map(|of| share(of).part(lanes, u64::from(lane), context.grain()))
            .collect();
        let longest = parts.iter().map(|part| part.count).max().unwrap_or(0);
        Self { parts, piece, longest }
    }

    fn count(&self) -> u64 {
        self.longest.div_ceil(self.piece)
    }

    /// What of the share of rank `of` is dealt with in `round`.
    fn cut(&self, of: Rank, round: u64) -> Extent {
        let part = self.parts[of as usize];
        let skip = (round * self.piece).min(part.count);
        Extent::new(part.start + skip, self.piece.min(part.count - skip))
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_layered;
