//! Congestion that spreads against the flow.
//!
//! From the slowest stream to the fastest: where a flow is held up, because a link on its way is full and nobody
//! there is faster, or because that link is itself held up, the links before it on the flow's way are held up to
//! the flow's rate, and with them every stream on them. Rates only fall, and each stream is held up at most once
//! by a slower one, so this comes to an end.

use super::{SAME, Solver};

/// No bound.
const OPEN: f64 = f64::INFINITY;

impl Solver {
    pub(super) fn spread(&mut self) {
        let mut order = self.dealt.clone();
        let rate = |solver: &Self, slot: u32| solver.streams[slot as usize].rate;
        // The highest rate on each link that is full: who has it is held up there.
        let mut bound = vec![OPEN; self.links.len()];
        for link in &self.touched {
            let state = &self.links[*link as usize];
            let used: f64 = state
                .members
                .iter()
                .map(|member| member.weight * self.streams[member.slot as usize].rate)
                .sum();
            if used >= state.capacity * (1.0 - 1e-7) {
                let most = state.members.iter().map(|member| rate(self, member.slot));
                bound[*link as usize] = most.fold(0.0, f64::max);
            }
        }
        order.sort_by(|a, b| rate(self, *b).total_cmp(&rate(self, *a)).then(b.cmp(a)));
        // The slowest is last. Streams that are slowed down are put back among those of their new rate: at the end.
        let mut done = vec![false; self.streams.len()];
        while let Some(slot) = order.pop() {
            if std::mem::replace(&mut done[slot as usize], true) {
                continue;
            }
            let own = rate(self, slot);
            let ways = std::mem::take(&mut self.streams[slot as usize].ways);
            for way in &ways {
                let held = way.iter().filter(|one| bound[one.link as usize] <= own * (1.0 + SAME));
                let Some(hop) = held.map(|one| one.hop).max() else { continue };
                for one in way.iter().filter(|one| one.hop < hop) {
                    let link = one.link as usize;
                    if bound[link] <= own {
                        continue;
                    }
                    bound[link] = own;
                    self.links[link].full = true;
                    for at in 0..self.links[link].members.len() {
                        let other = self.links[link].members[at].slot;
                        if !done[other as usize] && rate(self, other) > own {
                            self.streams[other as usize].rate = own;
                            order.push(other);
                        }
                    }
                }
            }
            self.streams[slot as usize].ways = ways;
        }
    }
}
