//! From files and folders to traces.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use ringway::recorder::Trace;

use super::show::shown;

/// Longest file that is read: a million operations take a third of it.
const BYTES_MAX: u64 = 1 << 30;

/// A trace and where it is from.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) path: PathBuf,
    pub(crate) trace: Trace,
}

/// All traces in these files and folders, by communicator and rank. Of several of one rank the last one
/// taken counts.
pub(super) fn all(paths: &[PathBuf]) -> anyhow::Result<Vec<Read>> {
    let mut found = Vec::new();
    for path in paths {
        for file in files(path)? {
            let traces = one(&file)?;
            found.extend(traces.into_iter().map(|trace| Read { path: file.clone(), trace }));
        }
    }
    latest(found)
}

/// Traces by communicator and rank, of several of one rank the last one taken.
pub(crate) fn latest(found: Vec<Read>) -> anyhow::Result<Vec<Read>> {
    let mut latest: BTreeMap<(String, u32), Read> = BTreeMap::new();
    for read in found {
        let Read { path, trace } = &read;
        let key = (trace.communicator.clone(), trace.rank);
        let kin = latest.range((key.0.clone(), 0)..=(key.0.clone(), u32::MAX)).next();
        if let Some((_, other)) = kin.filter(|(_, one)| one.trace.size != trace.size) {
            bail!(
                "{} and {} say that communicator {} has {} and {} ranks; one of them is of another job",
                other.path.display(),
                path.display(),
                shown(&key.0),
                other.trace.size,
                trace.size
            );
        }
        let newer = latest.get(&key).is_none_or(|old| old.trace.taken_ns < trace.taken_ns);
        if newer {
            latest.insert(key, read);
        }
    }
    Ok(latest.into_values().collect())
}

/// The file itself, or those of a folder that are named as traces are.
pub(crate) fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let file = entry.with_context(|| format!("cannot read {}", path.display()))?.path();
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
        if name.is_some_and(|name| name.starts_with("ringway-") && name.ends_with(".json")) {
            found.push(file);
        }
    }
    if found.is_empty() {
        bail!(
            "{} holds no traces (ringway-….json); were RINGWAY_TRACE_DIR and RINGWAY_TRACE_ON set for the job?",
            path.display()
        );
    }
    found.sort();
    Ok(found)
}

/// The traces of one file.
fn one(path: &Path) -> anyhow::Result<Vec<Trace>> {
    let bytes = bytes(path)?;
    let text =
        std::str::from_utf8(&bytes).with_context(|| format!("cannot read {}", path.display()))?;
    traces(text).map_err(|why| anyhow::anyhow!("{}: {}", path.display(), shown(&why)))
}

/// A file, unless it is longer than any trace.
pub(crate) fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let named = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(named)?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).with_context(named)?;
    if bytes.len() as u64 > BYTES_MAX {
        bail!("{} is longer than {BYTES_MAX} bytes; no trace is", path.display());
    }
    Ok(bytes)
}

/// The traces of a text: one, or those that `merge --format ringway` has joined, a line each.
pub(crate) fn traces(text: &str) -> Result<Vec<Trace>, String> {
    let whole = match Trace::parse(text) {
        Ok(trace) => return Ok(vec![trace]),
        Err(whole) => whole,
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let joined: Result<Vec<Trace>, String> = lines.map(Trace::parse).collect();
    match joined {
        Ok(traces) if traces.len() > 1 => Ok(traces),
        _ => Err(whole),
    }
}
