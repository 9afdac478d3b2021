//! The arithmetic of one value: accumulator types and the operations on them.
//!
//! The loops of [`fold`](super::fold) apply these to chunks of memory. Nothing is fused or
//! reassociated: a product and a sum are two roundings.
//!
//! Invariant: an operation's result depends on its operands' bits alone, never on the processor
//! (but for the sign and payload of a NaN, which no one may rely on).

/// A type in which reductions accumulate.
pub(super) trait Accumulate: Copy + 'static {
    /// Any value: what fills the unused part of the last chunk.
    const ZERO: Self;
    /// Whether vectors of it can be divided.
    const DIVIDES: bool;

    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The greater. A NaN wins over everything; `+0` is greater than `-0`.
    fn max(self, other: Self) -> Self;
    /// The lesser. A NaN wins over everything; `-0` is less than `+0`.
    fn min(self, other: Self) -> Self;
    /// This sum, divided by the number of ranks: correctly rounded for floats, towards zero for
    /// integers.
    fn average(self, ranks: u32) -> Self;
    /// The value whose bits are the low bits of `bits`.
    fn from_low_bits(bits: u64) -> Self;
}

macro_rules! accumulate_integer {
    ($($type:ty, $quotient:ty);*) => {$(
        impl Accumulate for $type {
            const ZERO: Self = 0;
            const DIVIDES: bool = false;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }

            #[inline(always)]
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_lossless,
                reason = "a quotient is no larger than the sum it came from"
            )]
            fn average(self, ranks: u32) -> Self {
                (self as $quotient / ranks as $quotient) as Self
            }

            #[inline(always)]
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_possible_wrap,
                reason = "the low bits are what is asked for"
            )]
            fn from_low_bits(bits: u64) -> Self {
                bits as Self
            }
        }
    )*};
}

macro_rules! accumulate_float {
    ($($type:ty, $bits:ty);*) => {$(
        impl Accumulate for $type {
            const ZERO: Self = 0.0;
            const DIVIDES: bool = true;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // They differ in zeros of different sign only: then the positive one is right.
                let right = if self > other { self } else { other };
                let left = if other > self { other } else { self };
                let ordered = Self::from_bits(left.to_bits() & right.to_bits());
                if self.is_nan() || other.is_nan() { self + other } else { ordered }
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let right = if self < other { self } else { other };
                let left = if other < self { other } else { self };
                let ordered = Self::from_bits(left.to_bits() | right.to_bits());
                if self.is_nan() || other.is_nan() { self + other } else { ordered }
            }

            #[inline(always)]
            #[allow(clippy::cast_lossless, reason = "for one of the types it is not")]
            fn average(self, ranks: u32) -> Self {
                self / ranks as Self
            }

            #[inline(always)]
            #[allow(
                clippy::cast_possible_truncation,
                reason = "the low bits are what is asked for"
            )]
            fn from_low_bits(bits: u64) -> Self {
                Self::from_bits(bits as $bits)
            }
        }
    )*};
}

// The type to divide in. Vectors divide floats only, and where both numbers are exact in a float,
// or the divisor is far greater, the quotient of floats truncates to that of the integers.
accumulate_integer!(i8, f32; u8, f32; i32, f64; u32, f64; i64, i64; u64, u64);
accumulate_float!(f32, u32; f64, u64);

/// What a reduction does with two accumulators, and around that.
pub(super) trait Operation<A> {
    /// Whether operands may carry a scalar to be multiplied by.
    const SCALES: bool = false;
    /// Whether the finished result may be divided by the number of ranks.
    const AVERAGES: bool = false;

    fn combine(left: A, right: A) -> A;
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $method:ident $(, $flag:ident)?;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name;

        impl<A: Accumulate> Operation<A> for $name {
            $(const $flag: bool = true;)?

            #[inline(always)]
            fn combine(left: A, right: A) -> A {
                left.$method(right)
            }
        }
    )*};
}

operations! {
    /// Sum, and average: they differ in the finish only.
    Sum = add, AVERAGES;
    /// Sum of operands multiplied by their scalars.
    PreMulSum = add, SCALES;
    /// Product.
    Prod = mul;
    /// Greatest.
    Max = max;
    /// Least.
    Min = min;
}
