//! The real `ringway` program: its launcher, its table, its errors.
//!
//! *Invariant*: every wait has a bound, and a test that fails ends what it started.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod chaos;
mod doctor;
mod fabric;
#[path = "../../../ringway/tests/fakes/fakes.rs"]
mod fakes;
mod gpu;
mod help;
mod hostile;
mod hosts;
mod jobs;
mod logs;
mod need;
mod net;
mod perf;
mod plan;
mod process;
mod run;
mod topo;
mod trace;
mod tune;
mod why;
mod wire;
