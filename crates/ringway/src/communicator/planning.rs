//! From calls to plans. What was planned is remembered with the call: see `known`.

use std::sync::Arc;

use super::Communicator;
use crate::call::Call;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::algorithm::Algorithm;
use crate::plan::build::{Context, Tuning};
use crate::plan::calibration::Calibration;
use crate::plan::cost::Links;
use crate::plan::plan::RankPlan;
use crate::plan::planner::{self, Choice, Request};
use crate::plan::problem::{Counts, Problem};
use crate::plan::types::Rank;
use crate::transport::shm::Layout;

/// Calls of so many bytes are spread over rails.
const CUT_BYTES: u64 = 256 << 10;

/// Lanes that are used for rails, at most.
const LANES_MOST: u32 = 16;

/// What plans are made for. The same on all ranks.
#[derive(Debug)]
pub(crate) struct Ground {
    /// Ranks with the same number map each other's memory.
    pub(crate) hosts: Vec<u32>,
    /// Rails between hosts.
    pub(crate) rails: usize,
    /// Why ranks of one host do not read each other's buffers, if they do not.
    pub(crate) unreadable: Option<String>,
}

/// The planner of a communicator.
#[derive(Debug)]
pub(crate) struct Planning {
    ground: Ground,
    config: Config,
    scratch_bytes: u64,
    /// What rank 0 told all ranks was measured.
    measured: Option<Arc<Calibration>>,
}

impl Planning {
    pub(crate) fn new(
        ground: Ground,
        config: &Config,
        layout: Layout,
        measured: Option<Arc<Calibration>>,
    ) -> Self {
        Self { ground, config: config.clone(), scratch_bytes: layout.large_bytes, measured }
    }

    /// The plan of one call for `rank`, and by which algorithm it was made.
    pub(crate) fn draft(
        &self,
        rank: Rank,
        problem: &Problem,
        wanted: Option<Algorithm>,
    ) -> Result<(RankPlan, Algorithm)> {
        let (algorithm, tuning) = self.choose(problem, wanted)?;
        tracing::info!(
            target: crate::log::TUNING,
            rank = u64::from(rank),
            "{}: {:?} elements of {} -> Algo {algorithm} lanes {} slot {} bytes",
            problem.collective,
            problem.counts,
            problem.data_type,
            tuning.lanes,
            tuning.slot_bytes
        );
        let context = Context { problem, rank, hosts: &self.ground.hosts, tuning };
        Ok((algorithm.build(context), algorithm))
    }

    /// The algorithm for a call: the one that was asked for, or the quickest that NCCL_ALGO allows.
    /// Depends only on what is equal on all ranks.
    fn choose(&self, problem: &Problem, wanted: Option<Algorithm>) -> Result<(Algorithm, Tuning)> {
        if let Some(wanted) = wanted {
            let allow = |algorithm: Algorithm| {
                if algorithm == wanted { Ok(()) } else { Err(String::new()) }
            };
            let able =
                wanted.supports(problem, &self.ground.hosts).and_then(|()| self.able(wanted));
            able.map_err(Error::usage)?;
            return self.ask(problem, &allow);
        }
        let allow = |algorithm: Algorithm| self.allow(problem, algorithm);
        self.ask(problem, &allow).or_else(|error| {
            let free = self.ask(problem, &|algorithm| self.able(algorithm))?;
            tracing::warn!(target: crate::log::TUNING, "{error}; using {} all the same", free.0);
            Ok(free)
        })
    }

    fn ask(
        &self,
        problem: &Problem,
        allow: &dyn Fn(Algorithm) -> std::result::Result<(), String>,
    ) -> Result<(Algorithm, Tuning)> {
        planner::choose_algorithm(problem, &self.ground.hosts, &self.request(problem, allow))
            .map_err(|error| Error::usage(error.to_string()))
    }

    fn request<'a>(
        &'a self,
        problem: &Problem,
        allow: &'a dyn Fn(Algorithm) -> std::result::Result<(), String>,
    ) -> Request<'a> {
        Request {
            allow,
            lanes: self.config.lanes.or_else(|| self.lanes_for_rails(problem)),
            slot_bytes: self.config.chunk_bytes,
            scratch_bytes: self.scratch_bytes,
            links: self.measured.as_ref().map_or_else(Links::default, |known| known.links),
            measured: self.measured.as_deref(),
        }
    }

    /// Whether the machine lets us, else why not.
    fn able(&self, algorithm: Algorithm) -> std::result::Result<(), String> {
        match &self.ground.unreadable {
            Some(why) if algorithm.reads_buffers() => Err(why.clone()),
            _ => Ok(()),
        }
    }

    fn allow(&self, problem: &Problem, algorithm: Algorithm) -> std::result::Result<(), String> {
        self.able(algorithm)?;
        if self.config.algorithms.allows(problem.collective, algorithm.name()) {
            return Ok(());
        }
        Err("left out by NCCL_ALGO".to_owned())
    }

    /// What rank 0 told all ranks was measured.
    pub(crate) fn measured(&self) -> Option<Arc<Calibration>> {
        self.measured.clone()
    }

    /// A lane for every rail, where there are several and the call is long enough to be cut. None:
    /// the planner's choice.
    fn lanes_for_rails(&self, problem: &Problem) -> Option<u32> {
        let mapped = self.ground.hosts.windows(2).all(|pair| pair[0] == pair[1]);
        if self.ground.rails < 2 || mapped || matches!(problem.counts, Counts::Pairwise { .. }) {
            return None;
        }
        let values = problem.input_count(problem.root).max(problem.output_count(problem.root));
        let bytes = values.saturating_mul(problem.data_type.size() as u64);
        (bytes >= CUT_BYTES)
            .then(|| u32::try_from(self.ground.rails).unwrap_or(u32::MAX).min(LANES_MOST))
    }

    /// Scratch an operation may use.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }
}

impl Communicator {
    /// The algorithms this communicator could do `call` by, what each is thought and was seen to
    /// take, and its choice. The same on all ranks.
    ///
    /// ```
    /// use ringway::{Call, plan::types::{Collective, DataType}};
    /// ringway::testing::world(2, |comm| {
    ///     let choice = comm.candidates(&Call::new(Collective::AllReduce, DataType::F32, 1024));
    ///     assert_eq!(choice.unwrap().candidates.len(), 12);
    /// });
    /// ```
    ///
    /// # Errors
    /// The call cannot be made, or no algorithm is allowed.
    pub fn candidates(&self, call: &Call) -> Result<Choice> {
        let problem = call.problem(self.size(), call.level.unwrap_or_else(|| self.level()))?;
        let desk = self.desk();
        let planning = &desk.planning;
        let allow = |algorithm: Algorithm| planning.allow(&problem, algorithm);
        planner::choose(&problem, &planning.ground.hosts, &planning.request(&problem, &allow))
            .map_err(|error| Error::usage(error.to_string()))
    }
}
