//! The links of a communicator as the world its executions run in, and how it waits.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::Fabric;
use crate::plan::plan::{Flag, Remote};
use crate::plan::types::Rank;
use crate::recorder::Counter;
use crate::transport::shm::{self, Bell, Segment, flags};
use crate::transport::{Area, Context, Link, OperationTag, PutRequest, Trouble};

/// The connections of this rank, made when first needed.
#[derive(Debug)]
pub(crate) struct Links {
    rank: Rank,
    own: std::sync::Arc<Segment>,
    bell: Bell,
    links: Vec<Option<Box<dyn Link>>>,
    /// Peers that were signalled and may sleep.
    signalled: Vec<Rank>,
    /// Whether all may, because a card was turned up.
    shown: bool,
    /// What times are taken from.
    counter: Counter,
    /// When the first card since the last [`Fabric::settle`] was turned up; 0 for none.
    shown_at: u64,
}

impl Links {
    pub(crate) fn new(rank: Rank, ranks: u32, own: std::sync::Arc<Segment>, bell: Bell) -> Self {
        let links = (0..ranks).map(|_| None).collect();
        let signalled = Vec::with_capacity(ranks as usize);
        Self {
            rank,
            own,
            bell,
            links,
            signalled,
            shown: false,
            counter: Counter::default(),
            shown_at: 0,
        }
    }

    /// Takes the time when cards are turned up. A look at the clock costs least there: what others have turned up is on
    /// its way, and a moment later it would keep this rank from looking at it.
    pub(crate) fn timed(self, counter: Counter) -> Self {
        Self { counter, ..self }
    }

    /// When the first card was turned up since the last [`Fabric::settle`]; 0 where none was, or nothing counts.
    #[inline]
    pub(crate) fn shown_at(&self) -> u64 {
        self.shown_at
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

    /// The link that has been silent for longest: nothing that was sent on it is acknowledged.
    pub(crate) fn silent(&self) -> Option<(Rank, u64)> {
        let silent = self.links.iter().flatten();
        let silent = silent.filter_map(|link| Some((link.description().peer, link.silent_ms()?)));
        silent.max_by_key(|(_, silent_ms)| *silent_ms)
    }

    /// After a failure: when this returns, no peer reaches the memory of operations by any link.
    pub(crate) fn disarm(&self) {
        self.links.iter().flatten().for_each(|link| link.disarm());
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
        // Allocates only where there is more to sleep on than the bell.
        let mut wanted: Vec<(BorrowedFd<'_>, PollFlags)> = Vec::new();
        for peer in peers {
            if let Some(link) = &self.links[*peer as usize] {
                link.interest(&mut wanted);
            }
        }
        let limit = rustix::time::Timespec::try_from(limit).ok();
        let bell = self.bell.as_fd();
        let bell = PollFd::new(&bell, PollFlags::IN);
        // Interrupted or not, the caller looks at everything again.
        let _ = if wanted.is_empty() {
            rustix::event::poll(&mut [bell], limit.as_ref())
        } else {
            let others = wanted.iter().map(|(fd, flags)| PollFd::new(fd, *flags));
            let mut polled: Vec<PollFd<'_>> = std::iter::once(bell).chain(others).collect();
            rustix::event::poll(&mut polled, limit.as_ref())
        };
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

    fn expose(&mut self, tag: OperationTag, buffers: (&[Area], &[Area])) {
        shm::expose(&self.own, tag, buffers);
    }

    fn get(
        &mut self,
        peer: Rank,
        tag: OperationTag,
        source: Remote,
        target: (*mut u8, usize),
    ) -> Result<(), Trouble> {
        self.link(peer).get(tag, source, target)
    }

    fn settle(&mut self) {
        if !self.shown && self.signalled.is_empty() {
            return;
        }
        flags::settle();
        self.shown_at = 0;
        if std::mem::take(&mut self.shown) {
            self.links.iter_mut().flatten().for_each(|link| link.wake());
        } else {
            for peer in &self.signalled {
                if let Some(link) = &mut self.links[*peer as usize] {
                    link.wake();
                }
            }
        }
        self.signalled.clear();
    }

    fn put(
        &mut self,
        peer: Rank,
        request: &PutRequest,
        cursor: &mut usize,
    ) -> Result<bool, Trouble> {
        let done = self.link(peer).put(request, cursor)?;
        if done && request.signal.is_some() {
            self.signalled.push(peer);
        }
        Ok(done)
    }

    fn signal(
        &mut self,
        peer: Rank,
        context: Context,
        lane: usize,
        flag: Flag,
    ) -> Result<bool, Trouble> {
        let done = self.link(peer).signal(context, lane, flag)?;
        if done {
            self.signalled.push(peer);
        }
        Ok(done)
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

    fn show(&mut self, tag: OperationTag, card: u16, values: (*const u8, usize)) {
        shm::turn_up(&self.own, tag, card, values);
        self.shown = true;
        // Those of the others come meanwhile, all at once.
        for link in self.links.iter().flatten() {
            link.fetch_card(tag.sequence, card);
        }
        if self.shown_at == 0 {
            self.shown_at = self.counter.now();
        }
    }

    fn seen(&mut self, peer: Rank, tag: OperationTag, card: u16) -> Result<bool, Trouble> {
        self.link(peer).seen(tag, card)
    }

    fn cards(&self, peer: Rank, tag: OperationTag) -> Option<Area> {
        self.links[peer as usize].as_ref().and_then(|link| link.cards(tag.sequence))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::transport::shm::Layout;

    #[test]
    fn when_a_card_was_turned_up_is_known_until_it_is_settled() {
        let layout = Layout { ranks: 1, small_bytes: 512, large_bytes: 512, message_bytes: 64 };
        let own = std::sync::Arc::new(Segment::create(layout).unwrap().0);
        let mut links = Links::new(0, 1, own, Bell::new().unwrap()).timed(Counter::Monotonic);
        let show = |links: &mut Links, sequence| {
            let tag = OperationTag { sequence, tag: 7 };
            links.show(tag, 0, ([1_u8; 8].as_ptr(), 8));
            links.shown_at()
        };
        assert_eq!(links.shown_at(), 0);
        let first = show(&mut links, 0);
        assert!(first > 0);
        assert_eq!(show(&mut links, 1), first, "the first one counts");
        links.settle();
        assert_eq!(links.shown_at(), 0);
        assert!(show(&mut links, 2) > first);
    }
}
