//! Collective communication for training and serving clusters.

pub mod bootstrap;
pub mod error;
mod os;

pub use error::{Error, ErrorKind, Result};
pub use ringway_plan as plan;
