//! Device code without a device: the arithmetic of kernels against the host's reductions, and the fake
//! driver that other suites run on.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod arithmetic;
mod collectives;
mod driver;
#[path = "../fakes/fakes.rs"]
mod fakes;
mod full;
mod graph;
mod kernels;
mod mixed;
mod processes;
mod queues;
mod random;
mod refused;
mod shared;
mod staged;
mod told;
mod world;
