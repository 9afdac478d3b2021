//! A network of boards under one seed: delays, kills, partitions, pauses, connections that are lost with what was on
//! its way, clocks that differ.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;

use super::super::{Board, Journal};
use crate::control::signature::tests::all_reduce;
use crate::control::{AGREEMENT_MS_MAX, Message, Report, neighbours};
use crate::error::{Error, RankIdentity};
use crate::plan::types::Rank;

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(super) fn rank(&mut self, n: u32) -> Rank {
        u32::try_from(self.below(u64::from(n))).unwrap()
    }

    /// `count` different ranks.
    pub(super) fn ranks(&mut self, n: u32, count: usize) -> BTreeSet<Rank> {
        let mut chosen = BTreeSet::new();
        while chosen.len() < count {
            chosen.insert(self.rank(n));
        }
        chosen
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Deliver {
        from: Rank,
        to: Rank,
        index: usize,
    },
    Lost {
        at: Rank,
        peer: Rank,
    },
    Report {
        at: Rank,
        index: usize,
    },
    Kill {
        rank: Rank,
    },
    Leave {
        rank: Rank,
    },
    /// Stops without a word: its connections stand.
    Freeze {
        rank: Rank,
    },
    Tick {
        rank: Rank,
    },
}

/// A network of boards; time in microseconds.
pub(super) struct Network {
    pub(super) random: Random,
    pub(super) boards: Vec<Board>,
    pub(super) journals: Vec<Arc<Journal>>,
    /// Each rank's clock starts elsewhere.
    pub(super) offsets_us: Vec<u64>,
    /// When each rank's next tick is planned.
    alarm_us: Vec<u64>,
    /// When a rank died or left.
    pub(super) ended: Vec<Option<u64>>,
    pub(super) delay_us_max: u64,
    /// The last arrival on each directed link: links keep order.
    last: BTreeMap<(Rank, Rank), u64>,
    /// Where each dead rank's links were cut: what would arrive later is lost.
    cuts: BTreeMap<(Rank, Rank), u64>,
    /// Where two sides cannot reach each other, and when: what would arrive meanwhile arrives after.
    parted: Option<(BTreeSet<Rank>, Range<u64>)>,
    /// When a rank stands still; its clock does too.
    paused: BTreeMap<Rank, Range<u64>>,
    events: BinaryHeap<Reverse<(u64, usize, Event)>>,
    /// What is on its way, and to how many.
    messages: Vec<(Option<Message>, usize)>,
    /// Places in `messages` that are free.
    free: Vec<usize>,
    reports: Vec<Report>,
    count: usize,
    pub(super) now_us: u64,
    pub(super) done_us: Vec<Option<u64>>,
    /// What each rank said first.
    first: Vec<Option<Error>>,
}

pub(super) fn identities(n: u32) -> Arc<[RankIdentity]> {
    (0..n)
        .map(|rank| RankIdentity { rank, host: format!("h{}", rank / 4), pid: 100 + rank })
        .collect()
}

impl Network {
    pub(super) fn new(n: u32, seed: u64) -> Self {
        let mut random = Random(seed);
        let journals: Vec<_> = (0..n).map(|_| Arc::new(Journal::new())).collect();
        let names = identities(n);
        let board = |r: u32| {
            let journal = Arc::clone(&journals[r as usize]);
            Board::new(r, Arc::clone(&names), &neighbours(r, n), journal)
        };
        Self {
            boards: (0..n).map(board).collect(),
            offsets_us: (0..n).map(|_| random.below(10_000_000)).collect(),
            delay_us_max: [300, 2_000, 5_000, 20_000][usize::try_from(random.below(4)).unwrap()],
            alarm_us: vec![0; n as usize],
            ended: vec![None; n as usize],
            last: BTreeMap::new(),
            cuts: BTreeMap::new(),
            parted: None,
            paused: BTreeMap::new(),
            free: Vec::new(),
            events: BinaryHeap::new(),
            messages: Vec::new(),
            reports: Vec::new(),
            count: 0,
            now_us: 0,
            done_us: vec![None; n as usize],
            first: vec![None; n as usize],
            journals,
            random,
        }
    }

    /// How many reports will be made.
    pub(super) fn reports(&self) -> usize {
        self.reports.len()
    }

    pub(super) fn n(&self) -> u32 {
        u32::try_from(self.boards.len()).unwrap()
    }

    pub(super) fn at(&mut self, time_us: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time_us, self.count, event)));
    }

    pub(super) fn report(&mut self, time_us: u64, at: Rank, report: Report) {
        self.reports.push(report);
        self.at(time_us, Event::Report { at, index: self.reports.len() - 1 });
    }

    pub(super) fn all_begin(&self, sequence: u64) {
        self.journals.iter().for_each(|j| j.begin(&all_reduce(sequence, 1024)));
    }

    pub(super) fn local_ms(&self, rank: Rank) -> u64 {
        (self.now_us + self.offsets_us[rank as usize] - self.stood_still_us(rank)) / 1000
    }

    /// For how long a rank has stood still.
    fn stood_still_us(&self, rank: Rank) -> u64 {
        let paused = self.paused.get(&rank).filter(|paused| paused.end <= self.now_us);
        paused.map_or(0, |paused| paused.end - paused.start)
    }

    /// Lets nothing pass between `side` and the others for a while.
    pub(super) fn part(&mut self, side: BTreeSet<Rank>, when: Range<u64>) {
        self.parted = Some((side, when));
    }

    /// Lets a rank stand still for a while.
    pub(super) fn pause(&mut self, rank: Rank, when: Range<u64>) {
        self.paused.insert(rank, when);
    }

    /// Ends the connection of two neighbours; some of what is on its way is lost.
    pub(super) fn sever(&mut self, time_us: u64, a: Rank, b: Rank) {
        for (from, to) in [(a, b), (b, a)] {
            let cut = time_us + self.random.below(self.delay_us_max);
            self.cut((from, to), cut);
            self.at(cut, Event::Lost { at: to, peer: from });
        }
    }

    /// What would arrive from then on is lost.
    fn cut(&mut self, link: (Rank, Rank), time_us: u64) {
        let cut = self.cuts.entry(link).or_insert(time_us);
        *cut = time_us.min(*cut);
    }

    /// Ranks that live and can reach each other, if what is parted stays so.
    pub(super) fn sides(&self) -> Vec<BTreeSet<Rank>> {
        let apart = |a: Rank, b: Rank| {
            let parted = self.parted.as_ref();
            parted.is_some_and(|(side, _)| side.contains(&a) != side.contains(&b))
                || self.cuts.contains_key(&(a, b))
        };
        let mut left: BTreeSet<Rank> =
            (0..self.n()).filter(|rank| self.ended[*rank as usize].is_none()).collect();
        let mut sides = Vec::new();
        while let Some(first) = left.pop_first() {
            let (mut side, mut new) = (BTreeSet::from([first]), vec![first]);
            while let Some(rank) = new.pop() {
                for peer in neighbours(rank, self.n()) {
                    if !apart(rank, peer) && left.remove(&peer) {
                        side.insert(peer);
                        new.push(peer);
                    }
                }
            }
            sides.push(side);
        }
        sides
    }

    /// Sends what `rank` has to send, and asks for its next tick.
    pub(super) fn collect(&mut self, rank: Rank) {
        for outgoing in self.boards[rank as usize].take_outgoing() {
            let on_its_way = (Some(outgoing.message), outgoing.to.len());
            let index = self.free.pop().unwrap_or(self.messages.len());
            if index == self.messages.len() {
                self.messages.push(on_its_way);
            } else {
                self.messages[index] = on_its_way;
            }
            for to in outgoing.to {
                let time = self.arrival(rank, to);
                self.at(time, Event::Deliver { from: rank, to, index });
            }
        }
        let board = &self.boards[rank as usize];
        if let Some(verdict) = board.verdict() {
            self.done_us[rank as usize].get_or_insert(self.now_us);
            self.first[rank as usize].get_or_insert_with(|| verdict.clone());
        }
        if let Some(at_ms) = board.next_tick(self.local_ms(rank)) {
            let time = at_ms * 1000 + self.stood_still_us(rank);
            let time = time.saturating_sub(self.offsets_us[rank as usize]);
            let time = time.max(self.now_us + 1);
            if std::mem::replace(&mut self.alarm_us[rank as usize], time) != time {
                self.at(time, Event::Tick { rank });
            }
        }
    }

    pub(super) fn arrival(&mut self, from: Rank, to: Rank) -> u64 {
        let mut soonest = self.now_us + 20 + self.random.below(self.delay_us_max);
        let parted = self.parted.as_ref().filter(|(_, when)| when.contains(&soonest));
        if let Some((side, when)) = parted
            && side.contains(&from) != side.contains(&to)
        {
            // TCP tries again, ever more rarely.
            soonest = when.end + self.random.below(200_000);
        }
        if let Some(paused) = self.paused.get(&to).filter(|paused| paused.contains(&soonest)) {
            soonest = paused.end;
        }
        let last = self.last.entry((from, to)).or_default();
        *last = soonest.max(*last);
        *last
    }

    /// Ends a rank: killed, a random rest of what it sent on each link is lost.
    pub(super) fn end(&mut self, rank: Rank, polite: bool) {
        if polite {
            self.boards[rank as usize].leave();
            self.collect(rank);
        }
        self.ended[rank as usize] = Some(self.now_us);
        for peer in neighbours(rank, self.n()) {
            let mut time = self.arrival(rank, peer);
            if !polite {
                time = self.now_us + self.random.below(time - self.now_us + 1);
                self.cut((rank, peer), time);
            }
            self.at(time, Event::Lost { at: peer, peer: rank });
        }
    }

    pub(super) fn run(&mut self) {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now_us = time;
            let rank = match &event {
                Event::Deliver { to, .. } => *to,
                Event::Lost { at, .. } | Event::Report { at, .. } => *at,
                Event::Kill { rank }
                | Event::Leave { rank }
                | Event::Freeze { rank }
                | Event::Tick { rank } => *rank,
            };
            let message = match &event {
                Event::Deliver { index, .. } => self.take(*index),
                _ => None,
            };
            if self.ended[rank as usize].is_some() {
                continue;
            }
            let paused = self.paused.get(&rank).filter(|paused| paused.contains(&time));
            if let (Some(paused), None) = (paused, &message) {
                let end = paused.end;
                self.at(end, event);
                continue;
            }
            let now = self.local_ms(rank);
            let board = &mut self.boards[rank as usize];
            match event {
                Event::Deliver { from, .. } => {
                    if self.cuts.get(&(from, rank)).is_none_or(|cut| time < *cut)
                        && let Some(message) = message
                    {
                        board.receive(from, message, now);
                    }
                }
                Event::Lost { peer, .. } => board.neighbour_lost(peer, false, now),
                Event::Report { index, .. } => board.local(self.reports[index].clone(), now),
                Event::Tick { .. } => board.tick(now),
                Event::Kill { .. } => self.end(rank, false),
                Event::Leave { .. } => self.end(rank, true),
                Event::Freeze { .. } => self.ended[rank as usize] = Some(time),
            }
            if self.ended[rank as usize].is_none() {
                self.collect(rank);
            }
        }
    }

    /// A message that has arrived at one of those it is for.
    fn take(&mut self, index: usize) -> Option<Message> {
        let (message, left) = &mut self.messages[index];
        *left -= 1;
        if *left > 0 {
            return message.clone();
        }
        self.free.push(index);
        message.take()
    }

    /// All survivors hold one and the same verdict, reached in bounded time; returns it.
    pub(super) fn agreed(&self) -> Error {
        let survivors = (0..self.n()).filter(|&r| self.ended[r as usize].is_none());
        self.agreed_among(&survivors.collect())
    }

    /// These hold one and the same verdict, reached in bounded time; returns it.
    pub(super) fn agreed_among(&self, ranks: &BTreeSet<Rank>) -> Error {
        let mut verdict: Option<&Error> = None;
        let held_up = self.parted.iter().map(|(_, when)| when).chain(self.paused.values());
        // Those who are parted for long do not wait for the end of it: their deadlines pass after a second.
        let until = |when: &Range<u64>| when.end.min(when.start + 1_000_000) + 200_000;
        let held_up_us = held_up.map(until).max().unwrap_or(0);
        for &rank in ranks {
            let mine = self.boards[rank as usize].verdict();
            let mine = mine.unwrap_or_else(|| panic!("rank {rank} has no verdict"));
            let first = *verdict.get_or_insert(mine);
            assert_eq!(first, mine, "rank {rank} disagrees");
            assert_eq!(
                self.first[rank as usize].as_ref(),
                Some(mine),
                "rank {rank} has changed its mind"
            );
            let done_us = self.done_us[rank as usize].expect("a verdict has a time");
            // Reports come within the first 250 ms, and news must travel.
            let limit_us = (AGREEMENT_MS_MAX + 350) * 1000 + held_up_us;
            assert!(done_us < limit_us, "rank {rank} needed {done_us} us");
        }
        verdict.expect("at least one survivor").clone()
    }
}
