//! Tiny: every rank turns up its values on cards, and takes from the others' cards what it needs.
//!
//! A card is one cache line that holds the values and the word that says they are there, so a reader
//! fetches both at once. Only inside a host, and only for what fits a card: either all that a rank
//! has to show, or, where each rank wants another block of it, each block on cards of its own. What a root shows
//! to many goes on from rank to rank, so that not all of them fetch it from one core.

use super::taken;
use crate::build::Builder;
use crate::plan::{CARD_BYTES, CARDS_MAX, Operand};
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
    match Deck::of(problem) {
        Some(_) => Ok(()),
        None => Err(format!("more than fits cards of {CARD_BYTES} bytes")),
    }
}

/// Ranks that look at the cards of one, where many are to see them.
const READERS: u32 = 4;

/// Cards of a broadcast, at most: past that, a copy in one piece is quicker.
const BROADCAST_CARDS: u64 = 10;

/// How values stand on cards.
#[derive(Clone, Copy)]
struct Deck {
    /// Values of a card.
    values: u64,
    /// Cards for each block; `None` where one card holds all.
    per_block: Option<u64>,
    /// Blocks that stand on cards of their own.
    blocks: u32,
}

impl Deck {
    fn of(problem: &Problem) -> Option<Self> {
        let values = CARD_BYTES / problem.data_type.size() as u64;
        let shown = (0..problem.ranks).filter_map(|rank| shown(problem, rank));
        if shown.max().unwrap_or(0) <= values {
            return Some(Self { values, per_block: None, blocks: 1 });
        }
        if problem.collective == Collective::Broadcast {
            let each = problem.count().div_ceil(values);
            let deck = Self { values, per_block: Some(each), blocks: 1 };
            return (each <= BROADCAST_CARDS).then_some(deck);
        }
        let scattered = matches!(
            problem.collective,
            Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll
        );
        let longest = (0..problem.ranks).map(|rank| problem.block(rank).count).max();
        let each = longest.unwrap_or(0).div_ceil(values);
        let cards = each.checked_mul(u64::from(problem.ranks));
        let fits = scattered && cards.is_some_and(|cards| cards <= CARDS_MAX as u64);
        fits.then_some(Self { values, per_block: Some(each), blocks: problem.ranks })
    }

    fn cards(self) -> u16 {
        let cards = self.per_block.map_or(1, |each| each * u64::from(self.blocks));
        u16::try_from(cards).expect("few cards")
    }

    /// Where the block `extent`, which rank `of` wants, stands in a deck.
    fn cuts(self, of: Rank, extent: Extent) -> Vec<Cut> {
        let Some(each) = self.per_block else {
            return vec![Cut { card: 0, skip: extent.start, values: extent }];
        };
        let block = if self.blocks == 1 { 0 } else { u64::from(of) };
        (block * each..)
            .zip(extent.pieces(self.values))
            .map(|(card, values)| Cut {
                card: u16::try_from(card).expect("few cards"),
                skip: 0,
                values,
            })
            .collect()
    }
}

/// A part of an input that stands on one card.
struct Cut {
    card: u16,
    /// Values of the card before it.
    skip: u64,
    values: Extent,
}

/// How many values a rank shows; `None` where nobody looks at its cards.
fn shown(problem: &Problem, rank: Rank) -> Option<u64> {
    let root = rank == problem.root;
    match problem.collective {
        Collective::Broadcast | Collective::Scatter => root.then(|| problem.input_count(rank)),
        Collective::Reduce | Collective::Gather => (!root).then(|| problem.input_count(rank)),
        Collective::Barrier => Some(0),
        _ => Some(problem.input_count(rank)),
    }
}

pub(super) fn build(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let deck = Deck::of(problem).expect("supports() has looked");
    builder.lane(0);
    builder.cards(deck.cards());
    if problem.collective == Collective::Broadcast {
        return broadcast(builder, deck);
    }
    // Each begins with another, so that not all fetch the same line at once.
    let peers: Vec<Rank> = (1..ranks).map(|distance| (rank + distance) % ranks).collect();
    if let Some(count) = shown(problem, rank) {
        if deck.per_block.is_none() {
            builder.show(0, builder.input(Extent::new(0, count)), 0);
        } else {
            for peer in &peers {
                for cut in deck.cuts(*peer, problem.block(*peer)) {
                    builder.show(0, builder.input(cut.values), cut.card);
                }
            }
        }
    }
    match problem.collective {
        // An empty card says that its rank has come.
        Collective::Barrier => peers.iter().for_each(|peer| builder.see(0, *peer, 0)),
        Collective::AllReduce => fold(builder, deck, &peers, Extent::new(0, problem.count())),
        Collective::Reduce if rank == problem.root => {
            fold(builder, deck, &peers, Extent::new(0, problem.count()));
        }
        Collective::Reduce => {}
        Collective::ReduceScatter => fold(builder, deck, &peers, problem.block(rank)),
        _ => collect(builder, deck, &peers),
    }
}

/// Root shows; others see, and those with others behind them show in turn.
fn broadcast(builder: &mut Builder<'_>, deck: Deck) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let distance = |rank: Rank| (rank + ranks - problem.root) % ranks;
    let readers = if ranks > 2 * READERS { READERS } else { ranks };
    let is_root = rank == problem.root;
    let is_read = distance(rank).checked_mul(readers).is_some_and(|first| first + 1 < ranks);
    let before = (distance(rank).saturating_sub(1) / readers + problem.root) % ranks;
    let whole = Extent::new(0, problem.count());
    for cut in deck.cuts(0, whole) {
        let (place, source) = (builder.output(cut.values), builder.input(cut.values));
        if is_root {
            builder.show(0, source, cut.card);
        } else if cut.values.count > 0 {
            builder.see(0, before, cut.card);
            let seen = builder.card(before, cut.card, 0, cut.values.count);
            builder.copy(0, seen, place);
            if is_read {
                builder.show(0, place, cut.card);
            }
        }
    }
    if is_root {
        builder.copy(0, builder.input(whole), builder.output(whole));
    }
}

/// Folds `extent` of all inputs, in rank order, into the output.
fn fold(builder: &mut Builder<'_>, deck: Deck, peers: &[Rank], extent: Extent) {
    let context = builder.context();
    let (rank, ranks) = (context.rank, context.ranks());
    for cut in deck.cuts(rank, extent).iter().filter(|cut| cut.values.count > 0) {
        for peer in peers {
            builder.see(0, *peer, cut.card);
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
        let place = Extent::new(cut.values.start - extent.start, cut.values.count);
        builder.reduce(0, &operands, builder.output(place), true);
    }
}

/// Takes from everybody what this rank gets of it, as it is.
fn collect(builder: &mut Builder<'_>, deck: Deck, peers: &[Rank]) {
    let context = builder.context();
    let (problem, rank) = (context.problem, context.rank);
    let wanted = |from: Rank| taken(problem, rank, from);
    let (own, place) = wanted(rank);
    let target = builder.output(Extent::new(place, own.count));
    builder.copy(0, builder.input(own), target);
    for peer in peers {
        let (extent, place) = wanted(*peer);
        for cut in deck.cuts(rank, extent).iter().filter(|cut| cut.values.count > 0) {
            builder.see(0, *peer, cut.card);
            let source = builder.card(*peer, cut.card, cut.skip, cut.values.count);
            let start = place + cut.values.start - extent.start;
            builder.copy(0, source, builder.output(Extent::new(start, cut.values.count)));
        }
    }
}
