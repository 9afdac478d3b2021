//! Hierarchical: shared memory inside a host, the network between hosts.
//!
//! ```text
//!            rail 0   rail 1
//! host 0       0 ────── 1 ····· 2      inside: stages that all ranks of the host read
//!              │        │
//! host 1       3 ────── 4              between: each rail with the same rail of the next host
//!              │        │
//! host 2       5 ────── 6 ····· 7
//! ```
//!
//! As many ranks of each host as the smallest host has are *rails*: they talk to other hosts, each
//! for its share of the data, so that every byte crosses between two hosts once. A host's
//! ranks show their values to its rails, and the rails show what came from other hosts to
//! the host's ranks. Between hosts values go along a chain or around a ring of hosts, in pieces,
//! and what goes out and what comes in have lanes of their own.
//!
//! A rail folds the partial result of the hosts before with its own host's values in rank order.
//! Where hosts hold consecutive ranks that is rank order all along, as level `shape` asks.

mod blocks;
mod whole;

use crate::build::{Builder, Context, Port};
use crate::plan::{FLAGS_MAX, LANES_MAX, Operand, Span};
use crate::problem::{Extent, Problem};
use crate::types::{Collective, Form, Level, Rank};

pub(super) const COLLECTIVES: &[Collective] = &[
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// Most lanes of the tuning that are used: each becomes two lanes with up to four ports.
const LANES: u32 = 16;
const _: () = assert!(LANES as usize * 2 <= LANES_MAX && LANES as usize * 8 <= FLAGS_MAX);

/// Whether there are two layers, and values that can be folded in the promised order.
pub(super) fn supports(problem: &Problem, hosts: &[u32]) -> Result<(), String> {
    let groups = group(hosts);
    if groups.len() < 2 {
        return Err("nothing to layer: all ranks are on one host".to_owned());
    }
    if groups.len() == hosts.len() {
        return Err("nothing to layer: no host has two ranks".to_owned());
    }
    let ordered = problem.collective.reduces() && problem.level == Level::Shape;
    match groups.iter().find(|host| !consecutive(host)) {
        Some(host) if ordered => Err(format!(
            "level shape folds in rank order, but ranks {host:?} of one host are not consecutive"
        )),
        _ => Ok(()),
    }
}

pub(super) fn build(builder: &mut Builder<'_>) {
    let mut context = builder.context();
    context.tuning.lanes = context.tuning.lanes.min(LANES);
    let layout = Layout::new(context);
    match context.problem.collective {
        Collective::AllGather => blocks::all_gather(builder, context, &layout),
        Collective::ReduceScatter => blocks::reduce_scatter(builder, context, &layout),
        _ => whole::build(builder, context, &layout),
    }
}

/// The ranks of each host, in order; hosts in the order of their first ranks.
fn group(hosts: &[u32]) -> Vec<Vec<Rank>> {
    let mut index = std::collections::BTreeMap::new();
    let mut groups: Vec<Vec<Rank>> = Vec::new();
    for (rank, host) in (0..).zip(hosts) {
        let at = *index.entry(host).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Vec::new());
        }
        groups[at].push(rank);
    }
    groups
}

fn consecutive(ranks: &[Rank]) -> bool {
    ranks.windows(2).all(|pair| pair[0] + 1 == pair[1])
}

/// Values per message: `columns` of them stand in scratch for every slot, and one more aside.
fn piece(context: Context<'_>, columns: usize) -> u64 {
    let slots = u64::from(context.tuning.slots);
    let room = context.tuning.scratch_bytes
        / u64::from(context.tuning.lanes)
        / (slots * columns as u64 + 1);
    context.values(room.min(context.tuning.slot_bytes), Form::Accumulator)
}

/// Who stands where.
struct Layout {
    /// The ranks of each host; a root is the first of its host.
    hosts: Vec<Vec<Rank>>,
    /// How many of each are rails: the first ones.
    rails: usize,
    /// This rank's host.
    host: usize,
    /// This rank's place on its host.
    index: usize,
}

impl Layout {
    fn new(context: Context<'_>) -> Self {
        let mut hosts = group(context.hosts);
        let root = context.problem.root;
        if context.problem.collective.has_root() {
            for host in &mut hosts {
                host.sort_unstable_by_key(|rank| (*rank != root, *rank));
            }
        }
        let rails = hosts.iter().map(Vec::len).min().unwrap_or(0);
        let mut layout = Self { hosts, rails, host: 0, index: 0 };
        (layout.host, layout.index) = layout.place(context.rank);
        layout
    }

    /// The host of a rank, and its index there.
    fn place(&self, rank: Rank) -> (usize, usize) {
        let on = |host: &Vec<Rank>| host.iter().position(|r| *r == rank);
        (0..)
            .zip(&self.hosts)
            .find_map(|(host, ranks)| Some((host, on(ranks)?)))
            .expect("every rank is on a host")
    }

    /// The rail that this rank is.
    fn rail(&self) -> Option<usize> {
        (self.index < self.rails).then_some(self.index)
    }

    /// The ranks of this host.
    fn locals(&self) -> &[Rank] {
        &self.hosts[self.host]
    }

    /// The other ranks of this host.
    fn neighbours(&self) -> Vec<Rank> {
        let (before, after) = self.locals().split_at(self.index);
        after[1..].iter().chain(before).copied().collect()
    }

    /// The other rails of this host, with their numbers, the following first.
    fn other_rails(&self) -> impl Iterator<Item = (usize, Rank)> {
        let count = self.rails;
        (0..count)
            .map(move |distance| (self.index + 1 + distance) % count)
            .filter(|rail| *rail != self.index)
            .map(|rail| (rail, self.locals()[rail]))
    }
}

/// The first layer of a reduction (or of a broadcast, at its root): what the ranks of a host show
/// to its rails, a column for each rail.
#[derive(Clone, Copy)]
struct Show<'l> {
    layout: &'l Layout,
    port: Port,
    lane: usize,
    piece: u64,
}

impl Show<'_> {
    /// Shows `cut(rail)` of the input to each rail.
    fn show(self, builder: &mut Builder<'_>, cut: &dyn Fn(usize) -> Extent) {
        let readers: Vec<Rank> = self.layout.other_rails().map(|(_, rank)| rank).collect();
        if readers.is_empty() {
            return;
        }
        let data_type = builder.context().problem.data_type;
        let values = self.piece * self.layout.rails as u64;
        let stage = builder.stage(self.port, &readers, values, Form::Element);
        for (rail, _) in self.layout.other_rails() {
            let source = builder.input(cut(rail));
            let target = stage.slice(rail as u64 * self.piece, source.count, data_type);
            builder.copy(self.lane, source, target);
        }
        builder.announce(self.port, &readers);
    }

    /// Where the values stand that `source` shows to this rail.
    fn look(self, builder: &mut Builder<'_>, source: Rank, count: u64) -> Span {
        let part = Extent::new(self.layout.index as u64 * self.piece, count);
        builder.observe(self.port, source, 0, part, Form::Element)
    }

    /// What this rail folds: the partial result of the hosts before, and its host's values in rank
    /// order. Followed by [`Show::release`].
    fn operands(
        self,
        builder: &mut Builder<'_>,
        partial: Option<Span>,
        mine: Extent,
    ) -> Vec<Operand> {
        let rank = builder.context().rank;
        let mut sources = self.layout.locals().to_vec();
        sources.sort_unstable();
        let mut operands: Vec<Operand> =
            partial.map(|span| Operand { span, fresh: None }).into_iter().collect();
        for source in sources {
            operands.push(if source == rank {
                builder.own(mine)
            } else {
                let span = self.look(builder, source, mine.count);
                Operand { span, fresh: Some(source) }
            });
        }
        operands
    }

    fn release(self, builder: &mut Builder<'_>) {
        for source in self.layout.neighbours() {
            builder.release(self.port, source);
        }
    }
}
