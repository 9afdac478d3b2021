//! The form of manifests: YAML, fields, JSON within.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::{Finding, Verdict};
use crate::fields;
use crate::model::{Resource, Set};
use crate::yaml::{Content, Edit, Node, Style};

/// Depth to which fields are looked at.
const DEPTH_MOST: usize = 16;

pub(super) fn check(set: &Set<'_>, found: &mut Vec<Finding>) {
    for (file, stream) in set.reading.streams.iter().enumerate() {
        for error in &stream.errors {
            let (fix, yaml) = match error.is_template {
                true => (
                    "it is a template: fill it first, as helm template CHART | ringway k8s lint -",
                    String::new(),
                ),
                false => ("mend the text at this place", String::new()),
            };
            let node = Node {
                content: Content::Scalar(String::new(), Style::Plain),
                span: 0..0,
                place: error.place,
                is_flow: false,
                is_alias: false,
            };
            found.push(
                Finding::new(
                    "K8S-19",
                    Verdict::Fail,
                    file,
                    &node,
                    format!("not YAML: {}", error.reason),
                )
                .costs("kubectl takes 0 of this document")
                .fixed_by(fix, yaml),
            );
        }
        for document in &stream.documents {
            twice(file, &document.root, 0, found);
        }
    }
    for resource in &set.resources {
        if fields::knows(resource.api, resource.kind) {
            let mut path = Vec::new();
            unknown(set.text(resource.file), resource, resource.node, &mut path, found);
        }
        json(set, resource, found);
    }
}

fn twice(file: usize, node: &Node, depth: usize, found: &mut Vec<Finding>) {
    if depth > 100 || node.is_alias {
        return;
    }
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for (key, value) in node.entries() {
        if let Some(name) = key.text() {
            match lines.get(name) {
                Some(line) => found.push(
                    Finding::new("K8S-21", Verdict::Fail, file, key, format!("{name} stands here and on line {line}"))
                        .costs("one of the 2 counts, the other is dropped without a word; strict clients refuse the file")
                        .fixed_by("keep one", ""),
                ),
                None => {
                    lines.insert(name, key.place.line);
                }
            }
        }
        twice(file, value, depth + 1, found);
    }
    for item in node.items() {
        twice(file, item, depth + 1, found);
    }
}

/// Fields that the kind does not have.
fn unknown<'a>(
    text: &str,
    resource: &Resource<'a>,
    node: &'a Node,
    path: &mut Vec<&'a str>,
    found: &mut Vec<Finding>,
) {
    if path.len() > DEPTH_MOST {
        return;
    }
    for item in node.items() {
        unknown(text, resource, item, path, found);
    }
    let known = match path.is_empty() {
        true => None,
        false => fields::known(resource.api, resource.kind, path),
    };
    for (key, value) in node.entries() {
        let Some(name) = key.text() else { continue };
        if let Some(known) = &known
            && !known.contains(&name)
            && name != "<<"
        {
            found.push(misnamed(text, resource, (node, key), path, known));
            continue;
        }
        // Beside the spec, only what Kubernetes itself defines stands.
        if path.is_empty() && name != "spec" {
            continue;
        }
        path.push(name);
        unknown(text, resource, value, path, found);
        path.pop();
    }
}

fn misnamed(
    text: &str,
    resource: &Resource<'_>,
    (map, key): (&Node, &Node),
    path: &[&str],
    known: &[&str],
) -> Finding {
    let name = key.text().unwrap_or("");
    let near = known.iter().map(|field| (distance(name, field), *field)).min();
    let near = near
        .filter(|(far, field)| *far <= 2 && field.len() > 3 || field.eq_ignore_ascii_case(name));
    let place = path.join(".");
    let title = match near {
        Some((_, field)) => {
            format!("{}: {place} has no field {name}; {field} is meant", resource.kind)
        }
        None => format!("{}: {place} has no field {name}", resource.kind),
    };
    // Where the right name stands there already, which of the two is meant is not known.
    let edits =
        near.filter(|(_, field)| !key.is_alias && map.entry(field).is_none()).map(|(_, field)| {
            let raw = text.get(key.span.clone()).unwrap_or("");
            let quote = raw.get(..1).filter(|quote| ["\"", "'"].contains(quote)).unwrap_or("");
            vec![Edit { span: key.span.clone(), text: format!("{quote}{field}{quote}") }]
        });
    Finding::new("K8S-20", Verdict::Fail, resource.file, key, title)
        .costs("the API server drops the field without a word, or refuses the manifest: what it sets is not set, 0 times")
        .fixed_by(
            match near {
                Some(_) => "write it so".to_owned(),
                None => format!("there are {}", shortened(known)),
            },
            near.map_or_else(String::new, |(_, field)| format!("{field}:\n")),
        )
        .edited(edits)
}

fn shortened(known: &[&str]) -> String {
    match known.len() {
        0..=12 => known.join(", "),
        many => format!("{} and {} more", known[..12].join(", "), many - 12),
    }
}

/// How many letters differ.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    if a.len().abs_diff(b.len()) > 3 || a.len() > 60 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = row[j + 1];
            row[j + 1] = next;
        }
    }
    row[b.len()]
}

/// Fields whose text is JSON.
fn json(set: &Set<'_>, resource: &Resource<'_>, found: &mut Vec<Finding>) {
    let paths: &[&[&str]] = match resource.kind {
        "SriovNetwork" | "SriovIBNetwork" | "MacvlanNetwork" | "HostDeviceNetwork"
        | "IPoIBNetwork" => &[&["spec", "ipam"]],
        "NetworkAttachmentDefinition" => &[&["spec", "config"]],
        "NicClusterPolicy" => &[
            &["spec", "rdmaSharedDevicePlugin", "config"],
            &["spec", "sriovDevicePlugin", "config"],
        ],
        _ => &[],
    };
    let mut nodes: Vec<&Node> = paths.iter().filter_map(|path| resource.node.at(path)).collect();
    // Who reads other files may allow comments.
    let is_ours = |text: &str| {
        resource.kind != "ConfigMap"
            || text.contains("\"configList\"")
            || text.contains("\"resourceList\"")
    };
    if resource.kind == "ConfigMap" {
        let data = resource.node.get("data").map_or(&[][..], Node::entries);
        let is_json = |key: &Node| key.text().is_some_and(|key| key.ends_with(".json"));
        // cufile.json allows comments.
        let plain =
            data.iter().filter(|(key, _)| is_json(key) && key.text() != Some("cufile.json"));
        nodes.extend(plain.map(|(_, value)| value));
    }
    for pod in set.pods.iter().filter(|pod| std::ptr::eq(pod.resource.node, resource.node)) {
        for name in ["k8s.v1.cni.cncf.io/networks", "networking.gke.io/interfaces"] {
            let text =
                |node: &&Node| node.text().is_some_and(|text| text.trim_start().starts_with('['));
            nodes.extend(pod.annotation(name).filter(text));
        }
    }
    for node in nodes {
        let Some(text) = node.text().filter(|text| !text.trim().is_empty()) else { continue };
        let Err(error) = serde_json::from_str::<Json>(text) else { continue };
        let reason = error.to_string();
        let reason = reason.split(" at line").next().unwrap_or(&reason).to_owned();
        let whole = set.text(resource.file);
        let edits = comma(whole, node).filter(|edit| {
            let raw = &whole[node.span.clone()];
            let at = edit.span.start - node.span.start;
            let mended = format!("{}{}", &raw[..at], &raw[at + 1..]);
            serde_json::from_str::<Json>(&mended).is_ok()
        });
        let verdict = if is_ours(text) { Verdict::Fail } else { Verdict::Hint };
        let edits = edits.filter(|_| verdict == Verdict::Fail);
        found.push(
            Finding::new("K8S-22", verdict, resource.file, node, format!("not JSON: {reason}"))
                .costs("0 of this setting is read: the plugin or the operator refuses it when a pod starts")
                .fixed_by("JSON has no comma behind the last item, no comments, and double quotes alone", "")
                .edited(edits.map(|edit| vec![edit])),
        );
    }
}

/// The comma before a closing brace, in a literal block.
fn comma(whole: &str, node: &Node) -> Option<Edit> {
    if !matches!(node.content, Content::Scalar(_, Style::Block)) {
        return None;
    }
    let raw = whole.get(node.span.clone())?;
    let mut last: Option<usize> = None;
    let mut quoted = false;
    for (at, c) in raw.char_indices() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => last = Some(at),
            '}' | ']' if !quoted && last.is_some() => {
                let at = node.span.start + last?;
                return Some(Edit { span: at..at + 1, text: String::new() });
            }
            c if c.is_whitespace() => {}
            _ => {}
        }
        if !c.is_whitespace() && c != ',' {
            last = None;
        }
    }
    None
}
