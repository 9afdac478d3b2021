//! The calls that a rank enqueued last, so that an error of a kernel can name its call.
//!
//! The journal of host calls is no place for them: ranks compare it number by number, and it knows when a call
//! is over. Calls on a GPU have an order of their own, and only the device knows when they are done.
//!
//! *Invariant:* noting a call allocates nothing, and waits for nobody but a reader of one entry.

use std::sync::{Mutex, PoisonError};

use crate::call::Call;
use crate::plan::types::{Collective, DataType};

/// Launches that are remembered.
const REMEMBERED: usize = 64;

/// What a launch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Collectives: the first of them, and how many there are.
    Collectives { collective: Collective, data_type: DataType, count: u64, calls: usize },
    /// Messages out and in.
    Messages { out: usize, into: usize },
}

impl What {
    pub(super) fn of(call: &Call) -> Self {
        let Call { collective, data_type, count, .. } = *call;
        Self::Collectives { collective, data_type, count, calls: 1 }
    }

    /// One more collective.
    pub(super) fn and_one(&mut self) {
        if let Self::Collectives { calls, .. } = self {
            *calls += 1;
        }
    }
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Collectives { collective, data_type, count, calls } => {
                write!(f, "{collective} of {count} {data_type}")?;
                match calls {
                    0 | 1 => Ok(()),
                    more => write!(f, " and {} more in its group", more - 1),
                }
            }
            Self::Messages { out, into } => write!(f, "messages, {out} out and {into} in"),
        }
    }
}

/// The last launches, by number.
#[derive(Debug)]
pub(super) struct Recent(Mutex<(u32, [Option<What>; REMEMBERED])>);

impl Default for Recent {
    fn default() -> Self {
        Self(Mutex::new((0, [None; REMEMBERED])))
    }
}

impl Recent {
    /// Notes the next launch. The first has number 1, as kernels count them.
    pub(super) fn note(&self, what: What) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, all) = &mut *recent;
        *number = number.wrapping_add(1);
        all[*number as usize % REMEMBERED] = Some(what);
    }

    /// What was enqueued as launch `number`, where that is remembered. Graphs that are replayed launch what
    /// was enqueued once, so after them this is a hint.
    pub(super) fn get(&self, number: u32) -> Option<What> {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = recent.0.wrapping_sub(number) as usize;
        if behind >= REMEMBERED {
            return None;
        }
        recent.1[number as usize % REMEMBERED]
    }

    /// For the end of a message: what was enqueued as launch `number`.
    pub(super) fn told(&self, number: u32) -> String {
        self.get(number).map_or_else(String::new, |what| format!(", enqueued for {what}"))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn launches_are_found_by_their_numbers_while_they_are_remembered() {
        let recent = Recent::default();
        assert_eq!(recent.get(1), None);
        for out in 1..=100 {
            recent.note(What::Messages { out, into: 0 });
        }
        assert_eq!(recent.get(100), Some(What::Messages { out: 100, into: 0 }));
        assert_eq!(recent.get(37), Some(What::Messages { out: 37, into: 0 }));
        assert_eq!(recent.get(36), None);
        assert_eq!(recent.get(101), None);
    }

    #[test]
    fn calls_are_named() {
        let mut what = What::of(&Call::new(Collective::AllReduce, DataType::F32, 7));
        assert_eq!(what.to_string(), "all_reduce of 7 float");
        what.and_one();
        assert_eq!(what.to_string(), "all_reduce of 7 float and 1 more in its group");
        let messages = What::Messages { out: 2, into: 1 };
        assert_eq!(messages.to_string(), "messages, 2 out and 1 in");
        let recent = Recent::default();
        recent.note(messages);
        assert_eq!(recent.told(1), ", enqueued for messages, 2 out and 1 in");
        assert_eq!(recent.told(2), "");
    }
}
