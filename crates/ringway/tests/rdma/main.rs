//! Real RDMA devices: those of the RDMA machine, where `.ci/rdma` runs this.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must stop")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "test data is cut to its type on purpose"
)]

#[path = "../world/case.rs"]
mod case;
mod collectives;
mod direct;
#[path = "../fakes/fakes.rs"]
mod fakes;
mod faults;
mod gpu;
mod gpudirect;
#[path = "../world/harness.rs"]
mod harness;
mod machine;
mod net;
#[path = "../world/reference.rs"]
mod reference;
mod start;
#[path = "../world/sweep.rs"]
#[allow(dead_code, reason = "shared with the suite of the other transports")]
mod sweep;
mod topo;
