//! How a rank enrols at the root, and how the root answers.
//!
//! ```text
//! rank                                   root
//!   │ JOIN       who I am, where I listen  │
//!   ├──────────────────────────────────────►  waits for all ranks, up to the deadline
//!   │ WELCOME    the peers r ± 2^i         │
//!   ◄──────────────────────────────────────┤
//!   │ CONNECTED                            │  the rank has its overlay connections
//!   ├──────────────────────────────────────►  waits for all ranks
//!   │ GO                                   │
//!   ◄──────────────────────────────────────┤
//!         FAIL (an error), either way, at any time: the root passes the first one to everybody
//! ```
//!
//! The root tells a rank only of the peers it connects to, so its work per rank is O(log n); the
//! rest (and the caller's blob) travels by the all-gather over the overlay.
//!
//! *Invariant:* whatever goes wrong, every rank that reached the root leaves with the same first
//! cause.

mod lookup;
pub(super) mod place;
pub(super) mod root;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::PeerInfo;
use super::auth::{Hello, Key, Purpose, random_bytes};
use super::dial::Dialer;
use super::exchange;
use super::frame::{ControlStream, FrameError, Side};
use super::socket;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::types::Rank;

pub(crate) use lookup::Whereabouts;

/// Kinds of the bootstrap's own frames. Users of a control connection take kinds from
/// [`message::USER_FIRST`] on.
pub mod message {
    /// A rank enrols.
    pub const JOIN: u16 = 1;
    /// The root answers.
    pub const WELCOME: u16 = 2;
    /// A rank has its connections.
    pub const CONNECTED: u16 = 3;
    /// All ranks have theirs.
    pub const GO: u16 = 4;
    /// Somebody failed; the body is the error.
    pub const FAIL: u16 = 5;
    /// A block of an all-gather.
    pub const GATHER: u16 = 6;
    /// The first kind that is free for others.
    pub const USER_FIRST: u16 = 256;
}

/// The rank a joiner names to reach the root.
pub(crate) const ROOT: Rank = Rank::MAX;
/// How long a wrong secret at the root's address may be a root of yesterday that is still ending.
const SECRET_PATIENCE: Duration = Duration::from_secs(3);
/// How long nobody answers before the root's name is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How long the root's verdict is waited for after something went wrong here.
const VERDICT_PATIENCE: Duration = Duration::from_secs(1);

/// What a rank says when it enrols.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Ranks of the job, as this rank knows it.
    pub size: u32,
    /// How long this rank waits for the others.
    pub timeout_ms: u64,
    /// Who it is; the blob stays empty.
    pub peer: PeerInfo,
}

/// What the root answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The communicator's number.
    pub communicator: u64,
    /// The peers this rank connects to.
    pub peers: Vec<PeerInfo>,
}

/// Decodes the body of a JOIN; total over arbitrary bytes.
pub fn decode_join(body: &[u8]) -> Result<JoinRequest> {
    let request: JoinRequest = serde_json::from_slice(body)
        .map_err(|error| Error::system("decode a join request", error))?;
    request.peer.check()?;
    Ok(request)
}

/// Decodes the body of a WELCOME; total over arbitrary bytes.
pub fn decode_welcome(body: &[u8]) -> Result<Welcome> {
    let welcome: Welcome = serde_json::from_slice(body)
        .map_err(|error| Error::system("decode the root's answer", error))?;
    welcome.peers.iter().try_for_each(PeerInfo::check)?;
    Ok(welcome)
}

/// Decodes the body of a FAIL; total over arbitrary bytes.
#[must_use]
pub fn decode_failure(body: &[u8]) -> Error {
    serde_json::from_slice(body).unwrap_or_else(|error| {
        Error::new(
            ErrorKind::Remote,
            format!("another rank failed, and its error is unreadable: {error}"),
        )
    })
}

pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain structures of strings and numbers serialise")
}

/// What a rank needs to enrol.
pub(crate) struct Enrolment<'a> {
    pub(crate) me: &'a PeerInfo,
    pub(crate) size: u32,
    pub(crate) key: &'a Key,
    pub(crate) communicator: u64,
    /// Where the root is.
    pub(crate) whereabouts: &'a Whereabouts<'a>,
    /// The root's place, for messages.
    pub(crate) asked_at: &'a str,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
}

/// Enrols at the root and waits for its answer.
pub(crate) fn enrol(enrolment: &Enrolment<'_>) -> Result<(ControlStream, Welcome)> {
    let mut root = reach(enrolment)?;
    let request = JoinRequest {
        size: enrolment.size,
        timeout_ms: u64::try_from(enrolment.timeout.as_millis()).unwrap_or(u64::MAX),
        peer: PeerInfo { blob: Vec::new(), ..enrolment.me.clone() },
    };
    root.send(message::JOIN, &encode(&request), enrolment.deadline).map_err(lost_root)?;
    let welcome = match expect(&mut root, message::WELCOME, enrolment.deadline) {
        Ok(body) => decode_welcome(&body)?,
        Err(error) if error.kind() == ErrorKind::Timeout => {
            return Err(report_failure(&mut root, error));
        }
        Err(error) => return Err(error),
    };
    Ok((root, welcome))
}

/// Says that this rank has its connections, and waits until all have.
pub(crate) fn confirm(root: &mut ControlStream, deadline: Instant) -> Result<()> {
    root.send(message::CONNECTED, &[], deadline).map_err(lost_root)?;
    match expect(root, message::GO, deadline) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Timeout => Err(report_failure(root, error)),
        Err(error) => Err(error),
    }
}

/// Tells the root what went wrong here and returns the first cause, which the root knows.
pub(crate) fn report_failure(root: &mut ControlStream, error: Error) -> Error {
    let until = Instant::now() + VERDICT_PATIENCE;
    if root.send(message::FAIL, &encode(&error), until).is_err() {
        return error;
    }
    loop {
        match root.receive(until) {
            Ok(frame) if frame.kind == message::FAIL => return decode_failure(&frame.body),
            Ok(_) => {}
            Err(_) => return error,
        }
    }
}

/// An error if the root has passed one on, or is gone.
pub(crate) fn check_for_failure(root: &mut ControlStream) -> Result<()> {
    match root.try_receive() {
        Ok(None) => Ok(()),
        Ok(Some(frame)) if frame.kind == message::FAIL => Err(decode_failure(&frame.body)),
        Ok(Some(frame)) => Err(unexpected(frame.kind)),
        Err(error) => Err(lost_root(error)),
    }
}

fn expect(root: &mut ControlStream, kind: u16, deadline: Instant) -> Result<Vec<u8>> {
    let frame = root.receive(deadline).map_err(lost_root)?;
    match frame.kind {
        got if got == kind => Ok(frame.body),
        message::FAIL => Err(decode_failure(&frame.body)),
        other => Err(unexpected(other)),
    }
}

fn unexpected(kind: u16) -> Error {
    Error::internal(format!("the root sent an unexpected message (kind {kind})"))
}

fn lost_root(error: FrameError) -> Error {
    match error {
        FrameError::Timeout => Error::new(
            ErrorKind::Timeout,
            "the rendezvous did not complete in time, and the root did not say which rank is late",
        ),
        error => Error::new(
            ErrorKind::Remote,
            format!("lost the root of the rendezvous: {error}; look at rank 0's messages"),
        ),
    }
}

/// Dials the root until it answers.
fn reach(enrolment: &Enrolment<'_>) -> Result<ControlStream> {
    let hello = Hello {
        purpose: Purpose::Join,
        from: enrolment.me.rank,
        to: ROOT,
        communicator: enrolment.communicator,
        tag: u64::from_le_bytes(random_bytes()?),
    };
    // Many ranks that knock at a root which is not up yet: the pause grows with their number.
    let pause_max = Duration::from_millis(50 + u64::from(enrolment.size) / 4);
    let who = enrolment.me.identity();
    let mut targets = enrolment.whereabouts.find(&who, enrolment.timeout, enrolment.deadline)?;
    let dial = |targets| Dialer::new(enrolment.key.clone(), hello, targets, pause_max);
    let mut dialer = dial(targets.clone());
    let started = Instant::now();
    let (mut question, mut ask_at) = (None, started + ASK_AGAIN);
    loop {
        if let Some(connected) = dialer.advance() {
            return exchange::framed(connected.stream, connected.session_key, Side::Dialer);
        }
        let now = Instant::now();
        let hostile = dialer.wrong_secret() && now - started >= SECRET_PATIENCE;
        if hostile || now >= enrolment.deadline {
            return Err(no_root(enrolment, &dialer));
        }
        if now >= ask_at {
            question = question.or_else(|| enrolment.whereabouts.ask_again());
            ask_at = now + ASK_AGAIN;
        }
        if let Some(answer) = question.as_ref().and_then(lookup::Question::answer) {
            question = None;
            // Who was let in already stays, wherever the name leads now.
            if let Ok(found) = answer
                && found != targets
                && !dialer.has_proved()
            {
                dialer = dial(found.clone());
                targets = found;
            }
        }
        let mut fds = Vec::new();
        dialer.register(&mut fds);
        socket::wait(&mut fds, dialer.wake_at().min(enrolment.deadline).min(ask_at))
            .map_err(|error| Error::system("wait for the root", error))?;
    }
}

fn no_root(enrolment: &Enrolment<'_>, dialer: &Dialer) -> Error {
    let (kind, advice) = if dialer.wrong_secret() {
        (
            ErrorKind::InvalidUsage,
            "a ringway process answers there but holds another secret: give all ranks the same \
             RINGWAY_SECRET (or RINGWAY_SECRET_FILE)",
        )
    } else {
        (
            ErrorKind::Timeout,
            "check that rank 0 runs there and that its port is open; RINGWAY_ROOT=host:port names \
             another place",
        )
    };
    Error::new(
        kind,
        format!(
            "{} found no root at {} within {:.1} s ({}); {advice}",
            enrolment.me.identity(),
            enrolment.asked_at,
            enrolment.timeout.as_secs_f64(),
            dialer.report()
        ),
    )
}
