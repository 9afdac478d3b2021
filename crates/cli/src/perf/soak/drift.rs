//! Does it become slower, and does it stop at regular times? From bounded records of a long run. Pure.
//!
//! The slope is Theil and Sen's: the median of the slopes of all pairs of windows, which a few bad windows do not move. It counts where
//! Mann and Kendall's test says that the order of the windows is no chance, and the last quarter says the same.

use serde::Serialize;

/// Windows that must have passed before anything is said.
pub(crate) const WINDOWS_LEAST: usize = 8;
/// Points that are compared with each other; more are taken together.
const POINTS_MOST: usize = 300;
/// So many standard deviations are no chance.
const DEVIATIONS: f64 = 3.0;

/// How a value changed from the beginning to the end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Drift {
    /// By the slope, in percent of the median.
    pub(crate) percent: f64,
    /// From the median of the first quarter to that of the last.
    pub(crate) quarters_percent: f64,
    /// Whether it is no chance.
    pub(crate) certain: bool,
}

impl Drift {
    /// Whether the value grew by more than `limit` percent.
    pub(crate) fn exceeds(&self, limit: f64) -> bool {
        self.certain && self.percent > limit && self.quarters_percent > limit
    }
}

/// The drift of values over time; nothing where there are too few.
pub(crate) fn drift(points: &[(f64, f64)]) -> Option<Drift> {
    if points.len() < WINDOWS_LEAST {
        return None;
    }
    let points = thinned(points);
    let values: Vec<f64> = points.iter().map(|point| point.1).collect();
    let middle = median(&values).filter(|middle| *middle > 0.0)?;
    let (mut slopes, mut order) = (Vec::new(), 0_i64);
    for (at, early) in points.iter().enumerate() {
        for late in &points[at + 1..] {
            let seconds = late.0 - early.0;
            if seconds > 0.0 {
                slopes.push((late.1 - early.1) / seconds);
            }
            order += i64::from(late.1 > early.1) - i64::from(late.1 < early.1);
        }
    }
    let span = points.last()?.0 - points.first()?.0;
    let percent = median(&slopes)? * span / middle * 100.0;
    let quarter = values.len() / 4;
    let first = median(&values[..quarter])?;
    let last = median(&values[values.len() - quarter..])?;
    let quarters_percent = (last / first.max(f64::MIN_POSITIVE) - 1.0) * 100.0;
    let count = as_float(values.len());
    let deviation = (count * (count - 1.0) * (2.0 * count + 5.0) / 18.0).sqrt();
    #[expect(clippy::cast_precision_loss, reason = "at most the number of pairs")]
    let order = order as f64;
    let same_way = percent.signum() == quarters_percent.signum();
    let certain = same_way && (order.abs() - 1.0) / deviation >= DEVIATIONS;
    Some(Drift { percent, quarters_percent, certain })
}

/// Medians of neighbours, where there are very many.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(POINTS_MOST).max(1);
    let group = |group: &[(f64, f64)]| {
        let values: Vec<f64> = group.iter().map(|point| point.1).collect();
        Some((group.get(group.len() / 2)?.0, median(&values)?))
    };
    points.chunks(each).filter_map(group).collect()
}

/// The middle of some values that are numbers.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let middle = sorted.len() / 2;
    if sorted.is_empty() {
        return None;
    }
    let (_, found, _) = sorted.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*found)
}

/// Moments that must be known before a period is looked for, and the part of their distances that must be about the same.
const MOMENTS_LEAST: usize = 8;
const ALIKE_PART: f64 = 0.7;
const ALIKE: f64 = 0.15;

/// The seconds from one moment to the next, where most are about as far apart.
pub(crate) fn period(moments: &[f64]) -> Option<f64> {
    if moments.len() < MOMENTS_LEAST {
        return None;
    }
    let apart: Vec<f64> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let usual = median(&apart).filter(|usual| *usual > 0.0)?;
    let alike = apart.iter().filter(|one| (*one / usual - 1.0).abs() <= ALIKE).count();
    (as_float(alike) >= ALIKE_PART * as_float(apart.len())).then_some(usual)
}

#[expect(clippy::cast_precision_loss, reason = "counts of windows")]
fn as_float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringway_plan::rng::Random;

    use super::*;

    /// Windows of about 100 us that vary by chance, a tenth of them by a lot, and grow by `percent` from first to last.
    fn windows(count: usize, noise_percent: f64, percent: f64, seed: u64) -> Vec<(f64, f64)> {
        let mut rng = Random::new(seed);
        let mut chance =
            || f64::from(u32::try_from(rng.bits() >> 32).unwrap()) / f64::from(u32::MAX);
        (0..count)
            .map(|at| {
                let share = at as f64 / (count - 1) as f64;
                let outlier = if chance() < 0.1 { 3.0 * chance() } else { 0.0 };
                let noise = (chance() - 0.5) * 2.0 * noise_percent / 100.0;
                (
                    at as f64 * 10.0,
                    100.0 * (1.0 + percent / 100.0 * share) * (1.0 + noise + outlier),
                )
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn planted_drift_is_found(count in 24_usize..1200, grows in 20.0..80.0_f64, seed: u64) {
            let found = drift(&windows(count, 4.0, grows, seed)).unwrap();
            prop_assert!(found.exceeds(10.0), "{:?} of {}", found, grows);
            // It is that of the middle window, which has grown by half.
            let expected = grows / (1.0 + grows / 200.0);
            prop_assert!((found.percent - expected).abs() < 0.35 * expected, "{:?} of {}", found, expected);
        }

        #[test]
        fn noise_does_not_drift(count in 8_usize..1200, noise in 0.0..8.0_f64, seed: u64) {
            let found = drift(&windows(count, noise, 0.0, seed)).unwrap();
            prop_assert!(!found.exceeds(10.0), "{:?}", found);
        }

        #[test]
        fn becoming_faster_is_no_fault(count in 24_usize..300, seed: u64) {
            prop_assert!(!drift(&windows(count, 4.0, -30.0, seed)).unwrap().exceeds(10.0));
        }

        #[test]
        fn hiccups_at_regular_times_are_seen(every in 0.5..100.0_f64, seed: u64) {
            let mut rng = Random::new(seed);
            let jitter: Vec<f64> = (0..40).map(|_| rng.below(100) as f64 / 2000.0).collect();
            let moments: Vec<f64> =
                jitter.iter().enumerate().map(|(at, off)| (at as f64 + off) * every).collect();
            let found = period(&moments).expect("they are regular");
            prop_assert!((found / every - 1.0).abs() < 0.1, "{} of {}", found, every);
        }

        #[test]
        fn hiccups_by_chance_have_no_period(seed: u64) {
            let mut rng = Random::new(seed);
            let mut at = 0.0;
            // Distances of waiting times: most are short, a few are long.
            let moments: Vec<f64> = (0..60)
                .map(|_| {
                    at -= ((rng.below(1_000_000) + 1) as f64 / 1e6).ln() * 10.0;
                    at
                })
                .collect();
            prop_assert_eq!(period(&moments), None);
        }
    }

    #[test]
    fn few_or_odd_windows_say_nothing() {
        assert_eq!(drift(&windows(7, 1.0, 50.0, 1)), None);
        assert_eq!(drift(&[]), None);
        assert_eq!(drift(&[(1.0, 0.0); 20]), None);
        assert_eq!(drift(&[(0.0, f64::NAN); 20]), None);
        let still = drift(&[(5.0, 3.0); 20]);
        assert!(still.is_none_or(|drift| !drift.certain));
        assert_eq!(period(&[1.0; 20]), None);
        assert_eq!(median(&[]), None);
    }
}
