//! The bytes under a connection: a socket, or the simulator's model of one.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

/// A stream of bytes that never blocks.
pub(crate) trait Stream: Send + std::fmt::Debug {
    /// Sends what goes out now, of all parts in their order; 0 when nothing does.
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Receives what is there.
    fn receive(&self, room: &mut [u8]) -> Arrival;

    /// What to sleep on.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// What a read brought.
#[derive(Debug)]
pub(crate) enum Arrival {
    Bytes(usize),
    Nothing,
    End(String),
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

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}
