//! RoCE: addresses, packet sizes, lossless priorities.

use super::{Check, Seen, Tally};
use crate::doctor::host::{Host, Qos};

mod address;
mod spread;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "roc-01",
        group: "roce",
        about: "RoCE ports have a routable v2 address",
        reads: "/sys/class/infiniband/*/ports/*/{gids,gid_attrs/types}",
        cost: "with a wrong address connections end in error 12 after about 30 s (nccl#426)",
        fix: "give the interface an IP address; cma_roce_mode -d DEVICE -m 2",
        root: false,
        look: address::addresses,
    },
    Check {
        id: "roc-02",
        group: "roce",
        about: "NCCL_IB_GID_INDEX, if set, is a routable v2 address",
        reads: "NCCL_IB_GID_INDEX, /sys/class/infiniband/*/ports/*/{gids,gid_attrs/types}",
        cost: "index 0 is a link-local v1 address: nothing beyond the first router is reached",
        fix: "unset NCCL_IB_GID_INDEX (NCCL 2.21 and later choose well)",
        root: false,
        look: address::address_index,
    },
    Check {
        id: "roc-04",
        group: "roce",
        about: "NCCL finds the address of a fabric that speaks IPv6 only",
        reads: "NCCL_IB_ADDR_FAMILY, NCCL_IB_GID_INDEX, /sys/class/infiniband/*/ports/*/gids",
        cost: "NCCL looks for IPv4 and falls back to index 0: every write fails with error 12 (uccl#803)",
        fix: "NCCL_IB_ADDR_FAMILY=AF_INET6",
        root: false,
        look: address::family,
    },
    Check {
        id: "roc-05",
        group: "roce",
        about: "RoCE interfaces carry packets of 4096 bytes",
        reads: "/sys/class/net/*/mtu",
        cost: "about 5 % of the bandwidth at 1500 (dgx-spark-playbooks#103)",
        fix: "ip link set INTERFACE mtu 9000, on the switch too",
        root: false,
        look: packet_size,
    },
    Check {
        id: "roc-07",
        group: "roce",
        about: "RoCE interfaces trust DSCP",
        reads: "/sys/class/net/*/qos/trust, mlnx_qos -i",
        cost: "RDMA lands in a lossy queue; drops take it to less than 1 GB/s (nccl#378)",
        fix: "mlnx_qos -i INTERFACE --trust dscp",
        root: false,
        look: trust,
    },
    Check {
        id: "roc-08",
        group: "roce",
        about: "flow control is on for exactly one priority",
        reads: "mlnx_qos -i",
        cost: "none: drops take RDMA to less than 1 GB/s (nccl#378); two: twice the risk of blocking",
        fix: "mlnx_qos -i INTERFACE --pfc 0,0,0,1,0,0,0,0",
        root: false,
        look: flow_control,
    },
    Check {
        id: "roc-09",
        group: "roce",
        about: "NCCL's traffic class goes to the priority with flow control",
        reads: "NCCL_IB_TC, /sys/class/infiniband/*/tc/1/traffic_class, mlnx_qos -i",
        cost: "class 0 is the lossy priority 0: drops take RDMA to less than 1 GB/s",
        fix: "NCCL_IB_TC=106, or cma_roce_tos -d DEVICE -t 106",
        root: false,
        look: traffic_class,
    },
    Check {
        id: "roc-10",
        group: "roce",
        about: "congestion notification is on for the lossless priority",
        reads: "/sys/class/net/*/ecn/{roce_np,roce_rp}/enable/*",
        cost: "without it flow control alone holds senders back: pauses spread through the fabric",
        fix: "echo 1 > /sys/class/net/INTERFACE/ecn/roce_np/enable/3, and roce_rp",
        root: false,
        look: congestion,
    },
    Check {
        id: "roc-11",
        group: "roce",
        about: "congestion notifications have a priority of their own",
        reads: "/sys/class/net/*/ecn/roce_np/{cnp_dscp,cnp_802p_prio}, mlnx_qos -i",
        cost: "notifications that queue behind data slow senders down too late",
        fix: "echo 48 > /sys/class/net/INTERFACE/ecn/roce_np/cnp_dscp",
        root: false,
        look: notification,
    },
    Check {
        id: "roc-12",
        group: "roce",
        about: "rdma_cm makes RoCE v2 connections of a class with flow control",
        reads: "/sys/kernel/config/rdma_cm/*/ports/*/default_roce_{mode,tos}, mlnx_qos -i",
        cost: "UCX and storage use v1, which no router passes on, or a queue that drops",
        fix: "cma_roce_mode -d DEVICE -m 2; cma_roce_tos -d DEVICE -t 106",
        root: true,
        look: connection_manager,
    },
    Check {
        id: "roc-14",
        group: "roce",
        about: "rails agree on adaptive routing",
        reads: "mlxreg --reg_name ROCE_ACCL --get",
        cost: "a rail on one path beside rails on many: adaptive routing gave 70 % on a RoCE fabric (cluster-readiness-engine#287)",
        fix: "mlxreg -d DEVICE --reg_name ROCE_ACCL --set adaptive_routing_forced_en=1 where the switches do it, on all rails",
        root: true,
        look: spread::adaptive_routing,
    },
    Check {
        id: "roc-15",
        group: "roce",
        about: "bonds spread connections over both ports",
        reads: "/proc/net/bonding/*, /sys/class/infiniband, NCCL_IB_QPS_PER_CONNECTION",
        cost: "one connection uses one port: half of the bonded rate (nccl#1015)",
        fix: "xmit_hash_policy=layer3+4 and NCCL_IB_QPS_PER_CONNECTION=2",
        root: false,
        look: spread::bonds,
    },
    Check {
        id: "roc-16",
        group: "roce",
        about: "rails in one subnet answer for their own address only",
        reads: "/proc/net/route, /proc/sys/net/ipv4/conf/*/{arp_ignore,arp_announce}",
        cost: "all traffic leaves on one rail: 8 rails become 1 (12.5 %)",
        fix: "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2; or one subnet a rail",
        root: false,
        look: arp,
    },
    Check {
        id: "net-rp-filter",
        group: "roce",
        about: "rails in one subnet may receive what came over another",
        reads: "/proc/net/route, /proc/sys/net/ipv4/conf/*/rp_filter",
        cost: "packets that came in on the other rail are dropped: connections time out",
        fix: "sysctl -w net.ipv4.conf.all.rp_filter=2",
        root: false,
        look: reverse_path,
    },
];

fn packet_size(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for name in host.roce_interfaces() {
        let path = format!("/sys/class/net/{name}/mtu");
        let Some(mtu) = host.number(&path) else { continue };
        let line = format!("{path} = {mtu}");
        match mtu {
            4200.. => tally.well(line),
            1100..4200 => tally.warn(line),
            _ => tally.fail(line),
        }
    }
    tally.seen(
        "no RoCE interface",
        "RoCE interfaces carry packets of 4096 bytes",
        "RoCE interfaces with a small MTU",
    )
}

/// Asks what mlnx_qos says of every RoCE interface.
fn each_qos(host: &Host, good: &str, bad: &str, look: impl Fn(&str, &Qos, &mut Tally)) -> Seen {
    let mut tally = Tally::default();
    for name in host.roce_interfaces() {
        match host.qos(&name) {
            Ok(qos) => look(&name, &qos, &mut tally),
            Err(why) => tally.unknown(format!("{name}: {why}")),
        }
    }
    tally.seen("no RoCE interface whose quality of service is known", good, bad)
}

fn trust(host: &Host) -> Seen {
    each_qos(
        host,
        "RoCE interfaces trust DSCP",
        "RoCE interfaces that do not trust DSCP",
        |name, qos, tally| {
            let Some(trust) = &qos.trust else { return };
            let line = format!("{name}: trust = {trust}");
            if trust == "dscp" { tally.well(line) } else { tally.fail(line) }
        },
    )
}

fn flow_control(host: &Host) -> Seen {
    let good = "flow control is on for exactly one priority";
    each_qos(
        host,
        good,
        "RoCE interfaces with flow control on no or several priorities",
        |name, qos, tally| {
            let Some(on) = &qos.pfc else { return };
            let line = format!("mlnx_qos -i {name}: PFC on priorities {on:?}");
            match on.len() {
                0 => tally.fail(line),
                1 => tally.well(line),
                _ => tally.warn(line),
            }
        },
    )
}

fn traffic_class(host: &Host) -> Seen {
    let set = host.whole("NCCL_IB_TC").and_then(|class| u32::try_from(class).ok());
    let mut tally = Tally::default();
    for port in host.roce_ports() {
        let path = format!("/sys/class/infiniband/{}/tc/1/traffic_class", port.device.name);
        let global =
            host.text(&path).and_then(|text| text.rsplit('=').next()?.trim().parse::<u32>().ok());
        let class = set.or(global).unwrap_or(0);
        for name in host.interfaces_of(port.device) {
            let Ok(qos) = host.qos(name) else { continue };
            let Some(on) = qos.pfc.as_ref().filter(|on| !on.is_empty()) else { continue };
            let priority = qos.priority(class >> 2);
            let line = format!(
                "{} ({name}): class {class} is priority {priority}; PFC on {on:?}",
                port.name()
            );
            if on.contains(&priority) {
                tally.well(line);
            } else if set.is_none() && global.is_none() {
                tally.warn(format!("{line}; NCCL_IB_TC is not set"));
            } else {
                tally.fail(line);
            }
        }
    }
    tally.seen(
        "no RoCE interface with flow control",
        "NCCL's traffic goes to the priority with flow control",
        "NCCL's traffic goes to a priority without flow control",
    )
}

/// The priority with flow control, 3 where it is not known.
fn lossless(host: &Host, interface: &str) -> usize {
    host.qos(interface).ok().and_then(|qos| qos.pfc?.first().copied()).unwrap_or(3)
}

fn congestion(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for name in host.roce_interfaces() {
        let priority = lossless(host, &name);
        let side = |side: &str| {
            host.number(&format!("/sys/class/net/{name}/ecn/{side}/enable/{priority}"))
        };
        let (Some(notify), Some(react)) = (side("roce_np"), side("roce_rp")) else { continue };
        let line = format!(
            "/sys/class/net/{name}/ecn: roce_np/enable/{priority} = {notify}, roce_rp/enable/{priority} = {react}"
        );
        match (notify, react) {
            (1, 1) => tally.well(line),
            (0, 0) => tally.fail(line),
            _ => tally.warn(line),
        }
    }
    tally.seen(
        "no RoCE interface shows it",
        "congestion notification is on",
        "RoCE interfaces without congestion notification",
    )
}

fn notification(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for name in host.roce_interfaces() {
        let path = format!("/sys/class/net/{name}/ecn/roce_np/cnp_dscp");
        let Some(point) = host.number(&path).and_then(|point| u32::try_from(point).ok()) else {
            continue;
        };
        let qos = host.qos(&name).unwrap_or_default();
        let (own, data) = (qos.priority(point), lossless(host, &name));
        let line = format!("{path} = {point}: priority {own}; data has {data}");
        if own == data { tally.warn(line) } else { tally.well(line) }
    }
    tally.seen(
        "no RoCE interface shows it",
        "notifications have a priority of their own",
        "notifications share the priority of data",
    )
}

/// Priorities with flow control on a device's interface, and the one that a traffic class goes to.
fn lands(host: &Host, device: &str, class: u32) -> Option<(Vec<usize>, usize)> {
    let hca = host.hcas().iter().find(|hca| hca.name == device)?;
    let names = host.interfaces_of(hca);
    let qos = names.iter().find_map(|name| host.qos(name).ok())?;
    let on = qos.pfc.clone().filter(|on| !on.is_empty())?;
    Some((on, qos.priority(class >> 2)))
}

fn connection_manager(host: &Host) -> Seen {
    let mut tally = Tally::default();
    let folder = "/sys/kernel/config/rdma_cm";
    for hca in host.list(folder) {
        for port in host.list(&format!("{folder}/{hca}/ports")) {
            let path = format!("{folder}/{hca}/ports/{port}/default_roce_mode");
            let Some(mode) = host.text(&path) else { continue };
            let line = format!("{path} = {mode}");
            if mode == "RoCE v2" {
                tally.well(line)
            } else {
                tally.warn(line)
            }
            let place = format!("{folder}/{hca}/ports/{port}/default_roce_tos");
            // Nothing set leaves it to the device's own class, which roc-09 looks at.
            let class = host.number(&place).and_then(|class| u32::try_from(class).ok());
            if let Some(class) = class.filter(|class| *class > 0)
                && let Some((on, priority)) = lands(host, &hca, class)
                && !on.contains(&priority)
            {
                tally.warn(format!("{place} = {class} is priority {priority}; PFC on {on:?}"));
            }
        }
    }
    tally.seen(
        "rdma_cm is not configured here",
        "rdma_cm makes RoCE v2 connections",
        "devices on which rdma_cm makes v1 connections, or of a class without flow control",
    )
}

/// RoCE interfaces that share a subnet with another one's.
fn crowded(host: &Host) -> Vec<(String, Vec<String>)> {
    let rails = host.roce_interfaces();
    let is_device = |name: &String| rails.contains(name);
    let subnets = host.subnets().into_iter();
    let mut found: Vec<(String, Vec<String>)> = subnets
        .map(|(subnet, names)| (subnet, names.into_iter().filter(is_device).collect()))
        .collect();
    found.retain(|(_, names)| names.len() > 1);
    found
}

fn conf(host: &Host, interface: &str, name: &str) -> i64 {
    // The kernel takes the larger of the two.
    let one =
        |who: &str| host.number(&format!("/proc/sys/net/ipv4/conf/{who}/{name}")).unwrap_or(0);
    one("all").max(one(interface))
}

fn arp(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for (_, names) in crowded(host) {
        for name in &names {
            let (ignore, announce) =
                (conf(host, name, "arp_ignore"), conf(host, name, "arp_announce"));
            let line = format!(
                "{name} shares a subnet with {} others: arp_ignore = {ignore}, arp_announce = {announce}",
                names.len() - 1
            );
            if ignore >= 1 && announce == 2 { tally.well(line) } else { tally.fail(line) }
        }
    }
    tally.seen(
        "no two RoCE interfaces in one subnet",
        "rails answer for their own address only",
        "rails that answer for each other's addresses",
    )
}

fn reverse_path(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for (_, names) in crowded(host) {
        for name in &names {
            let filter = conf(host, name, "rp_filter");
            let line = format!(
                "{name} shares a subnet with {} others: rp_filter = {filter}",
                names.len() - 1
            );
            if filter == 1 { tally.fail(line) } else { tally.well(line) }
        }
    }
    tally.seen(
        "no two RoCE interfaces in one subnet",
        "rails may receive what came over another",
        "rails that drop what came over another",
    )
}
