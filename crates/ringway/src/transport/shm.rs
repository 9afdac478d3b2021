//! Shared memory: peers map each other's segments and write into them.
//!
//! The segment is an anonymous memfd whose descriptor is passed over a Unix socket, so it needs no
//! `/dev/shm` and leaves nothing behind, however the process ends.

#![allow(unsafe_code, reason = "copies into mapped memory of a peer")]

mod attach;
mod bell;
pub(crate) mod flags;
mod segment;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::PollFlags;

pub(crate) use attach::{Attached, Meeting, attach_all, open_door};
pub(crate) use bell::Bell;
pub(crate) use segment::{GENERATIONS, Layout, Segment};

use super::{Area, Beginning, Context, Link, LinkDescription, OperationTag, PutRequest, Trouble};
use crate::plan::plan::{FLAGS_MAX, Flag, Region};
use crate::plan::types::Rank;
use crate::sync::atomic::Ordering;

/// Counters of one context of a link.
#[derive(Debug)]
struct Counters {
    tag: OperationTag,
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
    bell: Bell,
    contexts: Box<[Counters; 3]>,
    /// Collectives the peer is known to have completed.
    done: u64,
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
            remote_scratch: 0,
            base: [0; FLAGS_MAX],
            sent: [0; FLAGS_MAX],
        };
        Self {
            rank,
            peer: attached.peer,
            own,
            theirs: attached.segment,
            bell: attached.bell,
            contexts: Box::new([blank(), blank(), blank()]),
            done: 0,
            description,
        }
    }

    fn raise(&mut self, context: Context, flag: Flag) {
        let counters = &mut self.contexts[context as usize];
        let sent = &mut counters.sent[usize::from(flag)];
        *sent = sent.wrapping_add(1);
        let word = self.theirs.counter(self.rank, context.at_peer(), flag);
        flags::publish(word, counters.tag.tag, *sent);
        if flags::must_ring(self.theirs.sleeping()) {
            self.bell.ring();
        }
    }

    /// Whether the peer announced this operation, with whatever tag.
    fn has_entered(&self, sequence: u64) -> bool {
        let (announced, _) = self.theirs.announcement(sequence);
        announced.load(Ordering::Acquire) > sequence
    }

    /// Whether the peer announced this very operation, with another tag.
    fn announced_otherwise(&self, tag: OperationTag) -> bool {
        let (sequence, word) = self.theirs.announcement(tag.sequence);
        let seen = sequence.load(Ordering::Acquire);
        let theirs = word.load(Ordering::Acquire);
        seen == tag.sequence + 1
            && theirs != u64::from(tag.tag)
            && sequence.load(Ordering::Acquire) == seen
    }
}

/// Publishes what collective this rank is in, before it signals anybody.
pub(crate) fn announce(own: &Segment, tag: OperationTag) {
    let (sequence, word) = own.announcement(tag.sequence);
    sequence.store(0, Ordering::Relaxed);
    word.store(u64::from(tag.tag), Ordering::Release);
    sequence.store(tag.sequence + 1, Ordering::Release);
}

impl Link for ShmLink {
    fn begin(&mut self, context: Context, beginning: &Beginning) {
        let counters = &mut self.contexts[context as usize];
        counters.tag = beginning.tag;
        counters.remote_scratch = beginning.remote_scratch;
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
        // Another tag is a later collective of a peer that is ahead, or another call. Messages
        // are never ahead: each is drained before the next.
        if tag != counters.tag.tag {
            if context != Context::Collective || self.announced_otherwise(counters.tag) {
                let sequence = counters.tag.sequence;
                return Err(Trouble::Mismatch { peer: self.peer, sequence });
            }
            if !self.has_entered(counters.tag.sequence) {
                // A signal this rank's own call did not ask for: the peer is behind, in another
                // call than the one made here, and will say so.
                return Ok(false);
            }
        }
        Ok(flags::reached(raised, base, count))
    }

    fn window(&self) -> Option<Area> {
        Some(self.theirs.area())
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

    fn compare(&mut self, context: Context, tag: OperationTag) -> Result<(), Trouble> {
        if context == Context::Collective && self.announced_otherwise(tag) {
            return Err(Trouble::Mismatch { peer: self.peer, sequence: tag.sequence });
        }
        Ok(())
    }

    fn interest<'a>(&'a self, _wanted: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {}

    fn description(&self) -> &LinkDescription {
        &self.description
    }
}
