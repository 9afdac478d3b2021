//! How long an operation has waited, and how long it may.
//!
//! *Invariant*: only time counts in which this rank waited for others and would have noticed them. What it spent on its
//! own work, or stood still against its will (its process stopped, its machine paused), says nothing of
//! the ranks it waits for.

use std::time::{Duration, Instant};

use crate::control::counted;

/// The clock of one operation. It is read only where something stands still.
#[derive(Debug)]
pub(super) struct Clock {
    deadline: Duration,
    waited: Duration,
}

impl Clock {
    pub(super) fn new(deadline: Duration) -> Self {
        Self { deadline, waited: Duration::ZERO }
    }

    /// A wait is over.
    pub(super) fn add(&mut self, waited: Duration) {
        self.waited += waited;
    }

    /// How long the operation has waited in all, with a wait that is not over.
    pub(super) fn waited(&self, now: Duration) -> Duration {
        self.waited + now
    }

    /// How much longer it may wait, with a wait that is not over; `None` when its time is up.
    pub(super) fn left(&self, now: Duration) -> Option<Duration> {
        self.deadline.checked_sub(self.waited(now)).filter(|left| !left.is_zero())
    }

    /// Lets this thread sleep, which asks for `limit` at most.
    pub(super) fn asleep<T>(&mut self, limit: Duration, sleep: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let outcome = sleep();
        self.add(counted(since.elapsed(), limit));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::STALL;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn waits_add_up_to_the_deadline() {
        let mut clock = Clock::new(ms(1_000));
        clock.add(ms(600));
        assert_eq!(clock.left(ms(300)), Some(ms(100)));
        assert_eq!(clock.waited(ms(300)), ms(900));
        assert_eq!(clock.left(ms(400)), None);
        assert_eq!(clock.left(ms(4_000)), None);
    }

    #[test]
    fn who_is_woken_late_has_not_waited_for_others() {
        let mut clock = Clock::new(ms(1_000));
        clock.asleep(ms(1), || std::thread::sleep(ms(100)));
        assert_eq!(clock.waited(Duration::ZERO), ms(1) + STALL);
        clock.asleep(ms(1_000), || std::thread::sleep(ms(5)));
        assert!(clock.waited(Duration::ZERO) >= ms(6) + STALL, "sleeping counts");
    }
}
