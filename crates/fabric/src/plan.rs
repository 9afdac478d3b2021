//! Plans of a fabric before it is bought: how many tiers, switches and cables, what crosses the middle, what does not
//! fit, and whether it is enough for a workload.

mod design;
mod prices;
#[cfg(test)]
mod tests;
mod workload;

pub use design::{Design, Layout, Misfit, Request, Step, design, k_ary};
pub use prices::{Bill, BillLine, PriceError, Prices};
pub use workload::{Demand, Parallel, Supply, Workload};
