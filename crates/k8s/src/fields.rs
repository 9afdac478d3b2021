//! Fields that kinds of objects have: the list is data, taken from the definitions that it names with their dates.

use std::collections::BTreeMap;
use std::sync::LazyLock;

const DATA: &str = include_str!("fields.txt");

/// What stands below a path: its fields, or another section.
type Line = (Vec<&'static str>, &'static str);

/// The data, by section.
static SECTIONS: LazyLock<BTreeMap<&'static str, Vec<Line>>> = LazyLock::new(|| {
    let mut sections: BTreeMap<&str, Vec<Line>> = BTreeMap::new();
    let mut name = "";
    for line in DATA.lines().filter(|line| !line.starts_with('#')) {
        if let Some(heading) = line.strip_prefix('[') {
            name = heading.trim_end_matches(']');
        } else if let Some((at, fields)) = line.split_once(' ') {
            let path = if at == "." { Vec::new() } else { at.split('.').collect() };
            sections.entry(name).or_default().push((path, fields));
        }
    }
    sections
});

/// The fields of a kind below a path, where the list knows them. A path goes through lists and is written with dots;
/// `*` stands for any key.
pub fn known(api: &str, kind: &str, path: &[&str]) -> Option<Vec<&'static str>> {
    below(&format!("{api}/{kind}"), path, 0)
}

/// Whether the list has the kind in this version of its API: other versions have other fields.
pub fn knows(api: &str, kind: &str) -> bool {
    SECTIONS.contains_key(format!("{api}/{kind}").as_str())
}

/// Every kind of the list.
pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    SECTIONS.keys().filter_map(|name| name.rsplit_once('/'))
}

fn below(section: &str, path: &[&str], depth: usize) -> Option<Vec<&'static str>> {
    for (parts, fields) in SECTIONS.get(section)? {
        let fits = parts.len() <= path.len()
            && parts.iter().zip(path).all(|(part, key)| *part == "*" || part == key);
        if !fits {
            continue;
        }
        if let Some(other) = fields.strip_prefix('@') {
            if depth < 4 {
                return below(other, &path[parts.len()..], depth + 1);
            }
        } else if parts.len() == path.len() {
            return Some(fields.split(' ').collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_through_templates_and_any_keys() {
        let has = |api: &str, kind: &str, path: &[&str], field: &str| {
            known(api, kind, path).is_some_and(|fields| fields.contains(&field))
        };
        let job = ["spec", "template", "spec", "containers", "securityContext"];
        assert!(has("batch/v1", "Job", &job, "privileged"));
        let worker = ["spec", "mpiReplicaSpecs", "Worker", "template", "spec"];
        assert!(has("kubeflow.org/v2beta1", "MPIJob", &worker, "hostNetwork"));
        assert!(has("v1", "Pod", &["spec"], "dnsPolicy"));
        assert!(!has("v1", "Pod", &["spec"], "dnspolicy"));
        assert_eq!(known("v1", "Pod", &["spec", "affinity"]), None);
        assert_eq!(known("nobody", "Nothing", &["spec"]), None);
        assert!(knows("kubeflow.org/v2beta1", "MPIJob") && !knows("kubeflow.org/v1", "MPIJob"));
    }

    #[test]
    fn the_list_names_its_sources_and_dates() {
        let sources: Vec<&str> = DATA.lines().filter(|line| line.starts_with('#')).collect();
        assert!(sources.len() >= 10 && kinds().count() >= 15);
        for line in DATA.lines().filter(|line| !line.starts_with(['#', '['])) {
            assert!(line.split_once(' ').is_some(), "{line}");
        }
    }
}
