//! Elements of every type, written from exact numbers with one rounding.
//!
//! *Invariant*: independent of the library under test, so that a fault in its conversions
//! cannot hide itself. Slow and plain on purpose; used for a few thousand values per check.

use half::{bf16, f16};
use ringway_plan::types::DataType;

/// An exact value before it is rounded to an element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// For integer types; taken modulo the type's range.
    Integer(i64),
    /// For floating-point types; rounded to nearest, ties to even.
    Float(f64),
}

/// The bytes of one element, as memory holds them; the first `data_type.size()` count.
pub(crate) fn encode(data_type: DataType, number: Number) -> [u8; 8] {
    match number {
        // Hosts are little-endian: the low bytes of the wide integer are the narrow one.
        Number::Integer(value) => value.to_le_bytes(),
        Number::Float(value) => {
            let mut bytes = [0; 8];
            match data_type {
                DataType::F64 => bytes = value.to_le_bytes(),
                DataType::F32 => bytes[..4].copy_from_slice(&single(value).to_le_bytes()),
                DataType::F16 => bytes[..2].copy_from_slice(&f16::from_f64(value).to_le_bytes()),
                DataType::Bf16 => bytes[..2].copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
                DataType::F8e5m2 => bytes[0] = E5M2.encode(value),
                _ => bytes[0] = E4M3.encode(value),
            }
            bytes
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to the narrower type is the aim")]
fn single(value: f64) -> f32 {
    value as f32
}

/// A format of 8-bit floats.
struct Narrow {
    mantissa_bits: u32,
    bias: i32,
    /// The code of the greatest finite value.
    greatest: u8,
}

const E4M3: Narrow = Narrow { mantissa_bits: 3, bias: 7, greatest: 0x7e };
const E5M2: Narrow = Narrow { mantissa_bits: 2, bias: 15, greatest: 0x7b };

impl Narrow {
    /// The value of a finite code without sign.
    fn magnitude(&self, code: u8) -> f64 {
        let exponent = i32::from(code >> self.mantissa_bits);
        let mantissa = f64::from(code & ((1 << self.mantissa_bits) - 1));
        let steps = f64::from(1_u32 << self.mantissa_bits);
        if exponent == 0 {
            mantissa / steps * 2_f64.powi(1 - self.bias)
        } else {
            (1.0 + mantissa / steps) * 2_f64.powi(exponent - self.bias)
        }
    }

    /// Rounds to nearest, ties to the even code; too great values become the greatest.
    fn encode(&self, value: f64) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let wanted = value.abs();
        let above = (0..=self.greatest).find(|code| self.magnitude(*code) >= wanted);
        let code = match above {
            None => self.greatest,
            Some(0) => 0,
            Some(above) => {
                let below = above - 1;
                let to_above = self.magnitude(above) - wanted;
                let to_below = wanted - self.magnitude(below);
                let take_above = to_above < to_below || (to_above == to_below && above % 2 == 0);
                if take_above { above } else { below }
            }
        };
        sign | code
    }

    #[cfg(test)]
    fn decode(&self, code: u8) -> f64 {
        let magnitude = self.magnitude(code & 0x7f);
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }
}

/// The exact value of an element; only tests need the way back.
#[cfg(test)]
pub(crate) fn decode(data_type: DataType, bytes: &[u8]) -> Number {
    let mut wide = [0_u8; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let low = u64::from_le_bytes(wide);
    let spare_bits = 64 - 8 * bytes.len();
    match data_type {
        DataType::I8 | DataType::I32 | DataType::I64 => {
            Number::Integer((low << spare_bits).cast_signed() >> spare_bits)
        }
        DataType::U8 | DataType::U32 | DataType::U64 => Number::Integer(low.cast_signed()),
        DataType::F64 => Number::Float(f64::from_bits(low)),
        DataType::F32 => {
            Number::Float(f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]).into())
        }
        DataType::F16 => Number::Float(f16::from_le_bytes([wide[0], wide[1]]).to_f64()),
        DataType::Bf16 => Number::Float(bf16::from_le_bytes([wide[0], wide[1]]).to_f64()),
        DataType::F8e4m3 => Number::Float(E4M3.decode(wide[0])),
        DataType::F8e5m2 => Number::Float(E5M2.decode(wide[0])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_of_8_bit_floats() {
        let table = [
            (DataType::F8e4m3, 1.0, 0x38),
            (DataType::F8e4m3, -2.0, 0xc0),
            (DataType::F8e4m3, 448.0, 0x7e),
            (DataType::F8e4m3, 0.5, 0x30),
            (DataType::F8e4m3, 2_f64.powi(-9), 0x01),
            (DataType::F8e5m2, 1.0, 0x3c),
            (DataType::F8e5m2, 3.0, 0x42),
            (DataType::F8e5m2, -0.5, 0xb8),
            (DataType::F8e5m2, 57344.0, 0x7b),
        ];
        for (data_type, value, code) in table {
            assert_eq!(encode(data_type, Number::Float(value))[0], code, "{data_type} {value}");
        }
    }

    #[test]
    fn ties_go_to_the_even_code() {
        // Between 16 and 18 in e4m3 lies 17: 16 (0x58) is even. Between 18 and 20 lies 19.
        assert_eq!(E4M3.encode(17.0), 0x58);
        assert_eq!(E4M3.encode(19.0), 0x5a);
        assert_eq!(E4M3.encode(17.01), 0x59);
        assert_eq!(E4M3.encode(1e9), 0x7e);
    }

    #[test]
    fn every_finite_code_survives_the_way_there_and_back() {
        for format in [E4M3, E5M2] {
            for code in (0..=format.greatest).flat_map(|code| [code, code | 0x80]) {
                assert_eq!(format.encode(format.decode(code)), code);
            }
        }
    }

    #[test]
    fn small_whole_numbers_are_exact_in_every_type() {
        for data_type in DataType::ALL {
            for value in [0_i8, 1, 2, 3, 4, 5, 6, 7, 8] {
                let number = if data_type.is_float() {
                    Number::Float(value.into())
                } else {
                    Number::Integer(value.into())
                };
                let bytes = encode(data_type, number);
                assert_eq!(decode(data_type, &bytes[..data_type.size()]), number, "{data_type}");
            }
        }
        let minus = encode(DataType::I32, Number::Integer(-5));
        assert_eq!(decode(DataType::I32, &minus[..4]), Number::Integer(-5));
    }
}
