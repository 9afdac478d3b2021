//! Collectives as data.
//!
//! This crate holds *what to do*: a collective is written down as a [`plan`](plan::Plan), for each
//! rank a few lanes of steps over regions of memory, before a byte moves. It contains no
//! I/O, no clock, no thread and no `unsafe`: values in, values out.
#![forbid(unsafe_code)]

pub mod bound;
pub mod build;
pub mod calibration;
pub mod cost;
pub mod draw;
pub mod fit;
pub mod json;
pub mod mapped;
pub mod message;
pub mod plan;
pub mod planner;
pub mod problem;
pub mod prove;
pub mod rng;
pub mod sim;
pub mod topology;
pub mod types;
pub mod verify;

pub mod algorithm;
