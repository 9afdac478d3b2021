//! Single copy: every rank reads what it needs where it lies, in the buffers of the others.
//!
//! Nothing is staged, so every byte is copied once; but the kernel must do it, page by page, and ranks
//! must wait for each other: a card says that a buffer may be read, another that it no longer is.
//! For large messages inside a host.
//!
//! Reductions read a tile of every input into private memory that stays in the cache, and fold it
//! there, in rank order.

use super::{fitting, taken};
use crate::build::Builder;
use crate::plan::{Operand, Region, Span};
use crate::problem::{Counts, Extent, Problem};
use crate::types::{Collective, Form, Rank};

pub(super) const COLLECTIVES: &[Collective] = &[
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
];

/// Bytes of a tile: more calls cost more, less of it stays in the cache.
const TILE_BYTES: u64 = 64 << 10;

/// Its buffers may be read.
const OPEN: u16 = 0;
/// It has read all inputs it needs and, in an all_reduce, its share of the result may be read.
const FOLDED: u16 = 1;
/// It reads no more.
const CLOSED: u16 = 2;

pub(super) fn supports(problem: &Problem, hosts: &[u32]) -> Result<(), String> {
    if hosts.iter().any(|host| *host != hosts[0]) {
        return Err("buffers are read inside a host only".to_owned());
    }
    if matches!(problem.counts, Counts::Pairwise { .. }) {
        return Err("nobody knows where blocks stand in the buffers of others".to_owned());
    }
    if problem.collective == Collective::Broadcast && problem.ranks > 2 {
        // The kernel counts readers of a page in one place: 15 readers of 1 MiB took 1.5 ms, as long as
        // if they had come one after another.
        return Err("several ranks would read the same pages".to_owned());
    }
    Ok(())
}

pub(super) fn build(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    builder.lane(0);
    builder.cards(CLOSED + 1);
    let read = Reading::of(problem, rank);
    if read.is_read {
        builder.expose(0, OPEN);
    }
    match problem.collective {
        Collective::AllReduce => {
            let whole = Extent::new(0, problem.count());
            let share = |of: Rank| whole.part(u64::from(ranks), u64::from(of), context.grain());
            fold(builder, share(rank), share(rank).start);
            builder.nod(0, FOLDED);
            for peer in others(rank, ranks) {
                builder.see(0, peer, FOLDED);
                builder.get_output(0, peer, share(peer), builder.output(share(peer)));
            }
        }
        Collective::ReduceScatter => fold(builder, problem.block(rank), 0),
        _ => collect(builder),
    }
    if read.reads {
        builder.nod(0, CLOSED);
    }
    if read.is_read {
        for peer in others(rank, ranks) {
            if Reading::of(problem, peer).reads {
                builder.see(0, peer, CLOSED);
            }
        }
    }
}

/// The other ranks, each beginning with another, so that not all read from one at a time.
fn others(rank: Rank, ranks: Rank) -> impl Iterator<Item = Rank> {
    (1..ranks).map(move |distance| (rank + distance) % ranks)
}

/// What a rank does in a call.
struct Reading {
    /// Whether it reads memory of others.
    reads: bool,
    /// Whether others read its memory.
    is_read: bool,
}

impl Reading {
    fn of(problem: &Problem, rank: Rank) -> Self {
        let root = rank == problem.root;
        match problem.collective {
            Collective::Broadcast | Collective::Scatter => Self { reads: !root, is_read: root },
            Collective::Gather => Self { reads: root, is_read: !root },
            _ => Self { reads: true, is_read: true },
        }
    }
}

/// Folds `extent` of all inputs, in rank order, to `place` in the output.
fn fold(builder: &mut Builder<'_>, extent: Extent, place: u64) {
    let context = builder.context();
    let (rank, ranks) = (context.rank, context.ranks());
    let tile_bytes = |values: u64| u64::from(ranks - 1) * context.element_bytes(values);
    let most = context.values(TILE_BYTES, Form::Element);
    let tile = fitting(context, most, tile_bytes);
    // The same on all ranks, whatever their share.
    let base = builder.private(tile_bytes(tile));
    for peer in others(rank, ranks) {
        builder.see(0, peer, OPEN);
    }
    for cut in extent.pieces(tile) {
        // Tiles of the other ranks, in rank order.
        let tile_of = |peer: Rank| Span {
            region: Region::Scratch,
            offset: base + context.element_bytes(tile * u64::from(peer - u32::from(peer > rank))),
            count: cut.count,
            form: Form::Element,
        };
        for peer in others(rank, ranks) {
            builder.get_input(0, peer, cut, tile_of(peer));
        }
        let operands: Vec<Operand> = (0..ranks)
            .map(|source| match source {
                own if own == rank => builder.own(cut),
                _ => Operand { span: tile_of(source), fresh: Some(source) },
            })
            .collect();
        let target = Extent::new(place + cut.start - extent.start, cut.count);
        builder.reduce(0, &operands, builder.output(target), true);
    }
}

/// Takes from everybody what this rank gets of it, as it is.
fn collect(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank) = (context.problem, context.rank);
    let wanted = |from: Rank| taken(problem, rank, from);
    let (own, place) = wanted(rank);
    builder.copy(0, builder.input(own), builder.output(Extent::new(place, own.count)));
    for peer in others(rank, context.ranks()) {
        let (extent, place) = wanted(peer);
        if extent.count > 0 {
            builder.see(0, peer, OPEN);
            let target = builder.output(Extent::new(place, extent.count));
            builder.get_input(0, peer, extent, target);
        }
    }
}
