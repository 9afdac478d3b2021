//! A topology as NCCL writes it down: elements with attributes, nothing thrown away.
//!
//! *Invariant:* attributes keep their order and their text, whether or not they are understood, so
//! that what was read can be written again without loss.

use serde::Serialize;

/// One element: `<pci busid="0000:0f:00.0" …>` with what stands inside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Element {
    /// Its name: `system`, `cpu`, `pci`, `gpu`, `nvlink`, `nic`, `net`, …
    pub name: String,
    /// Names and values, in the order of the file.
    pub attributes: Vec<(String, String)>,
    /// The elements inside.
    pub children: Vec<Self>,
}

impl Element {
    /// An element with nothing in it.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The same with one more attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.set(name, value);
        self
    }

    /// The value of an attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The value of an attribute as a number, decimal or `0x…`.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(parse_number)
    }

    /// Sets an attribute, replacing the value it had.
    pub fn set(&mut self, name: &str, value: impl ToString) {
        match self.attributes.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value.to_string(),
            None => self.attributes.push((name.to_owned(), value.to_string())),
        }
    }

    /// Sets an attribute unless it is there: what a file says wins over what is found.
    pub fn set_missing(&mut self, name: &str, value: impl ToString) {
        if self.get(name).is_none() {
            self.set(name, value);
        }
    }

    /// The first element inside of that name.
    #[must_use]
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The elements inside of that name.
    pub fn children_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// The first element, this or below, for which `wanted` holds, depth first.
    pub fn find_mut(&mut self, wanted: &dyn Fn(&Self) -> bool) -> Option<&mut Self> {
        if wanted(self) {
            return Some(self);
        }
        self.children.iter_mut().find_map(|child| child.find_mut(wanted))
    }

    /// Takes in another description of the same machine: what is in both is taken once, with the
    /// attributes of this one first. Elements are the same when what identifies them is:
    /// `numaid` and host of a CPU, `busid` of a PCI device, `dev` of GPUs and nets, `target` of
    /// links.
    pub fn merge(&mut self, other: &Self) {
        for (name, value) in &other.attributes {
            self.set_missing(name, value);
        }
        for theirs in &other.children {
            match self.children.iter_mut().find(|ours| ours.is_same_thing(theirs)) {
                Some(ours) => ours.merge(theirs),
                None => self.children.push(theirs.clone()),
            }
        }
    }

    fn is_same_thing(&self, other: &Self) -> bool {
        let keys: &[&str] = match self.name.as_str() {
            "cpu" => &["numaid", "host_hash"],
            "pci" => &["busid"],
            "gpu" | "net" => &["dev"],
            "nvlink" | "xgmi" | "pcilink" => &["target"],
            _ => &[],
        };
        let same = |key: &&str| match (self.get(key), other.get(key)) {
            (Some(ours), Some(theirs)) => ours.eq_ignore_ascii_case(theirs),
            // A file for all machines of a kind knows no host.
            (None, _) | (_, None) => *key == "host_hash" || self.get(key) == other.get(key),
        };
        self.name == other.name && keys.iter().all(same)
    }
}

/// A number, decimal or `0x…`, as C's `strtol` with base 0 takes it, but whole.
pub(crate) fn parse_number(text: &str) -> Option<i64> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_wins_when_two_descriptions_become_one() {
        let nic = |speed| Element::new("net").with("dev", 0).with("speed", speed);
        let pci = |bus: &str, inside| {
            let mut pci = Element::new("pci").with("busid", bus);
            pci.children = inside;
            pci
        };
        let cpu = |inside| {
            let mut cpu = Element::new("cpu").with("numaid", 0);
            cpu.children = inside;
            cpu
        };
        let mut file = cpu(vec![pci("0000:0A:00.0", vec![nic(100)])]);
        let found = cpu(vec![pci("0000:0a:00.0", vec![nic(7)]), pci("0000:0b:00.0", Vec::new())])
            .with("host_hash", "0x1");
        file.merge(&found);
        assert_eq!(file.children.len(), 2);
        assert_eq!(file.get("host_hash"), Some("0x1"));
        assert_eq!(file.children[0].get("busid"), Some("0000:0A:00.0"));
        assert_eq!(file.children[0].children, [nic(100)]);
    }
}
