//! From calls to plans: chosen once per call shape, then cached.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::executor::Prepared;
use crate::plan::algorithm::Algorithm;
use crate::plan::build::{Context, Tuning};
use crate::plan::plan::RankPlan;
use crate::plan::problem::Problem;
use crate::plan::types::Rank;
use crate::transport::shm::Layout;

/// Plans kept; when there are more shapes than this the cache starts afresh.
const PLANS_MOST: usize = 1024;

/// The planner of a communicator, with its cache.
#[derive(Debug)]
pub(crate) struct Planning {
    hosts: Vec<u32>,
    config: Config,
    scratch_bytes: u64,
    plans: HashMap<(Problem, Option<Algorithm>), Arc<Prepared>>,
}

impl Planning {
    pub(crate) fn new(hosts: Vec<u32>, config: &Config, layout: Layout) -> Self {
        Self {
            hosts,
            config: config.clone(),
            scratch_bytes: layout.large_bytes,
            plans: HashMap::new(),
        }
    }

    /// The plan of one call for `rank`.
    pub(crate) fn prepared(
        &mut self,
        rank: Rank,
        problem: &Problem,
        wanted: Option<Algorithm>,
    ) -> Result<Arc<Prepared>> {
        let key = (problem.clone(), wanted);
        if let Some(known) = self.plans.get(&key) {
            return Ok(Arc::clone(known));
        }
        let prepared = Arc::new(Prepared::new(self.draft(rank, problem, wanted)?));
        if self.plans.len() >= PLANS_MOST {
            self.plans.clear();
        }
        self.plans.insert(key, Arc::clone(&prepared));
        Ok(prepared)
    }

    /// Plans one call afresh.
    pub(crate) fn draft(
        &self,
        rank: Rank,
        problem: &Problem,
        wanted: Option<Algorithm>,
    ) -> Result<RankPlan> {
        let (algorithm, tuning) = self.choose(problem, wanted)?;
        Ok(algorithm.build(Context { problem, rank, hosts: &self.hosts, tuning }))
    }
}

impl Planning {
    fn choose(&self, problem: &Problem, wanted: Option<Algorithm>) -> Result<(Algorithm, Tuning)> {
        let all = Algorithm::ALL;
        let bytes = problem.count() * problem.data_type.size() as u64;
        let algorithm = match wanted {
            Some(algorithm) => {
                algorithm.supports(problem, &self.hosts).map_err(Error::usage)?;
                algorithm
            }
            None => all
                .into_iter()
                .filter(|a| {
                    bytes <= 8192
                        || *a != Algorithm::OneShot
                        || problem.collective == crate::plan::types::Collective::ReduceScatter
                })
                .find(|a| a.supports(problem, &self.hosts).is_ok())
                .ok_or_else(|| Error::usage("no algorithm"))?,
        };
        let tuning = Tuning {
            lanes: self.config.lanes.unwrap_or(1),
            slot_bytes: self.config.chunk_bytes.unwrap_or(256 << 10),
            slots: 2,
            scratch_bytes: self.scratch_bytes,
        };
        Ok((algorithm, tuning))
    }
}

impl Planning {
    /// Scratch an operation may use.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }
}
