//! Kubernetes manifests for collectives: read with the place of every node, checked, mended, written.
//!
//! [`yaml`] reads and edits text, [`model`] finds pods, containers and resources in any kind of manifest,
//! [`check`] says what is wrong and how it is written right, [`fix`] writes it so, [`generate`] makes manifests
//! out of a few choices. *Invariant*: pure. Values in, values out: no files, no clock, no cluster.
#![forbid(unsafe_code)]

pub mod check;
pub mod fields;
pub mod fix;
pub mod generate;
pub mod model;
pub mod write;
pub mod yaml;
