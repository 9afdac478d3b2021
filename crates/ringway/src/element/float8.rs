#![allow(
    unnameable_types,
    missing_debug_implementations,
    reason = "the derives of zerocopy define hidden types that are neither"
)]
//! The 8-bit floats, as types.
//!
//! Invariant: a conversion's bits are those of the reductions: both call
//! [`reduce::float`](crate::reduce).

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::reduce::float;

macro_rules! small_float {
    ($(#[$doc:meta])* $name:ident, $decode:path, $encode:path, $max:literal) => {
        $(#[$doc])*
        ///
        /// Equality is of bits, not of values: `-0` differs from `+0` and a NaN equals itself.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable)]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl $name {
            /// The greatest finite value.
            pub const MAX: Self = Self($max);

            /// The value, exactly.
            #[must_use]
            pub fn to_f32(self) -> f32 {
                $decode(self.0)
            }

            /// The nearest value, ties to even. Values past the greatest finite one, infinities
            /// included, become the greatest finite one of that sign; a NaN stays a NaN.
            #[must_use]
            pub fn from_f32(value: f32) -> Self {
                Self($encode(value))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    };
}

small_float!(
    /// An 8-bit float with 4 exponent and 3 mantissa bits (`e4m3fn`): no infinities, one NaN per
    /// sign, greatest finite value 448.
    F8E4M3,
    float::e4m3_to_f32,
    float::f32_to_e4m3,
    0x7e
);

small_float!(
    /// An 8-bit float with 5 exponent and 2 mantissa bits (`e5m2`): the upper half of an
    /// [`f16`](half::f16), infinities and NaNs included, greatest finite value 57344.
    F8E5M2,
    float::e5m2_to_f32,
    float::f32_to_e5m2,
    0x7b
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_read_as_their_values() {
        assert_eq!(F8E4M3::from_f32(1e9), F8E4M3::MAX);
        assert_eq!(F8E4M3::MAX.to_f32(), 448.0);
        assert_eq!(F8E5M2::from_f32(f32::NEG_INFINITY).to_f32(), -57344.0);
        assert_eq!(format!("{} {:?}", F8E4M3::from_f32(-1.5), F8E5M2(0x7c)), "-1.5 inf");
    }
}
