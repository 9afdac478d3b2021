//! The links of a rank, made worse: steps that must be tried again, puts that crawl, and, to see
//! that the simulator can fail, links that break the rules.

use crate::executor::{Fabric, Links};
use crate::plan::plan::{Flag, Remote};
use crate::plan::rng::Random;
use crate::plan::types::Rank;
use crate::transport::{Area, Context, OperationTag, PutRequest, Trouble};

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    /// Memory of peers is written without asking whether they are done with it.
    IgnoreGates,
    /// An operation is over while signals still wait to be sent.
    LeaveQueued,
    /// Results are taken without asking whether somebody made another call.
    BelieveAnything,
    /// Now and then a signal is not sent.
    DropSignals,
    /// Now and then a signal is seen before it was sent.
    SeeTooEarly,
}

/// See the module's text.
pub(super) struct Rough<'a> {
    pub(super) links: &'a mut Links,
    pub(super) random: &'a mut Random,
    pub(super) stall: u64,
    pub(super) mutation: Option<Mutation>,
    /// Something was refused for no reason: looking again helps.
    pub(super) stalled: bool,
}

impl Rough<'_> {
    fn stalls(&mut self) -> bool {
        let stalls = self.stall > 0 && self.random.percent(self.stall);
        self.stalled |= stalls;
        stalls
    }
}

impl Fabric for Rough<'_> {
    fn has_completed(&mut self, peer: Rank, operations: u64) -> bool {
        self.mutation == Some(Mutation::IgnoreGates) || self.links.has_completed(peer, operations)
    }

    fn undisputed(&mut self, peer: Rank, tag: OperationTag) -> Result<(), Trouble> {
        if self.mutation == Some(Mutation::BelieveAnything) {
            return Ok(());
        }
        self.links.undisputed(peer, tag)
    }

    fn flush(&mut self, peer: Rank) -> Result<bool, Trouble> {
        if self.mutation == Some(Mutation::LeaveQueued) {
            return Ok(true);
        }
        self.links.flush(peer)
    }

    fn expose(&mut self, tag: OperationTag, buffers: (&[Area], &[Area])) {
        self.links.expose(tag, buffers);
    }

    fn get(
        &mut self,
        peer: Rank,
        tag: OperationTag,
        source: Remote,
        target: (*mut u8, usize),
    ) -> Result<(), Trouble> {
        self.links.get(peer, tag, source, target)
    }

    fn settle(&mut self) {
        self.links.settle();
    }

    fn put(
        &mut self,
        peer: Rank,
        request: &PutRequest,
        cursor: &mut usize,
    ) -> Result<bool, Trouble> {
        if self.stalls() {
            return Ok(false);
        }
        let rest = request.bytes.saturating_sub(*cursor);
        if self.stall == 0 || rest < 2 || self.links.window(peer).is_none() {
            // A put into mapped memory that was begun in pieces ends in one.
            let done = if self.links.window(peer).is_some() { *cursor } else { 0 };
            return self.links.put(peer, &cut(request, done, request.bytes), cursor);
        }
        let end = *cursor + 1 + usize::try_from(self.random.below(rest as u64)).expect("below");
        let piece = cut(request, *cursor, end);
        self.links.put(peer, &piece, &mut 0)?;
        *cursor = end;
        self.stalled |= end < request.bytes;
        Ok(end == request.bytes)
    }

    fn signal(
        &mut self,
        peer: Rank,
        context: Context,
        lane: usize,
        flag: Flag,
    ) -> Result<bool, Trouble> {
        if self.mutation == Some(Mutation::DropSignals) && self.random.percent(20) {
            return Ok(true);
        }
        if self.stalls() {
            return Ok(false);
        }
        self.links.signal(peer, context, lane, flag)
    }

    fn reached(
        &mut self,
        peer: Rank,
        at: (Context, usize),
        flag: Flag,
        count: u32,
    ) -> Result<bool, Trouble> {
        if self.mutation == Some(Mutation::SeeTooEarly) && self.random.percent(20) {
            return Ok(true);
        }
        if self.stalls() {
            return Ok(false);
        }
        self.links.reached(peer, at, flag, count)
    }

    fn window(&self, peer: Rank) -> Option<Area> {
        self.links.window(peer)
    }

    fn show(&mut self, tag: OperationTag, card: u16, values: (*const u8, usize)) {
        if self.mutation == Some(Mutation::DropSignals) && self.random.percent(20) {
            return;
        }
        self.links.show(tag, card, values);
    }

    fn seen(&mut self, peer: Rank, tag: OperationTag, card: u16) -> Result<bool, Trouble> {
        if self.mutation == Some(Mutation::SeeTooEarly) && self.random.percent(20) {
            return Ok(true);
        }
        if self.stalls() {
            return Ok(false);
        }
        self.links.seen(peer, tag, card)
    }

    fn cards(&self, peer: Rank, tag: OperationTag) -> Option<Area> {
        self.links.cards(peer, tag)
    }
}

/// Bytes `start..end` of a put; the signal belongs to the last of them.
fn cut(request: &PutRequest, start: usize, end: usize) -> PutRequest {
    let mut piece = *request;
    piece.source = request.source.wrapping_add(start);
    piece.bytes = end - start;
    piece.target.offset += start as u64;
    piece.signal = request.signal.filter(|_| end == request.bytes);
    piece
}
