//! Connections of the control thread: what it asks of them, and what it keeps for each.
//!
//! *Invariant*: nothing here waits. What a slow neighbour does not take is queued up to
//! [`QUEUE_BYTES_MAX`]; past that its link is given up.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::board::Board;
use super::message::{Message, Report};
use crate::plan::types::Rank;

/// Bytes that may wait for one neighbour.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Bytes that wait for a neighbour which does not read.
const CLOGGED_BYTES: usize = 64 << 10;
/// Frames taken from one neighbour before the others have their turn.
const FRAMES_PER_TURN: usize = 1024;

/// An authenticated, ordered connection to a neighbour that carries whole frames.
pub trait ControlLink: Send {
    /// What to poll for readability and writability.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// Sends one frame without waiting. The link may keep the rest of a partly written frame and
    /// send it by and by (see [`ControlLink::flush`]).
    ///
    /// # Errors
    /// `WouldBlock`: nothing of this frame was taken; it will be offered again. Any other error:
    /// the connection is lost.
    fn send(&mut self, frame: &[u8]) -> io::Result<()>;

    /// Sends more of what the link kept; `true` when it keeps nothing.
    ///
    /// # Errors
    /// The connection is lost.
    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// The next whole frame; `None` if there is none yet. Does not wait.
    ///
    /// # Errors
    /// The connection is lost (`UnexpectedEof` when the other end closed it).
    fn try_receive(&mut self) -> io::Result<Option<Vec<u8>>>;
}

/// Something else the control thread listens to, so that a rank that computes still answers.
pub trait Acceptor: Send {
    /// What to poll for readability.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// It is readable. Must not wait, and must take what is there: otherwise it is called again
    /// and again.
    fn ready(&mut self);
}

/// A neighbour's connection, with what it has not taken yet.
pub(super) struct Line {
    pub(super) rank: Rank,
    pub(super) link: Box<dyn ControlLink>,
    queue: VecDeque<Arc<[u8]>>,
    queued_bytes: usize,
    /// The link keeps a part of a frame.
    halfway: bool,
    /// The link may hold frames of its own that `poll` knows nothing of.
    pub(super) backlog: bool,
    /// It said goodbye: its end is no death.
    pub(super) polite: bool,
}

impl Line {
    pub(super) fn new(rank: Rank, link: Box<dyn ControlLink>) -> Self {
        Self {
            rank,
            link,
            queue: VecDeque::new(),
            queued_bytes: 0,
            halfway: false,
            backlog: false,
            polite: false,
        }
    }

    /// Nothing waits to be written.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.halfway
    }

    /// So much waits to be written that what is not needed is better left out.
    pub(super) fn is_clogged(&self) -> bool {
        self.queued_bytes > CLOGGED_BYTES
    }

    /// Sends a frame, now or as soon as the neighbour takes it.
    pub(super) fn push(&mut self, frame: Arc<[u8]>) -> io::Result<()> {
        self.queued_bytes += frame.len();
        self.queue.push_back(frame);
        if self.queued_bytes > QUEUE_BYTES_MAX {
            return Err(io::Error::other("the neighbour does not read its control messages"));
        }
        self.write()
    }

    /// Sends as much as the neighbour takes.
    pub(super) fn write(&mut self) -> io::Result<()> {
        self.halfway = !self.link.flush()?;
        while let Some(frame) = self.queue.front() {
            match self.link.send(frame) {
                Ok(()) => self.queued_bytes -= frame.len(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.halfway = !self.link.flush()?;
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
            self.queue.pop_front();
        }
        self.halfway = !self.link.flush()?;
        Ok(())
    }

    /// Takes what a neighbour sent, one turn's worth at most.
    pub(super) fn receive(&mut self, board: &mut Board, now: u64) -> io::Result<()> {
        self.backlog = false;
        for taken in 0..FRAMES_PER_TURN {
            let Some(frame) = self.link.try_receive()? else {
                if taken > 0 {
                    self.acknowledge();
                }
                return Ok(());
            };
            match Message::decode(&frame) {
                Ok(message) => {
                    self.polite |= message == Message::Goodbye { rank: self.rank };
                    board.receive(self.rank, message, now);
                }
                Err(error) => {
                    board.local(
                        Report::LinkBroken { peer: self.rank, cause: error.to_string() },
                        now,
                    );
                }
            }
        }
        self.backlog = true;
        Ok(())
    }

    /// Has the kernel acknowledge at once what was taken: whoever leaves waits until its last words have arrived, and the kernel
    /// would else let it wait for 40 ms.
    fn acknowledge(&self) {
        // Links of tests are no TCP connections.
        let _not_tcp = rustix::net::sockopt::set_tcp_quickack(self.link.as_fd(), true);
    }
}
