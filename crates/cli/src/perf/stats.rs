//! From measured times to the numbers of the table.

use serde::Serialize;

/// How the ranks' times become one (`-a`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Average {
    Rank0,
    Mean,
    Least,
    Greatest,
}

impl Average {
    /// The meaning of the number given to `-a`.
    pub(crate) fn from_option(number: u8) -> Self {
        match number {
            0 => Self::Rank0,
            2 => Self::Least,
            3 => Self::Greatest,
            _ => Self::Mean,
        }
    }

    /// One number of all ranks'.
    pub(crate) fn of(self, ranks: &[f64]) -> f64 {
        match self {
            Self::Rank0 => ranks.first().copied().unwrap_or(0.0),
            Self::Mean => mean(ranks),
            Self::Least => ranks.iter().copied().reduce(f64::min).unwrap_or(0.0),
            Self::Greatest => greatest(ranks),
        }
    }
}

/// The greatest time, and the first rank that has it; 0 for none.
pub(crate) fn slowest(times: &[f64]) -> (u32, f64) {
    let greatest = greatest(times);
    let rank = times.iter().position(|time| *time >= greatest).unwrap_or(0);
    (u32::try_from(rank).unwrap_or(u32::MAX), greatest)
}

/// The greatest value, 0 for none.
pub(crate) fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / as_float(values.len().max(1))
}

/// A count as a floating-point number; counts here are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts and sizes stay far below 2^53")]
pub(crate) fn as_float(count: usize) -> f64 {
    count as f64
}

/// Gigabytes (10^9) per second; 0 rather than a quotient that is no number.
pub(crate) fn gigabytes_per_second(bytes: usize, seconds: f64) -> f64 {
    if bytes == 0 || seconds <= 0.0 { 0.0 } else { as_float(bytes) / 1e9 / seconds }
}

/// The distribution of single iterations' times, in microseconds (`-I`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct IterationStats {
    pub(crate) min_us: f64,
    pub(crate) max_us: f64,
    pub(crate) avg_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p95_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) stdev_us: f64,
    /// Standard deviation as a percentage of the average.
    pub(crate) cv_pct: f64,
}

impl IterationStats {
    /// The distribution of times in seconds; nearest-rank percentiles, as nccl-tests has them.
    pub(crate) fn new(seconds: &[f64]) -> Self {
        let mut sorted: Vec<f64> = seconds.iter().map(|seconds| seconds * 1e6).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let at = |index: usize| sorted.get(index.min(count.saturating_sub(1))).copied();
        let percentile =
            |percent: usize| at(((count * percent).div_ceil(100)).saturating_sub(1)).unwrap_or(0.0);
        let avg_us = mean(&sorted);
        let squares: Vec<f64> = sorted.iter().map(|time| (time - avg_us).powi(2)).collect();
        let stdev_us = mean(&squares).sqrt();
        Self {
            min_us: at(0).unwrap_or(0.0),
            max_us: at(count).unwrap_or(0.0),
            avg_us,
            p50_us: at(count / 2).unwrap_or(0.0),
            p95_us: percentile(95),
            p99_us: percentile(99),
            stdev_us,
            cv_pct: if avg_us > 0.0 { stdev_us / avg_us * 100.0 } else { 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_of_ranks() {
        let times = [2.0, 1.0, 6.0];
        for (option, expected) in [(0, 2.0), (1, 3.0), (2, 1.0), (3, 6.0)] {
            assert_eq!(Average::from_option(option).of(&times), expected, "-a {option}");
        }
    }

    #[test]
    fn the_slowest_rank_is_the_first_of_the_slowest() {
        assert_eq!(slowest(&[1.0, 3.0, 3.0]), (1, 3.0));
        assert_eq!(slowest(&[]), (0, 0.0));
    }

    #[test]
    fn bandwidth_is_never_infinite() {
        assert_eq!(gigabytes_per_second(2_000_000_000, 1.0), 2.0);
        assert_eq!(gigabytes_per_second(0, 0.0), 0.0);
        assert_eq!(gigabytes_per_second(8, 0.0), 0.0);
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let seconds: Vec<f64> = (1..=200).map(|i| f64::from(i) * 1e-6).collect();
        let stats = IterationStats::new(&seconds);
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        assert_eq!(rounded(stats.min_us), 1.0);
        assert_eq!(rounded(stats.max_us), 200.0);
        assert_eq!(rounded(stats.p50_us), 101.0);
        assert_eq!(rounded(stats.p95_us), 190.0);
        assert_eq!(rounded(stats.p99_us), 198.0);
        assert_eq!(rounded(stats.avg_us), 100.5);
        assert_eq!(IterationStats::new(&[]).max_us, 0.0);
    }
}
