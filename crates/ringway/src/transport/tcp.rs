//! TCP: sockets as the streams of a link.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use super::LinkDescription;
use super::framed::stream::{Arrival, Stream};
use super::framed::{AHEAD, FramedLink};
use crate::plan::types::Rank;
use crate::recorder::Flow;

/// A link over sockets.
pub(crate) type TcpLink = FramedLink<TcpStream>;

/// A link over authenticated connections, in the same order on both sides.
pub(crate) fn link(
    peer: Rank,
    streams: Vec<TcpStream>,
    description: LinkDescription,
) -> io::Result<TcpLink> {
    for stream in &streams {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    Ok(FramedLink::over(peer, streams, AHEAD, description))
}

impl Stream for TcpStream {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut none = SendAncillaryBuffer::default();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(self, parts, &mut none, flags) {
            Ok(sent) => Ok(sent),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    fn receive(&self, room: &mut [u8]) -> Arrival {
        match rustix::net::recv(self, room, RecvFlags::DONTWAIT).map(|got| got.0) {
            Ok(0) => Arrival::End("the peer closed the connection".to_owned()),
            Ok(got) => Arrival::Bytes(got),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Arrival::Nothing,
            Err(e) => Arrival::End(e.to_string()),
        }
    }

    fn interest(&self, wanted: PollFlags) -> Option<(BorrowedFd<'_>, PollFlags)> {
        Some((self.as_fd(), wanted))
    }

    fn wakes(&self) -> bool {
        true
    }

    fn silent_ms(&self) -> Option<u64> {
        crate::os::silent_ms(self.as_fd())
    }

    fn flow(&self) -> Flow {
        let said = crate::os::tcp_flow(self.as_fd()).unwrap_or_default();
        Flow { arrived: said.acknowledged, busy_us: said.busy_us, retries: said.sent_again }
    }
}
