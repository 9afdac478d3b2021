//! Parallel aggregated trees: every block has a binomial tree of its own, and blocks that go the
//! same way at the same time share a message.
//!
//! ```text
//! 8 ranks, the way of rank 0's block in an all_gather; every other block's is the same, turned
//!   distance 4:  0 ─► 4
//!   distance 2:  0 ─► 2   4 ─► 6
//!   distance 1:  0 ─► 1   2 ─► 3   4 ─► 5   6 ─► 7
//! ```
//!
//! In the step of distance `d` each rank sends to the rank `d` after it: one block in the first,
//! farthest step, half of all blocks in the last, nearest one. A reduce_scatter runs the
//! same trees backwards, folding where branches meet. The steps grow with the logarithm of the
//! number of ranks, for any number. Small blocks travel side by side; a block that fills
//! a message travels alone, with no copy between.
//!
//! Branches meet in no rank's order: at level `shape` values travel untouched, and the owner of a
//! block folds them.

mod fold;
mod spread;

use super::Rounds;
use crate::build::{Builder, Context, PortSize};
use crate::plan::FLAGS_MAX;
use crate::problem::Extent;
use crate::types::{Collective, Form, Rank};
use fold::{Fold, Store};
use spread::Spread;

pub(super) const COLLECTIVES: &[Collective] =
    &[Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];

/// Most lanes of the tuning that are used: each has up to two ports.
const LANES: u32 = 32;
const _: () = assert!(LANES as usize * 4 <= FLAGS_MAX);

pub(super) fn build(builder: &mut Builder<'_>) {
    let mut context = builder.context();
    context.tuning.lanes = context.tuning.lanes.min(LANES);
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let share = |of: Rank| match problem.collective {
        Collective::AllReduce => {
            Extent::new(0, problem.count()).part(u64::from(ranks), u64::from(of), context.grain())
        }
        _ => problem.block(of),
    };
    let folds = problem.collective != Collective::AllGather;
    let spreads = problem.collective != Collective::ReduceScatter;
    let cutting = Cutting::new(context, folds, spreads);
    for lane in 0..context.tuning.lanes {
        let fold = folds.then(|| Fold::new(builder, context, lane as usize, cutting));
        let spread = spreads.then(|| Spread::new(builder, lane as usize, cutting));
        let rounds = Rounds::new(context, lane, cutting.piece, share);
        for round in 0..rounds.count() {
            let cut = |of: Rank| rounds.cut(of % ranks, round);
            let mine = cut(rank);
            // Where this rank's cut stands in a buffer that holds its block alone.
            let alone = Extent::new(mine.start - share(rank).start, mine.count);
            match problem.collective {
                Collective::AllGather => {
                    builder.copy(lane as usize, builder.input(alone), builder.output(mine));
                }
                _ => {
                    let target = if spreads { mine } else { alone };
                    if let Some(fold) = &fold {
                        fold.run(builder, &cut, target);
                    }
                }
            }
            if let Some(spread) = &spread {
                spread.run(builder, &cut);
            }
        }
    }
}

/// How blocks and messages are cut.
#[derive(Clone, Copy)]
struct Cutting {
    /// Values of one block in a round.
    piece: u64,
    /// Values in one message.
    message: u64,
    /// A box for each distance.
    port: PortSize,
}

impl Cutting {
    /// Half of the scratch is for messages where values are folded, else all of it.
    fn new(context: Context<'_>, folds: bool, spreads: bool) -> Self {
        let (data_type, slots) = (context.problem.data_type, u64::from(context.tuning.slots));
        let room = context.tuning.scratch_bytes / u64::from(context.tuning.lanes);
        let boxes = distances(context.ranks()).count() as u64;
        let ports = u64::from(folds) + u64::from(spreads);
        let form = if folds { Form::Accumulator } else { Form::Element };
        let part = if folds { room / 2 } else { room };
        let bytes = (part / (ports * boxes * slots + 1)).min(context.tuning.slot_bytes);
        let message = context.values(bytes, form);
        let piece = if folds { message.min(Store::piece(context, room / 2)) } else { message };
        Self {
            piece,
            message,
            port: PortSize {
                boxes: u32::try_from(boxes).expect("a logarithm"),
                slot_bytes: message * form.size(data_type) as u64,
                stage_bytes: 0,
                slots: context.tuning.slots,
            },
        }
    }
}

/// The steps' distances with their boxes, nearest first: the powers of two below `ranks`.
fn distances(ranks: Rank) -> impl DoubleEndedIterator<Item = (u32, Rank)> {
    let steps = ranks.next_power_of_two().trailing_zeros();
    (0..steps).map(|step| (step, 1 << step))
}

/// Cuts a list into messages of at most `most` values; what is empty is left out.
fn messages<T>(list: Vec<T>, most: u64, count: impl Fn(&T) -> u64) -> Vec<Vec<T>> {
    let mut messages: Vec<Vec<T>> = Vec::new();
    let mut room = 0;
    for item in list.into_iter().filter(|item| count(item) > 0) {
        let needed = count(&item);
        match messages.last_mut() {
            Some(last) if needed <= room => last.push(item),
            _ => {
                messages.push(vec![item]);
                room = most;
            }
        }
        room = room.saturating_sub(needed);
    }
    messages
}
