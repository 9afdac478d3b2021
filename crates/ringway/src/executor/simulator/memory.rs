//! The buffers of one call on one rank, and what must stand in them when it is over.

#![allow(unsafe_code, reason = "folds the reference with the kernels, which take addresses")]

use half::{bf16, f16};

use super::scenario::Piece;
use crate::element::{F8E4M3, F8E5M2};
use crate::plan::rng::Random;
use crate::plan::types::{Collective, DataType, Form, Level, Rank, ReduceOp};
use crate::reduce::{Isa, Kernel, Operand};
use crate::transport::Area;

const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;
const BLANK_BYTE: u8 = 0x5a;

/// Input and output of one call, in one allocation between guards.
#[derive(Debug)]
pub(super) struct Memory {
    bytes: Vec<u8>,
    /// Offset and length.
    input: (usize, usize),
    output: (usize, usize),
    in_place: bool,
    given: Vec<u8>,
}

impl Memory {
    /// Buffers for `rank`'s part of a call, the input filled.
    pub(super) fn new(piece: &Piece, rank: Rank, random: &mut Random) -> Self {
        let (call, problem) = (&piece.calls[rank as usize], &piece.problems[rank as usize]);
        let size = call.data_type.size();
        let bytes = |count: u64| usize::try_from(count).expect("small") * size;
        let (input, output) = (bytes(problem.input_count(rank)), bytes(problem.output_count(rank)));
        let in_place = piece.in_place[rank as usize];
        let (from, to, end) = if in_place {
            let (at_input, at_output) = problem.in_place(rank).expect("it has such a form");
            let from = GUARD + bytes(at_output.saturating_sub(at_input));
            let to = GUARD + bytes(at_input.saturating_sub(at_output));
            (from, to, (from + input).max(to + output))
        } else {
            (GUARD, 2 * GUARD + input, 2 * GUARD + input + output)
        };
        let given = values(piece, input / size, random);
        let mut bytes = vec![GUARD_BYTE; end + GUARD];
        bytes[to..to + output].fill(BLANK_BYTE);
        bytes[from..from + input].copy_from_slice(&given);
        Self { bytes, input: (from, input), output: (to, output), in_place, given }
    }

    pub(super) fn areas(&mut self) -> (Area, Area) {
        let base = self.bytes.as_mut_ptr();
        let area = |(offset, bytes)| Area { address: base.wrapping_add(offset), bytes };
        (area(self.input), area(self.output))
    }

    pub(super) fn given(&self) -> &[u8] {
        &self.given
    }

    pub(super) fn output(&self) -> &[u8] {
        &self.bytes[self.output.0..][..self.output.1]
    }

    /// Whether nobody wrote where nobody may.
    pub(super) fn check_unharmed(&self) -> Result<(), String> {
        let inside =
            |at: usize, (offset, length): (usize, usize)| (offset..offset + length).contains(&at);
        let hurt = self.bytes.iter().enumerate().find(|(at, byte)| {
            **byte != GUARD_BYTE && !inside(*at, self.input) && !inside(*at, self.output)
        });
        if let Some((at, _)) = hurt {
            return Err(format!("the guard byte at {at} was written"));
        }
        if !self.in_place && self.bytes[self.input.0..][..self.input.1] != self.given[..] {
            return Err("the input was written".to_owned());
        }
        Ok(())
    }
}

/// Values whose reductions are exact in any order, or, where `rough`, are not.
fn values(piece: &Piece, count: usize, random: &mut Random) -> Vec<u8> {
    let call = &piece.calls[0];
    let data_type = call.data_type;
    if !call.collective.reduces() || !data_type.is_float() {
        return (0..count * data_type.size())
            .map(|_| u8::try_from(random.below(256)).expect("a byte"))
            .collect();
    }
    let product = call.op == ReduceOp::Prod;
    let mut all = Vec::with_capacity(count * data_type.size());
    for _ in 0..count {
        let value = if is_rough(piece) {
            let whole = i32::try_from(random.below(2_000_001)).expect("small") - 1_000_000;
            f64::from(whole) / 7919.0
        } else if product {
            random.pick(&[0.5, 1.0, 2.0, -1.0])
        } else {
            random.pick(&[-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0])
        };
        encode(data_type, value, &mut all);
    }
    all
}

/// Whether the order of the reduction shows in the last bits.
fn is_rough(piece: &Piece) -> bool {
    let call = &piece.calls[0];
    let sums = matches!(call.op, ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum);
    let wide = matches!(call.data_type, DataType::F32 | DataType::F64 | DataType::Bf16);
    piece.rough && sums && wide && call.collective.reduces()
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to the narrower type is meant")]
fn encode(data_type: DataType, value: f64, to: &mut Vec<u8>) {
    match data_type {
        DataType::F16 => to.extend(f16::from_f64(value).to_le_bytes()),
        DataType::Bf16 => to.extend(bf16::from_f64(value).to_le_bytes()),
        DataType::F32 => to.extend((value as f32).to_le_bytes()),
        DataType::F64 => to.extend(value.to_le_bytes()),
        DataType::F8e4m3 => to.push(F8E4M3::from_f32(value as f32).0),
        DataType::F8e5m2 => to.push(F8E5M2::from_f32(value as f32).0),
        other => panic!("{other} is no float"),
    }
}

fn decode(data_type: DataType, bytes: &[u8]) -> f64 {
    match data_type {
        DataType::F32 => f32::from_le_bytes(bytes.try_into().expect("4")).into(),
        DataType::F64 => f64::from_le_bytes(bytes.try_into().expect("8")),
        DataType::Bf16 => bf16::from_le_bytes(bytes.try_into().expect("2")).into(),
        other => panic!("{other} is not compared by value"),
    }
}

/// What must stand in the output of `rank`, from what all ranks gave.
fn expected(piece: &Piece, rank: Rank, given: &[&[u8]]) -> Vec<u8> {
    let problem = &piece.problems[rank as usize];
    let size = problem.data_type.size();
    let at = |value: u64| usize::try_from(value).expect("small") * size;
    let cut = |of: Rank, from: u64, count: u64| &given[of as usize][at(from)..at(from + count)];
    let root = problem.root;
    let all = 0..problem.ranks;
    let block = problem.block(rank);
    match problem.collective {
        Collective::AllReduce => fold(piece, given, 0, problem.count()),
        Collective::Reduce if rank == root => fold(piece, given, 0, problem.count()),
        Collective::ReduceScatter => fold(piece, given, block.start, block.count),
        Collective::Broadcast => given[root as usize].to_vec(),
        Collective::AllGather => given.concat(),
        Collective::Gather if rank == root => given.concat(),
        Collective::Scatter => cut(root, block.start, block.count).to_vec(),
        Collective::AllToAll => all
            .flat_map(|from| {
                let sent = piece.problems[from as usize].send_block(rank);
                cut(from, sent.start, sent.count).to_vec()
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The left fold in rank order of `count` values from `start`.
fn fold(piece: &Piece, given: &[&[u8]], start: u64, count: u64) -> Vec<u8> {
    let call = &piece.calls[0];
    let size = call.data_type.size();
    let ranks = u32::try_from(given.len()).expect("few");
    let kernel = Kernel::with_isa(call.data_type, call.op, ranks, Isa::Baseline)
        .expect("every machine has the baseline");
    let scales = piece.scales();
    let at = usize::try_from(start).expect("small") * size;
    let operands: Vec<Operand> = given
        .iter()
        .enumerate()
        .map(|(rank, bytes)| Operand {
            address: bytes[at..].as_ptr(),
            form: Form::Element,
            scale: scales.get(rank).copied(),
        })
        .collect();
    let count = usize::try_from(count).expect("small");
    let mut result = vec![0; count * size];
    if count > 0 {
        // SAFETY: every operand has `count` values from `start`, and the result is new.
        unsafe { kernel.reduce(result.as_mut_ptr(), Form::Element, true, &operands, count) };
    }
    result
}

/// Whether `found` is what the call promises to `rank`.
pub(super) fn check_output(
    piece: &Piece,
    rank: Rank,
    given: &[&[u8]],
    found: &[u8],
) -> Result<(), String> {
    let wanted = expected(piece, rank, given);
    if wanted == found {
        return Ok(());
    }
    let problem = &piece.problems[rank as usize];
    let size = problem.data_type.size();
    let exact = problem.level == Level::Shape || !is_rough(piece);
    if wanted.len() != found.len() {
        return Err(format!("{} bytes instead of {}", found.len(), wanted.len()));
    }
    let pairs = wanted.chunks(size).zip(found.chunks(size)).enumerate();
    for (index, (wanted, found)) in pairs.filter(|(_, (wanted, found))| wanted != found) {
        let near = !exact && {
            let (a, b) = (decode(problem.data_type, wanted), decode(problem.data_type, found));
            let unit = match problem.data_type {
                DataType::F64 => f64::EPSILON,
                DataType::F32 => f64::from(f32::EPSILON),
                _ => 1.0 / 128.0,
            };
            // Every value is below 127 in magnitude, times a factor of 2 at most.
            let magnitude = f64::from(problem.ranks) * 260.0;
            let rounding = if problem.data_type == DataType::Bf16 { a.abs() } else { magnitude };
            (a - b).abs() <= unit * (rounding * f64::from(problem.ranks)).max(1e-3)
        };
        if !near {
            return Err(format!("value {index} is {found:02x?}, not {wanted:02x?}"));
        }
    }
    Ok(())
}
