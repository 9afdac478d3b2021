#![allow(unsafe_code, reason = "reads and writes memory that other processes may have mapped")]
//! Element types as they lie in memory: how a chunk of them is widened into accumulators and how
//! accumulators are narrowed into a chunk.
//!
//! [`Lane`] is per element type, [`Path`] per kind of processor. The default of every method is a
//! plain loop that the compiler turns into vector code; a [`Path`] overrides the conversions for
//! which the processor has better instructions than a compiler finds.
//!
//! Invariant: memory is only touched through raw, unaligned reads and writes, never through
//! references; exactly `N` values are read or written.

use half::{bf16, f16};

use super::float;
use super::scalar::Accumulate;
use crate::element::{F8E4M3, F8E5M2};

/// An element type.
pub(super) trait Lane: Copy + 'static {
    /// The type it is reduced in.
    type Accumulator: Accumulate + Lane<Accumulator = Self::Accumulator>;

    fn widen(self) -> Self::Accumulator;
    fn narrow(value: Self::Accumulator) -> Self;

    /// Widens the `N` values at `source`.
    ///
    /// # Safety
    ///
    /// `source` is valid for reading `N` values (unaligned), and the processor has what `P` needs.
    #[inline(always)]
    unsafe fn load<P: Path, const N: usize>(
        source: *const Self,
        values: &mut [Self::Accumulator; N],
    ) {
        // SAFETY: the caller's promise.
        unsafe { load_each(source, values) }
    }

    /// Narrows `values` into the `N` values at `target`.
    ///
    /// # Safety
    ///
    /// `target` is valid for writing `N` values (unaligned), and the processor has what `P` needs.
    #[inline(always)]
    unsafe fn store<P: Path, const N: usize>(values: &[Self::Accumulator; N], target: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { store_each(values, target) }
    }
}

/// A kind of processor: the conversions it does better than a plain loop.
pub(super) trait Path {
    /// Widens the `N` halves at `source`.
    ///
    /// # Safety
    ///
    /// As for [`Lane::load`].
    #[inline(always)]
    unsafe fn load_f16<const N: usize>(source: *const f16, values: &mut [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { load_each(source, values) }
    }

    /// Widens the `N` `e4m3fn` at `source`.
    ///
    /// # Safety
    ///
    /// As for [`Lane::load`].
    #[inline(always)]
    unsafe fn load_e4m3<const N: usize>(source: *const F8E4M3, values: &mut [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { load_each(source, values) }
    }

    /// Widens the `N` `e5m2` at `source`.
    ///
    /// # Safety
    ///
    /// As for [`Lane::load`].
    #[inline(always)]
    unsafe fn load_e5m2<const N: usize>(source: *const F8E5M2, values: &mut [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { load_each(source, values) }
    }

    /// Rounds `values` to the `N` halves at `target`.
    ///
    /// # Safety
    ///
    /// As for [`Lane::store`].
    #[inline(always)]
    unsafe fn store_f16<const N: usize>(values: &[f32; N], target: *mut f16) {
        // SAFETY: the caller's promise.
        unsafe { store_each(values, target) }
    }

    /// Rounds `values` to the `N` brain floats at `target`.
    ///
    /// # Safety
    ///
    /// As for [`Lane::store`].
    #[inline(always)]
    unsafe fn store_bf16<const N: usize>(values: &[f32; N], target: *mut bf16) {
        // SAFETY: the caller's promise.
        unsafe { store_each(values, target) }
    }
}

/// Any processor of the build's target.
#[derive(Debug)]
pub(super) struct Portable;

impl Path for Portable {}

/// Widens one value after the other.
///
/// # Safety
///
/// `source` is valid for reading `N` values (unaligned).
#[inline(always)]
pub(super) unsafe fn load_each<E: Lane, const N: usize>(
    source: *const E,
    values: &mut [E::Accumulator; N],
) {
    for (i, value) in values.iter_mut().enumerate() {
        // SAFETY: `i < N`, and the caller promises `N` values at `source`.
        let at = unsafe { source.add(i) };
        // SAFETY: as above; no alignment is needed.
        *value = unsafe { at.read_unaligned() }.widen();
    }
}

/// Narrows one value after the other.
///
/// # Safety
///
/// `target` is valid for writing `N` values (unaligned).
#[inline(always)]
pub(super) unsafe fn store_each<E: Lane, const N: usize>(
    values: &[E::Accumulator; N],
    target: *mut E,
) {
    for (i, value) in values.iter().enumerate() {
        // SAFETY: `i < N`, and the caller promises `N` values at `target`.
        let at = unsafe { target.add(i) };
        // SAFETY: as above; no alignment is needed.
        unsafe { at.write_unaligned(E::narrow(*value)) };
    }
}

macro_rules! own_accumulator {
    ($($type:ty),*) => {$(
        impl Lane for $type {
            type Accumulator = Self;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            #[inline(always)]
            fn narrow(value: Self) -> Self {
                value
            }
        }
    )*};
}

own_accumulator!(i8, u8, i32, u32, i64, u64, f32, f64);

impl Lane for f16 {
    type Accumulator = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        float::f16_to_f32(self.to_bits())
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_bits(float::f32_to_f16(value))
    }

    #[inline(always)]
    unsafe fn load<P: Path, const N: usize>(source: *const Self, values: &mut [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { P::load_f16(source, values) }
    }

    #[inline(always)]
    unsafe fn store<P: Path, const N: usize>(values: &[f32; N], target: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { P::store_f16(values, target) }
    }
}

impl Lane for bf16 {
    type Accumulator = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        float::bf16_to_f32(self.to_bits())
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_bits(float::f32_to_bf16(value))
    }

    #[inline(always)]
    unsafe fn store<P: Path, const N: usize>(values: &[f32; N], target: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { P::store_bf16(values, target) }
    }
}

impl Lane for F8E4M3 {
    type Accumulator = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        float::e4m3_to_f32(self.0)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self(float::f32_to_e4m3(value))
    }

    #[inline(always)]
    unsafe fn load<P: Path, const N: usize>(source: *const Self, values: &mut [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { P::load_e4m3(source, values) }
    }
}

impl Lane for F8E5M2 {
    type Accumulator = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        float::e5m2_to_f32(self.0)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self(float::f32_to_e5m2(value))
    }

    #[inline(always)]
    unsafe fn load<P: Path, const N: usize>(source: *const Self, values: &mut [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { P::load_e5m2(source, values) }
    }
}
