//! Symbolic values: which contributions, folded how.

use std::collections::HashMap;
use std::sync::Arc;

use crate::types::Rank;

/// Names an interned fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Expression(u32);

/// How far a value has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    Unwritten,
    /// A rank's input, as it was given.
    Raw,
    /// A fold of inputs, in the accumulator type.
    Partial,
    /// A finished fold, in the element type.
    Final,
}

/// A run of values in memory: value `i` of the run is `expression` over input value `index + i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) state: State,
    pub(super) expression: Expression,
    /// Index of the first value in the inputs it was made of.
    pub(super) index: u64,
    /// Bytes of one value.
    pub(super) size: u64,
    /// Bytes cut off the first value by a split inside it.
    pub(super) skew: u64,
}

impl Value {
    pub(super) const UNWRITTEN: Self =
        Self { state: State::Unwritten, expression: Expression(0), index: 0, size: 1, skew: 0 };

    /// Whether the run starts at a value's first byte.
    pub(super) fn aligned(&self) -> bool {
        self.skew == 0
    }

    /// The run that starts `bytes` later.
    pub(super) fn after(&self, bytes: u64) -> Self {
        let skip = self.skew + bytes;
        Self { index: self.index + skip / self.size, skew: skip % self.size, ..*self }
    }

    /// Whether `next` goes on where this run ends, `bytes` later.
    pub(super) fn continues(&self, next: &Self, bytes: u64) -> bool {
        self.after(bytes) == *next || (self.state == State::Unwritten && next.state == self.state)
    }
}

#[derive(Debug)]
enum Node {
    Leaf(Rank),
    Fold(Expression, Expression),
}

/// A run of folded values: first value, end, value; in values, relative to the span.
pub(super) type Run = (u64, u64, Value);

#[derive(Debug, Default)]
pub(super) struct Expressions {
    nodes: Vec<Node>,
    /// Ranks folded in, as sorted half-open ranges.
    members: Vec<Arc<[(Rank, Rank)]>>,
    leaves: HashMap<Rank, Expression>,
    folds: HashMap<(Expression, Expression), Expression>,
    marks: u64,
}

impl Expressions {
    pub(super) fn leaf(&mut self, rank: Rank) -> Expression {
        if let Some(known) = self.leaves.get(&rank) {
            return *known;
        }
        let made = self.push(Node::Leaf(rank), Arc::from([(rank, rank + 1)]));
        self.leaves.insert(rank, made);
        made
    }

    /// Memory taken so far, in entries.
    pub(super) fn marks(&self) -> u64 {
        self.marks
    }

    fn push(&mut self, node: Node, members: Arc<[(Rank, Rank)]>) -> Expression {
        self.marks += 4 + members.len() as u64;
        self.nodes.push(node);
        self.members.push(members);
        Expression(u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 expressions"))
    }

    pub(super) fn leaf_rank(&self, expression: Expression) -> Rank {
        match self.nodes[expression.0 as usize] {
            Node::Leaf(rank) => rank,
            Node::Fold(..) => Rank::MAX,
        }
    }

    /// `left ⊕ right`; an error names a rank that is in both.
    pub(super) fn fold(
        &mut self,
        left: Expression,
        right: Expression,
    ) -> Result<Expression, String> {
        if let Some(known) = self.folds.get(&(left, right)) {
            return Ok(*known);
        }
        let mut joined: Vec<(Rank, Rank)> = self.members[left.0 as usize]
            .iter()
            .chain(self.members[right.0 as usize].iter())
            .copied()
            .collect();
        joined.sort_unstable();
        let mut merged: Vec<(Rank, Rank)> = Vec::with_capacity(joined.len());
        for (start, end) in joined {
            match merged.last_mut() {
                Some(last) if start < last.1 => {
                    return Err(format!("the contribution of rank {start} is folded in twice"));
                }
                Some(last) if start == last.1 => last.1 = end,
                _ => merged.push((start, end)),
            }
        }
        let made = self.push(Node::Fold(left, right), merged.into());
        self.folds.insert((left, right), made);
        Ok(made)
    }

    /// `((v0 ⊕ v1) ⊕ v2) …`: what level `shape` promises.
    pub(super) fn left_fold(&mut self, ranks: Rank) -> Expression {
        let mut folded = self.leaf(0);
        for rank in 1..ranks {
            let leaf = self.leaf(rank);
            folded = self.fold(folded, leaf).expect("ranks are distinct");
        }
        folded
    }

    pub(super) fn covers_all(&self, expression: Expression, ranks: Rank) -> bool {
        *self.members[expression.0 as usize] == [(0, ranks)]
    }

    /// Folds two lists of runs that cover the same values, cutting both at each other's bounds.
    pub(super) fn fold_runs(&mut self, left: &[Run], right: &[Run]) -> Result<Vec<Run>, String> {
        let mut folded = Vec::with_capacity(left.len().max(right.len()));
        let (mut l, mut r) = (0, 0);
        let mut at = left.first().map_or(0, |run| run.0);
        while let (Some(a), Some(b)) = (left.get(l), right.get(r)) {
            let end = a.1.min(b.1);
            let (left_index, right_index) = (a.2.index + at - a.0, b.2.index + at - b.0);
            if left_index != right_index {
                return Err(format!("folds value {left_index} with value {right_index}"));
            }
            let expression = self.fold(a.2.expression, b.2.expression)?;
            folded.push((at, end, Value { expression, index: left_index, ..a.2 }));
            l += usize::from(a.1 == end);
            r += usize::from(b.1 == end);
            at = end;
        }
        Ok(folded)
    }

    /// For messages.
    pub(super) fn describe(&self, value: Value) -> String {
        let what = match value.state {
            State::Unwritten => return "unwritten".to_owned(),
            State::Raw => "input",
            State::Partial => "partial fold",
            State::Final => "finished fold",
        };
        format!("{what} {} of value {}", self.order(value.expression, 0), value.index)
    }

    fn order(&self, expression: Expression, depth: u32) -> String {
        match self.nodes.get(expression.0 as usize) {
            None => "of nothing".to_owned(),
            Some(Node::Leaf(rank)) => format!("r{rank}"),
            Some(Node::Fold(..)) if depth > 6 => "…".to_owned(),
            Some(Node::Fold(left, right)) => {
                format!("({}+{})", self.order(*left, depth + 1), self.order(*right, depth + 1))
            }
        }
    }
}
