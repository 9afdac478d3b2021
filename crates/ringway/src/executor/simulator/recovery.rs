//! Jobs that go on after a death: without the dead, with others in their seats, or with more ranks than before.
//!
//! ```text
//!   a world ends in an error ──► who is excluded, by it ──► two rounds of a meeting ──► a world of those who go on ──► …
//! ```
//!
//! The verdicts, the rounds and what they come to are production's. Words are delayed, ranks come late, and now and then one more
//! dies while they meet. A new communicator is a new world, with another death in it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use super::check;
use super::player::Phase;
use super::scenario::{Fault, Scenario};
use super::world::World;
use crate::communicator::{Progress, Round, Word};
use crate::error::{Error, ErrorKind, RankIdentity};
use crate::plan::rng::Random;
use crate::plan::types::Rank;

/// How long the first waits for the others, and how much longer these wait for it.
const DEADLINE_US: u64 = 5_000_000;
const GRACE_US: u64 = 2_000_000;

/// Failures of one job.
const GENERATIONS: usize = 3;

/// How a job goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Shrink,
    Replace,
    Grow,
}

/// What a job went through.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// How it went on, each time.
    pub(super) ways: Vec<Way>,
    /// Meetings in which a rank died, and everybody learnt of it there.
    pub(super) interrupted: usize,
    /// Meetings in which one died while it told the others, or was told: some learnt of it, and some had ended well.
    pub(super) torn: usize,
    /// Meetings that had ended well before one died.
    pub(super) late: usize,
    /// The longest that a rank was in an operation it completed.
    pub(super) longest_us: u64,
}

/// Runs the job of a seed to its end.
pub(super) fn run(seed: u64, log: bool) -> Result<Story, String> {
    let mut random = Random::new(seed ^ 0x7265_636f_7665_7279);
    let mut story = Story::default();
    let mut scenario = Scenario::new(seed).with_a_death(&mut random);
    for generation in 0..GENERATIONS {
        if log {
            println!("world {generation}: {}", super::describe(&scenario));
        }
        let mut world = World::new(&scenario, None, log);
        let outcome = world
            .run(scenario.operations.len() as u64 * (scenario.deadline_us + 5_000_000))
            .and_then(|()| check::check(&world))
            .and_then(|()| left(&world));
        let found = outcome.map_err(|what| {
            format!("world {generation}: {what}\n{}", super::describe(&scenario))
        })?;
        story.longest_us = story.longest_us.max(world.longest_us);
        let Some(members) = found else { return Ok(story) };
        let members = gather(&mut random, &world, members, &mut story)?;
        let way = random.pick(&[Way::Shrink, Way::Replace, Way::Grow]);
        story.ways.push(way);
        let mut hosts: Vec<u32> = match way {
            Way::Replace => scenario.hosts.clone(),
            _ => members.iter().map(|rank| scenario.hosts[*rank as usize]).collect(),
        };
        if way == Way::Grow {
            let more = 1 + random.below(3);
            hosts.extend((0..more).map(|_| u32::try_from(random.below(4)).expect("small")));
        }
        let seed = 5 * random.below(1 << 40) + 4;
        scenario = Scenario::on(seed, hosts);
        // The last one runs to its end.
        scenario = if generation + 2 < GENERATIONS {
            scenario.with_a_death(&mut random)
        } else {
            scenario.with(Fault::Nothing)
        };
    }
    Ok(story)
}

/// The ranks that are left, by what each of them was told; none where nobody was told anything.
fn left(world: &World<'_>) -> Result<Option<Vec<Rank>>, String> {
    let is_dead = |rank: &Rank| matches!(world.players[*rank as usize].phase, Phase::Dead);
    let alive: Vec<Rank> = (0..world.scenario.ranks).filter(|rank| !is_dead(rank)).collect();
    let told = |rank: &Rank| world.boards[*rank as usize].verdict();
    let Some(error) = alive.iter().find_map(told) else { return Ok(None) };
    if let Some(other) = alive.iter().find(|rank| told(rank) != Some(error)) {
        return Err(format!("rank {other} was told {:?}, others {error:?}", told(other)));
    }
    let excluded: BTreeSet<Rank> = error.culprits().iter().map(|who| who.rank).collect();
    let members: Vec<Rank> =
        (0..world.scenario.ranks).filter(|rank| !excluded.contains(rank)).collect();
    if members == alive {
        Ok(Some(members))
    } else {
        Err(format!("{members:?} go on, but {alive:?} are alive"))
    }
}

/// Those who are left meet until nobody dies meanwhile: the members that go on.
fn gather(
    random: &mut Random,
    world: &World<'_>,
    mut members: Vec<Rank>,
    story: &mut Story,
) -> Result<Vec<Rank>, String> {
    loop {
        let completed = |rank: &Rank| world.players[*rank as usize].operation as u64;
        let dies = (members.len() > 1 && random.percent(30)).then(|| {
            let place = usize::try_from(random.below(members.len() as u64)).expect("below");
            (place, random.below(80_000))
        });
        let found = meet(random, &members, &completed, dies)?;
        let failed = found.iter().filter(|outcome| outcome.is_err()).count();
        let Some((dead, _)) = dies else {
            return if failed == 0 { Ok(members) } else { Err("a meeting failed".to_owned()) };
        };
        // Who heard nothing of it misses the dead when the new communicator connects.
        match failed {
            0 => story.late += 1,
            _ if failed == members.len() - 1 => story.interrupted += 1,
            _ => story.torn += 1,
        }
        members.remove(dead);
    }
}

enum Happens {
    Begins(usize),
    Dies(usize),
    Hears(usize, usize, Word),
    Loses(usize, usize),
    Expires(usize),
}

/// One member on its way through the two rounds.
struct Member {
    round: Option<Round>,
    /// What has come before this one did.
    early: VecDeque<Happens>,
    /// What the rounds came to.
    heard: Vec<Vec<Vec<u8>>>,
    failed: Option<Error>,
    dead: bool,
}

struct Table<'a> {
    random: &'a mut Random,
    members: Vec<Member>,
    identities: Vec<RankIdentity>,
    words: Vec<[Vec<u8>; 2]>,
    now_us: u64,
    happening: Vec<Option<Happens>>,
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    /// The last arrival at each member from the first, and at the first from each.
    last_us: Vec<[u64; 2]>,
}

/// A meeting of two rounds: what had completed, and introductions. What each member comes to.
fn meet(
    random: &mut Random,
    ranks: &[Rank],
    completed: &dyn Fn(&Rank) -> u64,
    dies: Option<(usize, u64)>,
) -> Result<Vec<Result<(), Error>>, String> {
    let identity =
        |rank: &Rank| RankIdentity { rank: *rank, host: "h".to_owned(), pid: 100 + rank };
    let member = || Member {
        round: None,
        early: VecDeque::new(),
        heard: Vec::new(),
        failed: None,
        dead: false,
    };
    let mut table = Table {
        members: ranks.iter().map(|_| member()).collect(),
        identities: ranks.iter().map(identity).collect(),
        words: ranks
            .iter()
            .map(|rank| [completed(rank).to_le_bytes().to_vec(), rank.to_le_bytes().to_vec()])
            .collect(),
        now_us: 0,
        happening: Vec::new(),
        queue: BinaryHeap::new(),
        last_us: vec![[0; 2]; ranks.len()],
        random,
    };
    for place in 0..ranks.len() {
        let at_us = table.random.below(50_000);
        table.at(at_us, Happens::Begins(place));
        let patience = DEADLINE_US + if place > 0 { GRACE_US } else { 0 };
        table.at(at_us + patience, Happens::Expires(place));
    }
    if let Some((place, at_us)) = dies {
        table.at(at_us, Happens::Dies(place));
    }
    table.run();
    table.check(ranks, completed, dies.map(|(place, _)| place))
}

impl Table<'_> {
    fn at(&mut self, time_us: u64, what: Happens) {
        self.happening.push(Some(what));
        self.queue.push(Reverse((time_us, self.happening.len() - 1)));
    }

    /// When something sent now arrives, in order.
    fn arrival(&mut self, from: usize, to: usize) -> u64 {
        let soonest = self.now_us + 10 + self.random.below(3_000);
        let last = &mut self.last_us[from.max(to)][usize::from(from > to)];
        *last = soonest.max(*last);
        *last
    }

    fn run(&mut self) {
        while let Some(Reverse((time_us, index))) = self.queue.pop() {
            self.now_us = time_us;
            let Some(what) = self.happening[index].take() else { continue };
            let place = match &what {
                Happens::Begins(place) | Happens::Dies(place) | Happens::Expires(place) => *place,
                Happens::Hears(place, ..) | Happens::Loses(place, _) => *place,
            };
            if self.members[place].dead {
                continue;
            }
            match what {
                Happens::Begins(_) => {
                    self.begin(place);
                    while let Some(early) = self.members[place].early.pop_front() {
                        self.take(place, early);
                    }
                }
                Happens::Dies(_) => self.die(place),
                early if self.members[place].is_early() => {
                    self.members[place].early.push_back(early);
                }
                other => self.take(place, other),
            }
        }
    }

    fn begin(&mut self, place: usize) {
        let word = self.words[place][self.members[place].heard.len()].clone();
        self.members[place].round = Some(Round::begin(self.identities.clone(), place, word));
        self.follow(place);
    }

    fn take(&mut self, place: usize, what: Happens) {
        let Some(round) = &mut self.members[place].round else { return };
        match what {
            Happens::Hears(_, from, word) => round.hear(from, word),
            Happens::Loses(_, whom) => round.lose(whom, ErrorKind::Remote, "it was reset"),
            Happens::Expires(_) => {
                if let Some(whom) = round.awaited() {
                    round.lose(whom, ErrorKind::Timeout, "it did not speak in time");
                }
            }
            Happens::Begins(_) | Happens::Dies(_) => {}
        }
        self.follow(place);
    }

    /// Sends what a round has to say, and goes on to the next.
    fn follow(&mut self, place: usize) {
        let Some(round) = &mut self.members[place].round else { return };
        for (to, word) in round.take_outgoing() {
            let time_us = self.arrival(place, to);
            self.at(time_us, Happens::Hears(to, place, word));
        }
        let member = &mut self.members[place];
        if member.round.as_ref().is_none_or(|round| round.awaited().is_some()) {
            return;
        }
        match member.round.take().and_then(Round::outcome) {
            Some(Ok(all)) => {
                member.heard.push(all);
                if member.heard.len() < 2 {
                    self.begin(place);
                }
            }
            Some(Err(error)) => member.failed = Some(error),
            None => {}
        }
    }

    /// A member dies; a rest of what it sent is lost.
    fn die(&mut self, place: usize) {
        self.members[place].dead = true;
        let others = if place == 0 { 1..self.members.len() } else { 0..1 };
        for other in others {
            let last = self.arrival(place, other);
            let cut_us = self.now_us + self.random.below(last - self.now_us + 1);
            let late: Vec<usize> = self
                .queue
                .iter()
                .filter(|Reverse((time_us, _))| *time_us >= cut_us)
                .map(|Reverse((_, index))| *index)
                .collect();
            for index in late {
                let slot = &mut self.happening[index];
                if matches!(slot, Some(Happens::Hears(to, from, _)) if *from == place && *to == other)
                {
                    *slot = None;
                }
            }
            self.at(cut_us, Happens::Loses(other, place));
        }
    }

    /// All who ended well have the same words, and all others name the dead.
    fn check(
        self,
        ranks: &[Rank],
        completed: &dyn Fn(&Rank) -> u64,
        dead: Option<usize>,
    ) -> Result<Vec<Result<(), Error>>, String> {
        let least = ranks.iter().map(completed).min().unwrap_or(0);
        let most = ranks.iter().map(completed).max().unwrap_or(0);
        let introduced: Vec<Vec<u8>> =
            ranks.iter().map(|rank| rank.to_le_bytes().to_vec()).collect();
        let mut found = Vec::new();
        for (place, member) in self.members.into_iter().enumerate() {
            if Some(place) == dead {
                found.push(Ok(()));
                continue;
            }
            if let Some(error) = member.failed {
                let named: Vec<Rank> = error.culprits().iter().map(|who| who.rank).collect();
                if dead.map(|dead| vec![ranks[dead]]) != Some(named) {
                    return Err(format!("member {place} names another than {dead:?}: {error:?}"));
                }
                found.push(Err(error));
                continue;
            }
            let [said, names] = &member.heard[..] else {
                return Err(format!("member {place} hangs after {} rounds", member.heard.len()));
            };
            let progress = Progress::of(said).map_err(|error| error.to_string())?;
            if (progress.everywhere, progress.anywhere) != (least, most) || *names != introduced {
                return Err(format!("member {place} agreed on {progress:?} with {names:?}"));
            }
            found.push(Ok(()));
        }
        Ok(found)
    }
}

impl Member {
    /// Whether it has not begun.
    fn is_early(&self) -> bool {
        self.round.is_none() && self.heard.is_empty() && self.failed.is_none()
    }
}
