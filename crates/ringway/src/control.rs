//! The control plane of a communicator: how the first error becomes the same error on every rank.
//!
//! ```text
//!   executing thread                control thread (one per communicator)          neighbours
//!   ────────────────                ─────────────────────────────────────          ──────────
//!   Journal  ◄─ begin / end
//!            ─────── read ────────►  Board  ◄── receive ── decode ◄── ControlLink ◄── r ± 2^i
//!   Health   ─── report ──────────►  (pure)  ── flood ───► encode ──► ControlLink ──►
//!            ◄── raised, verdict ──
//! ```
//!
//! - [`Signature`]: what a call is; two ranks must agree on it.
//! - [`Journal`]: what this rank has entered, completed and waits for, on its GPU too.
//! - [`Board`]: the protocol, a pure state machine; a simulator drives the same one.
//! - [`Message`]: what neighbours say to each other.
//! - [`Standing`]: what a rank says of all of them when somebody asks ([`Askable`]).
//! - [`Control`] and [`Health`]: the thread that runs a board over real connections, and what the
//!   data path sees of it: one atomic.
//!
//! *Invariant*: nothing here is on the data path. While nothing fails, nobody asks and nobody waits
//! for long, the control thread sleeps in `poll` and sends nothing.

mod ask;
mod board;
mod decide;
mod evidence;
mod health;
mod inquiry;
mod journal;
mod kernel;
mod link;
mod message;
mod pace;
mod signature;
mod stall;
mod thread;

pub use ask::{Askable, Askers, askable};
pub use board::{AGREEMENT_MS_MAX, Board, Outgoing};
pub use health::Health;
pub use inquiry::{Condition, Seat, SilentLink, Standing};
pub use journal::{Journal, KernelWait, RankState};
pub use link::{Acceptor, ControlLink};
pub use message::{MESSAGE_BYTES_MAX, Message, MessageError, Proposal, Report, Trouble, Weight};
pub use pace::{LateRank, LinkPace, Pace, SlowLink, Stragglers};
pub use signature::Signature;
#[cfg(test)]
pub(crate) use stall::STALL;
pub(crate) use stall::counted;
pub use thread::{Control, ControlSetup};

use std::time::Duration;

use crate::plan::types::Rank;

/// How long a verdict is waited for. The board always comes to one within [`AGREEMENT_MS_MAX`] of
/// its own turns; what is left is for a control thread that gets no processor in time.
pub const VERDICT_WAIT: Duration = Duration::from_millis(AGREEMENT_MS_MAX + 3_000);

/// The control neighbours of `rank` among `ranks`: `rank ± 2^i`, in increasing order.
///
/// The circulant graph has a diameter of about half of log₂ n, and stays connected after the loss
/// of any set of ranks smaller than its degree (about 2 log₂ n).
#[must_use]
pub fn neighbours(rank: Rank, ranks: u32) -> Vec<Rank> {
    let mut found = std::collections::BTreeSet::new();
    let (here, n) = (u64::from(rank), u64::from(ranks));
    let mut hop = 1;
    while hop < n {
        found.insert((here + hop) % n);
        found.insert((here + n - hop) % n);
        hop *= 2;
    }
    found.remove(&here);
    found.into_iter().filter_map(|r| Rank::try_from(r).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::neighbours;

    #[test]
    fn neighbours_are_mutual_and_few() {
        for n in 1..200 {
            for r in 0..n {
                let near = neighbours(r, n);
                assert!(near.iter().all(|&p| p < n && p != r && neighbours(p, n).contains(&r)));
                assert!(near.len() <= 2 * (n.ilog2() as usize + 1));
            }
        }
        assert!(neighbours(0, 1).is_empty());
        assert_eq!(neighbours(0, 2), [1]);
        assert_eq!(neighbours(0, 9), [1, 2, 4, 5, 7, 8]);
    }
}
