//! Numbers for those who watch, as Prometheus takes them: the text format (version 0.0.4), written and read, and the
//! thread that answers for it over HTTP.
//!
//! ```text
//!   communicators of a process ─► Page ─► Server ◄── Prometheus, people
//!                                            ▲
//!   ringway exporter: families(text) ────────┘       and a Page and a Server of its own
//! ```
//!
//! *Invariant*: it knows nothing of what the numbers are about.

mod page;
mod read;
mod server;

pub use page::{Label, Page};
pub use read::{Family, Misread, Sample, families};
pub use server::{Listener, Server};
