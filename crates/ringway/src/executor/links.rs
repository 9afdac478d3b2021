//! The links of a communicator as the world its executions run in, and how it waits.

#![allow(unsafe_code, reason = "writes to cards, which peers map")]

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::{CARD_HEAD, Fabric};
use crate::plan::plan::{CARD_BYTES, CARD_STRIDE, Flag};
use crate::plan::types::Rank;
use crate::sync::atomic::{Ordering, fence};
use crate::transport::shm::{Bell, Segment, flags};
use crate::transport::{Area, Context, Link, OperationTag, PutRequest, Trouble};

/// The connections of this rank, made when first needed.
#[derive(Debug)]
pub(crate) struct Links {
    rank: Rank,
    own: std::sync::Arc<Segment>,
    bell: Bell,
    links: Vec<Option<Box<dyn Link>>>,
}

impl Links {
    pub(crate) fn new(rank: Rank, ranks: u32, own: std::sync::Arc<Segment>, bell: Bell) -> Self {
        let links = (0..ranks).map(|_| None).collect();
        Self { rank, own, bell, links }
    }

    pub(crate) fn insert(&mut self, peer: Rank, link: Box<dyn Link>) {
        self.links[peer as usize] = Some(link);
    }

    pub(crate) fn contains(&self, peer: Rank) -> bool {
        peer == self.rank || self.links[peer as usize].is_some()
    }

    pub(crate) fn link(&mut self, peer: Rank) -> &mut dyn Link {
        self.links[peer as usize].as_deref_mut().expect("links are made before a plan runs")
    }

    /// Every link there is.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Link>> {
        self.links.iter_mut().flatten()
    }

    /// Moves bytes on the links to `peers` that no lane is looking at.
    pub(crate) fn poll(&mut self, peers: &[Rank]) -> Result<bool, Trouble> {
        let mut moved = false;
        for peer in peers {
            if let Some(link) = &mut self.links[*peer as usize] {
                moved |= link.poll()?;
            }
        }
        Ok(moved)
    }

    /// Announces that this rank will sleep: everything must be looked at once more before
    /// [`Links::sleep`].
    pub(crate) fn lie_down(&self) {
        flags::lie_down(self.own.sleeping());
    }

    /// Sleeps until a peer signals, a socket is ready, the bell rings, or `limit` has passed.
    pub(crate) fn sleep<'a>(&self, peers: impl Iterator<Item = &'a Rank>, limit: Duration) {
        let mut wanted: Vec<(BorrowedFd<'_>, PollFlags)> = vec![(self.bell.as_fd(), PollFlags::IN)];
        for peer in peers {
            if let Some(link) = &self.links[*peer as usize] {
                link.interest(&mut wanted);
            }
        }
        let mut polled: Vec<PollFd<'_>> =
            wanted.iter().map(|(fd, flags)| PollFd::new(fd, *flags)).collect();
        let limit = rustix::time::Timespec::try_from(limit).ok();
        // Interrupted or not, the caller looks at everything again.
        let _ = rustix::event::poll(&mut polled, limit.as_ref());
        self.get_up();
        self.bell.hush();
    }

    /// Takes [`Links::lie_down`] back.
    pub(crate) fn get_up(&self) {
        flags::get_up(self.own.sleeping());
    }
}

impl Fabric for Links {
    fn has_completed(&mut self, peer: Rank, operations: u64) -> bool {
        self.link(peer).has_completed(operations)
    }

    fn undisputed(&mut self, peer: Rank, tag: OperationTag) -> Result<(), Trouble> {
        self.link(peer).undisputed(tag)
    }

    fn flush(&mut self, peer: Rank) -> Result<bool, Trouble> {
        self.link(peer).flush()
    }

    fn put(
        &mut self,
        peer: Rank,
        request: &PutRequest,
        cursor: &mut usize,
    ) -> Result<bool, Trouble> {
        self.link(peer).put(request, cursor)
    }

    fn signal(
        &mut self,
        peer: Rank,
        context: Context,
        lane: usize,
        flag: Flag,
    ) -> Result<bool, Trouble> {
        self.link(peer).signal(context, lane, flag)
    }

    fn reached(
        &mut self,
        peer: Rank,
        (context, lane): (Context, usize),
        flag: Flag,
        count: u32,
    ) -> Result<bool, Trouble> {
        self.link(peer).reached(context, lane, flag, count)
    }

    fn window(&self, peer: Rank) -> Option<Area> {
        self.links[peer as usize].as_ref().and_then(|link| link.window())
    }

    unsafe fn show(&mut self, tag: OperationTag, card: u16, source: *const u8, bytes: usize) {
        let at = self.own.cards(tag.sequence) + u64::from(card) * CARD_STRIDE + CARD_HEAD;
        assert!(bytes as u64 <= CARD_BYTES, "plans are proved before they run");
        let target = self.own.area().at(at, CARD_BYTES).expect("cards are inside the segment");
        // SAFETY:
        // * the target is inside this rank's segment, and the length was checked just now;
        // * the caller vouches for the source;
        // * nobody reads the card before it is turned up, and who read what it showed before has
        //   completed that operation.
        unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
        flags::turn_up(self.own.card(tag.sequence, card), tag.tag, tag.sequence);
        // Who lies down looks once more after its fence; this is the other one.
        fence(Ordering::SeqCst);
        for link in self.links.iter_mut().flatten() {
            link.wake();
        }
    }

    fn seen(&mut self, peer: Rank, tag: OperationTag, card: u16) -> Result<bool, Trouble> {
        self.link(peer).seen(tag, card)
    }

    fn cards(&self, peer: Rank, tag: OperationTag) -> Option<Area> {
        self.links[peer as usize].as_ref().and_then(|link| link.cards(tag.sequence))
    }
}
