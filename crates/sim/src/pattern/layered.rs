//! Two layers: inside hosts, and between them rail by rail.
//!
//! As many ranks of each host as the smallest host has are rails. A rail has its slice of the data: it gets what the
//! ranks of its host have of it, exchanges it with the same rail of the other hosts, and gives what came out to
//! its host. All that is one stream a rail, since it is done piece by piece.

use ringway_plan::types::Collective;

use super::{Group, Named, amount};
use crate::work::{Flow, Stream};

pub(super) fn streams(group: &Group<'_>, chain: bool) -> Vec<Named> {
    let rails = group.hosts.iter().map(Vec::len).min().unwrap_or(1);
    (0..rails)
        .map(|rail| {
            let layer = Layer { group, rail, rails };
            (format!("rail {rail}"), layer.stream(chain))
        })
        .collect()
}

/// One rail.
pub(super) struct Layer<'a> {
    pub(super) group: &'a Group<'a>,
    pub(super) rail: usize,
    pub(super) rails: usize,
}

impl Layer<'_> {
    fn channel(&self) -> u32 {
        u32::try_from(self.rail).unwrap_or(0)
    }

    fn stream(&self, chain: bool) -> Stream {
        let group = self.group;
        let hosts = amount(group.hosts.len());
        let slice = group.bytes / amount(self.rails);
        let mut flows = Vec::new();
        let around = (hosts - 1.0) / hosts;
        let latency_us = match group.call.collective {
            Collective::AllReduce => {
                let inside_us = self.take(&mut flows, slice) + self.give(&mut flows, slice);
                inside_us
                    + match chain {
                        true => {
                            self.along(&mut flows, slice, &self.hosts_from(0), true)
                                + group.fill_us(2 * (group.hosts.len() - 1), slice)
                        }
                        false => self.ring(&mut flows, 2.0 * around * slice, 2.0 * around),
                    }
            }
            Collective::AllGather => {
                self.blocks(&mut flows, slice * around, true)
                    + self.ring(&mut flows, slice * around, around)
            }
            Collective::ReduceScatter => {
                self.blocks(&mut flows, slice * around, false)
                    + self.ring(&mut flows, slice * around, around)
            }
            _ => self.rooted(&mut flows, slice),
        };
        normal(flows, latency_us)
    }

    /// The ranks of a host, a root first.
    fn host(&self, host: usize) -> Vec<u32> {
        let mut ranks = self.group.hosts[host].clone();
        if self.group.call.collective.has_root() {
            let root = self.group.root();
            ranks.sort_by_key(|rank| *rank != root);
        }
        ranks
    }

    fn hosts_from(&self, first: usize) -> Vec<usize> {
        let count = self.group.hosts.len();
        (first..count).chain(0..first).collect()
    }

    /// The ranks of a host give a rail its slice.
    pub(super) fn take(&self, flows: &mut Vec<Flow>, bytes: f64) -> f64 {
        self.inside(flows, bytes, false)
    }

    /// A rail gives its slice to its host.
    pub(super) fn give(&self, flows: &mut Vec<Flow>, bytes: f64) -> f64 {
        self.inside(flows, bytes, true)
    }

    fn inside(&self, flows: &mut Vec<Flow>, bytes: f64, out: bool) -> f64 {
        let mut latency_us = 0.0;
        for host in 0..self.group.hosts.len() {
            let ranks = self.host(host);
            let own = ranks[self.rail];
            for other in ranks.iter().filter(|rank| **rank != own) {
                let ends = if out { (own, *other) } else { (*other, own) };
                self.group.between(flows, ends, bytes, self.channel());
                latency_us = self.group.network.machine.inside_us;
            }
        }
        latency_us
    }

    /// Around the hosts.
    fn ring(&self, flows: &mut Vec<Flow>, bytes: f64, passes: f64) -> f64 {
        let count = self.group.hosts.len();
        if count == 1 {
            return 0.0;
        }
        let mut latency_us = 0.0;
        for host in 0..count {
            let ends = (self.host(host)[self.rail], self.host((host + 1) % count)[self.rail]);
            self.group.between(flows, ends, bytes, self.channel());
            latency_us += passes * self.group.latency_us(ends.0, ends.1);
        }
        latency_us
    }

    /// Along hosts, and back where asked.
    fn along(&self, flows: &mut Vec<Flow>, bytes: f64, hosts: &[usize], back: bool) -> f64 {
        let mut latency_us = 0.0;
        for pair in hosts.windows(2) {
            let ends = (self.host(pair[0])[self.rail], self.host(pair[1])[self.rail]);
            self.group.between(flows, ends, bytes, self.channel());
            latency_us += self.group.latency_us(ends.0, ends.1);
            if back {
                self.group.between(flows, (ends.1, ends.0), bytes, self.channel());
                latency_us += self.group.latency_us(ends.1, ends.0);
            }
        }
        latency_us
    }

    /// A block for each rank: rails pass on those of other hosts, and every rank its own.
    fn blocks(&self, flows: &mut Vec<Flow>, passed: f64, gathers: bool) -> f64 {
        let latency_us = self.inside(flows, passed, gathers);
        let block = self.group.bytes / self.group.count();
        for host in &self.group.hosts {
            for (place, own) in host.iter().enumerate().filter(|(p, _)| p % self.rails == self.rail)
            {
                for (_, other) in host.iter().enumerate().filter(|(p, _)| *p != place) {
                    let ends = if gathers { (*own, *other) } else { (*other, *own) };
                    self.group.between(flows, ends, block, self.channel());
                }
            }
        }
        latency_us
    }

    /// Broadcast from the root's host along the others, or reduce back to it.
    fn rooted(&self, flows: &mut Vec<Flow>, slice: f64) -> f64 {
        let group = self.group;
        let root = group.root();
        let home = group.hosts.iter().position(|host| host.contains(&root)).unwrap_or(0);
        let falls = group.call.collective == Collective::Broadcast;
        // A broadcast begins with the root's host, a reduction ends there.
        let first = if falls { home } else { (home + 1) % group.hosts.len() };
        let hosts = self.hosts_from(first);
        let mut latency_us = self.along(flows, slice, &hosts, false);
        latency_us += group.fill_us(hosts.len().saturating_sub(1), slice);
        latency_us += self.inside(flows, slice, falls);
        let own = self.host(home)[self.rail];
        if own != root {
            // The root has it all, and takes no part in what its rails give to each other.
            let straight = if falls { (own, root) } else { (root, own) };
            let is_root = |flow: &Flow| {
                let place = crate::network::Place::Rank;
                (flow.from, flow.to) == (place(straight.0), place(straight.1))
            };
            flows.retain(|flow| !is_root(flow));
            let ends = if falls { (root, own) } else { (own, root) };
            group.between(flows, ends, slice, self.channel());
            latency_us += group.network.machine.inside_us;
        }
        latency_us
    }
}

/// Flows whose shares are bytes become shares of the largest.
pub(super) fn normal(mut flows: Vec<Flow>, latency_us: f64) -> Stream {
    let most = flows.iter().map(|flow| flow.share).fold(0.0, f64::max);
    if most > 0.0 {
        flows.iter_mut().for_each(|flow| flow.share /= most);
    }
    Stream { bytes: most, flows, latency_us }
}
