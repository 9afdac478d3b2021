//! Messages between two ranks: the smallest plans.
//!
//! Where memory is not mapped a message is one put straight into the receiver's buffer. Where
//! only scratch is, it goes through two slots with credits, and the sender stays until the last
//! slot is free again, so that every message finds the slots empty.

use crate::plan::{Flag, RankPlan, Region, Remote, Span, Step};
use crate::types::{Form, Rank};

const DATA: Flag = 0;
const CREDIT: Flag = 1;
const SLOTS: u64 = 2;

/// One message, as both its ends see it. Values are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Length.
    pub bytes: u64,
    /// Whether the two ends map each other's scratch.
    pub mapped: bool,
    /// Bytes of the receiver's scratch for messages of this sender.
    pub scratch_bytes: u64,
}

impl Message {
    /// What the sender does.
    #[must_use]
    pub fn send(&self, to: Rank) -> RankPlan {
        let mut lane = Vec::new();
        let pieces = self.pieces();
        for (index, (offset, count)) in (0..).zip(&pieces) {
            let source = bytes(Region::Input(0), *offset, *count);
            if u64::from(index) >= SLOTS && self.mapped {
                lane.push(Step::Wait { peer: to, flag: CREDIT, count: index - 1 });
            }
            let target = self.landing(index, *offset);
            lane.push(Step::Put { peer: to, source, target, signal: Some(DATA) });
        }
        if pieces.is_empty() {
            lane.push(Step::Signal { peer: to, flag: DATA });
        }
        let credits = u32::try_from(pieces.len().max(1)).expect("pieces are large");
        if self.mapped || pieces.is_empty() {
            lane.push(Step::Wait { peer: to, flag: CREDIT, count: credits });
        }
        self.plan(lane)
    }

    /// What the receiver does.
    #[must_use]
    pub fn receive(&self, from: Rank) -> RankPlan {
        let mut lane = Vec::new();
        let pieces = self.pieces();
        for (index, (offset, count)) in (0..).zip(&pieces) {
            lane.push(Step::Wait { peer: from, flag: DATA, count: index + 1 });
            if self.mapped {
                let slot = self.landing(index, *offset).offset;
                lane.push(Step::Copy {
                    source: bytes(Region::Scratch, slot, *count),
                    target: bytes(Region::Output(0), *offset, *count),
                });
                lane.push(Step::Signal { peer: from, flag: CREDIT });
            }
        }
        if pieces.is_empty() {
            lane.push(Step::Wait { peer: from, flag: DATA, count: 1 });
            lane.push(Step::Signal { peer: from, flag: CREDIT });
        }
        self.plan(lane)
    }

    fn slot_bytes(&self) -> u64 {
        (self.scratch_bytes / SLOTS / 64 * 64).max(64)
    }

    fn pieces(&self) -> Vec<(u64, u64)> {
        let most = if self.mapped { self.slot_bytes() } else { self.bytes.max(1) };
        (0..self.bytes.div_ceil(most))
            .map(|i| (i * most, most.min(self.bytes - i * most)))
            .collect()
    }

    fn landing(&self, index: u32, offset: u64) -> Remote {
        if self.mapped {
            let offset = u64::from(index) % SLOTS * self.slot_bytes();
            Remote { region: Region::Scratch, offset }
        } else {
            Remote { region: Region::Output(0), offset }
        }
    }

    fn plan(&self, lane: Vec<Step>) -> RankPlan {
        let scratch_bytes = if self.mapped { self.slot_bytes() * SLOTS } else { 0 };
        RankPlan { lanes: vec![lane], scratch_bytes, flags: 2, ..RankPlan::default() }
    }
}

fn bytes(region: Region, offset: u64, count: u64) -> Span {
    Span { region, offset, count, form: Form::Element }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::problem::Problem;
    use crate::types::{Collective, DataType};
    use crate::verify::verify;

    /// A message from rank 0 to rank 1 is a broadcast between two ranks, but for rank 0's output.
    #[test]
    fn messages_are_proved() {
        for bytes in [0, 1, 63, 64, 65, 1000, 4096] {
            for mapped in [false, true] {
                let message = Message { bytes, mapped, scratch_bytes: 256 };
                let mut problem = Problem::new(Collective::Scatter, 2, 0, DataType::U8);
                problem.counts = crate::problem::Counts::PerRank([0, bytes].into());
                let plan = Plan {
                    algorithm: "message".to_owned(),
                    problems: vec![problem.clone(), problem],
                    hosts: if mapped { vec![0, 0] } else { vec![0, 1] },
                    ranks: vec![message.send(1), message.receive(0)],
                };
                verify(&plan, false).unwrap_or_else(|e| panic!("{message:?}: {e}"));
            }
        }
    }
}
