//! Ethernet and TCP: interfaces, buffers, names, time.

use std::collections::BTreeMap;

use ringway::topo::{NetDevice, RdmaPort};

use super::{Check, Seen, Tally, bytes};
use crate::doctor::host::{Host, maximums};

mod tcp;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "eth-mtu",
        group: "net",
        about: "fast Ethernet interfaces carry jumbo packets",
        reads: "/sys/class/net/*/{mtu,speed}",
        cost: "6 times as many packets: TCP at 25 Gb/s and more is limited by the processor",
        fix: "ip link set INTERFACE mtu 9000, on the switch too",
        root: false,
        look: packet_size,
    },
    Check {
        id: "eth-speed",
        group: "net",
        about: "interfaces of one kind have one speed",
        reads: "/sys/class/net/*/speed, PCI ids",
        cost: "the slowest rail sets the speed of all",
        fix: "reseat the cable, check the switch port's speed; ethtool INTERFACE",
        root: false,
        look: speed,
    },
    Check {
        id: "eth-duplex",
        group: "net",
        about: "interfaces are full duplex",
        reads: "/sys/class/net/*/duplex",
        cost: "half duplex sends or receives, not both: less than half, and losses",
        fix: "turn autonegotiation on at both ends: ethtool -s INTERFACE autoneg on",
        root: false,
        look: duplex,
    },
    Check {
        id: "eth-state",
        group: "net",
        about: "interfaces of active RDMA devices are up",
        reads: "/sys/class/net/*/operstate",
        cost: "RoCE without its interface has no address: the rail is not used",
        fix: "ip link set INTERFACE up",
        root: false,
        look: state,
    },
    Check {
        id: "eth-ring",
        group: "net",
        about: "receive rings are not tiny",
        reads: "ethtool -g",
        cost: "bursts of more packets than the ring holds are dropped; TCP then waits 200 ms",
        fix: "ethtool -G INTERFACE rx MAXIMUM (see ethtool -g)",
        root: false,
        look: rings,
    },
    Check {
        id: "eth-offload",
        group: "net",
        about: "segmentation and receive offload are on",
        reads: "ethtool -k",
        cost: "the processor cuts every packet itself: TCP at a third to a tenth of 100 Gb/s",
        fix: "ethtool -K INTERFACE tso on gso on gro on",
        root: false,
        look: offloads,
    },
    Check {
        id: "eth-queues",
        group: "net",
        about: "fast interfaces have several queues",
        reads: "ethtool -l",
        cost: "one queue is one core: about 20 to 40 Gb/s of TCP at the most",
        fix: "ethtool -L INTERFACE combined MAXIMUM",
        root: false,
        look: queues,
    },
    Check {
        id: "tcp-rmem",
        group: "net",
        about: "TCP may buffer enough when receiving",
        reads: "/proc/sys/net/ipv4/tcp_rmem",
        cost: "a connection moves at most buffer / round trip: 4 MiB over 1 ms is 4 GB/s, 256 KiB 0.25 GB/s",
        fix: "sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216'",
        root: false,
        look: tcp::receive_buffer,
    },
    Check {
        id: "tcp-wmem",
        group: "net",
        about: "TCP may buffer enough when sending",
        reads: "/proc/sys/net/ipv4/tcp_wmem",
        cost: "a connection moves at most buffer / round trip: 4 MiB over 1 ms is 4 GB/s, 256 KiB 0.25 GB/s",
        fix: "sysctl -w net.ipv4.tcp_wmem='4096 65536 16777216'",
        root: false,
        look: tcp::send_buffer,
    },
    Check {
        id: "tcp-window",
        group: "net",
        about: "TCP windows scale",
        reads: "/proc/sys/net/ipv4/tcp_window_scaling",
        cost: "64 KiB in flight at the most: 0.06 GB/s over 1 ms",
        fix: "sysctl -w net.ipv4.tcp_window_scaling=1",
        root: false,
        look: tcp::window,
    },
    Check {
        id: "tcp-sack",
        group: "net",
        about: "TCP repeats only what was lost",
        reads: "/proc/sys/net/ipv4/tcp_sack",
        cost: "one lost packet repeats the whole window",
        fix: "sysctl -w net.ipv4.tcp_sack=1",
        root: false,
        look: tcp::selective,
    },
    Check {
        id: "tcp-timestamps",
        group: "net",
        about: "TCP protects against wrapped sequence numbers",
        reads: "/proc/sys/net/ipv4/tcp_timestamps",
        cost: "at 100 Gb/s sequence numbers wrap in 0.3 s; round trips are measured once a window",
        fix: "sysctl -w net.ipv4.tcp_timestamps=1",
        root: false,
        look: tcp::timestamps,
    },
    Check {
        id: "tcp-backlog",
        group: "net",
        about: "packets may queue for the processor on fast interfaces",
        reads: "/proc/sys/net/core/netdev_max_backlog",
        cost: "bursts are dropped before TCP sees them; each loss costs a round trip or 200 ms",
        fix: "sysctl -w net.core.netdev_max_backlog=250000",
        root: false,
        look: tcp::backlog,
    },
    Check {
        id: "net-02",
        group: "net",
        about: "there are enough ports for connections",
        reads: "/proc/sys/net/ipv4/ip_local_port_range",
        cost: "jobs of many ranks run out of ports: cannot assign requested address",
        fix: "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        root: false,
        look: tcp::ports,
    },
    Check {
        id: "net-03",
        group: "net",
        about: "the machine's own name is not the loopback address",
        reads: "/proc/sys/kernel/hostname, /etc/hosts",
        cost: "a MASTER_ADDR of this name is 127.x: ranks of other machines never meet",
        fix: "give the name its network address in /etc/hosts, or take the 127.x line out",
        root: false,
        look: own_name,
    },
    Check {
        id: "net-04",
        group: "net",
        about: "many ranks can connect at once",
        reads: "/proc/sys/net/core/somaxconn, /proc/sys/net/ipv4/tcp_max_syn_backlog",
        cost: "rank 0 drops connections of more ranks than that: starting takes minutes",
        fix: "sysctl -w net.core.somaxconn=16384 net.ipv4.tcp_max_syn_backlog=16384",
        root: false,
        look: tcp::listening,
    },
    Check {
        id: "net-05",
        group: "net",
        about: "the clock is kept",
        reads: "chronyc tracking, timedatectl show",
        cost: "traces of several machines cannot be put in order once clocks differ by more than 1 ms",
        fix: "systemctl enable --now chronyd, or ptp4l for microseconds",
        root: false,
        look: clock,
    },
];

fn packet_size(host: &Host) -> Seen {
    let roce = host.roce_interfaces();
    let mut tally = Tally::default();
    for nic in host
        .nics()
        .into_iter()
        .filter(|nic| nic.is_ethernet && nic.is_up() && !roce.contains(&nic.name))
    {
        let (Some(speed), Some(mtu)) = (nic.mbit_per_s.filter(|speed| *speed >= 25_000), nic.mtu)
        else {
            continue;
        };
        let line = format!("/sys/class/net/{}/mtu = {mtu} at {speed} Mb/s", nic.name);
        if mtu < 4000 { tally.warn(line) } else { tally.well(line) }
    }
    tally.seen(
        "no Ethernet interface of 25 Gb/s or more besides RoCE",
        "fast interfaces carry jumbo packets",
        "fast interfaces with a small MTU",
    )
}

/// Interfaces that are up by the PCI ids of their device.
fn speed(host: &Host) -> Seen {
    let mut kinds = BTreeMap::<(u16, u16), Vec<(&str, u64)>>::new();
    for nic in host.nics().into_iter().filter(|nic| nic.is_up()) {
        let Some(pci) = nic.bus.and_then(|bus| host.pci_at(bus)) else { continue };
        if let Some(speed) = nic.mbit_per_s {
            kinds.entry((pci.vendor, pci.device)).or_default().push((&nic.name, speed));
        }
    }
    let mut tally = Tally::default();
    for nics in kinds.values() {
        let most = nics.iter().map(|(_, speed)| *speed).max().unwrap_or(0);
        for (name, speed) in nics {
            let line = format!(
                "/sys/class/net/{name}/speed = {speed} Mb/s; the fastest of its kind has {most}"
            );
            if *speed < most { tally.warn(line) } else { tally.well(line) }
        }
    }
    tally.seen(
        "no interface on PCI that says its speed",
        "interfaces of one kind have one speed",
        "interfaces slower than others of their kind",
    )
}

fn duplex(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for nic in host.nics().into_iter().filter(|nic| nic.is_up()) {
        let path = format!("/sys/class/net/{}/duplex", nic.name);
        match host.text(&path).as_deref() {
            Some("half") => tally.fail(format!("{path} = half")),
            Some("full") => tally.well(format!("{path} = full")),
            _ => {}
        }
    }
    tally.seen(
        "no interface says its duplex",
        "interfaces are full duplex",
        "interfaces are half duplex",
    )
}

fn state(host: &Host) -> Seen {
    let mut tally = Tally::default();
    let active = |port: &RdmaPort| port.is_ethernet() && port.is_active();
    for hca in host.hcas().iter().filter(|hca| hca.ports.iter().any(active)) {
        for nic in host.nics().into_iter().filter(|nic| nic.bus.is_some() && nic.bus == hca.bus) {
            let path = format!("/sys/class/net/{}/operstate", nic.name);
            let line = format!("{path} = {} ({})", nic.state, hca.name);
            if nic.is_up() { tally.well(line) } else { tally.fail(line) }
        }
    }
    tally.seen(
        "no RoCE interface",
        "interfaces of RDMA devices are up",
        "interfaces of RDMA devices that are down",
    )
}

fn rings(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for nic in host.nics().into_iter().filter(|nic| nic.is_up() && nic.is_ethernet) {
        let Ok(text) = host.output(&format!("ethtool-g-{}", nic.name)) else { continue };
        let Some((most, now)) = maximums(&text) else { continue };
        let (Some(most), Some(now)) = (most.get("RX"), now.get("RX")) else { continue };
        let line = format!("ethtool -g {}: RX = {now} of {most}", nic.name);
        if *now < 1024.min(*most) { tally.warn(line) } else { tally.well(line) }
    }
    tally.seen(
        "ethtool -g says nothing here",
        "receive rings are not tiny",
        "interfaces with a tiny receive ring",
    )
}

fn offloads(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for nic in host.nics().into_iter().filter(|nic| nic.is_up() && nic.is_ethernet) {
        let Ok(text) = host.output(&format!("ethtool-k-{}", nic.name)) else { continue };
        let off: Vec<&str> =
            ["tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive-offload"]
                .into_iter()
                .filter(|name| {
                    let value =
                        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                    // What the device cannot do is shown as fixed.
                    value.is_some_and(|value| value.trim() == "off")
                })
                .collect();
        if off.is_empty() {
            tally.well(format!("ethtool -k {}: offloads are on", nic.name));
        } else {
            tally.warn(format!("ethtool -k {}: {} off", nic.name, off.join(", ")));
        }
    }
    tally.seen(
        "ethtool -k says nothing here",
        "offloads are on",
        "interfaces with offloads switched off",
    )
}

fn queues(host: &Host) -> Seen {
    let mut tally = Tally::default();
    let fast = |nic: &&NetDevice| nic.mbit_per_s.is_some_and(|speed| speed >= 25_000);
    for nic in host.nics().into_iter().filter(fast) {
        let Ok(text) = host.output(&format!("ethtool-l-{}", nic.name)) else { continue };
        let Some((most, now)) = maximums(&text) else { continue };
        let (Some(most), Some(now)) = (most.get("Combined"), now.get("Combined")) else { continue };
        let line = format!("ethtool -l {}: Combined = {now} of {most}", nic.name);
        if *now < 4.min(*most) { tally.warn(line) } else { tally.well(line) }
    }
    tally.seen(
        "no interface of 25 Gb/s or more whose queues are known",
        "fast interfaces have several queues",
        "fast interfaces with few queues",
    )
}

fn own_name(host: &Host) -> Seen {
    let (Some(name), Some(hosts)) =
        (host.text("/proc/sys/kernel/hostname"), host.text("/etc/hosts"))
    else {
        return Seen::unknown(
            "could not look at the machine's own name",
            "/etc/hosts is not there",
        );
    };
    let line = hosts.lines().find(|line| {
        let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
        let [address, names @ ..] = &words[..] else { return false };
        (address.starts_with("127.") || *address == "::1") && names.contains(&name.as_str())
    });
    match line {
        Some(line) if name != "localhost" => Seen::warn(
            "the machine's own name is a loopback address",
            format!("/etc/hosts: {line}"),
        ),
        _ => Seen::well(
            "the machine's own name is not the loopback address",
            format!("/etc/hosts: no 127.x line for {name}"),
        ),
    }
}

fn clock(host: &Host) -> Seen {
    if let Ok(text) = host.output("chronyc") {
        if let Some(line) = text.lines().find(|line| line.starts_with("Leap status"))
            && line.contains("Not synchronised")
        {
            return Seen::warn("nothing keeps the clock", format!("chronyc tracking: {line}"));
        }
        let offset = text.lines().find_map(|line| {
            let rest = line.strip_prefix("System time")?.split_once(':')?.1;
            rest.split_whitespace().next()?.parse::<f64>().ok()
        });
        if let Some(seconds) = offset.map(f64::abs) {
            let evidence = format!("chronyc tracking: System time is {:.3} ms off", seconds * 1e3);
            return if seconds > 0.010 {
                Seen::fail("the clock is more than 10 ms off", evidence)
            } else if seconds > 0.001 {
                Seen::warn("the clock is more than 1 ms off", evidence)
            } else {
                Seen::well("the clock is kept", evidence)
            };
        }
    }
    match host.output("timedatectl") {
        Ok(text) => {
            let line = text
                .lines()
                .find(|line| line.starts_with("NTPSynchronized="))
                .unwrap_or("")
                .to_owned();
            match line.as_str() {
                "NTPSynchronized=yes" => {
                    Seen::well("the clock is kept", format!("timedatectl show: {line}"))
                }
                "" => Seen::unknown(
                    "could not look whether the clock is kept",
                    "timedatectl show does not say",
                ),
                _ => Seen::warn("nothing keeps the clock", format!("timedatectl show: {line}")),
            }
        }
        Err(why) => Seen::unknown(
            "could not look whether the clock is kept",
            format!("neither chronyc nor timedatectl answers: {why}"),
        ),
    }
}

/// The fastest interface that is up, in Mb/s.
fn fastest(host: &Host) -> u64 {
    let up = host.nics().into_iter().filter(|nic| nic.is_up());
    up.filter_map(|nic| nic.mbit_per_s).max().unwrap_or(0)
}

/// A number of bytes in a setting.
fn size(number: i64) -> String {
    bytes(number.unsigned_abs())
}
