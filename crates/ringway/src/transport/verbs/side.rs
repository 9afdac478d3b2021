//! The socket beside the queue pairs: words out, words in, never waiting.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::wire::{Reader, Word};

/// Bytes that wait to be sent, at most, before more messages wait in their slots.
const WAITING_MOST: usize = 256 << 10;

/// How long the last completions may come behind the end of the socket.
const BEHIND: Duration = Duration::from_millis(2);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Side {
    socket: TcpStream,
    to_say: VecDeque<u8>,
    reader: Reader,
    /// When and how it ended.
    ended: Option<(Instant, String)>,
    /// Whether it is watched for room.
    watched: bool,
}

impl Side {
    pub(super) fn new(socket: TcpStream, poller: BorrowedFd<'_>) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(poller, socket.as_fd(), data, epoll::EventFlags::IN)?;
        let (to_say, reader) = (VecDeque::new(), Reader::default());
        Ok(Self { socket, to_say, reader, ended: None, watched: false })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn say(&mut self, word: &Word) {
        self.to_say.extend(word.encode());
        self.flush();
    }

    /// Sends what goes out now.
    pub(super) fn flush(&mut self) {
        while self.ended.is_none() && !self.to_say.is_empty() {
            match self.socket.write(self.to_say.as_slices().0) {
                Ok(0) => return,
                Ok(count) => {
                    self.to_say.drain(..count);
                }
                Err(error) => return self.note(&error),
            }
        }
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.to_say.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.to_say.len() > WAITING_MOST
    }

    /// The next word, if one has come.
    ///
    /// # Errors
    /// When it is none, or none will come any more.
    pub(super) fn hear(&mut self) -> Result<Option<Word>, String> {
        let mut room = [0; 16 << 10];
        loop {
            if let Some(word) = self.reader.next()? {
                return Ok(Some(word));
            }
            if let Some((since, why)) = &self.ended {
                let over = since.elapsed() > BEHIND;
                return if over { Err(why.clone()) } else { Ok(None) };
            }
            match self.socket.read(&mut room) {
                Ok(0) => {
                    let why = "the peer closed the connection".to_owned();
                    self.ended = Some((Instant::now(), why));
                }
                Ok(got) => self.reader.feed(&room[..got]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => self.note(&error),
            }
        }
    }

    /// Whether it has ended, and nobody has been told yet.
    pub(super) fn is_ending(&self) -> bool {
        self.ended.is_some()
    }

    fn note(&mut self, error: &io::Error) {
        if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
            self.ended.get_or_insert_with(|| (Instant::now(), error.to_string()));
        }
    }

    /// Says no more; what was said is sent all the same.
    pub(super) fn close(&mut self) {
        self.flush();
        let _closed_already = self.socket.shutdown(std::net::Shutdown::Write);
    }

    /// Takes what still comes until the peer has closed too: a socket that is closed with something unread resets, and
    /// what the peer has not read yet is lost. Whether that is so.
    pub(super) fn discard(&mut self) -> bool {
        let mut room = [0; 16 << 10];
        loop {
            match self.socket.read(&mut room) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Whoever sleeps is woken also when there is room for what waits.
    pub(super) fn arm(&mut self, poller: BorrowedFd<'_>) {
        let wanted = !self.to_say.is_empty();
        if wanted != self.watched {
            let out = if wanted { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let data = epoll::EventData::new_u64(0);
            let flags = epoll::EventFlags::IN | out;
            // Where it cannot be watched the sleep is short anyway.
            let _slower = epoll::modify(poller, self.socket.as_fd(), data, flags);
            self.watched = wanted;
        }
    }
}
