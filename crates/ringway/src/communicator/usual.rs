//! How long a call usually takes, and the deadline that follows from it: the median of its last times and so many times their
//! spread (the median of how far they are from the median), which one slow call does not move.

use std::time::Duration;

/// Times that are kept.
const KEPT: usize = 32;

/// Times that must be known before they say anything.
const LEAST: usize = 8;

/// No call is given up sooner, nor is the spread taken to be less than a thousandth of that: calls that always take
/// the same have none.
pub(super) const SOONEST: Duration = Duration::from_secs(1);

/// The last times of one call.
#[derive(Debug, Default)]
pub(super) struct Usual {
    times: [Duration; KEPT],
    /// How often it was made.
    made: usize,
}

impl Usual {
    /// It took so long.
    pub(super) fn add(&mut self, took: Duration) {
        self.times[self.made % KEPT] = took;
        self.made = if self.made == usize::MAX { KEPT } else { self.made + 1 };
    }

    /// The deadline with so many times the spread; `most` until enough is known, and at most.
    pub(super) fn deadline(&self, spreads: u32, most: Duration) -> Duration {
        let known = self.made.min(KEPT);
        if known < LEAST {
            return most;
        }
        let mut times = self.times;
        let times = &mut times[..known];
        let middle = median(times);
        times.iter_mut().for_each(|time| *time = time.abs_diff(middle));
        let spread = median(times).max(SOONEST / 1_000);
        middle.saturating_add(spread.saturating_mul(spreads)).max(SOONEST).min(most)
    }
}

fn median(times: &mut [Duration]) -> Duration {
    let middle = times.len() / 2;
    *times.select_nth_unstable(middle).1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, Environment};
    use crate::error::ErrorKind;
    use crate::testing::world_with;

    const MOST: Duration = Duration::from_secs(600);

    fn usual(times_ms: impl IntoIterator<Item = u64>) -> Usual {
        let mut usual = Usual::default();
        times_ms.into_iter().for_each(|ms| usual.add(Duration::from_millis(ms)));
        usual
    }

    #[test]
    fn the_deadline_is_the_median_and_so_many_spreads() {
        let times = (0..20).map(|at| 2_000 + 100 * (at % 2));
        assert_eq!(usual(times).deadline(10, MOST), Duration::from_millis(2_100 + 10 * 100));
        // The slow one does not count.
        let times = [2_000, 2_100, 2_000, 2_100, 2_000, 2_100, 2_000, 2_100, 300_000];
        assert_eq!(usual(times).deadline(10, MOST), Duration::from_millis(2_100 + 10 * 100));
    }

    #[test]
    fn it_is_neither_too_soon_nor_later_than_asked_for() {
        assert_eq!(usual([1; 32]).deadline(10, MOST), SOONEST);
        assert_eq!(usual([1; 7]).deadline(10, MOST), MOST, "too few are known");
        assert_eq!(usual([500_000; 32]).deadline(u32::MAX, MOST), MOST);
        // Times change, and what they were is forgotten.
        let later = usual(std::iter::repeat_n(1, 100).chain([5_000; KEPT]));
        assert_eq!(later.deadline(1_000, MOST), Duration::from_secs(6));
    }

    #[test]
    fn a_rank_that_does_not_come_as_usual_is_named_soon() {
        let settings = [("RINGWAY_ADAPTIVE_TIMEOUT", "20"), ("RINGWAY_TIMEOUT", "10m")];
        let config = Config::load(&Environment::new(settings));
        let over = std::sync::Barrier::new(3);
        world_with(3, &config, |comm| {
            let usual: Vec<_> = (0..LEAST).map(|_| comm.barrier()).collect();
            let late = (comm.rank() != 1).then(|| comm.barrier());
            over.wait();
            assert!(usual.iter().all(Result::is_ok), "{usual:?}");
            if let Some(late) = late {
                let error = late.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
                assert_eq!(error.culprits()[0].rank, 1, "{error}");
            }
        });
    }
}
