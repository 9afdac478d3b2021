//! The accepting side: one listener, any number of strangers, only authenticated peers get in.
//!
//! Every accepted connection is a small state machine, all of them advanced from one poll loop, so
//! that one which connects and says nothing delays nobody. At most [`PENDING_MAX`] wait at a
//! time; when that is full, the one that has kept silent longest makes room.
//!
//! *Invariant:* what leaves the gate has proved the key and meant this rank of this communicator.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::auth::{Acceptor, HANDSHAKE_TIMEOUT, Hello, Key, Rejected, SessionKey};
use super::socket;
use crate::error::{Error, Result};
use crate::plan::types::Rank;

/// Handshakes under way at a time.
pub const PENDING_MAX: usize = 256;
/// How long an unfinished handshake is safe from making room for another.
const EVICTABLE_AFTER: Duration = Duration::from_millis(500);

/// Connections that were refused, by reason.
///
/// Each counter is a plain statistic: written with relaxed order by whoever refuses a connection,
/// read with relaxed order by whoever prints; no other memory hangs on it.
#[derive(Debug, Default)]
pub struct Rejections {
    bad_magic: AtomicU64,
    bad_version: AtomicU64,
    bad_mac: AtomicU64,
    wrong_peer: AtomicU64,
    timeout: AtomicU64,
    closed: AtomicU64,
    withdrawn: AtomicU64,
    crowded: AtomicU64,
}

impl Rejections {
    /// Counts a connection that was not looked at, as too many others were.
    pub fn count_crowded(&self) {
        self.crowded.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one refused connection.
    pub fn count(&self, why: &Rejected) {
        self.counter(why).fetch_add(1, Ordering::Relaxed);
    }

    /// How many were refused for this reason.
    #[must_use]
    pub fn of(&self, why: &Rejected) -> u64 {
        self.counter(why).load(Ordering::Relaxed)
    }

    /// How many were refused; attempts that a peer itself withdrew are not among them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.reasons().iter().map(|(_, count)| count).sum()
    }

    fn counter(&self, why: &Rejected) -> &AtomicU64 {
        match why {
            Rejected::BadMagic => &self.bad_magic,
            Rejected::BadVersion(_) => &self.bad_version,
            Rejected::BadMac => &self.bad_mac,
            Rejected::WrongPeer => &self.wrong_peer,
            Rejected::Timeout => &self.timeout,
            Rejected::Closed | Rejected::Io(_) => &self.closed,
            Rejected::Withdrawn => &self.withdrawn,
        }
    }

    /// How many were refused, by reason.
    #[must_use]
    pub fn reasons(&self) -> [(&'static str, u64); 7] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("not ringway", read(&self.bad_magic)),
            ("another version", read(&self.bad_version)),
            ("another secret", read(&self.bad_mac)),
            ("meant for another rank", read(&self.wrong_peer)),
            ("silent", read(&self.timeout)),
            ("closed early", read(&self.closed)),
            ("too many at once", read(&self.crowded)),
        ]
    }
}

impl fmt::Display for Rejections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total();
        if total == 0 {
            return f.write_str("no connection was refused");
        }
        write!(f, "{total} connection{} refused (", if total == 1 { " was" } else { "s were" })?;
        let mut first = true;
        for (reason, count) in self.reasons().into_iter().filter(|(_, count)| *count > 0) {
            write!(f, "{}{reason}: {count}", if first { "" } else { ", " })?;
            first = false;
        }
        f.write_str(")")
    }
}

/// A connection that got in. Its stream is non-blocking.
#[derive(Debug)]
pub struct Admitted {
    /// What the dialer said; proved.
    pub hello: Hello,
    /// The connection.
    pub stream: TcpStream,
    /// The key of the frames on it.
    pub session_key: SessionKey,
    /// Where it came from.
    pub address: SocketAddr,
}

#[derive(Debug)]
struct Pending {
    stream: TcpStream,
    address: SocketAddr,
    acceptor: Acceptor,
    since: Instant,
}

/// A listener that lets only authenticated peers in.
#[derive(Debug)]
pub struct Gate {
    listener: TcpListener,
    key: Key,
    communicator: u64,
    rank: Rank,
    rejections: Arc<Rejections>,
    pending: Vec<Pending>,
}

impl Gate {
    /// A gate before the listener of `rank`, for the holders of `key` in one communicator.
    pub fn new(
        listener: TcpListener,
        key: Key,
        (communicator, rank): (u64, Rank),
        rejections: Arc<Rejections>,
    ) -> Result<Self> {
        listener
            .set_nonblocking(true)
            .map_err(|error| Error::system("make the listener non-blocking", error))?;
        Ok(Self { listener, key, communicator, rank, rejections, pending: Vec::new() })
    }

    /// Waits for the next authenticated connection; `None` when the deadline passes.
    pub fn accept(&mut self, deadline: Instant) -> Result<Option<Admitted>> {
        loop {
            let mut admitted = Vec::new();
            self.advance_until(&mut admitted, 1)?;
            if let Some(one) = admitted.pop() {
                return Ok(Some(one));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let mut fds = Vec::new();
            self.register(&mut fds);
            socket::wait(&mut fds, deadline.min(self.wake_at()))
                .map_err(|error| Error::system("wait for connections", error))?;
        }
    }

    /// The listener again; handshakes under way are dropped.
    #[must_use]
    pub fn into_listener(self) -> TcpListener {
        self.listener
    }

    /// The communicator's number, once it is known.
    pub(crate) fn set_communicator(&mut self, communicator: u64) {
        self.communicator = communicator;
    }

    /// Adds what the gate waits for.
    pub(crate) fn register<'fd>(&'fd self, fds: &mut Vec<PollFd<'fd>>) {
        if self.pending.len() < PENDING_MAX {
            fds.push(PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN));
        }
        for one in &self.pending {
            fds.push(PollFd::from_borrowed_fd(one.stream.as_fd(), PollFlags::IN));
        }
    }

    /// When the gate wants to be advanced even if nothing came.
    pub(crate) fn wake_at(&self) -> Instant {
        let full = self.pending.len() >= PENDING_MAX;
        let patience = if full { EVICTABLE_AFTER } else { HANDSHAKE_TIMEOUT };
        let oldest = self.pending.iter().map(|one| one.since).min();
        oldest.unwrap_or_else(Instant::now) + patience
    }

    /// Accepts and authenticates as far as the bytes at hand allow.
    pub(crate) fn advance(&mut self, admitted: &mut Vec<Admitted>) -> Result<()> {
        self.advance_until(admitted, usize::MAX)
    }

    fn advance_until(&mut self, admitted: &mut Vec<Admitted>, enough: usize) -> Result<()> {
        self.take_in()?;
        let now = Instant::now();
        let mut at = 0;
        while at < self.pending.len() && admitted.len() < enough {
            let one = &mut self.pending[at];
            match one.acceptor.advance(&one.stream) {
                Ok(None) if now.duration_since(one.since) >= HANDSHAKE_TIMEOUT => {
                    self.refuse(at, &Rejected::Timeout);
                }
                Ok(None) => at += 1,
                Ok(Some((hello, session_key))) => {
                    let Pending { stream, address, .. } = self.pending.swap_remove(at);
                    admitted.push(Admitted { hello, stream, session_key, address });
                }
                Err(why) => self.refuse(at, &why),
            }
        }
        Ok(())
    }

    fn refuse(&mut self, at: usize, why: &Rejected) {
        let one = self.pending.swap_remove(at);
        self.rejections.count(why);
        tracing::debug!(
            target: "ringway::BOOTSTRAP",
            "refused a connection from {}: {why}", one.address
        );
    }

    fn take_in(&mut self) -> Result<()> {
        loop {
            if self.pending.len() >= PENDING_MAX && !self.make_room() {
                return Ok(());
            }
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if socket::prepare(&stream).is_err() {
                        self.rejections.count(&Rejected::Closed);
                        continue;
                    }
                    let acceptor = Acceptor::new(&self.key, Some((self.communicator, self.rank)))?;
                    let since = Instant::now();
                    self.pending.push(Pending { stream, address, acceptor, since });
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset => {}
                    _ => {
                        return Err(Error::system(
                            "accept a connection (too many open files? raise `ulimit -n`)",
                            error,
                        ));
                    }
                },
            }
        }
    }

    /// Drops the oldest handshake if it had its time; says whether there is room now.
    fn make_room(&mut self) -> bool {
        let oldest = self.pending.iter().enumerate().min_by_key(|(_, one)| one.since);
        match oldest.map(|(at, one)| (at, one.since.elapsed())) {
            Some((at, age)) if age >= EVICTABLE_AFTER => {
                self.refuse(at, &Rejected::Timeout);
                true
            }
            _ => false,
        }
    }
}
