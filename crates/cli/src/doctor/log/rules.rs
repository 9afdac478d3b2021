//! Lines that mean one thing wherever they stand: a table of words, each with its meaning, cost and fix.
//!
//! One automaton looks for all words at once; only a line that holds one is compared with the table. The
//! first rule that fits takes the line, so a special rule stands before the general one.
//!
//! *Invariant*: `order` ranks by what causes what, and never how often something was seen: a worn cable
//! comes before the thousand ranks that lost their peer because of it.

mod errors;
mod kernel;
mod network;
mod ras;
mod start;

use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use memchr::memmem;

use super::super::finding::Verdict;
use super::device;

/// Words that lead to tables of measurements.
const TABLES: &[&str] = &["_perf", "Device         :"];

/// In which lines a rule looks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum In {
    /// Any.
    Any,
    /// Those of NCCL or RCCL.
    Nccl,
    /// Their warnings.
    Warn,
}

/// One thing a line can mean.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) id: &'static str,
    pub(crate) group: &'static str,
    pub(crate) verdict: Verdict,
    /// Smaller is nearer to the root of things.
    pub(crate) order: u16,
    pub(crate) place: In,
    /// One of these must be in the line.
    pub(crate) any: &'static [&'static str],
    /// And one of these, if there are any.
    pub(crate) and: &'static [&'static str],
    pub(crate) title: &'static str,
    pub(crate) cost: &'static str,
    pub(crate) fix: &'static str,
    /// What most likely happened, for the paragraph of the cause.
    pub(crate) cause: &'static str,
}

impl Rule {
    fn fits(&self, line: &[u8], place: In) -> bool {
        let placed = match self.place {
            In::Any => true,
            In::Nccl => place != In::Any,
            In::Warn => place == In::Warn,
        };
        let has = |word: &&str| memmem::find(line, word.as_bytes()).is_some();
        placed && self.any.iter().any(has) && (self.and.is_empty() || self.and.iter().any(has))
    }
}

/// All rules, ready to look.
#[derive(Debug)]
pub(crate) struct Rules {
    words: &'static AhoCorasick,
}

impl Rules {
    /// Builds the automaton, once in a process.
    pub(crate) fn new() -> anyhow::Result<Self> {
        static WORDS: OnceLock<AhoCorasick> = OnceLock::new();
        if let Some(words) = WORDS.get() {
            return Ok(Self { words });
        }
        let words = AhoCorasick::builder()
            // A table of some hundred kilobytes, and one look-up for each byte of a log.
            .kind(Some(AhoCorasickKind::DFA))
            .build(all().flat_map(|(_, rule)| rule.any).chain(device::WORDS).chain(TABLES))?;
        Ok(Self { words: WORDS.get_or_init(|| words) })
    }

    /// Whether the line holds a word of a rule, or one that [`device`] looks for.
    pub(crate) fn touches(&self, line: &[u8]) -> bool {
        self.words.is_match(line)
    }

    /// The rule this line fits, with its number.
    pub(crate) fn find(&self, line: &[u8], place: In) -> Option<(usize, &'static Rule)> {
        all().find(|(_, rule)| rule.fits(line, place))
    }
}

/// Every rule with its number.
pub(crate) fn all() -> impl Iterator<Item = (usize, &'static Rule)> {
    [kernel::RULES, start::RULES, network::RULES, ras::RULES, errors::RULES]
        .into_iter()
        .flatten()
        .enumerate()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_says_what_it_costs_and_what_to_do() {
        let mut ids = BTreeSet::new();
        for (_, rule) in all() {
            assert!(ids.insert(rule.id), "{} stands twice", rule.id);
            assert!(
                !rule.any.is_empty() && rule.any.iter().all(|word| word.len() >= 5),
                "{}",
                rule.id
            );
            for text in [rule.title, rule.cost, rule.fix, rule.cause] {
                assert!(text.len() > 10, "{}: {text:?}", rule.id);
            }
            assert!(rule.cause.ends_with('.') && rule.fix.ends_with('.'), "{}", rule.id);
            assert!(!rule.title.ends_with('.'), "{}", rule.id);
        }
        assert!(ids.len() > 40);
    }
}
