//! The real `ringway` program: its launcher, its table, its errors.
//!
//! *Invariant*: every wait has a bound, and a test that fails ends what it started.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod chaos;
mod cluster;
mod doctor;
mod expect;
mod exporter;
mod fabric;
#[path = "../../../ringway/tests/fakes/fakes.rs"]
mod fakes;
mod gpu;
mod help;
mod hostile;
mod hosts;
mod jobs;
mod k8s;
mod launchers;
mod logs;
mod names;
mod need;
mod net;
mod packaging;
mod perf;
mod plan;
mod process;
mod report;
mod run;
mod sim;
mod slow;
mod slurm;
mod soak;
mod ssh;
mod topo;
mod trace;
mod tune;
mod why;
mod wire;
