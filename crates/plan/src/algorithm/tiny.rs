//! Tiny: every rank turns up its values on cards, and takes from the others' cards what it needs.
//!
//! A card is one cache line that holds the values and the word that says they are there, so a reader
//! fetches both at once. Only inside a host, and only for what fits one card: with two, showing a
//! stage is as quick.

use crate::build::Builder;
use crate::plan::{CARD_BYTES, Operand};
use crate::problem::{Counts, Extent, Problem};
use crate::types::{Collective, Rank};

pub(super) const COLLECTIVES: &[Collective] = &[
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
    Collective::Barrier,
];

pub(super) fn supports(problem: &Problem, hosts: &[u32]) -> Result<(), String> {
    if hosts.iter().any(|host| *host != hosts[0]) {
        return Err("cards are seen inside a host only".to_owned());
    }
    if matches!(problem.counts, Counts::Pairwise { .. }) {
        return Err("nobody knows how many cards an all_to_all_v needs".to_owned());
    }
    let cards = cards(problem);
    if cards > 1 {
        return Err(format!("more than the {CARD_BYTES} bytes of a card"));
    }
    Ok(())
}

/// Values on a card.
fn card_values(problem: &Problem) -> u64 {
    CARD_BYTES / problem.data_type.size() as u64
}

/// How many values a rank shows; `None` where nobody looks at its cards.
fn shown(problem: &Problem, rank: Rank) -> Option<u64> {
    let root = rank == problem.root;
    match problem.collective {
        Collective::Broadcast | Collective::Scatter => root.then(|| problem.input_count(rank)),
        Collective::Reduce | Collective::Gather => (!root).then(|| problem.input_count(rank)),
        _ => Some(problem.input_count(rank)),
    }
}

/// Cards of the rank that shows most.
fn cards(problem: &Problem) -> u64 {
    // An empty card says that its rank has come.
    if problem.collective == Collective::Barrier {
        return 1;
    }
    let most = (0..problem.ranks).filter_map(|rank| shown(problem, rank)).max().unwrap_or(0);
    most.div_ceil(card_values(problem))
}

pub(super) fn build(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let lane = 0;
    builder.lane(lane);
    builder.cards(u16::try_from(cards(problem)).expect("supports() has looked"));
    let peers: Vec<Rank> = (1..ranks).map(|distance| (rank + distance) % ranks).collect();
    if problem.collective == Collective::Barrier {
        builder.show(lane, builder.input(Extent::new(0, 0)), 0);
        for peer in peers {
            builder.see(lane, peer, 0);
        }
        return;
    }
    let values = card_values(problem);
    if let Some(count) = shown(problem, rank) {
        for (card, piece) in (0..).zip(Extent::new(0, count).pieces(values)) {
            builder.show(lane, builder.input(piece), card);
        }
    }
    match problem.collective {
        Collective::AllReduce | Collective::Reduce => {
            if problem.collective == Collective::AllReduce || rank == problem.root {
                fold(builder, Extent::new(0, problem.count()), 0);
            }
        }
        Collective::ReduceScatter => {
            let block = problem.block(rank);
            fold(builder, block, block.start);
        }
        _ => collect(builder, &peers),
    }
}

/// Folds `extent` of all inputs, in rank order; it belongs at `extent.start - base` of the output.
fn fold(builder: &mut Builder<'_>, extent: Extent, base: u64) {
    let context = builder.context();
    let (rank, ranks) = (context.rank, context.ranks());
    for cut in cuts(extent, card_values(context.problem)) {
        // All cards are on their way at once; who comes last is waited for longest.
        for peer in (0..ranks).filter(|peer| *peer != rank) {
            builder.see(0, peer, cut.card);
        }
        let operands: Vec<Operand> = (0..ranks)
            .map(|source| match source {
                own if own == rank => builder.own(cut.values),
                _ => Operand {
                    span: builder.card(source, cut.card, cut.skip, cut.values.count),
                    fresh: Some(source),
                },
            })
            .collect();
        let place = Extent::new(cut.values.start - base, cut.values.count);
        builder.reduce(0, &operands, builder.output(place), true);
    }
}

/// Takes from everybody what this rank gets of it, as it is.
fn collect(builder: &mut Builder<'_>, peers: &[Rank]) {
    let context = builder.context();
    let (problem, rank) = (context.problem, context.rank);
    // What this rank gets of `from`: where it stands in that rank's input, and where it goes.
    let wanted = |from: Rank| match problem.collective {
        Collective::Broadcast if from == problem.root => (Extent::new(0, problem.count()), 0),
        Collective::Scatter if from == problem.root => (problem.block(rank), 0),
        Collective::AllGather => {
            (Extent::new(0, problem.block(from).count), problem.block(from).start)
        }
        Collective::Gather if rank == problem.root => {
            (Extent::new(0, problem.block(from).count), problem.block(from).start)
        }
        Collective::AllToAll => (problem.block(rank), problem.block(from).start),
        _ => (Extent::new(0, 0), 0),
    };
    let (own, place) = wanted(rank);
    let target = builder.output(Extent::new(place, own.count));
    builder.copy(0, builder.input(own), target);
    for peer in peers {
        let (extent, place) = wanted(*peer);
        for cut in cuts(extent, card_values(problem)) {
            builder.see(0, *peer, cut.card);
            let source = builder.card(*peer, cut.card, cut.skip, cut.values.count);
            let start = place + cut.values.start - extent.start;
            builder.copy(0, source, builder.output(Extent::new(start, cut.values.count)));
        }
    }
}

/// A part of an input that stands on one card.
struct Cut {
    card: u16,
    /// Values of the card before it.
    skip: u64,
    values: Extent,
}

/// `extent` of an input, cut where one card ends and the next begins.
fn cuts(extent: Extent, values: u64) -> impl Iterator<Item = Cut> {
    let end = extent.start + extent.count;
    let first = extent.start / values;
    (first..end.div_ceil(values)).filter_map(move |card| {
        let start = extent.start.max(card * values);
        let stop = end.min((card + 1) * values);
        (stop > start).then(|| Cut {
            card: u16::try_from(card).expect("few cards"),
            skip: start - card * values,
            values: Extent::new(start, stop - start),
        })
    })
}
