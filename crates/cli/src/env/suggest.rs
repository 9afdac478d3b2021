//! `ringway env suggest`: the block of settings that fits this machine, each line with its reason.
//!
//! *Invariant*: what it writes passes `ringway env lint` on the same machine, and sets nothing that NCCL finds
//! by itself.

use std::fmt::Write as _;

use super::host::{Host, Interface, Port};

/// Kinds of networks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Fabric {
    /// InfiniBand.
    Ib,
    /// RDMA over Ethernet.
    Roce,
    /// Ethernet without RDMA.
    Tcp,
}

impl Fabric {
    /// What the machine has: the link layer of most of its active ports.
    pub(crate) fn of(host: &Host) -> Self {
        let (ethernet, infiniband): (Vec<&Port>, Vec<&Port>) =
            host.active().partition(|port| port.is_ethernet);
        let rate = |ports: &[&Port]| ports.iter().map(|port| port.rate).sum::<u32>();
        match (rate(&infiniband), rate(&ethernet)) {
            (0, 0) => Self::Tcp,
            (ib, roce) if ib >= roce => Self::Ib,
            _ => Self::Roce,
        }
    }
}

/// The block.
pub(crate) fn block(host: &Host, fabric: Fabric, dscp: Option<u8>) -> String {
    let mut text = String::new();
    let mut set = |why: &str, line: &str| {
        for part in crate::doctor::finding::folded(why, 76) {
            let _ = writeln!(text, "# {part}");
        }
        let _ = writeln!(text, "{line}");
    };
    if let Some(interface) = meeting(host, fabric) {
        set(
            &format!(
                "Ranks meet over {}; = takes this name only, not all that begin so.",
                interface.name
            ),
            &format!("NCCL_SOCKET_IFNAME=={}", interface.name),
        );
    } else {
        set(
            "No interface stood out here. Bridges and the loopback are never the way to another host.",
            "NCCL_SOCKET_IFNAME=^lo,docker,virbr,veth,cni",
        );
    }
    if fabric == Fabric::Tcp {
        set(
            "One TCP stream carries 1 to 3 GB/s. NCCL opens one for each channel unless told; 4 threads with 4 \
             sockets make 16 (64 is the most).",
            "NCCL_SOCKET_NTHREADS=4\nNCCL_NSOCKS_PERTHREAD=4",
        );
    } else {
        rdma(host, fabric, dscp, &mut set);
    }
    set("Say what goes wrong, not all that goes on.", "NCCL_DEBUG=WARN");
    text
}

fn rdma(host: &Host, fabric: Fabric, dscp: Option<u8>, set: &mut impl FnMut(&str, &str)) {
    set(
        "A fallback to TCP costs a factor of 5 and is silent; with this it is an error. (A network plugin has \
         a name of its own.)",
        "NCCL_NET=IB",
    );
    let wanted = |port: &&Port| port.is_ethernet == (fabric == Fabric::Roce);
    let ports: Vec<&Port> = host.active().filter(wanted).collect();
    let fastest = ports.iter().map(|port| port.rate).max().unwrap_or(0);
    let (compute, others): (Vec<&Port>, Vec<&Port>) =
        ports.iter().partition(|port| port.rate == fastest);
    if !compute.is_empty() {
        let list: Vec<String> =
            compute.iter().map(|port| format!("{}:{}", port.device, port.port)).collect();
        let mut why =
            format!("The {} active ports of {fastest} Gb/s, by exact name (=).", compute.len());
        if !others.is_empty() {
            let names: Vec<&str> = others.iter().map(|port| port.device.as_str()).collect();
            let _ =
                write!(why, " Left out as slower, so not for collectives: {}.", names.join(", "));
        }
        set(&why, &format!("NCCL_IB_HCA=={}", list.join(",")));
    }
    set(
        "A NIC waits 4.096 µs × 2^22 × 7 = 2 minutes for an answer (30 s by default): a link that flaps does not end \
         the job.",
        "NCCL_IB_TIMEOUT=22",
    );
    if fabric != Fabric::Roce {
        return;
    }
    set(
        "The entry of the address table is chosen by version. No NCCL_IB_GID_INDEX: it differs between hosts and \
         pods.",
        "NCCL_IB_ROCE_VERSION_NUM=2",
    );
    let has_v4 = ports.iter().flat_map(|port| &port.gids).any(|gid| {
        gid.is_routable_v2() && gid.address.starts_with("0000:0000:0000:0000:0000:ffff")
    });
    let has_v6 = ports.iter().flat_map(|port| &port.gids).any(super::host::Gid::is_routable_v2);
    if has_v6 && !has_v4 {
        set(
            "Only IPv6 addresses are routed here; NCCL looks for IPv4 unless told.",
            "NCCL_IB_ADDR_FAMILY=AF_INET6",
        );
    }
    set(
        "Switches spread connections by hash: of 64 flows with 1 queue pair the worst link gets 4 (26 % of the \
         bandwidth), with 4 queue pairs 2.4 (43 %).",
        "NCCL_IB_QPS_PER_CONNECTION=4",
    );
    match dscp {
        Some(dscp) => {
            let class = u32::from(dscp) << 2 | 2;
            set(
                &format!(
                    "DSCP {dscp} × 4, plus 2 for ECN: the lossless class of the network's plan."
                ),
                &format!("NCCL_IB_TC={class}"),
            );
        }
        None => set(
            "The lossless class of your network, DSCP × 4 + 2: DSCP 26 is 106. Give it as --dscp.",
            "#NCCL_IB_TC=",
        ),
    }
}

/// The interface by which hosts reach each other: a card that is up, no bridge. With RDMA the slowest such
/// card is the management network; without, the fastest one is to carry the data.
fn meeting(host: &Host, fabric: Fabric) -> Option<&Interface> {
    let cards = host.interfaces.iter().filter(|i| i.is_up && i.is_physical && !i.is_ipoib);
    let speed = |interface: &&Interface| interface.speed.unwrap_or(0);
    if fabric == Fabric::Tcp { cards.max_by_key(speed) } else { cards.min_by_key(speed) }
}

#[cfg(test)]
mod tests {
    use ringway::topo::GidKind;

    use super::super::host::Gid;
    use super::super::lint::{Input, lint};
    use super::super::source::from_text;
    use super::*;
    use crate::doctor::finding::Verdict;

    fn port(device: &str, is_ethernet: bool, rate: u32) -> Port {
        let address = "0000:0000:0000:0000:0000:ffff:0a00:0001".to_owned();
        let gids = vec![Gid { index: 3, address, kind: GidKind::RoceV2 }];
        Port { device: device.to_owned(), port: 1, is_ethernet, is_active: true, rate, gids }
    }

    fn host(ports: Vec<Port>) -> Host {
        let interface = |name: &str, speed, is_physical| Interface {
            name: name.to_owned(),
            is_up: true,
            is_physical,
            speed: Some(speed),
            is_ipoib: false,
        };
        Host {
            ports,
            interfaces: vec![
                interface("docker0", 10_000, false),
                interface("eth0", 1000, true),
                interface("eth1", 100_000, true),
            ],
        }
    }

    #[test]
    fn what_is_suggested_passes_the_lint_on_that_machine() {
        let machines = [
            (host(vec![port("mlx5_0", false, 400), port("mlx5_1", false, 400)]), Fabric::Ib),
            (host(vec![port("mlx5_0", true, 400), port("mlx5_2", true, 100)]), Fabric::Roce),
            (host(Vec::new()), Fabric::Tcp),
            (Host::default(), Fabric::Tcp),
        ];
        for (machine, fabric) in machines {
            assert_eq!(Fabric::of(&machine), fabric);
            for dscp in [None, Some(26)] {
                let text = block(&machine, fabric, dscp);
                let settings = from_text("f", &text);
                let report = lint(&Input { settings: &settings, host: Some(&machine), dscp });
                assert_eq!(report.verdict(), Verdict::Pass, "{text}\n{:?}", report.findings);
                assert!(settings.len() >= 2);
                for line in text.lines() {
                    assert!(
                        line.chars().count() <= 80 || line.starts_with("NCCL_IB_HCA"),
                        "{line}"
                    );
                }
            }
        }
    }

    #[test]
    fn slower_ports_and_bridges_are_left_out_and_named() {
        let text = block(
            &host(vec![port("mlx5_0", true, 400), port("mlx5_2", true, 100)]),
            Fabric::Roce,
            Some(26),
        );
        assert!(text.contains("NCCL_IB_HCA==mlx5_0:1\n") && text.contains("mlx5_2."), "{text}");
        assert!(
            text.contains("NCCL_SOCKET_IFNAME==eth0") && text.contains("NCCL_IB_TC=106"),
            "{text}"
        );
        assert!(!text.contains("GID_INDEX="), "{text}");
        let text = block(&host(Vec::new()), Fabric::Tcp, None);
        assert!(text.contains("NCCL_SOCKET_IFNAME==eth1"), "{text}");
    }

    #[test]
    fn a_machine_is_read_below_a_root() {
        let root = std::env::temp_dir().join(format!("ringway-env-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        write(&format!("{port}/link_layer"), "Ethernet\n");
        write(&format!("{port}/state"), "4: ACTIVE\n");
        write(&format!("{port}/rate"), "200 Gb/sec (2X NDR)\n");
        write(&format!("{port}/gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n");
        write(&format!("{port}/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        write(&format!("{port}/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        write(&format!("{port}/gid_attrs/types/3"), "RoCE v2\n");
        write("sys/class/net/eth0/operstate", "up\n");
        write("sys/class/net/eth0/mtu", "9000\n");
        write("sys/class/net/eth0/device/vendor", "0x15b3\n");
        write("sys/class/net/eth0/speed", "25000\n");
        write("sys/class/net/bonding_masters", "bond0\n");
        let host = Host::read(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!((host.ports.len(), host.ports[0].rate, host.ports[0].gids.len()), (1, 200, 2));
        assert!(host.ports[0].is_active && host.ports[0].is_ethernet);
        assert!(host.ports[0].gids[1].is_routable_v2() && !host.ports[0].gids[0].is_routable_v2());
        assert_eq!(host.interfaces.len(), 1);
        assert!(host.interfaces[0].is_physical && host.interfaces[0].speed == Some(25_000));
        assert_eq!(Host::read(&root), Host::default());
    }
}
