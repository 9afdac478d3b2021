//! RDMA: reliable connections over InfiniBand and RoCE.

pub(crate) mod adapter;
mod flow;
pub(crate) mod meet;
pub(crate) mod register;
pub(crate) mod select;
pub(crate) mod stream;
