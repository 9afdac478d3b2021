//! When each step of a plan can happen, in columns: the longest way to it.

use std::collections::{BTreeMap, VecDeque};

use crate::plan::{Flag, Place, Plan, Region, Step};
use crate::types::Rank;

/// A box: a step that takes a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) place: Place,
    pub(super) column: usize,
}

/// From the step that raises a counter to the wait it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrow {
    pub(super) from: Place,
    pub(super) from_column: usize,
    pub(super) to: Place,
    pub(super) to_column: usize,
    /// Whether values travel with it, or were written to the peer's memory before.
    pub(super) carries: bool,
}

/// A plan laid out in columns.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) marks: Vec<Mark>,
    pub(super) arrows: Vec<Arrow>,
    pub(super) columns: usize,
    /// Waits that nobody ends.
    pub(super) stuck: Vec<Place>,
}

struct Lane {
    place: Place,
    column: usize,
    /// Peers whose memory this lane wrote since it last signalled them.
    wrote: Vec<Rank>,
}

type Raised = (Place, usize, bool);

/// Lays out `plan`. Puts, copies and reductions take a column, an arrow one more; signals and waits
/// take none.
pub(super) fn timeline(plan: &Plan) -> Timeline {
    let mut lanes = Vec::new();
    for (rank, part) in (0..).zip(&plan.ranks) {
        for lane in 0..part.lanes.len() {
            let place = Place { rank, lane, step: 0 };
            lanes.push(Lane { place, column: 0, wrote: Vec::new() });
        }
    }
    let mut made = Timeline::default();
    let mut raised: BTreeMap<(Rank, Rank, Flag), Vec<Raised>> = BTreeMap::new();
    let mut standing: BTreeMap<(Rank, Rank, Flag), (usize, u32)> = BTreeMap::new();
    let mut ready: VecDeque<usize> = (0..lanes.len()).collect();
    while let Some(index) = ready.pop_front() {
        let lane = &mut lanes[index];
        while let Some(step) = plan.ranks[lane.place.rank as usize].lanes[lane.place.lane]
            .get(lane.place.step)
            .copied()
        {
            let place = lane.place;
            let stands = match step {
                Step::Wait { peer, flag, count } => Some((peer, flag, count)),
                Step::See { peer, card } => Some((peer, card_flag(card), 1)),
                _ => None,
            };
            if let Some((peer, flag, count)) = stands {
                let key = (peer, place.rank, flag);
                let seen = raised
                    .get(&key)
                    .and_then(|list| list.get((count as usize).checked_sub(1)?).copied());
                let Some((from, from_column, carries)) = seen else {
                    standing.insert(key, (index, count));
                    break;
                };
                lane.column = lane.column.max(from_column + 1);
                let to_column = lane.column;
                made.arrows.push(Arrow { from, from_column, to: place, to_column, carries });
            } else {
                for (peer, flag, carries) in take(lane, step, &plan.hosts, &mut made.marks) {
                    let key = (place.rank, peer, flag);
                    let list = raised.entry(key).or_default();
                    list.push((place, lane.column, carries));
                    let enough =
                        standing.get(&key).is_some_and(|(_, count)| list.len() >= *count as usize);
                    if enough {
                        ready.extend(standing.remove(&key).map(|(waiter, _)| waiter));
                    }
                }
            }
            lane.place.step += 1;
            made.columns = made.columns.max(lane.column);
        }
    }
    made.stuck = standing.values().map(|(lane, _)| lanes[*lane].place).collect();
    made
}

/// A card as a counter, after all those that are counters.
fn card_flag(card: u16) -> Flag {
    Flag::MAX - card
}

/// Takes a step that does not wait; says which counters it raises.
fn take(
    lane: &mut Lane,
    step: Step,
    hosts: &[u32],
    marks: &mut Vec<Mark>,
) -> Vec<(Rank, Flag, bool)> {
    let mut occupy = |lane: &mut Lane| {
        marks.push(Mark { place: lane.place, column: lane.column });
        lane.column += 1;
    };
    match step {
        Step::Copy { target, .. } | Step::Reduce { target, .. } | Step::Get { target, .. } => {
            occupy(lane);
            if let Region::Window(peer) = target.region {
                lane.wrote.push(peer);
            }
            Vec::new()
        }
        Step::Put { peer, signal, .. } => {
            occupy(lane);
            signal.map(|flag| (peer, flag, true)).into_iter().collect()
        }
        Step::Signal { peer, flag } => {
            let before = lane.wrote.len();
            lane.wrote.retain(|written| *written != peer);
            vec![(peer, flag, lane.wrote.len() < before)]
        }
        Step::Show { card, .. } => {
            occupy(lane);
            let own = lane.place.rank;
            let near = |rank: Rank| hosts.get(rank as usize) == hosts.get(own as usize);
            let peers = (0..).zip(hosts).map(|(peer, _)| peer);
            let peers = peers.filter(|peer| *peer != own && near(*peer));
            peers.map(|peer| (peer, card_flag(card), true)).collect()
        }
        Step::Wait { .. } | Step::See { .. } => Vec::new(),
    }
}
