//! What neighbours say to each other, and how it is written: one JSON object per frame.
//!
//! A frame's length and authenticity are the link's matter (see
//! [`ControlLink`](super::ControlLink)). *Invariant*: decoding never panics and never takes more
//! than [`MESSAGE_BYTES_MAX`]; whether the ranks inside exist is checked by the board.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use thiserror::Error as ThisError;

use super::inquiry::SilentLink;
use super::journal::RankState;
use super::pace::Pace;
use super::signature::Signature;
use crate::error::{Error, ErrorKind};
use crate::plan::types::Rank;

/// The longest message, encoded.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// The longest free text inside a report; the rest is cut off.
const TEXT_BYTES_MAX: usize = 512;

/// Something a rank noticed that ends the communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Report {
    /// The control connection to a neighbour ended without a goodbye.
    PeerDied {
        /// The neighbour.
        rank: Rank,
    },
    /// A rank unwinds out of the communicator.
    Panicked {
        /// The rank that says so of itself.
        rank: Rank,
    },
    /// The reporter saw a peer's signature differ from its own.
    Mismatch {
        /// The operation.
        sequence: u64,
        /// The peer.
        with: Rank,
    },
    /// The reporter waits for a rank that has said goodbye.
    Left {
        /// The rank that left.
        rank: Rank,
    },
    /// The user gave up.
    Aborted {
        /// The rank whose user did.
        rank: Rank,
        /// Why, in the user's words.
        reason: String,
    },
    /// A data connection of the reporter failed.
    LinkBroken {
        /// Its other end.
        peer: Rank,
        /// What the transport said.
        cause: String,
    },
    /// The deadline of the reporter's operation passed.
    Deadline {
        /// The operation.
        sequence: u64,
        /// How long the reporter was inside it.
        waited_ms: u64,
        /// Whom it waited for.
        waiting_on: Option<Rank>,
    },
    /// Kernels of the reporter's GPU stand still, or found a peer in another call.
    Device {
        /// Whom they wait for, or whose call differs.
        peer: Option<Rank>,
        /// What is wrong.
        trouble: Trouble,
        /// What was seen.
        seen: String,
    },
    /// A communicator that works for this one has failed, and its ranks, which are the same, agreed on why.
    Channel {
        /// The kind of its error.
        kind: ErrorKind,
        /// Its text.
        text: String,
        /// Whom it names.
        culprits: Vec<Rank>,
    },
    /// The reporter was said to have died, and lives: only a connection to it ended.
    Alive {
        /// The reporter.
        rank: Rank,
    },
}

/// What is wrong with kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// They waited for too long.
    #[default]
    Late,
    /// The peer made another call.
    Differs,
    /// What they wait for is behind them on their stream.
    Behind,
}

/// Culprits that a report names.
const CULPRITS_MAX: usize = 8;

impl Report {
    /// The report of an error of a communicator that works for this one.
    #[must_use]
    pub fn channel(error: &Error) -> Self {
        let culprits = error.culprits().iter().take(CULPRITS_MAX).map(|one| one.rank).collect();
        Self::Channel { kind: error.kind(), text: error.to_string(), culprits }
    }

    /// The operation the report is about.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        match self {
            Self::Mismatch { sequence, .. } | Self::Deadline { sequence, .. } => Some(*sequence),
            _ => None,
        }
    }

    /// What makes two reports of one origin the same report: its kind and its subject.
    pub(super) fn key(&self) -> (u8, u64) {
        match self {
            Self::PeerDied { rank } => (0, u64::from(*rank)),
            Self::Panicked { rank } => (1, u64::from(*rank)),
            Self::Mismatch { sequence, .. } => (2, *sequence),
            Self::Left { rank } => (3, u64::from(*rank)),
            Self::Aborted { rank, .. } => (4, u64::from(*rank)),
            Self::LinkBroken { peer, .. } => (5, u64::from(*peer)),
            Self::Deadline { sequence, .. } => (6, *sequence),
            Self::Alive { rank } => (7, u64::from(*rank)),
            Self::Device { peer, .. } => (8, peer.map_or(u64::MAX, u64::from)),
            Self::Channel { .. } => (9, 0),
        }
    }

    /// The rank the report is about, besides its origin.
    pub(super) fn subject(&self) -> Option<Rank> {
        match self {
            Self::PeerDied { rank }
            | Self::Panicked { rank }
            | Self::Left { rank }
            | Self::Aborted { rank, .. }
            | Self::Alive { rank } => Some(*rank),
            Self::Mismatch { with, .. } => Some(*with),
            Self::LinkBroken { peer, .. } => Some(*peer),
            Self::Deadline { waiting_on: peer, .. } | Self::Device { peer, .. } => *peer,
            Self::Channel { culprits, .. } => culprits.first().copied(),
        }
    }

    /// The report with its free text cut to a bounded length.
    #[must_use]
    pub(super) fn shortened(mut self) -> Self {
        if let Self::Aborted { reason: text, .. }
        | Self::LinkBroken { cause: text, .. }
        | Self::Device { seen: text, .. }
        | Self::Channel { text, .. } = &mut self
        {
            text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        }
        self
    }
}

/// What decides between two verdicts; the smaller one wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Weight {
    /// Class of the error: a death before a mismatch before … before a deadline.
    pub priority: u8,
    /// The operation; the largest number where the error is about none.
    pub sequence: u64,
    /// The lowest rank at fault.
    pub rank: Rank,
    /// How many facts it was decided from; more is better.
    pub facts: Reverse<u32>,
}

/// A verdict somebody came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Who decided it.
    pub decided_by: Rank,
    /// How it compares with others.
    pub weight: Weight,
    /// Whether some rank has already given it to its user; such a one beats all others.
    pub latched: bool,
    /// The error every rank is to return.
    pub error: Error,
}

/// One message between neighbours. All but [`Message::Called`] are flooded: a rank that learns
/// something new passes it on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Message {
    /// `origin` noticed something.
    Report {
        /// Who noticed.
        origin: Rank,
        /// What.
        report: Report,
    },
    /// Where a rank stood when it heard of the error.
    State {
        /// Which rank.
        rank: Rank,
        /// The operation others ask about.
        about: Option<u64>,
        /// Where it stood.
        state: RankState,
        /// What it called as operation `about`, if it has entered it and remembers.
        called: Option<Signature>,
    },
    /// Somebody came to a verdict.
    Verdict(Box<Proposal>),
    /// `rank` holds the verdict of `decided_by` to be the best it knows.
    Accept {
        /// Who accepts.
        rank: Rank,
        /// Whose verdict.
        decided_by: Rank,
    },
    /// The sender has waited for long in this call. Not passed on: ranks that called different
    /// things have neighbours among each other, as the overlay is connected.
    Called {
        /// The call.
        signature: Signature,
    },
    /// `rank` leaves in good order.
    Goodbye {
        /// Who leaves.
        rank: Rank,
    },
    /// Somebody outside wants to know where all ranks stand.
    Asked {
        /// The number of the question.
        inquiry: u64,
    },
    /// Where a rank stood when it heard a question.
    Stands {
        /// The question.
        inquiry: u64,
        /// Which rank.
        rank: Rank,
        /// Where it stands.
        state: RankState,
        /// How its last calls went.
        #[serde(default)]
        pace: Option<Box<Pace>>,
    },
    /// A question was not even acknowledged.
    Silent {
        /// The question.
        inquiry: u64,
        /// Who sent it to whom.
        link: SilentLink,
    },
}

/// A message that cannot be read or written.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum MessageError {
    /// Too long for a control message.
    #[error("a control message of {bytes} bytes is longer than {MESSAGE_BYTES_MAX}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Not a control message of this version.
    #[error("not a control message: {0}")]
    Malformed(#[from] serde_json::Error),
}

impl Message {
    /// Whether it belongs to a question from outside: such a one may be lost.
    pub(super) fn is_inquiry(&self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Stands { .. } | Self::Silent { .. })
    }

    /// The bytes of the message.
    ///
    /// # Errors
    /// When it is longer than [`MESSAGE_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, MessageError> {
        let bytes = serde_json::to_vec(self)?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLong { bytes: bytes.len() });
        }
        Ok(bytes)
    }

    /// The message in `bytes`.
    ///
    /// # Errors
    /// When it is too long or no message.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLong { bytes: bytes.len() });
        }
        Ok(serde_json::from_slice(bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::KernelWait;
    use crate::control::pace::LinkPace;
    use crate::control::signature::tests::all_reduce;

    fn samples() -> Vec<Message> {
        let state = RankState {
            entered: Some(all_reduce(4, 9)),
            completed: 4,
            waiting_on: Some(2),
            waiting_ms: 31,
            silent_to: Some(3),
            silent_ms: 400,
            ..RankState::default()
        };
        let call = Some(all_reduce(7, 3));
        let kernel = KernelWait { launch: 7, call, waiting_on: 1, waiting_ms: 99 };
        let on_gpu =
            RankState { kernel: Some(kernel), launches: 8, launched: call, ..RankState::default() };
        let link = LinkPace { peer: 1, bytes: 1 << 40, busy_us: 77, retries: 3 };
        let pace = Pace { first: 9, took_us: vec![0, 5], span_us: 12, links: vec![link] };
        let broken = Report::LinkBroken { peer: 1, cause: "reset \u{1f4a5} \"by\" peer".into() };
        let weight = Weight { priority: 1, sequence: u64::MAX, rank: 3, facts: Reverse(9) };
        let error = Error::new(ErrorKind::Remote, "rank 3 died");
        let proposal = Proposal { decided_by: 0, weight, latched: true, error };
        vec![
            Message::Report { origin: 3, report: broken },
            Message::Report {
                origin: 3,
                report: Report::Deadline { sequence: 4, waited_ms: 5, waiting_on: None },
            },
            Message::State { rank: 1, about: Some(4), state, called: None },
            Message::Verdict(Box::new(proposal)),
            Message::Accept { rank: 1, decided_by: 0 },
            Message::Called { signature: all_reduce(4, 9) },
            Message::Goodbye { rank: 5 },
            Message::Asked { inquiry: u64::MAX },
            Message::Stands { inquiry: 1, rank: 5, state, pace: Some(Box::new(pace)) },
            Message::Silent { inquiry: 1, link: SilentLink { from: 1, to: 2, silent_ms: 7 } },
            Message::Stands { inquiry: 2, rank: 5, state: on_gpu, pace: None },
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for message in samples() {
            let bytes = message.encode().unwrap();
            assert!(bytes.len() < 512, "{}", String::from_utf8_lossy(&bytes));
            assert_eq!(Message::decode(&bytes).unwrap(), message);
        }
    }

    #[test]
    fn long_ones_are_refused_and_texts_cut() {
        let long = Report::Aborted { rank: 0, reason: "\u{e9}".repeat(MESSAGE_BYTES_MAX) };
        let message = Message::Report { origin: 0, report: long.clone() };
        assert!(matches!(message.encode(), Err(MessageError::TooLong { .. })));
        let spaces = vec![b' '; MESSAGE_BYTES_MAX + 1];
        assert!(matches!(Message::decode(&spaces), Err(MessageError::TooLong { .. })));
        let Report::Aborted { reason, .. } = long.shortened() else { panic!() };
        assert_eq!(reason.len(), TEXT_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::decode(&bytes);
        }

        #[test]
        fn damaged_messages_are_read_without_panic(
            which in 0usize..11, at in 0usize..512, byte: u8, cut in 0usize..512,
        ) {
            let mut bytes = samples()[which].encode().unwrap();
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(cut.max(1));
            let _ = Message::decode(&bytes);
        }
    }
}
