//! What was measured, told by rank 0 to all: ranks that went by files of their own would choose apart.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Communicator;
use crate::bootstrap::{PeerInfo, Session};
use crate::config::{Config, TuningChoice};
use crate::error::Result;
use crate::log;
use crate::plan::calibration::{Calibration, Topology};
use crate::tuning;

/// What rank 0 knows of ranks placed like these. All ranks call it.
pub(crate) fn agree(
    session: &mut Session,
    config: &Config,
    hosts: &[u32],
) -> Result<Option<Arc<Calibration>>> {
    if config.tuning == TuningChoice::Off || session.size == 1 {
        return Ok(None);
    }
    let mut own = Vec::new();
    if session.rank == 0 {
        let warning;
        (own, warning) = tuning::text(config, &topology(&session.peers, hosts));
        if let Some(warning) = warning {
            tracing::warn!(target: log::TUNING, "{warning}");
        }
    }
    let all = session.all_gather(&own)?;
    let told = all.first().filter(|text| !text.is_empty());
    Ok(told.and_then(|text| Calibration::from_json(text).ok()).map(Arc::new))
}

fn topology(peers: &[PeerInfo], hosts: &[u32]) -> Topology {
    let machines: BTreeSet<&str> = peers.iter().map(|peer| peer.boot_id.as_str()).collect();
    tuning::topology(hosts, u32::try_from(machines.len()).unwrap_or(u32::MAX))
}

impl Communicator {
    /// Where the ranks are, as tuning files name it; processor and cores are this rank's.
    #[must_use]
    pub fn topology(&self) -> Topology {
        topology(&self.inner.peers, &self.inner.hosts)
    }

    /// What was measured of ranks like these, where there is a tuning file; the same on all ranks.
    #[must_use]
    pub fn calibration(&self) -> Option<Arc<Calibration>> {
        self.desk().planning.measured()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{Options, UniqueId};
    use crate::call::Call;
    use crate::config::Source;
    use crate::plan::algorithm::Algorithm;
    use crate::plan::calibration::Point;
    use crate::plan::cost::Links;
    use crate::plan::types::{Collective, DataType, ReduceOp};

    /// Each rank with a `RINGWAY_TUNING` of its own.
    fn choices(tunings: &[String]) -> Vec<Result<Algorithm>> {
        let id = UniqueId::generate(&Options::default()).unwrap();
        let size = u32::try_from(tunings.len()).unwrap();
        let join = |rank: u32, tuning: &str| {
            let mut config = Config::default();
            config.set("RINGWAY_TUNING", tuning, Source::CommandLine).unwrap();
            let comm = Communicator::from_unique_id(&id, rank, size, config)?;
            let call = Call::new(Collective::AllReduce, DataType::F32, 1 << 18);
            let mut sums = vec![0.0_f32; 1 << 18];
            comm.all_reduce(&vec![1.0; 1 << 18], &mut sums, ReduceOp::Sum)?;
            assert!(sums.iter().all(|sum| *sum == 3.0));
            comm.candidates(&call).map(|choice| choice.algorithm)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(tunings)
                .map(|(rank, tuning)| scope.spawn(move || join(rank, tuning)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_go_by_the_file_of_rank_0() {
        let mut odd = Calibration::new(tuning::topology(&[0, 0, 0], 1), Links::default());
        odd.learn(Collective::AllReduce, Algorithm::Tree, Point(1 << 20, 1.0, 1000.0));
        let file = std::env::temp_dir().join(format!("ringway-tuned-{}.json", std::process::id()));
        tuning::write(&file, &odd).unwrap();
        let (file, none) = (file.display().to_string(), "/no/such/file".to_owned());
        let with = choices(&[file.clone(), none.clone(), "auto".to_owned()]);
        assert!(with.iter().all(|choice| choice.as_ref().is_ok_and(|a| *a == Algorithm::Tree)));
        let without = choices(&[none, file.clone(), file.clone()]);
        assert!(without.iter().all(|choice| choice.as_ref().is_ok_and(|a| *a != Algorithm::Tree)));
        let apart = choices(&[file.clone(), "off".to_owned(), file.clone()]);
        std::fs::remove_file(file).unwrap();
        for error in apart.into_iter().map(Result::unwrap_err) {
            assert!(error.to_string().contains("RINGWAY_TUNING"), "{error}");
        }
    }
}
