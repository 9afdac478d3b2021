//! The collectives as anybody would write them, with all inputs at hand.
//!
//! Values are chosen such that a reduction has one right result whatever its order: integers wrap,
//! and floats are small whole numbers (or powers of two, for products), exact in every
//! accumulator.

use half::{bf16, f16};
use ringway::element::{Element, F8E4M3, F8E5M2, as_bytes};
use ringway::{DataType, ReduceOp};

use crate::harness::Random;

/// An element whose reductions are known.
pub(crate) trait Value: Element {
    /// A value fit for this reduction; any value at all for none.
    fn random(random: &mut Random, op: Option<ReduceOp>) -> Self;
    /// The reduction of one value of each rank; `factors` are those of pre-multiplied sums.
    fn reduce(op: ReduceOp, values: &[Self], factors: &[f64]) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn random(random: &mut Random, _op: Option<ReduceOp>) -> Self {
                random.next() as Self
            }

            fn reduce(op: ReduceOp, values: &[Self], factors: &[f64]) -> Self {
                let all = values.iter().copied();
                let sum = |all: &mut dyn Iterator<Item = Self>| {
                    all.fold(0, |a: Self, b| a.wrapping_add(b))
                };
                match op {
                    ReduceOp::Sum => sum(&mut all.clone()),
                    ReduceOp::Prod => all.fold(1, |a: Self, b| a.wrapping_mul(b)),
                    ReduceOp::Max => all.max().unwrap(),
                    ReduceOp::Min => all.min().unwrap(),
                    ReduceOp::Avg => {
                        let whole = i128::from(sum(&mut all.clone()));
                        (whole / values.len() as i128) as Self
                    }
                    ReduceOp::PreMulSum => {
                        sum(&mut all.zip(factors).map(|(v, f)| v.wrapping_mul(*f as Self)))
                    }
                }
            }
        }
    )*};
}

integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($type:ty, $wide:ty, $from:expr, $to:expr);* $(;)?) => {$(
        impl Value for $type {
            fn random(random: &mut Random, op: Option<ReduceOp>) -> Self {
                let from: fn($wide) -> Self = $from;
                match op {
                    Some(ReduceOp::Prod) => from(random.pick(&[1.0, -1.0, 2.0, 0.5])),
                    Some(_) => from(random.below(9) as $wide - 4.0),
                    None => {
                        let bytes = random.next().to_le_bytes();
                        zeroed_from(&bytes)
                    }
                }
            }

            fn reduce(op: ReduceOp, values: &[Self], factors: &[f64]) -> Self {
                let (from, to): (fn($wide) -> Self, fn(Self) -> $wide) = ($from, $to);
                let all = values.iter().copied().map(to);
                from(match op {
                    ReduceOp::Sum => all.sum(),
                    ReduceOp::Prod => all.product(),
                    ReduceOp::Max => all.fold(<$wide>::NEG_INFINITY, <$wide>::max),
                    ReduceOp::Min => all.fold(<$wide>::INFINITY, <$wide>::min),
                    ReduceOp::Avg => all.sum::<$wide>() / values.len() as $wide,
                    ReduceOp::PreMulSum => all.zip(factors).map(|(v, f)| v * *f as $wide).sum(),
                })
            }
        }
    )*};
}

floats! {
    f32, f32, |wide| wide, |value| value;
    f64, f64, |wide| wide, |value| value;
    f16, f32, f16::from_f32, f16::to_f32;
    bf16, f32, bf16::from_f32, bf16::to_f32;
    F8E4M3, f32, F8E4M3::from_f32, F8E4M3::to_f32;
    F8E5M2, f32, F8E5M2::from_f32, F8E5M2::to_f32;
}

/// The value of the first of these bytes.
fn zeroed_from<T: Element>(bytes: &[u8; 8]) -> T {
    T::read_from_prefix(bytes).map(|(value, _)| value).unwrap()
}

/// Calls `$body` with `$name` as the element type of `$data_type`.
macro_rules! with_type {
    ($data_type:expr, $name:ident => $body:expr) => {
        match $data_type {
            DataType::I8 => {
                type $name = i8;
                $body
            }
            DataType::U8 => {
                type $name = u8;
                $body
            }
            DataType::I32 => {
                type $name = i32;
                $body
            }
            DataType::U32 => {
                type $name = u32;
                $body
            }
            DataType::I64 => {
                type $name = i64;
                $body
            }
            DataType::U64 => {
                type $name = u64;
                $body
            }
            DataType::F16 => {
                type $name = f16;
                $body
            }
            DataType::F32 => {
                type $name = f32;
                $body
            }
            DataType::F64 => {
                type $name = f64;
                $body
            }
            DataType::Bf16 => {
                type $name = bf16;
                $body
            }
            DataType::F8e4m3 => {
                type $name = F8E4M3;
                $body
            }
            DataType::F8e5m2 => {
                type $name = F8E5M2;
                $body
            }
        }
    };
}

/// `count` random elements, as bytes.
pub(crate) fn random_bytes(
    data_type: DataType,
    op: Option<ReduceOp>,
    count: usize,
    random: &mut Random,
) -> Vec<u8> {
    fn fill<T: Value>(op: Option<ReduceOp>, count: usize, random: &mut Random) -> Vec<u8> {
        let values: Vec<T> = (0..count).map(|_| T::random(random, op)).collect();
        as_bytes(&values).to_vec()
    }
    with_type!(data_type, T => fill::<T>(op, count, random))
}

/// The reduction of equally long inputs, one of each rank.
pub(crate) fn reduced(
    data_type: DataType,
    op: ReduceOp,
    inputs: &[Vec<u8>],
    factors: &[f64],
) -> Vec<u8> {
    fn fold<T: Value>(op: ReduceOp, inputs: &[Vec<u8>], factors: &[f64]) -> Vec<u8> {
        let size = size_of::<T>();
        let mut result = Vec::with_capacity(inputs[0].len());
        let mut values: Vec<T> = Vec::new();
        for at in (0..inputs[0].len()).step_by(size) {
            values.clear();
            values.extend(
                inputs.iter().map(|input| T::read_from_bytes(&input[at..at + size]).unwrap()),
            );
            result.extend_from_slice(as_bytes(&[T::reduce(op, &values, factors)]));
        }
        result
    }
    with_type!(data_type, T => fold::<T>(op, inputs, factors))
}
