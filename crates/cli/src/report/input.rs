//! What was given: each file is recognised by its contents, never by its name.
//!
//! *Invariant*: files come from anywhere. Whatever is in them gives a value, or an error that names the file and what would be
//! right; nothing panics.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;

use super::chrome::Events;
use super::machines::Doctored;
use super::perf::Run;
use super::simulation::Simulated;
use super::slow::Searched;
use super::soak::Soaked;
use super::topology::Machine;
use crate::doctor::checks;
use crate::doctor::examine::examine;
use crate::doctor::host::Host;
use crate::snapshot::unpack::Copied;
use crate::topo;
use crate::trace::read::{self, Read};
use crate::trace::show::shown;

/// What can be given.
pub(crate) const KNOWN: &str = "known are: results (ringway perf -J, nccl-tests), long runs (ringway perf soak -J), searches (ringway perf pairs -J, ringway perf bisect -J), findings (ringway doctor --json, \
ringway fabric check --json), topologies (ringway topo --json or --xml), traces (RINGWAY_TRACE_DIR, ringway trace merge), \
simulations (ringway sim --json) and snapshots (ringway snapshot)";

/// All that was read.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    pub(crate) runs: Vec<Run>,
    pub(crate) soaked: Vec<Soaked>,
    pub(crate) searched: Vec<Searched>,
    pub(crate) doctored: Vec<Doctored>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) traces: Vec<Read>,
    pub(crate) events: Vec<Events>,
    pub(crate) simulated: Vec<Simulated>,
    /// Each file, and what it was taken for.
    pub(crate) files: Vec<(String, String)>,
}

impl Inputs {
    /// Reads a file, or a folder: of traces, or a copy of a machine.
    pub(crate) fn read(&mut self, path: &Path) -> anyhow::Result<()> {
        let name = path.display().to_string();
        if path.is_dir() {
            let is_machine =
                ["sys", "proc", "commands"].iter().any(|part| path.join(part).is_dir());
            if is_machine {
                return self.machine(&name, path);
            }
            let before = self.files.len();
            for file in read::files(path)? {
                self.file(&file.display().to_string(), &file)?;
            }
            let what = format!("a folder of {} traces", self.files.len() - before);
            self.files.truncate(before);
            self.took(&name, &what);
            return Ok(());
        }
        self.file(&name, path)
    }

    fn file(&mut self, name: &str, path: &Path) -> anyhow::Result<()> {
        let bytes = read::bytes(path)?;
        let packed: [&[u8]; 2] = [b"\x28\xb5\x2f\xfd", b"\x1f\x8b"];
        if packed.iter().any(|magic| bytes.starts_with(magic)) {
            return self.machine(name, path);
        }
        self.bytes(name, path, &bytes)
    }

    /// Recognises what was read.
    pub(crate) fn bytes(&mut self, name: &str, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
        let is_blank = |byte: &u8| byte.is_ascii_whitespace() || [0xef, 0xbb, 0xbf].contains(byte);
        let Some(start) = bytes.iter().position(|byte| !is_blank(byte)) else {
            bail!("{name}: it is empty; {KNOWN}");
        };
        if bytes[start] == b'<' {
            let drawn = topo::drawn_file(bytes)
                .map_err(|error| wrong(name, "a topology in XML", &format!("{error:#}")))?;
            self.took(name, "a topology file");
            self.machines.push(Machine::drawn(name, &file_name(path), drawn));
            return Ok(());
        }
        if ![b'{', b'['].contains(&bytes[start]) {
            bail!("{name}: it is neither JSON nor XML nor a snapshot; {KNOWN}");
        }
        let text = std::str::from_utf8(&bytes[start..])
            .with_context(|| format!("{name}: it is no text; {KNOWN}"))?;
        match serde_json::from_str::<Value>(text) {
            Ok(value) => self.value(name, path, text, value),
            // Traces that were joined are a line each.
            Err(error) => match read::traces(text) {
                Ok(traces) if error.to_string().contains("trailing characters") => {
                    self.trace(name, path, traces);
                    Ok(())
                }
                _ => bail!("{name}: it is no whole JSON: {}; {KNOWN}", shown(&error.to_string())),
            },
        }
    }

    fn value(
        &mut self,
        name: &str,
        path: &Path,
        text: &str,
        mut value: Value,
    ) -> anyhow::Result<()> {
        let has = |key: &str| value.get(key).is_some();
        let wrong = |kind: &str, why: String| wrong(name, kind, &why);
        let is_event = |list: &Value| list.get(0).is_some_and(|one| one.get("ph").is_some());
        if value["format"] == ringway::recorder::FORMAT {
            let traces = read::traces(text).map_err(|why| wrong("a trace", why))?;
            self.trace(name, path, traces);
        } else if value["format"] == crate::perf::soak::FORMAT {
            let run = Soaked::parse(name, value).map_err(|why| wrong("a long run", why))?;
            self.took(name, "a long run");
            self.soaked.push(run);
        } else if Searched::is(&value) {
            let one = Searched::parse(name, value)
                .map_err(|why| wrong("a search for the slow one", why))?;
            self.took(name, one.kind());
            self.searched.push(one);
        } else if value["traceEvents"].is_array() || is_event(&value) {
            let list = if value.is_array() { value } else { value["traceEvents"].take() };
            let events = Events::parse(name, list).map_err(|why| wrong("trace events", why))?;
            self.took(name, "trace events");
            self.events.push(events);
        } else if has("results") && has("config") {
            let run = Run::parse(name, value).map_err(|why| wrong("results of perf", why))?;
            self.took(name, &format!("results of {}", run.collective));
            self.runs.push(run);
        } else if has("findings") || value["subject"] == "fleet" {
            let read = Doctored::parse(name, value).map_err(|why| wrong("findings", why))?;
            self.took(name, &read.kind());
            self.doctored.push(read);
        } else if has("topology") && has("matrix") {
            let machine = Machine::parse(name, value).map_err(|why| wrong("a topology", why))?;
            self.took(name, "a topology");
            self.machines.push(machine);
        } else if has("job") && (has("summary") || has("tried")) {
            let one = Simulated::parse(name, value).map_err(|why| wrong("a simulation", why))?;
            self.took(name, "a simulation");
            self.simulated.push(one);
        } else {
            bail!("{name}: it is JSON of no kind that is known here; {KNOWN}");
        }
        Ok(())
    }

    fn trace(&mut self, name: &str, path: &Path, traces: Vec<ringway::recorder::Trace>) {
        let what = match traces.len() {
            1 => "a trace".to_owned(),
            count => format!("{count} traces"),
        };
        self.took(name, &what);
        let path = PathBuf::from(path);
        self.traces.extend(traces.into_iter().map(|trace| Read { path: path.clone(), trace }));
    }

    /// A snapshot, or a copy of a machine's files: the doctor looks at it, and it is drawn.
    fn machine(&mut self, name: &str, path: &Path) -> anyhow::Result<()> {
        let copied =
            Copied::open(path).map_err(|error| wrong(name, "a snapshot", &format!("{error:#}")))?;
        anyhow::ensure!(
            copied.holds(&["sys", "proc", "commands"]),
            "{name}: taken for a snapshot, but it holds none of sys, proc and commands; {KNOWN}"
        );
        let host = Host::new(copied.root());
        let found = examine(&host, &checks::chosen(&[])?);
        if let Some(picture) = host.picture() {
            self.machines.push(Machine::pictured(name, &found.name, picture));
        }
        let report = found.report;
        self.doctored.push(Doctored::of(name, &found.name, report.facts, report.findings));
        self.took(name, "a snapshot");
        Ok(())
    }

    fn took(&mut self, name: &str, what: &str) {
        self.files.push((name.to_owned(), what.to_owned()));
    }
}

/// Reads results to compare with; anything else is refused.
pub(crate) fn runs(paths: &[PathBuf]) -> anyhow::Result<Vec<Run>> {
    let mut inputs = Inputs::default();
    for path in paths {
        inputs.read(path)?;
    }
    if let Some((name, what)) =
        inputs.files.iter().find(|(_, what)| !what.starts_with("results of "))
    {
        bail!(
            "--against {name}: it is {}; only results of perf are compared; name other files without --against",
            shown(what)
        );
    }
    Ok(inputs.runs)
}

/// An error that may quote the file.
fn wrong(name: &str, kind: &str, why: &str) -> anyhow::Error {
    anyhow!("{name}: taken for {kind}, but {}", shown(why))
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
