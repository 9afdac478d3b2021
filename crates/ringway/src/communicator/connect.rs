//! TCP links, made when two ranks first need one: the lower rank dials, the other's control
//! thread accepts, so that a rank that computes is reached all the same. With `RINGWAY_TLS=1` the handshake of TLS
//! follows at once, at the acceptor in the thread that lets the connection in: nobody waits for a rank that computes.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::engine::{ASK_AFTER, LEFT_AFTER};
use crate::bootstrap::Session;
use crate::bootstrap::auth::{self, Key, Purpose, Rejected, SessionKey};
use crate::bootstrap::gate::Rejections;
use crate::bootstrap::rails;
use crate::control::{Acceptor, Health, Report};
use crate::error::{Error, ErrorKind, Result};
use crate::interrupt;
use crate::plan::types::Rank;
use crate::transport::tcp;
use crate::transport::tls;
use crate::transport::tls::handshake::{self, LaneSecrets, Refusal, Role, Secured};
use crate::transport::{Link, LinkDescription};

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
    /// Whether they are encrypted.
    pub(crate) tls: bool,
}

/// A data connection that was let in.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) socket: TcpStream,
    /// Where it is encrypted.
    pub(crate) secured: Option<Secured>,
}

impl Lane {
    /// A connection on which the job's secret was proved; with TLS on it if `tls`.
    fn new(
        socket: TcpStream,
        key: &SessionKey,
        (role, tls): (Role, bool),
        deadline: Instant,
    ) -> std::result::Result<Self, Refusal> {
        let secured = tls.then(|| {
            let secrets = LaneSecrets {
                dialer: key.derive(b"tls dialer"),
                acceptor: key.derive(b"tls acceptor"),
            };
            handshake::secure(&socket, role, &secrets, deadline)
        });
        Ok(Self { secured: secured.transpose()?, socket })
    }
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
    lanes: BTreeMap<u16, Lane>,
}

impl Arrivals {
    fn insert(&self, peer: Rank, (number, count): (u16, u64), lane: Lane) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived = streams.entry(peer).or_default();
        arrived.count = usize::try_from(count).unwrap_or(usize::MAX).max(1);
        arrived.lanes.insert(number, lane);
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
            if interrupt::wanted() {
                return None;
            }
            let rest = if interrupt::is_asked() { rest.min(interrupt::EVERY) } else { rest };
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
    fn take(&self, peer: Rank, health: &Health, clock: &mut Clock) -> Result<Option<Vec<Lane>>> {
        let mut wait = Wait::begin();
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        while streams.get(&peer).is_none_or(|arrived| arrived.lanes.len() < arrived.count) {
            let gone = wait.has_left(peer, health, clock.waited(Duration::ZERO));
            if gone || health.is_raised() || interrupt::wanted() {
                return Ok(None);
            }
            if clock.left(Duration::ZERO).is_none() {
                let (open, all) = streams.get(&peer).map_or((0, String::new()), |arrived| {
                    (arrived.lanes.len(), format!(" of {}", arrived.count))
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
        Ok(streams.remove(&peer).map(|arrived| arrived.lanes.into_values().collect()))
    }
}

/// The listener of a communicator, served by its control thread.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    key: Key,
    communicator: u64,
    /// Whether data connections are encrypted.
    tls: bool,
    arrivals: Arc<Arrivals>,
    rejections: Arc<Rejections>,
    handshakes: Arc<AtomicUsize>,
}

impl Door {
    pub(crate) fn new(
        listener: TcpListener,
        session: &Session,
        (arrivals, tls): (Arc<Arrivals>, bool),
    ) -> Self {
        Self {
            listener,
            key: session.key.clone(),
            communicator: session.comm_id,
            tls,
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
        let (key, communicator, tls) = (self.key.clone(), self.communicator, self.tls);
        let (arrivals, rejections) = (Arc::clone(&self.arrivals), Arc::clone(&self.rejections));
        let handshakes = Arc::clone(&self.handshakes);
        let greet = move || {
            let deadline = Instant::now() + Duration::from_secs(5);
            match auth::accept(&mut stream, &key, deadline) {
                Ok((hello, key)) if hello.communicator == communicator => match hello.purpose {
                    Purpose::Data { connection } => {
                        let deadline = Instant::now() + handshake::TIMEOUT;
                        match Lane::new(stream, &key, (Role::Acceptor, tls), deadline) {
                            Ok(lane) => arrivals.insert(hello.from, (connection, hello.tag), lane),
                            Err(why) => {
                                log_refused((hello.to, hello.from), &why);
                                rejections.count(&rejected(why));
                            }
                        }
                    }
                    Purpose::Meet => {
                        arrivals.insert_meeting((hello.from, hello.tag), (stream, key));
                    }
                    Purpose::Join | Purpose::Control => rejections.count(&Rejected::WrongPeer),
                },
                Ok(_) => rejections.count(&Rejected::WrongPeer),
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

/// A refusal among those that are counted.
fn rejected(why: Refusal) -> Rejected {
    match why {
        Refusal::Timeout => Rejected::Timeout,
        Refusal::Closed => Rejected::Closed,
        Refusal::OtherKey => Rejected::BadMac,
        Refusal::Failed(why) => Rejected::Io(why),
    }
}

fn log_refused((rank, peer): (Rank, Rank), why: &Refusal) {
    tracing::warn!(
        target: crate::log::INIT_NET,
        rank = u64::from(rank),
        "NET/Socket/TLS : a data connection of rank {peer} was refused: {why}"
    );
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
) -> Result<Option<Vec<Lane>>> {
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
    let mut lanes = Vec::with_capacity(usize::from(count));
    // How long had been waited when the rail was first tried.
    let mut tried = clock.waited(Duration::ZERO);
    while lanes.len() < usize::from(count) {
        let number = lanes.len();
        let connection = u16::try_from(number).unwrap_or(u16::MAX);
        let rail = (!rails.is_empty()).then(|| number % rails.len());
        let step = clock.left(Duration::ZERO).unwrap_or_default().min(DIAL_STEP);
        let until = Instant::now() + step;
        let hello = (Purpose::Data { connection }, u64::from(count));
        let by = rail.map(|at| rails[at]);
        let dialled = clock.asleep(step, || session.dial_by(by, peer, hello, until));
        let limit = clock.left(Duration::ZERO).unwrap_or_default().min(handshake::TIMEOUT);
        let secured = dialled.and_then(|(socket, key)| {
            let deadline = Instant::now() + limit;
            let lane = || Lane::new(socket, &key, (Role::Dialer, wanted.tls), deadline);
            clock.asleep(limit, lane).map_err(|why| unsecured(session, peer, connection, &why))
        });
        match secured {
            Ok(lane) => {
                lanes.push(lane);
                tried = clock.waited(Duration::ZERO);
            }
            Err(error) => {
                let waited = clock.waited(Duration::ZERO);
                let gone = wait.has_left(peer, health, waited);
                if gone || health.is_raised() || interrupt::wanted() {
                    return Ok(None);
                }
                // Nobody who stands in the peer's place goes away by being asked again.
                let is_other = error.kind() == ErrorKind::Remote;
                if is_other || clock.left(Duration::ZERO).is_none() {
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
    Ok(Some(lanes))
}

/// Why a connection that was let in is not used.
fn unsecured(session: &Session, peer: Rank, connection: u16, why: &Refusal) -> Error {
    let [me, other] = [session.rank, peer].map(|rank| session.peers[rank as usize].identity());
    let kind = match why {
        Refusal::Timeout | Refusal::Closed => ErrorKind::Timeout,
        Refusal::OtherKey | Refusal::Failed(_) => ErrorKind::Remote,
    };
    Error::new(kind, format!("{me} cannot secure data connection {connection} to {other}: {why}"))
        .with_culprits(vec![other])
}

fn log_unused(rank: Rank, peer: Rank, rail: &rails::Rail, why: &str) {
    tracing::info!(
        target: crate::log::INIT_NET,
        rank = u64::from(rank),
        "rail {rail} is not used between {rank}[{rank}] and {peer}[{peer}]: {why}"
    );
}

/// The link over connections to a peer, which is not reached by shared memory for a reason.
pub(crate) fn link(
    session: &Session,
    (peer, reason): (Rank, String),
    lanes: Vec<Lane>,
    (encrypts, checks): (bool, bool),
) -> io::Result<Box<dyn Link>> {
    let (rank, detail) = (session.rank, describe(session, &lanes));
    let (transport, with) = if encrypts { ("NET/Socket/TLS", "/TLS") } else { ("NET/Socket", "") };
    tracing::info!(
        target: crate::log::INIT_NET,
        rank = u64::from(rank),
        "Channel 00/0 : {rank}[{rank}] -> {peer}[{peer}] [send] via NET/Socket/0{with} ({detail}; {reason})"
    );
    let description = LinkDescription { peer, transport, detail, reason };
    if !encrypts {
        let sockets = lanes.into_iter().map(|lane| lane.socket).collect();
        return Ok(Box::new(tcp::link(peer, sockets, description)?.checking(checks)));
    }
    let secured = lanes.into_iter().map(|Lane { socket, secured }| {
        let plain = || io::Error::other("RINGWAY_TLS=1, and a connection is not encrypted");
        Ok((socket, secured.ok_or_else(plain)?))
    });
    let secured: io::Result<Vec<_>> = secured.collect();
    Ok(Box::new(tls::link(peer, secured?, description)?.checking(checks)))
}

/// The connections of a link, for people: how many, and by which rails.
fn describe(session: &Session, lanes: &[Lane]) -> String {
    let own = &session.peers[session.rank as usize].rails;
    let mut ways: Vec<String> = Vec::new();
    for stream in lanes.iter().map(|lane| &lane.socket) {
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
    format!("{} connections{rails}, {}", lanes.len(), ways.join(", "))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::bootstrap::auth::Hello;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    /// Both ends of a connection on which a job's secret was proved.
    fn proved(job: &Key, from: Rank) -> [(TcpStream, SessionKey); 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut dialer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut acceptor, _) = listener.accept().unwrap();
        let purpose = Purpose::Data { connection: 0 };
        let hello = Hello { purpose, from, to: 9, communicator: 1, tag: 1 };
        let (own, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| auth::accept(&mut acceptor, job, soon()).unwrap().1);
            (auth::dial(&mut dialer, job, &hello, soon()).unwrap(), other.join().unwrap())
        });
        [(dialer, own), (acceptor, other)]
    }

    /// TLS on two sockets, each with a key.
    fn secure(
        dialer: (TcpStream, SessionKey),
        acceptor: (TcpStream, SessionKey),
    ) -> [std::result::Result<Lane, Refusal>; 2] {
        let lane = |(socket, key): (TcpStream, SessionKey), role| {
            Lane::new(socket, &key, (role, true), soon())
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| lane(acceptor, Role::Acceptor));
            [lane(dialer, Role::Dialer), other.join().unwrap()]
        })
    }

    #[test]
    fn tls_is_bound_to_the_connection_on_which_the_secret_was_proved() {
        let job = Key::random().unwrap();
        let [dialer, acceptor] = proved(&job, 0);
        for lane in secure(dialer, acceptor) {
            assert!(lane.unwrap().secured.is_some());
        }
        // Somebody joins the ends of two connections of one job, of the same ranks or of others.
        for other in [0, 1] {
            let [dialer, acceptor] = proved(&job, 0);
            let [_, (_, key_of_other)] = proved(&job, other);
            for lane in secure(dialer, (acceptor.0, key_of_other)) {
                assert_eq!(lane.map(|_| ()).unwrap_err(), Refusal::OtherKey);
            }
        }
    }

    #[test]
    fn a_lane_without_tls_is_left_as_it_is() {
        let [(socket, key), _peer] = proved(&Key::random().unwrap(), 0);
        let lane = Lane::new(socket, &key, (Role::Dialer, false), soon()).unwrap();
        assert!(lane.secured.is_none());
    }
}
