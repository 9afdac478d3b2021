//! Collective communication for training and serving clusters.

pub mod control;
pub mod error;

pub use error::{Error, ErrorKind, Result};
pub use ringway_plan as plan;
