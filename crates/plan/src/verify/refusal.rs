//! Why a plan is refused, in words that name rank, lane and step.

use thiserror::Error;

use crate::plan::{Flag, Place};
use crate::types::Rank;

/// Why a plan is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The plan's tables do not fit together.
    #[error("{0}")]
    Malformed(String),
    /// A step names memory or peers it may not.
    #[error("{place}: {what}")]
    Illegal {
        /// Where.
        place: Place,
        /// What is wrong.
        what: String,
    },
    /// A wait that nobody will end.
    #[error("{place}: deadlock: waits for signal {count} of flag {flag} from rank {peer}, {why}")]
    Deadlock {
        /// Where.
        place: Place,
        /// Waited for.
        peer: Rank,
        /// The counter.
        flag: Flag,
        /// Needed.
        count: u32,
        /// Why it will not come.
        why: String,
    },
    /// A card that its rank will not turn up, or only later than this rank stands for it.
    #[error("{place}: deadlock: stands for card {card} of rank {peer}, which never turns it up")]
    NeverShown {
        /// Where.
        place: Place,
        /// Whose card.
        peer: Rank,
        /// Which.
        card: u16,
    },
    /// Two accesses to the same bytes are unordered.
    #[error(
        "{place}: race: {what} bytes {bytes:?} of rank {rank}'s {region}, unordered with {other}"
    )]
    Race {
        /// Where.
        place: Place,
        /// "reads" or "writes".
        what: &'static str,
        /// Whose memory.
        rank: Rank,
        /// Which.
        region: String,
        /// Which bytes.
        bytes: (u64, u64),
        /// The other access.
        other: String,
    },
    /// A signal nobody waits for would be counted in the next operation.
    #[error(
        "{place}: raises flag {flag} at rank {to} for the {raised}. time, but only {waited} are waited for"
    )]
    LeftOver {
        /// The first signal that nobody waits for.
        place: Place,
        /// Signalled.
        to: Rank,
        /// The counter.
        flag: Flag,
        /// The number of that signal.
        raised: u32,
        /// Waited for.
        waited: u32,
    },
    /// An output is not what the collective promises.
    #[error("rank {rank}: output value {index} is {found}{}, not {expected}", by(*.writer))]
    WrongResult {
        /// Whose output.
        rank: Rank,
        /// The step that left it there, or saw it arrive.
        writer: Option<Place>,
        /// First wrong value.
        index: u64,
        /// What stands there.
        found: String,
        /// What should.
        expected: String,
    },
    /// Proving the plan would take more time or memory than a plan is worth.
    #[error("{place}: the plan is too large to prove: {what}")]
    TooLarge {
        /// How far the proof came.
        place: Place,
        /// What ran out.
        what: &'static str,
    },
}

fn by(writer: Option<Place>) -> String {
    writer.map_or_else(String::new, |place| format!(" (left by {place})"))
}
