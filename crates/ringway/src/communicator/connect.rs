//! TCP links, made when two ranks first need one: the lower rank dials, the other's control
//! thread accepts, so that a rank that computes is reached all the same.

use std::collections::{BTreeMap, HashMap};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::engine::{ASK_AFTER, LEFT_AFTER};
use crate::bootstrap::Session;
use crate::bootstrap::auth::{self, Key, Purpose, SessionKey};
use crate::bootstrap::gate::Rejections;
use crate::bootstrap::rails;
use crate::control::{Acceptor, Health, Report};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::types::Rank;

/// Handshakes under way at once; further connections wait in the listener's queue.
const HANDSHAKES_MOST: usize = 64;

/// How long a rail is tried before the connections that prefer it take another.
const RAIL_PATIENCE: Duration = Duration::from_secs(1);

/// How long a peer is dialled before the health of the job is looked at.
const DIAL_STEP: Duration = Duration::from_millis(200);

/// How many connections a link has: one for each rail, within these bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connections {
    pub(crate) least: u16,
    pub(crate) most: u16,
    /// Rails that `RINGWAY_REQUIRE` asks for; 0 where it does not.
    pub(crate) rails: usize,
}

/// Connections that peers have opened to this rank, by peer and number.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    streams: Mutex<HashMap<Rank, Arrived>>,
    /// Those of ranks that want to go on without others, by rank and tag.
    meetings: Mutex<HashMap<(Rank, u64), (TcpStream, SessionKey)>>,
    changed: Condvar,
    met: Condvar,
}

/// The connections of one peer.
#[derive(Debug, Default)]
struct Arrived {
    /// How many there will be, as the dialer says.
    count: usize,
    streams: BTreeMap<u16, TcpStream>,
}

impl Arrivals {
    fn insert(&self, peer: Rank, (number, count): (u16, u64), stream: TcpStream) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived = streams.entry(peer).or_default();
        arrived.count = usize::try_from(count).unwrap_or(usize::MAX).max(1);
        arrived.streams.insert(number, stream);
        self.changed.notify_all();
    }

    fn insert_meeting(&self, from: (Rank, u64), connection: (TcpStream, SessionKey)) {
        self.meetings.lock().unwrap_or_else(PoisonError::into_inner).insert(from, connection);
        self.met.notify_all();
    }

    /// Waits until a rank has come to a meeting; nothing when it has not by the deadline.
    pub(crate) fn take_meeting(
        &self,
        from: (Rank, u64),
        deadline: Instant,
    ) -> Option<(TcpStream, SessionKey)> {
        let mut meetings = self.meetings.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(connection) = meetings.remove(&from) {
                return Some(connection);
            }
            let rest = deadline.checked_duration_since(Instant::now())?;
            let waited = self.met.wait_timeout(meetings, rest);
            meetings = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Forgets those who came to a meeting that is over.
    pub(crate) fn forget_meeting(&self, tag: u64) {
        let mut meetings = self.meetings.lock().unwrap_or_else(PoisonError::into_inner);
        meetings.retain(|(_, of), _| *of != tag);
    }

    /// Waits until `peer` has opened all its connections.
    fn take(
        &self,
        peer: Rank,
        health: &Health,
        clock: &mut Clock,
    ) -> Result<Option<Vec<TcpStream>>> {
        let mut wait = Wait::begin();
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        while streams.get(&peer).is_none_or(|arrived| arrived.streams.len() < arrived.count) {
            if health.is_raised() || wait.has_left(peer, health, clock.waited(Duration::ZERO)) {
                return Ok(None);
            }
            if clock.left(Duration::ZERO).is_none() {
                let (open, all) = streams.get(&peer).map_or((0, String::new()), |arrived| {
                    (arrived.streams.len(), format!(" of {}", arrived.count))
                });
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "rank {peer} did not open its data connections in time: {open}{all} are there"
                    ),
                ));
            }
            wait.look(health);
            let pause = Duration::from_millis(20);
            let changed = clock.asleep(pause, || self.changed.wait_timeout(streams, pause));
            streams = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(streams.remove(&peer).map(|arrived| arrived.streams.into_values().collect()))
    }
}

/// The listener of a communicator, served by its control thread.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    key: Key,
    communicator: u64,
    arrivals: Arc<Arrivals>,
    rejections: Arc<Rejections>,
    handshakes: Arc<AtomicUsize>,
}

impl Door {
    pub(crate) fn new(listener: TcpListener, session: &Session, arrivals: Arc<Arrivals>) -> Self {
        Self {
            listener,
            key: session.key.clone(),
            communicator: session.comm_id,
            arrivals,
            rejections: Arc::clone(&session.rejections),
            handshakes: Arc::default(),
        }
    }

    /// Lets one connection in, in a thread of its own: a stranger that says nothing costs
    /// nobody else any time.
    fn admit(&self, mut stream: TcpStream) {
        if self.handshakes.fetch_add(1, Ordering::Relaxed) >= HANDSHAKES_MOST {
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
            self.rejections.count_crowded();
            return; // the dialer tries again
        }
        let (key, communicator) = (self.key.clone(), self.communicator);
        let (arrivals, rejections) = (Arc::clone(&self.arrivals), Arc::clone(&self.rejections));
        let handshakes = Arc::clone(&self.handshakes);
        let greet = move || {
            let deadline = Instant::now() + Duration::from_secs(5);
            match auth::accept(&mut stream, &key, deadline) {
                Ok((hello, key)) if hello.communicator == communicator => match hello.purpose {
                    Purpose::Data { connection } => {
                        arrivals.insert(hello.from, (connection, hello.tag), stream);
                    }
                    Purpose::Meet => {
                        arrivals.insert_meeting((hello.from, hello.tag), (stream, key));
                    }
                    Purpose::Join | Purpose::Control => {
                        rejections.count(&auth::Rejected::WrongPeer)
                    }
                },
                Ok(_) => rejections.count(&auth::Rejected::WrongPeer),
                Err(why) => rejections.count(&why),
            }
            handshakes.fetch_sub(1, Ordering::Relaxed);
        };
        let builder = std::thread::Builder::new().name("ringway-greet".to_owned());
        if builder.spawn(greet).is_err() {
            self.rejections.count_crowded();
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Acceptor for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn ready(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            self.admit(stream);
        }
    }
}

/// A wait for a peer's connections.
struct Wait {
    started: Instant,
    /// When the neighbours were last asked what they are doing.
    asked: Duration,
    /// How long had been waited when the peer was first found to have left.
    gone: Option<Duration>,
}

impl Wait {
    fn begin() -> Self {
        Self { started: Instant::now(), asked: Duration::ZERO, gone: None }
    }

    /// The peer may be in another call, in which it needs no connection to this rank.
    fn look(&mut self, health: &Health) {
        let waited = self.started.elapsed();
        if waited > ASK_AFTER && waited > 2 * self.asked {
            self.asked = waited;
            health.compare();
        }
    }

    /// Reports a peer that has left, once nothing of it can be under way any more: it may have opened its connections
    /// and sent all it had to before. Whether it has.
    fn has_left(&mut self, peer: Rank, health: &Health, waited: Duration) -> bool {
        let gone = health.is_gone(peer).then(|| *self.gone.get_or_insert(waited));
        let left = gone.is_some_and(|since| waited.saturating_sub(since) > LEFT_AFTER);
        if left {
            health.report(Report::Left { rank: peer });
        }
        left
    }
}

/// The connections to `peer`, in the same order on both sides. `None` when the communicator has
/// failed meanwhile.
///
/// The dialer says how many there are: connection `i` goes by rail `i` modulo their number. A rail
/// that does not answer is given up, with a word in the log; when none is left, any address will do.
pub(crate) fn connect(
    session: &Session,
    arrivals: &Arrivals,
    (peer, wanted): (Rank, Connections),
    health: &Health,
    clock: &mut Clock,
) -> Result<Option<Vec<TcpStream>>> {
    if session.rank > peer {
        return arrivals.take(peer, health, clock);
    }
    let pairing = rails::pair(&session.peers[session.rank as usize], &session.peers[peer as usize]);
    for (rail, why) in &pairing.refused {
        log_unused(session.rank, peer, rail, why);
    }
    let mut rails = pairing.pairs;
    let count = u16::try_from(rails.len()).unwrap_or(u16::MAX).clamp(wanted.least, wanted.most);
    if rails.len() < 2 {
        // One way alone needs no preference: whichever address answers.
        rails.clear();
    }
    let mut wait = Wait::begin();
    let mut streams = Vec::with_capacity(usize::from(count));
    // How long had been waited when the rail was first tried.
    let mut tried = clock.waited(Duration::ZERO);
    while streams.len() < usize::from(count) {
        let number = streams.len();
        let connection = u16::try_from(number).unwrap_or(u16::MAX);
        let rail = (!rails.is_empty()).then(|| number % rails.len());
        let step = clock.left(Duration::ZERO).unwrap_or_default().min(DIAL_STEP);
        let until = Instant::now() + step;
        let hello = (Purpose::Data { connection }, u64::from(count));
        let by = rail.map(|at| rails[at]);
        match clock.asleep(step, || session.dial_by(by, peer, hello, until)) {
            Ok((stream, _)) => {
                streams.push(stream);
                tried = clock.waited(Duration::ZERO);
            }
            Err(error) => {
                let waited = clock.waited(Duration::ZERO);
                if health.is_raised() || wait.has_left(peer, health, waited) {
                    return Ok(None);
                }
                if clock.left(Duration::ZERO).is_none() {
                    return Err(error);
                }
                wait.look(health);
                if let Some(at) = rail.filter(|_| waited.saturating_sub(tried) >= RAIL_PATIENCE) {
                    log_unused(session.rank, peer, rails[at].0, &error.to_string());
                    if rails.len() <= wanted.rails {
                        let rail = rails[at].0;
                        let ways = wanted.rails;
                        return Err(Error::usage(format!(
                            "RINGWAY_REQUIRE=rails={ways} is not met: rail {rail} to rank {peer} does not answer: {error}"
                        )));
                    }
                    rails.remove(at);
                    tried = waited;
                }
            }
        }
    }
    Ok(Some(streams))
}

fn log_unused(rank: Rank, peer: Rank, rail: &rails::Rail, why: &str) {
    tracing::info!(
        target: crate::log::INIT_NET,
        rank = u64::from(rank),
        "rail {rail} is not used between {rank}[{rank}] and {peer}[{peer}]: {why}"
    );
}

/// The connections of a link, for people: how many, and by which rails.
pub(crate) fn describe(session: &Session, streams: &[TcpStream]) -> String {
    let own = &session.peers[session.rank as usize].rails;
    let mut ways: Vec<String> = Vec::new();
    for stream in streams {
        let ends = stream.local_addr().and_then(|from| Ok((from, stream.peer_addr()?)));
        let way = match ends {
            Err(error) => error.to_string(),
            Ok((from, to)) => {
                let (from, to) = (from.ip().to_canonical(), to.ip().to_canonical());
                let rail = own.iter().find(|rail| rail.address.ip() == from);
                let name = rail.map_or_else(String::new, |rail| format!("{} ", rail.interface));
                format!("{name}{from} to {to}")
            }
        };
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    let rails = if ways.len() > 1 { format!(" over {} rails", ways.len()) } else { String::new() };
    format!("{} connections{rails}, {}", streams.len(), ways.join(", "))
}
