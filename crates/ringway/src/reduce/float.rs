//! Conversions between `f32` and the narrow floats, one value at a time.
//!
//! They are written without branches or tables so that a loop over them becomes vector code on
//! every machine, and without `f32` subnormals in the middle, which some processors handle slowly.
//! Widening is exact. Narrowing rounds to nearest, ties to even, and keeps subnormals.
//!
//! | type | too large, or infinite | NaN |
//! |---|---|---|
//! | f16, bf16 | infinity | quiet, upper payload bits and sign kept |
//! | e4m3, e5m2 | greatest finite value (CUDA's `__NV_SATFINITE`) | the quiet NaN of that sign |
//!
//! Invariant: these functions define the bits; every vector path must agree with them on every
//! input that is not a NaN, and on NaN-ness always.

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;
const QUIET: u32 = 0x0040_0000;

/// The value of an IEEE half.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    const REBASE: u32 = (127 - 15) << 23;
    let magnitude = u32::from(half & 0x7fff);
    let rebased = (magnitude << 13) + REBASE;
    let subnormal = f32::from_bits(rebased + (1 << 23)) - f32::from_bits(REBASE + (1 << 23));
    let quiet = if magnitude > 0x7c00 { QUIET } else { 0 };
    let bits = if magnitude < 0x0400 {
        subnormal.to_bits()
    } else if magnitude >= 0x7c00 {
        (rebased + REBASE) | quiet
    } else {
        rebased
    };
    f32::from_bits(bits | (u32::from(half & 0x8000) << 16))
}

/// The nearest IEEE half.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    // 65536 is past the last value that rounds down to 65504: it encodes as infinity.
    let finite = encode::<10, 15>(magnitude.min(65536_f32.to_bits()));
    let nan = 0x7e00 | ((magnitude >> 13) & 0x03ff);
    let half = if magnitude > INFINITY { nan } else { finite };
    low_u16(half | ((bits & SIGN) >> 16))
}

/// The value of a brain float.
#[inline(always)]
pub(crate) fn bf16_to_f32(brain: u16) -> f32 {
    f32::from_bits(u32::from(brain) << 16)
}

/// The nearest brain float.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let nan = bits | QUIET;
    low_u16(if bits & !SIGN > INFINITY { nan } else { rounded } >> 16)
}

/// The value of an `e4m3fn`.
#[inline(always)]
pub(crate) fn e4m3_to_f32(byte: u8) -> f32 {
    const REBASE: u32 = (127 - 7) << 23;
    let magnitude = u32::from(byte & 0x7f);
    let rebased = (magnitude << 20) + REBASE;
    let subnormal = f32::from_bits(rebased + (1 << 23)) - f32::from_bits(REBASE + (1 << 23));
    let bits = if magnitude < 0x08 {
        subnormal.to_bits()
    } else if magnitude == 0x7f {
        INFINITY | QUIET
    } else {
        rebased
    };
    f32::from_bits(bits | (u32::from(byte & 0x80) << 24))
}

/// The nearest `e4m3fn`.
#[inline(always)]
pub(crate) fn f32_to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    let finite = encode::<3, 7>(magnitude.min(448_f32.to_bits()));
    let byte = if magnitude > INFINITY { 0x7f } else { finite };
    low_u8(byte | ((bits & SIGN) >> 24))
}

/// The value of an `e5m2`: it is the upper half of an IEEE half.
#[inline(always)]
pub(crate) fn e5m2_to_f32(byte: u8) -> f32 {
    f16_to_f32(u16::from(byte) << 8)
}

/// The nearest `e5m2`.
#[inline(always)]
pub(crate) fn f32_to_e5m2(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    let finite = encode::<2, 15>(magnitude.min(57344_f32.to_bits()));
    let byte = if magnitude > INFINITY { 0x7e } else { finite };
    low_u8(byte | ((bits & SIGN) >> 24))
}

/// Rounds a non-negative `f32`, given by its bits, to a float of `MANTISSA` mantissa bits and the
/// exponent bias `BIAS`. The value must not be past the next one after the greatest finite.
#[inline(always)]
fn encode<const MANTISSA: u32, const BIAS: u32>(bits: u32) -> u32 {
    let rebase = (127 - BIAS) << 23;
    // A number whose last place is the narrow type's smallest subnormal: adding it makes the
    // addition itself round there.
    let magic = rebase + ((23 - MANTISSA + 1) << 23);
    let subnormal = (f32::from_bits(bits) + f32::from_bits(magic)).to_bits() - magic;
    let odd = (bits >> (23 - MANTISSA)) & 1;
    let half_less = (1 << (22 - MANTISSA)) - 1;
    let normal = bits.wrapping_sub(rebase).wrapping_add(half_less + odd) >> (23 - MANTISSA);
    if bits < rebase + (1 << 23) { subnormal } else { normal }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the low bits are what is asked for")]
fn low_u16(bits: u32) -> u16 {
    bits as u16
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the low bits are what is asked for")]
fn low_u8(bits: u32) -> u8 {
    bits as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The magnitude of a narrow float from its definition, in `f64`; `None` for NaN.
    fn magnitude(code: u32, mantissa_bits: u32, bias: i32) -> f64 {
        let exponent = i32::try_from(code >> mantissa_bits).unwrap();
        let fraction = f64::from(code & ((1 << mantissa_bits) - 1));
        let scale = f64::from(1_u32 << mantissa_bits);
        if exponent == 0 {
            fraction / scale * 2_f64.powi(1 - bias)
        } else {
            (1.0 + fraction / scale) * 2_f64.powi(exponent - bias)
        }
    }

    /// The nearest of `values` (ascending, indexed by code), ties to the even code.
    fn nearest(values: &[f64], wanted: f64) -> u32 {
        let above = values.partition_point(|v| *v < wanted);
        if above == 0 {
            return 0;
        }
        let below = above - 1;
        if above == values.len() {
            return u32::try_from(below).unwrap();
        }
        let (down, up) = (wanted - values[below], values[above] - wanted);
        let code = if down < up || (down == up && below % 2 == 0) { below } else { above };
        u32::try_from(code).unwrap()
    }

    /// `f32` values that stress rounding to the finite `values`: each value, each midpoint, their
    /// neighbours, and a spread over the whole range.
    fn probes(values: &[f64]) -> Vec<f32> {
        let mut probes = Vec::new();
        for pair in values.windows(2) {
            for at in [pair[0], f64::midpoint(pair[0], pair[1]), pair[1]] {
                #[expect(clippy::cast_possible_truncation, reason = "exact: few mantissa bits")]
                let at = at as f32;
                probes.extend([at.next_down(), at, at.next_up()]);
            }
        }
        probes.extend((0..=INFINITY).step_by(4093).map(f32::from_bits));
        probes.extend([f32::MAX, f32::INFINITY, f32::MIN_POSITIVE]);
        probes.retain(|p| *p >= 0.0);
        probes
    }

    fn check(
        (mantissa_bits, bias): (u32, i32),
        last_finite: u32,
        overflow: u32,
        sign: u32,
        decode: impl Fn(u32) -> f32,
        encode: impl Fn(f32) -> u32,
    ) {
        let values: Vec<f64> =
            (0..=last_finite).map(|code| magnitude(code, mantissa_bits, bias)).collect();
        for (code, value) in (0..).zip(&values) {
            assert_eq!(f64::from(decode(code)), *value);
            assert_eq!(f64::from(decode(code | sign)), -*value);
            assert!(decode(code | sign).is_sign_negative());
            assert_eq!(encode(decode(code)), code);
        }
        // One step past the greatest finite value is where overflow begins to be nearer.
        let limit = magnitude(last_finite + 1, mantissa_bits, bias);
        let extended: Vec<f64> = values.iter().copied().chain([limit]).collect();
        for probe in probes(&extended) {
            let code = nearest(&extended, f64::from(probe));
            let expected = if code > last_finite { overflow } else { code };
            assert_eq!(encode(probe), expected, "{probe:e}");
            assert_eq!(encode(-probe), expected | sign, "-{probe:e}");
        }
        for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)] {
            assert!(decode(encode(nan)).is_nan());
        }
    }

    fn wide(code: u32) -> u16 {
        u16::try_from(code).unwrap()
    }

    fn byte(code: u32) -> u8 {
        u8::try_from(code).unwrap()
    }

    #[test]
    fn f16_rounds_to_nearest() {
        check((10, 15), 0x7bff, 0x7c00, 0x8000, |c| f16_to_f32(wide(c)), |v| f32_to_f16(v).into());
    }

    #[test]
    fn bf16_rounds_to_nearest() {
        check(
            (7, 127),
            0x7f7f,
            0x7f80,
            0x8000,
            |c| bf16_to_f32(wide(c)),
            |v| f32_to_bf16(v).into(),
        );
    }

    #[test]
    fn e4m3_rounds_to_nearest_and_saturates() {
        check((3, 7), 0x7e, 0x7e, 0x80, |c| e4m3_to_f32(byte(c)), |v| f32_to_e4m3(v).into());
        assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(0xff).is_nan());
        assert_eq!(f32_to_e4m3(-f32::NAN), 0xff);
    }

    #[test]
    fn e5m2_rounds_to_nearest_and_saturates() {
        check((2, 15), 0x7b, 0x7b, 0x80, |c| e5m2_to_f32(byte(c)), |v| f32_to_e5m2(v).into());
        assert_eq!(e5m2_to_f32(0x7c), f32::INFINITY);
        assert_eq!(e5m2_to_f32(0xfc), f32::NEG_INFINITY);
        assert!((0x7d..=0x7f).all(|c| e5m2_to_f32(c).is_nan() && e5m2_to_f32(c | 0x80).is_nan()));
    }

    #[test]
    fn halves_agree_with_the_half_crate() {
        for code in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(code), half::f16::from_bits(code).to_f32());
            assert_eq!(ours.to_bits(), theirs.to_bits(), "f16 {code:#06x}");
            let (ours, theirs) = (bf16_to_f32(code), half::bf16::from_bits(code).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()));
        }
        for bits in (0..=u32::MAX).step_by(1021) {
            let value = f32::from_bits(bits);
            assert_eq!(f32_to_f16(value), half::f16::from_f32(value).to_bits(), "{bits:#010x}");
            assert_eq!(f32_to_bf16(value), half::bf16::from_f32(value).to_bits(), "{bits:#010x}");
        }
    }
}
