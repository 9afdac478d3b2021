//! From a joined session to a communicator.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use super::choice;
use super::colocation::{self, Colocation};
use super::connect::{Arrivals, Connections, Door};
use super::engine::{Engine, Entering};
use super::idle::Patience;
use super::known::Calls;
use super::metrics::Kept;
use super::planning::{Ground, Planning};
use super::scratch::ScratchUse;
use super::trace::Recording;
use super::{Communicator, Desk, Inner, settings, tuned};
use crate::bootstrap::Session;
use crate::bootstrap::frame::{ControlStream, FrameError};
use crate::bootstrap::rails;
use crate::config::Config;
use crate::control::{Acceptor, Askers, Control, ControlLink, ControlSetup, Journal};
use crate::error::{Error, Result};
use crate::executor::Links;
use crate::log;
use crate::recorder::Recorder;
use crate::transport::LinkDescription;
use crate::transport::shm::{Bell, Layout, Segment, ShmLink};

/// The kind of control frames after the bootstrap.
const CONTROL_FRAME: u16 = 0x100;

/// Least scratch a communicator is made with, to keep within its memory.
const SCRATCH_BYTES_MIN: u64 = 64 << 10;

/// The layout of this rank's segment, which is all the memory a communicator takes for itself: with as
/// much scratch as NCCL_BUFFSIZE says, or less where RINGWAY_MAX_BYTES does not allow that.
fn layout(session: &Session, config: &Config) -> Result<Layout> {
    let mut scratch = config.scratch_bytes();
    let mut layout = Layout::new(session.size, scratch);
    let Some(most) = config.max_bytes else { return Ok(layout) };
    while layout.bytes() > most && scratch > SCRATCH_BYTES_MIN {
        scratch = (scratch / 2).max(SCRATCH_BYTES_MIN);
        layout = Layout::new(session.size, scratch);
    }
    if layout.bytes() > most {
        return Err(Error::usage(format!(
            "a communicator of {} ranks needs {} bytes of its own at least, RINGWAY_MAX_BYTES allows {most}; \
             raise it",
            session.size,
            layout.bytes(),
        )));
    }
    Ok(layout)
}

impl Communicator {
    /// Turns a session into a communicator. All ranks call it together.
    pub(super) fn start(mut session: Session, config: Config) -> Result<Self> {
        let (rank, size) = (session.rank, session.size);
        tracing::info!(
            target: log::INIT,
            rank = u64::from(rank),
            "ncclCommInitRank comm {:#x} rank {rank} nranks {size} commId {:#x} - Init START",
            session.comm_id,
            session.comm_id
        );
        settings::agree(&mut session, &config)?;
        let layout = layout(&session, &config)?;
        let (own, descriptor) = Segment::create(layout)?;
        let own = Arc::new(own);
        let bell = Bell::new()?;
        let colocation = colocation::discover(&mut session, &config, (layout, &descriptor, &bell))?;
        drop(descriptor);
        choice::require(&session, &config, &colocation)?;
        let is_near = |peer: &u32| colocation.attached.iter().any(|one| one.peer == *peer);
        let far: Vec<u32> = (0..size).filter(|peer| *peer != rank && !is_near(peer)).collect();
        let rdma =
            super::rdma::agree(&mut session, &config, (&far, &colocation.hosts), layout.bytes())?;
        let regions = Arc::clone(rdma.regions());
        regions.own(own.area());
        choice::announce(&session, &colocation, (&rdma, &far), config.tls);
        let Colocation { hosts, attached, refusals, unreadable } = colocation;
        let measured = tuned::agree(&mut session, &config, &hosts)?;
        let journal = Arc::new(Journal::with(Recorder::new(config.recorder as usize)));
        let links = Links::new(rank, size, Arc::clone(&own), bell.clone());
        let mut links = links.timed(journal.recorder().counter());
        for one in attached {
            let peer = one.peer;
            let description = LinkDescription {
                peer,
                transport: "SHM",
                detail: "memfd passed over a Unix socket".to_owned(),
                reason: "same host: boot id and probe agree".to_owned(),
            };
            links.insert(peer, Box::new(ShmLink::new(rank, Arc::clone(&own), one, description)));
        }
        let arrivals = Arc::new(Arrivals::default());
        let control = start_control(&mut session, &journal, (&arrivals, config.tls), bell)?;
        let local = hosts.iter().filter(|host| **host == hosts[rank as usize]).count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let company = session.peers[rank as usize].company(&session.peers, cores);
        let number = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
        let connections = Connections {
            least: number(config.sockets_per_peer()),
            most: number(config.sockets_per_peer_most()),
            rails: choice::rails_required(&config),
            tls: config.tls,
        };
        let rails = rails::count(&session.peers);
        tracing::info!(
            target: log::INIT,
            rank = u64::from(rank),
            "comm {:#x} rank {rank} nRanks {size} nNodes {} localRanks {local} memory {} bytes{} - Init COMPLETE",
            session.comm_id,
            hosts.iter().max().map_or(1, |most| most + 1),
            layout.bytes(),
            rdma.memory_in_words(),
        );
        let peers: Vec<_> = session.peers.clone();
        let metered = Kept::start(&session, &config, (&journal, control.health()));
        let recording = Recording::start(&session, &config, (&journal, control.health()));
        let engine = Engine {
            links,
            own,
            arrivals,
            health: Arc::clone(control.health()),
            journal,
            patience: Patience::new(company, local < hosts.len(), config.spin),
            connections,
            rdma,
            checks: config.checksum,
            neighbours: (0..size)
                .filter(|peer| *peer != rank && hosts[*peer as usize] == hosts[rank as usize])
                .collect(),
            refusals,
            queued: 0,
            whole: None,
            entering: Entering::default(),
            metered: metered.as_ref().map(|kept| Arc::clone(kept)),
            sequence: 0,
            history: 0,
            scratch: ScratchUse::default(),
            cleared: 0,
            messages: vec![(0, 0); size as usize],
            session,
        };
        let inner = Inner {
            rank,
            size,
            peers,
            desk: Mutex::new(Desk {
                planning: Planning::new(
                    Ground { hosts: hosts.clone(), rails, unreadable },
                    &config,
                    layout,
                    measured,
                ),
                calls: Calls::default(),
                engine,
            }),
            hosts,
            config,
            order: super::order::Order::default(),
            gpu: std::sync::OnceLock::new(),
            progress: std::sync::OnceLock::new(),
            background: Mutex::default(),
            splits: std::sync::atomic::AtomicU64::new(0),
            given_up: std::sync::atomic::AtomicBool::new(false),
            regions,
            recording,
            metered,
            control,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// Where this rank is asked how the others are; it works without as well.
fn askers(session: &Session) -> Option<Askers> {
    let opened = Askers::open(session.comm_id, session.rank);
    opened
        .inspect_err(|error| {
            let rank = u64::from(session.rank);
            tracing::info!(target: log::INIT, rank, "`ringway why` cannot ask this rank: {error}");
        })
        .ok()
}

fn start_control(
    session: &mut Session,
    journal: &Arc<Journal>,
    (arrivals, tls): (&Arc<Arrivals>, bool),
    bell: Bell,
) -> Result<Control> {
    let streams = std::mem::take(&mut session.control)
        .into_iter()
        .map(|(rank, stream)| (rank, Box::new(Framed(stream)) as Box<dyn ControlLink>))
        .collect();
    let acceptors = session
        .listener
        .take()
        .map(|listener| {
            let door = Door::new(listener, session, (Arc::clone(arrivals), tls));
            Box::new(door) as Box<dyn Acceptor>
        })
        .into_iter()
        .collect();
    Control::start(ControlSetup {
        rank: session.rank,
        identities: session.peers.iter().map(|peer| peer.identity()).collect(),
        streams,
        journal: Arc::clone(journal),
        wake: vec![Box::new(move || bell.ring())],
        acceptors,
        askers: askers(session),
    })
}

/// A bootstrap connection as the control plane wants it.
#[derive(Debug)]
struct Framed(ControlStream);

fn lost(error: FrameError) -> io::Error {
    match error {
        FrameError::Closed => io::ErrorKind::UnexpectedEof.into(),
        other => io::Error::other(other.to_string()),
    }
}

impl ControlLink for Framed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.stream().as_fd()
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        if self.0.has_queued() && !self.0.try_flush().map_err(lost)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.0.queue(CONTROL_FRAME, frame).map_err(lost)?;
        self.0.try_flush().map(|_| ()).map_err(lost)
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.0.try_flush().map_err(lost)
    }

    fn try_receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.try_receive().map_err(lost)?.map(|frame| frame.body))
    }
}
