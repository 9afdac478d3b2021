//! A network fabric as data.
//!
//! Switches, adapters, hosts and the links between them: [read](read::Reading) from what operators save
//! (`ibnetdiscover`, `iblinkinfo`, `perfquery`, LLDP), [described](shape::Shape) by tiers and rails,
//! [checked](check::check), [compared](diff::diff), [drawn and written](export) for others, and
//! [planned](plan) before it is bought. Bytes in, values out: no I/O, no clock, no thread, no `unsafe`.
#![forbid(unsafe_code)]

pub mod check;
pub mod counter;
pub mod describe;
pub mod diff;
pub mod draft;
pub mod export;
pub mod generate;
pub mod model;
pub mod plan;
pub mod rate;
pub mod read;
pub mod shape;
pub mod tier;

pub use model::Fabric;
