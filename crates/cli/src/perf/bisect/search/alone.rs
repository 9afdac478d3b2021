//! What needs no groups: each rank's processor does the same work, each GPU the same copies, alone.

use super::{Lab, Search};
use crate::perf::slow::culprit::{Culprit, Way};
use crate::perf::slow::robust::{self, Usual};

/// How often those that were slow work again: that is quick, and what else runs there is in it whole.
pub(super) const WORKS: usize = 5;

/// What of a rank works alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worker {
    Processor,
    Gpu,
}

impl<L: Lab> Search<'_, L> {
    /// Whose processor or GPU is slow: that needs no groups, each works alone.
    pub(super) fn alone(&mut self, worker: Worker) -> anyhow::Result<Vec<Culprit>> {
        let (what, again, nobody) = match worker {
            Worker::Processor => (
                "every rank does the same work, alone",
                "the same work again",
                "no processor is slow",
            ),
            Worker::Gpu if self.places.gpu_turns() == 0 => return Ok(Vec::new()),
            Worker::Gpu => (
                "every GPU copies the same in its own memory",
                "the same copies again",
                "no GPU is slow",
            ),
        };
        let mut best = self.lab.work(what, worker)?;
        let mut ratio = vec![f64::INFINITY; best.len()];
        let mut slow: Vec<(usize, f64)> = Vec::new();
        let mut now = best.clone();
        for look in 0..=WORKS {
            if look > 0 {
                now = self.lab.work(again, worker)?;
                best = best.iter().zip(&now).map(|(a, b)| a.min(*b)).collect();
            }
            // A machine may be busy in one round and idle in the next: who is slow is slow beside the others of each round.
            let middle = robust::median(&now);
            ratio = ratio.iter().zip(&now).map(|(known, us)| known.min(us / middle)).collect();
            let usual = Usual::of(&best);
            let one = |(rank, (us, ratio)): (usize, (&f64, &f64))| {
                let by = usual.exceeded(*us, self.bars.work)?.min(*ratio);
                (by >= self.bars.work.times).then_some((rank, by))
            };
            slow = best.iter().zip(&ratio).enumerate().filter_map(one).collect();
            if slow.is_empty() {
                self.say(nobody)?;
                return Ok(Vec::new());
            }
            let ranks: Vec<String> =
                slow.iter().map(|(rank, _)| self.places.name_of_ranks(&[*rank])).collect();
            self.say(&format!("longer than the others: {}", ranks.join(", ")))?;
        }
        let mut named: Vec<Culprit> = Vec::new();
        for (rank, by) in &slow {
            let is_slow = |rank: &usize| slow.iter().any(|(other, _)| other == rank);
            // All of a GPU are the GPU.
            let sharing = self.places.on_gpu_of(*rank);
            let ranks = match worker == Worker::Gpu && sharing.iter().all(is_slow) {
                true => sharing,
                false => vec![*rank],
            };
            if named.iter().any(|known| known.ranks == ranks) {
                continue;
            }
            let one = Culprit::new(ranks, Vec::new(), Way::Both);
            let one = match worker {
                Worker::Processor => Culprit { computes: Some(*by), ..one },
                Worker::Gpu => Culprit { copies: Some(*by), ..one },
            };
            named.push(one.named(self.places));
        }
        Ok(named)
    }
}
