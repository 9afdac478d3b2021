//! What came out, for people and for other tools.
//!
//! All of it is made of a [`Network`](crate::network::Network) and an [`Outcome`](crate::outcome::Outcome): numbers
//! ([`summary`]), a picture of where it was full ([`heat`]), one of what happened when ([`timeline`], [`perfetto`]),
//! and the counters that ports would show ([`counters`]), so that checks of real fabrics can be tried on simulated ones.
//!
//! *Invariant:* text from dumps is escaped; what is left out of a picture is told.

pub mod counters;
pub mod heat;
pub mod perfetto;
pub mod summary;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod timeline;
