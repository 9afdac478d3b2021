//! Memory of all ranks as runs of symbolic values, each with who wrote and read it last.

use std::collections::BTreeMap;

use super::expression::Value;
use crate::plan::{Plan, Region};
use crate::types::Rank;

/// A step of a lane: lane number over all ranks, step from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) lane: usize,
    pub(super) step: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Space {
    Input,
    Output,
    Scratch,
    Card,
}

/// Bytes of one rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) rank: Rank,
    space: Space,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Bytes {
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        (self.rank, self.space) == (other.rank, other.space)
            && self.start < other.end
            && other.start < self.end
    }
}

/// The access that is unordered with ours.
#[derive(Clone, Copy, Debug)]
pub(super) enum Conflict {
    InFlight,
    With(Event, &'static str),
}

#[derive(Clone, Debug)]
struct Cell {
    end: u64,
    value: Value,
    /// The write, or the waits that saw it arrive: whoever knows one of them knows the values are
    /// there. Empty for what stood there from the start.
    witnesses: Vec<Event>,
    /// The put that wrote it, if one did.
    put: Option<PutId>,
    readers: Vec<Event>,
}

impl Cell {
    fn new(end: u64, value: Value) -> Self {
        Self { end, value, witnesses: Vec::new(), put: None, readers: Vec::new() }
    }

    /// Whether the values are there for somebody with this knowledge.
    fn check_written(&self, known: &dyn Fn(Event) -> bool) -> Result<(), Conflict> {
        match self.witnesses.first() {
            None if self.put.is_some() => Err(Conflict::InFlight),
            None => Ok(()),
            Some(_) if self.witnesses.iter().any(|event| known(*event)) => Ok(()),
            Some(_) if self.put.is_some() => Err(Conflict::InFlight),
            Some(event) => Err(Conflict::With(*event, "write")),
        }
    }
}

/// Names a put, so that a late notice of it is not taken for one of its successors in the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PutId(pub(super) u64);

/// Who writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Writer {
    Step(Event),
    Put(PutId),
}

type Cells = BTreeMap<u64, Cell>;

#[derive(Debug)]
struct RankMemory {
    spaces: [Cells; 4],
    lengths: [u64; 4],
    /// Bytes of values on a card, and from one card to the next.
    card: (u64, u64),
    /// Byte shift of input and output inside the output space when they are the same memory.
    alias: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Memory {
    ranks: Vec<RankMemory>,
    visited: u64,
    marks: u64,
}

impl Memory {
    pub(super) fn new(plan: &Plan, in_place: bool) -> Self {
        let ranks = (0..)
            .zip(plan.problems.iter().zip(&plan.ranks))
            .map(|(rank, (problem, part))| {
                let size = problem.data_type.size() as u64;
                let input = problem.input_count(rank) * size;
                let output = problem.output_count(rank) * size;
                let alias = problem
                    .in_place(rank)
                    .filter(|_| in_place)
                    .map(|(i, o)| (o.saturating_sub(i) * size, i.saturating_sub(o) * size));
                RankMemory {
                    spaces: Default::default(),
                    lengths: [
                        input,
                        output,
                        part.scratch_bytes,
                        u64::from(part.cards) * part.card_stride(),
                    ],
                    card: (part.card_bytes(), part.card_stride()),
                    alias,
                }
            })
            .collect();
        Self { ranks, visited: 0, marks: 0 }
    }

    /// Cells and marks looked at so far.
    pub(super) fn visited(&self) -> u64 {
        self.visited
    }

    /// Marks of readers and witnesses made so far.
    pub(super) fn marks(&self) -> u64 {
        self.marks
    }

    /// Writes what stands in the inputs before the operation begins.
    pub(super) fn fill_input(&mut self, rank: Rank, value: Value) {
        let length = self.ranks[rank as usize].lengths[Space::Input as usize];
        let place = self.locate(rank, Region::Input(0), 0, length, false);
        if let Some(bytes) = place.ok().filter(|_| length > 0) {
            self.ranks[rank as usize].spaces[bytes.space as usize]
                .insert(bytes.start, Cell::new(bytes.end, value));
        }
    }

    /// Resolves a region to bytes, checking bounds and the right to write.
    pub(super) fn locate(
        &self,
        rank: Rank,
        region: Region,
        offset: u64,
        length: u64,
        writes: bool,
    ) -> Result<Bytes, String> {
        let memory = &self.ranks[rank as usize];
        let (space, name) = match region {
            Region::Input(0) | Region::PeerInput(_) => (Space::Input, "input"),
            Region::Output(0) | Region::PeerOutput(_) => (Space::Output, "output"),
            Region::Scratch | Region::Window(_) => (Space::Scratch, "scratch"),
            Region::Card(_) if offset % memory.card.1 + length > memory.card.0 => {
                return Err(format!("bytes {offset}+{length} are not on one card"));
            }
            Region::Card(_) => (Space::Card, "cards"),
            Region::Input(_) | Region::Output(_) => {
                return Err("names a buffer the call does not have".to_owned());
            }
        };
        let limit = memory.lengths[space as usize];
        if offset.checked_add(length).is_none_or(|end| end > limit) {
            return Err(format!(
                "bytes {offset}+{length} are outside rank {rank}'s {name} of {limit} bytes"
            ));
        }
        if writes && space == Space::Input {
            return Err("writes to an input".to_owned());
        }
        let (space, shift) = match (space, memory.alias) {
            (Space::Input, Some((shift, _))) | (Space::Output, Some((_, shift))) => {
                (Space::Output, shift)
            }
            (space, _) => (space, 0),
        };
        let start = offset + shift;
        Ok(Bytes { rank, space, start, end: start + length })
    }

    /// For messages.
    pub(super) fn name(&self, bytes: Bytes) -> String {
        match bytes.space {
            Space::Input => "input".to_owned(),
            Space::Scratch => "scratch".to_owned(),
            Space::Card => "cards".to_owned(),
            Space::Output if self.ranks[bytes.rank as usize].alias.is_some() => {
                "buffer (in place)".to_owned()
            }
            Space::Output => "output".to_owned(),
        }
    }

    /// The cells of `bytes`' space, cut at its ends.
    fn cut(&mut self, bytes: Bytes) -> &mut Cells {
        let cells = &mut self.ranks[bytes.rank as usize].spaces[bytes.space as usize];
        self.marks += cover(cells, bytes);
        cells
    }

    /// The values in `bytes` as runs (offset from the start, value), noting the read.
    pub(super) fn read(
        &mut self,
        bytes: Bytes,
        event: Event,
        known: &dyn Fn(Event) -> bool,
    ) -> Result<Vec<(u64, Value)>, Conflict> {
        let mut values: Vec<(u64, Value)> = Vec::new();
        let (mut visited, mut marks) = (0, 0);
        for (at, cell) in self.cut(bytes).range_mut(bytes.start..bytes.end) {
            cell.check_written(known)?;
            visited += 1 + cell.readers.len() as u64;
            // Whoever knows of this read knows of the reads that this one knows of.
            cell.readers.retain(|reader| !known(*reader));
            cell.readers.push(event);
            marks += 1;
            push_run(&mut values, at - bytes.start, cell.value);
        }
        self.visited += visited;
        self.marks += marks;
        Ok(values)
    }

    /// The values in `bytes`, without noting a read.
    pub(super) fn look(&mut self, bytes: Bytes) -> Vec<(u64, Value)> {
        let mut values = Vec::new();
        for (at, cell) in self.cut(bytes).range(bytes.start..bytes.end) {
            push_run(&mut values, at - bytes.start, cell.value);
        }
        values
    }

    /// Overwrites `bytes`.
    pub(super) fn write(
        &mut self,
        bytes: Bytes,
        values: Vec<(u64, Value)>,
        writer: Writer,
        known: &dyn Fn(Event) -> bool,
    ) -> Result<(), Conflict> {
        let mut visited = 0;
        let cells = self.cut(bytes);
        for cell in cells.range(bytes.start..bytes.end).map(|(_, cell)| cell) {
            visited += 1 + cell.readers.len() as u64;
            cell.check_written(known)?;
            if let Some(reader) = cell.readers.iter().find(|reader| !known(**reader)) {
                return Err(Conflict::With(*reader, "read"));
            }
        }
        // The first cell is overwritten, as most writes are as long as the one before.
        let old: Vec<u64> =
            cells.range(bytes.start..bytes.end).skip(1).map(|(at, _)| *at).collect();
        for at in old {
            cells.remove(&at);
        }
        let ends = values.iter().skip(1).map(|run| run.0).chain([bytes.end - bytes.start]);
        for ((at, value), end) in values.iter().zip(ends) {
            let mut cell = Cell::new(bytes.start + end, *value);
            match writer {
                Writer::Step(event) => cell.witnesses.push(event),
                Writer::Put(put) => cell.put = Some(put),
            }
            cells.insert(bytes.start + at, cell);
        }
        self.visited += visited;
        Ok(())
    }

    /// A wait has seen `put` arrive, if it still stands there.
    pub(super) fn land(&mut self, bytes: Bytes, put: PutId, event: Event) {
        let (mut visited, mut marks) = (0, 0);
        for (_, cell) in self.cut(bytes).range_mut(bytes.start..bytes.end) {
            visited += 1;
            if cell.put == Some(put) {
                cell.witnesses.push(event);
                marks += 1;
            }
        }
        self.visited += visited;
        self.marks += marks;
    }

    /// The step that left the value at the start of `bytes`, or saw it arrive.
    pub(super) fn witness(&mut self, bytes: Bytes) -> Option<Event> {
        self.cut(bytes)
            .range(bytes.start..bytes.end)
            .next()
            .and_then(|(_, cell)| cell.witnesses.first().copied())
    }
}

/// Joins runs that go on into each other.
fn push_run(values: &mut Vec<(u64, Value)>, at: u64, value: Value) {
    match values.last() {
        Some((start, last)) if last.continues(&value, at - start) => {}
        _ => values.push((at, value)),
    }
}

/// Makes cells begin at the start and end of `bytes`, and fills gaps with unwritten ones. Says how
/// many marks were copied.
fn cover(cells: &mut Cells, bytes: Bytes) -> u64 {
    let mut marks = 0;
    let exact = cells.get(&bytes.start).map(|cell| cell.end);
    if bytes.start == bytes.end || exact == Some(bytes.end) {
        return marks;
    }
    for at in [bytes.start, bytes.end] {
        let split = cells.range_mut(..at).next_back().filter(|(_, cell)| cell.end > at).map(
            |(start, cell)| {
                let mut rest = cell.clone();
                rest.value = cell.value.after(at - start);
                cell.end = at;
                rest
            },
        );
        if let Some(rest) = split {
            marks += 1 + (rest.readers.len() + rest.witnesses.len()) as u64;
            cells.insert(at, rest);
        }
    }
    let mut gaps = Vec::new();
    let mut at = bytes.start;
    for (start, cell) in cells.range(bytes.start..bytes.end) {
        if *start > at {
            gaps.push((at, *start));
        }
        at = cell.end;
    }
    if at < bytes.end {
        gaps.push((at, bytes.end));
    }
    for (start, end) in gaps {
        marks += 1;
        cells.insert(start, Cell::new(end, Value::UNWRITTEN));
    }
    marks
}
