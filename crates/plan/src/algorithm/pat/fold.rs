//! The reduce_scatter half: from near to far, each rank passes on what it has for others.
//!
//! What rank `r` has for the owner `r + away` leaves it in the step whose distance is the lowest bit
//! of `away`; until then it waits in the store, beside all that leaves in the same step, so that
//! a message is one run of memory.

use super::{Cutting, distances, messages};
use crate::build::{Builder, Context, Port};
use crate::plan::{Operand, Region, Span};
use crate::problem::Extent;
use crate::types::{Form, Level, Rank};

/// Values on their way: those of the rank `away + beyond` before the owner (or, folded, of all from
/// `away` on), at the rank `away` before it.
#[derive(Clone, Copy)]
struct Cell {
    away: Rank,
    beyond: Rank,
    count: u64,
}

/// Where values wait for their step.
pub(super) struct Store {
    ranks: Rank,
    level: Level,
    /// First byte of what leaves in each step, and of what stays.
    bases: Vec<u64>,
}

impl Store {
    /// Values of a cell of which all fit into `room`.
    pub(super) fn piece(context: Context<'_>, room: u64) -> u64 {
        let ranks = context.ranks();
        let cells: u64 =
            (0..ranks).map(|away| u64::from(held(context.problem.level, ranks, away))).sum();
        // Every step's cells begin at a cache line of their own.
        let lines = distances(ranks).count() as u64 + 1;
        let form = match context.problem.level {
            Level::Run => Form::Accumulator,
            Level::Shape => Form::Element,
        };
        context.values(room.saturating_sub(64 * lines) / cells, form)
    }

    fn new(builder: &mut Builder<'_>, context: Context<'_>, piece: u64) -> Self {
        let (ranks, level) = (context.ranks(), context.problem.level);
        let steps = distances(ranks).count();
        let mut cells = vec![0; steps + 1];
        for away in 0..ranks {
            cells[leaves(away, steps)] += u64::from(held(level, ranks, away));
        }
        let mut store = Self { ranks, level, bases: Vec::new() };
        for (step, cells) in cells.into_iter().enumerate() {
            let size = store.form(step).size(context.problem.data_type) as u64;
            store.bases.push(builder.private(cells * piece * size));
        }
        store
    }

    fn steps(&self) -> usize {
        self.bases.len() - 1
    }

    fn form(&self, step: usize) -> Form {
        match self.level {
            Level::Run if step > 0 => Form::Accumulator,
            _ => Form::Element,
        }
    }

    fn held(&self, away: Rank) -> Rank {
        held(self.level, self.ranks, away)
    }

    /// What leaves `sender` in the step of `distance`, in the order in which it stands there.
    fn leaving(&self, sender: Rank, distance: Rank, cut: &dyn Fn(Rank) -> Extent) -> Vec<Cell> {
        let mut cells = Vec::new();
        for away in (distance..self.ranks).step_by(2 * distance as usize) {
            let count = cut(sender + away).count;
            cells.extend((0..self.held(away)).map(|beyond| Cell { away, beyond, count }));
        }
        cells
    }

    /// Where the cells for each owner begin among those of their step, in values.
    fn starts(&self, rank: Rank, cut: &dyn Fn(Rank) -> Extent) -> Vec<u64> {
        let mut next = vec![0; self.bases.len()];
        (0..self.ranks)
            .map(|away| {
                let next = &mut next[leaves(away, self.steps())];
                let start = *next;
                *next += u64::from(self.held(away)) * cut(rank + away).count;
                start
            })
            .collect()
    }
}

/// The step in which values leave for an owner `away`; the last for those that stay.
fn leaves(away: Rank, steps: usize) -> usize {
    (away.trailing_zeros() as usize).min(steps)
}

/// Cells for an owner `away` when they leave: one partial result, or the values of every rank on the
/// branch.
fn held(level: Level, ranks: Rank, away: Rank) -> Rank {
    match (level, away) {
        (Level::Run, _) => 1,
        (Level::Shape, 0) => ranks,
        (Level::Shape, _) => (1 << away.trailing_zeros()).min(ranks - away),
    }
}

/// Folds every owner's block of all inputs at the owner.
pub(super) struct Fold {
    port: Port,
    lane: usize,
    message: u64,
    store: Store,
}

impl Fold {
    pub(super) fn new(
        builder: &mut Builder<'_>,
        context: Context<'_>,
        lane: usize,
        cutting: Cutting,
    ) -> Self {
        Self {
            port: builder.port(lane, cutting.port),
            lane,
            message: cutting.message,
            store: Store::new(builder, context, cutting.piece),
        }
    }

    /// One round; the result goes to `target` of the output.
    pub(super) fn run(
        &self,
        builder: &mut Builder<'_>,
        cut: &dyn Fn(Rank) -> Extent,
        target: Extent,
    ) {
        let (rank, ranks) = (builder.context().rank, builder.context().ranks());
        let round = Round { fold: self, cut, starts: self.store.starts(rank, cut), target };
        for away in 1..ranks {
            round.fill(builder, away);
        }
        for (inbox, distance) in distances(ranks) {
            let next = (rank + distance) % ranks;
            let previous = (rank + ranks - distance) % ranks;
            let list = |sender: Rank| {
                let cells = self.store.leaving(sender, distance, cut);
                messages(cells, self.message, |cell: &Cell| cell.count)
            };
            let (sent, received) = (list(rank), list(previous));
            // One out, one in: nobody fills a neighbour's slots while its own are full.
            for index in 0..sent.len().max(received.len()) {
                if let Some(cells) = sent.get(index) {
                    let source = Span { count: total(cells), ..round.place(builder, cells[0]) };
                    builder.send(self.port, next, inbox, source);
                }
                if let Some(cells) = received.get(index) {
                    round.receive(builder, (previous, inbox), distance, cells);
                }
            }
        }
        if self.store.level == Level::Shape {
            round.fold_in_order(builder);
        }
    }
}

fn total(cells: &[Cell]) -> u64 {
    cells.iter().map(|cell| cell.count).sum()
}

struct Round<'r> {
    fold: &'r Fold,
    cut: &'r dyn Fn(Rank) -> Extent,
    starts: Vec<u64>,
    target: Extent,
}

impl Round<'_> {
    /// Where a cell stands in this rank's store.
    fn place(&self, builder: &Builder<'_>, cell: Cell) -> Span {
        let store = &self.fold.store;
        let step = leaves(cell.away, store.steps());
        let form = store.form(step);
        let size = form.size(builder.context().problem.data_type) as u64;
        let start = self.starts[cell.away as usize] + u64::from(cell.beyond) * cell.count;
        Span {
            region: Region::Scratch,
            offset: store.bases[step] + start * size,
            count: cell.count,
            form,
        }
    }

    /// This rank's own values for the owner `away`, where they wait as they are. Others are folded
    /// with the first that come.
    fn fill(&self, builder: &mut Builder<'_>, away: Rank) {
        let (rank, ranks) = (builder.context().rank, builder.context().ranks());
        let extent = (self.cut)(rank + away);
        let cell = Cell { away, beyond: 0, count: extent.count };
        let target = self.place(builder, cell);
        if target.form == Form::Element {
            builder.copy(self.fold.lane, builder.input(extent), target);
        } else if away + 1 == ranks {
            let own = builder.own(extent);
            builder.reduce(self.fold.lane, &[own], target, false);
        }
    }

    /// One message of the rank `distance` before this one.
    fn receive(
        &self,
        builder: &mut Builder<'_>,
        (peer, inbox): (Rank, u32),
        distance: Rank,
        cells: &[Cell],
    ) {
        let store = &self.fold.store;
        let data_type = builder.context().problem.data_type;
        let form = store.form(leaves(distance, store.steps()));
        let message = builder.receive(self.fold.port, peer, inbox, total(cells), form);
        let mut start = 0;
        for cell in cells {
            let span = message.slice(start, cell.count, data_type);
            start += cell.count;
            let away = cell.away - distance;
            match store.level {
                Level::Run => self.absorb(builder, peer, (away, distance), span),
                Level::Shape => {
                    let kept = Cell { away, beyond: cell.beyond + distance, count: cell.count };
                    builder.copy(self.fold.lane, span, self.place(builder, kept));
                }
            }
        }
        builder.release(self.fold.port, peer);
    }

    /// Folds what came for the owner `away`: with this rank's own values if it is the first, else
    /// with what is there. The farthest that comes for this rank itself is the last.
    fn absorb(
        &self,
        builder: &mut Builder<'_>,
        peer: Rank,
        (away, distance): (Rank, Rank),
        span: Span,
    ) {
        let (rank, ranks) = (builder.context().rank, builder.context().ranks());
        let cell = Cell { away, beyond: 0, count: span.count };
        let partial = self.place(builder, cell);
        let operands = if distance == 1 {
            let fresh = Some(peer);
            [Operand { span, fresh }, builder.own((self.cut)(rank + away))]
        } else {
            [partial, span].map(|span| Operand { span, fresh: None })
        };
        if away == 0 && 2 * distance >= ranks {
            let output = builder.output(self.target);
            builder.reduce(self.fold.lane, &operands, output, true);
        } else {
            builder.reduce(self.fold.lane, &operands, partial, false);
        }
    }

    /// All ranks' values of this rank's block, which have come as they were.
    fn fold_in_order(&self, builder: &mut Builder<'_>) {
        let (rank, ranks) = (builder.context().rank, builder.context().ranks());
        let mine = (self.cut)(rank);
        let operands: Vec<Operand> = (0..ranks)
            .map(|source| {
                if source == rank {
                    return builder.own(mine);
                }
                let cell =
                    Cell { away: 0, beyond: (rank + ranks - source) % ranks, count: mine.count };
                Operand { span: self.place(builder, cell), fresh: Some(source) }
            })
            .collect();
        builder.reduce(self.fold.lane, &operands, builder.output(self.target), true);
    }
}
