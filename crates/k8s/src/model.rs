//! What manifests are about: resources, pods and containers, found in any kind.

mod command;
mod container;
mod pods;
mod settings;

use crate::yaml::{self, Node, Stream};

pub use command::{Launch, Word, is_per_node, launches, named, words};
pub use container::{Container, bytes, has_version, shm_wanted};
pub use pods::{Network, Pod, Role};
pub use settings::{Setting, settings};

/// One text with its name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// What messages call it.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// Texts, read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The texts.
    pub sources: Vec<Source>,
    /// What they hold, in the same order.
    pub streams: Vec<Stream>,
}

/// One object of a manifest.
#[derive(Clone, Copy, Debug)]
pub struct Resource<'a> {
    /// Which text it stands in.
    pub file: usize,
    /// Its root.
    pub node: &'a Node,
    /// `Job`, `Pod`; empty where a document names none.
    pub kind: &'a str,
    /// `batch/v1`; empty where a document names none.
    pub api: &'a str,
    /// Its name; empty where it has none.
    pub name: &'a str,
}

/// All that was read, as what it is about.
#[derive(Debug)]
pub struct Set<'a> {
    /// The texts.
    pub reading: &'a Reading,
    /// Their objects.
    pub resources: Vec<Resource<'a>>,
    /// The pods that these make.
    pub pods: Vec<Pod<'a>>,
}

impl Reading {
    /// Reads all texts.
    pub fn new(sources: Vec<Source>) -> Self {
        let streams = sources.iter().map(|source| yaml::read(&source.text)).collect();
        Self { sources, streams }
    }
}

impl<'a> Resource<'a> {
    /// The group of its API: `batch` of `batch/v1`, `core` of `v1`.
    pub fn group(&self) -> &'a str {
        self.api.split_once('/').map_or("core", |(group, _)| group)
    }

    /// Its `spec`.
    pub fn spec(&self) -> Option<&'a Node> {
        self.node.get("spec")
    }

    fn new(file: usize, node: &'a Node) -> Self {
        let text = |path: &[&str]| node.text_at(path).unwrap_or("");
        Self {
            file,
            node,
            kind: text(&["kind"]),
            api: text(&["apiVersion"]),
            name: text(&["metadata", "name"]),
        }
    }
}

impl<'a> Set<'a> {
    /// Finds what the texts are about.
    pub fn new(reading: &'a Reading) -> Self {
        let mut resources = Vec::new();
        for (file, stream) in reading.streams.iter().enumerate() {
            for document in &stream.documents {
                let resource = Resource::new(file, &document.root);
                if resource.kind.ends_with("List")
                    && let Some(items) = document.root.get("items")
                {
                    let items = items.items().iter();
                    resources.extend(items.map(|item| Resource::new(file, item)));
                } else {
                    resources.push(resource);
                }
            }
        }
        let mut pods: Vec<Pod<'a>> =
            resources.iter().flat_map(|resource| pods::of(*resource)).collect();
        let policies = resources.iter().filter(|one| one.kind == "SriovNetworkNodePolicy");
        let names: Vec<&str> =
            policies.filter_map(|one| one.node.text_at(&["spec", "resourceName"])).collect();
        for container in pods.iter_mut().flat_map(|pod| &mut pod.containers) {
            let copy = *container;
            let mut own = copy.resources().filter_map(|(name, _)| name.text()?.split_once('/'));
            container.has_networks |= own.any(|(_, name)| names.contains(&name));
        }
        Self { reading, resources, pods }
    }

    /// The pod with GPUs that a pod's object makes: what a launcher sets holds there. Itself where there is none.
    pub fn worker_of<'b>(&'b self, pod: &'b Pod<'a>) -> &'b Pod<'a> {
        let same = |other: &&Pod<'_>| std::ptr::eq(other.resource.node, pod.resource.node);
        self.pods.iter().filter(same).find(|other| other.gpus() > 0).unwrap_or(pod)
    }

    /// The text of a file.
    pub fn text(&self, file: usize) -> &'a str {
        &self.reading.sources[file].text
    }

    /// Objects of a kind.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Resource<'a>> {
        self.resources.iter().filter(move |resource| resource.kind == kind)
    }
}
