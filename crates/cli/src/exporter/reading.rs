//! Files of the machine for one scrape, and what could not be read of them.
//!
//! *Invariant*: what the kernel does not have is no trouble and no zero; everything else that fails is counted, and
//! said once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use ringway::topo::{Root, RootError};

use super::metric::{self, Samples};

/// What a trouble is of.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum What {
    /// RDMA devices.
    Rdma,
    /// Network interfaces.
    Net,
    /// The PCI bus.
    Pci,
    /// GPUs, by NVML.
    Gpu,
    /// Jobs on this machine.
    Job,
}

impl What {
    const ALL: [Self; 5] = [Self::Rdma, Self::Net, Self::Pci, Self::Gpu, Self::Job];

    fn word(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Net => "net",
            Self::Pci => "pci",
            Self::Gpu => "gpu",
            Self::Job => "job",
        }
    }
}

/// Troubles that are remembered as said: a machine with more has been heard.
const SAID_MOST: usize = 512;

/// What went wrong since the exporter began.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    counts: BTreeMap<What, u64>,
    said: BTreeSet<String>,
}

impl Troubles {
    /// Counts one, and gives back its text if it is to be said.
    pub(crate) fn note(&mut self, what: What, text: String) -> Option<String> {
        *self.counts.entry(what).or_default() += 1;
        if self.said.len() >= SAID_MOST || self.said.contains(&text) {
            return None;
        }
        self.said.insert(text.clone());
        Some(text)
    }

    /// How many of each: also of what is well, so that growth is seen from the first on.
    pub(crate) fn samples(&self, samples: &mut Samples) {
        for what in What::ALL {
            let count = self.counts.get(&what).copied().unwrap_or(0);
            samples.add(&metric::EXPORTER_ERRORS, &[&what.word()], count);
        }
    }
}

/// A root, with the troubles of one scrape.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    /// The machine's files.
    pub(crate) root: &'a Root,
    troubles: RefCell<Vec<(What, String)>>,
}

impl<'a> Reading<'a> {
    /// Of this root.
    pub(crate) fn new(root: &'a Root) -> Self {
        Self { root, troubles: RefCell::default() }
    }

    /// What could not be read.
    pub(crate) fn troubles(self) -> Vec<(What, String)> {
        self.troubles.into_inner()
    }

    fn known<T>(&self, what: What, outcome: Result<Option<T>, RootError>) -> Option<T> {
        match outcome {
            Ok(found) => found,
            // A driver's words for "this device has no such thing", or "not while it is down".
            Err(RootError::Refused { errno: Some(22 | 61 | 95), .. }) => None,
            Err(error) => {
                self.troubles.borrow_mut().push((what, error.to_string()));
                None
            }
        }
    }

    /// The text of a file; nothing where it is empty.
    pub(crate) fn text(&self, what: What, path: &str) -> Option<String> {
        let text = self.known(what, self.root.read_at_most(path, 1 << 16))?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The number in a file. Words where numbers are expected (`N/A (no PMA)`, `Unknown`) say that there is none.
    pub(crate) fn number(&self, what: What, path: &str) -> Option<u64> {
        let text = self.text(what, path)?;
        if text.starts_with(|c: char| c.is_alphabetic()) {
            return None;
        }
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        // A link that is down has a speed of -1.
        if number.is_none() && text != "-1" {
            let text: String = text.chars().take(64).collect();
            let error = RootError::NotANumber { path: path.to_owned(), text };
            self.troubles.borrow_mut().push((what, error.to_string()));
        }
        number
    }

    /// The names in a folder.
    pub(crate) fn list(&self, what: What, path: &str) -> Vec<String> {
        self.known(what, self.root.list(path).map(Some)).unwrap_or_default()
    }

    /// Where a folder really is: what is below it is then found without its links.
    pub(crate) fn real(&self, path: &str) -> String {
        self.root.link(path).ok().flatten().unwrap_or_else(|| path.to_owned())
    }
}
