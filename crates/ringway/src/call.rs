//! A collective call, untyped: what the typed methods, the C ABI and the command line build on.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::plan::algorithm::Algorithm;
use crate::plan::problem::{Counts, Problem};
use crate::plan::types::{Collective, DataType, Level, Rank, ReduceOp};

/// A collective call.
///
/// `count` is NCCL's: elements of the buffer for all_reduce, broadcast and reduce; elements each
/// rank sends for all_gather and gather, receives for reduce_scatter and scatter, exchanges with each
/// peer for all_to_all.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Call {
    /// The collective.
    pub collective: Collective,
    /// Element type.
    pub data_type: DataType,
    /// Elements; see the type's text.
    pub count: u64,
    /// Unequal counts (the `-v` forms); takes the place of `count`.
    pub counts: Option<Counts>,
    /// Reduction, for collectives that reduce.
    pub op: ReduceOp,
    /// This rank's factor in a pre-multiplied sum.
    pub scalar: f64,
    /// The special rank of rooted collectives.
    pub root: Rank,
    /// Determinism level; the communicator's if absent.
    pub level: Option<Level>,
    /// Algorithm; the planner's choice if absent.
    pub algorithm: Option<Algorithm>,
    /// Deadline; the communicator's if absent.
    pub deadline: Option<Duration>,
}

impl Call {
    /// A call with a sum, root 0, and the communicator's settings.
    #[must_use]
    pub fn new(collective: Collective, data_type: DataType, count: u64) -> Self {
        Self {
            collective,
            data_type,
            count,
            counts: None,
            op: ReduceOp::Sum,
            scalar: 1.0,
            root: 0,
            level: None,
            algorithm: None,
            deadline: None,
        }
    }

    /// With this reduction.
    #[must_use]
    pub fn op(mut self, op: ReduceOp) -> Self {
        self.op = op;
        self
    }

    /// With this root.
    #[must_use]
    pub fn root(mut self, root: Rank) -> Self {
        self.root = root;
        self
    }

    /// With unequal counts.
    #[must_use]
    pub fn counts(mut self, counts: Counts) -> Self {
        self.counts = Some(counts);
        self
    }

    /// At this determinism level.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = Some(level);
        self
    }

    /// By this algorithm.
    #[must_use]
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// Within this time.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Whether two calls are planned alike: all but their factor and their deadline is equal.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let Self { collective, data_type, count, counts, op, root, level, algorithm, .. } = self;
        *collective == other.collective
            && *data_type == other.data_type
            && *count == other.count
            && *counts == other.counts
            && *op == other.op
            && *root == other.root
            && *level == other.level
            && *algorithm == other.algorithm
    }

    /// The planner's view of the call, checked.
    pub(crate) fn problem(&self, ranks: u32, level: Level) -> Result<Problem> {
        if self.root >= ranks {
            return Err(Error::argument(format!(
                "root {} of {} does not exist; ranks are 0 to {}",
                self.root,
                self.collective,
                ranks - 1
            )));
        }
        if self.collective == Collective::SendRecv {
            return Err(Error::usage(
                "send_recv is not a collective call; use send, recv or a group",
            ));
        }
        let counts = match &self.counts {
            None => Counts::Equal(self.count),
            Some(counts) => self.checked_counts(counts, ranks)?,
        };
        let reduces = self.collective.reduces();
        Ok(Problem {
            collective: self.collective,
            ranks,
            root: if self.collective.has_root() { self.root } else { 0 },
            counts,
            data_type: self.data_type,
            level: if reduces { level } else { Level::Run },
        })
    }

    fn checked_counts(&self, counts: &Counts, ranks: u32) -> Result<Counts> {
        let right = |list: &[u64]| list.len() == ranks as usize;
        let fits = match (self.collective, counts) {
            (Collective::AllToAll, Counts::Pairwise { send, receive }) => {
                right(send) && right(receive)
            }
            (
                Collective::AllGather
                | Collective::ReduceScatter
                | Collective::Gather
                | Collective::Scatter,
                Counts::PerRank(list),
            ) => right(list),
            (_, Counts::Equal(_)) => true,
            _ => false,
        };
        if fits {
            return Ok(counts.clone());
        }
        Err(Error::argument(format!(
            "{} needs one count for each of its {ranks} ranks, not {counts:?}",
            self.collective
        )))
    }

    /// Bytes of this rank's input buffer.
    pub fn input_bytes(&self, rank: Rank, ranks: u32) -> Result<usize> {
        self.bytes(self.problem(ranks, Level::Run)?.input_count(rank))
    }

    /// Bytes of this rank's output buffer.
    pub fn output_bytes(&self, rank: Rank, ranks: u32) -> Result<usize> {
        self.bytes(self.problem(ranks, Level::Run)?.output_count(rank))
    }

    /// Where input and output of `rank` begin, in bytes, in a buffer that is both by NCCL's convention. `None` where the
    /// call cannot be in place.
    pub fn in_place(&self, rank: Rank, ranks: u32) -> Result<Option<(usize, usize)>> {
        // The offset of one end inside the buffer is the other's offset of the shared address.
        let Some((input, output)) = self.problem(ranks, Level::Run)?.in_place(rank) else {
            return Ok(None);
        };
        let inside = (output.saturating_sub(input), input.saturating_sub(output));
        Ok(Some((self.bytes(inside.0)?, self.bytes(inside.1)?)))
    }

    fn bytes(&self, count: u64) -> Result<usize> {
        count
            .checked_mul(self.data_type.size() as u64)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .filter(|bytes| *bytes <= isize::MAX as usize)
            .ok_or_else(|| {
                Error::argument(format!("{count} {} do not fit the address space", self.data_type))
            })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn calls_are_alike_whatever_their_factor_and_deadline() {
        let call = Call::new(Collective::AllReduce, DataType::F32, 8);
        let mut other = call.clone().deadline(Duration::from_secs(1));
        other.scalar = 0.5;
        assert!(call.is_like(&other));
        for unlike in [
            Call::new(Collective::Reduce, DataType::F32, 8),
            Call::new(Collective::AllReduce, DataType::F64, 8),
            Call::new(Collective::AllReduce, DataType::F32, 9),
            call.clone().op(ReduceOp::Max),
            call.clone().root(1),
            call.clone().level(Level::Shape),
            call.clone().algorithm(Algorithm::Ring),
            call.clone().counts(Counts::Equal(8)),
        ] {
            assert!(!call.is_like(&unlike), "{unlike:?}");
        }
    }
}
