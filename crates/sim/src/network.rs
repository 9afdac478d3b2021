//! The network as a simulation sees it: links in one direction each, with a capacity.
//!
//! ```text
//! GPU ── inside ── GPU          a rank's way to and from the others of its host
//!  │
//! bus                           a GPU's way to its adapter; shared by the GPUs of that adapter
//!  │
//! adapter ── cable ── switch ── cable ── …
//! ```
//!
//! Ranks are numbered host by host, hosts in the order of their names, `node2` before `node10`. The adapters of a
//! host are spread over its GPUs: with fewer adapters than GPUs some share one; with more each GPU has several, and
//! its messages are spread over them by the number of their queue pair.

use std::fmt;
use std::sync::OnceLock;

use ringway_fabric::Fabric;
use ringway_fabric::describe::natural;
use ringway_fabric::model::{Kind, LinkIndex, NodeIndex};
use ringway_fabric::rate::Rate;
use ringway_fabric::shape::Rails;

use crate::error::SimError;
use crate::machine::Machine;

/// Place of a link in [`Network::links`].
pub type LinkId = usize;

/// The most ranks of a network.
pub const RANKS_MOST: usize = 1 << 20;

/// One direction of something that carries bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// What it is.
    pub what: Wire,
    /// Bytes a microsecond.
    pub capacity: f64,
}

/// What a link is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Wire {
    /// A cable of the fabric, from the first of its ends to the second or back.
    Cable {
        /// Which.
        link: LinkIndex,
        /// From `ends[0]` to `ends[1]`.
        forward: bool,
    },
    /// A rank's way to the others of its host.
    InsideOut(u32),
    /// A rank's way from the others of its host.
    InsideIn(u32),
    /// From GPUs to an adapter.
    BusOut(NodeIndex),
    /// From an adapter to GPUs.
    BusIn(NodeIndex),
}

/// Where traffic begins and ends.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Place {
    /// A rank's GPU.
    Rank(u32),
    /// A switch that reduces.
    Switch(NodeIndex),
}

/// Where a link is, from the GPUs out.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Tier {
    /// Between the GPUs of a host.
    Inside,
    /// Between GPUs and adapters.
    Bus,
    /// A cable; tier 0 is the hosts', tier 1 the leaves'.
    Cable {
        /// The tier it comes from.
        from: u8,
        /// The tier it goes to.
        to: u8,
    },
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |tier: u8| match tier {
            0 => "host".to_owned(),
            1 => "leaf".to_owned(),
            tier => format!("tier {tier}"),
        };
        match self {
            Self::Inside => f.write_str("inside"),
            Self::Bus => f.write_str("bus"),
            Self::Cable { from, to } => write!(f, "{} > {}", name(*from), name(*to)),
        }
    }
}

/// Cables of the nodes of one kind, one list after another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cables {
    first: Vec<u32>,
    /// The link out, and the node at the other end.
    ends: Vec<(u32, u32)>,
}

impl Cables {
    /// The links out of a node, each with the node at the other end.
    pub(crate) fn of(&self, node: usize) -> &[(u32, u32)] {
        match self.first.get(node..node + 2) {
            Some(bounds) => &self.ends[bounds[0] as usize..bounds[1] as usize],
            None => &[],
        }
    }
}

/// How many cables it is from each switch to one of them.
type Distances = OnceLock<Box<[u16]>>;

/// A switch that is not reached.
pub(crate) const FAR: u16 = u16::MAX;

/// A fabric with machines at its ends.
#[derive(Clone, Debug)]
pub struct Network {
    /// The fabric.
    pub fabric: Fabric,
    /// Each host.
    pub machine: Machine,
    /// Every link in each direction.
    pub links: Vec<Link>,
    /// The host of each rank, by place in the fabric's hosts.
    pub hosts: Vec<usize>,
    /// The adapter of each rank; the first where it has several.
    pub adapters: Vec<NodeIndex>,
    /// The rail of each rank's adapter; all 0 where the fabric has none.
    pub rails: Vec<u32>,
    /// Whether the fabric has rails.
    pub has_rails: bool,
    /// How many adapters each rank has, one after the other in its host.
    pub(crate) own_adapters: Vec<u32>,
    /// The first rank of each rank's host.
    pub(crate) first_ranks: Vec<u32>,
    /// How many of a node's cables there are to each neighbour, with links out.
    pub(crate) cables: Cables,
    /// Where a node's bus begins in the links; `u32::MAX` for what is no adapter in use.
    bus: Vec<u32>,
    /// Place of each node among the switches; `u32::MAX` for what does not forward.
    pub(crate) switch_of: Vec<u32>,
    /// The switches.
    pub(crate) switches: Vec<u32>,
    distances: Vec<Distances>,
}

impl Network {
    /// Puts machines at the ends of a fabric; `ranks` says how many ranks there are, else every host has all its GPUs.
    ///
    /// # Errors
    ///
    /// When no link's rate is known, a host has no adapter that is plugged in, or there are not enough hosts.
    pub fn build(fabric: Fabric, machine: Machine, ranks: Option<usize>) -> Result<Self, SimError> {
        machine.check()?;
        let slowest = fabric.links.iter().filter_map(|link| link.rate).min();
        let Some(slowest) = slowest else {
            let why = "no rate of any link is known; name one (--rate 400G, --rate 4xNDR)";
            return Err(SimError::Network(why.to_owned()));
        };
        let mut links = Vec::with_capacity(fabric.links.len() * 2 + fabric.hosts.len() * 32);
        for (index, link) in fabric.links.iter().enumerate() {
            // A link of unknown rate counts as the slowest, so that nothing is promised.
            let capacity = gbytes(link.rate.unwrap_or(slowest)) * 1000.0;
            for forward in [true, false] {
                links.push(Link { what: Wire::Cable { link: index, forward }, capacity });
            }
        }
        let nodes = fabric.nodes.len();
        let mut network = Self {
            machine,
            links,
            hosts: Vec::new(),
            adapters: Vec::new(),
            rails: Vec::new(),
            has_rails: false,
            own_adapters: Vec::new(),
            first_ranks: Vec::new(),
            cables: cables(&fabric)?,
            bus: vec![u32::MAX; nodes],
            switch_of: vec![u32::MAX; nodes],
            switches: Vec::new(),
            distances: Vec::new(),
            fabric,
        };
        for (index, node) in network.fabric.nodes.iter().enumerate() {
            if matches!(node.kind, Kind::Switch | Kind::Router) {
                network.switch_of[index] = small(network.switches.len());
                network.switches.push(small(index));
            }
        }
        network.distances = vec![OnceLock::new(); network.switches.len()];
        network.place_ranks(ranks)?;
        network.wire_hosts();
        network.find_rails();
        Ok(network)
    }

    fn place_ranks(&mut self, ranks: Option<usize>) -> Result<(), SimError> {
        let wrong = |what: String| Err(SimError::Network(what));
        let gpus = self.machine.gpus;
        let mut order: Vec<usize> = (0..self.fabric.hosts.len()).collect();
        order.sort_by_cached_key(|host| natural(&self.fabric.hosts[*host].name));
        let most = self.fabric.hosts.len().saturating_mul(gpus);
        let ranks = ranks.unwrap_or(most);
        if ranks == 0 || ranks > most {
            return wrong(format!(
                "{ranks} ranks on {} hosts with {gpus} GPUs each: between 1 and {most} are possible",
                self.fabric.hosts.len()
            ));
        }
        if ranks > RANKS_MOST {
            return wrong(format!("{ranks} ranks; at most {RANKS_MOST} are simulated"));
        }
        for index in order {
            let left = ranks - self.hosts.len();
            if left == 0 {
                break;
            }
            let host = &self.fabric.hosts[index];
            let plugged: Vec<NodeIndex> = host
                .adapters
                .iter()
                .copied()
                .filter(|adapter| !self.cables.of(*adapter).is_empty())
                .collect();
            if plugged.is_empty() {
                return wrong(format!(
                    "host {} has no adapter that is plugged in; take fewer ranks, or leave it out of the dump",
                    host.name
                ));
            }
            let first = small(self.hosts.len());
            for gpu in 0..gpus.min(left) {
                let from = gpu * plugged.len() / gpus;
                let to = ((gpu + 1) * plugged.len() / gpus).max(from + 1);
                self.hosts.push(index);
                self.adapters.push(plugged[from]);
                self.own_adapters.push(small(to - from));
                self.first_ranks.push(first);
            }
        }
        Ok(())
    }

    fn wire_hosts(&mut self) {
        let inside = self.machine.inside_gbytes * 1000.0;
        for rank in 0..small(self.hosts.len()) {
            self.links.push(Link { what: Wire::InsideOut(rank), capacity: inside });
            self.links.push(Link { what: Wire::InsideIn(rank), capacity: inside });
        }
        let bus = self.machine.bus_gbytes * 1000.0;
        for rank in 0..small(self.hosts.len()) {
            for way in 0..self.own_adapters[rank as usize] {
                let adapter = self.adapter_of(rank, way.into());
                if self.bus[adapter] == u32::MAX {
                    self.bus[adapter] = small(self.links.len());
                    self.links.push(Link { what: Wire::BusOut(adapter), capacity: bus });
                    self.links.push(Link { what: Wire::BusIn(adapter), capacity: bus });
                }
            }
        }
    }

    fn find_rails(&mut self) {
        let rails = Rails::of(&self.fabric);
        self.has_rails = rails.count > 1;
        let rail = |adapter: &NodeIndex| match self.has_rails {
            true => rails.of_adapter.get(adapter).map_or(0, |rail| small(*rail)),
            false => 0,
        };
        self.rails = self.adapters.iter().map(rail).collect();
    }

    /// How many ranks there are.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.hosts.len()
    }

    /// A link as people call it: `leaf-1 port 33 > spine-2 port 1`, `node3 GPU 5 NVLink out`.
    #[must_use]
    pub fn link_name(&self, id: LinkId) -> String {
        let Some(link) = self.links.get(id) else { return format!("link {id}") };
        match link.what {
            Wire::Cable { link, forward } => {
                let ends = self.fabric.links[link].ends;
                let (from, to) = if forward { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
                format!("{} > {}", self.fabric.end_name(from), self.fabric.end_name(to))
            }
            Wire::InsideOut(rank) => format!("{} NVLink out", self.rank_name(rank)),
            Wire::InsideIn(rank) => format!("{} NVLink in", self.rank_name(rank)),
            Wire::BusOut(adapter) => format!("{} PCIe out", self.fabric.nodes[adapter].name),
            Wire::BusIn(adapter) => format!("{} PCIe in", self.fabric.nodes[adapter].name),
        }
    }

    /// Where a link is.
    #[must_use]
    pub fn tier_of(&self, id: LinkId) -> Tier {
        match self.links.get(id).map(|link| link.what) {
            Some(Wire::Cable { link, forward }) => {
                let tiers =
                    self.fabric.links[link].ends.map(|end| self.fabric.nodes[end.node].tier);
                let (from, to) = if forward { (tiers[0], tiers[1]) } else { (tiers[1], tiers[0]) };
                Tier::Cable { from, to }
            }
            Some(Wire::BusOut(_) | Wire::BusIn(_)) => Tier::Bus,
            _ => Tier::Inside,
        }
    }

    /// A rank's GPU as people call it: `node3 GPU 5`.
    #[must_use]
    pub fn rank_name(&self, rank: u32) -> String {
        match self.hosts.get(rank as usize) {
            Some(host) => format!(
                "{} GPU {}",
                self.fabric.hosts[*host].name,
                rank - self.first_ranks[rank as usize]
            ),
            None => format!("rank {rank}"),
        }
    }

    /// A place as people call it.
    #[must_use]
    pub fn place_name(&self, place: Place) -> String {
        match place {
            Place::Rank(rank) => format!("rank {rank} ({})", self.rank_name(rank)),
            Place::Switch(node) => match self.fabric.nodes.get(node) {
                Some(switch) => switch.name.clone(),
                None => format!("switch {node}"),
            },
        }
    }

    /// The switch of this name.
    #[must_use]
    pub fn switch_named(&self, name: &str) -> Option<NodeIndex> {
        self.fabric.switches().find(|(_, node)| node.name == name).map(|(index, _)| index)
    }

    /// The cables between two nodes, in the order of their ports.
    #[must_use]
    pub fn cables_between(&self, a: NodeIndex, b: NodeIndex) -> Vec<LinkIndex> {
        let far = |(link, far): &(u32, u32)| (*far as usize == b).then_some(*link as usize / 2);
        self.cables.of(a).iter().filter_map(far).collect()
    }

    /// In how many parts a flow goes between two ranks: as many for each adapter by which it leaves, and at least as many
    /// as there are queue pairs.
    #[must_use]
    pub fn parts(&self, (from, to): (u32, u32), qps: u32) -> u32 {
        if self.hosts[from as usize] == self.hosts[to as usize] {
            return 1;
        }
        let sender = self.leaves_from(from, to);
        qps.next_multiple_of(self.own_adapters[sender as usize].max(1))
    }

    /// The adapter of a rank for a queue pair.
    #[must_use]
    pub fn adapter_of(&self, rank: u32, key: u64) -> NodeIndex {
        let first = self.adapters[rank as usize];
        match u64::from(self.own_adapters[rank as usize]) {
            1 => first,
            own => {
                let list = &self.fabric.hosts[self.hosts[rank as usize]].adapters;
                let plugged = list.iter().filter(|adapter| !self.cables.of(**adapter).is_empty());
                let skip = usize::try_from(key % own).unwrap_or(0);
                let mut from = plugged.skip_while(|adapter| **adapter != first).skip(skip);
                from.next().copied().unwrap_or(first)
            }
        }
    }

    /// The ranks of a rank's host.
    #[must_use]
    pub fn host_ranks(&self, rank: u32) -> std::ops::Range<u32> {
        let first = self.first_ranks[rank as usize];
        let host = self.hosts[rank as usize];
        let mut end = rank + 1;
        while self.hosts.get(end as usize) == Some(&host) {
            end += 1;
        }
        first..end
    }

    /// Out of a rank to the others of its host, and in.
    pub(crate) fn inside(&self, rank: u32) -> (u32, u32) {
        let first = small(self.fabric.links.len() * 2) + 2 * rank;
        (first, first + 1)
    }

    /// To an adapter, and from it.
    pub(crate) fn bus(&self, adapter: NodeIndex) -> (u32, u32) {
        (self.bus[adapter], self.bus[adapter] + 1)
    }

    /// Cables from each switch to the switch at place `to`, while everything is up.
    pub(crate) fn distances(&self, to: u32) -> &[u16] {
        self.distances[to as usize].get_or_init(|| self.search(&[to], &|_| true))
    }

    /// Cables from each switch to the nearest of some, over cables that are up.
    pub(crate) fn search(&self, to: &[u32], up: &dyn Fn(u32) -> bool) -> Box<[u16]> {
        let mut far = vec![FAR; self.switches.len()];
        let mut queue: Vec<u32> = to.to_vec();
        for place in to {
            far[*place as usize] = 0;
        }
        let mut at = 0;
        while let Some(place) = queue.get(at).copied() {
            at += 1;
            let next = far[place as usize].saturating_add(1);
            for (link, node) in self.cables.of(self.switches[place as usize] as usize) {
                let place = self.switch_of[*node as usize];
                // The way is gone backwards, so the cable's other direction must be up.
                if place != u32::MAX && far[place as usize] == FAR && up(*link ^ 1) {
                    far[place as usize] = next;
                    queue.push(place);
                }
            }
        }
        far.into_boxed_slice()
    }

    /// Switches between two ranks of different hosts while everything is up; nothing where no way is.
    #[must_use]
    pub fn switches_between(&self, a: u32, b: u32) -> Option<u32> {
        let leaf = |rank: u32| {
            let cables = self.cables.of(self.adapters[rank as usize]);
            cables.iter().map(|(_, node)| self.switch_of[*node as usize]).find(|s| *s != u32::MAX)
        };
        match (leaf(a), leaf(b)) {
            (Some(from), Some(to)) if from == to => Some(1),
            (Some(from), Some(to)) => match self.distances(to)[from as usize] {
                FAR => None,
                cables => Some(u32::from(cables) + 1),
            },
            // Two hosts may be linked with no switch between them.
            _ => Some(0),
        }
    }

    /// Microseconds from a send to its arrival between two ranks.
    #[must_use]
    pub fn latency_us(&self, a: u32, b: u32) -> f64 {
        if a == b {
            return 0.0;
        }
        if self.hosts[a as usize] == self.hosts[b as usize] {
            return self.machine.inside_us;
        }
        let from = self.leaves_from(a, b);
        let switches = self.switches_between(from, b).unwrap_or(1);
        let to_relay = if from == a { 0.0 } else { self.machine.inside_us };
        to_relay + self.machine.net_us + self.machine.switch_us * f64::from(switches)
    }

    /// The rank of `a`'s host by whose adapter messages to rank `b` of another host leave.
    pub(crate) fn leaves_from(&self, a: u32, b: u32) -> u32 {
        match self.machine.through_rail && self.has_rails {
            true => self.relay(a, self.rails[b as usize]).unwrap_or(a),
            false => a,
        }
    }

    /// The rank of a rank's host that is on a rail: itself where it is.
    pub(crate) fn relay(&self, rank: u32, rail: u32) -> Option<u32> {
        if self.rails[rank as usize] == rail {
            return Some(rank);
        }
        self.host_ranks(rank).find(|other| self.rails[*other as usize] == rail)
    }
}

/// GB/s of a rate.
fn gbytes(rate: Rate) -> f64 {
    rate.gbps() / 8.0
}

/// A place that fits: networks are bounded long before.
pub(crate) fn small(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

fn cables(fabric: &Fabric) -> Result<Cables, SimError> {
    if fabric.links.len() > (u32::MAX / 8) as usize {
        return Err(SimError::Network(format!("{} cables are too many", fabric.links.len())));
    }
    let mut cables = Cables { first: vec![0], ends: Vec::with_capacity(fabric.links.len() * 2) };
    for node in 0..fabric.nodes.len() {
        for (index, link, far) in fabric.links_of(node) {
            let forward = link.ends[0].node == node;
            cables.ends.push((small(2 * index + usize::from(!forward)), small(far.node)));
        }
        cables.first.push(small(cables.ends.len()));
    }
    Ok(cables)
}

#[cfg(test)]
mod tests;
