//! A stream of bytes as messages in numbered slots, whatever carries them: what may be sent, what has come, what
//! must be sent again. Pure: it knows neither devices nor memory.
//!
//! ```text
//! message n goes to slot n mod SLOTS of the peer, by any rail
//!
//!            acked            next                      consumed          arrived
//! outbox  ─────┼────────────────┼──────►      inbox  ──────┼────■■■──■──■────┼──────►
//!              └── at the peer or under way ──┘            └── at most SLOTS ──┘
//! ```
//!
//! A slot is written again once the peer has said that it consumed what was there, and every write to it that was
//! ever posted has ended: then nothing that is late can come upon something newer. Rails may deliver in any
//! order among each other, and what was sent twice counts once.
//!
//! The bytes of a message may lie elsewhere than in its slot: where the peer exposed memory for them. It has its slot all the same.
//!
//! *Invariant:* bytes are read in the order in which they were written, each once, as long as every message is posted
//! again when the rail that had it is given up.

use std::collections::VecDeque;

/// Slots of a direction, a power of two.
pub(super) const SLOTS: usize = 32;
/// Messages that may be under way.
pub(super) const WINDOW: u64 = SLOTS as u64;

/// Bits of a sequence number that go with a message.
const WIRE_BITS: u32 = 30;
const WIRE_MASK: u64 = (1 << WIRE_BITS) - 1;
/// Set in what goes with a message that brings no bytes, only how many messages were consumed.
const CREDIT: u32 = 2 << WIRE_BITS;
/// Set where bytes went to where they belong.
const PLACED: u32 = 1 << WIRE_BITS;

/// What goes with a message, in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Bytes of message n, by the low bits of n, are in its slot.
    Data(u32),
    /// They are in exposed memory, as many as the write had.
    Placed(u32),
    /// So many messages were consumed, by the low bits.
    Credit(u32),
}

impl Mark {
    pub(super) fn encode(self) -> u32 {
        match self {
            Self::Data(sequence) => sequence,
            Self::Placed(sequence) => PLACED | sequence,
            Self::Credit(consumed) => CREDIT | consumed,
        }
    }

    pub(super) fn decode(word: u32) -> Self {
        let number = word & !(CREDIT | PLACED);
        match word & (CREDIT | PLACED) {
            0 => Self::Data(number),
            PLACED => Self::Placed(number),
            _ => Self::Credit(number),
        }
    }
}

pub(super) fn low(number: u64) -> u32 {
    u32::try_from(number & WIRE_MASK).unwrap_or(0)
}

/// The number near `around` that has these low bits: at most half of all numbers away.
fn near(around: u64, low: u32) -> Option<u64> {
    let ahead = u64::from(low).wrapping_sub(around) & WIRE_MASK;
    if ahead <= WIRE_MASK / 2 {
        around.checked_add(ahead)
    } else {
        around.checked_sub(WIRE_MASK + 1 - ahead)
    }
}

/// A message under way, or at the peer and not yet consumed.
#[derive(Clone, Copy, Debug)]
struct Sent {
    bytes: u32,
    /// The rail it was last posted on; nothing while it waits to be posted.
    rail: Option<usize>,
}

/// What this side sends.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Messages from `acked` on, in order.
    sent: VecDeque<Sent>,
    /// Messages that the peer has consumed.
    acked: u64,
    /// For every slot, posted writes that have not ended.
    posted: [u8; SLOTS],
    /// Messages that wait to be posted, by number.
    waiting: VecDeque<u64>,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            sent: VecDeque::with_capacity(SLOTS),
            acked: 0,
            posted: [0; SLOTS],
            waiting: VecDeque::with_capacity(SLOTS),
        }
    }

    /// The slot that the next message may be written to, if one is free.
    pub(super) fn room(&self) -> Option<usize> {
        let next = self.next();
        let slot = slot(next);
        (next - self.acked < WINDOW && self.posted[slot] == 0).then_some(slot)
    }

    /// The next message has so many bytes, and waits to be posted; its number.
    ///
    /// # Panics
    /// Where there is no room.
    pub(super) fn push(&mut self, bytes: u32) -> u64 {
        assert!(self.room().is_some(), "a message without a slot");
        let number = self.next();
        self.waiting.push_back(number);
        self.sent.push_back(Sent { bytes, rail: None });
        number
    }

    /// The first message that waits to be posted: its number, slot and length.
    pub(super) fn waiting(&self) -> Option<(u64, usize, u32)> {
        let number = *self.waiting.front()?;
        let sent = self.sent.get(index(number, self.acked)?)?;
        Some((number, slot(number), sent.bytes))
    }

    /// A message was posted on a rail, and waits no more; the mark it goes with.
    pub(super) fn posted(&mut self, number: u64, rail: usize) -> Mark {
        if self.waiting.front() == Some(&number) {
            self.waiting.pop_front();
        } else {
            self.waiting.retain(|waiting| *waiting != number);
        }
        if let Some(sent) = index(number, self.acked).and_then(|at| self.sent.get_mut(at)) {
            sent.rail = Some(rail);
        }
        self.posted[slot(number)] += 1;
        Mark::Data(low(number))
    }

    /// A write to a slot has ended, well or not.
    pub(super) fn ended(&mut self, slot: usize) {
        if let Some(posted) = self.posted.get_mut(slot) {
            *posted = posted.saturating_sub(1);
        }
    }

    /// A message has come through: it is not sent again, whatever becomes of its rail.
    pub(super) fn delivered(&mut self, number: u64) {
        if let Some(sent) = index(number, self.acked).and_then(|at| self.sent.get_mut(at)) {
            sent.rail = None;
        }
    }

    /// Whether nothing of a message is under way, and the peer has consumed it.
    pub(super) fn is_over(&self, number: u64) -> bool {
        number < self.acked && self.posted[slot(number)] == 0
    }

    /// The peer has consumed so many messages, by the low bits.
    ///
    /// # Errors
    /// When that is more than was sent.
    pub(super) fn credit(&mut self, consumed: u32) -> Result<(), String> {
        let Some(consumed) = near(self.acked, consumed) else {
            return Err("the peer has consumed less than nothing".to_owned());
        };
        if consumed > self.next() {
            let next = self.next();
            return Err(format!("the peer has consumed {consumed} messages of {next}"));
        }
        // What is older than what is known came by a slower rail.
        while self.acked < consumed {
            self.sent.pop_front();
            self.acked += 1;
        }
        let acked = self.acked;
        self.waiting.retain(|number| *number >= acked);
        Ok(())
    }

    /// A rail is given up, at both ends: what it had and the peer has not consumed is sent again.
    pub(super) fn give_up(&mut self, rail: usize) {
        let again = (self.acked..).zip(&mut self.sent).filter(|(_, sent)| sent.rail == Some(rail));
        for (number, sent) in again {
            sent.rail = None;
            self.waiting.push_back(number);
        }
        self.waiting.make_contiguous().sort_unstable();
    }

    /// Whether every write that was posted has ended.
    pub(super) fn is_quiet(&self) -> bool {
        self.posted.iter().all(|posted| *posted == 0)
    }

    fn next(&self) -> u64 {
        self.acked + self.sent.len() as u64
    }
}

/// A message that is here: its length, and whether its bytes lie where they belong already.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    bytes: u32,
    placed: bool,
}

/// What the other side sends.
#[derive(Debug)]
pub(super) struct Inbox {
    /// Messages consumed.
    consumed: u64,
    /// What the peer was last told of it.
    told: u64,
    /// What has arrived in a slot and is not consumed.
    arrived: [Option<Arrived>; SLOTS],
    /// Bytes of the first that were read.
    cursor: u32,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { consumed: 0, told: 0, arrived: [None; SLOTS], cursor: 0 }
    }

    /// Whether a message is one that has not come yet, and may.
    pub(super) fn is_new(&self, sequence: u32) -> bool {
        near(self.consumed, sequence).is_some_and(|number| {
            number >= self.consumed
                && number - self.consumed < WINDOW
                && self.arrived[slot(number)].is_none()
        })
    }

    /// A message has arrived, of so many bytes, in its slot or placed.
    ///
    /// # Errors
    /// When it is none that may come.
    pub(super) fn arrive(&mut self, sequence: u32, bytes: u32, placed: bool) -> Result<(), String> {
        match near(self.consumed, sequence) {
            Some(number) if number < self.consumed => Ok(()), // sent twice
            Some(number) if number - self.consumed < WINDOW => {
                let place = &mut self.arrived[slot(number)];
                match *place {
                    Some(Arrived { bytes: before, .. }) if before != bytes => {
                        Err(format!("message {number} came with {before} bytes and with {bytes}"))
                    }
                    Some(_) => Ok(()),
                    None => {
                        *place = Some(Arrived { bytes, placed });
                        Ok(())
                    }
                }
            }
            _ => Err(format!("message {sequence} came after {} were consumed", self.consumed)),
        }
    }

    /// What can be read now: slot, first byte, bytes.
    pub(super) fn readable(&self) -> Option<(usize, usize, usize)> {
        let slot = slot(self.consumed);
        let Arrived { bytes, .. } = self.arrived[slot].filter(|arrived| !arrived.placed)?;
        Some((slot, self.cursor as usize, (bytes - self.cursor) as usize))
    }

    /// Bytes of the next message, where they lie where they belong.
    pub(super) fn placed(&self) -> Option<usize> {
        let arrived = self.arrived[slot(self.consumed)].filter(|arrived| arrived.placed)?;
        Some(arrived.bytes as usize)
    }

    /// So many bytes were read of it.
    pub(super) fn read(&mut self, bytes: usize) {
        let slot = slot(self.consumed);
        self.cursor += u32::try_from(bytes).unwrap_or(u32::MAX);
        if self.arrived[slot].is_some_and(|all| self.cursor >= all.bytes) {
            self.arrived[slot] = None;
            self.cursor = 0;
            self.consumed += 1;
        }
    }

    /// What goes with a message back: how many were consumed.
    pub(super) fn tell(&mut self) -> u32 {
        self.told = self.consumed;
        low(self.consumed)
    }

    /// How many were consumed, for a message that may be lost: it does not count as told.
    pub(super) fn hint(&self) -> u32 {
        low(self.consumed)
    }

    /// What was told may be lost with the path it went by: it is owed again.
    pub(super) fn forget(&mut self) {
        self.told = self.told.min(self.consumed.saturating_sub(WINDOW / 2));
    }

    /// Whether so much was consumed that the peer should hear of it though nothing goes back.
    pub(super) fn owes(&self) -> bool {
        self.consumed - self.told >= WINDOW / 2
    }
}

fn slot(number: u64) -> usize {
    usize::try_from(number % WINDOW).unwrap_or(0)
}

fn index(number: u64, first: u64) -> Option<usize> {
    usize::try_from(number.checked_sub(first)?).ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A write under way on a rail: slot, mark, bytes, and the number the bytes stand for.
    type Write = (usize, Mark, u32, u64);

    /// Every third message is placed, when it is first posted.
    fn is_placed(number: u64) -> bool {
        number % 3 == 1
    }

    /// Two ends and the rails from one to the other, with what lies in the peer's slots.
    struct World {
        outbox: Outbox,
        inbox: Inbox,
        rails: Vec<VecDeque<Write>>,
        slots: Vec<u64>,
        /// Messages that were placed, and those that were ever posted so.
        memory: BTreeSet<u64>,
        tried: BTreeSet<u64>,
        written: u64,
        read: u64,
    }

    impl World {
        fn new(rails: usize) -> Self {
            Self {
                outbox: Outbox::new(),
                inbox: Inbox::new(),
                rails: vec![VecDeque::new(); rails],
                slots: vec![u64::MAX; SLOTS],
                memory: BTreeSet::new(),
                tried: BTreeSet::new(),
                written: 0,
                read: 0,
            }
        }

        fn write(&mut self) {
            if self.outbox.room().is_some() {
                self.outbox.push(4);
                self.written += 1;
            }
        }

        fn post(&mut self, rail: usize) {
            if let Some((number, slot, bytes)) = self.outbox.waiting() {
                let mut mark = self.outbox.posted(number, rail);
                if is_placed(number) && self.tried.insert(number) {
                    mark = Mark::Placed(low(number));
                }
                self.rails[rail].push_back((slot, mark, bytes, number));
            }
        }

        /// The write lands; whether its end is told at once.
        fn deliver(&mut self, rail: usize) {
            let Some(write) = self.rails[rail].pop_front() else { return };
            self.land(write);
            self.outbox.ended(write.0);
            if matches!(write.1, Mark::Placed(_)) {
                self.outbox.delivered(write.3);
            }
        }

        fn land(&mut self, (slot, mark, bytes, number): Write) {
            let sequence = match mark {
                Mark::Data(sequence) => {
                    self.slots[slot] = number;
                    sequence
                }
                Mark::Placed(sequence) => {
                    assert!(number >= self.read, "written to memory that has another use");
                    assert!(self.memory.insert(number), "placed twice");
                    sequence
                }
                Mark::Credit(_) => panic!("no data"),
            };
            let placed = matches!(mark, Mark::Placed(_));
            self.inbox.arrive(sequence, bytes, placed).expect("it may come");
        }

        /// All that is under way is lost, or lands without the sender's knowing.
        fn fail(&mut self, rail: usize, lands: usize) {
            let under_way = std::mem::take(&mut self.rails[rail]);
            for (at, write) in under_way.into_iter().enumerate() {
                if at < lands {
                    self.land(write);
                }
                self.outbox.ended(write.0);
            }
            self.outbox.give_up(rail);
        }

        fn read(&mut self) {
            if let Some((slot, cursor, bytes)) = self.inbox.readable() {
                assert_eq!((cursor, bytes), (0, 4));
                assert_eq!(self.slots[slot], self.read, "what was read is not what was written");
                self.inbox.read(bytes);
                self.read += 1;
            } else if let Some(bytes) = self.inbox.placed() {
                assert!(self.memory.contains(&self.read), "what was read is not there");
                self.inbox.read(bytes);
                self.read += 1;
            }
        }

        /// How much was consumed goes back, by a rail that may lose it.
        fn credit(&mut self, lost: bool) {
            if !self.inbox.owes() {
                return;
            }
            let told = self.inbox.tell();
            if lost {
                self.inbox.forget();
                return;
            }
            self.outbox.credit(told).expect("as many were sent");
        }
    }

    proptest! {
        /// Whatever rails do, bytes come in order, each once, and everything comes in the end.
        #[test]
        fn nothing_is_lost_and_nothing_comes_twice(
            steps in proptest::collection::vec((0_usize..7, 0_usize..3, 0_usize..9), 1..400),
        ) {
            let mut world = World::new(3);
            for (step, rail, lands) in steps {
                match step {
                    0 | 1 => world.write(),
                    2 => world.post(rail),
                    3 => world.deliver(rail),
                    4 => world.read(),
                    5 => world.credit(lands > 4),
                    _ => world.fail(rail, lands),
                }
            }
            for _ in 0..3 * WINDOW {
                world.post(0);
                (0..3).for_each(|rail| world.deliver(rail));
                world.read();
                world.credit(false);
            }
            prop_assert_eq!(world.read, world.written);
            // What is not owed yet may be untold.
            prop_assert!((world.outbox.sent.len() as u64) < WINDOW / 2);
        }
    }

    #[test]
    fn numbers_are_told_by_their_low_bits() {
        for around in [0, 5, WIRE_MASK - 3, WIRE_MASK, 7 * (WIRE_MASK + 1) + 2] {
            for ahead in [0, 1, WINDOW] {
                assert_eq!(near(around, low(around + ahead)), Some(around + ahead));
            }
            if around >= WINDOW {
                assert_eq!(near(around, low(around - 3)), Some(around - 3));
            }
        }
        assert_eq!(near(0, low(u64::MAX)), None);
        for mark in [Mark::Data, Mark::Placed, Mark::Credit] {
            for number in [0, low(u64::MAX)] {
                assert_eq!(Mark::decode(mark(number).encode()), mark(number));
            }
        }
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let mut outbox = Outbox::new();
        outbox.push(1);
        assert!(outbox.credit(2).unwrap_err().contains("consumed 2 messages of 1"));
        let mut inbox = Inbox::new();
        assert!(inbox.arrive(low(WINDOW), 1, false).is_err());
        inbox.arrive(0, 1, false).unwrap();
        assert!(inbox.arrive(0, 2, true).is_err());
        // Twice the same is nothing new, before it is read and after.
        inbox.arrive(0, 1, false).unwrap();
        inbox.read(1);
        inbox.arrive(0, 1, false).unwrap();
        assert_eq!(inbox.readable(), None);
    }

    #[test]
    fn a_slot_is_not_written_while_an_older_write_may_come() {
        let mut outbox = Outbox::new();
        for _ in 0..SLOTS {
            let number = outbox.push(1);
            outbox.posted(number, 0);
        }
        assert_eq!(outbox.room(), None);
        outbox.credit(low(WINDOW)).unwrap();
        assert_eq!(outbox.room(), None, "the write to slot 0 has not ended");
        outbox.ended(0);
        assert_eq!(outbox.room(), Some(0));
    }

    /// One that was half posted may be consumed before that is noted: an earlier write of it had come.
    #[test]
    fn a_message_that_is_posted_too_late_is_no_other() {
        let mut outbox = Outbox::new();
        let (first, second) = (outbox.push(1), outbox.push(2));
        outbox.credit(low(first + 1)).unwrap();
        outbox.posted(first, 0);
        assert_eq!(outbox.waiting(), Some((second, 1, 2)));
        outbox.ended(0);
        outbox.posted(second, 0);
        outbox.ended(1);
        assert!(outbox.is_quiet() && outbox.waiting().is_none());
    }
}
