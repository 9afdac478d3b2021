//! Links over streams of bytes: several to a peer, one per group of lanes; what carries them is a transport's.
//!
//! A lane always uses the same stream (lane modulo streams), so what it sends arrives in
//! order. Puts land straight in the buffers they are for; what belongs to an operation that this
//! rank has not entered yet stays in the stream, so the sender is held back and no
//! staging is needed.

mod connection;
pub(crate) mod frame;
pub(crate) mod stream;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::{
    Area, Beginning, Context, Link, LinkDescription, OperationTag, Pair, PutRequest, Trouble,
};
use crate::plan::plan::{FLAGS_MAX, Flag, Region, Remote};
use crate::plan::types::Rank;
use crate::recorder::{Flow, Traffic};
pub(crate) use connection::AHEAD;
use connection::{Connection, Put};
use frame::{Header, Kind};
use stream::{Exposure, Stream};

/// Least bytes of memory that is exposed to the peer, and of a put that is written there.
const EXPOSED_LEAST: usize = 256 << 10;
const DIRECT_LEAST: usize = 32 << 10;

/// How often streams are asked how what was sent has fared: a system call each.
const FLOW_EVERY: Duration = Duration::from_millis(100);

/// What a link knows of the operation it is in, per context.
#[derive(Debug)]
struct Current {
    /// The operation's place in the sequence, while there is one.
    sequence: Option<u64>,
    /// Where puts may land.
    scratch: Area,
    outputs: Vec<Area>,
    /// The tag of what is sent, and the one that what comes must have: the operation's, and what
    /// the two ends of this link must agree on besides.
    tags: (u32, u32),
    raised: Box<[u32; FLAGS_MAX]>,
    announced: bool,
    /// Memory of this operation that bytes can be placed from.
    known: Vec<Area>,
    /// What the peer has exposed, and in which operation of its own.
    exposed: (OperationTag, Vec<(Region, Arc<Exposure>)>),
}

impl Current {
    /// Where a put can be written to from afar: the peer is in the same call, and both memories are known.
    fn direct(&self, request: &PutRequest) -> Option<&Arc<Exposure>> {
        let (tag, exposed) = &self.exposed;
        let is_now = Some(tag.sequence) == self.sequence && tag.tag == self.tags.1;
        if !is_now {
            return None;
        }
        let (address, bytes) = (request.source.addr(), request.bytes);
        let holds = |area: &Area| {
            let start = area.address.addr();
            start <= address && address + bytes <= start + area.bytes
        };
        let mut found = exposed.iter().filter(|(region, _)| *region == request.target.region);
        let (_, exposure) = found.next().filter(|_| self.known.iter().any(holds))?;
        exposure.at(request.target.offset, bytes as u64).map(|_| exposure)
    }
}

/// Regions that a peer exposes in an operation, at most.
const EXPOSURES_MOST: usize = 64;

/// The end of a link over streams.
#[derive(Debug)]
pub(crate) struct FramedLink<S> {
    peer: Rank,
    connections: Vec<Connection<S>>,
    contexts: [Current; 3],
    description: LinkDescription,
    traffic: Arc<Traffic>,
    /// When the streams were last asked how it fares.
    asked: Instant,
}

impl<S: Stream> FramedLink<S> {
    /// A link over streams that never block, each read up to `ahead` bytes ahead.
    pub(crate) fn over(
        peer: Rank,
        streams: Vec<S>,
        ahead: usize,
        description: LinkDescription,
    ) -> Self {
        let traffic = Arc::<Traffic>::default();
        let connection = |stream| {
            let mut connection = Connection::new(peer, stream, ahead);
            connection.count_in(&traffic);
            connection
        };
        let connections = streams.into_iter().map(connection).collect();
        let blank = || Current {
            sequence: None,
            scratch: Area { address: std::ptr::null_mut(), bytes: 0 },
            outputs: Vec::new(),
            tags: (0, 0),
            raised: Box::new([0; FLAGS_MAX]),
            announced: false,
            known: Vec::new(),
            exposed: (OperationTag { sequence: u64::MAX, tag: 0 }, Vec::new()),
        };
        let contexts = [blank(), blank(), blank()];
        Self { peer, connections, contexts, description, traffic, asked: Instant::now() }
    }

    /// Asks the streams how what was sent has fared.
    fn note_flow(&self) {
        let flows = self.connections.iter().map(Connection::flow);
        self.traffic.note(flows.fold(Flow::default(), Flow::and));
    }

    /// Sends a CRC32C with every payload if `checks`; what comes with one is always checked.
    pub(crate) fn checking(mut self, checks: bool) -> Self {
        self.connections.iter_mut().for_each(|connection| connection.set_checks(checks));
        self
    }

    fn connection(&self, lane: usize) -> usize {
        lane % self.connections.len()
    }

    fn header(&self, kind: Kind, context: Context, flag: Option<Flag>) -> Header {
        let current = &self.contexts[context as usize];
        let sequence = current.sequence.unwrap_or(u64::MAX);
        let tag = OperationTag { sequence, tag: current.tags.0 };
        let target = Remote { region: Region::Scratch, offset: 0 };
        Header { kind, context, tag, flag, target, bytes: 0, check: None }
    }

    /// Makes an operation's memory known to the streams, and tells the peer where it may write.
    fn expose(&mut self, context: Context, beginning: &Beginning<'_>) {
        let outputs = (0..).zip(beginning.outputs).map(|(at, area)| (Region::Output(at), *area));
        let targets = outputs.chain([(Region::Scratch, beginning.scratch)]);
        // A device's memory in any case: nothing else reaches it as well, and a peer that puts more there than is wanted, be it
        // nothing, learns so by this.
        let is_worth = |link: &Self, area: &Area| {
            area.bytes >= EXPOSED_LEAST || link.connections[0].is_foreign(area.address)
        };
        for (region, area) in targets {
            if !is_worth(self, &area) {
                continue;
            }
            let Some(exposure) = self.connections[0].expose(area) else { continue };
            let mut header = self.header(Kind::Expose, context, None);
            let payload = exposure.encode();
            header.target.region = region;
            header.bytes = payload.len() as u64;
            // What does not go out is a matter of speed; an end is found by who waits.
            let _sent = self.connections[0].queue(&header, &payload);
            self.contexts[context as usize].known.push(area);
        }
        for area in beginning.inputs {
            if is_worth(self, area) && self.connections[0].expose(*area).is_some() {
                self.contexts[context as usize].known.push(*area);
            }
        }
    }

    fn broken(&self, cause: impl std::fmt::Display) -> Trouble {
        Trouble::Broken { peer: self.peer, cause: cause.to_string() }
    }

    /// Reads what one connection has.
    fn receive(&mut self, index: usize) -> Result<bool, Trouble> {
        let outcome = self.connections[index].receive(&mut Operations(&mut self.contexts));
        outcome.map_err(|failure| self.trouble(failure))
    }

    fn trouble(&self, failure: connection::Failure) -> Trouble {
        let peer = self.peer;
        match failure {
            connection::Failure::Mismatch { sequence } => Trouble::Mismatch { peer, sequence },
            connection::Failure::Broken(cause) => Trouble::Broken { peer, cause },
        }
    }
}

/// The operations of a link, as its connections see them.
struct Operations<'a>(&'a mut [Current; 3]);

impl connection::Receiver for Operations<'_> {
    fn admit(&self, header: &Header) -> Result<connection::Admission, connection::Failure> {
        admit(self.0, header)
    }

    /// A frame is complete: its signal counts.
    fn land(&mut self, header: &Header) {
        if let Some(flag) = header.flag {
            let raised = &mut self.0[header.context.at_peer() as usize].raised[usize::from(flag)];
            *raised = raised.saturating_add(1);
        }
    }

    fn expose(&mut self, header: &Header, exposure: Exposure) {
        let exposed = &mut self.0[header.context.at_peer() as usize].exposed;
        if exposed.0 != header.tag {
            *exposed = (header.tag, Vec::new());
        }
        // As many as an operation can have.
        if exposed.1.len() < EXPOSURES_MOST {
            exposed.1.push((header.target.region, Arc::new(exposure)));
        }
    }
}

/// What to do with a frame, by its header.
fn admit(
    contexts: &[Current; 3],
    header: &Header,
) -> Result<connection::Admission, connection::Failure> {
    use connection::{Admission, Failure};
    let current = &contexts[header.context.at_peer() as usize];
    if header.kind == Kind::Expose {
        // Whatever this rank is in: it is looked at when something is put there.
        return Ok(if header.bytes == 0 { Admission::Skip } else { Admission::Exposure });
    }
    let Some(sequence) = current.sequence else {
        return Ok(if header.kind == Kind::Announce { Admission::Skip } else { Admission::Hold });
    };
    if header.tag.sequence == sequence {
        if header.tag.tag != current.tags.1 {
            return Err(Failure::Mismatch { sequence: header.tag.sequence });
        }
    } else if header.kind == Kind::Announce {
        return Ok(Admission::Skip);
    } else if header.tag.sequence > sequence {
        return Ok(Admission::Hold);
    } else {
        // It is over here, where the call made did not ask for this frame.
        return Err(Failure::Mismatch { sequence: header.tag.sequence });
    }
    if header.kind != Kind::Put || header.bytes == 0 {
        return Ok(if header.kind == Kind::Announce { Admission::Skip } else { Admission::Done });
    }
    let area = match header.target.region {
        Region::Output(index) => current.outputs.get(usize::from(index)).copied(),
        _ => Some(current.scratch),
    };
    area.and_then(|area| area.at(header.target.offset, header.bytes))
        .map(Admission::Payload)
        .ok_or_else(|| {
            Failure::Broken(format!(
                "a put of {} bytes at {} lies outside the {:?} it is for",
                header.bytes, header.target.offset, header.target.region
            ))
        })
}

impl<S: Stream> Link for FramedLink<S> {
    fn begin(&mut self, context: Context, beginning: &Beginning<'_>) {
        let current = &mut self.contexts[context as usize];
        let pair = Pair::of(beginning.pairs, self.peer);
        current.tags = (beginning.tag.tag ^ pair.sent, beginning.tag.tag ^ pair.received);
        current.sequence = Some(beginning.tag.sequence);
        current.scratch = beginning.scratch;
        current.outputs.clear();
        current.outputs.extend_from_slice(beginning.outputs);
        current.raised.fill(0);
        current.announced = false;
        for connection in &mut self.connections {
            connection.resume();
        }
        self.expose(context, beginning);
    }

    fn end(&mut self, context: Context, _received: &[(Flag, u32)]) {
        self.contexts[context as usize].sequence = None;
        self.contexts[context as usize].known.clear();
        if self.contexts.iter().all(|current| current.sequence.is_none()) {
            self.connections[0].forget();
        }
        let now = Instant::now();
        if now.saturating_duration_since(self.asked) > FLOW_EVERY {
            self.asked = now;
            self.note_flow();
        }
    }

    fn disarm(&self) {
        self.connections.iter().for_each(Connection::disarm);
    }

    fn put(&mut self, request: &PutRequest, cursor: &mut usize) -> Result<bool, Trouble> {
        let mut header = self.header(Kind::Put, request.context, request.signal);
        header.target = request.target;
        header.bytes = request.bytes as u64;
        let index = self.connection(request.lane);
        let connection = &self.connections[index];
        let foreign = request.bytes > 0 && connection.is_foreign(request.source);
        let current = &self.contexts[request.context as usize];
        let may = foreign || request.bytes >= DIRECT_LEAST;
        let direct = may.then(|| current.direct(request)).flatten();
        if foreign && direct.is_none() && *cursor == 0 {
            if let Some(cause) = connection.ended() {
                return Err(self.broken(cause));
            }
            let (said, _) = &current.exposed;
            if Some(said.sequence) == current.sequence && said.tag != current.tags.1 {
                return Err(Trouble::Mismatch { peer: self.peer, sequence: said.sequence });
            }
            // The peer says where, when it comes to it; unless what is held stands before its word.
            if !connection.is_held() {
                return Ok(false);
            }
        }
        let put = Put {
            owner: (request.context, request.lane),
            header: &header,
            source: request.source,
            bytes: request.bytes,
            direct: direct.map(|exposure| (exposure, request.target.offset)),
        };
        let outcome = self.connections[index].put(&put, cursor);
        outcome.map_err(|e| self.broken(e))
    }

    fn signal(&mut self, context: Context, lane: usize, flag: Flag) -> Result<bool, Trouble> {
        let header = self.header(Kind::Signal, context, Some(flag));
        let index = self.connection(lane);
        self.connections[index].queue(&header, &[]).map_err(|e| self.broken(e))
    }

    fn reached(
        &mut self,
        context: Context,
        lane: usize,
        flag: Flag,
        count: u32,
    ) -> Result<bool, Trouble> {
        if self.contexts[context as usize].raised[usize::from(flag)] >= count {
            return Ok(true);
        }
        let index = self.connection(lane);
        self.receive(index)?;
        if self.connections[index].ended().is_some() {
            // The peer's lane may be another one: what it sent may stand in any connection.
            for other in 0..self.connections.len() {
                self.receive(other)?;
            }
        }
        let reached = self.contexts[context as usize].raised[usize::from(flag)] >= count;
        let over = self.connections.iter().all(|connection| connection.ended().is_some());
        match self.connections[index].ended() {
            Some(cause) if over && !reached => Err(self.broken(cause)),
            _ => Ok(reached),
        }
    }

    fn flush(&mut self) -> Result<bool, Trouble> {
        let mut out = true;
        for index in 0..self.connections.len() {
            if self.connections[index].ended().is_none() {
                out &= self.connections[index].drain().map_err(|e| self.broken(e))?;
            }
        }
        Ok(out)
    }

    fn poll(&mut self) -> Result<bool, Trouble> {
        let mut moved = false;
        for index in 0..self.connections.len() {
            let outcome = self.connections[index].poll(&mut Operations(&mut self.contexts));
            moved |= outcome.map_err(|failure| self.trouble(failure))?;
            if self.connections[index].ended().is_none() {
                moved |= self.connections[index].flush().map_err(|e| self.broken(e))?;
            }
        }
        Ok(moved)
    }

    fn compare(
        &mut self,
        context: Context,
        tag: OperationTag,
        pairs: Option<&[Pair]>,
    ) -> Result<(), Trouble> {
        let pair = Pair::of(pairs, self.peer);
        let current = &mut self.contexts[context as usize];
        let entered = current.sequence == Some(tag.sequence);
        if !std::mem::replace(&mut current.announced, true) && self.connections[0].ended().is_none()
        {
            let mut header = self.header(Kind::Announce, context, None);
            header.tag = OperationTag { tag: tag.tag ^ pair.sent, ..tag };
            self.connections[0].queue(&header, &[]).map_err(|e| self.broken(e))?;
        }
        if entered {
            return self.poll().map(|_| ());
        }
        // This rank's plan expects nothing of the peer, or not yet: only look.
        for connection in &mut self.connections {
            if let Some(header) = connection
                .peek()
                .map_err(|e| Trouble::Broken { peer: self.peer, cause: e.to_string() })?
            {
                let sequence = header.tag.sequence;
                let odd = sequence == tag.sequence && header.tag.tag != tag.tag ^ pair.received;
                // What says something of an operation that is over here is late; anything else of it
                // was not asked for by the call made here.
                let says = matches!(header.kind, Kind::Announce | Kind::Expose);
                let unasked = sequence < tag.sequence && !says;
                if header.context.at_peer() == context && (odd || unasked) {
                    return Err(Trouble::Mismatch { peer: self.peer, sequence });
                }
            }
        }
        Ok(())
    }

    fn interest<'a>(&'a self, wanted: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        for connection in &self.connections {
            connection.interest(wanted);
        }
    }

    fn traffic(&self) -> Option<Arc<Traffic>> {
        Some(Arc::clone(&self.traffic))
    }

    fn silent_ms(&self) -> Option<u64> {
        self.note_flow();
        self.connections.iter().filter_map(Connection::silent_ms).max()
    }

    fn description(&self) -> &LinkDescription {
        &self.description
    }
}

#[cfg(test)]
mod tests;
