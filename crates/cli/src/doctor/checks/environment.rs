//! Variables and files that steer NCCL and its kin.

use ringway_plan::topology::hca::HcaFilter;

use super::{Check, Seen, Tally};
use crate::doctor::host::Host;
use crate::env::catalogue::parse_whole;

mod libraries;
mod topology;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "env-01",
        group: "environment",
        about: "no variable switches RDMA off",
        reads: "NCCL_IB_DISABLE, NCCL_NET, /etc/nccl.conf",
        cost: "25 to 5 GB/s; an all-reduce of 1 GB takes 370 instead of 50 ms (AReaL#639)",
        fix: "unset NCCL_IB_DISABLE; NCCL_NET=IB makes a fallback an error",
        root: false,
        look: rdma_off,
    },
    Check {
        id: "env-02",
        group: "environment",
        about: "no variable switches peer access or shared memory off",
        reads: "NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_P2P_LEVEL",
        cost: "8 H100: 367 to 480 GB/s over NVLink, 10 to 20 without peer access",
        fix: "unset them; look for the cause first: ACS (pci-05), IOMMU (pci-10), /dev/shm (mem-03)",
        root: false,
        look: peers_off,
    },
    Check {
        id: "env-03",
        group: "environment",
        about: "NCCL_SOCKET_IFNAME names an interface that is up",
        reads: "NCCL_SOCKET_IFNAME, /sys/class/net",
        cost: "starting hangs, or all TCP traffic takes the 1 Gb/s management port",
        fix: "NCCL_SOCKET_IFNAME==INTERFACE (exact), or ^docker,lo (all but)",
        root: false,
        look: interface_name,
    },
    Check {
        id: "env-04",
        group: "environment",
        about: "NCCL_IB_HCA names the devices it seems to name",
        reads: "NCCL_IB_HCA, /sys/class/infiniband",
        cost: "mlx5_1 without = also takes mlx5_10 to mlx5_19: storage and management cards too",
        fix: "NCCL_IB_HCA==mlx5_0,mlx5_3,… with a leading =",
        root: false,
        look: device_names,
    },
    Check {
        id: "env-05",
        group: "environment",
        about: "no variable pins the algorithm or protocol",
        reads: "NCCL_ALGO, NCCL_PROTO, NCCL_{MIN,MAX}_NCHANNELS, NCCL_NTHREADS, NCCL_BUFFSIZE",
        cost: "LL sends half flags: 50 %; a pinned tree got 50 of 200 GB/s (nccl-tests#232)",
        fix: "unset them",
        root: false,
        look: pinned,
    },
    Check {
        id: "env-06",
        group: "environment",
        about: "RDMA timeouts outlive a link flap",
        reads: "NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT",
        cost: "20 with 7 retries waits 30 s; 14 waits 0.5 s: the first flap kills the job",
        fix: "NCCL_IB_TIMEOUT=22, unset NCCL_IB_RETRY_CNT",
        root: false,
        look: timeouts,
    },
    Check {
        id: "env-07",
        group: "environment",
        about: "NCCL_CROSS_NIC fits rails that are networks of their own",
        reads: "NCCL_CROSS_NIC, /proc/net/route",
        cost: "traffic between rails crosses the spine; where rails are not joined it times out (nccl#1933)",
        fix: "NCCL_CROSS_NIC=0, or unset it",
        root: false,
        look: cross_nic,
    },
    Check {
        id: "env-08",
        group: "environment",
        about: "debug output is not left on",
        reads: "NCCL_DEBUG, NCCL_DEBUG_FILE",
        cost: "thousands of lines a rank in the job's output; TRACE also takes time in every call",
        fix: "NCCL_DEBUG=WARN, or NCCL_DEBUG_FILE=/tmp/nccl.%h.%p",
        root: false,
        look: debug,
    },
    Check {
        id: "env-10",
        group: "environment",
        about: "one RDMA library is in reach, with providers that fit it",
        reads: "libibverbs.so.1, libmlx5.so.1 and libefa.so.1 in LD_LIBRARY_PATH and the system's folders",
        cost: "the plugin does not load (IBVERBS_PRIVATE_34 not found) and NCCL falls back to TCP: 25 to 5 GB/s",
        fix: "take the other folder out of LD_LIBRARY_PATH, or install one rdma-core",
        root: false,
        look: libraries::versions,
    },
    Check {
        id: "job-04",
        group: "environment",
        about: "PyTorch's flight recorder keeps what it should dump",
        reads: "TORCH_FR_BUFFER_SIZE, TORCH_NCCL_TRACE_BUFFER_SIZE, TORCH_NCCL_DUMP_ON_TIMEOUT",
        cost: "after a hang nothing says which rank did not come",
        fix: "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        root: false,
        look: flight_recorder,
    },
    Check {
        id: "num-05",
        group: "environment",
        about: "NCCL_TOPO_FILE is this machine's, and is needed",
        reads: "NCCL_TOPO_FILE and the file it names, /sys/bus/pci/devices",
        cost: "a file of another machine is taken without a word: 178 to 28 GB/s with 13 of 24 NVLinks",
        fix: "unset NCCL_TOPO_FILE on bare metal; in a cloud's machine use the vendor's file of this type",
        root: false,
        look: topology::file,
    },
];

fn is_on(value: &str) -> bool {
    !["", "0"].contains(&value)
}

/// A check of variables that has nothing to go by.
fn unknown(host: &Host, good: &str) -> Option<Seen> {
    let why = "commands/environment.txt is not in the tree";
    (!host.knows_variables()).then(|| Seen::unknown(format!("could not look whether {good}"), why))
}

/// Variables of a list that are set, as evidence.
fn set<'a>(host: &'a Host, names: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    names.iter().filter_map(|name| Some((*name, host.variable(name)?))).collect()
}

fn shown(pairs: &[(&str, &str)]) -> String {
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn rdma_off(host: &Host) -> Seen {
    let pairs = set(host, &["NCCL_IB_DISABLE", "NCCL_NET"]);
    let off = pairs.iter().any(|(name, value)| match *name {
        "NCCL_IB_DISABLE" => is_on(value),
        _ => value.eq_ignore_ascii_case("socket"),
    });
    if !off {
        if let Some(unknown) = unknown(host, "a variable switches RDMA off") {
            return unknown;
        }
        return Seen::well("no variable switches RDMA off", format!("set: {:?}", shown(&pairs)));
    }
    let active = host.ports().iter().filter(|port| port.is_active()).count();
    let evidence = format!("{}; {active} active RDMA ports", shown(&pairs));
    if active > 0 {
        Seen::fail("a variable switches RDMA off", evidence)
    } else {
        Seen::well("RDMA is switched off where there is none", evidence)
    }
}

fn peers_off(host: &Host) -> Seen {
    let pairs = set(host, &["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_LEVEL"]);
    let off = pairs.iter().any(|(name, value)| name.ends_with("_DISABLE") && is_on(value));
    let loc =
        pairs.iter().any(|(name, value)| *name == "NCCL_P2P_LEVEL" && ["LOC", "0"].contains(value));
    let evidence = format!("set: {:?}", shown(&pairs));
    if off || loc {
        Seen::fail("a variable switches peer access or shared memory off", evidence)
    } else {
        let good = "peer access and shared memory are left on";
        unknown(host, good).unwrap_or_else(|| Seen::well(good, evidence))
    }
}

fn interface_name(host: &Host) -> Seen {
    let Some(filter) = host.variable("NCCL_SOCKET_IFNAME") else {
        return Seen::absent("NCCL_SOCKET_IFNAME is not set");
    };
    // NCCL reads both lists with the same rules.
    let list = HcaFilter::parse(filter);
    let nets = host.machine().nets.iter().filter(|net| list.allows(&net.name, None));
    let names: Vec<&str> = nets.clone().map(|net| net.name.as_str()).collect();
    let up: Vec<&str> = nets.filter(|net| net.is_up()).map(|net| net.name.as_str()).collect();
    let real = up
        .iter()
        .any(|name| !["lo", "docker", "virbr"].iter().any(|start| name.starts_with(start)));
    let evidence = format!("NCCL_SOCKET_IFNAME={filter}: {names:?}, of which up {up:?}");
    if real {
        Seen::well("NCCL_SOCKET_IFNAME names an interface that is up", evidence)
    } else {
        Seen::fail("NCCL_SOCKET_IFNAME names no interface that could be used", evidence)
    }
}

fn device_names(host: &Host) -> Seen {
    let Some(filter) = host.variable("NCCL_IB_HCA").filter(|filter| !filter.is_empty()) else {
        return Seen::absent("NCCL_IB_HCA is not set");
    };
    if host.hcas().is_empty() {
        return Seen::absent("no RDMA device");
    }
    let list = HcaFilter::parse(filter);
    let chosen: Vec<&str> = host
        .hcas()
        .iter()
        .map(|hca| hca.name.as_str())
        .filter(|name| list.allows(name, None))
        .collect();
    let evidence = format!("NCCL_IB_HCA={filter} selects {}", chosen.join(" "));
    if chosen.is_empty() {
        return Seen::fail(
            "NCCL_IB_HCA selects no device",
            format!("NCCL_IB_HCA={filter} selects none"),
        );
    }
    if filter.contains('=') {
        return Seen::well("NCCL_IB_HCA names devices exactly", evidence);
    }
    // Words that are the beginning of another device's name, too.
    let wide: Vec<&str> = filter
        .trim_start_matches('^')
        .split(',')
        .map(|word| word.split(':').next().unwrap_or(word))
        .filter(|word| {
            host.hcas().iter().any(|hca| hca.name == *word)
                && host.hcas().iter().any(|hca| hca.name != *word && hca.name.starts_with(word))
        })
        .collect();
    if wide.is_empty() {
        Seen::well("NCCL_IB_HCA names the devices it seems to name", evidence)
    } else {
        Seen::warn(format!("{} also selects longer names", wide.join(", ")), evidence)
    }
}

fn pinned(host: &Host) -> Seen {
    let names = [
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_NTHREADS",
        "NCCL_BUFFSIZE",
    ];
    let mut tally = Tally::default();
    for (name, value) in set(host, &names) {
        let slow = name == "NCCL_PROTO" && value.eq_ignore_ascii_case("ll")
            || name == "NCCL_ALGO" && value.eq_ignore_ascii_case("tree");
        let line = format!("{name}={value}");
        if slow { tally.fail(line) } else { tally.warn(line) }
    }
    let seen = tally.seen("", "", "variables pin what NCCL should choose");
    if seen.verdict.is_some() {
        return seen;
    }
    let good = "nothing pins algorithm or protocol";
    unknown(host, good).unwrap_or_else(|| Seen::well(good, "none of them is set"))
}

fn timeouts(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for (name, value) in set(host, &["NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"]) {
        let line = format!("{name}={value}");
        match (name, parse_whole(value)) {
            (_, None) => tally.fail(format!("{line} is no number")),
            ("NCCL_IB_TIMEOUT", Some(i64::MIN..14)) => tally.fail(line),
            ("NCCL_IB_TIMEOUT", Some(14..20)) => tally.warn(line),
            ("NCCL_IB_RETRY_CNT", Some(i64::MIN..7)) => tally.warn(line),
            _ => tally.well(line),
        }
    }
    tally.seen(
        "neither is set",
        "RDMA timeouts outlive a link flap",
        "RDMA timeouts too short for a link flap",
    )
}

fn debug(host: &Host) -> Seen {
    let Some(level) = host.variable("NCCL_DEBUG") else {
        return Seen::absent("NCCL_DEBUG is not set");
    };
    let file = host.variable("NCCL_DEBUG_FILE");
    let evidence = format!("NCCL_DEBUG={level} NCCL_DEBUG_FILE={}", file.unwrap_or_default());
    match level.to_ascii_uppercase().as_str() {
        "TRACE" => Seen::warn("NCCL traces every call", evidence),
        "INFO" | "ABORT" if file.is_none() => {
            Seen::warn("NCCL's messages go to the job's output", evidence)
        }
        _ => Seen::well("debug output is in its place", evidence),
    }
}

fn cross_nic(host: &Host) -> Seen {
    let Some(value) = host.variable("NCCL_CROSS_NIC") else {
        return Seen::absent("NCCL_CROSS_NIC is not set");
    };
    let rails = host.roce_interfaces();
    let subnets = host.subnets();
    let of = |rail: &String| subnets.iter().find(|(_, names)| names.contains(rail));
    let networks: Vec<&String> = rails.iter().filter_map(|rail| Some(of(rail)?.0)).collect();
    let apart: std::collections::BTreeSet<&String> = networks.iter().copied().collect();
    if networks.len() < 2 {
        return Seen::absent("fewer than two rails whose networks are known");
    }
    let evidence =
        format!("NCCL_CROSS_NIC={value}; {} rails in {} networks", networks.len(), apart.len());
    if parse_whole(value) == Some(1) && apart.len() == networks.len() {
        Seen::warn(
            "NCCL_CROSS_NIC=1 sends from rail to rail, and each is a network of its own",
            evidence,
        )
    } else {
        Seen::well("NCCL_CROSS_NIC fits the rails", evidence)
    }
}

/// Whether it should be on nothing here can know: many jobs are not PyTorch's. What is set must fit together.
fn flight_recorder(host: &Host) -> Seen {
    let names =
        ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"];
    let pairs = set(host, &names);
    if pairs.is_empty() {
        return Seen::absent("none of its variables is set");
    }
    let keeps = pairs.iter().any(|(name, value)| {
        name.ends_with("BUFFER_SIZE") && value.parse::<u64>().is_ok_and(|entries| entries > 0)
    });
    let value = host.variable("TORCH_NCCL_DUMP_ON_TIMEOUT").unwrap_or_default();
    let dumps = ["1", "y", "yes", "t", "true"].contains(&value.to_ascii_lowercase().as_str());
    match (keeps, dumps) {
        (true, true) => Seen::well("the flight recorder keeps and dumps", shown(&pairs)),
        (true, false) => {
            Seen::warn("the flight recorder keeps calls, and nothing dumps them", shown(&pairs))
        }
        (false, true) => {
            Seen::warn("the flight recorder is to dump, and keeps nothing", shown(&pairs))
        }
        (false, false) => Seen::warn("the flight recorder is switched off", shown(&pairs)),
    }
}
