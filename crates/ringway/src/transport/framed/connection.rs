//! One non-blocking connection: frames out, frames in.

#![allow(unsafe_code, reason = "payloads are received into and sent from raw buffers")]

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::PollFlags;

use super::super::{Area, Context};
use super::frame::{HEADER_BYTES, Header, Kind};
use super::stream::{Arrival, EXPOSURE_BYTES_MOST, Exposure, Placing, Stream};
use crate::plan::types::Rank;
use crate::recorder::{Flow, Traffic};

/// Bytes read ahead: several small frames in one system call.
pub(crate) const AHEAD: usize = 64 << 10;

/// Bytes read ahead behind a long payload. The next one will be long too, and what is read ahead of
/// it must be copied once more.
const AHEAD_LONG: usize = 8 * HEADER_BYTES;

/// How often a connection that has long been silent is passed over when all are polled.
const SILENT_SKIPS: u32 = 7;

/// Polls that find nothing before a connection counts as silent.
const SILENT_AFTER: u32 = 8;

/// Signals queued behind a put, at most; more wait in their lanes.
const QUEUE_MOST: usize = 64 << 10;

/// Bytes received in one go before the lanes get their turn.
const FAIR: usize = 4 << 20;

/// Bytes sent in one go where they could be placed once the peer has said where: its word may have come meanwhile.
const EAGER: usize = 256 << 10;

/// Bytes of a device's memory that are copied at a time, where they do not go by themselves.
const BOUNCE: usize = 256 << 10;

/// What to do with a frame.
#[derive(Debug)]
pub(super) enum Admission {
    /// Store its payload at this address, which has room for all of it.
    Payload(*mut u8),
    /// Its payload is what the peer says of its memory.
    Exposure,
    /// It has no payload; it counts.
    Done,
    /// Forget it.
    Skip,
    /// Not yet: it is for a later operation. Stop reading.
    Hold,
}

/// Why reading cannot go on.
#[derive(Debug)]
pub(super) enum Failure {
    /// The frame is for an operation in which this rank made another call.
    Mismatch { sequence: u64 },
    /// The connection is of no use any more.
    Broken(String),
}

/// Who frames are for.
pub(super) trait Receiver {
    /// What to do with a frame.
    fn admit(&self, header: &Header) -> Result<Admission, Failure>;
    /// A frame has arrived completely.
    fn land(&mut self, header: &Header);
    /// The peer has said how memory can be written from afar.
    fn expose(&mut self, header: &Header, exposure: Exposure);
}

/// A put, and who makes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Put<'a> {
    pub(super) owner: (Context, usize),
    pub(super) header: &'a Header,
    pub(super) source: *const u8,
    pub(super) bytes: usize,
    /// Where the peer lets it be written from afar.
    pub(super) direct: Option<(&'a Arc<Exposure>, u64)>,
}

/// A payload that is arriving.
#[derive(Debug)]
struct Arriving {
    header: Header,
    address: *mut u8,
    missing: usize,
    /// Whether the address is of a device's memory.
    foreign: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Connection<S> {
    peer: Rank,
    stream: S,
    ahead: Box<[u8]>,
    /// Read ahead and not used yet: `ahead[start..end]`.
    start: usize,
    end: usize,
    arriving: Option<Arriving>,
    held: bool,
    /// Whether the last payload was long.
    long: bool,
    /// Whether a lane has looked and found nothing since all connections were polled.
    looked: bool,
    /// Polls since something arrived.
    silent: u32,
    /// The lane whose put is half sent.
    sending: Option<(Context, usize)>,
    /// Lanes whose puts were placed, and the tickets with which their sources are released.
    placed: Vec<((Context, usize), u64)>,
    /// Whether payloads are sent with a checksum, and those of puts that are not all sent.
    checks: bool,
    checksums: Vec<((Context, usize), u32)>,
    /// What the peer says of its memory, as it arrives.
    exposure: Box<[u8; EXPOSURE_BYTES_MOST]>,
    /// Frames without payload that wait to be sent.
    queue: Vec<u8>,
    /// Bytes of the queue that somebody waits for: up to the end of the last signal in it.
    owed: usize,
    /// Why nothing more will arrive. No trouble in itself: a peer that has everything it needs
    /// may leave before this rank is done with the others.
    ended: Option<String>,
    traffic: Arc<Traffic>,
}

// SAFETY: `arriving` holds an address inside the buffers of the operation that is being run; the
// connection is used by one thread at a time, the one that runs that operation.
unsafe impl<S: Send> Send for Connection<S> {}

impl<S: Stream> Connection<S> {
    /// A connection to a peer over a stream, of which up to `ahead` bytes are read ahead.
    pub(super) fn new(peer: Rank, stream: S, ahead: usize) -> Self {
        Self {
            peer,
            stream,
            ahead: vec![0; ahead.max(HEADER_BYTES)].into_boxed_slice(),
            start: 0,
            end: 0,
            arriving: None,
            held: false,
            long: false,
            looked: false,
            silent: 0,
            sending: None,
            placed: Vec::new(),
            checks: false,
            checksums: Vec::new(),
            exposure: Box::new([0; EXPOSURE_BYTES_MOST]),
            queue: Vec::with_capacity(1024),
            owed: 0,
            ended: None,
            traffic: Arc::default(),
        }
    }

    /// Counts from now on with others in `traffic`.
    pub(super) fn count_in(&mut self, traffic: &Arc<Traffic>) {
        self.traffic = Arc::clone(traffic);
    }

    /// See [`Stream::flow`].
    pub(super) fn flow(&self) -> Flow {
        self.stream.flow()
    }

    /// Why nothing more will arrive, if so.
    pub(super) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// A new operation has begun: frames that were held may be for it.
    pub(super) fn resume(&mut self) {
        self.held = false;
    }

    /// Reads like [`Self::receive`] when all connections are polled. What a lane has just looked at
    /// is left out, and mostly what has been silent: each look is a system call.
    pub(super) fn poll(&mut self, receiver: &mut impl Receiver) -> Result<bool, Failure> {
        // A stream without a descriptor has nobody who would wake this rank for what was left out.
        if self.stream.wakes() {
            let skipped = self.silent > SILENT_AFTER
                && !(self.silent - SILENT_AFTER).is_multiple_of(SILENT_SKIPS + 1);
            self.silent = self.silent.wrapping_add(1);
            if std::mem::take(&mut self.looked) || skipped {
                return Ok(false);
            }
        }
        let moved = self.receive(receiver)?;
        self.looked = false;
        Ok(moved)
    }

    pub(super) fn interest<'a>(&'a self, wanted: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        let mut flags = PollFlags::empty();
        if !self.held && self.ended.is_none() {
            flags |= PollFlags::IN;
        }
        if self.sending.is_some() || !self.queue.is_empty() {
            flags |= PollFlags::OUT;
        }
        // A stream that is not settled has to be looked after, whatever else is waited for.
        let unsettled = || !matches!(self.stream.settled(), Ok(true));
        if !flags.is_empty() || (self.ended.is_none() && unsettled()) {
            wanted.extend(self.stream.interest(flags));
        }
    }

    /// Goes on with a put; `cursor` counts header and payload bytes. `true` when all is out.
    pub(super) fn put(&mut self, put: &Put<'_>, cursor: &mut usize) -> io::Result<bool> {
        let &Put { owner, header, source, bytes, direct } = put;
        let whole = HEADER_BYTES + bytes;
        if *cursor < whole && self.sending.is_some_and(|sending| sending != owner) {
            return Ok(false);
        }
        let encoded = Header { check: self.checksum(put, *cursor), ..*header }.encode();
        let eager = if self.stream.places() { EAGER } else { usize::MAX };
        let enough = cursor.saturating_add(eager);
        while *cursor < whole {
            if *cursor >= enough && direct.is_none() {
                return Ok(false);
            }
            let head = &encoded[(*cursor).min(HEADER_BYTES)..];
            let skip = cursor.saturating_sub(HEADER_BYTES);
            if let Some((exposure, offset)) = direct.filter(|_| head.is_empty()) {
                let from = (source.wrapping_add(skip), bytes - skip);
                // SAFETY: the link has made the memory known in this operation, which is not over before its puts are,
                // and fails only together with the stream.
                let placing = unsafe { self.stream.place(from, (exposure, offset + skip as u64)) };
                match placing? {
                    Placing::Bytes(placed, ticket) => {
                        *cursor += placed;
                        self.traffic.send(placed);
                        self.placed.retain(|(other, _)| *other != owner);
                        self.placed.push((owner, ticket));
                        continue;
                    }
                    Placing::Full => return Ok(false),
                    Placing::Unable => {}
                }
            }
            // What is to be placed is not sent with the header.
            let now = match direct {
                Some(_) if !head.is_empty() => skip,
                Some(_) => bytes,
                None => bytes.min(skip.saturating_add(eager)),
            };
            let from = source.wrapping_add(skip);
            let fetched;
            let body = if now > skip && self.stream.is_foreign(from) {
                fetched = self.fetch(from, (now - skip).min(BOUNCE))?;
                &fetched[..]
            } else {
                // SAFETY:
                // * the source is a span of this rank's memory, resolved by the execution, and no device's;
                // * the plan lets nobody write it before the put is complete;
                // * the slice ends with this loop's turn: the kernel copies from it.
                unsafe { std::slice::from_raw_parts(from, now - skip) }
            };
            // A put never overtakes what was queued, and nothing is queued inside a put.
            let queued = if *cursor == 0 { self.queue.len() } else { 0 };
            let parts =
                [IoSlice::new(&self.queue[..queued]), IoSlice::new(head), IoSlice::new(body)];
            match self.stream.send(&parts) {
                Ok(0) => return Ok(false),
                Ok(sent) => {
                    self.traffic.send(sent);
                    let from_queue = sent.min(queued);
                    self.dequeue(from_queue);
                    *cursor += sent - from_queue;
                    if *cursor > 0 {
                        self.sending = Some(owner);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        if self.sending == Some(owner) {
            self.sending = None;
        }
        self.checksums.retain(|(other, _)| *other != owner);
        let Some(at) = self.placed.iter().position(|(other, _)| *other == owner) else {
            return Ok(true);
        };
        let released = self.stream.is_released(self.placed[at].1)?;
        if released {
            self.placed.swap_remove(at);
        }
        Ok(released)
    }

    pub(super) fn set_checks(&mut self, checks: bool) {
        self.checks = checks;
    }

    /// The checksum of a put, until all of it is sent.
    fn checksum(&mut self, put: &Put<'_>, cursor: usize) -> Option<u32> {
        // Nobody lets what is in a device's memory be checked: see `check`.
        let unchecked = !self.checks || self.stream.is_foreign(put.source);
        if unchecked || put.bytes == 0 || cursor >= HEADER_BYTES {
            return None;
        }
        if let Some((_, known)) = self.checksums.iter().find(|(owner, _)| *owner == put.owner) {
            return Some(*known);
        }
        // SAFETY: a span of this rank's memory that nobody writes before the put is complete; see `put`.
        let payload = unsafe { std::slice::from_raw_parts(put.source, put.bytes) };
        let checksum = crc32c::crc32c(payload);
        self.checksums.push((put.owner, checksum));
        Some(checksum)
    }

    fn fetch(&self, from: *const u8, bytes: usize) -> io::Result<Vec<u8>> {
        let mut copied = vec![0; bytes];
        self.stream.fetch(from, &mut copied)?;
        Ok(copied)
    }

    /// See [`Stream::is_foreign`].
    pub(super) fn is_foreign(&self, address: *const u8) -> bool {
        self.stream.is_foreign(address)
    }

    /// Whether nothing is read because a frame is for a later operation.
    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// Makes memory known to the stream, and says what the peer must know to write there.
    pub(super) fn expose(&self, area: Area) -> Option<Exposure> {
        self.stream.expose(area)
    }

    /// See [`Stream::forget`].
    pub(super) fn forget(&self) {
        self.stream.forget();
    }

    /// See [`Stream::silent_ms`].
    pub(super) fn silent_ms(&self) -> Option<u64> {
        self.stream.silent_ms()
    }

    /// See [`Stream::disarm`].
    pub(super) fn disarm(&self) {
        self.stream.disarm();
    }

    /// Sends a frame, without payload or with a short one, now or after what is before it. `false`: no room.
    pub(super) fn queue(&mut self, header: &Header, payload: &[u8]) -> io::Result<bool> {
        if self.queue.len() >= QUEUE_MOST {
            self.flush()?;
            return Ok(false);
        }
        self.queue.extend_from_slice(&header.encode());
        self.queue.extend_from_slice(payload);
        if !matches!(header.kind, Kind::Announce | Kind::Expose) {
            self.owed = self.queue.len();
        }
        self.flush()?;
        Ok(true)
    }

    /// Sends what is queued, as far as it goes. `true` if something went.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        if self.sending.is_some() || self.queue.is_empty() {
            return Ok(false);
        }
        let sent = self.stream.send(&[IoSlice::new(&self.queue)])?;
        self.traffic.send(sent);
        self.dequeue(sent);
        Ok(sent > 0)
    }

    fn dequeue(&mut self, bytes: usize) {
        self.queue.drain(..bytes);
        self.owed = self.owed.saturating_sub(bytes);
    }

    /// Sends what is queued; whether nothing is left that somebody waits for, here or in the stream.
    pub(super) fn drain(&mut self) -> io::Result<bool> {
        self.flush()?;
        Ok(self.owed == 0 && self.stream.settled()?)
    }

    /// Reads and stores frames until there is nothing more, or one must be held.
    pub(super) fn receive(&mut self, receiver: &mut impl Receiver) -> Result<bool, Failure> {
        let mut budget = FAIR;
        let mut moved = false;
        // Whether the socket gave less than there was room for: it is empty now.
        let mut empty = false;
        while !self.held && budget > 0 && self.ended.is_none() {
            if let Some(arriving) = &mut self.arriving {
                let ready = arriving.missing.min(self.end - self.start);
                if ready > 0 {
                    let from = &self.ahead[self.start..self.start + ready];
                    if arriving.foreign {
                        let stored = self.stream.store(arriving.address, from);
                        stored.map_err(|error| Failure::Broken(error.to_string()))?;
                    } else {
                        // SAFETY:
                        // * `admit` gave room for the whole payload, `missing` counts down from it;
                        // * `ready` bytes stand in the read-ahead buffer.
                        unsafe {
                            std::ptr::copy_nonoverlapping(from.as_ptr(), arriving.address, ready)
                        };
                    }
                    self.start += ready;
                    arriving.take(ready);
                }
                if arriving.missing == 0 {
                    let Arriving { header, address, foreign, .. } = *arriving;
                    self.arriving = None;
                    if foreign && header.check.is_some() {
                        let cause = "a checksum of what is in a device's memory, where nobody can compute it";
                        return Err(Failure::Broken(cause.to_owned()));
                    }
                    self.check(&header, address)?;
                    self.land(&header, receiver)?;
                    moved = true;
                    continue;
                }
                if empty {
                    break;
                }
                // A long rest is received in place, without reading ahead.
                if arriving.missing >= self.ahead.len() / 4 || self.long {
                    let missing = arriving.missing;
                    let got = match receive_in_place(&self.stream, arriving)? {
                        Arrival::Bytes(got) => {
                            empty = got < missing;
                            got
                        }
                        Arrival::Placed(got) => {
                            self.take_placed(got);
                            budget = budget.saturating_sub(got);
                            moved = true;
                            continue;
                        }
                        Arrival::Nothing => break,
                        Arrival::End(cause) => {
                            self.ended = Some(cause);
                            break;
                        }
                    };
                    self.traffic.receive(got);
                    budget = budget.saturating_sub(got);
                    moved = true;
                    continue;
                }
            } else if let Some(header) = self.parse()? {
                match receiver.admit(&header)? {
                    Admission::Hold => {
                        self.held = true;
                        break;
                    }
                    admission => {
                        self.start += HEADER_BYTES;
                        self.take(header, &admission, receiver);
                        moved = true;
                        continue;
                    }
                }
            }
            if empty {
                break;
            }
            let Some((got, all)) = self.read_ahead() else { break };
            // Also what is no whole header yet: who looks again at once finds the rest.
            moved = true;
            empty = !all;
            budget = budget.saturating_sub(got);
        }
        self.looked = !moved;
        if moved {
            self.silent = 0;
        }
        Ok(moved)
    }

    fn take(&mut self, header: Header, admission: &Admission, receiver: &mut impl Receiver) {
        match *admission {
            Admission::Payload(address) => {
                let missing = usize::try_from(header.bytes).expect("checked against an area");
                self.long = missing >= self.ahead.len() / 8;
                let foreign = self.stream.is_foreign(address);
                self.arriving = Some(Arriving { header, address, missing, foreign });
            }
            Admission::Exposure => {
                let missing = usize::try_from(header.bytes).unwrap_or(0).min(EXPOSURE_BYTES_MOST);
                let address = self.exposure.as_mut_ptr();
                self.arriving = Some(Arriving { header, address, missing, foreign: false });
            }
            Admission::Done => receiver.land(&header),
            Admission::Skip | Admission::Hold => {}
        }
    }

    /// Compares a payload, which ends at an address, with the checksum that came with it.
    fn check(&self, header: &Header, end: *mut u8) -> Result<(), Failure> {
        let (Some(sent), Ok(bytes)) = (header.check, usize::try_from(header.bytes)) else {
            return Ok(());
        };
        // SAFETY: `admit` gave room for the whole payload, all of which has come; the plan lets nobody
        // else touch it until the put has landed.
        let payload = unsafe { std::slice::from_raw_parts(end.wrapping_sub(bytes), bytes) };
        let came = crc32c::crc32c(payload);
        if came == sent {
            return Ok(());
        }
        Err(Failure::Broken(format!(
            "{bytes} bytes that rank {} sent in operation {} came damaged: their CRC32C is {came:#010x} \
             and was {sent:#010x}; look at memory, adapters and switches between these hosts",
            self.peer, header.tag.sequence
        )))
    }

    /// All of a frame is there.
    fn land(&mut self, header: &Header, receiver: &mut impl Receiver) -> Result<(), Failure> {
        if header.kind != Kind::Expose {
            receiver.land(header);
            return Ok(());
        }
        let bytes = usize::try_from(header.bytes).unwrap_or(0).min(EXPOSURE_BYTES_MOST);
        let said = Exposure::decode(&self.exposure[..bytes]);
        let said = said.ok_or_else(|| Failure::Broken("memory is exposed by no address".into()))?;
        receiver.expose(header, said);
        Ok(())
    }

    /// Bytes of a payload lie where they belong.
    fn take_placed(&mut self, bytes: usize) {
        self.traffic.receive(bytes);
        let read_ahead = self.end - self.start;
        match &mut self.arriving {
            Some(arriving)
                if arriving.header.kind == Kind::Put
                    && read_ahead == 0
                    && bytes <= arriving.missing =>
            {
                arriving.take(bytes);
            }
            _ => {
                let cause = format!("{bytes} bytes were placed where none were expected");
                self.ended = Some(cause);
            }
        }
    }

    /// The next header, if all of it is there.
    fn parse(&self) -> Result<Option<Header>, Failure> {
        match self.ahead[self.start..self.end].first_chunk::<HEADER_BYTES>() {
            None => Ok(None),
            Some(bytes) => Header::decode(bytes).map(Some).map_err(Failure::Broken),
        }
    }

    /// The next header without acting on it.
    pub(super) fn peek(&mut self) -> io::Result<Option<Header>> {
        let invalid = |failure| match failure {
            Failure::Broken(cause) => io::Error::new(ErrorKind::InvalidData, cause),
            Failure::Mismatch { .. } => io::Error::from(ErrorKind::InvalidData),
        };
        if self.arriving.is_none() && self.parse().map_err(invalid)?.is_none() {
            self.read_ahead();
        }
        if self.arriving.is_some() { Ok(None) } else { self.parse().map_err(invalid) }
    }

    /// Fills the read-ahead buffer: with how many bytes, and whether that was all there is room
    /// for. `None` when there is nothing to read now.
    fn read_ahead(&mut self) -> Option<(usize, bool)> {
        if self.start > 0 {
            self.ahead.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let most = if self.long { AHEAD_LONG.min(self.ahead.len()) } else { self.ahead.len() };
        // What stands there is less than a header, or the part of a payload that is not long.
        let room = &mut self.ahead[self.end..most.max(self.end + 1)];
        let wanted = room.len();
        match self.stream.receive(room) {
            Arrival::Bytes(got) => {
                self.traffic.receive(got);
                self.end += got;
                Some((got, got == wanted))
            }
            Arrival::Placed(bytes) => {
                self.take_placed(bytes);
                Some((bytes, true))
            }
            Arrival::Nothing => None,
            Arrival::End(cause) => {
                self.ended = Some(cause);
                None
            }
        }
    }
}

impl Arriving {
    fn take(&mut self, bytes: usize) {
        self.address = self.address.wrapping_add(bytes);
        self.missing -= bytes;
    }
}

fn receive_in_place(stream: &impl Stream, arriving: &mut Arriving) -> Result<Arrival, Failure> {
    if arriving.foreign {
        let mut bounce = vec![0; arriving.missing.min(BOUNCE)];
        let arrived = stream.receive(&mut bounce);
        if let Arrival::Bytes(got) = arrived {
            let stored = stream.store(arriving.address, &bounce[..got]);
            stored.map_err(|error| Failure::Broken(error.to_string()))?;
            arriving.take(got);
        }
        return Ok(arrived);
    }
    // SAFETY:
    // * `admit` gave room for the whole payload, `missing` counts down from it;
    // * the plan lets nobody else touch those bytes until the put has landed;
    // * the slice lives for the system call only.
    let room = unsafe { std::slice::from_raw_parts_mut(arriving.address, arriving.missing) };
    let arrived = stream.receive(room);
    if let Arrival::Bytes(got) = arrived {
        arriving.take(got);
    }
    Ok(arrived)
}

#[cfg(test)]
mod tests;
