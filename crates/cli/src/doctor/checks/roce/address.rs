//! RoCE: which addresses ports have, and which one NCCL takes.

use ringway::topo::{Gid, GidKind};

use crate::doctor::checks::{Seen, Tally};
use crate::doctor::host::Host;

fn is_routable(address: &str) -> bool {
    !address.starts_with("fe80")
}

pub(super) fn addresses(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for port in host.roce_ports() {
        let (gids, name) = (&port.gids, port.name());
        if gids.iter().all(|gid| gid.kind == GidKind::Unknown) {
            tally.unknown(format!("{name}: gid_attrs/types is not there"));
            continue;
        }
        let second: Vec<&Gid> = gids.iter().filter(|gid| gid.kind == GidKind::RoceV2).collect();
        let best = second.iter().find(|gid| is_routable(&gid.gid));
        match (best, second.first()) {
            (Some(gid), _) => {
                tally.well(format!("{name}: gids/{} = {}, {}", gid.index, gid.gid, gid.kind));
            }
            (None, Some(gid)) => {
                tally.warn(format!("{name}: gids/{} = {} only, link-local", gid.index, gid.gid));
            }
            (None, None) => {
                tally.fail(format!("{name}: no address of RoCE v2 among {}", gids.len()));
            }
        }
    }
    tally.seen(
        "no RoCE port",
        "RoCE ports have a routable v2 address",
        "RoCE ports without a routable v2 address",
    )
}

pub(super) fn address_index(host: &Host) -> Seen {
    let Some(text) = host.variable("NCCL_IB_GID_INDEX") else {
        return Seen::absent("NCCL_IB_GID_INDEX is not set");
    };
    let number = host.whole("NCCL_IB_GID_INDEX");
    if number == Some(-1) || host.roce_ports().is_empty() {
        return Seen::absent("no RoCE port, or NCCL_IB_GID_INDEX leaves the choice to NCCL");
    }
    let Some(wanted) = number.and_then(|number| usize::try_from(number).ok()) else {
        return Seen::fail("NCCL_IB_GID_INDEX is no number", format!("NCCL_IB_GID_INDEX = {text}"));
    };
    let mut tally = Tally::default();
    for port in host.roce_ports() {
        let name = port.name();
        match port.gids.iter().find(|gid| gid.index == wanted) {
            Some(Gid { gid, kind: GidKind::RoceV2, .. }) if is_routable(gid) => {
                tally.warn(format!("{name}: gids/{wanted} = {gid}, RoCE v2; set by hand"));
            }
            Some(Gid { gid, kind, .. }) => {
                tally.fail(format!("{name}: gids/{wanted} = {gid}, {kind}"));
            }
            None => tally.fail(format!("{name}: gids/{wanted} is empty")),
        }
    }
    tally.seen(
        "no RoCE port",
        "NCCL_IB_GID_INDEX fits",
        "NCCL_IB_GID_INDEX is set: indices change when addresses do",
    )
}

/// Where all routable addresses are IPv6, NCCL must be told so: by itself it scans for IPv4 and is left with
/// index 0, which is most often link-local.
pub(super) fn family(host: &Host) -> Seen {
    let told = host.variable("NCCL_IB_ADDR_FAMILY");
    let index = host.variable("NCCL_IB_GID_INDEX").filter(|index| *index != "-1");
    let mut tally = Tally::default();
    for port in host.roce_ports() {
        let routable = |gid: &&Gid| gid.kind == GidKind::RoceV2 && is_routable(&gid.gid);
        let Some(global) = port.gids.iter().find(routable) else { continue };
        let name = port.name();
        if port.gids.iter().filter(routable).any(|gid| is_mapped(&gid.gid)) {
            tally.well(format!("{name}: has an IPv4 address of RoCE v2"));
            continue;
        }
        let line = format!("{name}: gids/{} = {} and no IPv4", global.index, global.gid);
        match (told, index) {
            (_, Some(index)) => tally.well(format!("{line}; NCCL_IB_GID_INDEX={index}")),
            (Some("AF_INET6"), None) => tally.well(format!("{line}; NCCL_IB_ADDR_FAMILY=AF_INET6")),
            _ if port.gids.iter().filter(routable).any(|gid| gid.index == 0) => {
                tally.well(format!("{line}; index 0 is routable"));
            }
            _ => tally.fail(format!("{line}; NCCL_IB_ADDR_FAMILY is not AF_INET6")),
        }
    }
    tally.seen(
        "no RoCE port with a routable v2 address",
        "NCCL finds the addresses of the fabric",
        "RoCE ports whose address NCCL does not find",
    )
}

/// Whether a GID holds an IPv4 address: `::ffff:a.b.c.d`.
fn is_mapped(gid: &str) -> bool {
    gid.starts_with("0000:0000:0000:0000:0000:ffff:")
}
