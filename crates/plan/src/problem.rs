//! What is to be done: a collective, its sizes and its promises, before anyone asks how.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::types::{Collective, DataType, Level, Rank};

/// How many values each rank contributes or receives.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counts {
    /// Every block has this many values.
    Equal(u64),
    /// Block `i` has `counts[i]` values: the `-v` forms of gather, scatter, all_gather and
    /// reduce_scatter. Every rank passes the same list.
    PerRank(Arc<[u64]>),
    /// all_to_all_v: what this rank sends to and receives from each rank. Differs by rank.
    Pairwise {
        /// Values for each rank, in rank order.
        send: Arc<[u64]>,
        /// Values from each rank, in rank order.
        receive: Arc<[u64]>,
    },
}

/// A run of values inside a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// First value.
    pub start: u64,
    /// Number of values.
    pub count: u64,
}

impl Extent {
    /// `count` values from `start`.
    #[must_use]
    pub const fn new(start: u64, count: u64) -> Self {
        Self { start, count }
    }

    /// One past the last value.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start + self.count
    }

    /// Part `index` of `parts` nearly equal parts; all but the last are multiples of `grain`.
    #[must_use]
    pub fn part(self, parts: u64, index: u64, grain: u64) -> Self {
        let grain = grain.max(1);
        let units = self.count.div_ceil(grain);
        let bound = |i: u64| (units * i / parts * grain).min(self.count);
        let start = bound(index);
        Self::new(self.start + start, bound(index + 1) - start)
    }

    /// The run cut into pieces of at most `most` values.
    pub fn pieces(self, most: u64) -> impl Iterator<Item = Self> {
        let most = most.max(1);
        (0..self.count.div_ceil(most))
            .map(move |i| Self::new(self.start + i * most, most.min(self.count - i * most)))
    }
}

/// One collective call, as the planner sees it.
///
/// `counts` are NCCL's: for all_reduce, broadcast and reduce the whole buffer is one block; for
/// all_gather, reduce_scatter, gather, scatter and all_to_all there is a block for each rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Problem {
    /// The collective.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// The special rank of rooted collectives, else 0.
    pub root: Rank,
    /// Sizes.
    pub counts: Counts,
    /// Element type.
    pub data_type: DataType,
    /// What the bits of a reduction may depend on.
    pub level: Level,
}

impl Problem {
    /// A call with equal counts, root 0 and level `run`.
    #[must_use]
    pub fn new(collective: Collective, ranks: u32, count: u64, data_type: DataType) -> Self {
        Self {
            collective,
            ranks,
            root: 0,
            counts: Counts::Equal(count),
            data_type,
            level: Level::Run,
        }
    }

    /// The values that belong to rank `rank` in a buffer of one block per rank (all_gather,
    /// reduce_scatter, gather, scatter).
    #[must_use]
    pub fn block(&self, rank: Rank) -> Extent {
        match &self.counts {
            Counts::Equal(count) => Extent::new(u64::from(rank) * count, *count),
            Counts::PerRank(counts) => {
                let before = counts.iter().take(rank as usize).sum();
                Extent::new(before, counts.get(rank as usize).copied().unwrap_or(0))
            }
            Counts::Pairwise { .. } => Extent::new(0, 0),
        }
    }

    /// all_to_all: the values this rank sends to `peer`, in its input.
    #[must_use]
    pub fn send_block(&self, peer: Rank) -> Extent {
        match &self.counts {
            Counts::Pairwise { send, .. } => listed(send, peer),
            _ => self.block(peer),
        }
    }

    /// all_to_all: the values this rank receives from `peer`, in its output.
    #[must_use]
    pub fn receive_block(&self, peer: Rank) -> Extent {
        match &self.counts {
            Counts::Pairwise { receive, .. } => listed(receive, peer),
            _ => self.block(peer),
        }
    }

    /// Whether ranks have counts of their own.
    #[must_use]
    pub fn is_uneven(&self) -> bool {
        !matches!(self.counts, Counts::Equal(_))
    }

    /// Values of all blocks together.
    #[must_use]
    pub fn total(&self) -> u64 {
        match &self.counts {
            Counts::Equal(count) => count * u64::from(self.ranks),
            Counts::PerRank(counts) => counts.iter().sum(),
            Counts::Pairwise { .. } => 0,
        }
    }

    /// Values of a single-block collective (all_reduce, broadcast, reduce).
    #[must_use]
    pub fn count(&self) -> u64 {
        match &self.counts {
            Counts::Equal(count) => *count,
            Counts::PerRank(_) | Counts::Pairwise { .. } => self.total(),
        }
    }

    /// Values in the input of `rank`.
    #[must_use]
    pub fn input_count(&self, rank: Rank) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::Reduce => self.count(),
            Collective::Broadcast if rank == self.root => self.count(),
            Collective::AllGather | Collective::Gather => self.block(rank).count,
            Collective::ReduceScatter => self.total(),
            Collective::Scatter if rank == self.root => self.total(),
            Collective::AllToAll => match &self.counts {
                Counts::Pairwise { send, .. } => send.iter().sum(),
                _ => self.total(),
            },
            _ => 0,
        }
    }

    /// Values in the output of `rank`.
    #[must_use]
    pub fn output_count(&self, rank: Rank) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::Broadcast => self.count(),
            Collective::Reduce if rank == self.root => self.count(),
            Collective::AllGather => self.total(),
            Collective::Gather if rank == self.root => self.total(),
            Collective::ReduceScatter | Collective::Scatter => self.block(rank).count,
            Collective::AllToAll => match &self.counts {
                Counts::Pairwise { receive, .. } => receive.iter().sum(),
                _ => self.total(),
            },
            _ => 0,
        }
    }

    /// Where input and output of `rank` coincide in an in-place call, as value offsets
    /// `(input, output)` of the same address: NCCL's convention. `None` where the collective
    /// has no in-place form for this rank.
    #[must_use]
    pub fn in_place(&self, rank: Rank) -> Option<(u64, u64)> {
        match self.collective {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => Some((0, 0)),
            Collective::AllGather => Some((0, self.block(rank).start)),
            Collective::ReduceScatter => Some((self.block(rank).start, 0)),
            Collective::Gather if rank == self.root => Some((0, self.block(rank).start)),
            Collective::Scatter if rank == self.root => Some((self.block(rank).start, 0)),
            _ => None,
        }
    }
}

fn listed(counts: &[u64], rank: Rank) -> Extent {
    let before = counts.iter().take(rank as usize).sum();
    Extent::new(before, counts.get(rank as usize).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_extent_once() {
        for count in 0..200 {
            for parts in 1..9 {
                for grain in [1, 4, 16] {
                    let whole = Extent::new(7, count);
                    let mut next = 7;
                    for i in 0..parts {
                        let part = whole.part(parts, i, grain);
                        assert_eq!(part.start, next);
                        assert!(
                            i + 1 == parts
                                || part.end() == whole.end()
                                || part.count.is_multiple_of(grain)
                        );
                        next = part.end();
                    }
                    assert_eq!(next, whole.end());
                }
            }
        }
    }

    #[test]
    fn pieces_cover_the_extent_once() {
        let pieces: Vec<_> = Extent::new(3, 10).pieces(4).collect();
        assert_eq!(pieces, [Extent::new(3, 4), Extent::new(7, 4), Extent::new(11, 2)]);
        assert_eq!(Extent::new(3, 0).pieces(4).count(), 0);
    }
}
