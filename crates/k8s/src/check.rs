//! What is wrong with manifests: each finding with its place, why it matters with a number, and how it is written
//! right.
//!
//! *Invariant*: a check speaks only of what the manifests show. What only a cluster knows (labels, leaves, device
//! names of a node) is a [`Verdict::Hint`] or nothing. A comment `# ringway: allow K8S-16 reason` on the line of a
//! finding, or right above it, keeps it back.

mod devices;
mod form;
mod images;
mod mpi;
mod places;
mod pods;
mod policies;
mod replicas;
mod storage;
#[cfg(test)]
mod tests;
mod variables;

use std::ops::Range;

use crate::model::{Reading, Set};
use crate::yaml::{Edit, Node, Place};

/// How bad it is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Verdict {
    /// May be well; the manifest alone cannot tell.
    Hint,
    /// Works, but slower or more fragile than it could.
    Warn,
    /// Does not work, or so slowly that it is as good as broken.
    Fail,
}

/// One check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// What scripts match on.
    pub id: &'static str,
    /// What it looks at, in a few words.
    pub name: &'static str,
    /// The heading it stands under.
    pub group: &'static str,
}

/// All checks.
pub const ALL: &[Check] = &[
    check("K8S-01", "devices", "RDMA device requested"),
    check("K8S-02", "pods", "/dev/shm large enough"),
    check("K8S-03", "pods", "/dev/shm within the memory limit"),
    check("K8S-04", "pods", "IPC_LOCK"),
    check("K8S-05", "replicas", "slots equal GPUs"),
    check("K8S-06", "devices", "one network for each device"),
    check("K8S-07", "policies", "GPU Operator serves RDMA"),
    check("K8S-08", "policies", "SR-IOV policy serves RDMA"),
    check("K8S-09", "policies", "MTU of the network"),
    check("K8S-10", "policies", "shared device plugin"),
    check("K8S-11", "places", "GPU and NIC on one NUMA node"),
    check("K8S-12", "places", "placement by topology"),
    check("K8S-13", "variables", "NCCL variables"),
    check("K8S-14", "variables", "NCCL_TOPO_FILE is mounted"),
    check("K8S-15", "pods", "DNS on the host's network"),
    check("K8S-16", "pods", "not privileged"),
    check("K8S-17", "policies", "SR-IOV node state"),
    check("K8S-18", "places", "IMEX channel for NVLink between nodes"),
    check("K8S-19", "form", "YAML can be read"),
    check("K8S-20", "form", "fields exist"),
    check("K8S-21", "form", "keys stand once"),
    check("K8S-22", "form", "JSON within YAML"),
    check("K8S-23", "variables", "algorithm and protocol not pinned"),
    check("K8S-24", "variables", "GID index not pinned"),
    check("K8S-25", "variables", "interface exists in the pod"),
    check("K8S-26", "variables", "RDMA not switched off"),
    check("K8S-27", "images", "image has a version"),
    check("K8S-28", "replicas", "counts agree"),
    check("K8S-29", "storage", "cufile with nvidia-fs"),
    check("K8S-30", "policies", "VFs keep their network driver"),
    check("K8S-31", "devices", "devices have limits"),
];

const fn check(id: &'static str, group: &'static str, name: &'static str) -> Check {
    Check { id, name, group }
}

/// One thing that was found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// Which check.
    pub id: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// One sentence.
    pub title: String,
    /// Which text.
    pub file: usize,
    /// Where in it.
    pub place: Place,
    /// Bytes of the text.
    pub span: Range<usize>,
    /// Why it matters, with a number.
    pub cost: String,
    /// What to do.
    pub fix: String,
    /// How it is written right.
    pub yaml: Option<String>,
    /// What writes it so, where that is safe.
    pub edits: Vec<Edit>,
}

/// What one run found.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// In the order of the texts.
    pub findings: Vec<Finding>,
    /// How many were kept back by comments.
    pub allowed: usize,
}

impl Finding {
    /// Something at a node.
    pub fn new(
        id: &'static str,
        verdict: Verdict,
        file: usize,
        node: &Node,
        title: impl Into<String>,
    ) -> Self {
        Self {
            id,
            verdict,
            title: title.into(),
            file,
            place: node.place,
            span: node.span.clone(),
            cost: String::new(),
            fix: String::new(),
            yaml: None,
            edits: Vec::new(),
        }
    }

    /// Why it matters.
    #[must_use]
    pub fn costs(mut self, cost: impl Into<String>) -> Self {
        self.cost = cost.into();
        self
    }

    /// What to do, and how that is written.
    #[must_use]
    pub fn fixed_by(mut self, fix: impl Into<String>, yaml: impl Into<String>) -> Self {
        self.fix = fix.into();
        self.yaml = Some(yaml.into()).filter(|yaml: &String| !yaml.is_empty());
        self
    }

    /// What writes it right; nothing where one of the changes cannot be made.
    #[must_use]
    pub fn edited(mut self, edits: Option<Vec<Edit>>) -> Self {
        self.edits = edits.unwrap_or_default();
        self
    }

    /// At these bytes within the node, on their line.
    #[must_use]
    pub fn within(mut self, text: &str, span: Range<usize>) -> Self {
        self.place = Place::of(text, span.start);
        self.span = span;
        self
    }
}

/// Looks at all texts together. `more` are findings of those who know more than manifests tell.
pub fn lint(reading: &Reading, more: impl FnOnce(&Set<'_>) -> Vec<Finding>) -> Outcome {
    let set = Set::new(reading);
    let mut found = Vec::new();
    form::check(&set, &mut found);
    pods::check(&set, &mut found);
    devices::check(&set, &mut found);
    replicas::check(&set, &mut found);
    places::check(&set, &mut found);
    variables::check(&set, &mut found);
    images::check(&set, &mut found);
    policies::check(&set, &mut found);
    storage::check(&set, &mut found);
    found.extend(more(&set));
    let all = found.len();
    let lines: Vec<Vec<&str>> =
        reading.sources.iter().map(|source| source.text.lines().collect()).collect();
    found.retain(|finding| !is_allowed(finding, &lines[finding.file]));
    let allowed = all - found.len();
    found.sort_by(|a, b| (a.file, a.place, a.id).cmp(&(b.file, b.place, b.id)));
    found.dedup_by(|a, b| (a.file, a.place, a.id, &a.title) == (b.file, b.place, b.id, &b.title));
    Outcome { findings: found, allowed }
}

/// Whether a comment on the line, or right above it, allows it.
fn is_allowed(finding: &Finding, lines: &[&str]) -> bool {
    let names = |line: &str| {
        line.split_once("# ringway: allow").is_some_and(|(_, rest)| {
            let ids = rest.split(|c: char| c.is_whitespace() || c == ',' || c == ':');
            ids.into_iter().any(|id| id == finding.id)
        })
    };
    let at = finding.place.line.saturating_sub(1).min(lines.len());
    let above = lines[..at].iter().rev().take_while(|line| line.trim_start().starts_with('#'));
    lines.get(at).is_some_and(|line| names(line)) || above.into_iter().any(|line| names(line))
}
