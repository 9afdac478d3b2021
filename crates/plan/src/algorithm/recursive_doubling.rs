//! Recursive doubling: in each round a rank trades all it has with a rank twice as far away.
//!
//! After a round everybody knows what twice as many ranks gave, so there are only log₂ n rounds:
//! few messages, for small counts. Any number of ranks: see [`Cube`].
//!
//! Both ends of an edge fold the same two partial results, the lower ranks' first, so that all
//! ranks have the same bits. That is a balanced tree over the ranks, not the left fold of level
//! `shape`; there the untouched inputs travel instead, and everybody folds all of them in the end.

use std::ops::Range;

use super::cube::Cube;
use super::exchange::{Flow, exchange, joined};
use super::{Rounds, fitting};
use crate::build::{Builder, Context, Inbox, Port, PortSize};
use crate::plan::{Operand, Region, Span};
use crate::problem::Extent;
use crate::types::{Collective, Form, Level, Rank};

pub(super) const COLLECTIVES: &[Collective] = &[Collective::AllReduce, Collective::AllGather];

pub(super) fn build(builder: &mut Builder<'_>) {
    let context = builder.context();
    match (context.problem.collective, context.problem.level) {
        (Collective::AllGather, _) => all_gather(builder),
        (_, Level::Run) => fold_on_the_way(builder),
        (_, Level::Shape) => fold_in_the_end(builder),
    }
}

/// This lane's part of a vector that everybody has.
fn part(context: Context<'_>, lane: u32) -> Extent {
    let lanes = u64::from(context.tuning.lanes);
    Extent::new(0, context.problem.count()).part(lanes, u64::from(lane), context.grain())
}

/// The longest part of any lane.
fn longest(context: Context<'_>) -> u64 {
    (0..context.tuning.lanes).map(|lane| part(context, lane).count).max().unwrap_or(0)
}

/// The port through which guests get results.
fn result_size(context: Context<'_>, cube: Cube, piece: u64) -> PortSize {
    PortSize {
        boxes: cube.guests().min(1),
        slot_bytes: context.element_bytes(piece),
        stage_bytes: 0,
        slots: context.tuning.slots,
    }
}

/// all_reduce: partial results along the edges.
fn fold_on_the_way(builder: &mut Builder<'_>) {
    let context = builder.context();
    let cube = Cube::new(context.ranks());
    let wide = Form::Accumulator.size(context.problem.data_type) as u64;
    // A box for each dimension and one for the guest.
    let size = |piece: u64| PortSize {
        boxes: cube.dimensions() + cube.guests().min(1),
        slot_bytes: piece * wide,
        stage_bytes: 0,
        slots: context.tuning.slots,
    };
    let most = longest(context).min(context.values(context.tuning.slot_bytes, Form::Accumulator));
    let piece = fitting(context, most, |piece| {
        size(piece).bytes() + result_size(context, cube, piece).bytes() + piece * wide + 64
    });
    for lane in 0..context.tuning.lanes {
        let climb = Climb {
            cube,
            lane: lane as usize,
            edges: builder.port(lane as usize, size(piece)),
            results: builder.port(lane as usize, result_size(context, cube, piece)),
            partial: builder.private(piece * wide),
        };
        for extent in part(context, lane).pieces(piece) {
            climb.all_reduce(builder, extent);
        }
    }
}

#[derive(Clone, Copy)]
struct Climb {
    cube: Cube,
    lane: usize,
    edges: Port,
    results: Port,
    partial: u64,
}

impl Climb {
    fn all_reduce(self, builder: &mut Builder<'_>, extent: Extent) {
        let rank = builder.context().rank;
        let corner = self.cube.corner(rank);
        let head = self.cube.head(corner);
        if rank != head {
            let inbox = self.cube.dimensions();
            builder.send(self.edges, head, inbox, builder.input(extent));
            builder.receive_into(self.results, head, 0, extent);
            return;
        }
        let mut held = builder.own(extent);
        if let Some(guest) = self.cube.guest(corner) {
            held = self.welcome(builder, guest, extent);
        }
        for dimension in 0..self.cube.dimensions() {
            held = self.cross(builder, dimension, held, extent);
        }
        if let Some(guest) = self.cube.guest(corner) {
            builder.send_into(self.results, guest, 0, held.span, extent.start);
        }
    }

    /// Folds the guest's values into this rank's.
    fn welcome(self, builder: &mut Builder<'_>, guest: Rank, extent: Extent) -> Operand {
        let inbox = self.cube.dimensions();
        let span = builder.receive(self.edges, guest, inbox, extent.count, Form::Element);
        let theirs = Operand { span, fresh: Some(guest) };
        let target = self.partial(extent.count);
        let own = builder.own(extent);
        builder.reduce(self.lane, &[own, theirs], target, false);
        builder.release(self.edges, guest);
        Operand { span: target, fresh: None }
    }

    /// Trades what is held along an edge and folds the two, the lower corner's first. After the
    /// last dimension the result stands in the output.
    fn cross(
        self,
        builder: &mut Builder<'_>,
        dimension: u32,
        held: Operand,
        extent: Extent,
    ) -> Operand {
        let corner = self.cube.corner(builder.context().rank);
        let across = corner ^ (1 << dimension);
        let peer = self.cube.head(across);
        builder.send(self.edges, peer, dimension, held.span);
        let (form, fresh) = match self.cube.guest(across) {
            None if dimension == 0 => (Form::Element, Some(peer)),
            _ => (Form::Accumulator, None),
        };
        let span = builder.receive(self.edges, peer, dimension, extent.count, form);
        let mut operands = [held, Operand { span, fresh }];
        if across < corner {
            operands.swap(0, 1);
        }
        let last = dimension + 1 == self.cube.dimensions();
        let target = if last { builder.output(extent) } else { self.partial(extent.count) };
        builder.reduce(self.lane, &operands, target, last);
        builder.release(self.edges, peer);
        Operand { span: target, fresh: None }
    }

    fn partial(self, count: u64) -> Span {
        Span { region: Region::Scratch, offset: self.partial, count, form: Form::Accumulator }
    }
}

/// all_reduce in rank order: untouched inputs along the edges.
///
/// The box of a rank is a table with a row for every rank's input, the same everywhere: what a face
/// of the cube holds is a run of rows, and goes from table to table in one message.
fn fold_in_the_end(builder: &mut Builder<'_>) {
    let context = builder.context();
    let ranks = u64::from(context.ranks());
    let cube = Cube::new(context.ranks());
    let size = |piece: u64| PortSize {
        boxes: 1,
        slot_bytes: context.element_bytes(piece * ranks),
        stage_bytes: 0,
        slots: context.tuning.slots,
    };
    let message = context.tuning.slot_bytes / u64::from(cube.crowd(cube.corners() / 2));
    let most = longest(context).min(context.values(message, Form::Element));
    let piece = fitting(context, most, |piece| {
        size(piece).bytes() + result_size(context, cube, piece).bytes()
    });
    for lane in 0..context.tuning.lanes {
        let table = Table {
            cube,
            lane: lane as usize,
            rows: builder.port(lane as usize, size(piece)),
            results: builder.port(lane as usize, result_size(context, cube, piece)),
        };
        for (index, extent) in (0..).zip(part(context, lane).pieces(piece)) {
            table.all_reduce(builder, index, extent);
        }
    }
}

#[derive(Clone, Copy)]
struct Table {
    cube: Cube,
    lane: usize,
    rows: Port,
    results: Port,
}

impl Table {
    fn all_reduce(self, builder: &mut Builder<'_>, index: u64, extent: Extent) {
        let context = builder.context();
        let (rank, ranks, data_type) = (context.rank, context.ranks(), context.problem.data_type);
        let corner = self.cube.corner(rank);
        let head = self.cube.head(corner);
        let row = |of: Rank| Inbox {
            index: 0,
            skip: context.element_bytes(u64::from(of) * extent.count),
        };
        if rank != head {
            builder.send(self.rows, head, row(rank), builder.input(extent));
            builder.receive_into(self.results, head, 0, extent);
            return;
        }
        let whole =
            builder.slot(self.rows, 0, index, extent.count * u64::from(ranks), Form::Element);
        let rows = |of: Range<Rank>| {
            let start = u64::from(of.start) * extent.count;
            whole.slice(start, of.len() as u64 * extent.count, data_type)
        };
        builder.copy(self.lane, builder.input(extent), rows(rank..rank + 1));
        if let Some(guest) = self.cube.guest(corner) {
            builder.receive(self.rows, guest, row(guest), extent.count, Form::Element);
        }
        for dimension in 0..self.cube.dimensions() {
            let peer = self.cube.head(corner ^ (1 << dimension));
            let mine = self.cube.members(face(corner, dimension));
            let theirs = self.cube.members(face(corner ^ (1 << dimension), dimension));
            builder.send(self.rows, peer, row(mine.start), rows(mine));
            let count = theirs.len() as u64 * extent.count;
            builder.receive(self.rows, peer, row(theirs.start), count, Form::Element);
        }
        let operands: Vec<Operand> =
            (0..ranks).map(|of| Operand { span: rows(of..of + 1), fresh: Some(of) }).collect();
        builder.reduce(self.lane, &operands, builder.output(extent), true);
        let edges = (0..self.cube.dimensions()).map(|d| self.cube.head(corner ^ (1 << d)));
        for peer in edges.chain(self.cube.guest(corner)) {
            builder.release(self.rows, peer);
        }
        if let Some(guest) = self.cube.guest(corner) {
            let result = builder.output(extent);
            builder.send_into(self.results, guest, 0, result, extent.start);
        }
    }
}

/// The corners whose values `corner` holds before it crosses `dimension`.
fn face(corner: u32, dimension: u32) -> Range<u32> {
    let first = corner >> dimension << dimension;
    first..first + (1 << dimension)
}

/// all_gather: blocks along the edges, from output to output.
pub(super) fn all_gather(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank, ranks) = (context.problem, context.rank, context.ranks());
    let cube = Cube::new(ranks);
    let corner = cube.corner(rank);
    let head = cube.head(corner);
    // A box for each dimension and one for a corner's other rank.
    let visit = cube.dimensions();
    let size = |piece: u64| PortSize {
        boxes: visit + cube.guests().min(1),
        slot_bytes: context.element_bytes(piece),
        stage_bytes: 0,
        slots: context.tuning.slots,
    };
    let most = context.values(context.tuning.slot_bytes, Form::Element);
    let piece = fitting(context, most.min(problem.total()), |piece| size(piece).bytes());
    for lane in 0..context.tuning.lanes {
        let port = builder.port(lane as usize, size(piece));
        let rounds = Rounds::new(context, lane, u64::MAX, |of| problem.block(of));
        let held = |of: Range<Rank>| joined(of.map(|of| rounds.cut(of, 0)));
        let all_but = |of: Rank| [held(0..of), held(of + 1..ranks)].concat();
        let mine = rounds.cut(rank, 0);
        let source = Extent::new(mine.start - problem.block(rank).start, mine.count);
        builder.copy(lane as usize, builder.input(source), builder.output(mine));
        if rank != head {
            Flow::new(head, visit, held(rank..rank + 1)).send(builder, port);
            Flow::new(head, visit, all_but(rank)).receive(builder, port);
            continue;
        }
        if let Some(guest) = cube.guest(corner) {
            Flow::new(guest, visit, held(guest..guest + 1)).receive(builder, port);
        }
        for dimension in 0..cube.dimensions() {
            let across = corner ^ (1 << dimension);
            let flow = |face| Flow::new(cube.head(across), dimension, held(cube.members(face)));
            let (sent, received) = (flow(face(corner, dimension)), flow(face(across, dimension)));
            exchange(builder, port, &sent, &received);
        }
        if let Some(guest) = cube.guest(corner) {
            Flow::new(guest, visit, all_but(guest)).send(builder, port);
        }
    }
}
