//! What becomes of the paths of a stream: met, left, tried again.
//!
//! ```text
//!            connected ──(peer too)──► up ──(a completion fails, stands still, port goes)──► leaving
//!                                       ▲                                                      │ all writes ended,
//!              (a write has come through)│                                                      ▼ peer has left too
//!                                     trying ◄──(Ready)── asked ◄──(after a while, the leader)── down
//! ```
//!
//! A path is left at both ends before what it had is sent again by another: a queue pair in its error state takes no
//! more packets, so nothing late is written over something newer. When no path is left the socket carries the
//! messages, or the stream ends with what the last one died of, as the settings say.
//!
//! *Invariant:* both ends of a path have queue pairs of the same generation, or one of them is in none of the states
//! in which messages are taken.

use std::time::{Duration, Instant};

use super::flow::{SLOTS, WINDOW};
use super::rail::{Made, pairs, unlike};
use super::stream::Inner;
use super::wire::{End, Offer, Outcome, Word, short};
use crate::ffi::verbs::{Completion, Remote};

/// Paths of a stream, at most.
pub(super) const PATHS_MOST: usize = 256;

/// How often ports are looked at, and paths that are down.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long the writes of a path that is left may take to be given back.
const FLUSH_MOST: Duration = Duration::from_secs(1);

/// Until a path that is down is tried again: at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MOST: Duration = Duration::from_secs(30);

/// A queue pair of a rail, and what has become of it.
#[derive(Debug)]
pub(super) struct PathEnd {
    pub(super) rail: usize,
    /// How far its ports are from the memory at its ends; only the nearest that are up are used.
    pub(super) distance: u32,
    /// Nothing where it had to be destroyed.
    pub(super) made: Option<Made>,
    /// How often it was made.
    pub(super) generation: u16,
    pub(super) state: State,
    /// Writes that have not ended.
    under_way: u32,
    /// The slots of those that carry messages, a bit for each.
    slots: u32,
    /// When it was left.
    left: Instant,
    /// Whether a write was sent to see whether it leads anywhere.
    probed: bool,
    /// Bytes posted; all paths that are up have about the same.
    pub(super) carried: u64,
    /// When a write last ended, or the first was posted.
    moved: Instant,
    /// When it is tried again, and how long it waits after that.
    retry: (Instant, Duration),
    /// The peer's wish to try again, until this end is down too.
    again: Option<(u32, End)>,
}

/// See the module's picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Connected,
    Up,
    Leaving { why: String, peer_left: bool },
    Down { why: String },
    Asked { why: String },
    Trying,
}

impl PathEnd {
    fn new((rail, distance): (usize, u32), made: Made, state: State) -> Self {
        let now = Instant::now();
        let retry = (now + PAUSE_FIRST, PAUSE_FIRST);
        Self {
            rail,
            distance,
            made: Some(made),
            generation: 0,
            state,
            under_way: 0,
            slots: 0,
            left: now,
            probed: false,
            carried: 0,
            moved: now,
            retry,
            again: None,
        }
    }

    pub(super) fn posted_one(&mut self, id: u64, bytes: usize) {
        self.slots |= bit(id & 0xffff);
        self.carried += bytes as u64;
        if self.under_way == 0 {
            self.moved = Instant::now();
        }
        self.under_way += 1;
    }

    pub(super) fn ended_one(&mut self, slot: usize) {
        self.slots &= !bit(slot as u64);
        self.under_way = self.under_way.saturating_sub(1);
        self.moved = Instant::now();
    }

    /// Whether a message may be posted.
    pub(super) fn has_room(&self) -> bool {
        self.state == State::Up && u64::from(self.under_way) < WINDOW
    }

    /// Whether a write has stood still for so long.
    fn is_stuck(&self, patience: Duration) -> bool {
        self.state == State::Up && self.under_way > 0 && self.moved.elapsed() > patience
    }

    /// Takes the queue pair out of use; one that cannot even fail has failed.
    fn fail(&mut self) {
        self.left = Instant::now();
        if self.made.as_ref().is_some_and(|made| made.qp.fail().is_err()) {
            // Nothing will be given back by itself.
            self.left = self.left.checked_sub(FLUSH_MOST).unwrap_or(self.left);
        }
    }

    /// Destroys the queue pair: when this returns it neither reads nor writes. One that has only failed may be at its last
    /// packet still.
    pub(super) fn disarm(&mut self) {
        self.made = None;
    }

    pub(super) fn takes_messages(&self) -> bool {
        matches!(self.state, State::Connected | State::Up | State::Trying)
    }

    /// Waits longer before the next try.
    fn put_off(&mut self) {
        self.retry.1 = (self.retry.1 * 2).min(PAUSE_MOST);
        self.retry.0 = Instant::now() + self.retry.1;
    }
}

/// The bit of a slot; none for what is no slot.
fn bit(slot: u64) -> u32 {
    u32::try_from(slot).ok().and_then(|slot| 1_u32.checked_shl(slot)).unwrap_or(0)
}

impl Inner {
    /// Does what the peer says on the socket; whether it said something.
    pub(super) fn listen(&mut self) -> bool {
        let mut moved = self.side.is_ending();
        while self.ended.is_none() {
            let done = match self.side.hear() {
                Ok(None) => break,
                Ok(Some(word)) => self.obey(word),
                Err(why) => Err(why),
            };
            moved = true;
            if let Err(why) = done {
                self.end(why);
            }
        }
        moved
    }

    fn obey(&mut self, word: Word) -> Result<(), String> {
        match word {
            Word::Offer(offer) if self.outcome.is_none() => {
                self.pair(&offer);
                Ok(())
            }
            Word::Outcome(outcome) if self.outcome.is_some() && !self.met => self.meet(&outcome),
            Word::Data { sequence, consumed, bytes } if self.met => {
                self.arrive_by_socket(sequence, consumed, &bytes)
            }
            Word::Credit { consumed } if self.met => self.outbox.credit(consumed),
            Word::Over { why } => Err(format!("{} goes no further: {why}", self.wish.peer)),
            Word::Left { path, why } if self.met => {
                let path = self.known(path)?;
                self.peer_left(path, &why);
                Ok(())
            }
            Word::Again { path, generation, end } if self.met && !self.wish.leads => {
                let path = self.known(path)?;
                self.paths[path].again = Some((generation, end));
                self.answer(path);
                Ok(())
            }
            Word::Ready { path, generation, end } if self.wish.leads => {
                let path = self.known(path)?;
                let asked = matches!(self.paths[path].state, State::Asked { .. });
                if asked && generation == u32::from(self.paths[path].generation) {
                    self.attempt(path, &end);
                }
                Ok(())
            }
            Word::Refused { path, why, .. } if self.wish.leads => {
                let path = self.known(path)?;
                let end = &mut self.paths[path];
                if matches!(end.state, State::Asked { .. }) {
                    end.state = State::Down { why };
                    end.put_off();
                }
                Ok(())
            }
            other => {
                let text: String = format!("{other:?}").chars().take(80).collect();
                Err(format!("{} said what it may not say now: {text}…", self.wish.peer))
            }
        }
    }

    fn known(&self, path: u32) -> Result<usize, String> {
        let index = usize::try_from(path).unwrap_or(usize::MAX);
        let known = (index < self.paths.len()).then_some(index);
        known.ok_or_else(|| format!("{} named path {path}, which there is not", self.wish.peer))
    }

    /// Pairs rails with those of the peer, connects their queue pairs, and tells it.
    fn pair(&mut self, theirs: &Offer) {
        let mut outcome = Outcome::default();
        let mut made: Vec<_> = std::mem::take(&mut self.made).into_iter().map(Some).collect();
        let mine: Vec<u32> = self.rails.iter().map(|rail| rail.adapter.place).collect();
        let others: Vec<u32> = theirs.rails.iter().map(|rail| rail.place).collect();
        let cross = theirs.cross && self.wish.settings.cross == 1;
        let paired: Vec<(usize, usize)> = if self.wish.leads {
            pairs(&mine, &others, cross)
        } else {
            pairs(&others, &mine, cross).into_iter().map(|(to, at)| (at, to)).collect()
        };
        for (rail, to) in paired {
            let other = &theirs.rails[to];
            self.rails[rail].to.clone_from(&other.name);
            self.rails[rail].remote = Remote { address: other.address, key: other.key };
            self.rails[rail].remote_place = other.place;
            let unlike_layers = self.rails[rail].adapter.is_infiniband() != other.infiniband;
            if let Some(end) = other.ends.first()
                && let Some(why) = unlike(&self.rails[rail].adapter, &other.name, end)
            {
                tracing::warn!(target: crate::log::NET, rank = self.wish.rank, "NET/IB : {why}");
            }
            let distance = self.rails[rail].distance.saturating_add(other.distance);
            for (pair, to) in made[rail].take().into_iter().flatten().zip(&other.ends) {
                if self.paths.len() == PATHS_MOST {
                    break;
                }
                let path = self.paths.len();
                self.paths.push(PathEnd::new((rail, distance), pair, State::Connected));
                let connected = if unlike_layers {
                    let way = self.rails[rail].way();
                    Err(format!("{way}: InfiniBand cannot talk to Ethernet"))
                } else {
                    self.connect(path, to)
                };
                if unlike_layers {
                    // That will never be otherwise.
                    self.paths[path].retry.0 += Duration::from_secs(1 << 30);
                }
                outcome.paths.push(connected.err().map(short));
            }
        }
        for (rail, pairs) in self.rails.iter().zip(&made) {
            if pairs.is_some() {
                let why = "the peer has no port for it to talk to; see NCCL_CROSS_NIC";
                self.refused.push(format!("{}: {why}", rail.adapter.name()));
            }
        }
        self.refused
            .extend(theirs.refused.iter().map(|why| format!("{} says {why}", self.wish.peer)));
        self.side.say(&Word::Outcome(outcome.clone()));
        self.outcome = Some(outcome);
    }

    fn connect(&self, path: usize, to: &End) -> Result<(), String> {
        let end = &self.paths[path];
        let Some(made) = &end.made else { return Err("there is no queue pair".to_owned()) };
        let number = self.number(path, super::stream::CREDIT);
        self.rails[end.rail].connect(&self.wish.settings, made, to, number)
    }

    /// Both have tried: what both could connect is used.
    fn meet(&mut self, theirs: &Outcome) -> Result<(), String> {
        let mine = self.outcome.clone().unwrap_or_default();
        if mine.paths.len() != theirs.paths.len() {
            return Err(format!("{} pairs rails in another way", self.wish.peer));
        }
        for (end, (mine, theirs)) in self.paths.iter_mut().zip(mine.paths.iter().zip(&theirs.paths))
        {
            end.state = match mine.as_ref().or(theirs.as_ref()) {
                None => State::Up,
                Some(why) => {
                    self.refused.push(why.clone());
                    // What the other end may have sent is flushed, and none of it was taken.
                    end.fail();
                    State::Down { why: why.clone() }
                }
            };
        }
        self.met = true;
        let up = self.paths.iter().filter(|end| end.state == State::Up).count();
        let ways: Vec<String> = self
            .rails
            .iter()
            .filter(|rail| !rail.to.is_empty())
            .map(super::rail::Rail::way)
            .collect();
        tracing::info!(
            target: crate::log::NET, rank = self.wish.rank,
            "NET/IB : {up} of {} queue pairs to {}: {}",
            self.paths.len(),
            self.wish.peer,
            ways.join(", ")
        );
        for why in &self.refused {
            tracing::warn!(target: crate::log::NET, rank = self.wish.rank, "NET/IB : to {}: {why}", self.wish.peer);
        }
        self.end_if_none_is_left();
        Ok(())
    }

    /// Where nothing but RDMA will do and there is none, that is the end.
    fn end_if_none_is_left(&mut self) {
        let alive = |end: &PathEnd| matches!(end.state, State::Up | State::Leaving { .. });
        if self.ended.is_some() || !self.met || self.paths.iter().any(alive) {
            return;
        }
        if let Some(insists) = &self.wish.insists {
            let (peer, why) = (&self.wish.peer, self.last_words());
            self.end(format!("no RDMA connection to {peer} is left, and {insists}: {why}"));
        }
    }

    /// Why there is no path.
    fn last_words(&self) -> String {
        let mut whys: Vec<&str> = self
            .paths
            .iter()
            .filter_map(|end| match &end.state {
                State::Down { why } | State::Asked { why } | State::Leaving { why, .. } => {
                    Some(why.as_str())
                }
                _ => None,
            })
            .collect();
        if whys.is_empty() {
            whys.extend(self.refused.iter().map(String::as_str));
        }
        whys.dedup();
        if whys.is_empty() { "neither has a port".to_owned() } else { whys.join("; ") }
    }

    /// Says once that the socket carries the messages.
    pub(super) fn say_socket(&mut self) {
        if !std::mem::replace(&mut self.said_socket, true) {
            tracing::warn!(
                target: crate::log::NET, rank = self.wish.rank,
                "NET/IB : messages to {} go over the socket: {}; RINGWAY_REQUIRE=rdma makes this an error",
                self.wish.peer,
                self.last_words()
            );
        }
    }

    pub(super) fn explain(&self, path: usize, completion: &Completion) -> String {
        let rail = &self.rails[self.paths[path].rail];
        let adapter = &rail.adapter;
        let status = completion.status();
        format!(
            "{} (GID {} {}) to {} of {}: {status}, vendor error {:#x}; {}; counters: {}",
            adapter.name(),
            adapter.chosen.index,
            adapter.chosen.gid,
            rail.to,
            self.wish.peer,
            completion.vendor_error(),
            status.cause(),
            adapter.counters(),
        )
    }

    pub(super) fn leave_rail(&mut self, rail: usize, why: &str) {
        for path in 0..self.paths.len() {
            if self.paths[path].rail == rail {
                self.leave_path(path, why.to_owned());
            }
        }
    }

    /// Takes no more by a path, and tells the peer.
    pub(super) fn leave_path(&mut self, path: usize, why: String) {
        let tried = match self.paths[path].state {
            State::Up => false,
            State::Trying => true,
            _ => return,
        };
        if tried {
            tracing::debug!(target: crate::log::NET, rank = self.wish.rank, "NET/IB : tried again: {why}");
        } else {
            let others = self.paths.iter().filter(|end| end.state == State::Up).count() - 1;
            let rest = match (others, &self.wish.insists) {
                (0, None) => "no other is left, its messages go over the socket".to_owned(),
                (0, Some(_)) => "no other is left".to_owned(),
                (1, _) => "its messages go by the other connection".to_owned(),
                (_, _) => format!("its messages go by {others} other connections"),
            };
            tracing::warn!(target: crate::log::NET, rank = self.wish.rank, "NET/IB : {why}; {rest}");
        }
        self.left += u64::from(!tried);
        // How much was consumed may have gone by it, and must be told again.
        self.inbox.forget();
        let end = &mut self.paths[path];
        end.fail();
        let why = short(why);
        let word = Word::Left { path: u32::try_from(path).unwrap_or(u32::MAX), why: why.clone() };
        end.state = State::Leaving { why, peer_left: false };
        let rail = end.rail;
        // What has come by it is taken before the peer sends it again.
        self.poll(rail);
        self.side.say(&word);
    }

    fn peer_left(&mut self, path: usize, why: &str) {
        let way = self.rails[self.paths[path].rail].way();
        let peer = &self.wish.peer;
        self.leave_path(path, format!("{way} of {peer}: the peer left it, as {why}"));
        if let State::Leaving { peer_left, .. } = &mut self.paths[path].state {
            *peer_left = true;
        }
    }

    /// Sends again what paths had that both ends have left.
    pub(super) fn leave(&mut self) {
        let mut changed = false;
        for path in 0..self.paths.len() {
            let end = &mut self.paths[path];
            if let State::Leaving { why, peer_left: true } = &end.state
                && end.under_way == 0
            {
                end.state = State::Down { why: why.clone() };
                end.retry.0 = Instant::now() + end.retry.1;
                self.outbox.give_up(path);
                self.answer(path);
                changed = true;
            }
        }
        if changed {
            self.end_if_none_is_left();
        }
    }

    /// Leaves paths on which nothing moves, as adapters may try for ever, and tries again those that are down.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        for path in 0..self.paths.len() {
            if matches!(self.paths[path].state, State::Leaving { .. }) {
                self.take_back(path, now);
            }
            if !self.paths[path].is_stuck(self.patience) {
                continue;
            }
            // What ended while nobody looked is not stuck.
            self.poll(self.paths[path].rail);
            let end = &self.paths[path];
            if end.is_stuck(self.patience) {
                let rail = &self.rails[end.rail];
                let why = format!(
                    "{} of {}: nothing moved for {:.1} s; the path is broken or the peer's port is down; counters: {}",
                    rail.way(),
                    self.wish.peer,
                    self.patience.as_secs_f32(),
                    rail.adapter.counters()
                );
                self.leave_path(path, why);
            }
        }
        if now.duration_since(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        self.look_at_ports();
        if self.wish.leads && self.met && self.ended.is_none() {
            for path in 0..self.paths.len() {
                let end = &self.paths[path];
                if matches!(end.state, State::Down { .. }) && now >= end.retry.0 {
                    // One at a time: an address that does not answer may hold up the kernel's call.
                    self.ask(path);
                    break;
                }
            }
        }
    }

    fn look_at_ports(&mut self) {
        for rail in 0..self.rails.len() {
            if !self.rails[rail].adapter.is_up() {
                let why = format!(
                    "{} of {}: its link is down; look at its cable, switch port and kernel log; counters: {}",
                    self.rails[rail].way(),
                    self.wish.peer,
                    self.rails[rail].adapter.counters()
                );
                self.leave_rail(rail, &why);
            }
        }
    }

    /// Takes back what a path had that does not give it back: its device is lost, or was taken out. What was destroyed
    /// neither reads nor writes.
    fn take_back(&mut self, path: usize, now: Instant) {
        let end = &mut self.paths[path];
        if end.under_way == 0 || now.duration_since(end.left) < FLUSH_MOST {
            return;
        }
        let rail = end.rail;
        // What came before it failed has come.
        self.poll(rail);
        let end = &mut self.paths[path];
        end.made = None;
        // What its queue may still hold is of the generation before.
        end.generation = end.generation.wrapping_add(1);
        end.under_way = 0;
        let slots = std::mem::take(&mut end.slots);
        for slot in (0..SLOTS).filter(|slot| slots & bit(*slot as u64) != 0) {
            self.outbox.ended(slot);
        }
    }

    /// Makes a path's queue pair anew, at the address that the port has now.
    fn renew(&mut self, path: usize, generation: u16) -> Result<End, String> {
        let rail = &mut self.rails[self.paths[path].rail];
        rail.adapter = rail.adapter.again(&self.wish.settings)?;
        let made = rail.queue_pair().map_err(|error| error.to_string())?;
        let own = rail.end(&made);
        let end = &mut self.paths[path];
        end.made = Some(made);
        end.slots = 0;
        end.probed = false;
        end.generation = generation;
        end.under_way = 0;
        Ok(own)
    }

    /// The leader: asks the peer to try a path again.
    fn ask(&mut self, path: usize) {
        let State::Down { why } = self.paths[path].state.clone() else { return };
        if self.ended.is_some() {
            return;
        }
        let generation = self.paths[path].generation.wrapping_add(1);
        match self.renew(path, generation) {
            Ok(end) => {
                self.paths[path].state = State::Asked { why };
                let path = u32::try_from(path).unwrap_or(u32::MAX);
                self.side.say(&Word::Again { path, generation: generation.into(), end });
            }
            Err(_still_down) => self.paths[path].put_off(),
        }
    }

    /// The other: answers, if its end is down too.
    fn answer(&mut self, path: usize) {
        let number = u32::try_from(path).unwrap_or(u32::MAX);
        let State::Down { .. } = self.paths[path].state else { return };
        if self.ended.is_some() {
            return;
        }
        let Some((generation, to)) = self.paths[path].again.take() else { return };
        let wanted = u16::try_from(generation).unwrap_or(u16::MAX);
        match self.renew(path, wanted).and_then(|end| self.connect(path, &to).map(|()| end)) {
            Ok(end) => {
                self.side.say(&Word::Ready { path: number, generation, end });
                // The leader cannot take anything yet; it is answered when its own write has come.
                self.paths[path].state = State::Trying;
                self.paths[path].put_off();
            }
            Err(why) => self.side.say(&Word::Refused { path: number, generation, why }),
        }
    }

    /// The leader, when the peer is ready.
    fn attempt(&mut self, path: usize, to: &End) {
        match self.connect(path, to) {
            Ok(()) => self.probe(path),
            Err(why) => {
                // The peer is connected already, and has to leave again.
                self.paths[path].state = State::Trying;
                self.leave_path(path, why);
            }
        }
    }

    /// Sees whether a write comes through.
    fn probe(&mut self, path: usize) {
        let end = &mut self.paths[path];
        end.state = State::Trying;
        end.put_off();
        end.probed = true;
        self.post_probe(path);
    }

    /// Something came by a path: that of the leader says that its end is ready.
    pub(super) fn hears(&mut self, path: usize) {
        let end = &mut self.paths[path];
        if end.state == State::Trying && !std::mem::replace(&mut end.probed, true) {
            self.post_probe(path);
        }
    }

    /// A write has come through.
    pub(super) fn is_back(&mut self, path: usize) {
        if self.paths[path].state != State::Trying {
            return;
        }
        // It takes its part of what comes, not what it has missed.
        let carried = self.paths.iter().map(|end| end.carried).max().unwrap_or(0);
        let end = &mut self.paths[path];
        end.carried = carried;
        end.state = State::Up;
        end.retry.1 = PAUSE_FIRST;
        let way = self.rails[end.rail].way();
        self.said_socket = false;
        tracing::warn!(target: crate::log::NET, rank = self.wish.rank, "NET/IB : {way} of {} is back, and used again", self.wish.peer);
    }
}
