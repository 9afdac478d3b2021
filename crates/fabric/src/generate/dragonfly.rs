//! Dragonflies: groups of switches that are all linked to each other, and groups that are too.

use super::{GenerateError, NODES_MOST, Tree};
use crate::model::Fabric;
use crate::rate::Rate;

/// A dragonfly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dragonfly {
    /// Hosts; groups are filled one after another.
    pub hosts: usize,
    /// Adapters a host.
    pub adapters: usize,
    /// Adapters a switch.
    pub down: usize,
    /// Switches of a group, each linked to all others of it.
    pub routers: usize,
    /// Links of a switch to other groups.
    pub global: usize,
    /// What every link carries.
    pub rate: Rate,
}

impl Dragonfly {
    /// The one that is balanced for switches of so many ports, with no group left out: half as many adapters and
    /// global links as a group has switches.
    #[must_use]
    pub fn balanced(ports: usize, rate: Rate) -> Self {
        let down = ports / 4;
        let mut fly = Self { hosts: 0, adapters: 1, down, routers: 2 * down, global: down, rate };
        fly.hosts = fly.ends_most();
        fly
    }

    /// The most adapters it has room for: with one link between any two groups.
    #[must_use]
    pub fn ends_most(&self) -> usize {
        let groups = self.routers.saturating_mul(self.global).saturating_add(1);
        self.routers.saturating_mul(self.down).saturating_mul(groups)
    }

    /// How many groups the hosts fill.
    #[must_use]
    pub fn groups(&self) -> usize {
        let ends = self.hosts.saturating_mul(self.adapters);
        ends.div_ceil(self.routers.saturating_mul(self.down).max(1))
    }

    /// Builds it. Links to other groups are spread evenly over them; those that do not go into their number stay
    /// unplugged.
    ///
    /// # Errors
    ///
    /// When there are too many hosts for it, or too many of anything.
    pub fn build(&self) -> Result<Fabric, GenerateError> {
        let wrong = |what: String| Err(GenerateError(what));
        if self.hosts == 0 || self.adapters == 0 || self.down == 0 || self.routers == 0 {
            return wrong("a dragonfly has hosts, adapters and switches".to_owned());
        }
        let ends = self.hosts.saturating_mul(self.adapters);
        if ends > NODES_MOST {
            return wrong(format!("{ends} adapters; at most {NODES_MOST} are generated"));
        }
        let most = self.ends_most();
        if ends > most {
            return wrong(format!(
                "{ends} adapters; {} switches a group with {} adapters and {} global links each have room for {most}",
                self.routers, self.down, self.global
            ));
        }
        let groups = self.groups();
        if groups * self.routers > NODES_MOST {
            let switches = groups * self.routers;
            return wrong(format!("{switches} switches; at most {NODES_MOST} are generated"));
        }
        let mut tree = Tree::new(self.rate);
        self.cable(&mut tree, groups)?;
        tree.finish()
    }

    fn cable(&self, tree: &mut Tree, groups: usize) -> Result<(), GenerateError> {
        let ports = self.down + self.routers - 1 + self.global;
        let mut switches = Vec::with_capacity(groups * self.routers);
        for group in 1..=groups {
            for router in 1..=self.routers {
                switches.push(tree.switch(format!("group-{group}-{router}"), ports));
            }
        }
        for host in 0..self.hosts {
            for adapter in 0..self.adapters {
                let node = tree.adapter(format!("node{} mlx5_{adapter}", host + 1));
                tree.link(switches[(host * self.adapters + adapter) / self.down], node)?;
            }
        }
        for group in switches.chunks(self.routers) {
            for (place, one) in group.iter().enumerate() {
                for other in &group[place + 1..] {
                    tree.link(*one, *other)?;
                }
            }
        }
        // Every group counts the others from the one after it.
        let each = (self.routers * self.global).checked_div(groups - 1).unwrap_or(0);
        for one in 0..groups {
            for other in one + 1..groups {
                let (there, back) = (other - one - 1, groups + one - other - 1);
                for link in 0..each {
                    let router = |group: usize, turn: usize| {
                        switches[group * self.routers + (turn * each + link) / self.global]
                    };
                    tree.link(router(one, there), router(other, back))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    fn ndr() -> Rate {
        Rate::parse("4xNDR").expect("a rate")
    }

    #[test]
    fn a_balanced_one_has_the_textbooks_numbers() {
        assert_eq!(Dragonfly::balanced(64, ndr()).ends_most(), 262_656);
        // p = 2, a = 4, h = 2: 9 groups, 36 switches, 72 adapters.
        let fly = Dragonfly::balanced(8, ndr());
        let fabric = fly.build().unwrap();
        let shape = Shape::of(&fabric);
        assert_eq!((shape.hosts, shape.switches), (72, 36));
        assert_eq!(shape.links, 72 + 9 * 6 + 9 * 8 / 2);
        assert_eq!((shape.parts, fabric.tiers), (1, 1));
        // Every two groups are linked once.
        let group = |node: usize| fabric.nodes[node].name.rsplit_once('-').map(|name| name.0);
        let mut pairs = std::collections::BTreeSet::new();
        for link in &fabric.links {
            let [a, b] = link.ends.map(|end| end.node);
            if fabric.nodes[a].host.is_none() && fabric.nodes[b].host.is_none() {
                pairs.extend((group(a) != group(b)).then(|| (group(a), group(b))));
            }
        }
        assert_eq!(pairs.len(), 36);
    }

    #[test]
    fn fewer_groups_have_more_links_between_them() {
        let fly = Dragonfly { hosts: 16, ..Dragonfly::balanced(8, ndr()) };
        assert_eq!(fly.groups(), 2);
        let shape = Shape::of(&fly.build().unwrap());
        assert_eq!(shape.links, 16 + 2 * 6 + 8);
        let one = Dragonfly { hosts: 8, ..fly };
        assert_eq!(Shape::of(&one.build().unwrap()).links, 8 + 6);
    }

    #[test]
    fn what_has_no_room_is_an_error() {
        let fly = Dragonfly { hosts: 73, ..Dragonfly::balanced(8, ndr()) };
        assert!(fly.build().unwrap_err().to_string().contains("room for 72"));
        let none = Dragonfly { routers: 0, ..fly };
        assert!(none.build().unwrap_err().to_string().contains("has hosts"));
    }
}
