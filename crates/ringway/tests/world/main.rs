//! The library as a user sees it: ranks as threads of one process, or processes, real transports, real data.
//!
//! *Invariant*: every test has a watchdog, so that a hang is a message and not a mystery.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must stop")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "test data is cut to its type on purpose"
)]

mod case;
mod collectives;
mod contracts;
mod determinism;
mod groups;
mod harness;
mod memory;
mod messages;
mod recovery;
mod reference;
#[allow(dead_code, reason = "shared with the suite of RDMA")]
mod sweep;
mod threads;
