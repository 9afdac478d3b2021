//! RDMA: reliable connections over InfiniBand and RoCE.

mod flow;
pub(crate) mod select;
