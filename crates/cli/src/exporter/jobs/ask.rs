//! Asking many Unix sockets for their metrics, side by side, within one limit.
//!
//! *Invariant*: it neither waits longer than the limit nor takes more than a bounded answer from anyone.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Longest answer: a communicator of a thousand ranks takes about 200 KiB.
const ANSWER_BYTES_MOST: usize = 8 << 20;

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// What one of them said.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    /// Its metrics.
    Text(String),
    /// Nobody is behind the socket any more.
    Gone,
    /// It did not answer, and why.
    Failed(String),
}

/// Asks all of them.
pub(crate) fn all(paths: &[PathBuf], patience: Duration) -> Vec<Answer> {
    let until = Instant::now() + patience;
    let mut open: Vec<Result<(UnixStream, Vec<u8>), Answer>> =
        paths.iter().map(|path| begin(path).map(|stream| (stream, Vec::new()))).collect();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let waiting: Vec<usize> =
            open.iter().enumerate().filter(|(_, one)| one.is_ok()).map(|(at, _)| at).collect();
        if waiting.is_empty() || left.is_zero() {
            break;
        }
        let mut fds: Vec<PollFd<'_>> = open
            .iter()
            .flatten()
            .map(|(stream, _)| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN))
            .collect();
        let wait = Timespec::try_from(left).ok();
        if !matches!(rustix::event::poll(&mut fds, wait.as_ref()), Ok(_) | Err(Errno::INTR)) {
            break;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (at, _) in waiting.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            if let Ok((stream, said)) = &mut open[at]
                && let Some(answer) = more(stream, said)
            {
                open[at] = Err(answer);
            }
        }
    }
    let late = || Answer::Failed(format!("no whole answer within {} ms", patience.as_millis()));
    open.into_iter().map(|one| one.err().unwrap_or_else(late)).collect()
}

/// Connects, without waiting for room in its queue, and asks.
fn begin(path: &Path) -> Result<UnixStream, Answer> {
    let connect = || -> Result<UnixStream, Errno> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &address)?;
        Ok(UnixStream::from(socket))
    };
    let mut stream = connect().map_err(|error| match error {
        Errno::CONNREFUSED | Errno::NOENT => Answer::Gone,
        Errno::AGAIN => Answer::Failed("it lets nobody in".to_owned()),
        error => Answer::Failed(error.to_string()),
    })?;
    stream.write_all(REQUEST).map_err(|error| Answer::Failed(error.to_string()))?;
    Ok(stream)
}

/// Reads what is there; the answer once it has ended.
fn more(stream: &mut UnixStream, said: &mut Vec<u8>) -> Option<Answer> {
    let mut room = [0; 16 << 10];
    loop {
        match stream.read(&mut room) {
            Ok(0) => return Some(parsed(said)),
            Ok(got) => said.extend_from_slice(&room[..got]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => return Some(Answer::Failed(error.to_string())),
        }
        if said.len() > ANSWER_BYTES_MOST {
            let why = format!("its answer is longer than {} MiB", ANSWER_BYTES_MOST >> 20);
            return Some(Answer::Failed(why));
        }
    }
}

/// The body of a whole answer.
fn parsed(said: &[u8]) -> Answer {
    let failed = |why: &str| Answer::Failed(why.to_owned());
    let Ok(text) = std::str::from_utf8(said) else { return failed("its answer is no text") };
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return failed("its answer is cut short");
    };
    if !head.starts_with("HTTP/1.1 200 ") {
        return failed("it has no metrics");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    if length.and_then(|length| length.parse().ok()) != Some(body.len()) {
        return failed("its answer is cut short");
    }
    Answer::Text(body.to_owned())
}
