//! Comparing machines: for each fact the value most have, and who differs.
//!
//! *Invariant*: only facts that machines of one kind should share are compared. What differs between most
//! of them (serial numbers, addresses, names) has no majority and is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::checks;
use super::examine::Examined;
use super::finding::{Finding, Report, Style, Verdict};
use super::host::{Host, Which, board, shown};

/// What machines should share, by name.
pub(crate) type Traits = BTreeMap<String, String>;

/// Names of one difference that are listed in a title.
const NAMES: usize = 6;

/// One machine, or several, with another value than most.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Difference {
    /// What is compared: `mlx5_3 firmware`.
    pub(crate) fact: String,
    /// Who differs.
    pub(crate) machines: Vec<String>,
    /// What they have.
    pub(crate) value: String,
    /// What the others have.
    pub(crate) majority: String,
    /// How many have that.
    pub(crate) others: usize,
}

/// The comparison.
#[derive(Debug)]
pub(crate) struct Fleet {
    differences: Vec<Difference>,
    findings: Report,
}

/// Collects what is compared.
pub(crate) fn traits(host: &Host) -> Traits {
    let mut found = Traits::new();
    let mut add = |name: String, value: Option<String>| {
        if let Some(value) = value {
            found.insert(name, shown(&value));
        }
    };
    for (name, path) in [
        ("kernel", "/proc/sys/kernel/osrelease"),
        ("product", "/sys/class/dmi/id/product_name"),
        ("BIOS", "/sys/class/dmi/id/bios_version"),
        ("NVIDIA driver", "/sys/module/nvidia/version"),
        ("nvidia_peermem", "/sys/module/nvidia_peermem/version"),
        ("mlx5_core", "/sys/module/mlx5_core/version"),
        ("hyper-threading", "/sys/devices/system/cpu/smt/control"),
        ("processors online", "/sys/devices/system/cpu/online"),
        ("numa_balancing", "/proc/sys/kernel/numa_balancing"),
        ("huge pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
        ("overcommit_memory", "/proc/sys/vm/overcommit_memory"),
        ("swappiness", "/proc/sys/vm/swappiness"),
        ("max_map_count", "/proc/sys/vm/max_map_count"),
        ("rmem_max", "/proc/sys/net/core/rmem_max"),
        ("wmem_max", "/proc/sys/net/core/wmem_max"),
        ("somaxconn", "/proc/sys/net/core/somaxconn"),
        ("tcp_rmem", "/proc/sys/net/ipv4/tcp_rmem"),
        ("tcp_wmem", "/proc/sys/net/ipv4/tcp_wmem"),
        ("tcp_congestion_control", "/proc/sys/net/ipv4/tcp_congestion_control"),
        ("ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope"),
        ("clock source", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ] {
        add(name.to_owned(), host.text(path));
    }
    let arguments = host.text("/proc/cmdline").map(|line| {
        // What names a disk or an image differs from machine to machine.
        let own =
            ["root=", "BOOT_IMAGE=", "initrd=", "resume=", "rd.", "ip=", "hostname=", "nfsroot="];
        let words =
            line.split_whitespace().filter(|word| !own.iter().any(|start| word.starts_with(start)));
        words.collect::<Vec<_>>().join(" ")
    });
    add("kernel arguments".to_owned(), arguments);
    let governors: BTreeSet<String> = host
        .list("/sys/devices/system/cpu")
        .iter()
        .filter(|name| name.starts_with("cpu"))
        .filter_map(|name| {
            let number = name.strip_prefix("cpu")?;
            number.parse::<u32>().ok()?;
            host.text(&format!("/sys/devices/system/cpu/{name}/cpufreq/scaling_governor"))
        })
        .collect();
    add(
        "governor".to_owned(),
        (!governors.is_empty()).then(|| Vec::from_iter(governors).join(", ")),
    );
    for limit in ["Max locked memory", "Max open files", "Max stack size", "Max processes"] {
        add(
            limit.to_owned(),
            host.limit(limit).map(|value| match value {
                u64::MAX => "unlimited".to_owned(),
                // Counts of processes follow the memory, which differs by a few pages.
                _ if limit == "Max processes" => format!("about {} Ki", value >> 14 << 4),
                _ => value.to_string(),
            }),
        );
    }
    let memory =
        host.memory("MemTotal").map(|bytes| format!("about {} GiB", (bytes >> 30).div_ceil(8) * 8));
    add("memory".to_owned(), memory);
    devices(host, &mut add);
    for (name, value) in host.environment() {
        if name.starts_with("NCCL_") && !name.ends_with("_FILE") && !name.contains("HOSTID") {
            add(format!("variable {name}"), Some(value.clone()));
        }
    }
    found
}

/// Devices: what and where they are, firmware, links.
fn devices(host: &Host, add: &mut dyn FnMut(String, Option<String>)) {
    for (kind, list) in [("GPU", host.gpus()), ("NIC", host.rails())] {
        add(format!("{kind}s"), Some(list.len().to_string()));
        for pci in list {
            // From the root port down.
            let above: Vec<String> = pci.above.iter().rev().map(ToString::to_string).collect();
            let place = format!(
                "{:04x}:{:04x}, node {}, below {} {}",
                pci.vendor,
                pci.device,
                pci.numa,
                pci.host_bridge.as_deref().unwrap_or_default(),
                above.join(" ")
            );
            add(format!("{kind} at {}", pci.bus), Some(place));
            let (speed, width) = host.link_of(pci.bus, Which::Current).unzip();
            let width = width.map(|width| width.to_string());
            add(format!("{kind} at {} link width", pci.bus), width);
            if kind == "NIC" {
                add(format!("{kind} at {} link speed", pci.bus), speed);
            }
        }
    }
    for hca in host.hcas() {
        add(format!("{} firmware", hca.name), hca.firmware.clone());
        add(format!("{} board", hca.name), Some(board(hca).to_owned()));
        for port in &hca.ports {
            add(format!("{}:{} state", hca.name, port.number), Some(port.state.clone()));
            add(format!("{}:{} rate", hca.name, port.number), Some(port.rate.clone()));
        }
        for name in host.interfaces_of(hca) {
            if let Ok(qos) = host.qos(name) {
                let text = format!(
                    "trust {:?}, flow control {:?}",
                    qos.trust.unwrap_or_default(),
                    qos.pfc.unwrap_or_default()
                );
                add(format!("{name} quality of service"), Some(text));
            }
        }
    }
    for nic in host.nics() {
        add(format!("{} mtu", nic.name), nic.mtu.map(|mtu| mtu.to_string()));
        add(format!("{} speed", nic.name), nic.mbit_per_s.map(|speed| format!("{speed} Mb/s")));
    }
    if let Ok(smi) = host.smi() {
        for gpu in &smi.gpus {
            add(
                format!("GPU at {} model", gpu.address),
                gpu.get("Product Name").map(str::to_owned),
            );
            add(
                format!("GPU at {} VBIOS", gpu.address),
                gpu.get("VBIOS Version").map(str::to_owned),
            );
        }
    }
}

/// Compares all machines of one product with each other. Gives machines of one name different ones.
pub(crate) fn compare(machines: &mut [Examined]) -> Fleet {
    let mut seen = BTreeMap::<String, usize>::new();
    for machine in machines.iter_mut() {
        let count = seen.entry(machine.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            machine.name = format!("{}#{count}", machine.name);
        }
    }
    let mut kinds = BTreeMap::<&str, Vec<&Examined>>::new();
    for machine in machines.iter() {
        let product = machine.traits.get("product").map_or("", String::as_str);
        kinds.entry(product).or_default().push(machine);
    }
    let mut differences = Vec::new();
    for group in kinds.values().filter(|group| group.len() > 1) {
        differences.extend(differences_of(group));
    }
    let mut findings = Report::new("fleet");
    for difference in &differences {
        findings.findings.push(difference.finding());
    }
    Fleet { differences, findings }
}

fn differences_of(machines: &[&Examined]) -> Vec<Difference> {
    let names: BTreeSet<&String> =
        machines.iter().flat_map(|machine| machine.traits.keys()).collect();
    let mut found = Vec::new();
    for fact in names {
        let mut values = BTreeMap::<&str, Vec<&str>>::new();
        for machine in machines {
            let value = machine.traits.get(fact).map_or("absent", String::as_str);
            values.entry(value).or_default().push(&machine.name);
        }
        let Some((majority, others)) = values.iter().max_by_key(|(_, names)| names.len()) else {
            continue;
        };
        // Without a clear majority nobody is the odd one out; many values are no setting.
        let count = others.len();
        if values.len() < 2
            || count * 2 <= machines.len() && machines.len() > 2
            || values.len() > 2 + machines.len() / 4
        {
            continue;
        }
        for (value, names) in values.iter().filter(|(value, _)| *value != majority) {
            found.push(Difference {
                fact: fact.clone(),
                machines: names.iter().map(|name| (*name).to_owned()).collect(),
                value: (*value).to_owned(),
                majority: (*majority).to_owned(),
                others: count,
            });
        }
    }
    found
}

impl Difference {
    /// `node17: mlx5_3 firmware 28.35, 63 others have 28.39`.
    pub(crate) fn title(&self) -> String {
        let mut names = self.machines.iter().take(NAMES).cloned().collect::<Vec<_>>().join(", ");
        if self.machines.len() > NAMES {
            let _ = write!(names, " and {} more", self.machines.len() - NAMES);
        }
        let have =
            if self.others == 1 { "1 other has" } else { &format!("{} others have", self.others) };
        format!("{names}: {} {}, {have} {}", self.fact, self.value, self.majority)
    }

    /// As a finding.
    pub(crate) fn finding(&self) -> Finding {
        Finding::new("fleet", "fleet-differs", Verdict::Warn, self.title())
            .seen(format!("{} = {} on {}", self.fact, self.value, self.machines.join(", ")))
            .costs("the slowest machine sets the speed of all; settings that differ cause hangs that come and go")
            .fixed_by(format!("make it {} as on the others, or take the machine out of the job", self.majority))
    }
}

#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    subject: &'static str,
    verdict: Verdict,
    differences: &'a [Difference],
    machines: Vec<serde_json::Value>,
}

impl Fleet {
    /// What differs.
    #[cfg(test)]
    pub(crate) fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// For programs.
    pub(crate) fn json(&self, machines: &[Examined]) -> anyhow::Result<String> {
        let mut list = Vec::new();
        for machine in machines {
            let mut report: serde_json::Value = serde_json::from_str(&machine.report.json()?)?;
            report["machine"] = serde_json::Value::from(machine.name.clone());
            list.push(report);
        }
        let verdict = self.verdict(machines);
        let json = Json {
            version: 1,
            subject: "fleet",
            verdict,
            differences: &self.differences,
            machines: list,
        };
        Ok(serde_json::to_string_pretty(&json)? + "\n")
    }

    /// For people: what is wrong, each finding once with the machines it is on; then what differs.
    pub(crate) fn text(&self, machines: &[Examined], style: Style) -> String {
        let mut page = self.merged(machines).text(style);
        let differences = match self.differences.len() {
            1 => "1 difference".to_owned(),
            count => format!("{count} differences"),
        };
        let _ = writeln!(page, "{} machines compared, {differences}", machines.len());
        page
    }

    /// One report: what many machines have in common stands once.
    pub(crate) fn merged(&self, machines: &[Examined]) -> Report {
        let mut merged = Report::new("fleet");
        let each = machines.iter().map(|one| (one.name.as_str(), one.report.findings.as_slice()));
        merged.findings = in_common(&each.collect::<Vec<_>>());
        merged.findings.extend(self.findings.findings.iter().cloned());
        merged
    }

    fn verdict(&self, machines: &[Examined]) -> Verdict {
        let worst = machines.iter().map(|machine| machine.report.verdict()).max();
        worst.unwrap_or(Verdict::Pass).max(self.findings.verdict())
    }

    /// By the worst of all.
    pub(crate) fn exit_code(&self, machines: &[Examined]) -> u8 {
        match self.verdict(machines) {
            Verdict::Pass | Verdict::Unknown => 0,
            Verdict::Warn => 1,
            Verdict::Fail => 2,
        }
    }
}

/// What is wrong with machines, each with its name; what many have in common stands once.
pub(crate) fn in_common(machines: &[(&str, &[Finding])]) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    let mut places = BTreeMap::<(String, Verdict), usize>::new();
    // Where each is found: a machine may have several of one check.
    let mut found_on: Vec<BTreeSet<usize>> = Vec::new();
    for (machine, (name, findings)) in machines.iter().enumerate() {
        for finding in findings.iter().filter(|finding| finding.verdict > Verdict::Unknown) {
            let key = (finding.id.clone(), finding.verdict);
            let place = *places.entry(key).or_insert_with(|| {
                let mut first = finding.clone();
                first.evidence.clear();
                merged.push(first);
                found_on.push(BTreeSet::new());
                merged.len() - 1
            });
            found_on[place].insert(machine);
            let first = finding.evidence.first().map_or("", String::as_str);
            let common = &mut merged[place];
            common.evidence.push(format!("{name}: {first}"));
            generalise(common, finding);
        }
    }
    for (finding, found_on) in merged.iter_mut().zip(found_on) {
        let (some, all) = (found_on.len(), machines.len());
        finding.title = format!("{} (on {some} of {all} machines)", finding.title);
        let count = finding.evidence.len();
        if count > 8 {
            finding.evidence.truncate(8);
            finding.evidence.push(format!("and {} more", count - 8));
        }
    }
    merged
}

/// Makes what is told of several machines true of one more: words that hold for some only, which may name their
/// devices, give way to the check's own.
fn generalise(common: &mut Finding, other: &Finding) {
    let check = checks::all().into_iter().find(|check| check.id == common.id);
    if common.title != other.title {
        let (ours, theirs) = (without_count(&common.title), without_count(&other.title));
        common.title = match check {
            _ if ours == theirs => ours.to_owned(),
            Some(check) => format!("not so: {}", check.about),
            None => common.id.clone(),
        };
    }
    if common.fix != other.fix {
        common.fix = check.map(|check| check.fix.to_owned());
    }
}

/// A title without the `3 of 8: ` before it.
fn without_count(title: &str) -> &str {
    let is_count = |text: &str| {
        text.split_once(" of ").is_some_and(|(some, all)| {
            [some, all].iter().all(|number| number.parse::<usize>().is_ok())
        })
    };
    title.split_once(": ").filter(|(count, _)| is_count(count)).map_or(title, |(_, rest)| rest)
}
