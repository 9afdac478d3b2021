//! Real RDMA devices: those of the RDMA machine, where `.ci/rdma` runs this.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

#[path = "../fakes/fakes.rs"]
mod fakes;
mod gpu;
mod machine;
mod net;
mod topo;
