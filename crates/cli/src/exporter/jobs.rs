//! Communicators of this machine: their processes' sockets in one folder, asked all at once, and what they tell put
//! into one text.
//!
//! A process serves there with `RINGWAY_METRICS=exporter`. Anybody who may write to the folder may answer, so what is
//! told is read with suspicion ([`ringway::exposition::families`]): no job can spoil the answer, or speak for the
//! machine.
//!
//! *Invariant*: no sample is told twice, whoever tells it; no process that hangs holds up the answer past its limit.

mod ask;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringway::exposition::{Family, Label, Page, Sample, families};

use self::ask::Answer;

/// Sockets that are asked, the newest first: those that killed processes left behind pile up.
const SOCKETS_MOST: usize = 512;

/// How long all of them together may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// What jobs may not speak of.
const RESERVED: [&str; 2] = ["ringway_node_", "ringway_exporter_"];

/// What all jobs told.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    families: BTreeMap<String, Gathered>,
    /// Processes that answered.
    pub(crate) answered: usize,
    /// Those that did not, or with what is no metrics, and why.
    pub(crate) failed: Vec<String>,
}

#[derive(Debug)]
struct Gathered {
    kind: String,
    help: String,
    samples: Vec<Sample>,
    told: BTreeSet<(String, Vec<(String, String)>)>,
}

impl Jobs {
    /// Asks all that have a socket in the folder; where there is no folder there are no jobs.
    pub(crate) fn ask(folder: &Path) -> Self {
        let mut jobs = Self::default();
        let paths = match sockets(folder) {
            Ok(paths) => paths,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return jobs,
            Err(error) => {
                jobs.failed.push(format!("{}: {error}", folder.display()));
                return jobs;
            }
        };
        jobs.ask_all(&paths);
        jobs
    }

    /// Asks at these sockets, too.
    pub(crate) fn ask_all(&mut self, paths: &[PathBuf]) {
        for (path, answer) in paths.iter().zip(ask::all(paths, PATIENCE)) {
            let failed = match answer {
                Answer::Gone => continue,
                Answer::Failed(why) => Some(why),
                Answer::Text(text) => match families(&text) {
                    Ok(families) => self.take(families).err(),
                    Err(error) => Some(error.to_string()),
                },
            };
            match failed {
                None => self.answered += 1,
                Some(why) => self.failed.push(format!("{}: {why}", path.display())),
            }
        }
    }

    /// Everything that was told.
    pub(crate) fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.families.values().flat_map(|family| &family.samples)
    }

    /// Takes what one process told; all of it or nothing.
    fn take(&mut self, told: Vec<Family>) -> Result<(), String> {
        for family in &told {
            let name = &family.name;
            let reserved = RESERVED.iter().any(|prefix| name.starts_with(prefix));
            if reserved || !name.starts_with("ringway_") {
                return Err(format!("{name} is no metric of a job"));
            }
            if self.families.get(name).is_some_and(|known| known.kind != family.kind) {
                return Err(format!("{name} is of another type than in other jobs"));
            }
        }
        for family in told {
            let Family { name, kind, help, samples } = family;
            let gathered = self.families.entry(name).or_insert_with(|| Gathered {
                kind,
                help,
                samples: Vec::new(),
                told: BTreeSet::new(),
            });
            for sample in samples {
                let mut labels = sample.labels.clone();
                labels.sort_unstable();
                // What all processes of a version tell alike is told once.
                if gathered.told.insert((sample.name.clone(), labels)) {
                    gathered.samples.push(sample);
                }
            }
        }
        Ok(())
    }

    /// Writes what they told, metric by metric.
    pub(crate) fn write(&self, page: &mut Page) {
        for (name, family) in &self.families {
            page.metric(name, &family.kind, &family.help);
            for sample in &family.samples {
                let labels = sample.labels.iter();
                let labels: Vec<Label<'_>> =
                    labels.map(|(name, value)| (name.as_str(), value as &dyn Display)).collect();
                page.sample(&sample.name, &labels, &sample.value);
            }
        }
    }
}

/// The sockets in a folder, the newest first. Links are not followed: they may lead to sockets of others.
fn sockets(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(about) = entry.metadata() else { continue };
        let path = entry.path();
        if about.file_type().is_socket() && path.extension().is_some_and(|end| end == "sock") {
            found.push((about.modified().ok(), path));
        }
    }
    found.sort_unstable_by(|one, other| other.cmp(one));
    Ok(found.into_iter().take(SOCKETS_MOST).map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests;
