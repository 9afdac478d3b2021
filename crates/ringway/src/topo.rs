//! What is in this machine: found, not configured.
//!
//! Whoever reads the machine reads it through a [`Root`], so that a folder with a copy of `/sys`,
//! `/proc` and `/etc` is as good as the machine itself.
//!
//! *Invariant:* nothing here opens a path that did not come through a [`Root`].

mod root;

pub use root::{Root, RootError};
