//! The bytes under a connection: a socket, queue pairs, or the simulator's model of a socket.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

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
