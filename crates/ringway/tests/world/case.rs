//! One collective call with its data: what every rank puts in and must get out.

use std::fmt;

use ringway::plan::algorithm::Algorithm;
use ringway::plan::problem::{Counts, Problem};
use ringway::{Call, Collective, Communicator, DataType, Level, ReduceOp};

use crate::harness::Random;
use crate::reference::{random_bytes, reduced};

/// What surrounds every buffer, to see writes that go astray.
const GUARD: u8 = 0xa5;
/// Bytes of it behind every buffer.
const GUARD_BYTES: usize = 32;

/// How many values go where.
#[derive(Clone, Debug)]
pub(crate) enum Sizes {
    Equal(u64),
    /// One count for each rank.
    PerRank(Vec<u64>),
    /// What each rank sends to each.
    Pairwise(Vec<Vec<u64>>),
}

/// A call, without its data.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) sizes: Sizes,
    pub(crate) root: u32,
    pub(crate) level: Level,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) in_place: bool,
    /// Bytes by which buffers are off an aligned address.
    pub(crate) offset: usize,
}

impl Shape {
    /// A plain call of equal sizes.
    pub(crate) fn new(collective: Collective, data_type: DataType, count: u64) -> Self {
        Self {
            collective,
            data_type,
            op: ReduceOp::Sum,
            sizes: Sizes::Equal(count),
            root: 0,
            level: Level::Run,
            algorithm: None,
            in_place: false,
            offset: 0,
        }
    }

    /// The planner's view at one rank.
    pub(crate) fn problem(&self, rank: u32, ranks: u32) -> Problem {
        let mut problem = Problem::new(self.collective, ranks, 0, self.data_type);
        problem.root = self.root;
        problem.level = self.level;
        problem.counts = match &self.sizes {
            Sizes::Equal(count) => Counts::Equal(*count),
            Sizes::PerRank(counts) => Counts::PerRank(counts.clone().into()),
            Sizes::Pairwise(matrix) => Counts::Pairwise {
                send: matrix[rank as usize].clone().into(),
                receive: matrix.iter().map(|row| row[rank as usize]).collect(),
            },
        };
        problem
    }

    /// The call of one rank.
    pub(crate) fn call(&self, rank: u32, ranks: u32, factors: &[f64]) -> Call {
        let counts = self.problem(rank, ranks).counts;
        let mut call = Call::new(self.collective, self.data_type, 0)
            .op(self.op)
            .root(self.root)
            .level(self.level);
        match counts {
            Counts::Equal(count) => call.count = count,
            unequal => call = call.counts(unequal),
        }
        call.algorithm = self.algorithm;
        call.scalar = factors[rank as usize];
        call
    }
}

/// A call with its data.
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) ranks: u32,
    factors: Vec<f64>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ranks, {:?}", self.ranks, self.shape)
    }
}

impl Case {
    /// Draws inputs and works out the outputs.
    pub(crate) fn new(shape: Shape, ranks: u32, random: &mut Random) -> Self {
        let op = shape.collective.reduces().then_some(shape.op);
        let inputs: Vec<Vec<u8>> = (0..ranks)
            .map(|rank| {
                let count = shape.problem(rank, ranks).input_count(rank) as usize;
                random_bytes(shape.data_type, op, count, random)
            })
            .collect();
        let factors: Vec<f64> = (0..ranks).map(|_| random.below(4) as f64).collect();
        let outputs = outputs(&shape, ranks, &inputs, &factors);
        Self { shape, ranks, factors, inputs, outputs }
    }

    pub(crate) fn call(&self, rank: u32) -> Call {
        self.shape.call(rank, self.ranks, &self.factors)
    }

    pub(crate) fn input(&self, rank: u32) -> &[u8] {
        &self.inputs[rank as usize]
    }

    pub(crate) fn output(&self, rank: u32) -> &[u8] {
        &self.outputs[rank as usize]
    }

    /// Runs the case on one rank; what is wrong with the result, if anything is.
    pub(crate) fn run(&self, comm: &Communicator) -> ringway::Result<Vec<String>> {
        let rank = comm.rank();
        let (call, offset) = (self.call(rank), self.shape.offset);
        let mut wrong = Vec::new();
        if self.shape.in_place {
            let (content, at) = self.in_place_content(rank);
            let mut buffer = Guarded::new(&content, offset);
            comm.call_in_place(&call, buffer.bytes())?;
            let expected = self.output(rank);
            wrong.extend(buffer.difference("buffer", at, expected));
        } else {
            let mut input = Guarded::new(self.input(rank), offset);
            let mut output = Guarded::new(&vec![0x5a; self.output(rank).len()], offset);
            comm.call(&call, input.bytes(), output.bytes())?;
            wrong.extend(output.difference("output", 0, self.output(rank)));
            wrong.extend(input.difference("input", 0, self.input(rank)));
        }
        Ok(wrong.into_iter().map(|what| format!("rank {rank}: {what}: {self:?}")).collect())
    }

    /// An in-place buffer as the call finds it, and where in it the output will be.
    fn in_place_content(&self, rank: u32) -> (Vec<u8>, usize) {
        let (input, output) = (self.input(rank), self.output(rank));
        let mut content = vec![0x5a; input.len().max(output.len())];
        let problem = self.shape.problem(rank, self.ranks);
        let size = self.shape.data_type.size();
        let (from, to) = problem.in_place(rank).unwrap_or((0, 0));
        // The same address is value `from` of the input and value `to` of the output.
        let at_input = to.saturating_sub(from) as usize * size;
        let at_output = from.saturating_sub(to) as usize * size;
        content[at_input..at_input + input.len()].copy_from_slice(input);
        (content, at_output)
    }
}

/// A buffer at a chosen offset, with guards around it.
struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Guarded {
    fn new(content: &[u8], offset: usize) -> Self {
        let mut bytes = vec![GUARD; 64 + offset + content.len() + GUARD_BYTES];
        let start = bytes.as_ptr().align_offset(64) + offset;
        bytes[start..start + content.len()].copy_from_slice(content);
        Self { bytes, start, length: content.len() }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }

    /// What is wrong if `expected` should stand `at` this place.
    fn difference(&self, name: &str, at: usize, expected: &[u8]) -> Option<String> {
        let (before, rest) = self.bytes.split_at(self.start);
        let (content, after) = rest.split_at(self.length);
        if before.iter().chain(after).any(|byte| *byte != GUARD) {
            return Some(format!("bytes outside of the {name} were written"));
        }
        let found = &content[at..at + expected.len()];
        let place = found.iter().zip(expected).position(|(found, right)| found != right)?;
        let end = (place + 8).min(expected.len());
        Some(format!(
            "{name} differs at byte {place} of {}: {:02x?} in place of {:02x?}",
            expected.len(),
            &found[place..end],
            &expected[place..end]
        ))
    }
}

/// What every rank must get.
fn outputs(shape: &Shape, ranks: u32, inputs: &[Vec<u8>], factors: &[f64]) -> Vec<Vec<u8>> {
    let size = shape.data_type.size();
    let root = shape.root as usize;
    let block = |of: &[u8], rank: u32| {
        let extent = shape.problem(rank, ranks).block(rank);
        of[extent.start as usize * size..extent.end() as usize * size].to_vec()
    };
    let only_root = |whole: Vec<u8>| {
        let mut outputs = vec![Vec::new(); ranks as usize];
        outputs[root] = whole;
        outputs
    };
    let fold = || reduced(shape.data_type, shape.op, inputs, factors);
    match shape.collective {
        Collective::AllReduce => vec![fold(); ranks as usize],
        Collective::AllGather => vec![inputs.concat(); ranks as usize],
        Collective::ReduceScatter => {
            let whole = fold();
            (0..ranks).map(|rank| block(&whole, rank)).collect()
        }
        Collective::Broadcast => vec![inputs[root].clone(); ranks as usize],
        Collective::Reduce => only_root(fold()),
        Collective::Gather => only_root(inputs.concat()),
        Collective::Scatter => (0..ranks).map(|rank| block(&inputs[root], rank)).collect(),
        Collective::AllToAll => (0..ranks)
            .map(|rank| {
                let sent = |from: u32| {
                    let extent = shape.problem(from, ranks).send_block(rank);
                    inputs[from as usize]
                        [extent.start as usize * size..extent.end() as usize * size]
                        .to_vec()
                };
                (0..ranks).flat_map(sent).collect()
            })
            .collect(),
        Collective::Barrier | Collective::SendRecv => vec![Vec::new(); ranks as usize],
    }
}
