//! One block for all: all_reduce, reduce and broadcast.
//!
//! The block is cut into a slice for each rail. Slices climb from host to host, folded on the
//! way, until the last host of the climb finishes them; then they fall from host to host
//! to where they are wanted. A broadcast only falls, from the root's host.

use super::super::Rounds;
use super::{Layout, Show, piece};
use crate::build::{Builder, Context, Lanes, Port, PortSize};
use crate::plan::{Region, Span};
use crate::problem::Extent;
use crate::types::{Collective, Form, Level, Rank};

pub(super) fn build(builder: &mut Builder<'_>, context: Context<'_>, layout: &Layout) {
    let problem = context.problem;
    let route = Route::new(context, layout);
    let piece = piece(context, layout.rails + 3);
    let whole = Extent::new(0, problem.count());
    let share = |rail: Rank| match rail as usize {
        slice if slice < layout.rails => {
            whole.part(layout.rails as u64, slice as u64, context.grain())
        }
        _ => Extent::new(0, 0),
    };
    for lane in 0..context.tuning.lanes {
        let rounds = Rounds::new(context, lane, piece, share);
        let strand = Strand::new(builder, context, layout, (&route, lane as usize, piece));
        for round in 0..rounds.count() {
            let cut = |rail: usize| {
                let rail = Rank::try_from(rail).expect("no more rails than ranks");
                rounds.cut(rail, round)
            };
            match problem.collective {
                Collective::Broadcast => strand.begin(builder, &cut),
                _ => strand.climb(builder, &cut),
            }
            strand.fall(builder, &cut);
        }
    }
}

/// The hosts before and after a host on a path.
type Between = (Option<usize>, Option<usize>);

/// The hosts a slice visits.
struct Route {
    climb: Vec<usize>,
    fall: Vec<usize>,
}

impl Route {
    fn new(context: Context<'_>, layout: &Layout) -> Self {
        let problem = context.problem;
        let hosts = layout.hosts.len();
        let (root, _) = layout.place(problem.root);
        let from = |first: usize| (first..hosts).chain(0..first).collect::<Vec<_>>();
        match problem.collective {
            Collective::Broadcast => Self { climb: Vec::new(), fall: from(root) },
            // Without an order to keep, the climb ends where the root is.
            Collective::Reduce if problem.level == Level::Run || root + 1 == hosts => {
                Self { climb: from((root + 1) % hosts), fall: vec![root] }
            }
            Collective::Reduce => Self { climb: from(0), fall: vec![hosts - 1, root] },
            _ => Self { climb: from(0), fall: (0..hosts).rev().collect() },
        }
    }
}

/// Where `host` stands on `path`, if it does.
fn between(path: &[usize], host: usize) -> Option<Between> {
    let at = path.iter().position(|h| *h == host)?;
    let before = at.checked_sub(1).map(|before| path[before]);
    Some((before, path.get(at + 1).copied()))
}

/// One lane's way up and down, as one rank sees it.
struct Strand<'a> {
    context: Context<'a>,
    layout: &'a Layout,
    show: Show<'a>,
    up: Port,
    down: Port,
    give: Port,
    lanes: Lanes,
    climb: Option<Between>,
    fall: Option<Between>,
    /// Who reads this rail's results on its host.
    readers: Vec<Rank>,
    /// Room for a partial result.
    aside: u64,
}

impl<'a> Strand<'a> {
    fn new(
        builder: &mut Builder<'_>,
        context: Context<'a>,
        layout: &'a Layout,
        (route, lane, piece): (&Route, usize, u64),
    ) -> Self {
        let lanes = Lanes { outgoing: 2 * lane, incoming: 2 * lane + 1 };
        let fall = between(&route.fall, layout.host);
        // Where the fall begins, results go out in the lane that makes them.
        let begins = matches!(fall, Some((None, _)));
        let falling = Lanes {
            outgoing: if begins { lanes.outgoing } else { lanes.incoming },
            incoming: lanes.incoming,
        };
        let size = |boxes: u64, form: Form, columns: usize| {
            let bytes = piece * form.size(context.problem.data_type) as u64;
            PortSize {
                boxes: u32::from(boxes > 0),
                slot_bytes: bytes * boxes,
                stage_bytes: bytes * columns as u64,
                slots: context.tuning.slots,
            }
        };
        let show = Show {
            layout,
            port: builder.port(lanes.outgoing, size(0, Form::Element, layout.rails)),
            lane: lanes.outgoing,
            piece,
        };
        let mut strand = Self {
            context,
            layout,
            show,
            up: builder.port(lanes.outgoing, size(1, Form::Accumulator, 0)),
            down: builder.port(falling, size(1, Form::Element, 0)),
            give: builder.port(falling, size(0, Form::Element, 1)),
            lanes: falling,
            climb: between(&route.climb, layout.host),
            fall,
            readers: layout.neighbours(),
            aside: builder.private(size(1, Form::Accumulator, 0).slot_bytes),
        };
        strand.readers.retain(|rank| reads_results(context, *rank));
        strand
    }

    /// A slice of a reduction on its way up.
    fn climb(&self, builder: &mut Builder<'_>, cut: &dyn Fn(usize) -> Extent) {
        self.show.show(builder, cut);
        let (Some(rail), Some((previous, next))) = (self.layout.rail(), self.climb) else {
            return;
        };
        let mine = cut(rail);
        let previous = previous.map(|host| self.layout.hosts[host][rail]);
        let partial =
            previous.map(|peer| builder.receive(self.up, peer, 0, mine.count, Form::Accumulator));
        let operands = self.show.operands(builder, partial, mine);
        let mut result = None;
        if let Some(host) = next {
            let to = (self.layout.hosts[host][rail], 0);
            let shape = (mine.count, Form::Accumulator);
            builder.reduce_send(self.up, to, &operands, shape, self.aside);
        } else {
            let target = self.target(builder, mine);
            builder.reduce(self.show.lane, &operands, target, true);
            result = Some(target);
        }
        self.show.release(builder);
        if let Some(peer) = previous {
            builder.release(self.up, peer);
        }
        if let Some(result) = result {
            self.hand_on(builder, rail, mine, result);
            if self.has_output() {
                builder.copy(self.show.lane, result, builder.output(mine));
            }
        }
    }

    /// A slice of a broadcast at the root's host.
    fn begin(&self, builder: &mut Builder<'_>, cut: &dyn Fn(usize) -> Extent) {
        let root = self.context.problem.root;
        if !self.layout.locals().contains(&root) {
            return;
        }
        let lane = self.show.lane;
        let is_root = self.context.rank == root;
        if is_root {
            self.show.show(builder, cut);
        }
        if let Some(rail) = self.layout.rail() {
            let mine = cut(rail);
            let source = match is_root {
                true => builder.input(mine),
                false => self.show.look(builder, root, mine.count),
            };
            let result = self.target(builder, mine);
            builder.copy(lane, source, result);
            if !is_root {
                builder.release(self.show.port, root);
            }
            self.hand_on(builder, rail, mine, result);
            let output = builder.output(mine);
            if result != output {
                builder.copy(lane, if is_root { source } else { result }, output);
            }
        }
        if is_root {
            for (rail, _) in self.layout.other_rails() {
                builder.copy(lane, builder.input(cut(rail)), builder.output(cut(rail)));
            }
        }
    }

    /// Finished slices on their way down.
    fn fall(&self, builder: &mut Builder<'_>, cut: &dyn Fn(usize) -> Extent) {
        let Some((previous, _)) = self.fall else {
            return;
        };
        let lane = self.lanes.incoming;
        if let (Some(rail), Some(host)) = (self.layout.rail(), previous) {
            let mine = cut(rail);
            let peer = self.layout.hosts[host][rail];
            let result = if self.has_output() {
                builder.receive_into(self.down, peer, 0, mine);
                let result = self.target(builder, mine);
                builder.copy(lane, builder.output(mine), result);
                result
            } else {
                let source = builder.receive(self.down, peer, 0, mine.count, Form::Element);
                let result = self.target(builder, mine);
                builder.copy(lane, source, result);
                builder.release(self.down, peer);
                result
            };
            self.hand_on(builder, rail, mine, result);
        }
        if reads_results(self.context, self.context.rank) {
            for (rail, peer) in self.layout.other_rails() {
                let theirs = cut(rail);
                let part = Extent::new(0, theirs.count);
                let span = builder.observe(self.give, peer, 0, part, Form::Element);
                builder.copy(lane, span, builder.output(theirs));
                builder.release(self.give, peer);
            }
        }
    }

    /// Where a finished slice stands: in the stage if somebody reads it there, else in the output
    /// if there is one, else aside.
    fn target(&self, builder: &mut Builder<'_>, mine: Extent) -> Span {
        if !self.readers.is_empty() {
            return builder.stage(self.give, &self.readers, mine.count, Form::Element);
        }
        if self.has_output() {
            return builder.output(mine);
        }
        Span { region: Region::Scratch, offset: self.aside, count: mine.count, form: Form::Element }
    }

    /// A finished slice to this host and to the next.
    fn hand_on(&self, builder: &mut Builder<'_>, rail: usize, mine: Extent, result: Span) {
        if let Some((_, Some(host))) = self.fall {
            let peer = self.layout.hosts[host][rail];
            if self.context.problem.output_count(peer) > 0 {
                builder.send_into(self.down, peer, 0, result, mine.start);
            } else {
                builder.send(self.down, peer, 0, result);
            }
        }
        builder.announce(self.give, &self.readers);
    }

    fn has_output(&self) -> bool {
        self.context.problem.output_count(self.context.rank) > 0
    }
}

/// Whether a rank reads the results of its host's rails: whoever has an output, but not the root of
/// a broadcast.
fn reads_results(context: Context<'_>, rank: Rank) -> bool {
    let source = context.problem.collective == Collective::Broadcast;
    context.problem.output_count(rank) > 0 && !(source && rank == context.problem.root)
}
