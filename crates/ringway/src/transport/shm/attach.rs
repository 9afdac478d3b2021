//! How co-located ranks find each other's segments.
//!
//! Co-location is tried, never guessed: every rank listens on a Unix socket whose name follows from
//! the communicator, peers with the same boot id connect, prove that they know the job's key, and
//! are passed the segment's memfd and the bell's eventfd. Who does not get through that far is not
//! co-located, with the reason kept.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use sha2::Sha256;

use super::{Bell, Layout, Reach, Segment};
use crate::error::{Error, Result};
use crate::plan::types::Rank;

/// How the names of all doors begin.
const PREFIX: &str = "ringway-";

/// How long one attachment may take: both sides are up when it is tried.
const PATIENCE: Duration = Duration::from_secs(5);

/// A peer's segment, mapped.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) peer: Rank,
    pub(crate) segment: Arc<Segment>,
    pub(crate) bell: Bell,
    /// The way into its memory, or why there is none.
    pub(crate) reach: std::result::Result<Reach, String>,
}

/// Why a peer's segment could not be mapped.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) peer: Rank,
    pub(crate) reason: String,
}

/// Who attaches to whom, and how they meet.
#[derive(Debug)]
pub(crate) struct Meeting<'a> {
    pub(crate) rank: Rank,
    pub(crate) communicator: u64,
    pub(crate) key: &'a [u8],
    /// A directory shared with peers in other network namespaces; without one the abstract
    /// namespace is used, which leaves no file.
    pub(crate) directory: Option<&'a Path>,
    /// Whether ranks may read each other's buffers.
    pub(crate) reads_memory: bool,
}

/// This rank's open door: serves its own segment while the peers attach.
#[derive(Debug)]
pub(crate) struct Door {
    listener: UnixListener,
    path: Option<PathBuf>,
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn address(meeting: &Meeting<'_>, rank: Rank) -> std::io::Result<(SocketAddr, Option<PathBuf>)> {
    let name = format!("{PREFIX}{:016x}-{rank}", meeting.communicator);
    match meeting.directory {
        None => Ok((SocketAddr::from_abstract_name(name)?, None)),
        Some(directory) => {
            let path = directory.join(name);
            Ok((SocketAddr::from_pathname(&path)?, Some(path)))
        }
    }
}

/// Opens this rank's door. Peers may come from now on.
pub(crate) fn open_door(meeting: &Meeting<'_>) -> Result<Door> {
    if meeting.reads_memory {
        crate::os::allow_reading_memory();
    }
    let fail = |e| Error::system("cannot listen for co-located ranks on a Unix socket", e);
    let (address, path) = address(meeting, meeting.rank).map_err(fail)?;
    let listener = match &path {
        None => UnixListener::bind_addr(&address).map_err(fail)?,
        Some(path) => {
            if let Some(directory) = meeting.directory {
                sweep(directory, meeting.communicator);
            }
            // Under its own name it is listened to from the first moment: see `sweep`.
            let unready = path.with_extension("new");
            let _ = std::fs::remove_file(&unready);
            let listener = UnixListener::bind(&unready).map_err(fail)?;
            std::fs::rename(&unready, path).map_err(fail)?;
            listener
        }
    };
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(Door { listener, path })
}

/// Removes what ranks that were killed while they met have left in `directory`: sockets on which
/// nobody listens.
fn sweep(directory: &Path, communicator: u64) {
    let ours = format!("{PREFIX}{communicator:016x}-");
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str() else { continue };
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if !is_socket || !name.starts_with(PREFIX) || name.starts_with(&ours) {
            continue;
        }
        // Not ready is a matter of microseconds; who was killed in them is long gone.
        let new = path.extension().is_some_and(|extension| extension == "new");
        let old = || {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > PATIENCE))
        };
        let refused = || {
            UnixStream::connect(&path)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        if (!new || old()) && refused() {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Attaches to every rank of `peers` while serving this rank's own segment to them. Returns when
/// every peer has been tried and `finished` says that all of them have tried this rank.
pub(crate) fn attach_all(
    meeting: &Meeting<'_>,
    door: Door,
    (layout, descriptor, bell): (Layout, &OwnedFd, &Bell),
    peers: &[Rank],
    finished: impl FnOnce() -> Result<()>,
) -> Result<(Vec<Attached>, Vec<Refused>)> {
    let closing = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(meeting, &door, descriptor, bell, &closing));
        let (mut attached, mut refused) = (Vec::new(), Vec::new());
        for peer in peers {
            match attach(meeting, *peer, layout) {
                Ok(found) => attached.push(found),
                Err(error) => refused.push(Refused { peer: *peer, reason: error.to_string() }),
            }
        }
        let outcome = finished();
        closing.store(true, Ordering::Release);
        server.join().map_err(|_| Error::internal("the segment server panicked"))?;
        outcome.map(|()| (attached, refused))
    })
}

fn proof(meeting: &Meeting<'_>, from: Rank, to: Rank) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(meeting.key).expect("HMAC takes any key length");
    mac.update(b"ringway shared memory");
    for part in [meeting.communicator, u64::from(from), u64::from(to)] {
        mac.update(&part.to_le_bytes());
    }
    mac.finalize().into_bytes().into()
}

fn serve(
    meeting: &Meeting<'_>,
    door: &Door,
    descriptor: &OwnedFd,
    bell: &Bell,
    closing: &AtomicBool,
) {
    while !closing.load(Ordering::Acquire) {
        let mut wanted = [rustix::event::PollFd::new(&door.listener, rustix::event::PollFlags::IN)];
        let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let _ = rustix::event::poll(&mut wanted, Some(&pause));
        while let Ok((mut stream, _)) = door.listener.accept() {
            // A stranger, or a peer that gave up, is its own problem: nothing is owed to it.
            let _ = admit(meeting, &mut stream, descriptor, bell);
        }
    }
}

/// Checks who is there, then passes the descriptors.
fn admit(
    meeting: &Meeting<'_>,
    stream: &mut UnixStream,
    descriptor: &OwnedFd,
    bell: &Bell,
) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    stream.set_write_timeout(Some(Duration::from_millis(500)))?;
    let mut hello = [0; 36];
    stream.read_exact(&mut hello)?;
    let (from, mac) = hello.split_at(4);
    let from = Rank::from_le_bytes([from[0], from[1], from[2], from[3]]);
    let mut expected =
        Hmac::<Sha256>::new_from_slice(meeting.key).expect("HMAC takes any key length");
    expected.update(b"ringway shared memory");
    for part in [meeting.communicator, u64::from(from), u64::from(meeting.rank)] {
        expected.update(&part.to_le_bytes());
    }
    if expected.verify_slice(mac).is_err() {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    let answer = proof(meeting, meeting.rank, from);
    let descriptors = [descriptor.as_fd(), bell.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    retry_on_intr(|| {
        let answer = [IoSlice::new(&answer)];
        rustix::net::sendmsg(&*stream, &answer, &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Maps the segment of `peer`.
fn attach(meeting: &Meeting<'_>, peer: Rank, layout: Layout) -> Result<Attached> {
    let (address, _) = address(meeting, peer).map_err(|e| Error::system("bad socket name", e))?;
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(1);
    let (stream, mut descriptors) = loop {
        match greet(meeting, peer, &address) {
            // Its queue is full for a moment, or it took a busy host too long to hear from us.
            Err((_, error)) if is_passing(&error) && Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause = (2 * pause).min(Duration::from_millis(100));
            }
            Err((what, error)) => return Err(Error::system(what, error)),
            Ok(met) => break met,
        }
    };
    let (Some(bell), Some(memory)) = (descriptors.pop(), descriptors.pop()) else {
        return Err(Error::system("it passed no memory", "too few descriptors (raise ulimit -n)"));
    };
    let segment = Arc::new(Segment::open(&memory, layout)?);
    let reach = match meeting.reads_memory {
        true => Reach::open(crate::os::peer_process(stream.as_fd()), &segment),
        false => Err("RINGWAY_SINGLE_COPY=0".to_owned()),
    };
    Ok(Attached { peer, segment, bell: Bell::from_descriptor(bell), reach })
}

/// Whether another try may do better.
fn is_passing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof, WouldBlock};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof | WouldBlock)
}

/// Says who is there, and takes what the peer passes; what failed, and why.
fn greet(
    meeting: &Meeting<'_>,
    peer: Rank,
    address: &SocketAddr,
) -> std::result::Result<(UnixStream, Vec<OwnedFd>), (&'static str, std::io::Error)> {
    const UNREACHABLE: &str = "its Unix socket is not reachable from here (another network \
                               namespace? set RINGWAY_SHM_DIR to a shared directory)";
    const NOTHING: &str = "it passed no memory";
    let mut stream = UnixStream::connect_addr(address).map_err(|e| (UNREACHABLE, e))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|e| ("socket option", e))?;
    let mut hello = [0; 36];
    hello[..4].copy_from_slice(&meeting.rank.to_le_bytes());
    hello[4..].copy_from_slice(&proof(meeting, meeting.rank, peer));
    stream.write_all(&hello).map_err(|e| ("cannot greet it", e))?;
    let mut answer = [0; 32];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // With a timeout set, a process that was stopped and goes on is told that it was interrupted.
    let got = retry_on_intr(|| {
        let mut answer = [IoSliceMut::new(&mut answer)];
        rustix::net::recvmsg(&stream, &mut answer, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    if got.map_err(|e| (NOTHING, e.into()))?.bytes == 0 {
        return Err((NOTHING, std::io::ErrorKind::UnexpectedEof.into()));
    }
    if answer != proof(meeting, peer, meeting.rank) {
        let why = std::io::Error::other("whoever answered does not know the job's key");
        return Err((NOTHING, why));
    }
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    Ok((stream, descriptors))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).expect("it was made");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// A door that gives up on a peer which a busy host kept from speaking hears it the next time.
    #[test]
    fn a_door_that_shuts_is_tried_again() {
        let meeting = |rank, communicator| Meeting {
            rank,
            communicator,
            key: b"key",
            directory: None,
            reads_memory: false,
        };
        let communicator = u64::from(std::process::id()) << 32 | 0x7ea5;
        let layout = Layout::new(2, 1 << 16);
        let door = open_door(&meeting(1, communicator)).unwrap();
        let (_segment, descriptor) = Segment::create(layout).unwrap();
        let bell = Bell::new().unwrap();
        let shut = AtomicBool::new(false);
        let attached = std::thread::scope(|scope| {
            scope.spawn(|| {
                door.listener.set_nonblocking(false).unwrap();
                drop(door.listener.accept().unwrap());
                shut.store(true, Ordering::Relaxed);
                let (mut stream, _) = door.listener.accept().unwrap();
                admit(&meeting(1, communicator), &mut stream, &descriptor, &bell).unwrap();
            });
            attach(&meeting(0, communicator), 1, layout)
        });
        assert_eq!(attached.unwrap().peer, 1);
        assert!(shut.into_inner());
    }

    /// Who is killed while it waits leaves its socket; the next job in that directory removes it, and
    /// nothing that is in use or not ours.
    #[test]
    fn what_the_killed_left_is_swept() {
        let directory = std::env::temp_dir().join(format!("ringway-sweep-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let meeting = |communicator| Meeting {
            rank: 0,
            communicator,
            key: b"key",
            directory: Some(&directory),
            reads_memory: true,
        };
        let living = open_door(&meeting(1)).unwrap();
        let mut killed = open_door(&meeting(2)).unwrap();
        killed.path = None; // nobody removes it
        drop(killed);
        std::fs::write(directory.join("ringway-notes"), "not a socket").unwrap();
        drop(UnixListener::bind(directory.join("another")).unwrap());
        drop(UnixListener::bind(directory.join("ringway-3-0.new")).unwrap());
        assert_eq!(names(&directory).len(), 5);
        let door = open_door(&meeting(4)).unwrap();
        let kept = [
            "another",
            "ringway-0000000000000001-0",
            "ringway-0000000000000004-0",
            "ringway-3-0.new",
            "ringway-notes",
        ];
        assert_eq!(names(&directory), kept);
        drop((living, door));
        assert_eq!(names(&directory), ["another", "ringway-3-0.new", "ringway-notes"]);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
