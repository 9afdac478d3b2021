//! Containers: limits of control groups, device nodes, what tracing is allowed.

use super::{Check, Seen, Tally, bytes};
use crate::doctor::host::Host;

const CGROUP: &str = "/sys/fs/cgroup";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cg-memory",
        group: "container",
        about: "the control group has memory left",
        reads: "/sys/fs/cgroup/memory.{max,current,stat}, or version 1's",
        cost: "at the limit the kernel kills a rank; the others learn it after their timeout",
        fix: "raise the container's memory limit (resources.limits.memory, docker --memory)",
        root: false,
        look: memory,
    },
    Check {
        id: "cg-cpu",
        group: "container",
        about: "the control group's processors suffice for its GPUs",
        reads: "/sys/fs/cgroup/cpu.{max,stat}",
        cost: "a proxy thread that used up its quota stops for up to 100 ms, and all ranks with it",
        fix: "raise or drop the CPU limit (resources.limits.cpu, docker --cpus); 2 a GPU at the least",
        root: false,
        look: processors,
    },
    Check {
        id: "cg-pids",
        group: "container",
        about: "the control group may start enough threads",
        reads: "/sys/fs/cgroup/pids.{max,current}",
        cost: "thread creation fails in the middle of the start: resource temporarily unavailable",
        fix: "raise podPidsLimit, docker --pids-limit, TasksMax",
        root: false,
        look: threads,
    },
    Check {
        id: "k8s-03",
        group: "container",
        about: "/dev/shm fits into the memory limit",
        reads: "statvfs of /dev/shm, /sys/fs/cgroup/memory.max",
        cost: "shared memory counts as the container's: it is killed before /dev/shm is full",
        fix: "raise the memory limit above /dev/shm plus the job's own",
        root: false,
        look: shared_memory,
    },
    Check {
        id: "mem-09",
        group: "container",
        about: "RDMA device nodes are there and may be opened",
        reads: "/dev/infiniband/uverbs*, /sys/fs/cgroup/devices/devices.list",
        cost: "NCCL says \"No device found\" and falls back to TCP: 25 to 5 GB/s",
        fix: "docker --device=/dev/infiniband; Kubernetes: request rdma/…; udev: MODE=\"0666\"",
        root: false,
        look: device_nodes,
    },
    Check {
        id: "mem-10",
        group: "container",
        about: "RDMA devices are shared between network namespaces, or meant not to be",
        reads: "/sys/module/ib_core/parameters/netns_mode",
        cost: "in exclusive mode a container sees no RDMA device unless it was moved there",
        fix: "rdma system set netns shared, before any container starts",
        root: false,
        look: namespaces,
    },
    Check {
        id: "box-ptrace",
        group: "container",
        about: "ranks may read each other's memory",
        reads: "/proc/sys/kernel/yama/ptrace_scope, /proc/self/status",
        cost: "libraries with single-copy (UCX, Open MPI) copy twice: about half for large messages",
        fix: "sysctl -w kernel.yama.ptrace_scope=0 (or 1), or docker --cap-add SYS_PTRACE",
        root: false,
        look: tracing,
    },
];

/// A number of a control group: version 2's file, else version 1's; nothing for no limit.
fn group_number(host: &Host, new: &str, old: &str) -> Option<(String, u64)> {
    for name in [new, old] {
        let path = format!("{CGROUP}/{name}");
        let Some(text) = host.text(&path) else { continue };
        let number = text.parse::<u64>().ok()?;
        // Version 1 writes a number near 2^63 for no limit.
        return (number < 1 << 60).then_some((path, number));
    }
    None
}

fn memory_limit(host: &Host) -> Option<(String, u64)> {
    if let Some(limit) = host.fact_number("group_memory_max") {
        return Some(("memory.max of /proc/self/cgroup".to_owned(), limit));
    }
    group_number(host, "memory.max", "memory/memory.limit_in_bytes")
}

fn memory(host: &Host) -> Seen {
    let Some((path, limit)) = memory_limit(host) else { return Seen::absent("no memory limit") };
    let own = host.fact_number("group_memory_current");
    let used = own.or_else(|| {
        group_number(host, "memory.current", "memory/memory.usage_in_bytes").map(|(_, used)| used)
    });
    // The kernel gives files that were not read of late up for any other use.
    let at_top = || {
        // Version 1 sums the groups below up under another name.
        let found =
            [("memory.stat", "inactive_file "), ("memory/memory.stat", "total_inactive_file ")];
        found.iter().find_map(|(name, mark)| {
            let stat = host.text(&format!("{CGROUP}/{name}"))?;
            stat.lines().find_map(|line| line.strip_prefix(mark)?.parse().ok())
        })
    };
    let idle = match own {
        Some(_) => host.fact_number("group_memory_inactive_file"),
        None => at_top(),
    };
    let used = used.unwrap_or(0).saturating_sub(idle.unwrap_or(0));
    let evidence = format!("{path} = {}, used {}", bytes(limit), bytes(used));
    if limit > 0 && used > limit / 10 * 9 {
        Seen::warn("less than a tenth of the memory limit is left", evidence)
    } else {
        Seen::well("the control group has memory left", evidence)
    }
}

fn processors(host: &Host) -> Seen {
    let path = format!("{CGROUP}/cpu.max");
    let old = format!("{CGROUP}/cpu/cpu.cfs_quota_us");
    let quota = match host.text(&path) {
        Some(text) => {
            let mut words = text.split_whitespace().map(|word| word.parse::<f64>().ok());
            words.next().flatten().zip(words.next().flatten())
        }
        None => {
            let number = |path: &str| host.text(path)?.parse::<f64>().ok();
            number(&old)
                .filter(|quota| *quota > 0.0)
                .zip(number(&format!("{CGROUP}/cpu/cpu.cfs_period_us")))
        }
    };
    let Some((quota, period)) = quota.filter(|(_, period)| *period > 0.0) else {
        return Seen::absent("no processor limit");
    };
    let cpus = quota / period;
    let stat = host.text(&format!("{CGROUP}/cpu.stat")).unwrap_or_default();
    let throttled = stat
        .lines()
        .find_map(|line| line.strip_prefix("nr_throttled ")?.parse::<u64>().ok())
        .unwrap_or(0);
    let gpus = host.gpus().len();
    let evidence = format!("{path}: {cpus:.1} processors, {gpus} GPUs, stopped {throttled} times");
    #[expect(clippy::cast_precision_loss, reason = "a few GPUs")]
    let few = cpus < 2.0 * gpus as f64;
    if few {
        Seen::warn(format!("{cpus:.1} processors for {gpus} GPUs"), evidence)
    } else if throttled > 0 {
        Seen::warn("the control group was stopped for using up its processors", evidence)
    } else {
        Seen::well("the control group's processors suffice", evidence)
    }
}

fn threads(host: &Host) -> Seen {
    let Some((path, limit)) = group_number(host, "pids.max", "pids/pids.max") else {
        return Seen::absent("no limit of threads");
    };
    let used = group_number(host, "pids.current", "pids/pids.current").map_or(0, |(_, used)| used);
    let evidence = format!("{path} = {limit}, used {used}");
    if limit.saturating_sub(used) < 4096 {
        Seen::warn(format!("only {} more threads may start", limit.saturating_sub(used)), evidence)
    } else {
        Seen::well("the control group may start enough threads", evidence)
    }
}

fn shared_memory(host: &Host) -> Seen {
    let Some((path, limit)) = memory_limit(host) else { return Seen::absent("no memory limit") };
    let Some(size) = host.fact_number("shm_bytes") else {
        return Seen::unknown(
            "could not look at the size of /dev/shm",
            "statvfs of /dev/shm is not known",
        );
    };
    let evidence = format!("/dev/shm = {}, {path} = {}", bytes(size), bytes(limit));
    if size > limit {
        Seen::warn("/dev/shm may grow beyond the memory limit", evidence)
    } else {
        Seen::well("/dev/shm fits into the memory limit", evidence)
    }
}

fn device_nodes(host: &Host) -> Seen {
    if host.hcas().is_empty() {
        return Seen::absent("no RDMA device");
    }
    let mut nodes = host.list("/dev/infiniband");
    nodes.retain(|name| name.starts_with("uverbs"));
    if nodes.is_empty() && host.facts().is_empty() {
        let why = "/dev/infiniband is not in the tree, and nothing says that it was looked for";
        return Seen::unknown("could not look whether RDMA device nodes may be opened", why);
    }
    let mut tally = Tally::default();
    for node in &nodes {
        let line = format!("/dev/infiniband/{node}");
        match host.fact(&format!("usable {node}")).as_deref() {
            Some("no") => tally.fail(format!("{line} may not be opened by this user")),
            _ => tally.well(format!("{line} is there")),
        }
    }
    if let Some(line) = closed_by_group(host) {
        tally.fail(line);
    }
    if nodes.len() < host.hcas().len() {
        let line = format!(
            "/dev/infiniband: {} uverbs nodes for {} devices",
            nodes.len(),
            host.hcas().len()
        );
        // Without any node nothing can be used, wherever this is.
        match host.sees_part().filter(|_| !nodes.is_empty()) {
            Some(what) => tally.unknown(format!("{line}; {what} may be given a part only")),
            None => tally.fail(line),
        }
    }
    tally.seen(
        "no RDMA device",
        "RDMA device nodes may be opened",
        "RDMA device nodes missing or closed",
    )
}

/// What a control group of version 1 says where it does not let this process open RDMA devices. (Version 2 has a
/// program in the kernel for that, which nothing shows.)
fn closed_by_group(host: &Host) -> Option<String> {
    // The number of uverbs devices.
    const MAJOR: &str = "231:";
    let path = format!("{CGROUP}/devices/devices.list");
    let list = host.text(&path)?;
    let allows = |line: &str| {
        let mut words = line.split_whitespace();
        let (kind, number, rights) = (words.next(), words.next(), words.next().unwrap_or_default());
        let ours =
            number.is_some_and(|number| number.starts_with(MAJOR) || number.starts_with("*:"));
        matches!(kind, Some("a" | "c")) && ours && rights.contains('r') && rights.contains('w')
    };
    let closed = !list.is_empty() && !list.lines().any(allows);
    closed.then(|| format!("{path} lets nobody open character devices {MAJOR}* (uverbs)"))
}

fn namespaces(host: &Host) -> Seen {
    let path = "/sys/module/ib_core/parameters/netns_mode";
    let Some(mode) = host.text(path) else { return Seen::absent("ib_core is not loaded") };
    if mode == "N" || mode == "0" {
        Seen::warn("RDMA devices belong to one network namespace each", format!("{path} = {mode}"))
    } else {
        Seen::well("RDMA devices are shared between network namespaces", format!("{path} = {mode}"))
    }
}

fn tracing(host: &Host) -> Seen {
    const CAP_SYS_PTRACE: u32 = 19;
    let path = "/proc/sys/kernel/yama/ptrace_scope";
    let Some(scope) = host.number(path) else { return Seen::absent("a kernel without Yama") };
    let evidence = format!("{path} = {scope}");
    if scope >= 2 && (scope >= 3 || host.has_capability(CAP_SYS_PTRACE) != Some(true)) {
        Seen::warn("ranks may not read each other's memory", evidence)
    } else {
        Seen::well("ranks may read each other's memory when they agree to it", evidence)
    }
}
