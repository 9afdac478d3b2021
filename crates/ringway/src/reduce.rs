#![allow(unsafe_code, reason = "reduces memory that is given by address")]
//! Host reductions: the arithmetic of reduce steps on CPU memory.
//!
//! The executor builds one [`Kernel`] per call and runs it for every reduce step. A reduction of
//! operands `s0, s1, s2, …` is the left fold `((s0 ⊕ s1) ⊕ s2) ⊕ …` in the accumulator type
//! ([`DataType::accumulator`]), in the written order, and is rounded to the element type once.
//!
//! | operation | integers | floats |
//! |---|---|---|
//! | sum, product | wrap | IEEE, no fused multiply-add |
//! | greatest, least | | NaN if any operand is NaN; `-0` is less than `+0` |
//! | average | wrapped sum, divided towards zero | sum, divided by the number of ranks |
//! | premultiplied sum | wrap | product, then sum: two roundings |
//!
//! Invariant: a result's bits depend on the operands' bits and order alone: not on the processor,
//! the count, alignment or the position in the buffer. Only NaNs are looser: a NaN is a NaN
//! everywhere, but its sign and payload are whatever the processor makes of them. (The rounding
//! mode and the treatment of subnormals of the calling thread must be the default.)

pub(crate) mod float;
mod fold;
mod lane;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

use std::fmt;

use half::{bf16, f16};

use self::fold::{Job, average, fold};
use self::lane::{Lane, Portable};
use self::scalar::{Max, Min, Operation, PreMulSum, Prod, Sum};
use crate::element::{Element, F8E4M3, F8E5M2, as_bytes};
use crate::plan::types::{DataType, Form, ReduceOp};

/// One value in the accumulator type of some element type: what a rank's inputs are multiplied by
/// in [`ReduceOp::PreMulSum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scalar {
    accumulator: DataType,
    bits: u64,
}

impl Scalar {
    /// The scalar of this value.
    #[must_use]
    pub fn new<T: Element>(value: T) -> Self {
        Self::from_bytes(T::DATA_TYPE, as_bytes(&[value]))
            .expect("an element has the size of its type")
    }

    /// The scalar whose element is given by its bytes in memory order; `None` unless there are as
    /// many as the type has.
    #[must_use]
    pub fn from_bytes(element: DataType, bytes: &[u8]) -> Option<Self> {
        if bytes.len() != element.size() {
            return None;
        }
        let mut low = [0; 8];
        for (i, byte) in bytes.iter().enumerate() {
            let place = if cfg!(target_endian = "little") { i } else { bytes.len() - 1 - i };
            low[place] = *byte;
        }
        let half = u16::from_le_bytes([low[0], low[1]]);
        let bits = match element {
            DataType::F16 => float::f16_to_f32(half).to_bits().into(),
            DataType::Bf16 => float::bf16_to_f32(half).to_bits().into(),
            DataType::F8e4m3 => float::e4m3_to_f32(low[0]).to_bits().into(),
            DataType::F8e5m2 => float::e5m2_to_f32(low[0]).to_bits().into(),
            _ => u64::from_le_bytes(low),
        };
        Some(Self { accumulator: element.accumulator(), bits })
    }

    /// The scalar nearest to `value`: rounded to the accumulator type, or for integers cut to a
    /// whole number in their range.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "float to integer casts saturate, which is what is wanted"
    )]
    pub fn from_f64(element: DataType, value: f64) -> Self {
        let bits = match element.accumulator() {
            DataType::F32 => u64::from((value as f32).to_bits()),
            DataType::I8 => u64::from((value as i8).cast_unsigned()),
            DataType::I32 => u64::from((value as i32).cast_unsigned()),
            DataType::I64 => (value as i64).cast_unsigned(),
            DataType::U8 => u64::from(value as u8),
            DataType::U32 => u64::from(value as u32),
            DataType::U64 => value as u64,
            _ => value.to_bits(),
        };
        Self::from_bits(element, bits)
    }

    /// The scalar of these bits, which came from [`Scalar::bits`] of another rank.
    #[must_use]
    pub const fn from_bits(element: DataType, bits: u64) -> Self {
        Self { accumulator: element.accumulator(), bits }
    }

    /// The value's bits, in the low bits: what ranks exchange.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.bits
    }

    /// The type of the value.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        self.accumulator
    }
}

/// One operand of a reduction.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Where its values are.
    pub address: *const u8,
    /// What its values are.
    pub form: Form,
    /// What its values are multiplied by as they are read: for [`ReduceOp::PreMulSum`], the
    /// scalar of the rank whose input this is, and nothing where this is a partial result.
    pub scale: Option<Scalar>,
}

/// The instructions a kernel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Those of the build's target: they are always there.
    Baseline,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    Avx512,
    /// AVX-512 with BF16.
    Avx512Bf16,
}

impl Isa {
    /// Every set of instructions, the fastest last.
    pub const ALL: [Self; 4] = [Self::Baseline, Self::Avx2, Self::Avx512, Self::Avx512Bf16];

    /// Whether this processor has them.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::is_x86_feature_detected as has;
            match self {
                Self::Baseline => true,
                Self::Avx2 => has!("avx2") && has!("f16c"),
                Self::Avx512 => {
                    Self::Avx2.is_available()
                        && has!("avx512f")
                        && has!("avx512bw")
                        && has!("avx512vl")
                        && has!("avx512dq")
                }
                Self::Avx512Bf16 => Self::Avx512.is_available() && has!("avx512bf16"),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Baseline
        }
    }

    /// The fastest this processor has.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL.into_iter().rfind(|isa| isa.is_available()).unwrap_or(Self::Baseline)
    }

    /// The name used in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512_bf16",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The reduction of one call: chosen once, then run for every step.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    data_type: DataType,
    op: ReduceOp,
    ranks: u32,
    isa: Isa,
    run: Run,
}

impl Kernel {
    /// The kernel for a call, with the fastest instructions this processor has.
    #[must_use]
    pub fn new(data_type: DataType, op: ReduceOp, ranks: u32) -> Self {
        Self::of(data_type, op, ranks, Isa::best())
    }

    /// The kernel for a call, with these instructions; `None` where the processor lacks them.
    /// Results do not depend on the choice: it is for tests and measurements.
    #[must_use]
    pub fn with_isa(data_type: DataType, op: ReduceOp, ranks: u32, isa: Isa) -> Option<Self> {
        isa.is_available().then(|| Self::of(data_type, op, ranks, isa))
    }

    fn of(data_type: DataType, op: ReduceOp, ranks: u32, isa: Isa) -> Self {
        assert!(ranks > 0, "a reduction is over one rank at least");
        Self { data_type, op, ranks, isa, run: choose(data_type, op, isa) }
    }

    /// The instructions in use.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Reduces `count` values of the operands, in the order given, into `dst`.
    ///
    /// With `finish` the result is the reduction's last: [`ReduceOp::Avg`] divides. Without, it is
    /// a partial result that a later reduction takes as an operand; to keep the promise of one
    /// rounding, it must then be of [`Form::Accumulator`] or of a type that is its own accumulator.
    ///
    /// One operand whose values are of the destination's type, with nothing to multiply or divide,
    /// is copied bit for bit (so an `e5m2` infinity stays one, where a rounded one saturates).
    ///
    /// # Panics
    ///
    /// If there are no operands.
    ///
    /// # Safety
    ///
    /// - Each operand is valid for reading `count` values of its form and `dst` for writing `count`
    ///   values of `dst_form`, with no particular alignment.
    /// - Nobody writes to the operands' memory, or touches that of `dst`, meanwhile.
    /// - `dst` may be the address of operands with values of the same size; otherwise it overlaps
    ///   none of them.
    pub unsafe fn reduce(
        &self,
        dst: *mut u8,
        dst_form: Form,
        finish: bool,
        operands: &[Operand],
        count: usize,
    ) {
        let (first, rest) = operands.split_first().expect("a reduction has an operand at least");
        debug_assert!(
            finish || dst_form.data_type(self.data_type) == self.data_type.accumulator(),
            "a partial result must not be rounded"
        );
        debug_assert!(
            operands.iter().filter_map(|operand| operand.scale).all(|scale| {
                self.op == ReduceOp::PreMulSum && scale.accumulator == self.data_type.accumulator()
            }),
            "scalars belong to premultiplied sums of their own type"
        );
        let average_over = (finish && self.op == ReduceOp::Avg).then_some(self.ranks);
        let size = dst_form.size(self.data_type);
        if rest.is_empty()
            && first.scale.is_none()
            && average_over.is_none()
            && first.form.data_type(self.data_type) == dst_form.data_type(self.data_type)
        {
            // SAFETY: the caller's promise; equal addresses are allowed here.
            unsafe { dst.copy_from(first.address, count * size) };
            return;
        }
        let job = Job { dst, dst_form, average_over, first: *first, rest, count };
        // SAFETY:
        // - the pointers are as the caller promises;
        // - `run` was chosen for this element type, and for a processor that was found to be here.
        unsafe { (self.run)(&job) };
        if let (Some(ranks), Some(average)) = (average_over, choose_average(self.data_type)) {
            // SAFETY: integers are their own accumulators, so `dst` has `count` of them.
            unsafe { average(dst, ranks, count) };
        }
    }
}

/// A reduction loop for one element type, operation and processor.
type Run = unsafe fn(&Job<'_>);

/// The division of averages that [`Run`] leaves out: those of integers.
fn choose_average(data_type: DataType) -> Option<unsafe fn(*mut u8, u32, usize)> {
    match data_type {
        DataType::I8 => Some(average::<i8>),
        DataType::U8 => Some(average::<u8>),
        DataType::I32 => Some(average::<i32>),
        DataType::U32 => Some(average::<u32>),
        DataType::I64 => Some(average::<i64>),
        DataType::U64 => Some(average::<u64>),
        _ => None,
    }
}

/// The loop for an element type, operation and set of instructions that is available.
fn choose(data_type: DataType, op: ReduceOp, isa: Isa) -> Run {
    // Chunks of 256 bytes of accumulators are four of the widest vector registers. (With fewer
    // than 64 integers the compiler unrolls the chunk and gathers across operands instead.)
    match data_type {
        DataType::I8 => choose_operation::<i8, u8, 256>(op, isa),
        DataType::U8 => choose_operation::<u8, u8, 256>(op, isa),
        DataType::I32 => choose_operation::<i32, u32, 64>(op, isa),
        DataType::U32 => choose_operation::<u32, u32, 64>(op, isa),
        DataType::I64 => choose_operation::<i64, u64, 64>(op, isa),
        DataType::U64 => choose_operation::<u64, u64, 64>(op, isa),
        DataType::F16 => choose_operation::<f16, f16, 64>(op, isa),
        DataType::F32 => choose_operation::<f32, f32, 64>(op, isa),
        DataType::F64 => choose_operation::<f64, f64, 32>(op, isa),
        DataType::Bf16 => choose_operation::<bf16, bf16, 64>(op, isa),
        DataType::F8e4m3 => choose_operation::<F8E4M3, F8E4M3, 64>(op, isa),
        DataType::F8e5m2 => choose_operation::<F8E5M2, F8E5M2, 64>(op, isa),
    }
}

/// `W` is the type whose sums and products have the bits of those of `E`: wrapping arithmetic is
/// the same for signed and unsigned integers, and is compiled once.
fn choose_operation<E, W, const N: usize>(op: ReduceOp, isa: Isa) -> Run
where
    E: Lane + Element,
    W: Lane + Element,
{
    match op {
        ReduceOp::Sum | ReduceOp::Avg => choose_isa::<W, Sum, N>(isa),
        ReduceOp::Prod => choose_isa::<W, Prod, N>(isa),
        ReduceOp::Max => choose_isa::<E, Max, N>(isa),
        ReduceOp::Min => choose_isa::<E, Min, N>(isa),
        ReduceOp::PreMulSum => choose_isa::<W, PreMulSum, N>(isa),
    }
}

fn choose_isa<E, O, const N: usize>(isa: Isa) -> Run
where
    E: Lane + Element,
    O: Operation<E::Accumulator>,
{
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86::avx2::<E, O, N>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if E::DATA_TYPE == DataType::Bf16 => x86::avx512_bf16::<E, O, N>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => x86::avx512::<E, O, N>,
        _ => fold::<Portable, E, O, N>,
    }
}
