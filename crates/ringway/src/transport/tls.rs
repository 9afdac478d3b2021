//! TLS 1.3 on TCP lanes (`RINGWAY_TLS=1`): sockets whose bytes leave this process encrypted, as the streams of a link.
//!
//! ```text
//! send ──► records of up to 16 KiB ──► ciphertext, 256 KiB at most ──► socket
//! receive ◄── plaintext of whole records ◄── part of a record ◄──────── socket
//! ```
//!
//! What is sent counts as sent once it is encrypted, so the caller has its memory back; it is *settled* once the kernel
//! has all of it. No more is encrypted before that.
//!
//! *Invariant:* no byte of a caller's goes to the socket in the clear, none that was not authenticated comes out, and
//! a stream that was cut never looks like one that was closed. Nobody sleeps while decrypted bytes are waiting here.

pub(crate) mod handshake;

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustls::Connection;

use super::LinkDescription;
use super::framed::stream::{Arrival, Stream};
use super::framed::{AHEAD, FramedLink};
use crate::plan::types::Rank;
use crate::recorder::Flow;
use handshake::Secured;

/// A link over sockets with TLS on them.
pub(crate) type TlsLink = FramedLink<TlsStream>;

/// Bytes encrypted and not yet in the kernel's hands, at most; the records' heads and tags come on top.
const OUT_MOST: usize = 256 << 10;

/// Bytes received in one go, at most: the peer may encrypt as fast as they are decrypted here, and what this rank has to
/// send must have its turn.
const IN_MOST: usize = 1 << 20;

/// Bytes thrown away when a stream is dropped, at most.
const DISCARD_MOST: usize = 1 << 20;

/// Why a stream that the peer closed in order has ended: the words of a plain socket.
const CLOSED: &str = "the peer closed the connection";

/// Why one has ended that nobody closed in order.
const CUT: &str = "the connection was cut: it ended without TLS's goodbye, so the peer has died, or somebody between the \
                   hosts has ended it";

/// A link over connections on which the handshake is over, in the same order on both sides.
pub(crate) fn link(
    peer: Rank,
    lanes: Vec<(TcpStream, Secured)>,
    description: LinkDescription,
) -> io::Result<TlsLink> {
    let streams: io::Result<Vec<TlsStream>> =
        lanes.into_iter().map(|(socket, secured)| TlsStream::new(socket, secured)).collect();
    Ok(FramedLink::over(peer, streams?, AHEAD, description))
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct TlsStream {
    inner: RefCell<Inner>,
    socket: TcpStream,
    /// Readable, always: for who would sleep while there is something to do.
    ready: OwnedFd,
}

#[derive(Debug)]
struct Inner {
    tls: Connection,
    /// Decrypted bytes that nobody has taken yet.
    plain: usize,
    /// Why no more bytes will come.
    ended: Option<String>,
    /// Why what is encrypted does not go out.
    stuck: Option<String>,
}

impl TlsStream {
    fn new(socket: TcpStream, secured: Secured) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut tls = secured.into_inner();
        tls.set_buffer_limit(Some(OUT_MOST));
        // The peer may have sent right behind the handshake.
        let state = tls.process_new_packets().map_err(io::Error::other)?;
        let plain = state.plaintext_bytes_to_read();
        let ended = state.peer_has_closed().then(|| CLOSED.to_owned());
        let ready = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let inner = Inner { tls, plain, ended, stuck: None };
        Ok(Self { inner: RefCell::new(inner), socket, ready })
    }
}

impl Inner {
    /// Gives the kernel what is encrypted, as far as it takes it; whether it took something.
    fn push(&mut self, socket: &TcpStream) -> bool {
        let mut moved = false;
        while self.is_waiting() {
            match self.tls.write_tls(&mut Wire(socket)) {
                Ok(0) => break,
                Ok(_) => moved = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => self.stuck = Some(error.to_string()),
            }
        }
        moved
    }

    /// Whether encrypted bytes wait here that can still go out.
    fn is_waiting(&self) -> bool {
        self.stuck.is_none() && self.tls.wants_write()
    }

    /// Reads from the socket once and decrypts all records that are whole; `false` when nothing is there, or no more will be.
    fn pull(&mut self, socket: &TcpStream) -> bool {
        let came = match self.tls.read_tls(&mut Wire(socket)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => {
                self.ended = Some(error.to_string());
                return false;
            }
            Ok(came) => came,
        };
        if came == 0 {
            self.ended = self.stuck.clone().or_else(|| Some(CUT.to_owned()));
            return false;
        }
        match self.tls.process_new_packets() {
            Ok(state) => {
                self.plain = state.plaintext_bytes_to_read();
                if state.peer_has_closed() {
                    self.ended = Some(CLOSED.to_owned());
                }
                true
            }
            Err(error) => {
                // The peer is told why, if that goes out.
                self.push(socket);
                self.ended = Some(in_words(&error));
                false
            }
        }
    }
}

impl Stream for TlsStream {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut inner = self.inner.borrow_mut();
        inner.push(&self.socket);
        if let Some(why) = &inner.stuck {
            return Err(io::Error::other(why.clone()));
        }
        if inner.is_waiting() {
            return Ok(0);
        }
        let sent = inner.tls.writer().write_vectored(parts)?;
        inner.push(&self.socket);
        Ok(sent)
    }

    fn receive(&self, room: &mut [u8]) -> Arrival {
        let mut inner = self.inner.borrow_mut();
        inner.push(&self.socket);
        let most = room.len().min(IN_MOST);
        let mut got = 0;
        loop {
            if inner.plain > 0 {
                match inner.tls.reader().read(&mut room[got..most]) {
                    Ok(read) => {
                        got += read;
                        inner.plain -= read;
                    }
                    Err(error) => {
                        inner.plain = 0;
                        inner.ended = Some(error.to_string());
                    }
                }
            }
            // What a record holds beyond the room stays for the next time.
            if got == most || inner.ended.is_some() || !inner.pull(&self.socket) {
                break;
            }
        }
        match &inner.ended {
            _ if got > 0 => Arrival::Bytes(got),
            Some(why) => Arrival::End(why.clone()),
            None => Arrival::Nothing,
        }
    }

    fn interest(&self, wanted: PollFlags) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut inner = self.inner.borrow_mut();
        let moved = inner.push(&self.socket);
        let can_read = inner.plain > 0 || inner.ended.is_some();
        if moved || inner.stuck.is_some() || wanted.contains(PollFlags::IN) && can_read {
            return Some((self.ready.as_fd(), PollFlags::IN));
        }
        let out = if inner.is_waiting() { PollFlags::OUT } else { PollFlags::empty() };
        Some((self.socket.as_fd(), wanted | out))
    }

    fn wakes(&self) -> bool {
        true
    }

    fn settled(&self) -> io::Result<bool> {
        let mut inner = self.inner.borrow_mut();
        inner.push(&self.socket);
        match &inner.stuck {
            Some(why) => Err(io::Error::other(why.clone())),
            None => Ok(!inner.is_waiting()),
        }
    }

    fn silent_ms(&self) -> Option<u64> {
        crate::os::silent_ms(self.socket.as_fd())
    }

    fn flow(&self) -> Flow {
        self.socket.flow()
    }
}

impl Drop for TlsStream {
    /// Says goodbye, without which the peer takes the connection for cut. Bytes that came and were not read would make the
    /// kernel reset the connection, and what this side sent last might be lost with it.
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        inner.push(&self.socket);
        inner.tls.send_close_notify();
        inner.push(&self.socket);
        let (mut left, mut bytes) = (DISCARD_MOST, [0; 16 << 10]);
        while left > 0 {
            match Wire(&self.socket).read(&mut bytes) {
                Ok(count) if count > 0 => left = left.saturating_sub(count),
                _ => break,
            }
        }
    }
}

/// What an error of the record layer means to who reads it.
fn in_words(error: &rustls::Error) -> String {
    match error {
        rustls::Error::DecryptError => {
            "bytes were changed on the way: a TLS record does not authenticate; look at what stands between the hosts, \
             and at memory and adapters"
                .to_owned()
        }
        rustls::Error::AlertReceived(alert) => {
            format!("the peer ended the TLS connection: it says {alert:?}")
        }
        other => format!("what came is no TLS record of this connection: {other}"),
    }
}

/// A socket that does not block, and raises no signal when the peer is gone.
struct Wire<'a>(&'a TcpStream);

impl Read for Wire<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::net::recv(self.0, &mut *room, RecvFlags::DONTWAIT) {
                Ok((got, _)) => return Ok(got),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        rooms.iter_mut().find(|room| !room.is_empty()).map_or(Ok(0), |room| self.read(room))
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            let mut none = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(self.0, parts, &mut none, flags) {
                Ok(sent) => return Ok(sent),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
