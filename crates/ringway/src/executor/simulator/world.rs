//! All ranks of a scenario in one thread, under one clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::{Arc, Mutex};

use super::fabric::Mutation;
use super::memory::Memory;
use super::network::{self, End, Network, Shared};
use super::player::{ASK_AFTER_US, Moment, Next, Phase, Player};
use super::scenario::{Fault, Scenario};
use crate::control::{AGREEMENT_MS_MAX, Board, Journal, Message, Report, neighbours};
use crate::error::{Error, RankIdentity};
use crate::executor::Links;
use crate::plan::rng::Random;
use crate::plan::types::Rank;
use crate::sync::atomic::Ordering;
use crate::transport::LinkDescription;
use crate::transport::framed::FramedLink;
use crate::transport::shm::{Attached, Bell, Layout, Reach, Segment, ShmLink};

/// How long a partition lasts: longer than any deadline of a scenario with a fault.
const PARTITION_US: u64 = 3_000_000;

/// A panic ends the world.
const UNPOISONED: &str = "nobody panicked";

/// Far more than any scenario needs: ranks that go on without getting on are stuck too.
const EVENTS_MAX: u64 = 2_000_000;

/// Pattern of scratch that nobody has used.
pub(super) const UNUSED: u8 = 0xc3;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Turn {
        rank: Rank,
    },
    /// Something has come for a rank.
    Wake {
        rank: Rank,
    },
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
    Tick {
        rank: Rank,
    },
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct World<'s> {
    pub(super) scenario: &'s Scenario,
    pub(super) players: Vec<Player>,
    pub(super) boards: Vec<Board>,
    pub(super) now_us: u64,
    /// The longest that a rank was in an operation it completed.
    pub(super) longest_us: u64,
    mutation: Option<Mutation>,
    log: bool,
    random: Random,
    network: Shared,
    /// Streams that lower ranks have opened and higher ones not yet used, by (higher, lower).
    arrivals: HashMap<(Rank, Rank), Vec<End>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    messages: Vec<Message>,
    reports: Vec<Report>,
    /// The last arrival on each control link, which keeps order, and where a death cut it.
    last_us: BTreeMap<(Rank, Rank), u64>,
    cuts_us: BTreeMap<(Rank, Rank), u64>,
    offsets_us: Vec<u64>,
    alarms_us: Vec<u64>,
}

impl<'s> World<'s> {
    pub(super) fn new(scenario: &'s Scenario, mutation: Option<Mutation>, log: bool) -> Self {
        let mut random = Random::new(scenario.seed ^ 0x776f_726c_6473);
        let n = scenario.ranks;
        let mut network = Network::new(scenario.seed, scenario.delay_us_max, scenario.capacity);
        if let Fault::Partition { border, from_us, .. } = scenario.fault {
            let sides = scenario.hosts.iter().map(|host| *host < border).collect();
            network.part(sides, from_us, from_us + PARTITION_US);
        }
        let identities: Arc<[RankIdentity]> = (0..n)
            .map(|rank| {
                let host = format!("h{}", scenario.hosts[rank as usize]);
                RankIdentity { rank, host, pid: 100 + rank }
            })
            .collect();
        let players = players(scenario, &mut random);
        let boards = players
            .iter()
            .map(|player| {
                let near = neighbours(player.rank, n);
                let journal = Arc::clone(&player.journal);
                Board::new(player.rank, Arc::clone(&identities), &near, journal)
            })
            .collect();
        let mut world = Self {
            scenario,
            players,
            boards,
            now_us: 0,
            longest_us: 0,
            mutation,
            log,
            network: Arc::new(Mutex::new(network)),
            arrivals: HashMap::new(),
            events: BinaryHeap::new(),
            count: 0,
            messages: Vec::new(),
            reports: Vec::new(),
            last_us: BTreeMap::new(),
            cuts_us: BTreeMap::new(),
            offsets_us: (0..n).map(|_| random.below(10_000_000)).collect(),
            alarms_us: vec![0; n as usize],
            random,
        };
        for rank in 0..n {
            world.go_outside(rank);
        }
        world
    }

    fn say(&self, rank: Rank, what: impl FnOnce() -> String) {
        if self.log {
            println!("{:>9} µs  rank {rank}: {}", self.now_us, what());
        }
    }

    fn at(&mut self, time_us: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time_us, self.count, event)));
    }

    /// A rank looks at this time, if it would not look earlier anyway.
    fn look_at(&mut self, rank: Rank, time_us: u64) {
        let player = &mut self.players[rank as usize];
        if time_us < player.next_us && !matches!(player.phase, Phase::Over | Phase::Dead) {
            player.next_us = time_us;
            self.at(time_us, Event::Turn { rank });
        }
    }

    /// Between operations: enters the next one when its time has come.
    fn go_outside(&mut self, rank: Rank) {
        let player = &self.players[rank as usize];
        if player.operation == self.scenario.operations.len() {
            self.finish(rank, Ok(()));
            return;
        }
        let absent = matches!(self.scenario.fault, Fault::Absence { rank: absent, operation }
            if absent == rank && operation == player.operation);
        let late = self.random.below(self.scenario.late_us_max);
        let until_us = if absent { u64::MAX } else { self.now_us + 1 + late };
        self.players[rank as usize].phase = Phase::Outside { until_us };
        if absent {
            self.say(rank, || "stays outside".to_owned());
        } else {
            self.look_at(rank, until_us);
        }
    }

    fn finish(&mut self, rank: Rank, outcome: Result<(), Error>) {
        self.say(rank, || format!("ends: {outcome:?}"));
        let player = &mut self.players[rank as usize];
        player.phase = Phase::Over;
        player.outcome = Some(outcome);
    }

    /// Runs until every rank has ended, or so much time has passed that one never will.
    pub(super) fn run(&mut self, limit_us: u64) -> Result<(), String> {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now_us = time;
            self.network.lock().expect(UNPOISONED).now_us = time;
            if time > limit_us || self.count > EVENTS_MAX {
                let stuck = self.players.iter().filter(|player| self.is_awaited(player));
                let stuck: Vec<_> =
                    stuck.map(|p| (p.rank, p.operation, format!("{:?}", p.phase))).collect();
                return Err(format!("not over after {} events: {stuck:?}", self.count));
            }
            match event {
                Event::Turn { rank } => {
                    if self.players[rank as usize].next_us == time {
                        self.players[rank as usize].next_us = u64::MAX;
                        self.turn(rank);
                    }
                }
                Event::Wake { rank } => {
                    if !matches!(self.players[rank as usize].phase, Phase::Outside { .. }) {
                        self.look_at(rank, time);
                    }
                }
                control => self.control(control),
            }
            if !self.players.iter().any(|player| self.is_awaited(player)) {
                return Ok(());
            }
        }
        Err("nothing will ever happen again".to_owned())
    }

    /// Whether a rank has still to end, or its board to decide.
    fn is_awaited(&self, player: &Player) -> bool {
        match player.phase {
            Phase::Dead => false,
            Phase::Over | Phase::Outside { until_us: u64::MAX } => {
                let board = &self.boards[player.rank as usize];
                board.is_raised() && board.verdict().is_none()
            }
            _ => true,
        }
    }

    fn turn(&mut self, rank: Rank) {
        if self.dies_now(rank) {
            self.kill(rank);
            return;
        }
        let (raised, verdict) = {
            let board = &self.boards[rank as usize];
            (board.is_raised(), board.verdict().cloned())
        };
        let local_ms = self.local_ms(rank);
        let player = &mut self.players[rank as usize];
        let mut moment = Moment {
            now_us: self.now_us,
            local_ms,
            scenario: self.scenario,
            random: &mut self.random,
            mutation: self.mutation,
            raised,
        };
        player.turns += 1;
        let next = match player.phase {
            Phase::Over | Phase::Dead => return,
            Phase::Outside { until_us } if self.now_us < until_us => Next::Sleep(until_us),
            // A communicator that has failed refuses every further call.
            Phase::Outside { .. } if verdict.is_some() => Next::Raised,
            Phase::Outside { .. } => {
                player.enter(&moment);
                player.phase = Phase::Connecting { index: usize::MAX, dialed_us: None };
                Next::Soon
            }
            Phase::Connecting { index: usize::MAX, .. } => self.connect(rank, 0, None),
            Phase::Connecting { index, dialed_us } => self.connect(rank, index, dialed_us),
            Phase::Inside => player.turn(&mut moment),
            Phase::Judging { since_us } => {
                let limit = since_us + AGREEMENT_MS_MAX * 1000;
                match verdict {
                    Some(verdict) => return self.finish(rank, Err(verdict)),
                    None if self.now_us >= limit => {
                        let own = Error::internal("no agreement in time");
                        return self.finish(rank, Err(own));
                    }
                    None => Next::Sleep(limit),
                }
            }
        };
        self.follow(rank, next);
    }

    fn follow(&mut self, rank: Rank, next: Next) {
        let soon = self.now_us + 1 + self.random.below(self.scenario.pace_us[rank as usize]);
        match next {
            Next::Soon => self.look_at(rank, soon),
            Next::Sleep(until) => self.look_at(rank, until),
            Next::Complete => {
                let took_us = self.now_us - self.players[rank as usize].started_us;
                self.longest_us = self.longest_us.max(took_us);
                self.say(rank, || {
                    format!("completes {}", self.players[rank as usize].operation - 1)
                });
                self.go_outside(rank);
            }
            Next::Fail(report) => {
                self.say(rank, || format!("reports {report:?}"));
                self.reports.push(report);
                let index = self.reports.len() - 1;
                self.at(soon, Event::Report { at: rank, index });
                self.judge(rank);
            }
            Next::Raised => self.judge(rank),
        }
        if std::mem::take(&mut self.players[rank as usize].asks) {
            self.ask(rank);
        }
        let wakes = self.network.lock().expect(UNPOISONED).take_wakes();
        for (time, rank) in wakes {
            self.at(time, Event::Wake { rank });
        }
        // A bell that was rung takes back that its owner sleeps.
        for index in 0..self.players.len() {
            let player = &self.players[index];
            if player.asleep && player.own.sleeping().load(Ordering::Relaxed) == 0 {
                let (rank, time) = (player.rank, self.now_us + 1 + self.random.below(10));
                self.look_at(rank, time);
            }
        }
    }

    /// A rank waits for long: its neighbours compare.
    fn ask(&mut self, rank: Rank) {
        if !self.boards[rank as usize].is_raised() {
            let now = self.local_ms(rank);
            self.boards[rank as usize].compare(now);
            self.publish(rank);
        }
    }

    fn judge(&mut self, rank: Rank) {
        self.players[rank as usize].phase = Phase::Judging { since_us: self.now_us };
        self.look_at(rank, self.now_us + 1);
    }

    /// Makes the links that are missing: the lower rank dials, the higher one waits for it.
    fn connect(&mut self, rank: Rank, mut index: usize, mut dialed_us: Option<u64>) -> Next {
        let player = &self.players[rank as usize];
        let prepared = Arc::clone(&player.prepared[player.operation]);
        while let Some(&peer) = prepared.peers.get(index) {
            if self.players[rank as usize].links.contains(peer) {
                (index, dialed_us) = (index + 1, None);
                continue;
            }
            let dead = matches!(self.players[peer as usize].phase, Phase::Dead);
            let ready = if rank > peer {
                self.arrivals.contains_key(&(rank, peer))
            } else {
                let most = self.scenario.delay_us_max;
                let mut network = self.network.lock().expect(UNPOISONED);
                let ready = *dialed_us.get_or_insert_with(|| network.arrival(rank, peer, most));
                !dead && ready <= self.now_us
            };
            if ready {
                self.join(rank, peer);
                continue;
            }
            let since_ms = self.local_ms(rank);
            let player = &mut self.players[rank as usize];
            if !matches!(player.phase, Phase::Connecting { index: old, .. } if old == index) {
                player.journal.wait_begin(peer, since_ms);
            }
            player.phase = Phase::Connecting { index, dialed_us };
            if self.boards[rank as usize].is_raised() {
                return Next::Raised;
            }
            let player = &self.players[rank as usize];
            let end_us = player.started_us + self.scenario.deadline_us;
            if self.now_us >= end_us {
                let waited_ms = (self.now_us - player.started_us) / 1000;
                let sequence = player.operation as u64;
                return Next::Fail(Report::Deadline {
                    sequence,
                    waited_ms,
                    waiting_on: Some(peer),
                });
            }
            if self.now_us > player.started_us + ASK_AFTER_US {
                self.ask(rank);
            }
            let pause = if dialed_us.is_some() && !dead { dialed_us } else { None };
            return Next::Sleep(pause.unwrap_or(self.now_us + 20_000).min(end_us));
        }
        let player = &mut self.players[rank as usize];
        player.begin(self.scenario);
        player.journal.wait_end();
        player.phase = Phase::Inside;
        self.say(rank, || format!("begins {}", self.players[rank as usize].operation));
        Next::Soon
    }

    /// A rank takes the streams to a peer into use.
    fn join(&mut self, rank: Rank, peer: Rank) {
        let ends = self.arrivals.remove(&(rank, peer)).unwrap_or_else(|| {
            let (mine, theirs) = (0..self.scenario.connections)
                .map(|_| network::stream(&self.network, rank, peer))
                .unzip();
            self.arrivals.insert((peer, rank), theirs);
            if matches!(self.players[peer as usize].phase, Phase::Connecting { .. }) {
                self.look_at(peer, self.now_us + 1);
            }
            mine
        });
        let link = FramedLink::over(peer, ends, self.scenario.ahead, description(peer));
        self.players[rank as usize].links.insert(peer, Box::new(link));
    }

    fn dies_now(&self, rank: Rank) -> bool {
        let player = &self.players[rank as usize];
        matches!(self.scenario.fault, Fault::Death { rank: doomed, operation, turns }
            if doomed == rank && (player.operation > operation
                || player.operation == operation && player.turns >= turns))
    }

    fn kill(&mut self, rank: Rank) {
        self.say(rank, || "dies".to_owned());
        self.players[rank as usize].phase = Phase::Dead;
        self.network.lock().expect(UNPOISONED).kill(rank);
        for peer in neighbours(rank, self.scenario.ranks) {
            let time = self.control_arrival(rank, peer);
            let cut = self.now_us + self.random.below(time - self.now_us + 1);
            self.cuts_us.insert((rank, peer), cut);
            self.at(cut, Event::Lost { at: peer, peer: rank });
        }
        let wakes = self.network.lock().expect(UNPOISONED).take_wakes();
        for (time, rank) in wakes {
            self.at(time, Event::Wake { rank });
        }
    }

    fn local_ms(&self, rank: Rank) -> u64 {
        (self.now_us + self.offsets_us[rank as usize]) / 1000
    }

    fn control_arrival(&mut self, from: Rank, to: Rank) -> u64 {
        let most = self.scenario.control_us_max;
        let parted = matches!(self.scenario.fault, Fault::Partition { control: true, .. });
        let mut network = self.network.lock().expect(UNPOISONED);
        let time = if parted { network.arrival(from, to, most) } else { network.prompt(most) };
        let last = self.last_us.entry((from, to)).or_default();
        *last = time.max(*last);
        *last
    }

    /// Something happens to a rank's board.
    fn control(&mut self, event: Event) {
        let rank = match &event {
            Event::Deliver { to: rank, .. }
            | Event::Lost { at: rank, .. }
            | Event::Report { at: rank, .. }
            | Event::Tick { rank }
            | Event::Wake { rank }
            | Event::Turn { rank } => *rank,
        };
        if matches!(self.players[rank as usize].phase, Phase::Dead) {
            return;
        }
        let now = self.local_ms(rank);
        let board = &mut self.boards[rank as usize];
        let was_raised = board.is_raised();
        match event {
            Event::Deliver { from, index, .. } => {
                if self.cuts_us.get(&(from, rank)).is_none_or(|cut| self.now_us < *cut) {
                    board.receive(from, self.messages[index].clone(), now);
                }
            }
            Event::Lost { peer, .. } => board.neighbour_lost(peer, false, now),
            Event::Report { index, .. } => board.local(self.reports[index].clone(), now),
            Event::Tick { .. } | Event::Wake { .. } | Event::Turn { .. } => board.tick(now),
        }
        let (raised, decided) = (board.is_raised() && !was_raised, board.verdict().is_some());
        self.publish(rank);
        if raised || decided {
            self.at(self.now_us + 1, Event::Wake { rank });
        }
    }

    /// Sends what a board has to say, and asks for its next tick.
    fn publish(&mut self, rank: Rank) {
        for outgoing in self.boards[rank as usize].take_outgoing() {
            self.messages.push(outgoing.message);
            let index = self.messages.len() - 1;
            for to in outgoing.to {
                let time = self.control_arrival(rank, to);
                self.at(time, Event::Deliver { from: rank, to, index });
            }
        }
        let now = self.local_ms(rank);
        if let Some(at_ms) = self.boards[rank as usize].next_tick(now) {
            let time = (at_ms * 1000).saturating_sub(self.offsets_us[rank as usize]);
            let time = time.max(self.now_us + 1);
            if std::mem::replace(&mut self.alarms_us[rank as usize], time) != time {
                self.at(time, Event::Tick { rank });
            }
        }
    }
}

fn description(peer: Rank) -> LinkDescription {
    LinkDescription { peer, transport: "", detail: String::new(), reason: String::new() }
}

/// The ranks with their segments, plans and buffers; those of a host map each other.
fn players(scenario: &Scenario, random: &mut Random) -> Vec<Player> {
    let n = scenario.ranks;
    let operations = scenario.operations.len();
    let plans: Vec<Vec<_>> = (0..n)
        .map(|rank| (0..operations).map(|index| Arc::new(scenario.prepared(rank, index))).collect())
        .collect();
    let largest = plans.iter().flatten().map(|prepared| prepared.plan.scratch_bytes).max();
    let layout = Layout {
        ranks: n,
        small_bytes: scenario.small_bytes,
        large_bytes: largest.unwrap_or(0).next_multiple_of(64) + 64,
        message_bytes: 64,
    };
    let segments: Vec<Arc<Segment>> = (0..n)
        .map(|_| Arc::new(Segment::create(layout).expect("memory for a segment").0))
        .collect();
    let bell = Bell::new().expect("a descriptor for a bell");
    plans
        .into_iter()
        .zip(0..n)
        .map(|(prepared, rank)| {
            let own = Arc::clone(&segments[rank as usize]);
            super::fill_scratch(&own, UNUSED);
            let mut links = Links::new(rank, n, Arc::clone(&own), bell.clone());
            let here = scenario.hosts[rank as usize];
            let near = (0..n).filter(|p| *p != rank && scenario.hosts[*p as usize] == here);
            let near: Arc<[Rank]> = near.collect();
            for &peer in near.iter() {
                let segment = Arc::clone(&segments[peer as usize]);
                let reach = Ok(Reach::own());
                let attached = Attached { peer, segment, bell: bell.clone(), reach };
                let link = ShmLink::new(rank, Arc::clone(&own), attached, description(peer));
                links.insert(peer, Box::new(link));
            }
            let memories = (0..operations)
                .map(|index| {
                    let pieces = &scenario.operation(rank, index).pieces;
                    pieces.iter().map(|piece| Memory::new(piece, rank, random)).collect()
                })
                .collect();
            Player::new(rank, (links, own), near, Arc::new(Journal::new()), prepared, memories)
        })
        .collect()
}
