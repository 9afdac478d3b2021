//! Plans and workloads on models of fabrics.
//!
//! A [`Network`](network::Network) is a [fabric](ringway_fabric::Fabric) with [machines](machine::Machine) at its ends: links in one
//! direction each, with a capacity. [Traffic](work::Stream) is routed over it and shares its links max-min
//! fairly; time goes on from event to event. What runs is a plan of the library, step by step
//! (`steps`); a graph of whole collectives, each as flows that go at one pace (`pattern`, `dag`); or a training step
//! (`workload`). What comes out is an [`Outcome`](outcome::Outcome), for reports. Values in, values out: no I/O, no clock, no
//! thread, no `unsafe`.
#![forbid(unsafe_code)]

pub mod dag;
pub mod engine;
pub mod error;
pub mod fault;
pub mod machine;
pub mod network;
pub mod outcome;
pub mod pattern;
pub mod report;
pub mod route;
pub mod solve;
pub mod steps;
pub mod what_if;
pub mod work;
pub mod workload;

pub use error::SimError;
