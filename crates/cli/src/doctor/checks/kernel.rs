//! The kernel: memory settings, and what its log says about the machine's health.

use super::{Check, Seen, bytes};
use crate::doctor::host::Host;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "sys-thp",
        group: "kernel",
        about: "transparent huge pages can be used",
        reads: "/sys/kernel/mm/transparent_hugepage/enabled",
        cost: "512 times as many pages to register and to translate: up to 20 % of host-memory bandwidth",
        fix: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        root: false,
        look: huge_pages,
    },
    Check {
        id: "sys-thp-defrag",
        group: "kernel",
        about: "allocations do not stop to defragment memory",
        reads: "/sys/kernel/mm/transparent_hugepage/defrag",
        cost: "page faults that take 1 to 100 ms while memory is compacted",
        fix: "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
        root: false,
        look: defragmenting,
    },
    Check {
        id: "sys-hugepages",
        group: "kernel",
        about: "no memory lies idle in reserved huge pages",
        reads: "/proc/meminfo",
        cost: "the reserved memory is lost to everything else",
        fix: "sysctl -w vm.nr_hugepages=0, or let the job use them",
        root: false,
        look: reserved_pages,
    },
    Check {
        id: "sys-swap",
        group: "kernel",
        about: "nothing is swapped out",
        reads: "/proc/meminfo",
        cost: "a page that comes back from disk takes 0.1 to 10 ms; every rank waits for it",
        fix: "swapoff -a, and find what filled the memory",
        root: false,
        look: swap,
    },
    Check {
        id: "sys-overcommit",
        group: "kernel",
        about: "large reservations of addresses are allowed",
        reads: "/proc/sys/vm/overcommit_memory",
        cost: "CUDA reserves more addresses than there is memory; contexts fail with out of memory",
        fix: "sysctl -w vm.overcommit_memory=0",
        root: false,
        look: overcommit,
    },
    Check {
        id: "sys-zone-reclaim",
        group: "kernel",
        about: "a full NUMA node takes memory from the other",
        reads: "/proc/sys/vm/zone_reclaim_mode",
        cost: "allocations stop for 1 to 100 ms to empty the page cache of their own node",
        fix: "sysctl -w vm.zone_reclaim_mode=0",
        root: false,
        look: zone_reclaim,
    },
    Check {
        id: "sys-reboot",
        group: "kernel",
        about: "no update waits for a reboot",
        reads: "/var/run/reboot-required",
        cost: "kernel, driver and libraries of different versions: modules that no longer load",
        fix: "drain the machine and reboot it",
        root: false,
        look: reboot,
    },
    Check {
        id: "sys-oom",
        group: "kernel",
        about: "nothing was killed for lack of memory since boot",
        reads: "dmesg",
        cost: "the killed rank ends the job; the others learn it after their timeout (10 min in PyTorch)",
        fix: "give the job more memory, or fewer data-loader workers",
        root: true,
        look: out_of_memory,
    },
    Check {
        id: "sys-mce",
        group: "kernel",
        about: "no hardware error is in the kernel's log",
        reads: "dmesg",
        cost: "memory that corrects errors slows down; what it cannot correct kills the job",
        fix: "read the address with mcelog or rasdaemon; exchange the DIMM or processor",
        root: true,
        look: hardware_errors,
    },
    Check {
        id: "sys-stuck",
        group: "kernel",
        about: "no task was stuck in the kernel since boot",
        reads: "dmesg",
        cost: "a rank in the kernel for 120 s stops all others for as long",
        fix: "look at the stack in dmesg: a driver, a file system or a PCI device that no longer answers",
        root: true,
        look: stuck,
    },
];

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split(']').next()
}

fn choice_other_than(host: &Host, path: &str, bad: &str, good: &str, title: &str) -> Seen {
    match host.read(path) {
        Ok(Some(text)) => match chosen(&text) {
            Some(word) if word == bad => Seen::warn(title, format!("{path} = {word}")),
            Some(word) => Seen::well(good, format!("{path} = {word}")),
            None => {
                Seen::unknown(format!("could not look whether {good}"), format!("{path} = {text}"))
            }
        },
        Ok(None) => Seen::absent("the kernel has no transparent huge pages"),
        Err(error) => Seen::unknown(format!("could not look whether {good}"), error.to_string()),
    }
}

fn huge_pages(host: &Host) -> Seen {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    choice_other_than(host, path, "never", "huge pages can be used", "huge pages are switched off")
}

fn defragmenting(host: &Host) -> Seen {
    let path = "/sys/kernel/mm/transparent_hugepage/defrag";
    let bad = "every allocation may stop to defragment memory";
    choice_other_than(host, path, "always", "allocations do not stop to defragment memory", bad)
}

fn reserved_pages(host: &Host) -> Seen {
    let (Some(total), Some(free), Some(size)) =
        (host.memory("MemTotal"), host.memory("HugePages_Free"), host.memory("Hugepagesize"))
    else {
        return Seen::unknown(
            "could not look at reserved huge pages",
            "/proc/meminfo does not say",
        );
    };
    let idle = free.saturating_mul(size);
    let evidence = format!(
        "/proc/meminfo: HugePages_Free = {free} of {} each, MemTotal = {}",
        bytes(size),
        bytes(total)
    );
    if idle > total / 10 {
        Seen::warn(format!("{} lie idle in reserved huge pages", bytes(idle)), evidence)
    } else {
        Seen::well("no memory lies idle in reserved huge pages", evidence)
    }
}

fn swap(host: &Host) -> Seen {
    let (Some(total), Some(free)) = (host.memory("SwapTotal"), host.memory("SwapFree")) else {
        return Seen::unknown("could not look at swap", "/proc/meminfo does not say");
    };
    let used = total.saturating_sub(free);
    let evidence =
        format!("/proc/meminfo: SwapTotal = {}, SwapFree = {}", bytes(total), bytes(free));
    if used > 64 << 20 {
        Seen::warn(format!("{} are swapped out", bytes(used)), evidence)
    } else {
        Seen::well("nothing is swapped out", evidence)
    }
}

/// A setting that must not have some values.
fn setting(host: &Host, path: &str, is_bad: fn(i64) -> bool, good: &str, bad: &str) -> Seen {
    match host.number(path) {
        Some(value) if is_bad(value) => Seen::warn(bad, format!("{path} = {value}")),
        Some(value) => Seen::well(good, format!("{path} = {value}")),
        None => Seen::absent("the kernel has no such setting"),
    }
}

fn overcommit(host: &Host) -> Seen {
    let path = "/proc/sys/vm/overcommit_memory";
    let good = "large reservations of addresses are allowed";
    setting(host, path, |value| value == 2, good, "large reservations of addresses are refused")
}

fn zone_reclaim(host: &Host) -> Seen {
    let path = "/proc/sys/vm/zone_reclaim_mode";
    let good = "a full node takes memory from the other";
    setting(host, path, |value| value != 0, good, "a full node empties its page cache first")
}

fn reboot(host: &Host) -> Seen {
    let path = "/var/run/reboot-required";
    if host.exists(path) {
        Seen::warn("an update waits for a reboot", format!("{path} is there"))
    } else if host.text("/proc/uptime").is_none() {
        Seen::unknown(
            "could not look whether an update waits for a reboot",
            "/proc/uptime is not in the tree",
        )
    } else {
        Seen::well("no update waits for a reboot", format!("{path} is not there"))
    }
}

/// Lines of the kernel's log that hold one of several sets of words.
pub(super) fn log_lines(
    host: &Host,
    sets: &[&[&str]],
    good: &str,
    bad: &str,
    answer: fn(String, String) -> Seen,
) -> Seen {
    let log = match host.kernel_log() {
        Ok(log) => log,
        Err(why) => return Seen::unknown(format!("could not look whether {good}"), why),
    };
    let lines: Vec<&str> = sets.iter().flat_map(|words| log.with(words)).collect();
    match lines[..] {
        [] => Seen::well(good, "dmesg: no such line"),
        [first, ..] => {
            let mut seen =
                answer(format!("{bad} ({} lines)", lines.len()), format!("dmesg: {first}"));
            if let Some(last) = lines.last().filter(|_| lines.len() > 1) {
                seen = seen.and(format!("dmesg: {last}"));
            }
            seen
        }
    }
}

fn out_of_memory(host: &Host) -> Seen {
    let sets: &[&[&str]] = &[&["Out of memory: Killed process"], &["Memory cgroup out of memory"]];
    let good = "nothing was killed for lack of memory";
    log_lines(host, sets, good, "processes were killed for lack of memory", Seen::warn)
}

fn hardware_errors(host: &Host) -> Seen {
    let sets: &[&[&str]] = &[&["[Hardware Error]"], &["EDAC", " CE "], &["EDAC", " UE "]];
    let good = "no hardware error is in the kernel's log";
    log_lines(host, sets, good, "the kernel logged hardware errors", Seen::warn)
}

fn stuck(host: &Host) -> Seen {
    let sets: &[&[&str]] = &[&["blocked for more than"], &["soft lockup"], &["hard LOCKUP"]];
    let good = "no task was stuck in the kernel";
    log_lines(host, sets, good, "tasks were stuck in the kernel", Seen::warn)
}
