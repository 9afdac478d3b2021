//! How long calls took, counted in a bounded number of buckets that are right to a thirtieth.
//!
//! ```text
//!   0 1 2 … 31 ns: a bucket each     then 32 to each doubling, up to 2^46 ns (19 hours); longer ones are in the last
//! ```

/// Buckets of each doubling, as a power of two.
const PARTS_BITS: u32 = 5;
const PARTS: u32 = 1 << PARTS_BITS;
/// The first power of two, in nanoseconds, that is past the last bucket.
const BITS: u32 = 46;

/// Buckets in all.
pub(crate) const BUCKETS: usize = ((BITS - PARTS_BITS + 1) * PARTS) as usize;

/// Counts of times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS] }
    }
}

impl Histogram {
    /// From counts that were added up; [`BUCKETS`] of them.
    pub(crate) fn from_counts(counts: &[u64]) -> Self {
        let mut all = Self::default();
        all.counts.iter_mut().zip(counts).for_each(|(own, more)| *own = *more);
        all
    }

    pub(crate) fn counts(&self) -> &[u64] {
        &self.counts
    }

    pub(crate) fn add(&mut self, seconds: f64) {
        self.counts[bucket(seconds)] += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own = own.saturating_add(*more);
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The time that so many of a million do not pass, in seconds; 0 where nothing was counted.
    pub(crate) fn per_million(&self, millionths: u32) -> f64 {
        let total = u128::from(self.total());
        let wanted = (total * u128::from(millionths)).div_ceil(1_000_000).max(1);
        let mut passed = 0_u128;
        for (at, count) in self.counts.iter().enumerate() {
            passed += u128::from(*count);
            if passed >= wanted {
                return middle(at);
            }
        }
        0.0
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what has a bucket"
)]
fn bucket(seconds: f64) -> usize {
    let last = (1_u64 << BITS) - 1;
    let ns = (seconds * 1e9).clamp(0.0, 1e15) as u64;
    let ns = ns.min(last);
    if ns < u64::from(PARTS) {
        return ns as usize;
    }
    let power = ns.ilog2();
    let part = (ns >> (power - PARTS_BITS)) - u64::from(PARTS);
    ((power - PARTS_BITS + 1) * PARTS) as usize + part as usize
}

/// The middle of a bucket, in seconds.
fn middle(bucket: usize) -> f64 {
    let (doubling, part) = (bucket / PARTS as usize, bucket % PARTS as usize);
    let parts = f64::from(u32::try_from(part).unwrap_or(0));
    if doubling == 0 {
        return parts * 1e-9;
    }
    let width = 2_f64.powi(i32::try_from(doubling).unwrap_or(0) - 1);
    (f64::from(PARTS) + parts + 0.5) * width * 1e-9
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_time_is_in_a_bucket_that_is_right_to_a_thirtieth(exponent in -9.0..4.5_f64) {
            let seconds = 10_f64.powf(exponent);
            let mut one = Histogram::default();
            one.add(seconds);
            let found = one.per_million(500_000);
            prop_assert!((found - seconds).abs() <= seconds / 30.0 + 1e-9, "{} for {}", found, seconds);
        }
    }

    #[test]
    fn percentiles_are_those_of_all() {
        let mut all = Histogram::default();
        for us in 1..=1000 {
            let mut one = Histogram::default();
            one.add(f64::from(us) * 1e-6);
            all.merge(&one);
        }
        assert_eq!(all.total(), 1000);
        for (millionths, us) in
            [(500_000, 500.0), (990_000, 990.0), (999_000, 999.0), (1_000_000, 1000.0)]
        {
            let found = all.per_million(millionths) * 1e6;
            assert!((found / us - 1.0).abs() < 0.04, "{millionths}: {found}");
        }
        assert_eq!(Histogram::from_counts(all.counts()), all);
    }

    #[test]
    fn odd_times_have_a_bucket_too() {
        let mut all = Histogram::default();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            all.add(seconds);
        }
        assert_eq!(all.total(), 5);
        assert_eq!(Histogram::default().per_million(500_000), 0.0);
    }
}
