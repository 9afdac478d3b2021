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
    fn attributes_are_kept_in_order_and_replaced_in_place() {
        let mut pci = Element::new("pci").with("busid", "0000:0a:00.0").with("link_width", 8);
        pci.set("busid", "0000:0b:00.0");
        pci.set_missing("link_width", 16);
        pci.set_missing("class", "0x060400");
        let names: Vec<&str> = pci.attributes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["busid", "link_width", "class"]);
        assert_eq!((pci.get("busid"), pci.number("link_width")), (Some("0000:0b:00.0"), Some(8)));
        assert_eq!(pci.number("class"), Some(0x06_0400));
        let mut cpu = Element::new("cpu");
        cpu.children.push(pci);
        assert!(cpu.find_mut(&|one| one.get("busid").is_some()).is_some());
        assert!(cpu.find_mut(&|one| one.name == "gpu").is_none());
    }
}
