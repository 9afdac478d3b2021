//! Ethernet's nodes out of what neighbours tell of each other (LLDP).
//!
//! LLDP names machines and ports, and is told from one side: hosts need not run it. Whether a machine is a switch
//! follows from what it says of itself, else from the names of its ports, else from how many it has.

use std::collections::{BTreeMap, BTreeSet};

use super::{Draft, Half, Place, ReadError};
use crate::describe;
use crate::model::Kind;
use crate::rate::Rate;

/// Ports of a machine from which on it is taken for a switch when nothing else tells.
const SWITCH_PORTS: usize = 17;

/// One port and who was heard on it.
#[derive(Clone, Debug)]
pub(crate) struct Neighbour {
    pub(crate) local: String,
    pub(crate) local_port: String,
    pub(crate) remote: String,
    pub(crate) remote_port: String,
    pub(crate) rate: Option<Rate>,
    pub(crate) place: Place,
    /// Whether the other end told its name, not its hardware address alone.
    pub(crate) named: bool,
}

/// What a machine is said to be.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Role {
    /// Its capabilities include neither bridging nor routing.
    Host,
    /// It says that it forwards; so do hosts with containers.
    Forwards,
    /// A tool that knows says that it is a switch.
    Switch,
}

impl Draft {
    /// Keeps the most that is said of a machine.
    pub(crate) fn role(&mut self, name: &str, role: Role) {
        let known = self.roles.entry(name.to_owned()).or_insert(role);
        *known = (*known).max(role);
    }

    /// Makes nodes and links of all neighbours.
    pub(super) fn settle_neighbours(&mut self) -> Result<(), ReadError> {
        let mut neighbours = std::mem::take(&mut self.neighbours);
        self.one_name_each(&mut neighbours);
        let neighbours = self.one_neighbour_each(neighbours);
        let mut ports: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for one in &neighbours {
            ports.entry(&one.local).or_default().push(&one.local_port);
            ports.entry(&one.remote).or_default().push(&one.remote_port);
        }
        let mut numbers: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        let mut switches: BTreeMap<&str, bool> = BTreeMap::new();
        for (machine, names) in &mut ports {
            names.sort_by_cached_key(|name| describe::natural(name));
            names.dedup();
            for (number, name) in (1..).zip(names.iter()) {
                numbers.insert((machine, name), number);
            }
            switches.insert(machine, is_switch(self.roles.get(*machine).copied(), names));
        }
        for one in &neighbours {
            let local = self.machine_port(&switches, &numbers, (&one.local, &one.local_port), one);
            let remote =
                self.machine_port(&switches, &numbers, (&one.remote, &one.remote_port), one);
            let half =
                |(node, port)| Half { node, port, rate: one.rate, place: one.place, alone: true };
            self.join(local.0, local.1, half(remote))?;
            self.join(remote.0, remote.1, half(local))?;
        }
        Ok(())
    }

    /// A machine that some call by its whole name (`leaf1.example.org`) and some by its first part alone is one: that
    /// is, where only one machine begins so.
    fn one_name_each(&mut self, neighbours: &mut [Neighbour]) {
        let mut whole: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for name in neighbours.iter().flat_map(|one| [&one.local, &one.remote]) {
            let short = name.split('.').next().unwrap_or(name);
            whole.entry(short.to_owned()).or_default().insert(name.clone());
        }
        let both = |short: &str| {
            whole.get(short).is_some_and(|names| names.len() == 2 && names.contains(short))
        };
        for name in neighbours.iter_mut().flat_map(|one| [&mut one.local, &mut one.remote]) {
            let short = name.split('.').next().unwrap_or(name);
            if both(short) {
                *name = short.to_owned();
            }
        }
        for (name, role) in std::mem::take(&mut self.roles) {
            let short = name.split('.').next().unwrap_or(&name);
            self.role(if both(short) { short } else { &name }, role);
        }
    }

    /// An adapter's own firmware and its host may both be heard on one port: the one with a name counts.
    fn one_neighbour_each(&mut self, neighbours: Vec<Neighbour>) -> Vec<Neighbour> {
        let mut named: BTreeSet<(String, String)> = BTreeSet::new();
        for one in neighbours.iter().filter(|one| one.named) {
            named.insert((one.local.clone(), one.local_port.clone()));
        }
        let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
        let mut kept = Vec::with_capacity(neighbours.len());
        for one in neighbours {
            if !one.named && named.contains(&(one.local.clone(), one.local_port.clone())) {
                *left_out.entry(one.local).or_default() += 1;
            } else {
                kept.push(one);
            }
        }
        for (machine, count) in left_out {
            self.remarks.push(format!(
                "{machine} hears {count} more on ports where a named machine is heard: without a name, left out"
            ));
        }
        kept
    }

    /// The node and the port's number: a switch with many, or an adapter with one.
    fn machine_port(
        &mut self,
        switches: &BTreeMap<&str, bool>,
        numbers: &BTreeMap<(&str, &str), u32>,
        (machine, port): (&str, &str),
        from: &Neighbour,
    ) -> (usize, u32) {
        let switch = switches.get(machine) == Some(&true);
        let (node, number) = if switch {
            let number = numbers.get(&(machine, port)).copied().unwrap_or(1);
            (self.by_key(machine, Kind::Switch, from.place), number)
        } else {
            let node = self.by_key(&format!("{machine} {port}"), Kind::Adapter, from.place);
            self.nodes[node].owner = Some((machine.to_owned(), port.to_owned()));
            (node, 1)
        };
        let kept = &mut self.nodes[node];
        kept.loose = true;
        if kept.description.is_empty() {
            kept.description =
                if switch { describe::tidied(machine) } else { format!("{machine} {port}") };
        }
        kept.ports.entry(number).or_default().port.name = Some(describe::tidied(port));
        (node, number)
    }
}

pub(super) fn is_switch(role: Option<Role>, ports: &[&str]) -> bool {
    let begins = |names: &[&str]| {
        let like = |port: &&&str| names.iter().any(|name| port.starts_with(name));
        ports.iter().filter(like).count() * 2 > ports.len()
    };
    match role {
        Some(Role::Switch) => return true,
        Some(Role::Host) => return false,
        _ => {}
    }
    if begins(&["swp", "Ethernet", "Eth1", "et-", "xe-", "hundredGig", "fourHundredGig", "sw"]) {
        return true;
    }
    if begins(&["en", "eth", "ib", "rdma", "mlx", "bond", "roce", "gpu"]) {
        return false;
    }
    role == Some(Role::Forwards) || ports.len() >= SWITCH_PORTS
}
