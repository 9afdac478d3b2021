//! What a rank does while it waits: spin a little, yield a little, then sleep in the kernel.

use std::time::{Duration, Instant};

use crate::bootstrap::Company;

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
    since: Option<Instant>,
    turns: u32,
    /// Whether it has let others run, or was about to.
    patient: bool,
}

impl Idle {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, since: None, turns: 0, patient: false }
    }

    /// Something moved.
    pub(crate) fn reset(&mut self) {
        self.since = None;
        self.turns = 0;
    }

    /// Whether all it did was to look a few times, at once: then it took a microsecond or two.
    pub(crate) fn was_brief(&self) -> bool {
        !self.patient
    }

    /// How long nothing has moved, as far as has been looked.
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now - since)
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
        let Some(since) = self.since else {
            self.since = Some(Instant::now());
            return Next::Look;
        };
        self.patient = true;
        let waited = since.elapsed();
        if waited >= spin + yields {
            return Next::Sleep(NAP);
        }
        if waited >= selfish {
            std::thread::yield_now();
        }
        Next::Look
    }
}
