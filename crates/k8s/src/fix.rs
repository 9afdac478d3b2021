//! Writing what the checks found right into the texts, as much at once as goes well together.
//!
//! *Invariant*: a change stays only where the texts read as well as before, its findings are gone and no check finds
//! more than before. A misspelt field may hide others: mending one may bring those to light, but never a key that
//! stands twice. So it ends (either fewer fields are misspelt, or there are fewer findings), and doing it again
//! changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{Finding, lint};
use crate::model::{Reading, Set};
use crate::yaml::{Edit, Place, apply, read};

/// Changes that are tried in one run, those included that were not kept. Each is a look at all texts.
const TRIES_MOST: usize = 2000;

/// The check of fields that do not exist.
const MISSPELT: &str = "K8S-20";
/// The check of keys that stand twice.
const TWICE: &str = "K8S-21";

/// What was mended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mended {
    /// What it was.
    pub finding: Finding,
}

/// The texts as they are then.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// The texts.
    pub reading: Reading,
    /// What was mended, in order.
    pub mended: Vec<Mended>,
    /// Whether it ended before all was tried: another run goes on.
    pub is_cut_short: bool,
}

/// A finding among those of one state of the texts.
type Key = (&'static str, usize, Place, String);

/// Mends all that can be mended safely.
pub fn fix(reading: Reading, more: impl Fn(&Set<'_>) -> Vec<Finding>) -> Fixed {
    let mut fixed = Fixed { reading, ..Fixed::default() };
    let mut found = lint(&fixed.reading, &more).findings;
    // What was tried alone and not kept, since the texts changed last.
    let mut refused: BTreeSet<Key> = BTreeSet::new();
    // What does not go together is halved until it does.
    let mut most = usize::MAX;
    for _ in 0..TRIES_MOST {
        let batch = next(&fixed.reading, &found, &refused, most);
        match (batch.is_empty(), mend(&mut fixed.reading, &batch, &found, &more)) {
            (true, _) => return fixed,
            (false, Some(left)) => {
                found = left;
                refused.clear();
                most = usize::MAX;
                fixed.mended.extend(batch.into_iter().map(|finding| Mended { finding }));
            }
            (false, None) if batch.len() > 1 => most = batch.len() / 2,
            (false, None) => {
                refused.extend(batch.iter().map(key));
                most = usize::MAX;
            }
        }
    }
    fixed.is_cut_short = !next(&fixed.reading, &found, &refused, 1).is_empty();
    fixed
}

fn key(finding: &Finding) -> Key {
    (finding.id, finding.file, finding.place, finding.title.clone())
}

/// What is tried next: one finding of each object, since those of one may be about the same lines.
fn next(
    reading: &Reading,
    found: &[Finding],
    refused: &BTreeSet<Key>,
    most: usize,
) -> Vec<Finding> {
    let open: Vec<&Finding> = found
        .iter()
        .filter(|finding| !finding.edits.is_empty() && !refused.contains(&key(finding)))
        .collect();
    // A misspelt field first: what looks missing may only be called by another name.
    let misspelt = open.iter().any(|finding| finding.id == MISSPELT);
    let set = Set::new(reading);
    let mut starts = vec![Vec::new(); reading.sources.len()];
    for resource in &set.resources {
        starts[resource.file].push(resource.node.span.start);
    }
    let mut seen = BTreeSet::new();
    open.into_iter()
        .filter(|finding| (finding.id == MISSPELT) == misspelt)
        .filter(|finding| {
            let before = |start: &usize| *start <= finding.span.start;
            seen.insert((finding.file, starts[finding.file].partition_point(before)))
        })
        .take(most)
        .cloned()
        .collect()
}

/// Makes the changes of some findings; where they are no gain the texts stay as they were.
fn mend(
    reading: &mut Reading,
    batch: &[Finding],
    found: &[Finding],
    more: impl Fn(&Set<'_>) -> Vec<Finding>,
) -> Option<Vec<Finding>> {
    let mut edits: BTreeMap<usize, Vec<Edit>> = BTreeMap::new();
    for finding in batch {
        edits.entry(finding.file).or_default().extend(finding.edits.iter().cloned());
    }
    let mut new = Vec::new();
    for (file, edits) in edits {
        let old = &reading.sources[file].text;
        let text = apply(old, &edits)?;
        let stream = read(&text);
        let was = &reading.streams[file];
        let reads = stream.errors.len() <= was.errors.len()
            && stream.documents.len() >= was.documents.len()
            && (is_json(&text) || !is_json(old));
        if !reads {
            return None;
        }
        new.push((file, text, stream));
    }
    let swap = |new: &mut Vec<(usize, String, _)>, reading: &mut Reading| {
        for (file, text, stream) in new {
            std::mem::swap(&mut reading.sources[*file].text, text);
            std::mem::swap(&mut reading.streams[*file], stream);
        }
    };
    swap(&mut new, reading);
    let left = lint(reading, &more).findings;
    if is_better(batch, found, &left) {
        return Some(left);
    }
    swap(&mut new, reading);
    None
}

fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<serde_json::Value>(text).is_ok()
}

fn is_better(batch: &[Finding], found: &[Finding], left: &[Finding]) -> bool {
    let (before, after) = (counted(found), counted(left));
    let count = |map: &BTreeMap<&str, usize>, id: &str| map.get(id).copied().unwrap_or(0);
    let alike = |list: &[Finding]| {
        let mut map: BTreeMap<(&str, usize, String), usize> = BTreeMap::new();
        for one in list {
            *map.entry((one.id, one.file, one.title.clone())).or_default() += 1;
        }
        map
    };
    let (were, are) = (alike(found), alike(left));
    let gone = alike(batch).iter().all(|(one, many)| {
        let [were, are] = [&were, &are].map(|map| map.get(one).copied().unwrap_or(0));
        are + many <= were
    });
    let nothing_came = match batch.iter().all(|one| one.id == MISSPELT) {
        true => {
            count(&after, MISSPELT) + batch.len() <= count(&before, MISSPELT)
                && count(&after, TWICE) <= count(&before, TWICE)
        }
        false => {
            left.len() + batch.len() <= found.len()
                && after.iter().all(|(id, many)| *many <= count(&before, id))
        }
    };
    gone && nothing_came
}

/// How often each check found something.
fn counted(list: &[Finding]) -> BTreeMap<&'static str, usize> {
    let mut map = BTreeMap::new();
    for one in list {
        *map.entry(one.id).or_default() += 1;
    }
    map
}
