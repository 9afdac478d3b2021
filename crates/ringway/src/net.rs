//! The network under collectives, on its own: which RDMA devices and addresses there are and which would
//! be used, and what a path between two hosts gives ([`serve`] on one, [`measure`] on the other).
//!
//! *Invariant:* a measurement that returns has moved the bytes it counts, and they were looked at where
//! they arrived. Every wait ends: when the other side goes away, and when nothing moves for a minute.

mod bandwidth;
mod buffer;
mod control;
mod device;
mod latency;
mod port;
mod session;
mod stream;
mod test;

pub use buffer::{BufferPlace, GpuDirectChoice};
#[cfg(fuzzing)]
pub(crate) use control::line;
pub use device::{AddressReport, DeviceReport, PortReport, devices};
pub use session::{Server, measure, serve};
pub use test::{Bandwidth, Kind, Latency, Operation, PortName, Row, Side, Test, Transport};
