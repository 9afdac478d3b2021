//! RDMA: reliable connections over InfiniBand and RoCE.

pub(crate) mod select;
