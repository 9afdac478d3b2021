//! Control messages: frames with a MAC, over one authenticated connection.
//!
//! ```text
//!  0        4      6      8                    8+length         +16
//!  ┌────────┬──────┬──────┬────────────────────┬────────────────┐
//!  │ length │ kind │ 0    │ body               │ HMAC, 16 bytes │
//!  └────────┴──────┴──────┴────────────────────┴────────────────┘
//!      the HMAC covers: direction, number of the frame in that direction, header, body
//! ```
//!
//! *Invariant:* a length is checked against [`BODY_MAX_BYTES`] before it is believed, memory grows
//! only with bytes that have come, and a body is handed out only after its MAC was verified. A
//! frame cannot be replayed, reordered or reflected, within a connection or across two.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use hmac::Mac;
use rustix::event::{PollFd, PollFlags};
use thiserror::Error as ThisError;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::auth::{self, SessionKey};
use super::socket;

/// The longest body.
pub const BODY_MAX_BYTES: usize = 16 << 20;
const MAC_BYTES: usize = 16;
const HEADER_BYTES: usize = size_of::<HeaderFrame>();
/// Memory grows by this much at a time while a long body comes in.
const PIECE_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderFrame {
    length: U32,
    kind: U16,
    reserved: U16,
}
const _: () = assert!(HEADER_BYTES == 8);

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that dialled.
    Dialer,
    /// The one that accepted.
    Acceptor,
}

impl Side {
    fn outgoing(self) -> u8 {
        match self {
            Self::Dialer => 1,
            Self::Acceptor => 2,
        }
    }

    fn incoming(self) -> u8 {
        3 - self.outgoing()
    }
}

/// One verified message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is; the meaning is the user's of the connection.
    pub kind: u16,
    /// Its content.
    pub body: Vec<u8>,
}

/// Why a control connection cannot go on.
#[derive(Clone, Debug, ThisError, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// The other side closed the connection.
    #[error("closed by the other side")]
    Closed,
    /// The deadline passed.
    #[error("timed out")]
    Timeout,
    /// A length out of range, or reserved bits that are not zero.
    #[error("malformed message header (length {length})")]
    Malformed {
        /// The length it claimed.
        length: u32,
    },
    /// The MAC does not match.
    #[error("message authentication failed")]
    BadMac,
    /// The body to send is longer than [`BODY_MAX_BYTES`].
    #[error("a message of {bytes} bytes is longer than {BODY_MAX_BYTES}")]
    TooLong {
        /// Bytes of the body.
        bytes: usize,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(String),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(socket::describe(&error)),
        }
    }
}

fn mac(key: &SessionKey, direction: u8, number: u64, header: &[u8], body: &[u8]) -> [u8; 32] {
    auth::mac_of(&key.0, &[b"frame", &[direction], &number.to_le_bytes(), header, body])
        .finalize()
        .into_bytes()
        .into()
}

/// Writes the frame that `side` sends as its `number`th.
pub(crate) fn append(
    out: &mut Vec<u8>,
    (key, side, number): (&SessionKey, Side, u64),
    kind: u16,
    body: &[u8],
) -> Result<(), FrameError> {
    let too_long = FrameError::TooLong { bytes: body.len() };
    let length = u32::try_from(body.len()).map_err(|_| too_long.clone())?;
    if body.len() > BODY_MAX_BYTES {
        return Err(too_long);
    }
    let header =
        HeaderFrame { length: U32::new(length), kind: U16::new(kind), reserved: U16::ZERO };
    let header = header.as_bytes();
    let mac = mac(key, side.outgoing(), number, header, body);
    out.extend_from_slice(header);
    out.extend_from_slice(body);
    out.extend_from_slice(&mac[..MAC_BYTES]);
    Ok(())
}

/// Turns the bytes of one direction into frames. Pure: it reads nothing by itself.
#[derive(Debug)]
pub struct Decoder {
    key: SessionKey,
    direction: u8,
    number: u64,
    buffer: Vec<u8>,
    filled: usize,
}

impl Decoder {
    /// A decoder for what comes in at `side`.
    #[must_use]
    pub fn new(key: SessionKey, side: Side) -> Self {
        Self { key, direction: side.incoming(), number: 0, buffer: Vec::new(), filled: 0 }
    }

    /// Where the next bytes go; never empty, never past the end of the current frame.
    pub fn space(&mut self) -> &mut [u8] {
        let want = self.whole_bytes().unwrap_or(HEADER_BYTES);
        let want = want.min(self.filled + PIECE_BYTES);
        self.buffer.resize(want, 0);
        &mut self.buffer[self.filled..]
    }

    /// Takes note of `count` bytes written into [`Self::space`]; a whole frame comes back verified.
    pub fn advance(&mut self, count: usize) -> Result<Option<Frame>, FrameError> {
        self.filled += count;
        let Some(whole) = self.whole_bytes() else {
            return Ok(None);
        };
        let header = self.header();
        if header.length.get() as usize > BODY_MAX_BYTES || header.reserved.get() != 0 {
            return Err(FrameError::Malformed { length: header.length.get() });
        }
        if self.filled < whole {
            return Ok(None);
        }
        let tag = self.buffer.split_off(whole - MAC_BYTES);
        let body = self.buffer.split_off(HEADER_BYTES);
        auth::mac_of(
            &self.key.0,
            &[b"frame", &[self.direction], &self.number.to_le_bytes(), &self.buffer, &body],
        )
        .verify_truncated_left(&tag)
        .map_err(|_| FrameError::BadMac)?;
        self.number += 1;
        self.filled = 0;
        Ok(Some(Frame { kind: header.kind.get(), body }))
    }

    fn header(&self) -> HeaderFrame {
        HeaderFrame::read_from_prefix(&self.buffer)
            .map_or(HeaderFrame { length: U32::ZERO, kind: U16::ZERO, reserved: U16::ZERO }, |h| {
                h.0
            })
    }

    /// Bytes of the current frame once its header is there.
    fn whole_bytes(&self) -> Option<usize> {
        (self.filled >= HEADER_BYTES)
            .then(|| HEADER_BYTES + self.header().length.get() as usize + MAC_BYTES)
    }
}

/// An authenticated connection that carries frames.
#[derive(Debug)]
pub struct ControlStream {
    stream: TcpStream,
    key: SessionKey,
    side: Side,
    sent: u64,
    decoder: Decoder,
    outbox: Vec<u8>,
    written: usize,
}

impl ControlStream {
    /// Frames over a stream whose handshake gave `key`; the stream becomes non-blocking.
    pub fn new(stream: TcpStream, key: SessionKey, side: Side) -> Result<Self, FrameError> {
        socket::prepare(&stream)?;
        let decoder = Decoder::new(key.clone(), side);
        Ok(Self { stream, key, side, sent: 0, decoder, outbox: Vec::new(), written: 0 })
    }

    /// The connection underneath.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Adds a frame to what waits to be written.
    pub fn queue(&mut self, kind: u16, body: &[u8]) -> Result<(), FrameError> {
        append(&mut self.outbox, (&self.key, self.side, self.sent), kind, body)?;
        self.sent += 1;
        Ok(())
    }

    /// Whether queued bytes still wait.
    #[must_use]
    pub fn has_queued(&self) -> bool {
        self.written < self.outbox.len()
    }

    /// Writes as much as the socket takes; `true` once nothing waits.
    pub fn try_flush(&mut self) -> Result<bool, FrameError> {
        while self.has_queued() {
            match self.stream.write(&self.outbox[self.written..]) {
                Ok(0) => return Err(FrameError::Closed),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.outbox.clear();
        self.written = 0;
        Ok(true)
    }

    /// The next frame if it is whole.
    pub fn try_receive(&mut self) -> Result<Option<Frame>, FrameError> {
        loop {
            match self.stream.read(self.decoder.space()) {
                Ok(0) => return Err(FrameError::Closed),
                Ok(count) => {
                    if let Some(frame) = self.decoder.advance(count)? {
                        return Ok(Some(frame));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends one frame and waits until the kernel has taken it.
    pub fn send(&mut self, kind: u16, body: &[u8], deadline: Instant) -> Result<(), FrameError> {
        self.queue(kind, body)?;
        while !self.try_flush()? {
            self.wait(PollFlags::OUT, deadline)?;
        }
        Ok(())
    }

    /// Waits for one frame.
    pub fn receive(&mut self, deadline: Instant) -> Result<Frame, FrameError> {
        loop {
            if let Some(frame) = self.try_receive()? {
                return Ok(frame);
            }
            self.wait(PollFlags::IN, deadline)?;
        }
    }

    fn wait(&self, flags: PollFlags, deadline: Instant) -> Result<(), FrameError> {
        if Instant::now() >= deadline {
            return Err(FrameError::Timeout);
        }
        socket::wait(&mut [PollFd::from_borrowed_fd(self.as_fd(), flags)], deadline)?;
        Ok(())
    }

    /// Adds what this connection waits for: always input, output while some is queued.
    pub(crate) fn register<'fd>(&'fd self, fds: &mut Vec<PollFd<'fd>>) {
        let flags = if self.has_queued() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        fds.push(PollFd::from_borrowed_fd(self.as_fd(), flags));
    }
}

/// Sends a last message on every stream, then reads until the others have closed: closing at once
/// could reset the connection and take the message with it.
pub(crate) fn say_farewell(
    streams: &mut Vec<ControlStream>,
    kind: u16,
    body: &[u8],
    deadline: Instant,
) {
    streams.retain_mut(|stream| {
        let said = stream.queue(kind, body).and_then(|()| stream.try_flush());
        said.is_ok() && stream.stream.shutdown(Shutdown::Write).is_ok()
    });
    while !streams.is_empty() && Instant::now() < deadline {
        streams.retain_mut(|stream| {
            loop {
                match stream.try_receive() {
                    Ok(Some(_)) => {}
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
        });
        let mut fds = Vec::new();
        streams.iter().for_each(|stream| stream.register(&mut fds));
        if !fds.is_empty() && socket::wait(&mut fds, deadline).is_err() {
            return;
        }
    }
}

impl AsFd for ControlStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
