//! What a rank does while it waits: spin a little, yield a little, then sleep in the kernel.

use std::time::{Duration, Instant};

use crate::bootstrap::Company;
use crate::control::counted;

/// Longest sleep: deadlines and the health of the job are looked at this often.
const NAP: Duration = Duration::from_millis(50);

/// Looks without a pause between them.
const EAGER: u32 = 128;

/// Spinning for longer than this lets others run in between: the rank one waits for may have been
/// put on the same core, and would else not run before the spin is over.
const SELFISH: Duration = Duration::from_micros(10);

/// How patient a rank spins, fixed when the communicator starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    spin: Duration,
    /// Of the spin, the part in which nobody else is let on the core.
    selfish: Duration,
    yields: Duration,
    /// Looks between two looks at the clock.
    stride: u32,
}

impl Patience {
    /// With a core for every rank of this machine spinning is cheap and quick; where they are
    /// crowded it takes the time of the very rank one waits for. A look at memory is shorter than
    /// one at the clock, a look at sockets is longer.
    pub(crate) fn new(company: Company, sockets: bool, wanted: Option<Duration>) -> Self {
        let crowded = company == Company::Crowd;
        let spin = wanted.unwrap_or_else(|| Duration::from_micros(if crowded { 0 } else { 50 }));
        let yields = Duration::from_micros(if crowded { 100 } else { 50 });
        let selfish = if company == Company::None { spin } else { spin.min(SELFISH) };
        Self { spin, selfish, yields, stride: if sockets { 1 } else { 32 } }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look again at once.
    Look,
    /// Go to sleep for so long, at most.
    Sleep(Duration),
}

/// One stretch of waiting.
#[derive(Debug)]
pub(crate) struct Idle {
    patience: Patience,
    /// When the clock was last read.
    read: Option<Instant>,
    /// How long nothing has moved, as far as it was looked: without the time for which this thread stood still.
    waited: Duration,
    turns: u32,
    /// Whether it has let others run, or was about to.
    patient: bool,
}

impl Idle {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, read: None, waited: Duration::ZERO, turns: 0, patient: false }
    }

    /// Something moved: how long nothing had.
    pub(crate) fn reset(&mut self) -> Duration {
        self.read = None;
        self.turns = 0;
        std::mem::take(&mut self.waited)
    }

    /// Whether all it did was to look a few times, at once: then it took a microsecond or two.
    pub(crate) fn was_brief(&self) -> bool {
        !self.patient
    }

    /// How long nothing has moved, as far as it was looked.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Reads the clock, having slept for `asked` at most.
    fn look(&mut self, asked: Duration) {
        let now = Instant::now();
        if let Some(before) = self.read.replace(now) {
            self.waited += counted(now.saturating_duration_since(before), asked);
        }
    }

    /// Lets this thread sleep, which asks for `limit` at most.
    pub(crate) fn asleep(&mut self, limit: Duration, sleep: impl FnOnce()) {
        self.look(Duration::ZERO);
        sleep();
        self.look(limit);
    }

    /// Nothing moved: passes a moment, and says what comes next. Where a look is short, the clock is
    /// read every 32 spins only; it is read at every yield.
    pub(crate) fn pass(&mut self) -> Next {
        self.turns += 1;
        let Patience { spin, selfish, yields, stride } = self.patience;
        if !spin.is_zero() && !self.turns.is_multiple_of(stride) {
            // At first the answer is on its way, and a pause may take longer than it does.
            if self.turns > EAGER {
                std::hint::spin_loop();
            }
            return Next::Look;
        }
        let first = self.read.is_none();
        self.look(Duration::ZERO);
        if first {
            return Next::Look;
        }
        self.patient = true;
        let waited = self.waited;
        if waited >= spin + yields {
            return Next::Sleep(NAP);
        }
        if waited >= selfish {
            std::thread::yield_now();
        }
        Next::Look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::STALL;

    const LIMIT: Duration = Duration::from_millis(5);

    fn idle() -> Idle {
        Idle::new(Patience::new(Company::Crowd, true, None))
    }

    #[test]
    fn sleep_comes_after_a_little_and_starts_again_when_something_moved() {
        let mut idle = idle();
        assert_eq!(idle.pass(), Next::Look);
        let began = Instant::now();
        while idle.pass() == Next::Look {
            assert!(began.elapsed() < Duration::from_secs(10), "it never sleeps");
        }
        assert!(idle.reset() > Duration::ZERO);
        assert_eq!((idle.waited(), idle.pass()), (Duration::ZERO, Next::Look));
    }

    #[test]
    fn time_stood_still_is_no_wait_whether_asleep_or_awake() {
        let mut idle = idle();
        idle.pass();
        // Stopped between two looks.
        std::thread::sleep(Duration::from_millis(150));
        idle.pass();
        assert_eq!(idle.waited(), STALL);
        // Woken late.
        idle.asleep(LIMIT, || std::thread::sleep(Duration::from_millis(150)));
        assert!(idle.waited() >= LIMIT + 2 * STALL, "{:?}", idle.waited());
        assert!(idle.waited() <= LIMIT + 3 * STALL, "{:?}", idle.waited());
    }
}
