//! TCP links, made when two ranks first need one: the lower rank dials, the other's control
//! thread accepts, so that a rank that computes is reached all the same.

use std::collections::{BTreeMap, HashMap};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::engine::{ASK_AFTER, LEFT_AFTER};
use crate::bootstrap::Session;
use crate::bootstrap::auth::{self, Key, Purpose};
use crate::bootstrap::gate::Rejections;
use crate::control::{Acceptor, Health, Report};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::types::Rank;

/// Handshakes under way at once; further connections wait in the listener's queue.
const HANDSHAKES_MOST: usize = 64;

/// Connections that peers have opened to this rank, by peer and number.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    streams: Mutex<HashMap<Rank, BTreeMap<u16, TcpStream>>>,
    changed: Condvar,
}

impl Arrivals {
    fn insert(&self, peer: Rank, number: u16, stream: TcpStream) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.entry(peer).or_default().insert(number, stream);
        self.changed.notify_all();
    }

    /// Waits until `peer` has opened `count` connections.
    fn take(
        &self,
        peer: Rank,
        count: usize,
        health: &Health,
        deadline: Instant,
    ) -> Result<Option<Vec<TcpStream>>> {
        let mut wait = Wait::begin();
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        while streams.get(&peer).is_none_or(|arrived| arrived.len() < count) {
            if health.is_raised() || wait.has_left(peer, health) {
                return Ok(None);
            }
            if Instant::now() >= deadline {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!("rank {peer} did not open its {count} data connections in time"),
                ));
            }
            wait.look(health);
            let pause = Duration::from_millis(20);
            streams =
                self.changed.wait_timeout(streams, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(streams.remove(&peer).map(|arrived| arrived.into_values().collect()))
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
            return; // the dialer tries again
        }
        let (key, communicator) = (self.key.clone(), self.communicator);
        let (arrivals, rejections) = (Arc::clone(&self.arrivals), Arc::clone(&self.rejections));
        let handshakes = Arc::clone(&self.handshakes);
        let greet = move || {
            let deadline = Instant::now() + Duration::from_secs(5);
            match auth::accept(&mut stream, &key, deadline) {
                Ok((hello, _)) if hello.communicator == communicator => {
                    if let Purpose::Data { connection } = hello.purpose {
                        arrivals.insert(hello.from, connection, stream);
                    }
                }
                Ok(_) => {}
                Err(why) => rejections.count(&why),
            }
            handshakes.fetch_sub(1, Ordering::Relaxed);
        };
        let builder = std::thread::Builder::new().name("ringway-greet".to_owned());
        if builder.spawn(greet).is_err() {
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
}

impl Wait {
    fn begin() -> Self {
        Self { started: Instant::now(), asked: Duration::ZERO }
    }

    /// The peer may be in another call, in which it needs no connection to this rank.
    fn look(&mut self, health: &Health) {
        let waited = self.started.elapsed();
        if waited > ASK_AFTER && waited > 2 * self.asked {
            self.asked = waited;
            health.compare();
        }
    }

    /// Reports a peer that has left, once nothing of it can be under way any more. Whether it has.
    fn has_left(&self, peer: Rank, health: &Health) -> bool {
        let left = self.started.elapsed() > LEFT_AFTER && health.is_gone(peer);
        if left {
            health.report(Report::Left { rank: peer });
        }
        left
    }
}

/// The `count` connections to `peer`, in the same order on both sides. `None` when the
/// communicator has failed meanwhile.
pub(crate) fn connect(
    session: &Session,
    arrivals: &Arrivals,
    (peer, count): (Rank, u16),
    health: &Health,
    deadline: Instant,
) -> Result<Option<Vec<TcpStream>>> {
    if session.rank > peer {
        return arrivals.take(peer, usize::from(count), health, deadline);
    }
    let mut wait = Wait::begin();
    let mut streams = Vec::with_capacity(usize::from(count));
    for connection in 0..count {
        loop {
            let step = deadline.min(Instant::now() + Duration::from_millis(200));
            match session.dial(peer, Purpose::Data { connection }, 0, step) {
                Ok((stream, _)) => {
                    streams.push(stream);
                    break;
                }
                Err(_) if health.is_raised() || wait.has_left(peer, health) => return Ok(None),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => wait.look(health),
            }
        }
    }
    Ok(Some(streams))
}
