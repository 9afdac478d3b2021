#![allow(unsafe_code, reason = "reads and writes memory that other processes may have mapped")]
//! The loop of every reduction: chunk by chunk, all operands of a chunk, in one pass over memory.
//!
//! A chunk's accumulators stay in vector registers while the operands are folded in, in their
//! written order; the destination is written after the last operand has been read, so it may be
//! one of them. The last, partial chunk goes through the same code by way of a padded copy, or value
//! by value where few are left.
//!
//! ```text
//!   operand 0   |--chunk--|--chunk--|-tail-|      acc = operand 0
//!   operand 1   |--chunk--|--chunk--|-tail-|      acc = acc ⊕ operand 1
//!   …                                             …
//!   dst         |--chunk--|--chunk--|-tail-|      dst = round(acc)
//! ```
//!
//! Invariant: each operand is read once and the destination written once, `count` values each (only
//! integer averages pass over the destination again).

use std::mem::MaybeUninit;
use std::ptr;

use super::Operand;
use super::lane::{Lane, Path, Portable};
use super::scalar::{Accumulate, Operation};
use crate::plan::types::Form;

/// One call of a kernel.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) dst: *mut u8,
    pub(super) dst_form: Form,
    /// The number of ranks, where the result is to be divided by it.
    pub(super) average_over: Option<u32>,
    pub(super) first: Operand,
    pub(super) rest: &'a [Operand],
    pub(super) count: usize,
}

impl Job<'_> {
    /// Whether every operand is plain elements: the common case.
    fn plain<E: Lane>(&self) -> bool {
        let plain = |operand: &Operand| {
            operand.scale.is_none()
                && (operand.form == Form::Element || size_of::<E>() == size_of::<E::Accumulator>())
        };
        plain(&self.first) && self.rest.iter().all(plain)
    }
}

/// So few values are quicker one by one than padded to a chunk.
const FEW: usize = 4;

/// Runs a job in chunks of `N` values.
///
/// # Safety
///
/// - As for [`Kernel::reduce`](super::Kernel::reduce), for elements of type `E`.
/// - The processor has what `P` needs.
#[inline(always)]
pub(super) unsafe fn fold<P, E, O, const N: usize>(job: &Job<'_>)
where
    P: Path,
    E: Lane,
    O: Operation<E::Accumulator>,
{
    let plain = job.plain::<E>();
    let whole = job.count - job.count % N;
    let mut start = 0;
    if plain {
        while start < whole {
            // SAFETY: the caller's promise; the chunk ends within `count`.
            unsafe { plain_chunk::<P, E, O, N>(job, start) };
            start += N;
        }
    } else {
        while start < whole {
            // SAFETY: the caller's promise; the chunk ends within `count`.
            unsafe { mixed_chunk::<P, E, O, N, false>(job, start) };
            start += N;
        }
    }
    if job.count - start <= FEW {
        while start < job.count {
            // SAFETY: the caller's promise; the value is one of `count`.
            unsafe { mixed_chunk::<Portable, E, O, 1, false>(job, start) };
            start += 1;
        }
    } else {
        // SAFETY: the caller's promise; the chunk reads and writes up to `count` only.
        unsafe { mixed_chunk::<P, E, O, N, true>(job, start) };
    }
}

/// Divides the `count` sums at `sums` by the number of ranks: the finish of integer averages.
///
/// A division that is no vector code would have the compiler keep the accumulators of [`fold`] in
/// memory, for plain sums too; so it stands apart, in a second pass.
///
/// # Safety
///
/// `sums` is valid for reading and writing `count` values (unaligned).
pub(super) unsafe fn average<A: Accumulate>(sums: *mut u8, ranks: u32, count: usize) {
    let sums = sums.cast::<A>();
    for i in 0..count {
        let at = sums.wrapping_add(i);
        // SAFETY: `i < count`.
        let sum = unsafe { at.read_unaligned() };
        // SAFETY: as above.
        unsafe { at.write_unaligned(sum.average(ranks)) };
    }
}

/// One whole chunk of plain elements.
///
/// # Safety
///
/// As for [`fold`]; `start + N <= count`.
#[inline(always)]
unsafe fn plain_chunk<P, E, O, const N: usize>(job: &Job<'_>, start: usize)
where
    P: Path,
    E: Lane,
    O: Operation<E::Accumulator>,
{
    let offset = start * size_of::<E>();
    let mut sums = [E::Accumulator::ZERO; N];
    // SAFETY: an operand is valid for `count` values, and `start + N <= count`.
    unsafe { E::load::<P, N>(job.first.address.wrapping_add(offset).cast(), &mut sums) };
    for operand in job.rest {
        let mut values = [E::Accumulator::ZERO; N];
        // SAFETY: as above.
        unsafe { E::load::<P, N>(operand.address.wrapping_add(offset).cast(), &mut values) };
        combine::<E, O, N>(&mut sums, &values);
    }
    // SAFETY: the destination is valid for `count` values, and `start + N <= count`.
    unsafe { finish::<P, E, O, N, false>(job, start, &mut sums) };
}

/// One chunk of operands of any form, each with its scalar; with `TAIL`, the last `count - start`
/// values only.
///
/// # Safety
///
/// As for [`fold`]; `start + N <= count`, or with `TAIL`, `start < count`.
#[inline(always)]
unsafe fn mixed_chunk<P, E, O, const N: usize, const TAIL: bool>(job: &Job<'_>, start: usize)
where
    P: Path,
    E: Lane,
    O: Operation<E::Accumulator>,
{
    let mut sums = [E::Accumulator::ZERO; N];
    // SAFETY: the caller's promise.
    unsafe { read::<P, E, O, N, TAIL>(job, &job.first, start, &mut sums) };
    for operand in job.rest {
        let mut values = [E::Accumulator::ZERO; N];
        // SAFETY: the caller's promise.
        unsafe { read::<P, E, O, N, TAIL>(job, operand, start, &mut values) };
        combine::<E, O, N>(&mut sums, &values);
    }
    // SAFETY: the caller's promise.
    unsafe { finish::<P, E, O, N, TAIL>(job, start, &mut sums) };
}

#[inline(always)]
fn combine<E: Lane, O: Operation<E::Accumulator>, const N: usize>(
    sums: &mut [E::Accumulator; N],
    values: &[E::Accumulator; N],
) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum = O::combine(*sum, *value);
    }
}

/// Widens a chunk of an operand and multiplies it by its scalar.
///
/// # Safety
///
/// As for [`mixed_chunk`].
#[inline(always)]
unsafe fn read<P, E, O, const N: usize, const TAIL: bool>(
    job: &Job<'_>,
    operand: &Operand,
    start: usize,
    values: &mut [E::Accumulator; N],
) where
    P: Path,
    E: Lane,
    O: Operation<E::Accumulator>,
{
    match operand.form {
        // SAFETY: the caller's promise.
        Form::Element => unsafe { load::<P, E, N, TAIL>(job, operand.address, start, values) },
        Form::Accumulator => {
            // SAFETY: the caller's promise.
            unsafe { load::<P, E::Accumulator, N, TAIL>(job, operand.address, start, values) }
        }
    }
    if O::SCALES
        && let Some(scale) = operand.scale
    {
        let scale = E::Accumulator::from_low_bits(scale.bits());
        for value in values {
            *value = value.mul(scale);
        }
    }
}

/// Room for one chunk.
type Padded<L, const N: usize> = MaybeUninit<[L; N]>;

/// # Safety
///
/// As for [`mixed_chunk`], with values of type `L` at `address`.
#[inline(always)]
unsafe fn load<P: Path, L: Lane, const N: usize, const TAIL: bool>(
    job: &Job<'_>,
    address: *const u8,
    start: usize,
    values: &mut [L::Accumulator; N],
) {
    let source = address.cast::<L>().wrapping_add(start);
    if TAIL {
        let mut padded = Padded::<L, N>::zeroed();
        let bytes = (job.count - start) * size_of::<L>();
        // SAFETY:
        // - `source` has `count - start` values left, which is less than `N`;
        // - `padded` is a local of `N` values, so they do not overlap.
        unsafe { ptr::copy_nonoverlapping(source.cast::<u8>(), padded.as_mut_ptr().cast(), bytes) };
        // SAFETY: `padded` has `N` values, all of them initialised.
        unsafe { L::load::<P, N>(padded.as_ptr().cast(), values) };
    } else {
        // SAFETY: `start + N <= count`.
        unsafe { L::load::<P, N>(source, values) };
    }
}

/// # Safety
///
/// As for [`mixed_chunk`], with values of type `L` at `address`.
#[inline(always)]
unsafe fn store<P: Path, L: Lane, const N: usize, const TAIL: bool>(
    job: &Job<'_>,
    address: *mut u8,
    start: usize,
    values: &[L::Accumulator; N],
) {
    let target = address.cast::<L>().wrapping_add(start);
    if TAIL {
        let mut padded = Padded::<L, N>::uninit();
        // SAFETY: `padded` has room for `N` values.
        unsafe { L::store::<P, N>(values, padded.as_mut_ptr().cast()) };
        let bytes = (job.count - start) * size_of::<L>();
        // SAFETY:
        // - `target` has room for `count - start` values, which is less than `N`;
        // - `padded` is a local of `N` values, so they do not overlap.
        unsafe { ptr::copy_nonoverlapping(padded.as_ptr().cast(), target.cast::<u8>(), bytes) };
    } else {
        // SAFETY: `start + N <= count`.
        unsafe { L::store::<P, N>(values, target) };
    }
}

/// Divides, rounds and writes a chunk.
///
/// # Safety
///
/// As for [`mixed_chunk`].
#[inline(always)]
unsafe fn finish<P, E, O, const N: usize, const TAIL: bool>(
    job: &Job<'_>,
    start: usize,
    sums: &mut [E::Accumulator; N],
) where
    P: Path,
    E: Lane,
    O: Operation<E::Accumulator>,
{
    if O::AVERAGES
        && E::Accumulator::DIVIDES
        && let Some(ranks) = job.average_over
    {
        for sum in sums.iter_mut() {
            *sum = sum.average(ranks);
        }
    }
    match job.dst_form {
        // SAFETY: the caller's promise.
        Form::Element => unsafe { store::<P, E, N, TAIL>(job, job.dst, start, sums) },
        Form::Accumulator => {
            // SAFETY: the caller's promise.
            unsafe { store::<P, E::Accumulator, N, TAIL>(job, job.dst, start, sums) }
        }
    }
}
