//! A stream of bytes over queue pairs of several rails, with the socket beside it that agrees on what fails.
//!
//! Every message is one write with immediate into a slot of the peer's, by the next rail that is up; how much this side
//! has consumed goes with it ([`flow`](super::flow)). Before the first message nobody waits for anybody: the
//! slots are there from the start.
//!
//! ```text
//! up ──(completion fails, stands still, port goes)──► leaving ──(all writes ended, peer has left too)──► down
//! ```
//!
//! A path is left at both ends before what it had is sent again by another: a queue pair in its error state takes no
//! more packets, so nothing late is written over something newer. When no path is left the socket carries the
//! messages, or the stream ends with what the last one died of, as the settings say.
//!
//! *Invariant:* nothing blocks, and what is in the peer's hands is never changed here.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};

use super::adapter::Adapter;
use super::flow::{Inbox, Mark, Outbox, SLOTS};
use crate::ffi::verbs::{
    Completion, CompletionChannel, Cq, Flags, Memory, Mr, Operation, Part, Qp, Remote, Request,
    VerbsError,
};
use crate::transport::framed::stream::{Arrival, Stream};

/// Bytes of a slot: consumed messages and length in front, then what is sent.
pub(super) const SLOT_BYTES: usize = 64 << 10;
const HEAD_BYTES: usize = 8;
pub(super) const RING_BYTES: usize = SLOT_BYTES * SLOTS as usize;

/// Receives that stand ready on a queue pair: for every slot, and for credits beside them.
const RECEIVES: u32 = 2 * SLOTS as u32;

/// In the number of a request: the path, and the slot or one of these.
const CREDIT: u64 = 0xffff;
const RECEIVE: u64 = 1 << 63;

/// Looks at the clock once in so many polls that found nothing.
const LOOK: u32 = 1 << 10;

/// A rail: a port with memory registered at it, and a queue of completions.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) adapter: Arc<Adapter>,
    pub(super) cq: Arc<Cq>,
    pub(super) channel: Arc<CompletionChannel>,
    pub(super) out: Mr,
    pub(super) into: Mr,
    /// The peer's slots.
    pub(super) remote: Remote,
}

/// A queue pair of a rail.
#[derive(Debug)]
pub(super) struct PathEnd {
    pub(super) rail: usize,
    pub(super) qp: Qp,
    pub(super) state: State,
    /// Writes that have not ended.
    pub(super) under_way: u32,
    /// When a write last ended, or the first was posted.
    pub(super) moved: Instant,
}

/// See the module's picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Up,
    Leaving { why: String, peer_left: bool },
    Down { why: String },
}

/// What the socket carries.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    /// This side has left a path.
    Left { path: u16 },
}

impl Word {
    const BYTES: usize = 4;

    fn encode(&self) -> [u8; Self::BYTES] {
        match self {
            Self::Left { path } => {
                let [low, high] = path.to_le_bytes();
                [1, 0, low, high]
            }
        }
    }

    fn decode(bytes: [u8; Self::BYTES]) -> Result<Self, String> {
        match bytes {
            [1, 0, low, high] => Ok(Self::Left { path: u16::from_le_bytes([low, high]) }),
            other => Err(format!("the peer said {other:02x?} on the socket beside RDMA")),
        }
    }
}

#[derive(Debug)]
struct Inner {
    outbox: Outbox,
    inbox: Inbox,
    memory_out: Arc<Memory>,
    memory_into: Arc<Memory>,
    rails: Vec<Rail>,
    paths: Vec<PathEnd>,
    /// The path that has its turn.
    turn: usize,
    socket: TcpStream,
    /// Words for the peer that are not out yet, and bytes of one that is not whole.
    to_say: VecDeque<u8>,
    heard: Vec<u8>,
    /// How long writes may stand still before their path is left.
    patience: Duration,
    misses: u32,
    /// Why nothing will come or go any more.
    ended: Option<String>,
    /// Who is at the other end, for people.
    peer: String,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct VerbsStream {
    inner: RefCell<Inner>,
    /// Readable when a rail or the socket has something, or something was found while falling asleep.
    poller: OwnedFd,
    found: OwnedFd,
}

/// What a stream is made of: rails, connected paths, both rings, and the socket, which does not block.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) rails: Vec<Rail>,
    pub(super) paths: Vec<PathEnd>,
    pub(super) memory_out: Arc<Memory>,
    pub(super) memory_into: Arc<Memory>,
    pub(super) socket: TcpStream,
    pub(super) patience: Duration,
    pub(super) peer: String,
}

impl VerbsStream {
    /// A stream whose receives stand ready.
    pub(super) fn new(parts: Parts) -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let found = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watch = |descriptor: BorrowedFd<'_>| {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&poller, descriptor, data, epoll::EventFlags::IN)
        };
        watch(found.as_fd())?;
        watch(parts.socket.as_fd())?;
        for rail in &parts.rails {
            watch(rail.channel.as_fd())?;
        }
        let Parts { rails, paths, memory_out, memory_into, socket, patience, peer } = parts;
        let inner = Inner {
            outbox: Outbox::new(),
            inbox: Inbox::new(),
            memory_out,
            memory_into,
            rails,
            paths,
            turn: 0,
            socket,
            to_say: VecDeque::new(),
            heard: Vec::new(),
            patience,
            misses: 0,
            ended: None,
            peer,
        };
        Ok(Self { inner: RefCell::new(inner), poller, found })
    }

    /// Posts the receives of a path; before the peer may write.
    pub(super) fn prepare(qp: &Qp, path: usize) -> Result<(), VerbsError> {
        for _ in 0..RECEIVES {
            qp.post_receive(RECEIVE | (path as u64) << 16, None)?;
        }
        Ok(())
    }
}

impl Stream for VerbsStream {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut inner = self.inner.borrow_mut();
        inner.progress();
        let mut sent = 0;
        let mut rest = parts.iter().map(|part| &**part).filter(|part| !part.is_empty());
        let mut part = rest.next();
        while let (Some(_), Some(slot)) = (part, inner.outbox.room()) {
            let base = slot * SLOT_BYTES;
            let mut bytes = 0;
            while let Some(left) = part.filter(|_| bytes < SLOT_BYTES - HEAD_BYTES) {
                let count = left.len().min(SLOT_BYTES - HEAD_BYTES - bytes);
                inner.memory_out.write(base + HEAD_BYTES + bytes, &left[..count]);
                bytes += count;
                part = if count < left.len() { Some(&left[count..]) } else { rest.next() };
            }
            inner.outbox.push(u32::try_from(bytes).unwrap_or(0));
            sent += bytes;
        }
        inner.post();
        match &inner.ended {
            Some(why) if sent == 0 => Err(io::Error::other(why.clone())),
            _ => Ok(sent),
        }
    }

    fn receive(&self, room: &mut [u8]) -> Arrival {
        let mut inner = self.inner.borrow_mut();
        inner.progress();
        let mut got = 0;
        while let Some((slot, cursor, bytes)) = inner.inbox.readable().filter(|_| got < room.len())
        {
            let count = bytes.min(room.len() - got);
            let at = slot * SLOT_BYTES + HEAD_BYTES + cursor;
            inner.memory_into.read(at, &mut room[got..got + count]);
            inner.inbox.read(count);
            got += count;
        }
        if inner.inbox.owes() {
            inner.tell_credit();
        }
        match (got, &inner.ended) {
            (0, Some(why)) => Arrival::End(why.clone()),
            (0, None) => Arrival::Nothing,
            _ => Arrival::Bytes(got),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let mut inner = self.inner.borrow_mut();
        // Whoever asks is about to sleep: what comes from now on must wake it, and what came before is found here.
        inner.arm();
        if inner.progress() || inner.inbox.readable().is_some() {
            let _full_is_as_good = rustix::io::write(&self.found, &1_u64.to_ne_bytes());
        } else {
            let mut count = [0; 8];
            let _nothing_there = rustix::io::read(&self.found, &mut count);
        }
        Some(self.poller.as_fd())
    }
}

impl Inner {
    /// Takes what has come and goes on with what can; whether something moved.
    fn progress(&mut self) -> bool {
        let mut moved = self.listen();
        for rail in 0..self.rails.len() {
            moved |= self.poll(rail);
        }
        self.leave();
        self.post();
        self.say();
        if moved {
            self.misses = 0;
        } else {
            self.misses = self.misses.wrapping_add(1);
            if self.misses.is_multiple_of(LOOK) {
                self.look();
            }
        }
        moved
    }

    /// Takes what a rail's queue has.
    fn poll(&mut self, rail: usize) -> bool {
        let mut found = [Completion::default(); 16];
        let mut moved = false;
        loop {
            let count = match self.rails[rail].cq.poll(&mut found) {
                Ok(count) => count,
                Err(error) => {
                    self.leave_rail(rail, &error.to_string());
                    return moved;
                }
            };
            for completion in &found[..count] {
                if let Err(why) = self.complete(completion) {
                    self.ended.get_or_insert(why);
                }
            }
            moved |= count > 0;
            if count < found.len() {
                return moved;
            }
        }
    }

    fn complete(&mut self, completion: &Completion) -> Result<(), String> {
        let id = completion.id();
        let path = usize::try_from(id >> 16 & 0xffff).unwrap_or(usize::MAX);
        let is_receive = id & RECEIVE != 0;
        let Some(end) = self.paths.get_mut(path) else { return Ok(()) };
        if !is_receive {
            end.under_way = end.under_way.saturating_sub(1);
            end.moved = Instant::now();
            if id & 0xffff != CREDIT {
                self.outbox.ended(usize::try_from(id & 0xffff).unwrap_or(usize::MAX));
            }
        }
        if !completion.is_success() {
            let why = self.explain(path, completion);
            self.leave_path(path, why);
            return Ok(());
        }
        if !is_receive {
            return Ok(());
        }
        if let (State::Up, Err(error)) = (&self.paths[path].state, {
            let id = RECEIVE | (path as u64) << 16;
            self.paths[path].qp.post_receive(id, None)
        }) {
            self.leave_path(path, error.to_string());
        }
        let Some(word) = completion.immediate() else {
            return Err(format!("{}: a message without its number", self.peer));
        };
        match Mark::decode(word) {
            Mark::Credit(consumed) => self.outbox.credit(consumed),
            Mark::Data(sequence) => {
                let slot = usize::try_from(u64::from(sequence) % SLOTS).unwrap_or(0);
                let mut head = [0; HEAD_BYTES];
                self.memory_into.read(slot * SLOT_BYTES, &mut head);
                let word = |at: usize| {
                    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
                };
                let bytes = word(4);
                if bytes == 0 || bytes as usize > SLOT_BYTES - HEAD_BYTES {
                    return Err(format!("{}: a message of {bytes} bytes", self.peer));
                }
                self.outbox.credit(word(0))?;
                self.inbox.arrive(sequence, bytes)
            }
        }
    }

    /// Posts what waits, by the paths in turn.
    fn post(&mut self) {
        while let Some((number, slot, bytes)) = self.outbox.waiting() {
            let Some(path) = self.next_path() else { break };
            let told = self.inbox.tell();
            let mut head = [0; HEAD_BYTES];
            head[..4].copy_from_slice(&told.to_le_bytes());
            head[4..].copy_from_slice(&bytes.to_le_bytes());
            self.memory_out.write(slot * SLOT_BYTES, &head);
            let whole = HEAD_BYTES + bytes as usize;
            let mark = Mark::Data(super::flow::low(number));
            let id = (path as u64) << 16 | slot as u64;
            if self.post_one(path, id, mark, Some((slot * SLOT_BYTES, whole))) {
                self.outbox.posted(path);
            }
        }
    }

    /// Tells how much was consumed, where nothing goes back that could.
    fn tell_credit(&mut self) {
        if let Some(path) = self.next_path() {
            let mark = Mark::Credit(self.inbox.tell());
            self.post_one(path, (path as u64) << 16 | CREDIT, mark, None);
        }
    }

    fn post_one(&mut self, path: usize, id: u64, mark: Mark, part: Option<(usize, usize)>) -> bool {
        let end = &self.paths[path];
        let rail = &self.rails[end.rail];
        let (offset, bytes) = part.unwrap_or((0, 0));
        let address = rail.remote.address + offset as u64;
        let request = Request {
            id,
            operation: Operation::WriteWithImmediate(
                Remote { address, ..rail.remote },
                mark.encode(),
            ),
            local: part.map_or(Part::NONE, |(offset, bytes)| rail.out.part(offset, bytes)),
            flags: Flags {
                inline: bytes > 0 && bytes <= end.qp.inline_bytes() as usize,
                ..Flags::SIGNALLED
            },
        };
        match end.qp.post(request) {
            Ok(()) => {
                let end = &mut self.paths[path];
                if end.under_way == 0 {
                    end.moved = Instant::now();
                }
                end.under_way += 1;
                true
            }
            Err(error) => {
                self.leave_path(path, error.to_string());
                false
            }
        }
    }

    /// The next path that is up and not full.
    fn next_path(&mut self) -> Option<usize> {
        let count = self.paths.len();
        for ahead in 0..count {
            let at = (self.turn + ahead) % count;
            let end = &self.paths[at];
            if end.state == State::Up && u64::from(end.under_way) < SLOTS {
                self.turn = (at + 1) % count;
                return Some(at);
            }
        }
        None
    }

    fn explain(&self, path: usize, completion: &Completion) -> String {
        let adapter = &self.rails[self.paths[path].rail].adapter;
        let status = completion.status();
        format!(
            "{} (GID {} {}) to {}: {status}, vendor error {:#x}; {}",
            adapter.name(),
            adapter.chosen.index,
            adapter.chosen.gid,
            self.peer,
            completion.vendor_error(),
            status.cause(),
        )
    }

    fn leave_rail(&mut self, rail: usize, why: &str) {
        for path in 0..self.paths.len() {
            if self.paths[path].rail == rail {
                self.leave_path(path, why.to_owned());
            }
        }
    }

    /// Takes no more by a path, and tells the peer.
    fn leave_path(&mut self, path: usize, why: String) {
        let end = &mut self.paths[path];
        if end.state != State::Up {
            return;
        }
        tracing::warn!(
            target: crate::log::NET,
            "NET/IB : {why}; its messages go by {} other connections",
            self.paths.iter().filter(|end| end.state == State::Up).count() - 1
        );
        let end = &mut self.paths[path];
        // A queue pair that cannot even fail has failed.
        let _gone_anyway = end.qp.fail();
        end.state = State::Leaving { why, peer_left: false };
        self.to_say.extend(Word::Left { path: u16::try_from(path).unwrap_or(u16::MAX) }.encode());
    }

    /// Sends again what paths had that both ends have left.
    fn leave(&mut self) {
        for path in 0..self.paths.len() {
            let end = &mut self.paths[path];
            if let State::Leaving { why, peer_left: true } = &end.state
                && end.under_way == 0
            {
                end.state = State::Down { why: why.clone() };
                self.outbox.give_up(path);
            }
        }
        let mut whys = self.paths.iter().map(|end| match &end.state {
            State::Down { why } => Some(why.as_str()),
            _ => None,
        });
        if self.ended.is_none() && whys.clone().all(|why| why.is_some()) {
            let last = whys.next_back().flatten().unwrap_or("there was no path");
            self.ended = Some(format!("no RDMA connection to {} is left; {last}", self.peer));
        }
    }

    /// What the peer says on the socket.
    fn listen(&mut self) -> bool {
        let mut room = [0; 64];
        let mut moved = false;
        loop {
            match self.socket.read(&mut room) {
                Ok(0) => {
                    self.ended.get_or_insert("the peer closed the connection".to_owned());
                    return moved;
                }
                Ok(got) => {
                    moved = true;
                    self.heard.extend_from_slice(&room[..got]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended.get_or_insert(error.to_string());
                    return moved;
                }
            }
        }
        while let Some(bytes) = self.heard.first_chunk::<{ Word::BYTES }>() {
            match Word::decode(*bytes) {
                Ok(Word::Left { path }) => self.peer_left(usize::from(path)),
                Err(why) => {
                    self.ended.get_or_insert(why);
                    return true;
                }
            }
            self.heard.drain(..Word::BYTES);
        }
        moved
    }

    fn peer_left(&mut self, path: usize) {
        if path >= self.paths.len() {
            return;
        }
        let name = self.rails[self.paths[path].rail].adapter.name();
        self.leave_path(path, format!("{name} to {}: the peer left it", self.peer));
        if let State::Leaving { peer_left, .. } = &mut self.paths[path].state {
            *peer_left = true;
        }
    }

    fn say(&mut self) {
        while !self.to_say.is_empty() {
            let (first, _) = self.to_say.as_slices();
            match self.socket.write(first) {
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    self.to_say.drain(..count);
                }
            }
        }
    }

    /// Leaves paths on which nothing moves: adapters may try for ever.
    fn look(&mut self) {
        for path in 0..self.paths.len() {
            let end = &self.paths[path];
            if end.state == State::Up && end.under_way > 0 && end.moved.elapsed() > self.patience {
                let name = self.rails[end.rail].adapter.name();
                let (peer, patience) = (&self.peer, self.patience);
                self.leave_path(path, format!("{name} to {peer}: nothing moved for {patience:?}"));
            }
        }
    }

    /// Asks all queues to wake whoever sleeps.
    fn arm(&mut self) {
        for rail in 0..self.rails.len() {
            let Rail { channel, cq, .. } = &self.rails[rail];
            while let Ok(Some(_)) = channel.take_event() {}
            if let Err(error) = cq.notify(false) {
                let why = error.to_string();
                self.leave_rail(rail, &why);
            }
        }
        self.look();
    }
}
