//! Shared memory: peers map each other's segments and write into them.
//!
//! The segment is an anonymous memfd whose descriptor is passed over a Unix socket, so it needs no
//! `/dev/shm` and leaves nothing behind, however the process ends.

#![allow(unsafe_code, reason = "copies into mapped memory of a peer")]

mod attach;
mod bell;
pub(crate) mod flags;
mod reach;
mod segment;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::PollFlags;

pub(crate) use attach::{Attached, Meeting, attach_all, open_door};
pub(crate) use bell::Bell;
pub(crate) use reach::Reach;
pub(crate) use segment::{GENERATIONS, LARGES, Layout, Segment};

use super::{
    Area, Beginning, Context, Link, LinkDescription, OperationTag, Pair, PutRequest, Trouble,
};
use crate::os;
use crate::plan::plan::{CARD_BYTES, CARD_STRIDE, CARDS_MAX, FLAGS_MAX, Flag, Region, Remote};
use crate::plan::types::Rank;
use crate::sync::atomic::{Ordering, fence};

/// Bytes of a card before its values: the word that says whose they are.
const CARD_HEAD: u64 = 8;

/// Counters of one context of a link.
#[derive(Debug)]
struct Counters {
    tag: OperationTag,
    /// What the peer must say of the pair, until it has.
    pair: Option<Pair>,
    remote_scratch: u64,
    /// Signals received before this operation, by flag.
    base: [u32; FLAGS_MAX],
    /// Signals sent ever, by flag.
    sent: [u32; FLAGS_MAX],
}

/// The end of a shared memory connection.
#[derive(Debug)]
pub(crate) struct ShmLink {
    rank: Rank,
    peer: Rank,
    own: Arc<Segment>,
    theirs: Arc<Segment>,
    /// The way into the peer's memory, where there is one.
    reach: Option<Reach>,
    bell: Bell,
    contexts: Box<[Counters; 3]>,
    /// Collectives the peer is known to have completed.
    done: u64,
    /// Collectives the peer is known to have entered with the calls made here.
    agreed: u64,
    description: LinkDescription,
}

impl ShmLink {
    pub(crate) fn new(
        rank: Rank,
        own: Arc<Segment>,
        attached: Attached,
        description: LinkDescription,
    ) -> Self {
        let blank = || Counters {
            tag: OperationTag { sequence: u64::MAX, tag: 0 },
            pair: None,
            remote_scratch: 0,
            base: [0; FLAGS_MAX],
            sent: [0; FLAGS_MAX],
        };
        Self {
            rank,
            peer: attached.peer,
            own,
            theirs: attached.segment,
            reach: attached.reach.ok(),
            bell: attached.bell,
            contexts: Box::new([blank(), blank(), blank()]),
            done: 0,
            agreed: 0,
            description,
        }
    }

    fn raise(&mut self, context: Context, flag: Flag) {
        let counters = &mut self.contexts[context as usize];
        let sent = &mut counters.sent[usize::from(flag)];
        *sent = sent.wrapping_add(1);
        let word = self.theirs.counter(self.rank, context.at_peer(), flag);
        flags::publish(word, counters.tag.tag, *sent);
    }

    /// The peer is in collective `sequence`, or further, with the calls made here: it has completed
    /// all before.
    fn has_entered(&mut self, sequence: u64) {
        self.agreed = self.agreed.max(sequence + 1);
        self.done = self.done.max(sequence);
    }

    /// Compares calls up to `sequence` with those the peer has announced: whether it has entered
    /// all of them.
    fn agree(&mut self, sequence: u64) -> Result<bool, Trouble> {
        // What was announced long ago one of the two may have announced over. A tag covers all calls
        // before it, so the last ones tell as much.
        self.agreed = self.agreed.max(sequence.saturating_sub(segment::ANNOUNCED / 2));
        while self.agreed <= sequence {
            let next = self.agreed;
            let Some(theirs) = flags::posted(self.theirs.announcement(next), next) else {
                return Ok(false);
            };
            if Some(theirs) != flags::posted(self.own.announcement(next), next) {
                return Err(Trouble::Mismatch { peer: self.peer, sequence: next });
            }
            self.agreed = next + 1;
        }
        Ok(true)
    }

    /// Compares what both ends say of this pair, if the peer has said it.
    fn agree_on_pair(&mut self, context: Context) -> Result<(), Trouble> {
        let counters = &mut self.contexts[context as usize];
        let Some(pair) = counters.pair else { return Ok(()) };
        let sequence = counters.tag.sequence;
        match flags::posted(self.theirs.pair(self.rank, sequence), sequence) {
            None => {}
            Some(theirs) if theirs == pair.seen_from_peer().word() => counters.pair = None,
            Some(_) => return Err(Trouble::Mismatch { peer: self.peer, sequence }),
        }
        Ok(())
    }
}

/// Publishes what collective this rank is in, before it signals anybody.
pub(crate) fn announce(own: &Segment, tag: OperationTag) {
    flags::post(own.announcement(tag.sequence), tag.sequence, u64::from(tag.tag));
}

/// Says where this rank's buffers are, before it turns up the card that lets others read them.
pub(crate) fn expose(own: &Segment, tag: OperationTag, (inputs, outputs): (&[Area], &[Area])) {
    for (index, (input, output)) in inputs.iter().zip(outputs).enumerate() {
        let (at_input, at_output) = own.buffers(tag.sequence, index);
        // The card is turned up with release.
        at_input.store(input.address.expose_provenance() as u64, Ordering::Relaxed);
        at_output.store(output.address.expose_provenance() as u64, Ordering::Relaxed);
    }
}

/// Turns up a card of this rank with the bytes at an address on it.
pub(crate) fn turn_up(own: &Segment, tag: OperationTag, card: u16, values: (*const u8, usize)) {
    let (source, bytes) = values;
    let at = own.cards(tag.sequence) + u64::from(card) * CARD_STRIDE + CARD_HEAD;
    let target = own.area().at(at, CARD_BYTES).filter(|_| bytes as u64 <= CARD_BYTES);
    let target = target.expect("plans are proved before they run: the values fit the card");
    // SAFETY:
    // * the target is inside this rank's segment, and the length was checked just now;
    // * the source is a span of this rank's memory, resolved by the execution;
    // * nobody reads the card before it is turned up, and who read what it showed before has
    //   completed that operation.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
    flags::turn_up(own.card(tag.sequence, card), tag.tag, tag.sequence);
}

impl Link for ShmLink {
    fn begin(&mut self, context: Context, beginning: &Beginning<'_>) {
        let counters = &mut self.contexts[context as usize];
        counters.tag = beginning.tag;
        counters.remote_scratch = beginning.remote_scratch;
        counters.pair = beginning.pairs.map(|pairs| pairs[self.peer as usize]);
        if let Some(pair) = counters.pair {
            let sequence = beginning.tag.sequence;
            flags::post(self.own.pair(self.peer, sequence), sequence, pair.word());
            // Both ends post, then look: one of the two sees the other.
            fence(Ordering::SeqCst);
        }
    }

    fn end(&mut self, context: Context, received: &[(Flag, u32)]) {
        let counters = &mut self.contexts[context as usize];
        for (flag, count) in received {
            let base = &mut counters.base[usize::from(*flag)];
            *base = base.wrapping_add(*count);
        }
    }

    fn put(&mut self, request: &PutRequest, cursor: &mut usize) -> Result<bool, Trouble> {
        debug_assert_eq!(request.target.region, Region::Scratch, "only scratch is mapped");
        let base = self.contexts[request.context as usize].remote_scratch;
        let target = self
            .theirs
            .area()
            .at(base + request.target.offset, request.bytes as u64)
            .expect("plans are proved before they run: the put is inside the peer's scratch");
        // SAFETY:
        // * the target is inside the peer's segment, checked just now;
        // * the source is a span of this rank's memory, resolved by the execution;
        // * a verified plan lets nobody else touch either meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(request.source, target, request.bytes) };
        *cursor = request.bytes;
        if let Some(flag) = request.signal {
            self.raise(request.context, flag);
        }
        Ok(true)
    }

    fn get(
        &mut self,
        tag: OperationTag,
        source: Remote,
        (target, bytes): (*mut u8, usize),
    ) -> Result<(), Trouble> {
        let (index, is_input) = match source.region {
            Region::Input(index) => (index, true),
            Region::Output(index) => (index, false),
            other => panic!("plans are proved before they run: {other:?} is not read by gets"),
        };
        let (input, output) = self.theirs.buffers(tag.sequence, usize::from(index));
        // The card that lets us read was looked at with acquire.
        let base = if is_input { input } else { output }.load(Ordering::Relaxed);
        let broken = |cause: String| Trouble::Broken { peer: self.peer, cause };
        let Some(reach) = self.reach.as_ref().filter(|_| base != 0) else {
            return Err(broken("its memory cannot be read from here".to_owned()));
        };
        // SAFETY:
        // * the target is a span of this rank's memory, resolved by the execution;
        // * a verified plan lets nobody else touch it meanwhile, and lets the peer leave its buffers
        //   as they are until it is told that this is over.
        unsafe { reach.read(base.wrapping_add(source.offset), target, bytes) }.map_err(broken)
    }

    fn signal(&mut self, context: Context, _lane: usize, flag: Flag) -> Result<bool, Trouble> {
        self.raise(context, flag);
        Ok(true)
    }

    fn reached(
        &mut self,
        context: Context,
        _lane: usize,
        flag: Flag,
        count: u32,
    ) -> Result<bool, Trouble> {
        let counters = &self.contexts[context as usize];
        let base = counters.base[usize::from(flag)];
        let (tag, raised) = flags::read(self.own.counter(self.peer, context, flag));
        if raised.wrapping_sub(base).wrapping_sub(1) >= u32::MAX / 2 {
            return Ok(false); // nothing yet in this operation
        }
        let sequence = counters.tag.sequence;
        if tag == counters.tag.tag {
            // The tag of a collective covers all that came before it.
            if context == Context::Collective {
                self.has_entered(sequence);
            }
        } else if context != Context::Collective {
            // Messages are never ahead: each is drained before the next.
            return Err(Trouble::Mismatch { peer: self.peer, sequence });
        } else if !self.agree(sequence)? {
            // A signal this rank's own call did not ask for: the peer is behind, in another
            // call than the one made here, and will say so.
            return Ok(false);
        }
        self.agree_on_pair(context)?;
        Ok(flags::reached(raised, base, count))
    }

    fn window(&self) -> Option<Area> {
        Some(self.theirs.area())
    }

    fn seen(&mut self, tag: OperationTag, card: u16) -> Result<bool, Trouble> {
        match flags::look(self.theirs.card(tag.sequence, card), tag.tag, tag.sequence) {
            None => Ok(false),
            Some(true) => {
                self.has_entered(tag.sequence);
                Ok(true)
            }
            Some(false) => {
                self.agree(tag.sequence)?;
                Err(Trouble::Mismatch { peer: self.peer, sequence: tag.sequence })
            }
        }
    }

    fn fetch_card(&self, sequence: u64, card: u16) {
        os::fetch_to_read(self.theirs.card(sequence, card));
    }

    fn cards(&self, sequence: u64) -> Option<Area> {
        // From the first value on, so that offsets of a plan are offsets here.
        let bytes = CARDS_MAX as u64 * CARD_STRIDE - CARD_HEAD;
        let address = self.theirs.area().at(self.theirs.cards(sequence) + CARD_HEAD, bytes)?;
        Some(Area { address, bytes: usize::try_from(bytes).ok()? })
    }

    fn wake(&mut self) {
        if flags::sleeps(self.theirs.sleeping()) {
            self.bell.ring();
        }
    }

    fn completed(&self) -> u64 {
        self.done
    }

    fn has_completed(&mut self, operations: u64) -> bool {
        if self.done < operations {
            self.done = flags::completed(self.theirs.done());
        }
        self.done >= operations
    }

    fn poll(&mut self) -> Result<bool, Trouble> {
        Ok(false)
    }

    fn undisputed(&mut self, tag: OperationTag) -> Result<(), Trouble> {
        self.agree(tag.sequence)?;
        self.agree_on_pair(Context::Collective)
    }

    fn compare(
        &mut self,
        context: Context,
        tag: OperationTag,
        _pairs: Option<&[Pair]>,
    ) -> Result<(), Trouble> {
        if context == Context::Collective { self.undisputed(tag) } else { Ok(()) }
    }

    fn interest<'a>(&'a self, _wanted: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {}

    fn description(&self) -> &LinkDescription {
        &self.description
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// This rank's link to another, and the segments of both.
    fn link() -> (ShmLink, [Arc<Segment>; 2]) {
        let layout = Layout::new(2, 1 << 16);
        let segment = || Arc::new(Segment::create(layout).expect("memory for a segment").0);
        let (own, theirs) = (segment(), segment());
        let description = LinkDescription {
            peer: 1,
            transport: "SHM",
            detail: String::new(),
            reason: String::new(),
        };
        let bell = Bell::new().expect("a descriptor for a bell");
        let attached =
            Attached { peer: 1, segment: Arc::clone(&theirs), bell, reach: Ok(Reach::own()) };
        (ShmLink::new(0, Arc::clone(&own), attached, description), [own, theirs])
    }

    fn tag(sequence: u64) -> OperationTag {
        OperationTag { sequence, tag: 7 }
    }

    /// Ranks may have nothing to do with each other in many operations. When they do again, one of
    /// them may just have announced over an operation that the other still shows.
    #[test]
    fn calls_long_ago_are_not_taken_for_others() {
        for apart in 0..8 {
            for last in 0..3 * segment::ANNOUNCED {
                let (mut link, [own, theirs]) = link();
                (0..=last).for_each(|sequence| announce(&own, tag(sequence)));
                (0..=last.saturating_sub(apart))
                    .for_each(|sequence| announce(&theirs, tag(sequence)));
                assert_eq!(link.undisputed(tag(last)), Ok(()), "{apart} behind at {last}");
            }
        }
    }

    #[test]
    fn another_call_is_seen_however_long_ago_the_last_look_was() {
        for last in 0..3 * segment::ANNOUNCED {
            let (mut link, [own, theirs]) = link();
            (0..=last).for_each(|sequence| announce(&own, tag(sequence)));
            (0..last).for_each(|sequence| announce(&theirs, tag(sequence)));
            announce(&theirs, OperationTag { sequence: last, tag: 8 });
            let seen = link.undisputed(tag(last));
            assert_eq!(seen, Err(Trouble::Mismatch { peer: 1, sequence: last }), "at {last}");
        }
    }
}
