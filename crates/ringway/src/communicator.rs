//! The communicator: what a user holds.
//!
//! A [`Communicator`] is one rank's handle of a group of ranks. Its calls run one after another, in
//! the order in which they are made on this rank; every rank makes the same collective calls
//! in the same order. It can be used from several threads, and several communicators can be used
//! at once.

mod abort;
mod background;
mod choice;
mod clock;
mod colocation;
mod connect;
mod engine;
mod gpu;
mod group;
mod idle;
mod init;
mod known;
mod metrics;
mod near;
mod order;
mod planning;
mod queue;
mod raw;
mod rdma;
mod scratch;
mod settings;
mod shrink;
mod split;
mod staged;
mod trace;
mod tuned;
mod usual;
mod work;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub use background::hand_over;
pub use gpu::DeviceWork;
pub use group::Group;
pub use queue::{DeviceQueue, Place};
#[cfg(all(test, not(loom)))]
pub(crate) use scratch::ScratchUse;
pub use shrink::Progress;
#[cfg(all(test, not(loom)))]
pub(crate) use shrink::{Round, Word};
pub use work::{Afterwards, Work};

use crate::bootstrap::launcher::Placement;
use crate::bootstrap::{self, Options, PeerInfo, UniqueId};
use crate::call::Call;
use crate::config::{AddressFamily, Config, Environment};
use crate::control::{Control, Signature};
use crate::error::{Error, RankIdentity, Result};
use crate::executor::{Execution, Part, Prepared};
use crate::plan::problem::{Counts, Problem};
use crate::plan::types::{Collective, DataType, Rank, ReduceOp};
use crate::reduce::{Kernel, Scalar};
use crate::transport::{Area, LinkDescription, Pair};
use engine::{Agreement, Engine, MessagePart};
use known::{Buffers, Calls, Known};
use order::{Order, Ticket, Turn};
use planning::Planning;
use usual::Usual;

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
    order: Order,
    desk: Mutex<Desk>,
    background: Mutex<background::Background>,
    splits: AtomicU64,
    /// Set when the ranks have met on their GPUs.
    gpu: OnceLock<gpu::Attached>,
    /// Whether this rank has given the communicator up. Set (release) before the control plane is
    /// told; calls that begin after that look at it (acquire), as the news may still be on its way.
    given_up: AtomicBool,
    /// How far those had come from which this one goes on.
    progress: OnceLock<Progress>,
    /// What adapters know of this rank's memory.
    regions: Arc<rdma::Regions>,
    /// What this rank has done, and where that goes.
    recording: trace::Kept,
    /// What those who watch are told, where anybody may.
    metered: Option<metrics::Kept>,
    // Last: the goodbye comes when everything else is gone.
    control: Control,
}

/// What whoever has the turn works with.
#[derive(Debug)]
struct Desk {
    planning: Planning,
    calls: Calls,
    engine: Engine,
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

    /// The id of a communicator to be: see [`Communicator::from_unique_id`]. This process serves the
    /// rendezvous, at the addresses the settings allow.
    ///
    /// # Errors
    /// The settings contradict themselves, or no address is left.
    pub fn unique_id(config: &Config) -> Result<UniqueId> {
        config.check()?;
        UniqueId::generate(&options(config))
    }

    /// Joins as `rank` of `size` the communicator that `id` names. One rank makes the id
    /// ([`Communicator::unique_id`]) and hands it to the others by any means.
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

    /// Bytes of memory this rank's handle takes for itself, shared with the ranks of its host: at most
    /// `RINGWAY_MAX_BYTES`. Plans, the flight recorder (128 KiB) and what calls need besides is little beside it. Where
    /// GPU memory goes by the host (see [`Communicator::gpu_path`]) every channel takes as much again, and pinned memory. Every rank that has
    /// been talked to by RDMA takes 4 MiB more.
    ///
    /// ```
    /// ringway::testing::world(2, |comm| assert!(comm.memory_bytes() <= 16 << 20));
    /// ```
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let by_rdma = self.links().iter().filter(|link| link.transport == "NET/IB").count();
        self.desk().engine.own.layout().bytes() + rdma::LINK_BYTES * by_rdma as u64
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

    /// What carries bytes to a rank, as the log names it: `SHM`, `NET/IB`, `NET/Socket` or `NET/Socket/TLS`.
    #[must_use]
    pub fn carrier(&self, peer: u32) -> &'static str {
        let host = |rank: u32| self.inner.hosts.get(rank as usize);
        if host(peer) == host(self.rank()) {
            "SHM"
        } else if self.desk().engine.rdma.reaches(peer).is_ok() {
            "NET/IB"
        } else if self.inner.config.tls {
            "NET/Socket/TLS"
        } else {
            "NET/Socket"
        }
    }

    /// The network ports over which this rank reaches ranks with which it shares no memory: `mlx5_0:1` for RDMA, `eth0` for
    /// sockets. None where that is the loopback, or no interface could be paired with the peer's.
    #[must_use]
    pub fn ports(&self) -> Vec<String> {
        let far = |carrier: &str| -> Vec<Rank> {
            (0..self.size()).filter(|peer| self.carrier(*peer).starts_with(carrier)).collect()
        };
        let mut ports = Vec::new();
        if !far("NET/IB").is_empty() {
            let labels = self.desk().engine.rdma.labels();
            // `mlx5_0:1/RoCE`
            ports.extend(labels.iter().filter_map(|one| Some(one.split('/').next()?.to_owned())));
        }
        let peers = &self.inner.peers;
        for peer in far("NET/Socket") {
            let found = bootstrap::rails::pair(&peers[self.rank() as usize], &peers[peer as usize]);
            ports.extend(found.pairs.iter().map(|(own, _)| own.interface.clone()));
        }
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// The links made so far, each with what it is and why.
    #[must_use]
    pub fn links(&self) -> Vec<LinkDescription> {
        self.desk().engine.links.iter_mut().map(|link| link.description().clone()).collect()
    }

    /// Runs a collective on bytes.
    ///
    /// # Errors
    /// A buffer has the wrong size, the ranks' calls differ, a rank died, or the deadline passed.
    pub fn call(&self, call: &Call, input: &[u8], output: &mut [u8]) -> Result<()> {
        let input = Area { address: input.as_ptr().cast_mut(), bytes: input.len() };
        let output = Area { address: output.as_mut_ptr(), bytes: output.len() };
        self.call_now(call, Buffers::Apart(input, output))
    }

    /// Runs a collective in place, by NCCL's convention: the input of all_gather stands at its place
    /// in the output, the output of reduce_scatter at its place in the input, likewise at the root
    /// of gather and scatter; all_to_all replaces what was sent by what was received.
    ///
    /// # Errors
    /// As [`Communicator::call`].
    pub fn call_in_place(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let whole = Area { address: buffer.as_mut_ptr(), bytes: buffer.len() };
        self.call_now(call, Buffers::InPlace(whole))
    }

    /// Waits for this rank's turn and makes a call. The buffers must stay valid until it returns;
    /// every caller holds the borrows.
    fn call_now(&self, call: &Call, buffers: Buffers) -> Result<()> {
        let _turn = self.inner.turn();
        self.inner.call(call, buffers)
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

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.inner.desk.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn run_now(
        &self,
        requests: &[Request],
        messages: &[MessagePart],
        deadline: Option<Duration>,
    ) -> Result<()> {
        let _turn = self.inner.turn();
        self.inner.run(requests, messages, deadline)
    }
}

impl Inner {
    /// Waits for the next turn.
    fn turn(&self) -> Turn<'_> {
        self.await_turn(self.order.take())
    }

    /// Waits for a turn. Whoever is interrupted meanwhile gives the communicator up: then those before it end.
    fn await_turn(&self, ticket: Ticket) -> Turn<'_> {
        self.order.wait(ticket, || self.abort(engine::INTERRUPTED))
    }

    /// Makes one call. Called by whoever has the turn.
    fn call(&self, call: &Call, buffers: Buffers) -> Result<()> {
        self.call_queued(call, buffers, 0)
    }

    /// Makes one call that is a part of one of `whole` values, by which it is known to the other ranks.
    fn call_part(&self, call: &Call, whole: u64, buffers: Buffers) -> Result<()> {
        self.check_health().inspect_err(|error| self.failed(error))?;
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        desk.engine.whole = Some(whole);
        let outcome = self.run_call(&mut desk, call, buffers);
        if let Err(error) = &outcome {
            // It may not have come as far as to be noted.
            desk.engine.whole = None;
            self.failed(error);
        }
        outcome
    }

    /// Makes one call that was queued at `queued`, by the recorder's clock; 0 where it was not.
    fn call_queued(&self, call: &Call, buffers: Buffers, queued: u64) -> Result<()> {
        self.check_health().inspect_err(|error| self.failed(error))?;
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        desk.engine.queued = queued;
        let outcome = self.run_call(&mut desk, call, buffers);
        if let Err(error) = &outcome {
            // It may not have come as far as to be noted.
            desk.engine.queued = 0;
            self.failed(error);
        }
        outcome
    }

    fn check_health(&self) -> Result<()> {
        if !self.control.health().is_raised() && !self.given_up.load(Ordering::Acquire) {
            return Ok(());
        }
        let verdict = self.control.wait_verdict(crate::control::VERDICT_WAIT);
        self.recording.failed(Some(&verdict));
        Err(verdict)
    }

    /// A call ends with an error.
    #[cold]
    fn failed(&self, error: &Error) {
        self.recording.failed(Some(error));
        if let Some(metered) = &self.metered {
            metered.meter.fail(error.kind());
        }
    }

    /// Runs requests and messages. Called by whoever has the turn.
    fn run(
        &self,
        requests: &[Request],
        messages: &[MessagePart],
        deadline: Option<Duration>,
    ) -> Result<()> {
        self.check_health().inspect_err(|error| self.failed(error))?;
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = self.run_all(&mut desk, requests, messages, deadline);
        if let Err(error) = &outcome {
            self.failed(error);
        }
        outcome
    }

    fn run_all(
        &self,
        desk: &mut Desk,
        requests: &[Request],
        messages: &[MessagePart],
        deadline: Option<Duration>,
    ) -> Result<()> {
        match requests {
            [] => {}
            [one] => self.run_call(desk, &one.call, Buffers::Apart(one.input, one.output))?,
            several => self.run_fused(desk, several)?,
        }
        if messages.is_empty() {
            return Ok(());
        }
        let mapped = |peer: Rank| self.hosts[peer as usize] == self.hosts[self.rank as usize];
        // SAFETY: `run_now` and `work` keep the buffers borrowed until this returns.
        #[expect(unsafe_code, reason = "the areas stand for borrows the caller holds")]
        unsafe {
            desk.engine.exchange(messages, &mapped, deadline.unwrap_or(self.config.timeout))
        }
    }

    fn run_call(&self, desk: &mut Desk, call: &Call, buffers: Buffers) -> Result<()> {
        let mut known = match desk.calls.take(call) {
            Some(known) => known,
            None => Box::new(self.learn(desk, call)?),
        };
        let outcome = self.run_known(desk, &mut known, call, buffers);
        desk.calls.put(known);
        outcome
    }

    /// Plans a call that was not made before.
    fn learn(&self, desk: &mut Desk, call: &Call) -> Result<Known> {
        let problem = self.problem(call)?;
        // Before anything is computed with the counts.
        let input_bytes = call.input_bytes(self.rank, self.size)?;
        let output_bytes = call.output_bytes(self.rank, self.size)?;
        let (plan, algorithm) = desk.planning.draft(self.rank, &problem, call.algorithm)?;
        let prepared = Arc::new(Prepared::new(plan));
        let neighbours = Arc::clone(&desk.engine.neighbours);
        let in_place = call.in_place(self.rank, self.size)?;
        Ok(Known {
            call: call.clone(),
            execution: Execution::new(prepared, vec![self.part(call)], neighbours),
            agreement: Agreement {
                signature: signature(call, &problem),
                pairs: pairs(std::iter::once(&problem)),
                algorithm: Some(algorithm),
                parts: 1,
                uneven: problem.is_uneven(),
            },
            input_bytes,
            output_bytes,
            in_place,
            usual: Usual::default(),
        })
    }

    fn problem(&self, call: &Call) -> Result<Problem> {
        call.problem(self.size, call.level.unwrap_or(self.config.level))
    }

    fn run_known(
        &self,
        desk: &mut Desk,
        known: &mut Known,
        call: &Call,
        buffers: Buffers,
    ) -> Result<()> {
        let copy;
        let (input, output) = match (known.areas(buffers)?, buffers) {
            (Some(areas), _) => areas,
            (None, Buffers::Apart(input, output)) => (input, output),
            // In place where a plan cannot be: by way of a copy of the input.
            (None, Buffers::InPlace(whole)) => {
                // SAFETY: the caller holds the buffer's borrow, and its length was checked.
                #[expect(unsafe_code, reason = "the area stands for a borrow the caller holds")]
                let input = unsafe { std::slice::from_raw_parts(whole.address, known.input_bytes) };
                copy = input.to_vec();
                let input = Area { address: copy.as_ptr().cast_mut(), bytes: copy.len() };
                (input, Area { bytes: known.output_bytes, ..whole })
            }
        };
        if let Some(scales) = self.scales(desk, call)? {
            known.execution.set_scales(0, scales);
        }
        let spreads = self.config.adaptive_timeout.filter(|_| call.deadline.is_none());
        let began = spreads.map(|_| Instant::now());
        let deadline = match spreads {
            Some(spreads) => known.usual.deadline(spreads, self.config.timeout),
            None => call.deadline.unwrap_or(self.config.timeout),
        };
        // SAFETY: `call_now`, `run_now` and `work` keep the buffers borrowed until this returns, and
        // the plan was made by an algorithm for exactly these sizes.
        #[expect(unsafe_code, reason = "the areas stand for borrows the caller holds")]
        let outcome = unsafe {
            let areas: (&[Area], &[Area]) = (&[input], &[output]);
            desk.engine.collective(&mut known.execution, areas, &known.agreement, deadline)
        };
        if let (Some(began), Ok(())) = (began, &outcome) {
            known.usual.add(began.elapsed());
        }
        outcome
    }

    /// What a call computes with.
    fn part(&self, call: &Call) -> Part {
        let reduces = call.collective.reduces();
        let kernel = reduces.then(|| Kernel::new(call.data_type, call.op, self.size));
        Part { data_type: call.data_type, kernel, scales: Vec::new() }
    }

    /// The factors of a pre-multiplied sum: before it all ranks tell each other theirs.
    fn scales(&self, desk: &mut Desk, call: &Call) -> Result<Option<Vec<Scalar>>> {
        if !call.collective.reduces() || call.op != ReduceOp::PreMulSum {
            return Ok(None);
        }
        let mut factors = vec![0.0_f64; self.size as usize];
        let mine = [call.scalar];
        let input = Area { address: mine.as_ptr().cast::<u8>().cast_mut(), bytes: 8 };
        let output = Area { address: factors.as_mut_ptr().cast(), bytes: 8 * factors.len() };
        let gather = Call::new(Collective::AllGather, DataType::F64, 1);
        let whole = desk.engine.whole.take();
        self.run_call(desk, &gather, Buffers::Apart(input, output))?;
        desk.engine.whole = whole;
        let scalar = |factor: f64| Scalar::from_f64(call.data_type, factor);
        Ok(Some(factors.into_iter().map(scalar).collect()))
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
