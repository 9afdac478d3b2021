//! Processors: clocks, sleep states, which of them may be used.

use super::{Check, Seen, Tally};
use crate::doctor::host::{Host, number_list};

const CPU: &str = "/sys/devices/system/cpu";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "num-08",
        group: "cpu",
        about: "processors run with the performance governor",
        reads: "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        cost: "tens of us before a proxy thread is at full clock; small messages pay it every time",
        fix: "cpupower frequency-set -g performance",
        root: false,
        look: governor,
    },
    Check {
        id: "cpu-turbo",
        group: "cpu",
        about: "turbo clocks are not switched off",
        reads: "/sys/devices/system/cpu/intel_pstate/no_turbo, …/cpufreq/boost",
        cost: "20 to 40 % of the clock of the few busy threads that feed GPUs and NICs",
        fix: "echo 0 > /sys/devices/system/cpu/intel_pstate/no_turbo (AMD: echo 1 > …/cpufreq/boost)",
        root: false,
        look: turbo,
    },
    Check {
        id: "cpu-idle",
        group: "cpu",
        about: "deep sleep states are off",
        reads: "/sys/devices/system/cpu/cpu0/cpuidle/state*/{name,latency,disable}",
        cost: "waking takes up to the state's latency: 100 to 500 us on a 3 us message",
        fix: "cpupower idle-set -D 50, or intel_idle.max_cstate=1 on the kernel command line",
        root: false,
        look: idle_states,
    },
    Check {
        id: "cpu-offline",
        group: "cpu",
        about: "no processor is offline",
        reads: "/sys/devices/system/cpu/{present,offline}",
        cost: "ranks bound to an offline core do not start; the others share what is left",
        fix: "echo 1 > /sys/devices/system/cpu/cpuN/online",
        root: false,
        look: offline,
    },
    Check {
        id: "cpu-isolated",
        group: "cpu",
        about: "this process does not run on isolated processors",
        reads: "/sys/devices/system/cpu/isolated, /proc/self/status",
        cost: "the scheduler does not spread threads over isolated cores: all threads on one core, 1/N speed",
        fix: "start ranks on other cores (taskset -c, --cpu-bind), or take isolcpus= off the command line",
        root: false,
        look: isolated,
    },
    Check {
        id: "cpu-clock",
        group: "cpu",
        about: "the time is read from the processor, not from a device",
        reads: "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        cost: "reading the time takes about 1 us instead of 25 ns",
        fix: "tsc=reliable on the kernel command line after checking why the kernel left tsc (dmesg | grep -i tsc)",
        root: false,
        look: clock_source,
    },
];

fn governor(host: &Host) -> Seen {
    let mut governors = std::collections::BTreeMap::<String, usize>::new();
    for name in host.list(CPU) {
        if name.strip_prefix("cpu").is_some_and(|rest| rest.parse::<u32>().is_ok())
            && let Some(governor) = host.text(&format!("{CPU}/{name}/cpufreq/scaling_governor"))
        {
            *governors.entry(governor).or_default() += 1;
        }
    }
    let list: Vec<String> =
        governors.iter().map(|(name, count)| format!("{name} ({count})")).collect();
    let evidence = format!("{CPU}/cpu*/cpufreq/scaling_governor = {}", list.join(", "));
    match (governors.len(), governors.contains_key("performance")) {
        (0, _) => Seen::absent("the kernel does not control the processors' clocks"),
        (1, true) => Seen::well("the governor is performance", evidence),
        (_, true) => Seen::warn("some processors have another governor than performance", evidence),
        (_, false) => Seen::fail("no processor has the governor performance", evidence),
    }
}

fn turbo(host: &Host) -> Seen {
    let (intel, amd) = (format!("{CPU}/intel_pstate/no_turbo"), format!("{CPU}/cpufreq/boost"));
    let (path, off) = match (host.number(&intel), host.number(&amd)) {
        (Some(value), _) => (format!("{intel} = {value}"), value == 1),
        (None, Some(value)) => (format!("{amd} = {value}"), value == 0),
        (None, None) => return Seen::absent("the kernel does not control turbo clocks"),
    };
    if off {
        Seen::warn("turbo clocks are switched off", path)
    } else {
        Seen::well("turbo clocks are on", path)
    }
}

fn idle_states(host: &Host) -> Seen {
    let folder = format!("{CPU}/cpu0/cpuidle");
    let mut tally = Tally::default();
    for state in host.list(&folder).iter().filter(|name| name.starts_with("state")).take(64) {
        let name = host.text(&format!("{folder}/{state}/name")).unwrap_or_default();
        let Some(latency) = host.number(&format!("{folder}/{state}/latency")) else { continue };
        let off = host.number(&format!("{folder}/{state}/disable")) == Some(1);
        let line = format!(
            "{folder}/{state}: {name}, wakes in {latency} us{}",
            if off { ", off" } else { "" }
        );
        if latency > 50 && !off { tally.warn(line) } else { tally.well(line) }
    }
    tally.seen(
        "the kernel has no sleep states here",
        "deep sleep states are off",
        "sleep states are deep",
    )
}

fn offline(host: &Host) -> Seen {
    let (Some(present), Some(offline)) =
        (host.text(&format!("{CPU}/present")), host.text(&format!("{CPU}/offline")))
    else {
        return Seen::unknown(
            "could not look for offline processors",
            format!("{CPU}/offline is not there"),
        );
    };
    let gone = number_list(&offline).unwrap_or_default();
    let there = number_list(&present).unwrap_or_default();
    // Firmware often announces more processors than there are; those are not present.
    let missing = gone.intersection(&there).count();
    // With hyper-threading switched off the second threads are offline on purpose.
    let threads_off =
        host.text(&format!("{CPU}/smt/control")).is_some_and(|word| word.contains("off"));
    let evidence = format!("{CPU}/offline = {offline:?}");
    if missing == 0 || threads_off && missing * 2 == there.len() {
        Seen::well("no processor is offline", evidence)
    } else {
        Seen::warn(format!("{missing} of {} processors are offline", there.len()), evidence)
    }
}

fn isolated(host: &Host) -> Seen {
    let path = format!("{CPU}/isolated");
    let Some(isolated) = host.text(&path) else {
        return Seen::unknown(
            "could not look for isolated processors",
            format!("{path} is not there"),
        );
    };
    let status = host.text("/proc/self/status").unwrap_or_default();
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap_or("")
        .trim();
    let evidence = format!("{path} = {isolated:?}, Cpus_allowed_list = {allowed:?}");
    let (Some(alone), Some(ours)) = (number_list(&isolated), number_list(allowed)) else {
        return Seen::unknown("could not look for isolated processors", evidence);
    };
    if ours.is_empty() || !ours.iter().all(|cpu| alone.contains(cpu)) {
        return Seen::well("this process does not run on isolated processors", evidence);
    }
    Seen::warn("this process may run on isolated processors only", evidence)
}

fn clock_source(host: &Host) -> Seen {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let Some(name) = host.text(path) else {
        return Seen::unknown(
            "could not look where the time is read",
            format!("{path} is not there"),
        );
    };
    let evidence = format!("{path} = {name}");
    if ["hpet", "acpi_pm", "jiffies", "refined-jiffies"].contains(&name.as_str()) {
        Seen::warn("the time is read from a slow device", evidence)
    } else {
        Seen::well("the time is read from the processor", evidence)
    }
}
