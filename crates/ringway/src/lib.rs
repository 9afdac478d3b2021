//! Collective communication for training and serving clusters.

pub mod element;
pub mod error;
pub mod reduce;

pub use error::{Error, ErrorKind, Result};
pub use ringway_plan as plan;
