//! What the JSON of both searches begins with; docs/slow-one.md describes it.

use ringway::Communicator;
use serde::Serialize;

use super::SlowArgs;
use super::places::{Place, Places};
use crate::perf::clock;
use crate::perf::ranks::Collectives as _;

/// The fields that both have.
#[derive(Debug, Serialize)]
pub(crate) struct Head<'a> {
    format: &'static str,
    version: &'static str,
    start_time: String,
    end_time: String,
    connection: String,
    /// How GPU memory is reached, where that is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_path: Option<String>,
    ranks: &'a [Place],
    bytes: u64,
    /// So many times as long is slow.
    limit: f64,
}

impl<'a> Head<'a> {
    /// Of a search that ends now.
    pub(crate) fn new(
        format: &'static str,
        comm: &Communicator,
        places: &'a Places,
        args: &SlowArgs,
        start_time: String,
    ) -> Self {
        Self {
            format,
            version: env!("CARGO_PKG_VERSION"),
            start_time,
            end_time: clock::now(),
            connection: comm.describe(),
            gpu_path: comm.gpu_path(),
            ranks: &places.0,
            bytes: args.bytes,
            limit: args.limit(),
        }
    }

    /// The same for people, above what was found.
    pub(crate) fn lines(comm: &Communicator) -> Vec<String> {
        let version = env!("CARGO_PKG_VERSION");
        let first = format!("# ringway {version} {} ranks {}", comm.describe(), comm.size());
        let gpu = comm.gpu_path().map(|path| format!("# GPU memory: {path}"));
        [first].into_iter().chain(gpu).collect()
    }
}
