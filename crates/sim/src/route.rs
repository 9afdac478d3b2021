//! Ways through the network: which links a flow takes.
//!
//! Between hosts a flow goes from its GPU over the bus to the adapter, by shortest paths from switch to switch, and
//! down again. Where several cables lead nearer, the switch chooses:
//!
//! * [`Way::Ecmp`] hashes the two ends and the queue pair together with a seed of the switch's own.
//! * [`Way::Polarised`] takes the same hash at every switch. Cables are numbered neighbour by neighbour, the first
//!   cable to each, then the second to each; a switch takes number `hash mod cables`. So the choice of one tier decides
//!   that of the next: of 4 spines with 2 cables to every leaf the first is reached by hashes 0, 4, 8, …, all of them
//!   even, and uses only the first of its 2 cables down.
//! * [`Way::Adaptive`] spreads each flow over all shortest paths, by what they can carry: a cable that was slowed gets less
//!   of it. The parts are those of when the flow begins; one that is under way keeps them when a cable is slowed.
//! * [`Way::Static`] goes by the destination alone, as InfiniBand's fat-tree routing does: by its port on its leaf, then
//!   by the leaf.
//!
//! With few different headers the hash takes few values whatever it is: [`Routing::entropy`].
//!
//! *Invariant:* a way depends on its flow, the routing and what is down or slow, and on nothing that was routed before.

mod split;

use std::collections::HashMap;
use std::rc::Rc;

use ringway_fabric::model::NodeIndex;

use crate::network::{FAR, Network, Place, small};
use crate::work::Flow;

/// How switches choose among cables.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Way {
    /// A hash with a seed of each switch's own.
    #[default]
    Ecmp,
    /// The same hash at every switch.
    Polarised,
    /// A part over each.
    Adaptive,
    /// By destination.
    Static,
}

/// How flows find their way.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Routing {
    /// How switches choose.
    pub way: Way,
    /// What hashes begin with.
    pub seed: u64,
    /// The switches whose hash is that of the leaves, where only some are polarised; empty for all.
    pub polarised: Vec<NodeIndex>,
    /// How many different values the hash takes; nothing for any number.
    pub entropy: Option<u32>,
}

/// A link that a flow uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Use {
    pub(crate) link: u32,
    /// The part of the flow.
    pub(crate) part: f64,
    /// How far from the source it is: what is upstream is less.
    pub(crate) hop: u16,
}

/// What a flow could not pass.
pub(crate) type Stuck = String;

/// The cables that lead nearer, as places in [`Router::lists`].
type Choice = (u32, u32);

/// Finds ways, and remembers what it needs again.
#[derive(Debug)]
pub(crate) struct Router<'n> {
    network: &'n Network,
    routing: Routing,
    unseeded: Vec<bool>,
    /// Links that are down.
    dead: Vec<bool>,
    any_dead: bool,
    /// What each cable carries now, in each direction.
    capacities: Vec<f64>,
    /// Sets of switches that are as good as each other to end at, after those of one switch.
    goals: HashMap<Vec<u32>, u32>,
    goal_sets: Vec<Vec<u32>>,
    distances: HashMap<u32, Rc<[u16]>>,
    choices: HashMap<(u32, u32), Choice>,
    lists: Vec<u32>,
    splits: HashMap<(u32, u32), Rc<[Use]>>,
    /// What goes from a switch to a goal at most.
    reaches: HashMap<(u32, u32), f64>,
}

impl<'n> Router<'n> {
    pub(crate) fn new(network: &'n Network, routing: &Routing) -> Self {
        let mut unseeded = Vec::new();
        if routing.way == Way::Polarised {
            let nodes = &network.fabric.nodes;
            let all = routing.polarised.is_empty();
            unseeded = nodes.iter().map(|node| all || node.tier <= 1).collect();
            for node in &routing.polarised {
                if let Some(flag) = unseeded.get_mut(*node) {
                    *flag = true;
                }
            }
        }
        let cables = network.fabric.links.len() * 2;
        Self {
            network,
            routing: routing.clone(),
            unseeded,
            dead: vec![false; cables],
            any_dead: false,
            capacities: network.links[..cables].iter().map(|link| link.capacity).collect(),
            goals: HashMap::new(),
            goal_sets: Vec::new(),
            distances: HashMap::new(),
            choices: HashMap::new(),
            lists: Vec::new(),
            splits: HashMap::new(),
            reaches: HashMap::new(),
        }
    }

    /// Takes a link down, or up again.
    pub(crate) fn set_dead(&mut self, link: u32, dead: bool) {
        if let Some(flag) = self.dead.get_mut(link as usize) {
            *flag = dead;
        }
        self.any_dead = self.dead.contains(&true);
        self.distances.clear();
        self.choices.clear();
        self.lists.clear();
        self.splits.clear();
        self.reaches.clear();
    }

    /// Gives a link another capacity, which flows that begin from now on are split by.
    pub(crate) fn set_capacity(&mut self, link: u32, capacity: f64) {
        if let Some(known) = self.capacities.get_mut(link as usize) {
            *known = capacity;
            self.splits.clear();
            self.reaches.clear();
        }
    }

    fn up(&self, link: u32) -> bool {
        !self.dead[link as usize]
    }

    /// The links of a flow, in order.
    pub(crate) fn route(&mut self, flow: &Flow, uses: &mut Vec<Use>) -> Result<(), Stuck> {
        uses.clear();
        let network = self.network;
        let (from, to) = match (flow.from, flow.to) {
            (Place::Rank(from), Place::Rank(to)) => {
                if from == to {
                    return Ok(());
                }
                if network.hosts[from as usize] == network.hosts[to as usize] {
                    whole(uses, network.inside(from).0);
                    whole(uses, network.inside(to).1);
                    return Ok(());
                }
                let relay = network.leaves_from(from, to);
                if relay != from {
                    whole(uses, network.inside(from).0);
                    whole(uses, network.inside(relay).1);
                }
                (network.adapter_of(relay, flow.key), network.adapter_of(to, flow.key))
            }
            (Place::Rank(from), Place::Switch(to)) => (network.adapter_of(from, flow.key), to),
            (Place::Switch(from), Place::Rank(to)) => (from, network.adapter_of(to, flow.key)),
            (Place::Switch(from), Place::Switch(to)) => (from, to),
        };
        if matches!(flow.from, Place::Rank(_)) {
            whole(uses, network.bus(from).0);
        }
        self.between(from, to, flow.key, uses)?;
        if matches!(flow.to, Place::Rank(_)) {
            whole(uses, network.bus(to).1);
        }
        Ok(())
    }

    fn between(
        &mut self,
        from: NodeIndex,
        to: NodeIndex,
        key: u64,
        uses: &mut Vec<Use>,
    ) -> Result<(), Stuck> {
        if from == to {
            return Ok(());
        }
        let mut hash = Hash::new(self.network, &self.routing, (from, to), key);
        let goal = self.goal(to)?;
        let mut at = from;
        if self.network.switch_of[from] == u32::MAX {
            let first = self.first_cables(from, to, goal)?;
            let link = first[hash.pick(from, first.len(), &self.unseeded)];
            whole(uses, link);
            at = self.far_end(link);
            if at == to {
                return Ok(());
            }
        }
        if self.routing.way == Way::Adaptive {
            let place = self.network.switch_of[at];
            let split = self.split(place, goal)?;
            let hop = small(uses.len()).try_into().unwrap_or(FAR);
            uses.extend(split.iter().map(|one| Use { hop: one.hop + hop, ..*one }));
            self.last_parts(place, goal, to, uses)
        } else {
            while !self.is_goal(goal, self.network.switch_of[at]) {
                let choice = self.choice(self.network.switch_of[at], goal)?;
                let list = &self.lists[choice.0 as usize..choice.1 as usize];
                let link = list[hash.pick(at, list.len(), &self.unseeded)];
                whole(uses, link);
                at = self.far_end(link);
            }
            if at != to {
                let last: Vec<u32> = self.direct(at, to).collect();
                let Some(link) = last.get(hash.pick(at, last.len(), &self.unseeded)) else {
                    return Err(format!("{} has lost its cables", self.name(to)));
                };
                whole(uses, *link);
            }
            Ok(())
        }
    }

    fn name(&self, node: NodeIndex) -> &str {
        &self.network.fabric.nodes[node].name
    }

    fn far_end(&self, link: u32) -> NodeIndex {
        let ends = self.network.fabric.links[link as usize / 2].ends;
        if link.is_multiple_of(2) { ends[1].node } else { ends[0].node }
    }

    /// Cables that are up straight from a node to another.
    fn direct(&self, from: NodeIndex, to: NodeIndex) -> impl Iterator<Item = u32> {
        let cables = self.network.cables.of(from).iter();
        cables
            .filter(move |(link, far)| *far as usize == to && self.up(*link))
            .map(|(link, _)| *link)
    }

    /// The switches at which a node is reached: itself, or those that an adapter is plugged into.
    fn goal(&mut self, to: NodeIndex) -> Result<u32, Stuck> {
        let network = self.network;
        let own = network.switch_of[to];
        if own != u32::MAX {
            return Ok(own);
        }
        let cables = network.cables.of(to);
        // What an adapter sends is the other direction of what it gets.
        let live = cables.iter().filter(|(link, _)| self.up(*link ^ 1));
        let mut at: Vec<u32> = live.map(|(_, far)| network.switch_of[*far as usize]).collect();
        at.retain(|place| *place != u32::MAX);
        at.sort_unstable();
        at.dedup();
        if let [one] = at[..] {
            return Ok(one);
        }
        let next = small(network.switches.len() + self.goals.len());
        if let Some(known) = self.goals.get(&at) {
            return Ok(*known);
        }
        self.goals.insert(at.clone(), next);
        self.goal_sets.push(at);
        Ok(next)
    }

    fn goal_set(&self, goal: u32) -> &[u32] {
        let extra = (goal as usize).checked_sub(self.network.switches.len());
        extra.map_or(&[], |extra| &self.goal_sets[extra])
    }

    fn is_goal(&self, goal: u32, place: u32) -> bool {
        place == goal || self.goal_set(goal).contains(&place)
    }

    /// Cables from each switch to the goal.
    fn distances(&mut self, goal: u32) -> Rc<[u16]> {
        if let Some(known) = self.distances.get(&goal) {
            return Rc::clone(known);
        }
        let single = (goal as usize) < self.network.switches.len();
        let found: Rc<[u16]> = match (single, self.any_dead) {
            (true, false) => self.network.distances(goal).into(),
            (true, true) => self.network.search(&[goal], &|link| self.up(link)).into(),
            _ => self.network.search(self.goal_set(goal), &|link| self.up(link)).into(),
        };
        self.distances.insert(goal, Rc::clone(&found));
        found
    }

    /// An adapter's cables that lead to a node.
    fn first_cables(
        &mut self,
        from: NodeIndex,
        to: NodeIndex,
        goal: u32,
    ) -> Result<Vec<u32>, Stuck> {
        let network = self.network;
        let straight: Vec<u32> = self.direct(from, to).collect();
        if !straight.is_empty() {
            return Ok(straight);
        }
        let cables = network.cables.of(from);
        let mut ways: Vec<(u32, u32)> = Vec::new();
        for (link, far) in cables {
            let place = network.switch_of[*far as usize];
            if place != u32::MAX && self.up(*link) {
                ways.push((*link, place));
            }
        }
        if ways.is_empty() {
            return Err(format!("{} has lost its cables", self.name(from)));
        }
        if ways.iter().all(|(_, place)| *place == ways[0].1) {
            // One switch: the search for ways is from there.
            return Ok(ways.into_iter().map(|(link, _)| link).collect());
        }
        let far = self.distances(goal);
        let least = ways.iter().map(|(_, place)| far[*place as usize]).min().unwrap_or(FAR);
        ways.retain(|(_, place)| far[*place as usize] == least);
        Ok(ways.into_iter().map(|(link, _)| link).collect())
    }

    /// The cables of a switch that lead nearer to a goal: the first to each neighbour, then the second to each.
    fn choice(&mut self, place: u32, goal: u32) -> Result<Choice, Stuck> {
        if let Some(known) = self.choices.get(&(place, goal)) {
            return Ok(*known);
        }
        let far = self.distances(goal);
        let network = self.network;
        let here = far[place as usize];
        let node = network.switches[place as usize] as usize;
        if here == FAR {
            return Err(format!("nothing leads on from {}", self.name(node)));
        }
        let mut seen: HashMap<u32, u32> = HashMap::new();
        let mut found: Vec<(u32, u32)> = Vec::new();
        for (link, next) in network.cables.of(node) {
            let next_place = network.switch_of[*next as usize];
            if next_place != u32::MAX && far[next_place as usize] < here && self.up(*link) {
                let nth = seen.entry(*next).or_default();
                found.push((*nth, *link));
                *nth += 1;
            }
        }
        found.sort_by_key(|(nth, _)| *nth);
        let first = small(self.lists.len());
        self.lists.extend(found.iter().map(|(_, link)| *link));
        let choice = (first, small(self.lists.len()));
        self.choices.insert((place, goal), choice);
        Ok(choice)
    }
}

fn whole(uses: &mut Vec<Use>, link: u32) {
    let hop = u16::try_from(uses.len()).unwrap_or(FAR);
    uses.push(Use { link, part: 1.0, hop });
}

/// What switches choose by.
struct Hash {
    value: u64,
    seed: u64,
    /// What choices after the first go by, where they go by the destination.
    digits: Option<u64>,
}

impl Hash {
    fn new(network: &Network, routing: &Routing, ends: (NodeIndex, NodeIndex), key: u64) -> Self {
        let (from, to) = ends;
        if routing.way == Way::Static {
            // The destination's port on its leaf, then the leaf.
            let link = network.cables.of(to).first().map(|(link, _)| *link as usize / 2);
            let end = link.map(|link| network.fabric.links[link].across(to));
            let (port, leaf) = end.map_or((0, 0), |end| (end.port, end.node));
            return Self { value: port as u64, seed: 0, digits: Some(leaf as u64) };
        }
        let mut value = mixed(mixed(mixed(routing.seed) ^ from as u64) ^ to as u64);
        value = mixed(value ^ key);
        if let Some(entropy) = routing.entropy {
            value %= u64::from(entropy.max(1));
        }
        Self { value, seed: routing.seed, digits: None }
    }

    /// One of so many.
    fn pick(&mut self, switch: NodeIndex, of: usize, unseeded: &[bool]) -> usize {
        let of = of.max(1) as u64;
        let picked = if let Some(next) = self.digits {
            let digit = self.value % of;
            if of > 1 {
                self.value = next;
                self.digits = Some(next / of);
            }
            digit
        } else if unseeded.get(switch).copied().unwrap_or(false) {
            self.value % of
        } else {
            mixed(self.value ^ mixed(self.seed ^ (switch as u64).wrapping_mul(GOLDEN))) % of
        };
        usize::try_from(picked).unwrap_or(0)
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// All bits of a word stirred into all others.
pub(crate) fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(GOLDEN);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests;
