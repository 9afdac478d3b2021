//! The bytes under a connection: a socket, queue pairs, or the simulator's model of a socket.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;

/// A stream of bytes that never blocks.
pub(crate) trait Stream: Send + std::fmt::Debug {
    /// Sends what goes out now, of all parts in their order; 0 when nothing does.
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Receives what is there.
    fn receive(&self, room: &mut [u8]) -> Arrival;

    /// What to sleep on until bytes come or there is room, as wanted; asked right before the sleep.
    fn interest(&self, wanted: PollFlags) -> Option<(BorrowedFd<'_>, PollFlags)>;

    /// Whether there is something to sleep on.
    fn wakes(&self) -> bool;

    /// Whether what was sent reaches the peer also if nobody looks after it any more; an error where it will not.
    fn settled(&self) -> io::Result<bool> {
        Ok(true)
    }
}

/// What a read brought.
#[derive(Debug)]
pub(crate) enum Arrival {
    Bytes(usize),
    Nothing,
    End(String),
}
