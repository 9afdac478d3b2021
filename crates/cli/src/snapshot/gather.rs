//! Collecting what a snapshot holds.
//!
//! *Invariant*: every path comes from the tables of `doctor/sources.rs`, and no more than [`BYTES`] and
//! [`ENTRIES`] are taken.

use std::collections::{BTreeMap, BTreeSet};

use ringway::topo::{Root, RootError};
use serde::Serialize;

use super::secrets::{self, Mask};
use crate::doctor::host::{FILE_BYTES, Host};
use crate::doctor::sources::{self, Want};

/// Bytes of all files together.
const BYTES: usize = 128 << 20;

/// Files, links and folders.
const ENTRIES: usize = 150_000;

/// Things that could not be read which are listed by name.
const LISTED: usize = 500;

/// One thing in a snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Entry {
    /// A file with its bytes.
    File(Vec<u8>),
    /// A folder of which only the name matters.
    Folder,
    /// A link, relative.
    Link(String),
}

/// A snapshot before it is packed.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The machine's name, or what stands for it.
    pub(crate) name: String,
    /// Entries by path, without a leading stroke.
    pub(crate) entries: BTreeMap<String, Entry>,
    /// manifest.json.
    pub(crate) manifest: Vec<u8>,
    /// How many things could not be read.
    pub(crate) missing: usize,
}

#[derive(Serialize)]
struct Manifest<'a> {
    version: u32,
    made_by: &'static str,
    host: &'a str,
    anonymous: bool,
    time_unix_s: u64,
    files: usize,
    /// Values taken out because they looked like secrets.
    secrets_left_out: usize,
    missing_count: usize,
    missing: &'a [Missing],
}

#[derive(Debug, Serialize)]
struct Missing {
    what: String,
    why: String,
}

/// Collects all.
pub(crate) fn gather(host: &Host, anonymous: bool, seconds: u64) -> anyhow::Result<Taken> {
    let hosts = host.text("/etc/hosts").unwrap_or_default();
    let mut gathering = Gathering {
        root: host.root(),
        entries: BTreeMap::new(),
        bytes: 0,
        missing: Vec::new(),
        missing_count: 0,
        secrets: 0,
        mask: anonymous.then(|| Mask::new(&host.name(), &hosts)).transpose()?,
        done: BTreeSet::new(),
    };
    for (want, pattern) in sources::PATHS {
        let mut troubles = Vec::new();
        let paths =
            sources::expand(host.root(), pattern, ENTRIES, &mut |trouble| troubles.push(trouble));
        for why in troubles {
            gathering.miss((*pattern).to_owned(), why);
        }
        for path in paths {
            gathering.take(*want, &path);
        }
    }
    gathering.outputs(host);
    let name = match &gathering.mask {
        Some(mask) => mask.text(&host.name()),
        None => host.name(),
    };
    let manifest = Manifest {
        version: 1,
        made_by: concat!("ringway ", env!("CARGO_PKG_VERSION")),
        host: &name,
        anonymous,
        time_unix_s: seconds,
        files: gathering.entries.len(),
        secrets_left_out: gathering.secrets,
        missing_count: gathering.missing_count,
        missing: &gathering.missing,
    };
    let manifest = serde_json::to_vec_pretty(&manifest)?;
    Ok(Taken { name, entries: gathering.entries, manifest, missing: gathering.missing_count })
}

struct Gathering<'a> {
    root: &'a Root,
    entries: BTreeMap<String, Entry>,
    bytes: usize,
    missing: Vec<Missing>,
    missing_count: usize,
    secrets: usize,
    mask: Option<Mask>,
    /// Paths whose links have been noted.
    done: BTreeSet<String>,
}

impl Gathering<'_> {
    fn miss(&mut self, what: String, why: String) {
        self.missing_count += 1;
        if self.missing.len() < LISTED {
            let why = crate::doctor::host::shown(&why);
            let (what, why) = match &self.mask {
                Some(mask) => (mask.text(&what), mask.text(&why)),
                None => (what, why),
            };
            self.missing.push(Missing { what, why });
        }
    }

    fn take(&mut self, want: Want, path: &str) {
        let Some(place) = self.place(path) else { return };
        match want {
            Want::Link => {}
            Want::Name => {
                if self.root.exists(path) {
                    let folder = self.root.list(path).is_ok();
                    let entry = if folder { Entry::Folder } else { Entry::File(Vec::new()) };
                    self.put(&place, entry);
                }
            }
            Want::Text | Want::Bytes => match self.root.bytes_at_most(path, FILE_BYTES) {
                Ok(Some(bytes)) => {
                    let bytes = if want == Want::Text { self.cleaned(path, bytes) } else { bytes };
                    self.put(&place, Entry::File(bytes));
                }
                Ok(None) => {}
                // Drivers refuse what makes no sense for a device: the speed of a link that is down.
                Err(RootError::Refused { errno: Some(22 | 95), .. }) => {}
                Err(error) => self.miss(path.to_owned(), error.to_string()),
            },
        }
    }

    /// Where a path really is, without a leading stroke; the links on the way are noted.
    fn place(&mut self, path: &str) -> Option<String> {
        // /proc/self is a link to another name each time.
        if path.starts_with("/proc/") {
            return Some(path.trim_start_matches('/').to_owned());
        }
        let mut real = String::new();
        for part in path.split('/').skip(1) {
            let next = format!("{real}/{part}");
            let target = match self.root.link(&next) {
                Ok(Some(target)) => target,
                Ok(None) => return None,
                Err(error) => {
                    if self.done.insert(next.clone()) {
                        self.miss(next, error.to_string());
                    }
                    return None;
                }
            };
            if target != next && self.done.insert(next.clone()) {
                let link = relative(&next, &target);
                self.put(next.trim_start_matches('/'), Entry::Link(link));
            }
            real = target;
        }
        Some(real.trim_start_matches('/').to_owned())
    }

    fn put(&mut self, path: &str, entry: Entry) {
        if self.entries.contains_key(path) {
            return;
        }
        if let Entry::File(bytes) = &entry {
            self.bytes += bytes.len();
        }
        if self.bytes > BYTES || self.entries.len() >= ENTRIES {
            self.miss(path.to_owned(), "the snapshot is full".to_owned());
            return;
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// The text without secrets and, where wanted, without names.
    fn cleaned(&mut self, path: &str, bytes: Vec<u8>) -> Vec<u8> {
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        };
        let text = match path {
            "commands/nvidia-smi-q.txt" => secrets::without_processes(&text),
            _ => text,
        };
        let (text, found) = secrets::removed(&text, path == "/proc/cmdline");
        self.secrets += found;
        let text = match &self.mask {
            Some(mask) if path == "/proc/net/route" => mask.routes(&text),
            Some(mask) if path == "/etc/hostname" => mask.own_name(),
            Some(mask) if path == "/sys/class/dmi/id/chassis_asset_tag" => mask.asset_tag(&text),
            Some(mask) => mask.text(&text),
            None => text,
        };
        text.into_bytes()
    }

    /// Outputs of programs, facts that are in no file, and variables.
    fn outputs(&mut self, host: &Host) {
        let mut outputs: Vec<(String, Result<String, String>)> = Vec::new();
        if host.root().is_live() {
            outputs
                .extend(host.outputs().iter().map(|(name, output)| (name.clone(), output.clone())));
        } else {
            for file in host.root().list("/commands").unwrap_or_default() {
                let name = file.trim_end_matches(".txt").to_owned();
                let text = host.root().command_output(&name).map_err(|error| error.to_string());
                if let Some(text) = text.transpose() {
                    outputs.push((name, text));
                }
            }
        }
        if host.root().is_live() {
            let lines = |pairs: &BTreeMap<String, String>, mark: &str| {
                pairs
                    .iter()
                    .map(|(name, value)| format!("{name}{mark}{value}\n"))
                    .collect::<String>()
            };
            outputs.push(("ringway".to_owned(), Ok(lines(host.facts(), " = "))));
            let variables: BTreeMap<String, String> = host
                .environment()
                .iter()
                .filter(|(name, _)| sources::is_wanted_variable(name))
                .map(|(name, value)| (name.clone(), value.replace('\n', " ")))
                .collect();
            outputs.push(("environment".to_owned(), Ok(lines(&variables, "="))));
        }
        for (name, output) in outputs {
            let path = format!("commands/{name}.txt");
            match output {
                Ok(text) => {
                    let bytes = self.cleaned(&path, text.into_bytes());
                    self.put(&path, Entry::File(bytes));
                }
                Err(why) => self.miss(path, why),
            }
        }
    }
}

/// The way from the folder of `from` to `to`.
fn relative(from: &str, to: &str) -> String {
    let from: Vec<&str> = from.split('/').skip(1).collect();
    let to: Vec<&str> = to.split('/').skip(1).filter(|part| !part.is_empty()).collect();
    let folder = &from[..from.len().saturating_sub(1)];
    let same = folder.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let mut parts = vec![".."; folder.len() - same];
    parts.extend(&to[same..]);
    if parts.is_empty() { ".".to_owned() } else { parts.join("/") }
}

#[cfg(test)]
mod tests {
    use super::relative;

    #[test]
    fn links_are_relative() {
        assert_eq!(
            relative("/sys/class/net/eth0", "/sys/devices/pci/eth0"),
            "../../devices/pci/eth0"
        );
        assert_eq!(relative("/var/run", "/run"), "../run");
        assert_eq!(relative("/a/b", "/a/c"), "c");
        assert_eq!(relative("/a/b", "/a"), ".");
    }
}
