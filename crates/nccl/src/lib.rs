//! NCCL's C interface, by ringway: a `libnccl.so.2` on which programs run unchanged.
//!
//! ```text
//!   C program ── nccl.h ──► exports      argument types that C alone makes, no panic gets out
//!                           group        what is collected between GroupStart and GroupEnd
//!                           create, end  communicators made, in parallel, and taken down
//!                           submit       operations, with the memory they are on
//!                              │
//!                              ▼
//!                           ringway::Communicator
//! ```
//!
//! *Invariant*: translation only. What a call means is ringway's matter; here is what C needs
//! besides: handles, groups, codes, and the configuration structures of every version.

mod boundary;
mod comm;
mod config;
mod create;
mod end;
mod exports;
mod group;
mod memory;
mod operation;
mod operator;
mod param;
mod raw;
mod registered;
mod submit;
mod types;
