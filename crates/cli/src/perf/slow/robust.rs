//! Statistics that a few wild values do not move. What else runs on machines only ever makes a call slower: so where two values
//! could stand for many, the lower one does.
//!
//! *Invariant*: every function is total; of nothing they make 0.

/// So many deviations from what is usual is far out.
const FAR: f64 = 4.0;
/// What the median deviation has to be multiplied with to be the standard deviation of a normal distribution.
const NORMAL: f64 = 1.4826;
/// Values that differ by less than this part are alike, however alike the others are.
const ALIKE: f64 = 0.02;

/// The value below which the part `part` of all lies, the lower one where it lies between two.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the number of values"
    )]
    let at = (last as f64 * part.clamp(0.0, 1.0)).floor() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// The value in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// What is too much: so many times what is usual, and so much more than it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) times: f64,
    pub(crate) more: f64,
}

impl Bar {
    /// How many times the usual a value is, where that is too much.
    pub(crate) fn exceeded(self, value: f64, usual: f64) -> Option<f64> {
        let times = value / usual;
        let is_more = times.is_finite() && times >= self.times && value - usual >= self.more;
        is_more.then_some(times)
    }
}

/// What is usual among values, and how far they are from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usual {
    middle: f64,
    deviation: f64,
}

impl Usual {
    /// Of these values.
    pub(crate) fn of(values: &[f64]) -> Self {
        let middle = median(values);
        let off: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
        let deviation = (median(&off) * NORMAL).max(middle.abs() * ALIKE);
        Self { middle, deviation }
    }

    /// How many times the usual a value is, if that is too much and far out.
    pub(crate) fn exceeded(&self, value: f64, bar: Bar) -> Option<f64> {
        let is_far = value - self.middle >= FAR * self.deviation;
        bar.exceeded(value, self.middle).filter(|_| is_far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_of_two_stands_for_both() {
        assert!((median(&[4.0, 1.0, 3.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25) - 2.0).abs() < 1e-9);
        assert!(quantile(&[f64::NAN, f64::INFINITY], 0.5).abs() < 1e-9);
    }

    #[test]
    fn one_wild_value_is_far_out_and_moves_nothing() {
        let bar = Bar { times: 1.35, more: 0.0 };
        let values = [1.0, 1.01, 0.99, 1.02, 1.0, 90.0];
        let usual = Usual::of(&values);
        assert!(usual.exceeded(90.0, bar).is_some_and(|times| times > 80.0));
        assert_eq!(usual.exceeded(1.2, bar), None);
        // Where values are all over the place nothing is far out.
        let wild = Usual::of(&[1.0, 1.5, 2.0, 0.7, 1.2, 1.9]);
        assert_eq!(wild.exceeded(2.0, bar), None);
        assert_eq!(usual.exceeded(90.0, Bar { more: 100.0, ..bar }), None);
        assert_eq!(Usual::of(&[]).exceeded(1.0, bar), None);
    }
}
