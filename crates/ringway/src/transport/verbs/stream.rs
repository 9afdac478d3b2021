//! A stream of bytes over queue pairs of several rails, with the socket beside it on which the two ends agree.
//!
//! Every message is one write with immediate into a slot of the peer's, by the path that carried least; how much this side
//! has consumed goes with it ([`flow`](super::flow), [`depart`](super::depart)). Once the two have met nobody waits for anybody: the slots are
//! there from the start. What becomes of paths is in [`paths`](super::paths), what is
//! written to the peer's memory without a slot in [`place`](super::place). Who is in no call answers the peer all the same
//! ([`keeper`](super::keeper)).
//!
//! *Invariant:* nothing blocks, and what is in the peer's hands is never changed here.

#![allow(unsafe_code, reason = "sends from memory that is known by its address")]

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::event::{EventfdFlags, PollFlags, eventfd};

use super::adapter::Adapter;
use super::flow::{Inbox, Outbox, SLOTS};
use super::keeper::{self, Kept, Ward};
use super::near::NEAR;
use super::paths::{PATHS_MOST, PathEnd, State};
use super::place::Placement;
use super::rail::{Made, RING_BYTES, Rail, Rings, SLOT_BYTES};
use super::region::{Region, Regions};
use super::side::Side;
use super::wire::{Offer, Outcome, Word, short};
use crate::config::RdmaSettings;
use crate::ffi::verbs::ForeignMemory;
use crate::recorder::Flow;
use crate::transport::Area;
use crate::transport::framed::stream::{Arrival, Exposure, Placing, Stream};

/// In front of what a slot holds: consumed messages and length.
pub(super) const HEAD_BYTES: usize = 8;

/// In the number of a request, where a slot would be: how much was consumed, and nothing else.
pub(super) const CREDIT: u64 = 0xffff;
/// The bits of a request's number that the path has.
pub(super) const PATH_SHIFT: u32 = 16;
pub(super) const GENERATION_SHIFT: u32 = 32;

/// There too: a write whose end is told by the one behind it.
pub(super) const SILENT: u64 = 0xfffe;

/// Looks at the clock once in so many turns, and at the socket once in fewer while all goes well.
const LOOK: u32 = 1 << 10;
const LISTEN: u32 = 1 << 6;

/// How long a stream that is dropped waits for what is under way.
const FAREWELL: Duration = Duration::from_secs(1);

/// Memory of a stream.
pub(crate) const LINK_BYTES: u64 = 2 * RING_BYTES as u64;

/// What is asked of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) adapters: Vec<Arc<Adapter>>,
    /// Memory that is registered at them.
    pub(crate) regions: Arc<Regions>,
    pub(crate) settings: RdmaSettings,
    /// What forbids to go over the socket; nothing where that is allowed.
    pub(crate) insists: Option<String>,
    /// Whether this side tries again what has failed, and not the other.
    pub(crate) leads: bool,
    /// This rank, for its lines in the log.
    pub(crate) rank: u64,
    /// The peer, for people.
    pub(crate) peer: String,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct VerbsStream {
    shared: Arc<Shared>,
    regions: Arc<Regions>,
    _kept: Kept,
}

/// What the keeper reaches too.
#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// Readable when something can have happened.
    poller: OwnedFd,
    /// Makes it so when something has.
    found: OwnedFd,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
    // Dropped in this order: the socket tells the peer that this is the end, then queue pairs, then what they wrote.
    pub(super) side: Side,
    pub(super) paths: Vec<PathEnd>,
    /// Of every rail, the queue pairs that the peer has not been heard of yet.
    pub(super) made: Vec<Vec<Made>>,
    pub(super) rails: Vec<Rail>,
    pub(super) rings: Rings,
    /// Of every slot, the message whose bytes go from where they are to where they belong.
    pub(super) placements: [Option<Placement>; SLOTS],
    /// Memory of the operations under way, the newest first.
    pub(super) known: Vec<Arc<Region>>,
    /// Bytes that were placed, and bytes that went through slots.
    pub(super) carried: (u64, u64),
    /// Of those that were placed, bytes that a GPU's driver copied first.
    pub(super) fetched: u64,
    /// What this side could connect; the peer's word on it is what ends the meeting.
    pub(super) outcome: Option<Outcome>,
    pub(super) met: bool,
    /// Why rails are not used, from the start.
    pub(super) refused: Vec<String>,
    /// How long a write may stand still.
    pub(super) patience: Duration,
    turns: u32,
    /// When ports were last looked at.
    pub(super) looked: Instant,
    /// Whether it was said that the socket carries the messages.
    pub(super) said_socket: bool,
    /// How often a path that was in use had to be left.
    pub(super) left: u64,
    /// Whether whoever is at it answers for the memory of what is to be placed; the keeper does not.
    pub(super) in_call: bool,
    /// Whether the keeper found something since somebody last went to sleep.
    stirred: bool,
    /// Whether the socket has ever carried a message.
    pub(super) spoke: bool,
    pub(super) ended: Option<String>,
    pub(super) wish: Wish,
}

impl VerbsStream {
    /// A stream to the rank at the other end of the socket, which makes one too. Nothing is waited for: what is sent
    /// before the two have met goes out when they have.
    ///
    /// # Errors
    /// When the system has no memory or descriptors left.
    pub(crate) fn new(socket: TcpStream, wish: Wish) -> io::Result<Self> {
        let rings = Rings::new()?;
        let most = PATHS_MOST / wish.adapters.len().max(1);
        let count = usize::from(wish.settings.queue_pairs).min(most.max(1));
        let (mut rails, mut made, mut offer) = (Vec::new(), Vec::new(), Offer::default());
        for adapter in &wish.adapters {
            let distance = wish.regions.distance(adapter);
            let ready = Rail::new(adapter, &rings, count, distance).and_then(|rail| {
                let pairs: Result<Vec<Made>, _> = (0..count).map(|_| rail.queue_pair()).collect();
                Ok((rail, pairs?))
            });
            match ready {
                Ok((rail, pairs)) => {
                    offer.rails.push(rail.offer(&pairs));
                    rails.push(rail);
                    made.push(pairs);
                }
                Err(error) => offer.refused.push(short(format!("{}: {error}", adapter.name()))),
            }
        }
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let found = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watch = |descriptor: BorrowedFd<'_>| {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&poller, descriptor, data, epoll::EventFlags::IN)
        };
        watch(found.as_fd())?;
        for rail in &rails {
            watch(rail.channel.as_fd())?;
        }
        offer.cross = wish.settings.cross == 1;
        let mut side = Side::new(socket, poller.as_fd())?;
        let refused = offer.refused.clone();
        side.say(&Word::Offer(offer));
        let regions = Arc::clone(&wish.regions);
        let inner = Inner {
            outbox: Outbox::new(),
            inbox: Inbox::new(),
            side,
            paths: Vec::new(),
            made,
            rails,
            rings,
            placements: [const { None }; SLOTS],
            known: Vec::new(),
            carried: (0, 0),
            fetched: 0,
            outcome: None,
            met: false,
            refused,
            patience: patience(&wish.settings),
            turns: 0,
            looked: Instant::now(),
            said_socket: false,
            left: 0,
            in_call: true,
            stirred: false,
            spoke: false,
            ended: None,
            wish,
        };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), poller, found });
        let kept = keeper::keep(Arc::clone(&shared) as Arc<dyn Ward>, shared.inner().side.as_fd())?;
        Ok(Self { shared, regions, _kept: kept })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.inner()
    }

    /// Has a device copy bytes of its memory.
    fn with_device(
        &self,
        (address, bytes): (*const u8, usize),
        copy: impl FnOnce(&dyn ForeignMemory) -> Result<(), String>,
    ) -> io::Result<()> {
        let region = self.regions.find_foreign(address.addr(), bytes);
        let memory = region.as_ref().and_then(|region| region.device());
        let memory = memory.ok_or_else(|| io::Error::other("bytes that are in no GPU's memory"))?;
        copy(memory).map_err(|why| io::Error::other(format!("the GPU's memory: {why}")))
    }
}

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|panicked| {
            let mut inner = panicked.into_inner();
            inner.end("a thread panicked at it".to_owned());
            inner
        })
    }

    /// Makes whoever sleeps look again.
    fn ring(&self) {
        let _full_is_as_good = rustix::io::write(&self.found, &1_u64.to_ne_bytes());
    }
}

impl Ward for Shared {
    fn tend(&self) -> bool {
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::WouldBlock) => return false,
            // Whoever uses it finds out.
            Err(TryLockError::Poisoned(_)) => return true,
        };
        inner.in_call = false;
        let mut moved = inner.listen();
        moved |= inner.progress();
        inner.look();
        inner.in_call = true;
        // Who is about to sleep looks once more.
        inner.stirred |= moved;
        let calm = inner.is_calm();
        drop(inner);
        if moved {
            self.ring();
        }
        calm
    }
}

/// Sees whether a port has what a stream needs of it: memory that may be registered, queues.
///
/// # Errors
/// In words.
pub(crate) fn try_port(adapter: &Arc<Adapter>) -> Result<(), String> {
    let rings = Rings::new().map_err(|error| error.to_string())?;
    let made = Rail::new(adapter, &rings, 1, NEAR).and_then(|rail| rail.queue_pair());
    made.map(|_| ()).map_err(|error| error.to_string())
}

/// How long a write may stand still: as long as an adapter tries, within bounds, as some never give up.
fn patience(settings: &RdmaSettings) -> Duration {
    let once = Duration::from_nanos(4096_u64 << settings.timeout.min(31));
    (once * (u32::from(settings.retries) + 1))
        .clamp(Duration::from_millis(500), Duration::from_secs(10))
}

impl Stream for VerbsStream {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut inner = self.inner();
        inner.progress();
        if let Some(why) = &inner.ended {
            return Err(io::Error::other(why.clone()));
        }
        let most = inner.message_bytes(parts.iter().map(|part| part.len()).sum());
        let mut sent = 0;
        let mut rest = parts.iter().map(|part| &**part).filter(|part| !part.is_empty());
        let mut part = rest.next();
        while let (Some(_), Some(slot)) = (part, inner.outbox.room()) {
            let base = slot * SLOT_BYTES + HEAD_BYTES;
            let mut bytes = 0;
            while let Some(left) = part.filter(|_| bytes < most) {
                let count = left.len().min(most - bytes);
                inner.rings.out.write(base + bytes, &left[..count]);
                bytes += count;
                part = if count < left.len() { Some(&left[count..]) } else { rest.next() };
            }
            inner.placements[slot] = None;
            inner.outbox.push(u32::try_from(bytes).unwrap_or(0));
            sent += bytes;
        }
        inner.carried.1 += sent as u64;
        inner.post();
        Ok(sent)
    }

    fn receive(&self, room: &mut [u8]) -> Arrival {
        let mut inner = self.inner();
        inner.progress();
        let mut got = 0;
        while let Some((slot, cursor, bytes)) = inner.inbox.readable().filter(|_| got < room.len())
        {
            let count = bytes.min(room.len() - got);
            let at = slot * SLOT_BYTES + HEAD_BYTES + cursor;
            inner.rings.into.read(at, &mut room[got..got + count]);
            inner.inbox.read(count);
            got += count;
        }
        let placed = inner.inbox.placed().filter(|_| got == 0);
        if let Some(bytes) = placed {
            inner.inbox.read(bytes);
        }
        inner.settle_credit();
        match (got, placed, &inner.ended) {
            (_, Some(bytes), _) => Arrival::Placed(bytes),
            (0, None, Some(why)) => Arrival::End(why.clone()),
            (0, None, None) => Arrival::Nothing,
            _ => Arrival::Bytes(got),
        }
    }

    /// Whoever asks is about to sleep: what comes from now on must wake it, and what came before is found here.
    fn interest(&self, wanted: PollFlags) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut inner = self.inner();
        inner.arm();
        let mut moved = std::mem::take(&mut inner.stirred);
        moved |= inner.listen();
        moved |= inner.progress();
        inner.look();
        inner.side.arm(self.shared.poller.as_fd());
        let can_read = inner.inbox.readable().is_some()
            || inner.inbox.placed().is_some()
            || inner.ended.is_some();
        let can_write = inner.outbox.room().is_some() || inner.ended.is_some();
        let ready = moved
            || wanted.contains(PollFlags::IN) && can_read
            || wanted.contains(PollFlags::OUT) && can_write;
        if ready {
            self.shared.ring();
        } else {
            let mut count = [0; 8];
            let _nothing_there = rustix::io::read(&self.shared.found, &mut count);
        }
        Some((self.shared.poller.as_fd(), PollFlags::IN))
    }

    fn wakes(&self) -> bool {
        true
    }

    fn settled(&self) -> io::Result<bool> {
        let mut inner = self.inner();
        inner.progress();
        match &inner.ended {
            // A peer that has left has all it needs, as far as that was sent.
            Some(why) if inner.outbox.waiting().is_some() => Err(io::Error::other(why.clone())),
            Some(_) => Ok(true),
            None => Ok(inner.is_settled()),
        }
    }

    fn places(&self) -> bool {
        true
    }

    fn expose(&self, area: Area) -> Option<Exposure> {
        self.inner().expose(area)
    }

    unsafe fn place(
        &self,
        source: (*const u8, usize),
        target: (&Arc<Exposure>, u64),
    ) -> io::Result<Placing> {
        let mut inner = self.inner();
        inner.progress();
        match &inner.ended {
            Some(why) => Err(io::Error::other(why.clone())),
            None => Ok(inner.place(source, target)),
        }
    }

    fn is_foreign(&self, address: *const u8) -> bool {
        self.regions.is_foreign(address)
    }

    fn fetch(&self, from: *const u8, into: &mut [u8]) -> io::Result<()> {
        self.with_device((from, into.len()), |memory| memory.fetch(from.addr() as u64, into))
    }

    fn store(&self, to: *mut u8, from: &[u8]) -> io::Result<()> {
        self.with_device((to, from.len()), |memory| memory.store(to.addr() as u64, from))
    }

    fn forget(&self) {
        self.inner().known.clear();
    }

    fn is_released(&self, ticket: u64) -> io::Result<bool> {
        let mut inner = self.inner();
        inner.progress();
        let is_held = inner.is_held(ticket);
        match inner.ended.clone() {
            Some(why) if is_held && inner.outbox.waiting().is_some() => Err(io::Error::other(why)),
            Some(_) => {
                // A peer that has left has all it needs; what may still be read is not, from now on.
                if is_held {
                    inner.disarm();
                }
                Ok(true)
            }
            None => Ok(!is_held),
        }
    }

    fn flow(&self) -> Flow {
        Flow { retries: self.inner().left, ..Flow::default() }
    }

    fn disarm(&self) {
        self.inner().disarm();
    }
}

impl Drop for VerbsStream {
    /// An adapter forgets what a queue pair had when that goes: what the peer still needs must be there before.
    fn drop(&mut self) {
        let mut inner = self.inner();
        let end = Instant::now() + FAREWELL;
        // What stands still is left sooner than usual, for another path to take it.
        inner.patience = inner.patience.min(FAREWELL / 4);
        while inner.met && inner.ended.is_none() && !inner.is_settled() && Instant::now() < end {
            inner.progress();
            inner.look();
            std::thread::yield_now();
        }
        let (placed, copied) = inner.carried;
        if inner.fetched > 0 {
            tracing::info!(
                target: crate::log::NET, rank = inner.wish.rank,
                "NET/IB : to {}: {} bytes were copied from GPU memory before they were placed (NCCL_NET_GDR_READ=0)",
                inner.wish.peer, inner.fetched
            );
        }
        tracing::info!(
            target: crate::log::NET, rank = inner.wish.rank,
            "NET/IB : to {}: {placed} bytes were placed, {copied} went through slots",
            inner.wish.peer
        );
        inner.side.close();
        while inner.spoke && !inner.side.discard() && Instant::now() < end {
            std::thread::yield_now();
        }
        inner.retire();
    }
}

impl Inner {
    /// Takes what has come and goes on with what can; whether something moved.
    pub(super) fn progress(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        let mut moved = false;
        for rail in 0..self.rails.len() {
            moved |= self.poll(rail);
        }
        // As a rule nobody says anything: the socket, which costs a system call, is looked at now and then.
        if !self.met || self.turns.is_multiple_of(LISTEN) || self.is_talking() {
            moved |= self.listen();
        }
        self.leave();
        self.post();
        self.settle_credit();
        self.side.flush();
        if self.turns.is_multiple_of(LOOK) {
            self.look();
        }
        moved
    }

    /// Whether everything that was sent is at the peer, or in the kernel's hands.
    fn is_settled(&self) -> bool {
        self.met
            && self.outbox.waiting().is_none()
            && self.outbox.is_quiet()
            && self.side.is_flushed()
            && !self.paths.iter().any(|end| matches!(end.state, State::Leaving { .. }))
    }

    /// Whether nothing can be done before the peer says something, or somebody wants something sent.
    fn is_calm(&self) -> bool {
        self.ended.is_some() || self.side.is_flushed() && (!self.met || self.is_settled())
    }

    /// Lets go of all that reaches memory: the keeper may hold the rest for a moment longer.
    fn retire(&mut self) {
        self.ended.get_or_insert_with(|| "it was closed".to_owned());
        self.paths.clear();
        self.made.clear();
        self.placements = [const { None }; SLOTS];
        self.known.clear();
        self.rails.clear();
    }

    /// Whether something is said on the socket: a path is being left or tried, or none is up.
    fn is_talking(&self) -> bool {
        let is_up = |end: &PathEnd| end.state == State::Up;
        let is_down = |end: &PathEnd| matches!(end.state, State::Down { .. });
        !self.side.is_flushed()
            || !self.paths.iter().any(is_up)
            || !self.paths.iter().all(|end| is_up(end) || is_down(end))
    }

    /// Goes no further, and tells the peer.
    pub(super) fn end(&mut self, why: String) {
        if self.ended.is_none() {
            self.side.say(&Word::Over { why: short(why.clone()) });
            self.ended = Some(why);
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
    }
}
