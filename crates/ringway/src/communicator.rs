//! The communicator: what a user holds.
//!
//! A [`Communicator`] is one rank's handle of a group of ranks. Its calls run one after another, in
//! the order in which they are made on this rank; every rank makes the same collective calls
//! in the same order. It can be used from several threads, and several communicators can be used
//! at once.

mod colocation;
mod connect;
mod engine;
mod group;
mod idle;
mod init;
mod order;
mod planning;
mod settings;
mod split;
mod work;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(all(test, not(loom)))]
pub(crate) use engine::ScratchUse;
pub use group::Group;
pub use work::Work;

use crate::bootstrap::launcher::Placement;
use crate::bootstrap::{self, Options, PeerInfo, UniqueId};
use crate::call::Call;
use crate::config::{AddressFamily, Config, Environment};
use crate::control::{Control, Signature};
use crate::error::{Error, RankIdentity, Result};
use crate::executor::Part;
use crate::plan::problem::{Counts, Problem};
use crate::plan::types::{Collective, DataType, Level, Rank, ReduceOp};
use crate::reduce::{Kernel, Scalar};
use crate::transport::{Area, LinkDescription, Pair};
use engine::{Engine, MessagePart};
use order::Order;
use planning::Planning;

/// One rank's handle of a group of ranks.
///
/// Cloning gives another handle of the same rank. When the last one is dropped the rank says
/// goodbye to the others.
#[derive(Clone, Debug)]
pub struct Communicator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    rank: Rank,
    size: u32,
    peers: Vec<PeerInfo>,
    hosts: Vec<u32>,
    config: Config,
    planning: Mutex<Planning>,
    order: Order,
    engine: Mutex<Engine>,
    worker: Mutex<work::Worker>,
    splits: AtomicU64,
    // Last: the goodbye comes when everything else is gone.
    control: Control,
}

/// A call resolved to areas of memory.
#[derive(Clone, Debug)]
struct Request {
    call: Call,
    input: Area,
    output: Area,
}

impl Communicator {
    /// Joins the job this process was started in: by `ringway run`, torchrun, mpirun (Open MPI,
    /// MPICH) or srun.
    ///
    /// # Errors
    /// No launcher's variables are set, the job's ranks do not come together in time (the error
    /// lists the missing ones), or a setting contradicts itself.
    pub fn from_env() -> Result<Self> {
        Self::from_environment(&Environment::from_process())
    }

    /// As [`Communicator::from_env`], with the environment as an argument.
    ///
    /// # Errors
    /// As there.
    pub fn from_environment(environment: &Environment) -> Result<Self> {
        let config = Config::load(environment);
        config.check()?;
        let variables =
            environment.variables().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
        let placement = Placement::from_environment(&variables)?;
        let session = bootstrap::join(&placement, &options(&config))?;
        Self::start(session, config)
    }

    /// Joins as `rank` of `size` the communicator that `id` names. One rank makes the id
    /// ([`UniqueId::generate`]) and hands it to the others by any means.
    ///
    /// # Errors
    /// The ranks do not come together in time, or their settings differ.
    pub fn from_unique_id(id: &UniqueId, rank: Rank, size: u32, config: Config) -> Result<Self> {
        config.check()?;
        let session = bootstrap::join_unique_id(id, rank, size, &options(&config))?;
        Self::start(session, config)
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.size
    }

    /// Host and process of every rank.
    #[must_use]
    pub fn identities(&self) -> Vec<RankIdentity> {
        self.inner.peers.iter().map(PeerInfo::identity).collect()
    }

    /// Which ranks share memory: those with the same number.
    #[must_use]
    pub fn hosts(&self) -> &[u32] {
        &self.inner.hosts
    }

    /// The links made so far, each with what it is and why.
    #[must_use]
    pub fn links(&self) -> Vec<LinkDescription> {
        self.engine().links.iter_mut().map(|link| link.description().clone()).collect()
    }

    /// Runs a collective on bytes.
    ///
    /// # Errors
    /// A buffer has the wrong size, the ranks' calls differ, a rank died, or the deadline passed.
    pub fn call(&self, call: &Call, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.check_bytes(call, input.len(), output.len())?;
        let request = Request {
            call: call.clone(),
            input: Area { address: input.as_ptr().cast_mut(), bytes: input.len() },
            output: Area { address: output.as_mut_ptr(), bytes: output.len() },
        };
        self.run_now(&[request], &[])
    }

    /// Runs a collective in place, by NCCL's convention: the input of all_gather stands at its place
    /// in the output, the output of reduce_scatter at its place in the input, likewise at the root
    /// of gather and scatter; all_to_all replaces what was sent by what was received.
    ///
    /// # Errors
    /// As [`Communicator::call`].
    pub fn call_in_place(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let problem = call.problem(size, Level::Run)?;
        let whole = call.input_bytes(rank, size)?.max(call.output_bytes(rank, size)?);
        if buffer.len() != whole {
            return Err(wrong_size("in-place buffer", call, buffer.len(), whole));
        }
        let Some((at_input, at_output)) = problem.in_place(rank) else {
            return self.call_with_copy(call, buffer);
        };
        let element = call.data_type.size();
        let bytes = |values: u64| usize::try_from(values).unwrap_or(usize::MAX) * element;
        // The offset of one end inside the buffer is the other's offset of the shared address.
        let base = buffer.as_mut_ptr();
        let input = Area {
            address: base.wrapping_add(bytes(at_output.saturating_sub(at_input))),
            bytes: call.input_bytes(rank, size)?,
        };
        let output = Area {
            address: base.wrapping_add(bytes(at_input.saturating_sub(at_output))),
            bytes: call.output_bytes(rank, size)?,
        };
        self.run_now(&[Request { call: call.clone(), input, output }], &[])
    }

    /// In place where a plan cannot be: by way of a copy of the input.
    fn call_with_copy(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let (input, output) = (call.input_bytes(rank, size)?, call.output_bytes(rank, size)?);
        let copy = buffer[..input].to_vec();
        self.call(call, &copy, &mut buffer[..output])
    }

    /// Sends and receives at once, between any two ranks (also with itself).
    ///
    /// # Errors
    /// A rank does not exist, the sizes do not meet, a rank died, or the deadline passed.
    pub fn send_recv(&self, send: &[u8], to: Rank, recv: &mut [u8], from: Rank) -> Result<()> {
        let mut group = self.group();
        group.send(send, to)?;
        group.recv(recv, from)?;
        group.run()
    }

    fn check_bytes(&self, call: &Call, input: usize, output: usize) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let (wanted_input, wanted_output) =
            (call.input_bytes(rank, size)?, call.output_bytes(rank, size)?);
        if input != wanted_input {
            return Err(wrong_size("input", call, input, wanted_input));
        }
        if output != wanted_output {
            return Err(wrong_size("output", call, output, wanted_output));
        }
        Ok(())
    }

    /// Waits for this rank's turn and runs requests and messages as one operation.
    ///
    /// The areas must stay valid until it returns; every caller holds the borrows.
    fn run_now(&self, requests: &[Request], messages: &[MessagePart]) -> Result<()> {
        let ticket = self.inner.order.take();
        let _turn = self.inner.order.wait(ticket);
        self.inner.run(requests, messages)
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.inner.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Runs requests and messages. Called by whoever has the turn.
    fn run(&self, requests: &[Request], messages: &[MessagePart]) -> Result<()> {
        if self.control.health().is_raised() {
            let limit = Duration::from_millis(crate::control::AGREEMENT_MS_MAX);
            return Err(self.control.wait_verdict(limit));
        }
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let mut problems = Vec::with_capacity(requests.len());
        for request in requests {
            let level = request.call.level.unwrap_or(self.config.level);
            problems.push(request.call.problem(self.size, level)?);
        }
        if let ([request], [problem]) = (requests, &problems[..]) {
            self.run_one(&mut engine, request, problem)?;
        } else if !requests.is_empty() {
            self.run_fused(&mut engine, requests, &problems)?;
        }
        if messages.is_empty() {
            return Ok(());
        }
        let mapped = |peer: Rank| self.hosts[peer as usize] == self.hosts[self.rank as usize];
        // SAFETY: `run_now` and `work` keep the buffers borrowed until this returns.
        #[expect(unsafe_code, reason = "the areas stand for borrows the caller holds")]
        unsafe {
            engine.exchange(messages, &mapped, self.config.timeout)
        }
    }

    fn run_one(&self, engine: &mut Engine, request: &Request, problem: &Problem) -> Result<()> {
        let prepared = {
            let mut planning = self.planning.lock().unwrap_or_else(PoisonError::into_inner);
            planning.prepared(self.rank, problem, request.call.algorithm)?
        };
        let parts = vec![self.part(engine, &request.call)?];
        let agreement = (signature(&request.call, problem), pairs(std::iter::once(problem)));
        let deadline = request.call.deadline.unwrap_or(self.config.timeout);
        let areas = (vec![request.input], vec![request.output]);
        // SAFETY: `run_now` and `work` keep the buffers borrowed until this returns, and the
        // plan was made by an algorithm for exactly these sizes (`check_bytes`).
        #[expect(unsafe_code, reason = "the areas stand for borrows the caller holds")]
        unsafe {
            engine.collective(&prepared, areas, parts, agreement, deadline)
        }
    }

    /// What a call computes with; a pre-multiplied sum first tells all ranks its factor.
    fn part(&self, engine: &mut Engine, call: &Call) -> Result<Part> {
        let mut part = Part { data_type: call.data_type, kernel: None, scales: Vec::new() };
        if !call.collective.reduces() {
            return Ok(part);
        }
        part.kernel = Some(Kernel::new(call.data_type, call.op, self.size));
        if call.op == ReduceOp::PreMulSum {
            let factors = self.exchange_factors(engine, call.scalar)?;
            part.scales = factors
                .into_iter()
                .map(|factor| Scalar::from_f64(call.data_type, factor))
                .collect();
        }
        Ok(part)
    }

    fn exchange_factors(&self, engine: &mut Engine, factor: f64) -> Result<Vec<f64>> {
        let mut all = vec![0.0_f64; self.size as usize];
        let input = [factor];
        let call = Call::new(Collective::AllGather, DataType::F64, 1);
        let request = Request {
            input: Area { address: input.as_ptr().cast::<u8>().cast_mut(), bytes: 8 },
            output: Area { address: all.as_mut_ptr().cast(), bytes: 8 * all.len() },
            call,
        };
        let problem = request.call.problem(self.size, Level::Run)?;
        self.run_one(engine, &request, &problem)?;
        Ok(all)
    }
}

/// What each rank must agree on with each other alone: how much goes between the two.
pub(crate) fn pairs<'a>(
    problems: impl Iterator<Item = &'a Problem> + Clone,
) -> Option<Arc<[Pair]>> {
    let lists = problems.filter_map(|problem| match &problem.counts {
        Counts::Pairwise { send, receive } => Some((send, receive)),
        _ => None,
    });
    let ranks = lists.clone().next()?.0.len();
    // Nothing, however often, stays 0.
    let fold = |hash: u32, count: u64| {
        let count = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash.rotate_left(5) ^ u32::try_from(count >> 32).unwrap_or_default()
    };
    let of = |rank: usize| Pair {
        sent: lists.clone().fold(0, |hash, (send, _)| fold(hash, send[rank])),
        received: lists.clone().fold(0, |hash, (_, receive)| fold(hash, receive[rank])),
    };
    Some((0..ranks).map(of).collect())
}

/// What all ranks must agree on.
pub(crate) fn signature(call: &Call, problem: &Problem) -> Signature {
    use std::hash::{Hash, Hasher};
    let reduces = call.collective.reduces();
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    if let Counts::PerRank(counts) = &problem.counts {
        counts.hash(&mut hasher);
    }
    if let Some(algorithm) = call.algorithm {
        algorithm.name().hash(&mut hasher);
    }
    Signature {
        sequence: 0,
        collective: call.collective,
        count: match &problem.counts {
            Counts::Equal(count) => *count,
            Counts::PerRank(_) => problem.total(),
            // Every rank has its own: see `pairs`.
            Counts::Pairwise { .. } => 0,
        },
        data_type: (call.collective != Collective::Barrier).then_some(call.data_type),
        op: reduces.then_some(call.op),
        root: call.collective.has_root().then_some(call.root),
        level: problem.level,
        extra: hasher.finish(),
    }
}

/// FNV-1a: the same hash on every rank, whatever the standard library does.
struct Fnv(u64);

impl std::hash::Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

fn wrong_size(what: &str, call: &Call, found: usize, wanted: usize) -> Error {
    Error::argument(format!(
        "{what} of {} has {found} bytes, but {} elements of {} need {wanted}",
        call.collective, call.count, call.data_type
    ))
}

/// How to join, by the settings.
fn options(config: &Config) -> Options {
    let filter = config.interfaces.clone();
    Options {
        init_timeout: config.init_timeout,
        interface: Arc::new(move |name| filter.allows(name)),
        family: match config.family {
            None => bootstrap::interfaces::Family::Any,
            Some(AddressFamily::V4) => bootstrap::interfaces::Family::V4,
            Some(AddressFamily::V6) => bootstrap::interfaces::Family::V6,
        },
        blob: config.host_id.clone().unwrap_or_default().into_bytes(),
        ..Options::default()
    }
}
