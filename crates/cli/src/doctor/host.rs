//! One machine, live or copied, as the checks see it: files, outputs of programs, devices.
//!
//! *Invariant*: everything is read through a [`Root`] or from a program with a time limit, once, and nothing
//! is changed. What may not be read is remembered, so that the doctor can say what more root would see.

mod counters;
mod kernel_log;
mod libraries;
mod lspci;
mod mlx;
mod net;
mod pci;
mod programs;
#[cfg(test)]
mod properties;
mod qos;
mod rdma;
mod smi;
mod totals;

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ringway::config::Environment;
use ringway::topo::{DocumentOptions, Machine, NumaNode, PciDevice, RdmaDevice, Root, RootError};
use ringway_plan::topology::Topology;
use ringway_plan::topology::bus::BusId;

pub(crate) use self::counters::Counters;
pub(crate) use self::kernel_log::KernelLog;
pub(crate) use self::mlx::{BitErrors, adaptive_routing};
pub(crate) use self::net::maximums;
pub(crate) use self::pci::{Which, is_efa, is_virtual_function, link_gigabytes};
pub(crate) use self::qos::Qos;
pub(crate) use self::rdma::{Port, board};
pub(crate) use self::smi::{Gpu, Smi, active_links, link_errors, matrix};
pub(crate) use self::totals::{Count, Earlier, Totals};
use super::sources;
use crate::env::catalogue::parse_whole;

/// Bytes of a text file that are read; /proc/cpuinfo of 512 processors is more than 1 MiB. As many as discovery
/// reads.
pub(crate) const FILE_BYTES: u64 = 16 << 20;

/// Bytes of a configuration space.
const CONFIG_BYTES: u64 = 4096;

/// Characters of a value in evidence.
const SHOWN: usize = 160;

/// The machine.
#[derive(Debug)]
pub(crate) struct Host {
    root: Root,
    files: RefCell<BTreeMap<String, Result<Option<String>, RootError>>>,
    folders: RefCell<BTreeMap<String, Vec<String>>>,
    kept: RefCell<BTreeMap<String, Result<String, String>>>,
    configs: RefCell<BTreeMap<BusId, Result<pci::Config, String>>>,
    denied: RefCell<BTreeSet<String>>,
    outputs: OnceCell<BTreeMap<String, Result<String, String>>>,
    manifest: OnceCell<BTreeMap<String, String>>,
    facts: OnceCell<BTreeMap<String, String>>,
    environment: OnceCell<BTreeMap<String, String>>,
    machine: OnceCell<Machine>,
    pci: OnceCell<Vec<PciDevice>>,
    lspci: OnceCell<BTreeMap<BusId, lspci::Device>>,
    hcas: OnceCell<Vec<RdmaDevice>>,
    smi: OnceCell<Result<Smi, String>>,
    log: OnceCell<Result<KernelLog, String>>,
    counted: RefCell<Totals>,
    earlier: Option<Earlier>,
}

impl Host {
    /// A machine seen through a root.
    pub(crate) fn new(root: Root) -> Self {
        Self {
            root,
            files: RefCell::default(),
            folders: RefCell::default(),
            kept: RefCell::default(),
            configs: RefCell::default(),
            denied: RefCell::default(),
            outputs: OnceCell::new(),
            manifest: OnceCell::new(),
            facts: OnceCell::new(),
            environment: OnceCell::new(),
            machine: OnceCell::new(),
            pci: OnceCell::new(),
            lspci: OnceCell::new(),
            hcas: OnceCell::new(),
            smi: OnceCell::new(),
            log: OnceCell::new(),
            counted: RefCell::default(),
            earlier: None,
        }
    }

    /// The tree it is read from.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// What discovery finds in the files. No library is asked and no program run: a driver that hangs must not
    /// hold up the doctor.
    pub(crate) fn machine(&self) -> &Machine {
        self.machine.get_or_init(|| Machine::from_files(&self.root))
    }

    /// The machine as a graph, as far as files tell; nothing where there is more in it than in any machine.
    pub(crate) fn topology(&self) -> Option<Topology> {
        let base = ringway::topo::load(&self.root, None).ok().flatten();
        self.machine().topology(&DocumentOptions { base, ..DocumentOptions::default() }).ok()
    }

    /// The picture of the machine, with what programs told of its GPUs; nothing where there is nothing to draw.
    pub(crate) fn picture(&self) -> Option<String> {
        let mut machine = self.machine().clone();
        machine.add_outputs(&|name| self.output(name));
        let environment = Environment::new(self.environment());
        crate::topo::drawn(&self.root, &machine, &environment)
    }

    /// The machine's name, or that of its folder.
    pub(crate) fn name(&self) -> String {
        let folder =
            || self.root.folder().file_name().map(|name| name.to_string_lossy().into_owned());
        self.text("/proc/sys/kernel/hostname")
            .or_else(|| self.text("/etc/hostname"))
            .map(|name| shown(&name))
            .filter(|name| !name.is_empty())
            .or_else(folder)
            .unwrap_or_else(|| "this machine".to_owned())
    }

    /// The text of a file.
    pub(crate) fn read(&self, path: &str) -> Result<Option<String>, RootError> {
        if let Some(known) = self.files.borrow().get(path) {
            return known.clone();
        }
        debug_assert!(sources::covers(path), "{path} is not in sources.rs");
        let found = self.root.read_at_most(path, FILE_BYTES);
        self.note(&found);
        self.files.borrow_mut().insert(path.to_owned(), found.clone());
        found
    }

    /// The text of a file, where there is one that may be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok().flatten().map(|text| text.trim().to_owned())
    }

    /// The number in a file.
    pub(crate) fn number(&self, path: &str) -> Option<i64> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// Names in a folder.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        if let Some(known) = self.folders.borrow().get(path) {
            return known.clone();
        }
        debug_assert!(sources::covers_folder(path), "{path} is not in sources.rs");
        let found = self.root.list(path);
        self.note(&found);
        let names = found.unwrap_or_default();
        self.folders.borrow_mut().insert(path.to_owned(), names.clone());
        names
    }

    /// Whether something is there.
    pub(crate) fn exists(&self, path: &str) -> bool {
        debug_assert!(sources::covers(path), "{path} is not in sources.rs");
        self.root.exists(path)
    }

    /// The last name of where a link leads: a driver, a device's address.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        debug_assert!(sources::covers(path), "{path} is not in sources.rs");
        let target = self.root.link(path).ok().flatten().filter(|target| target != path)?;
        Path::new(&target).file_name().map(|name| name.to_string_lossy().into_owned())
    }

    fn config_bytes(&self, path: &str) -> Result<Option<Vec<u8>>, RootError> {
        debug_assert!(sources::covers(path), "{path} is not in sources.rs");
        let found = self.root.bytes_at_most(path, CONFIG_BYTES);
        self.note(&found);
        found
    }

    fn note<T>(&self, found: &Result<T, RootError>) {
        if let Err(RootError::Denied { path }) = found {
            self.denied.borrow_mut().insert(path.clone());
        }
    }

    fn note_denied(&self, what: &str) {
        self.denied.borrow_mut().insert(what.to_owned());
    }

    /// What this user may not read.
    pub(crate) fn denied(&self) -> Vec<String> {
        self.denied.borrow().iter().cloned().collect()
    }

    /// What a program printed, or why that is not known. The programs of a live machine are all run at
    /// the first question, side by side.
    pub(crate) fn output(&self, name: &str) -> Result<String, String> {
        debug_assert!(
            sources::PROGRAMS.iter().any(|program| name.starts_with(program.name)),
            "{name} is not in sources.rs"
        );
        if !self.root.is_live() {
            if let Some(known) = self.kept.borrow().get(name) {
                return known.clone();
            }
            let found = self.kept_output(name);
            self.kept.borrow_mut().insert(name.to_owned(), found.clone());
            return found;
        }
        match self.outputs().get(name) {
            Some(found) => found.clone(),
            None => Err(format!("{name} was not run")),
        }
    }

    /// What a program printed when the tree was copied.
    fn kept_output(&self, name: &str) -> Result<String, String> {
        match self.root.command_output(name) {
            Ok(Some(text)) => Ok(text),
            Ok(None) => Err(match self.manifest().get(name) {
                Some(why) => format!("{name} gave nothing when the snapshot was made: {why}"),
                None => format!("commands/{name}.txt is not in the tree"),
            }),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Output and failure of every program that was run on this live machine.
    pub(crate) fn outputs(&self) -> &BTreeMap<String, Result<String, String>> {
        self.outputs.get_or_init(|| {
            let interfaces: Vec<&str> = self.nics().iter().map(|nic| nic.name.as_str()).collect();
            let rdma = self.machine().rdma.iter().map(|device| device.name.as_str());
            let adapters: Vec<&str> = rdma.filter(|name| name.starts_with("mlx5_")).collect();
            let outputs = programs::run_all(&interfaces, &adapters);
            for (name, output) in &outputs {
                if output.as_ref().is_err_and(|why| programs::is_denial(why)) {
                    self.note_denied(&format!("the output of {name}"));
                }
            }
            outputs
        })
    }

    /// When a snapshot was made, in seconds since 1970.
    pub(crate) fn taken(&self) -> Option<u64> {
        self.described()["time_unix_s"].as_u64().filter(|time| *time > 0)
    }

    /// What a snapshot says of itself.
    fn described(&self) -> serde_json::Value {
        let text = self.root.read("/manifest.json").ok().flatten().unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Why programs gave nothing, from the snapshot's list.
    fn manifest(&self) -> &BTreeMap<String, String> {
        self.manifest.get_or_init(|| {
            let json = self.described();
            let missing = json["missing"].as_array().cloned().unwrap_or_default();
            let entry = |one: &serde_json::Value| {
                let what = one["what"].as_str()?.strip_prefix("commands/")?.strip_suffix(".txt")?;
                Some((what.to_owned(), shown(one["why"].as_str()?)))
            };
            missing.iter().filter_map(entry).collect()
        })
    }

    /// What is in no file: sizes of file systems, who asks. `commands/ringway.txt` in a copied tree.
    pub(crate) fn fact(&self, name: &str) -> Option<String> {
        self.facts().get(name).cloned()
    }

    /// All of them.
    pub(crate) fn facts(&self) -> &BTreeMap<String, String> {
        self.facts.get_or_init(|| {
            if self.root.is_live() {
                return programs::live_facts();
            }
            let text = self.root.command_output("ringway").ok().flatten().unwrap_or_default();
            pairs(&text, " = ")
        })
    }

    /// A number that is in no file.
    pub(crate) fn fact_number(&self, name: &str) -> Option<u64> {
        self.fact(name)?.parse().ok()
    }

    /// The variables that concern collectives; below them those of the user's file, below these those of
    /// /etc/nccl.conf. A snapshot holds all of them as variables.
    pub(crate) fn environment(&self) -> &BTreeMap<String, String> {
        self.environment.get_or_init(|| {
            let mut all = configured(&self.text("/etc/nccl.conf").unwrap_or_default());
            if self.root.is_live() {
                let file = user_file(|name| std::env::var(name).ok());
                let text =
                    file.and_then(|path| self.root.read_at_most(path, 1 << 20).ok().flatten());
                all.extend(configured(&text.unwrap_or_default()));
                let wanted = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
                    let name = name.into_string().ok()?;
                    let value = value.to_string_lossy().into_owned();
                    sources::is_wanted_variable(&name).then_some((name, value))
                };
                all.extend(std::env::vars_os().filter_map(wanted));
            } else {
                let text = self.root.command_output("environment").ok().flatten();
                all.extend(pairs(&text.unwrap_or_default(), "="));
            }
            all
        })
    }

    /// Whether variables are known: a copied tree may hold none.
    pub(crate) fn knows_variables(&self) -> bool {
        self.root.is_live()
            || self.root.command_output("environment").is_ok_and(|text| text.is_some())
    }

    /// Whether it is known which modules are loaded: a copied tree may not hold the list.
    pub(crate) fn knows_modules(&self) -> bool {
        !self.list("/sys/module").is_empty()
    }

    /// A variable's value.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment().get(name).map(String::as_str)
    }

    /// A variable's number, as NCCL reads it.
    pub(crate) fn whole(&self, name: &str) -> Option<i64> {
        parse_whole(self.variable(name)?)
    }

    /// A word of the kernel's command line: the value of `name=value`, empty for a plain `name`.
    pub(crate) fn kernel_argument(&self, name: &str) -> Option<String> {
        let line = self.text("/proc/cmdline")?;
        line.split_whitespace().find_map(|word| match word.split_once('=') {
            Some((key, value)) => (key == name).then(|| value.to_owned()),
            None => (word == name).then(String::new),
        })
    }

    /// Whether it is a virtual machine.
    pub(crate) fn is_virtual(&self) -> bool {
        self.machine().platform.virtual_machine
    }

    /// Whether the processor is AMD's.
    pub(crate) fn is_amd(&self) -> bool {
        self.machine().processor.vendor == "AuthenticAMD"
    }

    /// Whether the files were read from inside a container.
    pub(crate) fn is_container(&self) -> bool {
        let marks = ["docker", "kubepods", "containerd", "/lxc", "libpod"];
        let group = self.text("/proc/1/cgroup").unwrap_or_default();
        self.exists("/.dockerenv")
            || self.exists("/run/.containerenv")
            || marks.iter().any(|mark| group.contains(mark))
            // A pod with its own control groups shows none of these.
            || self.variable("KUBERNETES_SERVICE_HOST").is_some()
            || self.fact("container").is_some()
    }

    /// Why perhaps not all devices of the machine are seen, where that may be: what this runs in.
    pub(crate) fn sees_part(&self) -> Option<&'static str> {
        let group = self.text("/proc/self/cgroup").unwrap_or_default();
        let job = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"];
        if self.is_container() {
            Some("a container")
        } else if group.contains("/slurm") || job.iter().any(|name| self.variable(name).is_some()) {
            Some("a job")
        } else {
            None
        }
    }

    /// Sockets, from what the processors say.
    pub(crate) fn sockets(&self) -> usize {
        let cpus = self.list("/sys/devices/system/cpu");
        let packages: BTreeSet<i64> = cpus
            .iter()
            .filter(|name| name.strip_prefix("cpu").is_some_and(is_number))
            .filter_map(|name| {
                self.number(&format!("/sys/devices/system/cpu/{name}/topology/physical_package_id"))
            })
            .collect();
        packages.len().max(1)
    }

    /// NUMA nodes by number; one where the kernel has none.
    pub(crate) fn nodes(&self) -> &[NumaNode] {
        &self.machine().numa
    }

    /// A line `Name: value` of /proc/meminfo, in bytes.
    pub(crate) fn memory(&self, name: &str) -> Option<u64> {
        let text = self.text("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let mut words = line.split_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        Some(if words.next() == Some("kB") { number.saturating_mul(1024) } else { number })
    }

    /// A limit of this process: soft value of a line of /proc/self/limits; `u64::MAX` is none.
    pub(crate) fn limit(&self, name: &str) -> Option<u64> {
        let text = self.text("/proc/self/limits")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        match line.split_whitespace().next()? {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        }
    }

    /// Whether this process has a capability, by its bit.
    pub(crate) fn has_capability(&self, bit: u32) -> Option<bool> {
        let text = self.text("/proc/self/status")?;
        let mask = text.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
        Some(mask >> bit & 1 == 1)
    }

    /// The kernel's version as numbers.
    pub(crate) fn kernel(&self) -> Option<(u32, u32)> {
        let text = self.text("/proc/sys/kernel/osrelease")?;
        let mut parts = text.split(|c: char| !c.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// The variables of a file as NCCL reads it.
fn configured(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        line.split_once('=').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
    };
    lines.filter_map(pair).collect()
}

/// The user's own file of variables: NCCL_CONF_FILE, else .nccl.conf at home.
fn user_file(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let named = variable("NCCL_CONF_FILE").filter(|path| !path.is_empty());
    named.or_else(|| Some(format!("{}/.nccl.conf", variable("HOME")?)))
}

/// Lines `name<mark>value`.
fn pairs(text: &str, mark: &str) -> BTreeMap<String, String> {
    let pair =
        |line: &str| line.split_once(mark).map(|(a, b)| (a.trim().to_owned(), b.trim().to_owned()));
    text.lines().filter_map(pair).collect()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A value as evidence shows it: one line, not too long.
pub(crate) fn shown(text: &str) -> String {
    let mut line: String =
        text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN + 1).collect();
    if line.chars().count() > SHOWN {
        line = line.chars().take(SHOWN).chain("…".chars()).collect();
    }
    line
}

/// The numbers of a list such as `0-3,8`; nothing for what is no list or names more than 64 Ki numbers.
pub(crate) fn number_list(text: &str) -> Option<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last.checked_sub(first)? > 1 << 16 || all.len() > 1 << 16 {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_file_of_variables_is_the_one_that_nccl_reads() {
        let home = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
        assert_eq!(user_file(home).as_deref(), Some("/home/me/.nccl.conf"));
        let named = |name: &str| (name == "NCCL_CONF_FILE").then(|| "/x.conf".to_owned());
        assert_eq!(user_file(named).as_deref(), Some("/x.conf"));
        assert_eq!(user_file(|_| None), None);
        let found = configured("# NCCL_DEBUG=INFO\n NCCL_IB_HCA = =mlx5_0 \nnothing\n");
        assert_eq!(found, BTreeMap::from([("NCCL_IB_HCA".to_owned(), "=mlx5_0".to_owned())]));
    }
}
