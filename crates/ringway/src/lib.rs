//! Collective communication for training and serving clusters.
//!
//! ```
//! use ringway::ReduceOp;
//! // Under `ringway run`, torchrun, mpirun or srun: `let comm = ringway::Communicator::from_env()?;`
//! ringway::testing::world(4, |comm| {
//!     let mut sum = [0.0_f32; 3];
//!     comm.all_reduce(&[1.0, 2.0, 3.0], &mut sum, ReduceOp::Sum).unwrap();
//!     assert_eq!(sum, [4.0, 8.0, 12.0]);
//! });
//! ```
//!
//! A collective is written down as a plan ([`plan`]) before a byte moves; the executor runs the plan
//! over whatever transports the ranks have between them. See ARCHITECTURE.md.

pub mod bootstrap;
mod call;
mod collective;
mod communicator;
pub mod config;
pub mod control;
pub mod device;
pub mod element;
pub mod error;
mod executor;
pub mod exposition;
mod ffi;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod interrupt;
pub mod log;
pub mod net;
mod os;
pub mod recorder;
pub mod reduce;
mod sync;
pub mod testing;
pub mod topo;
mod transport;
pub mod tuning;

pub use bootstrap::UniqueId;
pub use call::Call;
pub use communicator::{
    Afterwards, Communicator, DeviceQueue, DeviceWork, Group, Place, Progress, Work, hand_over,
};
pub use error::{Error, ErrorKind, Result};
pub use plan::types::{Collective, DataType, Level, ReduceOp};
pub use ringway_plan as plan;
pub use transport::LinkDescription;
