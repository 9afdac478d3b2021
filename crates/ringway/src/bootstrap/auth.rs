//! Mutual authentication of a fresh connection by a shared 32-byte key.
//!
//! ```text
//! dialer                                             acceptor
//!   │ hello    magic version purpose from to … nonce    │   56 bytes
//!   ├───────────────────────────────────────────────────►
//!   │ challenge   nonce, HMAC("accept", hello, nonce)   │   48 bytes: the acceptor has the key
//!   ◄───────────────────────────────────────────────────┤
//!   │ proof       HMAC("dial", hello, nonce)            │   32 bytes: so has the dialer
//!   ├───────────────────────────────────────────────────►
//!   │ verdict     'K', or 'W': not the one you meant    │    1 byte:  the dialer knows it is in
//!   ◄───────────────────────────────────────────────────┤
//! ```
//!
//! A dialer that finds a better address closes before its proof; the acceptor then never admits
//! that connection, so at most one of several parallel attempts ever counts. A connection key,
//! derived from both nonces, MACs the frames that follow ([`super::frame`]).
//!
//! *Invariant:* every message has a fixed size, so nothing a stranger sends decides how much is
//! allocated or read, and neither side waits past its deadline. Nothing is encrypted.
//!
//! Both sides are small state machines over non-blocking sockets; [`dial`] and [`accept`] drive
//! one to its end.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use rustix::event::{PollFd, PollFlags};
use sha2::{Digest, Sha256};
use thiserror::Error as ThisError;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::socket;
use crate::error::{Error, Result};
use crate::plan::types::Rank;

/// The longest a handshake may take, whatever the deadline of the caller.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

const MAGIC: [u8; 4] = *b"RNGW";
const VERSION: u16 = 1;
const VERDICT: u8 = b'K';
/// The verdict for one who holds the key but meant another rank or communicator.
const VERDICT_WRONG_PEER: u8 = b'W';
/// What a dialer sends instead of a proof when the acceptor's MAC was wrong: it fails to verify and
/// is counted there, and says nothing about the dialer's key.
const DISAGREEMENT: [u8; 32] = [0xff; 32];

/// The secret that the ranks of a job share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// A key from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A fresh key from the kernel's random source.
    pub fn random() -> Result<Self> {
        Ok(Self(random_bytes()?))
    }

    /// The key that `secret` gives in the context `label` (a job's identity, a communicator).
    #[must_use]
    pub fn derive(secret: &[u8], label: &[u8]) -> Self {
        Self(mac_of(secret, &[b"ringway key v1", label]).finalize().into_bytes().into())
    }

    /// The bytes, to be passed on by a channel that is itself safe.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The key of one connection, fresh for each.
#[derive(Clone)]
pub struct SessionKey(pub(crate) [u8; 32]);

impl SessionKey {
    /// A secret of the connection's for another use, which `label` names.
    pub(crate) fn derive(&self, label: &[u8]) -> [u8; 32] {
        mac_of(&self.0, &[b"ringway session v1 ", label]).finalize().into_bytes().into()
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(…)")
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A rank enrols at the root.
    Join,
    /// Control messages between two ranks.
    Control,
    /// Data between two ranks.
    Data {
        /// Which of the pair's parallel connections this is.
        connection: u16,
    },
    /// Ranks that go on without others meet at the lowest of them; the tag says which ranks.
    Meet,
}

/// What a dialer says about itself and what it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// What the connection is for.
    pub purpose: Purpose,
    /// The dialling rank.
    pub from: Rank,
    /// The rank it means to reach.
    pub to: Rank,
    /// The communicator; several of one process do not mix.
    pub communicator: u64,
    /// Free for the dialer: tells two attempts of one process from two processes.
    pub tag: u64,
}

/// Why a handshake failed.
#[derive(Clone, Debug, ThisError, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejected {
    /// The first bytes are not ringway's.
    #[error("the other side does not speak ringway's protocol")]
    BadMagic,
    /// Another version of the protocol.
    #[error("the other side speaks version {0} of the protocol, this one {VERSION}")]
    BadVersion(u16),
    /// The MAC does not match: another key.
    #[error("auth failed: the other side holds another secret")]
    BadMac,
    /// Authenticated, but meant for another rank or communicator: two hosts share an address.
    #[error("another rank or communicator answers there")]
    WrongPeer,
    /// Nothing came in time.
    #[error("timed out in the handshake")]
    Timeout,
    /// The other side closed before it had said who it is.
    #[error("closed in the handshake")]
    Closed,
    /// The other side closed after a well-formed hello: it found another address.
    #[error("withdrawn by the other side")]
    Withdrawn,
    /// The operating system refused.
    #[error("{0}")]
    Io(String),
}

impl From<io::Error> for Rejected {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(socket::describe(&error)),
        }
    }
}

/// The first message, as it lies on the wire (little-endian).
///
/// ```text
///  0       4         6         7        8      12    16           18       24        32    40
///  ┌───────┬─────────┬─────────┬────────┬──────┬─────┬────────────┬────────┬─────────┬─────┬──────────┐
///  │ RNGW  │ version │ purpose │ 0      │ from │ to  │ connection │ 0      │ communi-│ tag │ nonce 16 │
///  │       │         │         │        │      │     │            │        │ cator   │     │          │
///  └───────┴─────────┴─────────┴────────┴──────┴─────┴────────────┴────────┴─────────┴─────┴──────────┘
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HelloFrame {
    magic: [u8; 4],
    version: U16,
    purpose: u8,
    reserved: u8,
    from: U32,
    to: U32,
    connection: U16,
    reserved_wide: [u8; 6],
    communicator: U64,
    tag: U64,
    nonce: [u8; 16],
}

/// The acceptor's answer.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ChallengeFrame {
    nonce: [u8; 16],
    mac: [u8; 32],
}

/// Bytes of a hello.
pub const HELLO_BYTES: usize = size_of::<HelloFrame>();
const CHALLENGE_BYTES: usize = size_of::<ChallengeFrame>();
const _: () = assert!(HELLO_BYTES == 56);
const _: () = assert!(CHALLENGE_BYTES == 48);

impl HelloFrame {
    fn new(hello: &Hello, nonce: [u8; 16]) -> Self {
        let (purpose, connection) = match hello.purpose {
            Purpose::Join => (1, 0),
            Purpose::Control => (2, 0),
            Purpose::Data { connection } => (3, connection),
            Purpose::Meet => (4, 0),
        };
        Self {
            magic: MAGIC,
            version: U16::new(VERSION),
            purpose,
            reserved: 0,
            from: U32::new(hello.from),
            to: U32::new(hello.to),
            connection: U16::new(connection),
            reserved_wide: [0; 6],
            communicator: U64::new(hello.communicator),
            tag: U64::new(hello.tag),
            nonce,
        }
    }
}

/// Encodes a hello.
#[must_use]
pub fn encode_hello(hello: &Hello, nonce: [u8; 16]) -> [u8; HELLO_BYTES] {
    zerocopy::transmute!(HelloFrame::new(hello, nonce))
}

/// Decodes a hello and its nonce; pure, and total over arbitrary bytes.
pub fn decode_hello(bytes: &[u8]) -> Result<(Hello, [u8; 16]), Rejected> {
    let frame = HelloFrame::read_from_bytes(bytes).map_err(|_| Rejected::BadMagic)?;
    if frame.magic != MAGIC {
        return Err(Rejected::BadMagic);
    }
    if frame.version.get() != VERSION {
        return Err(Rejected::BadVersion(frame.version.get()));
    }
    let purpose = match (frame.purpose, frame.connection.get()) {
        (1, 0) => Purpose::Join,
        (2, 0) => Purpose::Control,
        (3, connection) => Purpose::Data { connection },
        (4, 0) => Purpose::Meet,
        _ => return Err(Rejected::BadMagic),
    };
    if frame.reserved != 0 || frame.reserved_wide != [0; 6] {
        return Err(Rejected::BadMagic);
    }
    let hello = Hello {
        purpose,
        from: frame.from.get(),
        to: frame.to.get(),
        communicator: frame.communicator.get(),
        tag: frame.tag.get(),
    };
    Ok((hello, frame.nonce))
}

/// Random bytes of the kernel.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::system("read the kernel's random source", errno)),
        }
    }
    Ok(bytes)
}

/// A SHA-256 over parts, each with its length, so that parts cannot run into one another.
pub(crate) fn digest_of(parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

pub(crate) fn mac_of(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac
}

/// The MAC of one role over everything both sides have said.
fn transcript(key: &Key, role: &[u8], hello: &[u8; HELLO_BYTES], nonce: &[u8; 16]) -> Hmac<Sha256> {
    mac_of(&key.0, &[b"ringway handshake v1 ", role, hello, nonce])
}

fn session_key(key: &Key, hello: &[u8; HELLO_BYTES], nonce: &[u8; 16]) -> SessionKey {
    SessionKey(transcript(key, b"session", hello, nonce).finalize().into_bytes().into())
}

/// Reads towards `buffer[..need]`; `true` once full.
fn fill(mut stream: &TcpStream, buffer: &mut [u8], filled: &mut usize) -> Result<bool, io::Error> {
    while *filled < buffer.len() {
        match stream.read(&mut buffer[*filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => *filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The acceptor's half of the handshake.
#[derive(Debug)]
pub(crate) struct Acceptor {
    key: Key,
    nonce: [u8; 16],
    buffer: [u8; HELLO_BYTES],
    filled: usize,
    /// Communicator and rank that a dialer must mean; anything if `None`.
    meant: Option<(u64, Rank)>,
    /// Set once the hello was whole and answered.
    hello: Option<(Hello, [u8; HELLO_BYTES])>,
}

impl Acceptor {
    pub(crate) fn new(key: &Key, meant: Option<(u64, Rank)>) -> Result<Self> {
        Ok(Self {
            meant,
            key: key.clone(),
            nonce: random_bytes()?,
            buffer: [0; HELLO_BYTES],
            filled: 0,
            hello: None,
        })
    }

    /// Goes on as far as the bytes at hand allow; `None` while more are needed.
    pub(crate) fn advance(
        &mut self,
        mut stream: &TcpStream,
    ) -> Result<Option<(Hello, SessionKey)>, Rejected> {
        if self.hello.is_none() {
            let read = fill(stream, &mut self.buffer, &mut self.filled);
            let known = self.filled.min(MAGIC.len());
            if self.buffer[..known] != MAGIC[..known] {
                return Err(Rejected::BadMagic);
            }
            if !read? {
                return Ok(None);
            }
            let (hello, _) = decode_hello(&self.buffer)?;
            let mac = transcript(&self.key, b"accept", &self.buffer, &self.nonce);
            let answer =
                ChallengeFrame { nonce: self.nonce, mac: mac.finalize().into_bytes().into() };
            stream.write_all(answer.as_bytes())?;
            self.hello = Some((hello, self.buffer));
            self.filled = 0;
        }
        let Some((hello, frame)) = &self.hello else {
            return Ok(None);
        };
        match fill(stream, &mut self.buffer[..32], &mut self.filled) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(_) => return Err(Rejected::Withdrawn),
        }
        transcript(&self.key, b"dial", frame, &self.nonce)
            .verify_slice(&self.buffer[..32])
            .map_err(|_| Rejected::BadMac)?;
        if self.meant.is_some_and(|meant| meant != (hello.communicator, hello.to)) {
            stream.write_all(&[VERDICT_WRONG_PEER])?;
            return Err(Rejected::WrongPeer);
        }
        stream.write_all(&[VERDICT])?;
        Ok(Some((*hello, session_key(&self.key, frame, &self.nonce))))
    }
}

/// The dialer's half of the handshake.
#[derive(Debug)]
pub(crate) struct Dialing {
    key: Key,
    hello: [u8; HELLO_BYTES],
    challenge: [u8; CHALLENGE_BYTES],
    filled: usize,
    proved: bool,
}

impl Dialing {
    /// Sends the hello on a connected stream.
    pub(crate) fn begin(
        mut stream: &TcpStream,
        key: &Key,
        hello: &Hello,
    ) -> Result<Self, Rejected> {
        let nonce = random_bytes().map_err(|error| Rejected::Io(error.to_string()))?;
        let hello = encode_hello(hello, nonce);
        stream.write_all(&hello)?;
        Ok(Self {
            key: key.clone(),
            hello,
            challenge: [0; CHALLENGE_BYTES],
            filled: 0,
            proved: false,
        })
    }

    /// Whether the acceptor has proved that it holds the key; [`Self::prove`] may follow.
    pub(crate) fn challenged(&mut self, mut stream: &TcpStream) -> Result<bool, Rejected> {
        if !fill(stream, &mut self.challenge, &mut self.filled)? {
            return Ok(false);
        }
        let (nonce, mac) = self.parts();
        let verified = transcript(&self.key, b"accept", &self.hello, &nonce).verify_slice(&mac);
        if verified.is_err() {
            // A courtesy that makes the other side count it; its failure changes nothing.
            let _ = stream.write_all(&DISAGREEMENT);
            return Err(Rejected::BadMac);
        }
        Ok(true)
    }

    /// Sends this side's proof.
    pub(crate) fn prove(&mut self, mut stream: &TcpStream) -> Result<(), Rejected> {
        let (nonce, _) = self.parts();
        let mac: [u8; 32] =
            transcript(&self.key, b"dial", &self.hello, &nonce).finalize().into_bytes().into();
        stream.write_all(&mac)?;
        self.proved = true;
        Ok(())
    }

    /// The key of the connection once the acceptor has said that this side is in.
    pub(crate) fn admitted(&self, stream: &TcpStream) -> Result<Option<SessionKey>, Rejected> {
        debug_assert!(self.proved, "the verdict follows the proof");
        let mut verdict = [0];
        if !fill(stream, &mut verdict, &mut 0)? {
            return Ok(None);
        }
        match verdict[0] {
            VERDICT => {}
            VERDICT_WRONG_PEER => return Err(Rejected::WrongPeer),
            _ => return Err(Rejected::BadMagic),
        }
        let (nonce, _) = self.parts();
        Ok(Some(session_key(&self.key, &self.hello, &nonce)))
    }

    fn parts(&self) -> ([u8; 16], [u8; 32]) {
        let frame: ChallengeFrame = zerocopy::transmute!(self.challenge);
        (frame.nonce, frame.mac)
    }
}

/// Authenticates a connection this side opened. The stream is non-blocking afterwards.
pub fn dial(
    stream: &mut TcpStream,
    key: &Key,
    hello: &Hello,
    deadline: Instant,
) -> Result<SessionKey, Rejected> {
    let deadline = deadline.min(Instant::now() + HANDSHAKE_TIMEOUT);
    stream.set_nonblocking(true)?;
    let mut dialing = Dialing::begin(stream, key, hello)?;
    while !dialing.challenged(stream)? {
        await_bytes(stream, deadline)?;
    }
    dialing.prove(stream)?;
    loop {
        if let Some(key) = dialing.admitted(stream)? {
            return Ok(key);
        }
        await_bytes(stream, deadline)?;
    }
}

/// Authenticates a connection that was accepted; whom the dialer meant is the caller's to check
/// (a [`Gate`](super::gate::Gate) does). The stream is non-blocking afterwards.
pub fn accept(
    stream: &mut TcpStream,
    key: &Key,
    deadline: Instant,
) -> Result<(Hello, SessionKey), Rejected> {
    let deadline = deadline.min(Instant::now() + HANDSHAKE_TIMEOUT);
    stream.set_nonblocking(true)?;
    let mut acceptor = Acceptor::new(key, None).map_err(|error| Rejected::Io(error.to_string()))?;
    loop {
        if let Some(admitted) = acceptor.advance(stream)? {
            return Ok(admitted);
        }
        await_bytes(stream, deadline)?;
    }
}

fn await_bytes(stream: &TcpStream, deadline: Instant) -> Result<(), Rejected> {
    if Instant::now() >= deadline {
        return Err(Rejected::Timeout);
    }
    let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
    socket::wait(&mut fds, deadline)?;
    Ok(())
}
