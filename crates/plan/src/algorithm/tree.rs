//! Double binary tree: two trees over the same ranks, each carries half of the data.
//!
//! ```text
//! 8 ranks      first: 0           second: 0
//! root 0              │                   │
//!                     4                   3
//!                 2       6           1       5
//!               1   3   5   7       7   2   4   6
//! ```
//!
//! The root stands above both. The second tree is the first mirrored or shifted by one, so that who
//! is inside one is a leaf of the other, and everybody moves about the same bytes. Pieces rise
//! and fall in lanes of their own: while one piece falls the next ones rise.
//!
//! Partial results rise, each rank's values folded with those of its two subtrees. That is not
//! rank order: at level `shape` the values rise untouched, those of a subtree as a run of messages
//! in rank order, and the root folds them one after the other.

use crate::build::{Builder, Context, Lanes, Port, PortSize};
use crate::plan::{FLAGS_MAX, LANES_MAX, Operand, Region, Span};
use crate::problem::Extent;
use crate::types::{Collective, Form, Level, Rank};

pub(super) const COLLECTIVES: &[Collective] =
    &[Collective::AllReduce, Collective::Broadcast, Collective::Reduce];

/// Most lanes of the tuning that are used: each becomes two trees with two lanes and two ports.
const LANES: u32 = 16;
const _: () = assert!(LANES as usize * 4 <= LANES_MAX && LANES as usize * 8 <= FLAGS_MAX);

pub(super) fn build(builder: &mut Builder<'_>) {
    let context = builder.context();
    let (problem, rank) = (context.problem, context.rank);
    let rises = problem.collective != Collective::Broadcast;
    let falls = problem.collective != Collective::Reduce;
    let strands = 2 * context.tuning.lanes.min(LANES);
    let piece = piece(context, strands);
    for strand in 0..strands {
        let tree = Tree { ranks: context.ranks(), root: problem.root, second: strand % 2 == 1 };
        let node = tree.node(rank);
        let (rising, falling) = match strand as usize {
            strand if rises && falls => (2 * strand, 2 * strand + 1),
            strand => (strand, strand),
        };
        let size = |boxes, form: Form| PortSize {
            boxes,
            slot_bytes: piece * form.size(problem.data_type) as u64,
            stage_bytes: 0,
            slots: context.tuning.slots,
        };
        let rise = rises.then(|| Rise {
            port: builder.port(rising, size(2, Form::Accumulator)),
            lane: rising,
            partial: builder.private(size(0, Form::Accumulator).slot_bytes),
            order: match problem.level {
                Level::Run => Vec::new(),
                Level::Shape => tree.order(rank, &node),
            },
            node: &node,
        });
        // The root sends results down in the lane that makes them.
        let lanes = Lanes {
            outgoing: if node.parent.is_none() { rising } else { falling },
            incoming: falling,
        };
        let fall = falls.then(|| builder.port(lanes, size(1, Form::Element)));
        let part = Extent::new(0, problem.count()).part(
            u64::from(strands),
            u64::from(strand),
            context.grain(),
        );
        for extent in part.pieces(piece) {
            if let Some(rise) = &rise {
                match problem.level {
                    Level::Run => rise.fold(builder, extent),
                    Level::Shape => rise.forward(builder, extent),
                }
            }
            if let Some(port) = fall {
                fall_down(builder, port, &node, extent);
            }
            if !rises && node.parent.is_none() {
                builder.copy(rising, builder.input(extent), builder.output(extent));
            }
        }
    }
}

/// Values per message: a strand has two boxes up, one down, and room for a partial result.
fn piece(context: Context<'_>, strands: u32) -> u64 {
    let slots = u64::from(context.tuning.slots);
    let room = context.tuning.scratch_bytes / u64::from(strands) / (3 * slots + 1);
    context.values(room.min(context.tuning.slot_bytes), Form::Accumulator)
}

/// A finished piece from the parent to the children.
fn fall_down(builder: &mut Builder<'_>, port: Port, node: &Node, extent: Extent) {
    if let Some(parent) = node.parent {
        builder.receive_into(port, parent.rank, 0, extent);
    }
    let source = match builder.context().problem.collective {
        Collective::Broadcast if node.parent.is_none() => builder.input(extent),
        _ => builder.output(extent),
    };
    for child in &node.children {
        builder.send_into(port, child.rank, 0, source, extent.start);
    }
}

/// A rank's neighbour in a tree.
#[derive(Clone, Copy)]
struct Kin {
    rank: Rank,
    /// The box of the upper of the two for messages of the lower.
    inbox: u32,
    /// Whether it has no children.
    leaf: bool,
}

/// A rank's neighbours in a tree.
struct Node {
    parent: Option<Kin>,
    children: Vec<Kin>,
}

/// One of the two trees. A rank has a *position* in it: the root 0, the others 1 to n - 1 in
/// order, odd ones as leaves.
#[derive(Clone, Copy)]
struct Tree {
    ranks: Rank,
    root: Rank,
    second: bool,
}

impl Tree {
    fn position(self, rank: Rank) -> u32 {
        let distance = (rank + self.ranks - self.root) % self.ranks;
        match (distance, self.second) {
            (0, _) | (_, false) => distance,
            _ if self.ranks % 2 == 1 => self.ranks - distance,
            _ => distance % (self.ranks - 1) + 1,
        }
    }

    fn rank_at(self, position: u32) -> Rank {
        let distance = match (position, self.second) {
            (0, _) | (_, false) => position,
            _ if self.ranks % 2 == 1 => self.ranks - position,
            _ => (position + self.ranks - 3) % (self.ranks - 1) + 1,
        };
        (self.root + distance) % self.ranks
    }

    fn node(self, rank: Rank) -> Node {
        let position = self.position(rank);
        let kin = |of: u32, lower: u32, upper: u32| Kin {
            rank: self.rank_at(of),
            inbox: u32::from(lower > upper),
            leaf: self.children(of).count() == 0,
        };
        Node {
            parent: self.parent(position).map(|up| kin(up, position, up)),
            children: self.children(position).map(|down| kin(down, down, position)).collect(),
        }
    }

    fn parent(self, position: u32) -> Option<u32> {
        let bit = lowest_bit(position)?;
        let left = position ^ bit;
        let up = left | (bit << 1);
        Some(if up < self.ranks { up } else { left })
    }

    fn children(self, position: u32) -> impl Iterator<Item = u32> {
        let reach = lowest_bit(position).unwrap_or_else(|| self.ranks.next_power_of_two()) / 2;
        let left = (position > 0 && reach > 0).then(|| position - reach);
        let right = std::iter::successors(Some(reach), |reach| Some(reach / 2))
            .take_while(|reach| *reach > 0)
            .map(|reach| position + reach)
            .find(|right| *right < self.ranks);
        left.into_iter().chain(right)
    }

    /// The positions of the subtree under `position`, itself included.
    fn subtree(self, position: u32) -> std::ops::Range<u32> {
        match lowest_bit(position) {
            None => 0..self.ranks,
            Some(bit) => position + 1 - bit..(position + bit).min(self.ranks),
        }
    }

    /// The ranks of the subtree under `rank` in rank order, each with the child by way of which its
    /// values come: `None` for the rank itself.
    fn order(self, rank: Rank, node: &Node) -> Vec<(Rank, Option<Kin>)> {
        let mut order = vec![(rank, None)];
        for child in &node.children {
            let below = self.subtree(self.position(child.rank));
            order.extend(below.map(|position| (self.rank_at(position), Some(*child))));
        }
        order.sort_unstable_by_key(|(source, _)| *source);
        order
    }
}

/// The parent of each rank in the first tree and in the second; nothing for the root.
#[must_use]
pub fn parents(ranks: Rank, root: Rank) -> [Vec<Option<Rank>>; 2] {
    [false, true].map(|second| {
        let tree = Tree { ranks, root, second };
        let parent = |rank| Some(tree.rank_at(tree.parent(tree.position(rank))?));
        (0..ranks).map(parent).collect()
    })
}

fn lowest_bit(position: u32) -> Option<u32> {
    (position > 0).then(|| position & position.wrapping_neg())
}

/// The way up.
struct Rise<'n> {
    port: Port,
    lane: usize,
    /// Room for a partial result.
    partial: u64,
    order: Vec<(Rank, Option<Kin>)>,
    node: &'n Node,
}

impl Rise<'_> {
    /// One piece, folded on its way.
    fn fold(&self, builder: &mut Builder<'_>, extent: Extent) {
        let Node { parent, children } = self.node;
        let mut operands = vec![builder.own(extent)];
        for child in children {
            let (form, fresh) = match child.leaf {
                true => (Form::Element, Some(child.rank)),
                false => (Form::Accumulator, None),
            };
            let span = builder.receive(self.port, child.rank, child.inbox, extent.count, form);
            operands.push(Operand { span, fresh });
        }
        match parent {
            None => builder.reduce(self.lane, &operands, builder.output(extent), true),
            Some(up) if children.is_empty() => {
                builder.send(self.port, up.rank, up.inbox, builder.input(extent));
            }
            Some(up) => {
                let shape = (extent.count, Form::Accumulator);
                let to = (up.rank, up.inbox);
                builder.reduce_send(self.port, to, &operands, shape, self.partial);
            }
        }
        for child in children {
            builder.release(self.port, child.rank);
        }
    }

    /// One piece, every rank's values untouched, to the root that folds them in rank order.
    fn forward(&self, builder: &mut Builder<'_>, extent: Extent) {
        let Some(parent) = self.node.parent else {
            return self.fold_in_order(builder, extent);
        };
        for (_, child) in &self.order {
            let source = self.values(builder, *child, extent);
            builder.send(self.port, parent.rank, parent.inbox, source);
            if let Some(child) = child {
                builder.release(self.port, child.rank);
            }
        }
    }

    /// Folds as many messages at a time as a channel holds.
    fn fold_in_order(&self, builder: &mut Builder<'_>, extent: Extent) {
        let context = builder.context();
        let partial = Span {
            region: Region::Scratch,
            offset: self.partial,
            count: extent.count,
            form: Form::Accumulator,
        };
        let mut operands = Vec::new();
        let mut groups = self.order.chunks(context.tuning.slots.max(1) as usize).peekable();
        while let Some(group) = groups.next() {
            for (source, child) in group {
                operands.push(Operand {
                    span: self.values(builder, *child, extent),
                    fresh: Some(*source),
                });
            }
            let finish = groups.peek().is_none();
            let target = if finish { builder.output(extent) } else { partial };
            builder.reduce(self.lane, &operands, target, finish);
            for (_, child) in group {
                if let Some(child) = child {
                    builder.release(self.port, child.rank);
                }
            }
            operands = vec![Operand { span: partial, fresh: None }];
        }
    }

    /// The next values that come by way of `child`, or this rank's own.
    fn values(&self, builder: &mut Builder<'_>, child: Option<Kin>, extent: Extent) -> Span {
        match child {
            None => builder.input(extent),
            Some(child) => {
                builder.receive(self.port, child.rank, child.inbox, extent.count, Form::Element)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_ranks_of_one_tree_are_leaves_of_the_other() {
        for ranks in 2..70 {
            for root in [0, ranks / 2, ranks - 1] {
                let tree = |second| Tree { ranks, root, second };
                for rank in (0..ranks).filter(|rank| *rank != root) {
                    let inner = [false, true].map(|s| !tree(s).node(rank).children.is_empty());
                    assert_ne!(inner, [true, true], "rank {rank} of {ranks}");
                }
            }
        }
    }

    #[test]
    fn parents_and_children_agree() {
        for ranks in 2..70 {
            for second in [false, true] {
                let tree = Tree { ranks, root: ranks / 3, second };
                for rank in 0..ranks {
                    assert_eq!(tree.rank_at(tree.position(rank)), rank);
                    let node = tree.node(rank);
                    for child in &node.children {
                        let up = tree.node(child.rank).parent.unwrap();
                        assert_eq!((up.rank, up.inbox), (rank, child.inbox));
                    }
                    let order: Vec<_> = tree.order(rank, &node).iter().map(|s| s.0).collect();
                    let mut below: Vec<_> = tree
                        .subtree(tree.position(rank))
                        .map(|position| tree.rank_at(position))
                        .collect();
                    below.sort_unstable();
                    assert_eq!(order, below);
                }
            }
        }
    }
}
