//! The recorder's clock: the processor's counter where the kernel trusts it, else its monotonic clock.
//!
//! Reading the counter takes a third of what asking the kernel's page for the time does, which counts where
//! an operation takes a microsecond. Ticks become nanoseconds when a trace is taken: both clocks are read when
//! a communicator starts and again then, and everything in between lies on the line through the two.

use std::time::Duration;

use crate::os;

/// How often two clocks are read to find how far they are apart.
const ATTEMPTS: u32 = 5;

/// What counts: it alone is read where nanoseconds matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Counter {
    /// Nothing: the recorder is off.
    #[default]
    None,
    /// The processor's time stamp counter.
    Processor,
    /// CLOCK_MONOTONIC, in nanoseconds.
    Monotonic,
}

impl Counter {
    /// The time in ticks; 0 where nothing counts.
    #[inline]
    pub(crate) fn now(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Processor => os::cycles(),
            Self::Monotonic => os::monotonic_ns(),
        }
    }
}

/// The same moment by both clocks.
#[derive(Clone, Copy, Debug)]
struct Moment {
    ticks: u64,
    monotonic_ns: u64,
}

/// A clock that has been started, or never will be.
#[derive(Debug)]
pub struct Clock {
    counter: Counter,
    started: Moment,
    /// CLOCK_REALTIME when CLOCK_MONOTONIC was 0, as it was when the clock was started.
    realtime_offset_ns: i64,
}

impl Clock {
    pub(super) fn stopped() -> Self {
        let started = Moment { ticks: 0, monotonic_ns: 0 };
        Self { counter: Counter::None, started, realtime_offset_ns: 0 }
    }

    pub(super) fn start() -> Self {
        let trusted = os::has_trusted_cycles();
        let counter = if trusted { Counter::Processor } else { Counter::Monotonic };
        let started = moment(counter);
        let (monotonic, realtime) = together(os::monotonic_ns, os::realtime_ns);
        let realtime = i128::from(realtime) - i128::from(monotonic);
        Self { counter, started, realtime_offset_ns: i64::try_from(realtime).unwrap_or(0) }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.counter == Counter::None
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.counter.now()
    }

    pub(super) fn counter(&self) -> Counter {
        self.counter
    }

    /// Its name in traces.
    pub(super) fn name(&self) -> &'static str {
        match self.counter {
            Counter::None => "none",
            Counter::Processor => "tsc",
            Counter::Monotonic => "monotonic",
        }
    }

    pub(super) fn realtime_offset_ns(&self) -> i64 {
        self.realtime_offset_ns
    }

    /// From the start to now: what turns ticks into nanoseconds.
    pub(crate) fn span(&self) -> Span {
        Span { from: self.started, to: moment(self.counter) }
    }
}

fn moment(counter: Counter) -> Moment {
    let (monotonic_ns, ticks) = together(os::monotonic_ns, || match counter {
        Counter::Processor => os::cycles(),
        Counter::None | Counter::Monotonic => os::monotonic_ns(),
    });
    match counter {
        Counter::Processor => Moment { ticks, monotonic_ns },
        Counter::None | Counter::Monotonic => Moment { ticks: monotonic_ns, monotonic_ns },
    }
}

/// Reads two clocks at the same moment, as nearly as a few attempts allow: where the processor was taken away between
/// the two, everything that was recorded would be off by that.
fn together(mut first: impl FnMut() -> u64, mut second: impl FnMut() -> u64) -> (u64, u64) {
    let attempts = (0..ATTEMPTS).map(|_| {
        let before = first();
        let found = second();
        let apart = first().saturating_sub(before);
        (apart, before + apart / 2, found)
    });
    let closest = attempts.min_by_key(|(apart, ..)| *apart);
    closest.map_or((0, 0), |(_, middle, found)| (middle, found))
}

/// A stretch of time by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    from: Moment,
    to: Moment,
}

impl Span {
    /// CLOCK_MONOTONIC when the counter stood at `ticks`, in nanoseconds.
    #[must_use]
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let since = i128::from(ticks) - i128::from(self.from.ticks);
        let at = i128::from(self.from.monotonic_ns) + self.scale(since);
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }

    /// So many ticks, in nanoseconds.
    #[must_use]
    pub fn duration(&self, ticks: u64) -> u64 {
        u64::try_from(self.scale(i128::from(ticks))).unwrap_or(u64::MAX)
    }

    /// How long it is.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_nanos(self.to.monotonic_ns.saturating_sub(self.from.monotonic_ns))
    }

    /// When the stretch ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.to.monotonic_ns
    }

    fn scale(&self, ticks: i128) -> i128 {
        let counted = i128::from(self.to.ticks) - i128::from(self.from.ticks);
        let passed = i128::from(self.to.monotonic_ns) - i128::from(self.from.monotonic_ns);
        if counted <= 0 || passed <= 0 { 0 } else { ticks * passed / counted }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn span(ticks: (u64, u64), monotonic_ns: (u64, u64)) -> Span {
        Span {
            from: Moment { ticks: ticks.0, monotonic_ns: monotonic_ns.0 },
            to: Moment { ticks: ticks.1, monotonic_ns: monotonic_ns.1 },
        }
    }

    #[test]
    fn ticks_lie_on_the_line_between_two_moments() {
        let span = span((1_000, 3_501_000), (50, 1_400_050));
        assert_eq!(span.nanoseconds(1_000), 50);
        assert_eq!(span.nanoseconds(3_501_000), 1_400_050);
        assert_eq!(span.nanoseconds(1_000 + 2_500), 50 + 1_000);
        assert_eq!(span.duration(5_000), 2_000);
        // A processor's counter may be a little behind another's.
        assert_eq!(span.nanoseconds(500), 0);
        assert_eq!(span.end(), 1_400_050);
    }

    #[test]
    fn a_pause_between_two_clocks_does_not_set_them_apart() {
        // Both are the same clock; the processor is taken away in all attempts but the fourth.
        let (now, attempt) = (std::cell::Cell::new(1_000), std::cell::Cell::new(0));
        let look = |passes: u64| {
            now.set(now.get() + passes);
            now.get()
        };
        let (first, second) = together(
            || look(10),
            || {
                attempt.set(attempt.get() + 1);
                look(if attempt.get() == 4 { 10 } else { 5_000_000 })
            },
        );
        assert_eq!(first, second);
    }

    #[test]
    fn a_stretch_of_nothing_is_no_division_by_zero() {
        let span = span((7, 7), (9, 9));
        assert_eq!((span.nanoseconds(u64::MAX), span.duration(u64::MAX)), (9, 0));
    }

    #[test]
    fn ticks_taken_between_two_looks_at_the_time_lie_between_them() {
        let clock = Clock::start();
        let before = os::monotonic_ns();
        std::thread::sleep(Duration::from_millis(2));
        let ticks = clock.now();
        std::thread::sleep(Duration::from_millis(2));
        let after = os::monotonic_ns();
        let found = clock.span().nanoseconds(ticks);
        assert!(before < found && found < after, "{before} {found} {after}");
    }
}
