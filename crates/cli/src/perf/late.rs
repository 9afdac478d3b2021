//! Who came last to calls, and who was in them for longest, by the times of all ranks. Pure.
//!
//! Nobody leaves a call in which all wait for all before the last has come, so whoever was in it for the shortest time came last,
//! by as much as the longest was in it for longer. No clock is compared with another. `ringway why` goes by the same rule.

use serde::Serialize;

/// Ranks came apart to a call where the longest was in it for so much longer than the shortest: seconds, and a part of the longest.
const APART_S: f64 = 20e-6;
const APART_PART: f64 = 0.1;

/// Calls to which ranks came apart before anybody is named.
const CALLS_LEAST: u64 = 16;
/// A rank is late that came last to such a part of those calls, where its being late takes such a part of the time.
const LAST_PART: f64 = 0.75;
const LATE_PART: f64 = 0.05;
/// And it came last more often than by chance, by so many standard deviations.
const DEVIATIONS: f64 = 4.0;

/// One rank in all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct OfRank {
    /// To how many calls it came last, of those to which ranks came apart.
    pub(crate) last: u64,
    /// In how many calls it was for longest.
    pub(crate) longest: u64,
    /// How late it was altogether, in seconds.
    pub(crate) late_s: f64,
}

/// All ranks in all calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) ranks: Vec<OfRank>,
    /// Calls seen.
    pub(crate) calls: u64,
    /// Those to which ranks came apart.
    pub(crate) apart: u64,
    /// What the longest of all calls took together.
    total_s: f64,
}

/// A rank that the others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Late {
    pub(crate) rank: usize,
    /// To how many calls it came last, of how many.
    pub(crate) last: u64,
    pub(crate) calls: u64,
    /// How late it was in the mean of those, in microseconds.
    pub(crate) late_us: f64,
    /// How late it was altogether, as a percentage of the time.
    pub(crate) percent: f64,
}

impl Tally {
    pub(crate) fn new(ranks: usize) -> Self {
        Self { ranks: vec![OfRank::default(); ranks], ..Self::default() }
    }

    /// One call: for how many seconds each rank was in it.
    pub(crate) fn add(&mut self, seconds: &[f64]) {
        let Some((longest, &most)) = seconds.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))
        else {
            return;
        };
        self.calls += 1;
        self.total_s += most;
        if let Some(rank) = self.ranks.get_mut(longest) {
            rank.longest += 1;
        }
        let least = seconds.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
        let Some((last, &least)) = least.filter(|(_, least)| is_apart(**least, most)) else {
            return;
        };
        self.apart += 1;
        for (rank, seconds) in self.ranks.iter_mut().zip(seconds) {
            rank.late_s += most - seconds;
        }
        debug_assert!(least <= most);
        if let Some(rank) = self.ranks.get_mut(last) {
            rank.last += 1;
        }
    }

    /// The rank that the others wait for, where one is late over and over.
    pub(crate) fn late(&self) -> Option<Late> {
        let (rank, found) = self.ranks.iter().enumerate().max_by_key(|(_, one)| one.last)?;
        let (last, apart) = (as_float(found.last), as_float(self.apart));
        let chance = 1.0 / as_float(self.ranks.len() as u64);
        let by_chance =
            chance * apart + DEVIATIONS * (chance * (1.0 - chance) * apart).max(0.0).sqrt();
        let part = found.late_s / self.total_s.max(f64::MIN_POSITIVE);
        let is_late = self.apart >= CALLS_LEAST
            && last >= LAST_PART * apart
            && last >= by_chance
            && part >= LATE_PART;
        is_late.then(|| Late {
            rank,
            last: found.last,
            calls: self.apart,
            late_us: found.late_s / apart * 1e6,
            percent: part * 100.0,
        })
    }

    /// The rank that was in most calls for longest, and in how many.
    pub(crate) fn longest(&self) -> Option<(usize, u64)> {
        let ranks = self.ranks.iter().enumerate();
        ranks.map(|(rank, one)| (rank, one.longest)).max_by_key(|(_, times)| *times)
    }
}

fn is_apart(least: f64, most: f64) -> bool {
    most - least >= APART_S.max(APART_PART * most)
}

#[expect(clippy::cast_precision_loss, reason = "counts of calls")]
fn as_float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Calls of some 200 us in which ranks come up to `noise_us` apart by chance; one comes `late_us` after them.
    fn tally(
        ranks: usize,
        calls: u64,
        noise_us: f64,
        late: Option<(usize, f64)>,
        seed: u64,
    ) -> Tally {
        let mut rng = ringway_plan::rng::Random::new(seed);
        let mut tally = Tally::new(ranks);
        for _ in 0..calls {
            #[expect(clippy::cast_precision_loss, reason = "a random number")]
            let mut chance = || (rng.bits() >> 11) as f64 / (1_u64 << 53) as f64;
            let came: Vec<f64> = (0..ranks)
                .map(|rank| {
                    let own = late.filter(|(who, _)| *who == rank).map_or(0.0, |(_, us)| us);
                    chance() * noise_us + own
                })
                .collect();
            let end = came.iter().copied().fold(0.0, f64::max) + 200.0;
            let times: Vec<f64> = came.iter().map(|came| (end - came) * 1e-6).collect();
            tally.add(&times);
        }
        tally
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_late_rank_is_found_in_noise(ranks in 2_usize..9, who in 0_usize..9, seed: u64) {
            let who = who % ranks;
            let late = tally(ranks, 400, 60.0, Some((who, 150.0)), seed).late();
            let late = late.expect("it is 150 us late");
            prop_assert_eq!(late.rank, who);
            prop_assert!(late.late_us > 80.0 && late.late_us < 220.0, "{:?}", late);
        }

        #[test]
        fn noise_has_no_late_rank(ranks in 2_usize..9, calls in 1_u64..400, noise in 0.0..500.0_f64, seed: u64) {
            prop_assert_eq!(tally(ranks, calls, noise, None, seed).late(), None);
        }
    }

    #[test]
    fn little_is_not_late() {
        assert_eq!(tally(4, 400, 1.0, Some((2, 10.0)), 1).late(), None, "10 us");
        assert_eq!(tally(4, 15, 1.0, Some((2, 500.0)), 1).late(), None, "few calls");
        assert_eq!(Tally::new(0).late(), None);
        assert_eq!(Tally::new(0).longest(), None);
        let one = tally(1, 400, 50.0, None, 1);
        assert_eq!((one.late(), one.longest()), (None, Some((0, 400))));
    }
}
