#![allow(unsafe_code, reason = "vector intrinsics and functions compiled for a named processor")]
//! The loops of [`fold`](super::fold) compiled for x86 processors newer than the build's target.
//!
//! Most of the gain is the compiler's, which may use wider vectors in these copies. Written by
//! hand are the conversions it does not find: of halves and, by way of them, of 8-bit floats; and
//! rounding to bf16.
//!
//! Invariant: the same bits as [`Portable`](super::lane::Portable), NaN payloads aside. The bf16
//! instruction flushes subnormals, so vectors with any go the portable way.

use std::arch::x86_64::{
    __m256bh, __m256i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128,
    _mm256_add_epi32, _mm256_and_si256, _mm256_blendv_epi8, _mm256_castps_si256,
    _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cmpeq_epi16, _mm256_cvtepu8_epi16,
    _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_extracti128_si256, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_mul_ps, _mm256_or_si256, _mm256_packus_epi32,
    _mm256_permute4x64_epi64, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_slli_epi16, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256,
    _mm512_cvtneps_pbh, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_fpclass_ps_mask, _mm512_loadu_ps,
    _mm512_mul_ps, _mm512_set1_ps, _mm512_storeu_ps,
};
use std::mem::transmute;

use half::{bf16, f16};

use super::fold::{Job, fold};
use super::lane::{Lane, Path, store_each};
use super::scalar::Operation;
use crate::element::{F8E4M3, F8E5M2};

/// Defines a path and the entry into the loops compiled for it.
macro_rules! path {
    ($(#[$doc:meta])* $path:ident, $entry:ident, $features:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $path;

        /// The loop for this path.
        ///
        /// # Safety
        ///
        /// As for [`fold`]; the processor has the features named below.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $entry<E, O, const N: usize>(job: &Job<'_>)
        where
            E: Lane,
            O: Operation<E::Accumulator>,
        {
            // SAFETY: the caller's promise.
            unsafe { fold::<$path, E, O, N>(job) }
        }
    };
}

path!(
    /// 256-bit vectors and half conversions.
    Avx2,
    avx2,
    "avx2,f16c"
);
path!(
    /// 512-bit vectors.
    Avx512,
    avx512,
    "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c"
);
path!(
    /// 512-bit vectors and brain float conversions.
    Avx512Bf16,
    avx512_bf16,
    "avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c"
);

/// Sixteen halves.
///
/// # Safety
///
/// `source` is valid for reading 16 values (unaligned); the processor has AVX2.
#[inline(always)]
unsafe fn halves(source: *const f16) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(source.cast()) }
}

/// Sixteen `e5m2` as halves: they are the upper bytes.
///
/// # Safety
///
/// As for [`halves`].
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers all of them")]
unsafe fn halves_of_e5m2(source: *const F8E5M2) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(source.cast()))) }
}

/// Sixteen `e4m3fn` as halves of 1/256 the value: the bits shifted into place, whose exponent then
/// reads 8 too small.
///
/// # Safety
///
/// As for [`halves`].
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers all of them")]
unsafe fn halves_of_e4m3(source: *const F8E4M3) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(source.cast()));
        let all_ones = _mm256_set1_epi16(0x7f << 7);
        let magnitude = _mm256_and_si256(_mm256_slli_epi16::<7>(bytes), all_ones);
        let nan = _mm256_cmpeq_epi16(magnitude, all_ones);
        let nan = _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00));
        let sign = _mm256_and_si256(_mm256_slli_epi16::<8>(bytes), _mm256_set1_epi16(i16::MIN));
        _mm256_or_si256(_mm256_or_si256(magnitude, nan), sign)
    }
}

/// Fills `values` sixteen at a time: `$halves` of the source, widened by `$widen`.
macro_rules! load {
    ($source:ident, $values:ident, $halves:ident, $widen:expr) => {{
        const { assert!(N.is_multiple_of(16)) };
        for (i, sixteen) in $values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // SAFETY: the caller promises `N` values at the source, and the processor.
            let halves = unsafe { $halves($source.wrapping_add(16 * i)) };
            // SAFETY: the caller promises the processor.
            unsafe { $widen(halves, sixteen) };
        }
    }};
}

/// Defines the loads of a path that widens sixteen halves by `$widen`.
macro_rules! loads {
    ($widen:ident) => {
        #[inline(always)]
        unsafe fn load_f16<const N: usize>(source: *const f16, values: &mut [f32; N]) {
            load!(source, values, halves, $widen::<1>);
        }

        #[inline(always)]
        unsafe fn load_e5m2<const N: usize>(source: *const F8E5M2, values: &mut [f32; N]) {
            load!(source, values, halves_of_e5m2, $widen::<1>);
        }

        #[inline(always)]
        unsafe fn load_e4m3<const N: usize>(source: *const F8E4M3, values: &mut [f32; N]) {
            load!(source, values, halves_of_e4m3, $widen::<256>);
        }
    };
}

/// Widens sixteen halves and multiplies them by `FACTOR`, a power of two.
///
/// # Safety
///
/// The processor has AVX2 and F16C.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers all of them")]
unsafe fn widen_256<const FACTOR: u16>(halves: __m256i, values: &mut [f32; 16]) {
    // SAFETY: the caller's promise; `values` has room for twice 8 values.
    unsafe {
        let low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
        let high = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves));
        let factor = _mm256_set1_ps(f32::from(FACTOR));
        _mm256_storeu_ps(values.as_mut_ptr(), _mm256_mul_ps(low, factor));
        _mm256_storeu_ps(values[8..].as_mut_ptr(), _mm256_mul_ps(high, factor));
    }
}

/// As [`widen_256`].
///
/// # Safety
///
/// The processor has AVX-512.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers all of them")]
unsafe fn widen_512<const FACTOR: u16>(halves: __m256i, values: &mut [f32; 16]) {
    // SAFETY: the caller's promise; `values` has room for 16 values.
    unsafe {
        let factor = _mm512_set1_ps(f32::from(FACTOR));
        _mm512_storeu_ps(values.as_mut_ptr(), _mm512_mul_ps(_mm512_cvtph_ps(halves), factor));
    }
}

impl Path for Avx2 {
    loads!(widen_256);

    #[inline(always)]
    unsafe fn store_f16<const N: usize>(values: &[f32; N], target: *mut f16) {
        const { assert!(N.is_multiple_of(8)) };
        for (i, eight) in values.as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: `eight` has 8 values; the caller promises AVX.
            let floats = unsafe { _mm256_loadu_ps(eight.as_ptr()) };
            // SAFETY: the caller promises F16C.
            let halves = unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats) };
            let at = target.wrapping_add(8 * i);
            // SAFETY: the caller promises room for `N` values at `target`.
            unsafe { _mm_storeu_si128(at.cast(), halves) };
        }
    }

    #[inline(always)]
    unsafe fn store_bf16<const N: usize>(values: &[f32; N], target: *mut bf16) {
        const { assert!(N.is_multiple_of(16)) };
        for (i, sixteen) in values.as_chunks::<16>().0.iter().enumerate() {
            let ([low, high], []) = sixteen.as_chunks::<8>() else { unreachable!() };
            // SAFETY: the caller promises AVX2.
            let low = unsafe { round_bf16(low) };
            // SAFETY: the caller promises AVX2.
            let high = unsafe { round_bf16(high) };
            // SAFETY: the caller promises AVX2.
            let brains = unsafe { _mm256_packus_epi32(low, high) };
            // SAFETY: the caller promises AVX2.
            let brains = unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(brains) };
            let at = target.wrapping_add(16 * i);
            // SAFETY: the caller promises room for `N` values at `target`.
            unsafe { _mm256_storeu_si256(at.cast(), brains) };
        }
    }
}

/// Eight brain floats, each in the low half of 32 bits: [`f32_to_bf16`](super::float) by hand.
///
/// # Safety
///
/// The processor has AVX2.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers all of them")]
unsafe fn round_bf16(values: &[f32; 8]) -> __m256i {
    // SAFETY: the caller promises AVX2; `values` has 8 values.
    unsafe {
        let floats = _mm256_loadu_ps(values.as_ptr());
        let bits = _mm256_castps_si256(floats);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(floats, floats));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
    }
}

impl Path for Avx512 {
    loads!(widen_512);

    #[inline(always)]
    unsafe fn store_f16<const N: usize>(values: &[f32; N], target: *mut f16) {
        const { assert!(N.is_multiple_of(16)) };
        for (i, sixteen) in values.as_chunks::<16>().0.iter().enumerate() {
            // SAFETY: `sixteen` has 16 values; the caller promises AVX-512.
            let floats = unsafe { _mm512_loadu_ps(sixteen.as_ptr()) };
            // SAFETY: the caller promises AVX-512.
            let halves = unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats) };
            let at = target.wrapping_add(16 * i);
            // SAFETY: the caller promises room for `N` values at `target`.
            unsafe { _mm256_storeu_si256(at.cast(), halves) };
        }
    }
}

impl Path for Avx512Bf16 {
    #[inline(always)]
    unsafe fn store_bf16<const N: usize>(values: &[f32; N], target: *mut bf16) {
        const SUBNORMAL: i32 = 0x20;
        const { assert!(N.is_multiple_of(16)) };
        for (i, sixteen) in values.as_chunks::<16>().0.iter().enumerate() {
            let at = target.wrapping_add(16 * i);
            // SAFETY: `sixteen` has 16 values; the caller promises AVX-512.
            let floats = unsafe { _mm512_loadu_ps(sixteen.as_ptr()) };
            // SAFETY: the caller promises AVX512-DQ.
            if unsafe { _mm512_fpclass_ps_mask::<SUBNORMAL>(floats) } != 0 {
                // SAFETY: the caller promises room for `N` values at `target`.
                unsafe { store_each(sixteen, at) };
                continue;
            }
            // SAFETY: the caller promises AVX512-BF16.
            let brains = unsafe { _mm512_cvtneps_pbh(floats) };
            // SAFETY: two names of one 256-bit vector.
            let brains = unsafe { transmute::<__m256bh, __m256i>(brains) };
            // SAFETY: the caller promises room for `N` values at `target`.
            unsafe { _mm256_storeu_si256(at.cast(), brains) };
        }
    }
}
