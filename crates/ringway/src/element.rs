//! Element types: what the values of a buffer may be, as Rust types.
//!
//! [`Element`] ties each Rust type to its [`DataType`], so that typed slices can enter calls that
//! speak in bytes; [`as_bytes`] and [`as_bytes_mut`] are the two ways in. The 8-bit floats have no
//! home in the standard library or in `half`, so [`F8E4M3`] and [`F8E5M2`] are ours.
//!
//! Invariant: every bit pattern of an element type is a value and none has padding, so bytes may
//! come from anywhere. The `zerocopy` bounds of [`Element`] prove it; nothing here is unsafe.

mod float8;

use std::fmt;

use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use self::float8::{F8E4M3, F8E5M2};
use crate::plan::types::DataType;

mod sealed {
    #[expect(unnameable_types, reason = "so that no one else implements it")]
    pub trait Sealed {}
}

/// A type whose slices can be given to a collective.
pub trait Element:
    sealed::Sealed
    + Copy
    + fmt::Debug
    + PartialEq
    + Send
    + Sync
    + FromBytes
    + IntoBytes
    + Immutable
    + 'static
{
    /// The name of this type in plans, signatures and messages.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($type:ty => $data_type:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
        }

        const _: () = assert!(size_of::<$type>() == DataType::$data_type.size());
    )*};
}

elements! {
    i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    f16 => F16, f32 => F32, f64 => F64, bf16 => Bf16, F8E4M3 => F8e4m3, F8E5M2 => F8e5m2,
}

/// The bytes of a slice, in memory order.
#[must_use]
pub fn as_bytes<T: Element>(values: &[T]) -> &[u8] {
    values.as_bytes()
}

/// The bytes of a slice, in memory order, to be written.
#[must_use]
pub fn as_bytes_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    values.as_mut_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_memory_of_the_values() {
        let mut values = [f16::from_f32(1.0), f16::from_f32(-2.0)];
        assert_eq!(
            as_bytes(&values),
            [0x3c00_u16.to_ne_bytes(), 0xc000_u16.to_ne_bytes()].concat()
        );
        as_bytes_mut(&mut values)[2..].copy_from_slice(&0x4200_u16.to_ne_bytes());
        assert_eq!(values[1].to_f32(), 3.0);
        assert!(as_bytes::<f64>(&[]).is_empty());
    }
}
