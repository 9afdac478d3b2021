//! Where questions come in: a Unix socket of its own for every communicator of a process, named so that
//! it is found without asking anybody, and the other end of it.
//!
//! The socket is in the abstract namespace: no file is left, and it is gone with the process. Only
//! the user whose job it is, and root, are answered. Who connects has asked; the answer is one line
//! of JSON, then the connection ends.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::board::Board;
use super::inquiry::Standing;
use crate::error::{Error, Result};
use crate::os;
use crate::plan::types::Rank;

/// How the names of all such sockets begin.
const PREFIX: &str = "ringway-ask-";
/// Who may wait at once; others are sent away.
const ASKERS_MOST: usize = 16;
/// How long one who asked may take to read its answer.
const PATIENCE_MS: u64 = 10_000;
/// How long nobody is let in where that failed.
const REST_MS: u64 = 100;
/// Longest answer that is read: a hundred thousand ranks.
const ANSWER_BYTES_MOST: u64 = 64 << 20;

/// The end of the communicator: those who ask.
#[derive(Debug)]
pub struct Askers {
    listener: UnixListener,
    waiting: Vec<Asker>,
    /// Until when nobody is let in.
    rest_until: Option<u64>,
}

/// One that asked.
#[derive(Debug)]
struct Asker {
    stream: UnixStream,
    inquiry: u64,
    since: u64,
    /// What it is told, once that is known, and how much of it has been sent.
    answer: Option<Vec<u8>>,
    sent: usize,
}

impl Askers {
    /// Lets others ask about `communicator`, of which this process is `rank`.
    ///
    /// # Errors
    /// When the system has no socket for it.
    pub fn open(communicator: u64, rank: Rank) -> Result<Self> {
        let failed = |e| Error::system("cannot listen for questions (ringway why)", e);
        let name = name(communicator, rank, std::process::id());
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        let listener = UnixListener::bind_addr(&address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, waiting: Vec::new(), rest_until: None })
    }

    /// What to poll, and for what.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let open = if self.rest_until.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let listener = std::iter::once((self.listener.as_fd(), open));
        listener.chain(self.waiting.iter().map(|asker| {
            let flags = if asker.answer.is_some() { PollFlags::OUT } else { PollFlags::empty() };
            (asker.stream.as_fd(), flags)
        }))
    }

    /// Lets in who has come, answers who can be answered, and forgets who is done.
    pub(super) fn serve(&mut self, board: &mut Board, now: u64) {
        self.rest_until = self.rest_until.filter(|until| now < *until);
        // Not more at a time: there is always more to do than to send strangers away.
        for _ in 0..ASKERS_MOST {
            if self.rest_until.is_some() {
                break;
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream, board, now),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // No descriptors are left, perhaps: who waits at the door would wake us again and again.
                Err(_) => self.rest_until = Some(now + REST_MS),
            }
        }
        self.waiting.retain_mut(|asker| asker.goes_on(board, now));
    }

    fn admit(&mut self, stream: UnixStream, board: &mut Board, now: u64) {
        let welcome = os::peer_user(stream.as_fd()).is_some_and(is_trusted);
        if !welcome || self.waiting.len() >= ASKERS_MOST || stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut asker = Asker { stream, inquiry: 0, since: now, answer: None, sent: 0 };
        if !asker.has_left() {
            asker.inquiry = board.ask(now);
            self.waiting.push(asker);
        }
    }

    /// When there is something to do next.
    pub(super) fn next_answer(&self, board: &Board) -> Option<u64> {
        let due = self.waiting.iter().filter_map(|asker| match &asker.answer {
            Some(_) => Some(asker.since + PATIENCE_MS),
            None => board.answer_due(asker.inquiry),
        });
        due.chain(self.rest_until).min()
    }
}

/// Whether a user is told, or believed: our own, and root.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

impl Asker {
    /// Nobody who asks says anything: what there is to read is the end.
    fn has_left(&self) -> bool {
        let said = rustix::net::recv(&self.stream, &mut [0_u8; 1][..], RecvFlags::DONTWAIT);
        matches!(said, Ok((0, _)))
    }

    /// Answers, or sends more of the answer; whether there is more to do.
    fn goes_on(&mut self, board: &Board, now: u64) -> bool {
        if self.answer.is_none() {
            // Too many questions: this one is forgotten, and its asker is sent away.
            let Some(due) = board.answer_due(self.inquiry) else { return false };
            if now < due {
                return !self.has_left();
            }
            let answer = board.answer(self.inquiry);
            self.answer = Some(serde_json::to_vec(&answer).unwrap_or_default());
        }
        let answer = self.answer.as_deref().unwrap_or_default();
        while self.sent < answer.len() {
            match rustix::net::send(&self.stream, &answer[self.sent..], SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(error) => return error == Errno::AGAIN && now < self.since + PATIENCE_MS,
            }
        }
        false
    }
}

fn name(communicator: u64, rank: Rank, pid: u32) -> String {
    format!("{PREFIX}{communicator:016x}-{rank}-{pid}")
}

/// Connects without waiting: where many others wait already, nobody answers.
fn connect(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A communicator of some process on this host that can be asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Askable {
    /// The communicator.
    pub communicator: u64,
    /// The rank that would be asked.
    pub rank: Rank,
    /// Its process, by the number it has for itself.
    pub pid: u32,
    /// The network namespace it is in, if another than this process's.
    network: Option<PathBuf>,
}

impl Askable {
    fn connect(&self) -> io::Result<UnixStream> {
        let name = name(self.communicator, self.rank, self.pid);
        let Some(network) = &self.network else { return connect(&name) };
        // A thread of its own goes there, and does not come back.
        let enter = || {
            let network = std::fs::File::open(network)?;
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(network.as_fd(), kind)?;
            connect(&name)
        };
        std::thread::scope(|scope| scope.spawn(enter).join())
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    }

    /// Asks. Works while the job hangs; takes a second or two where ranks do not answer.
    ///
    /// # Errors
    /// When the process is gone, belongs to another user, or does not answer within `limit`: it is
    /// stopped then. Another rank of the communicator may still know more.
    pub fn ask(&self, limit: Duration) -> Result<Standing> {
        let failed = |e: io::Error| {
            let who = format!("rank {} of communicator {:016x}", self.rank, self.communicator);
            match e.kind() {
                io::ErrorKind::WouldBlock => Error::system(
                    "asking a rank",
                    format!("{who} does not answer: its process is stopped or gets no processor"),
                ),
                io::ErrorKind::UnexpectedEof => Error::system(
                    "asking a rank",
                    format!(
                        "{who} sends us away: only its user and root are answered, not many at once"
                    ),
                ),
                _ => Error::system("asking a rank", format!("{who}: {e}")),
            }
        };
        let mut stream = self.connect().map_err(failed)?;
        // Anybody can make a socket of that name.
        let user = os::peer_user(stream.as_fd());
        if !user.is_some_and(|user| is_trusted(user) || rustix::process::geteuid().is_root()) {
            return Err(failed(io::Error::other("another user's")));
        }
        let until = Instant::now() + limit;
        let mut answer = Vec::new();
        let mut piece = [0; 16 << 10];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(io::ErrorKind::WouldBlock.into()));
            }
            stream.set_read_timeout(Some(left)).map_err(failed)?;
            match stream.read(&mut piece) {
                Ok(0) if answer.is_empty() => {
                    return Err(failed(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(0) => break,
                Ok(_) if answer.len() as u64 > ANSWER_BYTES_MOST => {
                    return Err(failed(io::Error::other("an endless answer")));
                }
                Ok(count) => answer.extend_from_slice(&piece[..count]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(e)),
            }
        }
        serde_json::from_slice(&answer).map_err(|e| failed(io::Error::other(e)))
    }
}

/// All communicators on this host that can be asked, each rank of each, in order. Those in other network
/// namespaces (containers) are among them where this process may see and enter these.
#[must_use]
pub fn askable() -> Vec<Askable> {
    let own = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let list = |path: &Path| std::fs::read(path).unwrap_or_default();
    let mut found = parse(&list(Path::new("/proc/self/net/unix")), None);
    let mut seen = BTreeSet::from([own]);
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        let network = entry.path().join("ns/net");
        let link = is_process.then(|| std::fs::read_link(&network).ok()).flatten();
        if link.is_some_and(|link| seen.insert(link)) {
            found.extend(parse(&list(&entry.path().join("net/unix")), Some(&network)));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The ranks that are named in a list of Unix sockets, as `/proc/net/unix` is one.
fn parse(sockets: &[u8], network: Option<&Path>) -> Vec<Askable> {
    let sockets = String::from_utf8_lossy(sockets);
    let found = sockets.lines().filter_map(|line| {
        let (_, name) = line.rsplit_once('@')?;
        let mut words = name.strip_prefix(PREFIX)?.split('-');
        let communicator = u64::from_str_radix(words.next()?, 16).ok()?;
        let (rank, pid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Askable { communicator, rank, pid, network: network.map(Path::to_path_buf) })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_their_names() {
        let list = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 21035 /run/dbus/system_bus_socket
0000000000000000: 00000002 00000000 00010000 0001 01 21036 @ringway-ask-00000000000000ff-10-77
0000000000000000: 00000003 00000000 00000000 0001 03 21037 @ringway-ask-00000000000000ff-10-77
0000000000000000: 00000002 00000000 00010000 0001 01 21038 @ringway-ask-00000000000000ff-2-78
0000000000000000: 00000002 00000000 00010000 0001 01 21039 @ringway-00000000000000ff-2
0000000000000000: 00000002 00000000 00010000 0001 01 21040 @ringway-ask-nonsense
0000000000000000: 00000002 00000000 00010000 0001 01 21041";
        let found: Vec<_> = parse(list.as_bytes(), None)
            .into_iter()
            .map(|one| (one.communicator, one.rank, one.pid))
            .collect();
        assert_eq!(found, [(255, 10, 77), (255, 10, 77), (255, 2, 78)]);
        assert!(parse(b"\xff\xfe@ringway-ask-1-2-\xff", None).is_empty());
    }
}
