//! Ethernet's nodes out of what neighbours tell of each other (LLDP).
//!
//! LLDP names machines and ports, and is told from one side: hosts need not run it. Whether a machine is a switch
//! follows from what it says of itself, else from the names of its ports, else from how many it has.

use std::collections::BTreeMap;

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
        let neighbours = std::mem::take(&mut self.neighbours);
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

fn is_switch(role: Option<Role>, ports: &[&str]) -> bool {
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
