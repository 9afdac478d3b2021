//! Which addresses this process offers to its peers.
//!
//! All addresses of all interfaces that are up are offered, best first, and the peers find out
//! which of them they can reach; nothing is guessed from interface names. The caller's filter
//! (`NCCL_SOCKET_IFNAME` and friends) says which interfaces are out, and why.
//!
//! *Invariant:* an address that is held back is listed with its reason.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use super::rails::Rail;
use crate::error::{Error, Result};
use crate::os::{self, InterfaceAddress};

/// Which address family to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Both; IPv4 is tried first.
    #[default]
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// The addresses to offer, and those held back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Interface and address, best first; ports are 0; loopback last.
    pub offered: Vec<(String, SocketAddr)>,
    /// The interfaces among them that may carry lanes side by side.
    pub rails: Vec<Rail>,
    /// Interfaces held back, with the reason.
    pub withheld: Vec<(String, String)>,
}

/// Looks at this machine's interfaces.
pub fn survey(filter: &dyn Fn(&str) -> Result<(), String>, family: Family) -> Result<Survey> {
    let all = os::interface_addresses()
        .map_err(|error| Error::system("list the network interfaces", error))?;
    let mut survey = choose(all, filter, family);
    survey.rails.iter_mut().for_each(|rail| rail.mbps = speed_mbps(&rail.interface));
    for (name, why) in &survey.withheld {
        tracing::info!(target: "ringway::BOOTSTRAP", "not offering {name}: {why}");
    }
    if survey.offered.is_empty() {
        let held: Vec<String> =
            survey.withheld.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        let held = if held.is_empty() { "none is up".to_owned() } else { held.join("; ") };
        return Err(Error::usage(format!(
            "no network interface is left to use ({held}); relax the filter"
        )));
    }
    Ok(survey)
}

/// What the kernel says of an interface's speed; virtual ones often have none.
fn speed_mbps(interface: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    text.trim().parse().ok().filter(|mbps| *mbps > 0)
}

/// Orders and filters a list of addresses; pure.
fn choose(
    all: Vec<InterfaceAddress>,
    filter: &dyn Fn(&str) -> Result<(), String>,
    family: Family,
) -> Survey {
    let mut survey = Survey::default();
    let mut kept: Vec<InterfaceAddress> = Vec::new();
    let mut withhold = |name: &str, why: String| {
        if !survey.withheld.iter().any(|(known, _)| known == name) {
            survey.withheld.push((name.to_owned(), why));
        }
    };
    for one in all {
        if let Err(why) = filter(&one.name) {
            withhold(&one.name, why);
            continue;
        }
        match (family, one.address) {
            (Family::V4, IpAddr::V6(_)) | (Family::V6, IpAddr::V4(_)) => {}
            _ => kept.push(one),
        }
    }
    let global = |one: &InterfaceAddress| !one.loopback && !is_link_local(&one.address);
    if kept.iter().any(global) {
        kept.retain(|one| one.loopback || !is_link_local(&one.address));
    }
    kept.sort_by_key(|one| (one.loopback, is_link_local(&one.address), one.address.is_ipv6()));
    for one in kept.iter().filter(|one| global(one) && !one.tunnel) {
        // The first address of an interface is its best.
        if !survey.rails.iter().any(|rail| rail.interface == one.name) {
            survey.rails.push(Rail {
                interface: one.name.clone(),
                address: SocketAddr::new(one.address, 0),
                prefix: one.prefix,
                mbps: None,
            });
        }
    }
    survey.offered = kept
        .into_iter()
        .map(|one| {
            let address = match one.address {
                IpAddr::V4(v4) => SocketAddr::new(v4.into(), 0),
                IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, one.scope_id).into(),
            };
            (one.name, address)
        })
        .collect();
    survey
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str, address: &str) -> InterfaceAddress {
        let address: IpAddr = address.parse().unwrap();
        InterfaceAddress {
            name: name.into(),
            address,
            scope_id: if is_link_local(&address) { 2 } else { 0 },
            prefix: 24,
            tunnel: name.starts_with("tun"),
            loopback: address.is_loopback(),
        }
    }

    fn machine() -> Vec<InterfaceAddress> {
        vec![
            at("lo", "127.0.0.1"),
            at("eth0", "fe80::1"),
            at("eth0", "fd00::2"),
            at("eth0", "192.0.2.2"),
            at("docker0", "172.17.0.1"),
            at("tun0", "10.8.0.1"),
        ]
    }

    fn names(survey: &Survey) -> Vec<String> {
        survey.offered.iter().map(|(name, a)| format!("{name} {}", a.ip())).collect()
    }

    #[test]
    fn loopback_comes_last_and_link_local_only_alone() {
        let survey = choose(machine(), &|_| Ok(()), Family::Any);
        assert_eq!(
            names(&survey),
            [
                "eth0 192.0.2.2",
                "docker0 172.17.0.1",
                "tun0 10.8.0.1",
                "eth0 fd00::2",
                "lo 127.0.0.1"
            ]
        );
        let rails: Vec<String> = survey.rails.iter().map(ToString::to_string).collect();
        assert_eq!(rails, ["eth0 192.0.2.2", "docker0 172.17.0.1"]);
        let alone = choose(vec![at("eth0", "fe80::1")], &|_| Ok(()), Family::Any);
        assert_eq!(alone.offered[0].1.to_string(), "[fe80::1%2]:0");
    }

    #[test]
    fn a_filter_gives_its_reason() {
        let filter = |name: &str| {
            if name.starts_with("docker") {
                Err("filtered by NCCL_SOCKET_IFNAME=^docker".to_owned())
            } else {
                Ok(())
            }
        };
        let survey = choose(machine(), &filter, Family::V4);
        assert_eq!(names(&survey), ["eth0 192.0.2.2", "tun0 10.8.0.1", "lo 127.0.0.1"]);
        let held = ("docker0".to_owned(), "filtered by NCCL_SOCKET_IFNAME=^docker".to_owned());
        assert_eq!(survey.withheld, [held]);
    }

    #[test]
    fn nothing_left_is_an_error_that_says_why() {
        let error = survey(&|name| Err(format!("{name} is out")), Family::Any).unwrap_err();
        assert!(error.to_string().contains("lo is out"), "{error}");
    }
}
