//! Bruck: ⌈log₂ n⌉ rounds for any number of ranks, by the binary digits of the distance.
//!
//! In round `k` every rank sends to one rank 2ᵏ away and receives from another, in a circle, so
//! that no number of ranks is special:
//! * all_gather: all blocks a rank has go to the rank 2ᵏ below, which then has twice as many;
//! * all_to_all: a block that must travel distance `d` goes along in the rounds of the digits of
//!   `d`. Blocks move up to log₂ n times, but in few messages: for small counts;
//! * barrier: nothing moves but the notice that a rank, and all it has heard of, has entered.

use super::exchange::{Flow, exchange, joined};
use super::{Rounds, fitting};
use crate::build::{Builder, PortSize};
use crate::plan::Span;
use crate::problem::{Counts, Extent, Problem};
use crate::types::{Collective, Form, Rank};

pub(super) const COLLECTIVES: &[Collective] =
    &[Collective::AllGather, Collective::AllToAll, Collective::Barrier];

/// Blocks of an all_to_all pass through ranks that are neither their source nor their target.
pub(super) fn supports(problem: &Problem) -> Result<(), String> {
    match (problem.collective, &problem.counts) {
        (Collective::AllToAll, Counts::PerRank(_) | Counts::Pairwise { .. }) => {
            Err("bruck passes blocks through third ranks, which must know their sizes: all_to_all \
             needs equal counts"
                .to_owned())
        }
        _ => Ok(()),
    }
}

pub(super) fn build(builder: &mut Builder<'_>) {
    match builder.context().problem.collective {
        Collective::AllGather => all_gather(builder),
        Collective::AllToAll => all_to_all(builder),
        _ => barrier(builder),
    }
}

/// Rounds until distance 2ᵏ has covered all ranks.
fn digits(ranks: u32) -> u32 {
    ranks.next_power_of_two().ilog2()
}

fn barrier(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (rank, ranks) = (context.rank, context.ranks());
    let size = PortSize { boxes: 0, slot_bytes: 0, stage_bytes: 0, slots: 1 };
    let port = builder.port(0, size);
    for distance in (0..digits(ranks)).map(|digit| 1 << digit) {
        builder.notify(port, (rank + distance) % ranks);
        builder.await_notice(port, (rank + ranks - distance) % ranks);
    }
}

/// After round `k` a rank has the blocks of the 2ᵏ⁺¹ ranks from itself on.
fn all_gather(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let size = |piece: u64| PortSize {
        boxes: digits(ranks),
        slot_bytes: context.element_bytes(piece),
        stage_bytes: 0,
        slots: context.tuning.slots,
    };
    let most = context.values(context.tuning.slot_bytes, Form::Element);
    let piece = fitting(context, most.min(problem.total()), |piece| size(piece).bytes());
    for lane in 0..context.tuning.lanes {
        let port = builder.port(lane as usize, size(piece));
        let rounds = Rounds::new(context, lane, u64::MAX, |of| problem.block(of));
        let mine = rounds.cut(rank, 0);
        let source = Extent::new(mine.start - problem.block(rank).start, mine.count);
        builder.copy(lane as usize, builder.input(source), builder.output(mine));
        for digit in 0..digits(ranks) {
            let distance = 1 << digit;
            let blocks = distance.min(ranks - distance);
            let held = |first: Rank| {
                joined((0..blocks).map(|block| rounds.cut((first + block) % ranks, 0)))
            };
            let (below, above) = ((rank + ranks - distance) % ranks, (rank + distance) % ranks);
            let sent = Flow::new(below, digit, held(rank));
            let received = Flow::new(above, digit, held(above));
            exchange(builder, port, &sent, &received);
        }
    }
}

/// How many of the distances below `end` have `digit`.
fn travellers(end: u32, digit: u32) -> u32 {
    let (weight, cycle) = (1 << digit, 2 << digit);
    end / cycle * weight + (end % cycle).saturating_sub(weight)
}

/// Blocks stay where they arrive until they travel on; nothing is put in order in between.
fn all_to_all(builder: &mut Builder<'_>) {
    let context = builder.context();
    let ranks = context.ranks();
    let digits = digits(ranks);
    let widest = (0..digits).map(|digit| travellers(ranks, digit)).max().unwrap_or(0);
    let message = |piece: u64| context.element_bytes(piece * u64::from(widest));
    let size = |piece: u64| PortSize {
        boxes: digits,
        slot_bytes: message(piece),
        stage_bytes: 0,
        slots: context.tuning.slots,
    };
    let block = Extent::new(0, context.problem.block(0).count);
    let room = context.tuning.slot_bytes / u64::from(widest);
    let most = context.values(room, Form::Element).min(block.count);
    let piece = fitting(context, most, |piece| size(piece).bytes() + message(piece) + 64);
    for lane in 0..context.tuning.lanes {
        let port = builder.port(lane as usize, size(piece));
        let bounce = builder.private(message(piece));
        let lanes = u64::from(context.tuning.lanes);
        let part = block.part(lanes, u64::from(lane), context.grain());
        for cut in part.pieces(piece) {
            let mut arrived: Vec<Span> = Vec::new();
            for digit in 0..digits {
                let distance = 1 << digit;
                let to = (context.rank + distance) % ranks;
                let from = (context.rank + ranks - distance) % ranks;
                let sources: Vec<Span> = (distance..ranks)
                    .filter(|travel| travel & distance != 0)
                    .map(|travel| traveller(builder, &arrived, travel, cut))
                    .collect();
                builder.send_joined(port, to, digit, &sources, bounce);
                let count = u64::from(travellers(ranks, digit)) * cut.count;
                arrived.push(builder.receive(port, from, digit, count, Form::Element));
            }
            for travel in 0..ranks {
                let source = traveller(builder, &arrived, travel, cut);
                let from = (context.rank + ranks - travel) % ranks;
                let target = Extent::new(context.problem.block(from).start + cut.start, cut.count);
                builder.copy(lane as usize, source, builder.output(target));
            }
            for digit in 0..digits {
                builder.release(port, (context.rank + ranks - (1 << digit)) % ranks);
            }
        }
    }
}

/// Where the block here that travels distance `travel` stands: in the box of the last digit it
/// has travelled, or still in the input.
fn traveller(builder: &Builder<'_>, arrived: &[Span], travel: u32, cut: Extent) -> Span {
    let context = builder.context();
    let done = travel & ((1 << arrived.len()) - 1);
    match done.checked_ilog2() {
        Some(digit) => {
            let place = u64::from(travellers(travel, digit)) * cut.count;
            arrived[digit as usize].slice(place, cut.count, context.problem.data_type)
        }
        None => {
            let target = (context.rank + travel) % context.ranks();
            let block = context.problem.block(target);
            builder.input(Extent::new(block.start + cut.start, cut.count))
        }
    }
}
