//! What those who watch a job are told: totals of every communicator of a process, as Prometheus text.
//!
//! ```text
//!   executing thread ──► Meter, Traffic ─┐
//!   control plane ─────► Health, refusals ┼─ read when somebody asks ──► text ──► HTTP, a port or a Unix socket
//!   journal ───────────► where it stands ─┘
//! ```
//!
//! Nothing of it exists unless `RINGWAY_METRICS` says where it is to be served. The names are those of docs/metrics.md.

mod server;
mod text;

use std::sync::{Arc, OnceLock};

use self::server::Server;
use crate::bootstrap::Session;
use crate::bootstrap::gate::Rejections;
use crate::config::Config;
use crate::control::{Health, Journal};
use crate::plan::types::Rank;
use crate::recorder::{Meter, Span};

/// What is known of one communicator.
#[derive(Debug)]
pub(crate) struct Metered {
    pub(crate) meter: Meter,
    communicator: u64,
    rank: Rank,
    size: u32,
    host: String,
    pid: u32,
    journal: Arc<Journal>,
    health: Arc<Health>,
    rejections: Arc<Rejections>,
    /// What turned ticks into seconds when it had become exact: buckets of times must not move after.
    span: OnceLock<Span>,
}

/// A communicator's hold on what is told of it, and on who tells it.
#[derive(Debug)]
pub(super) struct Kept {
    metered: Arc<Metered>,
    server: Option<Arc<Server>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server::release(server);
        }
    }
}

impl std::ops::Deref for Kept {
    type Target = Arc<Metered>;

    fn deref(&self) -> &Arc<Metered> {
        &self.metered
    }
}

impl Kept {
    /// Lets the communicator that `session` becomes be watched, where the settings say so.
    pub(super) fn start(
        session: &Session,
        config: &Config,
        (journal, health): (&Arc<Journal>, &Arc<Health>),
    ) -> Option<Self> {
        let place = config.metrics.as_ref()?;
        let rank = session.rank;
        let server = match Server::at(place) {
            Ok(server) => server,
            Err(error) => {
                tracing::warn!(
                    target: crate::log::INIT,
                    rank = u64::from(rank),
                    "no metrics are served: {error}; see RINGWAY_METRICS={place}"
                );
                return None;
            }
        };
        tracing::info!(
            target: crate::log::INIT,
            rank = u64::from(rank),
            "metrics are served at {}",
            server.address()
        );
        let identity = session.peers[rank as usize].identity();
        let metered = Arc::new(Metered {
            meter: Meter::new(session.size),
            communicator: session.comm_id,
            rank,
            size: session.size,
            host: identity.host,
            pid: identity.pid,
            journal: Arc::clone(journal),
            health: Arc::clone(health),
            rejections: Arc::clone(&session.rejections),
            span: OnceLock::new(),
        });
        server.add(&metered);
        Some(Self { metered, server: Some(server) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
