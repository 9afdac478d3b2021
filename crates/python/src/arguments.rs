//! What Python hands over, as the library's own types; whatever does not fit is an error that says so.

use std::collections::BTreeMap;
use std::time::Duration;

use pyo3::prelude::*;
use ringway::config::{Config, Environment};
use ringway::plan::problem::Counts;
use ringway::{Call, Collective, DataType, Error, ReduceOp, Result, UniqueId};

/// Longer than anybody waits; the clock's arithmetic stays far from its limits.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Settings laid over the process's environment.
pub(crate) type Settings = Option<BTreeMap<String, String>>;

/// The environment with `settings` laid over it, and its settings; the log is set up by whoever comes first.
pub(crate) fn environment(settings: Settings) -> (Environment, Config) {
    let environment = Environment::from_process().with(settings.unwrap_or_default());
    let config = Config::load(&environment);
    if ringway::log::install(&config) {
        ringway::log::warn_settings(&config);
    }
    (environment, config)
}

/// Counts: none, one for each rank, or what is sent to and received from each.
#[derive(Debug, FromPyObject)]
pub(crate) enum CountsArgument {
    Pairwise((Vec<u64>, Vec<u64>)),
    PerRank(Vec<u64>),
}

impl From<CountsArgument> for Counts {
    fn from(counts: CountsArgument) -> Self {
        match counts {
            CountsArgument::PerRank(counts) => Self::PerRank(counts.into()),
            CountsArgument::Pairwise((send, receive)) => {
                Self::Pairwise { send: send.into(), receive: receive.into() }
            }
        }
    }
}

/// A call as Python makes it.
#[derive(Debug)]
pub(crate) struct CallArguments {
    pub(crate) collective: u8,
    pub(crate) data_type: u8,
    pub(crate) op: u8,
    pub(crate) count: u64,
    pub(crate) root: u32,
    pub(crate) counts: Option<CountsArgument>,
    pub(crate) scalar: f64,
    pub(crate) timeout: Option<f64>,
    pub(crate) level: Option<String>,
}

impl CallArguments {
    /// The library's call, checked as far as it can be without a communicator.
    pub(crate) fn call(self) -> Result<Call> {
        let collective = numbered("collective", &Collective::ALL, self.collective)?;
        let data_type = numbered("data type", &DataType::ALL, self.data_type)?;
        let op = numbered("reduction", &ReduceOp::ALL, self.op)?;
        let mut call = Call::new(collective, data_type, self.count).op(op).root(self.root);
        call.scalar = self.scalar;
        call.counts = self.counts.map(Counts::from);
        call.deadline = self.timeout.map(duration).transpose()?;
        if let Some(level) = self.level {
            call.level =
                Some(level.parse().map_err(|unknown| Error::argument(format!("{unknown}")))?);
        }
        Ok(call)
    }
}

/// The one with this number: tables are in the order of their numbers.
fn numbered<T: Copy>(what: &str, all: &[T], number: u8) -> Result<T> {
    all.get(usize::from(number)).copied().ok_or_else(|| {
        Error::argument(format!("{what} {number} does not exist; they are 0 to {}", all.len() - 1))
    })
}

/// Seconds as a duration.
pub(crate) fn duration(seconds: f64) -> Result<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(Error::argument(format!(
            "a timeout of {seconds} seconds cannot be; give a number that is not negative, or None"
        )));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST))
}

/// The id in some bytes.
pub(crate) fn id(bytes: Option<&[u8]>) -> Result<Option<UniqueId>> {
    bytes.map(UniqueId::from_bytes).transpose()
}
