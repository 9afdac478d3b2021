//! A block for each rank: all_gather and reduce_scatter.
//!
//! A host may have more ranks than rails: they take *turns*. In turn `t`, rail `r` carries the block
//! of the rank at place `t * rails + r` of each host, its passenger there.

use super::super::Rounds;
use super::{Layout, Show, piece};
use crate::build::{Builder, Context, Lanes, Port, PortSize};
use crate::plan::Span;
use crate::problem::Extent;
use crate::types::{Form, Level, Rank};

impl Layout {
    fn turns(&self) -> usize {
        let most = self.hosts.iter().map(Vec::len).max().unwrap_or(0);
        most.div_ceil(self.rails)
    }

    /// Whose block `rail` carries in `turn` for `host`.
    fn passenger(&self, host: usize, rail: usize, turn: usize) -> Option<Rank> {
        self.hosts[host].get(turn * self.rails + rail).copied()
    }

    /// The host `distance` before this one, around.
    fn host_before(&self, distance: usize) -> usize {
        let hosts = self.hosts.len();
        (self.host + 2 * hosts - distance) % hosts
    }

    /// The same rail of the host after this one, and of the one before.
    fn next_and_previous(&self, rail: usize) -> (Rank, Rank) {
        let next = (self.host + 1) % self.hosts.len();
        (self.hosts[next][rail], self.hosts[self.host_before(1)][rail])
    }
}

fn port_size(context: Context<'_>, bytes: u64, columns: usize) -> PortSize {
    PortSize {
        boxes: u32::from(columns == 0),
        slot_bytes: if columns == 0 { bytes } else { 0 },
        stage_bytes: bytes * columns as u64,
        slots: context.tuning.slots,
    }
}

/// Every rank shows its block to its host; rails pass blocks around the ring of hosts and show
/// those that come in.
pub(super) fn all_gather(builder: &mut Builder<'_>, context: Context<'_>, layout: &Layout) {
    let (problem, rank) = (context.problem, context.rank);
    let piece = piece(context, 2);
    let stage = port_size(context, context.element_bytes(piece), 1);
    for lane in 0..context.tuning.lanes {
        let lanes = Lanes { outgoing: 2 * lane as usize, incoming: 2 * lane as usize + 1 };
        let gather = Gather {
            layout,
            show: builder.port(lanes.outgoing, stage),
            hop: builder.port(lanes.outgoing, port_size(context, 0, 0)),
            give: builder.port(lanes, stage),
            lanes,
            neighbours: layout.neighbours(),
        };
        let rounds = Rounds::new(context, lane, piece, |of| problem.block(of));
        for round in 0..rounds.count() {
            let cut = |of: Rank| rounds.cut(of, round);
            let start = cut(rank).start - problem.block(rank).start;
            gather.inside(builder, &cut, Extent::new(start, cut(rank).count));
            for turn in 0..layout.turns() {
                gather.around(builder, &cut, turn);
                gather.look(builder, &cut, turn);
            }
        }
    }
}

struct Gather<'l> {
    layout: &'l Layout,
    show: Port,
    hop: Port,
    give: Port,
    lanes: Lanes,
    neighbours: Vec<Rank>,
}

impl Gather<'_> {
    /// This host's blocks to this host's ranks.
    fn inside(&self, builder: &mut Builder<'_>, cut: &dyn Fn(Rank) -> Extent, input: Extent) {
        let lane = self.lanes.outgoing;
        let mine = cut(builder.context().rank);
        let source = builder.input(input);
        self.publish(builder, self.show, source);
        builder.copy(lane, source, builder.output(mine));
        for peer in &self.neighbours {
            self.observe(builder, (self.show, lane), *peer, cut(*peer));
        }
    }

    /// The blocks of one turn around the ring of hosts, straight into the outputs of rails.
    fn around(&self, builder: &mut Builder<'_>, cut: &dyn Fn(Rank) -> Extent, turn: usize) {
        let Some(rail) = self.layout.rail() else {
            return;
        };
        let (next, previous) = self.layout.next_and_previous(rail);
        let carried = |distance: usize| {
            let host = self.layout.host_before(distance);
            self.layout.passenger(host, rail, turn).map(cut)
        };
        for step in 0..self.layout.hosts.len() - 1 {
            if let Some(sent) = carried(step) {
                builder.deliver(self.hop, next, builder.output(sent), sent.start);
            }
            if let Some(received) = carried(step + 1) {
                builder.accept(self.hop, previous, received.count);
                self.publish(builder, self.give, builder.output(received));
            }
        }
    }

    /// What the other rails of this host received.
    fn look(&self, builder: &mut Builder<'_>, cut: &dyn Fn(Rank) -> Extent, turn: usize) {
        for step in 1..self.layout.hosts.len() {
            let host = self.layout.host_before(step);
            for (rail, peer) in self.layout.other_rails() {
                if let Some(source) = self.layout.passenger(host, rail, turn) {
                    let port = (self.give, self.lanes.incoming);
                    self.observe(builder, port, peer, cut(source));
                }
            }
        }
    }

    fn publish(&self, builder: &mut Builder<'_>, port: Port, source: Span) {
        if source.count > 0 && !self.neighbours.is_empty() {
            let stage = builder.stage(port, &self.neighbours, source.count, Form::Element);
            builder.copy(self.lanes.outgoing, source, stage);
            builder.announce(port, &self.neighbours);
        }
    }

    fn observe(
        &self,
        builder: &mut Builder<'_>,
        (port, lane): (Port, usize),
        peer: Rank,
        extent: Extent,
    ) {
        if extent.count > 0 {
            let part = Extent::new(0, extent.count);
            let span = builder.observe(port, peer, 0, part, Form::Element);
            builder.copy(lane, span, builder.output(extent));
            builder.release(port, peer);
        }
    }
}

/// Blocks go from host to host, folded on the way. The last host is the owner's, so that the
/// hosts' ways together are a ring; or, in rank order, the last of all, which hands the
/// result to the owner.
pub(super) fn reduce_scatter(builder: &mut Builder<'_>, mut context: Context<'_>, layout: &Layout) {
    let problem = context.problem;
    // With one slot each, a ring in which everybody holds a message cannot move.
    context.tuning.slots = context.tuning.slots.max(2);
    let piece = piece(context, layout.rails + 2);
    let partial = piece * Form::Accumulator.size(problem.data_type) as u64;
    let element = context.element_bytes(piece);
    for lane in 0..context.tuning.lanes {
        let lanes = Lanes { outgoing: 2 * lane as usize, incoming: 2 * lane as usize + 1 };
        let scatter = Scatter {
            context,
            layout,
            show: Show {
                layout,
                port: builder.port(lanes.outgoing, port_size(context, element, layout.rails)),
                lane: lanes.outgoing,
                piece,
            },
            up: builder.port(lanes.outgoing, port_size(context, partial, 0)),
            hand: builder.port(lanes, port_size(context, element, 0)),
            aside: builder.private(partial),
            ordered: problem.level == Level::Shape,
        };
        let rounds = Rounds::new(context, lane, piece, |of| problem.block(of));
        for round in 0..rounds.count() {
            let cut = |of: Rank| rounds.cut(of, round);
            for turn in 0..layout.turns() {
                for step in 0..layout.hosts.len() {
                    scatter.pass(builder, &cut, turn, step);
                }
            }
        }
    }
}

struct Scatter<'a> {
    context: Context<'a>,
    layout: &'a Layout,
    show: Show<'a>,
    up: Port,
    hand: Port,
    aside: u64,
    ordered: bool,
}

impl Scatter<'_> {
    /// One host's blocks of one turn, past this host.
    fn pass(
        &self,
        builder: &mut Builder<'_>,
        cut: &dyn Fn(Rank) -> Extent,
        turn: usize,
        step: usize,
    ) {
        let (layout, last) = (self.layout, self.layout.hosts.len() - 1);
        // The owners' host, and how many hosts the blocks have passed before this one.
        let (owners, position) = match self.ordered {
            true => (step, layout.host),
            false => (layout.host_before(step + 1), step),
        };
        let share =
            |rail: usize| layout.passenger(owners, rail, turn).map_or(Extent::new(0, 0), cut);
        self.show.show(builder, &share);
        if let Some(rail) = layout.rail() {
            let mine = share(rail);
            let (next, previous) = layout.next_and_previous(rail);
            let partial = (position > 0)
                .then(|| builder.receive(self.up, previous, 0, mine.count, Form::Accumulator));
            let operands = self.show.operands(builder, partial, mine);
            let owner = layout.passenger(owners, rail, turn);
            if position < last {
                let shape = (mine.count, Form::Accumulator);
                builder.reduce_send(self.up, (next, 0), &operands, shape, self.aside);
            } else if owner == Some(self.context.rank) {
                let target = builder.output(self.own(mine));
                builder.reduce(self.show.lane, &operands, target, true);
            } else if let Some(owner) = owner {
                let shape = (mine.count, Form::Element);
                builder.reduce_send(self.hand, (owner, 0), &operands, shape, self.aside);
            }
            self.show.release(builder);
            if position > 0 {
                builder.release(self.up, previous);
            }
        }
        if owners == layout.host && turn == layout.index / layout.rails {
            let host = if self.ordered { last } else { owners };
            let maker = layout.hosts[host][layout.index % layout.rails];
            if maker != self.context.rank {
                let mine = cut(self.context.rank);
                builder.receive_pieces(self.hand, maker, 0, self.own(mine));
            }
        }
    }

    /// Where a cut of this rank's block belongs in its output.
    fn own(&self, cut: Extent) -> Extent {
        let block = self.context.problem.block(self.context.rank);
        Extent::new(cut.start - block.start, cut.count)
    }
}
