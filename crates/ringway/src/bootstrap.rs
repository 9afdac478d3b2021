//! From nothing to a communicator: the ranks of a job find, authenticate and introduce each other.
//!
//! 1. [`launcher`] reads this process's place from the environment, or the program holds a
//!    [`UniqueId`].
//! 2. The root ([`rendezvous`]) collects all ranks and introduces neighbours; a rank that never
//!    comes is named to all that did.
//! 3. Each rank connects to r ± 2^i (`exchange`), trying all addresses of a peer at once, and the
//!    rest of the introductions travels by an all-gather over these connections.
//!
//! Whatever talks to a listener first proves that it holds the job's key ([`auth`], [`gate`]); each
//! later control message carries a MAC ([`frame`]). Nothing is encrypted.
//!
//! *Invariant:* every wait ends by a deadline, no stranger can delay or stop a join, and nothing read
//! from a socket is believed before its length and MAC were checked. Threads: the root's own, and those that ask the
//! system's resolver.
//!
//! ```
//! use ringway::bootstrap::{Options, UniqueId, join_unique_id};
//!
//! let options = Options::default();
//! let id = UniqueId::generate(&options)?;
//! let ranks: Vec<_> = (0..3)
//!     .map(|rank| {
//!         let options = options.clone();
//!         std::thread::spawn(move || {
//!             let mut session = join_unique_id(&id, rank, 3, &options)?;
//!             session.all_gather(format!("I am {rank}").as_bytes())
//!         })
//!     })
//!     .collect();
//! for rank in ranks {
//!     assert_eq!(rank.join().unwrap()?[2], b"I am 2");
//! }
//! # Ok::<(), ringway::Error>(())
//! ```

pub mod auth;
mod dial;
mod exchange;
pub mod frame;
pub mod gate;
mod hex;
pub mod interfaces;
pub mod launcher;
mod peer;
pub mod pmi;
pub mod rails;
pub mod rendezvous;
mod socket;
mod unique_id;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::auth::{Hello, Key, Purpose, SessionKey, random_bytes};
use self::dial::{Dialer, Target};
use self::frame::ControlStream;
use self::gate::{Gate, Rejections};
use self::interfaces::{Family, Survey};
use self::launcher::{Placement, RootHint};
use self::rails::Rail;
use self::rendezvous::place;
use self::rendezvous::root::{self, Dismissal, RootOptions};
use self::rendezvous::{Enrolment, Whereabouts};
use crate::error::{Error, ErrorKind, Result};
use crate::os;
use crate::plan::types::Rank;

pub use peer::{Company, PeerInfo};
pub use unique_id::{UNIQUE_ID_BYTES, UniqueId};

/// The longest blob a rank may hand to the others.
pub const BLOB_MAX_BYTES: usize = 4 << 10;
/// Waiting longer than this is the same as for ever.
const TIMEOUT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a failed root in rank 0's process stays to tell those who come late.
const LINGER: Duration = Duration::from_secs(2);

/// Says whether an interface may be used, or why not.
pub type InterfaceFilter = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// How to join.
#[derive(Clone)]
pub struct Options {
    /// How long the whole join may take.
    pub init_timeout: Duration,
    /// Which interfaces may be used.
    pub interface: InterfaceFilter,
    /// Which address family to use.
    pub family: Family,
    /// What this rank hands to all others in [`PeerInfo::blob`]; at most [`BLOB_MAX_BYTES`].
    pub blob: Vec<u8>,
    /// How long [`UniqueId::generate`] waits for the first rank.
    pub unique_id_lifetime: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            init_timeout: Duration::from_secs(60),
            interface: Arc::new(|_| Ok(())),
            family: Family::Any,
            blob: Vec::new(),
            unique_id_lifetime: Duration::from_secs(15 * 60),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("init_timeout", &self.init_timeout)
            .field("family", &self.family)
            .field("blob_bytes", &self.blob.len())
            .finish_non_exhaustive()
    }
}

/// A joined rank: who the others are, and connections to some of them.
#[derive(Debug)]
pub struct Session {
    /// This rank.
    pub rank: Rank,
    /// Ranks of the communicator.
    pub size: u32,
    /// The communicator's number, the same on all ranks.
    pub comm_id: u64,
    /// The key that all ranks share.
    pub key: Key,
    /// All ranks, in order; this one is among them.
    pub peers: Vec<PeerInfo>,
    /// Control connections to the ranks r ± 2^i, in rank order.
    pub control: Vec<(Rank, ControlStream)>,
    /// Where the others reach this rank, non-blocking; `None` when it is alone. Put a
    /// [`Gate`] before it.
    pub listener: Option<TcpListener>,
    /// Connections that were refused so far.
    pub rejections: Arc<Rejections>,
    /// How long an [`Self::all_gather`] may take.
    pub timeout: Duration,
    broken: Option<Error>,
}

impl Session {
    /// Every rank's bytes, in rank order. All ranks call it in the same order; it needs ⌈log2 n⌉
    /// rounds. An error is final: later calls return it again.
    pub fn all_gather(&mut self, block: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.all_gather_until(block, Instant::now() + self.timeout)
    }

    /// Opens an authenticated connection to a rank, for data or control, by whichever of its
    /// addresses answers first. The stream is non-blocking.
    pub fn dial(
        &self,
        peer: Rank,
        purpose: Purpose,
        tag: u64,
        deadline: Instant,
    ) -> Result<(TcpStream, SessionKey)> {
        self.dial_by(None, peer, (purpose, tag), deadline)
    }

    /// As [`Self::dial`], by one rail alone where one is given: from this rank's end of it to the
    /// peer's.
    pub fn dial_by(
        &self,
        rail: Option<(&Rail, &Rail)>,
        peer: Rank,
        (purpose, tag): (Purpose, u64),
        deadline: Instant,
    ) -> Result<(TcpStream, SessionKey)> {
        let find = |rank: Rank| {
            let found = self.peers.get(rank as usize);
            found.ok_or_else(|| Error::argument(format!("rank {rank} does not exist")))
        };
        let (me, info) = (find(self.rank)?, find(peer)?);
        let hello = Hello { purpose, from: self.rank, to: peer, communicator: self.comm_id, tag };
        let targets = match rail {
            None => info.targets_from(me),
            Some((mine, theirs)) => vec![Target {
                label: theirs.interface.clone(),
                address: theirs.address,
                from: Some(mine.address.ip()),
            }],
        };
        let mut dialer = Dialer::new(self.key.clone(), hello, targets, Duration::from_millis(100));
        loop {
            if let Some(connected) = dialer.advance() {
                exchange::log_choice(self.rank, info, &dialer, &connected);
                return Ok((connected.stream, connected.session_key));
            }
            // Who gave up now would leave the peer with a connection that nobody holds.
            let committed = dialer.has_proved();
            if Instant::now() >= deadline && !committed {
                let why = exchange::reasons(info, &dialer);
                let text = format!("{} cannot reach {}: {why}", me.identity(), info.identity());
                return Err(
                    Error::new(ErrorKind::Timeout, text).with_culprits(vec![info.identity()])
                );
            }
            let mut fds = Vec::new();
            dialer.register(&mut fds);
            let wake = dialer.wake_at();
            socket::wait(&mut fds, if committed { wake } else { wake.min(deadline) })
                .map_err(|error| Error::system("wait for a connection", error))?;
        }
    }

    fn all_gather_until(&mut self, block: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let (rank, size) = (self.rank, self.size);
        let outcome = exchange::all_gather(rank, size, &mut self.control, block, deadline);
        if let Err(error) = &outcome {
            exchange::tell_all(&mut self.control, error);
            self.broken = Some(error.clone());
        }
        outcome
    }

    fn alone(key: Key, comm_id: u64, options: &Options) -> Self {
        let me = PeerInfo::here(0, 0, Survey::default(), options.blob.clone());
        Self {
            rank: 0,
            size: 1,
            comm_id,
            key,
            peers: vec![me],
            control: Vec::new(),
            listener: None,
            rejections: Arc::default(),
            timeout: options.init_timeout.min(TIMEOUT_MAX),
            broken: None,
        }
    }
}

/// Joins the job that the placement describes.
pub fn join(placement: &Placement, options: &Options) -> Result<Session> {
    let attempt = Attempt::new(placement.rank, placement.size, options)?;
    if placement.size == 1 {
        return Ok(Session::alone(placement.key()?, u64::from_le_bytes(random_bytes()?), options));
    }
    if let RootHint::Pmi { fd } = placement.root {
        let mine = if placement.rank == 0 { Some(UniqueId::generate(options)?) } else { None };
        let server = os::duplicate_inherited(fd)
            .map_err(|error| Error::system(format!("use PMI_FD={fd}"), error))?;
        let text = mine.map(|id| id.to_string());
        let shared = pmi::Client::new(server, attempt.deadline).share(text.as_deref())?;
        return join_unique_id(&shared.parse()?, placement.rank, placement.size, options);
    }
    let key = placement.key()?;
    let asked_at = placement.root.to_string();
    if placement.rank != 0 {
        let door = Door { key: &key, knock: placement.knock(), asked_at: &asked_at };
        return attempt.enter(&door, &Whereabouts::Named(&placement.root));
    }
    // What stops this rank should stop it before others come to its root.
    interfaces::survey(&*options.interface, options.family)?;
    let (listener, address) = place::bind_root(&placement.root, attempt.deadline)?;
    let options = RootOptions {
        key: key.clone(),
        knock: placement.knock(),
        communicator: u64::from_le_bytes(random_bytes()?),
        lifetime: attempt.timeout,
        linger: LINGER,
        asked_at: match &placement.root {
            RootHint::Candidates { hosts, .. } => {
                format!("{}, port {}", hosts.join(" or "), address.port())
            }
            _ => asked_at.clone(),
        },
        dismissal: Arc::new(Dismissal::new()?),
    };
    let thread = Joined(Some(root::spawn(listener, options)?));
    let here = Target { label: String::new(), address, from: None };
    let door = Door { key: &key, knock: placement.knock(), asked_at: &asked_at };
    let outcome = attempt.enter(&door, &Whereabouts::Known(vec![here]));
    drop(thread);
    outcome
}

/// Joins by a token; all ranks hold the same.
pub fn join_unique_id(id: &UniqueId, rank: Rank, size: u32, options: &Options) -> Result<Session> {
    let attempt = Attempt::new(rank, size, options)?;
    let (key, communicator) = (id.key(), id.communicator());
    if size == 1 {
        unique_id::dismiss_root(communicator);
        return Ok(Session::alone(key, communicator, options));
    }
    let door = Door { key: &key, knock: communicator, asked_at: &id.asked_at() };
    let session = attempt.enter(&door, &Whereabouts::Known(id.targets()))?;
    unique_id::finish_root(communicator);
    Ok(session)
}

/// Joins a communicator whose members can already talk: `parent_exchange` all-gathers the members'
/// bytes, in their new rank order, over the communicator they come from.
pub fn join_through(
    parent_exchange: &mut dyn FnMut(Vec<u8>) -> Result<Vec<Vec<u8>>>,
    (rank, size): (Rank, u32),
    key: Key,
    comm_id: u64,
    options: &Options,
) -> Result<Session> {
    let attempt = Attempt::new(rank, size, options)?;
    if size == 1 {
        return Ok(Session::alone(key, comm_id, options));
    }
    let (me, mut gate, rejections) = attempt.listen(&key, comm_id)?;
    let gathered = parent_exchange(rendezvous::encode(&me))?;
    let peers = peer::introduce(&gathered, size)?;
    let known: BTreeMap<Rank, PeerInfo> =
        peers.iter().map(|peer| (peer.rank, peer.clone())).collect();
    let control = exchange::connect(
        &exchange::Plan {
            me: &me,
            size,
            key: &key,
            communicator: comm_id,
            peers: &known,
            timeout: attempt.timeout,
            deadline: attempt.deadline,
        },
        &mut gate,
        None,
    )?;
    let mut session = Session {
        rank,
        size,
        comm_id,
        key,
        peers,
        control,
        listener: Some(gate.into_listener()),
        rejections,
        timeout: attempt.timeout,
        broken: None,
    };
    // Nobody goes on before all have their connections.
    session.all_gather_until(&[], attempt.deadline)?;
    Ok(session)
}

/// Where a rank enrols, and with which key.
struct Door<'a> {
    key: &'a Key,
    knock: u64,
    asked_at: &'a str,
}

/// One call of a join function.
struct Attempt<'a> {
    rank: Rank,
    size: u32,
    options: &'a Options,
    timeout: Duration,
    deadline: Instant,
}

impl<'a> Attempt<'a> {
    fn new(rank: Rank, size: u32, options: &'a Options) -> Result<Self> {
        if rank >= size {
            return Err(Error::argument(format!(
                "rank {rank} does not exist among {size} ranks; ranks run from 0"
            )));
        }
        if options.blob.len() > BLOB_MAX_BYTES {
            return Err(Error::argument(format!(
                "the blob of rank {rank} has {} bytes; {BLOB_MAX_BYTES} is the limit",
                options.blob.len()
            )));
        }
        let timeout = options.init_timeout.min(TIMEOUT_MAX);
        Ok(Self { rank, size, options, timeout, deadline: Instant::now() + timeout })
    }

    /// Binds this rank's listener and describes this rank.
    fn listen(&self, key: &Key, communicator: u64) -> Result<(PeerInfo, Gate, Arc<Rejections>)> {
        let survey = interfaces::survey(&*self.options.interface, self.options.family)?;
        let listener = socket::listen(None, 0)
            .map_err(|error| Error::system("bind this rank's listener", error))?;
        let port = listener
            .local_addr()
            .map_err(|error| Error::system("read the listener's port", error))?
            .port();
        if let Some((name, address)) = survey.offered.first() {
            tracing::info!(
                target: "ringway::BOOTSTRAP",
                "Bootstrap: Using {name}:{}<0>", address.ip()
            );
        }
        let me = PeerInfo::here(self.rank, port, survey, self.options.blob.clone());
        let rejections = Arc::new(Rejections::default());
        let gate =
            Gate::new(listener, key.clone(), (communicator, self.rank), Arc::clone(&rejections))?;
        Ok((me, gate, rejections))
    }

    /// Enrols, connects and introduces.
    fn enter(&self, door: &Door<'_>, whereabouts: &Whereabouts<'_>) -> Result<Session> {
        let (me, mut gate, rejections) = self.listen(door.key, door.knock)?;
        let (mut root, welcome) = rendezvous::enrol(&Enrolment {
            me: &me,
            size: self.size,
            key: door.key,
            communicator: door.knock,
            whereabouts,
            asked_at: door.asked_at,
            timeout: self.timeout,
            deadline: self.deadline,
        })?;
        gate.set_communicator(welcome.communicator);
        let peers = welcome.peers.into_iter().map(|peer| (peer.rank, peer)).collect();
        let plan = exchange::Plan {
            me: &me,
            size: self.size,
            key: door.key,
            communicator: welcome.communicator,
            peers: &peers,
            timeout: self.timeout,
            deadline: self.deadline,
        };
        let control = exchange::connect(&plan, &mut gate, Some(&mut root))
            .map_err(|error| rendezvous::report_failure(&mut root, error))?;
        rendezvous::confirm(&mut root, self.deadline)?;
        let mut session = Session {
            rank: self.rank,
            size: self.size,
            comm_id: welcome.communicator,
            key: door.key.clone(),
            peers: Vec::new(),
            control,
            listener: Some(gate.into_listener()),
            rejections,
            timeout: self.timeout,
            broken: None,
        };
        let gathered = session.all_gather_until(&rendezvous::encode(&me), self.deadline)?;
        session.peers = peer::introduce(&gathered, self.size)?;
        Ok(session)
    }
}

/// Joins the root's thread when dropped; the thread is bounded by its own deadline.
struct Joined(Option<JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A root reports its failures to the ranks; a panic was printed by the runtime.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
