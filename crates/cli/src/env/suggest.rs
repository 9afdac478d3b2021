//! `ringway env suggest`: the block of settings that fits this machine, each line with its reason.
//!
//! *Invariant*: what it writes passes `ringway env lint` on the same machine, and sets nothing that NCCL finds
//! by itself.

use std::fmt::Write as _;

use super::host::{Host, Interface, Link, Port};

/// Kinds of networks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Fabric {
    /// InfiniBand.
    Ib,
    /// RDMA over Ethernet.
    Roce,
    /// AWS's Elastic Fabric Adapter, through a plugin.
    Efa,
    /// Ethernet without RDMA.
    Tcp,
}

impl Fabric {
    /// What the machine has: the link of the ports that carry most together.
    pub(crate) fn of(host: &Host) -> Self {
        let rate = |fabric: &Self| -> Option<u32> {
            let ports: Vec<u32> = host.active().filter(|p| fabric.has(p)).map(|p| p.rate).collect();
            (!ports.is_empty())
                .then(|| ports.iter().fold(0, |sum: u32, rate| sum.saturating_add(*rate)))
        };
        // The last of equals is taken.
        let kinds = [Self::Efa, Self::Roce, Self::Ib].into_iter();
        let best =
            kinds.filter_map(|kind| Some((rate(&kind)?, kind))).max_by_key(|(rate, _)| *rate);
        best.map_or(Self::Tcp, |(_, kind)| kind)
    }

    /// Whether a port belongs to it.
    fn has(self, port: &Port) -> bool {
        match self {
            Self::Ib => port.link == Link::InfiniBand,
            Self::Roce => port.link == Link::Ethernet,
            Self::Efa => port.link == Link::Efa,
            Self::Tcp => false,
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
    match fabric {
        Fabric::Tcp => set(
            "One TCP stream carries 1 to 3 GB/s. NCCL opens one for each channel unless told; 4 threads with 4 \
             sockets make 16 (64 is the most).",
            "NCCL_SOCKET_NTHREADS=4\nNCCL_NSOCKS_PERTHREAD=4",
        ),
        Fabric::Efa => efa(&mut set),
        Fabric::Ib | Fabric::Roce => rdma(host, fabric, dscp, &mut set),
    }
    set("Say what goes wrong, not all that goes on.", "NCCL_DEBUG=WARN");
    text
}

/// NCCL's own RDMA does not know EFA, so none of `NCCL_IB_*` counts.
fn efa(set: &mut impl FnMut(&str, &str)) {
    set(
        "NCCL reaches EFA only through the plugin aws-ofi-nccl. The folders of its library and of the libfabric \
         it was built with (those of the EFA installer fit) belong on the job's LD_LIBRARY_PATH, before it \
         starts; without them NCCL takes TCP, silently. The log must say \"NET/OFI\" and \"Selected Provider is \
         efa\". NCCL_NET=IB and NCCL_IB_* have no place here.",
        "#LD_LIBRARY_PATH=",
    );
    set("libfabric is to use EFA, and nothing in its place.", "FI_PROVIDER=efa");
    set(
        "On P4d with an old plugin only: GPUDirect RDMA is off there without it.",
        "#FI_EFA_USE_DEVICE_RDMA=1",
    );
}

fn rdma(host: &Host, fabric: Fabric, dscp: Option<u8>, set: &mut impl FnMut(&str, &str)) {
    set(
        "A fallback to TCP costs a factor of 5 and is silent; with this it is an error. (A network plugin has \
         a name of its own.)",
        "NCCL_NET=IB",
    );
    let ports: Vec<&Port> = host.active().filter(|port| fabric.has(port)).collect();
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

/// The interface by which hosts reach each other: a card or bond that is up, no bridge, nothing on USB. With
/// RDMA the slowest such is the management network; without, the fastest one is to carry the data. One of
/// unknown speed is taken only where none tells its speed.
fn meeting(host: &Host, fabric: Fabric) -> Option<&Interface> {
    let fits = |i: &&Interface| i.is_up && i.is_useful && !i.is_ipoib && !i.is_usb;
    let order = |interface: &&Interface| match interface.speed {
        Some(speed) if fabric == Fabric::Tcp => u32::MAX - speed.max(1),
        Some(speed) => speed.min(u32::MAX - 1),
        None => u32::MAX,
    };
    host.interfaces.iter().filter(fits).min_by_key(order)
}

#[cfg(test)]
mod tests {
    use ringway::topo::{GidKind, Root};

    use super::super::host::Gid;
    use super::super::lint::{Input, lint};
    use super::super::source::from_text;
    use super::*;
    use crate::doctor::finding::Verdict;

    fn port(device: &str, link: Link, rate: u32) -> Port {
        let address = "0000:0000:0000:0000:0000:ffff:0a00:0001".to_owned();
        let gids = vec![Gid { index: 3, address, kind: GidKind::RoceV2 }];
        Port { device: device.to_owned(), port: 1, link, is_active: true, rate, gids }
    }

    fn interface(name: &str, speed: Option<u32>, is_useful: bool) -> Interface {
        let name = name.to_owned();
        Interface { name, is_up: true, is_useful, is_usb: false, speed, is_ipoib: false }
    }

    fn host(ports: Vec<Port>) -> Host {
        Host {
            ports,
            interfaces: vec![
                interface("docker0", Some(10_000), false),
                interface("eth0", Some(1000), true),
                interface("eth1", Some(100_000), true),
            ],
        }
    }

    #[test]
    fn what_is_suggested_passes_the_lint_on_that_machine() {
        let machines = [
            (
                host(vec![
                    port("mlx5_0", Link::InfiniBand, 400),
                    port("mlx5_1", Link::InfiniBand, 400),
                ]),
                Fabric::Ib,
            ),
            (
                host(vec![
                    port("mlx5_0", Link::Ethernet, 400),
                    port("mlx5_2", Link::Ethernet, 100),
                ]),
                Fabric::Roce,
            ),
            (host(vec![port("rdmap16s27", Link::Efa, 100)]), Fabric::Efa),
            (host(vec![port("odd0", Link::Unknown, 100)]), Fabric::Tcp),
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
            &host(vec![port("mlx5_0", Link::Ethernet, 400), port("mlx5_2", Link::Ethernet, 100)]),
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
    fn efa_goes_through_its_plugin_and_not_through_ib() {
        let text = block(&host(vec![port("rdmap16s27", Link::Efa, 100)]), Fabric::Efa, None);
        assert!(text.contains("\nFI_PROVIDER=efa\n") && text.contains("aws-ofi-nccl"), "{text}");
        let set = |line: &&str| line.starts_with("NCCL_NET") || line.starts_with("NCCL_IB");
        assert_eq!(text.lines().find(set), None, "{text}");
    }

    #[test]
    fn ranks_meet_over_the_bond_and_not_over_usb_or_an_unknown_speed() {
        let mut machine = host(vec![port("mlx5_0", Link::InfiniBand, 400)]);
        let usb = Interface { is_usb: true, ..interface("enx0", Some(425), true) };
        machine.interfaces = vec![
            usb,
            interface("bond0", Some(50_000), true),
            interface("eno1", Some(25_000), false),
            interface("eth9", None, true),
            interface("ens1", Some(400_000), true),
        ];
        assert_eq!(meeting(&machine, Fabric::Ib).unwrap().name, "bond0");
        assert_eq!(meeting(&machine, Fabric::Tcp).unwrap().name, "ens1");
        machine.interfaces = vec![interface("eth0", None, true), interface("eth1", None, true)];
        assert_eq!(meeting(&machine, Fabric::Ib).unwrap().name, "eth0");
        assert_eq!(meeting(&machine, Fabric::Tcp).unwrap().name, "eth0");
    }

    #[test]
    fn bonds_usb_and_efa_are_told_apart_below_a_root() {
        use std::os::unix::fs::symlink;
        let root = std::env::temp_dir().join(format!("ringway-env-efa-{}", std::process::id()));
        let _gone = std::fs::remove_dir_all(&root);
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let nets = "sys/class/net";
        for (name, speed, driver) in
            [("bond0", 50_000, ""), ("eno1", 25_000, "ice"), ("enx02", 425, "cdc_ether")]
        {
            write(&format!("{nets}/{name}/operstate"), "up\n");
            write(&format!("{nets}/{name}/mtu"), "1500\n");
            write(&format!("{nets}/{name}/speed"), &format!("{speed}\n"));
            if !driver.is_empty() {
                write(&format!("{nets}/{name}/device/vendor"), "0x8086\n");
                let to = format!("../../../../bus/drivers/{driver}");
                symlink(to, root.join(format!("{nets}/{name}/device/driver"))).unwrap();
            }
        }
        write(&format!("{nets}/bond0/bonding/mode"), "802.3ad 4\n");
        symlink("../bond0", root.join(format!("{nets}/eno1/master"))).unwrap();
        for device in ["rdmap0s6", "usnic_0"] {
            let port = format!("sys/class/infiniband/{device}/ports/1");
            write(&format!("{port}/link_layer"), "Unknown\n");
            write(&format!("{port}/state"), "4: ACTIVE\n");
            write(&format!("{port}/rate"), "100 Gb/sec (4X EDR)\n");
        }
        let host = Host::read(&Root::at(&root));
        std::fs::remove_dir_all(&root).unwrap();
        let links: Vec<Link> = host.ports.iter().map(|port| port.link).collect();
        assert_eq!(links, [Link::Efa, Link::Unknown]);
        assert_eq!(Fabric::of(&host), Fabric::Efa);
        assert_eq!(meeting(&host, Fabric::Efa).unwrap().name, "bond0");
        assert!(host.interfaces.iter().any(|i| i.is_usb && i.name == "enx02"));
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
        let host = Host::read(&Root::at(&root));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!((host.ports.len(), host.ports[0].rate, host.ports[0].gids.len()), (1, 200, 2));
        assert!(host.ports[0].is_active && host.ports[0].link == Link::Ethernet);
        assert!(host.ports[0].gids[1].is_routable_v2() && !host.ports[0].gids[0].is_routable_v2());
        assert_eq!(host.interfaces.len(), 1);
        assert!(host.interfaces[0].is_useful && host.interfaces[0].speed == Some(25_000));
        assert_eq!(Host::read(&Root::at(&root)), Host::default());
    }
}
