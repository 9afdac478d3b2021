//! Rails: the interfaces by which two hosts reach each other side by side.
//!
//! A rail is an interface that is offered, with its best address. Two ranks pair those whose
//! addresses are in one subnet, in the order in which they are offered; where no subnet is shared
//! (every host behind a router), the first with the first, the second with the second. Slow ones
//! are left out, and those nobody knows the speed of beside others: lanes are equal, and the
//! slowest rail would set the pace of all. Tunnels are no rails: they run over one.
//!
//! *Invariant:* pure, and a rail that is not used is listed with its reason.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::peer::PeerInfo;

/// An interface as a way to this rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rail {
    /// Its name.
    pub interface: String,
    /// Where this rank listens on it.
    pub address: SocketAddr,
    /// Bits of the address that its subnet shares.
    pub prefix: u8,
    /// Its speed in Mbit/s, where the kernel knows it.
    pub mbps: Option<u32>,
}

impl Rail {
    /// Whether an address is in its subnet.
    fn reaches(&self, other: IpAddr) -> bool {
        let (differing, bits) = match (self.address.ip(), other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
            _ => return false,
        };
        let free = u32::from(bits - self.prefix.min(bits));
        differing.checked_shr(free).unwrap_or(0) == 0
    }
}

impl std::fmt::Display for Rail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.interface, self.address.ip())
    }
}

/// The rails between two ranks.
#[derive(Debug, Default)]
pub struct Pairing<'a> {
    /// This rank's and the peer's, in this rank's order.
    pub pairs: Vec<(&'a Rail, &'a Rail)>,
    /// Rails of this rank that are not used, with the reason.
    pub refused: Vec<(&'a Rail, String)>,
}

/// Pairs the rails of two ranks. Within one network there is nothing to pair.
#[must_use]
pub fn pair<'a>(me: &'a PeerInfo, peer: &'a PeerInfo) -> Pairing<'a> {
    let mut found = Pairing::default();
    if me.same_network(peer) {
        return found;
    }
    let mut free: Vec<&Rail> = peer.rails.iter().collect();
    for mine in &me.rails {
        // As with a bridge that has the same address on every host.
        if peer.rails.iter().any(|theirs| theirs.address.ip() == mine.address.ip()) {
            found.refused.push((mine, "the peer has the same address".to_owned()));
            continue;
        }
        match free.iter().position(|theirs| mine.reaches(theirs.address.ip())) {
            Some(at) => found.pairs.push((mine, free.remove(at))),
            None => {
                let why = "no address of the peer is in its subnet".to_owned();
                found.refused.push((mine, why));
            }
        }
    }
    if found.pairs.is_empty() {
        pair_by_place(&mut found, &free);
    }
    leave_out_slow(&mut found);
    found
}

/// No subnet is shared: the first with the first, the second with the second.
fn pair_by_place<'a>(found: &mut Pairing<'a>, theirs: &[&'a Rail]) {
    let mut theirs = theirs.iter().copied();
    let refused = std::mem::take(&mut found.refused);
    for (mine, why) in refused {
        let same_family = |other: &&Rail| other.address.is_ipv4() == mine.address.is_ipv4();
        match theirs.by_ref().find(same_family) {
            Some(other) => found.pairs.push((mine, other)),
            None => found.refused.push((mine, why)),
        }
    }
}

fn leave_out_slow(found: &mut Pairing<'_>) {
    let speed = |pair: &(&Rail, &Rail)| match (pair.0.mbps, pair.1.mbps) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let fastest = found.pairs.iter().filter_map(speed).max().unwrap_or(0);
    let Pairing { pairs, refused } = found;
    pairs.retain(|pair| {
        let mbps = speed(pair);
        if keeps_pace(mbps, fastest) {
            return true;
        }
        let known =
            mbps.map_or_else(|| "unknown speed".to_owned(), |mbps| format!("{mbps} Mbit/s"));
        refused.push((pair.0, format!("its {known} may slow the {fastest} of another down")));
        false
    });
}

/// Whether a rail of this speed may be used beside the fastest whose speed is known.
fn keeps_pace(mbps: Option<u32>, fastest: u32) -> bool {
    fastest == 0 || mbps.is_some_and(|mbps| mbps >= fastest / 2)
}

/// Rails that every rank has, for those who cut calls into lanes: the same on all ranks, at least 1.
#[must_use]
pub fn count(peers: &[PeerInfo]) -> usize {
    let Some(first) = peers.first() else { return 1 };
    if peers.iter().all(|peer| peer.same_network(first)) {
        return 1;
    }
    let usable = |peer: &PeerInfo| {
        let fastest = peer.rails.iter().filter_map(|rail| rail.mbps).max().unwrap_or(0);
        peer.rails.iter().filter(|rail| keeps_pace(rail.mbps, fastest)).count()
    };
    peers.iter().map(usable).min().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::interfaces::Survey;
    use super::*;

    fn host(name: &str, rails: &[(&str, &str, u8, Option<u32>)]) -> PeerInfo {
        let here = PeerInfo::here(0, 1, Survey::default(), Vec::new());
        let rails = rails.iter().map(|(interface, address, prefix, mbps)| Rail {
            interface: (*interface).to_owned(),
            address: SocketAddr::new(address.parse().unwrap(), 7),
            prefix: *prefix,
            mbps: *mbps,
        });
        PeerInfo { boot_id: name.to_owned(), rails: rails.collect(), ..here }
    }

    fn shown(pairing: &Pairing<'_>) -> Vec<String> {
        pairing.pairs.iter().map(|(mine, theirs)| format!("{mine} to {theirs}")).collect()
    }

    #[test]
    fn rails_are_paired_by_subnet_whatever_their_order() {
        let a = host("a", &[("eth0", "10.1.0.1", 24, None), ("eth1", "10.2.0.1", 24, None)]);
        let b = host("b", &[("ens2", "10.2.0.2", 24, None), ("ens1", "10.1.0.2", 24, None)]);
        let found = pair(&a, &b);
        assert_eq!(
            shown(&found),
            ["eth0 10.1.0.1 to ens1 10.1.0.2", "eth1 10.2.0.1 to ens2 10.2.0.2"]
        );
        assert!(found.refused.is_empty());
        assert_eq!(count(&[a, b]), 2);
    }

    #[test]
    fn rails_of_one_subnet_are_paired_in_order_each_once() {
        let a = host("a", &[("eth0", "10.1.0.1", 24, None), ("eth1", "10.1.0.2", 24, None)]);
        let b = host("b", &[("eth0", "10.1.0.3", 24, None)]);
        let found = pair(&a, &b);
        assert_eq!(shown(&found), ["eth0 10.1.0.1 to eth0 10.1.0.3"]);
        assert_eq!(found.refused[0].1, "no address of the peer is in its subnet");
        assert_eq!(count(&[a, b]), 1);
    }

    #[test]
    fn behind_routers_the_place_decides() {
        let a = host("a", &[("eth0", "10.1.0.1", 24, None), ("eth1", "10.2.0.1", 24, None)]);
        let b = host("b", &[("eth0", "10.3.0.1", 24, None), ("eth1", "10.4.0.1", 24, None)]);
        assert_eq!(
            shown(&pair(&a, &b)),
            ["eth0 10.1.0.1 to eth0 10.3.0.1", "eth1 10.2.0.1 to eth1 10.4.0.1"]
        );
    }

    #[test]
    fn bridges_and_slow_rails_are_left_out_with_the_reason() {
        let rails = |end: u8| {
            [
                ("mgmt".to_owned(), format!("10.9.0.{end}"), 24, Some(1000)),
                ("hs0".to_owned(), format!("fd01::{end}"), 64, Some(100_000)),
                ("hs1".to_owned(), format!("fd02::{end}"), 64, Some(50_000)),
                ("odd0".to_owned(), format!("fd03::{end}"), 64, None),
                ("docker0".to_owned(), "172.17.0.1".to_owned(), 16, None),
            ]
        };
        let (one, two) = (rails(1), rails(2));
        let refs = |all: &[(String, String, u8, Option<u32>)], name: &str| {
            let all: Vec<_> = all.iter().map(|r| (&*r.0, &*r.1, r.2, r.3)).collect();
            host(name, &all)
        };
        let (a, b) = (refs(&one, "a"), refs(&two, "b"));
        let found = pair(&a, &b);
        assert_eq!(shown(&found), ["hs0 fd01::1 to hs0 fd01::2", "hs1 fd02::1 to hs1 fd02::2"]);
        let refused: Vec<String> =
            found.refused.iter().map(|(rail, why)| format!("{rail}: {why}")).collect();
        assert_eq!(
            refused,
            [
                "docker0 172.17.0.1: the peer has the same address",
                "mgmt 10.9.0.1: its 1000 Mbit/s may slow the 100000 of another down",
                "odd0 fd03::1: its unknown speed may slow the 100000 of another down"
            ]
        );
    }

    #[test]
    fn one_network_has_no_rails() {
        let a = host("a", &[("eth0", "10.1.0.1", 24, None), ("eth1", "10.2.0.1", 24, None)]);
        let b = PeerInfo { rank: 1, ..a.clone() };
        assert!(pair(&a, &b).pairs.is_empty());
        assert_eq!(count(&[a, b]), 1);
    }

    #[test]
    fn a_prefix_beyond_the_address_is_the_address() {
        let rail = |prefix| host("a", &[("x", "10.1.0.1", prefix, None)]).rails.remove(0);
        let other: IpAddr = "10.1.0.2".parse().unwrap();
        assert!(!rail(200).reaches(other) && rail(0).reaches(other) && rail(30).reaches(other));
    }
}
