//! The dialling side: one peer, all of its addresses at once, the first that proves itself wins.
//!
//! An address is preferred by its place in the list: each later one starts a moment after the one
//! before it, or as soon as that one failed. Only one attempt at a time sends its proof, so the
//! acceptor admits one connection; the rest are withdrawn. For every address that was not taken
//! the reason is kept.
//!
//! *Invariant:* an attempt never outlives its own time limit, and the dialer holds no thread.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::auth::{Dialing, HANDSHAKE_TIMEOUT, Hello, Key, Rejected, SessionKey};
use super::socket;

/// The longest one attempt to connect may take; a dropped SYN is sent again after 1 and 3 seconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// The first pause before an address is tried again; it grows by half each time.
const RETRY_FIRST: Duration = Duration::from_millis(2);
/// The head start of an address over the next one in the list.
const STAGGER: Duration = Duration::from_millis(20);

/// One address of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The interface it belongs to, or where the address comes from.
    pub(crate) label: String,
    pub(crate) address: SocketAddr,
    /// The address of this host to dial from; the kernel's choice where there is none.
    pub(crate) from: Option<IpAddr>,
}

/// A connection that was established and authenticated.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) stream: TcpStream,
    pub(crate) session_key: SessionKey,
    pub(crate) target: Target,
}

#[derive(Debug)]
enum State {
    Idle {
        try_at: Instant,
    },
    Connecting {
        stream: TcpStream,
        until: Instant,
    },
    Greeting {
        stream: TcpStream,
        dialing: Dialing,
        until: Instant,
    },
    /// The acceptor has proved itself; this side has not.
    Held {
        stream: TcpStream,
        dialing: Dialing,
        until: Instant,
    },
    Proving {
        stream: TcpStream,
        dialing: Dialing,
        until: Instant,
    },
}

#[derive(Debug)]
struct Attempt {
    target: Target,
    state: State,
    failures: u32,
    pause: Duration,
    last: Option<String>,
    /// Whether the last failure says that ringway answered there with another secret.
    other_secret: bool,
}

/// Dials one peer at all its addresses.
#[derive(Debug)]
pub(crate) struct Dialer {
    key: Key,
    hello: Hello,
    pause_max: Duration,
    started: Instant,
    attempts: Vec<Attempt>,
}

impl Dialer {
    pub(crate) fn new(key: Key, hello: Hello, targets: Vec<Target>, pause_max: Duration) -> Self {
        let started = Instant::now();
        let attempts = targets.into_iter().zip(0_u32..).map(|(target, place)| Attempt {
            target,
            state: State::Idle { try_at: started + STAGGER * place },
            failures: 0,
            pause: RETRY_FIRST,
            last: None,
            other_secret: false,
        });
        Self { key, hello, pause_max, started, attempts: attempts.collect() }
    }

    /// Goes on with every attempt; the first connection that is in comes back.
    pub(crate) fn advance(&mut self) -> Option<Connected> {
        for at in 0..self.attempts.len() {
            let proving = self.has_proved();
            let attempt = &mut self.attempts[at];
            match attempt.advance(&self.key, &self.hello, !proving) {
                Ok(None) => {}
                Ok(Some(connected)) => return Some(connected),
                Err(why) => {
                    attempt.fail(why, self.pause_max);
                    self.hurry_next(at);
                }
            }
        }
        None
    }

    /// Whether the acceptor may have taken a connection already: then only its verdict, or its silence, ends the matter.
    pub(crate) fn has_proved(&self) -> bool {
        self.attempts.iter().any(|one| matches!(one.state, State::Proving { .. }))
    }

    /// Adds what the attempts wait for.
    pub(crate) fn register<'fd>(&'fd self, fds: &mut Vec<PollFd<'fd>>) {
        for attempt in &self.attempts {
            let (stream, flags) = match &attempt.state {
                State::Idle { .. } => continue,
                State::Connecting { stream, .. } => (stream, PollFlags::OUT),
                // A held attempt says nothing until it is its turn.
                State::Held { .. } => continue,
                State::Greeting { stream, .. } | State::Proving { stream, .. } => {
                    (stream, PollFlags::IN)
                }
            };
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), flags));
        }
    }

    /// When the dialer wants to be advanced even if nothing came.
    pub(crate) fn wake_at(&self) -> Instant {
        let times = self.attempts.iter().map(|attempt| match &attempt.state {
            State::Idle { try_at } => *try_at,
            State::Connecting { until, .. }
            | State::Greeting { until, .. }
            | State::Held { until, .. }
            | State::Proving { until, .. } => *until,
        });
        times.min().unwrap_or_else(Instant::now)
    }

    /// Whether every address has failed at least once and the dialer has tried for `patience`.
    pub(crate) fn hopeless(&self, patience: Duration) -> bool {
        self.started.elapsed() >= patience
            && self.attempts.iter().all(|attempt| attempt.failures > 0)
    }

    /// Whether every address that is a ringway process holds another secret.
    pub(crate) fn wrong_secret(&self) -> bool {
        !self.attempts.is_empty() && self.attempts.iter().all(|attempt| attempt.other_secret)
    }

    /// Each address that was not taken, with the reason.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&Target, String)> {
        self.attempts.iter().map(|attempt| {
            let reason = match (&attempt.last, &attempt.state) {
                (Some(last), _) => last.clone(),
                (None, State::Idle { .. }) => "not tried: another address answered first".into(),
                (None, State::Connecting { .. }) => "no answer yet".into(),
                (None, State::Greeting { .. }) => "connected, but no answer yet".into(),
                (None, State::Held { .. } | State::Proving { .. }) => "slower".into(),
            };
            (&attempt.target, reason)
        })
    }

    /// The reasons as one line.
    pub(crate) fn report(&self) -> String {
        let mut reasons: Vec<(String, String)> = Vec::new();
        for (target, why) in self.refused() {
            let place = if target.label.is_empty() {
                target.address.to_string()
            } else {
                format!("{} {}", target.label, target.address)
            };
            match reasons.iter_mut().find(|(_, known)| *known == why) {
                Some((places, _)) => *places = format!("{places}, {place}"),
                None => reasons.push((place, why)),
            }
        }
        let lines = reasons.into_iter().map(|(places, why)| format!("{places}: {why}"));
        lines.collect::<Vec<_>>().join("; ")
    }

    /// An address failed: the next that has not started need not wait for its turn.
    fn hurry_next(&mut self, failed: usize) {
        let next = self.attempts[failed..]
            .iter_mut()
            .find(|one| one.failures == 0 && matches!(one.state, State::Idle { .. }));
        if let Some(Attempt { state: State::Idle { try_at }, .. }) = next {
            *try_at = Instant::now();
        }
    }
}

impl Attempt {
    /// One step; `may_prove` when no other attempt has sent its proof.
    fn advance(
        &mut self,
        key: &Key,
        hello: &Hello,
        may_prove: bool,
    ) -> Result<Option<Connected>, Rejected> {
        let now = Instant::now();
        loop {
            let idle = State::Idle { try_at: now };
            self.state = match std::mem::replace(&mut self.state, idle) {
                State::Idle { try_at } if now < try_at => {
                    self.state = State::Idle { try_at };
                    return Ok(None);
                }
                State::Idle { .. } => {
                    let stream = socket::start_connect(&self.target.address, self.target.from)
                        .map_err(lost)?;
                    State::Connecting { stream, until: now + CONNECT_TIMEOUT }
                }
                State::Connecting { stream, until } => match socket::connect_outcome(&stream) {
                    None if now >= until => return Err(Rejected::Io("timed out".into())),
                    None => {
                        self.state = State::Connecting { stream, until };
                        return Ok(None);
                    }
                    Some(outcome) => {
                        outcome.and_then(|()| socket::prepare(&stream)).map_err(lost)?;
                        let dialing = Dialing::begin(&stream, key, hello)?;
                        State::Greeting { stream, dialing, until: now + HANDSHAKE_TIMEOUT }
                    }
                },
                State::Greeting { stream, mut dialing, until } => {
                    if dialing.challenged(&stream)? {
                        State::Held { stream, dialing, until }
                    } else if now >= until {
                        return Err(Rejected::Timeout);
                    } else {
                        self.state = State::Greeting { stream, dialing, until };
                        return Ok(None);
                    }
                }
                State::Held { stream, mut dialing, until } => {
                    if may_prove {
                        dialing.prove(&stream)?;
                        State::Proving { stream, dialing, until }
                    } else if now >= until {
                        return Err(Rejected::Timeout);
                    } else {
                        self.state = State::Held { stream, dialing, until };
                        return Ok(None);
                    }
                }
                State::Proving { stream, dialing, until } => {
                    if let Some(session_key) = dialing.admitted(&stream)? {
                        let target = self.target.clone();
                        return Ok(Some(Connected { stream, session_key, target }));
                    } else if now >= until {
                        return Err(Rejected::Timeout);
                    }
                    self.state = State::Proving { stream, dialing, until };
                    return Ok(None);
                }
            };
        }
    }

    fn fail(&mut self, why: Rejected, pause_max: Duration) {
        self.failures += 1;
        self.other_secret = why == Rejected::BadMac;
        self.last = Some(why.to_string());
        self.state = State::Idle { try_at: Instant::now() + self.pause };
        self.pause = (self.pause * 3 / 2).min(pause_max);
    }
}

fn lost(error: io::Error) -> Rejected {
    Rejected::Io(socket::describe(&error))
}
