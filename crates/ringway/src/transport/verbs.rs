//! RDMA: reliable connections over InfiniBand and RoCE.

pub(crate) mod adapter;
mod flow;
mod paths;
mod rail;
pub(crate) mod select;
mod side;
pub(crate) mod stream;
mod wire;
