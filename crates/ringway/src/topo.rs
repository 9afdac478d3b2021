//! What is in this machine: found, not configured.
//!
//! Whoever reads the machine reads it through a [`Root`], so that a folder with a copy of `/sys`,
//! `/proc` and `/etc` is as good as the machine itself. [`Machine::discover`] reads all of it;
//! [`Machine::document`] writes it down as NCCL does, and from that comes the graph
//! ([`Topology`](crate::plan::topology::Topology)).
//!
//! *Invariant:* nothing here opens a path that did not come through a [`Root`]. Discovery never
//! fails: what cannot be read is a note, and what is not there is left out.

mod describe;
mod file;
mod gpu;
mod machine;
mod meter;
mod net;
mod numa;
mod pci;
mod rdma;
mod root;
#[cfg(test)]
mod tests;

pub use describe::{DocumentOptions, GpuDirect};
pub use file::{TopologyFileError, VIRTUAL_TOPOLOGY, load, read_file, save};
pub use gpu::{GpuDevice, GpuLink, GpuMaker, NVIDIA_OUTPUTS};
pub use machine::{Machine, Platform};
pub use meter::{GpuMeter, GpuReading, NvLinkReading};
pub use net::{NetDevice, NetKind};
pub use numa::{NumaNode, Processor};
pub use pci::{PciDevice, PciSelector};
pub use rdma::{Gid, GidKind, RdmaDevice, RdmaPort};
pub use root::{Root, RootError};
