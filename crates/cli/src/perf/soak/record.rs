//! What is kept of a long run, and what follows from it. Its size has a bound, however long the run is.

use serde::Serialize;

use super::drift::{self, Drift, WINDOWS_LEAST};
use super::histogram::Histogram;
use crate::perf::late::{Late, Tally};

/// A call that takes so many times the median, and so many seconds more, is a hiccup.
const HICCUP_TIMES: f64 = 5.0;
const HICCUP_S: f64 = 1e-3;
/// Moments of hiccups that are kept, the first ones.
const HICCUPS_MOST: usize = 4096;

/// One window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Window {
    /// When it began, in seconds of the run.
    pub(crate) at_s: f64,
    pub(crate) seconds: f64,
    /// Calls, each by all ranks.
    pub(crate) calls: u64,
    /// Times in calls, of all ranks.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// Bus bandwidth of the mean call, in GB/s.
    pub(crate) busbw_gbs: f64,
    /// Wrong values of the calls that were checked; nothing where none was.
    pub(crate) wrong: Option<u64>,
}

/// Everything that is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) windows: Vec<Window>,
    pub(crate) times: Histogram,
    pub(crate) max_s: f64,
    pub(crate) tally: Tally,
    /// For how long others slept in calls while they waited for each rank, in seconds of all of them.
    pub(crate) waited_s: Vec<f64>,
    /// When calls took far longer than usual, in seconds of the run.
    hiccups: Vec<f64>,
    hiccup_count: u64,
    /// What ended the run before its time.
    pub(crate) errors: Vec<String>,
}

/// What is said of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) calls: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// How the median of windows changed; nothing where they are too few.
    pub(crate) drift: Option<Drift>,
    /// How much slower it may become, in percent.
    pub(crate) drift_limit_percent: f64,
    /// A rank that all others wait for.
    pub(crate) late: Option<Late>,
    pub(crate) hiccups: u64,
    /// The seconds from one hiccup to the next, where they are regular.
    pub(crate) hiccup_period_s: Option<f64>,
    pub(crate) wrong: u64,
    pub(crate) okay: bool,
}

impl Record {
    pub(crate) fn new(ranks: usize) -> Self {
        Self { tally: Tally::new(ranks), waited_s: vec![0.0; ranks], ..Self::default() }
    }

    /// The time from which a call is a hiccup, once enough are known.
    pub(crate) fn hiccup_from(&self) -> Option<f64> {
        let usual = self.times.per_million(500_000);
        (self.times.total() >= 100).then_some((usual * HICCUP_TIMES).max(usual + HICCUP_S))
    }

    pub(crate) fn hiccup(&mut self, at_s: f64) {
        self.hiccup_count += 1;
        if self.hiccups.len() < HICCUPS_MOST {
            self.hiccups.push(at_s);
        }
    }

    pub(crate) fn summary(&self, drift_limit_percent: f64) -> Summary {
        let medians: Vec<(f64, f64)> =
            self.windows.iter().map(|window| (window.at_s, window.p50_us)).collect();
        let drift = drift::drift(&medians);
        let late = self.tally.late();
        let wrong =
            self.windows.iter().filter_map(|window| window.wrong).fold(0, u64::saturating_add);
        let drifts = drift.is_some_and(|drift| drift.exceeds(drift_limit_percent));
        // The middle of a bucket may be past the greatest time in it.
        let us = |millionths| self.times.per_million(millionths).min(self.max_s) * 1e6;
        Summary {
            calls: self.windows.iter().map(|window| window.calls).sum(),
            p50_us: us(500_000),
            p99_us: us(990_000),
            p999_us: us(999_000),
            max_us: self.max_s * 1e6,
            drift,
            drift_limit_percent,
            late,
            hiccups: self.hiccup_count,
            hiccup_period_s: drift::period(&self.hiccups),
            wrong,
            okay: wrong == 0 && !drifts && late.is_none() && self.errors.is_empty(),
        }
    }
}

impl Window {
    /// The names of the columns.
    pub(crate) fn header() -> String {
        format!(
            "# {:>8}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>7}  {:>6}",
            "time", "calls", "p50 us", "p99 us", "p99.9 us", "max us", "busbw", "#wrong"
        )
    }

    pub(crate) fn line(&self) -> String {
        let wrong = self.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
        format!(
            "  {:>8}  {:>9}  {:>9.1}  {:>9.1}  {:>9.1}  {:>9.1}  {:>7.2}  {wrong:>6}",
            clock(self.at_s + self.seconds),
            self.calls,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.max_us,
            self.busbw_gbs
        )
    }
}

impl Summary {
    /// The lines below the windows.
    pub(crate) fn lines(
        &self,
        record: &Record,
        ranks: &[String],
        waits_for_all: bool,
    ) -> Vec<String> {
        let word = |okay: bool| if okay { "OK" } else { "FAILED" };
        let times = |us: f64| if self.p50_us > 0.0 { us / self.p50_us } else { 0.0 };
        let mut lines = vec![
            "#".to_owned(),
            format!("# {:<10} : {} in {} windows", "Calls", self.calls, record.windows.len()),
            format!(
                "# {:<10} : p50 {:.1} us, p99 {:.1} ({:.2} times), p99.9 {:.1} ({:.2}), max {:.1} ({:.2})",
                "Jitter",
                self.p50_us,
                self.p99_us,
                times(self.p99_us),
                self.p999_us,
                times(self.p999_us),
                self.max_us,
                times(self.max_us)
            ),
        ];
        lines.push(match self.drift {
            None => format!(
                "# {:<10} : fewer than {WINDOWS_LEAST} windows, too few to tell; raise --for or lower --every",
                "Drift"
            ),
            Some(drift) => format!(
                "# {:<10} : {:+.1} % by the slope, {:+.1} % from the first quarter to the last{}; more than {} % slower fails: {}",
                "Drift",
                drift.percent,
                drift.quarters_percent,
                if drift.certain { "" } else { ", which may be chance" },
                self.drift_limit_percent,
                word(!drift.exceeds(self.drift_limit_percent))
            ),
        });
        let period = self.hiccup_period_s.map_or_else(String::new, |period| {
            format!(", about every {period:.2} s: look for what runs that often")
        });
        lines.push(format!(
            "# {:<10} : {} calls took {HICCUP_TIMES} times the median or more{period}",
            "Hiccups", self.hiccups
        ));
        lines.extend(self.stragglers(record, ranks, waits_for_all));
        lines.push(format!("# {:<10} : {} {}", "Wrong", self.wrong, word(self.wrong == 0)));
        lines.extend(record.errors.iter().map(|error| format!("# {:<10} : {error}", "Error")));
        lines.push(format!("# {:<10} : {}", "Verdict", word(self.okay)));
        lines
    }

    fn stragglers(&self, record: &Record, ranks: &[String], waits_for_all: bool) -> Vec<String> {
        let tally = &record.tally;
        let name = |rank: usize| ranks.get(rank).map_or("", String::as_str);
        let mut lines = vec![match (&self.late, waits_for_all) {
            (Some(late), _) => format!(
                "# {:<10} : rank {} ({}) came last to {} of {} calls to which ranks came apart, {:.1} us late, {:.1} % of the time FAILED",
                "Stragglers",
                late.rank,
                name(late.rank),
                late.last,
                late.calls,
                late.late_us,
                late.percent
            ),
            (None, true) => format!(
                "# {:<10} : none; ranks came apart to {} of {} calls looked at OK",
                "Stragglers", tally.apart, tally.calls
            ),
            (None, false) => {
                format!("# {:<10} : ranks need not wait for each other here", "Stragglers")
            }
        }];
        let waited = record.waited_s.iter().any(|seconds| *seconds > 0.0);
        if tally.apart == 0 && !waited {
            return lines;
        }
        lines.push(format!(
            "#   {:>5}  {:>9}  {:>10}  {:>9}  {:>12}  host",
            "rank", "came last", "late ms", "longest", "waited for s"
        ));
        let mut order: Vec<usize> = (0..tally.ranks.len()).collect();
        let weight = |rank: &usize| {
            let waited = record.waited_s.get(*rank).copied().unwrap_or(0.0);
            tally.ranks.get(*rank).map_or(0.0, |one| one.late_s) + waited
        };
        order.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        for rank in order.iter().take(LISTED) {
            let one = tally.ranks.get(*rank).copied().unwrap_or_default();
            lines.push(format!(
                "#   {rank:>5}  {:>9}  {:>10.1}  {:>9}  {:>12.2}  {}",
                one.last,
                one.late_s * 1e3,
                one.longest,
                record.waited_s.get(*rank).copied().unwrap_or(0.0),
                name(*rank)
            ));
        }
        if let Some(more @ 1..) = order.len().checked_sub(LISTED) {
            lines.push(format!("#   and {more} more"));
        }
        lines
    }
}

/// Ranks that are listed.
const LISTED: usize = 8;

/// Seconds as hours, minutes and seconds.
fn clock(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a run")]
    let whole = seconds.round() as u64;
    format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(at: u32, p50_us: f64, wrong: Option<u64>) -> Window {
        Window {
            at_s: f64::from(at) * 10.0,
            seconds: 10.0,
            calls: 1000,
            p50_us,
            p99_us: p50_us * 2.0,
            p999_us: p50_us * 3.0,
            max_us: p50_us * 9.0,
            busbw_gbs: 1.5,
            wrong,
        }
    }

    fn record(medians: &[f64]) -> Record {
        let mut record = Record::new(2);
        record.windows = (0..).zip(medians).map(|(at, us)| window(at, *us, Some(0))).collect();
        (0..200).for_each(|_| record.times.add(100e-6));
        record.max_s = 100e-6;
        record
    }

    fn ranks() -> Vec<String> {
        vec!["a".to_owned(), "b".to_owned()]
    }

    #[test]
    fn what_stays_the_same_is_well() {
        let record = record(&[100.0; 20]);
        let summary = record.summary(10.0);
        assert!(summary.okay && summary.late.is_none(), "{summary:?}");
        let lines = summary.lines(&record, &ranks(), true).join("\n");
        assert!(
            lines.contains("Verdict    : OK") && lines.contains("none; ranks came apart to 0"),
            "{lines}"
        );
        assert_eq!(record.windows[0].line().len(), Window::header().len());
    }

    #[test]
    fn what_becomes_slower_fails() {
        let medians: Vec<f64> = (0..20).map(|at| 100.0 + 2.0 * f64::from(at)).collect();
        let slower = record(&medians);
        let summary = slower.summary(10.0);
        assert!(!summary.okay, "{summary:?}");
        assert!(slower.summary(50.0).okay);
        assert!(
            summary.lines(&slower, &ranks(), true).join("\n").contains("% slower fails: FAILED")
        );
        let few = record(&medians[..5]).summary(10.0);
        assert!(few.okay && few.drift.is_none());
    }

    #[test]
    fn wrong_values_errors_and_stragglers_fail() {
        let mut wrong = record(&[100.0; 20]);
        wrong.windows[3].wrong = Some(2);
        assert_eq!((wrong.summary(10.0).okay, wrong.summary(10.0).wrong), (false, 2));
        let mut ended = record(&[100.0; 20]);
        ended.errors.push("rank 1 died".to_owned());
        assert!(!ended.summary(10.0).okay);
        let mut late = record(&[100.0; 20]);
        (0..40).for_each(|_| late.tally.add(&[300e-6, 100e-6]));
        late.waited_s = vec![0.0, 2.5];
        let summary = late.summary(10.0);
        assert_eq!(summary.late.map(|late| late.rank), Some(1));
        let lines = summary.lines(&late, &ranks(), true).join("\n");
        assert!(
            lines.contains("rank 1 (b) came last to 40 of 40") && lines.contains("2.50  b"),
            "{lines}"
        );
        assert!(lines.contains("Verdict    : FAILED"));
    }

    #[test]
    fn hiccups_are_bounded_and_their_period_is_told() {
        let mut record = record(&[100.0; 20]);
        assert!((record.hiccup_from().unwrap() - 1.1e-3).abs() < 1e-5);
        assert_eq!(Record::new(2).hiccup_from(), None);
        (0..10_000).for_each(|at| record.hiccup(f64::from(at) * 2.0));
        assert_eq!(record.hiccups.len(), HICCUPS_MOST);
        let summary = record.summary(10.0);
        assert_eq!((summary.hiccups, summary.hiccup_period_s), (10_000, Some(2.0)));
        assert!(summary.okay, "hiccups alone fail nothing");
        assert!(summary.lines(&record, &ranks(), true).join("\n").contains("about every 2.00 s"));
    }
}
