//! Collective communication for training and serving clusters.

pub mod config;
pub mod error;
pub mod log;

pub use error::{Error, ErrorKind, Result};
pub use ringway_plan as plan;
