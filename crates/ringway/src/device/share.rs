//! Memory that the driver passes to other processes as descriptors (cuMem): a rank's door, and asking at others'.
//!
//! ```text
//! a handle in a rank's book, in the place of the driver's
//! ┌──────┬──────────────┬────────┬──────┬───────┐
//! │ mark │ door's name  │ secret │ area │ bytes │        asker ──► door: secret, area
//! │ 16   │ 16           │ 16     │ 8    │ 8     │        door ──► asker: how many segments, or 0 and why not
//! └──────┴──────────────┴────────┴──────┴───────┘                       then of each its bytes, with a descriptor
//! ```
//!
//! A descriptor is made when a peer asks. It asks from a launch that uses the buffer, so the memory is there; and
//! nothing here keeps memory that its owner gives back. Whether peers get through at all is tried when ranks meet,
//! by memory of ours (`Trial`): a socket may be out of reach, and the driver may refuse, or give numbers that do not tell
//! memory from what was at its address before.
//!
//! *Invariants:* who does not know the secret gets nothing; no wait at a door depends on another door, so that
//! ranks may ask each other; an area is never used for other memory than at first.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};
use rustix::time::Timespec;

use super::Fault;
use super::gpu::{Gpu, Mapped, Segment};
use crate::ffi::cuda::{IPC_BYTES, IpcHandle};
use crate::plan::types::Rank;

/// How a handle of ours begins; the driver's are random enough.
const MARK: [u8; 16] = *b"ringway segments";
/// How long asking may take, and how long a door listens to one who asks.
const PATIENCE: Duration = Duration::from_secs(5);
const ATTENTION: Duration = Duration::from_millis(500);
/// Segments and bytes of a refusal that are believed.
const SEGMENTS_MOST: u64 = 1 << 16;
const REFUSAL_BYTES: u64 = 1 << 12;

/// What a handle of ours says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    door: [u8; 16],
    secret: [u8; 16],
    area: u64,
    bytes: u64,
}

impl Ticket {
    fn handle(&self) -> IpcHandle {
        let mut bytes = [0; IPC_BYTES];
        bytes[..16].copy_from_slice(&MARK);
        bytes[16..32].copy_from_slice(&self.door);
        bytes[32..48].copy_from_slice(&self.secret);
        bytes[48..56].copy_from_slice(&self.area.to_le_bytes());
        bytes[56..].copy_from_slice(&self.bytes.to_le_bytes());
        IpcHandle(bytes)
    }

    /// Nothing for a handle of the driver's.
    pub(super) fn read(handle: &IpcHandle) -> Option<Self> {
        let (mark, rest) = handle.0.split_first_chunk::<16>()?;
        let (door, rest) = rest.split_first_chunk::<16>()?;
        let (secret, rest) = rest.split_first_chunk::<16>()?;
        let (area, rest) = rest.split_first_chunk::<8>()?;
        let (bytes, _) = rest.split_first_chunk::<8>()?;
        (*mark == MARK).then_some(Self {
            door: *door,
            secret: *secret,
            area: u64::from_le_bytes(*area),
            bytes: u64::from_le_bytes(*bytes),
        })
    }

    /// Maps what it stands for.
    pub(super) fn open(&self, gpu: &Arc<Gpu>, directory: Option<&Path>) -> Result<Mapped, Fault> {
        let parts = self.ask(directory).map_err(|error| {
            Fault::Other(format!("memory of another process could not be had: {error}"))
        })?;
        gpu.map(&parts)
    }

    /// The descriptors of its segments, with their bytes.
    fn ask(&self, directory: Option<&Path>) -> std::io::Result<Vec<(OwnedFd, usize)>> {
        let (address, _) = address(&self.door, directory)?;
        let end = Instant::now() + PATIENCE;
        let mut stream = loop {
            match UnixStream::connect_addr(&address) {
                Ok(stream) => break stream,
                // Many ask at once.
                Err(error)
                    if error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < end =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => {
                    let text = "its Unix socket is not reachable from here (another network \
                                namespace? set RINGWAY_SHM_DIR to a shared directory)";
                    return Err(std::io::Error::new(error.kind(), format!("{text}: {error}")));
                }
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut question = [0; 24];
        question[..16].copy_from_slice(&self.secret);
        question[16..].copy_from_slice(&self.area.to_le_bytes());
        stream.write_all(&question)?;
        let mut word = [0; 8];
        stream.read_exact(&mut word)?;
        let count = u64::from_le_bytes(word);
        if count == 0 || count > SEGMENTS_MOST {
            let mut why = Vec::new();
            stream.take(REFUSAL_BYTES).read_to_end(&mut why)?;
            return Err(std::io::Error::other(String::from_utf8_lossy(&why).into_owned()));
        }
        let parts: Vec<_> = (0..count).map(|_| receive(&stream)).collect::<Result<_, _>>()?;
        let whole = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.1 as u64));
        if whole != Some(self.bytes) {
            return Err(std::io::Error::other("it is not as long as its owner said"));
        }
        Ok(parts)
    }
}

/// A descriptor and its bytes.
fn receive(stream: &UnixStream) -> std::io::Result<(OwnedFd, usize)> {
    let mut word = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // With a timeout set, a process that was stopped and goes on is told that it was interrupted.
    let got = retry_on_intr(|| {
        let mut word = [IoSliceMut::new(&mut word)];
        rustix::net::recvmsg(stream, &mut word, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match (descriptor, usize::try_from(u64::from_le_bytes(word))) {
        (Some(descriptor), Ok(bytes)) if got.bytes == word.len() => Ok((descriptor, bytes)),
        _ => Err(std::io::Error::other("no descriptor came (raise ulimit -n?)")),
    }
}

fn address(
    name: &[u8; 16],
    directory: Option<&Path>,
) -> std::io::Result<(SocketAddr, Option<PathBuf>)> {
    // Begins as the doors of shared memory do, whose sweep removes what the killed left in a directory.
    let name = format!("ringway-gpu-{:032x}", u128::from_le_bytes(*name));
    match directory {
        None => Ok((SocketAddr::from_abstract_name(name)?, None)),
        Some(directory) => {
            let path = directory.join(name);
            Ok((SocketAddr::from_pathname(&path)?, Some(path)))
        }
    }
}

/// What the thread and the rank both use.
#[derive(Debug)]
struct Door {
    gpu: Arc<Gpu>,
    listener: UnixListener,
    name: [u8; 16],
    secret: [u8; 16],
    areas: Mutex<Vec<Vec<Segment>>>,
    closing: AtomicBool,
}

/// A rank's door: a thread that gives descriptors to those who know the secret.
#[derive(Debug)]
pub(super) struct Share {
    door: Arc<Door>,
    path: Option<PathBuf>,
    thread: Option<JoinHandle<()>>,
}

impl Share {
    fn open(gpu: &Arc<Gpu>, directory: Option<&Path>, rank: Rank) -> Result<Self, Fault> {
        let fail = |error: std::io::Error| {
            Fault::Other(format!("cannot listen for ranks that map GPU memory: {error}"))
        };
        let (name, secret) = (random().map_err(fail)?, random().map_err(fail)?);
        let (address, path) = address(&name, directory).map_err(fail)?;
        let listener = UnixListener::bind_addr(&address).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let door = Arc::new(Door {
            gpu: Arc::clone(gpu),
            listener,
            name,
            secret,
            areas: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let mut share = Self { door: Arc::clone(&door), path, thread: None };
        let thread = std::thread::Builder::new()
            .name(format!("ringway-gpu-{rank}-m"))
            .spawn(move || door.serve())
            .map_err(fail)?;
        share.thread = Some(thread);
        Ok(share)
    }

    /// A handle for segments that lie one behind the other.
    pub(super) fn add(&self, segments: Vec<Segment>) -> IpcHandle {
        let bytes = segments.iter().map(|segment| segment.bytes as u64).sum();
        let mut areas = self.door.areas.lock().unwrap_or_else(PoisonError::into_inner);
        areas.push(segments);
        let area = areas.len() as u64 - 1;
        Ticket { door: self.door.name, secret: self.door.secret, area, bytes }.handle()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.door.closing.store(true, Ordering::Release);
        // Wakes the thread.
        let _woken = rustix::net::shutdown(&self.door.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic is in the log already, and there is nothing left to stop.
            let _ended = thread.join();
        }
        if let Some(path) = &self.path {
            let _absent = std::fs::remove_file(path);
        }
    }
}

impl Door {
    fn serve(&self) {
        while !self.closing.load(Ordering::Acquire) {
            let mut wanted = [PollFd::new(&self.listener, PollFlags::IN)];
            // Closing the door ends this at once; looking again costs nothing.
            let pause = Timespec { tv_sec: 1, tv_nsec: 0 };
            let _ready = rustix::event::poll(&mut wanted, Some(&pause));
            match self.listener.accept() {
                // A stranger, or a rank that gave up, is its own problem.
                Ok((mut stream, _)) => drop(self.admit(&mut stream)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                // Too many open files, perhaps: it passes, or the rank that asks gives up.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn admit(&self, stream: &mut UnixStream) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ATTENTION))?;
        stream.set_write_timeout(Some(ATTENTION))?;
        let mut question = [0; 24];
        stream.read_exact(&mut question)?;
        let (secret, area) = question.split_at(16);
        // In time that does not depend on how much of it is right.
        let differs = secret.iter().zip(&self.secret).fold(0, |sum, (a, b)| sum | (a ^ b));
        if differs != 0 {
            return Err(std::io::ErrorKind::PermissionDenied.into());
        }
        let area = area.try_into().map_or(u64::MAX, u64::from_le_bytes);
        match self.descriptors(area) {
            Ok(parts) => {
                stream.write_all(&(parts.len() as u64).to_le_bytes())?;
                parts.iter().try_for_each(|(descriptor, bytes)| send(stream, descriptor, *bytes))
            }
            Err(fault) => {
                stream.write_all(&0_u64.to_le_bytes())?;
                stream.write_all(fault.to_string().as_bytes())
            }
        }
    }

    /// Descriptors of an area's segments, made now.
    fn descriptors(&self, area: u64) -> Result<Vec<(OwnedFd, usize)>, Fault> {
        let segments = {
            let areas = self.areas.lock().unwrap_or_else(PoisonError::into_inner);
            let found = usize::try_from(area).ok().and_then(|area| areas.get(area));
            found.cloned().ok_or_else(|| Fault::Other(format!("there is no area {area}")))?
        };
        let start = segments.first().map_or(0, |first| first.base);
        let bytes = segments.iter().map(|segment| segment.bytes).sum();
        if self.gpu.segments(start, bytes)? != segments {
            return Err(Fault::Other(format!(
                "the memory at {start:#x} was given back while a call used it"
            )));
        }
        let part = |one: &Segment| Ok((self.gpu.descriptor(one.base)?, one.bytes));
        segments.iter().map(part).collect()
    }
}

fn send(stream: &UnixStream, descriptor: &OwnedFd, bytes: usize) -> std::io::Result<()> {
    let word = (bytes as u64).to_le_bytes();
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    retry_on_intr(|| {
        let word = [IoSlice::new(&word)];
        rustix::net::sendmsg(stream, &word, &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

fn random() -> std::io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
        16 => Ok(bytes),
        _ => Err(std::io::Error::other("no random numbers")),
    }
}

/// A rank's door, with a little memory behind it that all others try to map before anything depends on it.
#[derive(Debug)]
pub(super) struct Trial {
    share: Share,
    handle: IpcHandle,
    /// Holds the secret.
    _memory: Mapped,
}

impl Trial {
    pub(super) fn begin(
        gpu: &Arc<Gpu>,
        directory: Option<&Path>,
        rank: Rank,
    ) -> Result<Self, Fault> {
        gpu.check_descriptors()?;
        let mut memory = gpu.create_least()?;
        let before = gpu.segments(memory.base(), memory.bytes())?;
        memory.renew()?;
        if gpu.segments(memory.base(), memory.bytes())? == before {
            return Err(Fault::Other(
                "the driver does not tell new memory from what was at its address before"
                    .to_owned(),
            ));
        }
        let share = Share::open(gpu, directory, rank)?;
        gpu.write(memory.base(), &share.door.secret)?;
        let handle = share.add(gpu.segments(memory.base(), memory.bytes())?);
        Ok(Self { share, handle, _memory: memory })
    }

    pub(super) fn handle(&self) -> IpcHandle {
        self.handle
    }

    /// Tries another rank's.
    pub(super) fn attempt(
        gpu: &Arc<Gpu>,
        directory: Option<&Path>,
        handle: &IpcHandle,
    ) -> Result<(), Fault> {
        let unreadable = || Fault::Other("a handle that is none".to_owned());
        let ticket = Ticket::read(handle).ok_or_else(unreadable)?;
        let mapped = ticket.open(gpu, directory)?;
        let mut found = [0; 16];
        gpu.read(&mut found, mapped.base())?;
        if found == ticket.secret {
            return Ok(());
        }
        Err(Fault::Other(
            "memory of another process is mapped, but holds something else".to_owned(),
        ))
    }

    /// The door, once all have tried.
    pub(super) fn end(self) -> Share {
        self.share
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_it_was_written_and_no_other_is() {
        let ticket = Ticket { door: [1; 16], secret: [2; 16], area: 3, bytes: 4 << 40 };
        let handle = ticket.handle();
        assert_eq!(Ticket::read(&handle), Some(ticket));
        assert_eq!(Ticket::read(&IpcHandle([0; IPC_BYTES])), None);
        let mut other = handle;
        other.0[15] ^= 1;
        assert_eq!(Ticket::read(&other), None);
    }

    #[test]
    fn a_door_that_is_not_there_is_an_error_that_says_what_to_do() {
        let ticket = Ticket { door: [9; 16], secret: [2; 16], area: 0, bytes: 1 };
        for directory in [None, Some(Path::new("/no such directory"))] {
            let error = ticket.ask(directory).unwrap_err().to_string();
            assert!(error.contains("RINGWAY_SHM_DIR"), "{error}");
        }
    }

    /// Answers one question with some bytes; ends within a time, whatever comes.
    fn serve_one(listener: &UnixListener, answer: &[u8]) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let end = Instant::now() + PATIENCE;
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read_exact(&mut [0; 24])?;
        stream.write_all(answer)
    }

    fn answered(answer: &'static [u8]) -> std::io::Result<usize> {
        let door = random()?;
        let listener = UnixListener::bind_addr(&address(&door, None)?.0)?;
        let thread = std::thread::spawn(move || serve_one(&listener, answer));
        let ticket = Ticket { door, secret: [2; 16], area: 0, bytes: 8 };
        let got = ticket.ask(None).map(|parts| parts.len());
        thread.join().expect("it does not panic").expect("it was asked");
        got
    }

    #[test]
    fn whatever_a_door_answers_is_memory_or_an_error() {
        let error = answered(b"\0\0\0\0\0\0\0\0it is gone").unwrap_err().to_string();
        assert!(error.contains("it is gone"), "{error}");
        for answer in
            [&b""[..], b"\x01", b"\x01\0\0\0\0\0\0\0", b"\x01\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0"]
        {
            answered(answer).unwrap_err();
        }
        answered(&[0xff; 64]).unwrap_err();
    }
}
