//! Flows in parts: at each fork every neighbour that is nearer gets as much as its cables, and what is behind it, can
//! carry beside the others.

use std::collections::BTreeMap;
use std::rc::Rc;

use ringway_fabric::model::NodeIndex;

use super::{Router, Stuck, Use};

impl Router<'_> {
    /// The links from a switch to a goal, each with its part of a flow.
    pub(super) fn split(&mut self, place: u32, goal: u32) -> Result<Rc<[Use]>, Stuck> {
        if let Some(known) = self.splits.get(&(place, goal)) {
            return Ok(Rc::clone(known));
        }
        let mut uses = Vec::new();
        let mut here: BTreeMap<u32, f64> = BTreeMap::from([(place, 1.0)]);
        let mut hop = 0;
        // All paths are equally long, so those that split meet again in the same round.
        while here.keys().any(|place| !self.is_goal(goal, *place)) {
            let mut next: BTreeMap<u32, f64> = BTreeMap::new();
            for (place, part) in here {
                if self.is_goal(goal, place) {
                    *next.entry(place).or_default() += part;
                    continue;
                }
                let weights = self.weights(place, goal)?;
                let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
                for (link, weight) in weights {
                    let own = part * weight / sum;
                    uses.push(Use { link, part: own, hop });
                    let far = self.network.switch_of[self.far_end(link)];
                    *next.entry(far).or_default() += own;
                }
            }
            here = next;
            hop += 1;
        }
        let split: Rc<[Use]> = uses.into();
        self.splits.insert((place, goal), Rc::clone(&split));
        Ok(split)
    }

    /// The cables of a switch that lead nearer to a goal, each with what it can bring there.
    fn weights(&mut self, place: u32, goal: u32) -> Result<Vec<(u32, f64)>, Stuck> {
        let choice = self.choice(place, goal)?;
        let list = self.lists[choice.0 as usize..choice.1 as usize].to_vec();
        // What the cables to a neighbour carry together; beyond it there may be less.
        let mut together: BTreeMap<u32, f64> = BTreeMap::new();
        for link in &list {
            let far = self.network.switch_of[self.far_end(*link)];
            *together.entry(far).or_default() += self.capacities[*link as usize];
        }
        let mut parts: BTreeMap<u32, f64> = BTreeMap::new();
        for (far, sum) in together {
            parts.insert(far, (self.reach(far, goal)? / sum).min(1.0));
        }
        let weight = |link: u32| {
            let far = self.network.switch_of[self.far_end(link)];
            (link, self.capacities[link as usize] * parts[&far])
        };
        Ok(list.into_iter().map(weight).collect())
    }

    /// What a switch can bring to a goal at most.
    fn reach(&mut self, place: u32, goal: u32) -> Result<f64, Stuck> {
        if self.is_goal(goal, place) {
            return Ok(f64::INFINITY);
        }
        if let Some(known) = self.reaches.get(&(place, goal)) {
            return Ok(*known);
        }
        let reach = self.weights(place, goal)?.iter().map(|(_, weight)| weight).sum();
        self.reaches.insert((place, goal), reach);
        Ok(reach)
    }

    /// From the switches of a goal to the node itself; `start` is the switch where the parts began.
    pub(super) fn last_parts(
        &mut self,
        start: u32,
        goal: u32,
        to: NodeIndex,
        uses: &mut Vec<Use>,
    ) -> Result<(), Stuck> {
        if self.network.switch_of[to] != u32::MAX {
            return Ok(());
        }
        // What arrives at each switch of the goal: what went in and not out again.
        let mut arrived: BTreeMap<NodeIndex, f64> = BTreeMap::new();
        let ends = if (goal as usize) < self.network.switches.len() {
            vec![goal]
        } else {
            self.goal_set(goal).to_vec()
        };
        for place in &ends {
            arrived.insert(self.network.switches[*place as usize] as usize, 0.0);
        }
        // What begins at a goal has come over no cable between switches.
        let stays = self.is_goal(goal, start);
        for one in uses.iter().filter(|_| !stays) {
            if (one.link as usize) < self.dead.len()
                && let Some(sum) = arrived.get_mut(&self.far_end(one.link))
            {
                *sum += one.part;
            }
        }
        if stays {
            arrived.insert(self.network.switches[start as usize] as usize, 1.0);
        } else if ends.len() == 1 {
            arrived.values_mut().for_each(|part| *part = 1.0);
        }
        let hop = uses.last().map_or(0, |last| last.hop + 1);
        for (switch, part) in arrived.into_iter().filter(|(_, part)| *part > 0.0) {
            let last: Vec<u32> = self.direct(switch, to).collect();
            if last.is_empty() {
                return Err(format!("{} has lost its cables", self.name(to)));
            }
            let capacity = |link: u32| self.capacities[link as usize];
            let sum: f64 = last.iter().map(|link| capacity(*link)).sum();
            let own = |link: u32| Use { link, part: part * capacity(link) / sum, hop };
            uses.extend(last.into_iter().map(own));
        }
        Ok(())
    }
}
